"""The cast of the chapter on exact arithmetic: scores, and what their exponentials do."""

from attnmath.page._cast import Cast, Letter, Setting

PROVED = Cast(
    name="proved",
    sizes={"n": 4, "m": 5},
    letters={
        "A": Letter(("n", "m")),
        "E": Letter(("n", "m")),
        "r": Letter(("n", "1")),
        "u": Letter(("1", "m")),
        "c": Letter(("1", "1")),
        "t": Letter(("1", "1")),
    },
    outputs=(),
    settings=(
        Setting("random", 1),
        Setting("random again", 2),
        Setting("sizes in another order", 3, {"n": 5, "m": 3}),
    ),
)
