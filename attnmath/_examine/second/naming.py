"""Which edit of the program gives all that came; and what can be said where none does."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from attnmath._examine.diagnosis.gate import ALWAYS, Proof, conditions, proof
from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.problems.case import Case
from attnmath._examine.problems.steps import Steps
from attnmath._examine.report.found import Finding
from attnmath._examine.second.edits import BACK, JVP, WAYS, second_edits
from attnmath._examine.second.program import DOTS, SecondAnswer, SecondCase, SecondSteps
from attnmath._examine.second.sums import SecondEdit

Ask = Callable[[Case], "SecondFailure | None"]
TRIED_FIRST = 2  # problems that failed, the smallest, which an edit has to explain before all others
MOST_PAIRS = 6000
FEW = 16  # edits that explain a part, each of which is tried with all others
SAME = 1e-9  # numbers of edits that differ by less are those of one program
FORMULA = {"jvp": JVP, "double backward": BACK}


@dataclass(frozen=True, eq=False)
class SecondFailure(Failure):
    """A problem that was tried: second derivatives that came, and those that are right."""

    @cached_property
    def right(self) -> Steps:
        """The problem solved rightly."""
        return SecondSteps(self.case, self.means)

    def steps(self, changes: Any = ()) -> Steps:
        """The problem solved with these changes."""
        for letter in self.got.there:
            self.right.output(letter)
        return self.right.changed(changes)

    def distance(self, changes: Any) -> float:
        """How far what came is from the program with these changes, in units of what is allowed."""
        s, found = self.steps(changes), 0.0
        for letter in self.wrong:
            unit = np.broadcast_to(self.allowed[letter][0], self.wrong[letter].shape) + 1e-300
            off = abs(getattr(self.got, letter) - s.output(letter)) / unit
            found += float(np.nan_to_num(off, posinf=1e9).sum())
        return found


def named(trials: Sequence[SecondFailure], fresh: Sequence[Case], ask: Ask, part: str) -> list[Finding]:
    """What is wrong, if one edit, or two, give all that came, new problems included; else nothing."""
    failed = sorted((f for f in trials if f.wrong and f.telling), key=lambda f: f.size)
    if not failed:
        return []
    order = sorted(trials, key=lambda f: (not f.wrong, f.size))
    every = [edit._replace(way=way) for way in WAYS[: 1 if part == "jvp" else 2] for edit in second_edits()]
    found = _proofs([(edit,) for edit in every], order)
    found = found or _proofs(list(_pairs(every, failed)), order)
    if not found:
        return []
    more = [f for f in map(ask, fresh) if f]
    everything = [*order, *more]
    found = [x for x in (proof(p.edits, everything) for p in found) if x]
    wrong = [f for f in everything if f.wrong and f.telling]
    ranked = sorted(found, key=lambda p: (not p.always, sum(f.distance(_changes(p, f)) for f in wrong)))
    if not ranked:
        return []
    if wrong[0].dtype in ("bfloat16", "float16") and not all(_alike(ranked[0], p, wrong) for p in ranked):
        return []
    count = f"{sum(bool(f.wrong) for f in trials)} of {len(trials)} problems"
    said = f"the {part}, in {count}"
    evidence = f"the program with this edit gives all that came, in {len(everything)} problems"
    if same := _said_otherwise(ranked, wrong):
        evidence += f"; said otherwise: {same}"
    edits: Any = ranked[0].edits
    return [Finding("mistake", re.sub("[^A-Za-z0-9]+", "_", edit.name),
                    f"{edit.title}{_under(when)} ({_touched(edit, wrong)})", said, FORMULA[part], None, evidence)
            for edit, when in zip(edits, ranked[0].when)]


def _under(when: Sequence[Any]) -> str:
    """The condition, in words to follow a title."""
    said = [x.condition().words if hasattr(x, "condition") else x.words for x in when if x != ALWAYS]
    return f", {' or '.join(said)}" if said else ""


def _proofs(tried: Sequence[tuple[SecondEdit, ...]], order: Sequence[SecondFailure]) -> list[Proof]:
    """Of these edits those that explain everything that came."""
    first = [f for f in order if f.wrong and f.telling][:TRIED_FIRST]
    likely = [edits for edits in tried if any(f.explained_by(_joined(edits, f)) for f in first)]
    return [p for edits in likely if (p := proof(edits, order))]  # type: ignore[arg-type]


def _joined(edits: Sequence[SecondEdit], f: SecondFailure) -> tuple:
    """What these edits change together in a problem."""
    return tuple(change for edit in edits for change in edit.changes(f.case, f.means))


def _changes(p: Proof, f: SecondFailure) -> tuple:
    """The same, where they act."""
    acts = [e for e, when in zip(p.edits, p.when) if all(x.holds(f.case) is not False for x in when)]
    return _joined(acts, f)  # type: ignore[arg-type]


def _pairs(every: Sequence[SecondEdit], failed: Sequence[SecondFailure]) -> Iterator[tuple[SecondEdit, ...]]:
    """Two edits, one of which explains an output alone, or all of them where one tangent alone is not zero."""
    some = dict[tuple, SecondEdit]()
    for f in _by_tangent(failed):
        for edit in every:
            if changes := edit.changes(f.case, f.means):
                with suppress(ValueError, TypeError, IndexError):  # numbers of other shapes
                    s = f.steps(changes)
                    if any(f.gives_letter(letter, s) for letter in f.wrong):
                        some[edit.name, len(edit.way)] = edit
    others = every if len(some) <= FEW else list(some.values())
    pairs = ((a, b) for a in some.values() for b in others if a.name != b.name and len(a.way) == len(b.way))
    once = {frozenset((a.name, b.name, str(len(a.way)))): (a, b._replace(way=())) for a, b in pairs}
    yield from list(once.values())[:MOST_PAIRS]


def _by_tangent(failed: Sequence[SecondFailure]) -> list[SecondFailure]:
    """The smallest problem that went wrong, and the smallest with each tangent alone."""
    found = dict[tuple, SecondFailure]()
    for f in failed:
        found.setdefault(tuple(bool(getattr(f.case, x).any()) for x in DOTS), f)
    return list(found.values())


def _touched(edit: SecondEdit, wrong: Sequence[SecondFailure]) -> str:
    """The outputs that an edit changes, of those that are wrong."""
    found = dict[str, None]()
    for f in wrong:
        s = f.steps(edit.changes(f.case, f.means))
        found |= {x: None for x in f.wrong if not _near(s.output(x), f.right.output(x))}
    return ", ".join(sorted(found, key=list(SecondAnswer._fields).index))


def _said_otherwise(ranked: Sequence[Proof], wrong: Sequence[SecondFailure]) -> str:
    """The other sentences for the same program."""
    titles: list[Any] = [p.edits for p in ranked[1:] if len(p.edits) == 1 and p.when == ranked[0].when
                         and _alike(ranked[0], p, wrong)]
    own: Any = ranked[0].edits
    return "; ".join(dict.fromkeys(x.title for (x,) in titles if x.title != own[0].title))


def _near(x: np.ndarray, y: np.ndarray) -> bool:
    """Whether these are the same numbers, but for roundings in float64."""
    return np.allclose(x, y, rtol=0, atol=SAME * (1 + abs(x).max(initial=0.0)), equal_nan=True)


def _alike(a: Proof, b: Proof, wrong: Sequence[SecondFailure]) -> bool:
    """Whether two edits are one program: they give the same numbers."""
    for f in wrong:
        s, t = f.steps(_changes(a, f)), f.steps(_changes(b, f))
        for letter in f.got.there:
            if not _near(s.output(letter), t.output(letter)):
                return False
    return True


# ---- without a name -----------------------------------------------------------------------------


def unnamed(trials: Sequence[SecondFailure], ask: Ask, part: str, first: Callable[[Case], Any]) -> Finding:
    """What is wrong, of which tangents, whether it is linear in them, whether a factor; and when."""
    failed = sorted((f for f in trials if f.wrong), key=lambda f: (not f.telling, f.size))
    letters = list(dict.fromkeys(x for f in failed for x in f.wrong))
    rests = [f.case for f in trials if not f.wrong]
    when = next((_under([x]) for x in conditions([f.case for f in failed], rests)), "") if rests else ""
    be = "is" if len(letters) == 1 else "are"
    title = f"{', '.join(letters)} {be} wrong{when}, in {len(failed)} of {len(trials)} problems"
    facts = [_factor(failed), _tangents(failed[0], ask), _linear(failed[0], ask), _adjoint(failed[0], first)]
    return Finding("unnamed", part.replace(" ", "_"), title, f"the {part}: {failed[0].where()}", FORMULA[part],
                   None, "; ".join(filter(None, facts)) or None)


def _factor(failed: Sequence[SecondFailure]) -> str:
    """That what came is the right answer times one number, if it is."""
    found = []
    for letter in dict.fromkeys(x for f in failed for x in f.wrong):
        telling = [f for f in failed if letter in f.wrong and f.telling]
        some = [(getattr(f.got, letter), getattr(f.want, letter), f) for f in telling]
        below = sum(float((want * want).sum()) for _, want, _ in some)
        if not below:
            continue
        c = sum(float((got * want).sum()) for got, want, _ in some) / below
        near = (abs(got - c * want) <= f.allowed[letter][0] + 1e-6 * abs(want).max() for got, want, f in some)
        if all(x.all() for x in near):
            found.append(f"{letter} is {c:.4g} times what it should be")
    return ", ".join(found)


def _tangents(f: SecondFailure, ask: Ask) -> str:
    """With which tangent alone it is wrong."""
    assert isinstance(f.case, SecondCase)
    wrong, right = list[str](), list[str]()
    for name in DOTS:
        alone = ask(f.case.alone(name))
        if alone is not None:
            (wrong if alone.wrong else right).append(name.lower())
    if not right:
        return "wrong with q_dot, with k_dot and with v_dot alone" if wrong else ""
    with_these = " and with ".join(wrong)
    return f"wrong with {with_these} alone, right with {' and with '.join(right)} alone" if wrong else (
        "right with each tangent alone: what is wrong joins two of them")


def _linear(f: SecondFailure, ask: Ask) -> str:
    """Whether twice the tangents give twice what came."""
    assert isinstance(f.case, SecondCase)
    twice = ask(f.case.with_arrays(lambda x: 2 * x, *DOTS))
    if twice is None:
        return ""
    for letter in f.wrong:
        one, two = getattr(f.got, letter), getattr(twice.got, letter)
        if not (abs(two - 2 * one) <= 4 * f.allowed[letter][0] + 1e-5 * np.abs(two).max()).all():
            return f"{letter} is not linear in the tangents"
    return "linear in the tangents"


def _adjoint(f: SecondFailure, first: Callable[[Case], Any]) -> str:
    """Whether the tangent of the output, paired with dO, is what the candidate's own gradients say."""
    if "O_dot" not in f.wrong or not f.telling or (own := first(f.case)) is None or own.dV is None:
        return ""
    pairs = list(zip((own.dQ, own.dK, own.dV), DOTS))
    got: Any = f.got
    there, back = (got.O_dot * f.case.dO).sum(), sum((x * getattr(f.case, dot)).sum() for x, dot in pairs)
    return (f"<O_dot, dO> is {there:.6g}, and by its own gradients"
            f" <Q_dot, dQ> + <K_dot, dK> + <V_dot, dV> is {back:.6g}")
