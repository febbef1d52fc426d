"""What a candidate does beside its numbers: habits that none may break, hazards to those who use a right one."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.contract import GRADIENT_OF
from attnmath._examine.contract.functions import Fault
from attnmath._examine.diagnosis.paste import pasted
from attnmath._examine.diagnosis.probes import TRIED, small_problem
from attnmath._examine.diagnosis.repeated import after_longer, gaussian_problem, largest, repeated, unlike
from attnmath._examine.problems.case import Answer, Case, Conventions, Sizes
from attnmath._examine.problems.steps import Steps
from attnmath._examine.report.report import Finding
from attnmath.rounding.formats import FORMATS, nearest, unit_roundoff

GRADIENT_LETTERS = "dQ", "dK", "dV"
Taken = tuple[Sizes, Case, Answer, Answer]  # sizes, a problem, what came, what is right
BY_KEYS = "are too large, by a factor of the number of keys"
# The smallest first; a kernel may not take them, and then the sizes that it was seen to take.
SMALLEST = Sizes(1, 1, 1, 2, 1, 1), Sizes(1, 1, 2, 2, 1, 1), Sizes(1, 1, 4, 4, 16, 16)


def broken_habits(candidate: Candidate, means: Conventions) -> list[Fault]:
    """What the candidate does that no attention may do, found by calling it again."""
    candidate, sizes = candidate.uncompiled(), candidate.sizes or TRIED[0]
    first = repeated(candidate, means, sizes)
    if any(fault.name != "unordered_sums" for fault in first):
        return first  # what else is seen comes of that
    found = first + (_stale(candidate, means, sizes) or after_longer(candidate, means, sizes))
    for check in (_ordered, *(() if first else (_proportional, _alone))):  # the last two compare bit for bit
        faults = check(candidate, means, sizes)
        if faults and faults != check(candidate, means, sizes):
            return [Fault("nondeterministic", f"not each time that it is tried: {faults[0].sentence}")]
        found += faults
    return found


def _proportional(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """The gradients of 0 are 0, and those of 2 dO are twice those of dO, bit for bit."""
    case = gaussian_problem(candidate, sizes, 1)
    one, zero, two = (
        candidate.run(replace(case, dO=factor * case.dO), means).answer for factor in (1.0, 0.0, 2.0)
    )
    if one is None or zero is None or two is None or one.dQ is None:
        return []
    grown = [name for name in GRADIENT_LETTERS if np.any(zero.there.get(name, 0))]
    if grown:
        same = all(np.array_equal(zero.there[name], one.there[name]) for name in grown)
        if same:
            if grown == [x for x in GRADIENT_LETTERS if np.any(one.there.get(x, 0))]:
                return [Fault("dO_ignored", "the gradient dO is ignored: dO = 0 gives the same gradients")]
            those = " and ".join(grown)
            return [Fault("dO_ignored", f"the gradient dO is ignored in {those}: dO = 0 gives the same {those}")]
        return [Fault("not_linear", f"{' and '.join(grown)} of dO = 0 are not 0")]
    if candidate.dtype == "float16":  # its least numbers round when they are doubled
        return []
    off = [name for name in unlike(two, one.each(lambda x: 2 * x)) if name != "O"]
    if off:
        return [Fault("not_linear", f"{' and '.join(off)} of 2 dO are not exactly twice those of dO")]
    return []


def _stale(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """Right in the first call with new shapes, wrong in the second, whichever problem comes first."""
    for b, seeds in ((5, (3, 4)), (6, (4, 3))):
        cases = [gaussian_problem(candidate, replace(sizes, b=b), seed) for seed in seeds]
        outcomes = [candidate.run(case, means) for case in cases]
        errors = [largest(Steps(x.case, means).answer(), x.answer) for x in outcomes if x.answer is not None]
        if len(errors) < 2:
            return []
        first, second = errors
        if not (first <= 0.03 and second >= 0.2):  # also where one of them is NaN
            return []
    sentence = "right in the first call with new shapes, wrong in the second: it uses what it kept of the first"
    return [Fault("stale_kv", sentence)]


def _ordered(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """dQ, dK, dV in this order, where their shapes do not tell them apart."""
    size = sizes.d_k
    case = gaussian_problem(candidate, replace(sizes, n=sizes.m, d_k=size, d_v=size), 4)
    outcome = candidate.run(case, means)
    answer, want = outcome.answer, Steps(outcome.case, means).answer()
    if answer is None or any(getattr(answer, name) is None for name in GRADIENT_LETTERS):
        return []
    got = [getattr(answer, name) for name in GRADIENT_LETTERS]
    for order in itertools.permutations(range(3)) if len({x.shape for x in got}) == 1 else ():
        near = [largest(Answer(getattr(want, GRADIENT_LETTERS[i])), Answer(x)) < 0.05 for x, i in zip(got, order)]
        if all(near) and order != (0, 1, 2):
            name = "kv_swapped" if order == (0, 2, 1) else "wrong_order"
            come = ", ".join(GRADIENT_LETTERS[i] for i in order)
            return [Fault(name, f"the gradients come as {come}, where dQ, dK, dV are expected")]
    return []


def _alone(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """Each argument alone requires a gradient; on problems that are exact in every format."""
    if candidate.library.name != "torch" or candidate.backward is not None:
        return []
    m = sizes.m if sizes.square and sizes.m > 7 else 4
    s, rng = replace(sizes, n=m if sizes.square else 5, m=m), np.random.default_rng(5)
    case, faults = small_problem(s, rng), []
    V, dO = (rng.integers(-1, 2, x.shape).astype(float) for x in (case.V, case.dO))
    no_queries = replace(case, V=V, dO=dO)
    units = np.broadcast_to(np.eye(s.n, s.d_k), case.Q.shape)
    no_keys = replace(no_queries, Q=np.array(units), K=np.zeros(case.K.shape))
    exact = {"dQ": no_queries, "dK": no_keys, "dV": no_queries}
    if "bias" in candidate.options:
        exact["dB"] = replace(no_queries, bias=np.zeros((1, 1, s.n, s.m)))
    for name, problem_ in exact.items():
        want = getattr(candidate.run(problem_, means).answer, name, None)
        if want is None or not np.array_equal(want, getattr(Steps(problem_, means).answer(), name)):
            continue  # it is wrong in any case
        outcome = candidate.run(problem_, means, only=name)
        got = getattr(outcome.answer, name, None)
        if got is None or not np.array_equal(got, want):
            letter = GRADIENT_OF[name]
            why = outcome.error.sentence if outcome.error else f"{name} is another than with the others"
            faults.append(Fault("requires_grad", f"it fails where {letter} alone requires a gradient: {why}"))
    return faults


# ---- hazards ------------------------------------------------------------------------------------


def hazards(candidate: Candidate, means: Conventions) -> list[Finding]:
    """What may go wrong beside the verdict."""
    checks = _finite_mask, _empty_row, _negative_scale, _scale_of_zero
    return [found for check in checks if (found := check(candidate, means)) is not None]


def _cases(candidate: Candidate) -> Iterator[Sizes]:
    own = candidate.sizes or TRIED[0]
    yield from SMALLEST
    yield replace(own, m=8, n=8 if own.square else own.n) if own.m == 7 else own


def _alternating(sizes: Sizes, **fields: Any) -> Case:
    """Q = 0; the keys are 1 and -1 in turn, the values 1 and 0."""
    case = small_problem(sizes, np.random.default_rng(0), **fields)
    sign = np.where(np.arange(sizes.m) % 2, -1.0, 1.0)[:, None]
    K, V, dO = (np.ones(x.shape) for x in (case.K, case.V, case.dO))
    return replace(case, K=K * sign, V=V * (1 + sign) / 2, dO=dO)


def _off(got: Answer, want: Answer, unit: float) -> list[str]:
    """What is wrong by much more than rounding."""
    pairs = [(name, x, getattr(want, name)) for name, x in got.there.items() if name != "dB"]
    return [name for name, x, y in pairs if not (np.abs(x - y) <= 64 * unit * max(np.abs(y).max(), 1.0)).all()]


def _first_taken(
    candidate: Candidate, means: Conventions, several: Iterable[Sizes], make: Callable[[Sizes], Case]
) -> Taken | None:
    """The first of these sizes that the candidate takes: the problem, what came, what is right."""
    for sizes in several:
        got = candidate.run(make(sizes), means)
        if got.answer is not None:  # to the problem as it is taken: causal, of what always is
            return sizes, got.case, got.answer, Steps(got.case, means).answer()
    return None


def _finite_mask(candidate: Candidate, means: Conventions) -> Finding | None:
    """Rows whose scores are all one large negative number: the weights are equal, 1/m."""
    options = candidate.options
    if "bias" not in options and not ("mask" in options and means.mask == "add"):
        return None
    top = FORMATS[candidate.dtype]
    least = -float((2 - 2.0 ** (1 - top.digits)) * 2.0**top.high)
    candidate = candidate.with_options(bias=options.get("bias", options.get("mask")))
    found = []
    for fill in (float(nearest(np.array(-1e9), candidate.dtype)), least):
        several = _cases(candidate) if np.isfinite(fill) else ()
        taken = _first_taken(candidate, means, several, partial(_filled, fill))
        if taken and (off := _off(*taken[2:], unit_roundoff(candidate.dtype))):
            found.append(_masked_by(fill, candidate, means, taken, off))
    return next((f for f in found if BY_KEYS in f.title), found[0] if found else None)


def _filled(fill: float, sizes: Sizes) -> Case:
    """Every score of every row is this number."""
    bias = np.full((1, 1, sizes.n, sizes.m), fill)
    return _alternating(sizes, bias=bias, traits=frozenset({"constant bias", "empty row"}))


def _masked_by(fill: float, candidate: Candidate, means: Conventions, taken: Taken, off: Sequence[str]) -> Finding:
    """What is wrong in rows that are filled, and by which factor for how many keys."""
    sizes, case, _, want = taken
    name, factors = "dV" if "dV" in off else off[0], {}
    for s in (sizes, *(replace(sizes, m=m, n=m if sizes.square else sizes.n) for m in (4, 8, 64))):
        with np.errstate(all="ignore"):
            again = _first_taken(candidate, means, [s], partial(_filled, fill))
            ratio = (getattr(again[2], name) / getattr(again[3], name)).flatten() if again else None
        if ratio is not None and np.ptp(ratio) < 0.01 * abs(ratio[0]):
            factors[s.m] = float(ratio[0])
    by_keys = len(factors) > 1 and all(abs(f / m - 1) < 0.05 for m, f in factors.items())
    size = BY_KEYS if by_keys else "are not right"
    title = f"in a row masked by {fill:.3g} instead of -inf, {' and '.join(off)} {size}"
    read = ", ".join(f"{m} keys: {f:.8g} times" for m, f in factors.items())
    cure = "mask with -inf, or True and False; in a kernel, keep a row's maximum and its sum apart"
    lines = pasted(candidate, case, means, want)
    return Finding("hazard", "finite_mask", title, where=read or None, cure=cure, evidence=lines)


def _empty_row(candidate: Candidate, means: Conventions) -> Finding | None:
    """A query that may attend to nothing, and how far its NaN goes."""
    def first_row_empty(sizes: Sizes) -> Case:
        keep = np.ones((1, 1, sizes.n, sizes.m), bool)
        keep[:, :, 0] = False
        return _alternating(sizes, keep=keep, traits=frozenset({"empty row"}))

    if "mask" not in candidate.options or means.empty not in (None, "nan"):
        return None
    several = (*(s for s in SMALLEST if s.n > 1), *_cases(candidate))
    taken = _first_taken(candidate, means, several, first_row_empty)
    bad = {name: np.isnan(x) for name, x in taken[2].there.items() if np.isnan(x).any()} if taken else {}
    if not taken or not bad:
        return None
    spread = [name for name, x in bad.items() if name in ("dK", "dV") or x[:, :, 1:].any()]
    title = f"a row that may attend to nothing gives NaN in {' and '.join(bad)}"
    where = "its own row alone" if not spread else f"also outside of its row: {' and '.join(spread)}"
    cure = "0 where the sum of a row's exponentials is 0, before it is divided by"
    lines = pasted(candidate, taken[1], means, taken[3])
    name = "nan_spreads" if spread else "empty_row_nan"
    return Finding("hazard", name, title, where=where, cure=cure, evidence=lines)


def _negative_scale(candidate: Candidate, means: Conventions) -> Finding | None:
    """A negative scale with a mask, which -inf must be added to after the scale."""
    def masked(sizes: Sizes, word: str) -> Case:
        keep = np.tri(sizes.n, sizes.m, dtype=bool)[None, None]
        return _alternating(sizes, scale=-0.5, **({"causal": True} if word == "causal" else {"keep": keep}))

    own = candidate.sizes or TRIED[0]
    several = (*SMALLEST[1:], replace(own, n=own.m))
    for word, said in (("causal", "causal masking"), ("mask", "a mask")):
        if not {"scale", word} <= candidate.options.keys():
            continue
        taken = _first_taken(candidate, means, several, partial(masked, word=word))
        if taken and (off := _off(*taken[2:], unit_roundoff(candidate.dtype))):
            kind = "NaN" if any(np.isnan(getattr(taken[2], name)).any() for name in off) else "wrong"
            title = f"with a negative scale and {said}, {' and '.join(off)} are {kind}"
            lines = pasted(candidate, taken[1], means, taken[3])
            cure = "mask after the scores are scaled"
            return Finding("hazard", "negative_scale", title, cure=cure, evidence=lines)
    return None


def _scale_of_zero(candidate: Candidate, means: Conventions) -> Finding | None:
    """A scale of 0, which `scale or 1 / sqrt(d_k)` takes for none."""
    taken = _first_taken(candidate, means, _cases(candidate), partial(_alternating, scale=0.0))
    if "scale" not in candidate.options or not taken or not _off(*taken[2:], unit_roundoff(candidate.dtype)):
        return None
    title, cure = "a scale of 0 is taken for none, or for another", "ask whether the scale is None"
    return Finding("hazard", "scale_of_zero", title, cure=cure)
