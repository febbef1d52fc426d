"""Linear algebra of exact numbers, by elimination: inverse, determinant, solution, rank."""

from typing import Any

import numpy as np

from attnmath._algebraic import not_algebraic
from attnmath._exact_arrays import ExactArray, exact, written


def echelon(x: Any, count: int) -> tuple[np.ndarray, Any, int]:
    """x with the first `count` columns reduced; the product of the pivots, signed; the rank."""
    rows, product, rank = np.array(x, dtype=object), 1, 0
    for column in range(count):
        pivots = [i for i in range(rank, len(rows)) if not _is_zero(rows[i, column])]
        if not pivots:
            continue
        if pivots[0] != rank:
            rows[[rank, pivots[0]]], product = rows[[pivots[0], rank]], -product
        product = product * rows[rank, column]
        rows[rank] = rows[rank] / rows[rank, column]
        for i in range(len(rows)):
            if i != rank:
                rows[i] = rows[i] - rows[i, column] * rows[rank]
        rank += 1
    return rows, product, rank


def _is_zero(x: Any) -> bool:
    """Whether a pivot is 0 at a random point."""
    return x.value == 0 if hasattr(x, "value") else x == 0


def _each_matrix(function: Any, x: Any) -> ExactArray:
    """The function of every matrix in the last two axes."""
    x = np.asarray(x)
    if not x.size:
        raise not_algebraic("linear algebra of matrices without entries")
    found = [function(x[place]) for place in np.ndindex(x.shape[:-2])]
    return np.array(found, dtype=object).reshape((*x.shape[:-2], *np.shape(found[0])))


@written(np.linalg.inv)
def inverse(x: Any) -> ExactArray:
    def one(a: np.ndarray) -> np.ndarray:
        n = len(a)
        rows, _, rank = echelon(np.concatenate([a, np.eye(n, dtype=int)], 1), n)
        if rank < n:
            raise np.linalg.LinAlgError("Singular matrix")
        return rows[:, n:]

    return exact(_each_matrix(one, x), x.point)


@written(np.linalg.solve)
def solve(a: Any, b: Any) -> ExactArray:
    return exact(np.linalg.inv(exact(a, (a if isinstance(a, ExactArray) else b).point)) @ b, None)


@written(np.linalg.det)
def determinant(x: Any) -> ExactArray:
    def one(a: np.ndarray) -> Any:
        _, product, rank = echelon(a, len(a))
        return product if rank == len(a) else 0

    return exact(_each_matrix(one, x), x.point)


@written(np.linalg.matrix_rank)
def rank(x: Any, *tolerance: Any) -> int:
    if tolerance:
        raise not_algebraic("a rank with a tolerance")
    for entry in np.ravel(x):
        x.point.look(entry, x.point.zero)
    return echelon(x, x.shape[1])[2]
