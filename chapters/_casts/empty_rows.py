"""Rows whose scores are all equal."""

from attnmath.page.scenes.cast import Cast, drawn, made, rows
from attnmath.page.scenes.settings import three

EQUAL = Cast(
    name="equal scores",
    sizes={"n": 4, "m": 5, "d_v": 2},
    letters=drawn("a, V") | made("A, P, L, O") | made("D"),
    outputs=("O",),
    rows=rows("v, o"),
    settings=three(281, last="n > m", n=5, m=3, d_v=4),
)

CASTS = EQUAL, "head"
