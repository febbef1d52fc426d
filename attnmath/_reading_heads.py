"""What the output of a head hangs on: the weight of a key, its gradients, its removal.

Derived in chapters/reading_heads.md.
"""

from typing import NamedTuple

from attnmath._arrays import Array, T, ahead, column, flat, nonzero, row, rowsum, sqrt
from attnmath._heads import MultiheadMap
from attnmath._layer_arrays import to_heads


class Associations(NamedTuple):
    """Four tables of queries and keys for every head, (..., H, n, m) each.

    P are the weights, P_dP is gradient times weight, dA the gradient of the scores, and
    gain what the loss gains without the key if it is linear in the output of the head.
    """

    P: Array
    P_dP: Array
    dA: Array
    gain: Array


def without_key(P: Array, V: Array) -> Array:
    """The output of a head without one of its keys, for each query and each key.

    P (..., n, m), V (..., m, d_v) -> (..., m, n, d_v)

    Zero where the weight of the key is 1: it is the only one.
    """
    rest = nonzero(1 - P)
    return (ahead(P @ V) - column(T(P)) * row(V)) / column(T(rest))


def associations(dY: Array, heads: MultiheadMap, W_O: Array) -> Associations:
    """The tables of a layer's heads, from the gradient of the loss in its output.

    dY (..., n, d), W_O (H, d_v, d), P and V of the heads (..., H, n, m), (..., H, m, d_v)
    -> P, P_dP, dA, gain, each (..., H, n, m)

    The gain is zero where the weight of the key is 1.
    """
    P, V = heads.P, heads.V
    dO = to_heads(dY, T(W_O))
    P_dP = P * (dO @ T(V))
    dA = P_dP - P * rowsum(P_dP)
    gain = -dA / nonzero(1 - P)
    return Associations(P, P_dP, dA, gain)


def moved(heads: MultiheadMap, W_O: Array) -> Array:
    """How far the output of the layer moves when a head loses a key: a length.

    W_O (H, d_v, d), P, V, O of the heads -> (..., H, n, m)
    """
    change = without_key(heads.P, heads.V) - ahead(heads.O)
    change = change @ ahead(W_O)
    return T(flat(sqrt(rowsum(change * change))))
