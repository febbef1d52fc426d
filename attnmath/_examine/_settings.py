"""What surrounds the numbers of a problem: its sizes, masks, bias, scale and dropout."""

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np

from attnmath._examine._case import Case, Conventions
from attnmath._roundoff import nearest

Rng = np.random.Generator
Sizes = tuple[int, int, int, int, int, int, int]  # b, H, G, n, m, d_k, d_v


@dataclass(frozen=True)
class Setting:
    """Everything of a problem but its numbers."""

    name: str
    sizes: Sizes
    mask: str | None = None  # a key of SHAPES, "padding" or "empty"
    causal: bool = False
    bias: str | None = None  # a key of SHAPES, or "hidden"
    scale: float | None = None
    rho: float = 0.0  # the rate of dropout
    also: tuple[str, ...] = ()  # traits that the numbers do not show

    @property
    def needs(self) -> set[str]:
        """The options that a candidate has to take."""
        _, H, G, *_ = self.sizes
        asked = dict(mask=self.mask, causal=self.causal, bias=self.bias, dropout=self.rho,
                     scale=self.scale is not None, groups=G < H)  # fmt: skip
        return {word for word, needed in asked.items() if needed}


# Along which axes of (b, H, n, m) a mask or a bias has numbers of its own.
SHAPES = {
    "all": (True, True, True, True),
    "heads": (False, True, True, True),
    "batch": (True, False, True, True),
    "shared": (False, False, True, True),
}


def possible(settings: Collection[Setting], options: Collection[str]) -> list[Setting]:
    """Those that the candidate can be given."""
    return [s for s in settings if s.needs <= set(options)]


def shape_of(kind: str, sizes: Sizes) -> tuple[int, ...]:
    """The shape of a mask or a bias of this kind."""
    b, H, _, n, m, *_ = sizes
    return tuple(k if own else 1 for own, k in zip(SHAPES[kind], (b, H, n, m)))


def drawn_mask(kind: str | None, sizes: Sizes, rng: Rng) -> np.ndarray | None:
    """Which query may attend to which key; each to one at least, but for "empty"."""
    b, _, _, n, m, *_ = sizes
    if kind is None:
        return None
    if kind == "padding":  # each item of the batch has another number of keys
        lengths = 1 + rng.permutation(m)[np.arange(b) % m]
        return np.arange(m) < lengths[:, None, None, None]
    shape = shape_of("shared" if kind == "empty" else kind, sizes)
    keep = rng.random(shape) < 0.6
    keep[..., 0] |= ~keep.any(-1)
    if kind == "empty":
        keep[..., rng.permutation(n)[: max(1, n // 4)], :] = False
    return keep


def drawn_bias(kind: str | None, sizes: Sizes, rng: Rng) -> np.ndarray | None:
    """Numbers to be added to the scores, some of them -inf if the kind is "hidden"."""
    if kind is None:
        return None
    if kind != "hidden":
        return rng.standard_normal(shape_of(kind, sizes))
    keep = drawn_mask("heads", sizes, rng)
    return np.where(keep, rng.standard_normal(keep.shape), -np.inf)


def drawn_dropout(rho: float, sizes: Sizes, dtype: str, rng: Rng) -> np.ndarray | None:
    """0 with probability rho, otherwise 1 / (1 - rho), as a number of the format."""
    b, H, _, n, m, *_ = sizes
    return nearest((rng.random((b, H, n, m)) >= rho) / (1 - rho), dtype) if rho else None


def traits_of(case: Case) -> set[str]:
    """What can be seen of a case by itself."""
    s = case.sizes
    seen = [case.B(Conventions(causal=align)) > -np.inf for align in ("upper_left", "lower_right")]
    shown = {
        "mask": case.keep is not None,
        "causal": case.causal,
        "bias": case.bias is not None,
        "scale": case.scale is not None,
        "dropout": case.R is not None,
        "groups": s["G"] < s["H"],
        "batch": s["b"] > 1,
        "n != m": s["n"] != s["m"],
        "d_v != d_k": s["d_v"] != s["d_k"],
        "odd width": s["d_k"] % 2 == 1 or s["d_v"] % 2 == 1,
        "odd length": s["n"] % 2 == 1 or s["m"] % 2 == 1,
        "more than 64 keys": s["m"] > 64,
        "empty row": not all(x.any(-1).all() for x in seen),
    }
    return {word for word, holds in shown.items() if holds}
