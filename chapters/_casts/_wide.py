"""The letters of two sources: all heads side by side in one wide table."""

from attnmath.page.scenes.cast import drawn, made
from attnmath.page.scenes.settings import divided, hidden

INPUTS = "x, z, W^Q, W^K, W^V, W^O"
WIDE = drawn(f"{INPUTS}, b^Q, b^K, b^V, b^O, B, gamma")
INSIDE = (
    made("mathbb P, E, A, I, S, V", "prp:blog_forward")
    | made("N", "prp:blog_heads") | made("X", "prp:blog_forward")
)
GENERIC = {"n": 4, "m": 5, "d": 9, "d_z": 7, "d_k": 3, "d_v": 8, "H": 2}
REORDERED = {"n": 5, "m": 2, "d": 4, "d_z": 8, "d_k": 7, "d_v": 9, "H": 3}

light = divided(4, "W^Q", "W^K", "W^V", "W^O")  # so that no weight of attention is almost 1, and no term large
small = divided(4, "gamma")
masked = hidden("B", (0, -1), (-1, 0))
