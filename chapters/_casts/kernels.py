"""Tiles of queries and keys with their running sums; a head in powers of two; what a run has counted."""

import numpy as np

from attnmath.book.counted import PASSES, TILES_OF_SCORES, counted, working_set
from attnmath.book.kernels import Plan
from attnmath.page.scenes.cast import Cast, counts, drawn, made, positive
from attnmath.page.scenes.settings import divided, filling, setting, three, zero

from ._dropout import dropped, no_dropout

calm = divided(2, "Q", "K", "c")  # so that no exponential is large
calm_tiles = divided(2, "Q", "K")
held = zero("dot B")  # a mask does not move


def causal(values: dict, sizes: dict) -> None:
    """Of the tiles of one row the last one is cut by the diagonal, the others are whole."""
    n, m = sizes["n"], sizes["m"]
    values["B"][-1] = np.where(np.tri(n, m, dtype=bool), values["B"][-1], -np.inf)


def hidden_first(values: dict, sizes: dict) -> None:
    """The first tile of keys has no key that is seen: a window has passed it."""
    values["B"][0] = -np.inf


ROW = Cast(
    name="a row of tiles",
    sizes={"n": 2, "m": 3, "d_k": 5, "d_v": 6, "T": 4},
    letters=drawn("Q, K, V, B, gamma, c, R") | made("A, s, N, L, O, M, U"),
    outputs=("O", "L"),
    constants=("gamma", "c", "R"),
    has_second=True,
    settings=(
        setting("tiles of 2 × 3", 1001, calm, held, dropped),
        setting("tiles of 2 × 2", 1002, calm, held, dropped, n=2, m=2, d_k=4, d_v=3, T=3),
        setting("tiles of 4 × 2, causal", 1003, calm, held, dropped, causal, n=4, m=2, d_k=3, d_v=5, T=6),
        setting("tiles of 3 × 5, the first hidden, no dropout", 1004, calm, held, hidden_first, no_dropout,
                n=3, m=5, d_k=6, d_v=4, T=2),
    ),
)


def diagonal(values: dict, sizes: dict) -> None:
    """Causal: later tiles hidden, those on the diagonal cut, if tiles of queries and of keys are as many."""
    B = values["B"]
    rows, columns, n, m = B.shape
    ahead = (np.arange(columns) - np.arange(rows)[:, None])[:, :, None, None]
    values["B"] = np.where((ahead > 0) | (ahead == 0) & ~np.tri(n, m, dtype=bool), -np.inf, B)


GRID = Cast(
    name="a grid of tiles",
    sizes={"n": 2, "m": 3, "d_k": 5, "d_v": 7, "S": 4, "T": 6},
    letters=drawn("Q: S n d_k, K, V, B: S T n m, gamma, R: S T n m")
    | made("A: S T n m, L: S n 1, P: S T n m, O: S n d_v"),
    outputs=("O",),
    constants=("gamma", "R"),
    has_second=True,
    settings=(
        setting("tiles of 2 × 3", 1011, calm_tiles, held, dropped),
        setting("tiles of 2 × 2", 1012, calm_tiles, held, dropped, n=2, m=2, d_k=4, d_v=5, S=3, T=2),
        setting("tiles of 4 × 2, causal", 1013, calm_tiles, held, dropped, diagonal, n=4, m=2, d_k=5, S=3, T=3),
    ),
)

BASE = Cast(
    name="a head in powers of two",
    sizes={"n": 3, "m": 4},
    letters=drawn("A") | positive("kappa") | made("tilde A, P"),
    outputs=("P",),
    constants=("kappa",),
    settings=three(1021, n=4, m=2),
)


@filling
def ran(values: dict, sizes: dict, *, tile: tuple, tiles: tuple, d_k: int, d_v: int) -> None:
    """The sizes of a run, and what it counted."""
    a, b = tile
    n, m = (size * count for size, count in zip(tile, tiles))
    found = [counted(name, n, m, d_k, d_v, Plan(1.0, tile)) for name in PASSES]
    rows = {
        "omega": [one.products for one in found],
        "eta": [one.exponentials for one in found],
        "psi": [one.bytes for one in found],
        "phi": [working_set(name, d_k, d_v, tile) for name in TILES_OF_SCORES],
    }
    numbers = {"n": n, "m": m, "a": a, "b": b, "d_k": d_k, "d_v": d_v, "beta": found[0].itemsize}
    values |= {letter: np.array([[float(number)]]) for letter, number in numbers.items()}
    values |= {letter: np.array([row], dtype=float) for letter, row in rows.items()}


COUNTED = Cast(
    name="what a run counted",
    sizes={"z": 7, "y": 4},
    letters=counts("n, m, a, b, d_k: number, d_v: number, beta, omega: 1 z, eta: 1 z, psi: 1 z, phi: 1 y"),
    settings=(
        setting("tiles of 2 × 3", 1031, ran(tile=(2, 3), tiles=(5, 4), d_k=7, d_v=6)),
        setting("tiles of 4 × 1", 1032, ran(tile=(4, 1), tiles=(2, 5), d_k=3, d_v=8)),
        setting("tiles of 3 × 8, one row of them", 1033, ran(tile=(3, 8), tiles=(1, 3), d_k=5, d_v=2)),
    ),
)

CASTS = ROW, GRID, BASE, COUNTED
