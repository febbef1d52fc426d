"""A problem that a layer was given: what came, beside what is right and how far off it may be."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from attnmath._examine.layer.layer import LayerAnswer, LayerCase, LayerSteps
from attnmath._examine.layer.pieced import steps_of
from attnmath._examine.layer.running_error import right_and_off
from attnmath._examine.problems.bounds import where_in_words
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import StepChanges, Steps, all_users
from attnmath._words.tolerance import CONSTANT, SHARE
from attnmath.rounding.formats import ratio

MANY = 16  # numbers of an array whose errors are judged together
VAGUE = 0.02  # where wrong forms are allowed more than this, several would fit
FEW_ROUNDINGS = 2.0**-5  # of an array's size in bfloat16: a bound that is reached


@dataclass(frozen=True, eq=False)
class Tried:
    """A problem that a layer was given: what came, what is right, how far off it may be."""

    case: LayerCase
    got: LayerAnswer
    want: LayerAnswer
    off: LayerAnswer
    means: Conventions
    short: bool = False  # bfloat16 or float16: judged as a whole too
    explained: dict[Any, bool] = field(default_factory=dict, init=False, repr=False)  # of edits that were tried
    changes: dict[Any, tuple] = field(default_factory=dict, init=False, repr=False)  # of the same

    @classmethod
    def of(cls, case: LayerCase, got: LayerAnswer, means: Conventions, dtype: str) -> Tried:
        """What came, beside what is right."""
        want, off = right_and_off(case, means, dtype)
        return cls(case, got, want, off, means, dtype in ("bfloat16", "float16"))

    @cached_property
    def single(self) -> dict[str, float]:
        """By how much of its bound an entry of each output is off, at most."""
        there = [name for name, x in self.got._asdict().items() if x is not None]
        return {name: ratio(*(getattr(x, name) for x in (self.got, self.want, self.off))) for name in there}

    @cached_property
    def ratios(self) -> dict[str, float]:
        """The same; in a short format also as a whole, by how much of what that may be."""
        return {name: max(r, self.whole(name)) for name, r in self.single.items()}

    def whole(self, name: str) -> float:
        """The root of the sum of the squared errors, in units of what it may be in a short format."""
        error, off = getattr(self.got, name) - getattr(self.want, name), getattr(self.off, name)
        few = error.size < MANY or name == "db_O" or (  # one sum alone, whose bound is reached
            np.linalg.norm(off) < FEW_ROUNDINGS * np.linalg.norm(getattr(self.want, name)))
        if not self.short or few or not np.isfinite(error).all() or not off.any():
            return 0.0
        return float(np.linalg.norm(error) / np.linalg.norm(off) / SHARE)

    @cached_property
    def wrong(self) -> dict[str, np.ndarray]:
        """For each output that is wrong, which entries."""
        bad = {name: self.single[name] > CONSTANT for name, r in self.ratios.items() if r > CONSTANT}
        return {name: ~self.inside(name, getattr(self.want, name), 1.0 if x else SHARE) for name, x in bad.items()}

    def inside(self, name: str, want: np.ndarray, times: float = 1.0, more: float = 0.0) -> np.ndarray:
        """Which entries are as wanted, up to some times the bound and a little more."""
        got, off = getattr(self.got, name), getattr(self.off, name)
        with np.errstate(invalid="ignore"):
            return (got == want) | (abs(got - want) <= times * CONSTANT * off + more)

    @cached_property
    def right(self) -> LayerSteps:
        """The problem solved, and what depends on what."""
        s = steps_of(self.case, self.means)
        s.layer_answer()
        return traced(s)

    def steps(self, changes: Sequence[StepChanges] = ()) -> LayerSteps:
        """The problem solved with these changes."""
        return self.right.changed(changes)

    @cached_property
    def sharp(self) -> bool:
        """Whether wrong forms can be told apart: they may be off by little, and weights differ."""
        return max(self.slack.values()) <= VAGUE and "uniform" not in self.case.traits

    @cached_property
    def telling(self) -> bool:
        """Whether they can, and what is wrong is off by more than wrong forms may be."""
        return self.sharp and not (self.wrong and self.gives(()))

    def explained_by(self, changes: Sequence[StepChanges]) -> bool:
        """Whether these steps give everything that came; without any, it has to be right."""
        reached = set().union(*(self.right.downstream[letter] for change in changes for letter in change))
        return self.wrong.keys() <= reached and self.gives(changes) if changes else not self.wrong

    def gives(self, changes: Sequence[StepChanges]) -> bool:
        """Whether wrong steps give what came, in all outputs."""
        s = self.steps(changes)
        return all(self.gives_output(name, s) for name in sorted(self.names, key=lambda name: name != "Y"))

    def gives_output(self, name: str, s: LayerSteps) -> bool:
        """Whether wrong steps give an output as it came, up to roundings.

        A wrong number may be larger than the right one, and so may its roundings.
        """
        try:
            form = getattr(s, name)
        except (ValueError, TypeError, IndexError, AttributeError):  # no such form for these shapes
            form = None
        if form is None or form.shape != getattr(self.got, name).shape or not np.isfinite(form).all():
            return False
        # With weights of zero a wrong step makes small differences of what is large elsewhere.
        names = self.names if "uniform" in self.case.traits else [name]
        size = max(np.abs(getattr(s, x)).max(initial=0.0) for x in names)
        return bool(self.inside(name, form, 4.0, self.slack[name] * size).all())

    @cached_property
    def names(self) -> list[str]:
        """The outputs that there are, the wrong ones first."""
        return sorted(self.ratios, key=lambda name: name not in self.wrong)

    @cached_property
    def slack(self) -> dict[str, float]:
        """How far each output may be off, in units of its own size; what is zero takes what others have."""
        most = {x: [np.abs(getattr(part, x)).max() for part in (self.off, self.want)] for x in self.names}
        own = {x: 4 * off / size for x, (off, size) in most.items() if size and x != "db_K"}
        return {x: own.get(x, max(own.values(), default=0.0)) for x in self.names}

    @property
    def size(self) -> int:
        """How much there is to compute."""
        return self.case.X.size * self.case.lengths[2]

    def where(self) -> str:
        """The places of all wrong entries."""
        found = ((name, _four(name, x), _four(name, getattr(self.got, name))) for name, x in self.wrong.items())
        return "; ".join(where_in_words(*x) for x in found)


def traced(s: LayerSteps) -> LayerSteps:
    """The same, with what depends on what seen by running each step that was computed once more."""
    there = s.table.keys() & s.__dict__.keys()
    uses = {letter: _Seen(s).by(s.table[letter]) & there for letter in there}
    s.downstream = {x: frozenset({x}) for x in s.table} | all_users(uses)
    return s


class _Seen:
    """Steps that note which letters are read."""

    def __init__(self, steps: Steps) -> None:
        self._steps, self._letters = steps, set[str]()

    def __getattr__(self, letter: str) -> Any:
        self._letters.add(letter)
        return getattr(self._steps, letter)

    def by(self, step: Any) -> set[str]:
        """What a step reads."""
        with np.errstate(all="ignore"):
            step(self)
        return self._letters


def _four(name: str, x: np.ndarray) -> np.ndarray:
    """With axes for batch, head, row and column."""
    if x.ndim == 2 and (name == "dtable" or name.startswith("dW")):
        return x[None, None]
    if x.ndim < 3:
        return x.reshape(1, -1, 1, x.shape[-1])
    return x[None] if name.startswith("dW") else x[:, None]
