"""Numbers in another order: transposed, exchanged, of another head; and in a short format."""

from collections.abc import Callable, Iterator

import numpy as np

from attnmath._examine._case import Case, Conventions
from attnmath._examine._mistake import Forms
from attnmath._examine._steps import Change, Steps, T, grouped


def untransposed(x: np.ndarray) -> np.ndarray:
    """(n, m) where its transpose belongs: the same numbers, read in rows of the other length."""
    return x.reshape(*x.shape[:-2], *x.shape[:-3:-1])


def transposed(x: np.ndarray) -> np.ndarray:
    """The transpose where x (n, m) belongs, read in rows of the other length."""
    return untransposed(T(x).copy())


def dS_flipped(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    dQ: Change = {"dQ": lambda s, x: s.gamma_back * transposed(s.dA) @ s.keys_back}
    dK: Change = {"dkeys": lambda s, x: s.gamma_back * untransposed(s.dA) @ s.Q}
    yield "in dQ and dK", dQ | dK
    yield "in dQ", dQ
    for read in READINGS:
        yield "in dQ and dK", {"dQ": lambda s, x, r=read: s.gamma_back * r(s.dA) @ s.keys_back,
                               "dkeys": lambda s, x, r=read: s.gamma_back * T(r(s.dA)) @ s.Q}  # fmt: skip
        yield "in dQ, dK and dB", {"dA": lambda s, x, r=read: r(x)}


def dP_flipped(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for read in READINGS:
        yield "", {"dP": lambda s, x, r=read: r(x)}


READINGS = (transposed, lambda x: T(untransposed(x)))  # of a buffer with its strides exchanged


def rolled(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for by in (1, -1):
        yield f"that of row i {'-' if by > 0 else '+'} 1", {"D": lambda s, D, r=by: np.roll(D, r, -2)}


def wrong_values(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    G, owner = case.V.shape[1], case.owner(means)
    for by in range(1, G):
        yield f"head h + {by}", {"dP": lambda s, x, o=(owner + by) % G: (s.dO @ T(s.V[:, o])) * s.R_back}
    for g in range(G if G > 1 else 0):
        yield f"head {g} always", {"dP": lambda s, x, g=g: (s.dO @ T(s.V[:, [g]])) * s.R_back}
    if len(owner) > 1:
        for by in (1, -1):
            yield "of the next query head", {
                "dP": lambda s, x, r=by: (s.dO @ T(np.roll(s.values_back, r, 1))) * s.R_back}  # fmt: skip


def heads_mixed(letter: str) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        H = (case.Q if letter in ("dQ", "O") else case.K).shape[1]
        for by in range(1, H):
            yield f"head h has that of h - {by}", {letter: lambda s, x, r=by: np.roll(x, r, 1)}
        if H > 2:
            yield "in reverse order", {letter: lambda s, x: x[:, ::-1]}
        for a in range(H):
            for b in range(a):
                order = np.arange(H)
                order[[a, b]] = b, a
                yield f"heads {b} and {a} exchanged", {letter: lambda s, x, o=order: x[:, o]}

    return forms


def batch_first(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    if case.Q.shape[0] > 1:
        for letters in (("O",), ("dQ", "dK", "dV"), ("O", "dQ", "dK", "dV")):
            word = "in " + ", ".join(letters)
            yield word, {k: lambda s, x: np.repeat(x[:1], len(x), 0) for k in letters}


def dB(change: Callable[[Steps, np.ndarray], np.ndarray]) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        if case.bias is not None:
            yield "", {"dB": change}

    return forms


def short(digits: int) -> Callable[[Steps, np.ndarray], np.ndarray]:
    def shorter(s: Steps, x: np.ndarray) -> np.ndarray:
        fraction, exponent = np.frexp(x)
        return np.ldexp(np.rint(np.ldexp(fraction, digits)), exponent - digits)

    return shorter


def short_weights(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for word, digits in (("bfloat16", 8), ("float16", 11)):
        r = short(digits)
        yield word, {"P": r, "P_back": r}
        yield word, {"O": lambda s, O, r=r: (r(s, s.P) * s.R) @ s.values,
                     "PR_back": lambda s, P, r=r: r(s, s.P_back) * s.R_back}  # fmt: skip
        yield word, {"P_back": r}
        yield word, {"PR_back": lambda s, P, r=r: r(s, s.P_back) * s.R_back}
        yield word, {"O": lambda s, O, r=r: (r(s, s.P) * s.R) @ s.values}


def dropout(change: Change) -> Forms:
    return lambda case, means: iter([] if case.R is None else [("", change)])


def usual_scale(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    if case.scale is None and means.scale not in (None, "1/sqrt(d_k)"):
        yield "", {"gamma": lambda s, x: s.Q.shape[3] ** -0.5}


def values_as_keys(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    if case.K.shape == case.V.shape:
        yield "", {"keys": lambda s, x: s.V[:, s.owner], "values": lambda s, x: s.K[:, s.owner],
                   "keys_back": lambda s, x: s.V[:, s.owner], "values_back": lambda s, x: s.K[:, s.owner],
                   "dK": lambda s, x: grouped(s.dvalues, s.owner, s.K.shape[1]),
                   "dV": lambda s, x: grouped(s.dkeys, s.owner, s.K.shape[1])}  # fmt: skip


def keys_as_queries(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    if case.Q.shape == case.K.shape:
        yield "", {"Q": lambda s, x: s.case.K, "K": lambda s, x: s.case.Q, "dQ": lambda s, x: s.dkeys,
                   "dK": lambda s, x: s.gamma_back * s.dA @ s.keys_back}  # fmt: skip
