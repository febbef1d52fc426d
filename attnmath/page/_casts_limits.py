"""The casts of how large things can get, and of what the heads learned.

A bound is run where it is attained, once with large numbers and once with small ones: then
no factor can be missing, and no power be another one.
"""

from fractions import Fraction

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting
from attnmath.page._casts_layer import empty_row, first_zero, no_score_bias, together


def _rows_alike(x: np.ndarray) -> np.ndarray:
    """The first row, as often as there are rows."""
    return np.tile(x[:1], (len(x), 1))


def _same_for_all_keys(values: dict) -> None:
    values["B"] = np.repeat(values["B"][:, :1], values["B"].shape[1], axis=1)


def _mild(values: dict, sizes: dict) -> None:
    """No bias, and no weight near zero."""
    no_score_bias(values, sizes)
    values["gamma"] = np.full((1, 1), 0.25)


def _one_key(values: dict, sizes: dict) -> None:
    """All queries may attend to the second key alone."""
    values["B"] = np.where(np.arange(sizes["m"]) == 1, values["B"], -np.inf)


def _equal_keys(size: float):
    """All keys are the same, and so are the rows of E."""

    def change(values: dict, sizes: dict) -> None:
        values["K"], values["E"] = map(_rows_alike, (values["K"], size * values["E"]))
        _same_for_all_keys(values)

    return change


def _halves(values: dict, sizes: dict) -> None:
    """Two keys that every query likes alike; what the keys differ in, no query has."""
    Q, K, V = values["Q"], values["K"], values["V"]
    apart = K[0] - K[1]
    values["Q"] = Q - np.outer(Q @ apart, apart) / (apart @ apart)
    values["f"], values["g"] = V[:1] - V[1:], apart[None]
    _same_for_all_keys(values)


def _equal_queries(values: dict, sizes: dict) -> None:
    values["Q"] = _rows_alike(values["Q"])


def _equal_halves(size: float):
    """Halves with equal queries; E pulls the two keys apart, along the query."""

    def change(values: dict, sizes: dict) -> None:
        _halves(values, sizes)
        _equal_queries(values, sizes)
        values["gamma"] = np.full((1, 1), 2.0 if size > 1 else 0.375)
        values["Q"], values["V"] = values["Q"] * size, values["V"] * size
        values["E"] = 4 * size * np.outer([1, -1], values["Q"][0] / np.linalg.norm(values["Q"][0]))

    return change


def _unlike_queries(lengths: tuple, but: int | None):
    """Halves, but for one query, with queries of these lengths in one direction."""

    def change(values: dict, sizes: dict) -> None:
        _halves(values, sizes)
        values["Q"] = np.outer(lengths, values["Q"][0])
        if but is not None:
            values["B"][but] += [2.0, 0.0]
        values["E"] = np.outer([1, -1], values["Q"][0])

    return change


def _one_query(values: dict, sizes: dict) -> None:
    """Halves, where only the longest query may attend to anything."""
    _halves(values, sizes)
    values["Q"][0] *= 9 / np.linalg.norm(values["Q"][0])
    values["B"][1:] = -np.inf


def _setting(name: str, seed: int, sizes: dict | None = None, change=None) -> Setting:
    """A setting whose directions f and g are short, so that their squares stay small."""

    def changed(values: dict, sizes: dict) -> None:
        if change is not None:
            change(values, sizes)
        values["f"], values["g"] = values["f"] / 5, values["g"] / 5

    return Setting(name, seed, sizes or {}, changed)


TWO = {"n": 3, "m": 2, "d_k": 4, "d_v": 5}

REACH = Cast(
    name="reach",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1"), "positive"),
        "f": Letter(("1", "d_v")),
        "g": Letter(("1", "d_k")),
        "E": Letter(("m", "d_k")),
        "A": Letter(("n", "m"), "eq:attention_map"),
        "P": Letter(("n", "m"), "eq:attention_map"),
        "L": Letter(("n", "1"), "eq:attention_map"),
        "O": Letter(("n", "d_v"), "eq:attention_map"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        _setting("random bias, but for the first query", 401, change=first_zero("B")),
        _setting("halves, equal queries, large", 410, TWO, change=_equal_halves(2.0)),
        _setting("halves, equal queries, small", 411, TWO, change=_equal_halves(0.125)),
        _setting("halves", 409, TWO, change=_halves),
        _setting("halves, one query", 412, TWO, change=_one_query),
        _setting("one key for all", 404, {"n": 5, "m": 4}, change=_one_key),
        _setting("no bias", 402, change=_mild),
        _setting("empty row", 403, change=empty_row),
        _setting("equal keys, more queries", 405, {"n": 5, "m": 4}, change=_equal_keys(6.0)),
        _setting("equal keys, fewer queries", 406, change=_equal_keys(0.0625)),
        _setting("two keys, equal queries", 408, TWO, change=_equal_queries),
        _setting("halves, but for the shortest query", 413, TWO, change=_unlike_queries((0.5, 1.0, 3.0), 0)),
        _setting("equal queries, halves but for one", 414, TWO, change=_unlike_queries((1.0, 1.0, 1.0), 2)),
        _setting("halves, the first query the mean", 415, TWO, change=_unlike_queries((1.0, 0.5, 1.5), None)),
    ),
)


def _from_zero(values: dict, sizes: dict) -> None:
    values["E"][0] = 0


def _from_a_plane(values: dict, sizes: dict) -> None:
    values["E"][0, 0] = 0


def _unseen(values: dict, sizes: dict) -> None:
    """The first token is not zero, but its key and its value are."""
    first = values["E"][0]
    apart = np.eye(sizes["d"]) - np.outer(first, first) / (first @ first)
    values["M"], values["W^V"] = values["M"] @ apart, apart @ values["W^V"]
    values["M"][0] = 0


def _opposite(t: float, gamma: float, m: float, w: float, queries: int = 2):
    """Tokens e and -e of length t, which all queries like alike; the last token is hidden.

    M exchanges the direction e with one that is perpendicular, and w is what becomes of e.
    """

    def change(values: dict, sizes: dict) -> None:
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

    return change


def _no_scores(values: dict, sizes: dict) -> None:
    """Scores that do not depend on the tokens; only one query may attend to anything."""
    values["M"] = 0 * values["M"]
    values["t"] = np.full((1, 1), 0.0625)
    values["B"] = np.zeros_like(values["B"])
    values["B"][1:] = -np.inf


BALL = Cast(
    name="ball",
    sizes={"n": 4, "d": 3, "d_v": 5},
    letters={
        "E": Letter(("n", "d")),
        "t": Letter(("1", "1"), "positive"),
        "M": Letter(("d", "d")),
        "W^V": Letter(("d", "d_v")),
        "B": Letter(("n", "n")),
        "gamma": Letter(("1", "1"), "positive"),
        "X": Letter(("n", "d"), "prp:ball_map"),
        "Q": Letter(("n", "d"), "prp:ball_map"),
        "K": Letter(("n", "d"), "prp:ball_map"),
        "V": Letter(("n", "d_v"), "prp:ball_map"),
        "P": Letter(("n", "n"), "prp:ball_map"),
        "Y": Letter(("n", "d_v"), "prp:ball_map"),
    },
    outputs=("Y",),
    rows={"x": "X", "y": "Y"},
    settings=(
        Setting("random bias", 421),
        Setting("empty row, the first token in a plane", 422, change=together(empty_row, _from_a_plane)),
        Setting("sizes in another order", 423, {"n": 3, "d": 5, "d_v": 2}, change=_unseen),
        Setting("a token at zero", 424, change=_from_zero),
        Setting("no scores", 425, change=_no_scores),
        Setting("opposite, long", 426, change=_opposite(5.0, 1.0, 2.0, 4.0)),
        Setting("opposite, short", 427, change=_opposite(0.25, 2.0, 3.0, 0.5)),
        Setting("opposite, one query", 428, change=_opposite(5.0, 1.0, 2.0, 4.0, 1)),
        Setting("opposite, three queries", 429, change=_opposite(2.0, 2.0, 2.0, 4.0, 3)),
    ),
)


def _first_key(values: dict, sizes: dict) -> None:
    values["chi"] = 1.0 * (np.arange(sizes["m"]) < 1)[None]


def _mirrored(values: dict, sizes: dict) -> None:
    """A change that turns the scores round, and one that moves an event as far as it can."""
    values["a"] = (np.arange(sizes["m"]) * 3 / 8 - 5 / 8)[None]
    values["u"] = -2 * values["a"]
    values["omega"] = -values["t"] / 2
    _first_key(values, sizes)


def _first_mirrored(values: dict, sizes: dict) -> None:
    values["u"][0, 0] = -2 * values["a"][0, 0]
    _first_key(values, sizes)


def _event(values: dict, sizes: dict) -> None:
    """The scores of an event grow alike, those outside of it shrink alike."""
    values["chi"] = 1.0 * (np.arange(sizes["m"]) % 3 == 1)[None]
    values["u"] = 1.75 * values["chi"] - 0.625 * (1 - values["chi"])


def _equal_scores(values: dict, sizes: dict) -> None:
    values["a"] = 0 * values["a"] + 0.375
    values["chi"] = (0.25 + 0.375 * np.arange(sizes["m"]))[None]


FINITE = Cast(
    name="finite",
    sizes={"m": 5, "d_v": 3},
    letters={
        "a": Letter(("1", "m")),
        "u": Letter(("1", "m")),
        "chi": Letter(("1", "m"), "mask"),
        "V": Letter(("m", "d_v")),
        "omega": Letter(("1", "1")),
        "t": Letter(("1", "1"), "positive"),
        "p": Letter(("1", "m"), "prp:softmax_row"),
    },
    outputs=("p",),
    rows={"v": "V"},
    settings=(
        Setting("random", 441, change=_first_key),
        Setting("sizes in another order", 442, {"m": 4, "d_v": 6}, change=_first_key),
        Setting("mirrored", 443, change=_mirrored),
        Setting("event", 450, change=_event),
        Setting("two keys, the first mirrored", 445, {"m": 2}, change=_first_mirrored),
        Setting("two keys, equal scores", 446, {"m": 2}, change=_equal_scores),
        Setting("two keys, mirrored", 449, {"m": 2}, change=_mirrored),
    ),
)
