"""A head, step by step, forward and back; a mistake is a step that differs.

Any step can be put in place of another. Each letter is computed when it is asked for, from the
letters that its step names; what the way back uses is a letter of its own (P_back, keys_back,
...), so that a mistake of the way back alone can be said.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Self

import numpy as np

from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._words.arrays import T, rowsum, sum_to

Step = Callable[["Steps"], Any]
StepChanges = Mapping[str, Callable[["Steps", Any], Any]]  # letter: from the right value to the wrong one


def plain_softmax(A: np.ndarray) -> np.ndarray:
    """Softmax of every row; zero where a row is -inf everywhere. Not the formula that may be judged by it."""
    top = A.max(-1, keepdims=True, initial=-np.inf)
    E = np.exp(A - np.where(top == -np.inf, 0.0, top))
    total = rowsum(E)
    return E / np.where(total == 0, 1.0, total)


def log_sum_exp(A: np.ndarray) -> np.ndarray:
    """Of every row, as a column; infinite where it is empty, so that its weights are 0."""
    top = A.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(top == -np.inf, 0.0, top)
    total = rowsum(np.exp(A - top))
    return np.where(total == 0, np.inf, top + np.log(total))


def grouped(x: np.ndarray, owner: np.ndarray, G: int) -> np.ndarray:
    """The sum over the query heads that read the same head of keys and values."""
    out = np.zeros((x.shape[0], G, *x.shape[2:]))
    for h, g in enumerate(owner):
        out[:, g] += x[:, h]
    return out


STEPS: dict[str, Step] = {
    # what is given
    "Q": lambda s: s.case.Q,
    "K": lambda s: s.case.K,
    "V": lambda s: s.case.V,
    "dO": lambda s: s.case.dO,
    "R": lambda s: np.ones_like(s.A) if s.case.R is None else s.case.R,
    "gamma": lambda s: np.float64(s.case.gamma(s.means)),  # that of NumPy can be divided by when it is 0
    "owner": lambda s: s.case.owner(s.means),
    "seen": lambda s: s.case.seen(s.means),
    "bias": lambda s: 0.0 if s.case.bias is None else s.case.bias,
    "B": lambda s: np.where(s.seen, s.bias, s.bias + s.means.hidden),
    # the way forward
    "keys": lambda s: s.K[:, s.owner],
    "values": lambda s: s.V[:, s.owner],
    "QK": lambda s: s.Q @ T(s.keys),
    "A": lambda s: s.gamma * s.QK + s.B,
    "L": lambda s: log_sum_exp(s.A),
    "P": lambda s: plain_softmax(s.A),
    "O": lambda s: (s.P * s.R) @ s.values,
    # the way back
    "gamma_back": lambda s: s.gamma,
    "owner_back": lambda s: s.owner,
    "B_back": lambda s: s.B,
    "keys_back": lambda s: s.K[:, s.owner_back],
    "values_back": lambda s: s.V[:, s.owner_back],
    "A_back": lambda s: s.gamma * (s.Q @ T(s.keys_back)) + s.B_back,
    "P_back": lambda s: plain_softmax(s.A_back),
    "R_back": lambda s: s.R,
    "PR_back": lambda s: s.P_back * s.R_back,
    "dP": lambda s: (s.dO @ T(s.values_back)) * s.R_back,
    "D": lambda s: rowsum(s.P_back * s.dP),
    "dA": lambda s: s.P_back * (s.dP - s.D),
    "dQ": lambda s: s.gamma_back * s.dA @ s.keys_back,
    "dkeys": lambda s: s.gamma_back * T(s.dA) @ s.Q,
    "dvalues": lambda s: T(s.PR_back) @ s.dO,
    "dK": lambda s: grouped(s.dkeys, s.owner_back, s.K.shape[1]),
    "dV": lambda s: grouped(s.dvalues, s.owner_back, s.V.shape[1]),
    "dB": lambda s: sum_to(s.dA, s.case.bias),
}


def downstream(table: Mapping[str, Step]) -> dict[str, frozenset[str]]:
    """For each letter all that depend on it, itself included: what a step names stands in its code."""
    return all_users({letter: set(step.__code__.co_names) & table.keys() for letter, step in table.items()})


def all_users(uses: Mapping[str, Collection[str]]) -> dict[str, frozenset[str]]:
    """For each letter itself and all that use it, or what uses it."""
    users = {x: [letter for letter, used in uses.items() if x in used] for x in uses}
    found = {}
    for letter in uses:
        seen, left = {letter}, [letter]
        while left:
            more = [x for x in users[left.pop()] if x not in seen]
            seen.update(more)
            left += more
        found[letter] = frozenset(seen)
    return found


DOWNSTREAM = downstream(STEPS)


LEFT = {letter: f"{letter}_left" for letter in Answer._fields}  # of what is rotated or normed


class Steps:
    """The letters of a head for one case; each is computed once, by its step."""

    table: Mapping[str, Step] = STEPS
    downstream: Mapping[str, frozenset[str]] = DOWNSTREAM
    case: Case
    means: Conventions
    changes: tuple[StepChanges, ...]
    quiet = False  # while a letter is computed, and with it all that it asks for
    origin: Self | None = None  # what it was before its last changes

    def __init__(self, case: Case, means: Conventions | None = None, changes: Iterable[StepChanges] = ()) -> None:
        self.case, self.means, self.changes = case, means or Conventions(), tuple(changes)
        if self.means.pieces is not None and type(self) is Steps:
            self.table, self.downstream = self.means.pieces.steps

    def __getattr__(self, letter: str) -> Any:
        if letter not in self.table:
            raise AttributeError(letter)
        if not self.quiet:
            self.quiet = True
            try:
                with np.errstate(all="ignore"):
                    return self.__getattr__(letter)
            finally:
                self.quiet = False
        value = self.table[letter](self)
        for change in self.changes:
            if letter in change:
                value = change[letter](self, value)
        self.__dict__[letter] = value
        return value

    def changed(self, changes: Collection[StepChanges]) -> Self:
        """The same case with further changes; letters that these cannot reach are taken over."""
        reached = set().union(*(self.downstream[letter] for change in changes for letter in change))
        kept = {x: value for x, value in self.__dict__.items() if x not in reached}
        return self._with(kept, changes=(*self.changes, *changes), origin=self)

    def _with(self, state: dict[str, Any], **more: Any) -> Self:
        """Another with this state and more, of which no letter is being computed."""
        other = object.__new__(type(self))
        other.__dict__ = state
        state.update(more, quiet=False)
        return other

    def at(self, case: Any) -> Self:
        """The same program for another problem."""
        kept = {x: value for x, value in self.__dict__.items() if x not in self.table}
        return self._with(kept, case=case, origin=None)

    def apart(self, without: StepChanges, *more: StepChanges) -> Self:
        """The same without one of its changes, and with more; what it was before that is not done again."""
        before = self.origin
        while before is not None and any(change is without for change in before.changes):
            before = before.origin
        before = before or self._with(dict(self.at(self.case).__dict__), changes=())
        rest = (change for change in self.changes[len(before.changes) :] if change is not without)
        return before.changed((*rest, *more))

    def answer(self) -> Answer:
        """The output and all gradients."""
        return Answer(*map(self.output, Answer._fields))

    def output(self, letter: str) -> Any:
        """One of them; those of queries and keys all the way back, if these are rotated or normed."""
        left = LEFT.get(letter, "")
        return getattr(self, left if left in self.table else letter)


# ---- queries that may attend to nothing: what the conventions make of them ----------------------


def rows_without_keys(s: Steps) -> np.ndarray:
    """The rows of queries that may attend to nothing, as a column."""
    return np.isneginf(s.A).all(-1, keepdims=True)


def empty_weight(empty: str | None, m: int) -> float:
    """What each of m keys weighs for a query that may attend to nothing; 1 where m is lost in the log-sum-exp."""
    return {"uniform": 1 / m, "sum": 1.0}.get((empty or "").split(" ")[0], 0.0)


def _mean(s: Steps, P: np.ndarray, empty: str = "uniform") -> np.ndarray:
    return np.where(rows_without_keys(s), empty_weight(empty, P.shape[-1]), P)


def zero_without_keys(s: Steps, P: np.ndarray) -> np.ndarray:
    """Zero in the rows of queries that may attend to nothing."""
    return np.where(rows_without_keys(s), 0.0, P)


_sum = partial(_mean, empty="sum")
EMPTY_ROWS: dict[str, StepChanges] = {  # by convention, what differs from rows that are zero
    "uniform": {"P": _mean, "P_back": _mean, "dA": zero_without_keys},
    "uniform with gradient": {"P": _mean, "P_back": _mean},
    "sum": {"P": _sum, "P_back": _sum, "dA": zero_without_keys},
    "sum with gradient": {"P": _sum, "P_back": _sum},
}


def changes_of_empty_rows(means: Conventions) -> tuple[StepChanges, ...]:
    """The steps that differ from those of rows that are zero."""
    return (EMPTY_ROWS[means.empty],) if means.empty in EMPTY_ROWS else ()


def nan_where_touched(case: Case, means: Conventions) -> Answer:
    """NaN in empty rows and in all that they touch, 0 elsewhere."""
    s = Steps(case, means)
    rows = np.where(rows_without_keys(s), np.nan, 0.0)
    keys = grouped(rows.sum(-2, keepdims=True), s.owner, case.K.shape[1])
    return Answer(rows, rows, keys, keys, sum_to(rows + np.zeros_like(s.P), case.bias))


# ---- a mistake: steps that differ ---------------------------------------------------------------

Wordings = Iterator[tuple[str, StepChanges]]  # with a word on each where there are several, such as the tile
Forms = Callable[[Any, Conventions], Wordings]  # of a Case, or of the case of a layer


class Mistake(NamedTuple):
    """A name, a sentence, the steps that differ, the formula that they break, and the cure."""

    name: str
    title: str
    forms: Forms
    formula: str
    cure: str


def only(change: StepChanges, when: Callable[[Any], bool] = lambda case: True) -> Forms:
    """One form alone, in the problems that have room for it."""
    return lambda case, means: iter([("", change)] if when(case) else [])


def multiplied(*letters: str, by: Callable[[Steps], float]) -> StepChanges:
    """Each of the letters times a number; what is not there stays so."""
    return {letter: lambda s, x: None if x is None else by(s) * x for letter in letters}


def bind(f: Callable[..., Any], *more: Any) -> Callable[[Steps, Any], Any]:
    """A wrong step that depends on more than the steps and the right value."""
    return lambda s, x: f(s, x, *more)


def as_in(letter: str, case: Case, means: Conventions) -> StepChanges:
    """A letter as it is in another problem, or by other conventions."""
    return {letter: lambda s, x: getattr(Steps(case, means), letter.removesuffix("_back"))}


def ignored(letter: str, *names: str) -> Forms:
    """A letter as it is without these, in the problems that have one of them."""

    def forms(case: Case, means: Conventions) -> Wordings:
        if case.has(*names):
            yield "", as_in(letter, case.without(*names), means)

    return forms


FROM_O: StepChanges = {"D": lambda s, D: rowsum(s.dO * s.O)}
FROM_L: StepChanges = {"P_back": lambda s, P: np.exp(s.A_back - s.L)}
# D and P are the same in right code however they are found; in wrong code they are not.
WAYS: tuple[tuple[StepChanges, ...], ...] = ((), (FROM_O,), (FROM_L,), (FROM_L, FROM_O))


# ---- the formulas that are broken ---------------------------------------------------------------

ATTENTION = "chapters/attention_map.md, eq:attention_map"
BACK = "chapters/attention.md, eq:attention_vjp"
DROPOUT = "chapters/dropout.md, eq:dropout_attention_vjp"
GROUPS = "chapters/heads.md, eq:multihead_vjp"
JACOBIAN = "chapters/softmax.md, eq:softmax_vjp"
CAUSAL_MASK = "chapters/masks.md, eq:causal_mask"
SOFTMAX = "chapters/softmax.md, eq:softmax"
