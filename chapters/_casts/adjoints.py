"""The small example of the nine moves."""

from attnmath.page.scenes.cast import Cast, drawn, made
from attnmath.page.scenes.settings import three

MOVES = Cast(
    name="moves",
    sizes={"n": 4, "m": 5, "d": 3},
    letters=drawn("X, F, E, N, epsilon") | made("U, Y") | made("r") | made("S"),
    outputs=("Y", "r", "S"),
    settings=three(31, n=3, m=2, d=4),
)

CASTS = (MOVES,)
