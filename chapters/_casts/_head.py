"""A head, from which other casts are made."""

from attnmath.page.scenes.cast import Cast, drawn, made, rows

HEAD = Cast(
    name="any head",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters=drawn("Q, K, V, B, gamma") | made("A, P, L, O", "eq:attention_map") | made("D", "prp:row_statistic"),
    settings=(),
    outputs=("O",),
    rows=rows("q, k, v, o"),
)
