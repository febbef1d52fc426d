"""Right attention in NumPy, forward and backward, to be called in many ways and to be spoiled."""

from dataclasses import replace

import numpy as np

from attnmath._examine.diagnosis.probes import TRIED, hard, small_problem

NO_ROUNDING = 4  # keys: the weights of Q = 0 are quarters


def T(x):
    return np.swapaxes(x, -1, -2)


def spread(x, q):
    """A group's head of keys for each of its query heads."""
    return np.repeat(x, q.shape[-3] // x.shape[-3], -3) if x.ndim > 2 else x


def weights(q, k, mask=None, bias=None, causal=False, scale=None, dropout_mask=None):
    A = q @ T(k) * (q.shape[-1] ** -0.5 if scale is None else scale)
    A = A if bias is None else A + bias
    n, m = A.shape[-2:]
    if causal:
        A = np.where(np.arange(m) <= np.arange(n)[:, None] + (m - n), A, -np.inf)
    if mask is not None:
        A = np.where(mask, A, -np.inf)
    top = A.max(-1, keepdims=True)
    E = np.exp(A - np.where(np.isneginf(top), 0, top))
    total = E.sum(-1, keepdims=True)
    P = E / np.where(total == 0, 1, total)
    R = 1.0 if dropout_mask is None else dropout_mask
    return P.astype(q.dtype), R


def forward(q, k, v, **options):
    P, R = weights(q, spread(k, q), **options)
    return (P * R) @ spread(v, q)


def backward(do, q, k, v, **options):
    keys, scale = spread(k, q), options.get("scale")
    P, R = weights(q, keys, **options)
    dP = do @ T(spread(v, q)) * R
    dA = P * (dP - (P * dP).sum(-1, keepdims=True))
    gamma = q.dtype.type(q.shape[-1] ** -0.5 if scale is None else scale)
    dk, dv = gathered(gamma * T(dA) @ q, k), gathered(T(P * R) @ do, v)
    grads = gamma * dA @ keys, dk, dv
    bias = options.get("bias")
    if bias is None:
        return grads
    axes = tuple(i for i, size in enumerate(bias.shape) if size == 1 != dA.shape[i])
    return *grads, dA.sum(axes, keepdims=True)


def gathered(dx, x):
    if dx.shape == x.shape:
        return dx
    *b, G, m, d = x.shape
    return dx.reshape(*b, G, -1, m, d).sum(-3)


ALL = ["mask", "bias", "causal", "scale", "dropout_mask"]
OPTIONS = {word: word for word in ALL} | {"groups": None}


def hard_case(sizes=TRIED[0], seed=0, **fields):
    """A problem in which each row of O is a row of V."""
    return hard(sizes, np.random.default_rng(seed), **fields)


def uniform_case(seed=0, G=None, n=5, m=NO_ROUNDING, **fields):
    """A problem in which all weights are 1/4, and no sum rounds in any format."""
    rng = np.random.default_rng(seed)
    case = small_problem(replace(TRIED[0], n=n, m=m, d_v=16), rng, G=G, **fields)
    V, dO = (rng.integers(-1, 2, x.shape).astype(float) for x in (case.V, case.dO))
    return replace(case, V=V, dO=dO)


def stubborn(until):
    """A function that lets nothing stop it before the event."""

    def candidate(*args):
        while not until.is_set():
            try:
                until.wait(0.05)
            except BaseException:
                continue

    return candidate
