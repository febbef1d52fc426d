"""The same problem is given again: what is answered otherwise depends on chance, or on the calls before."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Fault
from attnmath._examine.diagnosis.probes import gaussian_case
from attnmath._examine.problems.case import Answer, Case, Conventions, SevenSizes, Sizes
from attnmath.rounding.formats import unit_roundoff


def gaussian_problem(candidate: Candidate, sizes: Sizes, seed: int) -> Case:
    """A gaussian problem in numbers of every format."""
    form = "bfloat16" if candidate.dtype != "float16" else "float16"
    return gaussian_case(sizes, np.random.default_rng(seed), form)


def unlike(one: Answer, other: Answer) -> list[str]:
    """The names of the parts that differ, in any bit but the sign of zero."""
    x, y = one.there, other.there
    return [name for name in x if name in y and not np.array_equal(x[name], y[name], equal_nan=True)]


def largest(one: Answer, other: Answer) -> float:
    """The largest difference, by the largest entry of its part."""
    x, y = one.there, other.there
    parts = [np.abs(x[name] - y[name]).max() / max(np.abs(x[name]).max(), 1e-300) for name in x if name in y]
    return float(max(parts))


def repeated(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """The same problem again, at once and after another."""
    case, other = (gaussian_problem(candidate, sizes, seed) for seed in (1, 2))
    order = (case, case, case, other, case, other, case)
    answers = [candidate.run(x, means).answer for x in order]
    one, two, three, _, four, _, five = answers
    if one is None or two is None or three is None or four is None or five is None:
        return []
    if names := unlike(one, two) or unlike(one, three) or unlike(four, five):
        what = f"{' and '.join(names)} of two calls with the same arguments differ"
        size = max(largest(one, x) for x in (two, three, four, five))
        evidence = f"{what}, by {size:.1e} of the largest entry"
        if size < 64 * unit_roundoff(candidate.dtype):
            return [Fault("unordered_sums", f"{evidence}: sums are taken in whatever order")]
        added = two.each(np.subtract, one), three.each(np.subtract, two)
        if size > 0.01 and unlike(two, one) and largest(*added) < 1e-3:
            return [Fault("accumulates_into_grad", f"{what}: each call adds to what the call before left")]
        return [Fault("nondeterministic", evidence)]
    if names := unlike(one, four):
        for _ in range(4):  # or it was chance that the same came twice
            candidate.run(other, means)
            again = candidate.run(case, means).answer
            if again is None or unlike(again, four):
                what = f"{' and '.join(names)} of two calls with the same arguments differ"
                return [Fault("nondeterministic", what)]
        return [Fault("state", f"{' and '.join(names)} depend on the call before")]
    return []


BESIDE = {"": "", "causal": " with a causal mask", "mask": " with a mask", "bias": " with a bias"}


def after_longer(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """A short problem before and after a longer one with another m - n, with each option that it takes."""
    unit, s = 64 * unit_roundoff(candidate.dtype), sizes
    for word in ("", *(x for x in BESIDE if x in candidate.options)):
        short, long = (
            _with(word, candidate, candidate.taken.sizes((s.b, s.H, s.G or s.H, n, m, s.d_k, s.d_v), {word}))
            for n, m in ((5, 9), (40, 40))
        )
        if short.sizes == long.sizes:
            continue
        first, _, again = (candidate.run(x, means).answer for x in (short, long, short))
        if first is None or again is None or not (names := unlike(first, again)):
            continue
        if not largest(first, again) <= unit:
            longer = "{n} queries and {m} keys".format(**long.sizes)
            if any(x is None or unlike(again, x) for x in (candidate.run(short, means).answer for _ in range(4))):
                what = f"{' and '.join(names)} of two calls with the same arguments differ"  # it was chance
                return [Fault("nondeterministic", what)]
            what = f"{', '.join(names)}{BESIDE[word]} depend on the calls before"
            return [Fault("state", f"{what}: they are others after a call with {longer}")]
    return []


def _with(word: str, candidate: Candidate, sizes: SevenSizes) -> Case:
    """A gaussian problem of these sizes with this option."""
    b, H, G, n, m, d_k, d_v = sizes
    case = gaussian_problem(candidate, Sizes(b, H, n, m, d_k, d_v, None if G == H else G), 9)
    scores = np.broadcast_to(np.arange(m) % 3 < 2, (1, 1, n, m))
    others: dict[str, dict[str, Any]] = {
        "causal": {"causal": True}, "mask": {"keep": scores}, "bias": {"bias": 1.0 * scores},
    }
    return replace(case, **others.get(word, {}))


def unrepeated(candidate: Candidate, means: Conventions, failed: Iterable[tuple[Case, Answer]]) -> list[Fault]:
    """That problems which failed are answered otherwise when they are given again: nothing is to be named then."""
    unit = 64 * unit_roundoff(candidate.dtype)
    for case, first in failed:
        if case.has("R"):
            continue
        for _ in range(3):
            again = candidate.run(case, means).answer
            names = [] if again is None else unlike(first, again)
            if again is not None and names and not (size := largest(first, again)) <= unit:
                what = f"{' and '.join(names)} of the same problem, given again, differ"
                return [Fault("nondeterministic", f"{what}, by {size:.1e} of the largest entry ({case.name})")]
    return []
