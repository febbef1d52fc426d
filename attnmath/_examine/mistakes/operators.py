"""Operators that make further edits of the program out of others: the same mistake in one direction alone."""

from collections.abc import Iterable
from typing import Any

from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import Mistake, StepChanges, Wordings

FORWARD = {"O", "dO"}  # an edit of these is in one direction anyway
# Names that the same mistakes have in the way back alone.
BACK_NAMES = {
    "mask_ignored": "no_mask_bwd", "causal_ignored": "no_mask_bwd",
    "causal_always": "causal_always_bwd", "f_align": "align_bwd", "f_gqa_map": "gqa_map_bwd",
    "bias_ignored": "no_bias_bwd", "dropout_ignored": "drop_ignored_bwd", "f_drop_norescale": "drop_norescale_bwd",
}


def in_output(change: StepChanges) -> StepChanges:
    """The output is that of the edited program; the way back is right."""
    own: StepChanges = {"O": lambda s, x: s.apart(own, change).O}
    return own


def in_way_back(change: StepChanges) -> StepChanges:
    """The gradients are those of the edited program; the output is right, and so is what is kept of it."""

    def right(letter: str) -> Any:
        return lambda s, x: getattr(s.apart(own), letter)

    own: StepChanges = {**change, "O": right("O"), "L": right("L")}
    return own


def one_direction(mistakes: Iterable[Mistake], back: bool) -> list[Mistake]:
    """The mistakes in the way back alone, or in the output alone."""
    alone = in_way_back if back else in_output
    where = "the way back" if back else "the output"

    def derived(m: Mistake) -> Mistake:
        def forms(case: Case, means: Conventions) -> Wordings:
            for detail, change in m.forms(case, means):
                if not FORWARD & change.keys():
                    yield detail, alone(change)

        name = BACK_NAMES.get(m.name, f"{m.name}_bwd") if back else m.name
        return Mistake(name, f"in {where} alone: {m.title}", forms, m.formula, m.cure)

    return [derived(m) for m in mistakes]


