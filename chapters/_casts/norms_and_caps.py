"""The norm without a mean; a head with normed queries and keys; a cap, and a head with one."""

from collections.abc import Callable

import numpy as np

from attnmath.page.scenes.cast import Cast, drawn, made, positive, rows
from attnmath.page.scenes.settings import divided, full, hidden, setting, three, zero

from ._head import HEAD
from ._rounded import rounded, row_sums


def normed_off(values: dict, r: Callable, grown: Callable) -> dict:
    """By how much a norm is off that goes step by step, and its way back; and how far they may be."""
    X, alpha, epsilon, dY = (values[x] for x in ("X", "alpha", "epsilon", "dY"))
    d = X.shape[1]

    def both(r: Callable) -> tuple[np.ndarray, ...]:
        root = r(np.sqrt(r(r(row_sums(r(X * X), r) / d) + epsilon)))
        X_hat, back = r(X / root), r(alpha * dY)
        mean = r(row_sums(r(X_hat * back), r) / d)
        return r(alpha * X_hat), r(r(back - r(mean * X_hat)) / root), root, X_hat, back

    (Y, dX, *_), (right, right_dX, root, X_hat, back) = both(r), both(lambda x: x)
    mean = abs(X_hat * back).sum(1, keepdims=True) / d
    off = grown(d / 2 + 6) * abs(back) + grown(2.5 * d + 17) * mean * abs(X_hat)
    bars = {"bar Y": grown(d / 2 + 5) * abs(right), "bar X": off / root}
    return {"tilde Y": Y - right, "tilde X": dX - right_dX} | bars


def capped_off(values: dict, r: Callable, grown: Callable) -> dict:
    """By how much a cap is off that goes step by step, and its way back; and how far they may be."""
    S, c, dA = (values[x] for x in ("S", "c", "dA"))

    def both(r: Callable) -> tuple[np.ndarray, np.ndarray]:
        U = r(np.tanh(r(S / c)))
        return r(c * U), r(dA * r(1 - r(U * U)))

    (A, dS), (right, right_dS) = both(r), both(lambda x: x)
    slope = right_dS / dA
    off = abs(dA) * (grown(2) * slope + (1 - slope) * (1 + grown(2)) * grown(7))
    return {"tilde A": A - right, "tilde S": dS - right_dS, "bar A": grown(4) * abs(right), "bar S": off}


INPUTS = "X, alpha, epsilon, dY"


def far_apart(values: dict, sizes: dict) -> None:
    """Features of sizes that are far apart."""
    values["X"] = values["X"] * 4.0 ** np.arange(sizes["d"])
    values["dY"] = values["dY"] / 4.0 ** np.arange(sizes["d"])


def reached(values: dict, sizes: dict) -> None:
    """Scores from far below the cap to far above."""
    values["S"] = values["S"] * 4.0 ** (np.arange(sizes["m"]) - 1)

RMS = Cast(
    name="root mean square norm",
    sizes={"n": 4, "d": 5},
    letters=drawn("X, alpha") | positive("epsilon") | made("r, hat X, Y", "eq:rms_norm"),
    outputs=("Y",),
    rows=rows("x, hat x, y"),
    names={"hat X": "X_hat"},
    constants=("epsilon",),
    settings=(
        setting("random", 411),
        setting("no epsilon", 412, zero("epsilon")),
        setting("sizes in another order", 413, n=5, d=3),
    ),
)

RMS_ROUNDED = RMS.plus(
    positive("u") | drawn("tilde Y, tilde X, bar Y, bar X"),
    name="root mean square norm in a format",
    about="u",
    settings=(
        setting("bfloat16", 451, rounded("bfloat16", INPUTS, normed_off)),
        setting("float16, far apart", 452, far_apart, rounded("float16", INPUTS, normed_off), n=5, d=3),
    ),
)

NORMED = Cast(
    name="normed head",
    sizes={"n": 2, "m": 3, "d_k": 4, "d_v": 5},
    letters=drawn("Q, K, V, B, alpha^Q, alpha^K") | positive("tau, epsilon") | made("gamma", "prp:temperature")
    | made("r^Q, r^K, hat Q, hat K, tilde Q, tilde K, A, P, O", "eq:qk_norm_attention")
    | made("D", "prp:row_statistic"),
    outputs=("O",),
    names={"hat Q": "Q_hat", "hat K": "K_hat", "tilde Q": "Q_tilde", "tilde K": "K_tilde"},
    rows=rows("q, k, hat q, hat k, tilde q, tilde k, v, o"),
    constants=("epsilon",),
    settings=(
        setting("random bias", 421),
        setting("n = m", 429, divided(4, "alpha^Q"), n=2, m=2, d_k=3),  # few roots
        setting("no epsilon", 422, zero("epsilon")),
        setting("no bias, a small epsilon", 423, zero("B"), full("epsilon", 2.0**-17)),
        setting("a masked key", 424, hidden("B", (0, 1))),
        setting("sizes in another order", 425, n=3, m=2, d_k=5, d_v=4),
    ),
)

CAP = Cast(
    name="cap",
    sizes={"n": 4, "m": 5},
    letters=drawn("S") | positive("c") | made("U, A", "eq:softcap"),
    outputs=("A",),
    settings=three(431, n=3, m=2),
)

CAPPED = HEAD.without("L, A, P, O").plus(
    positive("c") | made("S, U, A, P, O", "eq:capped_attention"),
    name="capped head",
    settings=(
        setting("random bias", 441),
        setting("no bias", 442, zero("B")),
        setting("empty row", 443, hidden("B", (0, 1), 1)),
        setting("sizes in another order", 444, n=5, m=3, d_k=2, d_v=4),
    ),
)

CAP_ROUNDED = CAP.plus(
    positive("u") | drawn("tilde A, tilde S, bar A, bar S"),
    name="cap in a format",
    about="u",
    settings=(
        setting("bfloat16", 461, reached, rounded("bfloat16", "S, c, dA", capped_off)),
        setting("float16", 462, rounded("float16", "S, c, dA", capped_off), n=3, m=2),
    ),
)

CASTS = RMS, RMS_ROUNDED, NORMED, CAP, CAP_ROUNDED, CAPPED
