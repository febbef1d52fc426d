"""Which mistake is it? Wrong closed forms first, then the separate terms, then the place."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, islice
from typing import NamedTuple

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._coefficients import from_terms
from attnmath._examine._mistake import WAYS, Mistake
from attnmath._examine._mistakes import MISTAKES
from attnmath._examine._place import place
from attnmath._examine._report import Finding
from attnmath._examine._steps import Change, Steps
from attnmath._roundoff import unit_roundoff

# What the two ways to find D, and the two to find P, depend on: elsewhere they are the same.
UPSTREAM = frozenset("Q K V dO R gamma owner seen bias B keys values QK A P O owner_back B_back keys_back"
                     " values_back A_back P_back R_back dP".split())  # fmt: skip
ALIKE = 3  # where more names than that fit as well, none is given
TRIES = 300  # pairs of wrong formulas
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
        return drawn and min(s["n"], s["m"]) > 1 and self.case.scale != 0

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


def diagnose(failures: Sequence[Failure], means: Conventions, dtype: str) -> list[Finding]:
    """The mistakes that explain the failures, each once; what stays unexplained as a place.

    A name comes from a problem without structure of its own: where all weights are equal, or
    there is one query, many wrong formulas are the same.
    """
    failures, found = sorted(failures, key=lambda f: (not f.generic, f.size)), []
    rest = representatives(failures)
    while rest and len(found) < 4 and (rest[0].generic or not found):
        second = beside([x.name for x in found], rest[0], means, dtype) if found else None
        names, explained = ([second], [rest[0]]) if second else explain(rest, means, dtype)
        if not names:
            break
        found += [x for x in names if x.name not in {y.name for y in found}]
        both = [x.name for x in found] if second else []
        rest = [f for f in rest if f not in explained and not covered(f, both, means, dtype)] if explained else []
    if rest:
        return [*found, unnamed(rest[0])]
    return found + more(failures, found, means, dtype)


def more(
    failures: Sequence[Failure], found: Sequence[Finding], means: Conventions, dtype: str
) -> list[Finding]:
    """That what was found is not all: some problem goes wrong in another way."""
    names = [x.name for x in found if x.kind == "mistake"]
    generic = representatives([f for f in failures if f.generic], 2 * CASES)
    left = [f for f in generic if not covered(f, names, means, dtype)] if len(names) == len(found) else []
    if not left:
        return []
    title = f"something else is wrong: {len(left)} of {len(generic)} kinds of failing problems are not explained"
    return [replace(unnamed(left[0]), name="more", title=title)]


def beside(names: Sequence[str], f: Failure, means: Conventions, dtype: str) -> Finding | None:
    """A further mistake that together with one of these names gives what came."""
    first = list(forms(f.case, means, [m for m in MISTAKES if m.name in names]))[: 2 * len(WAYS)]
    for other in forms(f.case, means):
        if other.mistake.name not in names:
            for form in first:
                both = Form(other.mistake, other.detail, (*form.changes, *other.changes))
                if _fits(both, f, means, dtype):
                    return _finding(both, [f], [])
    return None


def covered(f: Failure, names: Sequence[str], means: Conventions, dtype: str) -> bool:
    """Whether the mistakes of these names, one of them or two together, give what came."""
    if any(named(name, f, means, dtype) for name in names):
        return True
    read = {x.name for x in from_terms(f.case, means, f.got, f.off, f.wrong)}
    if read and read <= set(names):
        return True
    each = [list(forms(f.case, means, [m for m in MISTAKES if m.name == name])) for name in names]
    both = (Form(a.mistake, "", (*a.changes, *b.changes)) for x, y in combinations(each, 2) for a in x for b in y)
    return any(_fits(form, f, means, dtype) for form in islice(both, TRIES))


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


def explain(
    failures: Sequence[Failure], means: Conventions, dtype: str
) -> tuple[list[Finding], list[Failure]]:
    """What explains the first failure, and the failures that it explains."""
    first = failures[0]
    known = [form for form in forms(first.case, means) if _fits(form, first, means, dtype)]
    ranked = []
    for name in dict.fromkeys(form.mistake.name for form in known):
        explained = [f for f in failures if f is first or named(name, f, means, dtype)]
        alike = [f for f in failures if f.wrong.keys() == first.wrong.keys() and f not in explained]
        if name == "zeros" and alike:  # zero there, and something else elsewhere
            continue
        ranked.append((len(explained), name, explained))
    if ranked:
        _, name, explained = max(ranked, key=lambda x: x[0])  # of equals the first, as MISTAKES has them
        form = next(form for form in known if form.mistake.name == name)
        others = [other for k, other, _ in ranked if k == len(explained) and other != name]
        if len(others) > ALIKE:
            return [], []
        return [_finding(form, explained, others)], explained
    findings = from_terms(first.case, means, first.got, first.off, first.wrong)
    if findings:
        return findings, [f for f in failures if _same_terms(f, findings, means)]
    return pairs(failures, means, dtype)


def forms(case: Case, means: Conventions, mistakes: Iterable[Mistake] = MISTAKES) -> Iterator[Form]:
    """Every mistake in every form that it can have in a case."""
    for mistake in mistakes:
        for detail, change in mistake.forms(case, means):
            for way in WAYS if UPSTREAM & change.keys() else WAYS[:1]:
                yield Form(mistake, detail, (*way, change))


def named(name: str, f: Failure, means: Conventions, dtype: str) -> bool:
    """Whether a mistake of this name, in any form, gives what came."""
    own = [m for m in MISTAKES if m.name == name]
    return any(_fits(form, f, means, dtype) for form in forms(f.case, means, own))


def _fits(form: Form, f: Failure, means: Conventions, dtype: str) -> bool:
    s = Steps(f.case, means, form.changes)
    letters = sorted(f.got._fields, key=lambda x: x not in f.wrong)  # wrong ones first: most forms fail
    return all(_agrees(getattr(s, x), x, f, dtype) for x in letters if getattr(f.got, x) is not None)


def _agrees(wrong: np.ndarray | None, letter: str, f: Failure, dtype: str) -> bool:
    """Whether a wrong closed form gives what came, up to the roundings that both forms have."""
    got, off = getattr(f.got, letter), getattr(f.off, letter)
    if wrong is None or wrong.shape != got.shape:
        return False
    with np.errstate(all="ignore"):
        size = np.abs(wrong).max((-2, -1), keepdims=True, initial=0.0)
        return bool(np.all(np.abs(got - wrong) <= 4 * off + 16 * unit_roundoff(dtype) * size))


def pairs(
    failures: Sequence[Failure], means: Conventions, dtype: str
) -> tuple[list[Finding], list[Failure]]:
    """Two mistakes at once, out of those that explain one wrong output each."""
    first = failures[0]
    partly, seen = [], set()
    for form in forms(first.case, means):
        s = Steps(first.case, means, form.changes)
        here = frozenset(x for x in first.wrong if _agrees(getattr(s, x), x, first, dtype))
        if here and (form.mistake.name, here) not in seen:
            seen.add((form.mistake.name, here))
            partly.append((form, here))
    twos = [(a, b) for (a, of_a), (b, of_b) in combinations(partly, 2)
            if of_a | of_b == first.wrong.keys() and a.mistake.name != b.mistake.name]  # fmt: skip
    for a, b in twos[:TRIES]:
        if _fits(Form(a.mistake, "", (*a.changes, *b.changes)), first, means, dtype):
            return [_finding(a, [first], []), _finding(b, [first], [])], [first]
    found = []
    left = set(first.wrong)
    for form, here in sorted(partly, key=lambda x: -len(x[1])):
        if here & left and form.mistake.name not in {x.name for x in found}:
            found.append(_finding(form, [first], [], ", ".join(sorted(here))))
            left -= here
    if found and left:
        found.append(unnamed(first, left))
    return found, []


def _same_terms(f: Failure, findings: list[Finding], means: Conventions) -> bool:
    names = {x.name for x in from_terms(f.case, means, f.got, f.off, f.wrong)}
    return bool(names) and names <= {x.name for x in findings}


def _finding(form: Form, explained: Sequence[Failure], others: list[str], of: str = "") -> Finding:
    m, f = form.mistake, explained[0]
    evidence = f"this wrong formula gives what came, up to rounding, in {len(explained)} failing problem"
    evidence += "s" if len(explained) > 1 else ""
    if of:
        evidence = f"this wrong formula gives {of} as it came, up to rounding"
    if others:
        evidence += "; so would " + ", ".join(others)
    title = f"{m.title} ({form.detail})" if form.detail else m.title
    return Finding("mistake", m.name, title, _where(f, f.wrong), m.formula, m.cure, evidence)


def _where(f: Failure, letters: Iterable[str]) -> str:
    return "; ".join(place(x, f.wrong[x], getattr(f.got, x)) for x in letters)


def unnamed(f: Failure, letters: Iterable[str] = ()) -> Finding:
    """Something is wrong and has no name: the place."""
    letters = sorted(letters or f.wrong)
    return Finding("unnamed", "unnamed", "the mistake has no name here", _where(f, letters),
                   evidence=f"in the problem '{f.case.name}' with {', '.join(sorted(f.case.traits))}")  # fmt: skip


