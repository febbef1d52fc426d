"""Examinations of what is planted or right, and what they say in one word; shared by tests and benchmarks."""

from functools import lru_cache
from unittest.mock import patch

from attnmath import examine
from attnmath._examine.diagnosis import examination

WORDS = "named", "not named", "named wrongly", "missed"


SHORT, LONG = 20_000, 300_000  # scores of a problem; longer ones have megabytes of bounds, and are solved anew
MANY = 900_000  # scores of all problems for what is taken; more are kept until others are drawn
KEPT = {}


def scores(case):
    return case.Q[..., 0].size * case.K.shape[2]


@lru_cache(2)
def drawn(draw, takes, dtype, seed, *taken):
    return draw(takes, dtype, seed, *taken)


def once(draw):
    """Draws the same problems once for all candidates that take the same."""
    def found(takes, dtype, seed, *taken):
        key = draw, frozenset(takes), dtype, seed, *taken
        some = KEPT.pop(key, None) or drawn(*key)
        if sum(map(scores, some)) <= MANY:
            KEPT[key] = some  # as the last that was asked for
            if len(KEPT) > 6:
                del KEPT[next(iter(KEPT))]
        return some

    return found


def solved(solve, case, means, truncate, dtype):
    return solve(case, means, dtype)


short, long = lru_cache(500)(solved), lru_cache(16)(solved)


def once_each(solve):
    """Solves each problem once, with its bounds, for all candidates that mean the same plain head."""
    def found(case, means, dtype):
        if means.pieces is not None or means.ranks is not None or scores(case) > LONG:
            return solve(case, means, dtype)
        kept = short if scores(case) <= SHORT else long
        return kept(solve, case, means, means.truncate, dtype)

    return found


def forget():
    """Nothing is kept any more."""
    KEPT.clear()
    for kept in (drawn, short, long):
        kept.cache_clear()


ONCE = dict(
    exact_cases=once(examination.exact_cases), cases=once(examination.cases),
    right_and_bounds=once_each(examination.right_and_bounds), exact_answer=once_each(examination.exact_answer),
)


def examined(candidate, dtype, seed=3, conventions=None, **more):
    """A report on something planted, or on something right, without its smallest case."""
    with patch.multiple(examination, **ONCE):
        return examine(
            candidate.fn, candidate.backward, options=candidate.options, layout=candidate.layout, dtype=dtype,
            seed=seed, conventions=conventions, smallest=False, progress=False, **more,
        )


def names(report):
    """What is named, in the order of the report."""
    return list(dict.fromkeys(f.name for f in report.findings if f.kind in ("mistake", "contract")))


def word(report, *planted):
    """Whether what was planted is named, and nothing else is."""
    if report.right:
        return "missed"
    found, right = set(names(report)), {name for p in planted for name in (p.name, *p.also)}
    return "named wrongly" if found - right else "named" if found else "not named"


def further(report):
    """What a report finds beside what is taken and what was not tried."""
    return [f for f in report.findings if f.name not in ("takes", "not_tried")]
