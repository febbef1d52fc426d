"""What the multiples of the separate terms say: a scale, a row term, a sum over a group."""

from collections.abc import Iterable

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._mistake import ATTENTION, BACK, GROUPS
from attnmath._examine._place import place
from attnmath._examine._report import Finding
from attnmath._examine._terms import Fit, fits

Reading = tuple[str, str, str, str]  # name, sentence, formula, cure


def from_terms(
    case: Case, means: Conventions, got: Answer, off: Answer, wrong: dict[str, np.ndarray]
) -> list[Finding]:
    """What is wrong, if every wrong output is a sum of multiples of its terms; otherwise nothing."""
    found = {x: fit for x, fit in fits(case, means, got, off) if x in wrong}
    if found.keys() != wrong.keys():
        return []
    findings: dict[str, Finding] = {}
    for letter, fit in found.items():
        for name, title, formula, cure in _read(letter, fit, case, means):
            where = place(letter, wrong[letter], getattr(got, letter))
            old = findings.get(name)
            where = f"{old.where}; {where}" if old else where
            findings[name] = Finding("mistake", name, old.title if old else title, where, formula, cure,
                                     "least squares on the separate terms leaves rounding alone")  # fmt: skip
    both = [found[x].dP[0] for x in ("dQ", "dK") if x in found and found[x].all(found[x].dP[0])]
    if findings.keys() == {"dQ_scaled", "dK_scaled"} and len(both) == 2 and found["dQ"].near(both[0] * both[1], 1):
        title = f"dQ is {both[0]:.6g} times too large, and dK as much too small"
        where = "; ".join(x.where or "" for x in findings.values())
        return [Finding("mistake", "dQ_dK_swapscale", title, where, BACK, "scale both by gamma, once")]
    one = found["O"].dP[0] if "O" in found else 0.0
    if len(findings) > 1 and one and all(fit.all(one) for fit in found.values()):
        letters = ", ".join(found)
        return [Finding("mistake", "O_scaled", f"{letters} are {one:.6g} times what they should be", letters,
                        ATTENTION, f"divide O by {one:.6g}",
                        "least squares on the separate terms leaves rounding alone")]  # fmt: skip
    return list(findings.values())


def _read(letter: str, fit: Fit, case: Case, means: Conventions) -> Iterable[Reading]:
    """Name, sentence, formula and cure for each deviation of the coefficients from 1."""
    g = len(fit.dP)
    if g > 1 and not fit.near(fit.dP, fit.dP.mean()):
        weights = ", ".join(f"{c:.3g}" for c in fit.dP)
        alone = np.flatnonzero(~np.array([fit.near(c, 0) for c in fit.dP]))
        name = {(g - 1,): "gqa_last", (0,): "gqa_first"}.get(tuple(alone), "gqa_weights")
        yield (name, f"the members of a group come into dK and dV with the weights {weights}", GROUPS,
               "add over the group, each with weight 1")  # fmt: skip
        c = fit.dP[np.argmax(np.abs(fit.dP))]
        if name != "gqa_weights" and not fit.near(c, 1):
            yield from _scaled(letter, float(c), fit, case, means)
    else:
        c = float(fit.dP.mean())
        if not fit.near(c, 1):
            yield from _scaled(letter, c, fit, case, means)
    if fit.D is not None and np.abs(fit.dP).max() > fit.off:
        used = np.abs(fit.dP) > 8 * fit.off
        ratio = fit.D[used] / fit.dP[used]
        if not fit.near(ratio, 1):
            yield from _row_term(ratio, fit, case)


def _row_term(ratio: np.ndarray, fit: Fit, case: Case) -> Iterable[Reading]:
    c = float(ratio.mean())
    known = {
        0.0: ("D_missing", "the row term D is missing: dA = P o dP"),
        -1.0: ("D_sign", "the row term D has the wrong sign: dA = P o (dP + D)"),
        0.5: ("D_detached_half", "the row term D is halved"),
        1 / case.K.shape[2]: ("D_mean", "the row term D is a mean over the keys instead of a sum"),
    }
    for value, (name, title) in known.items():
        if fit.near(ratio, value):
            yield name, title, BACK, "subtract D, the row sum of dO o O, from dP"
            return
    yield "D_scaled", f"the row term D is {c:.6g} times what it should be", BACK, "subtract D, once"


def _scaled(letter: str, c: float, fit: Fit, case: Case, means: Conventions) -> Iterable[Reading]:
    """A whole output is a multiple of what it should be."""
    gamma, s = case.gamma(means), case.sizes
    g = s["H"] // s["G"]
    if fit.near(c, 0):
        yield f"{letter}_zero", f"{letter} is zero", BACK, f"compute {letter}, and return it"
        return
    known = {"gamma": gamma, "1/gamma": 1 / gamma if gamma else 0.0, "ln 2": np.log(2), "log2(e)": 1 / np.log(2)}
    if letter in ("dK", "dV"):
        known |= {"1/(H/G)": 1 / g, "H/G": g}
    if letter == "dB":
        known |= {"1/b": 1 / s["b"], "b": s["b"]}
    word = next((f" = {w}" for w, x in known.items() if x != 1 and fit.near(c, x)), "")
    name = {
        ("dQ", " = 1/gamma"): "dQ_noscale", ("dK", " = 1/gamma"): "dK_noscale",
        ("dQ", " = gamma"): "dQ_scale2", ("dK", " = gamma"): "dK_scale2",
        ("dK", " = 1/(H/G)"): "gqa_mean", ("dV", " = 1/(H/G)"): "gqa_mean",
        ("dB", " = 1/b"): "dB_mean", ("dB", " = gamma"): "dB_scaled",
    }.get((letter, word))  # fmt: skip
    formula = GROUPS if name == "gqa_mean" else ATTENTION if letter == "O" else BACK
    title = f"{letter} is {c:.6g}{word} times what it should be"
    yield name or f"{letter}_scaled", title, formula, f"divide {letter} by {c:.6g}{word}"
