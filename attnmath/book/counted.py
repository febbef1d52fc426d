"""The passes of kernels.py, run on counting arrays."""

from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath.book import kernels
from attnmath.book.counting import Counter
from attnmath.book.kernels import Keys, Plan, Rows

PASSES = (
    "forward",
    "tangent",
    "tangent, O and L kept",
    "backward, atomics",
    "backward",
    "double backward, atomics",
    "double backward",
)
TILES_OF_SCORES = {"forward": 1, "tangent": 2, "backward": 2, "double backward": 4}  # A, A_dot, dP, dP_dot


def counted(name: str, n: int, m: int, d_k: int, d_v: int, plan: Plan) -> Counter:
    """What a pass does with n queries and m keys; counts depend on sizes alone, so that all numbers are 0."""
    counter = Counter()
    Q, Q_dot, K, K_dot = counter.given(*(np.zeros((size, d_k)) for size in (n, n, m, m)))
    V, V_dot, O, dO = counter.given(*(np.zeros((size, d_v)) for size in (m, m, n, n)))
    (L,) = counter.kept(np.zeros((n, 1)))
    dots, x = (Q_dot, K_dot, V_dot), (Q, K, V)
    runs: dict[str, Callable[[], Any]] = {
        "forward": lambda: kernels.forward(*x, plan),
        "tangent": lambda: kernels.jvp(*dots, *x, plan),
        "tangent, O and L kept": lambda: kernels.jvp_kept(*dots, *x, O, L, plan),
        "backward, atomics": lambda: kernels.backward(dO, *x, O, L, plan, with_atomics=True),
        "backward": lambda: kernels.backward(dO, *x, O, L, plan),
        "double backward, atomics": lambda: kernels.double_backward(*dots, dO, *x, O, L, plan, with_atomics=True),
        "double backward": lambda: kernels.double_backward(*dots, dO, *x, O, L, plan),
    }
    runs[name]()
    return counter


def working_set(name: str, d_k: int, d_v: int, tile: tuple[int, int]) -> int:
    """The bytes that a tile of a pass needs in fast memory: forward, tangent, backward, double backward.

    Of a backward pass it is the program by columns, without atomics.
    """
    a, b = tile
    counter, plan = Counter(), Plan(1.0, tile)
    Q, Q_dot, K, K_dot = counter.given(*(np.zeros((size, d_k)) for size in (a, a, b, b)))
    V, V_dot, dO = counter.given(*(np.zeros((size, d_v)) for size in (b, b, a)))
    L, L_dot, D, D_dot = counter.kept(*(np.zeros((a, 1)) for _ in range(4)))
    if name == "forward":
        kernels.forward(Q, K, V, plan)
    if name == "tangent":
        kernels.jvp(Q_dot, K_dot, V_dot, Q, K, V, plan)
    if name == "backward":
        kernels.backward_by_columns(dO, Q, K, V, L, D, plan)
    if name == "double backward":
        kernels.second_by_columns(Rows(Q, Q_dot, dO, L, L_dot, D, D_dot), Keys(K, V, K_dot, V_dot), plan)
    return counter.working_set(TILES_OF_SCORES[name], tile)
