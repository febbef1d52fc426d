"""Is my layer right, and if not, which term is wrong?"""

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Broken, failure_of, name_of
from attnmath._examine.contract.process import judged_apart
from attnmath._examine.layer.conventions import KnownLayer, OwnLayer, possible_layers, understood, with_mask
from attnmath._examine.layer.diagnosis import diagnose_layer
from attnmath._examine.layer.layer import Layer, LayerAnswer, LayerCase
from attnmath._examine.layer.ready_layers import adapted
from attnmath._examine.layer.run import hiding, layer_cases, output_alone
from attnmath._examine.layer.running_error import Tried, right_output
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import changes_of_empty_rows
from attnmath._examine.report.report import Finding, Report, TriedProblem
from attnmath._words.tolerance import CONSTANT

SEED = 0  # of the smallest case


def examine_layer(
    layer: Any, *, weights: Mapping[str, Any] | None = None, backward: Callable | None = None,
    heads: int | None = None, mask: str | None = None, causal: bool | None = None,
    rotary: Callable | None = None, pairing: str | None = None, layout: str | None = None,
    reading: tuple[str, str] | None = None, conventions: Mapping[str, str] | None = None,
    dtype: str | None = None, seed: int | None = None, smallest: bool = True, isolate: bool = False,
    time_limit: float = 30.0,
) -> Report:
    """Whether a layer and its gradients are right; if not, which term is wrong.

    layer(X (b, n, d)) or layer(X, Z (b, m, d_z)) -> Y (b, n, d), weights by name -> report

    layer is what an adapter of attnmath.adapters returns, a module that has an adapter, or a
    function with its weights by name:

        examine_layer(adapters.multihead_attention(torch.nn.MultiheadAttention(12, 3)))
        examine_layer(my_module, weights=dict(my_module.named_parameters()), heads=3)
        examine_layer(f, weights={"W_Q": ..., "W_K": ..., "W_V": ..., "W_O": ..., "b_Q": ...})

    PyTorch's weights are parameters in which other numbers stand while the layer is examined;
    afterwards all is as before. Weights of JAX and NumPy are handed over as the last argument:
    f(X, Z, weights). The orientation and the packing of the weights are found out, so are
    layout and mask; reading and conventions demand. A layer of NumPy, or with a way back of
    its own, gives backward(dY, X, Z, weights) -> {"X": dX, "Z": dZ, "W_Q": dW_Q, ...}; of
    PyTorch without the weights. mask is the keyword of the layer's mask; rotary(n) gives cos
    and sin of its rotary embedding, each (n, d_k). With isolate=True all is done in a process
    of its own, as examine does it, for 40 times time_limit seconds at most. Raises TypeError
    for what is no layer, and ValueError for weights that fit no form.

    >>> import torch
    >>> from attnmath import examine_layer
    >>> examine_layer(torch.nn.MultiheadAttention(12, 3), seed=0).verdict
    'right'

    Derived in chapters/examine.md.
    """
    if isolate:
        given = {k: x for k, x in locals().items() if k not in ("layer", "isolate")}
        work = partial(_here, layer, given)
        return judged_apart(work, name_of(layer), time_limit, lambda doing: None)
    start = time.perf_counter()
    told = Conventions(**(conventions or {}))
    seed = secrets.randbits(31) if seed is None else seed
    if weights is None:
        own, known = None, as_layer(layer)
        candidates = [KnownLayer(known, dtype or known.dtype, seed)]
    else:
        layout = layout or told.layout
        own = OwnLayer(layer, weights, backward, heads, mask, rotary, pairing, causal, layout, reading)
        candidates = list(possible_layers(own, dtype, seed))
    try:
        report = _examined(own, candidates, told, smallest)
    except (Exception, SystemExit, GeneratorExit) as error:  # of ours: it says nothing about the layer
        said = Finding("unnamed", "examination", failure_of(error))
        report = reported(candidates[0], "not judged", told, told, (said,))
    return replace(report, seconds=time.perf_counter() - start)


def _here(layer: Any, given: Mapping[str, Any], say: Callable[[str], None]) -> Report:
    return examine_layer(layer, **given)


def as_layer(layer: Any) -> Layer:
    """What an adapter returned, or what the module's own adapter returns; raises TypeError for another."""
    found = layer if isinstance(layer, Layer) else adapted(layer)
    if found is None:
        raise TypeError(
            f"examine_layer: layer is a {type(layer).__name__}; it needs weights= beside it, its weights"
            " by name, or to be what an adapter of attnmath.adapters returns"
        )
    return found


def _examined(own: OwnLayer | None, candidates: Sequence[KnownLayer], told: Conventions, smallest: bool) -> Report:
    """The report on a layer that may be read in these ways."""
    findings: list[Finding] = []
    known, agreed = understood(candidates, told)
    if own is not None and own.mask is not None:
        known, why = with_mask(known, own, told)
        if why is not None:
            findings.append(Finding("contract", "mask", f"it takes no mask by the name {own.mask!r}: {why}"))
    results = [(case, known.trial(case)) for case in layer_cases(known.draw)]
    done = [x for _, x in results if isinstance(x, Tried)]
    findings += [*broken_contract(results), *diagnose_layer(done)]
    hazards: list[Finding] = []
    means = known.means
    if done and not findings:
        findings += inference(known, results[0][0])
        hazards, empty = padding_alone(known)
        means = means.told(empty=empty)
        if empty is not None and told.empty not in (None, empty):
            title = f"a row that may attend to nothing gives {empty}, and {told.empty} is demanded"
            findings.append(Finding("mistake", f"empty_row_{empty}", title, formula="chapters/empty_rows.md"))
    verdict = "not judged" if not done else "wrong" if findings else "right"
    findings += found_out(known) if agreed else []
    least = None
    if smallest and any(t.wrong for t in done):
        least = smallest_case(known)
    return reported(known, verdict, means, told, tuple(findings), hazards=tuple(hazards), smallest=least,
                    problems=tuple(tried_problem(*x) for x in results), constant=CONSTANT)


def reported(
    known: KnownLayer, verdict: str, means: Conventions, told: Conventions, findings: tuple[Finding, ...],
    **more: Any,
) -> Report:
    """The report on this layer."""
    return Report(verdict, known.layer.name, known.layer.framework, known.dtype, means, findings, told=told,
                  seed=known.seed, **more)


def broken_contract(results: Sequence[tuple[LayerCase, Tried | Broken]]) -> list[Finding]:
    """What was broken, each kind once, with the problems in which it happened."""
    found: dict[str, list[tuple[LayerCase, Broken]]] = {}
    for case, x in results:
        if isinstance(x, Broken):
            found.setdefault(re.split(":| has shape", x.fault.sentence)[0], []).append((case, x))
    out = []
    for broken in found.values():
        cases, fault = [case for case, _ in broken], broken[0][1].fault
        names = ", ".join(f"'{case.name}'" for case in cases[:3])
        more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
        common = frozenset.intersection(*(case.traits for case in cases))
        where = f"in {names}{more}" + (f"; all with {', '.join(sorted(common))}" if common else "")
        out.append(Finding("contract", fault.name, fault.sentence, where))
    return out


def found_out(known: KnownLayer) -> list[Finding]:
    """What was found out about one's own layer."""
    layer, own = known.layer, known.reading
    words = {
        "weights": own and f"the weights are {own.words}",
        "layout": known.layout != "bnd" and f"the tokens are {known.layout}",
        "mask": known.form and f"the mask has the axes {known.form.axes}",
        "causal": own and layer.causal and "it hides later keys by itself",
        "rotary": own and layer.rotary and f"the rotary embedding pairs entries {layer.pairing}",
    }
    return [Finding("convention", name, title) for name, title in words.items() if isinstance(title, str)]


def tried_problem(case: LayerCase, x: Tried | Broken) -> TriedProblem:
    """A problem, as the report has it."""
    name = case.name + (", in train()" if case.train else "")
    if isinstance(x, Broken):
        return TriedProblem(name, case.traits, {}, False, x.fault.sentence)
    return TriedProblem(name, case.traits, x.ratios, not x.wrong)


# ---- beside the verdict: inference, and rows that may attend to nothing -------------------------


def inference(known: KnownLayer, case: LayerCase) -> list[Finding]:
    """Whether the output in eval() without gradients is right as well: there may be a fast path."""
    try:
        Y = output_alone(known.layer, case, known.dtype)
    except Broken as broken:
        return [Finding("contract", *broken.fault)]
    if right_output(Y, case, known.means, known.dtype):
        return []
    title = "the output under torch.no_grad() differs from that with gradients"
    return [Finding("unnamed", "inference", title, "Y", None, "look for a path for inference alone")]


def padded(known: KnownLayer, b: int, n: int, m: int) -> tuple[LayerCase, LayerAnswer | Broken]:
    """A problem in which the last sequence may read nothing, and what came."""
    case = known.draw.case("nothing to read", b, n, m)
    b, _, m = case.lengths
    case = hiding(case, np.broadcast_to((np.arange(b) < b - 1)[:, None, None, None], (b, 1, 1, m)), "empty row")
    return case, known.answer(case)


def padding_alone(known: KnownLayer) -> tuple[list[Finding], str | None]:
    """The policy for a sequence that is padding alone; a hazard where NaN comes out."""
    if "b" not in known.layer.masks or not known.layer.batched:
        return [], None
    case, got = padded(known, 2, 3, 4)
    if isinstance(got, Broken):
        return [Finding("hazard", "empty_row_raises", f"a sequence of padding alone: {got.fault.sentence}")], None
    bad = [name for name, x in got._asdict().items() if x is not None and not np.isfinite(x).all()]
    if not bad:
        return [], policy(known, case, got)
    _, least = padded(known, 1, 1, 1)
    same = not isinstance(least, Broken) and any(x is not None and np.isnan(x).any() for x in least)
    b, n, m = (1, 1, 1) if same else (2, 3, 4)
    weights = any(name[:2] in ("dW", "db") for name in bad)
    title = "makes gradients of weights NaN, for the whole batch" if weights else "makes the output NaN"
    evidence = f"smallest case: {b} x {n} queries, {m} keys, all of them hidden in the last sequence"
    if known.layer.paste and same:
        evidence += "\n" + known.layer.paste
    return [Finding(
        "hazard", "empty_row_nan", f"a sequence of padding alone {title}", "NaN in " + ", ".join(bad),
        "chapters/empty_rows.md", "leave such sequences out, or let each query see one key", evidence,
    )], "nan"


def policy(known: KnownLayer, case: LayerCase, got: LayerAnswer) -> str | None:
    """What a row that may attend to nothing gives: zero, or the mean of the values."""
    t = Tried.of(case, got, known.means, known.dtype)
    if not t.wrong:
        return "zero"
    fitting = []
    for word in ("uniform", "uniform with gradient"):
        s = t.steps(changes_of_empty_rows(Conventions(empty=word)))
        if all(t.gives_output(name, s) for name in t.names):
            far = sum(float(abs(getattr(got, name) - getattr(s, name)).sum()) for name in t.names)
            fitting.append((far, word))
    return min(fitting)[1] if fitting else None


# ---- the smallest problem that it fails --------------------------------------------------------


def smallest_case(known: KnownLayer) -> str | None:
    """The first problem that fails, in the order of its size, as lines to paste; halves and whole numbers."""
    layer, draw = known.layer, known._replace(seed=SEED).draw
    sizes = product((1, 2) if layer.batched else (1,), (1, 2, 3), (1, 2, 3) if layer.cross else (0,))
    for b, n, m in sorted(sizes, key=lambda s: (s[0] * (s[1] + s[2]), s)):
        for last_hidden in (False, True) if layer.masks and max(n, m) > 1 else (False,):
            t = known.trial(in_halves(draw.case("", b, n, m), layer, last_hidden))
            if isinstance(t, Tried) and t.wrong:
                return pasted_lines(t, last_hidden)
    return None


def in_halves(case: LayerCase, layer: Layer, last_hidden: bool) -> LayerCase:
    """A problem of the same sizes, drawn as the lines say."""
    rng = np.random.default_rng(SEED)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return np.divide(rng.integers(-2, 3, shape), 2)

    X, Z, dY = draw(case.X.shape), None if case.Z is None else draw(case.Z.shape), draw(case.dY.shape)
    numbers = {name: draw(shape) for name, shape in layer.shapes.items()}
    case = replace(case, X=X, Z=Z, dY=dY, W=layer.ours(numbers), numbers=numbers)
    if not last_hidden:
        return case
    _, n, m = case.lengths
    return hiding(case, np.broadcast_to(np.arange(m) < max(m - 1, 1), (1, 1, n, m)))


def pasted_lines(t: Tried, last_hidden: bool) -> str:
    """The problem, and what is wrong in it."""
    def numbers(*x: int) -> str:
        return ", ".join(map(str, x))

    tokens = {"X": t.case.X, "Z": t.case.Z, "dY": t.case.dY}
    out = ["import numpy as np", f"rng = np.random.default_rng({SEED})"]
    out.append("draw = lambda *shape: rng.integers(-2, 3, shape) / 2")
    out += [f"{name} = draw({numbers(*x.shape)})" for name, x in tokens.items() if x is not None]
    out.append("weights = {")
    out += [f'    "{name}": draw({numbers(*x.shape)}),' for name, x in t.case.numbers.items()]
    out.append("}")
    if last_hidden:
        out.append("# and the last key is hidden from every query")
    for name in t.wrong:
        got, want = getattr(t.got, name), getattr(t.want, name)
        at = np.unravel_index(np.argmax(np.nan_to_num(abs(got - want), nan=np.inf)), got.shape)
        out.append(f"# {name}[{numbers(*map(int, at))}]: {got[at]:.8g}, right: {want[at]:.8g}")
    return "\n".join(out)
