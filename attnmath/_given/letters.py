"""The letters that many formulas are given: what each is an array of, its shape, and which values it may hold."""

import math
import sys
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, Protocol, TypeVar

import numpy as np
from array_api_compat import is_torch_array

from attnmath._words.arrays import is_exact, is_number, namespace, real, shape


class ValueCondition(NamedTuple):
    """A condition that holds for all entries of an array; the sentence for where it does not."""

    holds: Callable[[Any], Any]
    says: str

    def __repr__(self) -> str:
        return self.says.rpartition("need")[2].removeprefix("s").removeprefix(" to").strip()

    def refusal(self, name: str, x: Any) -> str:
        """The sentence, about an array or a number."""
        of = f"{name} of shape {shape(x)}"
        if "{it}" not in self.says:
            return self.says.format(name=name, of=of)
        x = x.real if is_number(x) else real(x)
        it = f"{name} is {float(x):.6g}" if shape(x) == () else f"{of} holds {float(x[~self.holds(x)][0]):.6g}"
        return self.says.format(it=it)


class Option(NamedTuple):
    """What is no array of floating-point numbers, and how it is made ready or refused."""

    ready: Callable[[str, str, Any], Any]
    shaped: bool = False  # an array all the same, whose shape is looked at

    def __repr__(self) -> str:
        return self.ready.__name__


def _is_finite(x: Any) -> Any:
    """By the largest and the smallest entry; NaN is no number below."""
    if is_number(x):
        return abs(x) < math.inf
    xp = namespace(x)
    return (xp.max(x) < math.inf) & (xp.min(x) > -math.inf)


def _is_no_mask(B: Any) -> Any:
    xp = namespace(B)
    return ~((xp.min(B) == 0) & (xp.max(B) == 1) & xp.all((B == 0) | (B == 1)))


def at_least(least: int) -> Option:
    """A whole number that is so large at least."""
    return Option(lambda function, name, x: check_size(function, name, x, least))


def check_size(function: str, name: str, size: Any, least: int = 0) -> int:
    """A size, or a sentence about what is none."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer):
        raise TypeError(f"{function}: {name} is {size!r}; it needs to be a whole number")
    if size < least:
        raise ValueError(f"{function}: {name} is {size}; it needs to be {least} or more")
    return int(size)


def one_of(choices: tuple) -> Option:
    """One of these words."""

    def ready(function: str, name: str, x: Any) -> Any:
        if not isinstance(x, str) or x not in choices:
            raise ValueError(f"{function}: {name} is {x!r}; it needs to be {' or '.join(map(repr, choices))}")
        return x

    return Option(ready)


def tile_sizes(function: str, name: str, tile: Any) -> tuple[int, int]:
    """How many queries and keys a tile has."""
    both = tile if isinstance(tile, tuple | list) else (tile, tile)
    if len(both) != 2:
        raise ValueError(f"{function}: {name} is {tile!r}; it needs to be a number, or two: of queries, of keys")
    queries, keys = (check_size(function, name, size, 1) for size in both)
    return queries, keys


Size = Annotated[int, at_least(0)]
Tile = Annotated[int | tuple[int, int], Option(tile_sizes)]  # queries and keys; one number for both
below_inf = ValueCondition(
    lambda x: x < math.inf, "{of} holds NaN or +inf; its entries need to be numbers or -inf"
)
no_mask = ValueCondition(
    _is_no_mask,
    "{of} holds only 0 and 1, as a boolean mask does; it needs 0 where a query may look and"
    " -inf where not (if it is a bias, B - 1 has the same weights)",
)
all_finite = ValueCondition(_is_finite, "{of} holds NaN or infinity; it needs finite numbers")
factors = ValueCondition(
    lambda R: (R >= 0) & (R < math.inf),
    "{of} holds NaN, +inf or a number below 0; its entries need to be 0 or 1 / (1 - rho)",
)
temperature = ValueCondition(
    lambda tau: tau > 0, "{it}; it needs to be above 0, as a temperature is (rows lie along the last axis)"
)
positive_number = ValueCondition(
    lambda x: (x > 0) & (x < math.inf),
    "{it}; it needs to be positive and finite, since a row of equal entries is divided by its square root",
)
not_negative = ValueCondition(
    lambda x: (x >= 0) & (x < math.inf), "{it}; it needs to be finite, and 0 or more"
)
cap = ValueCondition(
    lambda c: (c > 0) & (c < math.inf), "{it}; it needs to be positive and finite, since scores are divided by it"
)
before_a_mask = ValueCondition(
    _is_finite, "{of} holds NaN or infinity; it needs finite numbers, since a mask is added behind the cap"
)
rate = ValueCondition(lambda rho: (rho >= 0) & (rho < 1), "{it}; it needs to be in [0, 1)")


def fails(x: Any, condition: ValueCondition) -> bool:
    """Whether an entry of x, or a number, is seen to break the condition."""
    if type(x) is np.ndarray and not compiles():  # the same, without the steps in between
        return x.size > 0 and not condition.holds(x.real).all()
    return not condition.holds(x.real) if is_number(x) else seen(x, lambda x: ~condition.holds(x))


def seen(x: Any, question: Callable[[Any], Any]) -> bool:
    """Whether the answer is yes for an entry of x; no where there are no values to see."""
    if is_exact(x) or compiles() or is_traced(x):  # letters, or a program
        return False
    try:
        return bool(namespace(x).any(question(real(x))))
    except Exception:  # a tracer, or one of a batch under vmap, does not become a bool
        return False


def compiles() -> bool:
    """Whether PyTorch makes a program of what is called."""
    torch = sys.modules.get("torch")
    return torch is not None and torch.compiler.is_compiling()


def is_traced(x: Any) -> bool:
    """Whether PyTorch writes down what is done with x."""
    return is_torch_array(x) and sys.modules["torch"].jit.is_tracing()


class AnyNumber(Protocol):
    """A number of an array library, or an array that broadcasts."""

    @property
    def shape(self) -> Any: ...  # noqa: D102
    @property
    def dtype(self) -> Any: ...  # noqa: D102


class AnyArray(AnyNumber, Protocol):
    """An array of any library that array-api-compat knows."""

    def __matmul__(self, other: Any, /) -> Any: ...


Kind = TypeVar("Kind", bound=AnyArray, covariant=True)  # of arrays: NumPy's give NumPy's, tensors tensors
AnyScalar = complex | AnyNumber

Rows = Annotated[Kind, "... m"]
PerRow = Annotated[Kind, "..."]
Temperature = Annotated[AnyScalar, "to ... m", temperature]
TemperatureGradient = Annotated[Kind, "to ... m"]

Queries = Annotated[Kind, "... n d_k", "d_k > 0"]
Keys = Annotated[Kind, "... m d_k"]
Values = Annotated[Kind, "... m d_v"]
Outputs = Annotated[Kind, "... n d_v"]
Pairs = Annotated[Kind, "... n m"]
PerQuery = Annotated[Kind, "... n"]
Bias = Annotated[Kind, "to ... n m", below_inf]
Scale = Annotated[AnyScalar, "to ... n m"]
ScaleGradient = Annotated[Kind, "to ... n m"]
Factors = Annotated[Kind, "to ... n m", factors]
Sinks = Annotated[AnyScalar, "() or ...heads or ...heads d_s", below_inf]
SinksGradient = Annotated[Kind, "() or ...heads or ...heads d_s"]

Features = Annotated[Kind, "... d", "d > 0"]
PerFeature = Annotated[Kind, "d"]
Tokens = Annotated[Kind, "... n d", all_finite]
OtherTokens = Annotated[Kind, "... m d_z", all_finite]
HeadsBias = Annotated[Kind, "to ... H n m", below_inf, no_mask]
HeadsScale = Annotated[AnyScalar, "() or H", all_finite]
HeadsScaleGradient = Annotated[Kind, "() or H"]
HeadsFactors = Annotated[Kind, "to ... H n m", factors]
