"""Which mistake is it? One edit of the program that explains everything, or two together; else what can be said.

Edits are proposed by what gives the answer to one failing problem, and tried on all others, those that
pass included, and on new ones. What is left has no name: its place, its factor, its condition.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, permutations, product
from typing import NamedTuple

import numpy as np

from attnmath._examine.diagnosis.coefficients import from_terms, scaled_letters
from attnmath._examine.diagnosis.fresh import fresh_trials, sharpened, shortened
from attnmath._examine.diagnosis.gate import (
    Ask,
    Edit,
    Proof,
    Threshold,
    changes_of,
    edits_of,
    explains,
    proof,
    reached,
)
from attnmath._examine.diagnosis.mechanisms import flushed, replayed, rounded_somewhere, sameness, without_name
from attnmath._examine.diagnosis.not_finite import by_places
from attnmath._examine.diagnosis.trial import SHAPES_DIFFER, Failure
from attnmath._examine.mistakes.memory import MEMORY, PASSED_BACK
from attnmath._examine.mistakes.mistakes import GENERATED, IN_TILES, MISTAKES
from attnmath._examine.mistakes.modes import BACK_NAMES, IN_WAY_BACK, KERNELS, OWN
from attnmath._examine.mistakes.parts import Part, parts_of
from attnmath._examine.mistakes.wrong_pieces import WRONG_PIECES
from attnmath._examine.mistakes.wrong_rank_masks import WRONG_RANKS
from attnmath._examine.problems.case import Case
from attnmath._examine.problems.steps import Mistake, StepChanges
from attnmath._examine.report.report import Finding

NAMED = [*WRONG_RANKS, *WRONG_PIECES, PASSED_BACK, *MISTAKES, *MEMORY]
HEAD_MISTAKES = [*NAMED, *GENERATED]
GENERATED_NAMES = {m.name for m in (*GENERATED, *IN_TILES)}
MOST_TERMS = 6  # readings of the separate terms
MOST_PROOFS = 24  # that are tried on new problems
MOST_NAMES = 3  # where more names than that fit as well, none is given
MOST_WORDINGS = 3  # or tiles
MOST_ALIKE = 20  # wordings that give the same numbers in one problem
MOST_PARTS = 120  # edits that explain a part
SOME = 10  # problems that tell which edit explains most
MOST_FIRST = 2  # beside which all others are tried
MOST_SCORES = 3e7  # that are computed to find one edit
MOST_PAIRS = 1000  # of edits that give what came in one problem
SMALL = 2000  # scores of a problem in which all mistakes are tried


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


def diagnose(
    trials: Sequence[Failure], more: Sequence[Case] = (), ask: Ask | None = None, alone: bool = False
) -> list[Finding]:
    """The edits that explain all problems, each once; or what is wrong, without a name.

    more: problems that have not been tried, which ask tries; alone: only one edit
    """
    trials = sorted(trials, key=lambda f: (not f.wrong, not f.telling, f.case.Q.shape[2] == 1, f.size))
    failures = [f for f in trials if f.wrong]
    for f in (failures[0], failures[-1], trials[-1]):
        if ask is not None and not sameness(f, ask(f.case)):
            return [without_name(trials, "the same problem is answered otherwise when it is asked again")]
    if ask is not None and failures[0].case.Q.shape[2] * failures[0].case.K.shape[2] > SMALL:
        failures = [*shortened(failures[0], ask), *failures]
        trials = [failures[0], *trials]
    found = flushed(trials) or placed(trials, failures, more, ask)
    found = found or named(trials, failures, alike(failures), more, ask) or replayed(failures)
    if found or alone:
        return found
    plain = [f for f in trials if f.telling or not f.wrong]  # infinities may come of the same mistake
    some = [f for f in plain if f.wrong]
    if 0 < len(some) < len(failures) and (found := named(plain, some, alike(some), more, ask)):
        return [*found, without_name([f for f in trials if not (f.wrong and f.telling)])]
    further = (in_parts(failures), islice(two_edits(trials), MOST_PAIRS))
    found = named(trials, failures, further, more, ask)
    return found or rounded_somewhere(trials) or [without_name(trials)]


def alike(failures: Sequence[Failure]) -> Iterator[Iterator[tuple[Edit, ...]]]:
    """One edit, the same everywhere: those of ranks, those with a name, known numbers, all others, in tiles."""
    yield one_edit(failures, WRONG_RANKS)
    yield one_edit(failures, NAMED[len(WRONG_RANKS):])
    yield islice(multiples(failures), MOST_TERMS)
    yield one_edit(failures, GENERATED)
    yield one_edit(failures, IN_TILES)


def named(
    trials: Sequence[Failure], failures: Sequence[Failure], proposed: Iterable[Iterable[tuple[Edit, ...]]],
    more: Sequence[Case], ask: Ask | None,
) -> list[Finding]:
    """The edits that explain these problems, each once; none where there are none, or too many."""
    for proposals in proposed:
        proofs = [one for edits in proposals if (one := proof(edits, trials))]
        proofs = [one for one in proofs if one.always] or proofs
        proofs.sort(key=lambda one: (apart(one), reach(one, failures[0])))
        proofs = [one for one in proofs if apart(one) == apart(proofs[0])][:MOST_PROOFS]
        fresh = fresh_trials(more, ask, proofs, failures[0].case) if ask and proofs else []
        proofs = [again for one in proofs if (again := proof(one.edits, [*trials, *fresh]))]
        listed = [one for one in proofs if all(e.mistake in NAMED for e in one.edits)]
        first = [e.mistake for e in proofs[0].edits] if proofs else []
        # Others that give the same numbers say the same; other tiles do not.
        listed = [one for one in listed if one.edits[0].mistake is PASSED_BACK] or listed  # the plainest by far
        proofs = listed or [one for one in proofs if [e.mistake for e in one.edits] == first]
        if proofs and (found := said(proofs, failures, len(trials), fresh, ask, more)):
            return found
    return []


def placed(
    trials: Sequence[Failure], failures: Sequence[Failure], more: Sequence[Case], ask: Ask | None
) -> list[Finding]:
    """The edit whose infinities stand where those that came do; none where there is none."""
    proofs, fresh = by_places(trials, more, ask)
    return said(proofs, failures, len(trials), fresh, ask, more) if proofs else []


def apart(one: Proof) -> int:
    """How many of its edits are in one kernel of several: it is said plainer without."""
    return sum(e.where in KERNELS.values() for e in one.edits)


def reach(one: Proof, f: Failure) -> int:
    """How many letters two edits change in a problem: of those that explain the same, the nearest are said."""
    return sum(len(reached(e.changes(f.case, f.means))) for e in one.edits) if len(one.edits) > 1 else 0


# ---- which edits may it be ----------------------------------------------------------------------


def most_edits(f: Failure) -> int:
    """How many edits are tried in a problem: fewer in a long one."""
    return int(MOST_SCORES / (f.want.O[..., 0].size * f.case.K.shape[2]))


def one_edit(
    failures: Sequence[Failure], mistakes: Sequence[Mistake], part: Part | None = None
) -> Iterator[tuple[Edit, ...]]:
    """Each edit that gives what came in the first failing problem; of a long one the first edits alone."""
    f = failures[0]
    every = (x for mistake in mistakes for x in edits_of(mistake, f, True, part))
    for edit, changes in islice(every, most_edits(f)):
        if explains((edit,), f, changes):
            yield (edit,)


def in_parts(failures: Sequence[Failure]) -> Iterator[tuple[Edit, ...]]:
    """Edits in a part of the work alone: that of the batch elements, heads, queries or keys that are wrong."""
    f = failures[0]
    for axis, sizes in enumerate((("b", "b"), ("H", "G"), ("n", "m"))):
        for letters, size in ((("O", "dQ"), sizes[0]), (("dK", "dV"), sizes[1])):
            others = tuple(x for x in range(4) if x != axis)
            wrong = [f.wrong[x].any(axis=others) for x in letters if x in f.wrong]
            if wrong and not (size in "mG" and "O" in f.wrong):
                for part in parts_of("H" if size == "G" else size, np.any(wrong, axis=0)):
                    yield from one_edit(failures, HEAD_MISTAKES, part)


def multiples(failures: Sequence[Failure]) -> Iterator[tuple[Edit, ...]]:
    """What multiples of the separate terms say, a known quantity before a number; at most two at once."""
    for f in failures[:2]:
        read = from_terms(f)
        if len(read) in (1, 2):
            yield from (tuple(map(Edit, some)) for some in product(*read))


def two_edits(trials: Sequence[Failure]) -> Iterator[tuple[Edit, ...]]:
    """Pairs of edits: one, and a second where it is not enough; or each for a part of what is wrong."""
    failures = [f for f in trials if f.wrong and f.case.Q.shape[2] * f.case.K.shape[2] < SMALL]
    if not failures:  # there are too many pairs for long ones
        return
    some = [f for f in trials if f.telling][:: max(1, len(trials) // SOME)]
    kinds = {(edit.mistake.title, edit.detail): edit for (edit,) in one_edit(failures, HEAD_MISTAKES)}
    ranked = [(sum(explains((edit,), f) for f in some), edit) for edit in kinds.values()]
    for _, first in sorted(ranked, key=lambda x: -x[0])[:MOST_FIRST]:
        left = next((f for f in trials if f.wrong and not explains((first,), f)), None)
        if left is not None:
            yield from pairs_with(first, left)
    richest = max(failures, key=lambda f: (len(f.wrong), f.telling, f.size))
    parts = partly(richest)
    for (a, of_a), (b, of_b) in permutations(parts, 2):
        all_of_it = of_a | of_b == richest.wrong.keys() and a.mistake.name != b.mistake.name
        if all_of_it and explains((a, b), richest):
            yield a, b


def partly(f: Failure) -> list[tuple[Edit, frozenset[str]]]:
    """Edits that give some of the wrong outputs, and which; of those that give the same numbers the first."""
    found: dict[tuple[frozenset[str], bytes], list[Edit]] = {}
    units = {letter: np.abs(np.nan_to_num(x)).max() or 1.0 for letter, x in f.want.there.items()}
    for mistake in HEAD_MISTAKES:
        for edit, changes in edits_of(mistake, f):
            if OWN in changes or not f.wrong.keys() & reached(changes):
                continue
            s = f.steps(changes)
            try:
                here = frozenset(x for x in f.wrong if f.gives_letter(x, s))
                given = s.answer().there if here else {}
            except SHAPES_DIFFER:
                continue
            if here:
                numbers = [np.round(x / units[letter], 6).tobytes() for letter, x in given.items()]
                same = found.setdefault((here, b"".join(numbers)), [])
                if not same or edit.mistake is same[0].mistake and len(same) < MOST_ALIKE:
                    same.append(edit)
    every = [(edit, here) for (here, _), same in found.items() for edit in same]
    return [*((Edit(m), frozenset(letters)) for m, letters in scaled_letters(f)), *every][:MOST_PARTS]


def pairs_with(first: Edit, f: Failure) -> Iterator[tuple[Edit, ...]]:
    """An edit, and each other that with it gives what came in a problem."""
    mine = changes_of((first,), f)
    could = reached(mine)
    others = ((other, changes) for mistake in HEAD_MISTAKES if mistake.name != first.mistake.name
              for other, changes in edits_of(mistake, f)
              if OWN not in changes and could | reached(changes) >= f.wrong.keys())
    for other, changes in islice(others, most_edits(f)):
        if f.explained_by((*changes[:-1], *mine, changes[-1])):
            yield first, other
        elif mine and changes[-1].keys() & mine[-1].keys() and f.explained_by((*changes, *mine)):
            yield other, first


# ---- how it is said -----------------------------------------------------------------------------


def said(
    proofs: Sequence[Proof], failures: Sequence[Failure], count: int, fresh: Sequence[Failure], ask: Ask | None,
    more: Sequence[Case],
) -> list[Finding]:
    """Findings for the first of the proofs, with the others' names; none where there are too many."""
    first = proofs[0]
    titles = {frozenset(x.mistake.name for x in p.edits): " and ".join(x.mistake.title for x in p.edits)
              for p in proofs}
    if len(titles) > MOST_NAMES:
        return []
    which = "this edit of the program gives" if len(first.edits) == 1 else "these two edits together give"
    evidence = f"{which} all that came, up to rounding, in {count} problems"
    evidence += f" and in {len(fresh)} new ones" if fresh else ""
    if others := list(titles.values())[1:]:
        evidence += "; so would another, by which " + ", or ".join(others)
    found = []
    for i, edit in enumerate(first.edits):
        same = [p for p in proofs if len(p.edits) == len(first.edits) and p.edits[i].mistake is edit.mistake]
        details = [x for x in dict.fromkeys(p.edits[i].detail for p in same) if x]
        words = [x for x in details if not any(x != y and x.startswith(y) for y in details)]
        when = [sharp_words(x, first, failures, ask, more) for x in first.when[i]]
        if len(words) > MOST_WORDINGS or len(when) > MOST_WORDINGS:
            return []
        m = edit.mistake
        name = BACK_NAMES.get(m.name, f"{m.name}_bwd") if edit.where == IN_WAY_BACK else m.name
        mistake = m._replace(title=edit.where + m.title, name=name)
        part = f"for {edit.part.words} alone" if edit.part else ""
        form = MistakeForm(mistake, ", ".join(x for x in (" or ".join(words), part) if x), ())
        finding = form.finding(failures[0].where(), evidence)
        only = f", only {' or '.join(when)}" if any(when) else ""
        found.append(replace(finding, title=finding.title + only))
    return found


def sharp_words(
    when: object, found: Proof, failures: Sequence[Failure], ask: Ask | None, more: Sequence[Case]
) -> str:
    """A condition in words; a threshold is looked for."""
    if isinstance(when, Threshold):
        cases = [f.case for f in failures] + list(more)
        when = (sharpened(when, cases, ask, lambda f: bool(f.wrong)) if ask else when).condition()
    return when.words  # type: ignore[attr-defined]
