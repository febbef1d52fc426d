"""Which edit gives the numbers that are not finite: told by their places, where there is nothing to compare."""

from collections.abc import Sequence

import numpy as np

from attnmath._examine.diagnosis.gate import ALWAYS, Ask, Edit, Proof, edits_of
from attnmath._examine.diagnosis.trial import SHAPES_DIFFER, Failure
from attnmath._examine.mistakes.modes import OWN
from attnmath._examine.mistakes.wrong_infinities import INFINITIES
from attnmath._examine.problems.case import Case

NEW = 12  # problems that have not been tried, half of which the edit changes


def by_places(
    trials: Sequence[Failure], more: Sequence[Case], ask: Ask | None
) -> tuple[list[Proof], list[Failure]]:
    """The edits that put what is not finite in the places where it came, and all else where it came; new problems.

    Only where in one problem the output is not finite, and not everywhere.
    """
    telling = [f for f in trials if f.wrong and _in_part(f)]
    if not telling:
        return [], []
    first = min(telling, key=lambda f: f.case.Q.size * f.case.K.shape[2])
    edits = [edit for m in INFINITIES for edit, changes in edits_of(m, first)
             if OWN not in changes and gives(first, changes)]
    edits = [edit for edit in edits if all(_given(edit, f) for f in trials)]
    fresh: list[Failure] = []
    if edits and ask:
        acts = [case for case in more if _nan_with(edits[0], first, case)][: NEW // 2]
        rests = [case for case in more if case not in acts][: NEW - len(acts)]
        fresh = [f for f in map(ask, [*acts, *rests]) if f]
    some = [edit for edit in edits if all(_given(edit, f) for f in fresh)]
    return [Proof((edit,), ((ALWAYS,),)) for edit in some], fresh


def _in_part(f: Failure) -> bool:
    """Whether some of the output is not finite, and some is."""
    finite = np.isfinite(f.got.O)
    return bool(finite.any() and not finite.all())


def _given(edit: Edit, f: Failure) -> bool:
    return gives(f, edit.changes(f.case, f.means))


def _nan_with(edit: Edit, like: Failure, case: Case) -> bool:
    """Whether the edit makes anything NaN in another problem."""
    changes = edit.changes(case, like.means)
    return bool(changes) and bool(np.isnan(like.right.at(case).changed(changes).O).any())


def gives(f: Failure, changes: Sequence) -> bool:
    """Whether an edited program gives what came: NaN in the same places, the other numbers up to rounding."""
    try:
        s = f.steps(changes)
        for x in f.got.there:
            form, got, (bound, rough) = s.output(x), getattr(f.got, x), f.allowed[x]
            over, size = ~np.isfinite(form), np.abs(np.nan_to_num(form, nan=0.0, posinf=0.0, neginf=0.0))
            with np.errstate(all="ignore"):
                near = np.abs(got - form) <= bound + rough * size.max((-2, -1), keepdims=True, initial=0.0)
            if not np.all(np.where(over, ~np.isfinite(got), near | (bound == np.inf))):
                return False
    except SHAPES_DIFFER:
        return False
    return True
