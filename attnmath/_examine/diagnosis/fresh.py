"""New problems for a diagnosis: a dozen that a name has to explain, too; shorter ones; a threshold."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnmath._examine.diagnosis.gate import ALWAYS, LENGTHS, Ask, Condition, Proof, Threshold
from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.problems.case import Case, traits_of

FRESH = 12  # new problems that a name has to explain, too
REGULAR = 6, 12, 20, 24, 40, 100  # lengths that tell tiles and multiples of powers of 2 apart
SHARPEST = 8  # calls that look for the place of a threshold


def cropped(case: Case, n: int, m: int) -> Case:
    """Its first queries and keys alone."""

    def scores(x: np.ndarray) -> np.ndarray:
        x = x if x.ndim < 2 or x.shape[-2] == 1 else x[..., :n, :]
        return x if x.ndim < 1 or x.shape[-1] == 1 else x[..., :m]

    less = case.with_arrays(scores, "keep", "bias", "R")
    less = less.with_arrays(lambda x: x[:, :, :n], "Q", "dO").with_arrays(lambda x: x[:, :, :m], "K", "V")
    traits = case.traits - traits_of(case) | traits_of(less)
    return replace(less, traits=frozenset(traits), name=f"{case.name}, {n} queries, {m} keys")


def shorter(case: Case) -> Case:
    """One query and one key less, where there are many enough."""
    n, m = case.Q.shape[2], case.K.shape[2]
    less = cropped(case, n - (n > 3), m - (m > 3))
    return case if "empty row" in less.traits else less


def _regular(some: Sequence[Case], like: Case) -> list[Case]:
    """The longest with the options of a problem, cut to lengths that tell tiles and multiples apart."""
    options = like.traits & {"bias", "mask", "dropout", "groups", "scale"}
    alike = [c for c in some if options <= c.traits and not c.traits & {"causal", "empty row"}] or [*some]
    long = max(alike, key=lambda c: min(c.Q.shape[2], c.K.shape[2]))
    both = [k for k in REGULAR if k < min(long.Q.shape[2], long.K.shape[2])]
    return [cropped(long, *lengths) for k in both for lengths in ((7, k), (k, 7))]


def fresh_trials(more: Sequence[Case], ask: Ask, found: Sequence[Proof], like: Case) -> list[Failure]:
    """A dozen new problems, under the conditions and without them; some of other sizes."""
    trials: list[Failure] = []
    every = [when for one in found for conditions in one.when for when in conditions]
    kinds: list[Sequence[Case]] = [more]
    numbers = any(c.isdigit() for one in found for e in one.edits for c in e.detail)
    if more and (numbers or any(isinstance(when, Condition) and "multiple" in when.words for when in every)):
        trials += [f for f in map(ask, _regular(more, like)) if f]
    if holds := [when.holds for when in every if when != ALWAYS]:
        kinds = [[c for c in more if holds[0](c)], [c for c in more if holds[0](c) is False]]
    for some in kinds:
        most = FRESH // len(kinds)
        spread = sorted(some, key=lambda c: c.Q.size * c.K.shape[2])[: 3 * most]
        taken = 0
        for i, case in enumerate([*spread[::3], *spread[1::3], *spread[2::3]]):
            small = not case.traits & {"empty row", "poison", "causal"}
            f = (ask(shorter(case)) if i % 3 == 2 and small else None) or ask(case)
            trials += [f] if f else []
            taken += f is not None
            if taken == most:
                break
    return trials


def shortened(f: Failure, ask: Ask) -> list[Failure]:
    """The shortest problem, cut from one, that goes wrong as well, if there is one; found by halving."""
    n, m = f.case.Q.shape[2], f.case.K.shape[2]
    found: list[Failure] = []
    low, high = 0.0, 1.0
    for _ in range(SHARPEST):
        middle = (low + high) / 2
        one = ask(cropped(f.case, max(1, round(n * middle)), max(1, round(m * middle))))
        if one is not None and one.wrong:
            high, found = middle, [one]
        else:
            low = middle
    return found


def sharpened(t: Threshold, cases: Sequence[Case], ask: Ask, acts: Callable[[Failure], bool]) -> Threshold:
    """The threshold, found by halving: problems that are cut to lengths between."""
    longer = [c for c in cases if LENGTHS[t.size](c.sizes) >= t.high and not c.traits & {"causal", "empty row"}]
    if t.size not in ("n", "m", "queries or keys") or not longer:
        return t
    case = min(longer, key=lambda c: LENGTHS[t.size](c.sizes))
    n, m = case.Q.shape[2], case.K.shape[2]
    for _ in range(SHARPEST):
        middle = (t.low + t.high) // 2
        if middle == t.low:
            break
        f = ask(cropped(case, min(n, middle) if t.size != "m" else n, min(m, middle) if t.size != "n" else m))
        if f is None:
            break
        t = t._replace(high=middle) if acts(f) is t.above else t._replace(low=middle)
    return t
