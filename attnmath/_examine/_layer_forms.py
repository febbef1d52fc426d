"""The forms that mistakes of a layer take: steps that differ from the right ones."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from attnmath._examine._case import Conventions
from attnmath._examine._layer_case import LayerCase
from attnmath._examine._layer_steps import (
    added_up,
    by_head,
    flat,
    over_tokens,
    projected,
    rotated,
    rotated_back,
    sums,
)
from attnmath._examine._steps import Change, Steps, T

Forms = Callable[[LayerCase, Conventions], Iterator[tuple[str, Change]]]
MATRICES = "W_Q", "W_K", "W_V", "W_O"
GRADIENTS = *(f"d{x}" for x in MATRICES), "db_Q", "db_K", "db_V", "db_O"


def one(change: Change, when: Callable[[LayerCase], bool] = lambda case: True) -> Forms:
    """One form, where the case allows it."""
    return lambda case, means: iter([("", change)] if when(case) else [])


# ---- matrices turned ----------------------------------------------------------------------------


def matrix(W: np.ndarray, name: str) -> np.ndarray:
    """All heads as one matrix: W_Q, W_K, W_V (d, H k), W_O (H k, d)."""
    return W.reshape(-1, W.shape[2]) if name.endswith("W_O") else flat(W)


def heads(M: np.ndarray, name: str, H: int) -> np.ndarray:
    """The other way."""
    return M.reshape(H, len(M) // H, -1) if name.endswith("W_O") else by_head(M, H)


def turned(W: np.ndarray, name: str) -> np.ndarray:
    """The matrix of all heads transposed, if it is square."""
    M = matrix(W, name)
    return heads(M.T, name, len(W)) if len(M) == M.shape[1] else W


def turned_in_memory(W: np.ndarray, name: str) -> np.ndarray:
    """The numbers of the transposed matrix, read as if they were those of the matrix."""
    M = matrix(W, name)
    return heads(M.T.reshape(M.shape), name, len(W))


def gradient_turned(name: str) -> Forms:
    """The gradient of one matrix comes transposed."""
    return lambda case, means: iter([
        ("", {f"d{name}": lambda s, x: turned(x, name)}),
        ("the numbers are read in the other order", {f"d{name}": lambda s, x: turned_in_memory(x, name)}),
    ])  # fmt: skip


def used_turned(case: LayerCase, means: Conventions) -> Iterator[tuple[str, Change]]:
    """Matrices that are used transposed, both ways."""
    for names in ([x] for x in MATRICES), (MATRICES[:3], MATRICES):
        for some in names:
            change = {x: lambda s, W, x=x: turned(W, x) for x in some}
            change |= {f"d{x}": lambda s, dW, x=x: turned(dW, x) for x in some}
            yield ", ".join(some), change


# ---- blocks exchanged ---------------------------------------------------------------------------


def _gradient(s: Steps, name: str) -> np.ndarray | None:
    """A gradient of what is at this place, before anything is exchanged."""
    tokens, part = {"Q": (s.X, s.dQ_flat), "K": (s.Z, s.dK_flat), "V": (s.Z, s.dV_flat)}[name[-1]]
    if "b_" in name:
        return sums(part, getattr(s, name[1:]))
    return over_tokens(tokens, part, s.H if name[-1] == "Q" else s.G)


def exchanged(case: LayerCase, means: Conventions) -> Iterator[tuple[str, Change]]:
    """W_Q, W_K and W_V, or two of them, at each other's places."""
    for order in ("QVK", "KQV", "VKQ", "KVQ", "VQK"):
        move = {a: b for a, b in zip("QKV", order) if a != b}
        for parts in (["W_", "b_"], ["W_"], ["b_"]):
            values = {p: [getattr(case.W, p + a) for a in move] for p in parts}
            if any(x is None for x in values["W_" if "W_" in parts else "b_"]):
                continue
            if any(len({x.shape for x in v}) > 1 for v in values.values() if v[0] is not None):
                continue
            change = {}
            for p in parts:
                for a, b in move.items():
                    change[p + a] = lambda s, x, y=p + b: getattr(s.case.W, y)
                    change[f"d{p}{b}"] = lambda s, x, y=f"d{p}{a}": _gradient(s, y)
            words = "weights and biases" if len(parts) == 2 else "weights" if parts == ["W_"] else "biases"
            yield f"{words} of {', '.join('QKV')} used in the order {', '.join(order)}", change


def gradients_exchanged(case: LayerCase, means: Conventions) -> Iterator[tuple[str, Change]]:
    """Two gradients at each other's places."""
    for a, b in (("Q", "K"), ("Q", "V"), ("K", "V")):
        if getattr(case.W, f"W_{a}").shape == getattr(case.W, f"W_{b}").shape:
            names = {f"d{p}_{x}": f"d{p}_{y}" for p in "Wb" for x, y in ((a, b), (b, a))}
            yield f"dW_{a} and dW_{b}", {k: lambda s, x, y=y: _gradient(s, y) for k, y in names.items()}
            only = {k: y for k, y in names.items() if k[1] == "W"}
            yield f"dW_{a} and dW_{b}", {k: lambda s, x, y=y: _gradient(s, y) for k, y in only.items()}


# ---- what is left out ---------------------------------------------------------------------------


def dW_K_without_b_Q(case: LayerCase, means: Conventions) -> Iterator[tuple[str, Change]]:
    """The closed form for a layer without biases."""
    def dkeys(s: Steps) -> np.ndarray:
        Q = rotated(s.split(projected(s.X, s.W_Q, None), s.H), s)
        return s.gamma_back * T(s.dA) @ Q

    def dW_K(s: Steps, x: np.ndarray) -> np.ndarray:
        dK = added_up(dkeys(s), s.owner_back, s.G)
        return over_tokens(s.Z, s.split_back(rotated_back(dK, s)), s.G)

    if case.W.b_Q is not None:
        yield "in dW_K alone", {"dW_K": dW_K}
        yield "in all that dK reaches", {"dkeys": lambda s, x: dkeys(s)}


def one_entry(name: str) -> Forms:
    """A gradient of one entry of the batch alone."""
    def forms(case: LayerCase, means: Conventions) -> Iterator[tuple[str, Change]]:
        for at in (0, -1):
            def of_one(s: Steps, x: np.ndarray | None, at: int = at) -> np.ndarray | None:
                if x is None:
                    return None
                keep = s.case.keep
                keep = keep[at][None] if keep is not None and len(keep) > 1 else keep
                Z = None if s.case.Z is None else s.case.Z[at][None]
                X, dY = s.case.X[at][None], s.case.dY[at][None]
                return getattr(type(s)(replace(s.case, X=X, Z=Z, dY=dY, keep=keep), s.means), name)

            yield "the first" if at == 0 else "the last", {name: of_one}

    return forms


def zero(*names: str) -> Change:
    """Nothing arrives."""
    return {x: lambda s, y: None if y is None else 0 * y for x in names}


def without_bias(name: str) -> Forms:
    """A bias is not added, and gets no gradient."""
    no = {name: lambda s, b: None, f"d{name}": lambda s, db: np.zeros_like(getattr(s.case.W, name))}
    return one(no, lambda case: getattr(case.W, name) is not None)


def bias_gradient_missing(name: str) -> Forms:
    """A bias is added, and gets no gradient."""
    return one(zero(f"d{name}"), lambda case: getattr(case.W, name) is not None)


def mean(names: tuple[str, ...], count: Callable[[LayerCase], int]) -> Change:
    """A mean instead of a sum."""
    return {x: lambda s, y: None if y is None else y / count(s.case) for x in names}


def over_batch(case: LayerCase) -> int:
    """How many sequences."""
    return len(case.X)


def over_all(case: LayerCase) -> int:
    """How many tokens ask."""
    return len(case.X) * case.X.shape[1]
