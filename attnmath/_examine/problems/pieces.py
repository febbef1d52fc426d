"""What a head may have beside plain attention: rotations, norms, a cap, slopes, tables, windows, sinks, sigmoids.

A head with pieces is the program of steps.py in which queries Q_in and keys K_in are normed, times learned gains
in a layer, and turned before they meet, dC is the gradient of the capped scores, bend the slope of the cap;
dQ_normed is turned back, and dQ_left and dK_left go all the way back.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnmath._examine.problems.steps import STEPS, Step, Steps, downstream, log_sum_exp, plain_softmax
from attnmath._words.arrays import T, sum_to


def slopes_of_any(H: int) -> np.ndarray:
    """2^(-8h/H) for head h, from 1."""
    return np.asarray(2.0 ** (-8 * np.arange(1, H + 1) / H))


def slopes_of_paper(H: int) -> np.ndarray:
    """The same for a power of two; for other numbers the rest is every second slope of the next power."""
    power = 2 ** int(np.log2(H))
    return np.concatenate([slopes_of_any(power), slopes_of_any(2 * power)[::2][: H - power]])


MOST_SAID = 8  # numbers in a report
TABLE_READ = 1e-13, 1e-6  # how far numbers that were read may be off: in float64; with a softmax in float32
SLOPES = {"2^(-8h/H)": slopes_of_any, "as in the paper": slopes_of_paper}


def _listed(x: tuple[float, ...] | float | str) -> str:
    some = [x] if isinstance(x, str) else [f"{y:.6g}" for y in np.ravel(x)]
    return " ".join(some if len(some) <= MOST_SAID else [*some[:4], f"... ({len(some)})"])


@dataclass(frozen=True)
class Rotation:
    """Pairs of features are turned by their frequency times their place."""

    layout: str  # "halves" or "interleaved"
    first: float  # the frequency of the first pair; of pair p it is first base^(-2p / r), of r features
    base: float
    part: float = 1.0  # of the features, from the first on
    last: bool = False  # the last query stands where the last key does; else the first where the first does
    scaled: tuple[float, ...] = ()  # frequencies that are no powers of a base, in units of the first

    def turned(self, x: np.ndarray, start: int, sign: int = 1) -> np.ndarray:
        """Each row turned by its place, or back."""
        r = int(self.part * x.shape[-1] / 2 + 1e-9) * 2
        p = np.arange(r // 2)
        a, b = (2 * p, 2 * p + 1) if self.layout == "interleaved" else (p, p + r // 2)
        frequencies = np.array(self.scaled) if self.scaled else self.base ** (-2.0 * p / max(r, 1))
        angle = (start + np.arange(x.shape[-2]))[:, None] * (self.first * frequencies)
        c, s, y = np.cos(angle), sign * np.sin(angle), x.copy()
        y[..., a], y[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
        return y

    @property
    def words(self) -> str:
        """In a report."""
        part = "" if self.part == 1 else f" of the first {self.part:g} of the features"
        first = "" if self.first == 1 else f", {self.first:.6g} for the first"
        base = f"frequencies {_listed(self.scaled)}" if self.scaled else f"base {self.base:.6g}"
        return f"rotated, {self.layout}{part}, {base}{first}"


@dataclass(frozen=True)
class Table:
    """A number for each distance, or for each bucket of distances, that is added to the scores."""

    buckets: tuple[int, ...]  # of each distance, from the farthest before to the farthest after, and beyond
    numbers: tuple[tuple[float, ...], ...] = ()  # of each head, or of all, by bucket; a layer may learn them
    rule: str = ""  # of the buckets, in words
    times: float = 1.0  # the scale, if it is added before
    heads_first: bool = True  # in what is learned: (H, buckets)

    def of_pairs(self, ahead: np.ndarray) -> np.ndarray:
        """The bucket of each pair that is so far apart."""
        far = len(self.buckets) // 2
        return np.array(self.buckets)[np.clip(ahead, -far, far) + far]

    def by_head(self, x: Any) -> Any:
        """Between what is learned and (H, buckets)."""
        return x if self.heads_first else T(x)


@dataclass(frozen=True)
class Pieces:
    """The pieces of a head, by their numbers; what is None is not there."""

    norm: float | None = None  # epsilon: queries and keys are divided by the root of it and their mean square
    whole: bool = False  # over all heads together
    rotation: Rotation | None = None
    cap: float | None = None
    slope: tuple[float, ...] | str | None = None  # of the distance: of each head, of all, or a rule of SLOPES
    table: Table | None = None  # by distance
    sink: tuple[float, ...] | None = None  # its score: of each head, or of all
    learned: frozenset[str] = frozenset()  # of a layer: "gain_Q", "gain_K", "sink", "table"
    offset: float = 0.0  # what is added to learned gains
    sigmoid: float | str | None = None  # what is added to the scores before it, or "-log m"
    left: int | None = None  # how many places before its own a query sees
    right: int | None = None  # and after it
    last: bool = True  # for these, slopes and table: the last query stands where the last key does
    latent: Any = None  # of a layer: what its queries, keys and values come up from
    float32: bool = False  # some of it is in float32, whatever the format of the rest

    @property
    def steps(self) -> tuple[Mapping[str, Step], Mapping[str, frozenset[str]]]:
        """The program of a head that has them."""
        return PIECED, PIECED_DOWNSTREAM

    def normed(self, x: np.ndarray) -> np.ndarray:
        """What becomes of queries or keys before they are turned, but for gains."""
        return x if self.norm is None else x / self.root(x)

    def turned(self, x: np.ndarray, start: int, sign: int = 1) -> np.ndarray:
        """Each row turned by its place, or back."""
        return x if self.rotation is None else self.rotation.turned(x, start, sign)

    def unnormed(self, dy: np.ndarray, x: np.ndarray) -> np.ndarray:
        """The gradient of what was divided by the root of its mean square."""
        y = self.normed(x)
        return dy if self.norm is None else across(dy, y, self.axes) / self.root(x)

    @property
    def by_head(self) -> bool:
        """Whether some numbers are those of single heads."""
        numbers = self.slope, self.sink, self.table and self.table.numbers
        return any(isinstance(x, tuple) and len(x) > 1 for x in numbers)

    @property
    def axes(self) -> Any:
        """Over which a norm goes."""
        return (1, 3) if self.whole else -1

    def root(self, x: np.ndarray) -> np.ndarray:
        """Of the mean square of each row and epsilon."""
        return root_of_mean(x, self.norm or 0.0, self.axes)

    def capped(self, X: np.ndarray) -> np.ndarray:
        """The scores, capped."""
        return X if self.cap is None else self.cap * np.tanh(X / self.cap)

    def bend(self, X: np.ndarray) -> Any:
        """By what the cap multiplies a small change of a score."""
        return 1.0 if self.cap is None else 1 - np.tanh(X / self.cap) ** 2

    def ahead(self, n: int, m: int) -> np.ndarray:
        """How far after the query each key stands (n, m)."""
        return np.arange(m) - np.arange(n)[:, None] - (m - n) * self.last

    def added(self, H: int, n: int, m: int) -> np.ndarray:
        """What is added to the scores (H, n, m): slopes, and -inf beyond the window."""
        ahead = self.ahead(n, m)
        slopes = SLOPES[self.slope](H) if isinstance(self.slope, str) else of_heads(self.slope or 0.0, H)
        far = np.zeros((n, m), bool)
        if self.left is not None:
            far |= -ahead > self.left
        if self.right is not None:
            far |= ahead > self.right
        return np.where(far, -np.inf, -slopes[:, None, None] * abs(ahead))

    def weights(self, A: np.ndarray, sink: Any) -> np.ndarray:
        """The weights of the keys, beside sinks with these scores."""
        if self.sigmoid is not None:
            added = -np.log(A.shape[-1]) if isinstance(self.sigmoid, str) else self.sigmoid
            return 1 / (1 + np.exp(-A - added))
        if sink is None:
            return plain_softmax(A)
        sinks = np.broadcast_to(of_heads(sink, A.shape[1])[:, None, None], (*A.shape[:-1], 1))
        return plain_softmax(np.concatenate([A, sinks], -1))[..., :-1]

    def shaken(self, u: float, rng: np.random.Generator) -> "Pieces":
        """With frequencies that are off by a rounding, as angles are in a program, and a table as it was read."""
        turns, table = self.rotation and replace(self.rotation, first=self.rotation.first * (1 + u)), self.table
        if table is not None and table.numbers:
            numbers = np.array(table.numbers)
            numbers += TABLE_READ[self.float32] * rng.choice([-1.0, 1.0], numbers.shape)
            table = replace(table, numbers=tuple(map(tuple, numbers)))
        return replace(self, rotation=turns, table=table)

    @property
    def words(self) -> str:
        """In a report."""
        epsilon = f" (epsilon {self.norm:g})" if self.norm else ""
        plus = f"{self.offset:g} + " if self.offset else ""
        gains = " and ".join(x[-1] for x in ("gain_Q", "gain_K") if x in self.learned)
        gains = f", times {plus}learned gains of {gains}" if gains else ""
        heads = " over all heads" if self.whole else ""
        norm = "" if self.norm is None else f"queries and keys normed{heads}{epsilon}{gains}"
        plus = f" of scores plus {_listed(self.sigmoid)}" if self.sigmoid else ""
        slope = "" if self.slope is None else f"slopes {_listed(self.slope)}"
        table = self.table and ", ".join(filter(None, (
            f"a {'learned ' * ('table' in self.learned)}table of biases by distance", self.table.rule,
            "added before the scale" if self.table.times != 1 else "")))
        window = [f"{x} {word}" for x, word in ((self.left, "before"), (self.right, "after")) if x]
        sink = "" if self.sink is None else f"sink {_listed(self.sink)}"
        turned = replace(self.rotation, part=1.0 if self.latent else self.rotation.part) if self.rotation else None
        said = [
            self.latent.words if self.latent else "",
            norm, turned.words if turned else "", f"cap {self.cap:.6g}" if self.cap else "", slope,
            table or "",
            f"window of {' and '.join(window)}" if window else "", "causal always" if self.right == 0 else "",
            "learned sinks" if "sink" in self.learned else sink,
            "in part in float32" if self.float32 else "",
            "" if self.sigmoid is None else f"sigmoids{plus}",
        ]
        return ", ".join(filter(None, said))


def root_of_mean(x: np.ndarray, epsilon: float, axes: Any = -1) -> np.ndarray:
    """Of the mean square along the axes and epsilon; 1 in place of 0."""
    square = (x * x).mean(axes, keepdims=True) + epsilon
    return np.sqrt(np.where(square == 0, 1.0, square))


def across(dy: np.ndarray, y: np.ndarray, axes: Any = -1) -> np.ndarray:
    """What of dy does not change the mean square of y, along the axes."""
    return dy - y * (y * dy).mean(axes, keepdims=True)


def of_heads(x: Any, H: int) -> np.ndarray:
    """The numbers of the first H heads, or of all heads alike; raises ValueError where some are missing."""
    x = np.atleast_1d(np.asarray(x, float))
    return np.broadcast_to(x[:H] if len(x) > 1 else x, (H, *x.shape[1:]))


def first_place(s: Steps) -> int:
    """Where the first query stands, for the rotation."""
    turns = s.means.pieces.rotation
    return s.case.K.shape[2] - s.case.Q.shape[2] if turns and turns.last else 0


def added_to_scores(s: Steps, pieces: Pieces, sign: int = 1) -> np.ndarray:
    """The bias, what hides a key, and what these pieces add; sign of the distances of the table."""
    (H, n, m), table = s.QK.shape[1:], pieces.table
    B = np.where(s.seen, s.bias, s.bias + s.means.hidden) + pieces.added(H, n, m)
    if table is None:
        return B
    return B + table.times * of_heads(s.beta, H)[:, table.of_pairs(sign * pieces.ahead(n, m))]


def collected(s: Any, each: np.ndarray, sign: int = 1) -> np.ndarray:
    """The sum over the pairs of a bucket of the table that a layer learns; sign of their distances."""
    table, found = s.means.pieces.table, np.zeros(s.given.learned["table"].shape)
    pairs: Any = (slice(None), table.of_pairs(sign * s.means.pieces.ahead(*each.shape[2:])))
    np.add.at(table.by_head(found), pairs, each.sum(0))
    return found


def _row_sums(s: Steps) -> np.ndarray:
    pieces, L = s.means.pieces, log_sum_exp(s.A)
    if pieces.sigmoid is not None:
        return np.full(L.shape, np.nan)
    if s.sink is None:
        return L
    return np.logaddexp(np.where(np.isposinf(L), -np.inf, L), of_heads(s.sink, L.shape[1])[:, None, None])


def _capped_back(s: Steps) -> np.ndarray:
    if s.means.pieces.sigmoid is not None:
        return s.P_back * (1 - s.P_back) * s.dP
    return s.P_back * (s.dP - s.D)


PIECES: dict[str, Step] = {
    "Q_in": lambda s: s.case.Q, "K_in": lambda s: s.case.K,
    "gain_Q": lambda s: 1.0, "gain_K": lambda s: 1.0, "sink": lambda s: s.means.pieces.sink,
    "beta": lambda s: s.means.pieces.table and np.array(s.means.pieces.table.numbers),
    "Q": lambda s: s.means.pieces.turned(s.means.pieces.normed(s.Q_in) * s.gain_Q, first_place(s)),
    "K": lambda s: s.means.pieces.turned(s.means.pieces.normed(s.K_in) * s.gain_K, 0),
    "B": lambda s: added_to_scores(s, s.means.pieces),
    "A": lambda s: s.means.pieces.capped(s.gamma * s.QK) + s.B,
    "L": _row_sums,
    "P": lambda s: s.means.pieces.weights(s.A, s.sink),
    "X_back": lambda s: s.gamma * (s.Q @ T(s.keys_back)),
    "A_back": lambda s: s.means.pieces.capped(s.X_back) + s.B_back,
    "P_back": lambda s: s.means.pieces.weights(s.A_back, s.sink),
    "dC": _capped_back,
    "bend": lambda s: s.means.pieces.bend(s.X_back) + 0 * s.dC,
    "dA": lambda s: s.dC * s.bend,
    "dB": lambda s: sum_to(s.dC, s.case.bias),
    "dQ_normed": lambda s: s.means.pieces.turned(s.dQ, first_place(s), -1),
    "dK_normed": lambda s: s.means.pieces.turned(s.dK, 0, -1),
    "dQ_left": lambda s: s.means.pieces.unnormed(s.dQ_normed * s.gain_Q, s.Q_in),
    "dK_left": lambda s: s.means.pieces.unnormed(s.dK_normed * s.gain_K, s.K_in),
}
PIECED = STEPS | PIECES
PIECED_DOWNSTREAM = downstream(PIECED) | {
    f"{x}_{end}": frozenset({x, f"{x}_normed", f"{x}_left"}) for x in ("dQ", "dK") for end in ("normed", "left")}
