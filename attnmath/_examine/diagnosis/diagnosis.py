"""Which mistake is it? Wrong closed forms first, then the separate terms, then two at once, then the place."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import combinations, islice
from typing import NamedTuple

from attnmath._examine.diagnosis.coefficients import Failure, from_terms
from attnmath._examine.mistakes.mistakes import MISTAKES
from attnmath._examine.problems.steps import WAYS, Mistake, StepChanges
from attnmath._examine.report.report import Finding

# What the two ways to find D, and the two to find P, depend on: elsewhere they are the same.
UPSTREAM = frozenset("Q K V dO R gamma owner seen bias B keys values QK A P O owner_back B_back keys_back"
                     " values_back A_back P_back R_back dP".split())
CASES = 8  # failing problems that a name has to explain, the smallest of each kind
MOST_NAMES = 3  # where more names than that fit as well, none is given
TRIES = 300  # pairs of wrong formulas


class MistakeForm(NamedTuple):
    """A mistake in one of its forms."""

    mistake: Mistake
    detail: str
    changes: tuple[StepChanges, ...]

    def finding(self, where: str, evidence: str) -> Finding:
        """The mistake, with its detail where it has several forms."""
        m = self.mistake
        title = f"{m.title} ({self.detail})" if self.detail else m.title
        return Finding("mistake", m.name, title, where, m.formula, m.cure, evidence)


def head_forms(f: Failure, mistakes: Iterable[Mistake] = MISTAKES) -> Iterator[MistakeForm]:
    """Every mistake in every form that it can have in a problem."""
    for mistake in mistakes:
        for detail, change in mistake.forms(f.case, f.means):
            for way in WAYS if UPSTREAM & change.keys() else WAYS[:1]:
                yield MistakeForm(mistake, detail, (*way, change))


def both_forms(a: MistakeForm, b: MistakeForm) -> MistakeForm:
    """Both mistakes at once, under the name of the second."""
    return MistakeForm(b.mistake, b.detail, (*a.changes, *b.changes))


def explained_by_name(name: str, f: Failure) -> bool:
    """Whether a mistake of this name, in any form, gives what came."""
    return any(f.gives(form.changes) for form in forms_of([name], f))


def forms_of(names: Sequence[str], f: Failure) -> Iterator[MistakeForm]:
    """The forms of the mistakes of these names in a problem."""
    return head_forms(f, [m for m in MISTAKES if m.name in names])


def representatives(failures: Sequence[Failure], most: int = CASES) -> list[Failure]:
    """The first failure of each kind, and one that has several tiles.

    Kinds are first the sets of outputs that are wrong, then the traits.
    """
    kinds: set[frozenset[str]] = set()
    traits: set[str] = set()
    chosen = []
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


def named_finding(form: MistakeForm, explained: Sequence[Failure], others: list[str], of: str = "") -> Finding:
    """A mistake that explains failures, of some outputs alone where these are given."""
    evidence = f"this wrong formula gives what came, up to rounding, in {len(explained)} failing problem"
    evidence += "s" if len(explained) > 1 else ""
    if of:
        evidence = f"this wrong formula gives {of} as it came, up to rounding"
    if others:
        evidence += "; so would " + ", ".join(others)
    return form.finding(explained[0].where(), evidence)


def unnamed_finding(f: Failure, letters: Iterable[str] = ()) -> Finding:
    """Something is wrong and has no name: the place."""
    letters = sorted(letters or f.wrong)
    return Finding("unnamed", "unnamed", "the mistake has no name here", f.where(letters),
                   evidence=f"in the problem '{f.case.name}' with {', '.join(sorted(f.case.traits))}")


def diagnose(failures: Sequence[Failure]) -> list[Finding]:
    """The mistakes that explain the failures, each once; what stays unexplained as a place.

    A name comes from a problem without structure of its own: where all weights are equal, or
    there is one query, many wrong formulas are the same.
    """
    failures = sorted(failures, key=lambda f: (not f.generic, f.size))
    found: list[Finding] = []
    solved: dict[str, list[Failure]] = {}
    rest = representatives(failures)
    while rest and len(found) < 4 and (rest[0].generic or not found):
        second = further_mistake([x.name for x in found], rest[0]) if found else None
        names, explained = ([second], [rest[0]]) if second else explain(rest)
        if not names:
            break
        found += [x for x in names if x.name not in {y.name for y in found}]
        solved |= {x.name: explained or [rest[0]] for x in names if x.name not in solved}
        both = [x.name for x in found] if second else []
        rest = [f for f in rest if f not in explained] if explained else []
        rest = [f for f in rest if not explained_by_names(f, both)]
    if rest:  # a name from one problem alone does not stand where the same output stays unexplained
        left = {x for f in rest for x in f.wrong}
        kept = [x for x in found if len(solved[x.name]) > 1 or not left & solved[x.name][0].wrong.keys()]
        return [*kept, unnamed_finding(rest[0])]
    return found + something_else(failures, found)


def explain(failures: Sequence[Failure]) -> tuple[list[Finding], list[Failure]]:
    """What explains the first failure, and the failures that it explains."""
    first = failures[0]
    alike = [f for f in failures[1:] if f.wrong.keys() == first.wrong.keys()]
    known = [form for form in head_forms(first) if first.gives(form.changes)]
    ranked = []
    for name in dict.fromkeys(form.mistake.name for form in known):
        explained = [f for f in failures if f is first or explained_by_name(name, f)]
        more = [f for f in failures if f.wrong.keys() & first.wrong.keys() and f not in explained]
        if len(explained) == 1 and more or name == "zeros" and not set(alike) <= set(explained):
            continue  # it fits there by chance, or is zero there and something else elsewhere
        ranked.append((len(explained), name, explained))
    if ranked:
        _, name, explained = max(ranked, key=lambda x: x[0])  # of equals the first, as MISTAKES has them
        form = next(form for form in known if form.mistake.name == name)
        others = [other for k, other, _ in ranked if k == len(explained) and other != name]
        if len(others) > MOST_NAMES:
            return [], []
        return [named_finding(form, explained, others)], explained
    findings = from_terms(first)
    explained = [f for f in failures if _terms_among(f, {x.name for x in findings})]
    if findings and (len(explained) > 1 or not alike):
        return findings, explained
    return two_mistakes(first)


def _terms_among(f: Failure, names: Collection[str]) -> bool:
    read = {x.name for x in from_terms(f)}
    return bool(read) and read <= set(names)


# ---- several mistakes at once: a further one beside the first, two together, and what is left ----


def something_else(failures: Sequence[Failure], found: Sequence[Finding]) -> list[Finding]:
    """That what was found is not all: some problem goes wrong in another way."""
    names = [x.name for x in found if x.kind == "mistake"]
    generic = representatives([f for f in failures if f.generic], 2 * CASES)
    left = []
    if len(names) == len(found):
        left = [f for f in generic if not explained_by_names(f, names)]
    if not left:
        return []
    title = f"something else is wrong: {len(left)} of {len(generic)} kinds of failing problems are not explained"
    return [replace(unnamed_finding(left[0]), name="more", title=title)]


def further_mistake(names: Sequence[str], f: Failure) -> Finding | None:
    """A further mistake that together with one of these names gives what came."""
    few = 2 if f.case.Q.shape[2] * f.case.K.shape[2] > 600 else 2 * len(WAYS)  # long ones take time
    first = list(islice(forms_of(names, f), few))
    for other in head_forms(f):
        if other.mistake.name not in names:
            for form in first:
                both = both_forms(form, other)
                if f.gives(both.changes):
                    return named_finding(both, [f], [])
    return None


def explained_by_names(f: Failure, names: Sequence[str]) -> bool:
    """Whether the mistakes of these names, one of them or two together, give what came."""
    if any(explained_by_name(name, f) for name in names) or _terms_among(f, names):
        return True
    each = [list(forms_of([name], f)) for name in names]
    both = (both_forms(a, b) for x, y in combinations(each, 2) for a in x for b in y)
    return any(f.gives(form.changes) for form in islice(both, TRIES))


def two_mistakes(first: Failure) -> tuple[list[Finding], list[Failure]]:
    """Two mistakes at once, out of those that explain one wrong output each."""
    partly: list[tuple[MistakeForm, frozenset[str]]] = []
    seen = set()
    for form in head_forms(first):
        s = first.steps(form.changes)
        here = frozenset(x for x in first.wrong if first.gives_letter(x, s))
        if here and (form.mistake.name, here) not in seen:
            seen.add((form.mistake.name, here))
            partly.append((form, here))
    twos = [(a, b) for (a, of_a), (b, of_b) in combinations(partly, 2)
            if of_a | of_b == first.wrong.keys() and a.mistake.name != b.mistake.name]
    for a, b in twos[:TRIES]:
        if first.gives(both_forms(a, b).changes):
            return [named_finding(a, [first], []), named_finding(b, [first], [])], [first]
    found: list[Finding] = []
    left = set(first.wrong)
    for form, here in sorted(partly, key=lambda x: -len(x[1])):
        if here & left and form.mistake.name not in {x.name for x in found}:
            found.append(named_finding(form, [first], [], ", ".join(sorted(here))))
            left -= here
    if found and left:
        found.append(unnamed_finding(first, left))
    return found, []
