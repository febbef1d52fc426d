"""A head with 150 decimal digits: every letter, rounded once to the format that is asked for.

decimal is part of Python and exact to the digit on every machine, exponentials included. The
inputs of the vectors end 50 places after the binary point or sooner, so that sums of products
of two of them lose nothing: what is zero by algebra is zero here.
"""

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal, localcontext

import numpy as np

from attnmath._examine.problems.case import Case, Conventions
from attnmath._words.arrays import T, sum_to
from attnmath.rounding.formats import FORMATS, nearest

PRECISION = 150
EXACTLY = Context(PRECISION, ROUND_HALF_EVEN, Emin=-(10**9), Emax=10**9, capitals=1, clamp=0)
DECIMAL_ZERO, MINUS_INFINITY = np.array(Decimal(0), object), np.array(Decimal("-Infinity"), object)
Letters = dict[str, np.ndarray]  # of Decimal


def exact_letters(case: Case, means: Conventions) -> Letters:
    """A, P, L, O, dP, D, dA and the gradients; scores that are hidden have P = dP = dA = 0."""
    with localcontext(EXACTLY):
        return _in_decimals(case, means)


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
    """Each Decimal rounded once to the nearest number of the format, as float64."""
    if dtype == "float64":
        return np.vectorize(float, [float])(x) if x.size else np.zeros(x.shape)
    return nearest(np.vectorize(_to_odd, [float])(x) if x.size else np.zeros(x.shape), dtype)


def _in_decimals(case: Case, means: Conventions) -> Letters:
    s, owner, gamma = case.sizes, case.owner(means), Decimal(case.gamma(means))
    shape = s["b"], s["H"], s["n"], s["m"]
    seen, bias = case.seen(means), np.broadcast_to(0.0 if case.bias is None else case.bias, shape)
    seen = seen & np.isfinite(bias)
    R = np.broadcast_to(1.0 if case.R is None else case.R, shape)
    Q, K, V, dO, bias, R = map(as_decimals, (case.Q, case.K, case.V, case.dO, np.where(seen, bias, 0.0), R))
    K, V = K[:, owner], V[:, owner]
    QK = Q @ T(K)
    A = gamma * QK + bias
    E, L = _exponentials(A, seen)
    total = E.sum(-1, keepdims=True)
    P = E / np.where(total == 0, np.array(Decimal(1), object), total)
    PR = P * R
    O = PR @ V
    dP = np.where(seen, dO @ T(V) * R, DECIMAL_ZERO)
    D = (dO * O).sum(-1)
    dA = P * (dP - D[..., None])
    dB = {} if case.bias is None else {"dB": sum_to(dA, case.bias)}
    return dict(
        A=np.where(seen, A, MINUS_INFINITY), P=P, L=L, O=O, dP=dP, D=D, dA=dA,
        dQ=gamma * (dA @ K), dK=grouped(gamma * (T(dA) @ Q), owner, s["G"]),
        dV=grouped(T(PR) @ dO, owner, s["G"]), dgamma=np.array((dA * QK).sum(), object), **dB,
    )


def _exponentials(A: np.ndarray, seen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """exp(A - L0) for the largest score L0 of each row, and the log-sum-exp of the row."""
    E, L = np.full(A.shape, Decimal(0)), np.full(A.shape[:-1], Decimal("-Infinity"))
    for row in np.ndindex(L.shape):
        scores = A[row][seen[row]]
        if scores.size:
            top = max(scores)
            E[row][seen[row]] = terms = [(x - top).exp() for x in scores]
            L[row] = top + sum(terms).ln()
    return E, L


def as_decimals(x: np.ndarray) -> np.ndarray:
    """Numbers as they are."""
    return np.vectorize(Decimal, [object])(x) if x.size else x.astype(object)


def grouped(x: np.ndarray, owner: np.ndarray, G: int) -> np.ndarray:
    return np.stack([x[:, owner == g].sum(1) for g in range(G)], axis=1)


def _to_odd(x: Decimal) -> float:
    """x in float64, rounded to the neighbour whose last digit is odd.

    Rounded once more, to a format with two digits fewer or less, it is x rounded once.
    """
    near = float(x)
    if not math.isfinite(near) or Decimal(near) == x or _is_odd(near):
        return near
    return math.nextafter(near, math.inf if x > Decimal(near) else -math.inf)


def _is_odd(x: float) -> bool:
    return bool(np.float64(x).view(np.int64) & 1)


assert all(form.digits <= 51 for name, form in FORMATS.items() if name != "float64")
