"""What goes wrong where the parts of a row are merged: their weights, the log-sum-exp that is kept, and D."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from attnmath._examine.mistakes.blocks import (
    Blocks,
    block_softmax,
    block_top,
    by_blocks,
    in_order,
    merged_in_order,
)
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import Steps, Wordings, bind
from attnmath._words.arrays import rowsum


def weighed(b: Blocks, A: np.ndarray, weight: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Parts with a softmax of their own, by weights (b, H, n, 1) of their scores that then add up to 1."""
    parts = [weight(A[..., p]) for p in b.places if len(p)]
    total = sum(parts)
    P = block_softmax(b, A)
    for p, w in zip([p for p in b.places if len(p)], parts):
        P[..., p] *= w / np.maximum(total, 1e-300)
    return P


Weigh = Callable[[np.ndarray, np.ndarray], tuple[Any, Any, np.ndarray]]
Change = Callable[[Steps, Any], Any]
Weighed = tuple[np.ndarray, np.ndarray | None]  # the weights, and the log-sum-exp that is kept, if it is another
Form = Callable[[Steps], Weighed]
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


def _ordered(b: Blocks, way: int, weigh: Weigh, s: Steps) -> Weighed:
    """The weights of parts that are merged one after another, the first as it is."""
    with np.errstate(all="ignore"):
        return merged_in_order(b, s.A, way, lambda L, p, t: weigh(L, p) if t else (0.0, 1.0, p))


def by_logs(b: Blocks, A: np.ndarray, log_weight: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> Weighed:
    """Parts weighed by other log-sum-exps: of those of a part (b, H, n, 1), and of its scores."""
    parts = [p for p in b.places if len(p)]
    logs = np.stack([log_weight(no_number(steps.log_sum_exp(A[..., p])), A[..., p]) for p in parts])
    L, P = np.logaddexp.reduce(logs, 0), block_softmax(b, A)
    for p, log in zip(parts, logs):
        P[..., p] *= np.exp(log - no_keys(L))
    return P, L


def centred(b: Blocks, s: Steps) -> Weighed:
    """Log-sum-exps of scores without their mean over all keys of the block, those that are hidden included."""
    means = iter([np.mean(s.gamma * s.QK[..., p], -1, keepdims=True) for p in b.places if len(p)])
    return by_logs(b, s.A, lambda L, x: L - next(means))


def no_number(L: np.ndarray) -> np.ndarray:
    """-inf for a row without keys, of which log_sum_exp gives no more than that it is infinite."""
    return np.where(np.isinf(L), -np.inf, L)


def unscaled(b: Blocks, A: np.ndarray) -> Weighed:
    """Sums of exp(A - the part's maximum); the log-sum-exp with the maximum of the rank's own part."""
    top = block_top(b, A)
    total = rowsum(np.exp(A - top))
    own = np.where(b.own, top, -np.inf).max(-1, keepdims=True)
    return np.exp(A - top) / np.maximum(total, 1e-300), np.log(np.maximum(total, 1e-300)) + own


def merges(b: Blocks, gamma: Any) -> dict[str, Form]:
    """Ways to merge parts wrongly, from scores to weights."""
    def there(x: np.ndarray) -> np.ndarray:
        return (~np.isneginf(x).all(-1, keepdims=True)).astype(float)

    def top(x: np.ndarray) -> np.ndarray:
        return log_shift(x.max(-1, keepdims=True))

    def twice(L: np.ndarray, x: np.ndarray) -> np.ndarray:
        return L - top(x) + gamma * top(x)

    found: dict[str, Form] = {
        "sums are added without exp of the difference of the maxima": lambda s: unscaled(b, s.A),
        "their outputs are added": lambda s: (block_softmax(b, s.A), None),
        "their outputs are averaged": lambda s: (block_softmax(b, s.A) / b.ranks, None),
        "the outputs of those that are not hidden are averaged": lambda s: (weighed(b, s.A, there), None),
        "the output of the rank's own block alone is there": lambda s: (block_softmax(b, s.A) * b.own, None),
        "their outputs are weighted by exp of their maxima": lambda s: (weighed(
            b, s.A, lambda x: np.exp(x.max(-1, keepdims=True) - s.A.max(-1, keepdims=True))), None),
        "each is divided by the sum of the row again": lambda s: (steps.plain_softmax(s.A) * np.exp(
            -log_shift(steps.log_sum_exp(s.A))), None),
        "natural log-sum-exps are taken to base 2": lambda s: by_logs(b, s.A, lambda L, x: np.log(2) * L),
        "a block that is hidden has the log-sum-exp 0 and counts": lambda s: by_logs(
            b, s.A, lambda L, x: np.where(np.isneginf(L), 0.0, L)),
        "the maximum in a log-sum-exp is scaled twice": lambda s: by_logs(b, s.A, twice),
        "each log-sum-exp is that of keys without their mean": lambda s: centred(b, s),
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
        forward = bind(lambda s, P, form: form(s)[0], form)
        yield words, {"P": forward, "P_back": lambda s, P: s.P}
        yield words, {"P": forward, "P_back": bind(by_kept, form)}


def by_kept(s: Steps, P: np.ndarray, form: Form) -> np.ndarray:
    """The weights of the way back by the log-sum-exp that is kept."""
    with np.errstate(all="ignore"):
        L = form(s)[1]
        return P if L is None else np.exp(np.minimum(s.A_back - no_keys(L), 700.0))


@by_blocks
def padded(b: Blocks, case: Case, means: Conventions) -> Wordings:
    most, n = max(len(p) for p in b.places), len(b.rank)
    at = b.rank * most + b.local  # the places of the keys among those that fill up
    pads = np.setdiff1d(np.arange(b.ranks * most), at)
    if not len(pads):
        return
    rows = np.arange(n)[:, None]
    keep = True if case.keep is None else case.keep
    seen = bind(lambda s, x, seen: np.broadcast_to(seen, x.shape), (at <= rows) & keep)
    yield "", with_pads(np.full((n, 1), len(pads)))
    # by a causal mask the keys, and what fills up, stand in the places that they have together
    every = np.full((n, 1), len(pads))
    yield "", with_pads((pads <= rows).sum(-1, keepdims=True), seen=seen) if case.causal else with_pads(every)


def with_pads(count: np.ndarray, **more: Change) -> steps.StepChanges:
    """So many keys beside those of each row, (n, 1), whose scores and values are 0."""
    with np.errstate(divide="ignore"):
        log = np.log(count)
    return {**more, "L": bind(lambda s, L, log: np.logaddexp(log_shift(L), log), log),
            "P": bind(lambda s, P, log: P * np.exp(-np.logaddexp(
                0.0, log - no_keys(steps.log_sum_exp(s.A)))), log)}


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
