"""All mistakes that have a name, and all edits that operators make."""

from attnmath._examine.mistakes.generated import KNOWN, generated
from attnmath._examine.mistakes.wrong_masks import WRONG_MASKS
from attnmath._examine.mistakes.wrong_places import WRONG_PLACES
from attnmath._examine.mistakes.wrong_terms import WRONG_GRADIENTS, WRONG_WEIGHTS
from attnmath._examine.problems.steps import Mistake

EVERY = generated()
MISTAKES: list[Mistake] = [
    *(m for m in EVERY if m.name in KNOWN.values()), *WRONG_GRADIENTS, *WRONG_MASKS, *WRONG_WEIGHTS, *WRONG_PLACES]
GENERATED = [m for m in EVERY if m not in MISTAKES]  # asked for where none of those explains what came
