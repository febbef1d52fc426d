"""The problems that a layer is given."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnmath._examine._layer_case import LayerCase, Rotary
from attnmath._examine._layer_described import Layer
from attnmath._roundoff import nearest

POISON = 1e30  # in keys that nobody may read; NaN and infinity leak everywhere: 0 times NaN is NaN


@dataclass(frozen=True)
class Given:
    """A problem, and the numbers that it puts into the layer's parameters."""

    case: LayerCase
    numbers: dict[str, np.ndarray]
    train: bool = False


def draws(module: Any) -> bool:
    """Whether a module of PyTorch has dropout inside, so that it is run as it is, in eval()."""
    inside = module.modules() if hasattr(module, "modules") else ()
    return any(type(x).__name__.startswith("Dropout") and getattr(x, "p", 0) > 0 for x in inside)


class Draw:
    """Problems for one layer, out of one seed."""

    def __init__(self, layer: Layer, dtype: str, seed: int | None) -> None:
        self.layer, self.dtype, self.rng = layer, dtype, np.random.default_rng(seed)
        W = layer.ours({name: np.zeros(shape) for name, shape in layer.shapes.items()})
        (self.H, self.d, self.d_k), self.d_z = W.W_Q.shape, W.W_K.shape[1]
        self.pairing = layer.pairing or "half"

    def normal(self, *shape: int, by: float = 1.0) -> np.ndarray:
        """Normal numbers of the layer's format."""
        return nearest(by * self.rng.normal(size=shape), self.dtype)

    def numbers(self, by: float = 1.0) -> dict[str, np.ndarray]:
        """Weights that keep the size of what they multiply; biases of half that size."""
        return {
            name: self.normal(*shape, by=0.5 if len(shape) == 1 else by * self.d**-0.5)
            for name, shape in self.layer.shapes.items()
        }

    def given(
        self, name: str, b: int, n: int, m: int, *traits: str, numbers: dict | None = None,
        spread: float = 1.0, offset: float = 0.0, train: bool = False, cross: bool = True,
    ) -> Given:  # fmt: skip
        """One problem; self-attention has m = n."""
        numbers = self.numbers() if numbers is None else numbers
        cross = cross and self.layer.cross
        m, b = m if cross else n, b if self.layer.batched else 1
        X = nearest(spread * self.rng.normal(size=(b, n, self.d)) + offset, self.dtype)
        Z = nearest(spread * self.rng.normal(size=(b, m, self.d_z)) + offset, self.dtype)
        own = {"batch"} if b > 1 else set()
        own |= {"n != m"} if n != m else set()
        own |= {"causal"} if self.layer.causal else set()
        case = LayerCase(
            X, Z if cross else None, self.layer.ours(numbers), self.normal(b, n, self.d),
            causal=self.layer.causal, rotary=self.rotary(n), scale=self.layer.scale, name=name,
            traits=frozenset({*traits, *own}),
        )  # fmt: skip
        return Given(case, numbers, train and self.layer.dropout == 0 and not draws(self.layer.module))

    def rotary(self, n: int) -> Rotary | None:
        """What the layer turns queries and keys by."""
        if self.layer.rotary is None:
            return None
        cos, sin = (np.asarray(nearest(x, self.dtype)) for x in self.layer.rotary(n))
        return Rotary(cos, sin, self.pairing)


def hidden(g: Given, keep: np.ndarray, trait: str = "mask") -> Given:
    """The same problem with a mask."""
    return replace(g, case=replace(g.case, keep=keep, traits=g.case.traits | {trait}))


def problems(layer: Layer, dtype: str, seed: int | None = None) -> Iterator[Given]:
    """All problems: sizes, families of numbers, masks; every other one in train()."""
    draw = Draw(layer, dtype, seed)
    wide = dtype in ("float32", "float64")
    yield draw.given("two sequences", 2, 5, 7, "gaussian")
    yield draw.given("as many queries as keys", 3, 6, 6, "gaussian", train=True)
    yield draw.given("one token", 1, 1, 1, "gaussian")
    yield draw.given("one query", 2, 1, 5, "gaussian", train=True)
    yield draw.given("more queries than keys", 2, 9, 4, "gaussian")
    yield draw.given("across tiles", 1, 17, 33, "gaussian", "odd length", train=True)
    yield draw.given("sharp weights", 2, 6, 7, "peaked", numbers=draw.numbers(3.0 if wide else 1.5))
    yield draw.given("large tokens", 2, 5, 6, "outliers", spread=4.0 if wide else 1.5, train=True)
    yield draw.given("small tokens", 2, 6, 5, "tiny", spread=2.0**-10)
    yield draw.given("tokens around 3", 2, 4, 8, "offset", offset=3.0 if wide else 1.0)
    none = {name: 0 * x if len(x.shape) == 1 else x for name, x in draw.numbers().items()}
    yield draw.given("biases of zero", 2, 5, 4, "gaussian", numbers=none)
    yield draw.given("all weights zero", 2, 4, 6, "uniform", numbers=draw.numbers(0.0), train=True)
    g = draw.given("dY the same everywhere", 2, 5, 6, "gaussian", "broadcast dY")
    yield replace(g, case=replace(g.case, dY=np.ones_like(g.case.dY)))
    if layer.cross and layer.alone:
        yield draw.given("the same tokens ask and answer", 2, 5, 5, "gaussian", "self-attention", cross=False)
        one = dict(cross=False, spread=2.0, train=True)
        yield draw.given("the same tokens, sharp", 1, 9, 9, "peaked", "self-attention", **one)
    if layer.masks:
        yield from masked(draw, wide)


def masked(draw: Draw, wide: bool) -> Iterator[Given]:
    """Masks of scores and of keys; what is hidden may be large."""
    for b, n, m in ((2, 5, 7), (1, 12, 9)) if "n" in draw.layer.masks else ():
        g = draw.given("a mask", b, n, m, "gaussian")
        n, m = g.case.X.shape[1], g.case.keys.shape[1]
        keep = draw.rng.random((1, 1, n, m)) < 0.6
        keep[..., np.arange(n), np.arange(n) % m] = True
        yield hidden(g, keep)
    if draw.layer.masks == "n m" or not draw.layer.batched:
        return
    g = draw.given("padded keys", 3, 4, 6, "gaussian", train=True)
    keep = np.arange(g.case.keys.shape[1]) < np.array([6, 2, 3])[:, None, None, None]
    yield hidden(g, keep, "padding")
    if draw.layer.cross and wide:
        Z = np.where(keep[:, 0, 0, :, None], g.case.Z, np.copysign(POISON, g.case.Z))
        poisoned = replace(g.case, Z=nearest(Z, draw.dtype), name="padded keys, 1e30 in what is hidden")
        yield hidden(replace(g, case=poisoned), keep, "poison")
