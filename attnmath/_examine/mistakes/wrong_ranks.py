"""What goes wrong where the tokens are spread over ranks: edits of blocks of rows and keys."""

from collections.abc import Callable

import numpy as np

from attnmath._examine.mistakes.blocks import Blocks, by_blocks, forward_alone, with_other_keys
from attnmath._examine.mistakes.operators import Place
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import StepChanges, Steps, Wordings, bind

Change = Callable[[Steps, np.ndarray], np.ndarray]
WHO = {"dK and dV": ("dkeys", "dvalues"), "dK": ("dkeys",), "dV": ("dvalues",), "dQ": ("dQ",),
       "dQ, dK and dV": ("dQ", "dkeys", "dvalues")}
ROWS = {"dK and dV": ("dK", "dV"), "dK": ("dK",), "dV": ("dV",), "dQ": ("dQ",), "O": ("O",),
        "dQ, dK and dV": ("dQ", "dK", "dV"), "O and dQ": ("O", "dQ")}


def stale(back: bool, letters: str) -> steps.Forms:
    """Other blocks of keys or values than those of the step."""
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        for way, words in b.ways:
            step = b.step(way)
            which = {"each step has the first step's, its own": b.rank[:, None] + 0 * step,
                     f"each step has those of the step before{words}": b.block_at(np.maximum(step - 1, 0), way)}
            for said, block in which.items():
                if way == 1 or "before" in said:
                    change = with_other_keys(b.key_in(block), "K" in letters, "V" in letters, back)
                    yield said, change
                    if not back:
                        yield f"{said}, and not in the way back", forward_alone(change)

    return forms


def left_out(kept: np.ndarray, letters: tuple[str, ...]) -> StepChanges:
    """The gradients without the contributions of some queries to some keys."""
    in_place: dict[str, tuple[str, Change]] = {
        "dQ": ("dA", lambda s, x: x * kept), "dkeys": ("dA", lambda s, x: x * kept),
        "dvalues": ("PR_back", lambda s, x: x * kept)}
    change: StepChanges = {}
    for letter in letters:
        change = {**change, **Place(letter, in_place[letter][0]).change(in_place[letter][1])}
    return change


def missing(letters: tuple[str, ...]) -> steps.Forms:
    """Contributions of some steps are missing, or count twice."""
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        own = b.own
        yield "those of other ranks are missing: it is not summed over the ranks", left_out(own, letters)
        if b.ranks > 2:
            yield "those of the rank itself, the first step's, are missing", left_out(~own, letters)
            for way, words in b.ways:
                step = b.step(way)
                yield f"those of the last step are missing{words}", left_out(step < b.ranks - 1, letters)
                yield f"those of the last step alone are there{words}", left_out(step == b.ranks - 1, letters)
        else:
            yield "those of the rank itself are missing", left_out(~own, letters)
        yield "those of the rank itself count twice", left_out(1 + own, letters)
        for r, word in ((0, "first"), (b.ranks - 1, "last")):
            queries = (b.rank[:, None] == r) & (own | True)
            yield f"those of the queries of the {word} rank are missing", left_out(~queries, letters)
            yield f"those of the queries of the {word} rank alone are there", left_out(queries, letters)
            yield f"those of the keys of the {word} rank are missing", left_out(b.rank != r + 0 * own, letters)
            if b.zigzag:
                lost = (b.rank[:, None] != b.ranks - 1) & (b.rank == r) & ~b.half
                said = f"to the first part of the block of the {word} rank those of the last rank alone are there"
                yield f"{said}: it is copied, not added", left_out(~lost, letters)

    return forms


def moved(letters: tuple[str, ...]) -> steps.Forms:
    """Rows that stand with another rank, or the two halves of a rank exchanged."""
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        for by in range(1, b.ranks):
            said = f"each rank has those of the rank {by} before it"
            said = "each rank has those of the next" if by == b.ranks - 1 and by > 1 else said
            yield said, {x: bind(lambda s, x, by: b.moved(x, by), by) for x in letters}
        yield "each rank has the sum of those of all ranks, row by row", {
            x: lambda s, x: sum(b.moved(x, by) for by in range(b.ranks)) for x in letters}
        if b.zigzag:
            order = np.concatenate([np.concatenate([np.flatnonzero((b.rank == r) & (b.half == h)) for h in (1, 0)])
                                    for r in range(b.ranks)])
            at = np.concatenate(b.places)
            change = np.arange(len(at))
            change[at] = order
            yield "the two parts of each rank are exchanged", {x: lambda s, x: x[:, :, change] for x in letters}

    return forms


def others_moved(letters: tuple[str, ...]) -> steps.Forms:
    """The contributions of other ranks, or those of the rank itself, stand with another rank."""
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        for some, word in ((~b.own, "of other ranks"), (b.own, "of the rank itself")):
            for by in range(1, b.ranks):
                parts = {x: (left_out(some, (x,))[x], left_out(~some, (x,))[x]) for x in letters}
                yield f"those {word} stand with the rank {by} further on", {
                    x: bind(lambda s, y, f, g, by: b.moved(f(s, y), by) + g(s, y), *pair, by)
                    for x, pair in parts.items()}

    return forms


def other_way_round(letters: tuple[str, ...]) -> steps.Forms:
    """The sums go round against the direction of their keys: one of a step t stands 2 t ranks further on."""
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        def sums(s: Steps, x: np.ndarray, letter: str) -> np.ndarray:
            parts = (left_out(b.step(1) == t, (letter,))[letter](s, x) for t in range(b.ranks))
            return np.sum([b.moved(part, 2 * t) for t, part in enumerate(parts)], 0)

        if b.ranks > 2:
            yield "their sums go round against the direction of the keys", {x: bind(sums, x) for x in letters}

    return forms


def in_memory(letters: tuple[str, ...]) -> steps.Forms:
    """The numbers of each rank's rows, in order, in the memory of a transposed array; or the other way."""
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        def laid(s: Steps, x: np.ndarray, turned: bool) -> np.ndarray:
            out = x.copy()
            for p in b.places:
                mine = np.swapaxes(x[:, :, p], -1, -2) if turned else x[:, :, p]
                other = mine.reshape(x[:, :, p].shape if turned else np.swapaxes(mine, -1, -2).shape)
                out[:, :, p] = other if turned else np.swapaxes(other, -1, -2)
            return out

        for turned, words in ((False, "rows as if they were columns"), (True, "columns as if they were rows")):
            yield words, {x: bind(laid, turned) for x in letters}

    return forms


def scaled(letters: tuple[str, ...], by: Callable[[int], float]) -> steps.Forms:
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        yield "", steps.multiplied(*letters, by=lambda s: by(b.ranks))

    return forms


@by_blocks
def scaled_again(b: Blocks, case: Case, means: Conventions) -> Wordings:
    for way, words in b.ways:
        yield words.removeprefix(", "), {"A": bind(lambda s, A, step: np.where(
            np.isneginf(A), A, A * s.gamma**step), b.step(way))}
