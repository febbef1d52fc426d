"""Scores, one row of them, and a temperature."""

from attnmath.page.scenes.cast import Cast, drawn, made, positive
from attnmath.page.scenes.settings import hidden, setting

in_the_row = hidden("a", (0, -2))
in_the_table = hidden("A", (1, 1), (-1, 0))
more = hidden("A", (1, -1), (2, 0), (2, 3))

SOFTMAX = Cast(
    name="softmax",
    sizes={"n": 4, "m": 5},
    letters=drawn("A") | positive("tau") | drawn("a, c")
    | made("P", "eq:softmax") | made("L") | made("p") | made("J"),
    outputs=("P", "L", "p"),
    settings=(
        setting("random", 1),
        setting("random again", 2),
        setting("n = m, one entry of a masked", 3, in_the_row, n=5),
        setting("n > m", 5, n=3, m=2),
        setting("masked entries", 4, in_the_table, more, in_the_row),
        setting("masked entries, n = m", 7, in_the_table, more, in_the_row, n=5),
        setting("masked entries, m = 2", 6, in_the_table, in_the_row, n=3, m=2),
    ),
)

CASTS = (SOFTMAX,)
