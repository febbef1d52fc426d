"""Which pieces a function has beside plain attention, read off its weights in float64.

With Q = 0 the scores are 0, and what is left is what is added to them, hidden, and summed beside. Of two keys of
which one is 0 the odds are the other's score. What was read is believed if it gives the output of problems that it
was not read from.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple, Protocol

import numpy as np

from attnmath._examine.contract.candidate import Candidate, Outcome
from attnmath._examine.diagnosis.own_output import plain_cases
from attnmath._examine.diagnosis.probes import read_weights
from attnmath._examine.diagnosis.read_table import by_distance, far_apart
from attnmath._examine.problems.bounds import right_answer
from attnmath._examine.problems.case import USUAL_SCALES, Case, Conventions
from attnmath._examine.problems.families import cases
from attnmath._examine.problems.pieces import SLOPES, Pieces, Rotation

ALIKE = 1e-9, 3e-6  # how near numbers are that are equal: in float64; with tables or a softmax in float32
WIDTH, LONG = 8, 300
HEADS = 2, 16  # that are asked: more if each has numbers of its own, for problems with more heads
FIRST = 2  # the first key that is not 0; then every second


class Unread(Exception):
    """It has no such pieces."""


class Heads(Protocol):
    """What answers problems: a candidate, or the heads of a layer."""

    taken: Any

    def run(self, case: Case, means: Conventions, *, forward: bool = False) -> Outcome:
        """What came."""


class Read(NamedTuple):
    """The weights of one sequence (H, n, m), and how to get scores from them."""

    candidate: Heads
    means: Conventions
    like: Case

    def weights(self, q: np.ndarray | float, k: np.ndarray | float) -> np.ndarray:
        """With these rows as queries and keys, the same for all heads."""
        Q, K = (np.zeros(x.shape) for x in (self.like.Q, self.like.K))
        Q[...], K[...] = q, k
        W = read_weights(self.candidate, replace(self.like, Q=Q, K=K), self.means)
        if W is None or not np.isfinite(W).all():
            raise Unread
        return W[0]


def read_pieces(
    candidate: Heads, means: Conventions, right: Callable[[Conventions, float], bool]
) -> Conventions | None:
    """What it means, with its pieces, of what answers in float64, if that is right; else None."""
    b, H, G, n, m, d_k, d_v = candidate.taken.sizes((1, 2, 2, LONG, LONG, WIDTH, WIDTH))
    V = np.zeros((b, G, m, d_v))
    V[..., 0], V[..., 1:] = np.arange(m), 1.0  # the places of the keys
    long = Case(np.zeros((b, H, n, d_k)), np.zeros((b, G, m, d_k)), V, np.zeros((b, H, n, d_v)))
    by_head = False
    for (alike, float32), heads in product(zip(ALIKE, (False, True)), HEADS):
        if heads != HEADS[0] and not by_head:
            continue
        by_head = False
        try:
            with np.errstate(all="ignore"):
                found = _read(candidate, replace(means, inside=None), alike, heads)
                found = replace(found, pieces=replace(found.pieces, float32=float32))
                by_head = found.pieces.by_head
                if found.pieces.table is not None:
                    found = replace(found, pieces=far_apart(candidate, found, alike, heads))
                answer = candidate.run(long, found, forward=True).answer if d_v > 1 else None
                for told in _forms(found, None if answer is None else (long, answer.O)):
                    seen = answer is None or near(right_answer(long, told).O, answer.O, 10 * alike)
                    if seen and right(told, 10 * alike):
                        return told
        except (Unread, ValueError):  # or not a number
            continue
    return None


def gives_output(candidate: Candidate, means: Conventions, seed: int) -> Callable[[Conventions, float], bool]:
    """Whether what was read gives the output of these problems too; where queries stand, n unlike m tells."""
    some = plain_cases(cases((), "float64", seed, candidate.taken))[:6]
    answers = [(case, candidate.run(case, means, forward=True).answer) for case in some]
    there = [(case, answer.O) for case, answer in answers if answer is not None]

    def right(told: Conventions, alike: float) -> bool:
        try:
            return len(there) > 2 and all(near(right_answer(case, told).O, O, alike) for case, O in there)
        except ValueError:  # numbers of each head, and other numbers of heads
            return False

    return right


def _read(candidate: Heads, means: Conventions, alike: float, heads: int) -> Conventions:
    """The conventions with what was read from so many heads."""
    n = 2 * WIDTH + FIRST
    b, H, G, n, m, d_k, d_v = candidate.taken.sizes((1, heads, heads, n, n, WIDTH, n))
    most = (n - FIRST) // 2  # keys at a time
    if n != m or most < 1:
        raise Unread
    shapes = dict(Q=(b, H, n, d_k), K=(b, G, m, d_k), V=(b, G, m, d_v), dO=(b, H, n, d_v))
    zeros: dict[str, Any] = {x: np.zeros(shape) for x, shape in shapes.items()}
    read = Read(candidate, means, Case(**zeros))
    equal = read.weights(0.0, 0.0)
    pieces, bias = _without_scores(equal, alike)
    if pieces.sink is not None:  # sigmoids of equal scores may add up to the same
        one = read.weights(1.0, (np.arange(n) == 0)[:, None] * np.ones(d_k))
        odds = np.log(equal / (1 - equal)) - bias
        if abs(one - equal)[..., 1:].max() < alike and np.ptp(odds[equal > 0]) < alike:
            pieces = replace(pieces, sink=None, sigmoid=_sigmoid(odds[equal > 0], n, alike))

    def scores(q: np.ndarray, k: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Of every second key and the query at its place, and of the query after it; the keys between are 0."""
        if len(q) > most:
            first, rest = scores(q[:most], k[:most]), scores(q[most:], k[most:])
            return np.append(first[0], rest[0]), np.append(first[1], rest[1])
        keys, queries, j = np.zeros((n, d_k)), np.zeros((n, d_k)), FIRST + 2 * np.arange(len(q))
        keys[j], queries[j], queries[j + 1] = k, q, q
        W = read.weights(queries, keys)
        A = (np.log(W / (1 - W)) if pieces.sigmoid is not None else np.log(W)) - bias
        return A[0, j, j] - A[0, j, j - 1], A[0, j + 1, j] - A[0, j + 1, j + 1]

    ones = np.ones((1, d_k))
    once, twice = scores(ones, ones)[0][0], scores(2 * ones, ones)[0][0]
    if abs(twice / once - 1) < 1e-2:
        small = 2.0**-10
        top, low = scores(2.0**10 * ones, 2.0**10 * ones)[0][0], scores(small * ones, small * ones)[0][0]
        epsilon = small**2 * (top / low - 1)
        pieces, gamma = replace(pieces, norm=_short(epsilon, 1e-4, True) if epsilon > 1e-13 else 0.0), top / d_k
    elif abs(twice / once - 2) < alike:
        gamma = once / d_k
    elif once < twice < 2 * once:
        cap, top = once / np.sqrt(2 * once / twice - 1), scores(2.0**10 * ones, 2.0**10 * ones)[0][0]
        cap = top if abs(top / cap - 1) < 1e-2 else cap  # where it is reached
        pieces, gamma = replace(pieces, cap=_short(cap, alike)), cap * np.arctanh(once / cap) / d_k
    else:
        raise Unread

    def straight(A: np.ndarray) -> np.ndarray:
        return A if pieces.cap is None else pieces.cap * np.arctanh(A / pieces.cap)

    features = np.eye(d_k)
    here, after = map(straight, scores(features, features))
    cosine = after / here
    if abs(cosine - 1).max() > alike:
        for layout in ("halves", "interleaved"):
            if turns := _rotation(layout, cosine, lambda k: straight(scores(features, k)[1]) / here[0], alike):
                pieces = replace(pieces, rotation=turns)
                break
        else:
            raise Unread
    usual = (name for name, f in USUAL_SCALES.items() if abs(f(d_k, H) / gamma - 1) < 10 * alike)
    return replace(means, pieces=pieces, scale=next(usual, f"{_short(gamma, alike)!r}"))


def _without_scores(W: np.ndarray, alike: float) -> tuple[Pieces, np.ndarray]:
    """What the weights (H, n, m) of scores that are 0 say, and what is added to the scores."""
    n = W.shape[-1]
    before = np.arange(n)[:, None] - np.arange(n)  # how far before the query the key stands
    seen = {x: (W[:, before == x] > 0) for x in range(1 - n, n)}
    if not all(x.all() or not x.any() for x in seen.values()) or not (seen[0].all() and seen[1].all()):
        raise Unread
    places = [x for x in seen if seen[x].all()]
    left, right = max(places), -min(places)
    if len(places) != left + right + 1:
        raise Unread
    one = np.log(W / W[:, np.arange(n), np.arange(n), None])  # what is added, but to its own key
    slopes = -one[:, before == 1].mean(-1)
    bias = np.where(W > 0, -slopes[:, None, None] * abs(before), 0.0)
    table = None
    if abs(np.where(W > 0, one - bias, 0.0)).max() > alike:
        if not (found := by_distance(one, alike)):
            raise Unread
        (table, bias), slopes = found, 0 * slopes
    slope: Any = None if abs(slopes).max() < alike else _each(slopes, alike)
    slope = next((name for name, f in SLOPES.items() if abs(slopes - f(len(W))).max() < alike), slope)
    pieces = Pieces(slope=slope, table=table, left=left if left < n - 1 else None,
                    right=right if right < n - 1 else None)
    total, sums = W.sum(-1), np.where(W > 0, np.exp(bias), 0.0).sum(-1)
    if abs(total - 1).max() < alike:
        return pieces, bias
    beside = sums * (1 - total) / total  # of a sink, its exponential
    if beside.min() > 0 and np.ptp(np.log(beside), -1).max() < 10 * alike:
        return replace(pieces, sink=_each(np.log(beside).mean(-1), alike)), bias
    odds = np.where(W > 0, np.log(W / (1 - W)) - bias, 0.0)
    if np.ptp(odds[W > 0]) < alike:
        return replace(pieces, sigmoid=_sigmoid(odds[W > 0], n, alike)), bias
    raise Unread


def _sigmoid(odds: np.ndarray, m: int, alike: float) -> float | str:
    """What is added to the scores before sigmoids."""
    added = float(odds.mean())
    return "-log m" if abs(added + np.log(m)) < alike else _short(added, alike)


def _rotation(
    layout: str, cosine: np.ndarray, sine_with: Callable[[np.ndarray], np.ndarray], alike: float
) -> Rotation | None:
    """The rotation of this layout, if the features turn so; sine_with(keys): what a feature makes of others."""
    d, noise = len(cosine), 1e-12 if alike < ALIKE[-1] else 3e-7
    p, twins = np.arange(d // 2), np.flatnonzero(abs(cosine[1:] - cosine[0]) < alike)
    r = d // 2 * 2 if layout == "interleaved" else 2 * (int(twins[0]) + 1) if len(twins) else 0  # or fewer
    if not 4 <= r <= d:
        return None
    a, b = (2 * p, 2 * p + 1) if layout == "interleaved" else (p[: r // 2], p[: r // 2] + r // 2)
    others = np.eye(d)
    others[a] = np.eye(d)[b]
    angle = np.arctan2(sine_with(others)[a], cosine[a])
    for pairs in {r // 2, int((abs(angle) > noise).sum())}:
        turns = angle[:pairs]
        if pairs < 2 or abs(cosine[a] - cosine[b])[:pairs].max() > alike or layout == "halves" and pairs < r // 2:
            continue
        base = (turns[0] / turns[1]) ** pairs
        found = Rotation(layout, _short(turns[0], alike), _short(base, 10 * alike), 2 * pairs / d)
        want = found.first * found.base ** (-np.arange(pairs) / pairs)
        if (abs(turns - want) <= 100 * alike * want + noise).all():
            return found
        if (turns > 2 * noise).all():
            return replace(found, scaled=tuple(turns / found.first))
    return None


def near(x: np.ndarray, O: np.ndarray, alike: float) -> bool:
    """Whether two outputs are equal, up to so much of their size."""
    size = max(1.0, abs(np.nan_to_num(O)).max())
    return bool((np.isnan(x) == np.isnan(O)).all() and np.nan_to_num(abs(x - O)).max() <= alike * size)


def _forms(means: Conventions, longest: tuple[Case, np.ndarray] | None) -> Iterator[Conventions]:
    """What may be meant: where queries stand, and a window longer than what was read."""
    pieces = means.pieces
    if pieces.left is pieces.slope is pieces.table is None and longest is not None:
        O, m = longest[1][0, 0, -1], longest[0].K.shape[2]
        left = m - 1 - (2 * O[0] / O[1] - (m - 1))  # from the mean of the places that the last query sees
        if 0 < round(left) < m - 1 and abs(left - round(left)) < 1e-6:
            pieces = replace(pieces, left=round(left))
    slopes = SLOPES if isinstance(pieces.slope, str) else (pieces.slope,)
    for slope, last in product(slopes, (True, False)):
        for turns in (True, False) if pieces.rotation else (None,):
            rotation = pieces.rotation and replace(pieces.rotation, last=turns)
            yield replace(means, pieces=replace(pieces, slope=slope, last=last, rotation=rotation))


def _each(x: np.ndarray, alike: float) -> tuple[float, ...]:
    """Of each head, or once."""
    some = x[:1] if np.ptp(x) < alike else x
    return tuple(_short(float(y), alike) for y in some)


def _short(x: float, alike: float, above_zero: bool = False) -> float:
    """The number with few digits that is as near as it is known; else itself."""
    if abs(x) < min(alike, ALIKE[-1]) and not above_zero:
        return 0.0
    near = (float(f"{x:.{digits}g}") for digits in range(1, 8))
    return next((y for y in near if abs(y - x) <= alike * abs(x)), float(x))
