"""Several mistakes at once: a further one beside the first, two together, and what is left."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations, islice

from attnmath._examine._case import Conventions
from attnmath._examine._coefficients import from_terms
from attnmath._examine._failures import (
    CASES,
    Failure,
    Form,
    agrees,
    finding,
    fits,
    forms,
    forms_of,
    named,
    representatives,
    unnamed,
)
from attnmath._examine._mistake import WAYS
from attnmath._examine._report import Finding
from attnmath._examine._steps import Steps

TRIES = 300  # pairs of wrong formulas


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
    few = 2 if f.case.Q.shape[2] * f.case.K.shape[2] > 600 else 2 * len(WAYS)  # long ones take time
    first = list(islice(forms_of(names, f, means), few))
    for other in forms(f.case, means):
        if other.mistake.name not in names:
            for form in first:
                both = Form(other.mistake, other.detail, (*form.changes, *other.changes))
                if fits(both, f, means, dtype):
                    return finding(both, [f], [])
    return None


def covered(f: Failure, names: Sequence[str], means: Conventions, dtype: str) -> bool:
    """Whether the mistakes of these names, one of them or two together, give what came."""
    if any(named(name, f, means, dtype) for name in names):
        return True
    read = {x.name for x in from_terms(f.case, means, f.got, f.off, f.wrong)}
    if read and read <= set(names):
        return True
    each = [list(forms_of([name], f, means)) for name in names]
    both = (Form(a.mistake, "", (*a.changes, *b.changes)) for x, y in combinations(each, 2) for a in x for b in y)
    return any(fits(form, f, means, dtype) for form in islice(both, TRIES))


def pairs(
    failures: Sequence[Failure], means: Conventions, dtype: str
) -> tuple[list[Finding], list[Failure]]:
    """Two mistakes at once, out of those that explain one wrong output each."""
    first = failures[0]
    partly, seen = [], set()
    for form in forms(first.case, means):
        s = Steps(first.case, means, form.changes)
        here = frozenset(x for x in first.wrong if agrees(getattr(s, x), x, first, dtype))
        if here and (form.mistake.name, here) not in seen:
            seen.add((form.mistake.name, here))
            partly.append((form, here))
    twos = [(a, b) for (a, of_a), (b, of_b) in combinations(partly, 2)
            if of_a | of_b == first.wrong.keys() and a.mistake.name != b.mistake.name]  # fmt: skip
    for a, b in twos[:TRIES]:
        if fits(Form(a.mistake, "", (*a.changes, *b.changes)), first, means, dtype):
            return [finding(a, [first], []), finding(b, [first], [])], [first]
    found = []
    left = set(first.wrong)
    for form, here in sorted(partly, key=lambda x: -len(x[1])):
        if here & left and form.mistake.name not in {x.name for x in found}:
            found.append(finding(form, [first], [], ", ".join(sorted(here))))
            left -= here
    if found and left:
        found.append(unnamed(first, left))
    return found, []
