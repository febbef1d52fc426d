"""Ranks of a ring: their queries, blocks of keys, and what each tile gives; counts of pairs, bytes, seconds."""

import numpy as np

from attnmath.page.scenes.cast import Cast, counts, drawn, made, positive
from attnmath.page.scenes.settings import divided, setting, three, zero

calm = divided(2, "Q", "K")  # so that no exponential is large
held = zero("dot B")  # a mask does not move


def causal(values: dict, sizes: dict) -> None:
    """A rank does not see the blocks of later ranks, and of its own what is above the diagonal."""
    n, m, rank = sizes["n"], sizes["m"], np.arange(sizes["T"])
    later, own = (x[:, :, None, None] for x in (rank > rank[:, None], rank == rank[:, None]))
    values["B"] = np.where(later | own & ~np.tri(n, m, dtype=bool), -np.inf, values["B"])


TILES = made("A: T T n m, L, P: T T n m, O")

RANKS = Cast(
    name="a ring of ranks",
    sizes={"n": 4, "m": 6, "d_k": 2, "d_v": 5, "T": 3},
    letters=drawn("Q, K, V, B: T T n m, gamma") | TILES,
    outputs=("O", "L"),
    constants=("gamma",),
    has_second=True,
    settings=(
        setting("random bias", 921, calm, held),
        setting("causal: tiles without a key", 922, calm, held, causal),
        setting("sizes in another order", 923, calm, held, n=4, m=2, d_k=5, d_v=3, T=2),
    ),
)

SHARED = Cast(
    name="weights that every rank has",
    sizes={"n": 4, "m": 7, "d": 6, "d_k": 2, "d_v": 5, "T": 3},
    letters=drawn("X, W, K, V, B: T T n m, gamma") | made("Q") | TILES,
    outputs=("O",),
    settings=three(931, n=4, m=2, d=3, d_k=5, d_v=6, T=2),
)

PAIRS = Cast(name="pairs of a rank", sizes={}, letters=counts("R, r, a"), settings=three(941))

BYTES = Cast(name="bytes of a rank", sizes={}, letters=positive("R, G, m, w, u, b, eta"), settings=three(951))

SECONDS = Cast(
    name="seconds of a step",
    sizes={},
    letters=positive("n, m, H, G, w, b, F, S"),
    settings=three(961),
)

CASTS = RANKS, SHARED, PAIRS, BYTES, SECONDS
