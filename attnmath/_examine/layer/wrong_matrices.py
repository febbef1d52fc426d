"""Heads taken apart in another way, matrices turned, blocks exchanged: mistakes of a layer's weights."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from attnmath._examine.layer import layer
from attnmath._examine.layer.layer import LayerCase, weight_gradient
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import Forms, Mistake, StepChanges, Steps, Wordings, only
from attnmath._formulas.heads import Weights

MULTI, VJP = "chapters/heads.md, eq:multihead_map", "chapters/heads.md, eq:multihead_vjp"
WEIGHT_MATRICES = Weights._fields[:4]


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


def taken_apart(split: Callable[..., np.ndarray], merge: Callable[..., np.ndarray]) -> Mapping[str, StepChanges]:
    """Heads are split, put together, or both, in a way of their own; forward and back, or back alone."""
    out_back: StepChanges = {"merge_back": lambda s, f: split}
    in_back: StepChanges = {"split_back": lambda s, f: merge}
    out: StepChanges = {"merge": lambda s, f: merge, **out_back}
    into: StepChanges = {"split": lambda s, f: split, **in_back}
    return {"out": out, "in": into, "all": {**out, **into}, "out_back": out_back, "in_back": in_back}


ALTERNATELY = taken_apart(split_alternately, merged_alternately)
BY_VIEW = taken_apart(split_by_view, merged_by_view)


# ---- matrices turned ----------------------------------------------------------------------------


def matrix(W: np.ndarray, name: str) -> np.ndarray:
    """All heads as one matrix: W_Q, W_K, W_V (d, H k), W_O (H k, d)."""
    return layer.one_below_another(W) if name.endswith("W_O") else layer.side_by_side(W)


def of_matrix(M: np.ndarray, name: str, H: int) -> np.ndarray:
    """The other way."""
    return M.reshape(H, len(M) // H, -1) if name.endswith("W_O") else layer.by_head(M, H)


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
            return layer.bias_gradient(dx, getattr(s, name[1:]))
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


MATRIX_MISTAKES: list[Mistake] = [
    # the way through W_O
    Mistake("W_O_untransposed", "the way back uses W_O, not its transpose",
            only({"W_O_back": lambda s, x: x.T if len(x) == x.shape[1] else x}), VJP, "dO = dY W_O^T"),
    Mistake("W_O_ignored_back", "the way back leaves out W_O: dO = dY",
            only({"W_O_back": lambda s, x: np.eye(len(x)) if len(x) == x.shape[1] else x}), VJP, "dO = dY W_O^T"),
    Mistake("heads_split_interleaved", "the way back gives the heads every H-th entry of dY W_O^T",
            only(ALTERNATELY["out_back"]), VJP, "entry c of head h stands at h d_v + c"),
    Mistake("heads_split_by_view_back", "the way back splits dY W_O^T into heads without exchanging axes",
            only(BY_VIEW["out_back"]), VJP, "reshape to (b, n, H, d_v), then exchange n and H"),
    Mistake("heads_interleaved", "the heads are concatenated interleaved: entry c of head h at c H + h",
            only(ALTERNATELY["out"]), MULTI, "entry c of head h stands at h d_v + c"),
    Mistake("heads_merged_by_view", "the heads are put together without exchanging axes: tokens and heads mix",
            only(BY_VIEW["out"]), MULTI, "exchange n and H before the reshape to (b, n, H d_v)"),
    Mistake("heads_split_interleaved_in", "queries, keys and values are split into heads by every H-th entry",
            only(ALTERNATELY["in"]), MULTI, "entry c of head h stands at h d_k + c"),
    Mistake("heads_split_by_view", "queries, keys and values are split into heads without exchanging axes",
            only(BY_VIEW["in"]), MULTI, "reshape to (b, n, H, d_k), then exchange n and H"),
    Mistake("heads_all_interleaved", "all heads are interleaved: entry c of head h at c H + h",
            only(ALTERNATELY["all"]), MULTI, "entry c of head h stands at h d_k + c"),
    Mistake("heads_all_by_view", "heads are split and put together without exchanging axes: tokens and heads mix",
            only(BY_VIEW["all"]), MULTI, "reshape to (b, n, H, d_k), then exchange n and H"),
    Mistake("heads_merged_interleaved_back", "dQ, dK and dV are put together with their heads interleaved",
            only(ALTERNATELY["in_back"]), VJP, "entry c of head h stands at h d_k + c"),
    Mistake("heads_merged_by_view_back", "dQ, dK and dV are put together without exchanging axes",
            only(BY_VIEW["in_back"]), VJP, "exchange n and H before the reshape"),
    # matrices
    *(Mistake(f"d{x}_transposed", f"d{x} is transposed", gradient_turned(x), VJP,
              f"d{x} has the shape of {x}") for x in WEIGHT_MATRICES),
    Mistake("W_used_transposed", "a weight matrix is used transposed", used_turned, MULTI,
            "x W, where a linear layer of PyTorch keeps W^T"),
    Mistake("W_O_transposed_once", "W_O is used transposed in the way forward alone",
            only({"Y": lambda s, Y: Y - s.C @ (s.W_O.reshape(s.C.shape[2], -1)
                                                 - transposed_weight(s.W_O, "W_O").reshape(s.C.shape[2], -1))}),
            MULTI, "Y = sum O_h W_O,h"),
    Mistake("blocks_exchanged", "blocks of the projections stand at each other's places", blocks_exchanged,
            MULTI, "look up the order in which queries, keys and values are packed"),
    Mistake("gradients_exchanged", "two gradients of weights stand at each other's places",
            gradients_exchanged, VJP, "look up the order in which they are returned"),
]
