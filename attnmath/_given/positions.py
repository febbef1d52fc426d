"""What the functions of positions are given: features in pairs, whole numbers for places and buckets."""

from typing import Annotated, Any

import numpy as np
from array_api_compat import array_namespace, device

from attnmath._given.kinds import library
from attnmath._given.letters import AnyArray, Kind, Option, all_finite, at_least, seen
from attnmath._given.masks import moved, places, whole_numbers
from attnmath._words.arrays import is_exact

Turned = Annotated[Kind, "... n d"]
Frequencies = Annotated[Kind, "r", all_finite]
Positions = Annotated[Any, "... n", Option(whole_numbers, shaped=True)]
Slopes = Annotated[Kind, "...", all_finite]
PairsBias = Annotated[Kind, "... n m"]
Table = Annotated[Kind, "... c", "c > 0", all_finite]
BucketsOfPairs = Annotated[np.ndarray, "n m"]
Count = Annotated[int, at_least(1)]
Buckets = Annotated[AnyArray | list, "n m", Option(whole_numbers, shaped=True)]


def refuse_unpaired(function: str, X: Any, theta: Any, name: str = "X") -> None:
    """A ValueError for features that do not come in pairs, or are too few for the frequencies."""
    features, pairs = X.shape[-1], theta.shape[-1]
    if features % 2:
        needs = "a rotation needs an even number, two for each pair"
        raise ValueError(f"{function}: {name} has {features} features; {needs}")
    if 2 * pairs > features:
        needs = f"it needs {features // 2} at most, one for two of the {features} features of {name}"
        raise ValueError(f"{function}: theta has {pairs} frequencies; {needs}")


def places_like(positions: Any, X: Any, theta: Any, function: str) -> Any:
    """The positions, as numbers of the type of theta; 0, 1, 2, ... for None."""
    positions = np.arange(X.shape[-2]) if positions is None else positions
    if is_exact(theta):
        return positions
    return moved(function, "positions", positions, theta)


def distances_like(n: int, m: int, align: str, eta: Any) -> Any:
    """How far each key is from the query's place, as numbers of the type of eta."""
    place, j = places(n, m, align)
    return abs(place - j) if is_exact(eta) else moved("alibi", "distances", abs(place - j), eta)


def refuse_beyond_table(function: str, buckets: Any, beta: Any) -> None:
    """A ValueError for the first bucket that the table does not have."""
    size = beta.shape[-1]
    outside = (buckets < 0) | (buckets >= size)
    if seen(outside, lambda outside: outside):
        needs = f"it needs numbers from 0 to {size - 1}, the places of beta"
        raise ValueError(f"{function}: buckets holds {int(buckets[outside][0])}; {needs}")


def buckets_like(buckets: Any, beta: Any, function: str) -> Any:
    """Whole numbers in the library of beta, where NumPy's move."""
    xp = array_namespace(beta)
    if isinstance(buckets, np.ndarray) and not isinstance(beta, np.ndarray):
        return xp.asarray(buckets.copy(), device=device(beta))
    if array_namespace(buckets) is not xp:
        needs = f"it needs to be one of {library(beta)}, as beta is"
        raise TypeError(f"{function}: buckets is an array of {library(buckets)}; {needs}")
    return buckets


def refuse_buckets(buckets: int, distance: int, sides: str) -> None:
    """A ValueError for so few buckets, or so small a distance, that none is left for what is far."""
    least, even = (4, " and even") if sides == "both" else (2, "")
    if buckets < least or sides == "both" and buckets % 2:
        raise ValueError(f"relative_buckets: buckets is {buckets}; it needs to be {least} or more{even}")
    near = own_buckets(buckets, sides)[1]
    if distance <= near:
        needs = f"it needs to be above {near}, the number of distances with a bucket of their own"
        raise ValueError(f"relative_buckets: distance is {distance}; {needs}")


def own_buckets(buckets: int, sides: str) -> tuple[int, int]:
    """How many buckets a side has, and how many of them hold one distance each."""
    side = buckets // 2 if sides == "both" else buckets
    return side, side // 2
