"""A name is an edit of the program that gives everything that came, in all problems, or under one condition.

An edit is a wrong step in one wording, the same in every problem: a tile of 64 is a tile of 64 everywhere.
Where it acts must be all problems, or those that one condition tells from the others; it is then said.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import islice, product
from operator import itemgetter
from typing import NamedTuple

from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.mistakes.modes import IN_WAY_BACK, OWN, modes
from attnmath._examine.mistakes.parts import Part
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.pieces import PIECED_DOWNSTREAM
from attnmath._examine.problems.steps import DOWNSTREAM, Mistake, StepChanges

LETTERS = {**PIECED_DOWNSTREAM, **DOWNSTREAM}
Ask = Callable[[Case], Failure | None]  # what a candidate answers to one more problem


class Edit(NamedTuple):
    """A mistake in one wording, where it acts, in one part: the same edit of the program in every problem."""

    mistake: Mistake
    detail: str = ""
    which: int = 0  # of the forms with the same wording
    mode: int = 0  # of those that the mistake has
    where: str = ""  # in words, the mode
    part: Part | None = None  # of batch elements, heads, queries or keys

    def changes(self, case: Case, means: Conventions) -> tuple[StepChanges, ...]:
        """The steps that differ in a problem; none where there is nothing to change."""
        alike = (change for detail, change in self.mistake.forms(case, means) if detail == self.detail)
        change = next(islice(alike, self.which, None), {})
        change = self.part.of(change, case) if self.part else change
        return next((changes for _, changes in islice(modes(change), self.mode, None)), ()) if change else ()


def edits_of(
    mistake: Mistake, f: Failure, whole: bool = False, part: Part | None = None
) -> Iterator[tuple[Edit, tuple[StepChanges, ...]]]:
    """A mistake in every form that it can have in a problem; whole: those that may explain all that is wrong."""
    counted: dict[str, int] = {}
    for detail, change in mistake.forms(f.case, f.means):
        which = counted[detail] = counted.get(detail, -1) + 1
        change = part.of(change, f.case) if part else change
        if not change:
            continue
        for mode, (words, changes) in enumerate(modes(change)):
            if not whole or reaches(words, changes, f.wrong):
                yield Edit(mistake, detail, which, mode, words, part), changes


def reached(changes: Sequence[StepChanges]) -> frozenset[str]:
    """The letters that these steps can change."""
    return _reached(tuple(x for change in changes for x in change))


@cache
def _reached(letters: tuple[str, ...]) -> frozenset[str]:
    return frozenset().union(*(LETTERS[x] for x in letters))


def reaches(words: str, changes: Sequence[StepChanges], wrong: Collection[str]) -> bool:
    """Whether an edit can change all these outputs, and the output where that is wrong."""
    if OWN in changes:
        return "O" in wrong
    all_of_it = reached(changes)
    return ("O" in wrong) is ("O" in all_of_it and words != IN_WAY_BACK) and all_of_it.issuperset(wrong)


def changes_of(edits: Sequence[Edit], f: Failure) -> tuple[StepChanges, ...]:
    """What these edits change together in a problem; nothing where there is nothing to change."""
    changes = [_changes(edit, f) for edit in edits]
    return (*(x for some in changes for x in some[:-1]), *(some[-1] for some in changes if some))


def _changes(edit: Edit, f: Failure) -> tuple[StepChanges, ...]:
    """What an edit changes in a problem; kept, since it is tried beside many others."""
    if edit not in f.changes:
        f.changes[edit] = edit.changes(f.case, f.means)
    return f.changes[edit]


def explains(edits: tuple[Edit, ...], f: Failure, changes: tuple[StepChanges, ...] | None = None) -> bool:
    """Whether these edits give all that came in a problem; it keeps the answer, which is asked for again."""
    if edits not in f.explained:
        f.explained[edits] = f.explained_by(changes_of(edits, f) if changes is None else changes)
    return f.explained[edits]


# ---- a condition: what tells the problems in which an edit acts from the others ------------------


class Condition(NamedTuple):
    """In words, and whether a problem meets it; None where that is not known."""

    words: str
    holds: Callable[[Case], bool | None]


ALWAYS = Condition("", lambda case: True)
TRAITS = {
    "dropout": "with dropout", "causal": "with a causal mask", "mask": "with a mask", "bias": "with a bias",
    "scale": "where a scale is given", "groups": "with groups", "strided dO": "with strided dO",
    "broadcast dO": "with a dO that is broadcast", "strided inputs": "with strided inputs",
    "contiguous rows": "with strided inputs of contiguous rows",
    "empty row": "with rows that may attend to nothing", "poison": "with huge numbers behind a mask",
    "large negative scores": "with scores far below 0",
}
SIZES = {"n": "queries", "m": "keys", "d_k": "columns of Q and K", "d_v": "columns of V", "b": "batch elements",
         "H": "heads"}
RELATIONS = {
    "for n = m": lambda s: s["n"] == s["m"], "for n < m": lambda s: s["n"] < s["m"],
    "for n > m": lambda s: s["n"] > s["m"], "for d_v < d_k": lambda s: s["d_v"] < s["d_k"],
    "for d_v > d_k": lambda s: s["d_v"] > s["d_k"], "for odd d_k": lambda s: s["d_k"] % 2 == 1,
    "for odd d_v": lambda s: s["d_v"] % 2 == 1, "for odd n": lambda s: s["n"] % 2 == 1,
    "for odd m": lambda s: s["m"] % 2 == 1,
}
LENGTHS: dict[str, Callable[[dict[str, int]], int]] = {
    **{x: itemgetter(x) for x in SIZES}, "queries or keys": lambda s: max(s["n"], s["m"]),
}


def _without(words: str) -> str:
    return words.replace("with", "without", 1) if words.startswith("with ") else f"not {words}"


def _condition(words: str, holds: Callable[[Case], bool], wanted: bool) -> Condition:
    """That something holds, or that it does not."""
    return Condition(words if wanted else _without(words), lambda case: holds(case) is wanted)


class Threshold(NamedTuple):
    """More than so many, or at most: somewhere from low to high."""

    size: str
    low: int  # the largest of the shorter ones
    high: int  # the smallest of the longer ones
    above: bool  # whether it acts there

    def condition(self) -> Condition:
        """As a condition; between low and high it is not known."""
        what = SIZES.get(self.size, self.size)
        known = f"{self.low}" if self.high == self.low + 1 else f"{self.low} to {self.high - 1}"
        words = f"for more than {known} {what}" if self.above else f"for at most {known} {what}"
        words = words.replace("for at most 1 queries", "for one query")
        return Condition(words, self.holds)

    def holds(self, case: Case) -> bool | None:
        length = LENGTHS[self.size](case.sizes)
        return None if self.low < length < self.high else (length >= self.high) is self.above


def conditions(acts: Sequence[Case], rests: Sequence[Case]) -> list[Condition | Threshold]:
    """The plainest that hold in each of the first and in none of the others."""
    if not rests:
        return [ALWAYS]

    def separate(some: Iterable[Condition]) -> list[Condition]:
        return [x for x in some if all(map(x.holds, acts)) and not any(map(x.holds, rests))]

    def traits(wanted: bool) -> list[Condition]:
        return separate(_condition(words, partial(_has, trait), wanted) for trait, words in TRAITS.items())

    def relations(wanted: bool) -> list[Condition]:
        return separate(_condition(words, partial(_stand, x), wanted) for words, x in RELATIONS.items())

    multiples = (Condition(f"where {size} is {'a' if wanted else 'no'} multiple of {t}",
                           partial(_multiple, size, t, wanted))
                 for size, t, wanted in product(("n", "m", "d_k", "d_v"), (4, 8, 16, 32, 64, 128), (False, True)))
    plainest: list[Condition | Threshold] = [*traits(True)]
    plainest = plainest or [*traits(False), *relations(True), *_thresholds(acts, rests)]
    return plainest or [*separate(multiples)[:1]] or [*relations(False)]


def _has(trait: str, case: Case) -> bool:
    return trait in case.traits


def _multiple(size: str, t: int, wanted: bool, case: Case) -> bool:
    return (case.sizes[size] % t == 0) is wanted


def _stand(relation: Callable[[dict], bool], case: Case) -> bool:
    return relation(case.sizes)


def _thresholds(acts: Sequence[Case], rests: Sequence[Case]) -> Iterator[Threshold]:
    """The lengths that tell the first from the others."""
    for size, length in LENGTHS.items():
        mine, others = ([length(c.sizes) for c in some] for some in (acts, rests))
        if max(others) < min(mine):
            yield Threshold(size, max(others), min(mine), True)
        elif max(mine) < min(others):
            yield Threshold(size, max(mine), min(others), False)


# ---- whether edits explain everything -----------------------------------------------------------


MOST_CONDITIONS = 3  # that tell as well where an edit acts; beside another edit there is one


class Proof(NamedTuple):
    """Edits that explain everything, and for each the conditions under which it may act."""

    edits: tuple[Edit, ...]
    when: tuple[tuple[Condition | Threshold, ...], ...]

    @property
    def always(self) -> bool:
        """Whether nothing is asked of a problem."""
        return all(each == (ALWAYS,) for each in self.when)


def proof(edits: tuple[Edit, ...], trials: Sequence[Failure]) -> Proof | None:
    """The edits with their conditions, if they give everything that came in all problems.

    One of them may act under a condition; where it rests, the others alone have to explain what came.
    """
    if not any(f.wrong and f.telling for f in trials):
        return None
    acts: list[list[Failure]] = [[] for _ in edits]
    rests: list[list[Failure]] = [[] for _ in edits]
    possible, needed = set(range(len(edits))), set[int]()
    others = [edits[:i] + edits[i + 1 :] for i in range(len(edits))]
    always = True
    for f in trials:
        whole = explains(edits, f)
        always &= whole
        for i in range(len(edits)):
            if not whole and not explains(others[i], f):
                possible.discard(i)
            if f.telling and i not in needed and not explains(others[i], f):
                needed.add(i)
        if not possible and not always:
            return None
    if len(needed) < len(edits):
        return None  # what is needed only where numbers are infinite is not told from others
    if always:
        return Proof(edits, ((ALWAYS,),) * len(edits))
    for f, i in product(trials, possible):
        whole = explains(edits, f)
        if not (whole and explains(others[i], f)):
            (acts if whole else rests)[i].append(f)
    for i in sorted(possible):
        found = tuple(conditions([f.case for f in acts[i]], [f.case for f in rests[i]])) if acts[i] else ()
        if any(f.telling for f in acts[i]) and 0 < len(found) <= (MOST_CONDITIONS if len(edits) == 1 else 1):
            return Proof(edits, tuple(found if j == i else (ALWAYS,) for j in range(len(edits))))
    return None
