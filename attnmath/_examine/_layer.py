"""Is my layer right, and if not, which term is wrong?"""

import re
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any

from attnmath._examine._calls import failure
from attnmath._examine._case import Conventions
from attnmath._examine._layer_adapters import adapted
from attnmath._examine._layer_described import Broken, Layer
from attnmath._examine._layer_detect import Known, Own, possible, trial, understood, with_mask
from attnmath._examine._layer_diagnosis import diagnose
from attnmath._examine._layer_families import problems
from attnmath._examine._layer_hazards import empty_rows, inference
from attnmath._examine._layer_judge import Tried
from attnmath._examine._layer_smallest import smallest_case
from attnmath._examine._report import Finding, Problem, Report
from attnmath._tolerance import CONSTANT


def examine_layer(
    layer: Any, *, weights: Mapping[str, Any] | None = None, backward: Callable | None = None,
    heads: int | None = None, mask: str | None = None, causal: bool | None = None,
    rotary: Callable | None = None, pairing: str | None = None, layout: str | None = None,
    reading: tuple[str, str] | None = None, conventions: Mapping[str, str] | None = None,
    dtype: str | None = None, seed: int | None = None, smallest: bool = True,
) -> Report:  # fmt: skip
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
    and sin of its rotary embedding, each (n, d_k). Raises TypeError for what is no layer, and
    ValueError for weights that fit no form.
    Derived in chapters/examine.md.
    """
    start = time.perf_counter()
    told = Conventions(**(conventions or {}))
    seed = secrets.randbits(31) if seed is None else seed
    layout = layout or told.layout
    own = Own(layer, weights or {}, backward, heads, mask, rotary, pairing, causal, layout, reading)
    own, candidates = _candidates(layer, weights, own)
    dtype = dtype or candidates[0].layer.dtype
    try:
        return _examined(own, candidates, told, dtype, seed, smallest, start)
    except (Exception, SystemExit, GeneratorExit) as error:  # of ours: it says nothing about the layer
        layer, said = candidates[0].layer, Finding("unnamed", "examination", failure(error))
        return Report("not judged", layer.name, layer.framework, dtype, told, (said,), told=told, seed=seed,
                      seconds=time.perf_counter() - start)  # fmt: skip


def _examined(
    own: Own | None, candidates: list[Known], told: Conventions, dtype: str, seed: int, smallest: bool,
    start: float,
) -> Report:  # fmt: skip
    """The report on a layer that may be read in these ways."""
    broken: list[Finding] = []
    known, agreed = understood(candidates, told, dtype, seed)
    if own is not None and own.mask is not None:
        known, why = with_mask(known, own, told, dtype, seed)
        if why is not None:
            broken.append(Finding("contract", "mask", f"it takes no mask by the name {own.mask!r}: {why}"))
    given = list(problems(known.layer, dtype, seed))
    results = [(g, trial(known, g, dtype)) for g in given]
    done = [x for _, x in results if isinstance(x, Tried)]
    findings = [*broken, *contract(results), *diagnose(done, known.means)]
    hazards, means = [], known.means
    if done and not findings:
        findings += inference(known, given[0], dtype)
        hazards, empty = empty_rows(known, dtype, seed)
        means = means.told(empty=empty)
        if empty is not None and told.empty not in (None, empty):
            title = f"a row that may attend to nothing gives {empty}, and {told.empty} is demanded"
            findings.append(Finding("mistake", f"empty_row_{empty}", title, formula="chapters/empty_rows.md"))
    wrong = bool(findings)
    findings += stated(known) if agreed else []
    verdict = "not judged" if not done else "wrong" if wrong else "right"
    least = smallest_case(known, dtype) if smallest and any(t.wrong for t in done) else None
    return Report(
        verdict, known.layer.name, known.layer.framework, dtype, means, tuple(findings), tuple(hazards),
        tuple(map(_problem, results)), least, time.perf_counter() - start, CONSTANT, told, seed,
    )  # fmt: skip


def _candidates(layer: Any, weights: Mapping | None, own: Own) -> tuple[Own | None, list[Known]]:
    """What the layer may be; own, if it is one's own."""
    if weights is not None:
        return own, list(possible(own))
    if not isinstance(layer, Layer):
        found = adapted(layer)
        if found is None:
            raise TypeError(
                f"examine_layer: layer is a {type(layer).__name__}; it needs weights= beside it, its weights"
                " by name, or to be what an adapter of attnmath.adapters returns"
            )
        layer = found
    known = [Known(layer, Conventions())]
    return None, known


def contract(results: list) -> list[Finding]:
    """What was broken, each kind once, with the problems in which it happened."""
    found: dict[str, list] = {}
    for g, x in results:
        if isinstance(x, Broken):
            found.setdefault(re.split(":| has shape", str(x))[0], []).append((x.name, g.case, str(x)))
    out = []
    for cases in found.values():
        names = ", ".join(f"'{case.name}'" for _, case, _ in cases[:3])
        more = f" and {len(cases) - 3} more" if len(cases) > 3 else ""
        common = frozenset.intersection(*(case.traits for _, case, _ in cases))
        where = f"in {names}{more}" + (f"; all with {', '.join(sorted(common))}" if common else "")
        out.append(Finding("contract", cases[0][0], cases[0][2], where))
    return out


def stated(known: Known) -> list[Finding]:
    """What was found out about one's own layer."""
    words = []
    if known.reading is not None:
        words.append(("weights", f"the weights are {known.reading.words}"))
    if known.layout != "bnd":
        words.append(("layout", f"the tokens are {known.layout}"))
    if known.mask is not None:
        words.append(("mask", f"the mask has the axes {known.mask[1]}"))
    if known.layer.causal and known.reading is not None:
        words.append(("causal", "it hides later keys by itself"))
    if known.layer.rotary is not None and known.reading is not None:
        words.append(("rotary", f"the rotary embedding pairs entries {known.layer.pairing}"))
    return [Finding("convention", name, title) for name, title in words]


def _problem(result: tuple) -> Problem:
    g, x = result
    name = g.case.name + (", in train()" if g.train else "")
    if isinstance(x, Broken):
        return Problem(name, g.case.traits, {}, False, str(x))
    return Problem(name, g.case.traits, x.ratios, not x.wrong)
