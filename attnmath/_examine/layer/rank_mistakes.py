"""What goes wrong in a layer whose tokens are spread over ranks, beside the mistakes of its heads."""

from attnmath._examine.layer.layer import LayerCase
from attnmath._examine.mistakes.wrong_ranks import missing
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import Mistake, StepChanges, Wordings, bind


def tokens_gathered(case: LayerCase, means: Conventions) -> Wordings:
    """What comes back to the tokens through keys and values lacks what the gradients of the weights have."""
    for words, change in missing(("dkeys", "dvalues"))(case.heads, means):
        yield words, through_tokens(change)


def through_tokens(change: StepChanges) -> StepChanges:
    """A change of dK and dV that the tokens alone meet."""
    own: StepChanges = {letter: bind(lambda s, x, letter: getattr(s.apart(own, change), letter), letter)
                        for letter in ("by_K", "by_V")}
    return own


OF_TOKENS = [Mistake(
    "rank_tokens", "contributions to dX through keys and values are wrong", tokens_gathered, "chapters/ring.md",
    "gathered tokens take back the sum of what all ranks have for them")]
