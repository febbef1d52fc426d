"""Scores, and what their exponentials do."""

from attnmath.page.scenes.cast import Cast, drawn
from attnmath.page.scenes.settings import three

PROVED = Cast(
    name="proved",
    sizes={"n": 4, "m": 5},
    letters=drawn("A, E, r, u, c, t"),
    settings=three(1, n=5, m=3),
)

CASTS = (PROVED,)
