"""What a library means by its arguments, read off its table of weights.

With the identity for V the output of a head is its table of weights P, and every question about
a convention is one about this table. A library is a function f(Q, K, V, dO=None, **options) of
NumPy's arrays (batch, head, row, feature); it returns the output or, given dO, the gradients.
Each question has one answer, in the words of conventions.toml, beside this file.
"""

import warnings
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from attnmath._attention import attention
from attnmath._masks import causal_mask

Library = Callable[..., Any]
N, M, D = 3, 5, 8  # rows of Q, rows of K and V, features: no two equal
EXACT, SINGLE = 1e-12, 1e-5  # roundings of some dozen numbers, in double and in single precision


def table(f: Library, A: np.ndarray | None = None, *, n: int = N, m: int = M,
          **options: Any) -> np.ndarray:
    """The weights (n, m) of a head; A (n, m) are the products of queries and keys, or zero."""
    n, m = (n, m) if A is None else A.shape
    Q, K = np.zeros((1, 1, n, D)), np.eye(m, D)[None, None]
    if A is not None:
        Q[..., :m] = A
    return f(Q, K, np.eye(m, D)[None, None], **options)[0, 0, :, :m]


def _one(answers: Iterable[tuple[str, bool]]) -> str:
    """The one answer that holds."""
    found = [answer for answer, holds in answers if holds]
    if len(found) != 1:
        raise ValueError(f"{len(found)} answers fit: {found}")
    return found[0]


def _near(x: np.ndarray, y: np.ndarray, tolerance: float = SINGLE) -> bool:
    return x.shape == y.shape and bool(np.allclose(x, y, rtol=tolerance, atol=tolerance))


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def layout(raw: Library) -> str:
    """The order of the axes, found by trying; raw takes the arrays as they are."""
    Q, K, V = _random(2, 4, N, D), _random(2, 4, M, D), _random(2, 4, M, D)
    want, fits = attention(Q, K, V), {}
    for name, axes in [("b h n d", (0, 1, 2)), ("b n h d", (0, 2, 1)), ("n b h d", (2, 0, 1))]:
        try:
            with warnings.catch_warnings(action="ignore"):
                got = raw(*(x.transpose(*axes, 3) for x in (Q, K, V)))
            fits[name] = _near(got.transpose(*np.argsort(axes), 3), want)
        except Exception:  # whatever a library raises, and warns of, for shapes that do not fit
            fits[name] = False
    return _one(fits.items())


def mask(f: Library) -> str:
    """What True says in a boolean mask."""
    given = np.arange(N)[:, None] != np.arange(M)[None, :]
    seen = table(f, mask=given) > 0
    return _one([("may read", (seen == given).all()), ("is hidden", (seen != given).all())])


def added(f: Library) -> str:
    """Whether a mask of numbers is added to the scaled scores."""
    E = _random(N, M)
    P = np.exp(E) / np.exp(E).sum(1, keepdims=True)
    return _one([("added", _near(table(f, added=E), P)), ("ignored", _near(table(f, added=E), table(f)))])


def causal(f: Library) -> str:
    """Which corners of the causal mask meet, with more keys than queries and with fewer."""
    wide, tall = (table(f, n=n, m=m, causal=True) > 0 for n, m in [(N, M), (M, N)])

    def fits(seen: np.ndarray, align: str) -> bool:
        return bool((seen == causal_mask(*seen.shape, align=align)).all())

    answers = {"upper left": "upper_left", "lower right": "lower_right"}
    return _one((word, fits(wide, align) and fits(tall, align)) for word, align in answers.items())


def window(f: Library, w: int = 2) -> str:
    """How many keys a causal window of the size w has."""
    seen = (table(f, n=7, m=7, causal=True, window=w) > 0).sum(1)[-1]
    return _one([("w", seen == w), ("w + 1", seen == w + 1)])


def groups(f: Library) -> str:
    """Which head of keys and values a query's head h reads, of six and three."""
    values = np.ones((1, 3, M, D)) * np.arange(3)[:, None, None]
    heads = f(np.zeros((1, 6, N, D)), np.zeros((1, 3, M, D)), values)[0, :, 0, 0]
    answers = {"h // (H/G)": np.arange(6) // 2.0, "h mod G": np.arange(6) % 3.0}
    return _one((word, _near(heads, group)) for word, group in answers.items())


def scale(f: Library) -> str:
    """What multiplies the products, unless it is told."""
    P = table(f, _random(N, M))
    A = np.log(P / P[:, :1]) / (_random(N, M) - _random(N, M)[:, :1] + np.eye(M)[0])
    names = [("1/√d_k", D**-0.5), ("1", 1.0), ("1/d_k", 1 / D)]
    return _one((name, _near(A[:, 1:], np.full((N, M - 1), gamma))) for name, gamma in names)


def order(f: Library, c: float = 1.5) -> str:
    """In which order a soft cap c tanh(A/c), a bias and a mask are applied; the scale is 1."""
    A, E, may = 2 * _random(N, M), _random(N, M), np.arange(M) != 1
    mask, cap = lambda A: np.where(may, A, -np.inf), lambda A: c * np.tanh(A / c)
    got = table(f, A, cap=c, added=E, mask=may & np.ones((N, 1), bool), scale=1.0)
    soft = {"cap, bias, mask": mask(cap(A) + E), "bias, cap, mask": mask(cap(A + E)),
            "bias, mask, cap": cap(mask(A + E))}  # fmt: skip
    return _one((name, _near(got, np.exp(x) / np.exp(x).sum(1, keepdims=True))) for name, x in soft.items())


def dropout(f: Library, rho: float = 0.25) -> str:
    """What happens to the weights that dropout keeps; Q and K are zero."""
    kept = table(f, n=64, dropout=rho) * M
    assert (kept == 0).any()
    return _one([("1/(1 − ρ)", _near(kept[kept > 0], 1 / (1 - rho) + 0 * kept[kept > 0])),
                 ("kept as they are", _near(kept[kept > 0], 1 + 0 * kept[kept > 0]))])  # fmt: skip


def empty(f: Library, **forbid: np.ndarray) -> str:
    """The output of a row that may read nothing, and where its gradient goes.

    `forbid` is the option that hides all keys from the row 1, and none from the others.
    """
    Q, K, V = _random(1, 1, N, D), _random(1, 1, M, D), _random(1, 1, M, D) + 3
    row, dO = f(Q, K, V, **forbid)[0, 0, 1], np.zeros((1, 1, N, D))
    dO[0, 0, 1] = np.arange(D) + 1.0
    mean = _near(row, V[0, 0].mean(0))
    output = _one([("0", bool((row == 0).all())), ("mean", mean), ("NaN", bool(np.isnan(row).all()))])
    back = f(Q, K, V, dO, **forbid)
    if back is None:
        return output
    if any(np.isnan(g).any() for g in back):
        return f"{output}; NaN"
    reached = ", ".join(letter for letter, g in zip("QKV", back) if (g != 0).any())
    too_large = mean and _near(back[2][0, 0], M * np.tile(dO[0, 0, 1] / M, (M, 1)))
    return f"{output}; {'to ' + reached if reached else '0'}" + (", m times too large" if too_large else "")


def inside(f: Library) -> str:
    """The precision of the softmax in a program of double precision."""
    Q, K, V = _random(1, 1, N, D), _random(1, 1, M, D), _random(1, 1, M, D)
    got, want = f(Q, K, V), attention(Q, K, V)
    return _one([("own", _near(got, want, EXACT)),
                 ("float32", _near(got, want) and not _near(got, want, EXACT))])  # fmt: skip


def base(L: np.ndarray) -> str:
    """The base of the logarithm in the log-sum-exp of M scores that are zero."""
    return _one([("e", _near(L, 0 * L + np.log(M))), ("2", _near(L, 0 * L + np.log2(M)))])
