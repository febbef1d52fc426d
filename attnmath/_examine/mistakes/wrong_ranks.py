"""What goes wrong where the tokens are spread over ranks: edits of blocks of rows and keys."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnmath._examine.mistakes.blocks import (
    Blocks,
    block_softmax,
    block_top,
    by_blocks,
    forward_alone,
    in_order,
    merged_in_order,
    with_other_keys,
)
from attnmath._examine.mistakes.operators import Place
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import StepChanges, Steps, Wordings, bind
from attnmath._words.arrays import rowsum

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


def scaled(letters: tuple[str, ...], by: Callable[[int], float]) -> steps.Forms:
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        yield "", steps.multiplied(*letters, by=lambda s: by(b.ranks))

    return forms


# ---- merging ------------------------------------------------------------------------------------


def weighed(b: Blocks, A: np.ndarray, weight: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Parts with a softmax of their own, by weights (b, H, n, 1) of their scores that then add up to 1."""
    parts = [weight(A[..., p]) for p in b.places if len(p)]
    total = sum(parts)
    P = block_softmax(b, A)
    for p, w in zip([p for p in b.places if len(p)], parts):
        P[..., p] *= w / np.maximum(total, 1e-300)
    return P


Weigh = Callable[[np.ndarray, np.ndarray], tuple[Any, Any, np.ndarray]]
Weighed = tuple[np.ndarray, np.ndarray | None]  # the weights, and the log-sum-exp that is kept, if it is another
# From the log-sum-exp so far and that of the next part: the factors of what was there and of what is new, and
# the log-sum-exp that is kept.
IN_ORDER: dict[str, Weigh] = {
    "the old and the new part have each other's weight":
        lambda L, p: (share(p, L), share(L, p), np.logaddexp(L, p)),
    "the log-sum-exp stays that of the first part": lambda L, p: (share(L, p), share(p, L), L),
    "the log-sum-exp is that of the last part": lambda L, p: (share(L, p), share(p, L), p),
    "each step halves what was there and what is new": lambda L, p: (0.5, 0.5, p),
    "what was there is not rescaled, what is new is": lambda L, p: (1.0, share(p, L), np.logaddexp(L, p)),
    "what is new is not rescaled, what was there is": lambda L, p: (share(L, p), 1.0, np.logaddexp(L, p)),
    "the output of the last step alone is there": lambda L, p: (0.0, 1.0, p),
    "log-sum-exps are added, not their exponentials": lambda L, p: (np.exp(-p), np.exp(-L), L + p),
}


def _ordered(b: Blocks, way: int, weigh: Weigh, A: np.ndarray) -> Weighed:
    """The weights of parts that are merged one after another, the first as it is."""
    with np.errstate(all="ignore"):
        return merged_in_order(b, A, way, lambda L, p, t: weigh(L, p) if t else (0.0, 1.0, p))


def by_logs(b: Blocks, A: np.ndarray, log_weight: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Weighed:
    """Parts weighed by other log-sum-exps: of those of a part (b, H, n, 1), and of its scores."""
    parts = [p for p in b.places if len(p)]
    logs = np.stack([log_weight(no_number(steps.log_sum_exp(A[..., p])), A[..., p]) for p in parts])
    L, P = np.logaddexp.reduce(logs, 0), block_softmax(b, A)
    for p, log in zip(parts, logs):
        P[..., p] *= np.exp(log - no_keys(L))
    return P, L


def no_number(L: np.ndarray) -> np.ndarray:
    """-inf for a row without keys, of which log_sum_exp gives no more than that it is infinite."""
    return np.where(np.isinf(L), -np.inf, L)


def unscaled(b: Blocks, A: np.ndarray) -> Weighed:
    """Sums of exp(A - the part's maximum); the log-sum-exp with the maximum of the rank's own part."""
    top = block_top(b, A)
    total = rowsum(np.exp(A - top))
    own = np.where(b.own, top, -np.inf).max(-1, keepdims=True)
    return np.exp(A - top) / np.maximum(total, 1e-300), np.log(np.maximum(total, 1e-300)) + own


def merges(b: Blocks, gamma: Any) -> dict[str, Callable[[np.ndarray], Weighed]]:
    """Ways to merge parts wrongly, from scores to weights."""
    def there(x: np.ndarray) -> np.ndarray:
        return (~np.isneginf(x).all(-1, keepdims=True)).astype(float)

    def top(x: np.ndarray) -> np.ndarray:
        return log_shift(x.max(-1, keepdims=True))

    def twice(L: np.ndarray, x: np.ndarray) -> np.ndarray:
        return L - top(x) + gamma * top(x)

    found: dict[str, Callable[[np.ndarray], Weighed]] = {
        "sums are added without exp of the difference of the maxima": lambda A: unscaled(b, A),
        "their outputs are added": lambda A: (block_softmax(b, A), None),
        "their outputs are averaged": lambda A: (block_softmax(b, A) / b.ranks, None),
        "the outputs of those that are not hidden are averaged": lambda A: (weighed(b, A, there), None),
        "the output of the rank's own block alone is there": lambda A: (block_softmax(b, A) * b.own, None),
        "their outputs are weighted by exp of their maxima": lambda A: (weighed(
            b, A, lambda x: np.exp(x.max(-1, keepdims=True) - A.max(-1, keepdims=True))), None),
        "each is divided by the sum of the row again": lambda A: (steps.plain_softmax(A) * np.exp(
            -log_shift(steps.log_sum_exp(A))), None),
        "natural log-sum-exps are taken to base 2": lambda A: by_logs(b, A, lambda L, x: np.log(2) * L),
        "a block that is hidden has the log-sum-exp 0 and counts": lambda A: by_logs(
            b, A, lambda L, x: np.where(np.isneginf(L), 0.0, L)),
        "the maximum in a log-sum-exp is scaled twice": lambda A: by_logs(b, A, twice),
        "each log-sum-exp is that of keys without their mean": lambda A: by_logs(
            b, A, lambda L, x: L - x.mean(-1, keepdims=True)),
    }
    for way, words in b.ways:
        found |= {f"{said}{words}": partial(_ordered, b, way, weigh) for said, weigh in IN_ORDER.items()}
    return found


def log_shift(L: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(L), L, 0.0)


def share(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """exp(a) / (exp(a) + exp(b))."""
    return np.where(np.isneginf(a), 0.0, np.exp(a - np.logaddexp(a, b)))


@by_blocks
def merged(b: Blocks, case: Case, means: Conventions) -> Wordings:
    for words, form in merges(b, case.gamma(means)).items():
        forward = bind(lambda s, P, form: form(s.A)[0], form)
        yield words, {"P": forward, "P_back": lambda s, P: s.P}
        yield words, {"P": forward, "P_back": bind(by_kept, form)}


def by_kept(s: Steps, P: np.ndarray, form: Callable[[np.ndarray], Weighed]) -> np.ndarray:
    """The weights of the way back by the log-sum-exp that is kept."""
    with np.errstate(all="ignore"):
        L = form(s.A)[1]
        return P if L is None else np.exp(np.minimum(s.A_back - no_keys(L), 700.0))


@by_blocks
def padded(b: Blocks, case: Case, means: Conventions) -> Wordings:
    lengths = [len(p) for p in b.places]
    pads = sum(max(lengths) - n for n in lengths)
    if pads:
        more = bind(lambda s, L: np.logaddexp(log_shift(L), np.log(pads)))
        yield "", {"L": more, "P": lambda s, P: P * np.exp(-np.logaddexp(0.0, np.log(pads) - no_keys(
            steps.log_sum_exp(s.A))))}


@by_blocks
def scaled_again(b: Blocks, case: Case, means: Conventions) -> Wordings:
    for way, words in b.ways:
        yield words.removeprefix(", "), {"A": bind(lambda s, A, step: np.where(
            np.isneginf(A), A, A * s.gamma**step), b.step(way))}


@by_blocks
def local_weights(b: Blocks, case: Case, means: Conventions) -> Wordings:
    yield "each block by its own", {"P_back": lambda s, P: block_softmax(b, s.A_back)}
    for way, words in b.ways:
        for t, word in ((0, "that of the rank's own block"), (b.ranks - 1, f"that of the last step{words}")):
            if way == 1 or t:
                yield f"all by {word}", {"P_back": bind(lambda s, P, way, t: np.exp(np.minimum(
                    s.A_back - no_keys(list(in_order(b, s.A_back, way))[t]), 700.0)), way, t)}


def no_keys(L: np.ndarray) -> np.ndarray:
    return np.where(np.isneginf(L), np.inf, L)


@by_blocks
def part_of_D(b: Blocks, case: Case, means: Conventions) -> Wordings:
    def blockwise(s: Steps, D: np.ndarray, local: bool) -> np.ndarray:
        through = (block_softmax(b, s.A_back) if local else s.P_back) * s.dP
        out = np.zeros(through.shape)
        for p in b.places:
            out[..., p] = rowsum(through[..., p])
        return out

    def of_step(s: Steps, D: np.ndarray, local: bool, chosen: np.ndarray) -> np.ndarray:
        return rowsum((block_softmax(b, s.A_back) if local else s.P_back) * s.dP * chosen)

    for local, more in ((False, ""), (True, ", by its own output")):
        yield f"each block has its own{more}", {"D": bind(blockwise, local)}
        for way, words in b.ways:
            for t, word in ((0, "that of the rank's own block"), (b.ranks - 1, f"that of the last step{words}")):
                if way == 1 or t:
                    yield f"{word}{more}", {"D": bind(of_step, local, b.step(way) == t)}
