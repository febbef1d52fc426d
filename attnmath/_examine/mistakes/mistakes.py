"""All mistakes that have a name, and all edits that operators make."""

from attnmath._examine.mistakes.generated import KNOWN, generated, in_every_tile
from attnmath._examine.mistakes.wrong_masks import WRONG_MASKS
from attnmath._examine.mistakes.wrong_places import WRONG_PLACES
from attnmath._examine.mistakes.wrong_terms import WRONG_GRADIENTS, WRONG_WEIGHTS
from attnmath._examine.problems.steps import Mistake

EVERY, NAMES = generated(), {*KNOWN.values()}
MISTAKES: list[Mistake] = [
    *(m for m in EVERY if m.name in NAMES), *WRONG_GRADIENTS, *WRONG_MASKS, *WRONG_WEIGHTS, *WRONG_PLACES]
GENERATED = [m for m in EVERY if m.name not in NAMES]  # asked for where none of those explains what came
IN_TILES = [*in_every_tile()]  # then these
