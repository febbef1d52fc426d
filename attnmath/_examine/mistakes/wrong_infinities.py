"""What goes wrong with infinities: NaN in the rows that see nothing of a block, huge numbers that are hidden.

Where numbers are NaN there is nothing to compare but the places; not_finite in the diagnosis does so.
"""

from collections.abc import Iterator

import numpy as np

from attnmath._examine.mistakes.blocks import Blocks, by_blocks, in_order
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import ATTENTION, SOFTMAX, Mistake, StepChanges, Steps, Wordings, bind


def hidden_blocks(b: Blocks, s: Steps) -> dict[str, np.ndarray]:
    """Of each row whether it sees nothing of a block: any, or one in the order of the steps; (b, H, n, 1)."""
    found: dict[str, np.ndarray] = {}
    for way, words in b.ways:
        hidden = [np.isneginf(part) for part in in_order(b, s.A, way)]
        found.setdefault("any block", np.logical_or.reduce(hidden))
        found[f"the first block that it receives{words}"] = hidden[1]
    for r, word in ((0, "first"), (b.ranks - 1, "last")):
        found[f"the block of the {word} rank"] = np.isneginf(s.A[..., b.places[r]]).all(-1, keepdims=True)
    return found


def ways_back(b: Blocks, s: Steps) -> Iterator[tuple[np.ndarray | bool, np.ndarray | bool]]:
    """To which keys the NaN of a row comes in the way back: through the weights, and through dA; (b, H, n, m)."""
    keys = ~np.isneginf(s.A)
    block = np.zeros(keys.shape, bool)
    for p in b.places:
        block[..., p] = keys[..., p].any(-1, keepdims=True)
    yield from ((True, True), (True, keys), (block, block), (block, keys), (keys, keys))


@by_blocks
def of_hidden_block(b: Blocks, case: Case, means: Conventions) -> Wordings:
    if not case.causal and case.keep is None:
        return
    s = Steps(case, means)
    for words, rows in hidden_blocks(b, s).items():
        for weights, through in ways_back(b, s):
            yield words, {
                "P": bind(lambda s, P, rows: np.where(rows, np.nan, P), rows),
                "P_back": bind(lambda s, P, rows, to: np.where(rows, np.where(to, np.nan, 0.0), P), rows, weights),
                "dA": bind(lambda s, x, rows, to: np.where(rows, np.where(to, np.nan, 0.0), x), rows, through)}


def of_hidden_maximum(case: Case, means: Conventions) -> Wordings:
    """The maximum of a row is that of all its scores: with it exp of those that are seen may be 0, and 0/0."""
    if case.keep is not None or case.causal:
        change: StepChanges = {"P": _by_all}
        yield "", change


def _by_all(s: Steps, P: np.ndarray) -> np.ndarray:
    every = s.gamma * s.QK + np.where(np.isneginf(s.bias), 0.0, s.bias)
    E = np.exp(s.A - every.max(-1, keepdims=True))
    return np.where(steps.rows_without_keys(s), P, E / E.sum(-1, keepdims=True))


INFINITIES = [
    Mistake("hidden_block_nan", "a row becomes NaN where it sees nothing of a block", of_hidden_block, SOFTMAX,
            "where a block is hidden its log-sum-exp is -inf and its output 0: merge with exp(-inf - L) = 0, "
            "never with -inf less -inf"),
    Mistake("hidden_maximum", "the maximum of a row is taken over what it may not see as well",
            of_hidden_maximum, ATTENTION, "set hidden scores to -inf before the maximum is taken"),
]
