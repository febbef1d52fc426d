"""Mistakes of a head that is computed tile by tile."""

from collections.abc import Callable, Iterator

import numpy as np

from attnmath._examine._case import Case, Conventions
from attnmath._examine._mistake import Forms
from attnmath._examine._steps import Change, Steps, T, rowsum, softmax


def starts(length: int) -> Iterator[int]:
    """Where a last tile may begin, the usual tiles first; at 0 where there is one tile alone."""
    usual = [(length - 1) // t * t for t in (128, 64, 32, 16, 8, 4, 2)]
    yield from dict.fromkeys([*usual, *all_of_few(length)])


def span(thing: str, first: int, last: int) -> str:
    """The keys or queries from the first to the last."""
    many = {"key": "keys", "query": "queries"}[thing]
    return f"{thing} {first}" if first == last else f"{many} {first} to {last}"


def all_of_few(length: int) -> range:
    """Every place inside, where there are not many."""
    return range(length - 1, 0, -1) if length <= 20 else range(0)


def key_tile(*letters: str, before: bool = False) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        m = case.K.shape[2]
        for start in starts(m):
            axis = (np.arange(m) >= start) ^ before
            cut = {
                "dA": lambda s, x, a=axis: x * ~a,
                "dQ": lambda s, x, a=axis: s.gamma_back * (s.dA * ~a) @ s.keys_back,
                "dkeys": lambda s, x, a=axis: x * ~a[:, None],
                "dvalues": lambda s, x, a=axis: x * ~a[:, None],
            }
            where = span("key", 0 if before else start, (start if before else m) - 1)
            yield where, {k: cut[k] for k in letters}

    return forms


def first_key(*letters: str) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        for word, change in key_tile(*letters, before=True)(case, means):
            if word == "key 0":
                yield "", change

    return forms


def query_tile(*letters: str, before: bool = False) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        n = case.Q.shape[2]
        for start in starts(n):
            rows = ((np.arange(n) >= start) ^ before)[:, None]
            cut = {
                "dQ": lambda s, x, a=rows: x * ~a,
                "dkeys": lambda s, x, a=rows: s.gamma_back * T(s.dA * ~a) @ s.Q,
                "dvalues": lambda s, x, a=rows: T(s.PR_back * ~a) @ s.dO,
                "O": lambda s, x, a=rows: x * ~a,
            }
            where = span("query", 0 if before else start, (start if before else n) - 1)
            yield where, {k: cut[k] for k in letters}

    return forms


def tilings(m: int) -> Iterator[tuple[int, list[slice]]]:
    for t in dict.fromkeys([128, 64, 32, 16, 8, 4, 2, 1, *all_of_few(m)]):
        if t < m:
            yield t, [slice(i, min(i + t, m)) for i in range(0, m, t)]


def by_tile(A: np.ndarray, tiles: list[slice]) -> np.ndarray:
    return np.concatenate([softmax(A[..., t]) for t in tiles], -1)


def local(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for t, tiles in tilings(case.K.shape[2]):
        yield f"tiles of {t} keys", {"P_back": lambda s, P, x=tiles: by_tile(s.A_back, x)}


def merged(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    """Tiles are put together without the factor between their maxima, in four ways."""
    for t, tiles in tilings(case.K.shape[2]):
        def tops(s: Steps, x: list[slice] = tiles, running: bool = True) -> np.ndarray:
            own = np.concatenate([s.A[..., a].max(-1, keepdims=True) for a in x], -1)
            top = np.maximum.accumulate(own, -1) if running else own
            top = np.where(np.isneginf(top), 0.0, top)
            return np.repeat(top, [a.stop - a.start for a in x], -1)

        def unscaled(s: Steps, P: np.ndarray, top: Callable = tops) -> np.ndarray:
            E = np.exp(s.A - top(s))
            return E / rowsum(E)

        def numerator(s: Steps, P: np.ndarray, top: Callable = tops) -> np.ndarray:
            last = top(s)[..., -1:]
            return np.exp(s.A - top(s)) / rowsum(np.exp(s.A - last))

        def denominator(s: Steps, P: np.ndarray, top: Callable = tops) -> np.ndarray:
            last = top(s)[..., -1:]
            return np.exp(s.A - last) / rowsum(np.exp(s.A - top(s)))

        def added(s: Steps, P: np.ndarray, x: list[slice] = tiles) -> np.ndarray:
            return by_tile(s.A, x)

        def mean(s: Steps, P: np.ndarray, x: list[slice] = tiles) -> np.ndarray:
            return by_tile(s.A, x) / len(x)

        for form in (unscaled, numerator, denominator, added, mean):
            yield f"tiles of {t} keys", {"P": form}
            yield f"tiles of {t} keys", {"P": form, "P_back": lambda s, P: s.P}
