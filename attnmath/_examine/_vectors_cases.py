"""The cases of the test vectors: what each is for, and how its numbers are made."""

import hashlib
import math
from dataclasses import dataclass

import numpy as np

from attnmath._examine._case import Case, Conventions
from attnmath._masks import document_mask, padding_mask, window_mask
from attnmath._roundoff import nearest

POISON = {"float64": 1e30, "float32": 1e30, "bfloat16": 1e30, "float16": 1e3}  # dP must not overflow


@dataclass(frozen=True)
class Vector:
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
        x = _numbers(self.numbers, {k: self.drawn(k, shape) for k, shape in shapes.items()})
        keep = None if self.mask is None else _keep(self)
        if self.numbers == "poison":
            hidden = ~np.broadcast_to(keep, (b, H, n, m)).any((1, 2))
            for name in "KV":
                x[name] = np.where(hidden[:, None, :, None], POISON[dtype], x[name])
        R = None
        if self.rate:
            R = np.where(self.bits("R", (b, H, n, m)) < 256 * self.rate, 0.0, 1 / (1 - self.rate))
        bias = None if self.bias is None else _bias(self)
        scale = 1 / math.sqrt(d_k) if self.scale is None else self.scale
        scale = float(nearest(np.array(scale), "float64" if dtype == "float64" else "float32"))
        x = {name: nearest(a, dtype) for name, a in x.items()}
        return Case(**x, keep=keep, bias=None if bias is None else nearest(bias, dtype),
                    causal=self.causal is not None, scale=scale, R=R, name=self.name)  # fmt: skip

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


def _numbers(kind: str, x: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
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
                     "K": 64.0 * np.eye(d)[np.arange(m)] + 0 * x["K"]}  # fmt: skip
    return x


def _keep(v: Vector) -> np.ndarray:
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
    keep = v.bits("keep", shapes.get(v.mask, (1, 1, n, m))) < 150
    keep = keep | (np.arange(m) == 0) & ~keep.any(-1, keepdims=True)
    return keep & (np.arange(n) % 3 != 1)[:, None] if v.mask == "empty rows" else keep


def _bias(v: Vector) -> np.ndarray:
    """What is added to the scores."""
    b, H, _, n, m, *_ = v.sizes
    if v.bias == "alibi":
        slopes = 2.0 ** -(8 * np.arange(1, H + 1) / H)
        distance = np.arange(m) - np.arange(m - n, m)[:, None]
        return (slopes[:, None, None] * distance)[None]
    if v.bias == "hidden":
        return np.where(v.bits("hidden", (1, H, n, m)) < 180, v.drawn("bias", (1, H, n, m)), -np.inf)
    shape = tuple(k if letter in v.bias.split() else 1 for letter, k in zip("bHnm", (b, H, n, m)))
    return v.drawn("bias", shape)
