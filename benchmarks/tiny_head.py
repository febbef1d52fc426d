"""A head so small that the steps around its products are what counts: attnmath against the same lines in NumPy.

    python benchmarks/tiny_head.py
    python benchmarks/tiny_head.py --size 16 --turns 500

What is measured, and how: benchmarks/README.md.
"""

import argparse
import math
import statistics
from time import perf_counter

import numpy as np

from attnmath import attention_vjp

CALLS = 20  # in a turn: short enough that few turns are interrupted


def lines(dO, Q, K, V, B, gamma):
    """The lines of attention_vjp, without a check of anything."""
    A = gamma * (Q @ K.T) if B is None else gamma * (Q @ K.T) + B
    E = np.exp(A - A.max(axis=-1, keepdims=True))
    P = E / E.sum(axis=-1, keepdims=True)
    O = P @ V
    dV = P.T @ dO
    dP = dO @ V.T
    D = (dO * O).sum(axis=-1, keepdims=True)
    dA = P * (dP - D)
    dQ = gamma * dA @ K
    dK = (gamma * dA).T @ Q
    return dQ, dK, dV, dA, (dA * (Q @ K.T)).sum()


def time_of(call):
    """The time of one call, in microseconds."""
    start = perf_counter()
    for _ in range(CALLS):
        call()
    return (perf_counter() - start) / CALLS * 1e6


def turns(ours, theirs, count):
    """Pairs of times; the two take turns, and change the order each time."""
    for k in range(count):
        if k % 2:
            b = time_of(theirs)
            yield time_of(ours), b
        else:
            a = time_of(ours)
            yield a, time_of(theirs)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=int, default=4, help="queries, keys and features")
    parser.add_argument("--turns", type=int, default=300)
    options = parser.parse_args()
    n = options.size
    rng = np.random.default_rng(0)
    dO, Q, K, V = rng.normal(size=(4, n, n))
    gamma, mask = 1 / math.sqrt(n), np.where(np.tri(n), 0.0, -np.inf)
    for name, B in (("no bias", None), ("causal", mask)):
        found, want = attention_vjp(dO, Q, K, V, B), lines(dO, Q, K, V, B, gamma)
        if not all(np.allclose(x, y) for x, y in zip(found, want) if x is not None):
            raise SystemExit("They compute different things.")

        def ours(B=B):
            return attention_vjp(dO, Q, K, V, B)

        def theirs(B=B):
            return lines(dO, Q, K, V, B, gamma)

        pairs = list(turns(ours, theirs, options.turns))
        low, ratio, high = statistics.quantiles((a / b for a, b in pairs), n=4)
        short = [min(side) for side in zip(*pairs)]
        print(f"{name}: attnmath {short[0]:.1f} us, lines {short[1]:.1f} us, ratio {short[0] / short[1]:.2f};")
        print(f"    of the turns {ratio:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main()
