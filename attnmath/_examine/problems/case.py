"""A problem that a candidate is given: its setting, its numbers, and what the candidate may mean."""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np

from attnmath._formulas.masks import causal_mask
from attnmath.rounding.formats import nearest


class Answer(NamedTuple):
    """The output and the gradients, each of its argument's shape; None for what is not there."""

    O: np.ndarray
    dQ: np.ndarray | None = None
    dK: np.ndarray | None = None
    dV: np.ndarray | None = None
    dB: np.ndarray | None = None

    @property
    def there(self) -> dict[str, np.ndarray]:
        """The parts that there are, by their letters."""
        return {letter: x for letter, x in self._asdict().items() if x is not None}

    def each(self, f: Callable[..., np.ndarray], *others: "Answer") -> "Answer":
        """f of each letter, here and in the others; None where one of them has none."""
        return Answer._make(f(*xs) if all(x is not None for x in xs) else None for xs in zip(self, *others))


@dataclass(frozen=True)
class Conventions:
    """What a candidate means; examine finds out what is None, or is told."""

    layout: str | None = None  # "bhsd", "bshd", "sbhd", "hsd", "shd", "sd"
    mask: str | None = None  # "keep": True may attend; "drop": True may not; "add": a float, -inf; or as numbers
    causal: str | None = None  # "upper_left" or "lower_right"
    groups: str | None = None  # "blocks": head h reads h // (H/G); "interleaved": h mod G; "none"
    scale: str | None = None  # "1/sqrt(d_k)", "1", "1/d_k", ..., or a number: "0.7", "1/sqrt(32)"
    empty: str | None = None  # "zero", "nan", "uniform", "sum"; the last two also "... with gradient"
    inside: str | None = None  # the format of the softmax, where it is not the candidate's dtype
    mask_axes: str | None = None  # as "bm"; None: whatever can be broadcast against the scores
    bias_axes: str | None = None
    dropout: str | None = None  # what a dropout mask holds: "factors", 0 or 1/(1 - rho); "keep": True is kept; ...
    fill: str | None = None  # "-1e4": what is added to the score of what is hidden, where that is not -inf
    replicated: str | None = None  # a rank's gradient of what all have alike: "sum", "part" (its own), "mean"
    pieces: Any = None  # what it has beside plain attention: Pieces
    truncate: bool = field(default=False, compare=False)  # whether its sums may cut off digits: a matter of bounds
    ranks: Any = field(default=None, compare=False)  # over which ranks its tokens are spread, and how: Spread

    @property
    def hidden(self) -> float:
        """What is added to the score of what is hidden."""
        return float(self.fill or "-inf")

    def told(self, **other: Any) -> "Conventions":
        """With those of the others that are not None."""
        return replace(self, **{k: x for k, x in other.items() if x is not None})


USUAL_SCALES = {
    "1/sqrt(d_k)": lambda d_k, H: d_k**-0.5,
    "1": lambda d_k, H: 1.0,
    "1/d_k": lambda d_k, H: 1 / d_k,
    "1/sqrt(H d_k)": lambda d_k, H: (H * d_k) ** -0.5,
    "log(2)/sqrt(d_k)": lambda d_k, H: np.log(2) * d_k**-0.5,
}


def scale_number(word: str) -> float:
    """The number that a scale in words is: "0.7", or "1/sqrt(32)"."""
    inside = word.removeprefix("1/sqrt(").removesuffix(")")
    return float(word) if inside == word else 1 / np.sqrt(float(inside))


ABSENT: dict[str, bool | None] = dict(keep=None, causal=False, bias=None, scale=None, R=None)
INGREDIENTS = dict(mask="keep", bias="bias", causal="causal", scale="scale", dropout="R")  # of ABSENT, by option
ARRAYS = "Q", "K", "V", "dO", "keep", "bias", "R"  # of a case


@dataclass(frozen=True, eq=False)
class Case:
    """One problem, in NumPy's float64; the numbers are those of the candidate's format.

    Q (b, H, n, d_k), K (b, G, m, d_k), V (b, G, m, d_v), dO (b, H, n, d_v);
    keep, bias and R broadcast against (b, H, n, m)
    """

    Q: np.ndarray
    K: np.ndarray
    V: np.ndarray
    dO: np.ndarray
    keep: np.ndarray | None = None  # True: this query may attend to this key
    bias: np.ndarray | None = None  # added to the scores; its gradient is dB
    causal: bool = False
    scale: float | None = None  # None: the candidate's own
    R: np.ndarray | None = None  # dropout: 0 or 1/(1 - rho)
    name: str = ""
    traits: frozenset[str] = field(default_factory=frozenset)
    _seen: dict[bool, np.ndarray] = field(default_factory=dict, init=False, repr=False)  # asked for very often

    def with_arrays(self, f: Callable[[np.ndarray], np.ndarray], *names: str) -> "Case":
        """With f of the arrays of these names, or of all; what is not there stays so."""
        x = {name: getattr(self, name) for name in names or ARRAYS}
        changed: dict[str, Any] = {name: None if y is None else f(y) for name, y in x.items()}
        return replace(self, **changed)

    def has(self, *names: str) -> bool:
        """Whether it has one of these at least, of ABSENT."""
        return any(getattr(self, name) is not ABSENT[name] for name in names)

    def without(self, *names: str) -> "Case":
        """The same without these, of ABSENT."""
        fewer: dict[str, Any] = {name: ABSENT[name] for name in names}
        return replace(self, **fewer)

    @property
    def needs(self) -> list[str]:
        """The options that it cannot be said without."""
        found = [word for word, name in INGREDIENTS.items() if self.has(name)]
        return found + ["groups"] * (self.K.shape[1] < self.Q.shape[1])

    @property
    def sizes(self) -> dict[str, int]:
        """b, H, G, n, m, d_k, d_v."""
        (b, H, n, d_k), (G, m, d_v) = self.Q.shape, self.V.shape[1:]
        return dict(b=b, H=H, G=G, n=n, m=m, d_k=d_k, d_v=d_v)

    def gamma(self, means: Conventions) -> float:
        """The scale of the scores."""
        s, name = self.sizes, means.scale or "1/sqrt(d_k)"
        if self.scale is not None:
            return self.scale
        return USUAL_SCALES[name](s["d_k"], s["H"]) if name in USUAL_SCALES else scale_number(name)

    def owner(self, means: Conventions) -> np.ndarray:
        """For each query head its head of keys and values, H numbers below G."""
        H, G = self.Q.shape[1], self.K.shape[1]
        return np.arange(H) % G if means.groups == "interleaved" else np.arange(H) // (H // G)

    def other_owner(self, means: Conventions) -> np.ndarray:
        """The same by the other order of heads."""
        return self.owner(means.told(groups="blocks" if means.groups == "interleaved" else "interleaved"))

    def seen(self, means: Conventions) -> np.ndarray:
        """Which query may attend to which key, (b, H, n, m)."""
        upper_left = means.causal == "upper_left"
        if upper_left not in self._seen:
            (b, H, n, _), m = self.Q.shape, self.K.shape[2]
            seen = np.ones((b, H, n, m), bool)
            if self.keep is not None:
                seen = seen & self.keep
            if self.causal:
                seen = seen & causal_mask(n, m, align="upper_left" if upper_left else "lower_right")
            self._seen[upper_left] = seen
        return self._seen[upper_left]

    def B(self, means: Conventions) -> np.ndarray:
        """Bias and masks as what is added to the scores, (b, H, n, m)."""
        bias = 0.0 if self.bias is None else self.bias
        return np.where(self.seen(means), bias, bias + means.hidden)


@dataclass(frozen=True)
class Sizes:
    """Sizes of problems that a candidate takes; m above n by at least 3 where that may be."""

    b: int = 2
    H: int = 3
    n: int = 4
    m: int = 7
    d_k: int = 16
    d_v: int = 24
    G: int | None = None  # as many as there are query heads

    @property
    def seven(self) -> "SevenSizes":
        """b, H, G, n, m, d_k, d_v."""
        return self.b, self.H, self.G or self.H, self.n, self.m, self.d_k, self.d_v

    @property
    def square(self) -> bool:
        """Whether there are as many queries as keys."""
        return self.n == self.m


Rng = np.random.Generator
SevenSizes = tuple[int, int, int, int, int, int, int]  # b, H, G, n, m, d_k, d_v


# Along which axes of (b, H, n, m) a mask or a bias has numbers of its own.
SHAPES = {
    "all": (True, True, True, True),
    "heads": (False, True, True, True),
    "batch": (True, False, True, True),
    "shared": (False, False, True, True),
    "keys": (False, True, False, True),
}


@dataclass(frozen=True)
class Draft:
    """Everything of a problem but its numbers."""

    name: str
    sizes: SevenSizes
    mask: str | None = None  # a key of SHAPES, "padding", "padding of all" or "empty"
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
                     scale=self.scale is not None, groups=G < H)
        return {word for word, needed in asked.items() if needed}

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of Q, K, V and dO."""
        b, H, G, n, m, d_k, d_v = self.sizes
        return (b, H, n, d_k), (b, G, m, d_k), (b, G, m, d_v), (b, H, n, d_v)

    def shape_of(self, kind: str) -> tuple[int, ...]:
        """The shape of a mask or a bias of this kind."""
        b, H, _, n, m, *_ = self.sizes
        own_axes = (True, False, False, True) if kind.startswith("padding") else SHAPES[kind]
        return tuple(k if own else 1 for own, k in zip(own_axes, (b, H, n, m)))

    def drawn_mask(self, rng: Rng) -> np.ndarray | None:
        """Which query may attend to which key; each to one at least, but for "empty"."""
        b, _, _, n, m, *_ = self.sizes
        if self.mask is None:
            return None
        if self.mask.startswith("padding"):  # each item of the batch has another number of keys
            lengths = 1 + rng.permutation(m)[np.arange(b) % m]
            lengths[0] *= self.mask == "padding"  # "of all": the first item has none
            return np.arange(m) < lengths[:, None, None, None]
        keep = self._some_keys("shared" if self.mask == "empty" else self.mask, rng)
        if self.mask == "empty":
            keep[..., rng.permutation(n)[: max(1, n // 4)], :] = False
        return keep

    def _some_keys(self, kind: str, rng: Rng) -> np.ndarray:
        """Six keys of ten for each query, and one at least."""
        keep = rng.random(self.shape_of(kind)) < 0.6
        keep[..., 0] |= ~keep.any(-1)
        return keep

    def drawn_bias(self, dtype: str, rng: Rng) -> np.ndarray | None:
        """Numbers to be added to the scores, some of them -inf if the kind is "hidden"."""
        if self.bias is None:
            return None
        if self.bias != "hidden":
            return nearest(rng.standard_normal(self.shape_of(self.bias)), dtype)
        keep = self._some_keys("heads", rng)
        return nearest(np.where(keep, rng.standard_normal(keep.shape), -np.inf), dtype)

    def drawn_dropout(self, dtype: str, rng: Rng) -> np.ndarray | None:
        """0 with probability rho, otherwise 1 / (1 - rho), as a number of the format."""
        shape = self.shape_of("all")
        return nearest((rng.random(shape) >= self.rho) / (1 - self.rho), dtype) if self.rho else None


def settings_for(settings: Collection[Draft], options: Collection[str]) -> list[Draft]:
    """Those that the candidate can be given."""
    return [s for s in settings if s.needs <= set(options)]


def traits_of(case: Case) -> set[str]:
    """What can be seen of a case by itself."""
    s = case.sizes
    seen = [case.B(Conventions(causal=align)) > -np.inf for align in ("upper_left", "lower_right")]
    shown = {
        "batch": s["b"] > 1,
        "n != m": s["n"] != s["m"],
        "d_v != d_k": s["d_v"] != s["d_k"],
        "odd width": s["d_k"] % 2 == 1 or s["d_v"] % 2 == 1,
        "odd length": s["n"] % 2 == 1 or s["m"] % 2 == 1,
        "more than 64 keys": s["m"] > 64,
        "empty row": not all(x.any(-1).all() for x in seen),
    }
    return {*case.needs, *(word for word, holds in shown.items() if holds)}
