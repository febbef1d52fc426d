"""Entry by entry, what second derivatives do in a tile: weights, cotangents, and their tangents."""

import triton
import triton.language as tl

from attnmath.torch.triton_tile import dropped, factors, moving_scores, tangent_of_product, times


@triton.jit
def cotangents(a, b, a_dot, b_dot, R):
    """dP = R a b^T and its tangent, from dO and V in either order; None where it is 0."""
    dP, _ = None, None
    if a is not None and b is not None:
        dP = dropped(times(a, tl.trans(b)), R)
    dP_dot = dropped(tangent_of_product(a, b, a_dot, b_dot), R)
    if dP_dot is None:
        dP_dot, _ = None, None  # the compiler takes no other None into a tuple
    return dP, dP_dot


@triton.jit
def sum_of(a, b):
    """a + b, where None is 0."""
    out = a
    if a is None:
        out = b
    elif b is not None:
        out = a + b
    return out


@triton.jit
def product_of(a, b):
    """a b entry by entry, where None is 0."""
    out = None
    if a is not None and b is not None:
        out = a * b
    return out


@triton.jit
def weights(A, A_dot, c_max, share, mu):
    """P = exp(A - c) / s and P_dot = P (A_dot - mu), None if the scores do not move."""
    P = tl.exp(A - c_max) * share
    P_dot, _ = None, None
    if A_dot is not None:
        P_dot = P * (A_dot - mu)
    return P, P_dot


@triton.jit
def of_scores(P, P_dot, dP, dP_dot, D, D_dot):
    """dA = P (dP - D), and its tangent P_dot (dP - D) + P (dP_dot - D_dot)."""
    dA, dA_dot = None, None
    if dP is not None:
        dA = P * (dP - D)
        dA_dot = product_of(P_dot, dP - D)
    moved = -D_dot
    if dP_dot is not None:
        moved = dP_dot - D_dot
    dA_dot = sum_of(dA_dot, P * moved)
    return dA, dA_dot


@triton.jit
def before_cap(dA, dA_dot, T, X_dot, c):
    """What goes to q k: each times the derivative of the cap, which moves with X_dot."""
    if T is not None:
        bend = 1 - T * T
        if dA is not None:
            if X_dot is not None:
                dA_dot = dA_dot - 2 / c.cap * X_dot * T * dA
            dA = dA * bend
        dA_dot = dA_dot * bend
    return dA, dA_dot


@triton.jit
def back(h, i, j, a, b, a_dot, b_dot, of_a, of_b, of_a_dot, of_b_dot, sums, x, step, c):
    """All of a tile, from the factors of q k and of dP in either order, with the sums of its rows.

    -> P and P_dot with dropout, dA, dA_dot, T, X_dot
    """
    c_max, share, mu, D, D_dot = sums
    A, T, X_dot, A_dot = moving_scores(a, b, a_dot, b_dot, h, i, j, x, step, c)
    P, P_dot = weights(A, A_dot, c_max, share, mu)
    R = factors(h, i, j, c)
    dP, dP_dot = cotangents(of_a, of_b, of_a_dot, of_b_dot, R)
    dA, dA_dot = of_scores(P, P_dot, dP, dP_dot, D, D_dot)
    PR, PR_dot = dropped(P, R), None
    if P_dot is not None:
        PR_dot = dropped(P_dot, R)
    return PR, PR_dot, dA, dA_dot, T, X_dot
