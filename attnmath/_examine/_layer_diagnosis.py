"""Which mistake of a layer is it? Wrong closed forms, alone and in pairs; otherwise the place."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from attnmath._examine._case import Conventions
from attnmath._examine._layer_identities import identities
from attnmath._examine._layer_judge import Tried
from attnmath._examine._layer_mistakes import DICTIONARY
from attnmath._examine._layer_paths import paths
from attnmath._examine._layer_steps import LayerSteps
from attnmath._examine._mistake import Mistake
from attnmath._examine._report import Finding
from attnmath._examine._steps import Change

PROBLEMS = 6  # that a name has to explain: of each kind the smallest
CLOSE = 4  # first mistakes beside which a second one is looked for
VAGUE = 0.02  # where wrong forms are allowed more than this, several would fit


class Form(NamedTuple):
    """A mistake in one of its forms."""

    mistake: Mistake
    word: str
    change: Change


def diagnose(problems: Sequence[Tried], means: Conventions) -> list[Finding]:
    """The mistakes that explain all problems, or that there is no name, and where it is wrong."""
    wrong = sorted((t for t in problems if t.wrong), key=lambda t: (-len(t.wrong), t.size))
    if not wrong:
        return []
    sharp = [t for t in wrong if vagueness(t) <= VAGUE and "uniform" not in t.case.traits]
    if not sharp:
        return [unnamed(wrong, set(), means, ": rounding is too coarse to tell mistakes apart; try float32")]
    right = [t for t in problems if not t.wrong and vagueness(t) <= VAGUE and "uniform" not in t.case.traits]
    chosen = kinds(sharp) + sorted(right, key=lambda t: -t.size)[:1]
    for form in forms(DICTIONARY, chosen[0], means):
        if fits(form.change, chosen[0], means) and all(named(form.mistake, t, means) for t in chosen[1:]):
            return [finding(form, wrong)]
    partly = partial(chosen[0], means)
    for form, _ in partly[:CLOSE]:
        other = second(form, chosen, means)
        if other is not None:
            return [finding(x, wrong) for x in (form, other)]
    return some(partly, chosen, wrong, means)


def vagueness(t: Tried) -> float:
    """How far a wrong form may be off and still fit, in units of the numbers."""
    return max(t.slack.values())


def kinds(wrong: Sequence[Tried]) -> list[Tried]:
    """The smallest of each kind: of each set of outputs that are wrong, and of each trait."""
    chosen, seen = [], set()
    for t in wrong:
        kind = {frozenset(t.wrong), *t.case.traits}
        if not kind <= seen:
            chosen.append(t)
        seen |= kind
    return chosen[:PROBLEMS]


def forms(mistakes: Sequence[Mistake], t: Tried, means: Conventions) -> Iterator[Form]:
    """Every mistake in every form that it can have in a problem."""
    for mistake in mistakes:
        for word, change in mistake.forms(t.case, means):
            yield Form(mistake, word, change)


def named(mistake: Mistake, t: Tried, means: Conventions) -> bool:
    """Whether a mistake gives what came, in one of its forms; none if it cannot show there."""
    own = list(forms([mistake], t, means)) or [Form(mistake, "", {})]
    return any(fits(form.change, t, means) for form in own)


def fits(change: Change, t: Tried, means: Conventions, *more: Change) -> bool:
    """Whether a wrong form gives what came, in all outputs."""
    s = LayerSteps(t.case, means, (change, *more))
    return all(agrees(name, s, t) for name in t.names)


def agrees(name: str, s: LayerSteps, t: Tried) -> bool:
    """Whether a wrong form gives an output as it came, up to roundings.

    A wrong number may be larger than the right one, and so may its roundings.
    """
    try:
        form = getattr(s, name)
    except (ValueError, TypeError, IndexError, AttributeError):  # no such form for these shapes
        return False
    got = getattr(t.got, name)
    if form is None or form.shape != got.shape or not np.isfinite(form).all():
        return False
    return bool(t.inside(name, form, 4.0, t.slack[name] * np.abs(form).max(initial=0.0)).all())


def partial(t: Tried, means: Conventions) -> list[tuple[Form, frozenset[str]]]:
    """The forms that explain a part of what is wrong and spoil nothing that is right, most first."""
    found = []
    for form in forms(DICTIONARY, t, means):
        s = LayerSteps(t.case, means, [form.change])
        here = frozenset(name for name in t.wrong if agrees(name, s, t))
        if here and all(agrees(name, s, t) for name in t.names if name not in t.wrong):
            found.append((form, here))
    return sorted(found, key=lambda x: -len(x[1]))


def second(first: Form, chosen: Sequence[Tried], means: Conventions) -> Form | None:
    """The mistake that together with a first one gives what came, in all problems."""
    t = chosen[0]
    for form in forms(DICTIONARY, t, means):
        pair = first.mistake, form.mistake
        if pair[0].name == pair[1].name or not fits(first.change, t, means, form.change):
            continue
        if all(explained_by_two(*pair, x, means) for x in chosen[1:]):
            return form
    return None


def explained_by_two(a: Mistake, b: Mistake, t: Tried, means: Conventions) -> bool:
    """Whether two mistakes together give what came."""
    for x in list(forms([a], t, means)) or [Form(a, "", {})]:
        for y in list(forms([b], t, means)) or [Form(b, "", {})]:
            if fits(x.change, t, means, y.change):
                return True
    return False


def some(
    partly: list[tuple[Form, frozenset[str]]], chosen: Sequence[Tried], wrong: Sequence[Tried], means: Conventions
) -> list[Finding]:
    """Names for those outputs that one mistake explains in all problems; the others without a name."""
    left, found = set(chosen[0].wrong), []
    for form, here in partly:
        if here <= left and all(explains(form.mistake, here, t, means) for t in chosen if here & set(t.wrong)):
            found.append(finding(form, wrong, of=", ".join(sorted(here))))
            left -= here
    if left or not found:
        found.append(unnamed(wrong, left, means))
    return found


def explains(mistake: Mistake, names: frozenset[str], t: Tried, means: Conventions) -> bool:
    """Whether a mistake gives these outputs as they came."""
    steps = (LayerSteps(t.case, means, [form.change]) for form in forms([mistake], t, means))
    return any(all(agrees(name, s, t) for name in names if name in t.wrong) for s in steps)


def finding(form: Form, wrong: Sequence[Tried], of: str = "what came") -> Finding:
    """A mistake with its name."""
    m, first, count = form.mistake, wrong[0], len(wrong)
    evidence = f"this wrong formula gives {of}, up to rounding, in {count} wrong problem" + "s" * (count > 1)
    evidence = "; ".join(filter(None, (evidence, identities(first))))
    title = f"{m.title} ({form.word})" if form.word else m.title
    return Finding("mistake", m.name, title, first.where(), m.formula, m.cure, evidence)


def unnamed(wrong: Sequence[Tried], names: set[str], means: Conventions, why: str = "") -> Finding:
    """Something is wrong and has no name: the place, the identities, the paths."""
    first = wrong[0]
    evidence = [f"in the problem '{first.case.name}' with {', '.join(sorted(first.case.traits))}"]
    evidence += filter(None, (identities(first), paths(first, means)))
    title = "the mistake has no name here, in " + ", ".join(sorted(names or first.wrong)) + why
    return Finding("unnamed", "unnamed", title, first.where(), evidence="; ".join(evidence))
