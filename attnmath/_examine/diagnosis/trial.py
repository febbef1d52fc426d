"""A problem that was tried: what came, what is right, how far off it may be; whether wrong steps give it."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from attnmath._examine.mistakes.modes import OWN
from attnmath._examine.problems.bounds import judge_answer, right_and_bounds, where_in_words
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.steps import StepChanges, Steps, changes_of_empty_rows
from attnmath.rounding.formats import unit_roundoff

TINY, HUGE, LARGE = 1e-300, 1e200, 1e15
NEAR = 1e-7  # how well a difference of the output in float64 is known
FEW, KEPT = 8000, 1  # scores of problems of which wrong steps are kept, and how many beside the last
SHAPES_DIFFER = ValueError, TypeError, IndexError  # numbers of other shapes stand in a letter's place
ARGUMENT = {"dQ": "Q", "dK": "K", "dV": "V", "dB": "bias"}


def blown(x: np.ndarray) -> np.ndarray:
    """Which numbers are not finite, or far larger than what any problem has to give."""
    return ~(np.abs(x) < LARGE)


@dataclass(frozen=True, eq=False)
class Failure:
    """A problem that went wrong: what came, what is right, how far off it may be."""

    case: Case
    got: Answer
    want: Answer
    off: Answer
    wrong: dict[str, np.ndarray]  # for each output, which entries
    means: Conventions
    dtype: str
    explained: dict[Any, bool] = field(default_factory=dict, init=False, repr=False)  # of edits that were tried
    changes: dict[Any, tuple] = field(default_factory=dict, init=False, repr=False)  # of the same
    _unchanged: dict[str, bool] = field(default_factory=dict, init=False, repr=False)  # what right steps give
    _last: list[Steps] = field(default_factory=list, init=False, repr=False)  # that were changed

    @property
    def generic(self) -> bool:
        """Whether its numbers have no structure of their own."""
        s, traits = self.case.sizes, self.case.traits
        drawn = bool(traits & {"gaussian", "peaked", "outliers"})
        return drawn and min(s["m"], s["d_k"], s["d_v"]) > 1 and self.case.scale != 0

    @property
    def telling(self) -> bool:
        """Whether its numbers can be compared: nothing is infinite or huge."""
        if "empty row" in self.case.traits:
            return self.generic
        return self.generic and "poison" not in self.case.traits and not any(
            blown(x).any() for x in self.got.there.values())

    @property
    def size(self) -> tuple[bool, int]:
        """How much there is to compute; last of all where infinities hide the numbers."""
        finite = all(np.isfinite(x).all() for x in self.got.there.values())
        return not finite, self.case.Q.size * self.case.K.shape[2]

    def where(self, letters: Iterable[str] = ()) -> str:
        """Where each of these outputs is wrong, or each that is."""
        return "; ".join(where_in_words(x, self.wrong[x], getattr(self.got, x)) for x in letters or self.wrong)

    def under(self, means: Conventions) -> "Failure":
        """The same answer, judged by other conventions for empty rows or for causal masks."""
        if means == self.means:
            return self
        scaled = means.scale == self.means.scale or self.case.scale is not None
        if scaled and not (self.case.causal or "empty row" in self.case.traits):
            return replace(self, means=means)
        want, off = right_and_bounds(self.case, means, self.dtype)
        judged = judge_answer(self.got, want, off, self.dtype)
        wrong = {x: v.wrong for x, v in judged.items() if not v.passed and x in self.got.there}
        return replace(self, means=means, want=want, off=off, wrong=wrong)

    @cached_property
    def right(self) -> Steps:
        """The problem solved rightly."""
        return Steps(self.case, self.means, changes_of_empty_rows(self.means))

    @cached_property
    def _solved(self) -> Steps:
        """The same, with all letters computed, which wrong steps take over."""
        self.right.answer()
        return self.right

    def steps(self, changes: Collection[StepChanges] = ()) -> Steps:
        """The problem solved with these changes."""
        right = self._solved
        *ways, change = changes or ({},)
        if self.case.Q[..., 0].size * self.case.K.shape[2] > FEW or any(x in change for way in ways for x in way):
            return right.changed(changes)
        s = next((s for s in self._last if s.changes[-1] is change), None)
        if s is None:  # the same change is tried with D and P found in several ways
            s = right.changed((change,))
            self._last[:] = [*self._last[-KEPT:], s]
        return s.changed(ways) if ways else s

    def gives(self, changes: Collection[StepChanges]) -> bool:
        """Whether wrong steps give everything that came."""
        try:
            return self._gives(changes)
        except SHAPES_DIFFER:
            return False

    def _gives(self, changes: Collection[StepChanges]) -> bool:
        s = self.steps(changes)
        if OWN in changes:
            return self.gives_letter("O", s) and self.own_gradients(s)
        if "poison" in self.case.traits and any(blown(s.output(x)).any() for x in self.got.there):
            return bool(self.wrong)  # what comes through is lost in huge numbers
        letters = sorted(self.got.there, key=lambda x: x not in self.wrong)  # wrong ones first: most forms fail
        return all(self.gives_letter(x, s) for x in letters)

    def own_gradients(self, s: Steps) -> bool:
        """Whether the gradients are those of this program's output, along a direction of each argument."""
        if not self.telling:  # at equal maxima there may be no derivative
            return True
        rng = np.random.default_rng(7)
        for letter, name in ARGUMENT.items():
            x, got = getattr(self.case, name), getattr(self.got, letter)
            if x is None or got is None or letter not in self.got.there or not np.isfinite(s.O).all():
                continue
            direction = np.where(np.isfinite(x), rng.standard_normal(x.shape), 0.0)
            h = 2.0**-17 * max(1.0, float(np.sqrt(np.mean(x[np.isfinite(x)] ** 2))))
            with np.errstate(all="ignore"):
                ends = (s.at(replace(self.case, **{name: x + t * direction})).O for t in (h, -h))
                slope = float(((next(ends) - next(ends)) * self.case.dO).sum() / (2 * h))
                mine = float((got * direction).sum())
            bound, rough = self.allowed[letter]
            size = float(np.abs(got * direction).sum())
            doubt = float((np.abs(direction) * np.minimum(bound, HUGE)).sum()) + (rough + NEAR) * size
            doubt += NEAR * float(np.abs(s.O * self.case.dO).sum())
            if not abs(mine - slope) <= doubt:
                return False
        return True

    def explained_by(self, changes: Collection[StepChanges]) -> bool:
        """Whether these steps give everything that came, and the right ones do not do so as well."""
        if not changes:
            return not self.wrong
        if OWN in changes:
            return self.gives(changes)
        return self.gives(changes) and (not self.wrong or not self.telling or self._nearer(self.steps(changes)))

    def _nearer(self, s: Steps) -> bool:
        """Whether most of what is wrong is gone."""
        before, rest = self._far
        after = np.float64(0.0)
        with np.errstate(all="ignore"):
            for letter, (got, unit) in rest.items():
                form = s.output(letter)[self.wrong[letter]]
                after += np.nan_to_num(np.where(blown(form), 0.0, np.abs(got - form) / unit), nan=HUGE).sum()
        return bool(after < before / 2)

    @cached_property
    def _far(self) -> tuple[np.float64, dict[str, tuple[np.ndarray, np.ndarray]]]:
        """How far off what is wrong is; of each output what came there, and the units that it is counted in."""
        before, rest = np.float64(0.0), {}
        for letter, wrong in self.wrong.items():
            got, want = (x[wrong] for x in (getattr(self.got, letter), getattr(self.want, letter)))
            unit = np.broadcast_to(self.allowed[letter][0], wrong.shape)[wrong] + TINY  # entries may be 0 exactly
            with np.errstate(all="ignore"):
                before += np.nan_to_num(np.abs(got - want) / unit, nan=HUGE, posinf=HUGE).sum()
            rest[letter] = got, unit
        return before, rest

    @cached_property
    def allowed(self) -> dict[str, tuple[np.ndarray, float]]:
        """For each output how far an edited program may be off, and how far more in units of its size.

        A wrong step may carry an error to where a right program has none.
        """
        found = {}
        for letter in self.got.there:
            off, want = getattr(self.off, letter), np.nan_to_num(getattr(self.want, letter))
            most = np.abs(np.nan_to_num(off)).max((-3, -2, -1), keepdims=True, initial=0.0)  # of another head, say
            with np.errstate(all="ignore"):
                rough = min(most.max(initial=0.0) / max(np.abs(want).max(initial=0.0), TINY), 1e-4)
            bound = np.where(np.isnan(off), np.inf, 4 * np.maximum(off, most))
            found[letter] = bound, 16 * unit_roundoff(self.dtype) + 4 * rough
        return found

    @cached_property
    def _any(self) -> dict[str, np.ndarray | None]:
        """For each output the entries that may be anything, if there are some."""
        free = {letter: bound == np.inf for letter, (bound, _) in self.allowed.items()}
        return {letter: x if x.any() else None for letter, x in free.items()}

    def gives_letter(self, letter: str, s: Steps) -> bool:
        """Whether wrong steps give what came, up to the roundings that both forms have."""
        form = s.output(letter)
        if form is not self.right.output(letter):
            return self._near(letter, form)
        if letter not in self._unchanged:  # most steps leave some outputs alone
            self._unchanged[letter] = self._near(letter, form)
        return self._unchanged[letter]

    def _near(self, letter: str, form: np.ndarray | None) -> bool:
        """Whether these numbers are what came."""
        got = getattr(self.got, letter)
        if form is None or form.shape != got.shape:
            return False
        (bound, rough), free = self.allowed[letter], self._any[letter]
        with np.errstate(all="ignore"):
            size = np.abs(form)
            most = size.max((-2, -1), keepdims=True, initial=0.0)
            if most.max(initial=0.0) < LARGE:
                near = np.abs(got - form) <= bound + rough * most
                return bool(near.all() or free is not None and (near | free).all())
            over = blown(form)
            if "empty row" not in self.case.traits:
                return bool(blown(got).any())  # too large for a format: that can be compared, and how large not
            size = np.where(over, 0.0, size).max((-2, -1), keepdims=True, initial=0.0)
            near = np.abs(got - form) <= bound + rough * size
            return bool(np.all(near | (bound == np.inf) | over & blown(got)))
