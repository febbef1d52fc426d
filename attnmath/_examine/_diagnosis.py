"""Which mistake is it? Wrong closed forms first, then the separate terms, then the place."""

from collections.abc import Sequence

from attnmath._examine._case import Conventions
from attnmath._examine._coefficients import from_terms
from attnmath._examine._failures import Failure, finding, fits, forms, named, representatives, unnamed
from attnmath._examine._report import Finding
from attnmath._examine._several import beside, covered, more, pairs

ALIKE = 3  # where more names than that fit as well, none is given


def diagnose(failures: Sequence[Failure], means: Conventions, dtype: str) -> list[Finding]:
    """The mistakes that explain the failures, each once; what stays unexplained as a place.

    A name comes from a problem without structure of its own: where all weights are equal, or
    there is one query, many wrong formulas are the same.
    """
    failures, found, from_ = sorted(failures, key=lambda f: (not f.generic, f.size)), [], {}
    rest = representatives(failures)
    while rest and len(found) < 4 and (rest[0].generic or not found):
        second = beside([x.name for x in found], rest[0], means, dtype) if found else None
        names, explained = ([second], [rest[0]]) if second else explain(rest, means, dtype)
        if not names:
            break
        found += [x for x in names if x.name not in {y.name for y in found}]
        from_ |= {x.name: explained or [rest[0]] for x in names if x.name not in from_}
        both = [x.name for x in found] if second else []
        rest = [f for f in rest if f not in explained and not covered(f, both, means, dtype)] if explained else []
    if rest:  # a name from one problem alone does not stand where the same output stays unexplained
        left = {x for f in rest for x in f.wrong}
        kept = [x for x in found if len(from_[x.name]) > 1 or not left & from_[x.name][0].wrong.keys()]
        return [*kept, unnamed(rest[0])]
    return found + more(failures, found, means, dtype)


def explain(
    failures: Sequence[Failure], means: Conventions, dtype: str
) -> tuple[list[Finding], list[Failure]]:
    """What explains the first failure, and the failures that it explains."""
    first = failures[0]
    alike = [f for f in failures[1:] if f.wrong.keys() == first.wrong.keys()]
    known = [form for form in forms(first.case, means) if fits(form, first, means, dtype)]
    ranked = []
    for name in dict.fromkeys(form.mistake.name for form in known):
        explained = [f for f in failures if f is first or named(name, f, means, dtype)]
        more = [f for f in failures if f.wrong.keys() & first.wrong.keys() and f not in explained]
        if len(explained) == 1 and more or name == "zeros" and not set(alike) <= set(explained):
            continue  # it fits there by chance, or is zero there and something else elsewhere
        ranked.append((len(explained), name, explained))
    if ranked:
        _, name, explained = max(ranked, key=lambda x: x[0])  # of equals the first, as MISTAKES has them
        form = next(form for form in known if form.mistake.name == name)
        others = [other for k, other, _ in ranked if k == len(explained) and other != name]
        if len(others) > ALIKE:
            return [], []
        return [finding(form, explained, others)], explained
    findings = from_terms(first.case, means, first.got, first.off, first.wrong)
    explained = [f for f in failures if _same_terms(f, findings, means)]
    if findings and (len(explained) > 1 or not alike):
        return findings, explained
    return pairs(failures, means, dtype)


def _same_terms(f: Failure, findings: list[Finding], means: Conventions) -> bool:
    names = {x.name for x in from_terms(f.case, means, f.got, f.off, f.wrong)}
    return bool(names) and names <= {x.name for x in findings}
