"""How large things can get.

A bound is run where it is attained, once with large numbers and once with small ones: then
no factor can be missing, and no power be another one.
"""

from fractions import Fraction

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, masks, positive, rows
from attnmath.page.scenes.settings import divided, empty_row, filling, full, hidden, setting, zero, zero_at

from ._head import HEAD

# ---- one head: how far its gradients reach ---------------------------------------------------


@filling
def alike(values: dict, sizes: dict, letter: str, size: float = 1) -> None:
    """The first row, as often as there are rows, and so many times as large."""
    values[letter] = np.tile(size * values[letter][:1], (len(values[letter]), 1))


def one_bias(values: dict, sizes: dict) -> None:
    """The bias is the same for all keys."""
    values["B"] = np.repeat(values["B"][:, :1], sizes["m"], axis=1)


def one_key(values: dict, sizes: dict) -> None:
    """All queries may attend to the second key alone."""
    values["B"] = np.where(np.arange(sizes["m"]) == 1, values["B"], -np.inf)


def halves(values: dict, sizes: dict) -> None:
    """Two keys that every query likes alike; what the keys differ in, no query has."""
    Q, K, V = values["Q"], values["K"], values["V"]
    apart = K[0] - K[1]
    values["Q"] = Q - np.outer(Q @ apart, apart) / (apart @ apart)
    values["f"], values["g"] = V[:1] - V[1:], apart[None]
    one_bias(values, sizes)


@filling
def apart(values: dict, sizes: dict, size: float) -> None:
    """E pulls the two keys apart, along the queries, which are equal."""
    values["gamma"] = np.full((1, 1), 2.0 if size > 1 else 0.375)
    values["Q"], values["V"] = values["Q"] * size, values["V"] * size
    values["E"] = 4 * size * np.outer([1, -1], values["Q"][0] / np.linalg.norm(values["Q"][0]))


@filling
def lengths(values: dict, sizes: dict, *of: float, but: int | None = None) -> None:
    """Queries of these lengths in one direction; one of them has a bias of its own."""
    values["Q"] = np.outer(of, values["Q"][0])
    if but is not None:
        values["B"][but] += [2.0, 0.0]
    values["E"] = np.outer([1, -1], values["Q"][0])


def longest(values: dict, sizes: dict) -> None:
    values["Q"][0] *= 9 / np.linalg.norm(values["Q"][0])


TWO = {"n": 3, "m": 2, "d_k": 4, "d_v": 5}
same_queries = alike("Q")
short = divided(5, "f", "g")  # so that their squares stay small

REACH = HEAD.without("D").plus(
    positive("gamma") | drawn("f, g, E"),
    name="reach",
    settings=tuple(one.then(short) for one in (
        setting("random bias, but for the first query", 401, zero_at("B", 0)),
        setting("halves, equal queries, large", 410, halves, same_queries, apart(2.0), **TWO),
        setting("halves, equal queries, small", 411, halves, same_queries, apart(0.125), **TWO),
        setting("halves", 409, halves, **TWO),
        setting("halves, one query", 412, halves, longest, hidden("B", np.s_[1:]), **TWO),
        setting("one key for all", 404, one_key, n=5, m=4),
        setting("no bias", 402, zero("B"), full("gamma", 0.25)),
        setting("empty row", 403, empty_row),
        setting("equal keys, more queries", 405, alike("K"), alike("E", 6.0), one_bias, n=5, m=4),
        setting("equal keys, fewer queries", 406, alike("K"), alike("E", 0.0625), one_bias),
        setting("two keys, equal queries", 408, same_queries, **TWO),
        setting("halves, but for the shortest query", 413, halves, lengths(0.5, 1.0, 3.0, but=0), **TWO),
        setting("equal queries, halves but for one", 414, halves, lengths(1.0, 1.0, 1.0, but=2), **TWO),
        setting("halves, the first query the mean", 415, halves, lengths(1.0, 0.5, 1.5), **TWO),
    )),
)

# ---- self-attention, with tokens from a ball -------------------------------------------------


def unseen(values: dict, sizes: dict) -> None:
    """The first token is not zero, but its key and its value are."""
    first = values["E"][0]
    apart = np.eye(sizes["d"]) - np.outer(first, first) / (first @ first)
    values["M"], values["W^V"] = values["M"] @ apart, apart @ values["W^V"]
    values["M"][0] = 0


@filling
def opposite(values: dict, sizes: dict, t: float, gamma: float, m: float, w: float, queries: int = 2) -> None:
    """Tokens e and -e of length t, which all queries like alike; the last token is hidden.

    M exchanges the direction e with one that is perpendicular, and w is what becomes of e.
    """
    n = len(values["E"])
    e, f = np.zeros((2, sizes["d"]), dtype=object)
    e[:2] = Fraction(3, 5), Fraction(4, 5)
    f[:2] = Fraction(-4, 5), Fraction(3, 5)
    values["E"][:] = np.outer(np.resize([1, -1], n), e)
    values["E"][-1] = values["E"][-1] / 4
    values["B"] = np.full((n, n), -np.inf)
    values["B"][:queries, :2] = 0.75
    values["M"][:] = Fraction(m) * (np.outer(e, f) + np.outer(f, e))
    values["t"], values["gamma"] = np.full((1, 1), t), np.full((1, 1), gamma)
    values["W^V"][:] = Fraction(w) * np.outer(e, np.arange(sizes["d_v"]) == 0)


# Scores that do not depend on the tokens; only one query may attend to anything.
no_scores = zero("M", "B"), full("t", 0.0625), hidden("B", np.s_[1:])

BALL = Cast(
    name="ball",
    sizes={"n": 4, "d": 3, "d_v": 5},
    letters=drawn("E") | positive("t") | drawn("M, W^V, B") | positive("gamma") | made("X, Q, K, V, P, Y"),
    outputs=("Y",),
    rows=rows("x, y"),
    same={"m": "n", "d_k": "d"},
    settings=(
        setting("random bias", 421),
        setting("empty row, the first token in a plane", 422, empty_row, zero_at("E", (0, 0))),
        setting("sizes in another order", 423, unseen, n=3, d=5, d_v=2),
        setting("a token at zero", 424, zero_at("E", 0)),
        setting("no scores", 425, *no_scores),
        setting("opposite, long", 426, opposite(5.0, 1.0, 2.0, 4.0)),
        setting("opposite, short", 427, opposite(0.25, 2.0, 3.0, 0.5)),
        setting("opposite, one query", 428, opposite(5.0, 1.0, 2.0, 4.0, 1)),
        setting("opposite, three queries", 429, opposite(2.0, 2.0, 2.0, 4.0, 3)),
    ),
)

# ---- a row of scores, and a change of it -----------------------------------------------------


def first_key(values: dict, sizes: dict) -> None:
    values["chi"] = 1.0 * (np.arange(sizes["m"]) < 1)[None]


def mirrored(values: dict, sizes: dict) -> None:
    """A change that turns the scores round, and one that moves an event as far as it can."""
    values["a"] = (np.arange(sizes["m"]) * 3 / 8 - 5 / 8)[None]
    values["u"] = -2 * values["a"]
    values["omega"] = -values["t"] / 2


def first_mirrored(values: dict, sizes: dict) -> None:
    values["u"][0, 0] = -2 * values["a"][0, 0]


def event(values: dict, sizes: dict) -> None:
    """The scores of an event grow alike, those outside of it shrink alike."""
    values["chi"] = 1.0 * (np.arange(sizes["m"]) % 3 == 1)[None]
    values["u"] = 1.75 * values["chi"] - 0.625 * (1 - values["chi"])


def equal_scores(values: dict, sizes: dict) -> None:
    values["a"] = 0 * values["a"] + 0.375
    values["chi"] = (0.25 + 0.375 * np.arange(sizes["m"]))[None]


FINITE = Cast(
    name="finite",
    sizes={"m": 5, "d_v": 3},
    letters=drawn("a, u") | masks("chi") | drawn("V, omega") | positive("t") | made("p", "prp:softmax_row"),
    outputs=("p",),
    rows=rows("v"),
    settings=(
        setting("random", 441, first_key),
        setting("sizes in another order", 442, first_key, m=4, d_v=6),
        setting("mirrored", 443, mirrored, first_key),
        setting("event", 450, event),
        setting("two keys, the first mirrored", 445, first_mirrored, first_key, m=2),
        setting("two keys, equal scores", 446, equal_scores, m=2),
        setting("two keys, mirrored", 449, mirrored, first_key, m=2),
    ),
)

CASTS = REACH, BALL, FINITE
