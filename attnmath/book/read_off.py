"""What a library means by its arguments: what is claimed of it, and what is read off its table of weights.

The claims are in conventions.toml, beside this file. With the identity for V the output of a head is its
table of weights P, and every question about a convention is one about this table. A library is a function
f(Q, K, V, dO=None, **options) of NumPy's arrays (batch, head, row, feature); it returns the output or,
given dO, the gradients. Each question has one answer, in the words of the claims.
"""

import tomllib
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal

import numpy as np

from attnmath._formulas.attention import attention
from attnmath._formulas.masks import causal_mask

CLAIMS = tomllib.loads(Path(__file__).with_name("conventions.toml").read_text("utf-8"))
Library = Callable[..., Any]
N, M, D = 3, 5, 8  # rows of Q, rows of K and V, features: no two equal
IN_DOUBLE, IN_SINGLE = 1e-12, 1e-5  # roundings of some dozen numbers, in double and in single precision


def claimed(name: str, how: str = "run") -> dict[str, str]:
    """What is claimed of a library, by how it is known: run, adapters or read."""
    return next(library for library in CLAIMS["library"] if library["name"] == name)[how]


def overview(columns: Iterable[str]) -> str:
    """A table in Markdown: † for what the adapters' tests measure, a link for what was read."""
    columns = list(columns)
    rows = [["library", *(CLAIMS["columns"][c] for c in columns)], ["---"] * (1 + len(columns))]
    for library in CLAIMS["library"]:
        cells = {k: _as_shown(v) for k, v in library.get("run", {}).items()}
        cells |= {k: f"{_as_shown(v)}\u00a0†" for k, v in library.get("adapters", {}).items()}
        cells |= {k: f"[{_as_shown(v)}]({address})" for k, (v, address) in library.get("read", {}).items()}
        if cells.keys() & set(columns):
            rows.append([library["name"], *(cells.get(c, "–") for c in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _as_shown(word: str) -> str:
    """As a formula, if it is one; short words stay on one line."""
    word = CLAIMS["shown"].get(word, word)
    return word.replace(" ", "\u00a0") if len(word) < 9 else word


def weight_table(f: Library, A: np.ndarray | None = None, *, n: int = N, m: int = M,
          **options: Any) -> np.ndarray:
    """The weights (n, m) of a head; A (n, m) are the products of queries and keys, or zero."""
    n, m = (n, m) if A is None else A.shape
    Q, K = np.zeros((1, 1, n, D)), np.eye(m, D)[None, None]
    if A is not None:
        Q[..., :m] = A
    return f(Q, K, np.eye(m, D)[None, None], **options)[0, 0, :, :m]


def _only_answer(answers: Iterable[tuple[str, bool]]) -> str:
    """The one answer that holds."""
    found = [answer for answer, holds in answers if holds]
    if len(found) != 1:
        raise ValueError(f"{len(found)} answers fit: {found}")
    return found[0]


def _is_close(x: np.ndarray, y: np.ndarray, tolerance: float = IN_SINGLE) -> bool:
    return x.shape == y.shape and bool(np.allclose(x, y, rtol=tolerance, atol=tolerance))


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).normal(size=shape)


def layout(raw: Library) -> str:
    """The order of the axes, found by trying; raw takes the arrays as they are."""
    Q, K, V = _random(2, 4, N, D), _random(2, 4, M, D), _random(2, 4, M, D)
    want, found = attention(Q, K, V), {}
    for name, axes in [("b h n d", (0, 1, 2)), ("b n h d", (0, 2, 1)), ("n b h d", (2, 0, 1))]:
        try:
            with warnings.catch_warnings(action="ignore"):
                got = raw(*(x.transpose(*axes, 3) for x in (Q, K, V)))
            found[name] = _is_close(got.transpose(*np.argsort(axes), 3), want)
        except Exception:  # whatever a library raises, and warns of, for shapes that do not fit
            found[name] = False
    return _only_answer(found.items())


def mask(f: Library) -> str:
    """What True says in a boolean mask."""
    given = np.arange(N)[:, None] != np.arange(M)[None, :]
    seen = weight_table(f, mask=given) > 0
    return _only_answer([("may read", (seen == given).all()), ("is hidden", (seen != given).all())])


def added(f: Library) -> str:
    """Whether a mask of numbers is added to the scaled scores."""
    E = _random(N, M)
    P = np.exp(E) / np.exp(E).sum(1, keepdims=True)
    got = weight_table(f, added=E)
    return _only_answer([("added", _is_close(got, P)), ("ignored", _is_close(got, weight_table(f)))])


def causal(f: Library) -> str:
    """Which corners of the causal mask meet, with more keys than queries and with fewer."""
    wide, tall = (weight_table(f, n=n, m=m, causal=True) > 0 for n, m in [(N, M), (M, N)])

    def meets(align: Literal["upper_left", "lower_right"]) -> bool:
        return all((seen == causal_mask(*seen.shape, align=align)).all() for seen in (wide, tall))

    return _only_answer([("upper left", meets("upper_left")), ("lower right", meets("lower_right"))])


def window(f: Library, w: int = 2) -> str:
    """How many keys a causal window of the size w has."""
    seen = (weight_table(f, n=7, m=7, causal=True, window=w) > 0).sum(1)[-1]
    return _only_answer([("w", seen == w), ("w + 1", seen == w + 1)])


def groups(f: Library) -> str:
    """Which head of keys and values a query's head h reads, of six and three."""
    values = np.ones((1, 3, M, D)) * np.arange(3)[:, None, None]
    heads = f(np.zeros((1, 6, N, D)), np.zeros((1, 3, M, D)), values)[0, :, 0, 0]
    answers = {"h // (H/G)": np.arange(6) // 2.0, "h mod G": np.arange(6) % 3.0}
    return _only_answer((word, _is_close(heads, group)) for word, group in answers.items())


def scale(f: Library) -> str:
    """What multiplies the products, unless it is told."""
    P = weight_table(f, _random(N, M))
    A = np.log(P / P[:, :1]) / (_random(N, M) - _random(N, M)[:, :1] + np.eye(M)[0])
    names = [("1/√d_k", D**-0.5), ("1", 1.0), ("1/d_k", 1 / D)]
    return _only_answer((name, _is_close(A[:, 1:], np.full((N, M - 1), gamma))) for name, gamma in names)


def order(f: Library, c: float = 1.5) -> str:
    """In which order a soft cap c tanh(A/c), a bias and a mask are applied; the scale is 1."""
    A, E, may = 2 * _random(N, M), _random(N, M), np.arange(M) != 1
    mask, cap = lambda A: np.where(may, A, -np.inf), lambda A: c * np.tanh(A / c)
    got = weight_table(f, A, cap=c, added=E, mask=may & np.ones((N, 1), bool), scale=1.0)
    soft = {"cap, bias, mask": mask(cap(A) + E), "bias, cap, mask": mask(cap(A + E)),
            "bias, mask, cap": cap(mask(A + E))}
    want = {name: np.exp(x) / np.exp(x).sum(1, keepdims=True) for name, x in soft.items()}
    return _only_answer((name, _is_close(got, P)) for name, P in want.items())


def dropout(f: Library, rho: float = 0.25) -> str:
    """What happens to the weights that dropout keeps; Q and K are zero."""
    kept = weight_table(f, n=64, dropout=rho) * M
    assert (kept == 0).any()
    return _only_answer([("1/(1 − ρ)", _is_close(kept[kept > 0], 1 / (1 - rho) + 0 * kept[kept > 0])),
                 ("kept as they are", _is_close(kept[kept > 0], 1 + 0 * kept[kept > 0]))])


def empty(f: Library, **forbid: np.ndarray) -> str:
    """The output of a row that may read nothing, and where its gradient goes.

    `forbid` is the option that hides all keys from the row 1, and none from the others.
    """
    Q, K, V = _random(1, 1, N, D), _random(1, 1, M, D), _random(1, 1, M, D) + 3
    row, dO = f(Q, K, V, **forbid)[0, 0, 1], np.zeros((1, 1, N, D))
    dO[0, 0, 1] = np.arange(D) + 1.0
    mean = _is_close(row, V[0, 0].mean(0))
    output = _only_answer([("0", bool((row == 0).all())), ("mean", mean), ("NaN", bool(np.isnan(row).all()))])
    back = f(Q, K, V, dO, **forbid)
    if back is None:
        return output
    if any(np.isnan(g).any() for g in back):
        return f"{output}; NaN"
    reached = ", ".join(letter for letter, g in zip("QKV", back) if (g != 0).any())
    too_large = mean and _is_close(back[2][0, 0], M * np.tile(dO[0, 0, 1] / M, (M, 1)))
    return f"{output}; {'to ' + reached if reached else '0'}" + (", m times too large" if too_large else "")


def inside(f: Library) -> str:
    """The precision of the softmax in a program of double precision."""
    Q, K, V = _random(1, 1, N, D), _random(1, 1, M, D), _random(1, 1, M, D)
    got, want = f(Q, K, V), attention(Q, K, V)
    return _only_answer([("own", _is_close(got, want, IN_DOUBLE)),
                 ("float32", _is_close(got, want) and not _is_close(got, want, IN_DOUBLE))])


def base(L: np.ndarray) -> str:
    """The base of the logarithm in the log-sum-exp of M scores that are zero."""
    return _only_answer([("e", _is_close(L, 0 * L + np.log(M))), ("2", _is_close(L, 0 * L + np.log2(M)))])
