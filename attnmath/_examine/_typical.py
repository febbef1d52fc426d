"""How far a right answer is typically off: the roundings of a short format, were they independent.

The bounds are for errors that all point the same way. Here they scatter: variances add up
instead of sizes, but for an error that a whole row shares, which is that of the sum of its
weights or of its D. A rounding is taken to be uniform in its interval, and every array to be
rounded, as a chain of simple operations in the short format does. A sum over many entries sees
mistakes that hide in the roundings of each: a factor of 1.01 in bfloat16, a row that is zero.
"""

import numpy as np

from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._empty import changes
from attnmath._examine._steps import Steps, T, grouped, rowsum, summed_to
from attnmath._roundoff import FORMATS, unit_roundoff
from attnmath._tolerance import SCATTER

ROWS = 32  # as for the bounds: the growing sum of a gradient may be stored after so many rows


def typical(case: Case, means: Conventions, dtype: str) -> Answer | None:
    """The standard deviation of each entry; None where roundings are alike, or the scores too large."""
    if case.dO.shape[2] > 1 and (case.dO == case.dO[:, :, :1]).all():  # then dP has the same rows
        return None
    s = Steps(case, means, changes(means))
    u = unit_roundoff(dtype) ** 2 / 3  # the variance of one rounding
    least = (2.0**-25 if dtype == "float16" else 2.0 ** FORMATS[dtype].low) ** 2 / 3
    shown, drops = s.P > 0, 0 if case.R is None else 2
    Q2, K2, V2, dO2, P2, dP2, dA2, G2 = (
        x * x for x in (s.Q, s.keys, s.values, s.dO, s.P, s.dP, s.dA, s.dP - s.D)
    )  # fmt: skip
    A, g2, G = np.where(shown, s.A, 0.0), s.gamma**2, case.K.shape[1]
    below = np.where(shown, A - np.where(shown, s.A, -1e300).max(-1, keepdims=True), 0.0)
    # The exponent of a weight; the sum of the row; the weight; the output.
    exponent = 2 * g2 * (Q2 @ T(K2)) + 2 * (s.gamma * s.QK) ** 2 + A**2 + below**2 + 4
    exponent = np.where(shown, u * exponent, 0.0)
    if exponent.max(initial=0.0) > SCATTER**2:
        return None
    shared = rowsum(P2 * exponent)
    P_off = P2 * (2 * exponent + (2 + drops) * u) + least * shown
    PR_off, PR2 = P_off * s.R**2, P2 * s.R**2
    O_off = PR_off @ V2 + s.O**2 * (2 * shared + 2 * u) + least
    # D; then dA, what each entry has of its own, and what its row shares.
    D_off = rowsum(dO2 * (O_off + u * s.O**2)) + rowsum((P_off + u * P2) * dP2) + 2 * u * s.D**2
    own = P_off * G2 + 2 * u * dA2 + P2 * u * ((1 + drops) * dP2 + G2) + least * shown
    both = own + P2 * D_off + 2 * dA2 * shared
    of_rows = (s.P @ s.keys) ** 2 * D_off + 2 * (s.dA @ s.keys) ** 2 * shared
    per_n, per_m = 1 + case.Q.shape[2] // ROWS, 1 + case.K.shape[2] // ROWS
    dQ_off = g2 * ((own + per_m * u * dA2) @ K2 + of_rows) + least * shown @ K2 + (4 + per_m) * u * s.dQ**2 + least
    dK_off = T(g2 * (both + per_n * u * dA2) + least * shown) @ Q2 + (4 + per_n) * u * s.dkeys**2 + least
    dV_off = T(PR_off + per_n * u * PR2) @ dO2 + (2 + per_n) * u * s.dvalues**2 + least
    dK_off = grouped(dK_off, s.owner, G) + 2 * u * s.dK**2
    dV_off = grouped(dV_off, s.owner, G) + 2 * u * s.dV**2
    dB_off = None if case.bias is None else summed_to(both + 2 * u * dA2, case.bias) + 2 * u * s.dB**2
    return Answer(*(None if x is None else np.sqrt(x) for x in (O_off, dQ_off, dK_off, dV_off, dB_off)))
