"""Which conventions a candidate follows, each read off a small exact problem.

What the user told is kept as it is: a candidate that deviates from it is found by the problems.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.contract import MASK_FORMS, SCORES_AXES
from attnmath._examine.diagnosis import probes
from attnmath._examine.diagnosis.doubts import mask_doubts
from attnmath._examine.diagnosis.dropping import read_dropout
from attnmath._examine.diagnosis.limits import square_with
from attnmath._examine.diagnosis.probes import Reading
from attnmath._examine.diagnosis.takes import failed, read_sizes
from attnmath._examine.problems.bounds import right_answer
from attnmath._examine.problems.case import Case, Conventions, Rng, Sizes
from attnmath._examine.report.report import Finding

Read = tuple[Conventions | None, list[Finding]]  # several conventions at once
LONGER = 256  # queries and keys: a kernel may skip what is masked by whole tiles alone
NEED_NO_OPTION = "scale", "fill", "empty", "inside"  # these can be read off any candidate


def detect(candidate: Candidate, told: Conventions | None = None) -> tuple[Conventions, list[Finding]]:
    """The conventions that explain most of what the candidate returns, and what none explains.

    None stays where nothing can be told: where the candidate has no such option, or fails.
    """
    told = told or Conventions()
    means, sizes, findings = read_sizes(candidate, told.told(layout=told.layout or candidate.layout))
    if sizes is None:
        return means, findings
    candidate.sizes = sizes
    candidate.look_for_options(means)
    for name, read in READERS.items():
        if getattr(means, name, None) is None and (name in NEED_NO_OPTION or name in candidate.takes):
            found, more = read(candidate, means, sizes, np.random.default_rng(1))
            if not sizes.square and any(x.kind == "contract" for x in more):  # it may take n = m alone, with this
                found, more = read(candidate, means, replace(sizes, n=sizes.m), np.random.default_rng(1))
            more_of = asdict(found) if isinstance(found, Conventions) else {name: found}
            means = means.told(**more_of)
            findings += more
    if "groups" not in candidate.options and means.groups is None and "h" in (means.layout or ""):
        other = candidate.with_options(groups=None)
        if found := _read_groups(other, means, sizes, np.random.default_rng(1))[0]:  # it takes them unasked
            candidate.options["groups"], means = None, means.told(groups=found)
    findings += mask_doubts(candidate, means, told, sizes)
    candidate.taken = replace(
        candidate.taken, square_with=square_with(candidate, means, sizes), mask_axes=means.mask_axes,
        bias_axes=means.bias_axes, fill=means.fill,
    )
    return means, findings


def _pattern(candidate: Candidate, means: Conventions, case: Case) -> np.ndarray | None:
    """Which keys are seen: those with at least half of the largest weight of their row."""
    W = probes.read_weights(candidate, case, means)
    return None if W is None else W > W.max(-1, keepdims=True) / 2


def _ignored(candidate: Candidate, means: Conventions, sizes: Sizes, word: str) -> bool:
    """Whether a mask changes nothing, bit for bit, nor in longer sequences if it takes them."""
    for s in (sizes, replace(sizes, n=LONGER, m=LONGER)):
        rng = np.random.default_rng(3)
        case, keep = probes.gaussian_case(s, rng, candidate.dtype), rng.random((s.b, 1, s.n, s.m)) < 0.6
        asked = replace(case, causal=True) if word == "causal" else replace(case, keep=keep)
        plain, other = (candidate.run(x, means, forward=True).answer for x in (case, asked))
        if plain is None or other is None:
            return s is not sizes
        if not np.array_equal(plain.O, other.O):
            return False
    return True


def _axes(candidate: Candidate, layout: str | None) -> list[str | None]:
    """The axes that a mask or a bias may have in a layout."""
    lacking = set("bh") - set(layout or "bhsd")
    return [axes for axes in SCORES_AXES if not lacking & set(axes or "")]


def _most_seen(axes: str | None, s: Sizes, rng: Rng) -> np.ndarray:
    """A mask on these axes that hides some keys."""
    whole = zip("bhnm", (s.b, s.H, s.n, s.m))
    return rng.random([size if letter in (axes or "bnm") else 1 for letter, size in whole]) < 0.6


def _read_mask(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Read:
    """Whether True, or which number, lets a query attend, and on which axes it is given."""
    scores: dict[Conventions, tuple[float, float]] = {}
    errors: list[Finding] = []
    for axes in _axes(candidate, means.layout):
        keep = _most_seen(axes, sizes, rng)
        keep[..., 0], keep[..., 1] = True, False  # something to see, and something hidden
        case = probes.small_problem(sizes, rng, keep=keep)
        for kind in MASK_FORMS:
            told = Conventions(mask=kind, mask_axes=axes)
            W = probes.read_weights(candidate, case, means.told(mask=kind, mask_axes=axes))
            if W is not None:  # of forms that agree the one that hides: True, added to a score, is only 1
                seen, hidden = W > W.max(-1, keepdims=True) / 2, np.broadcast_to(~keep, W.shape)
                scores[told] = (seen == keep).all(-1).mean(), (W[hidden] < 0.05 * W.max()).mean()
            elif not scores and not errors:
                errors = [failed(candidate.run(case, means.told(mask=kind), forward=True).refusal)]
        here = max((x for x in scores if x.mask_axes == axes), key=scores.__getitem__, default=None)
        if here and scores[here] > (0.5, 0.5):
            asked = means.told(mask=here.mask, mask_axes=axes)
            if candidate.forward_only or candidate.run(case, asked).answer is not None:
                scores = {here: scores[here]}
                break  # else the way back does not take these axes
    if not scores:
        return None, errors
    best = max(scores, key=scores.__getitem__)
    if scores[best][0] > 0.5:
        if best.mask_axes is None:
            best = best.told(mask_axes=_broadcast(candidate, means.told(mask=best.mask), sizes, "mask"))
        return best, []
    whole = [means.told(mask=x.mask) for x in scores if x.mask_axes is None]
    if all(_ignored(candidate, x, sizes, "mask") for x in whole):
        return None, [Finding("mistake", "mask_ignored", "the mask is ignored", cure="use it")]
    return None, [_unexplained("mask", "no kind of mask (True = keep, True = drop, added numbers) explains it")]


def mask_beside_pieces(candidate: Candidate, means: Conventions) -> Conventions:
    """With the mask that gives its output, where biases of its own hid it from a look at the weights."""
    s, rng = candidate.sizes, np.random.default_rng(5)
    if s is None or "mask" not in candidate.takes or means.mask is not None:
        return means
    for axes, kind in product(_axes(candidate, means.layout), MASK_FORMS):
        told = means.told(mask=kind, mask_axes=axes)
        keep = _most_seen(axes, s, rng)
        keep[..., 0] = True
        case = replace(probes.gaussian_case(s, rng, candidate.dtype), keep=keep)
        answer = candidate.run(case, told, forward=True).answer
        if answer is not None and abs(answer.O - right_answer(case, told).O).max() < probes.ROUGH:
            candidate.taken = replace(candidate.taken, mask_axes=axes)
            return told.told(empty=told.empty or probes.read_empty(candidate, told, s, rng)[0])
    return means


def _broadcast(candidate: Candidate, means: Conventions, sizes: Sizes, word: str) -> str | None:
    """The axes on which a mask or bias has to be given; None if it may be 1 wherever it is constant."""
    whole = sizes.b, sizes.H, sizes.n, sizes.m
    layout = means.layout or "bhsd"
    shapes = [tuple(size if letter in own else 1 for letter, size in zip("bhnm", whole))
              for own in ("nm", "hnm", "bnm", "bhnm", *(["bm"] if word == "mask" else []))
              if not set(own) - set(layout) - set("nm")]
    field, fill = ("keep", True) if word == "mask" else ("bias", 0.0)

    def takes(axes: str | None, shape: tuple[int, ...]) -> bool:
        filled: dict[str, Any] = {field: np.full(shape, fill)}
        case = probes.small_problem(sizes, np.random.default_rng(0), **filled)
        return candidate.run(case, means.told(**{f"{word}_axes": axes}), forward=True).answer is not None

    if all(takes(None, shape) for shape in shapes):
        return None
    return next((axes for axes in _axes(candidate, layout)[1:] if takes(axes, (1, 1, 1, sizes.m))), None)


def _read_bias(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Read:
    """On which axes a bias is given."""
    return Conventions(bias_axes=_broadcast(candidate, means, sizes, "bias")), []


def _unexplained(what: str, title: str, evidence: str | None = None) -> Finding:
    return Finding("unnamed", f"{what}_unexplained", title, evidence=evidence)


def _read_causal(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Reading:
    """Where the diagonal of a causal mask lies for n unlike m; offset 0 is the upper left."""
    if sizes.square:
        return None, []
    found, findings = [], []
    for s in (sizes, replace(sizes, n=sizes.m, m=sizes.n)):
        seen = _pattern(candidate, means, probes.small_problem(s, rng, causal=True))
        if seen is None:
            continue
        names = {0: "upper_left", s.m - s.n: "lower_right"}
        right = {o: _agreement(seen, o) for o in (*names, -1, 1, s.m - s.n - 1, s.m - s.n + 1)}
        best = max(right, key=right.__getitem__)
        if right[best] <= 0.5:
            ignored = seen.all() and _ignored(candidate, means, s, "causal")
            findings.append(
                Finding("mistake", "causal_ignored", "the causal mask is ignored", cure="use it") if ignored
                else _unexplained("causal", f"no causal mask explains what it sees for n = {s.n}, m = {s.m}")
            )
        else:
            found.append(names[min(names, key=lambda o: abs(o - best))])
    if len(set(found)) == 2:
        title = "the causal mask is aligned in one way for n < m, and in the other for n > m"
        evidence = f"n < m: {found[0]}; n > m: {found[1]}"
        return None, [_unexplained("causal", title, evidence)]
    return (found[0] if found else None), findings[:1]


def _agreement(seen: np.ndarray, offset: int) -> float:
    """How many rows see the keys up to their own place plus the offset; empty rows do not count."""
    n, m = seen.shape[-2:]
    want = np.arange(m) <= np.arange(n)[:, None] + offset
    counted = want.any(-1) & ~want.all(-1)
    return (seen == want).all(-1)[..., counted].mean() if counted.any() else 0.0


def _read_groups(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Reading:
    """Which head of keys and values each query head reads."""
    H, G = (sizes.H, sizes.G) if sizes.G else (6, 3)
    if "H" in dict(candidate.taken.only) and not sizes.G:
        H, G = sizes.H, max(1, sizes.H // 2)
    if H == G:
        return None, []
    case = probes.small_problem(replace(sizes, H=H), rng, G=G)
    V = np.broadcast_to(np.arange(1.0, G + 1)[:, None, None], case.V.shape)
    outcome = candidate.run(replace(case, V=np.array(V)), means, forward=True)
    if outcome.answer is None:
        return None, [failed(outcome.refusal)]
    read = np.rint(np.nan_to_num(np.median(outcome.answer.O, axis=(0, 2, 3)))).astype(int) - 1
    maps: dict[str, Callable] = {"blocks": lambda h: h // (H // G), "interleaved": lambda h: h % G}
    right = {name: sum(read[h] == f(h) for h in range(1, H - 1)) for name, f in maps.items()}
    best = max(right, key=right.__getitem__)
    if right[best] >= 3 or right[best] == H - 2:
        return best, []
    if not np.abs(outcome.answer.O - (read + 1)[:, None, None]).max() < 0.25:  # NaN included
        return None, []  # they read no single head: it is something else
    title = "query heads read other heads of keys and values than h // (H/G) or h mod G"
    return None, [_unexplained("groups", title, f"H = {H}, G = {G}: the heads read are {read.tolist()}")]


READERS: dict[str, Callable[..., Read | Reading]] = dict(
    mask=_read_mask, bias=_read_bias, causal=_read_causal, groups=_read_groups, scale=probes.read_scale,
    fill=probes.read_fill, empty=probes.read_empty, inside=probes.read_inside, dropout=read_dropout,
)


def readings(asked: Conventions, read: Conventions, some: Sequence[Case]) -> Iterator[tuple[Conventions, bool]]:
    """What was read, and what it may be where a mistake has spoilt the reading; whether one edit has to do."""
    tabled = read.pieces is not None and read.pieces.table is not None  # where a scale of 1 is usual too
    if asked.scale is None and read.scale != "1/sqrt(d_k)" and not (tabled and read.scale == "1"):
        yield replace(read, scale=None), True
    if read.empty in ("uniform", "sum") and any(case.keep is not None for case in some):
        yield replace(read, empty=f"{read.empty} with gradient"), True
    yield read, False
    if read.causal is None and any(case.causal for case in some):
        yield replace(read, causal="upper_left"), False
    if read.empty not in (None, "zero") and any("empty row" in case.traits for case in some):
        yield replace(read, empty="zero"), False
