"""A case sketched in a few choices, and the lines that make its numbers.

The lines also make the case itself, so that who pastes them has the same numbers.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from attnmath._examine._case import Case
from attnmath._examine._settings import shape_of
from attnmath._roundoff import nearest

DRAWN = {  # all but "normal" are numbers of every format
    "quarters": "rng.integers(-8, 9, {}) / 4",
    "normal": "nearest(rng.normal(size={}), {dtype!r})",
    "large": "rng.integers(-8, 9, {}) * 2.0",
    "small": "rng.integers(-8, 9, {}) / 1024",
}
BELOW = {"Q": "rng.integers(8, 17, {}) * 1.0", "K": "rng.integers(-16, -7, {}) * 1.0"}


@dataclass(frozen=True)
class Sketch:
    """What a case is made from; its numbers follow from it. The simplest choice comes first."""

    mask: str | None = None  # a key of SHAPES, or "empty"
    causal: bool = False
    bias: str | None = None  # a key of SHAPES
    scale: float | None = None
    dropped: bool = False
    memory: str | None = None  # of dO: "strided" or "broadcast"
    b: int = 1
    G: int = 1
    r: int = 1  # query heads for each head of keys and values
    n: int = 1
    m: int = 1
    d_k: int = 1
    d_v: int = 1
    numbers: str = "quarters"
    seed: int = 0
    listed: tuple[int, ...] | None = None  # the numbers one by one, in place of a seed


def inputs(x: Sketch, dtype: str) -> list[str]:
    """Lines that make Q, K, V, dO, and keep, bias and R where there are such."""
    H = x.G * x.r
    sizes = x.b, H, x.G, x.n, x.m, x.d_k, x.d_v
    shapes = dict(Q=(x.b, H, x.n, x.d_k), K=(x.b, x.G, x.m, x.d_k), V=(x.b, x.G, x.m, x.d_v),
                  dO=(x.b, H, x.n, x.d_v))  # fmt: skip
    found, given = [], list(x.listed or ())
    for name, shape in shapes.items():
        count = int(np.prod(shape))
        first, given = given[:count], given[count:]
        if x.memory == "broadcast" and name == "dO":
            found.append(f"dO = np.ones({shape})")
        elif x.listed is not None:
            found.append(f"{name} = np.array({np.array(first, float).reshape(shape).tolist()})")
        else:
            kind = BELOW.get(name, DRAWN["quarters"]) if x.numbers == "far below" else DRAWN[x.numbers]
            found.append(f"{name} = {kind.format(shape, dtype=dtype)}")
    if x.mask:
        shape = shape_of("shared" if x.mask == "empty" else x.mask, sizes)
        found += [f"keep = rng.random({shape}) < 0.5", "keep[..., 0] |= ~keep.any(-1)"]
    if x.mask == "empty":
        found.append("keep[..., 0, :] = False")
    if x.bias:
        found.append(f"bias = rng.integers(-8, 9, {shape_of(x.bias, sizes)}) / 4")
    if x.dropped:
        found.append(f"R = rng.integers(0, 2, {(x.b, H, x.n, x.m)}) * 2.0")
    if any("rng." in line for line in found):
        found.insert(0, f"rng = np.random.default_rng({x.seed})")
    return found if x.listed is None else _written_out(found)


def _written_out(given: list[str]) -> list[str]:
    """The same arrays, number by number."""
    arrays = {k: x for k, x in _made(given).items() if isinstance(x, np.ndarray)}
    return [f"{name} = np.array({x.tolist()})" for name, x in arrays.items()]


def _made(given: list[str]) -> dict[str, Any]:
    names: dict[str, Any] = {"np": np, "nearest": nearest}
    exec("\n".join(given), names)  # our own lines
    return names


def case_of(x: Sketch, dtype: str) -> Case:
    """The case that the lines describe."""
    names = _made(inputs(x, dtype))
    Q, K, V, dO, *rest = (names.get(name) for name in ("Q", "K", "V", "dO", "keep", "bias", "R"))
    traits = frozenset({f"{x.memory} dO"} if x.memory else ())
    return Case(Q, K, V, dO, rest[0], rest[1], x.causal, x.scale, rest[2], "smallest", traits)
