"""A problem that went wrong, and whether a wrong closed form gives what came."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._mistake import WAYS, Mistake
from attnmath._examine._mistakes import MISTAKES
from attnmath._examine._place import place
from attnmath._examine._report import Finding
from attnmath._examine._steps import Change, Steps
from attnmath._roundoff import unit_roundoff

# What the two ways to find D, and the two to find P, depend on: elsewhere they are the same.
UPSTREAM = frozenset("Q K V dO R gamma owner seen bias B keys values QK A P O owner_back B_back keys_back"
                     " values_back A_back P_back R_back dP".split())  # fmt: skip
CASES = 8  # failing problems that a name has to explain, the smallest of each kind


@dataclass(frozen=True, eq=False)
class Failure:
    """A problem that went wrong: what came, what is right, how far off it may be."""

    case: Case
    got: Answer
    want: Answer
    off: Answer
    wrong: dict[str, np.ndarray]  # for each output, which entries

    @property
    def generic(self) -> bool:
        """Whether its numbers have no structure of their own."""
        s, traits = self.case.sizes, self.case.traits
        drawn = bool(traits & {"gaussian", "peaked", "outliers"})
        return drawn and min(s["n"], s["m"], s["d_k"], s["d_v"]) > 1 and self.case.scale != 0

    @property
    def size(self) -> tuple[bool, int]:
        """How much there is to compute; last of all where infinities hide the numbers."""
        finite = all(np.isfinite(x).all() for x in self.got if x is not None)
        return not finite, self.case.Q.size * self.case.K.shape[2]


class Form(NamedTuple):
    """A mistake in one of its forms."""

    mistake: Mistake
    detail: str
    changes: tuple[Change, ...]


def forms(case: Case, means: Conventions, mistakes: Iterable[Mistake] = MISTAKES) -> Iterator[Form]:
    """Every mistake in every form that it can have in a case."""
    for mistake in mistakes:
        for detail, change in mistake.forms(case, means):
            for way in WAYS if UPSTREAM & change.keys() else WAYS[:1]:
                yield Form(mistake, detail, (*way, change))


def named(name: str, f: Failure, means: Conventions, dtype: str) -> bool:
    """Whether a mistake of this name, in any form, gives what came."""
    return any(fits(form, f, means, dtype) for form in forms_of([name], f, means))


def forms_of(names: Sequence[str], f: Failure, means: Conventions) -> Iterator[Form]:
    """The forms of the mistakes of these names in a problem."""
    return forms(f.case, means, [m for m in MISTAKES if m.name in names])


def fits(form: Form, f: Failure, means: Conventions, dtype: str) -> bool:
    """Whether a form gives everything that came."""
    s = Steps(f.case, means, form.changes)
    letters = sorted(f.got._fields, key=lambda x: x not in f.wrong)  # wrong ones first: most forms fail
    return all(agrees(getattr(s, x), x, f, dtype) for x in letters if getattr(f.got, x) is not None)


def agrees(wrong: np.ndarray | None, letter: str, f: Failure, dtype: str) -> bool:
    """Whether a wrong closed form gives what came, up to the roundings that both forms have."""
    got, off = getattr(f.got, letter), getattr(f.off, letter)
    if wrong is None or wrong.shape != got.shape:
        return False
    with np.errstate(all="ignore"):
        size = np.abs(wrong).max((-2, -1), keepdims=True, initial=0.0)
        return bool(np.all(np.abs(got - wrong) <= 4 * off + 16 * unit_roundoff(dtype) * size))


def representatives(failures: Sequence[Failure], most: int = CASES) -> list[Failure]:
    """The first failure of each kind, and one that has several tiles.

    Kinds are first the sets of outputs that are wrong, then the traits.
    """
    kinds, traits, chosen = set(), set(), []
    for f in failures:
        if frozenset(f.wrong) not in kinds:
            kinds.add(frozenset(f.wrong))
            traits |= f.case.traits
            chosen.append(f)
    for f in failures:
        if not f.case.traits <= traits:
            traits |= f.case.traits
            chosen.append(f)
    long = [f for f in failures if min(f.case.Q.shape[2], f.case.K.shape[2]) > 32][:1]
    kept = {id(f) for f in [*long, *chosen][:most]}
    return [f for f in failures if id(f) in kept]


def finding(form: Form, explained: Sequence[Failure], others: list[str], of: str = "") -> Finding:
    m, f = form.mistake, explained[0]
    evidence = f"this wrong formula gives what came, up to rounding, in {len(explained)} failing problem"
    evidence += "s" if len(explained) > 1 else ""
    if of:
        evidence = f"this wrong formula gives {of} as it came, up to rounding"
    if others:
        evidence += "; so would " + ", ".join(others)
    title = f"{m.title} ({form.detail})" if form.detail else m.title
    return Finding("mistake", m.name, title, where_wrong(f, f.wrong), m.formula, m.cure, evidence)


def where_wrong(f: Failure, letters: Iterable[str]) -> str:
    return "; ".join(place(x, f.wrong[x], getattr(f.got, x)) for x in letters)


def unnamed(f: Failure, letters: Iterable[str] = ()) -> Finding:
    """Something is wrong and has no name: the place."""
    letters = sorted(letters or f.wrong)
    return Finding("unnamed", "unnamed", "the mistake has no name here", where_wrong(f, letters),
                   evidence=f"in the problem '{f.case.name}' with {', '.join(sorted(f.case.traits))}")  # fmt: skip
