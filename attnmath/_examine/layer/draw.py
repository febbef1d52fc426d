"""What a layer is given: problems of some sizes, families of numbers, masks."""

from collections.abc import Iterator
from dataclasses import replace
from math import ceil

import numpy as np

from attnmath._examine.layer.layer import ByName, Layer, LayerCase, Rotary
from attnmath.rounding.formats import nearest

UNREAD = 1e30  # in keys that nobody may read; NaN and infinity leak everywhere: 0 times NaN is NaN


class Draw:
    """Problems for one layer, out of one seed."""

    def __init__(self, layer: Layer, dtype: str, seed: int, longer: int = 0) -> None:
        self.layer, self.dtype, self.rng, self.longer = layer, dtype, np.random.default_rng(seed), longer
        self.d, self.d_z = layer.widths
        inside = layer.module.modules() if hasattr(layer.module, "modules") else ()
        dropped = any(type(x).__name__.startswith("Dropout") and getattr(x, "p", 0) > 0 for x in inside)
        self.can_train = layer.dropout == 0 and not dropped  # otherwise it is run as it is, in eval()

    def normal(self, *shape: int, by: float = 1.0, offset: float = 0.0) -> np.ndarray:
        """Normal numbers of the layer's format."""
        return nearest(by * self.rng.normal(size=shape) + offset, self.dtype)

    def numbers(self, by: float = 1.0) -> dict[str, np.ndarray]:
        """Weights that keep the size of what they multiply; biases of half that size."""
        return {name: self.normal(*shape, by=0.5 if len(shape) == 1 else by * self.d**-0.5)
                for name, shape in self.layer.shapes.items()}

    def case(
        self, name: str, b: int, n: int, m: int, *traits: str, numbers: ByName | None = None,
        spread: float = 1.0, offset: float = 0.0, train: bool = False, cross: bool = True,
    ) -> LayerCase:
        """One problem; self-attention has m = n."""
        layer, numbers = self.layer, self.numbers() if numbers is None else numbers
        cross = cross and layer.cross
        n, m = (layer.multiple * ceil((x + self.longer) / layer.multiple) for x in (n, m if cross else n))
        b = b if layer.batched else 1
        X, Z = (self.normal(b, *shape, by=spread, offset=offset) for shape in ((n, self.d), (m, self.d_z)))
        own = {"batch": b > 1, "n != m": n != m, "causal": layer.causal}
        cos, sin = (nearest(x, self.dtype) for x in layer.rotary(n)) if layer.rotary else (X, X)
        return LayerCase(
            X, Z if cross else None, layer.ours(numbers), self.normal(b, n, self.d), causal=layer.causal,
            rotary=Rotary(cos, sin, layer.pairing or "half") if layer.rotary else None, scale=layer.scale,
            name=name, numbers=numbers, train=train and self.can_train, learned=layer.learns(numbers),
            traits=frozenset({*traits, *(trait for trait, has in own.items() if has)}),
        )


def hiding(case: LayerCase, keep: np.ndarray, trait: str = "mask") -> LayerCase:
    """The same problem with a mask."""
    return replace(case, keep=keep, traits=case.traits | {trait})


def layer_cases(draw: Draw) -> Iterator[LayerCase]:
    """All problems: sizes, families of numbers, masks; every other one in train()."""
    layer, wide = draw.layer, draw.dtype in ("float32", "float64")
    yield draw.case("two sequences", 2, 5, 7, "gaussian")
    yield draw.case("as many queries as keys", 3, 6, 6, "gaussian", train=True)
    yield draw.case("one token", 1, 1, 1, "gaussian")
    yield draw.case("one query", 2, 1, 5, "gaussian", train=True)
    yield draw.case("more queries than keys", 2, 9, 4, "gaussian")
    yield draw.case("across tiles", 1, 17, 33, "gaussian", "odd length", train=True)
    yield draw.case("sharp weights", 2, 6, 7, "peaked", numbers=draw.numbers(3.0 if wide else 1.5))
    yield draw.case("large tokens", 2, 5, 6, "outliers", spread=4.0 if wide else 1.5, train=True)
    yield draw.case("small tokens", 2, 6, 5, "tiny", spread=2.0**-10)
    yield draw.case("tokens around 3", 2, 4, 8, "offset", offset=3.0 if wide else 1.0)
    none = {name: 0 * x if x.ndim == 1 else x for name, x in draw.numbers().items()}
    yield draw.case("biases of zero", 2, 5, 4, "gaussian", numbers=none)
    yield draw.case("all weights zero", 2, 4, 6, "uniform", numbers=draw.numbers(0.0), train=True)
    case = draw.case("dY the same everywhere", 2, 5, 6, "gaussian", "broadcast dY")
    yield replace(case, dY=np.ones_like(case.dY))
    if layer.cross and layer.alone:
        yield draw.case("the same tokens ask and answer", 2, 5, 5, "gaussian", "self-attention", cross=False)
        yield draw.case("the same tokens, sharp", 1, 9, 9, "peaked", "self-attention",
                        cross=False, spread=2.0, train=True)
    if layer.masks:
        yield from masked_cases(draw, wide)


def masked_cases(draw: Draw, wide: bool) -> Iterator[LayerCase]:
    """Masks of scores and of keys; what is hidden may be large."""
    for b, n, m in ((2, 5, 7), (1, 12, 9)) if "n" in draw.layer.masks else ():
        case = draw.case("a mask", b, n, m, "gaussian")
        _, n, m = case.lengths
        keep = draw.rng.random((1, 1, n, m)) < 0.6
        keep[..., np.arange(n), np.arange(n) % m] = True
        yield hiding(case, keep)
    if draw.layer.masks == "n m" or not draw.layer.batched:
        return
    case = draw.case("padded keys", 3, 4, 6, "gaussian", train=True)
    keep = np.arange(case.lengths[2]) < np.array([6, 2, 3])[:, None, None, None]
    yield hiding(case, keep, "padding")
    if case.Z is not None and wide:
        Z = np.where(keep[:, 0, 0, :, None], case.Z, np.copysign(UNREAD, case.Z))
        poisoned = replace(case, Z=nearest(Z, draw.dtype), name="padded keys, 1e30 in what is hidden")
        yield hiding(poisoned, keep, "poison")
