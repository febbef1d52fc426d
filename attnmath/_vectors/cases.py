"""The cases of the test vectors: what each is for, how its numbers are made, and the list of them."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.pieces import slopes_of_any
from attnmath._formulas.masks import document_mask, padding_mask, window_mask
from attnmath.rounding.formats import nearest

LOWER, UPPER = "lower_right", "upper_left"
UNREAD_BY_FORMAT = {"float64": 1e30, "float32": 1e30, "bfloat16": 1e30, "float16": 1e3}  # dP must not overflow


@dataclass(frozen=True)
class VectorCase:
    """One case, for every format: its name, what it is for, and what it is made of."""

    name: str
    words: str
    sizes: tuple[int, int, int, int, int, int, int]  # b, H, G, n, m, d_k, d_v
    mask: str | None = None  # a name in _keep
    causal: str | None = None
    bias: str | None = None  # along which axes of b, H, n, m it has numbers of its own, or a name in _bias
    scale: float | None = None
    rate: float = 0.0  # of dropout
    numbers: str = "gaussian"
    exact: bool = False  # every bit has to be right

    @property
    def means(self) -> Conventions:
        """What the case means by its arguments."""
        return Conventions("bhsd", "keep", self.causal, "blocks", None, "zero")

    def case(self, dtype: str) -> Case:
        """The case, its inputs rounded to the format."""
        b, H, G, n, m, d_k, d_v = self.sizes
        shapes = dict(Q=(b, H, n, d_k), K=(b, G, m, d_k), V=(b, G, m, d_v), dO=(b, H, n, d_v))
        x = _of_kind(self.numbers, {k: self.drawn(k, shape) for k, shape in shapes.items()})
        keep, R = None if self.mask is None else _keep(self), None
        if self.numbers == "poison" and keep is not None:
            hidden = np.logical_not(np.broadcast_to(keep, (b, H, n, m)).any((1, 2)))
            for name in "KV":
                x[name] = np.where(hidden[:, None, :, None], UNREAD_BY_FORMAT[dtype], x[name])
        if self.rate:
            R = np.where(self.bits("R", (b, H, n, m)) < 256 * self.rate, 0.0, 1 / (1 - self.rate))
        bias = None if self.bias is None else nearest(_added_to_scores(self, self.bias), dtype)
        Q, K, V, dO = (nearest(x[name], dtype) for name in shapes)
        return Case(Q, K, V, dO, keep, bias, self.causal is not None, self.scale_in(dtype), R, self.name)

    @property
    def named_sizes(self) -> dict[str, int]:
        """By their letters."""
        return dict(zip(("b", "H", "G", "n", "m", "d_k", "d_v"), self.sizes))

    def scale_in(self, dtype: str) -> float:
        """The scale, a number of float32 for the formats up to it."""
        scale = 1 / math.sqrt(self.sizes[5]) if self.scale is None else self.scale
        return float(nearest(np.array(scale), "float64" if dtype == "float64" else "float32"))

    def drawn(self, letter: str, shape: tuple[int, ...]) -> np.ndarray:
        """Sums of twelve uniform numbers less 6: nearly normal, up to 6, the same everywhere.

        They come from SHAKE-256 of the names and end 46 places after the binary point.
        """
        count = math.prod(shape)
        words = np.frombuffer(self._bytes(letter, 96 * count), "<u8").reshape(count, 12) >> np.uint64(18)
        return (words.sum(1).astype(float) / 2**46 - 6).reshape(shape)

    def bits(self, letter: str, shape: tuple[int, ...]) -> np.ndarray:
        """Whole numbers from 0 to 255."""
        return np.frombuffer(self._bytes(letter, math.prod(shape)), np.uint8).reshape(shape)

    def _bytes(self, letter: str, count: int) -> bytes:
        return hashlib.shake_256(f"attnmath {self.name} {letter}".encode()).digest(count)


def _of_kind(kind: str, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The drawn numbers made into those of a kind."""
    whole = {k: np.sign(np.rint(a)) + 0.0 for k, a in x.items()}  # -1, 0, 1
    if kind == "peaked":
        x["Q"] = 16 * x["Q"]
    elif kind == "far below":
        x["Q"], x["K"] = 8 + abs(x["Q"]), -8 - abs(x["K"])
    elif kind == "positive":
        x = {k: abs(a) for k, a in x.items()}
    elif kind == "ties":
        x["K"][..., 1::2, :] = x["K"][..., : x["K"].shape[-2] // 2 * 2 : 2, :]
        x["V"][..., 1::2, :] = x["V"][..., : x["V"].shape[-2] // 2 * 2 : 2, :]
    elif kind == "outliers":
        x["K"][..., 1, :] *= 32
        x["V"][..., -1, 0] *= 64
    elif kind == "offset":
        x["V"] = x["V"] + 256
    elif kind == "mean loss":
        x["dO"] = x["dO"] / 1024
    elif kind == "sum loss":
        x["dO"] = np.ones_like(x["dO"])
    elif kind == "uniform":
        x = whole | {"Q": np.zeros_like(x["Q"])}
    elif kind == "hard":
        n, m, d = x["Q"].shape[-2], x["K"].shape[-2], x["Q"].shape[-1]
        x = whole | {"Q": 64.0 * np.eye(d)[np.arange(n) * 3 % m] + 0 * x["Q"],
                     "K": 64.0 * np.eye(d)[np.arange(m)] + 0 * x["K"]}
    return x


def _keep(v: VectorCase) -> np.ndarray:
    """Which query may attend to which key."""
    b, H, _, n, m, *_ = v.sizes
    lengths = 1 + np.arange(b) * 3 % m
    shapes = {"shared": (1, 1, n, m), "heads": (1, H, n, m), "all": (b, H, n, m)}
    if v.mask == "padding":
        return padding_mask(lengths, m)[:, None]
    if v.mask == "empty item":
        return padding_mask(np.where(np.arange(b) == 1, 0, lengths), m)[:, None]
    if v.mask == "window":
        return window_mask(n, m, 3)
    if v.mask == "documents":
        return document_mask(np.arange(n) * 3 // n)
    if v.mask == "one key":
        return np.arange(m) == np.arange(n)[:, None] * 2 % m
    if v.mask == "not the first keys":
        return np.broadcast_to(np.arange(m) >= 3, (n, m))
    keep = v.bits("keep", shapes.get(v.mask or "shared", (1, 1, n, m))) < 150
    keep = keep | (np.arange(m) == 0) & ~keep.any(-1, keepdims=True)
    return keep & (np.arange(n) % 3 != 1)[:, None] if v.mask == "empty rows" else keep


def _added_to_scores(v: VectorCase, kind: str) -> np.ndarray:
    """What is added to the scores."""
    b, H, _, n, m, *_ = v.sizes
    if kind == "alibi":
        distance = np.arange(m) - np.arange(m - n, m)[:, None]
        return (slopes_of_any(H)[:, None, None] * distance)[None]
    if kind == "hidden":
        return np.where(v.bits("hidden", (1, H, n, m)) < 180, v.drawn("bias", (1, H, n, m)), -np.inf)
    shape = tuple(k if letter in kind.split() else 1 for letter, k in zip("bHnm", (b, H, n, m)))
    return v.drawn("bias", shape)


# A name never changes its meaning: its numbers come from it.
VECTORS = [
    # sizes b, H, G, n, m, d_k, d_v
    VectorCase("one_by_one", "a single query and key: dQ = dK = 0", (1, 1, 1, 1, 1, 4, 4)),
    VectorCase("one_key", "the only key has all the weight: dQ = dK = 0", (1, 2, 2, 3, 1, 4, 4)),
    VectorCase("one_query", "decoding: one query, many keys", (1, 2, 2, 1, 9, 4, 4)),
    VectorCase("plain", "nothing special", (1, 1, 1, 4, 4, 4, 4)),
    VectorCase("batch_and_heads", "two sequences, three heads", (2, 3, 3, 5, 5, 4, 4)),
    VectorCase("fewer_queries", "n < m", (2, 2, 2, 3, 7, 4, 4)),
    VectorCase("more_queries", "n > m", (2, 2, 2, 7, 3, 4, 4)),
    VectorCase("narrow_values", "d_v < d_k", (1, 2, 2, 5, 6, 16, 4)),
    VectorCase("wide_values", "d_v > d_k", (1, 2, 2, 5, 6, 4, 10)),
    VectorCase("odd_width", "a scale that is no power of two", (1, 2, 2, 5, 6, 6, 6)),
    VectorCase("tail_17", "one more than a tile of 16, and one less for the keys", (1, 1, 1, 17, 15, 4, 4)),
    VectorCase("tail_33", "one more than two tiles of 16", (1, 2, 2, 33, 33, 4, 4)),
    VectorCase("tail_65", "one more than a tile of 64, three more for the keys", (1, 1, 1, 65, 67, 8, 8)),
    VectorCase("tail_causal", "tails under a causal mask", (1, 1, 1, 33, 65, 4, 4), causal=LOWER),
    VectorCase("groups_of_two", "four query heads on two heads of keys", (2, 4, 2, 5, 6, 4, 4)),
    VectorCase("groups_of_three", "six query heads on two heads of keys", (2, 6, 2, 5, 6, 4, 4)),
    VectorCase("one_head_of_keys", "all query heads share one head of keys", (2, 3, 1, 5, 6, 4, 4)),
    VectorCase("groups_causal", "groups of three, causal, n < m", (1, 6, 2, 5, 9, 4, 4), causal=LOWER),
    VectorCase("causal", "causal, n = m: both alignments agree", (1, 2, 2, 6, 6, 4, 4), causal=LOWER),
    VectorCase("causal_lower_right", "the last query sees all keys, n < m", (1, 2, 2, 4, 7, 4, 4), causal=LOWER),
    VectorCase("causal_lower_right_empty", "n > m: the first rows are empty", (1, 2, 2, 7, 4, 4, 4), causal=LOWER),
    VectorCase("causal_upper_left", "the first query sees one key, n < m", (1, 2, 2, 4, 7, 4, 4), causal=UPPER),
    VectorCase("causal_upper_left_long", "n > m: the last rows see all", (1, 2, 2, 7, 4, 4, 4), causal=UPPER),
    VectorCase("mask", "a mask for all heads and sequences", (2, 2, 2, 5, 7, 4, 4), mask="shared"),
    VectorCase("mask_per_head", "a mask for each head", (2, 3, 3, 5, 7, 4, 4), mask="heads"),
    VectorCase("mask_full", "a mask for each head and sequence", (2, 2, 2, 5, 7, 4, 4), mask="all"),
    VectorCase("mask_and_causal", "both at once", (2, 2, 2, 6, 6, 4, 4), mask="padding", causal=LOWER),
    VectorCase("padding", "sequences of different lengths", (3, 2, 2, 5, 7, 4, 4), mask="padding"),
    VectorCase("padding_all", "one sequence has no key at all", (3, 2, 2, 5, 7, 4, 4), mask="empty item"),
    VectorCase("empty_rows", "rows that may attend to nothing: 0 forward and back",
           (2, 2, 2, 6, 7, 4, 4), mask="empty rows"),
    VectorCase("window", "the last three keys up to the query's own place", (1, 2, 2, 9, 9, 4, 4), mask="window"),
    VectorCase("window_fewer_queries", "the same, the last query at the last key",
               (2, 2, 2, 4, 7, 4, 4), mask="window"),
    VectorCase("documents", "three documents side by side", (1, 2, 2, 9, 9, 4, 4), mask="documents"),
    VectorCase("one_visible_key", "each row sees one key: dQ = dK = 0", (1, 2, 2, 5, 7, 4, 4), mask="one key"),
    VectorCase("poison", "keys that nobody sees are huge, and must not leak",
           (3, 2, 2, 5, 7, 4, 4), mask="padding", numbers="poison"),
    VectorCase("poison_first", "the same with the first keys", (1, 2, 2, 17, 19, 4, 4),
           mask="not the first keys", numbers="poison"),
    VectorCase("bias", "a bias of its own for every score", (2, 3, 3, 5, 7, 4, 4), bias="b H n m"),
    VectorCase("bias_per_head", "shared by the batch: dB is summed", (2, 3, 3, 5, 7, 4, 4), bias="H n m"),
    VectorCase("bias_per_batch", "shared by the heads", (2, 3, 3, 5, 7, 4, 4), bias="b n m"),
    VectorCase("bias_per_key", "shared by the queries", (2, 3, 3, 5, 7, 4, 4), bias="b m"),
    VectorCase("bias_hidden", "a bias that is -inf in places", (2, 3, 3, 5, 7, 4, 4), bias="hidden"),
    VectorCase("alibi", "a slope for each head, causal", (1, 4, 4, 6, 6, 4, 4), bias="alibi", causal=LOWER),
    VectorCase("scale_one", "no division by the root of the width", (1, 2, 2, 5, 7, 4, 4), scale=1.0),
    VectorCase("scale_given", "another scale", (1, 2, 2, 5, 7, 6, 6), scale=0.375),
    VectorCase("dropout", "half of the weights are dropped", (2, 2, 2, 5, 7, 4, 4), rate=0.5),
    VectorCase("dropout_some", "a fifth is dropped, the rest times 1.25", (1, 2, 2, 9, 9, 4, 4),
           rate=0.2, causal=LOWER),
    VectorCase("peaked", "one key has nearly all the weight", (1, 2, 2, 9, 11, 4, 4), numbers="peaked"),
    VectorCase("far_below_zero", "log-sum-exp of -100 and less: exp(-L) overflows",
           (1, 2, 2, 17, 19, 4, 4), numbers="far below"),
    VectorCase("positive", "all numbers are positive", (1, 2, 2, 5, 7, 4, 4), numbers="positive"),
    VectorCase("ties", "pairs of keys with equal scores", (1, 2, 2, 5, 8, 4, 4), numbers="ties"),
    VectorCase("outliers", "one large key, one large value", (1, 2, 2, 9, 11, 4, 4), numbers="outliers"),
    VectorCase("offset_values", "values far from 0: dP - D cancels", (1, 2, 2, 5, 7, 4, 4), numbers="offset"),
    VectorCase("mean_loss", "dO of the size that a mean makes", (1, 2, 2, 5, 7, 4, 4), numbers="mean loss"),
    VectorCase("sum_loss", "dO = 1, as of a sum", (1, 2, 2, 5, 7, 4, 4), numbers="sum loss"),
    VectorCase("exact_hard", "one key has all the weight to the last bit: dQ = dK = 0",
           (2, 2, 2, 5, 7, 16, 16), numbers="hard", exact=True),
    VectorCase("exact_uniform", "four equal weights, small whole numbers: dK = 0",
           (2, 2, 2, 5, 4, 16, 4), numbers="uniform", exact=True),
    VectorCase("exact_groups", "the same with groups of three",
           (2, 6, 2, 5, 4, 16, 4), numbers="uniform", exact=True),
    VectorCase("everything", "groups, padding, causal, bias, dropout, d_v != d_k, tails",
           (2, 6, 2, 17, 19, 6, 5), mask="padding", causal=LOWER, bias="H n m", scale=0.375, rate=0.5),
]
