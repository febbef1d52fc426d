"""Mistakes in the Triton kernels: a copy of their modules in which something is written otherwise."""

import sys
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import attnmath.torch

FOLDER = Path(attnmath.torch.__file__).parent
ALL = "output tangent gradients second"


@dataclass(frozen=True)
class Planted:
    """A module, what is wrong then, what stands there, and what stands there by mistake."""

    module: str
    wrong: frozenset
    written: tuple


def planted(module, wrong, *written):
    return Planted(module, frozenset(wrong.split()), tuple(zip(written[::2], written[1::2])))


MISTAKES = {
    # ---- one pass, sums that are rescaled
    "N not brought to the new largest score": planted(
        "forward", "output", "N = times(E.to(v.dtype), v, N * past[:, None])", "N = times(E.to(v.dtype), v, N)"),
    "s not brought to the new largest score": planted(
        "forward", "output L", "s = s * past + tl.sum(E, 1)\n        E = dropped", "s = s + tl.sum(E, 1)\n        E = dropped"),
    "L without the largest score": planted(
        "forward", "L", "c_max + tl.log(", "tl.log("),
    "L of weights after dropout": planted(
        "forward", "output", "s = s * past + tl.sum(E, 1)\n        E = dropped(E, factors(h, i[:, None], j[None, :], c))",
        "E = dropped(E, factors(h, i[:, None], j[None, :], c))\n        s = s * past + tl.sum(E, 1)"),
    "U not brought to the new largest score": planted(
        "forward", "tangent", "U = U * past[:, None]", "U = U * 1"),
    "mu not brought to the new largest score": planted(
        "forward", "tangent", "mu = mu * past", "mu = mu * 1"),
    "mu missing in the tangent of the output": planted(
        "forward", "tangent", "U - mu[:, None] * N", "U"),
    "mu of what dropout leaves": planted(
        "forward", "tangent", "mu += tl.sum(F, 1)", "mu += tl.sum(dropped(F, R), 1)"),
    "the values do not move": planted(
        "forward", "tangent", "if v_dot is not None:\n            U", "if False:\n            U"),
    "the sink does not move": planted(
        "forward", "tangent", "mu += s * tl.load(x.sinks_dot + h)", "mu += 0 * s"),
    "no sink": planted(
        "forward", ALL, "if x.sinks is not None:", "if False:"),
    # ---- double backward
    "frozen statistics: mu missing": planted(
        "entries", "second", "P_dot = P * (A_dot - mu)", "P_dot = P * A_dot"),
    "frozen D: no D_dot": planted(
        "entries", "gradients second", "moved = dP_dot - D_dot", "moved = dP_dot"),
    "no D in what P_dot multiplies": planted(
        "entries", "second", "dA_dot = product_of(P_dot, dP - D)", "dA_dot = product_of(P_dot, dP)"),
    "D not brought to the new largest score": planted(
        "rows", "second", "mu, D = mu * past, D * past", "mu, D = mu * past, D * 1"),
    "mu not brought to the new largest score, second order": planted(
        "rows", "second", "mu, D = mu * past, D * past", "mu, D = mu * 1, D * past"),
    "the sink's part of D_dot missing": planted(
        "rows", "second", "D_dot -= tl.exp(", "D_dot -= 0 * tl.exp("),
    "P V_dot missing in the tangent of O": planted(
        "rows", "second", "N = times(PR.to(v.dtype), v_dot, N)", "N = N * 1"),
    "dA K_dot dropped": planted(
        "rows", "second", "dQ_dot = times(dA.to(k.dtype), k_dot, dQ_dot)", "dQ_dot = dQ_dot * 1"),
    "dA^T Q_dot dropped": planted(
        "columns", "second", "of_K = times(dA.to(k.dtype), q_dot, of_K)", "of_K = of_K * 1"),
    "dropout missing in the tangent of dP": planted(
        "entries", "gradients second", "dP_dot = dropped(tangent_of_product(a, b, a_dot, b_dot), R)",
        "dP_dot = tangent_of_product(a, b, a_dot, b_dot)"),
    "the bend of the cap does not move": planted(
        "entries", "second", "dA_dot = dA_dot - 2 / c.cap * X_dot * T * dA", "dA_dot = dA_dot * 1"),
    "the scale missing in the tangent of dK": planted(
        "columns", "gradients second", "c.scale * of_K", "of_K"),
    "of heads that share keys the last one alone": planted(
        "columns", "gradients second", "for one in range(sharers):\n        h = tl.load(shared + g * sharers + one)\n        for",
        "for one in range(sharers - 1, sharers):\n        h = tl.load(shared + g * sharers + one)\n        for"),
    "of heads that share a bias the first one alone": planted(
        "columns", "gradients second", "for one in range(sharers):\n        h = tl.load(shared + g * sharers + one)\n        q",
        "for one in range(1):\n        h = tl.load(shared + g * sharers + one)\n        q"),
    # ---- tiles
    "causal, off by one": planted(
        "tile", ALL + " L", "found & (j <= i + c.last)", "found & (j < i + c.last)"),
    "the last keys of a block of rows left out": planted(
        "tile", ALL, "tl.minimum(i0 + ROWS + c.last, c.m)", "tl.minimum(i0 + c.last + 1, c.m)"),
    "the last rows of a block of keys left out": planted(
        "tile", "gradients second", "tl.minimum(j0 + KEYS - c.first, c.n)", "tl.minimum(j0 + 1 - c.first, c.n)"),
    "a cap without its bend": planted(
        "tile", "tangent second", "A_dot = X_dot * (1 - T * T)", "A_dot = X_dot * 1"),
    "the distance from the upper left": planted(
        "tile", ALL, "tl.abs(j - i - (c.m - c.n))", "tl.abs(j - i)"),
    "the bias does not move": planted(
        "tile", "tangent second", "if x.B_dot is not None:", "if False:"),
    "the scale missing in the tangent of the scores": planted(
        "tile", "tangent second", "X_dot = c.scale * X_dot", "X_dot = 1 * X_dot"),
    # ---- dropout
    "what is left is not scaled up": planted(
        "tile", ALL, "c.least, c.lift, 0.0)", "c.least, 1.0, 0.0)"),
    "halves of a word not exchanged": planted(
        "tile", ALL, "(word >> 16) | (word << 16)", "word"),
    "each head drops what the first one drops": planted(
        "tile", ALL, "head = tl.load(c.places + 10 * c.heads + h)", "head = tl.load(c.places + 10 * c.heads + 0 * h)"),
    "the keys of each tile drop what the first ones drop": planted(
        "tile", ALL, "c3 = (j.to(tl.int64) + c.key)", "c3 = ((j % 16).to(tl.int64) + c.key)"),
}


TELLING = {  # one in each kernel
    "output": "s not brought to the new largest score",
    "output_jvp": "mu not brought to the new largest score",
    "by_rows": "D not brought to the new largest score",
    "by_columns": "dA^T Q_dot dropped",
    "by_tiles": "of heads that share a bias the first one alone",
}


@contextmanager
def mistaken(name, folder):
    """The module that calls the kernels, with one mistake in them."""
    mistake = MISTAKES[name]
    package = f"planted_{list(MISTAKES).index(name)}"
    (folder / package).mkdir()
    for path in FOLDER.glob("triton_*.py"):
        text = path.read_text("utf-8").replace("attnmath.torch.triton_", f"{package}.triton_")
        if path.stem == f"triton_{mistake.module}":
            for right, wrong in mistake.written:
                assert text.count(right) == 1, (name, text.count(right))
                text = text.replace(right, wrong)
        (folder / package / path.name).write_text(text, "utf-8")
    sys.path.insert(0, str(folder))
    try:
        yield import_module(f"{package}.triton_launch")
    finally:
        sys.path.remove(str(folder))
        for module in [module for module in sys.modules if module.partition(".")[0] == package]:
            del sys.modules[module]
