"""One projection alone, and of a batch."""

from dataclasses import replace

from attnmath.page.scenes.cast import Cast, drawn, made
from attnmath.page.scenes.settings import three

LINEAR = Cast(
    name="linear",
    sizes={"n": 4, "d": 3, "d_k": 5},
    letters=drawn("X, W, b") | made("Y: n d_k", "eq:linear"),
    outputs=("Y",),
    settings=three(81, n=3, d=4, d_k=2),
)

BATCH = replace(
    LINEAR,
    name="linear_batch",
    sizes={"batch": 2, "n": 4, "d": 3, "d_k": 5},
    letters=drawn("X, W, b") | made("Y"),
    settings=three(84, batch=5, n=3, d=4, d_k=2),
)

CASTS = LINEAR, BATCH, "layer"
