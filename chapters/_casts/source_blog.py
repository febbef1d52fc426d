"""The first source, in its letters: denominators of its own, with a small number added."""

from attnmath.page.scenes.cast import Cast, made, positive
from attnmath.page.scenes.settings import full, setting, zero

from ._wide import GENERIC, INSIDE, REORDERED, WIDE, light, masked, small

no_guard, small_guard = zero("epsilon"), full("epsilon", 2.0**-13)


def low(values: dict, sizes: dict) -> None:
    """Scores beside whose exponentials a small guard is large."""
    values["B"] = values["B"] - 15


BLOG = Cast(
    name="blog",
    sizes=GENERIC,
    letters=WIDE | positive("epsilon") | INSIDE | made("bar V") | made("Y"),
    outputs=("X",),
    settings=(
        setting("no guard", 701, light, small, no_guard),
        setting("no guard, masked", 702, light, small, no_guard, masked),
        setting("no guard, other sizes", 703, light, small, no_guard, **REORDERED),
        setting("a large guard", 704, light, small),
        setting("low scores, masked", 705, light, small, small_guard, low, masked),
        setting("low scores, other sizes", 706, light, small, small_guard, low, **REORDERED),
    ),
)

CASTS = (BLOG,)
