"""Steps of a layer that differ from the right ones: the forms that its mistakes take."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.layer.layer import (
    LayerCase,
    LayerSteps,
    bias_gradient,
    by_head,
    one_below_another,
    projected,
    rotated,
    rotated_back,
    side_by_side,
    summed_by_owner,
    weight_gradient,
)
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import Change, Forms, Steps, Wordings, multiplied, only
from attnmath._formulas.heads import Weights
from attnmath._words.arrays import T

WEIGHT_MATRICES = Weights._fields[:4]
PARAMETER_GRADIENTS = tuple(f"d{name}" for name in Weights._fields)


# ---- heads taken apart and put together ---------------------------------------------------------


def split_alternately(x: np.ndarray, H: int) -> np.ndarray:
    """Entry c of head h stands at c H + h."""
    b, n, Hk = x.shape
    return x.reshape(b, n, Hk // H, H).transpose(0, 3, 1, 2)


def merged_alternately(x: np.ndarray) -> np.ndarray:
    """The other way."""
    b, H, n, k = x.shape
    return x.transpose(0, 2, 3, 1).reshape(b, n, H * k)


def split_by_view(x: np.ndarray, H: int) -> np.ndarray:
    """The numbers read in the shape of heads, without an exchange of axes."""
    b, n, Hk = x.shape
    return x.reshape(b, H, n, Hk // H)


def merged_by_view(x: np.ndarray) -> np.ndarray:
    """The other way."""
    b, H, n, k = x.shape
    return x.reshape(b, n, H * k)


def taken_apart(split: Callable[..., np.ndarray], merge: Callable[..., np.ndarray]) -> Mapping[str, Change]:
    """Heads are split, put together, or both, in a way of their own; forward and back, or back alone."""
    return {
        "out": {"merge": lambda s, f: merge, "merge_back": lambda s, f: split},
        "in": {"split": lambda s, f: split, "split_back": lambda s, f: merge},
        "all": {"merge": lambda s, f: merge, "merge_back": lambda s, f: split,
                "split": lambda s, f: split, "split_back": lambda s, f: merge},
        "out_back": {"merge_back": lambda s, f: split},
        "in_back": {"split_back": lambda s, f: merge},
    }


ALTERNATELY = taken_apart(split_alternately, merged_alternately)
BY_VIEW = taken_apart(split_by_view, merged_by_view)


# ---- matrices turned ----------------------------------------------------------------------------


def matrix(W: np.ndarray, name: str) -> np.ndarray:
    """All heads as one matrix: W_Q, W_K, W_V (d, H k), W_O (H k, d)."""
    return one_below_another(W) if name.endswith("W_O") else side_by_side(W)


def of_matrix(M: np.ndarray, name: str, H: int) -> np.ndarray:
    """The other way."""
    return M.reshape(H, len(M) // H, -1) if name.endswith("W_O") else by_head(M, H)


def transposed_weight(W: np.ndarray, name: str) -> np.ndarray:
    """The matrix of all heads transposed, if it is square."""
    M = matrix(W, name)
    return of_matrix(M.T, name, len(W)) if len(M) == M.shape[1] else W


def turned_in_memory(W: np.ndarray, name: str) -> np.ndarray:
    """The numbers of the transposed matrix, read as if they were those of the matrix."""
    M = matrix(W, name)
    return of_matrix(M.T.reshape(M.shape), name, len(W))


def gradient_turned(name: str) -> Forms:
    """The gradient of one matrix comes transposed."""
    return lambda case, means: iter([
        ("", {f"d{name}": lambda s, x: transposed_weight(x, name)}),
        ("the numbers are read in the other order", {f"d{name}": lambda s, x: turned_in_memory(x, name)}),
    ])


def used_turned(case: LayerCase, means: Conventions) -> Wordings:
    """Matrices that are used transposed, both ways."""
    for names in ([x] for x in WEIGHT_MATRICES), (WEIGHT_MATRICES[:3], WEIGHT_MATRICES):
        for some in names:
            change = {x: lambda s, W, x=x: transposed_weight(W, x) for x in some}
            change |= {f"d{x}": lambda s, dW, x=x: transposed_weight(dW, x) for x in some}
            yield ", ".join(some), change


# ---- blocks exchanged ---------------------------------------------------------------------------


def _weight_at(name: str) -> Callable[[Steps, Any], Any]:
    return lambda s, x: getattr(s.given.W, name)


def _gradient_at(name: str) -> Callable[[Steps, Any], Any]:
    """A gradient of what is at this place, before anything is exchanged."""
    def gradient(s: Steps, x: Any) -> Any:
        letter = name[-1]
        dx = getattr(s, f"d{letter}_flat")
        if "b_" in name:
            return bias_gradient(dx, getattr(s, name[1:]))
        return weight_gradient(s.X if letter == "Q" else s.Z, dx, s.H if letter == "Q" else s.G)

    return gradient


def blocks_exchanged(case: LayerCase, means: Conventions) -> Wordings:
    """W_Q, W_K and W_V, or two of them, at each other's places."""
    for order in ("QVK", "KQV", "VKQ", "KVQ", "VQK"):
        move = {a: b for a, b in zip("QKV", order) if a != b}
        for parts in (["W_", "b_"], ["W_"], ["b_"]):
            values = {p: [getattr(case.W, p + a) for a in move] for p in parts}
            if any(x is None for x in values["W_" if "W_" in parts else "b_"]):
                continue
            if any(len({x.shape for x in v}) > 1 for v in values.values() if v[0] is not None):
                continue
            change = {p + a: _weight_at(p + b) for p in parts for a, b in move.items()}
            change |= {f"d{p}{b}": _gradient_at(f"d{p}{a}") for p in parts for a, b in move.items()}
            words = "weights and biases" if len(parts) == 2 else "weights" if parts == ["W_"] else "biases"
            yield f"{words} of {', '.join('QKV')} used in the order {', '.join(order)}", change


def gradients_exchanged(case: LayerCase, means: Conventions) -> Wordings:
    """Two gradients at each other's places."""
    for a, b in (("Q", "K"), ("Q", "V"), ("K", "V")):
        if getattr(case.W, f"W_{a}").shape == getattr(case.W, f"W_{b}").shape:
            for kinds in "Wb", "W":
                change = {f"d{p}_{x}": _gradient_at(f"d{p}_{y}") for p in kinds for x, y in ((a, b), (b, a))}
                yield f"dW_{a} and dW_{b}", change


# ---- what is left out ---------------------------------------------------------------------------


def dW_K_without_b_Q(case: LayerCase, means: Conventions) -> Wordings:
    """The closed form for a layer without biases."""
    def dkeys(s: Steps) -> np.ndarray:
        Q = rotated(s.split(projected(s.X, s.W_Q, None), s.H), s)
        return s.gamma_back * T(s.dA) @ Q

    def dW_K(s: Steps, x: np.ndarray) -> np.ndarray:
        dK = summed_by_owner(dkeys(s), s.owner_back, s.G)
        return weight_gradient(s.Z, s.split_back(rotated_back(dK, s)), s.G)

    if case.W.b_Q is not None:
        yield "in dW_K alone", {"dW_K": dW_K}
        yield "in all that dK reaches", {"dkeys": lambda s, x: dkeys(s)}


def one_entry(name: str) -> Forms:
    """A gradient of one entry of the batch alone."""
    def forms(case: LayerCase, means: Conventions) -> Wordings:
        for at in (0, -1):
            def of_one(s: Steps, x: np.ndarray | None, at: int = at) -> np.ndarray | None:
                if x is None:
                    return None
                keep = s.given.keep
                keep = keep[at][None] if keep is not None and len(keep) > 1 else keep
                Z = None if s.given.Z is None else s.given.Z[at][None]
                X, dY = s.given.X[at][None], s.given.dY[at][None]
                return getattr(LayerSteps(replace(s.given, X=X, Z=Z, dY=dY, keep=keep), s.means), name)

            yield "the first" if at == 0 else "the last", {name: of_one}

    return forms


def lost(*names: str) -> Change:
    """Nothing arrives."""
    return multiplied(*names, by=lambda s: 0)


def bias_unused(name: str) -> Forms:
    """A bias is not added, and gets no gradient."""
    no = {name: lambda s, b: None, f"d{name}": lambda s, db: np.zeros_like(getattr(s.given.W, name))}
    return only(no, lambda case: getattr(case.W, name) is not None)


def bias_gradient_missing(name: str) -> Forms:
    """A bias is added, and gets no gradient."""
    return only(lost(f"d{name}"), lambda case: getattr(case.W, name) is not None)


def mean(names: tuple[str, ...], count: Callable[[LayerCase], int]) -> Change:
    """A mean instead of a sum."""
    return {x: lambda s, y: None if y is None else y / count(s.given) for x in names}


def over_batch(case: LayerCase) -> int:
    """How many sequences."""
    return len(case.X)


def over_all(case: LayerCase) -> int:
    """How many tokens ask."""
    return len(case.X) * case.X.shape[1]
