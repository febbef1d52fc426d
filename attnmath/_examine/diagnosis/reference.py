"""The user's own function as what is right: run in float64, and where it is plain attention judged by the bounds.

Elsewhere the allowed error of an output is a few times the largest of three numbers: what the
reference itself is off by in the candidate's format, how far one rounding of every input moves it,
and one rounding of its largest entry. To this comes a few times what plain attention is usually off
by on the same numbers, or, where scores are too large for that, what it may be: a kernel may find D
from its output and its weights from L, where the reference has differences that vanish exactly.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Fault
from attnmath._examine.diagnosis.conventions import detect
from attnmath._examine.diagnosis.probes import gaussian_case
from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.problems.bounds import bounds, deviations, judge_answer, right_and_bounds, right_answer
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.measured import SEVERAL, several_times
from attnmath._examine.report.found import Finding
from attnmath.rounding.formats import nearest, unit_roundoff

ReferenceFunctions = tuple[Callable[..., Any], Callable[..., Any] | None]


class Wanted(NamedTuple):
    """What the reference gives, how far off the candidate may be, and whether it is plain attention here."""

    case: Case  # causal, if the reference always is
    answer: Answer
    off: Answer
    plain: bool


class Reference:
    """The functions that a candidate has to agree with, called as it is."""

    def __init__(self, candidate: Candidate, functions: ReferenceFunctions) -> None:
        made = partial(Candidate, *functions, options=candidate.options, layout=candidate.layout,
                       framework=candidate.framework, device=candidate.device, time_limit=candidate.time_limit)
        self.wide, self.same = made(dtype="float64"), made(dtype=candidate.dtype)
        self.wide.letters = "g", "g_backward"
        self.plain = True  # as far as was seen
        self.larger: dict[str, float] = {}  # than plain attention's: how many times, in a usual problem

    def __repr__(self) -> str:
        return repr(self.wide)

    def conventions(self, told: Conventions) -> Conventions:
        """Which conventions it follows: what is read off the reference holds for the candidate."""
        means, _ = detect(self.wide, told)
        self.same.options = dict(self.wide.options)
        if self.wide.sizes is not None:
            case = gaussian_case(self.wide.sizes, np.random.default_rng(12), "float64")
            if answer := self.wide.run(case, means).answer:
                want = right_answer(case, replace(means, scale=None))
                self.larger = {x: _size(y) / (_size(getattr(want, x)) or 1.0) for x, y in answer.there.items()}
        return replace(means, inside=told.inside)

    def shown(self, means: Conventions) -> Conventions:
        """The conventions that a report can state: of another function not its scale, say."""
        return means if self.plain else Conventions(means.layout, means.mask, means.causal, means.groups)

    def finding(self) -> Finding:
        """What it was judged by."""
        kind = "plain attention" if self.plain else "no plain attention"
        alone = self.wide.forward_only
        title = f"judged by {self} in float64, which is {kind}" + (", and by its output alone" if alone else "")
        return Finding("convention", "forward only" if alone else "reference", title)

    def wanted(self, case: Case, means: Conventions, dtype: str) -> Wanted | Fault:
        """What is right in this problem; or why the reference does not say."""
        if case.R is not None and "dropout_mask" not in self.wide.options:
            return Fault("dropout", "the reference draws a dropout of its own")
        outcome = self.wide.run(case, means)
        if outcome.answer is None:
            return Fault("reference", f"the reference does not take it: {outcome.refusal.sentence}")
        if any(np.isinf(nearest(x[np.isfinite(x)], dtype)).any() for x in outcome.answer.there.values()):
            return Fault("reference", f"the reference gives numbers that {dtype} does not have")
        want, off = right_and_bounds(outcome.case, means, "float64")
        want = want.each(lambda x, _: x, outcome.answer)  # without backward, a reference of NumPy has O alone
        verdicts = judge_answer(outcome.answer, want, off, None)
        if self.plain and all(v.passed for v in verdicts.values()):
            return Wanted(outcome.case, want, right_and_bounds(outcome.case, means, dtype)[1], True)
        self.plain = False
        same = self.same.run(case, means).answer
        if same and any(np.isfinite(x).all() and not np.isfinite(same.there.get(letter, x)).all()
                        for letter, x in outcome.answer.there.items()):
            return Fault("reference", f"in {dtype} the reference itself is not finite")
        measured = self._measured(case, means, outcome.answer, same, dtype)
        more = self._more(outcome.case, means, outcome.answer, dtype)
        allowed = {x: y + more[x] for x, y in measured.there.items()}
        return Wanted(outcome.case, outcome.answer, Answer(**allowed), False)

    def _more(self, case: Case, means: Conventions, answer: Answer, dtype: str) -> dict[str, Any]:
        """What the steps of plain attention may cost beside, on the same numbers."""
        means = replace(means, scale=None)  # what was read off another function need not be its scale
        want = right_answer(case, means)
        off: dict[str, Any]
        if usual := deviations(case, means, dtype):
            off = {x: SEVERAL * _middling(y) for x, y in usual.there.items()}
        else:
            wide = dtype in ("float64", "float32")  # in the others the largest bound is larger than any number
            bound = bounds(case, means, dtype).there
            off = {x: 2 * (_size(y) if wide else np.nan_to_num(y)) for x, y in bound.items()}
        here = _size(answer.O) / (_size(want.O) or 1.0)
        return {x: max(here, self.larger.get(x, 0.0)) * y for x, y in off.items()}

    def _measured(self, case: Case, means: Conventions, answer: Answer, same: Answer | None, dtype: str) -> Answer:
        """How far off each entry may be: as much for all entries of an output."""
        u, rng = unit_roundoff(dtype), np.random.default_rng(11)

        def moved(x: np.ndarray) -> np.ndarray:
            return x * (1 + u * rng.choice([-1.0, 1.0], x.shape))

        others = same, self.wide.run(case.with_arrays(moved, "Q", "K", "V", "dO", "bias"), means).answer
        empty = ~np.isfinite(answer.O).all(-1, keepdims=True)  # whose gradients nothing says
        touched = {x: empty if x in ("O", "dQ") else empty.any((1, 2, 3), keepdims=True) for x in answer.there}
        right = {x: np.where(touched[x], np.nan, want) for x, want in answer.there.items()}
        return Answer(**several_times(right, [other.there for other in others if other], u))


def _size(x: np.ndarray) -> float:
    """The largest of the numbers that are finite."""
    return float(np.abs(x).max(initial=0.0, where=np.isfinite(x)))


def _middling(x: np.ndarray) -> float:
    """The root of the mean of the squares of the numbers that are finite."""
    return float(np.sqrt(np.mean(x * x, where=np.isfinite(x))))


def unlike_reference(failures: Sequence[Failure], count: int, name: str) -> Finding:
    """Which outputs are not those of the reference, where, and by how much."""
    first = min(failures, key=lambda f: (not f.generic, "O" in f.wrong, f.size))
    shown = [x for x in first.want._fields if x in first.wrong]
    ever = [x for x in first.want._fields if any(x in f.wrong for f in failures)]
    title = f"{' and '.join(ever)} {'is' if len(ever) == 1 else 'are'} not what {name} gives"
    each = []
    for letter in shown:
        want, bound = getattr(first.want, letter), getattr(first.off, letter)
        size, got = _size(want), getattr(first.got, letter)
        error = np.where(np.isnan(bound), 0.0, np.abs(got - want))
        if not np.isfinite(error).all():
            each.append(f"{letter} is not finite")
            continue
        times = (error / np.where(np.isnan(bound), np.inf, bound)).max()
        of = " of its largest entry" if size else ", and should be 0"
        each.append(f"{letter} is off by {error.max() / (size or 1.0):.2g}{of}, {times:.3g} times what is allowed")
    evidence = f"in {len(failures)} of {count} problems; in '{first.case.name}' {'; '.join(each)}"
    return Finding("unnamed", "reference", title, first.where(shown), evidence=evidence)


def checked_reference(given: Any) -> ReferenceFunctions:
    """A function and its backward, or None in its place; raises TypeError for what cannot be a reference."""
    both = tuple(given) if isinstance(given, tuple | list) else (given, None)
    if len(both) != 2 or not callable(both[0]) or not (both[1] is None or callable(both[1])):
        raise TypeError(f"examine: reference is {given!r}; it needs to be a function, or a pair with its backward")
    return both
