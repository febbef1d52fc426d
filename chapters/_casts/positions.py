"""Rows that are turned by their positions, in both layouts; slopes of a distance, and tables."""

from collections.abc import Callable

import numpy as np

from attnmath.page.scenes.cast import Cast, counts, drawn, made, positive, rows
from attnmath.page.scenes.settings import Change, Setting, calm, filling, hidden, setting

from ._rounded import rounded


@filling
def paired(values: dict, sizes: dict, features: str, layout: str) -> None:
    """Which pair a feature belongs to, and a quarter of a turn of each pair."""
    d, r = sizes[features], sizes["r"]
    first = np.arange(r) if layout == "half_split" else 2 * np.arange(r)
    second = first + (r if layout == "half_split" else 1)
    N, J = np.zeros((r, d)), np.zeros((d, d))
    N[np.arange(r), first] = N[np.arange(r), second] = 1
    J[first, second], J[second, first] = 1, -1
    values["N"], values["J"] = N, J


def both_layouts(name: str, seed: int, features: str, *changes: Change, **sizes: int) -> tuple[Setting, ...]:
    """The same in each of the layouts."""
    return tuple(
        setting(f"{name}, {one}", seed + k, paired(features, one), *changes, options={"layout": one}, **sizes)
        for k, one in enumerate(("half_split", "interleaved"))
    )


def distances(align: str) -> Change:
    def change(values: dict, sizes: dict) -> None:
        """How far each key is from the query's place."""
        n, m = sizes["n"], sizes["m"]
        place = np.arange(n)[:, None] + (m - n if align == "lower_right" else 0)
        values["E"] = abs(place - np.arange(m)).astype(float)

    return change


def all_numbered(values: dict, sizes: dict) -> None:
    """Buckets from 0 on, none of which is empty."""
    values["phi"] = (np.arange(values["phi"].size).reshape(values["phi"].shape) * 5 % sizes["c"]).astype(float)


def numbered(values: dict, sizes: dict) -> None:
    """Buckets from 0 on; the last one but one is empty."""
    found = np.arange(values["phi"].size).reshape(values["phi"].shape) * 3 % sizes["c"]
    values["phi"] = np.where(found == sizes["c"] - 2, 0, found).astype(float)


ROTATION = Cast(
    name="turned rows",
    sizes={"n": 3, "d": 4, "r": 2},
    letters=drawn("X, theta") | counts("t") | drawn("N, J") | made("C, S, Y"),
    outputs=("Y",),
    rows=rows("x, y"),
    names={"t": "positions"},
    constants=("t", "N", "J"),
    settings=(
        *both_layouts("all features", 401, "d"),
        *both_layouts("a part of the features", 403, "d", d=6, n=2, r=1),
    ),
)



def turned_off(values: dict, r: Callable, grown: Callable) -> dict:
    """By how much rows are off that are turned step by step, and how far they may be."""
    X, J, angle = values["X"], values["J"], values["t"] @ values["theta"] @ values["N"]
    C, S = (r(f(r(angle))) for f in (np.cos, np.sin))
    parts = X * np.cos(angle), (X @ J) * np.sin(angle)
    off = grown(4) * (abs(parts[0]) + abs(parts[1]))
    off += (1 + grown(4)) * grown(1) * abs(angle) * (abs(X) + abs(X @ J))
    return {"tilde Y": r(r(X * C) + r((X @ J) * S)) - parts[0] - parts[1], "bar Y": off}


def in_format(dtype: str) -> Change:
    return rounded(dtype, "X, theta", turned_off)


def far_apart(values: dict, sizes: dict) -> None:
    """Positions of which the last is far away, and sizes of features that are far apart."""
    values["t"][-1] = 15
    values["X"] = values["X"] * 2.0 ** -np.arange(sizes["d"])


TURNED = ROTATION.plus(
    positive("u") | drawn("tilde Y, bar Y"),
    name="turned rows in a format",
    about="u",
    settings=(
        *both_layouts("bfloat16", 441, "d", in_format("bfloat16")),
        *both_layouts("float16, far apart", 443, "d", far_apart, in_format("float16"), d=6, r=3),
    ),
)


def back_and_forth(values: dict, sizes: dict) -> None:
    """Positions of which some are equal, in no order."""
    values["t"] = (np.arange(sizes["n"]) * 5 % 7)[:, None] + 1.0
    values["t'"] = (np.arange(sizes["m"]) * 4 % 9)[:, None] + 1.0


def no_mask(values: dict, sizes: dict) -> None:
    values["B"] = 0 * values["B"]


def shuffled(values: dict, sizes: dict) -> None:
    """No key keeps its place."""
    values["Pi"] = np.eye(sizes["m"])[np.roll(np.arange(sizes["m"]), 1)]


def shuffled_more(values: dict, sizes: dict) -> None:
    """Two keys change places, the others stay."""
    order = np.arange(sizes["m"])
    order[[0, -1]] = order[[-1, 0]]
    values["Pi"] = np.eye(sizes["m"])[order]


HEAD = Cast(
    name="head with positions",
    sizes={"n": 3, "m": 6, "d_k": 4, "d_v": 5, "r": 2},
    letters=drawn("Q, K, V, gamma, B, theta") | counts("t, t'") | drawn("N, J, Pi")
    | made("hat Q, hat K, A, P, O"),
    outputs=("O",),
    rows=rows("q, k, hat q, hat k"),
    names={"hat Q": "Q_hat", "hat K": "K_hat"},
    same={"d": "d_k"},
    constants=("t", "t'", "N", "J", "Pi"),
    settings=(
        *both_layouts("every query sees all keys", 411, "d_k", calm, no_mask, back_and_forth, shuffled),
        *both_layouts("a masked key", 413, "d_k", calm, hidden("B", (0, 1)), back_and_forth, shuffled_more),
        *both_layouts(
            "a part of the features", 415, "d_k", calm, back_and_forth, shuffled_more, d_k=6, n=4, m=3, d_v=2, r=1
        ),
        *both_layouts("n = m", 417, "d_k", calm, back_and_forth, shuffled, n=4, d_k=6, r=3),
    ),
)

SLOPE = Cast(
    name="a slope",
    sizes={"n": 3, "m": 5},
    letters=drawn("eta, E") | made("B"),
    outputs=("B",),
    constants=("E",),
    settings=(
        setting("n < m", 421, distances("lower_right")),
        setting("n > m", 422, distances("lower_right"), n=5, m=2),
        setting("n = m", 423, distances("lower_right"), n=4, m=4),
    ),
)

TABLE = Cast(
    name="a table",
    sizes={"n": 3, "m": 4, "c": 5},
    letters=drawn("beta") | counts("phi") | made("B"),
    outputs=("B",),
    names={"phi": "buckets"},
    constants=("phi",),
    settings=(
        setting("more pairs than buckets", 431, numbered),
        setting("n > m", 432, numbered, n=4, m=2, c=3),
        setting("n = m", 433, numbered, n=3, m=3, c=6),
    ),
)

def counted(values: dict, sizes: dict) -> None:
    """The bucket of each pair."""
    n, m = sizes["n"], sizes["m"]
    before = np.arange(n)[:, None, None] + m - n - np.arange(m)[:, None]
    inside = (values["mu"][0] <= before) & (before < values["nu"][0])
    values["phi"] = inside.argmax(-1).astype(float)


def from_to(*edges: float) -> Change:
    """Each bucket holds the distances before the query from one number on, up to the next one."""

    def change(values: dict, sizes: dict) -> None:
        values["mu"], values["nu"] = (np.array([x], float) for x in (edges[:-1], edges[1:]))

    return change


def on_both_sides(*firsts: float) -> Change:
    """The same for keys before the query, and then for those after it, whose distances are negative."""

    def change(values: dict, sizes: dict) -> None:
        before, ends = [0.0, *firsts], [*firsts, 99.0]
        after = [0.0, *(1 - x for x in ends[1:])]  # the first is empty: the query's own place comes before
        values["mu"] = np.array([[*before, *after]])
        values["nu"] = np.array([[*ends, 0.0, *(1.0 - x for x in firsts)]])

    return change


BEFORE = {"sides": "before"}

BUCKETS = Cast(
    name="buckets",
    sizes={"n": 3, "m": 7, "c": 8, "w": 5},
    letters=drawn("mu, nu") | counts("phi"),
    names={"c": "buckets", "w": "distance"},
    constants=("mu", "nu"),
    settings=(
        setting("both sides", 451, on_both_sides(1, 2, 4), counted),
        setting("both sides, n > m", 452, on_both_sides(1, 2, 3), counted, n=9, m=4, w=3),
        setting("keys before the query", 453, from_to(-99, 1, 2, 3, 5, 7, 11, 99), counted, options=BEFORE,
                n=13, m=15, c=7, w=15),
        setting("n = m", 454, from_to(-99, 1, 2, 4, 99), counted, options=BEFORE, n=6, m=6, c=4, w=8),
    ),
)

EARLIER = hidden("B", (0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))

LEARNT = Cast(
    name="head with a slope and a table",
    sizes={"n": 3, "m": 4, "d_k": 5, "d_v": 2, "c": 6},
    letters=drawn("Q, K, V, gamma, eta, beta") | counts("phi") | drawn("E, B")
    | made("F, A, O", "prp:learnt_positions"),
    outputs=("O",),
    constants=("phi", "E", "B"),
    settings=(
        setting("no mask", 441, distances("lower_right"), numbered, no_mask),
        setting("causal, places from the left", 442, distances("upper_left"), all_numbered, EARLIER),
        setting("n > m, an empty row", 443, distances("lower_right"), numbered, hidden("B", 1),
                n=4, m=3, d_v=5, d_k=2, c=5),
    ),
)

CASTS = ROTATION, TURNED, HEAD, SLOPE, BUCKETS, TABLE, LEARNT
