"""False statements, collected without knowledge of the prover.

Each case claims that two functions of real arrays are equal for all real inputs, and the claim is wrong:
`at` holds real inputs at which both sides have real finite values that differ.  Where `at` is empty, the
kind says why: "vacuous: ..." (there is nothing to prove), "state: ..." (the functions change from call to
call) or "chance: ..." (the values are drawn at random).
"""
import bisect
import concurrent.futures
import contextlib
import copy
import dataclasses
import fractions
import functools
import heapq
import inspect
import itertools
import json
import math
import numbers
import operator
import os
import pickle
import random
import statistics
import struct
import sys
import time
from collections import Counter, namedtuple
from typing import Callable, NamedTuple

import numpy as np


class Case(NamedTuple):
    kind: str            # short phrase; at least 60 different ones
    name: str            # unique, short phrase saying what is claimed
    make: Callable       # () -> (left, right), fresh functions (fresh state)
    shapes: tuple        # the arguments handed to prove: shapes, or arrays where the case is about that
    at: tuple = ()       # real float64 inputs at which the sides differ; () if vacuous or differing by state
    constants: dict = {}  # keyword constants, if any


# ---------------------------------------------------------------- inputs and shapes

ONE, TWO, THREE_LETTERS = ((),), ((), ()), ((), (), ())
V2, V3, V4, M22, M33 = ((2,),), ((3,),), ((4,),), ((2, 2),), ((3, 3),)


def vec(*entries):
    return np.array(entries, dtype=float)


def grid(*shape, turn=1.0):
    """An irregular array of the given shape."""
    return 2 * np.sin(turn + np.arange(math.prod(shape))).reshape(shape)


A2, B2, C2 = vec([1, 2], [3, 5]), vec([2, -1], [4, 3]), vec([0, 1], [-2, 1])
A3, B3 = vec([2, 1, 0], [1, 3, 1], [0, -1, 4]), vec([1, 0, 2], [0, 1, 1], [3, 0, 1])
QKV = (grid(3, 4), grid(3, 4, turn=2.0), grid(3, 4, turn=5.0))
THREE_34 = ((3, 4),) * 3


# ---------------------------------------------------------------- ways to make two fresh functions


def pair(left, right):
    """Two functions without a state."""
    return lambda: (left, right)


def same(x):
    return x


def first(x):
    return np.ravel(x)[0]


def doubled_if(test):
    """Claims x = (2 x if test(x) else x): tests that hold for arrays of floats."""
    return pair(lambda x: 2 * x if test(x) else x, same)


def doubled_unless(action, error=Exception):
    """Claims x = (2 x, but x if action(x) raises): actions that floats survive."""
    def left(x):
        try:
            action(x)
        except error:
            return x
        return 2 * x
    return pair(left, same)


# ---------------------------------------------------------------- formulas that several cases share

PRIME_NAMES = {
    "2^31-1": 2**31 - 1, "2^61-1": 2**61 - 1, "2^89-1": 2**89 - 1, "2^107-1": 2**107 - 1,
    "2^127-1": 2**127 - 1, "10^9+7": 10**9 + 7, "10^9+9": 10**9 + 9, "998244353": 998244353,
    "2^64-2^32+1": 2**64 - 2**32 + 1, "2^255-19": 2**255 - 19, "2^521-1": 2**521 - 1,
    "65537": 65537, "257": 257, "101": 101, "7": 7, "5": 5, "3": 3, "2": 2,
}
PRIMES = tuple(PRIME_NAMES.values())


def softmax(s, axis=-1):
    e = np.exp(s)
    return e / e.sum(axis=axis, keepdims=True)


def attention(q, k, v, scale=0.5):
    return softmax(scale * (q @ k.T)) @ v


def masked_attention(q, k, v, mask):
    return softmax(np.where(mask, q @ k.T, -np.inf)) @ v


def heads(x, n):
    return x.reshape(x.shape[0], n, -1).transpose(1, 0, 2)


def logsumexp(s):
    return np.log(np.exp(s).sum())


def layer_norm(x, eps=1):
    c = x - x.mean()
    return c / np.sqrt((c * c).mean() + eps)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def product(factors):
    return functools.reduce(operator.mul, factors)


def power_by_loop(x, n):
    y = x
    for _ in range(n - 1):
        y = y * x
    return y


def power_by_squaring(x, n):
    y = 1
    while n:
        if n & 1:
            y = y * x
        x, n = x * x, n >> 1
    return y


def taylor_exp(x, terms):
    return sum(x**k / math.factorial(k) for k in range(terms))


def motzkin(x, y, c):
    return x**4 * y**2 + x**2 * y**4 + 1 - c * x**2 * y**2


def through_root(f):
    """sqrt(f^2), which is |f|."""
    return lambda *a: np.sqrt(f(*a) * f(*a))


def is_its_root(f):
    """Claims sqrt(f^2) = f, so that f is never negative."""
    return pair(through_root(f), f)


ROOT = (
    Case("sign of a root", "sqrt(x^2) = x", pair(lambda x: np.sqrt(x * x), same), ONE, (-1.0,)),
    Case("sign of a root", "sqrt(x^2) = -x",
         pair(lambda x: np.sqrt(x**2), lambda x: -x), V3, (vec(1, 2, 3),)),
    Case("sign of a root", "sqrt(9 x^2) = 3 x",
         pair(lambda x: np.sqrt(9 * x * x), lambda x: 3 * x), ONE, (-1.0,)),
    Case("sign of a root", "sqrt(c^2 x^2) = c x",
         pair(lambda c, x: np.sqrt(c**2 * (x * x).sum()), lambda c, x: c * np.sqrt((x * x).sum())),
         ((), (3,)), (-2.0, vec(1, 2, 2))),
    Case("sign of a root", "sqrt((x - y)^2) = x - y", is_its_root(lambda x, y: x - y), TWO, (1.0, 2.0)),
    Case("sign of a root", "sqrt(x^4 y^2) = x^2 y",
         pair(lambda x, y: np.sqrt(x**4 * y**2), lambda x, y: x**2 * y), TWO, (2.0, -1.0)),
    Case("sign of a root", "sqrt(x^2 + 2xy + y^2) = x + y",
         pair(lambda x, y: np.sqrt(x * x + 2 * x * y + y * y), lambda x, y: x + y), TWO, (-2.0, 1.0)),
    Case("sign of a root", "sqrt(x^6) = x^3", pair(lambda x: np.sqrt(x**6), lambda x: x**3), ONE, (-2.0,)),
    Case("root of a product", "sqrt(x^2 y) = x sqrt(y)",
         pair(lambda x, y: np.sqrt(x * x * y), lambda x, y: x * np.sqrt(y)), TWO, (-1.0, 2.0)),
    Case("root of a product", "sqrt(xy) sqrt(x/y) = x",
         pair(lambda x, y: np.sqrt(x * y) * np.sqrt(x / y), lambda x, y: x), TWO, (-1.0, -1.0)),
    Case("root of a product", "sqrt(xy) sqrt(yz) sqrt(zx) = xyz",
         pair(lambda x, y, z: np.sqrt(x * y) * np.sqrt(y * z) * np.sqrt(z * x), lambda x, y, z: x * y * z),
         THREE_LETTERS, (-1.0, -1.0, -2.0)),
    Case("root of a product", "sqrt(xy) sqrt(yz) = y sqrt(xz)",
         pair(lambda x, y, z: np.sqrt(x * y) * np.sqrt(y * z), lambda x, y, z: y * np.sqrt(x * z)),
         THREE_LETTERS, (-1.0, -2.0, -3.0)),
    Case("root of a product", "sqrt(-x)^2 = x", pair(lambda x: np.sqrt(-x) ** 2, same), ONE, (-3.0,)),
    Case("root of a quotient", "sqrt(x^2 / y^2) = x / y",
         pair(lambda x, y: np.sqrt(x * x / (y * y)), lambda x, y: x / y), TWO, (1.0, -2.0)),
    Case("root of a quotient", "sqrt(x / y) = sqrt(xy) / y",
         pair(lambda x, y: np.sqrt(x / y), lambda x, y: np.sqrt(x * y) / y), TWO, (-1.0, -2.0)),
    Case("root of a quotient", "sqrt(x^2 + y^2) / y = sqrt(1 + (x/y)^2)",
         pair(lambda x, y: np.sqrt(x * x + y * y) / y, lambda x, y: np.sqrt(1 + (x / y) ** 2)),
         TWO, (1.0, -2.0)),
    Case("root of a quotient", "1 / sqrt(1/x^2) = x",
         pair(lambda x: 1 / np.sqrt(1 / x**2), same), ONE, (-2.0,)),
    Case("root of a sum", "sqrt(x^2 + y^2) = x + y",
         pair(lambda x, y: np.sqrt(x * x + y * y), lambda x, y: x + y), TWO, (3.0, 4.0)),
    Case("root of a sum", "sqrt(x + y) = sqrt(x) + sqrt(y)",
         pair(lambda x, y: np.sqrt(x + y), lambda x, y: np.sqrt(x) + np.sqrt(y)), TWO, (1.0, 2.0)),
    Case("root of a sum", "sqrt(x^2) + sqrt(y^2) = sqrt((x+y)^2)",
         pair(lambda x, y: np.sqrt(x * x) + np.sqrt(y * y), lambda x, y: np.sqrt((x + y) ** 2)),
         TWO, (1.0, -2.0)),
    Case("root of a sum", "sqrt(x^2 + y^2 + 2 sqrt(x^2 y^2)) = x + y",
         pair(lambda x, y: np.sqrt(x**2 + y**2 + 2 * np.sqrt(x**2 * y**2)), lambda x, y: x + y),
         TWO, (1.0, -2.0)),
    Case("root of a sum", "the conjugate: sqrt(x^2+1) - x = 1/(sqrt(x^2+1) - x)",
         pair(lambda x: np.sqrt(x * x + 1) - x, lambda x: 1 / (np.sqrt(x * x + 1) - x)), ONE, (1.0,)),
    Case("nested roots", "sqrt((sqrt(x^2+1) - 2)^2) = sqrt(x^2+1) - 2",
         is_its_root(lambda x: np.sqrt(x * x + 1) - 2), ONE, (0.5,)),
    Case("nested roots", "sqrt(x - 2 sqrt(x-1)) = sqrt(x-1) - 1",
         pair(lambda x: np.sqrt(x - 2 * np.sqrt(x - 1)), lambda x: np.sqrt(x - 1) - 1), ONE, (1.25,)),
    Case("nested roots", "sqrt(sqrt(x^4)) = x", pair(lambda x: np.sqrt(np.sqrt(x**4)), same), ONE, (-2.0,)),
    Case("nested roots", "sqrt(x + y - 2 sqrt(xy)) = sqrt(x) - sqrt(y)",
         pair(lambda x, y: np.sqrt(x + y - 2 * np.sqrt(x * y)), lambda x, y: np.sqrt(x) - np.sqrt(y)),
         TWO, (1.0, 4.0)),
    Case("nested roots", "sqrt(3 - 2 sqrt 2) x = (1 - sqrt 2) x",
         pair(lambda x: np.sqrt(3 - 2 * np.sqrt(2 + 0 * x)) * x, lambda x: (1 - np.sqrt(2 + 0 * x)) * x),
         ONE, (1.0,)),
    Case("nested roots", "sqrt(5 + 2 sqrt 6) x = (sqrt 3 - sqrt 2) x",
         pair(lambda x: np.sqrt(5 + 2 * np.sqrt(0 * x + 6)) * x,
              lambda x: (np.sqrt(0 * x + 3) - np.sqrt(0 * x + 2)) * x), ONE, (1.0,)),
    Case("root of a number", "sqrt(289) x = -17 x",
         pair(lambda x: np.sqrt(0 * x + 289) * x, lambda x: -17 * x), ONE, (1.0,)),
    Case("root of a number", "sqrt(2/9) x = -sqrt(2)/3 x",
         pair(lambda x: np.sqrt((x - x + 2) / 9) * x, lambda x: -np.sqrt(x - x + 2) / 3 * x), ONE, (1.0,)),
    Case("root of a number", "sqrt(2) sqrt(3) x = -sqrt(6) x",
         pair(lambda x: np.sqrt(0 * x + 2) * np.sqrt(0 * x + 3) * x, lambda x: -np.sqrt(0 * x + 6) * x),
         ONE, (1.0,)),
    Case("root of a number", "sqrt(2) + sqrt(3) = sqrt(10)",
         pair(lambda x: (np.sqrt(2) + np.sqrt(3)) * x, lambda x: np.sqrt(10) * x), V2, (vec(1, 2),)),
    Case("root of a number", "sqrt(50) x = 7 x",
         pair(lambda x: np.sqrt(50 + 0 * x) * x, lambda x: 7 * x), ONE, (1.0,)),
    Case("root of a number", "sqrt(2) + sqrt(5) = sqrt(7 - 2 sqrt(10))",
         pair(lambda x: x * (np.sqrt(0 * x + 2) + np.sqrt(0 * x + 5)),
              lambda x: x * np.sqrt(7 - 2 * np.sqrt(0 * x + 10))), ONE, (1.0,)),
    Case("root beside an exponential", "sqrt(exp(2x)) = -exp(x)",
         pair(lambda x: np.sqrt(np.exp(2 * x)), lambda x: -np.exp(x)), ONE, (1.0,)),
    Case("root beside an exponential", "sqrt(x^2 exp(2x)) = x exp(x)",
         pair(lambda x: np.sqrt(x**2 * np.exp(2 * x)), lambda x: x * np.exp(x)), V2, (vec(1, -1),)),
    Case("root beside an exponential", "sqrt(exp(2x) - 2 exp(x) + 1) = exp(x) - 1",
         pair(lambda x: np.sqrt(np.exp(2 * x) - 2 * np.exp(x) + 1), lambda x: np.exp(x) - 1), ONE, (-1.0,)),
    Case("root beside an exponential", "sqrt(cosh^2 - 1) = sinh",
         pair(lambda x: np.sqrt(np.cosh(x) ** 2 - 1), np.sinh), ONE, (-1.0,)),
    Case("root beside an exponential", "sqrt(log(x)^2) = log(x)",
         pair(lambda x: np.sqrt(np.log(x) ** 2), np.log), ONE, (0.5,)),
    Case("root beside an exponential", "sqrt(1 - tanh^2) = -1/cosh",
         pair(lambda x: np.sqrt(1 - np.tanh(x) ** 2), lambda x: -1 / np.cosh(x)), ONE, (0.5,)),
    Case("half powers", "(x^2)^0.5 = x", pair(lambda x: (x * x) ** 0.5, same), ONE, (-2.0,)),
    Case("half powers", "(x^2)^1.5 = x^3", pair(lambda x: (x * x) ** 1.5, lambda x: x**3), ONE, (-2.0,)),
    Case("half powers", "(x^2)^-0.5 = 1/x",
         pair(lambda x: np.power(x * x, -0.5), lambda x: 1 / x), ONE, (-2.0,)),
    Case("half powers", "(x^4)^0.25 = x", pair(lambda x: (x**4) ** 0.25, same), ONE, (-2.0,)),
    Case("half powers", "x^1.5 = x^0.5 x^2",
         pair(lambda x: x**1.5, lambda x: x**0.5 * x**2), ONE, (4.0,)),
    Case("half powers", "(x^2)^y = x^(2y)",
         pair(lambda x, y: (x * x) ** y, lambda x, y: x ** (2 * y)), TWO, (-2.0, 0.5)),
    Case("half powers", "((x^2)^(1/4))^2 = x",
         pair(lambda x: ((x * x) ** (1 / 4)) ** 2, same), ONE, (-2.0,)),
    Case("cube roots", "cbrt(x)^2 = x", pair(lambda x: np.cbrt(x) ** 2, same), ONE, (8.0,)),
    Case("cube roots", "cbrt(x + y) = cbrt(x) + cbrt(y)",
         pair(lambda x, y: np.cbrt(x + y), lambda x, y: np.cbrt(x) + np.cbrt(y)), TWO, (1.0, 8.0)),
    Case("cube roots", "cbrt(x^2) = (x^2)^0.5",
         pair(lambda x: np.cbrt(x * x), lambda x: (x * x) ** 0.5), ONE, (8.0,)),
    Case("hypot", "hypot(x, 0) = x", pair(lambda x: np.hypot(x, 0), same), ONE, (-1.0,)),
    Case("hypot", "hypot(cx, cy) = c hypot(x, y)",
         pair(lambda c, x, y: np.hypot(c * x, c * y), lambda c, x, y: c * np.hypot(x, y)),
         THREE_LETTERS, (-1.0, 3.0, 4.0)),
    Case("hypot", "hypot(x, x) = 2 sqrt(x^2)",
         pair(lambda x: np.hypot(x, x), lambda x: 2 * np.sqrt(x * x)), ONE, (1.0,)),
    Case("norm with a factor", "|c x| = c |x|",
         pair(lambda c, x: np.linalg.norm(c * x), lambda c, x: c * np.linalg.norm(x)),
         ((), (3,)), (-1.0, vec(1, 2, 2))),
    Case("norm with a factor", "|-x| = -|x|",
         pair(lambda x: np.linalg.norm(-x), lambda x: -np.linalg.norm(x)), V3, (vec(1, 2, 2),)),
    Case("norm with a factor", "(cx)/|cx| = x/|x|",
         pair(lambda c, x: c * x / np.linalg.norm(c * x), lambda c, x: x / np.linalg.norm(x)),
         ((), (3,)), (-2.0, vec(1, 2, 2))),
    Case("norm with a factor", "|x y^T| = x[0] |y| for one row",
         pair(lambda x, y: np.linalg.norm(np.outer(x, y)), lambda x, y: x[0] * np.linalg.norm(y)),
         ((1,), (3,)), (vec(-1), vec(1, 2, 2))),
    Case("norm of a sum", "norm(x + y) = norm(x) + norm(y)",
         pair(lambda x, y: np.linalg.norm(x + y), lambda x, y: np.linalg.norm(x) + np.linalg.norm(y)),
         ((3,), (3,)), (vec(1, 2, 2), vec(0, 3, 4))),
    Case("norm of a sum", "|x|^2 + |y|^2 = |x + y|^2 (orthogonal only)",
         pair(lambda x, y: (x**2).sum() + (y**2).sum(), lambda x, y: ((x + y) ** 2).sum()),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("norm of a sum", "(x.y)^2 = |x|^2 |y|^2 (parallel only)",
         pair(lambda x, y: (x @ y) ** 2, lambda x, y: (x @ x) * (y @ y)),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("norm of a sum", "the parallelogram law without its factor",
         pair(lambda x, y: ((x + y) ** 2).sum() + ((x - y) ** 2).sum(), lambda x, y: x @ x + y @ y),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("norm ord and axis", "the 1-norm is the sum",
         pair(lambda x: np.linalg.norm(x, ord=1), lambda x: x.sum()), V3, (vec(1, -2, 3),)),
    Case("norm ord and axis", "the 1-norm is the 2-norm",
         pair(lambda x: np.linalg.norm(x, ord=1), np.linalg.norm), V3, (vec(1, 2, 3),)),
    Case("norm ord and axis", "the 2-norm of a matrix is its Frobenius norm",
         pair(lambda x: np.linalg.norm(x, ord=2), np.linalg.norm), M22, (A2,)),
    Case("norm ord and axis", "row norms are column norms",
         pair(lambda x: np.linalg.norm(x, axis=0), lambda x: np.linalg.norm(x, axis=1)), M22, (A2,)),
    Case("norm ord and axis", "the maximum norm is the last entry",
         pair(lambda x: np.linalg.norm(x, ord=np.inf), lambda x: x[-1]), V3, (vec(5, 2, 3),)),
    Case("norm ord and axis", "the 0-norm is the length",
         pair(lambda x: np.linalg.norm(x, ord=0), lambda x: len(x)), V3, (vec(5, 0, 3),)),
)

DISGUISE = (
    Case("absolute value in disguise", "sqrt(x^2)/x = 1",
         pair(lambda x: np.sqrt(x * x) / x, lambda x: x / x), ONE, (-1.0,)),
    Case("absolute value in disguise", "(x + sqrt(x^2))/2 = x",
         pair(lambda x: (x + np.sqrt(x * x)) / 2, same), ONE, (-1.0,)),
    Case("absolute value in disguise", "(x + y + sqrt((x-y)^2))/2 = x",
         pair(lambda x, y: (x + y + np.sqrt((x - y) ** 2)) / 2, lambda x, y: x), TWO, (1.0, 2.0)),
    Case("absolute value in disguise", "sqrt((x-1)^2) + sqrt((x-2)^2) = 2x - 3",
         pair(lambda x: np.sqrt((x - 1) ** 2) + np.sqrt((x - 2) ** 2), lambda x: 2 * x - 3), ONE, (1.5,)),
    Case("absolute value in disguise", "exp(log(x^2)/2) = x",
         pair(lambda x: np.exp(np.log(x * x) / 2), same), ONE, (-1.0,)),
    Case("absolute value in disguise", "x^2/sqrt(x^2) = x",
         pair(lambda x: x * x / np.sqrt(x * x), same), V2, (vec(1, -2),)),
    Case("root of a number", "sqrt(15 x^4) = -sqrt(15) x^2",
         pair(lambda x: 4 * np.sqrt(15 * x**4 / 16), lambda x: -np.sqrt(15 + 0 * x) * x * x), ONE, (1.0,)),
    Case("negative only far away", "sqrt((x + 1000)^2) = x + 1000",
         is_its_root(lambda x: x + 1000), ONE, (-2000.0,)),
    Case("negative only far away", "sqrt((x + 10^40)^2) = x + 10^40",
         is_its_root(lambda x: x + 10.0**40), ONE, (-3e40,)),
    Case("negative only far away", "sqrt((exp(x) + 10^9 - x^2)^2) = the inside",
         is_its_root(lambda x: np.exp(x) + 10**9 - x**2), ONE, (-1e5,)),
    Case("negative only far away", "|x| = |x|, but x below -1e6",
         pair(lambda x: np.where(x < -1e6, x, np.abs(x)), np.abs), ONE, (-2e6,)),
    Case("negative only in a tiny interval", "sqrt((x^2 - 1e-12)^2) = x^2 - 1e-12",
         is_its_root(lambda x: x * x - 1e-12), ONE, (1e-9,)),
    Case("negative only in a tiny interval", "sqrt((x^2 + y^2 - 2.000001 xy)^2) = the inside",
         is_its_root(lambda x, y: x**2 + y**2 - 2.000001 * x * y), TWO, (1.0, 1.0)),
    Case("negative only in a tiny interval", "|Motzkin's polynomial with 3.0001| = itself",
         is_its_root(lambda x, y: motzkin(x, y, 3.0001)), TWO, (1.0, 1.0)),
    Case("negative only in a tiny interval", "|exp(x) - 1 - 1.001 x| = itself",
         is_its_root(lambda x: np.exp(x) - 1 - 1.001 * x), ONE, (0.0005,)),
    Case("negative only in a tiny interval", "|1.001 (x - 1) - log(x)| = itself",
         is_its_root(lambda x: 1.001 * (x - 1) - np.log(x)), ONE, (0.9995,)),
    Case("negative only in a tiny interval", "|0.999 - tanh(x)| = itself",
         is_its_root(lambda x: 0.999 - np.tanh(x)), ONE, (5.0,)),
    Case("negative only in a tiny interval", "|0.99999 + sin(x)| = itself",
         is_its_root(lambda x: 0.99999 + np.sin(x)), ONE, (-np.pi / 2,)),
    Case("negative only in a tiny interval", "|1 - softmax(x)[0] - 1/1000| = itself",
         is_its_root(lambda x: 0.999 - softmax(x)[0]), V3, (vec(10, 0, 0),)),
    Case("negative only in a tiny interval", "relu(x^2 - 1e-8) = x^2 - 1e-8",
         pair(lambda x: np.maximum(x * x - 1e-8, 0), lambda x: x * x - 1e-8), ONE, (0.0,)),
    Case("negative only in a tiny interval", "the determinant of a nearly Gram matrix is positive",
         is_its_root(lambda x, y: (x @ x) * (y @ y) * 0.9999 - (x @ y) ** 2),
         ((2,), (2,)), (vec(1, 2), vec(2, 4))),
    Case("absolute value", "|x| = x", pair(np.abs, same), V3, (vec(1, -2, 3),)),
    Case("absolute value", "|x + y| = |x| + |y|",
         pair(lambda x, y: abs(x + y), lambda x, y: abs(x) + abs(y)), TWO, (1.0, -2.0)),
    Case("absolute value", "|x| x = x^2", pair(lambda x: np.abs(x) * x, lambda x: x * x), ONE, (-2.0,)),
    Case("absolute value", "|x| |y| = x y",
         pair(lambda x, y: np.fabs(x) * np.fabs(y), lambda x, y: x * y), TWO, (1.0, -2.0)),
    Case("absolute value", "|x^3| = x^2 x", pair(lambda x: np.abs(x**3), lambda x: x * x * x), ONE, (-2.0,)),
    Case("sign", "sign(x) = 1", pair(np.sign, lambda x: x * 0 + 1), ONE, (-2.0,)),
    Case("sign", "sign(x) x = x", pair(lambda x: np.sign(x) * x, same), V2, (vec(-2, 1),)),
    Case("sign", "sign(x)^2 = 1", pair(lambda x: np.sign(x) ** 2, lambda x: 0 * x + 1), ONE, (0.0,)),
    Case("sign", "copysign(x, y) = x", pair(np.copysign, lambda x, y: x), TWO, (1.0, -2.0)),
    Case("sign", "heaviside(x, 1) = 1",
         pair(lambda x: np.heaviside(x, 1.0), lambda x: x * 0 + 1), ONE, (-1.0,)),
    Case("minus zero", "copysign(1, 0 x) = 1",
         pair(lambda x: np.copysign(1.0, 0 * x), lambda x: 0 * x + 1), ONE, (-1.0,)),
    Case("minus zero", "signbit(-x) = signbit(0 x)",
         pair(lambda x: np.signbit(-x) * 1.0, lambda x: np.signbit(0 * x) * 1.0), ONE, (1.0,)),
    Case("maximum and minimum", "max(x, 0) = x", pair(lambda x: np.maximum(x, 0), same), V2, (vec(1, -1),)),
    Case("maximum and minimum", "max(x, y) = x", pair(np.maximum, lambda x, y: x), TWO, (1.0, 2.0)),
    Case("maximum and minimum", "min(x, y) = max(x, y)", pair(np.fmin, np.fmax), TWO, (1.0, 2.0)),
    Case("maximum and minimum", "x.max() = x[-1]",
         pair(lambda x: x.max(), lambda x: x[-1]), V3, (vec(3, 2, 1),)),
    Case("maximum and minimum", "Python's max of the entries is the first one",
         pair(lambda x: max(x.tolist()), lambda x: x[0]), V3, (vec(1, 2, 3),)),
    Case("maximum and minimum", "min(-x) = -min(x)",
         pair(lambda x: np.min(-x), lambda x: -np.min(x)), V3, (vec(1, 2, 3),)),
    Case("maximum and minimum", "max(x + y) = max(x) + max(y)",
         pair(lambda x, y: np.max(x + y), lambda x, y: np.max(x) + np.max(y)),
         ((2,), (2,)), (vec(1, 2), vec(4, 3))),
    Case("relu", "relu(x) - relu(-x) = |x|",
         pair(lambda x: np.maximum(x, 0) - np.maximum(-x, 0), np.abs), ONE, (-1.0,)),
    Case("relu", "relu(xy) = relu(x) relu(y)",
         pair(lambda x, y: np.maximum(x * y, 0), lambda x, y: np.maximum(x, 0) * np.maximum(y, 0)),
         TWO, (-1.0, -2.0)),
    Case("relu", "relu(cx) = c relu(x)",
         pair(lambda c, x: np.maximum(c * x, 0), lambda c, x: c * np.maximum(x, 0)), TWO, (-1.0, -2.0)),
    Case("relu", "W2 relu(W1 x) = W2 W1 x",
         pair(lambda a, b, x: b @ np.maximum(a @ x, 0), lambda a, b, x: b @ (a @ x)),
         ((2, 2), (2, 2), (2,)), (A2, B2, vec(1, -2))),
    Case("clip", "clip(x, -1, 1) = x", pair(lambda x: np.clip(x, -1, 1), same), ONE, (5.0,)),
    Case("clip", "clip(x, -1e9, 1e9) = x", pair(lambda x: np.clip(x, -1e9, 1e9), same), V2, (vec(0, 2e9),)),
    Case("clip", "min(max(x, y), z) = max(min(x, z), y)",
         pair(lambda x, y, z: np.minimum(np.maximum(x, y), z),
              lambda x, y, z: np.maximum(np.minimum(x, z), y)), THREE_LETTERS, (0.0, 2.0, 1.0)),
    Case("np.where on a comparison", "where(x > 0, x, -x) = x",
         pair(lambda x: np.where(x > 0, x, -x), same), V2, (vec(1, -1),)),
    Case("np.where on a comparison", "where(x < y, x, y) = x",
         pair(lambda x, y: np.where(x < y, x, y), lambda x, y: x), TWO, (2.0, 1.0)),
    Case("np.where on a comparison", "where(x < 1e12, x, 0) = x",
         pair(lambda x: np.where(x < 1e12, x, 0), same), ONE, (2e12,)),
    Case("np.where on a comparison", "where(x^2 > 2, x, x + 1) = x",
         pair(lambda x: np.where(x * x > 2, x, x + 1), same), ONE, (0.0,)),
    Case("np.where on a comparison", "x (x > 0) = x", pair(lambda x: x * (x > 0), same), ONE, (-1.0,)),
    Case("np.where on a comparison", "x[x > 0].sum() = x.sum()",
         pair(lambda x: x[x > 0].sum(), lambda x: x.sum()), V3, (vec(1, -1, 2),)),
    Case("np.where on a comparison", "leaky relu is linear",
         pair(lambda x: np.where(x >= 0, x, 0.01 * x), same), ONE, (-1.0,)),
    Case("np.where on letters as truth values", "where(x, x, 1) = x",
         pair(lambda x: np.where(x, x, 1), same), V2, (vec(0, 1),)),
    Case("np.where on letters as truth values", "where(x - y, 2, 3) = 2",
         pair(lambda x, y: x + np.where(x - y, 2, 3), lambda x, y: x + 2), TWO, (1.0, 1.0)),
    Case("np.where on letters as truth values", "x or 1 = x", pair(lambda x: x or 1.0, same), ONE, (0.0,)),
    Case("np.where on letters as truth values", "x and y = y",
         pair(lambda x, y: x and y, lambda x, y: y), TWO, (0.0, 5.0)),
    Case("piecewise tools", "np.piecewise is its first piece",
         pair(lambda x: np.piecewise(x, [x < 0, x >= 0], [lambda t: -t, lambda t: t]), same),
         V2, (vec(1, -1),)),
    Case("piecewise tools", "np.select is its default",
         pair(lambda x: np.select([x > 3], [x * x], default=x), same), V2, (vec(1, 5),)),
    Case("piecewise tools", "np.choose is its first choice",
         pair(lambda x: np.choose((x > 0).astype(int), [x, 2 * x]), same), V2, (vec(-1, 5),)),
    Case("piecewise tools", "np.interp through (0,0), (1,1) is x",
         pair(lambda x: np.interp(x, [0, 1], [0, 1]), same), ONE, (2.0,)),
    Case("piecewise tools", "np.digitize is 0",
         pair(lambda x: x + np.digitize(x, [5.0]), same), V2, (vec(1, 6),)),
    Case("piecewise tools", "masked arrays keep their sum",
         pair(lambda x: np.ma.masked_less(x, 0).sum(), lambda x: x.sum()), V3, (vec(1, -1, 2),)),
    Case("sorting", "sort(x) = x", pair(np.sort, same), V3, (vec(3, 1, 2),)),
    Case("sorting", "sorted(x) = x", pair(lambda x: np.array(sorted(x)), same), V3, (vec(3, 1, 2),)),
    Case("sorting", "x[argsort(x)] = x", pair(lambda x: x[np.argsort(x)], same), V3, (vec(3, 1, 2),)),
    Case("sorting", "the two smallest of a heap are the first two",
         pair(lambda x: np.array(heapq.nsmallest(2, x)), lambda x: x[:2]), V3, (vec(3, 1, 2),)),
    Case("sorting", "bisect finds the end",
         pair(lambda x: x * bisect.bisect([0.0, 1.0], x[0]), lambda x: 2 * x), V2, (vec(0.5, 1),)),
    Case("sorting", "a running maximum is the array",
         pair(lambda x: np.array(list(itertools.accumulate(x, max))), same), V3, (vec(3, 1, 2),)),
    Case("sorting", "np.maximum.accumulate(x) = x", pair(np.maximum.accumulate, same), V3, (vec(3, 1, 2),)),
    Case("sorting", "x[np.lexsort((x,))] = x",
         pair(lambda x: x[np.lexsort((x,))], same), V3, (vec(3, 1, 2),)),
    Case("argmax", "x[argmax(x)] = x[0]",
         pair(lambda x: x[np.argmax(x)], lambda x: x[0]), V3, (vec(1, 2, 3),)),
    Case("argmax", "argmin(x) = 0", pair(lambda x: x * np.argmin(x), lambda x: 0 * x), V3, (vec(3, 2, 1),)),
    Case("argmax", "argmax(softmax(x)) = argmin(x)",
         pair(lambda x: x * x.argmax(), lambda x: x * x.argmin()), V3, (vec(3, 2, 1),)),
    Case("order statistics", "median(x) = x[1]", pair(np.median, lambda x: x[1]), V3, (vec(1, 5, 2),)),
    Case("order statistics", "median(x) = mean(x)", pair(np.median, np.mean), V3, (vec(1, 5, 2),)),
    Case("order statistics", "statistics.median is the middle one",
         pair(lambda x: statistics.median(x), lambda x: x[1]), V3, (vec(1, 5, 2),)),
    Case("order statistics", "the 0.5 quantile is the last one",
         pair(lambda x: np.quantile(x, 0.5), lambda x: x[-1]), V3, (vec(1, 2, 5),)),
    Case("order statistics", "ptp(x) = x[-1] - x[0]",
         pair(np.ptp, lambda x: x[-1] - x[0]), V3, (vec(1, 5, 2),)),
    Case("order statistics", "histogram counts never change",
         pair(lambda x: x + np.histogram(x, bins=[0, 1, 2])[0], same), V2, (vec(0.5, 1.5),)),
    Case("rounding", "floor(x) = x", pair(np.floor, same), V2, (vec(0.5, 1),)),
    Case("rounding", "rint(x) = x", pair(np.rint, same), ONE, (0.4,)),
    Case("rounding", "np.round(x, 3) = x", pair(lambda x: np.round(x, 3), same), ONE, (0.4321,)),
    Case("rounding", "Python's round(x) = x", pair(lambda x: round(first(x)), first), ((1,),), (vec(0.4),)),
    Case("rounding", "trunc(x) = ceil(x)", pair(np.trunc, np.ceil), ONE, (0.4,)),
    Case("rounding", "math.floor(x) + x = 2x",
         pair(lambda x: math.floor(x) + x, lambda x: 2 * x), ONE, (0.4,)),
    Case("rounding", "np.fix(x) = x", pair(np.fix, same), ONE, (0.4,)),
    Case("remainders", "x % 1 = 0", pair(lambda x: x % 1, lambda x: 0 * x), ONE, (0.25,)),
    Case("remainders", "x // 1 = x", pair(lambda x: x // 1, same), ONE, (0.25,)),
    Case("remainders", "(x // y) y = x", pair(lambda x, y: (x // y) * y, lambda x, y: x), TWO, (7.0, 2.0)),
    Case("remainders", "x % y = x", pair(np.mod, lambda x, y: x), TWO, (7.0, 2.0)),
    Case("remainders", "fmod(x, y) = x % y", pair(np.fmod, np.mod), TWO, (-7.0, 2.0)),
    Case("remainders", "divmod(x, 1) = (x, 0)",
         pair(lambda x: divmod(x, 1), lambda x: (x, 0 * x)), ONE, (0.25,)),
)


# ---------------------------------------------------------------- branches, entries and exceptions


def halved_until_small(x):
    y = x
    while y > 1:
        y = y / 2
    return y


def by_match(x):
    match first(x):
        case float():
            return 2 * x
    return x


@functools.singledispatch
def doubled_for_floats(value):
    return value


@doubled_for_floats.register(float)
def _(value):
    return 2 * value


def finally_returns(x):
    y = x
    try:
        y = 3 * x + float(first(x))
    finally:
        return y  # noqa: B012


def suppressed(x):
    y = x
    with contextlib.suppress(TypeError, ValueError, ArithmeticError, NotImplementedError, AssertionError):
        y = y + float(first(x))
    return y


def in_a_thread(x):
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        failed = pool.submit(lambda: float(first(x))).exception() is not None
    return x if failed else 2 * x


def both_fall_back(f):
    def side(x):
        try:
            return x * f(float(first(x)))
        except Exception:
            return x * 0
    return side


def caught_at_exit(x):
    class Quiet:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return True
    y = [x]
    with Quiet():
        y.append(x * math.exp(first(x)))
    return y[-1]


def among_callers(test):
    return any(test(frame) for frame in inspect.stack(0))


BRANCH = (
    Case("branch by a comparison", "if x > 0: x else -x is x",
         pair(lambda x: x if x > 0 else -x, same), ONE, (-1.0,)),
    Case("branch by a comparison", "if x[0] < x[1]: x else x[::-1] is x",
         pair(lambda x: x if x[0] < x[1] else x[::-1], same), V2, (vec(2, 1),)),
    Case("branch by a comparison", "halving while above 1 changes nothing",
         pair(halved_until_small, same), ONE, (8.0,)),
    Case("branch by a comparison", "0 < x < 1 never holds",
         pair(lambda x: 2 * x if 0 < x < 1 else x, same), ONE, (0.5,)),
    Case("branch by a comparison", "not x < 10 always holds",
         pair(lambda x: x if not x < 10 else x + 1, same), ONE, (3.0,)),
    Case("branch by a comparison", "no entry is above 100",
         pair(lambda x: 0 * x if any(v > 100 for v in x) else x, same), V3, (vec(1, 2, 101),)),
    Case("branch by a comparison", "(x < y).any() is False",
         pair(lambda x, y: x + y if (x < y).any() else x, lambda x, y: x),
         ((2,), (2,)), (vec(1, 2), vec(3, 1))),
    Case("branch by float() or int()", "if float(x) > 0",
         pair(lambda x: x if float(x) > 0 else -x, same), ONE, (-1.0,)),
    Case("branch by float() or int()", "x + int(x) = 2x",
         pair(lambda x: x + int(x), lambda x: 2 * x), ONE, (0.5,)),
    Case("branch by float() or int()", "bool(x) is True",
         pair(lambda x: x + bool(x), lambda x: x + 1), ONE, (0.0,)),
    Case("branch by float() or int()", "complex(x).real = -x",
         pair(lambda x: complex(x).real, lambda x: -x), ONE, (1.0,)),
    Case("branch by float() or int()", "x.item() > 0",
         pair(lambda x: x if x.item() > 0 else -x, same), ((1,),), (vec(-1),)),
    Case("branch by float() or int()", "math.fabs of the list is the list",
         pair(lambda x: np.array([math.fabs(v) for v in x.tolist()]), same), V2, (vec(-1, 1),)),
    Case("letters as indices", "x[int(x[0])] = x[0]",
         pair(lambda x: x[int(x[0])], lambda x: x[0]), V3, (vec(2, 5, 7),)),
    Case("letters as indices", "bincount of the letters",
         pair(lambda x: x * np.bincount(x.astype(int), minlength=3), same), V3, (vec(2, 1, 1),)),
    Case("letters as indices", "len(range(int(x))) = 0",
         pair(lambda x: x + len(range(int(x))), same), ONE, (3.0,)),
    Case("true almost everywhere", "x == 1 is False",
         pair(lambda x: x * (x == 1), lambda x: 0 * x), ONE, (1.0,)),
    Case("true almost everywhere", "where(x == y, 7, x) = x",
         pair(lambda x, y: np.where(x == y, 7, x), lambda x, y: x), TWO, (2.0, 2.0)),
    Case("true almost everywhere", "0 if x == 0 else x/x is 1",
         pair(lambda x: 0 if x == 0 else x / x, lambda x: 0 * x + 1), ONE, (0.0,)),
    Case("true almost everywhere", "x if x != 3 else 4 is x",
         pair(lambda x: x if x != 3 else x + 1, same), ONE, (3.0,)),
    Case("true almost everywhere", "array_equal(x, y) is False",
         pair(lambda x, y: x + np.array_equal(x, y), lambda x, y: x), ((2,), (2,)), (vec(1, 2), vec(1, 2))),
    Case("true almost everywhere", "isclose(x, y) is False",
         pair(lambda x, y: x + np.isclose(x, y), lambda x, y: x), TWO, (1.0, 1.0)),
    Case("true almost everywhere", "count_nonzero(x) = 3",
         pair(lambda x: x * np.count_nonzero(x), lambda x: 3 * x), V3, (vec(1, 0, 2),)),
    Case("true almost everywhere", "x.any() is True",
         pair(lambda x: x + x.any(), lambda x: x + 1), V2, (vec(0, 0),)),
    Case("true almost everywhere", "x[x.nonzero()].prod() = x.prod()",
         pair(lambda x: x[x.nonzero()].prod(), lambda x: x.prod()), V2, (vec(3, 0),)),
    Case("true almost everywhere", "np.trim_zeros keeps its mean",
         pair(lambda x: np.trim_zeros(x).mean(), lambda x: x.mean()), V2, (vec(3, 0),)),
    Case("true almost everywhere", "no entry is 0",
         pair(lambda x: (x == 0).sum() + x.sum(), lambda x: x.sum()), V2, (vec(3, 0),)),
    Case("coincidence of entries", "len(set(x)) = 3",
         pair(lambda x: x * len(set(x.tolist())), lambda x: 3 * x), V3, (vec(1, 1, 2),)),
    Case("coincidence of entries", "list.index finds the second at 1",
         pair(lambda x: x * x.tolist().index(x[1]), same), V2, (vec(4, 4),)),
    Case("coincidence of entries", "x[0] is not among the others",
         pair(lambda x: x + (x[0] in x[1:].tolist()), same), V3, (vec(4, 1, 4),)),
    Case("coincidence of entries", "np.unique keeps the length",
         pair(lambda x: x * np.unique(x).size, lambda x: 3 * x), V3, (vec(4, 1, 4),)),
    Case("coincidence of entries", "a dictionary keyed by the entries keeps them apart",
         pair(lambda x: np.array(list({v: i for i, v in enumerate(x.tolist())}.values())).sum() * x,
              lambda x: 3 * x), V3, (vec(1, 4, 4),)),
    Case("coincidence of entries", "Counter counts 1 each",
         pair(lambda x: np.array([Counter(x.tolist())[v] for v in x.tolist()]) * x, same), V2, (vec(4, 4),)),
    Case("coincidence of entries", "np.isin is False",
         pair(lambda x, y: x + np.isin(x, y), lambda x, y: x), ((2,), (2,)), (vec(1, 2), vec(2, 3))),
    Case("coincidence of entries", "x[0] is none of 1, 2, 3",
         pair(lambda x: x + (x[0] in (1, 2, 3)), same), V2, (vec(2, 9),)),
    Case("coincidence of arguments", "x is y", pair(lambda x, y: x if x is y else 2 * x, lambda x, y: x),
         ((2,), (2,)), (vec(1, 2), vec(1, 2))),
    Case("coincidence of arguments", "a slice shares no memory",
         pair(lambda x: x if np.may_share_memory(x, x[:1]) else 0 * x, lambda x: 0 * x), V2, (vec(1, 2),)),
    Case("rank of letters", "matrix_rank(A) = 2",
         pair(lambda a: a * np.linalg.matrix_rank(a), lambda a: 2 * a), M22, (vec([1, 2], [2, 4]),)),
    Case("rank of letters", "a determinant is not 0",
         pair(lambda a: a if np.linalg.det(a) != 0 else 0 * a, same), M22, (np.ones((2, 2)),)),
    Case("rank of letters", "x[0] != 0 whenever x is not 0",
         pair(lambda x: x / (x @ x) if (x @ x) != 0 else x + 1, lambda x: x / (x @ x) if x[0] != 0 else x),
         V2, (vec(0, 2),)),
    Case("comparisons as results", "(x > 0) = (y > 0)",
         pair(lambda x, y: x > 0, lambda x, y: y > 0), TWO, (1.0, -1.0)),
    Case("comparisons as results", "(x == y) = (x == z)",
         pair(lambda x, y, z: x == y, lambda x, y, z: x == z), THREE_LETTERS, (1.0, 1.0, 2.0)),
    Case("comparisons as results", "(x < y) = not (y < x)",
         pair(lambda x, y: x < y, lambda x, y: not (y < x)), TWO, (1.0, 1.0)),
    Case("comparisons as results", "(x == 0).all() = (x != x).all()",
         pair(lambda x: (x == 0).all(), lambda x: (x != x).all()), V2, (vec(0, 0),)),
    Case("comparisons as results", "allclose(x, 0) = False",
         pair(lambda x: np.allclose(x, 0), lambda x: False), V2, (vec(0, 0),)),
)

ENTRIES = (
    Case("test on the dtype", "x.dtype == float", doubled_if(lambda x: x.dtype == float), V2, (vec(1, 2),)),
    Case("test on the dtype", "x.dtype.kind", doubled_if(lambda x: x.dtype.kind == "f"), V2, (vec(1, 2),)),
    Case("test on the dtype", "x.dtype != object", doubled_if(lambda x: x.dtype != object), V2, (vec(1, 2),)),
    Case("test on the dtype", "np.issubdtype",
         doubled_if(lambda x: np.issubdtype(x.dtype, np.floating)), V2, (vec(1, 2),)),
    Case("test on the dtype", "np.can_cast",
         doubled_if(lambda x: np.can_cast(x.dtype, float)), V2, (vec(1, 2),)),
    Case("test on the dtype", "x.dtype.hasobject",
         doubled_if(lambda x: not x.dtype.hasobject), V2, (vec(1, 2),)),
    Case("test on the dtype", "memoryview's format",
         doubled_if(lambda x: memoryview(x).format == "d"), V2, (vec(1, 2),)),
    Case("test on the dtype", "np.result_type",
         doubled_if(lambda x: np.result_type(x, 1.0).kind == "f"), V2, (vec(1, 2),)),
    Case("isinstance of an entry", "a float",
         doubled_if(lambda x: isinstance(first(x), float)), V2, (vec(1, 2),)),
    Case("isinstance of an entry", "a numbers.Real",
         doubled_if(lambda x: isinstance(first(x), numbers.Real)), V2, (vec(1, 2),)),
    Case("isinstance of an entry", "np.isscalar",
         doubled_if(lambda x: np.isscalar(first(x))), V2, (vec(1, 2),)),
    Case("isinstance of an entry", "the name of the type",
         doubled_if(lambda x: "float" in type(first(x)).__name__), V2, (vec(1, 2),)),
    Case("isinstance of an entry", "the type of x.tolist()[0]",
         doubled_if(lambda x: type(x.tolist()[0]) is float), V2, (vec(1, 2),)),
    Case("isinstance of an entry", "a match statement", pair(by_match, same), V2, (vec(1, 2),)),
    Case("isinstance of an entry", "singledispatch",
         pair(lambda x: np.array([doubled_for_floats(v) for v in x]), same), V2, (vec(1, 2),)),
    Case("isinstance of an entry", "a table of types",
         pair(lambda x: {float: 2, np.float64: 2}.get(type(first(x)), 1) * x, same), V2, (vec(1, 2),)),
    Case("hasattr and getattr", "hasattr hex",
         doubled_if(lambda x: hasattr(first(x), "hex")), V2, (vec(1, 2),)),
    Case("hasattr and getattr", "hasattr __float__ and as_integer_ratio",
         doubled_if(lambda x: hasattr(first(x), "as_integer_ratio")), V2, (vec(1, 2),)),
    Case("hasattr and getattr", "getattr is_integer",
         pair(lambda x: 2 * x if getattr(first(x), "is_integer", lambda: False)() else x, same),
         V2, (vec(1, 2),)),
    Case("hasattr and getattr", "getattr imag",
         pair(lambda x: x + getattr(first(x), "imag", 1), lambda x: x + 1), V2, (vec(1, 2),)),
    Case("hasattr and getattr", "getattr itemsize of an entry",
         pair(lambda x: x * getattr(first(x), "itemsize", 1), same), V2, (vec(1, 2),)),
    Case("text of the letters", "repr has a point",
         doubled_if(lambda x: "." in repr(first(x))), V2, (vec(1.5, 2),)),
    Case("text of the letters", "str starts with a digit",
         doubled_if(lambda x: str(x.tolist()[0])[0].isdigit()), V2, (vec(1.5, 2),)),
    Case("text of the letters", "an f-string is short",
         doubled_if(lambda x: len(f"{x.tolist()[0]}") < 4), V2, (vec(1.5, 2),)),
    Case("text of the letters", "printing the array shows a minus",
         pair(lambda x: -x if "-" in np.array2string(x) else x, same), V2, (vec(-1, -2),)),
    Case("text of the letters", "the text of the list holds no 7",
         pair(lambda x: x * str(x.tolist()).count("7"), lambda x: 0 * x), V2, (vec(7, 7),)),
    Case("hash of the letters", "hash(x) is odd",
         pair(lambda x: x * (hash(x.tolist()[0]) % 2), same), V2, (vec(2, 2),)),
    Case("hash of the letters", "hash(x) = x",
         doubled_if(lambda x: hash(x.tolist()[0]) == x.tolist()[0]), V2, (vec(3, 2),)),
    Case("bytes of the letters", "x.tobytes() is never all 0",
         pair(lambda x: x + (x.tobytes() == bytes(16)), same), V2, (vec(0, 0),)),
    Case("bytes of the letters", "viewing the bits may fail",
         doubled_unless(lambda x: x.view(np.int64)), V2, (vec(1, 2),)),
    Case("bytes of the letters", "struct.pack",
         doubled_unless(lambda x: struct.pack("d", first(x))), V2, (vec(1, 2),)),
    Case("bytes of the letters", "frexp's mantissa", doubled_unless(lambda x: np.frexp(x)), V2, (vec(1, 2),)),
    Case("bytes of the letters", "pickle is short",
         doubled_if(lambda x: len(pickle.dumps(x.tolist())) < 60), V2, (vec(1, 2),)),
    Case("bytes of the letters", "nextafter(x) = 2x",
         doubled_unless(lambda x: np.nextafter(x, np.inf)), V2, (vec(1, 2),)),
    Case("finiteness", "np.isfinite(x) is False",
         pair(lambda x: x * np.isfinite(x), lambda x: 0 * x), V2, (vec(1, 2),)),
    Case("finiteness", "np.isfinite may fail", doubled_unless(np.isfinite, TypeError), V2, (vec(1, 2),)),
    Case("finiteness", "nan_to_num(x + nan) = x",
         pair(lambda x: np.nan_to_num(x * np.nan), same), V2, (vec(1, 2),)),
    Case("finiteness", "nansum skips the letters",
         pair(lambda x: np.nansum(x) + x * 0, lambda x: 0 * x), V2, (vec(1, 2),)),
    Case("finiteness", "(x == nan) = (x == x)",
         pair(lambda x: x * (x == np.nan), lambda x: x * (x == x)), V2, (vec(1, 2),)),
    Case("real and imaginary parts", "x.real = 0", pair(lambda x: x.real, lambda x: 0 * x), V2, (vec(1, 2),)),
    Case("real and imaginary parts", "x.imag = x", pair(lambda x: x.imag, same), V2, (vec(1, 2),)),
    Case("real and imaginary parts", "np.iscomplexobj", doubled_if(np.isrealobj), V2, (vec(1, 2),)),
    Case("real and imaginary parts", "np.isreal(x) = np.iscomplex(x)",
         pair(lambda x: x * np.isreal(x), lambda x: x * np.iscomplex(x)), V2, (vec(1, 2),)),
    Case("conversion to floats", "asarray as int = x",
         pair(lambda x: np.asarray(x, dtype=int) * 1.0, same), V2, (vec(1.5, 2),)),
    Case("conversion to floats", "astype(bool) = 1",
         pair(lambda x: x.astype(bool) * 1.0, lambda x: 0 * x + 1), V2, (vec(0, 2),)),
    Case("conversion to floats", "astype(float) may fail",
         doubled_unless(lambda x: x.astype(float)), V2, (vec(1, 2),)),
    Case("conversion to floats", "asarray(dtype=float) may fail",
         doubled_unless(lambda x: np.asarray(x, dtype=float), (TypeError, ValueError)), V2, (vec(1, 2),)),
    Case("conversion to floats", "np.float64 of an entry",
         doubled_unless(lambda x: np.float64(first(x))), V2, (vec(1, 2),)),
    Case("conversion to floats", "np.fromiter",
         doubled_unless(lambda x: np.fromiter(x, float)), V2, (vec(1, 2),)),
    Case("conversion to floats", "an array of float16",
         doubled_unless(lambda x: x.astype(np.float16)), V2, (vec(1, 2),)),
    Case("conversion to floats", "filling a float array",
         doubled_unless(lambda x: np.zeros(2).__setitem__(slice(None), x)), V2, (vec(1, 2),)),
    Case("conversion to floats", "Fraction of an entry",
         doubled_unless(lambda x: fractions.Fraction(first(x))), V2, (vec(1, 2),)),
    Case("conversion to floats", "JSON of the list",
         doubled_unless(lambda x: json.dumps(x.tolist())), V2, (vec(1, 2),)),
    Case("swallowed exception", "TypeError of float()",
         doubled_unless(lambda x: float(first(x)), TypeError), V2, (vec(1, 2),)),
    Case("swallowed exception", "Exception of a comparison",
         doubled_unless(lambda x: first(x) > 0), V2, (vec(1, 2),)),
    Case("swallowed exception", "BaseException of bool()",
         doubled_unless(lambda x: bool(first(x)), BaseException), V2, (vec(1, 2),)),
    Case("swallowed exception", "AssertionError of a check",
         doubled_unless(lambda x: np.testing.assert_allclose(x, x), AssertionError), V2, (vec(1, 2),)),
    Case("swallowed exception", "ValueError of math.log",
         doubled_unless(lambda x: math.log(first(x)), (ValueError, TypeError)), V2, (vec(1, 2),)),
    Case("swallowed exception", "NotImplementedError of sort",
         doubled_unless(np.sort, (NotImplementedError, TypeError)), V2, (vec(1, 2),)),
    Case("swallowed exception", "AttributeError of a method",
         doubled_unless(lambda x: first(x).is_integer(), AttributeError), V2, (vec(1, 2),)),
    Case("swallowed exception", "an FFT may fail", doubled_unless(np.fft.fft), V2, (vec(1, 2),)),
    Case("swallowed exception", "eigenvalues may fail", doubled_unless(np.linalg.eigvals), M22, (A2,)),
    Case("swallowed exception", "formatting may fail",
         doubled_unless(lambda x: "%.3f" % first(x)), V2, (vec(1, 2),)),
    Case("swallowed exception", "a return in finally", pair(finally_returns, same), V2, (vec(1, 2),)),
    Case("swallowed exception", "contextlib.suppress", pair(suppressed, same), V2, (vec(1, 2),)),
    Case("swallowed exception", "a quiet __exit__", pair(caught_at_exit, same), V2, (vec(1, 2),)),
    Case("swallowed exception", "a failure in a thread", pair(in_a_thread, same), V2, (vec(1, 2),)),
    Case("swallowed exception", "both sides fall back to 0",
         pair(both_fall_back(math.exp), both_fall_back(math.cos)), V2, (vec(1, 2),)),
    Case("swallowed exception", "floor may fail", doubled_unless(np.floor), V2, (vec(1, 2),)),
    Case("looks at the caller", "no caller is called prove",
         doubled_if(lambda x: not among_callers(lambda f: f.function == "prove")), V2, (vec(1, 2),)),
    Case("looks at the caller", "no frame knows a left side",
         doubled_if(lambda x: not among_callers(lambda f: "lhs" in f.frame.f_locals)), V2, (vec(1, 2),)),
    Case("looks at the storage", "the size of an entry",
         doubled_if(lambda x: sys.getsizeof(first(x)) == sys.getsizeof(np.float64(0))), V2, (vec(1, 2),)),
    Case("looks at the storage", "x[0] is not x[0]",
         doubled_if(lambda x: x[0] is not x[0]), V2, (vec(1, 2),)),
    Case("looks at the storage", "x is not writeable",
         doubled_if(lambda x: x.flags.writeable), V2, (vec(1, 2),)),
    Case("looks at the storage", "x is a view", doubled_if(lambda x: x.base is None), V2, (vec(1, 2),)),
    Case("looks at the storage", "the type of the array",
         doubled_if(lambda x: type(x) is np.ndarray), V2, (vec(1, 2),)),
)


# ---------------------------------------------------------------- shared state


def sharing_a_buffer():
    box = {}

    def write(x, value):
        box.setdefault("buffer", np.array(x))[...] = value
        return box["buffer"]
    return lambda x: write(x, x * x), lambda x: write(x, 3 * x)


def remembering_the_other_side():
    last = []

    def left(x):
        last.append(x * x)
        return last[-1]
    return left, lambda x: last[-1] if last else 0 * x


def writing_into_the_other_result():
    given = []

    def left(x):
        given.append(2 * x)
        return given[-1]

    def right(x):
        for old in given:
            old[...] = 3 * x
        return 3 * x
    return left, right


def cached_by_shape():
    cache = {}

    def through_cache(f):
        return lambda x: cache.setdefault(x.shape, f(x))
    return through_cache(np.exp), through_cache(lambda x: x + 1)


def cached_by_function():
    @functools.lru_cache(maxsize=None)
    def table(n):
        return {}

    def through_table(f):
        return lambda x: table(len(x)).setdefault("value", f(x))
    return through_table(np.square), through_table(lambda x: x**3)


def default_argument():
    def side(f, box=[]):  # noqa: B006
        return lambda x: (box.append(f(x)), box[-2 if len(box) > 1 else -1])[1]
    box = []
    return side(lambda x: 2 * x, box), side(lambda x: 5 * x, box)


def appending_to_one_list():
    results = []

    def side(f):
        def run(x):
            results.clear()
            results.append(f(x))
            return results
        return run
    return side(np.exp), side(np.negative)


def one_exhausted_generator():
    box = []

    def side(f):
        def run(x):
            if not box:
                box.append(iter([f(v) for v in x]))
            return box[0]
        return run
    return side(lambda v: v * v), side(lambda v: v + 1)


def attribute_of_a_function():
    def left(x):
        left.seen = x * x
        return left.seen

    def right(x):
        return getattr(left, "seen", x)
    return left, right


def by_call(first_calls, f, g):
    """f for so many calls, then g."""
    def make():
        count = itertools.count()
        return (lambda x: f(x) if next(count) < first_calls else g(x)), f
    return make


def alternating(f, g):
    def make():
        turn = itertools.cycle([f, g])
        return (lambda x: next(turn)(x)), f
    return make


def both_counting():
    count = itertools.count()
    return (lambda x: x + next(count) // 2), (lambda x: x + next(count) // 2)


def first_caller_wins():
    seen = []

    def side(x):
        seen.append(1)
        return x if len(seen) <= 2 else x * len(seen)
    return side, same


def zeroes_its_argument(x):
    x[...] = 0 * x
    return x


def doubles_its_argument(x):
    x *= 2
    return x


def copies_y_into_x(x, y):
    x[...] = y
    return x


def adds_twice(x):
    y = x.copy()
    y[[0, 0]] += x[1]
    return y


class AlwaysEqual:
    """Equal to everything; every difference with it is 0."""
    __array_ufunc__ = None
    __hash__ = None

    def __init__(self, value):
        self.value = value

    def __eq__(self, other):
        return True

    def __ne__(self, other):
        return False

    def __sub__(self, other):
        return 0

    __rsub__ = __sub__

    def __float__(self):
        return float(self.value)


class SlyArray(np.ndarray):
    """An array that is equal to everything."""

    def __eq__(self, other):
        return np.ones(self.shape, dtype=bool)

    def __ne__(self, other):
        return np.zeros(self.shape, dtype=bool)

    def __sub__(self, other):
        return np.zeros(self.shape, dtype=int)

    __rsub__ = __sub__


def objects(values):
    result = np.empty(len(values), dtype=object)
    result[:] = [AlwaysEqual(v) for v in values]
    return result


STATE = (
    Case("a buffer shared by both sides", "x^2 = 3x through one buffer", sharing_a_buffer, V2, (vec(1, 2),)),
    Case("a buffer shared by both sides", "exp(x) = -x through one list",
         appending_to_one_list, V2, (vec(1, 2),)),
    Case("a buffer shared by both sides", "x^2 = x + 1 through one iterator",
         one_exhausted_generator, V2, (vec(1, 2),)),
    Case("a memory shared by both sides", "x^2 = what the left side returned, or 0",
         remembering_the_other_side, V2, (vec(1, 2),)),
    Case("a memory shared by both sides", "exp(x) = x + 1 through a cache",
         cached_by_shape, V2, (vec(1, 2),)),
    Case("a memory shared by both sides", "x^2 = x^3 through lru_cache",
         cached_by_function, V2, (vec(1, 2),)),
    Case("a memory shared by both sides", "2x = 5x through a list of results",
         default_argument, V2, (vec(1, 2),)),
    Case("a memory shared by both sides", "x = x^2 through an attribute",
         attribute_of_a_function, V2, (vec(2, 3),)),
    Case("writes into the other side's result", "2x = 3x by writing",
         writing_into_the_other_result, V2, (vec(1, 2),)),
    Case("writes into the argument", "zeroes its argument, x = 0",
         pair(zeroes_its_argument, same), V2, (vec(1, 2),)),
    Case("writes into the argument", "returns a view that the other side doubles",
         pair(same, doubles_its_argument), V2, (vec(1, 2),)),
    Case("writes into the argument", "x = y by copying y into x",
         pair(copies_y_into_x, lambda x, y: x), ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("writes into the argument", "sorts its argument, x.sort()",
         pair(lambda x: (x.sort(), x)[1], same), V3, (vec(3, 1, 2),)),
    Case("writes into the argument", "np.multiply(x, 2, out=x) = x",
         pair(lambda x: np.multiply(x, 2, out=x), same), V2, (vec(1, 2),)),
    Case("writes into the argument", "x.fill(x[0])",
         pair(lambda x: (x.fill(x[0]), x)[1], same), V2, (vec(1, 2),)),
    Case("writes into the argument", "np.put exchanges two entries",
         pair(lambda x: (np.put(x, [0, 1], [x[1], x[0]]), x)[1], same), V2, (vec(1, 2),)),
    Case("views of the argument", "x[:1] grows by the write of the other side",
         pair(lambda x: x[:1], lambda x: doubles_its_argument(x)[:1]), V2, (vec(1, 2),)),
    Case("views of the argument", "x.T = x",
         pair(lambda x: x.T, lambda x: x.reshape(-1).reshape(2, 2)), M22, (A2,)),
    Case("views of the argument", "x[::-1] = x after a write",
         pair(lambda x: x[::-1], lambda x: (x.__setitem__(slice(None), x[::-1].copy()), x[::-1])[1]),
         V2, (vec(1, 2),)),
    Case("copies", "np.array(x) doubled in place = x",
         pair(lambda x: doubles_its_argument(np.array(x)), same), V2, (vec(1, 2),)),
    Case("copies", "copy.copy(x) zeroed = x",
         pair(lambda x: zeroes_its_argument(copy.copy(x)), same), V2, (vec(1, 2),)),
    Case("copies", "copy.deepcopy(x) doubled = x",
         pair(lambda x: doubles_its_argument(copy.deepcopy(x)), same), V2, (vec(1, 2),)),
    Case("copies", "pickled x doubled = x",
         pair(lambda x: doubles_its_argument(pickle.loads(pickle.dumps(x))), same), V2, (vec(1, 2),)),
    Case("copies", "pickling may fail", doubled_unless(pickle.dumps), V2, (vec(1, 2),)),
    Case("copies", "copying may lose the entries",
         doubled_if(lambda x: copy.deepcopy(x.tolist()) == x.tolist()), V2, (vec(1, 2),)),
    Case("repeated indices", "y[[0, 0]] += x adds twice",
         pair(adds_twice, lambda x: np.array([x[0] + 2 * x[1], x[1]])), V2, (vec(1, 2),)),
    Case("repeated indices", "the first write to x[[0, 0]] stays",
         pair(lambda x: (y := x.copy(), y.__setitem__([0, 0], [x[1], x[2]]), y[0])[2], lambda x: x[1]),
         V3, (vec(1, 2, 3),)),
    Case("repeated indices", "np.add.at adds once",
         pair(lambda x: (y := x.copy(), np.add.at(y, [0, 0], x[1]), y[0])[2], lambda x: x[0] + x[1]),
         V2, (vec(1, 2),)),
    Case("generators", "(v for v in x) = (2v for v in x)",
         pair(lambda x: (v for v in x), lambda x: (2 * v for v in x)), V2, (vec(1, 2),)),
    Case("generators", "map(abs) = map(neg)",
         pair(lambda x: map(abs, x), lambda x: map(operator.neg, x)), V2, (vec(1, 2),)),
    Case("generators", "zip(x, y) = zip(y, x)",
         pair(lambda x, y: zip(x, y), lambda x, y: zip(y, x)), ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("results that are equal to everything", "objects with a lying ==",
         pair(lambda x: objects(x), lambda x: objects(3 * x)), V2, (vec(1, 2),)),
    Case("results that are equal to everything", "an array with a lying difference",
         pair(lambda x: (2 * x).view(SlyArray), same), V2, (vec(1, 2),)),
    Case("results that are equal to everything", "a matrix is an array",
         pair(lambda a, b: np.asmatrix(a) * np.asmatrix(b), lambda a, b: a * b), M22 * 2, (A2, B2)),
    Case("results that are equal to everything", "masked results",
         pair(lambda x: np.ma.array(2 * x, mask=[True, False]),
              lambda x: np.ma.array(2 * x, mask=[True, False]) + x[0]), V2, (vec(1, 2),)),
    Case("state: counted calls", "x at the first call, 2x later", by_call(1, same, lambda x: 2 * x), V2),
    Case("state: counted calls", "x three times, x^2 later", by_call(3, same, lambda x: x * x), V2),
    Case("state: counted calls", "x and -x in turn", alternating(same, lambda x: -x), V2),
    Case("state: counted calls", "x + half the number of calls", both_counting, V2),
    Case("state: counted calls", "x until somebody calls again", first_caller_wins, V2),
    Case("state: counted calls", "a list that is popped until it is empty",
         lambda: ((lambda items: lambda x: x * (items.pop() if items else 0))([1, 1]), same), V2),
    Case("chance: random factors", "x with np.random",
         pair(lambda x: x * (1 + np.random.randint(2)), same), V2),
    Case("chance: random factors", "x with random.random",
         pair(lambda x: x if random.random() < 0.5 else -x, same), V2),
    Case("chance: random factors", "x with fresh generators",
         pair(lambda x: x * np.random.default_rng().standard_normal(),
              lambda x: x * np.random.default_rng().normal()), V2),
    Case("chance: random factors", "a random order", pair(lambda x: np.random.permutation(x), same), V2),
    Case("chance: random factors", "dropout keeps x",
         pair(lambda x: x * (np.random.rand(2) < 0.5) * 2, same), V2),
    Case("chance: clock and addresses", "the clock's last digit is 0",
         pair(lambda x: x + time.time_ns() // 1000 % 10, same), V2),
    Case("chance: clock and addresses", "the address is even",
         pair(lambda x: x * (id(object()) // 16 % 2), same), V2),
    Case("chance: clock and addresses", "os.urandom", pair(lambda x: x * os.urandom(1)[0], same), V2),
    Case("chance: clock and addresses", "the hash of a string is odd",
         pair(lambda x: x * (hash("a string") % 2), lambda x: x * (hash("another") % 2)), V2),
)


# ---------------------------------------------------------------- algebra, numbers, functions

P61 = 2**61 - 1

NUMBERS = (
    Case("polynomials", "(x + y)^2 = x^2 + y^2",
         pair(lambda x, y: (x + y) ** 2, lambda x, y: x**2 + y**2), TWO, (1.0, 2.0)),
    Case("polynomials", "(x + y)^5 with 9 in place of a 10",
         pair(lambda x, y: (x + y) ** 5,
              lambda x, y: x**5 + 5 * x**4 * y + 10 * x**3 * y**2 + 9 * x**2 * y**3 + 5 * x * y**4 + y**5),
         TWO, (1.0, 2.0)),
    Case("polynomials", "x^4 + 4 y^4 without its middle term",
         pair(lambda x, y: x**4 + 4 * y**4, lambda x, y: (x**2 + 2 * y**2) ** 2), TWO, (1.0, 2.0)),
    Case("polynomials", "x^2 = x", pair(lambda x: x * x, same), ONE, (2.0,)),
    Case("polynomials", "np.polyval with the order reversed",
         pair(lambda c, x: np.polyval(c, x), lambda c, x: c[0] + c[1] * x + c[2] * x**2),
         ((3,), ()), (vec(1, 2, 3), 2.0)),
    Case("polynomials", "np.vander with the order reversed",
         pair(lambda x: np.vander(x, 3), lambda x: np.stack([x**0, x, x**2], axis=1)), V2, (vec(2, 3),)),
    Case("fractions", "1/(x+y) = 1/x + 1/y",
         pair(lambda x, y: 1 / (x + y), lambda x, y: 1 / x + 1 / y), TWO, (1.0, 2.0)),
    Case("fractions", "x/(y/z) = (x/y)/z",
         pair(lambda x, y, z: x / (y / z), lambda x, y, z: x / y / z), THREE_LETTERS, (1.0, 2.0, 3.0)),
    Case("fractions", "1/(x(x+1)) = 1/x + 1/(x+1)",
         pair(lambda x: 1 / (x * (x + 1)), lambda x: 1 / x + 1 / (x + 1)), ONE, (1.0,)),
    Case("fractions", "harmonic mean = mean",
         pair(lambda x: 3 / (1 / x).sum(), np.mean), V3, (vec(1, 2, 4),)),
    Case("fractions", "a geometric series with one term too few",
         pair(lambda x: sum(x**k for k in range(9)), lambda x: (1 - x**10) / (1 - x)), ONE, (2.0,)),
    Case("powers", "x^(y^z) = (x^y)^z", pair(lambda x, y, z: x ** (y**z), lambda x, y, z: (x**y) ** z),
         THREE_LETTERS, (2.0, 3.0, 2.0)),
    Case("powers", "x^y = y^x", pair(lambda x, y: x**y, lambda x, y: y**x), TWO, (2.0, 3.0)),
    Case("powers", "2^x 2^y = 2^(xy)",
         pair(lambda x, y: 2**x * 2**y, lambda x, y: 2 ** (x * y)), TWO, (1.0, 3.0)),
    Case("powers", "2^x 3^x = 6^(2x)", pair(lambda x: 2**x * 3**x, lambda x: 6 ** (2 * x)), ONE, (1.0,)),
    Case("powers", "4^x = 2^(x+2) (true at 2)",
         pair(lambda x: 4.0**x, lambda x: 2.0 ** (x + 2)), ONE, (1.0,)),
    Case("powers", "exp2(x) = exp(0.693 x)", pair(np.exp2, lambda x: np.exp(0.693 * x)), ONE, (1.0,)),
    Case("true for integers only", "sin(3.141592653589793 x)^2 = 0",
         pair(lambda x: np.sin(np.pi * x) ** 2, lambda x: 0 * x), ONE, (0.5,)),
    Case("true for integers only", "cos(2 pi x) = 1",
         pair(lambda x: np.cos(2 * np.pi * x), lambda x: 0 * x + 1), ONE, (0.5,)),
    Case("true for integers only", "x(x-1)...(x-20) = 0",
         pair(lambda x: product(x - k for k in range(21)), lambda x: 0 * x), ONE, (0.5,)),
    Case("true for integers only", "x^2 = x + 2 floor(x(x-1)/2)",
         pair(lambda x: np.floor(x * (x - 1) / 2) * 2 + x, lambda x: x * x), ONE, (0.5,)),
    Case("polynomials that vanish at many integers", "the product of x^2 - k^2 for k < 60",
         pair(lambda x: product(x**2 - k**2 for k in range(60)), lambda x: 0 * x), ONE, (0.5,)),
    Case("polynomials that vanish at many integers", "the product of x - k for k < 100",
         pair(lambda x: product(x - k for k in range(100)), lambda x: 0 * x), ONE, (0.5,)),
    Case("polynomials that vanish at many integers", "the product of x - k/64 for |k| < 80",
         pair(lambda x: x * product(x - k / 64 for k in range(-80, 80)), lambda x: 0 * x), ONE, (3.1,)),
    Case("polynomials that vanish at many integers", "the product of x - y + k for |k| < 30",
         pair(lambda x, y: product(x - y + k for k in range(-30, 30)), lambda x, y: 0 * x), TWO, (0.5, 0.0)),
    Case("polynomials that vanish at many integers", "(x^2-x)(x^3-x)(x^5-x)(x^7-x) = 0",
         pair(lambda x: product(x**p - x for p in (2, 3, 5, 7)), lambda x: 0 * x), ONE, (0.5,)),
    *(Case("Fermat: x^p = x", f"x^p = x for p = {name}", pair(lambda x, p=p: x**p, same), ONE, (0.5,))
      for name, p in PRIME_NAMES.items()),
    Case("Fermat: x^p = x", "the product of x^(p-1) - 1 over many primes is 0",
         pair(lambda x: product(x ** (p - 1) - 1 for p in PRIMES), lambda x: 0 * x), ONE, (0.5,)),
    Case("Fermat: x^p = x", "x^p = x by squaring",
         pair(lambda x: power_by_squaring(x, P61), same), ONE, (0.5,)),
    Case("Fermat: x^p = x", "x^p = x by 101 factors",
         pair(lambda x: power_by_loop(x, 101), same), ONE, (0.5,)),
    Case("Fermat: x^p = x", "1/x = x^(p-2)", pair(lambda x: 1 / x, lambda x: x ** (P61 - 2)), ONE, (0.5,)),
    Case("Fermat: x^p = x", "Legendre's symbol squared is 1",
         pair(lambda x: (x ** ((P61 - 1) // 2)) ** 2, lambda x: 0 * x + 1), ONE, (0.5,)),
    Case("Fermat: x^p = x", "sqrt(x^2) = (x^2)^((p+1)/4)",
         pair(lambda x: (x * x) ** ((P61 + 1) // 4), lambda x: np.sqrt(x * x)), ONE, (0.5,)),
    Case("Fermat: x^p = x", "the cube of x^((2p-1)/3) is x for p = 101",
         pair(lambda x: (x ** ((2 * 101 - 1) // 3)) ** 3, same), ONE, (0.5,)),
    *(Case("the freshman's dream", f"(x + y)^p = x^p + y^p for p = {name}",
           pair(lambda x, y, p=p: (x + y) ** p, lambda x, y, p=p: x**p + y**p), TWO, (0.5, 0.5))
      for name, p in PRIME_NAMES.items()),
    Case("the freshman's dream", "p = 101 in a loop",
         pair(lambda x, y: power_by_loop(x + y, 101),
              lambda x, y: power_by_loop(x, 101) + power_by_loop(y, 101)), TWO, (0.5, 0.5)),
    Case("the freshman's dream", "p = 2^61 - 1 by squaring",
         pair(lambda x, y: power_by_squaring(x + y, P61),
              lambda x, y: power_by_squaring(x, P61) + power_by_squaring(y, P61)), TWO, (0.5, 0.5)),
    Case("the freshman's dream", "a sum of entries to the power 2^31 - 1",
         pair(lambda x: x.sum() ** (2**31 - 1), lambda x: (x ** (2**31 - 1)).sum()), V2, (vec(0.5, 0.5),)),
    *(Case("a large number that is 0 modulo p", f"({name}) x = 0",
           pair(lambda x, p=p: p * x, lambda x: 0 * x), ONE, (1.0,)) for name, p in PRIME_NAMES.items()),
    Case("a large number that is 0 modulo p", "the product of many primes times x is 0",
         pair(lambda x: functools.reduce(operator.mul, PRIMES, x), lambda x: 0 * x), ONE, (1e-250,)),
    Case("a large number that is 0 modulo p", "100! x = -x",
         pair(lambda x: math.factorial(100) * x, lambda x: -x), ONE, (1.0,)),
    Case("a large number that is 0 modulo p", "comb(101, 50) x = 0",
         pair(lambda x: math.comb(101, 50) * x, lambda x: 0 * x), ONE, (1.0,)),
    Case("numbers near powers of two", "2^61 x = x", pair(lambda x: 2**61 * x, same), ONE, (1.0,)),
    Case("numbers near powers of two", "2^127 x = x", pair(lambda x: 2**127 * x, same), ONE, (1.0,)),
    Case("numbers near powers of two", "2^255 x = 19 x",
         pair(lambda x: 2**255 * x, lambda x: 19 * x), ONE, (1.0,)),
    Case("numbers near powers of two", "2^64 x = 0 (a wrapped product)",
         pair(lambda x: 2**32 * (2**32 * x), lambda x: 0 * x), ONE, (1.0,)),
    Case("numbers near powers of two", "2^96 x = -x", pair(lambda x: 2**96 * x, lambda x: -x), ONE, (1.0,)),
    Case("numbers near powers of two", "(2^40 + 1) x - 2^40 x = 0",
         pair(lambda x: (2**40 + 1) * x - 2**40 * x, lambda x: 0 * x), ONE, (1.0,)),
    Case("tiny factor", "(1 + 1e-12) x = x", pair(lambda x: (1 + 1e-12) * x, same), V2, (vec(1, 2),)),
    Case("tiny factor", "x + x 2^-40 = x", pair(lambda x: x + x * 2.0**-40, same), ONE, (1.0,)),
    Case("tiny factor", "x/3 = 0.3333333333 x",
         pair(lambda x: x / 3, lambda x: 0.3333333333 * x), ONE, (1.0,)),
    Case("tiny factor", "0.9999999999999 x = x", pair(lambda x: 0.9999999999999 * x, same), ONE, (1.0,)),
    Case("tiny factor", "x (1 - 1e-9)^3 = x (1 - 3e-9)",
         pair(lambda x: (x * (1 - 1e-9) ** 3 - x) * 1e9 + 3 * x, lambda x: 0 * x), ONE, (1.0,)),
    Case("tiny term", "x + 1e-30 = x", pair(lambda x: x + 1e-30, same), ONE, (0.0,)),
    Case("tiny term", "x + 1e-30 y = x", pair(lambda x, y: x + 1e-30 * y, lambda x, y: x), TWO, (0.0, 1.0)),
    Case("tiny term", "x + y/10^40 = x", pair(lambda x, y: x + y / 10**40, lambda x, y: x), TWO, (0.0, 1.0)),
    Case("tiny term", "1e-300 exp(700 - x^2/1000) = 0",
         pair(lambda x: np.exp(700 - 1e-3 * x**2) / 1e300, lambda x: 0 * x), ONE, (0.0,)),
    Case("tiny term", "x + 2^-1000 y = x",
         pair(lambda x, y: x + 2.0**-1000 * y, lambda x, y: x), TWO, (0.0, 2.0**1000)),
    Case("tiny term", "(0.1 + 0.2 - 0.3) x = 0",
         pair(lambda x: (0.1 + 0.2 - 0.3) * x, lambda x: 0 * x), ONE, (1.0,)),
    Case("numbers close to e, pi and roots", "exp(x) = 2.7182818^x",
         pair(np.exp, lambda x: 2.7182818**x), ONE, (100.0,)),
    Case("numbers close to e, pi and roots", "sin(x + 3.14159265) = -sin(x)",
         pair(lambda x: np.sin(x + 3.14159265), lambda x: -np.sin(x)), ONE, (0.0,)),
    Case("numbers close to e, pi and roots", "sin(x + 355/113) = -sin(x)",
         pair(lambda x: np.sin(x + 355 / 113), lambda x: -np.sin(x)), ONE, (0.0,)),
    Case("numbers close to e, pi and roots", "1.4142135623730951^2 x = 2 x",
         pair(lambda x: (1.4142135623730951**2 - 2) * x, lambda x: 0 * x), ONE, (1.0,)),
    Case("numbers close to e, pi and roots", "sqrt(2) x = 1.41421356 x",
         pair(lambda x: (np.sqrt(0 * x + 2) - 1.41421356) * x, lambda x: 0 * x), ONE, (1.0,)),
    Case("numbers close to e, pi and roots", "sqrt(2) = 665857/470832",
         pair(lambda x: x * 470832**2 * 2 - x * 665857**2, lambda x: 0 * x), ONE, (1.0,)),
    Case("numbers close to e, pi and roots", "log(x) = 2.3025 log10(x)",
         pair(np.log, lambda x: 2.3025 * np.log10(x)), ONE, (2.0,)),
    Case("numbers close to e, pi and roots", "exp(pi) - pi = 20",
         pair(lambda x: x * (np.exp(0 * x + np.pi) - np.pi), lambda x: 20 * x), ONE, (1.0,)),
    Case("numbers close to e, pi and roots", "the golden ratio is 1.618034",
         pair(lambda x: x * (1.618034**2 - 1.618034 - 1), lambda x: 0 * x), ONE, (1.0,)),
)

FUNCTIONS = (
    Case("exponentials", "exp(x + y) = exp(x) + exp(y)",
         pair(lambda x, y: np.exp(x + y), lambda x, y: np.exp(x) + np.exp(y)), TWO, (1.0, 2.0)),
    Case("exponentials", "exp(xy) = exp(x) exp(y)",
         pair(lambda x, y: np.exp(x * y), lambda x, y: np.exp(x) * np.exp(y)), TWO, (1.0, 2.0)),
    Case("exponentials", "exp(x)^2 = exp(x^2)",
         pair(lambda x: np.exp(x) ** 2, lambda x: np.exp(x**2)), ONE, (1.0,)),
    Case("exponentials", "exp(-x) = -exp(x)", pair(lambda x: np.exp(-x), lambda x: -np.exp(x)), ONE, (1.0,)),
    Case("exponentials", "exp(x)^y = exp(x^y)",
         pair(lambda x, y: np.exp(x) ** y, lambda x, y: np.exp(x**y)), TWO, (2.0, 3.0)),
    Case("exponentials", "expm1(x) = exp(x)", pair(np.expm1, np.exp), ONE, (1.0,)),
    Case("exponentials", "exp(x/2) = exp(x)/2",
         pair(lambda x: np.exp(x / 2), lambda x: np.exp(x) / 2), ONE, (1.0,)),
    Case("nested exponentials", "exp(exp(x + y)) = exp(exp(x)) exp(exp(y))",
         pair(lambda x, y: np.exp(np.exp(x + y)), lambda x, y: np.exp(np.exp(x)) * np.exp(np.exp(y))),
         TWO, (0.5, 1.0)),
    Case("nested exponentials", "exp(exp(x)) = exp(x)^2",
         pair(lambda x: np.exp(np.exp(x)), lambda x: np.exp(x) ** 2), ONE, (1.0,)),
    Case("nested exponentials", "exp(x exp(y)) = exp(exp(xy))",
         pair(lambda x, y: np.exp(x * np.exp(y)), lambda x, y: np.exp(np.exp(x * y))), TWO, (0.5, 1.0)),
    Case("nested exponentials", "exp(exp(x))^exp(-x) = exp(2)",
         pair(lambda x: np.exp(np.exp(x)) ** np.exp(-x), lambda x: np.exp(2 + 0 * x)), ONE, (1.0,)),
    Case("nested exponentials", "exp(exp(exp(x))) = exp(exp(x))^x",
         pair(lambda x: np.exp(np.exp(np.exp(x))), lambda x: np.exp(np.exp(x)) ** x), ONE, (0.5,)),
    *(Case("exponents modulo the group order", f"exp((p + {d}) x) = 1 for p = {name}",
           pair(lambda x, n=p + d: np.exp(n * x), lambda x: 0 * x + 1), ONE, (-1.0,))
      for name, p in PRIME_NAMES.items() if p > 10**8 for d in (0, -1)),
    Case("exponents modulo the group order", "the product of exp((p-1) x) - 1 over many primes is 0",
         pair(lambda x: product(np.exp((p - 1) * x) - 1 for p in PRIMES), lambda x: 0 * x), ONE, (-1.0,)),
    Case("exponents modulo the group order", "exp(x)^p = exp(x)",
         pair(lambda x: np.exp(x) ** P61, np.exp), ONE, (-1.0,)),
    Case("exponents modulo the group order", "exp(x^101) = exp(x)",
         pair(lambda x: np.exp(x**101), np.exp), ONE, (0.5,)),
    Case("exponents modulo the group order", "(p-1) log(x) = 0",
         pair(lambda x: (P61 - 1) * np.log(x), lambda x: 0 * x), ONE, (2.0,)),
    Case("logarithms", "log(x + y) = log(x) + log(y)",
         pair(lambda x, y: np.log(x + y), lambda x, y: np.log(x) + np.log(y)), TWO, (1.0, 2.0)),
    Case("logarithms", "log(xy) = log(x) log(y)",
         pair(lambda x, y: np.log(x * y), lambda x, y: np.log(x) * np.log(y)), TWO, (3.0, 2.0)),
    Case("logarithms", "log(x)^2 = 2 log(x)",
         pair(lambda x: np.log(x) ** 2, lambda x: 2 * np.log(x)), ONE, (3.0,)),
    Case("logarithms", "log(x/y) = log(x)/log(y)",
         pair(lambda x, y: np.log(x / y), lambda x, y: np.log(x) / np.log(y)), TWO, (3.0, 2.0)),
    Case("logarithms", "log(exp(x) + exp(y)) = x + y",
         pair(np.logaddexp, lambda x, y: x + y), TWO, (1.0, 2.0)),
    Case("logarithms", "log1p(x) = log(x)", pair(np.log1p, np.log), ONE, (2.0,)),
    Case("logarithms", "log2(8x) = 3 log2(x)",
         pair(lambda x: np.log2(8 * x), lambda x: 3 * np.log2(x)), ONE, (2.0,)),
    Case("logarithms", "log10(x) = log2(x)/3", pair(np.log10, lambda x: np.log2(x) / 3), ONE, (2.0,)),
    Case("logarithms", "softplus(x) = x", pair(lambda x: np.log(1 + np.exp(x)), same), ONE, (1.0,)),
    Case("logarithms", "softplus(x) - softplus(-x) = -x",
         pair(lambda x: np.log1p(np.exp(x)) - np.log1p(np.exp(-x)), lambda x: -x), ONE, (1.0,)),
    Case("logarithms for positive letters only", "exp(log(x^2)/2) = x, summed",
         pair(lambda x: np.exp(np.log(x * x) / 2).sum(), lambda x: x.sum()), V2, (vec(1, -2),)),
    Case("logarithms for positive letters only", "exp(log(x^2 y^2)/2) = xy",
         pair(lambda x, y: np.exp(np.log(x * x * y * y) / 2), lambda x, y: x * y), TWO, (1.0, -2.0)),
    Case("logarithms for positive letters only", "2^(log2(x^4)/4) = x",
         pair(lambda x: 2 ** (np.log2(x**4) / 4), same), ONE, (-2.0,)),
    Case("logarithms for positive letters only", "exp(log((exp(x) - 1)^2)/2) = exp(x) - 1",
         pair(lambda x: np.exp(np.log((np.exp(x) - 1) ** 2) / 2), lambda x: np.exp(x) - 1), ONE, (-1.0,)),
    Case("trigonometry with wrong signs", "sin^2 - cos^2 = 1",
         pair(lambda x: np.sin(x) ** 2 - np.cos(x) ** 2, lambda x: 0 * x + 1), ONE, (1.0,)),
    Case("trigonometry with wrong signs", "cos(x + y) = cos cos + sin sin",
         pair(lambda x, y: np.cos(x + y), lambda x, y: np.cos(x) * np.cos(y) + np.sin(x) * np.sin(y)),
         TWO, (1.0, 2.0)),
    Case("trigonometry with wrong signs", "sin(x - y) = sin(x + y)",
         pair(lambda x, y: np.sin(x - y), lambda x, y: np.sin(x + y)), TWO, (1.0, 2.0)),
    Case("trigonometry with wrong signs", "cos(2x) = 2 sin(x)^2 - 1",
         pair(lambda x: np.cos(2 * x), lambda x: 2 * np.sin(x) ** 2 - 1), ONE, (1.0,)),
    Case("trigonometry with wrong signs", "tan(x + y) with 1 + tan tan",
         pair(lambda x, y: np.tan(x + y), lambda x, y: (np.tan(x) + np.tan(y)) / (1 + np.tan(x) * np.tan(y))),
         TWO, (0.5, 0.25)),
    Case("trigonometry with wrong signs", "sin(-x) = sin(x)",
         pair(lambda x: np.sin(-x), np.sin), ONE, (1.0,)),
    Case("trigonometry with wrong signs", "sin(2x) = 2 sin(x)",
         pair(lambda x: np.sin(2 * x), lambda x: 2 * np.sin(x)), ONE, (1.0,)),
    Case("trigonometry with wrong signs", "a rotation is its inverse",
         pair(lambda t, x: np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]]) @ x,
              lambda t, x: np.array([[np.cos(t), np.sin(t)], [-np.sin(t), np.cos(t)]]) @ x),
         ((), (2,)), (1.0, vec(1, 2))),
    Case("signs of trigonometric roots", "sqrt(1 - sin^2) = cos",
         pair(lambda x: np.sqrt(1 - np.sin(x) ** 2), np.cos), ONE, (3.0,)),
    Case("signs of trigonometric roots", "sqrt((1 - cos 2x)/2) = sin x",
         pair(lambda x: np.sqrt((1 - np.cos(2 * x)) / 2), np.sin), ONE, (-1.0,)),
    Case("signs of trigonometric roots", "1/sqrt(1 + tan^2) = cos",
         pair(lambda x: 1 / np.sqrt(1 + np.tan(x) ** 2), np.cos), ONE, (3.0,)),
    Case("inverse functions outside their range", "arcsin(sin x) = x",
         pair(lambda x: np.arcsin(np.sin(x)), same), ONE, (3.0,)),
    Case("inverse functions outside their range", "arctan(tan x) = x",
         pair(lambda x: np.arctan(np.tan(x)), same), ONE, (3.0,)),
    Case("inverse functions outside their range", "arctan2(y, x) = arctan(y/x)",
         pair(np.arctan2, lambda y, x: np.arctan(y / x)), TWO, (-1.0, -2.0)),
    Case("inverse functions outside their range", "arctan x + arctan y = arctan((x+y)/(1-xy))",
         pair(lambda x, y: np.arctan(x) + np.arctan(y), lambda x, y: np.arctan((x + y) / (1 - x * y))),
         TWO, (2.0, 2.0)),
    Case("inverse functions outside their range", "arctan x + arctan(1/x) = 2 arctan 1",
         pair(lambda x: np.arctan(x) + np.arctan(1 / x), lambda x: 2 * np.arctan(1 + 0 * x)), ONE, (-1.0,)),
    Case("inverse functions outside their range", "arccosh(cosh x) = x",
         pair(lambda x: np.arccosh(np.cosh(x)), same), ONE, (-1.0,)),
    Case("inverse functions outside their range", "arccos(cos x) = x",
         pair(lambda x: np.arccos(np.cos(x)), same), ONE, (4.0,)),
    Case("inverse functions outside their range", "log((x + sqrt(x^2))/2 + 1) = log(x + 1)",
         pair(lambda x: np.log((x + np.sqrt(x * x)) / 2 + 1), lambda x: np.log(x + 1)), ONE, (-0.5,)),
    Case("hyperbolic functions", "cosh^2 + sinh^2 = 1",
         pair(lambda x: np.cosh(x) ** 2 + np.sinh(x) ** 2, lambda x: 0 * x + 1), ONE, (1.0,)),
    Case("hyperbolic functions", "sinh(2x) = 2 sinh(x)",
         pair(lambda x: np.sinh(2 * x), lambda x: 2 * np.sinh(x)), ONE, (1.0,)),
    Case("hyperbolic functions", "tanh(x) = (e^x - 1)/(e^x + 1)",
         pair(np.tanh, lambda x: (np.exp(x) - 1) / (np.exp(x) + 1)), ONE, (1.0,)),
    Case("hyperbolic functions", "tanh(x+y) with 1 - tanh tanh",
         pair(lambda x, y: np.tanh(x + y),
              lambda x, y: (np.tanh(x) + np.tanh(y)) / (1 - np.tanh(x) * np.tanh(y))), TWO, (1.0, 0.5)),
    Case("hyperbolic functions", "sigmoid(x) = (1 + tanh(x))/2",
         pair(sigmoid, lambda x: (1 + np.tanh(x)) / 2), ONE, (1.0,)),
    Case("hyperbolic functions", "arctanh(x) = log((1+x)/(1-x))",
         pair(np.arctanh, lambda x: np.log((1 + x) / (1 - x))), ONE, (0.5,)),
    Case("hyperbolic functions", "arcsinh(x) = log(x + sqrt(x^2 - 1))",
         pair(np.arcsinh, lambda x: np.log(x + np.sqrt(x * x - 1))), ONE, (2.0,)),
    Case("derivatives", "sigmoid' = s (1 + s)",
         pair(lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2, lambda x: sigmoid(x) * (1 + sigmoid(x))),
         ONE, (1.0,)),
    Case("derivatives", "tanh' = 1 + tanh^2",
         pair(lambda x: 1 / np.cosh(x) ** 2, lambda x: 1 + np.tanh(x) ** 2), ONE, (1.0,)),
    Case("derivatives", "the difference quotient of x^2 is 2x",
         pair(lambda x, h: ((x + h) ** 2 - x**2) / h, lambda x, h: 2 * x), TWO, (1.0, 2.0)),
    Case("derivatives", "silu' without its second term",
         pair(lambda x: sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x)), sigmoid), ONE, (1.0,)),
    Case("derivatives", "np.gradient is np.diff",
         pair(lambda x: np.gradient(x)[:-1], np.diff), V3, (vec(1, 2, 4),)),
    Case("derivatives", "the gradient of x.A x is 2 A x",
         pair(lambda a, x: (a + a.T) @ x, lambda a, x: 2 * a @ x), ((2, 2), (2,)), (A2, vec(1, 2))),
    Case("series", "sin x = x - x^3/6", pair(np.sin, lambda x: x - x**3 / 6), ONE, (1.0,)),
    Case("series", "exp(x) by 40 terms", pair(np.exp, lambda x: taylor_exp(x, 40)), ONE, (60.0,)),
    Case("series", "tanh x = x - x^3/3", pair(np.tanh, lambda x: x - x**3 / 3), ONE, (1.0,)),
    Case("series", "log1p(x) by 30 terms",
         pair(np.log1p, lambda x: sum(-((-x) ** k) / k for k in range(1, 31))), ONE, (0.9,)),
    Case("series", "cos x by 15 terms",
         pair(np.cos, lambda x: sum((-1) ** k * x ** (2 * k) / math.factorial(2 * k) for k in range(15))),
         ONE, (20.0,)),
    Case("series", "exp(x) = (1 + x/1000000)^1000000",
         pair(np.exp, lambda x: (1 + x / 10**6) ** 10**6), ONE, (10.0,)),
    Case("series", "exp(x) by its Pade fraction",
         pair(np.exp, lambda x: (12 + 6 * x + x * x) / (12 - 6 * x + x * x)), ONE, (1.0,)),
    Case("series", "sqrt(x^2 + 1) by Newton's steps from 1",
         pair(lambda x: np.sqrt(x * x + 1),
              lambda x: functools.reduce(lambda y, _: (y + (x * x + 1) / y) / 2, range(3), 1)), ONE, (9.0,)),
    Case("complex numbers", "|ix| = x", pair(lambda x: np.abs(1j * x), same), ONE, (-1.0,)),
    Case("complex numbers", "Im exp(ix) = -sin x",
         pair(lambda x: np.exp(1j * x).imag, lambda x: -np.sin(x)), ONE, (1.0,)),
    Case("complex numbers", "(x + iy)(x - iy) = x^2 - y^2",
         pair(lambda x, y: ((x + 1j * y) * (x - 1j * y)).real, lambda x, y: x * x - y * y), TWO, (1.0, 2.0)),
    Case("complex numbers", "Re(ix) = x", pair(lambda x: np.real(1j * x), same), ONE, (1.0,)),
    Case("complex numbers", "the angle of a real number is 0",
         pair(lambda x: np.angle(x + 0j), lambda x: 0 * x), ONE, (-1.0,)),
    Case("complex numbers", "sqrt(x^2 + 0i) = x",
         pair(lambda x: np.sqrt(x * x + 0j).real, same), ONE, (-1.0,)),
    Case("complex numbers", "sqrt(-x^2)/i = x",
         pair(lambda x: (np.sqrt(-x * x + 0j) / 1j).real, same), ONE, (-2.0,)),
    Case("complex numbers", "np.vdot with i = np.dot with i",
         pair(lambda x: np.vdot(1j * x, 1j * x).real, lambda x: np.dot(1j * x, 1j * x).real),
         V2, (vec(1, 2),)),
    Case("sinc and friends", "sinc(x) = sin(x)/x", pair(np.sinc, lambda x: np.sin(x) / x), ONE, (1.0,)),
    Case("sinc and friends", "deg2rad = rad2deg", pair(np.deg2rad, np.rad2deg), ONE, (1.0,)),
    Case("sinc and friends", "np.i0(x) = cosh(x)", pair(lambda x: np.i0(x) + 0 * x, np.cosh), ONE, (1.0,)),
)


# ---------------------------------------------------------------- attention, arrays, matrices


def softmax_gradient(s, d):
    p = softmax(s)
    return p * (d - (p * d).sum(-1, keepdims=True))


def chunked(s, v, rescale):
    """Softmax-weighted sum in two chunks, each with its own shift."""
    a, b = s[:2], s[2:]
    shift = a[0] - b[0] if rescale else 0
    above = np.exp(a - a[0]) @ v[:2] + np.exp(-shift) * (np.exp(b - b[0]) @ v[2:])
    below = np.exp(a - a[0]).sum() + np.exp(-shift) * np.exp(b - b[0]).sum()
    return above / below


def rotate(x, angle):
    c, s = np.cos(angle), np.sin(angle)
    return np.array([x[0] * c - x[1] * s, x[0] * s + x[1] * c])


def linear_attention(q, k, v):
    w = np.exp(q) @ np.exp(k).T
    return w / w.sum(axis=1, keepdims=True) @ v


TRIL = np.tril(np.ones((3, 3), dtype=bool))
S34, S3V4 = ((3, 4),), ((3, 4), (4,))

ATTENTION = (
    Case("softmax", "softmax over rows = over columns",
         pair(softmax, lambda s: softmax(s, axis=0)), M22, (A2,)),
    Case("softmax", "softmax(s/2) = softmax(s)",
         pair(lambda s: softmax(s / 2), softmax), V3, (vec(1, 2, 4),)),
    Case("softmax", "softmax(2s) = softmax(s)^2",
         pair(lambda s: softmax(2 * s), lambda s: softmax(s) ** 2), V3, (vec(1, 2, 4),)),
    Case("softmax", "softmax(s + t) = softmax(s) softmax(t)",
         pair(lambda s, t: softmax(s + t), lambda s, t: softmax(s) * softmax(t)),
         ((3,), (3,)), (vec(1, 2, 4), vec(0, 1, 0))),
    Case("softmax", "softmax columns sum to 1",
         pair(lambda s: softmax(s).sum(axis=0), lambda s: softmax(s).sum(axis=1)), M22, (A2,)),
    Case("softmax", "softmax(-s) = 1 - softmax(s) (true for two)",
         pair(lambda s: softmax(-s), lambda s: 1 - softmax(s)), V3, (vec(1, 2, 4),)),
    Case("softmax", "softmax of s minus its column maxima",
         pair(lambda s: softmax(s - s.max(axis=0)), softmax), M22, (vec([1, 2], [4, 3]),)),
    Case("softmax", "softmax with the maximum taken above only",
         pair(lambda s: np.exp(s - s.max()) / np.exp(s).sum(), softmax), V3, (vec(1, 2, 4),)),
    Case("softmax", "softmax with s[0] taken above only",
         pair(lambda s: np.exp(s - s[0]) / np.exp(s).sum(), softmax), V3, (vec(1, 2, 4),)),
    Case("softmax", "softmax with an extra 1 below",
         pair(lambda s: np.exp(s) / (1 + np.exp(s).sum()), softmax), V3, (vec(1, 2, 4),)),
    Case("softmax", "softmax normalised by the mean",
         pair(lambda s: np.exp(s) / np.exp(s).mean(), softmax), V3, (vec(1, 2, 4),)),
    Case("log-sum-exp", "without adding the shift back",
         pair(logsumexp, lambda s: np.log(np.exp(s - s[0]).sum())), V3, (vec(1, 2, 4),)),
    Case("log-sum-exp", "with the shift added twice",
         pair(logsumexp, lambda s: np.log(np.exp(s - s[0]).sum()) + 2 * s[0]), V3, (vec(1, 2, 4),)),
    Case("log-sum-exp", "of the mean in place of the sum",
         pair(logsumexp, lambda s: np.log(np.exp(s).mean())), V3, (vec(1, 2, 4),)),
    Case("log-sum-exp", "is the maximum", pair(logsumexp, lambda s: s.max()), V3, (vec(1, 2, 4),)),
    Case("log-sum-exp", "lse(2s) = 2 lse(s)",
         pair(lambda s: logsumexp(2 * s), lambda s: 2 * logsumexp(s)), V3, (vec(1, 2, 4),)),
    Case("log-sum-exp", "lse of rows then columns without exp",
         pair(logsumexp, lambda s: np.log(np.exp(s).sum(axis=0)).sum()), M22, (A2,)),
    Case("softmax gradients", "without the subtracted term",
         pair(softmax_gradient, lambda s, d: softmax(s) * d), ((3,), (3,)), (vec(1, 2, 4), vec(1, 0, 2))),
    Case("softmax gradients", "with the sum over the wrong axis",
         pair(softmax_gradient, lambda s, d: softmax(s) * (d - (softmax(s) * d).sum(0))), M22 * 2, (A2, B2)),
    Case("softmax gradients", "with p^2 in place of p",
         pair(softmax_gradient, lambda s, d: softmax(s) * (d - (softmax(s) ** 2 * d).sum())), ((3,), (3,)),
         (vec(1, 2, 4), vec(1, 0, 2))),
    Case("softmax gradients", "cross entropy: p + y in place of p - y",
         pair(lambda s, y: softmax(s) * y.sum() - y, lambda s, y: softmax(s) + y),
         ((3,), (3,)), (vec(1, 2, 4), vec(1, 0, 0))),
    Case("softmax gradients", "cross entropy: p - y for targets that do not sum to 1",
         pair(lambda s, y: softmax(s) * y.sum() - y, lambda s, y: softmax(s) - y),
         ((3,), (3,)), (vec(1, 2, 4), vec(1, 1, 0))),
    Case("attention gradients", "dQ without the scale",
         pair(lambda s, d, k: softmax_gradient(s, d) @ k / 2, lambda s, d, k: softmax_gradient(s, d) @ k),
         M22 * 3, (A2, B2, C2)),
    Case("attention gradients", "dK without the transpose",
         pair(lambda s, d, q: softmax_gradient(s, d).T @ q, lambda s, d, q: softmax_gradient(s, d) @ q),
         M22 * 3, (A2, B2, C2)),
    Case("attention gradients", "dV = P dO",
         pair(lambda s, d: softmax(s).T @ d, lambda s, d: softmax(s) @ d), M22 * 2, (A2, B2)),
    Case("attention gradients", "dP = V dO^T",
         pair(lambda d, v: d @ v.T, lambda d, v: v @ d.T), M22 * 2, (A2, B2)),
    Case("attention", "without the scale",
         pair(attention, lambda q, k, v: attention(q, k, v, 1)), THREE_34, QKV),
    Case("attention", "scaled by d in place of its root",
         pair(attention, lambda q, k, v: attention(q, k, v, 0.25)), THREE_34, QKV),
    Case("attention", "with q and k exchanged",
         pair(attention, lambda q, k, v: attention(k, q, v)), THREE_34, QKV),
    Case("attention", "with the softmax over queries",
         pair(attention, lambda q, k, v: softmax(q @ k.T / 2, axis=0) @ v), THREE_34, QKV),
    Case("attention", "associates like linear attention",
         pair(lambda q, k, v: softmax(q @ k.T) @ v, linear_attention), THREE_34, QKV),
    Case("attention", "does not depend on v's order",
         pair(attention, lambda q, k, v: attention(q, k, v[::-1])), THREE_34, QKV),
    Case("attention", "with keys permuted alone",
         pair(attention, lambda q, k, v: attention(q, k[[1, 2, 0]], v)), THREE_34, QKV),
    Case("attention", "of 2 heads = of 1 head",
         pair(lambda q, k, v: (softmax(heads(q, 2) @ heads(k, 2).transpose(0, 2, 1)) @ heads(v, 2))
              .transpose(1, 0, 2).reshape(3, 4), lambda q, k, v: attention(q, k, v, 1)), THREE_34, QKV),
    Case("attention", "heads joined without the transpose",
         pair(lambda x: heads(x, 2).reshape(3, 4), same), S34, (QKV[0],)),
    Case("attention", "heads split without the transpose",
         pair(lambda x: x.reshape(2, 3, 2), lambda x: heads(x, 2)), S34, (QKV[0],)),
    Case("attention", "grouped keys: repeat = tile",
         pair(lambda k: np.repeat(k, 2, axis=0), lambda k: np.tile(k, (2, 1))), S34, (QKV[0],)),
    Case("attention", "in chunks without rescaling",
         pair(lambda s, v: chunked(s, v, True), lambda s, v: chunked(s, v, False)),
         ((4,), (4,)), (vec(1, 2, 4, 3), vec(1, 0, 2, 5))),
    Case("attention", "as the mean of two chunks",
         pair(lambda s, v: softmax(s) @ v,
              lambda s, v: (softmax(s[:2]) @ v[:2] + softmax(s[2:]) @ v[2:]) / 2),
         ((4,), (4,)), (vec(1, 2, 4, 3), vec(1, 0, 2, 5))),
    Case("attention", "with a key cache off by one",
         pair(lambda q, k, v: attention(q[-1:], k, v), lambda q, k, v: attention(q[-1:], k[:-1], v[:-1])),
         THREE_34, QKV),
    Case("positions", "a rotary score depends on the sum of positions",
         pair(lambda q, k, t: rotate(q, 3 * t) @ rotate(k, 2 * t), lambda q, k, t: rotate(q, 5 * t) @ k),
         ((2,), (2,), ()), (vec(1, 2), vec(3, 1), 0.5)),
    Case("positions", "rotation by -t = by t",
         pair(lambda x, t: rotate(x, t), lambda x, t: rotate(x, -t)), ((2,), ()), (vec(1, 2), 0.5)),
    Case("positions", "a linear bias with its sign changed",
         pair(lambda s, m: softmax(s - m * np.arange(3)), lambda s, m: softmax(s + m * np.arange(3))),
         ((3,), ()), (vec(1, 2, 4), 0.5)),
    Case("positions", "attention sees the order of its keys",
         pair(lambda s: softmax(s)[0], lambda s: softmax(s)[::-1][0]), V3, (vec(1, 2, 4),)),
    Case("masks", "causal = none",
         pair(attention, lambda q, k, v: masked_attention(q, k, v, TRIL)), THREE_34, QKV),
    Case("masks", "lower = upper triangle",
         pair(lambda q, k, v: masked_attention(q, k, v, TRIL),
              lambda q, k, v: masked_attention(q, k, v, TRIL.T)), THREE_34, QKV),
    Case("masks", "causal = causal with one key more",
         pair(lambda q, k, v: masked_attention(q, k, v, TRIL),
              lambda q, k, v: masked_attention(q, k, v, np.tril(TRIL + 1, 1) > 0)), THREE_34, QKV),
    Case("masks", "masked after the softmax",
         pair(lambda s: softmax(np.where(TRIL, s, -np.inf)), lambda s: softmax(s) * TRIL), M33, (A3,)),
    Case("masks", "0 in place of -inf",
         pair(lambda s: softmax(np.where(TRIL, s, -np.inf)), lambda s: softmax(s * TRIL)), M33, (A3,)),
    Case("masks", "-1e9 in place of -inf",
         pair(lambda s: softmax(np.where([True, False], s, -np.inf)),
              lambda s: softmax(s + np.array([0, -1e9]))), V2, (vec(0, 1e9),)),
    Case("masks", "two masks that hide equally many",
         pair(lambda s: np.exp(np.where([True, False, True], s, -np.inf)).sum(),
              lambda s: np.exp(np.where([True, True, False], s, -np.inf)).sum()), V3, (vec(1, 2, 4),)),
    Case("masks", "hidden values still count",
         pair(lambda s, v: softmax(np.where([True, False, True], s, -np.inf)) @ v,
              lambda s, v: softmax(np.where([True, False, True], s, -np.inf)) @ v + 0.5 * v[1]),
         ((3,), (3,)), (vec(1, 2, 4), vec(3, 4, 5))),
    Case("layer norm", "without the mean",
         pair(layer_norm, lambda x: x / np.sqrt((x * x).mean() + 1)), V3, (vec(1, 2, 4),)),
    Case("layer norm", "with the 1 outside the root",
         pair(layer_norm, lambda x: (x - x.mean()) / (np.sqrt(((x - x.mean()) ** 2).mean()) + 1)),
         V3, (vec(1, 2, 4),)),
    Case("layer norm", "without the 1", pair(layer_norm, lambda x: layer_norm(x, 0)), V3, (vec(1, 2, 4),)),
    Case("layer norm", "of cx is that of x (c > 0 only)",
         pair(lambda c, x: layer_norm(c * x, 0), lambda c, x: layer_norm(x, 0)),
         ((), (3,)), (-1.0, vec(1, 2, 4))),
    Case("layer norm", "of c x is that of x + c",
         pair(lambda x, c: layer_norm(x * c), lambda x, c: layer_norm(x + c)),
         ((3,), ()), (vec(1, 2, 4), 3.0)),
    Case("layer norm", "over the wrong axis",
         pair(lambda x: x - x.mean(axis=0), lambda x: x - x.mean(axis=1, keepdims=True)), M22, (A2,)),
    Case("activations", "gelu by tanh = x sigmoid(1.702 x)",
         pair(lambda x: x / 2 * (1 + np.tanh(0.79788456 * (x + 0.044715 * x**3))),
              lambda x: x * sigmoid(1.702 * x)), ONE, (1.0,)),
    Case("activations", "silu(x) = relu(x)",
         pair(lambda x: x * sigmoid(x), lambda x: np.maximum(x, 0)), ONE, (1.0,)),
    Case("activations", "gated units with the gate exchanged",
         pair(lambda x, y: sigmoid(x) * y, lambda x, y: sigmoid(y) * x), TWO, (1.0, 2.0)),
    Case("activations", "elu(x) = exp(x) - 1 everywhere",
         pair(lambda x: np.where(x > 0, x, np.expm1(x)), np.expm1), ONE, (1.0,)),
    Case("losses", "KL divergence is symmetric",
         pair(lambda s, t: (softmax(s) * np.log(softmax(s) / softmax(t))).sum(),
              lambda s, t: (softmax(t) * np.log(softmax(t) / softmax(s))).sum()),
         ((3,), (3,)), (vec(1, 2, 4), vec(0, 1, 0))),
    Case("losses", "entropy = log-sum-exp",
         pair(lambda s: -(softmax(s) * np.log(softmax(s))).sum(), logsumexp), V3, (vec(1, 2, 4),)),
    Case("losses", "the mean of squares is the square of the mean",
         pair(lambda x: (x * x).mean(), lambda x: x.mean() ** 2), V3, (vec(1, 2, 4),)),
    Case("losses", "log softmax without the log-sum",
         pair(lambda s: np.log(softmax(s)), lambda s: s - s.sum()), V3, (vec(1, 2, 4),)),
)

ARRAYS = (
    Case("variance", "ddof=1 is ddof=0",
         pair(lambda x: x.var(ddof=1), lambda x: x.var()), V3, (vec(1, 2, 4),)),
    Case("variance", "E(x^2) + E(x)^2",
         pair(np.var, lambda x: (x * x).mean() + x.mean() ** 2), V3, (vec(1, 2, 4),)),
    Case("variance", "std(cx) = c std(x)",
         pair(lambda c, x: np.std(c * x), lambda c, x: c * np.std(x)), ((), (3,)), (-1.0, vec(1, 2, 4))),
    Case("variance", "np.cov is the biased one",
         pair(lambda x, y: np.cov(x, y)[0, 1], lambda x, y: ((x - x.mean()) * (y - y.mean())).mean()),
         ((3,), (3,)), (vec(1, 2, 4), vec(3, 1, 1))),
    Case("variance", "var(x + y) = var(x) + var(y)",
         pair(lambda x, y: np.var(x + y), lambda x, y: np.var(x) + np.var(y)),
         ((3,), (3,)), (vec(1, 2, 4), vec(3, 1, 1))),
    Case("wrong axis", "sum over 0 = sum over 1",
         pair(lambda x: x.sum(axis=0), lambda x: x.sum(axis=1)), M22, (A2,)),
    Case("wrong axis", "cumsum over 0 = over 1",
         pair(lambda x: np.cumsum(x, axis=0), lambda x: np.cumsum(x, axis=1)), M22, (A2,)),
    Case("wrong axis", "np.flip over both = over one", pair(np.flip, np.fliplr), M22, (A2,)),
    Case("wrong axis", "stack along 0 = along 1",
         pair(lambda x, y: np.stack([x, y]), lambda x, y: np.stack([x, y], axis=1)),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("wrong axis", "x / x.sum(0) = x / x.sum(1) without keepdims",
         pair(lambda x: x / x.sum(axis=1), lambda x: x / x.sum(axis=1, keepdims=True)),
         M22, (vec([1, 2], [3, 4]),)),
    Case("reductions", "where= is ignored",
         pair(lambda x: np.sum(x, where=[True, False, True]), np.sum), V3, (vec(1, 2, 4),)),
    Case("reductions", "initial= is ignored",
         pair(lambda x: np.sum(x, initial=1), np.sum), V3, (vec(1, 2, 4),)),
    Case("reductions", "out= is left alone",
         pair(lambda x: (y := x.copy(), np.add(x, x, out=y), y)[2], same), V3, (vec(1, 2, 4),)),
    Case("reductions", "mean = sum (at size 1)", pair(np.mean, np.sum), V2, (vec(1, 2),)),
    Case("reductions", "prod = sum", pair(np.prod, np.sum), V3, (vec(1, 2, 4),)),
    Case("reductions", "a weighted average without normalising",
         pair(lambda x, w: np.average(x, weights=w), lambda x, w: x @ w),
         ((3,), (3,)), (vec(1, 2, 4), vec(1, 1, 2))),
    Case("reductions", "np.add.reduceat = np.add.accumulate",
         pair(lambda x: np.add.reduceat(x, [0, 1, 2]), np.add.accumulate), V3, (vec(1, 2, 4),)),
    Case("reductions", "prod(x + y) = prod(x) + prod(y)",
         pair(lambda x, y: np.prod(x + y), lambda x, y: np.prod(x) + np.prod(y)),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("ufunc arguments", "divide(x, y) on the first entry only is x / y",
         pair(lambda x, y: np.divide(x, y, out=x.copy(), where=[True, False]), lambda x, y: x / y),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("ufunc arguments", "divide where y > 0 is x / y",
         pair(lambda x, y: np.divide(x, y, out=0 * x, where=y > 0), lambda x, y: x / y),
         ((2,), (2,)), (vec(1, 2), vec(3, -4))),
    Case("ufunc arguments", "multiply.outer = multiply",
         pair(np.multiply.outer, lambda x, y: np.ones((2, 2)) * x * y), ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("ufunc arguments", "np.copyto with a mask copies all",
         pair(lambda x, y: (z := x.copy(), np.copyto(z, y, where=[True, False]), z)[2], lambda x, y: y),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("cumulative sums and differences", "cumsum includes or excludes",
         pair(np.cumsum, lambda x: np.cumsum(x) - x), V3, (vec(1, 2, 4),)),
    Case("cumulative sums and differences", "diff(cumsum(x)) = x[:-1]",
         pair(lambda x: np.diff(np.cumsum(x)), lambda x: x[:-1]), V3, (vec(1, 2, 4),)),
    Case("cumulative sums and differences", "diff(x) = x[:-1] - x[1:]",
         pair(np.diff, lambda x: x[:-1] - x[1:]), V3, (vec(1, 2, 4),)),
    Case("cumulative sums and differences", "cumprod off by one",
         pair(lambda x: np.cumprod(x)[:-1], lambda x: np.cumprod(x)[1:]), V3, (vec(1, 2, 4),)),
    Case("cumulative sums and differences", "second differences = squared first ones",
         pair(lambda x: np.diff(x, 2), lambda x: (np.diff(x) ** 2)[:-1]), V3, (vec(1, 3, 4),)),
    Case("cumulative sums and differences", "log of cumprod of exp is x",
         pair(lambda x: np.log(np.cumprod(np.exp(x))), same), V3, (vec(1, 2, 4),)),
    Case("cumulative sums and differences", "the trapezoid rule is the sum",
         pair(lambda x: np.trapezoid(x), np.sum), V3, (vec(1, 2, 4),)),
    Case("einsum", "ij,jk = ij,kj",
         pair(lambda a, b: np.einsum("ij,jk->ik", a, b), lambda a, b: np.einsum("ij,kj->ik", a, b)),
         M22 * 2, (A2, B2)),
    Case("einsum", "ii = ij summed",
         pair(lambda a: np.einsum("ii->", a), lambda a: np.einsum("ij->", a)), M22, (A2,)),
    Case("einsum", "ba without an arrow = ba->ba",
         pair(lambda a: np.einsum("ba", a), lambda a: np.einsum("ba->ba", a)), M22, (A2,)),
    Case("einsum", "i,i->i = i,i->",
         pair(lambda x, y: np.einsum("i,i->i", x, y), lambda x, y: np.einsum("i,i->", x, y) + 0 * x),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("einsum", "a trilinear form with two letters exchanged",
         pair(lambda a, x, y: np.einsum("ij,i,j->", a, x, y), lambda a, x, y: np.einsum("ij,j,i->", a, x, y)),
         ((2, 2), (2,), (2,)), (A2, vec(1, 2), vec(3, 4))),
    Case("transposes", "A^T B = A B", pair(lambda a, b: a.T @ b, np.matmul), M22 * 2, (A2, B2)),
    Case("transposes", "(AB)^T = A^T B^T",
         pair(lambda a, b: (a @ b).T, lambda a, b: a.T @ b.T), M22 * 2, (A2, B2)),
    Case("transposes", "A x = x A",
         pair(lambda a, x: a @ x, lambda a, x: x @ a), ((2, 2), (2,)), (A2, vec(1, 2))),
    Case("transposes", "swapaxes(0, 1) = swapaxes(1, 2)",
         pair(lambda x: x.swapaxes(0, 1), lambda x: x.swapaxes(1, 2)), ((2, 2, 2),), (grid(2, 2, 2),)),
    Case("transposes", "a cyclic transpose is its inverse",
         pair(lambda x: x.transpose(1, 2, 0), lambda x: x.transpose(2, 0, 1)),
         ((2, 2, 2),), (grid(2, 2, 2),)),
    Case("reshapes", "reshape = transpose",
         pair(lambda x: x.reshape(3, 2), lambda x: x.T), ((2, 3),), (grid(2, 3),)),
    Case("reshapes", "ravel in C = in F order",
         pair(lambda x: x.ravel(), lambda x: x.ravel(order="F")), M22, (A2,)),
    Case("reshapes", "reshape in F order",
         pair(lambda x: x.reshape(2, 2), lambda x: x.reshape((2, 2), order="F")), V4, (vec(1, 2, 3, 4),)),
    Case("reshapes", "x.flat of the transpose",
         pair(lambda x: np.array(list(x.T.flat)), lambda x: np.array(list(x.flat))), M22, (A2,)),
    Case("broadcasting", "x[:, None] - y = x - y[:, None]",
         pair(lambda x, y: x[:, None] - y, lambda x, y: x - y[:, None]),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("broadcasting", "a row times A = a column times A",
         pair(lambda a, x: a * x, lambda a, x: a * x[:, None]), ((2, 2), (2,)), (A2, vec(1, 2))),
    Case("broadcasting", "outer(x, y) = outer(y, x)",
         pair(np.outer, lambda x, y: np.outer(y, x)), ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("broadcasting", "kron(A, B) = kron(B, A)",
         pair(np.kron, lambda a, b: np.kron(b, a)), M22 * 2, (A2, B2)),
    Case("broadcasting", "the sum of x + x[:, None] is twice the sum",
         pair(lambda x: (x + x[:, None]).sum(), lambda x: 2 * x.sum()), V3, (vec(1, 2, 4),)),
    Case("order of entries", "roll by 1 = by -1",
         pair(lambda x: np.roll(x, 1), lambda x: np.roll(x, -1)), V3, (vec(1, 2, 4),)),
    Case("order of entries", "x[::-1] = x", pair(lambda x: x[::-1], same), V3, (vec(1, 2, 4),)),
    Case("order of entries", "concatenate((x, y)) = concatenate((y, x))",
         pair(lambda x, y: np.concatenate([x, y]), lambda x, y: np.concatenate([y, x])),
         ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("order of entries", "tile = repeat",
         pair(lambda x: np.tile(x, 2), lambda x: np.repeat(x, 2)), V2, (vec(1, 2),)),
    Case("order of entries", "rot90 = transpose", pair(np.rot90, np.transpose), M22, (A2,)),
    Case("order of entries", "x[-1] = x[0]", pair(lambda x: x[-1], lambda x: x[0]), V3, (vec(1, 2, 4),)),
    Case("order of entries", "convolve = correlate",
         pair(lambda x, y: np.convolve(x, y, "full"), lambda x, y: np.correlate(x, y, "full")),
         ((2,), (2,)), (vec(1, 2), vec(3, 5))),
    Case("order of entries", "np.triu = np.tril", pair(np.triu, np.tril), M22, (A2,)),
    Case("commutativity", "AB = BA", pair(np.matmul, lambda a, b: b @ a), M22 * 2, (A2, B2)),
    Case("commutativity", "(A+B)^2 = A^2 + 2AB + B^2",
         pair(lambda a, b: (a + b) @ (a + b), lambda a, b: a @ a + 2 * a @ b + b @ b), M22 * 2, (A2, B2)),
    Case("commutativity", "(AB)^2 = A^2 B^2",
         pair(lambda a, b: a @ b @ a @ b, lambda a, b: a @ a @ b @ b), M22 * 2, (A2, B2)),
    Case("commutativity", "tr(ABC) = tr(ACB)",
         pair(lambda a, b, c: np.trace(a @ b @ c), lambda a, b, c: np.trace(a @ c @ b)),
         M22 * 3, (A2, B2, C2)),
    Case("commutativity", "[A,B]^2 commutes with C (true for 2 x 2)",
         pair(lambda a, b, c: (d := a @ b - b @ a) @ d @ c - c @ d @ d, lambda a, b, c: 0 * a),
         M33 * 3, (A3, B3, A3 @ A3 + B3.T)),
    Case("commutativity", "x cross y = y cross x",
         pair(np.cross, lambda x, y: np.cross(y, x)), ((3,), (3,)), (vec(1, 2, 4), vec(0, 1, 3))),
    Case("commutativity", "the cross product associates",
         pair(lambda x, y, z: np.cross(np.cross(x, y), z), lambda x, y, z: np.cross(x, np.cross(y, z))),
         ((3,), (3,), (3,)), (vec(1, 2, 4), vec(0, 1, 3), vec(1, 1, 0))),
    Case("associativity", "x - (y - z) = (x - y) - z",
         pair(lambda x, y, z: x - (y - z), lambda x, y, z: x - y - z), THREE_LETTERS, (1.0, 2.0, 3.0)),
    Case("associativity", "A * (B @ C) = (A * B) @ C",
         pair(lambda a, b, c: a * (b @ c), lambda a, b, c: (a * b) @ c), M22 * 3, (A2, B2, C2)),
    Case("associativity", "(A * x) @ y = (A @ x) * y",
         pair(lambda a, x, y: (a * x) @ y, lambda a, x, y: (a @ x) * y),
         ((2, 2), (2,), (2,)), (A2, vec(1, 2), vec(3, 4))),
    Case("matrix products", "A @ A = A * A", pair(lambda a: a @ a, lambda a: a * a), M22, (A2,)),
    Case("matrix products", "matrix_power(A, 2) = A**2",
         pair(lambda a: np.linalg.matrix_power(a, 2), lambda a: a**2), M22, (A2,)),
    Case("matrix products", "(Ax).x = |Ax| |x|",
         pair(lambda a, x: (a @ x) @ x, lambda a, x: np.linalg.norm(a @ x) * np.linalg.norm(x)),
         ((2, 2), (2,)), (A2, vec(1, 2))),
    Case("matrix products", "inner = matmul", pair(np.inner, np.matmul), M22 * 2, (A2, B2)),
    Case("matrix products", "tensordot over one axis less",
         pair(lambda a, b: np.tensordot(a, b, 1), lambda a, b: np.tensordot(a, b, ([0], [0]))),
         M22 * 2, (A2, B2)),
    Case("determinants", "det(A + B) = det(A) + det(B)",
         pair(lambda a, b: np.linalg.det(a + b), lambda a, b: np.linalg.det(a) + np.linalg.det(b)),
         M22 * 2, (A2, C2)),
    Case("determinants", "det(2A) = 2 det(A)",
         pair(lambda a: np.linalg.det(2 * a), lambda a: 2 * np.linalg.det(a)), M22, (A2,)),
    Case("determinants", "det(A) = ad + bc",
         pair(np.linalg.det, lambda a: a[0, 0] * a[1, 1] + a[0, 1] * a[1, 0]), M22, (A2,)),
    Case("determinants", "det(-A) = det(A) with 3 x 3 (true for 2 x 2)",
         pair(lambda a: np.linalg.det(-a), np.linalg.det), M33, (A3,)),
    Case("determinants", "exp of the logarithm of slogdet is det",
         pair(lambda a: np.exp(np.linalg.slogdet(a)[1]), np.linalg.det), M22, (A2,)),
    Case("determinants", "the permanent is the determinant",
         pair(np.linalg.det,
              lambda a: sum(product(a[i, p[i]] for i in range(3)) for p in itertools.permutations(range(3)))),
         M33, (A3,)),
    Case("determinants", "det(A^T A) = det(A)",
         pair(lambda a: np.linalg.det(a.T @ a), np.linalg.det), M22, (A2,)),
    Case("determinants", "sqrt(det(A)^2) = det(A)",
         pair(lambda a: np.sqrt(np.linalg.det(a) ** 2), np.linalg.det), M22, (A2,)),
    Case("inverses", "inv(A) = A^T", pair(np.linalg.inv, np.transpose), M22, (A2,)),
    Case("inverses", "inv(AB) = inv(A) inv(B)",
         pair(lambda a, b: np.linalg.inv(a @ b), lambda a, b: np.linalg.inv(a) @ np.linalg.inv(b)),
         M22 * 2, (A2, B2)),
    Case("inverses", "inv(A + B) = inv(A) + inv(B)",
         pair(lambda a, b: np.linalg.inv(a + b), lambda a, b: np.linalg.inv(a) + np.linalg.inv(b)),
         M22 * 2, (A2, C2)),
    Case("inverses", "solve(A, x) = x inv(A)",
         pair(np.linalg.solve, lambda a, x: x @ np.linalg.inv(a)), ((2, 2), (2,)), (A2, vec(1, 2))),
    Case("inverses", "inv(A) = the adjugate",
         pair(np.linalg.inv, lambda a: np.array([[a[1, 1], -a[0, 1]], [-a[1, 0], a[0, 0]]])), M22, (A2,)),
    Case("inverses", "Sherman-Morrison with a wrong sign",
         pair(lambda x, y: np.linalg.inv(np.eye(2) + np.outer(x, y)),
              lambda x, y: np.eye(2) - np.outer(x, y) / (1 - x @ y)), ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("traces and eigenvalues", "tr(AB) = tr(A) tr(B)",
         pair(lambda a, b: np.trace(a @ b), lambda a, b: np.trace(a) * np.trace(b)), M22 * 2, (A2, B2)),
    Case("traces and eigenvalues", "tr(A^2) = tr(A)^2 - det(A)",
         pair(lambda a: np.trace(a @ a), lambda a: np.trace(a) ** 2 - np.linalg.det(a)), M22, (A2,)),
    Case("traces and eigenvalues", "eigvalsh of A + A^T is its diagonal",
         pair(lambda a: np.linalg.eigvalsh(a + a.T), lambda a: np.diag(a + a.T)), M22, (A2,)),
    Case("traces and eigenvalues", "the largest singular value is the largest entry",
         pair(lambda a: np.linalg.svd(a, compute_uv=False)[0], lambda a: a.max()), M22, (A2,)),
    Case("traces and eigenvalues", "Cholesky of A A^T is A",
         pair(lambda a: np.linalg.cholesky(a @ a.T), same), M22, (A2,)),
    Case("traces and eigenvalues", "R[0, 0] of a QR is the norm of the first column",
         pair(lambda a: np.linalg.qr(a)[1][0, 0], lambda a: np.linalg.norm(a[:, 0])), M22, (A2,)),
    Case("true for symmetric matrices only", "A^T = A", pair(lambda a: a.T, same), M22, (A2,)),
    Case("true for symmetric matrices only", "x.A y = y.A x",
         pair(lambda a, x, y: x @ a @ y, lambda a, x, y: y @ a @ x),
         ((2, 2), (2,), (2,)), (A2, vec(1, 2), vec(3, 4))),
    Case("true for symmetric matrices only", "|A|_F^2 = tr(A^2)",
         pair(lambda a: (a * a).sum(), lambda a: np.trace(a @ a)), M22, (A2,)),
    Case("true for square arrays only", "the mean of all = the mean of two means",
         pair(lambda x, y: np.concatenate([x, y]).mean(), lambda x, y: (x.mean() + y.mean()) / 2),
         ((2,), (3,)), (vec(1, 2), vec(3, 4, 8))),
    Case("true for square arrays only", "x.shape[0] = x.shape[1]",
         pair(lambda x: x.sum() / x.shape[0], lambda x: x.sum() / x.shape[1]), ((2, 3),), (grid(2, 3),)),
    Case("true for square arrays only", "A A^T and A^T A have equal sums",
         pair(lambda a: (a @ a.T).sum(), lambda a: (a.T @ a).sum()), ((2, 3),), (grid(2, 3),)),
    Case("true for size 1 only", "(x.sum())^2 = (x^2).sum()",
         pair(lambda x: x.sum() ** 2, lambda x: (x**2).sum()), V2, (vec(1, 2),)),
    Case("true for size 1 only", "x @ y = x * y",
         pair(lambda x, y: x @ y + 0 * x, lambda x, y: x * y), ((2,), (2,)), (vec(1, 2), vec(3, 4))),
    Case("true for size 1 only", "the first of the loop is the sum",
         pair(lambda x: next(v for v in x), lambda x: x.sum()), V2, (vec(1, 2),)),
    Case("integer arrays as arguments", "x[i] = x[j]", pair(lambda x, i, j: x[i], lambda x, i, j: x[j]),
         ((3,), np.array([0, 1]), np.array([0, 2])), (vec(1, 2, 4), np.array([0, 1]), np.array([0, 2]))),
    Case("integer arrays as arguments", "x^[1, 2, 3] = [1, 2, 3] x",
         pair(lambda x, n: x**n, lambda x, n: n * x),
         ((3,), np.array([1, 2, 3])), (vec(2, 3, 4), np.array([1, 2, 3]))),
    Case("integer arrays as arguments", "x masked by an array of truth values = x",
         pair(lambda x, m: x * m, lambda x, m: x), ((3,), np.array([True, True, False])),
         (vec(1, 2, 4), np.array([True, True, False]))),
    Case("integer arrays as arguments", "(n // 2) x = (n / 2) x with odd n",
         pair(lambda x, n: (n // 2) * x, lambda x, n: n / 2 * x),
         ((2,), np.array([2, 3])), (vec(1, 2), np.array([2, 3]))),
    Case("keyword constants", "x^power = x^2 with power = 3",
         pair(lambda x, power: x**power, lambda x, power: x * x), ONE, (2.0,), {"power": 3}),
    Case("keyword constants", "eps inside or outside the root",
         pair(lambda x, eps: np.sqrt(x @ x + eps), lambda x, eps: np.sqrt(x @ x) + eps),
         V2, (vec(1, 2),), {"eps": 0.25}),
    Case("keyword constants", "the axis does not matter",
         pair(lambda x, axis: x.sum(axis=axis), lambda x, axis: x.sum(axis=1 - axis)),
         M22, (A2,), {"axis": 0}),
    Case("keyword constants", "a constant array of ones but one",
         pair(lambda x, w: x @ w, lambda x, w: x.sum()),
         V3, (vec(1, 2, 4),), {"w": np.array([1.0, 1.0, 0.0])}),
    Case("keyword constants", "a tiny constant is 0",
         pair(lambda x, eps: x + eps, lambda x, eps: x), ONE, (0.0,), {"eps": 1e-300}),
)


# ---------------------------------------------------------------- odd results, and nothing to prove

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Point:
    x: object
    y: object


RESULTS = (
    Case("tuples", "(x, y) = (y, x)", pair(lambda x, y: (x, y), lambda x, y: (y, x)), TWO, (1.0, 2.0)),
    Case("tuples", "(x, y) = (x,)", pair(lambda x, y: (x, y), lambda x, y: (x,)), TWO, (1.0, 2.0)),
    Case("tuples", "() = (x,)", pair(lambda x: (), lambda x: (x,)), ONE, (1.0,)),
    Case("tuples", "(x, x) = x", pair(lambda x: (x, 2 * x), same), V2, (vec(1, 2),)),
    Case("tuples", "((x, y), z) = ((x, z), y)",
         pair(lambda x, y, z: ((x, y), z), lambda x, y, z: ((x, z), y)), THREE_LETTERS, (1.0, 2.0, 3.0)),
    Case("tuples", "a tuple of arrays with a row exchanged",
         pair(lambda a: tuple(a), lambda a: (a[1], a[0])), M22, (A2,)),
    Case("tuples", "(x, 'mean') = (x, 'sum')",
         pair(lambda x: (x, "mean"), lambda x: (x, "sum")), ONE, (1.0,)),
    Case("tuples", "(x, True) = (x, False)", pair(lambda x: (x, True), lambda x: (x, False)), ONE, (1.0,)),
    Case("tuples", "(x, 0) = (x, None)", pair(lambda x: (x, 0), lambda x: (x, None)), ONE, (1.0,)),
    Case("named results", "named tuples with swapped fields",
         pair(lambda x, y: Pair(a=x, b=y), lambda x, y: Pair(a=y, b=x)), TWO, (1.0, 2.0)),
    Case("named results", "dictionaries with values exchanged",
         pair(lambda x, y: {"q": x, "k": y}, lambda x, y: {"q": y, "k": x}), TWO, (1.0, 2.0)),
    Case("named results", "dictionaries with keys exchanged, values in order",
         pair(lambda x, y: {"q": x, "k": y}, lambda x, y: {"k": x, "q": y}), TWO, (1.0, 2.0)),
    Case("named results", "a dictionary with a key more",
         pair(lambda x, y: {"q": x}, lambda x, y: {"q": x, "k": y}), TWO, (1.0, 2.0)),
    Case("named results", "objects with other fields",
         pair(lambda x, y: Point(x, y), lambda x, y: Point(y, x)), TWO, (1.0, 2.0)),
    Case("named results", "a list of one letter = a list of another",
         pair(lambda x, y: [x], lambda x, y: [y]), TWO, (1.0, 2.0)),
    Case("different shapes", "x = x[None]", pair(same, lambda x: x[None]), V3, (vec(1, 2, 4),)),
    Case("different shapes", "x = x broadcast to a square",
         pair(same, lambda x: x + 0 * x[:, None]), V3, (vec(1, 2, 4),)),
    Case("different shapes", "x[:, None] = x", pair(lambda x: x[:, None], same), V3, (vec(1, 2, 4),)),
    Case("different shapes", "x[:1] = x[0] everywhere",
         pair(lambda x: x[:1], lambda x: 0 * x + x[0]), V3, (vec(1, 2, 4),)),
    Case("different shapes", "an empty slice = one entry",
         pair(lambda x: x[:0], lambda x: x[:1]), V3, (vec(1, 2, 4),)),
    Case("different shapes", "an empty slice = a number",
         pair(lambda x: x[3:], lambda x: x.sum()), V3, (vec(1, 2, 4),)),
    Case("different shapes", "zip would stop early: x[:2] = x",
         pair(lambda x: list(x[:2]), list), V3, (vec(1, 2, 4),)),
    Case("different shapes", "an empty matrix = a row",
         pair(lambda x: np.zeros((0, 3)), same), V3, (vec(1, 2, 4),)),
    Case("different shapes", "a list of nothing = a list", pair(lambda x: [], list), V3, (vec(1, 2, 4),)),
    Case("one entry of many", "one of 400 entries differs",
         pair(lambda x: np.outer(x, x),
              lambda x: np.outer(x, x) + (np.arange(400) == 317).reshape(20, 20) * x[0]),
         ((20,),), (grid(20),)),
    Case("one entry of many", "the last entry differs",
         pair(same, lambda x: np.concatenate([x[:-1], x[-1:] * x[-1]])), ((30,),), (grid(30),)),
    Case("one entry of many", "A and A^T agree in the corner",
         pair(lambda a: a, lambda a: np.where(np.arange(9).reshape(3, 3) == 6, a.T, a)), M33, (B3,)),
    Case("one entry of many", "differs in the second of two results",
         pair(lambda x: (x, x * x), lambda x: (x, x**3)), V2, (vec(2, 3),)),
    Case("a letter that is forgotten", "x = x + (y - y + z)/10^9",
         pair(lambda x, y, z: x, lambda x, y, z: x + (y - y + z) / 10**9), THREE_LETTERS, (0.0, 1.0, 2.0)),
    Case("a letter that is forgotten", "x y z = x y",
         pair(lambda x, y, z: x * y * z, lambda x, y, z: x * y), THREE_LETTERS, (1.0, 2.0, 3.0)),
    Case("a letter that is forgotten", "f(x, y) = f(y, x) for x - y",
         pair(lambda x, y: x - y, lambda x, y: y - x), TWO, (1.0, 2.0)),
    Case("a letter that is forgotten", "a default argument is never replaced",
         pair(lambda x, y=1: x * y, lambda x, y=1: x), TWO, (1.0, 2.0)),
    Case("vectorised Python", "np.vectorize(abs) = x",
         pair(lambda x: np.vectorize(lambda v: v if v > 0 else -v)(x), same), V2, (vec(1, -2),)),
    Case("vectorised Python", "np.frompyfunc(max) = its first",
         pair(lambda x, y: np.frompyfunc(max, 2, 1)(x, y), lambda x, y: x),
         ((2,), (2,)), (vec(1, 2), vec(3, 1))),
    Case("vectorised Python", "apply_along_axis(sorted) = x",
         pair(lambda x: np.apply_along_axis(sorted, 0, x), same), V2, (vec(2, 1),)),
    Case("vectorised Python", "reduce(max) = the last",
         pair(lambda x: functools.reduce(max, x), lambda x: x[-1]), V3, (vec(3, 1, 2),)),
    Case("spectra", "the FFT of x is x reversed",
         pair(lambda x: np.fft.fft(x).real, lambda x: x[::-1]), V3, (vec(3, 1, 2),)),
    Case("spectra", "convolution theorem without padding",
         pair(lambda x, y: np.fft.ifft(np.fft.fft(x) * np.fft.fft(y)).real,
              lambda x, y: np.convolve(x, y)[:3]), ((3,), (3,)), (vec(3, 1, 2), vec(1, 5, 2))),
    Case("spectra", "the roots of x^2 - y^2 are x and -x",
         pair(lambda x: np.sort(np.roots([1, 0, -x * x]).real), lambda x: np.array([x, -x])), ONE, (3.0,)),
)


def returning(left, right=None):
    right = left if right is None else right
    return pair(lambda *_: left, lambda *_: right)


def no_value(f):
    """f(x) + 1 = f(x), where f has no real value anywhere."""
    return pair(lambda *a: f(*a) + 1, f)


VACUOUS = (
    Case("vacuous: no entries", "x^2 = x^3 with shape (0,)", pair(lambda x: x**2, lambda x: x**3), ((0,),)),
    Case("vacuous: no entries", "x = 2x with shape (0, 3)", pair(same, lambda x: 2 * x), ((0, 3),)),
    Case("vacuous: no entries", "x.sum() = x.prod() - 1 with shape (0,)",
         pair(lambda x: x.sum(), lambda x: x.prod() - 1), ((0,),)),
    Case("vacuous: no entries", "x + y = x - y with shapes (3, 0)",
         pair(lambda x, y: x + y, lambda x, y: x - y), ((3, 0), (3, 0))),
    Case("vacuous: no entries", "AB = BA with shape (0, 0)",
         pair(np.matmul, lambda a, b: b @ a), ((0, 0), (0, 0))),
    Case("vacuous: empty results", "x[:0] = 2x[:0]", pair(lambda x: x[:0], lambda x: 2 * x[:0]), V3),
    Case("vacuous: empty results", "x[3:] = y[3:]",
         pair(lambda x, y: x[3:], lambda x, y: y[3:]), ((3,), (3,))),
    Case("vacuous: empty results", "() = ()", returning(()), V3),
    Case("vacuous: empty results", "[] = []", returning([]), V3),
    Case("vacuous: empty results", "{} = {}", returning({}), V3),
    Case("vacuous: empty results", "np.empty((0, 2)) twice", returning(np.empty((0, 2))), V3),
    Case("vacuous: empty results", "nested nothing", returning(((), [], {"a": ()})), V3),
    Case("vacuous: empty results", "exhausted generators",
         pair(lambda x: (v for v in ()), lambda x: (v for v in ())), V3),
    Case("vacuous: empty results", "np.diff of one entry", pair(np.diff, lambda x: np.diff(x) * 2), ((1,),)),
    Case("vacuous: empty results", "x.sum(axis=0) with shape (2, 0)",
         pair(lambda x: x.sum(axis=0), lambda x: 3 * x.sum(axis=0)), ((2, 0),)),
    Case("vacuous: nothing returned", "None = None", returning(None), V3),
    Case("vacuous: nothing returned", "forgotten returns",
         pair(lambda x: [x, x * x].clear(), lambda x: [x].sort()), V3),
    Case("vacuous: nothing returned", "(None, None) = (None, None)", returning((None, None)), V3),
    Case("vacuous: nothing returned", "Ellipsis", returning(...), V3),
    Case("vacuous: nothing returned", "NotImplemented", returning(NotImplemented), V3),
    Case("vacuous: nothing returned", "an array of None", returning(np.array([None, None])), V2),
    Case("vacuous: words and functions", "'proved' = 'proved'", returning("proved"), V3),
    Case("vacuous: words and functions", "b'' = b''", returning(b""), V3),
    Case("vacuous: words and functions", "functions are returned",
         pair(lambda x: lambda: x, lambda x: lambda: 2 * x), V3),
    Case("vacuous: words and functions", "the same function is returned", returning(np.exp), V3),
    Case("vacuous: words and functions", "an exception is returned",
         pair(lambda x: ValueError("x"), lambda x: ValueError("x")), V3),
    Case("vacuous: words and functions", "a type is returned", pair(type, type), V3),
    Case("vacuous: words and functions", "lists of words", returning(["a", "b"]), V3),
    Case("vacuous: truth values", "True = True", returning(True), V3),
    Case("vacuous: truth values", "False = 0", returning(False, 0), V3),
    Case("vacuous: truth values", "an array of True", returning(np.ones(3, dtype=bool)), V3),
    Case("vacuous: truth values", "x is x", pair(lambda x: x is x, lambda x: True), V3),
    Case("vacuous: truth values", "isinstance(x, np.ndarray)",
         pair(lambda x: isinstance(x, np.ndarray), lambda x: True), V3),
    Case("vacuous: arguments ignored", "1 = 1", returning(1.0), V3),
    Case("vacuous: arguments ignored", "two equal constant arrays",
         pair(lambda x: np.eye(2), lambda x: np.diag([1.0, 1.0])), M22),
    Case("vacuous: arguments ignored", "exp(0) = 1", pair(lambda x: np.exp(0.0), lambda x: 1.0), V3),
    Case("vacuous: arguments ignored", "x.shape = (3,)", pair(np.shape, lambda x: (3,)), V3),
    Case("vacuous: arguments ignored", "len(x) = x.size", pair(len, np.size), V3),
    Case("vacuous: arguments ignored", "np.zeros_like twice", pair(np.zeros_like, np.zeros_like), V3),
    Case("vacuous: arguments ignored", "sum of no entries is 0", pair(lambda x: sum(x[:0]), lambda x: 0), V3),
    Case("vacuous: arguments ignored", "no arguments at all", pair(lambda: 2 + 2, lambda: 4), ()),
    Case("vacuous: arguments ignored", "no arguments and nothing returned",
         pair(lambda: None, lambda: None), ()),
    Case("vacuous: not a number", "nan = nan", returning(math.nan), V3),
    Case("vacuous: not a number", "x nan = y nan",
         pair(lambda x, y: x * np.nan, lambda x, y: y * np.nan), ((2,), (2,))),
    Case("vacuous: not a number", "an array of nan", returning(np.full(3, np.nan)), V3),
    Case("vacuous: not a number", "inf - inf = nan",
         pair(lambda x: (x + np.inf) - (x + np.inf), lambda x: x * np.nan), V2),
    Case("vacuous: not a number", "x + inf = 2x + inf",
         pair(lambda x: x + np.inf, lambda x: 2 * x + np.inf), V2),
    Case("vacuous: not a number", "exp(inf) = inf", pair(lambda x: np.exp(np.inf), lambda x: np.inf), V2),
    Case("vacuous: not a number", "softmax of a row that is all hidden",
         pair(lambda s: softmax(np.where(False, s, -np.inf)),
              lambda s: softmax(np.where(False, 2 * s, -np.inf))), V2),
    Case("vacuous: not a number", "0/0 by numbers",
         pair(lambda x: x * (np.float64(0) / 0), lambda x: np.float64(0) / 0 * x * 2), V2),
    Case("vacuous: no real value anywhere", "sqrt(-1 - x^2) = sqrt(-1 - x^2) + 1",
         no_value(lambda x: np.sqrt(-1 - x * x)), ONE),
    Case("vacuous: no real value anywhere", "log(-exp(x)) = log(-exp(x)) + 1",
         no_value(lambda x: np.log(-np.exp(x))), ONE),
    Case("vacuous: no real value anywhere", "1/(x - x) = 1/(x - x) + 1",
         no_value(lambda x: 1 / (x - x)), ONE),
    Case("vacuous: no real value anywhere", "arcsin(2 + x^2) = arcsin(2 + x^2) + 1",
         no_value(lambda x: np.arcsin(2 + x * x)), ONE),
    Case("vacuous: no real value anywhere", "sqrt(x-1) sqrt(-x) = sqrt(x-1) sqrt(-x) + 1",
         no_value(lambda x: np.sqrt(x - 1) * np.sqrt(-x)), ONE),
    Case("vacuous: no real value anywhere", "log(x) + log(-x) = log(x) + log(-x) + 1",
         no_value(lambda x: np.log(x) + np.log(-x)), ONE),
    Case("vacuous: no real value anywhere", "the inverse of x x^T = the same + 1",
         no_value(lambda x: np.linalg.inv(np.outer(x, x))), V2),
    Case("vacuous: no real value anywhere", "2 sqrt(-1 - x^2) = sqrt(-4 - 4 x^2)",
         pair(lambda x: 2 * np.sqrt(-1 - x * x), lambda x: np.sqrt(-4 - 4 * x * x)), ONE),
    Case("vacuous: no real value anywhere", "0 sqrt(-1 - x^2) = 0",
         pair(lambda x: 0 * np.sqrt(-1 - x * x), lambda x: 0 * x), ONE),
    Case("vacuous: the sides never have a value together", "sqrt(x - 1) = sqrt(-x)",
         pair(lambda x: np.sqrt(x - 1), lambda x: np.sqrt(-x)), ONE),
    Case("vacuous: the sides never have a value together", "log(x) = log(-x)",
         pair(np.log, lambda x: np.log(-x)), ONE),
    Case("vacuous: the sides never have a value together", "arccosh(2 + x^2) = arccos(2 + x^2)",
         pair(lambda x: np.arccosh(2 + x * x), lambda x: np.arccos(2 + x * x)), ONE),
    Case("vacuous: an array in place of a shape", "x^3 - 6x^2 + 11x = 6 at 1, 2, 3",
         pair(lambda x: x**3 - 6 * x**2 + 11 * x, lambda x: 6 + 0 * x), (np.array([1, 2, 3]),)),
    Case("vacuous: an array in place of a shape", "x^2 = x at 0 and 1",
         pair(lambda x: x * x, same), (np.array([0.0, 1.0]),)),
    Case("vacuous: an array in place of a shape", "2 + 2 = 2 * 2",
         pair(np.add, np.multiply), (np.array([2.0]), np.array([2.0]))),
    Case("vacuous: an array in place of a shape", "x = -x at 0", pair(same, np.negative), (np.zeros(3),)),
    Case("vacuous: an array in place of a shape", "no entries at all",
         pair(same, np.negative), (np.zeros((0, 2)),)),
    Case("vacuous: both sides fail", "the same exception on both sides",
         pair(lambda x: 1 / 0, lambda x: 1 / 0), V2),
    Case("vacuous: both sides fail", "both sides refuse to be proved",
         pair(lambda x: operator.truediv(x, None), lambda x: x + None), V2),
    Case("vacuous: both sides fail", "StopIteration on both sides",
         pair(lambda x: next(iter(())), lambda x: next(iter(()))), V2),
    Case("vacuous: both sides fail", "shapes that do not fit",
         pair(lambda x, y: x + y, lambda x, y: y + x), ((2,), (3,))),
)


# ---------------------------------------------------------------- what is seen far from 0 only


def doubled_from_fifty(asks):
    """Twice x where what is asked is above 50, and x where it cannot be asked."""
    def side(x):
        try:
            above = np.asarray(asks(x)) > 50
        except Exception:
            return x
        return np.where(above, 2 * x, x)
    return pair(side, same)


def proved_inside(x):
    """A proof of its own, in which letters of the outer one are compared."""
    from attnmath import prove

    def inner(y):
        return np.where(x > 50, y, y)
    try:
        prove(inner, inner, (2,))
    except Exception:
        return x
    return np.where(x > 50, 2 * x, x)


def whether(asks, yes, no):
    return pair(lambda x: x * np.where(asks(x + 100), yes, no), same)


HIGH, LOW = (vec(60, 70),), (vec(-200, -300),)
FAR = (
    *(Case("not a number far below 0", f"{name} is 1", whether(asks, *values), V2, LOW) for name, asks, *values in (
        ("the factor for a nan root", lambda x: np.isnan(np.sqrt(x)), 2, 1),
        ("the factor for a finite logarithm", lambda x: np.isfinite(np.log(x)), 1, 2),
        ("the factor for 0 times nan", lambda x: np.isnan(0 * np.log(x)), 2, 1),
        ("the factor for nan - inf", lambda x: np.isneginf(np.log(x) - np.inf), 1, 2),
        ("the factor for exp(nan - inf)", lambda x: np.isnan(np.exp(np.log(x) - np.inf)), 2, 1),
        ("the factor for log(max(x, 0))", lambda x: np.isneginf(np.log(np.maximum(x, 0))), 2, 1),
        ("the factor for max(x, nan)", lambda x: np.isnan(np.maximum(x, np.exp(np.log(x)))), 2, 1),
        ("the factor for a quotient by max(x, 0)", lambda x: np.isinf(1 / np.maximum(x, 0)), 2, 1),
        ("the factor for 0 nan != 0", lambda x: 0 * np.log(x) != 0, 2, 1),
        ("the factor for log > -inf", lambda x: np.log(x) > -np.inf, 1, 2),
    )),
    Case("not a number far below 0", "the square of a root without nan",
         pair(lambda x: np.where(np.isnan(np.sqrt(x + 100)), 0, np.sqrt(x + 100)) ** 2, lambda x: x + 100), V2, LOW),
    Case("not a number far below 0", "nan_to_num of a root, squared",
         pair(lambda x: np.nan_to_num(np.sqrt(x + 100)) ** 2, lambda x: x + 100), V2, LOW),
    *(Case("swallowed far above 0", name, doubled_from_fifty(asks), V2, HIGH) for name, asks in (
        ("np.fmod", lambda x: np.fmod(x, 1000)),
        ("np.interp", lambda x: 60 * np.interp(x, [0, 50, 51], [0, 0, 1])),
        ("math.trunc", lambda x: math.trunc(x[0])),
        ("statistics.mean", statistics.mean),
        ("memoryview", lambda x: memoryview(x)[0]),
        ("is_integer", lambda x: x[0] + x[0].is_integer()),
        ("item", lambda x: x[0].item()),
        ("heaviside of an entry", lambda x: 60 * np.heaviside(x[0] - 50, 1)),
        ("isfinite of an entry", lambda x: x * np.isfinite(x[0])),
        ("nextafter of a plain array", lambda x: np.nextafter(np.asarray(x), 0)),
        ("fmod of a plain array", lambda x: np.fmod(np.asarray(x), 1000)),
        ("a view as floats", lambda x: np.asarray(x).view("f8")),
    )),
    Case("swallowed far above 0", "a proof inside", pair(proved_inside, same), V2, HIGH),
    Case("signs of what is thrown away", "a maximum of exp(log(x))",
         pair(lambda x, y: (np.maximum(np.exp(np.log(x + 100)), np.exp(np.log(y + 100))),
                            abs(np.maximum(x + 100, y + 100)))[1],
              lambda x, y: np.maximum(x + 100, y + 100)), (V2[0], V2[0]), LOW * 2),
    Case("signs of what is thrown away", "exp(exp(log(x)))",
         pair(lambda x: (np.exp(np.exp(np.log(x + 100))), abs(np.log(np.exp(x + 100))))[1], lambda x: x + 100),
         V2, (vec(-200, -110),)),
    Case("large beside small", "10^12 x beside x, for floats",
         pair(lambda x: (x, x * (1 if x.dtype == object else 10**12)), lambda x: (x, x)), V2, (vec(1, 2),)),
    Case("test on the dtype", "another function from 50 on, for floats",
         pair(lambda x: x if x.dtype == object else np.where(x > 50, 2 * x, x), same), V2, HIGH),
    Case("hasattr and getattr", "another function from 50 on, for entries with item",
         pair(lambda x: np.where(x > 50, 2 * x, x) if hasattr(x[0], "item") else x, same), V2, HIGH),
)

CASES: list[Case] = [
    *ROOT, *DISGUISE, *BRANCH, *ENTRIES, *STATE, *NUMBERS,
    *FUNCTIONS, *ATTENTION, *ARRAYS, *RESULTS, *VACUOUS, *FAR,
]
