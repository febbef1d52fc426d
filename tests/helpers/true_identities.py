"""True statements, collected without knowledge of the prover."""
import functools
import itertools
import math
from fractions import Fraction
from typing import Callable, NamedTuple

import numpy as np


class Case(NamedTuple):
    kind: str            # short phrase
    name: str            # unique short phrase saying what is claimed
    left: Callable
    right: Callable
    shapes: tuple        # the arguments handed to prove
    constants: dict = {}


class Moments(NamedTuple):
    mean: object
    var: object


# ---------------------------------------------------------------- pieces used by several cases

def inv(a):
    return np.linalg.inv(a)


def det(a):
    return np.linalg.det(a)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x / (1 + np.exp(-x))


def softplus(x):
    return np.log1p(np.exp(x))


def relu(x):
    return np.maximum(x, 0)


def softmax(x, axis=-1):
    e = np.exp(x)
    return e / e.sum(axis=axis, keepdims=True)


def stable_softmax(x, axis=-1):
    e = np.exp(x - x.max(axis=axis, keepdims=True))
    return e / e.sum(axis=axis, keepdims=True)


def lse(x, axis=-1):
    return np.log(np.exp(x).sum(axis=axis))


def stable_lse(x):
    m = x.max()
    return m + np.log(np.exp(x - m).sum())


def attention(q, k, v):
    return softmax(q @ k.T / np.sqrt(q.shape[-1])) @ v


def causal_attention(q, k, v):
    n = q.shape[0]
    scores = q @ k.T / np.sqrt(q.shape[-1])
    return softmax(np.where(np.tril(np.ones((n, n), dtype=bool)), scores, -np.inf)) @ v


def layer_norm(x, eps=1e-5):
    mu = x.mean(axis=-1, keepdims=True)
    var = ((x - mu) ** 2).mean(axis=-1, keepdims=True)
    return (x - mu) / np.sqrt(var + eps)


def rms_norm(x, eps=1e-5):
    return x / np.sqrt((x ** 2).mean(axis=-1, keepdims=True) + eps)


def unit(x):
    return x / np.sqrt((x * x).sum())


def gelu_tanh(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)))


def rotate(x, t):
    """Rotates the consecutive pairs of x by the angles t."""
    a, b = x[0::2], x[1::2]
    out = np.empty_like(x)
    out[0::2] = a * np.cos(t) - b * np.sin(t)
    out[1::2] = a * np.sin(t) + b * np.cos(t)
    return out


def rotate_half(x, t):
    """Rotates x[i] with x[i + d/2] by the angles t."""
    a, b = np.split(x, 2)
    return np.concatenate([a * np.cos(t) - b * np.sin(t), b * np.cos(t) + a * np.sin(t)])


def rotation(t):
    return np.array([[np.cos(t), -np.sin(t)], [np.sin(t), np.cos(t)]])


def horner(c, x):
    total = 0
    for a in c[::-1]:
        total = total * x + a
    return total


def power_sum(c, x):
    return sum(a * x ** i for i, a in enumerate(c))


def cmul(a, b):
    """Product of complex numbers held as pairs."""
    return np.stack([a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]])


def qmul(p, q):
    """Product of quaternions."""
    a, b, c, d = p
    e, f, g, h = q
    return np.array([a * e - b * f - c * g - d * h, a * f + b * e + c * h - d * g,
                     a * g - b * h + c * e + d * f, a * h + b * g - c * f + d * e])


def vandermonde_product(x):
    return math.prod(x[j] - x[i] for i, j in itertools.combinations(range(len(x)), 2))


def lagrange(x, y, t):
    total = 0
    for i in range(len(x)):
        w = y[i]
        for j in range(len(x)):
            if j != i:
                w = w * (t - x[j]) / (x[i] - x[j])
        total = total + w
    return total


def newton_interpolation(x, y, t):
    n, c = len(x), [v for v in y]
    for k in range(1, n):
        for i in range(n - 1, k - 1, -1):
            c[i] = (c[i] - c[i - 1]) / (x[i] - x[i - k])
    total = c[-1]
    for i in range(n - 2, -1, -1):
        total = total * (t - x[i]) + c[i]
    return total


def barycentric(x, y, t):
    n = len(x)
    w = [1 / math.prod(x[i] - x[j] for j in range(n) if j != i) for i in range(n)]
    return sum(w[i] * y[i] / (t - x[i]) for i in range(n)) / sum(w[i] / (t - x[i]) for i in range(n))


def leibniz_det(a):
    total, n = 0, a.shape[0]
    for p in itertools.permutations(range(n)):
        sign = (-1) ** sum(p[i] > p[j] for i in range(n) for j in range(i + 1, n))
        total = total + sign * math.prod(a[i, p[i]] for i in range(n))
    return total


def elimination_det(a):
    a, d = a.copy(), 1
    for i in range(a.shape[0]):
        d = d * a[i, i]
        for j in range(i + 1, a.shape[0]):
            a[j] -= a[j, i] / a[i, i] * a[i]
    return d


def adjugate(a):
    n = a.shape[0]
    out = np.zeros_like(a)
    for i in range(n):
        for j in range(n):
            minor = np.delete(np.delete(a, i, axis=0), j, axis=1)
            out[j, i] = (-1) ** (i + j) * leibniz_det(minor)
    return out


def de_casteljau(p, t):
    points = [v for v in p]
    while len(points) > 1:
        points = [(1 - t) * a + t * b for a, b in zip(points, points[1:])]
    return points[0]


def bernstein(p, t):
    n = len(p) - 1
    return sum(math.comb(n, i) * t ** i * (1 - t) ** (n - i) * p[i] for i in range(n + 1))


def online_attend(s, v):
    """Softmax-weighted sum in one pass, with a running maximum."""
    m, total, acc = -np.inf, 0.0, np.zeros_like(v[0])
    for s_i, v_i in zip(s, v):
        new = np.maximum(m, s_i)
        keep, w = np.exp(m - new), np.exp(s_i - new)
        total, acc, m = total * keep + w, acc * keep + w * v_i, new
    return acc / total


def tiled_attend(s, v, tile=2):
    m, total, acc = s[0], 0, 0
    for start in range(0, s.shape[0], tile):
        st, vt = s[start:start + tile], v[start:start + tile]
        new = np.maximum(m, st.max())
        p = np.exp(st - new)
        keep = np.exp(m - new)
        total, acc, m = total * keep + p.sum(), acc * keep + p @ vt, new
    return acc / total


def merge_attend(s, v, cut):
    """Two parts, each with its own output and log-sum-exp, merged."""
    o1, o2 = softmax(s[:cut]) @ v[:cut], softmax(s[cut:]) @ v[cut:]
    l1, l2 = lse(s[:cut]), lse(s[cut:])
    w = sigmoid(l1 - l2)
    return w * o1 + (1 - w) * o2


def linear_attention_scan(q, k, v):
    state, rows = np.zeros((k.shape[1], v.shape[1])), []
    for q_t, k_t, v_t in zip(q, k, v):
        state = state + np.outer(k_t, v_t)
        rows.append(q_t @ state)
    return np.stack(rows)


def retention_scan(q, k, v, g):
    state, rows = np.zeros((k.shape[1], v.shape[1])), []
    for q_t, k_t, v_t in zip(q, k, v):
        state = g * state + np.outer(k_t, v_t)
        rows.append(q_t @ state)
    return np.stack(rows)


def retention_matrix(q, k, v, g):
    n = q.shape[0]
    rows = [sum(g ** (i - j) * (q[i] @ k[j]) * v[j] for j in range(i + 1)) for i in range(n)]
    return np.array(rows)


def delta_scan(k, v, b):
    s = np.zeros((v.shape[1], k.shape[1]))
    for t in range(k.shape[0]):
        s = s - b[t] * np.outer(s @ k[t] - v[t], k[t])
    return s


def delta_products(k, v, b):
    n, d = k.shape
    total = 0
    for t in range(n):
        term = b[t] * np.outer(v[t], k[t])
        for u in range(t + 1, n):
            term = term @ (np.eye(d) - b[u] * np.outer(k[u], k[u]))
        total = total + term
    return total


def welford(x):
    mean, m2 = 0, 0
    for n, v in enumerate(x, start=1):
        d = v - mean
        mean = mean + d / n
        m2 = m2 + d * (v - mean)
    return Moments(mean, m2 / len(x))


def chan_merge(x, y):
    n, m = len(x), len(y)
    d = y.mean() - x.mean()
    mean = x.mean() + d * m / (n + m)
    return mean, (n * x.var() + m * y.var() + d ** 2 * n * m / (n + m)) / (n + m)


def loop_matmul(a, b):
    out = np.zeros_like(a @ b)
    for i in range(a.shape[0]):
        for j in range(b.shape[1]):
            for k in range(a.shape[1]):
                out[i, j] += a[i, k] * b[k, j]
    return out


def loop_cumsum(x):
    y = x.copy()
    for i in range(1, len(y)):
        y[i] += y[i - 1]
    return y


def scatter_sum(x, index, n):
    out = np.zeros_like(x[:n])
    np.add.at(out, index, x)
    return out


def layer_norm_grad(x, g):
    """Gradient of g . layer_norm(x), in the usual short form."""
    s = 1 / np.sqrt(x.var() + 1e-5)
    y = (x - x.mean()) * s
    return s * (g - g.mean() - y * (g * y).mean())


def layer_norm_grad_long(x, g):
    """The same gradient, through the variance and the mean one after the other."""
    n, c, s = len(x), x - x.mean(), 1 / np.sqrt(x.var() + 1e-5)
    d_var = -0.5 * s ** 3 * (g * c).sum()
    d_c = g * s + d_var * 2 * c / n
    return d_c - d_c.mean()


def rms_norm_grad_matrix(x, g):
    r = np.sqrt((x ** 2).mean() + 1e-5)
    return (np.eye(len(x)) / r - np.outer(x, x) / (len(x) * r ** 3)) @ g


def central(f, x, h):
    return (f(x + h) - f(x - h)) / (2 * h)


def simpson(f, a, b):
    return (b - a) / 6 * (f(a) + 4 * f((a + b) / 2) + f(b))


def skew(a):
    zero = 0 * a[0]
    return np.array([[zero, -a[2], a[1]], [a[2], zero, -a[0]], [-a[1], a[0], zero]])


def householder(v):
    return np.eye(len(v)) - 2 * np.outer(v, v) / (v @ v)


def cayley(a):
    s, one = a - a.T, np.eye(a.shape[0])
    return inv(one + s) @ (one - s)


def chebyshev(n, x):
    a, b = 1 + 0 * x, x
    for _ in range(n):
        a, b = b, 2 * x * b - a
    return a


def fast_power(x, n):
    result = np.ones_like(x)
    while n:
        if n & 1:
            result = result * x
        x, n = x * x, n >> 1
    return result


def in_place(x, y):
    z = x.copy()
    z += 1
    z *= y
    z -= y
    return z


def out_argument(x, y):
    buffer = np.empty_like(x)
    np.multiply(x, y, out=buffer)
    np.add(buffer, x, out=buffer)
    return buffer


def preallocated(x):
    out = np.empty_like(x)
    for i in range(x.shape[0]):
        for j in range(x.shape[1]):
            out[i, j] = x[i, j] - x[i].mean()
    return out


def stencil(x):
    out = np.zeros_like(x)
    out[1:-1] = x[2:] - 2 * x[1:-1] + x[:-2]
    return out


def swap_halves(x):
    y = x.copy()
    y[:2], y[2:] = x[2:], x[:2]
    return y


def momentum(g, b):
    m, history = 0, []
    for step in g:
        m = b * m + step
        history.append(m)
    return np.array(history)


def prefix_scan(x):
    """Sums of all prefixes by doubling steps."""
    y, step = x.copy(), 1
    while step < len(y):
        shifted = np.zeros_like(y)
        shifted[step:] = y[:-step]
        y, step = y + shifted, 2 * step
    return y


def bubble(x):
    y = [v for v in x]
    for i in range(len(y)):
        for j in range(len(y) - 1 - i):
            y[j], y[j + 1] = np.minimum(y[j], y[j + 1]), np.maximum(y[j], y[j + 1])
    return np.stack(y)


def fibonacci(a, b):
    for _ in range(6):
        a, b = b, a + b
    return a


def zero_masked(x):
    y = x.copy()
    y[MASK4] = 0
    return y


def fill_columns(a, b):
    out = np.empty_like(a @ b)
    for j in range(out.shape[1]):
        out[:, j] = a @ b[:, j]
    return out


def moebius(x, a):
    return (a[0] * x + a[1]) / (a[2] * x + a[3])


def moebius_inverse(y, a):
    return (a[3] * y - a[1]) / (a[0] - a[2] * y)


def commutator(x, y):
    return x @ y - y @ x


def strassen(a, b):
    p = (a[0, 0] + a[1, 1]) * (b[0, 0] + b[1, 1])
    q = (a[1, 0] + a[1, 1]) * b[0, 0]
    r = a[0, 0] * (b[0, 1] - b[1, 1])
    s = a[1, 1] * (b[1, 0] - b[0, 0])
    t = (a[0, 0] + a[0, 1]) * b[1, 1]
    u = (a[1, 0] - a[0, 0]) * (b[0, 0] + b[0, 1])
    v = (a[0, 1] - a[1, 1]) * (b[1, 0] + b[1, 1])
    return np.array([[p + s - t + v, r + t], [q + s, p - q + r + u]])


def softmax_of_prefixes(s):
    out = np.zeros_like(s)
    for i in range(len(s)):
        out[i, :i + 1] = softmax(s[i, :i + 1])
    return out


def merged_sums(x, y):
    a, b = x.max(), y.max()
    m = np.maximum(a, b)
    return np.exp(a - m) * np.exp(x - a).sum() + np.exp(b - m) * np.exp(y - b).sum()


def pad_features(x):
    return np.pad(x, ((0, 0), (0, 2)))


def heads_by_loop(q, k, v):
    parts = [slice(0, 2), slice(2, 4)]
    return np.concatenate([attention(q[:, i], k[:, i], v[:, i]) for i in parts], axis=1)


def heads_by_reshape(q, k, v):
    q, k, v = (x.reshape(2, 2, 2).transpose(1, 0, 2) for x in (q, k, v))
    o = softmax(q @ k.transpose(0, 2, 1) / np.sqrt(2)) @ v
    return o.transpose(1, 0, 2).reshape(2, 4)


def fitted_slope(x, y):
    """Slope of the least-squares line, by the normal equations."""
    design = np.stack([np.ones_like(x), x], axis=1)
    return np.linalg.solve(design.T @ design, design.T @ y)[1]


def ldu_product(a):
    low, up = a[1, 0] / a[0, 0], a[0, 1] / a[0, 0]
    d = np.array([[a[0, 0], 0], [0, a[1, 1] - a[1, 0] * up]])
    return np.array([[1, 0], [low, 1]]) @ d @ np.array([[1, up], [0, 1]])


def kalman_gain(p, h, r):
    cov, noise = p @ p.T, r @ r.T
    return cov @ h.T @ inv(h @ cov @ h.T + noise)


def kalman_gain_information(p, h, r):
    precision, weight = inv(p @ p.T), inv(r @ r.T)
    return inv(precision + h.T @ weight @ h) @ h.T @ weight


def state_space_scan(u, a, b, c):
    h, y = 0, []
    for u_t in u:
        h = a * h + b * u_t
        y.append(c * h)
    return np.stack(y)


def attention_backward(s, v, g):
    p, dp = softmax(s), g @ v.T
    return p * (dp - (p * dp).sum(axis=1, keepdims=True))


def kl_of_logits(x, y):
    p, q = softmax(x), softmax(y)
    return (p * (np.log(p) - np.log(q))).sum()


def jensen_shannon(x, y):
    p, q = softmax(x), softmax(y)
    m = (p + q) / 2
    return (p @ np.log(p / m) + q @ np.log(q / m)) / 2


def filter_2d(x, a, b):
    k = np.outer(a, b)
    return sum(k[i, j] * x[i:i + 2, j:j + 2] for i in range(2) for j in range(2))


HADAMARD = np.array([[1, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]])
DFT4_RE = np.array([[1, 1, 1, 1], [1, 0, -1, 0], [1, -1, 1, -1], [1, 0, -1, 0]])
DFT4_IM = np.array([[0, 0, 0, 0], [0, -1, 0, 1], [0, 0, 0, 0], [0, 1, 0, -1]])
MASK4 = np.array([True, False, True, True])
PERM = [2, 0, 3, 1]
CUBIC = ((4,), (), ())
FOLD_SHAPES = ((2, 3), (3, 2), (2,), (2,), (2,))


# ---------------------------------------------------------------- the statements

ALGEBRA = [
    Case("binomials", "square of a sum", lambda x, y: (x + y) ** 2,
         lambda x, y: x ** 2 + 2 * x * y + y ** 2, ((3,), (3,))),
    Case("binomials", "fifth power by the binomial theorem", lambda x, y: (x + y) ** 5,
         lambda x, y: sum(math.comb(5, k) * x ** k * y ** (5 - k) for k in range(6)), ((), ())),
    Case("binomials", "cube of a difference", lambda x, y: (x - y) ** 3,
         lambda x, y: x ** 3 - y ** 3 - 3 * x * y * (x - y), ((2,), (2,))),
    Case("binomials", "square of a sum of three", lambda x: x.sum() ** 2,
         lambda x: (x ** 2).sum() + 2 * (x[0] * x[1] + x[1] * x[2] + x[0] * x[2]), ((3,),)),
    Case("factorizations", "difference of squares", lambda x, y: x ** 2 - y ** 2,
         lambda x, y: (x - y) * (x + y), ((3,), (3,))),
    Case("factorizations", "sum of cubes", lambda x, y: x ** 3 + y ** 3,
         lambda x, y: (x + y) * (x * x - x * y + y * y), ((), ())),
    Case("factorizations", "Sophie Germain", lambda a, b: a ** 4 + 4 * b ** 4,
         lambda a, b: (a * a + 2 * b * b + 2 * a * b) * (a * a + 2 * b * b - 2 * a * b), ((), ())),
    Case("factorizations", "three cubes minus thrice the product",
         lambda x: (x ** 3).sum() - 3 * x.prod(),
         lambda x: x.sum() * ((x - np.roll(x, 1)) ** 2).sum() / 2, ((3,),)),
    Case("factorizations", "sixth powers, three factors", lambda x: x ** 6 - 1,
         lambda x: (x ** 2 - 1) * (x ** 2 + x + 1) * (x ** 2 - x + 1), ((2,),)),
    Case("geometric sums", "five terms", lambda x: 1 + x + x ** 2 + x ** 3 + x ** 4,
         lambda x: (1 - x ** 5) / (1 - x), ((3,),)),
    Case("geometric sums", "arithmetic-geometric sum", lambda x: sum(k * x ** k for k in range(5)),
         lambda x: x * (1 - 5 * x ** 4 + 4 * x ** 5) / (1 - x) ** 2, ((),)),
    Case("geometric sums", "doubling product", lambda x: (1 + x) * (1 + x ** 2) * (1 + x ** 4),
         lambda x: sum([x ** k for k in range(8)]), ((),)),
    Case("geometric sums", "discounted payments", lambda r: sum((1 + r) ** -k for k in range(1, 5)),
         lambda r: (1 - (1 + r) ** -4) / r, ((),)),
    Case("geometric sums", "powers of an exponential", lambda x: sum(np.exp(-k * x) for k in range(4)),
         lambda x: (1 - np.exp(-4 * x)) / (1 - np.exp(-x)), ((2,),)),
    Case("partial fractions", "two simple poles", lambda x, a, b: 1 / ((x - a) * (x - b)),
         lambda x, a, b: (1 / (x - a) - 1 / (x - b)) / (a - b), ((), (), ())),
    Case("partial fractions", "telescoping", lambda x: 1 / (x * (x + 1)) + 1 / ((x + 1) * (x + 2)),
         lambda x: 1 / x - 1 / (x + 2), ((2,),)),
    Case("partial fractions", "double pole", lambda x: x / (x - 1) ** 2,
         lambda x: 1 / (x - 1) + 1 / (x - 1) ** 2, ((2,),)),
    Case("rational functions", "nested fraction", lambda x, y: 1 / (1 / x + 1 / y),
         lambda x, y: x * y / (x + y), ((3,), (3,))),
    Case("rational functions", "continued fraction", lambda x: 1 / (1 + 1 / (1 + 1 / (1 + x))),
         lambda x: (2 + x) / (3 + 2 * x), ((2,),)),
    Case("rational functions", "Moebius map and its inverse",
         lambda x, a: moebius_inverse(moebius(x, a), a), lambda x, a: x, ((), (4,))),
    Case("rational functions", "cancelled factor", lambda x: (x ** 2 - 3 * x + 2) / (x - 1),
         lambda x: x - 2, ((2,),)),
    Case("Vandermonde", "determinant of np.vander", lambda x: det(np.vander(x, increasing=True)),
         vandermonde_product, ((4,),)),
    Case("Vandermonde", "determinant from stacked powers",
         lambda x: det(np.stack([np.ones_like(x), x, x ** 2])),
         lambda x: (x[1] - x[0]) * (x[2] - x[0]) * (x[2] - x[1]), ((3,),)),
    Case("interpolation", "Lagrange equals Newton", lagrange, newton_interpolation, ((3,), (3,), ())),
    Case("interpolation", "Lagrange equals barycentric", lagrange, barycentric, ((3,), (3,), ())),
    Case("interpolation", "quadratic reproduced from three values",
         lambda x, c, t: lagrange(x, c[0] + c[1] * x + c[2] * x ** 2, t),
         lambda x, c, t: c[0] + c[1] * t + c[2] * t ** 2, ((3,), (3,), ())),
    Case("interpolation", "de Casteljau equals Bernstein", de_casteljau, bernstein, ((4, 2), ())),
    Case("interpolation", "bilinear, rows first or columns first",
         lambda f, s, t: (1 - s) * (f[0] @ np.array([1 - t, t])) + s * ((1 - t) * f[1, 0] + t * f[1, 1]),
         lambda f, s, t: np.array([1 - s, s]) @ f @ np.array([1 - t, t]), ((2, 2), (), ())),
    Case("interpolation", "smoothstep is point symmetric",
         lambda t: 3 * (1 - t) ** 2 - 2 * (1 - t) ** 3, lambda t: 1 - t * t * (3 - 2 * t), ((3,),)),
    Case("Cauchy-Binet", "two by three times three by two", lambda a, b: det(a @ b),
         lambda a, b: sum(det(a[:, [i, j]]) * det(b[[i, j]]) for i in range(3) for j in range(i + 1, 3)),
         ((2, 3), (3, 2))),
    Case("Cauchy-Binet", "Lagrange's identity", lambda x, y: (x @ x) * (y @ y) - (x @ y) ** 2,
         lambda x, y: ((np.outer(x, y) - np.outer(y, x)) ** 2).sum() / 2, ((4,), (4,))),
    Case("sums of squares", "Brahmagupta", lambda x, y: (x @ x) * (y @ y),
         lambda x, y: (x[0] * y[0] - x[1] * y[1]) ** 2 + (x[0] * y[1] + x[1] * y[0]) ** 2, ((2,), (2,))),
    Case("sums of squares", "Euler's four squares", lambda p, q: (p @ p) * (q @ q),
         lambda p, q: (qmul(p, q) ** 2).sum(), ((4,), (4,))),
    Case("sums of squares", "parallelogram law",
         lambda x, y: ((x + y) ** 2).sum() + ((x - y) ** 2).sum(),
         lambda x, y: 2 * (x ** 2).sum() + 2 * (y ** 2).sum(), ((5,), (5,))),
    Case("sums of squares", "polarization", lambda x, y: x @ y,
         lambda x, y: (np.sum((x + y) ** 2) - np.sum((x - y) ** 2)) / 4, ((3,), (3,))),
    Case("complex pairs", "product is associative", lambda a, b, c: cmul(cmul(a, b), c),
         lambda a, b, c: cmul(a, cmul(b, c)), ((2,), (2,), (2,))),
    Case("complex pairs", "three multiplications instead of four", cmul, lambda a, b: (
        lambda p, q: np.stack([p - q, a.sum() * b.sum() - p - q]))(a[0] * b[0], a[1] * b[1]),
         ((2,), (2,))),
    Case("complex pairs", "quaternion conjugate gives the inverse",
         lambda q: qmul(q, q * np.array([1, -1, -1, -1]) / (q @ q)),
         lambda q: np.array([1, 0, 0, 0]) + 0 * q, ((4,),)),
    Case("symmetric polynomials", "Newton's identity for the third power sum", lambda x: (x ** 3).sum(),
         lambda x: (lambda e1, e2, e3: e1 ** 3 - 3 * e1 * e2 + 3 * e3)(
             x.sum(), x[0] * x[1] + x[0] * x[2] + x[1] * x[2], np.prod(x)), ((3,),)),
    Case("symmetric polynomials", "Vieta", lambda r, t: np.prod(t - r),
         lambda r, t: t ** 3 - r.sum() * t ** 2
         + sum(a * b for a, b in itertools.combinations(r, 2)) * t - r.prod(), ((3,), ())),
    Case("symmetric polynomials", "Heron's product",
         lambda a, b, c: (a + b + c) * (-a + b + c) * (a - b + c) * (a + b - c),
         lambda a, b, c: 4 * a ** 2 * b ** 2 - (a ** 2 + b ** 2 - c ** 2) ** 2, ((), (), ())),
    Case("completing the square", "quadratic polynomial", lambda a, b, c, x: a * x ** 2 + b * x + c,
         lambda a, b, c, x: a * (x + b / (2 * a)) ** 2 + c - b ** 2 / (4 * a), ((), (), (), ())),
    Case("completing the square", "root of the quadratic formula",
         lambda b, c: (lambda x: x ** 2 + b * x + c)((-b + np.sqrt(b ** 2 - 4 * c)) / 2),
         lambda b, c: 0 * b, ((), ())),
    Case("completing the square", "two forms of a quadratic root",
         lambda a, b, c: (-b - np.sqrt(b ** 2 - 4 * a * c)) / (2 * a),
         lambda a, b, c: 2 * c / (-b + np.sqrt(b ** 2 - 4 * a * c)), ((), (), ())),
    Case("polynomial evaluation", "Horner, five coefficients", horner, power_sum, ((5,), ())),
    Case("polynomial evaluation", "Horner at several points", horner, power_sum, ((4,), (3,))),
    Case("polynomial evaluation", "reduce as Horner",
         lambda c, x: functools.reduce(lambda acc, a: acc * x + a, c),
         lambda c, x: c[0] * x ** 3 + c[1] * x ** 2 + c[2] * x + c[3], ((4,), ())),
    Case("polynomial evaluation", "even and odd parts", power_sum,
         lambda c, x: horner(c[0::2], x * x) + x * horner(c[1::2], x * x), ((6,), ())),
    Case("polynomial evaluation", "product by convolution", lambda a, b, x: horner(np.convolve(a, b), x),
         lambda a, b, x: horner(a, x) * horner(b, x), ((3,), (2,), ())),
    Case("polynomial evaluation", "Chebyshev composition", lambda x: chebyshev(2, chebyshev(3, x)),
         lambda x: chebyshev(6, x), ((),)),
]

MATRICES = [
    Case("inverses", "inverse of a product", lambda a, b: inv(a @ b),
         lambda a, b: inv(b) @ inv(a), ((2, 2), (2, 2))),
    Case("inverses", "two by two in closed form", inv,
         lambda a: np.array([[a[1, 1], -a[0, 1]], [-a[1, 0], a[0, 0]]])
         / (a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0]), ((2, 2),)),
    Case("inverses", "adjugate over determinant", inv, lambda a: adjugate(a) / leibniz_det(a),
         ((3, 3),)),
    Case("inverses", "inverse of the transpose", lambda a: inv(a.T), lambda a: inv(a).T, ((3, 3),)),
    Case("inverses", "push-through", lambda a, b: a @ inv(np.eye(3) + b @ a),
         lambda a, b: inv(np.eye(2) + a @ b) @ a, ((2, 3), (3, 2))),
    Case("inverses", "difference of inverses", lambda a, b: inv(a) - inv(b),
         lambda a, b: inv(a) @ (b - a) @ inv(b), ((2, 2), (2, 2))),
    Case("Sherman-Morrison", "rank one update", lambda a, u, v: inv(a + np.outer(u, v)),
         lambda a, u, v: inv(a) - np.outer(inv(a) @ u, v @ inv(a)) / (1 + v @ inv(a) @ u),
         ((3, 3), (3,), (3,))),
    Case("Sherman-Morrison", "identity plus outer product solves",
         lambda u, x: np.linalg.solve(np.eye(3) + np.outer(u, u), x),
         lambda u, x: x - u * (u @ x) / (1 + u @ u), ((3,), (3,))),
    Case("Woodbury", "rank two update", lambda a, u, v: inv(a + u @ v),
         lambda a, u, v: inv(a) - inv(a) @ u @ inv(np.eye(2) + v @ inv(a) @ u) @ v @ inv(a),
         ((3, 3), (3, 2), (2, 3))),
    Case("Woodbury", "ridge regression, primal and dual",
         lambda x, y, t: np.linalg.solve(x.T @ x + t * np.eye(2), x.T @ y),
         lambda x, y, t: x.T @ np.linalg.solve(x @ x.T + t * np.eye(3), y), ((3, 2), (3,), ())),
    Case("Schur complement", "determinant of a block matrix",
         lambda a, b, c, d: det(np.block([[a, b], [c, d]])),
         lambda a, b, c, d: det(a) * det(d - c @ inv(a) @ b), ((2, 2), (2, 2), (2, 2), (2, 2))),
    Case("Schur complement", "corner of the block inverse",
         lambda a, b, c, d: inv(np.block([[a, b], [c, d]]))[:2, :2],
         lambda a, b, c, d: inv(a - b @ inv(d) @ c), ((2, 2), (2, 1), (1, 2), (1, 1))),
    Case("determinants", "product rule", lambda a, b: det(a @ b),
         lambda a, b: det(a) * det(b), ((3, 3), (3, 3))),
    Case("determinants", "Leibniz formula", det, leibniz_det, ((3, 3),)),
    Case("determinants", "Gaussian elimination", elimination_det, leibniz_det, ((3, 3),)),
    Case("determinants", "transpose and scale", lambda a, c: det(c * a.T),
         lambda a, c: c ** 3 * det(a), ((3, 3), ())),
    Case("determinants", "swapped rows change the sign", lambda a: det(a[[1, 0, 2]]),
         lambda a: -det(a), ((3, 3),)),
    Case("determinants", "matrix determinant lemma", lambda u, v: det(np.eye(3) + np.outer(u, v)),
         lambda u, v: 1 + u @ v, ((3,), (3,))),
    Case("determinants", "Sylvester", lambda a, b: det(np.eye(2) + a @ b),
         lambda a, b: det(np.eye(3) + b @ a), ((2, 3), (3, 2))),
    Case("traces", "cyclic", lambda a, b, c: np.trace(a @ b @ c),
         lambda a, b, c: np.trace(c @ a @ b), ((2, 3), (3, 4), (4, 2))),
    Case("traces", "Frobenius product", lambda a, b: np.trace(a.T @ b),
         lambda a, b: (a * b).sum(), ((3, 2), (3, 2))),
    Case("traces", "commutators are traceless", lambda a, b: np.trace(a @ b - b @ a),
         lambda a, b: 0 * a[0, 0], ((3, 3), (3, 3))),
    Case("traces", "quadratic form as a trace", lambda a, x: x @ a @ x,
         lambda a, x: np.trace(a @ np.outer(x, x)), ((3, 3), (3,))),
    Case("transposes", "transposes: product", lambda a, b: (a @ b).T, lambda a, b: b.T @ a.T,
         ((2, 3), (3, 2))),
    Case("transposes", "swapped axes of a batch", lambda a, b: np.swapaxes(a @ b, -1, -2),
         lambda a, b: b.transpose(0, 2, 1) @ a.transpose(0, 2, 1), ((2, 2, 3), (2, 3, 2))),
    Case("transposes", "skew part has no quadratic form", lambda a, x: x @ (a - a.T) @ x,
         lambda a, x: np.zeros(()), ((3, 3), (3,))),
    Case("Cayley-Hamilton", "two by two", lambda a: a @ a,
         lambda a: np.trace(a) * a - det(a) * np.eye(2), ((2, 2),)),
    Case("Cayley-Hamilton", "three by three", lambda a: np.linalg.matrix_power(a, 3),
         lambda a: np.trace(a) * a @ a - (np.trace(a) ** 2 - np.trace(a @ a)) / 2 * a
         + det(a) * np.eye(3), ((3, 3),)),
    Case("commutators", "Jacobi identity", lambda a, b, c: commutator(a, commutator(b, c))
         + commutator(b, commutator(c, a)) + commutator(c, commutator(a, b)),
         lambda a, b, c: np.zeros_like(a), ((2, 2), (2, 2), (2, 2))),
    Case("Kronecker", "mixed product", lambda a, b, c, d: np.kron(a, b) @ np.kron(c, d),
         lambda a, b, c, d: np.kron(a @ c, b @ d), ((2, 2), (2, 3), (2, 2), (3, 2))),
    Case("Kronecker", "vec of a triple product", lambda a, x, b: (a @ x @ b).T.reshape(-1),
         lambda a, x, b: np.kron(b.T, a) @ x.T.reshape(-1), ((2, 2), (2, 3), (3, 2))),
    Case("Kronecker", "trace", lambda a, b: np.trace(np.kron(a, b)),
         lambda a, b: np.trace(a) * np.trace(b), ((2, 2), (3, 3))),
    Case("Kronecker", "determinant", lambda a, b: det(np.kron(a, b)),
         lambda a, b: (det(a) * det(b)) ** 2, ((2, 2), (2, 2))),
    Case("linear systems", "solve equals inverse times", np.linalg.solve,
         lambda a, b: inv(a) @ b, ((3, 3), (3,))),
    Case("linear systems", "Cramer's rule", np.linalg.solve,
         lambda a, b: np.array([det(np.column_stack([b, a[:, 1]])), det(np.column_stack([a[:, 0], b]))])
         / det(a), ((2, 2), (2,))),
    Case("linear systems", "solve is linear", lambda a, b, c: np.linalg.solve(a, b + 3 * c),
         lambda a, b, c: np.linalg.solve(a, b) + 3 * np.linalg.solve(a, c), ((2, 2), (2, 2), (2, 2))),
    Case("linear systems", "normal equations leave an orthogonal residual",
         lambda x, y: x.T @ (y - x @ np.linalg.solve(x.T @ x, x.T @ y)),
         lambda x, y: np.zeros(2), ((3, 2), (3,))),
    Case("linear systems", "straight line fit by moments", fitted_slope,
         lambda x, y: (x - x.mean()) @ (y - y.mean()) / ((x - x.mean()) ** 2).sum(), ((4,), (4,))),
    Case("projections", "projector is idempotent",
         lambda a: (lambda p: p @ p)(a @ inv(a.T @ a) @ a.T),
         lambda a: a @ inv(a.T @ a) @ a.T, ((3, 2),)),
    Case("projections", "Gram-Schmidt step is orthogonal", lambda u, v: (v - (u @ v) / (u @ u) * u) @ u,
         lambda u, v: 0 * u[0], ((4,), (4,))),
    Case("projections", "Pythagoras for the projected part", lambda u, v: v @ v,
         lambda u, v: (u @ v) ** 2 / (u @ u) + ((v - (u @ v) / (u @ u) * u) ** 2).sum(), ((3,), (3,))),
    Case("orthogonal maps", "reflection twice", lambda v: householder(v) @ householder(v),
         lambda v: np.eye(3), ((3,),)),
    Case("orthogonal maps", "Cayley transform", lambda a: cayley(a).T @ cayley(a),
         lambda a: np.eye(3), ((3, 3),)),
    Case("orthogonal maps", "rotations compose", lambda s, t: rotation(s) @ rotation(t),
         lambda s, t: rotation(s + t), ((), ())),
    Case("orthogonal maps", "rotation has determinant one", lambda t: det(rotation(t)),
         lambda t: np.ones(()), ((),)),
    Case("cross product", "orthogonal to its factors", lambda a, b: np.cross(a, b) @ a,
         lambda a, b: 0 * a[0], ((3,), (3,))),
    Case("cross product", "as a skew matrix", np.cross, lambda a, b: skew(a) @ b, ((3,), (3,))),
    Case("cross product", "bac minus cab", lambda a, b, c: np.cross(a, np.cross(b, c)),
         lambda a, b, c: b * (a @ c) - c * (a @ b), ((3,), (3,), (3,))),
    Case("cross product", "triple product is a determinant", lambda a, b, c: np.dot(a, np.cross(b, c)),
         lambda a, b, c: det(np.array([a, b, c])), ((3,), (3,), (3,))),
    Case("factorized matrices", "Cholesky factor squares back",
         lambda a: (lambda f: f @ f.T)(np.linalg.cholesky(a @ a.T + np.eye(2))),
         lambda a: a @ a.T + np.eye(2), ((2, 2),)),
    Case("factorized matrices", "LDU of a two by two matrix", ldu_product,
         lambda a: a.copy(), ((2, 2),)),
    Case("factorized matrices", "Strassen's seven products", strassen,
         lambda a, b: a @ b, ((2, 2), (2, 2))),
    Case("filters", "Kalman gain, two forms",
         kalman_gain, kalman_gain_information, ((2, 2), (1, 2), (1, 1))),
    Case("filters", "exponential average unrolled",
         lambda x, b: functools.reduce(lambda m, v: b * m + (1 - b) * v, x, 0),
         lambda x, b: (1 - b) * sum(b ** (3 - i) * x[i] for i in range(4)), ((4,), ())),
    Case("filters", "state space by convolution", state_space_scan,
         lambda u, a, b, c: np.convolve(c * b * a ** np.arange(3), u)[:3], ((3,), (), (), ())),
]

ROOTS = [
    Case("square roots", "rational square comes out", lambda x: np.sqrt(9 * x),
         lambda x: 3 * np.sqrt(x), ((3,),)),
    Case("square roots", "fraction comes out", lambda x: np.sqrt(25 * x / 4),
         lambda x: 5 * np.sqrt(x) / 2, ((3,),)),
    Case("square roots", "square of a root", lambda x: np.sqrt(x) ** 2, lambda x: x, ((3,),)),
    Case("square roots", "root of a perfect square", lambda x, y: np.sqrt(x ** 2 + 2 * x * y + y ** 2),
         lambda x, y: np.abs(x + y), ((2,), (2,))),
    Case("square roots", "root of x squared", lambda x: np.sqrt(x * x), np.abs, ((4,),)),
    Case("square roots", "root of a square that is positive", lambda x: np.sqrt((1 + x ** 2) ** 2),
         lambda x: 1 + x ** 2, ((3,),)),
    Case("square roots", "root of an expanded positive square",
         lambda x: np.sqrt(x ** 4 + 2 * x ** 2 + 1), lambda x: x ** 2 + 1, ((3,),)),
    Case("square roots", "root of cosh squared", lambda x: np.sqrt(np.cosh(x) ** 2), np.cosh, ((3,),)),
    Case("square roots", "root of an exponential", lambda x: np.sqrt(np.exp(2 * x)), np.exp, ((3,),)),
    Case("square roots", "root of a product", lambda x, y: np.sqrt(x) * np.sqrt(y),
         lambda x, y: np.sqrt(x * y), ((2,), (2,))),
    Case("square roots", "root of a quotient", lambda x, y: np.sqrt(x) / np.sqrt(y),
         lambda x, y: np.sqrt(x / y), ((2,), (2,))),
    Case("square roots", "root of a square times a letter", lambda x, y: np.sqrt(x ** 2 * y),
         lambda x, y: abs(x) * np.sqrt(y), ((), ())),
    Case("square roots", "sum of roots squared", lambda x, y: (np.sqrt(x) + np.sqrt(y)) ** 2,
         lambda x, y: x + y + 2 * np.sqrt(x) * np.sqrt(y), ((), ())),
    Case("square roots", "nested root", lambda x: np.sqrt(1 + x ** 2 + 2 * np.sqrt(x ** 2)),
         lambda x: 1 + abs(x), ((2,),)),
    Case("square roots", "root of one plus sinh squared", lambda x: np.sqrt(1 + np.sinh(x) ** 2),
         np.cosh, ((2,),)),
    Case("square roots", "root of one minus sine squared", lambda t: np.sqrt(1 - np.sin(t) ** 2),
         lambda t: np.abs(np.cos(t)), ((3,),)),
    Case("rationalised denominators", "one over a root", lambda x: 1 / np.sqrt(x),
         lambda x: np.sqrt(x) / x, ((3,),)),
    Case("rationalised denominators", "difference of roots",
         lambda x, y: 1 / (np.sqrt(x) + np.sqrt(y)),
         lambda x, y: (np.sqrt(x) - np.sqrt(y)) / (x - y), ((), ())),
    Case("rationalised denominators", "root increment", lambda x, h: (np.sqrt(x + h) - np.sqrt(x)) / h,
         lambda x, h: 1 / (np.sqrt(x + h) + np.sqrt(x)), ((2,), ())),
    Case("rationalised denominators", "conjugate of root x squared plus one",
         lambda x: 1 / (np.sqrt(x ** 2 + 1) + x), lambda x: np.sqrt(x ** 2 + 1) - x, ((2,),)),
    Case("fractional powers", "half power", lambda x: x ** 0.5, np.sqrt, ((3,),)),
    Case("fractional powers", "power three halves", lambda x: x ** 1.5, lambda x: x * np.sqrt(x),
         ((3,),)),
    Case("fractional powers", "power minus one half", lambda x: (x + 1) ** -0.5,
         lambda x: 1 / np.sqrt(x + 1), ((3,),)),
    Case("fractional powers", "half powers multiply", lambda x: x ** 0.5 * x ** 1.5,
         lambda x: x ** 2, ((2,),)),
    Case("fractional powers", "quarter power squared", lambda x: (x ** 0.25) ** 2, np.sqrt, ((2,),)),
    Case("fractional powers", "np.power with an exponent of 2.5", lambda x: np.power(x, 2.5),
         lambda x: x * x * np.sqrt(x), ((2,),)),
    Case("fractional powers", "cube root cubed", lambda x: np.cbrt(x) ** 3, lambda x: x, ((2,),)),
    Case("hypot", "hypot: definition", np.hypot, lambda x, y: np.sqrt(x ** 2 + y ** 2), ((3,), (3,))),
    Case("hypot", "positive factor comes out", lambda x, y: np.hypot(3 * x, 3 * y),
         lambda x, y: 3 * np.hypot(x, y), ((), ())),
    Case("hypot", "nested hypot is a norm", lambda x: np.hypot(np.hypot(x[0], x[1]), x[2]),
         lambda x: np.linalg.norm(x), ((3,),)),
    Case("norms", "norm of a vector times a positive number", lambda x: np.linalg.norm(2.5 * x),
         lambda x: 2.5 * np.linalg.norm(x), ((4,),)),
    Case("norms", "norm of a vector times any number", lambda x, c: np.linalg.norm(c * x),
         lambda x, c: np.abs(c) * np.linalg.norm(x), ((3,), ())),
    Case("norms", "unit vector has length one", lambda x: (unit(x) ** 2).sum(),
         lambda x: np.ones(()), ((3,),)),
    Case("norms", "unit vector ignores a positive scale", lambda x: unit(7 * x), unit, ((3,),)),
    Case("norms", "cosine similarity, normalised first",
         lambda x, y: (x / np.linalg.norm(x)) @ (y / np.linalg.norm(y)),
         lambda x, y: x @ y / np.sqrt((x @ x) * (y @ y)), ((3,), (3,))),
    Case("norms", "norm along rows", lambda x: np.linalg.norm(x, axis=1),
         lambda x: np.sqrt(np.einsum("ij,ij->i", x, x)), ((2, 3),)),
    Case("norms", "Frobenius norm", np.linalg.norm, lambda a: np.sqrt(np.trace(a @ a.T)), ((2, 3),)),
    Case("norms", "distance expanded", lambda x, y: np.linalg.norm(x - y) ** 2,
         lambda x, y: x @ x - 2 * x @ y + y @ y, ((3,), (3,))),
    Case("norms", "pairwise distances", lambda x: ((x[:, None] - x[None]) ** 2).sum(-1),
         lambda x: (x ** 2).sum(1)[:, None] + (x ** 2).sum(1)[None] - 2 * x @ x.T, ((3, 2),)),
    Case("roots of numbers", "twelve", lambda x: x * np.sqrt(12) * np.sqrt(12), lambda x: 12 * x,
         ((2,),)),
    Case("roots of numbers", "root twelve and root three", lambda x: np.sqrt(12) * x,
         lambda x: 2 * np.sqrt(3) * x, ((2,),)),
    Case("roots of numbers", "nineteen below the line", lambda x: x / np.sqrt(19),
         lambda x: np.sqrt(19) * x / 19, ((2,),)),
    Case("roots of numbers", "seventeen halves", lambda x: np.sqrt(289 / 4) * x, lambda x: 8.5 * x,
         ((2,),)),
    Case("roots of numbers", "root of two times a letter", lambda x: np.sqrt(2) * np.sqrt(x),
         lambda x: np.sqrt(2 * x), ((2,),)),
    Case("irrational floats", "root six as a product", lambda x: np.sqrt(2) * np.sqrt(3) * x,
         lambda x: np.sqrt(6) * x, ((2,),)),
    Case("irrational floats", "golden ratio", lambda x: x * ((1 + np.sqrt(5)) / 2) ** 2,
         lambda x: x * ((1 + np.sqrt(5)) / 2 + 1), ((2,),)),
    Case("roots of numbers", "math.sqrt and a negative half power", lambda x: x / math.sqrt(48),
         lambda x: x * 48 ** -0.5, ((2,),)),
    Case("roots of numbers", "root of an array of numbers",
         lambda x: np.sqrt(np.array([8, 18, 50])) * x,
         lambda x: np.array([2, 3, 5]) * x * np.sqrt(2), ((3,),)),
]

PIECEWISE = [
    Case("absolute values", "square", lambda x: np.abs(x) ** 2, np.square, ((3,),)),
    Case("absolute values", "absolute values: product", lambda x, y: abs(x * y),
         lambda x, y: abs(x) * abs(y), ((3,), (3,))),
    Case("absolute values", "quotient", lambda x, y: np.abs(x / y),
         lambda x, y: np.abs(x) / np.abs(y), ((), ())),
    Case("absolute values", "sign times absolute value", lambda x: np.sign(x) * np.abs(x),
         lambda x: x, ((3,),)),
    Case("absolute values", "symmetric", lambda x, y: np.abs(x - y), lambda x, y: np.abs(y - x),
         ((3,), (3,))),
    Case("absolute values", "of something positive", lambda x: np.abs(np.exp(x) + x ** 2),
         lambda x: np.exp(x) + x ** 2, ((3,),)),
    Case("absolute values", "twice", lambda x: np.abs(np.abs(x)), np.fabs, ((2,),)),
    Case("absolute values", "absolute value cubed", lambda x: np.abs(x ** 3),
         lambda x: x ** 2 * np.abs(x), ((2,),)),
    Case("absolute values", "sum and difference", lambda x, y: np.abs(x + y) + np.abs(x - y),
         lambda x, y: 2 * np.maximum(np.abs(x), np.abs(y)), ((), ())),
    Case("absolute values", "logarithm of an absolute value", lambda x: 2 * np.log(np.abs(x)),
         lambda x: np.log(x ** 2), ((2,),)),
    Case("maximum and minimum", "sum", lambda x, y: np.maximum(x, y) + np.minimum(x, y),
         lambda x, y: x + y, ((3,), (3,))),
    Case("maximum and minimum", "difference", lambda x, y: np.maximum(x, y) - np.minimum(x, y),
         lambda x, y: np.abs(x - y), ((3,), (3,))),
    Case("maximum and minimum", "maximum and minimum: product",
         lambda x, y: np.maximum(x, y) * np.minimum(x, y), lambda x, y: x * y, ((2,), (2,))),
    Case("maximum and minimum", "through the absolute value", np.maximum,
         lambda x, y: (x + y + abs(x - y)) / 2, ((2,), (2,))),
    Case("maximum and minimum", "negation swaps them", lambda x, y: -np.maximum(-x, -y),
         np.minimum, ((2,), (2,))),
    Case("maximum and minimum", "shift comes out", lambda x, y, c: np.maximum(x + c, y + c),
         lambda x, y, c: np.maximum(x, y) + c, ((2,), (2,), ())),
    Case("maximum and minimum", "absorption", lambda x, y: np.maximum(x, np.minimum(x, y)),
         lambda x, y: x, ((2,), (2,))),
    Case("maximum and minimum", "distributive", lambda x, y, z: np.minimum(x, np.maximum(y, z)),
         lambda x, y, z: np.maximum(np.minimum(x, y), np.minimum(x, z)), ((), (), ())),
    Case("maximum and minimum", "maximum of an array by a loop", lambda x: x.max(),
         lambda x: functools.reduce(np.maximum, [x[i] for i in (2, 0, 3, 1)]), ((4,),)),
    Case("maximum and minimum", "exponential keeps the order", lambda x, y: np.exp(np.maximum(x, y)),
         lambda x, y: np.maximum(np.exp(x), np.exp(y)), ((), ())),
    Case("maximum and minimum", "median of three", lambda x: x.sum() - x.max() - x.min(),
         lambda x: np.maximum(np.minimum(x[0], x[1]), np.minimum(np.maximum(x[0], x[1]), x[2])),
         ((3,),)),
    Case("maximum and minimum", "Python's max", lambda x, y: max(x, y), np.maximum, ((), ())),
    Case("relu", "relu: splits the identity", lambda x: relu(x) - relu(-x), lambda x: x, ((3,),)),
    Case("relu", "splits the absolute value", lambda x: relu(x) + relu(-x), np.abs, ((3,),)),
    Case("relu", "positively homogeneous", lambda x: relu(3 * x), lambda x: 3 * relu(x), ((3,),)),
    Case("relu", "by a mask", relu, lambda x: x * (x > 0), ((3,),)),
    Case("relu", "leaky", lambda x: np.where(x > 0, x, 0.01 * x),
         lambda x: np.maximum(x, 0.01 * x), ((3,),)),
    Case("relu", "squared", lambda x: relu(x) ** 2, lambda x: x * relu(x), ((3,),)),
    Case("relu", "relu six by clip", lambda x: np.minimum(relu(x), 6), lambda x: np.clip(x, 0, 6),
         ((3,),)),
    Case("relu", "hat function", lambda x: relu(x + 1) - 2 * relu(x) + relu(x - 1),
         lambda x: relu(1 - np.abs(x)), ((2,),)),
    Case("where", "choice between two sums", lambda x, y, z: np.where(x > y, x + z, y + z),
         lambda x, y, z: z + np.maximum(x, y), ((2,), (2,), (2,))),
    Case("where", "negated condition", lambda x, y: np.where(x < 0, y, 2 * y),
         lambda x, y: np.where(x >= 0, 2 * y, y), ((3,), (3,))),
    Case("where", "inside and outside", lambda x, y: np.where(x > 0, np.exp(y), np.exp(-y)),
         lambda x, y: np.exp(np.where(x > 0, y, -y)), ((2,), (2,))),
    Case("where", "stable sigmoid",
         lambda x: np.where(x >= 0, 1 / (1 + np.exp(-x)), np.exp(x) / (1 + np.exp(x))), sigmoid,
         ((3,),)),
    Case("where", "Huber loss", lambda x: np.where(np.abs(x) <= 1, x ** 2 / 2, np.abs(x) - 0.5),
         lambda x: (lambda m: m * (np.abs(x) - m / 2))(np.minimum(np.abs(x), 1)), ((3,),)),
    Case("clip", "by maximum and minimum", lambda x: np.clip(x, -1, 2),
         lambda x: np.minimum(np.maximum(x, -1), 2), ((3,),)),
    Case("clip", "odd for symmetric limits", lambda x: np.clip(-x, -3, 3),
         lambda x: -np.clip(x, -3, 3), ((3,),)),
    Case("clip", "by absolute values", lambda x: x.clip(-1, 1),
         lambda x: (np.abs(x + 1) - np.abs(x - 1)) / 2, ((3,),)),
    Case("sorting", "sum does not change", lambda x: np.sort(x).sum(), lambda x: x.sum(), ((4,),)),
    Case("sorting", "ends are the extremes", lambda x: np.sort(x)[[0, -1]],
         lambda x: np.stack([x.min(), x.max()]), ((3,),)),
    Case("rounding", "floor and ceiling", lambda x: np.floor(-x), lambda x: -np.ceil(x), ((2,),)),
]

EXPONENTIALS = [
    Case("exponentials", "exponentials: sum to product", lambda x, y: np.exp(x + y),
         lambda x, y: np.exp(x) * np.exp(y), ((3,), (3,))),
    Case("exponentials", "negative argument", lambda x: np.exp(-x), lambda x: 1 / np.exp(x), ((3,),)),
    Case("exponentials", "third power", lambda x: np.exp(x) ** 3, lambda x: np.exp(3 * x), ((3,),)),
    Case("exponentials", "expm1", np.expm1, lambda x: np.exp(x) - 1, ((3,),)),
    Case("exponentials", "expm1 of twice the argument", lambda x: np.expm1(2 * x),
         lambda x: np.expm1(x) * (np.expm1(x) + 2), ((2,),)),
    Case("exponentials", "exp2 of a sum", lambda x, y: np.exp2(x + 3 * y),
         lambda x, y: np.exp2(x) * np.exp2(y) ** 3, ((2,), (2,))),
    Case("exponentials", "exp2 is a power of two", np.exp2, lambda x: 2.0 ** x, ((2,),)),
    Case("exponentials", "exp2 plus one doubles", lambda x: np.exp2(x + 1), lambda x: 2 * np.exp2(x),
         ((2,),)),
    Case("exponentials", "four to the x", lambda x: 4.0 ** x, lambda x: np.exp2(x) ** 2, ((2,),)),
    Case("exponentials", "exp of a sum is a product", lambda x: np.exp(x.sum()),
         lambda x: np.prod(np.exp(x)), ((4,),)),
    Case("logarithms", "exp undoes log", lambda x: np.exp(np.log(x)), lambda x: x, ((2,),)),
    Case("logarithms", "log undoes exp", lambda x: np.log(np.exp(x)), lambda x: x, ((2,),)),
    Case("logarithms", "product of positive quantities", lambda x, y: np.log(np.exp(x) * (1 + y ** 2)),
         lambda x, y: x + np.log1p(y ** 2), ((2,), (2,))),
    Case("logarithms", "product of letters", lambda x, y: np.log(x) + np.log(y),
         lambda x, y: np.log(x * y), ((2,), (2,))),
    Case("logarithms", "quotient of letters", lambda x, y: np.log(x / y),
         lambda x, y: np.log(np.abs(x)) - np.log(np.abs(y)), ((), ())),
    Case("logarithms", "logarithms: inverse", lambda x: np.log(1 / (1 + x ** 2)),
         lambda x: -np.log(1 + x ** 2), ((2,),)),
    Case("logarithms", "power of a positive quantity", lambda x: np.log((2 + x ** 2) ** 3),
         lambda x: 3 * np.log(2 + x ** 2), ((2,),)),
    Case("logarithms", "root", lambda x: np.log(np.sqrt(x)), lambda x: np.log(x) / 2, ((2,),)),
    Case("logarithms", "log1p", lambda x: np.log1p(x), lambda x: np.log(1 + x), ((2,),)),
    Case("logarithms", "log2 of exp2", lambda x: np.log2(np.exp2(x)), lambda x: x, ((2,),)),
    Case("logarithms", "log2 of eight times a letter", lambda x: np.log2(8 * x),
         lambda x: 3 + np.log2(x), ((2,),)),
    Case("logarithms", "log10 of a thousand times a letter", lambda x: np.log10(1000 * x),
         lambda x: 3 + np.log10(x), ((2,),)),
    Case("logarithms", "change of base between letters", lambda x, y: np.log(x) / np.log(y),
         lambda x, y: np.log2(x) / np.log2(y), ((), ())),
    Case("logarithms", "log10 through arrays of tens", np.log10,
         lambda x: np.log(x) / np.log(np.full_like(x, 10)), ((2,),)),
    Case("irrational floats", "twice a letter", lambda x: np.log(2 * x), lambda x: np.log(2) + np.log(x),
         ((2,),)),
    Case("logarithms", "odds of a sigmoid", lambda x: np.log(sigmoid(x) / (1 - sigmoid(x))),
         lambda x: x, ((2,),)),
    Case("logaddexp", "logaddexp: definition", np.logaddexp, lambda x, y: np.log(np.exp(x) + np.exp(y)),
         ((2,), (2,))),
    Case("logaddexp", "logaddexp: associative", lambda x, y, z: np.logaddexp(np.logaddexp(x, y), z),
         lambda x, y, z: np.logaddexp(x, np.logaddexp(y, z)), ((), (), ())),
    Case("logaddexp", "logaddexp: shift", lambda x, y, c: np.logaddexp(x + c, y + c),
         lambda x, y, c: np.logaddexp(x, y) + c, ((), (), ())),
    Case("logaddexp", "with a softplus", np.logaddexp, lambda x, y: x + softplus(y - x), ((2,), (2,))),
    Case("logaddexp", "logaddexp: stable form", np.logaddexp,
         lambda x, y: np.maximum(x, y) + np.log1p(np.exp(-np.abs(x - y))), ((2,), (2,))),
    Case("logaddexp", "reduced over an array", lambda x: np.logaddexp.reduce(x), lse, ((4,),)),
    Case("powers with letters", "through exp and log", lambda x, y: x ** y,
         lambda x, y: np.exp(y * np.log(x)), ((2,), (2,))),
    Case("powers with letters", "exponents add", lambda x, y, z: np.exp(x) ** y * np.exp(x) ** z,
         lambda x, y, z: np.exp(x) ** (y + z), ((), (), ())),
    Case("powers with letters", "power of a power", lambda x, y, z: ((1 + x ** 2) ** y) ** z,
         lambda x, y, z: (1 + x ** 2) ** (y * z), ((), (), ())),
    Case("powers with letters", "product of bases", lambda x, y: x ** y * 3.0 ** y,
         lambda x, y: (3 * x) ** y, ((), ())),
    Case("powers with letters", "softmax of a log is a power mean weight",
         lambda x, t: softmax(t * np.log(x)), lambda x, t: x ** t / (x ** t).sum(), ((3,), ())),
    Case("hyperbolic", "cosh squared minus sinh squared", lambda x: np.cosh(x) ** 2 - np.sinh(x) ** 2,
         lambda x: np.ones_like(x), ((3,),)),
    Case("hyperbolic", "tanh of a sum", lambda x, y: np.tanh(x + y),
         lambda x, y: (np.tanh(x) + np.tanh(y)) / (1 + np.tanh(x) * np.tanh(y)), ((2,), (2,))),
    Case("hyperbolic", "sinh of twice the argument", lambda x: np.sinh(2 * x),
         lambda x: 2 * np.sinh(x) * np.cosh(x), ((2,),)),
    Case("hyperbolic", "cosh from exponentials", np.cosh, lambda x: (np.exp(x) + np.exp(-x)) / 2,
         ((2,),)),
    Case("hyperbolic", "tanh from one exponential", np.tanh,
         lambda x: (np.exp(2 * x) - 1) / (np.exp(2 * x) + 1), ((2,),)),
    Case("hyperbolic", "half argument", lambda x: np.tanh(x / 2),
         lambda x: np.sinh(x) / (1 + np.cosh(x)), ((2,),)),
    Case("hyperbolic", "cosh of three times the argument", lambda x: np.cosh(3 * x),
         lambda x: 4 * np.cosh(x) ** 3 - 3 * np.cosh(x), ((2,),)),
    Case("hyperbolic", "one over cosh squared", lambda x: 1 - np.tanh(x) ** 2,
         lambda x: 1 / np.cosh(x) ** 2, ((2,),)),
    Case("hyperbolic", "Moivre", lambda x: (np.cosh(x) + np.sinh(x)) ** 3,
         lambda x: np.cosh(3 * x) + np.sinh(3 * x), ((2,),)),
    Case("hyperbolic", "velocities add", lambda a, b: np.arctanh((a + b) / (1 + a * b)),
         lambda a, b: np.arctanh(a) + np.arctanh(b), ((), ())),
    Case("trigonometric", "Pythagoras", lambda t: np.sin(t) ** 2 + np.cos(t) ** 2,
         lambda t: np.ones_like(t), ((3,),)),
    Case("trigonometric", "sine of a sum", lambda s, t: np.sin(s + t),
         lambda s, t: np.sin(s) * np.cos(t) + np.cos(s) * np.sin(t), ((2,), (2,))),
    Case("trigonometric", "double angle", lambda t: np.cos(2 * t), lambda t: 1 - 2 * np.sin(t) ** 2,
         ((2,),)),
    Case("trigonometric", "triple angle", lambda t: np.sin(3 * t),
         lambda t: 3 * np.sin(t) - 4 * np.sin(t) ** 3, ((2,),)),
    Case("trigonometric", "product to sum", lambda s, t: np.cos(s) * np.cos(t),
         lambda s, t: (np.cos(s - t) + np.cos(s + t)) / 2, ((2,), (2,))),
    Case("trigonometric", "trigonometric: sum to product", lambda s, t: np.sin(s) + np.sin(t),
         lambda s, t: 2 * np.sin((s + t) / 2) * np.cos((s - t) / 2), ((2,), (2,))),
    Case("trigonometric", "tangent of a sum", lambda s, t: np.tan(s + t),
         lambda s, t: (np.tan(s) + np.tan(t)) / (1 - np.tan(s) * np.tan(t)), ((), ())),
    Case("trigonometric", "tangent of a half", lambda t: np.tan(t / 2),
         lambda t: (1 - np.cos(t)) / np.sin(t), ((2,),)),
    Case("trigonometric", "secant squared", lambda t: 1 + np.tan(t) ** 2,
         lambda t: 1 / np.cos(t) ** 2, ((2,),)),
    Case("trigonometric", "Weierstrass substitution", np.cos,
         lambda t: (1 - np.tan(t / 2) ** 2) / (1 + np.tan(t / 2) ** 2), ((2,),)),
    Case("trigonometric", "fourth power reduced", lambda t: np.sin(t) ** 4,
         lambda t: (3 - 4 * np.cos(2 * t) + np.cos(4 * t)) / 8, ((2,),)),
    Case("trigonometric", "Chebyshev polynomial of a cosine", lambda t: chebyshev(5, np.cos(t)),
         lambda t: np.cos(5 * t), ((),)),
    Case("trigonometric", "sine squares differ", lambda s, t: np.sin(s) ** 2 - np.sin(t) ** 2,
         lambda s, t: np.sin(s + t) * np.sin(s - t), ((), ())),
    Case("inverse functions", "arsinh as a logarithm", np.arcsinh,
         lambda x: np.log(x + np.sqrt(x ** 2 + 1)), ((2,),)),
    Case("inverse functions", "artanh as a logarithm", np.arctanh,
         lambda x: np.log((1 + x) / (1 - x)) / 2, ((2,),)),
    Case("inverse functions", "sine of the arcsine", lambda x: np.sin(np.arcsin(x)), lambda x: x,
         ((2,),)),
    Case("inverse functions", "cosine of the arctangent", lambda x: np.cos(np.arctan(x)),
         lambda x: 1 / np.sqrt(1 + x ** 2), ((2,),)),
    Case("Fourier sums", "Dirichlet kernel", lambda t: 1 + 2 * sum(np.cos(k * t) for k in range(1, 4)),
         lambda t: np.sin(3.5 * t) / np.sin(t / 2), ((2,),)),
    Case("Fourier sums", "Fejer kernel", lambda t: 3 + 4 * np.cos(t) + 2 * np.cos(2 * t),
         lambda t: (np.sin(3 * t / 2) / np.sin(t / 2)) ** 2, ((2,),)),
    Case("Fourier sums", "odd sines", lambda t: np.sin(t) + np.sin(3 * t) + np.sin(5 * t),
         lambda t: np.sin(3 * t) ** 2 / np.sin(t), ((2,),)),
    Case("Fourier sums", "Parseval for four samples",
         lambda x: ((DFT4_RE @ x) ** 2).sum() + ((DFT4_IM @ x) ** 2).sum(),
         lambda x: 4 * (x ** 2).sum(), ((4,),)),
    Case("Fourier sums", "inverse Hadamard transform", lambda x: HADAMARD @ (HADAMARD @ x) / 4,
         lambda x: x, ((4,),)),
    Case("Fourier sums", "amplitude and phase by letters", lambda a, p, t: a * np.cos(t + p),
         lambda a, p, t: (a * np.cos(p)) * np.cos(t) - (a * np.sin(p)) * np.sin(t), ((), (), (3,))),
]

NETWORKS = [
    Case("sigmoid", "reflection", lambda x: sigmoid(-x), lambda x: 1 - sigmoid(x), ((3,),)),
    Case("sigmoid", "by tanh", sigmoid, lambda x: (1 + np.tanh(x / 2)) / 2, ((3,),)),
    Case("sigmoid", "two-way softmax", lambda x, y: softmax(np.stack([x, y]))[0],
         lambda x, y: sigmoid(x - y), ((), ())),
    Case("sigmoid", "tanh from a sigmoid", np.tanh, lambda x: 2 * sigmoid(2 * x) - 1, ((3,),)),
    Case("sigmoid", "exponential odds", lambda x: sigmoid(x) / sigmoid(-x), np.exp, ((2,),)),
    Case("silu", "is x times the sigmoid", silu, lambda x: x * sigmoid(x), ((3,),)),
    Case("silu", "silu: splits the identity", lambda x: silu(x) - silu(-x), lambda x: x, ((3,),)),
    Case("silu", "gated unit, two orders", lambda x, w, u: silu(x @ w) * (x @ u),
         lambda x, w, u: np.einsum("i,ij->j", x, u) * (w.T @ x) * sigmoid(w.T @ x),
         ((2,), (2, 3), (2, 3))),
    Case("softplus", "softplus: splits the identity", lambda x: softplus(x) - softplus(-x), lambda x: x,
         ((3,),)),
    Case("softplus", "log sigmoid", lambda x: -softplus(-x), lambda x: np.log(sigmoid(x)), ((3,),)),
    Case("softplus", "softplus: stable form", softplus,
         lambda x: np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x))), ((3,),)),
    Case("softplus", "softplus: inverse", lambda x: np.log(np.expm1(softplus(x))), lambda x: x, ((2,),)),
    Case("softplus", "mish", lambda x: x * np.tanh(softplus(x)),
         lambda x: (lambda e: x * (e * e + 2 * e) / (e * e + 2 * e + 2))(np.exp(x)), ((2,),)),
    Case("gelu", "gelu: splits the identity", lambda x: gelu_tanh(x) - gelu_tanh(-x), lambda x: x,
         ((3,),)),
    Case("gelu", "tanh form by a sigmoid", gelu_tanh,
         lambda x: x * sigmoid(2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x ** 3)), ((3,),)),
    Case("gelu", "factor pulled out of the cubic", gelu_tanh,
         lambda x: x / 2 + x / 2 * np.tanh(np.sqrt(2 / np.pi) * x * (1 + 0.044715 * x * x)), ((3,),)),
    Case("gelu", "quick form is a scaled silu", lambda x: x * sigmoid(1.702 * x),
         lambda x: silu(1.702 * x) / 1.702, ((2,),)),
    Case("softmax", "softmax: shift", lambda x, c: softmax(x + c), lambda x, c: softmax(x), ((4,), ())),
    Case("softmax", "softmax: maximum subtracted", softmax, stable_softmax, ((4,),)),
    Case("softmax", "maximum subtracted, rows", stable_softmax, softmax, ((2, 3),)),
    Case("softmax", "sums to one", lambda x: softmax(x).sum(axis=1), lambda x: np.ones(2), ((2, 3),)),
    Case("softmax", "temperature as a power", lambda x: softmax(3 * x),
         lambda x: softmax(x) ** 3 / (softmax(x) ** 3).sum(), ((3,),)),
    Case("softmax", "temperature divides", lambda x, t: softmax(x / t),
         lambda x, t: np.exp(x / t) / np.exp(x / t).sum(), ((3,), ())),
    Case("softmax", "of its own logarithm", lambda x: softmax(np.log(softmax(x))), softmax, ((3,),)),
    Case("softmax", "log softmax", lambda x: np.log(softmax(x)), lambda x: x - lse(x), ((3,),)),
    Case("softmax", "log softmax with the maximum", lambda x: x - stable_lse(x),
         lambda x: np.log(stable_softmax(x)), ((3,),)),
    Case("softmax", "pairwise form", softmax, lambda x: 1 / np.exp(x[None] - x[:, None]).sum(1),
         ((3,),)),
    Case("softmax", "commutes with a permutation", lambda x: softmax(x[PERM]),
         lambda x: softmax(x)[PERM], ((4,),)),
    Case("softmax", "base two", lambda x: np.exp2(x) / np.exp2(x).sum(),
         lambda x: np.exp2(x - x.max()) / np.exp2(x - x.max()).sum(), ((3,),)),
    Case("softmax", "of a sum is a product renormalised", lambda x, y: softmax(x + y),
         lambda x, y: softmax(x) * softmax(y) / (softmax(x) @ softmax(y)), ((3,), (3,))),
    Case("masked softmax", "minus infinity drops an entry",
         lambda x: softmax(np.where(MASK4, x, -np.inf))[MASK4], lambda x: softmax(x[MASK4]), ((4,),)),
    Case("masked softmax", "mask multiplied after exp",
         lambda x: softmax(np.where(MASK4, x, -np.inf)),
         lambda x: np.exp(x) * MASK4 / (np.exp(x) * MASK4).sum(), ((4,),)),
    Case("masked softmax", "additive mask", lambda x: softmax(x + np.where(MASK4, 0, -np.inf)),
         lambda x: stable_softmax(np.where(MASK4, x, -np.inf)), ((4,),)),
    Case("masked softmax", "causal mask row by row",
         lambda s: softmax(np.where(np.tri(3, dtype=bool), s, -np.inf)), softmax_of_prefixes, ((3, 3),)),
    Case("masked softmax", "renormalised after masking",
         lambda x: (lambda p: p / p.sum())(softmax(x) * MASK4),
         lambda x: softmax(np.where(MASK4, x, -np.inf)), ((4,),)),
    Case("tiled softmax", "one pass with a running maximum", online_attend,
         lambda s, v: softmax(s) @ v, ((4,), (4, 2))),
    Case("tiled softmax", "tiles of two", tiled_attend, lambda s, v: softmax(s) @ v, ((5,), (5, 2))),
    Case("tiled softmax", "two parts merged", lambda s, v: merge_attend(s, v, 2),
         lambda s, v: softmax(s) @ v, ((5,), (5, 2))),
    Case("tiled softmax", "any cut gives the same", lambda s, v: merge_attend(s, v, 1),
         lambda s, v: merge_attend(s, v, 3), ((4,), (4,))),
    Case("tiled softmax", "sums merged with rescaling", merged_sums,
         lambda x, y: (lambda z: np.exp(z - z.max()).sum())(np.concatenate([x, y])), ((2,), (3,))),
    Case("log-sum-exp", "log-sum-exp: maximum subtracted", stable_lse, lse, ((4,),)),
    Case("log-sum-exp", "log-sum-exp: shift", lambda x, c: lse(x + c), lambda x, c: lse(x) + c,
         ((3,), ())),
    Case("log-sum-exp", "of two parts", lambda x: np.logaddexp(lse(x[:2]), lse(x[2:])), lse, ((5,),)),
    Case("irrational floats", "equal entries", lambda x: lse(np.stack([x, x, x])),
         lambda x: x + np.log(np.full((), 3.0)), ((),)),
    Case("log-sum-exp", "rows then columns", lambda x: lse(lse(x)), lambda x: lse(x.reshape(-1)),
         ((2, 3),)),
    Case("log-sum-exp", "expectation plus entropy", lse,
         lambda x: (lambda p: p @ x - p @ np.log(p))(softmax(x)), ((3,),)),
    Case("attention", "gauge change of queries and keys",
         lambda q, k, v, a: attention(q @ a, k @ inv(a).T, v), lambda q, k, v, a: attention(q, k, v),
         ((2, 2), (3, 2), (3, 2), (2, 2))),
    Case("attention", "gauge change of values",
         lambda q, k, v, a, o: attention(q, k, v @ a) @ inv(a) @ o,
         lambda q, k, v, a, o: attention(q, k, v) @ o, ((2, 2), (3, 2), (3, 2), (2, 2), (2, 2))),
    Case("attention", "permuted keys", lambda q, k, v: attention(q, k[PERM], v[PERM]),
         attention, ((2, 3), (4, 3), (4, 2))),
    Case("attention", "keys shifted by one vector", lambda q, k, v, c: attention(q, k + c, v),
         lambda q, k, v, c: attention(q, k, v), ((2, 3), (3, 3), (3, 2), (3,))),
    Case("attention", "values shifted by one vector", lambda q, k, v, c: attention(q, k, v + c),
         lambda q, k, v, c: attention(q, k, v) + c, ((2, 2), (3, 2), (3, 2), (2,))),
    Case("attention", "scale moved from queries to keys", lambda q, k, v, c: attention(c * q, k, v),
         lambda q, k, v, c: attention(q, c * k, v), ((2, 3), (3, 3), (3, 2), ())),
    Case("irrational floats", "root of two split between both", lambda q, k, v: attention(q, k, v),
         lambda q, k, v: softmax((q / 2 ** 0.25) @ (k / 2 ** 0.25).T) @ v, ((2, 2), (3, 2), (3, 2))),
    Case("attention", "zero-padded features with the old scale",
         lambda q, k, v: softmax(pad_features(q) @ pad_features(k).T / np.sqrt(2)) @ v,
         attention, ((2, 2), (3, 2), (3, 1))),
    Case("attention", "default scale, three features", attention,
         lambda q, k, v: softmax(np.einsum("id,jd->ij", q, k) * 3 ** -0.5) @ v,
         ((2, 3), (2, 3), (2, 2))),
    Case("attention", "default scale, sixteen features", attention,
         lambda q, k, v: softmax(0.25 * q @ k.T) @ v, ((1, 16), (2, 16), (2, 1))),
    Case("attention", "default scale, nineteen features", attention,
         lambda q, k, v: softmax((q / np.sqrt(19)) @ k.T) @ v, ((1, 19), (2, 19), (2, 1))),
    Case("attention", "normalised after the values", attention,
         lambda q, k, v: (lambda e: e @ v / e.sum(1, keepdims=True))(np.exp(q @ k.T / np.sqrt(2))),
         ((2, 2), (3, 2), (3, 2))),
    Case("attention", "duplicated keys halve the weight",
         lambda q, k, v: attention(q, np.concatenate([k, k]), np.concatenate([v, v])), attention,
         ((2, 2), (2, 2), (2, 2))),
    Case("attention", "heads by reshape or by loop", heads_by_loop, heads_by_reshape,
         ((2, 4), (2, 4), (2, 4))),
    Case("attention", "output projection summed over heads",
         lambda h, w: np.concatenate([h[0], h[1]], axis=-1) @ w,
         lambda h, w: h[0] @ w[:2] + h[1] @ w[2:], ((2, 3, 2), (4, 3))),
    Case("attention", "grouped keys repeated", lambda q, k: q @ np.repeat(k, 2, axis=0).swapaxes(1, 2),
         lambda q, k: np.einsum("ghid,gjd->ghij", q.reshape(2, 2, 2, 3), k).reshape(4, 2, 2),
         ((4, 2, 3), (2, 2, 3))),
    Case("attention", "key projection absorbed into the query",
         lambda x, wq, wk: (x @ wq) @ (x @ wk).T, lambda x, wq, wk: x @ (wq @ wk.T) @ x.T,
         ((3, 2), (2, 2), (2, 2))),
    Case("attention", "last causal row sees everything", lambda q, k, v: causal_attention(q, k, v)[-1:],
         lambda q, k, v: attention(q[-1:], k, v), ((3, 2), (3, 2), (3, 2))),
    Case("attention", "first causal row copies the first value",
         lambda q, k, v: causal_attention(q, k, v)[0], lambda q, k, v: v[0], ((3, 2), (3, 2), (3, 2))),
    Case("attention", "causal prefix ignores what follows",
         lambda q, k, v: causal_attention(q, k, v)[:2],
         lambda q, k, v: causal_attention(q[:2], k[:2], v[:2]), ((3, 2), (3, 2), (3, 2))),
    Case("attention", "soft cap is odd", lambda s: 50 * np.tanh(-s / 50),
         lambda s: -(50.0 * np.tanh(s / 50.0)), ((2, 2),)),
    Case("linear attention", "reordered product", lambda q, k, v: (q @ k.T) @ v,
         lambda q, k, v: q @ (k.T @ v), ((3, 2), (3, 2), (3, 2))),
    Case("linear attention", "causal scan equals mask", linear_attention_scan,
         lambda q, k, v: np.tril(q @ k.T) @ v, ((4, 2), (4, 2), (4, 2))),
    Case("linear attention", "retention scan equals sum", retention_scan, retention_matrix,
         ((3, 2), (3, 2), (3, 2), ())),
    Case("linear attention", "delta rule unrolled", delta_scan, delta_products, ((3, 2), (3, 2), (3,))),
    Case("linear attention", "quadratic kernel features", lambda q, k: (q @ k) ** 2,
         lambda q, k: np.outer(q, q).ravel() @ np.outer(k, k).ravel(), ((3,), (3,))),
    Case("rotary embeddings", "relative angles", lambda q, k, s, t: rotate(q, s) @ rotate(k, t),
         lambda q, k, s, t: rotate(q, s - t) @ k, ((4,), (4,), (2,), (2,))),
    Case("rotary embeddings", "keep the norm", lambda x, t: (rotate(x, t) ** 2).sum(),
         lambda x, t: (x ** 2).sum(), ((4,), (2,))),
    Case("rotary embeddings", "angles add", lambda x, s, t: rotate(rotate(x, s), t),
         lambda x, s, t: rotate(x, s + t), ((4,), (2,), (2,))),
    Case("rotary embeddings", "half layout is a permutation",
         lambda x, t: rotate_half(x[[0, 2, 1, 3]], t)[[0, 2, 1, 3]], rotate, ((4,), (2,))),
    Case("rotary embeddings", "positions times a frequency",
         lambda q, k, f: rotate(q, 5 * f) @ rotate(k, 2 * f),
         lambda q, k, f: rotate(q, 9 * f) @ rotate(k, 6 * f), ((4,), (4,), (2,))),
]

GRADIENTS = [
    Case("softmax Jacobian", "applied to a vector",
         lambda x, v: (np.diag(softmax(x)) - np.outer(softmax(x), softmax(x))) @ v,
         lambda x, v: softmax(x) * (v - softmax(x) @ v), ((3,), (3,))),
    Case("softmax Jacobian", "rows sum to zero",
         lambda x: (np.diag(softmax(x)) - np.outer(softmax(x), softmax(x))).sum(axis=1),
         lambda x: np.zeros_like(x), ((3,),)),
    Case("softmax Jacobian", "quadratic form is a variance",
         lambda x, v: v @ (softmax(x) * (v - softmax(x) @ v)),
         lambda x, v: softmax(x) @ (v - softmax(x) @ v) ** 2, ((3,), (3,))),
    Case("gradients", "attention backward with row sums", attention_backward,
         lambda s, v, g: (lambda p: p * (g @ v.T - (g * (p @ v)).sum(1, keepdims=True)))(softmax(s)),
         ((2, 3), (3, 2), (2, 2))),
    Case("gradients", "silu, two forms", lambda x: sigmoid(x) + x * sigmoid(x) * (1 - sigmoid(x)),
         lambda x: (1 + np.exp(-x) + x * np.exp(-x)) / (1 + np.exp(-x)) ** 2, ((3,),)),
    Case("gradients", "sigmoid from exponentials", lambda x: sigmoid(x) * (1 - sigmoid(x)),
         lambda x: np.exp(-x) / (1 + np.exp(-x)) ** 2, ((3,),)),
    Case("gradients", "logistic loss", lambda x, y: y * (sigmoid(x) - 1) + (1 - y) * sigmoid(x),
         lambda x, y: sigmoid(x) - y, ((3,), (3,))),
    Case("gradients", "layer norm backward", layer_norm_grad, layer_norm_grad_long, ((3,), (3,))),
    Case("gradients", "rms norm backward", rms_norm_grad_matrix,
         lambda x, g: (lambda r: (g - x * (g @ x) / (3 * r * r)) / r)(np.sqrt((x @ x) / 3 + 1e-5)),
         ((3,), (3,))),
    Case("gradients", "direction of a norm",
         lambda x, g: g / np.linalg.norm(x) - x * (x @ g) / (x @ x) ** 1.5,
         lambda x, g: (g - unit(x) * (unit(x) @ g)) / np.sqrt(x @ x), ((3,), (3,))),
    Case("gradients", "quotient rule", lambda f, g, df, dg: df / g - f * dg / g ** 2,
         lambda f, g, df, dg: (df * g - f * dg) / (g * g), ((), (), (), ())),
    Case("gradients", "logarithmic derivative of a product", lambda x, d: (x.prod() * d / x).sum(),
         lambda x, d: d[0] * x[1] * x[2] + x[0] * d[1] * x[2] + x[0] * x[1] * d[2], ((3,), (3,))),
    Case("gradients", "least squares", lambda x, w, y: 2 * x.T @ (x @ w - y) / 4,
         lambda x, w, y: sum((x[i] @ w - y[i]) * x[i] for i in range(4)) / 2, ((4, 2), (2,), (4,))),
    Case("gradients", "derivative of an inverse", lambda a, d: -inv(a) @ d @ inv(a),
         lambda a, d: np.linalg.solve(a, -d) @ inv(a), ((2, 2), (2, 2))),
    Case("gradients", "weights batch by batch", lambda x, g: x.T @ g,
         lambda x, g: sum(np.outer(x[i], g[i]) for i in range(3)), ((3, 2), (3, 2))),
    Case("finite differences", "central difference is exact for a quadratic",
         lambda c, x, h: central(lambda t: c[0] + c[1] * t + c[2] * t ** 2, x, h),
         lambda c, x, h: c[1] + 2 * c[2] * x, ((3,), (), ())),
    Case("finite differences", "Simpson's rule is exact for a cubic",
         lambda c, a, b: simpson(lambda t: horner(c, t), a, b),
         lambda c, a, b: sum(c[k] * (b ** (k + 1) - a ** (k + 1)) / (k + 1) for k in range(4)), CUBIC),
    Case("finite differences", "second difference of squares",
         lambda x, h: ((x + h) ** 2 - 2 * x ** 2 + (x - h) ** 2) / h ** 2, lambda x, h: 2 + 0 * x,
         ((), ())),
    Case("finite differences", "Newton step for a root", lambda x, a: x - (x ** 2 - a) / (2 * x),
         lambda x, a: (x + a / x) / 2, ((), ())),
    Case("cross entropy", "with logits", lambda x, p: -(p * np.log(softmax(x))).sum(),
         lambda x, p: p.sum() * lse(x) - p @ x, ((3,), (3,))),
    Case("cross entropy", "one class picked", lambda x: -np.log(softmax(x)[1]),
         lambda x: lse(x - x[1]), ((3,),)),
    Case("cross entropy", "binary, with logits",
         lambda x, y: -y * np.log(sigmoid(x)) - (1 - y) * np.log(1 - sigmoid(x)),
         lambda x, y: softplus(x) - x * y, ((2,), (2,))),
    Case("cross entropy", "binary, stable form",
         lambda x, y: np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x))),
         lambda x, y: softplus(x) - x * y, ((2,), (2,))),
    Case("cross entropy", "label smoothing",
         lambda x: -(0.9 * np.log(softmax(x))[0] + 0.1 * np.log(softmax(x)).mean()),
         lambda x: lse(x) - 0.9 * x[0] - 0.1 * x.mean(), ((4,),)),
    Case("Kullback-Leibler", "between softmaxes",
         lambda x, y: softmax(x) @ np.log(softmax(x) / softmax(y)),
         lambda x, y: softmax(x) @ (x - y) - lse(x) + lse(y), ((3,), (3,))),
    Case("Kullback-Leibler", "cross entropy minus entropy", kl_of_logits,
         lambda x, y: softmax(x) @ np.log(softmax(x)) - softmax(x) @ np.log(softmax(y)), ((3,), (3,))),
    Case("Kullback-Leibler", "Gaussians by log scales",
         lambda m, s: (np.exp(2 * s) + m ** 2 - 1) / 2 - s,
         lambda m, s: (lambda v: (v + m ** 2 - 1 - np.log(v)) / 2)(np.exp(s) ** 2), ((), ())),
    Case("Kullback-Leibler", "Jensen-Shannon is symmetric", jensen_shannon,
         lambda x, y: jensen_shannon(y, x), ((2,), (2,))),
    Case("Gaussians", "product of two bells",
         lambda x, a, b: np.exp(-(x - a) ** 2) * np.exp(-(x - b) ** 2),
         lambda x, a, b: np.exp(-2 * (x - (a + b) / 2) ** 2 - (a - b) ** 2 / 2), ((), (), ())),
    Case("Gaussians", "radial kernel as a dot product kernel",
         lambda x, y: np.exp(-((x - y) ** 2).sum() / 2),
         lambda x, y: np.exp(-x @ x / 2) * np.exp(x @ y) * np.exp(-y @ y / 2), ((3,), (3,))),
    Case("Gaussians", "precision-weighted mean", lambda a, b, s, t: (a / s + b / t) / (1 / s + 1 / t),
         lambda a, b, s, t: a + s / (s + t) * (b - a), ((), (), (), ())),
]

NORMALISATION = [
    Case("layer norm", "invariant under a shift", lambda x, c: layer_norm(x + c),
         lambda x, c: layer_norm(x), ((4,), ())),
    Case("layer norm", "layer norm: positive scale without epsilon", lambda x: layer_norm(5 * x, 0),
         lambda x: layer_norm(x, 0), ((3,),)),
    Case("layer norm", "scale moved into epsilon", lambda x, eps: layer_norm(2 * x, eps),
         lambda x, eps: layer_norm(x, eps / 4), ((3,),), {"eps": 0.5}),
    Case("layer norm", "np.var form", layer_norm,
         lambda x: (x - x.mean(-1, keepdims=True)) / np.sqrt(np.var(x, axis=-1, keepdims=True) + 1e-5),
         ((2, 3),)),
    Case("layer norm", "sums to zero", lambda x: layer_norm(x).sum(), lambda x: np.zeros(()), ((4,),)),
    Case("layer norm", "is an rms norm of the centred input", layer_norm,
         lambda x: rms_norm(x - x.mean()), ((3,),)),
    Case("layer norm", "gain and bias folded into the next layer",
         lambda x, g, b, w: (layer_norm(x) * g + b) @ w,
         lambda x, g, b, w: layer_norm(x) @ (g[:, None] * w) + b @ w, ((3,), (3,), (3,), (3, 2))),
    Case("layer norm", "negation", lambda x: layer_norm(-x), lambda x: -layer_norm(x), ((3,),)),
    Case("layer norm", "epsilon as a constant", lambda x, eps: (x - x.mean()) / (x.var() + eps) ** 0.5,
         lambda x, eps: (x - x.sum() / 4) / np.sqrt((x @ x) / 4 - x.mean() ** 2 + eps),
         ((4,),), {"eps": 1e-5}),
    Case("rms norm", "rms norm: positive scale without epsilon", lambda x: rms_norm(0.3 * x, 0),
         lambda x: rms_norm(x, 0), ((3,),)),
    Case("rms norm", "mean square is one", lambda x: (rms_norm(x, 0) ** 2).mean(),
         lambda x: np.ones(()), ((4,),)),
    Case("rms norm", "through the Euclidean norm", lambda x: rms_norm(x, 0),
         lambda x: 2 * x / np.linalg.norm(x), ((4,),)),
    Case("rms norm", "three features and root three", lambda x: rms_norm(x, 0),
         lambda x: np.sqrt(3) * x / np.sqrt((x ** 2).sum()), ((3,),)),
    Case("rms norm", "commutes with an orthogonal map", lambda x, t: rms_norm(rotation(t) @ x),
         lambda x, t: rotation(t) @ rms_norm(x), ((2,), ())),
    Case("rms norm", "gain absorbed", lambda x, g, w: (rms_norm(x) * g) @ w,
         lambda x, g, w: rms_norm(x) @ np.diag(g) @ w, ((2, 3), (3,), (3, 2))),
    Case("rms norm", "reciprocal root", rms_norm,
         lambda x: x * (1e-5 + np.mean(x * x, axis=-1, keepdims=True)) ** -0.5, ((2, 3),)),
    Case("batch norm", "folded into the linear layer",
         lambda x, w, b, m, v: (x @ w + b - m) / np.sqrt(v + 1e-5),
         lambda x, w, b, m, v: x @ (w / np.sqrt(v + 1e-5)) + (b - m) / np.sqrt(v + 1e-5), FOLD_SHAPES),
    Case("batch norm", "columns are centred", lambda x: layer_norm(x.T).T.mean(axis=0),
         lambda x: np.zeros(2), ((3, 2),)),
    Case("variance", "two ways", lambda x: ((x - x.mean()) ** 2).mean(),
         lambda x: (x ** 2).mean() - x.mean() ** 2, ((5,),)),
    Case("variance", "by pairs", np.var, lambda x: ((x[:, None] - x[None]) ** 2).sum() / (2 * 16),
         ((4,),)),
    Case("variance", "Welford", welford, lambda x: Moments(x.mean(), x.var()), ((4,),)),
    Case("variance", "two samples merged", chan_merge,
         lambda x, y: (lambda z: (z.mean(), z.var()))(np.concatenate([x, y])), ((2,), (3,))),
    Case("variance", "ddof", lambda x: np.var(x, ddof=1), lambda x: np.var(x) * 4 / 3, ((4,),)),
    Case("variance", "standard deviation of a scaled shift", lambda x, c: np.std(4 * x + c),
         lambda x, c: 4 * np.std(x), ((3,), ())),
    Case("variance", "covariance two ways", lambda x, y: ((x - x.mean()) * (y - y.mean())).mean(),
         lambda x, y: (x * y).mean() - x.mean() * y.mean(), ((4,), (4,))),
    Case("variance", "weighted", lambda x, w: w @ (x - w @ x / w.sum()) ** 2 / w.sum(),
         lambda x, w: w @ x ** 2 / w.sum() - (w @ x / w.sum()) ** 2, ((3,), (3,))),
    Case("variance", "bias plus variance", lambda x, t: ((x - t) ** 2).mean(),
         lambda x, t: x.var() + (x.mean() - t) ** 2, ((4,), ())),
    Case("means", "of a matrix in two steps", lambda x: x.mean(), lambda x: x.mean(0).mean(), ((2, 3),)),
    Case("means", "running mean",
         lambda x: functools.reduce(lambda m, i: m + (x[i] - m) / (i + 1), range(4), 0), np.mean,
         ((4,),)),
    Case("means", "np.average with weights", lambda x, w: np.average(x, weights=w),
         lambda x, w: (x * w).sum() / w.sum(), ((3,), (3,))),
    Case("means", "harmonic mean of two", lambda x, y: 2 / (1 / x + 1 / y),
         lambda x, y: 2 * x * y / (x + y), ((), ())),
    Case("means", "geometric squared is arithmetic times harmonic", lambda x, y: np.sqrt(x * y) ** 2,
         lambda x, y: (x + y) / 2 * (2 / (1 / x + 1 / y)), ((), ())),
    Case("means", "of the deviations", lambda x: (x - x.mean()).mean(), lambda x: np.zeros(()), ((3,),)),
    Case("convex combinations", "two forms of a blend", lambda x, y, t: (1 - t) * x + t * y,
         lambda x, y, t: x + t * (y - x), ((3,), (3,), ())),
    Case("convex combinations", "softmax weights keep constants",
         lambda s, c: softmax(s) @ (c * np.ones(3)), lambda s, c: c, ((3,), ())),
    Case("convex combinations", "quadratic along a segment",
         lambda x, y, t: (t * x + (1 - t) * y) ** 2,
         lambda x, y, t: t * x ** 2 + (1 - t) * y ** 2 - t * (1 - t) * (x - y) ** 2, ((), (), ())),
    Case("convex combinations", "highway gate", lambda x, y, g: sigmoid(g) * x + sigmoid(-g) * y,
         lambda x, y, g: y + sigmoid(g) * (x - y), ((2,), (2,), (2,))),
]

ARRAYS = [
    Case("cumsum", "by a loop", np.cumsum, loop_cumsum, ((4,),)),
    Case("cumsum", "triangular matrix", np.cumsum, lambda x: np.tri(4) @ x, ((4,),)),
    Case("cumsum", "differences undo it", lambda x: np.diff(np.cumsum(x)), lambda x: x[1:], ((4,),)),
    Case("cumsum", "reversed", lambda x: np.cumsum(x[::-1])[::-1],
         lambda x: x.sum() - np.cumsum(x) + x, ((4,),)),
    Case("cumsum", "window sums", lambda x: np.convolve(x, np.ones(3), mode="valid"),
         lambda x: (lambda c: c[3:] - c[:-3])(np.concatenate([np.zeros(1), np.cumsum(x)])), ((5,),)),
    Case("cumsum", "log of a running product", lambda x: np.exp(np.cumsum(x)),
         lambda x: np.cumprod(np.exp(x)), ((3,),)),
    Case("cumsum", "summation by parts", lambda a, b: (a * b).sum(),
         lambda a, b: a[-1] * b.sum() - (np.diff(a) * np.cumsum(b)[:-1]).sum(), ((4,), (4,))),
    Case("einsum", "matrix product", lambda a, b: np.einsum("ij,jk->ik", a, b), np.matmul,
         ((2, 3), (3, 2))),
    Case("einsum", "bilinear form", lambda x, a, y: np.einsum("i,ij,j->", x, a, y),
         lambda x, a, y: x @ a @ y, ((2,), (2, 3), (3,))),
    Case("einsum", "trace and diagonal", lambda a: np.einsum("ii->", a), lambda a: np.diag(a).sum(),
         ((3, 3),)),
    Case("einsum", "batched", lambda a, b: np.einsum("bij,bkj->bik", a, b),
         lambda a, b: np.stack([p @ q.T for p, q in zip(a, b)]), ((2, 2, 3), (2, 2, 3))),
    Case("einsum", "outer product", lambda x, y: np.einsum("i,j->ij", x, y), np.outer, ((2,), (3,))),
    Case("einsum", "tensordot over one axis", lambda a, b: np.tensordot(a, b, axes=([2], [0])),
         lambda a, b: np.einsum("ijk,kl->ijl", a, b), ((2, 2, 3), (3, 2))),
    Case("einsum", "tensordot over two axes", lambda a, b: np.tensordot(a, b, axes=2),
         lambda a, b: (a * b).sum(), ((2, 3), (2, 3))),
    Case("einsum", "inner and dot", lambda a, b: np.inner(a, b), lambda a, b: np.dot(a, b.T),
         ((2, 3), (2, 3))),
    Case("matrix products", "three loops", loop_matmul, lambda a, b: a @ b, ((2, 3), (3, 2))),
    Case("matrix products", "matrix products: associative", lambda a, b, c: (a @ b) @ c,
         lambda a, b, c: a @ (b @ c), ((2, 3), (3, 2), (2, 4))),
    Case("matrix products", "sum of outer products", lambda a, b: a @ b,
         lambda a, b: sum(np.outer(a[:, k], b[k]) for k in range(3)), ((2, 3), (3, 2))),
    Case("matrix products", "low-rank adapter merged", lambda x, w, a, b: x @ w + 2 * (x @ a) @ b,
         lambda x, w, a, b: x @ (w + 2 * a @ b), ((2, 3), (3, 3), (3, 1), (1, 3))),
    Case("matrix products", "blocks of columns", lambda x, w: np.hstack([x @ w[:, :2], x @ w[:, 2:]]),
         lambda x, w: x @ w, ((2, 3), (3, 4))),
    Case("matrix products", "diagonal by broadcasting", lambda x, d: x @ np.diag(d),
         lambda x, d: x * d, ((2, 3), (3,))),
    Case("matrix products", "fourth matrix power", lambda a: np.linalg.matrix_power(a, 4),
         lambda a: (lambda s: s @ s)(a @ a), ((2, 2),)),
    Case("matrix products", "multi_dot", lambda a, b, c: np.linalg.multi_dot([a, b, c]),
         lambda a, b, c: a @ b @ c, ((2, 3), (3, 2), (2, 3))),
    Case("convolution", "commutes", np.convolve, lambda a, b: np.convolve(b, a), ((3,), (4,))),
    Case("convolution", "as a matrix of windows", lambda x, k: np.convolve(x, k[::-1], mode="valid"),
         lambda x, k: np.stack([x[i:i + 3] for i in range(3)]) @ k, ((5,), (3,))),
    Case("convolution", "separable filter", filter_2d,
         lambda x, a, b: (lambda r: b[0] * r[:, :2] + b[1] * r[:, 1:])(a[0] * x[:2] + a[1] * x[1:]),
         ((3, 3), (2,), (2,))),
    Case("broadcasting", "outer sum", lambda x, y: x[:, None] + y[None, :],
         lambda x, y: np.add.outer(x, y), ((3,), (2,))),
    Case("broadcasting", "column times row", lambda x, y: x.reshape(-1, 1) * y, np.outer, ((3,), (2,))),
    Case("broadcasting", "explicit tile", lambda a, b: a + b,
         lambda a, b: a + np.tile(b, (2, 1)), ((2, 3), (3,))),
    Case("broadcasting", "broadcast_to", lambda x: np.broadcast_to(x, (2, 3)).sum(axis=0),
         lambda x: 2 * x, ((3,),)),
    Case("reshape and stack", "flatten and fold", lambda a: a.reshape(3, 2).reshape(-1).reshape(2, 3),
         lambda a: a, ((2, 3),)),
    Case("reshape and stack", "split and concatenate", lambda x: np.concatenate(np.split(x, 3)[::-1]),
         lambda x: x.reshape(3, 2)[::-1].ravel(), ((6,),)),
    Case("reshape and stack", "stack and transpose", lambda x, y: np.stack([x, y], axis=1),
         lambda x, y: np.vstack([x, y]).T, ((3,), (3,))),
    Case("reshape and stack", "roll and concatenate", lambda x: np.roll(x, 1),
         lambda x: np.concatenate([x[-1:], x[:-1]]), ((4,),)),
    Case("reshape and stack", "patches by strides or by slices",
         lambda a: a.reshape(2, 2, 2, 2).transpose(0, 2, 1, 3).sum(axis=(2, 3)),
         lambda a: a[0::2, 0::2] + a[0::2, 1::2] + a[1::2, 0::2] + a[1::2, 1::2], ((4, 4),)),
    Case("reshape and stack", "flip twice", lambda a: np.flip(np.flip(a, 0), 1), lambda a: a[::-1, ::-1],
         ((2, 3),)),
    Case("sums in another order", "rows or columns first", lambda a: a.sum(axis=0).sum(),
         lambda a: a.sum(axis=1).sum(), ((3, 4),)),
    Case("sums in another order", "backwards", lambda x: sum(x), lambda x: sum(reversed(list(x))),
         ((6,),)),
    Case("sums in another order", "pairwise tree",
         lambda x: ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])), np.sum, ((8,),)),
    Case("sums in another order", "double sum of products", lambda x, y: x.sum() * y.sum(),
         lambda x, y: sum(a * b for a in x for b in y), ((3,), (3,))),
    Case("sums in another order", "diagonals",
         lambda a: sum(np.trace(a, offset=k) for k in range(-2, 3)), lambda a: a.sum(), ((3, 3),)),
    Case("sums in another order", "einsum over everything", lambda a: np.einsum("ijk->", a), np.sum,
         ((2, 2, 2),)),
]

PYTHON = [
    Case("decimals", "tenths", lambda x: 0.1 * x + 0.2 * x, lambda x: 0.3 * x, ((3,),)),
    Case("decimals", "grey stays grey", lambda x: 0.299 * x + 0.587 * x + 0.114 * x, lambda x: x,
         ((3,),)),
    Case("decimals", "quarter and three quarters", lambda x, y: 0.25 * (x - y) + 0.75 * (x + y),
         lambda x, y: x + 0.5 * y, ((2,), (2,))),
    Case("decimals", "small number on both sides", lambda x: (x + 1e-5) ** 2,
         lambda x: x ** 2 + 2e-5 * x + 1e-10, ((2,),)),
    Case("decimals", "percent up and down", lambda x: x * 1.1 * 0.9, lambda x: 0.99 * x, ((2,),)),
    Case("decimals", "third as a float on both sides", lambda x, y: (1 / 3) * (x + y),
         lambda x, y: (1 / 3) * x + (1 / 3) * y, ((2,), (2,))),
    Case("decimals", "temperature scales", lambda x: ((1.8 * x + 32) - 32) / 1.8, lambda x: x, ((2,),)),
    Case("decimals", "division by a decimal", lambda x: x / 0.1, lambda x: 10 * x, ((2,),)),
    Case("decimals", "decimal and fraction", lambda x: 0.125 * x, lambda x: x / 8, ((2,),)),
    Case("rounded floats", "one minus nine tenths", lambda x: (1 - 0.9) * x, lambda x: x - 0.9 * x,
         ((2,),)),
    Case("rounded floats", "third against division by three", lambda x: x * (1 / 3), lambda x: x / 3,
         ((2,),)),
    Case("rounded floats", "two over three", lambda x: 2 / 3 * x, lambda x: 2 * x / 3, ((2,),)),
    Case("irrational floats", "quarter turn", lambda t: np.sin(t + np.pi / 2), np.cos, ((2,),)),
    Case("irrational floats", "half turn", lambda t: np.cos(t + np.pi), lambda t: -np.cos(t), ((2,),)),
    Case("irrational floats", "exp2 by exp", np.exp2, lambda x: np.exp(x * np.log(2)), ((2,),)),
    Case("irrational floats", "log10 by log", lambda x: np.log10(x), lambda x: np.log(x) / np.log(10),
         ((2,),)),
    Case("irrational floats", "factor e", lambda x: np.e * np.exp(x), lambda x: np.exp(x + 1), ((2,),)),
    Case("irrational floats", "circle area by radius or diameter", lambda r: np.pi * r ** 2,
         lambda r: np.pi * (2 * r) ** 2 / 4, ((2,),)),
    Case("fractions", "thirds", lambda x: Fraction(1, 3) * x + Fraction(2, 3) * x, lambda x: x, ((2,),)),
    Case("fractions", "sixths of two letters", lambda x, y: x * Fraction(1, 2) - y * Fraction(1, 3),
         lambda x, y: (3 * x - 2 * y) / 6, ((2,), (2,))),
    Case("fractions", "Bernoulli sum", lambda x: sum(x * k ** 2 for k in range(1, 8)),
         lambda x: x * (Fraction(7 ** 3, 3) + Fraction(7 ** 2, 2) + Fraction(7, 6)), ((2,),)),
    Case("fractions", "numerators and denominators", lambda x: x * Fraction(6, 4).numerator / 2,
         lambda x: 1.5 * x, ((2,),)),
    Case("integer powers", "seventh power by squaring", lambda x: fast_power(x, 7), lambda x: x ** 7,
         ((3,),)),
    Case("integer powers", "negative power", lambda x: x ** -2.0, lambda x: 1 / (x * x), ((2,),)),
    Case("integer powers", "power of a negative base", lambda x: (-x) ** 3, lambda x: -(x ** 3),
         ((2,),)),
    Case("integer powers", "reciprocal", np.reciprocal, lambda x: x ** -1.0, ((2,),)),
    Case("integer powers", "exponents as an array", lambda x: x ** np.arange(4),
         lambda x: np.stack([1 + 0 * x, x, x * x, x * x * x]), ((),)),
    Case("integer powers", "zeroth power", lambda x: x ** 0, np.ones_like, ((2,),)),
    Case("boolean masks", "selected and left out", lambda x: x[MASK4].sum() + x[~MASK4].sum(), np.sum,
         ((4,),)),
    Case("boolean masks", "mask as zeros and ones", lambda x: x[MASK4].sum(), lambda x: x @ MASK4,
         ((4,),)),
    Case("boolean masks", "assignment through a mask",
         zero_masked, lambda x: np.where(MASK4, 0, x), ((4,),)),
    Case("boolean masks", "complementary conditions", lambda x, y: x * (x > y) + x * (x <= y),
         lambda x, y: x, ((3,), (3,))),
    Case("boolean masks", "masked mean", lambda x: (x * MASK4).sum() / MASK4.sum(),
         lambda x: x[[0, 2, 3]].mean(), ((4,),)),
    Case("boolean masks", "triu and tril", lambda a: np.triu(a) + np.tril(a, -1), lambda a: a,
         ((3, 3),)),
    Case("scatter", "np.add.at", lambda x: scatter_sum(x, [0, 1, 0, 1], 2),
         lambda x: np.stack([x[0] + x[2], x[1] + x[3]]), ((4,),)),
    Case("scatter", "one-hot product", lambda x: scatter_sum(x, [2, 0, 2, 1], 3),
         lambda x: np.eye(3)[[2, 0, 2, 1]].T @ x, ((4,),)),
    Case("scatter", "np.take and a permutation matrix", lambda x: np.take(x, PERM),
         lambda x: np.eye(4)[PERM] @ x, ((4,),)),
    Case("in place", "on a copy", in_place, lambda x, y: x * y, ((3,), (3,))),
    Case("in place", "out arguments", out_argument, lambda x, y: x * (y + 1), ((3,), (3,))),
    Case("in place", "halves swapped", swap_halves, lambda x: np.roll(x, 2), ((4,),)),
    Case("preallocated", "rows centred", preallocated, lambda x: x - x.mean(axis=1, keepdims=True),
         ((2, 3),)),
    Case("preallocated", "second differences", lambda x: stencil(x)[1:-1], lambda x: np.diff(x, n=2),
         ((5,),)),
    Case("preallocated", "filled by columns", fill_columns, lambda a, b: a @ b, ((2, 3), (3, 2))),
    Case("loops", "momentum unrolled", momentum,
         lambda g, b: np.array([sum(b ** (i - j) * g[j] for j in range(i + 1)) for i in range(3)]),
         ((3,), ())),
    Case("loops", "doubling prefix sums", prefix_scan, np.cumsum, ((5,),)),
    Case("loops", "Fibonacci recurrence", fibonacci, lambda a, b: 5 * a + 8 * b, ((), ())),
    Case("loops", "sorting network and its sum of squares", lambda x: (bubble(x) ** 2).sum(),
         lambda x: x @ x, ((3,),)),
    Case("loops", "telescoping sum", lambda x: sum(x[i + 1] - x[i] for i in range(4)),
         lambda x: x[-1] - x[0], ((5,),)),
    Case("loops", "gradient steps on a quadratic", lambda x, a: functools.reduce(
        lambda w, _: w - 0.1 * (w - a), range(3), x), lambda x, a: a + 0.729 * (x - a), ((2,), (2,))),
    Case("tuples", "divided and left over", lambda x, y: (x + y, x - y),
         lambda x, y: (y + x, -(y - x)), ((2,), (2,))),
    Case("tuples", "named moments", lambda x: Moments(x.mean(), (x ** 2).mean() - x.mean() ** 2),
         lambda x: Moments(mean=x.sum() / 3, var=((x - x.mean()) ** 2).sum() / 3), ((3,),)),
    Case("irrational floats", "value and gradient", lambda x: (np.log(np.cosh(x)), np.tanh(x)),
         lambda x: (np.logaddexp(x, -x) - np.log(2), np.sinh(x) / np.cosh(x)), ((2,),)),
    Case("tuples", "attention with its log-sum-exp",
         lambda s, v: (softmax(s) @ v, lse(s)),
         lambda s, v: (stable_softmax(s) @ v, stable_lse(s)), ((3,), (3, 2))),
    Case("tuples", "list of rows", lambda a: [row.sum() for row in a], lambda a: list(a.sum(axis=1)),
         ((2, 3),)),
    Case("constants", "power given as a constant", lambda x, n: x ** n,
         lambda x, n: math.prod([x] * n), ((2,),), {"n": 4}),
    Case("constants", "slope given as a constant", lambda x, a: np.where(x > 0, x, a * x),
         lambda x, a: relu(x) - a * relu(-x), ((3,),), {"a": 0.2}),
    Case("constants", "scale given as a constant", lambda q, k, scale: softmax(scale * (q @ k.T)),
         lambda q, k, scale: softmax((q * scale) @ k.T), ((2, 3), (2, 3)), {"scale": 0.125}),
    Case("constants", "axis given as a constant", lambda x, axis: x.sum(axis) / x.shape[axis],
         lambda x, axis: x.mean(axis=axis), ((2, 3),), {"axis": 1}),
]

DOUBTFUL = [
    Case("logarithms", "x log(1 - x^2)", lambda x: x * np.log(1 - x * x),
         lambda x: x * (np.log(1 - x) + np.log(1 + x)), ((3,),)),
    Case("logarithms", "log2(1 - x^2)", lambda x: np.log2(1 - x * x),
         lambda x: np.log2(1 - x) + np.log2(1 + x), ((3,),)),
    Case("logarithms", "z log(x^2 - 1)", lambda x, z: z * np.log(x * x - 1),
         lambda x, z: z * (np.log(x - 1) + np.log(x + 1)), ((2,), (2,))),
    Case("logarithms", "z log((x - y)^2)", lambda x, y, z: z * np.log((x - y) ** 2),
         lambda x, y, z: 2 * z * np.log(y - x), ((2,), (2,), (2,))),
    Case("maximum and minimum", "a larger one by 1e-17", lambda x: np.maximum(x, x + 1e-17), lambda x: x + 1e-17,
         ((2,),)),
    Case("ufunc arguments", "isfinite with where=",
         lambda x: x + np.isfinite(x, where=np.array([1, 0], bool), out=np.zeros(2, bool)),
         lambda x: x + np.array([1, 0]), ((2,),)),
    Case("ufunc arguments", "any with where=", lambda x: np.exp(x) + np.any(np.exp(x), where=False), np.exp, ((2,),)),
    Case("test on the dtype", "x for floats", lambda x: x if np.issubdtype(x.dtype, np.floating) else 2 * x,
         lambda x: x, ((3,),)),
    Case("test on the dtype", "x for the kind f", lambda x: x if x.dtype.kind == "f" else 2 * x, lambda x: x, ((3,),)),
    Case("ufunc arguments", "hypot of two entries", lambda x: np.hypot(x[0], x[1]), lambda x: np.hypot(x[1], x[0]),
         ((2,),)),
]

CASES: list[Case] = [
    *ALGEBRA, *MATRICES, *ROOTS, *PIECEWISE, *EXPONENTIALS, *NETWORKS, *GRADIENTS, *NORMALISATION,
    *ARRAYS, *PYTHON, *DOUBTFUL,
]
