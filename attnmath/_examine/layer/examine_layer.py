"""Is my layer right, and if not, which term is wrong?"""

import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from attnmath._examine.contract.functions import Broken, failure_of, name_of
from attnmath._examine.contract.process import judged_apart
from attnmath._examine.contract.state import given_back
from attnmath._examine.diagnosis.extent import unusual
from attnmath._examine.layer.beside import empty_rows, further_weights, inference, smallest_case
from attnmath._examine.layer.conventions import KnownLayer, possible_layers, understood, with_latent, with_mask
from attnmath._examine.layer.diagnosis import diagnose_layer
from attnmath._examine.layer.draw import layer_cases
from attnmath._examine.layer.layer import Layer, LayerCase
from attnmath._examine.layer.over_ranks import layer_over_ranks
from attnmath._examine.layer.own_function import as_own_function, untried
from attnmath._examine.layer.own_layer import OwnLayer, aliased, found_weights, unlearned
from attnmath._examine.layer.ready_layers import adapted
from attnmath._examine.layer.tried import Tried
from attnmath._examine.problems.case import Conventions
from attnmath._examine.ranks.spread import spread_of
from attnmath._examine.report.report import Finding, Report, TriedProblem
from attnmath._words.tolerance import CONSTANT


def examine_layer(
    layer: Any, *, weights: Mapping[str, Any] | None = None, backward: Callable | None = None,
    heads: int | None = None, mask: str | None = None, causal: bool | None = None,
    rotary: Callable | None = None, pairing: str | None = None, layout: str | None = None,
    reading: tuple[str, str] | None = None, conventions: Mapping[str, str] | None = None,
    dtype: str | None = None, seed: int | None = None, smallest: bool = True, ranks: int | None = None,
    reference: Any = None, without: Sequence[str] = (), isolate: bool = False, time_limit: float = 30.0,
) -> Report:
    """Whether a layer and its gradients are right; if not, which term is wrong.

    layer(X (b, n, d)) or layer(X, Z (b, m, d_z)) -> Y (b, n, d), weights by name -> report

    layer is what an adapter of attnmath.adapters returns, a module of PyTorch, whose weights are
    found, or a function with its weights by name:

        examine_layer(adapters.multihead_attention(torch.nn.MultiheadAttention(12, 3)))
        examine_layer(my_module)
        examine_layer(f, weights={"W_Q": ..., "W_K": ..., "W_V": ..., "W_O": ..., "b_Q": ...})

    PyTorch's weights are parameters in which other numbers stand while the layer is examined; afterwards all is
    as before. Rotated, normed and capped heads, slopes, tables, windows, sinks and latents are found out, with
    what of them is learned. Weights of JAX and NumPy are handed over as the last argument: f(X, Z, weights). The
    orientation and the packing of the weights are found out, so are layout and mask; reading and conventions
    demand. A layer of NumPy, or with a way back of its own, gives backward(dY, X, Z, weights) -> {"X": dX, "Z":
    dZ, "W_Q": dW_Q, ...}; of PyTorch without the weights. mask is the keyword of the layer's mask; rotary(n)
    gives cos and sin of its rotary embedding, each (n, d_k). A layer of PyTorch that is none of the list is
    judged by the derivatives of its own output; or beside reference, a layer of your own with parameters of the
    same names and shapes. without names weights that are meant to get no gradient. With isolate=True all is done
    in a process of its own, for 40 times time_limit seconds at most. With ranks=4 a module is called on each of
    four ranks with that rank's tokens, which layout says, "contiguous" or "zigzag"; conventions={"replicated":
    "sum"} demands that a rank's gradients of the weights are summed over the ranks, "part" that they are its own
    part. Raises TypeError for what is no layer, and ValueError for weights that fit no form.

    >>> import torch
    >>> from attnmath import examine_layer
    >>> examine_layer(torch.nn.MultiheadAttention(12, 3), seed=0).verdict
    'right'

    Derived in chapters/examine.md.
    """
    given = {k: x for k, x in locals().items() if k not in ("layer", "isolate", "ranks")}
    if spread := spread_of(ranks, layout):
        return layer_over_ranks(layer, spread, {**given, "layout": None}, isolate, examine_layer)
    if isolate:
        work = partial(_here, layer, given)
        return judged_apart(work, name_of(layer), time_limit, lambda doing: None)
    start, demands = time.perf_counter(), dict[str, Any](conventions or {})
    told = Conventions(**demands, ranks=getattr(layer, "spread", None))
    seed = secrets.randbits(31) if seed is None else seed
    known = weights is None and reference is None and told.ranks is None and as_layer(layer)
    own, candidates = None, [KnownLayer(known, dtype or known.dtype, seed)] if known else []
    if not known:
        layout = layout or told.layout
        own = own_layer(layer, weights, backward, heads, mask, rotary, pairing, causal, layout, reading)
        candidates = [] if reference is not None else forms_of(own, dtype, seed)
    with given_back():
        report = _judged(own, candidates, reference, told, dtype, seed, smallest, without)
    kept = own.kept if own else candidates[0].layer.kept
    hazards = *report.hazards, *(Finding("hazard", *said) for said in kept.sentences)
    return replace(report, seconds=time.perf_counter() - start, hazards=hazards)


def _judged(
    own: OwnLayer | None, candidates: Sequence[KnownLayer], reference: Any, told: Conventions, dtype: str | None,
    seed: int, smallest: bool, without: Sequence[str],
) -> Report:
    """The report on a layer that is known or may be read in some ways, or on one of its own."""
    try:
        findings = [Finding("contract", "no_gradient", x) for x in unlearned(own, without)] if own else []
        known, agreed = understood(candidates, told) if candidates else (None, False)
        latent = with_latent(own, told, dtype, seed) if own and not agreed and reference is None else None
        known, agreed = (latent, True) if latent else (known, agreed)
        report = _examined(own, known, agreed, told, smallest, findings) if known else None
        if report is None and own is not None:
            own.way = known.way if known and known.way.keys else None
            beside = own_layer(reference, None) if reference is not None else None
            report = as_own_function(own, beside, dtype, told, seed, findings)
        assert report is not None
        return report
    except (Exception, SystemExit, GeneratorExit) as error:  # of ours: it says nothing about the layer
        said = Finding("unnamed", "examination", failure_of(error))
        name = own.name if own else candidates[0].layer.name
        return Report("not judged", name, None, dtype, told, (said,), told=told, seed=seed)


def _here(layer: Any, given: Mapping[str, Any], say: Callable[[str], None]) -> Report:
    return examine_layer(layer, **given)


def forms_of(own: OwnLayer, dtype: str | None, seed: int) -> list[KnownLayer]:
    """Everything that it may be; nothing for a layer of PyTorch that fits no form."""
    try:
        return list(possible_layers(own, dtype, seed))
    except ValueError:
        if not own.is_torch or own.heads is not None:
            raise
        return []


def own_layer(layer: Any, weights: Mapping[str, Any] | None, *more: Any) -> OwnLayer:
    """A layer with its weights, found where they are not given; raises TypeError where there are none."""
    weights = found_weights(layer) if weights is None else aliased(layer, weights)
    if not weights or not callable(layer):
        raise TypeError(
            f"examine_layer: layer is a {type(layer).__name__}; it needs weights= beside it, its weights"
            " by name, or to be a module that has some"
        )
    return OwnLayer(layer, weights, *more)


def as_layer(layer: Any) -> Layer | None:
    """What an adapter returned, or what the module's own adapter returns, if it has one that takes it."""
    try:
        return layer if isinstance(layer, Layer) else adapted(layer)
    except (TypeError, ValueError):  # of its class, but in a form that the adapter does not know
        return None


def _examined(
    own: OwnLayer | None, known: KnownLayer, agreed: bool, told: Conventions, smallest: bool,
    findings: Sequence[Finding],
) -> Report | None:
    """The report on a layer that is read in this way, and its output agreed or not; None for another function."""
    known, more = masked(known, own, told, agreed)
    findings = [*findings, *more]
    results = [(case, known.trial(case)) for case in layer_cases(known.draw)]
    done = [x for _, x in results if isinstance(x, Tried)]
    if known.means.pieces and any("Y" in t.wrong for t in done):
        return None
    named = diagnose_layer(done, known.fresh)
    short = known.dtype in ("bfloat16", "float16") and known.layer.framework == "torch"
    if named and short:  # in float32, if it is wrong there too
        wide = known._replace(dtype="float32")
        tried = [x for x in map(wide.trial, layer_cases(wide.draw)) if isinstance(x, Tried)]
        named = diagnose_layer(tried, wide.fresh) or named
    telling = tried if named and short else done
    if own is not None and own.is_torch and not agreed and another_function(telling, named):
        return None
    refused = broken_contract(results)
    few, means, hazards = 2 * len(done) < len(results), known.means, list[Finding]()
    findings += [x for x in refused if few or x.kind == "contract"] + named + further_weights(known, results[0][0])
    if done and not findings:
        findings += inference(known, results[0][0])
        hazards, empty = empty_rows(known)
        means = means.told(empty=empty)
        hazards += unusual(means, told)
        if empty is not None and told.empty not in (None, empty):
            title = f"a row that may attend to nothing gives {empty}, and {told.empty} is demanded"
            findings.append(Finding("mistake", f"empty_row_{empty}", title, formula="chapters/empty_rows.md"))
    wrong = named or any(x.kind != "convention" for x in findings)
    verdict = "not judged" if not done or few and not named else "wrong" if wrong else "right"
    findings += [x for x in refused if x not in findings]
    findings += found_out(known) if agreed else []
    if own is not None:
        findings += untried(own, (own.mask if known.form else None, *(x for x, _ in known.way.more)))
    least = smallest_case(known) if smallest and any(t.wrong for t in done) else None
    return Report(verdict, known.layer.name, known.layer.framework, known.dtype, means, tuple(findings),
                  tuple(hazards), tuple(tried_problem(*x) for x in results), least, constant=CONSTANT, told=told,
                  seed=known.seed)


def masked(
    known: KnownLayer, own: OwnLayer | None, told: Conventions, agreed: bool
) -> tuple[KnownLayer, list[Finding]]:
    """The layer with its masks, by the keyword that was given, or by one that it has and that is one."""
    if own is None:
        return known, []
    if given := own.mask:
        found, why = with_mask(known, own, told)
        title = f"it takes no mask by the name {given!r}: {why}"
        return found, [Finding("contract", "mask", title)] if why else []
    for name in [p.name for p in own.arguments() if "mask" in p.name] if agreed else []:
        own.mask = name
        found, _ = with_mask(known, own, told)
        if found.form is not None:
            return found, []
    own.mask = None
    return known, []


def another_function(done: Sequence[Tried], named: Sequence[Finding]) -> bool:
    """Whether its output is that of attention in no problem that says something, or in short ones alone."""
    if named and all(x.kind == "mistake" and x.name != "residual_inside" for x in named):
        return False
    plain = [t for t in done if t.case.keep is None and not t.case.traits & {"uniform", "tiny"}]
    telling = [t for t in plain if min(t.case.lengths[1:]) > 1]
    right, off = ([max(t.case.lengths[1:]) for t in telling if ("Y" in t.wrong) == x] for x in (False, True))
    return not right or bool(off) and max(right) < min(off)


def broken_contract(results: Sequence[tuple[LayerCase, Tried | Broken]]) -> list[Finding]:
    """What was broken, each kind once, with the problems in which it happened."""
    found: dict[str, list[tuple[LayerCase, Broken]]] = {}
    for case, x in results:
        if isinstance(x, Broken):
            found.setdefault(re.split(":| has shape", x.fault.sentence)[0], []).append((case, x))
    out = []
    for broken in found.values():
        cases, fault = [case for case, _ in broken], broken[0][1].fault
        where = "in " + ", ".join(f"'{case.name}'" for case in cases[:3])
        where += f" and {len(cases) - 3} more" if len(cases) > 3 else ""
        common = sorted(frozenset.intersection(*(case.traits for case in cases)))
        where += f"; all with {', '.join(common)}" if common else ""
        if fault.name == "raises" and len(cases) < len(results):  # which is its right
            title = f"it does not take {len(cases)} of the problems: {fault.sentence}"
            out.append(Finding("convention", "refuses", title, where))
        else:
            out.append(Finding("contract", *fault, where))
    return out


def found_out(known: KnownLayer) -> list[Finding]:
    """What was found out about one's own layer."""
    layer, own = known.layer, known.reading
    words = {
        "weights": own and f"the weights are W_Q, W_K, W_V {own.into}, W_O {own.out}",
        "widths": known.way.keys and "keys and values have tokens of their own: Z and dZ hold both, side by side",
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


