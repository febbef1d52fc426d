"""Every public derivative is proved, for several shapes; a mistake in each is refuted.

Functions are found by their names: one that comes later needs its shapes here.
"""

import functools
import inspect

import numpy as np
import pytest

import attnmath
from attnmath import MLAWeights, Weights, check_jvp, check_vjp
from attnmath._words.named_tuples import all_leaves, is_branch, put_together

rng = np.random.default_rng(0)
CHECKS = {"_vjp": check_vjp, "_jvp": check_jvp}
# Scores with roots in them: beside a bias, whether they are finite is no algebra. Proved without one, below.
ROOTS = "qk_norm_attention_vjp", "qk_norm_attention_jvp"
DERIVATIVES = [name for name in attnmath.__all__
               if name[-4:] in CHECKS and name not in ("check_vjp", "check_jvp", *ROOTS)]


def draw(*shape, hide=()):
    """Numbers of which only the shape is used, and where they are -inf."""
    x = rng.normal(size=shape)
    for place in hide:
        x[place] = -np.inf
    return x


def weights(H, G, d, d_z, d_k, d_v, biases="QKVO"):
    """The weights of a layer; a bias that is not named is None."""
    b = zip("QKVO", [(H, d_k), (G, d_k), (G, d_v), (d,)])
    return Weights(draw(H, d, d_k), draw(G, d_z, d_k), draw(G, d_z, d_v), draw(H, d_v, d),
                   *(draw(*shape) if name in biases else None for name, shape in b))


def latents(H, d, d_q, d_k, d_r, d_c, d_v):
    """The weights of a layer with latents."""
    shapes = (d, d_q), (H, d_q, d_k), (H, d_q, d_r), (d, d_c), (H, d_c, d_k), (H, d_c, d_v), (d, d_r), (H, d_v, d)
    return MLAWeights(*(draw(*shape) for shape in shapes))


SCORES = [
    [draw(2, 5)],
    [draw(4, 3, hide=[(0, 1), (2,)])],
    [draw(2, 3, 4, hide=[(1, 0), (0, 2, slice(1, 4))])],
    [draw(1)],
    [draw(3, 2, hide=[(1, 0)])],
]
HEADS = [  # Q, K, V, B, gamma
    [draw(2, 4), draw(3, 4), draw(3, 5)],
    [draw(4, 2), draw(3, 2), draw(3, 1), draw(4, 3, hide=[(0, 1), (2,)]), draw()],
    [draw(5, 1, 2, 3), draw(4, 3), draw(5, 6, 4, 1), draw(5, 1, 1, 4, hide=[(1, 0, 0, 2), (3,)]), draw(2, 1)],
    [draw(2, 3, 1), draw(2, 5, 1), draw(5, 4), draw(1, 5, hide=[(0, 3)])],
    [draw(3, 1), draw(2, 1), draw(2, 3), draw(3, 2, hide=[(1, 1), (2,)]), draw(2)],
]
FACTORS = [(3,), (4, 3), (2, 4), (2, 1, 5), (3, 2)]  # shapes of R
TILES = [2, 3, 1, 2, 2]  # of the heads
OUTPUTS = [draw(2, 5), draw(4, 1), draw(5, 6, 2, 1), draw(2, 3, 4)]  # dO of the heads, the last left out
PARTS = [  # O_a, L_a, O_b, L_b
    [draw(3, 2), draw(3), draw(3, 2), draw(3)],
    [draw(2, 3, 4), draw(2, 3, hide=[(0, 1), (1, 2)]), draw(2, 3, 4), draw(2, 3, hide=[(0, 1), (1, 0)])],
    [draw(4, 1), draw(4, hide=[1]), draw(4, 1), draw(4, hide=[2])],
]
LAYERS = [  # X, Z, W, B, gamma
    ([draw(3, 2), draw(4, 5), weights(2, 2, 2, 5, 1, 6)], {}),
    ([draw(2, 4, 3), draw(2, 5, 2), weights(4, 2, 3, 2, 6, 1, "QV"), draw(4, 5, hide=[(0, 1), (2,)]), draw()],
     {"R": (5,)}),
    ([draw(2, 3, 1), draw(4, 5), weights(4, 1, 1, 5, 2, 6, ""), draw(2, 1, 1, 4, hide=[(0, 0, 0, 3), (1,)])], {}),
    ([draw(5, 2), draw(3, 1), weights(6, 3, 2, 1, 4, 6, "KO"), draw(6, 1, 3, hide=[(1, 0, 2)]), draw(6)],
     {"R": (6, 5, 3)}),
    ([draw(3, 2), draw(2, 1), weights(2, 1, 2, 1, 1, 3), draw(3, 2, hide=[(1, 1), (2,)]), draw(2)], {"R": (3, 2)}),
]
SELVES = [  # X, W, B, gamma
    ([draw(3, 2), weights(2, 2, 2, 2, 1, 4)], {}),
    ([draw(2, 4, 3), weights(4, 2, 3, 3, 1, 2, "KO"), draw(4, 4, hide=[(0, 1), (2,)]), draw()], {"R": (4, 1)}),
    ([draw(5, 1), weights(3, 1, 1, 1, 2, 4, ""), draw(3, 5, 5, hide=[(1, 4)]), draw(3)], {"R": (3, 5, 5)}),
    ([draw(3, 2), weights(2, 1, 2, 2, 1, 3), draw(2, 1, 3, hide=[(0, 0, 1), (1,)]), draw(2)], {"R": (3, 1)}),
]
CAPPED = [[*x[:3], c, *x[3:]] for x, c in zip(HEADS, [2.0, draw(), 0.5, draw(2, 1, 1), draw()])]
SUNK = [[*x[:3], sigma, *x[3:]] for x, sigma in zip(HEADS, [draw(), 0.5, draw(6, 2), draw(2), draw()])]
CASES = {  # arguments, then what is constant: a shape of factors, or a number
    "softmax": [([*x, tau], {}) for x, tau in zip(SCORES, [0.5, draw(3), draw(3, 1), 2.0, draw(3, 1)])],
    "logsumexp": [(x, {}) for x in SCORES],
    "log_softmax": [(x, {}) for x in SCORES],
    "cross_entropy": [([draw(2, 5)], {"E": (2, 5)}), ([draw(3)], {"E": (3,)}), ([draw(2, 3, 4)], {"E": (2, 3, 4)})],
    "attention": [(x, {}) for x in HEADS],
    "dropout_attention": [(x, {"R": R}) for x, R in zip(HEADS, FACTORS)] + [(HEADS[1], {})],
    "flash_attention": [(x, {"R": R, "tile": t}) for x, R, t in zip(HEADS, FACTORS, TILES)] + [(HEADS[1], {})],
    "attention_vjp": [([dO, *x], {}) for dO, x in zip(OUTPUTS, HEADS)],
    "flash_attention_vjp": [([dO, *x], {"R": R, "tile": t}) for dO, x, R, t in zip(OUTPUTS, HEADS, FACTORS, TILES)],
    "capped_attention": [(x, {}) for x in CAPPED],
    "sink_attention": [(x, {}) for x in SUNK],
    "sigmoid_attention": [(x, {}) for x in HEADS],
    "sink_softmax": [([draw(2, 5), draw()], {}), ([draw(2, 4, 3, hide=[(0, 0, 1)]), draw(2, 5)], {}),
                     ([draw(2, 3, 4), draw(2)], {})],
    "rms_norm": [([draw(2, 3), draw(3)], {"epsilon": 1e-6}), ([draw(4), draw(4)], {"epsilon": 0.25}),
                 ([draw(2, 1, 5), draw(5)], {"epsilon": 1e-6})],
    "softcap": [([draw(2, 3), 2.0], {}), ([draw(4), draw()], {}), ([draw(2, 4, 3), draw(4, 1)], {})],
    "rotary": [([draw(3, 4), draw(2)], {"positions": np.array([0, 2, 5]), "layout": "interleaved"}),
               ([draw(3, 6), draw(2)], {"layout": "half_split"}), ([draw(2, 3, 2), draw(1)], {"layout": "half_split"})],
    "alibi": [([draw()], {"n": 2, "m": 3}), ([draw(2)], {"n": 4, "m": 3}),
              ([draw(3, 2)], {"n": 2, "m": 5, "align": "upper_left"})],
    "table_bias": [([draw(3)], {"buckets": np.array([[0, 1, 2], [1, 1, 0]])}),
                   ([draw(2, 4)], {"buckets": np.array([[3], [0], [1]])}),
                   ([draw(2, 1, 3)], {"buckets": np.array([[0, 1], [2, 1], [0, 0]])})],
    "merge": [(x, {}) for x in PARTS],
    "multihead": LAYERS,
    "self_attention": SELVES,
    "latent_attention": [  # X, W, theta, B, gamma
        ([draw(2, 1), latents(2, 1, 2, 1, 2, 3, 1), draw(1)], {"layout": "interleaved"}),
        ([draw(2, 2), latents(1, 2, 1, 2, 4, 1, 1), draw(1), draw(1, 2, 2, hide=[(0, 0, 1)])], {}),
        ([draw(2, 1), latents(1, 1, 2, 1, 2, 1, 2), draw(1), draw(1, 2, 2, hide=[(0, 0, 1)]), draw(1)], {})],
    "linear": [([draw(2, 3), draw(3, 4), draw(4)], {}), ([draw(4, 2, 5), draw(5, 1), draw(1, 1)], {}),
               ([draw(2, 1, 4, 3), draw(3, 5)], {}), ([draw(2, 3), draw(3, 1), draw(1)], {})],
    "layer_norm": [([draw(2, 3), draw(3), draw(3)], {"epsilon": 1e-5}), ([draw(4), draw(4), draw(4)], {"epsilon": 0.25}),
                   ([draw(2, 1, 5), draw(5), draw(5)], {"epsilon": 1e-5})],
    "silu": [([draw(3)], {}), ([draw(2, 4)], {}), ([draw(2, 1, 5)], {})],
    "mlp": [([draw(2, 3), draw(3, 4), draw(4), draw(4, 3), draw(3)], {}),
            ([draw(3, 2, 1), draw(1, 4), None, draw(4, 1), draw(1)], {}),
            ([draw(2, 4), draw(4, 3), draw(3), draw(3, 4), None], {}),
            ([draw(3, 2), draw(2, 1), draw(1), draw(1, 2), draw(2)], {})],
}


def parts_of(derivative):
    """The check, the derivative, its function, and the cases of it."""
    name, kind = derivative[:-4], derivative[-4:]
    cases = [(x, {k: draw(*shape) if isinstance(shape, tuple) else shape for k, shape in constants.items()})
             for x, constants in CASES[name]]
    return CHECKS[kind], getattr(attnmath, derivative), getattr(attnmath, name), cases


def test_every_derivative_has_its_shapes():
    assert {name[:-4] for name in DERIVATIVES} == CASES.keys()
    assert all(len(cases) >= 3 for cases in CASES.values())
    for name, cases in CASES.items():
        shapes = [np.shape(part) for x, _ in cases for part in leaves(x) if np.ndim(part) > 1]
        assert name in ("self_attention", "latent_attention") or all(n != m or n == 1 for *_, n, m in shapes)


@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_a_derivative_is_proved(derivative):
    check, found, f, cases = parts_of(derivative)
    for x, constants in cases:
        proof = check(found, f, *x, exact=True, **constants)
        assert proof.entries and proof.error < 1e-20


def test_scores_with_roots_are_proved_without_a_bias():
    x = [draw(2, 4), draw(3, 4), draw(3, 5), draw(4), draw(4)]
    f, vjp, jvp = (getattr(attnmath, f"qk_norm_attention{end}") for end in ("", "_vjp", "_jvp"))
    assert check_vjp(vjp, f, *x, exact=True).entries
    with pytest.raises(AssertionError, match="^refuted: dQ differs"):
        check_vjp(added_to(vjp, 0), f, *x, exact=True)
    with pytest.raises(AssertionError, match="^refuted"):
        check_vjp(in_reverse(vjp), f, *x, exact=True)
    assert check_jvp(jvp, f, *x, None, None, exact=True).entries


def leaves(x):
    """The fields of all arguments or gradients, one after the other."""
    return all_leaves([""] * len(x), x, x)[1]


def with_more(y, term):
    """y, or the first part of it, with a small multiple of the term added to its last entry."""
    if is_branch(y):
        return y._replace(**{y._fields[0]: with_more(y[0], term)})
    y = y + 0 * term
    y[y.ndim * (-1,)] += term / 2**30
    return y


def added_to(vjp, k):
    """vjp with something in one entry of its k-th gradient."""
    @functools.wraps(vjp)
    def wrong(*x, **constants):
        found = vjp(*x, **constants)
        branches = found if isinstance(found, tuple) else (found,)
        parts = leaves(branches)
        parts[k] = with_more(parts[k], x[0].sum())
        branches = put_together(parts, branches)
        return found._make(branches) if is_branch(found) else branches[0]
    return wrong


def added_of(jvp, k, count):
    """jvp with something of the k-th tangent, where all arguments have `count`."""
    def wrong(*x, **constants):
        return with_more(jvp(*x, **constants), leaves(x[:count])[k].sum())
    return wrong


def in_reverse(function):
    """What the function returns, the first part of it in reverse; a number twice."""
    @functools.wraps(function)
    def wrong(*x, **constants):
        found = function(*x, **constants)
        y = found[0] if isinstance(found, tuple) else found
        y = y[::-1] if y.ndim else 2 * y
        return found._replace(**{found._fields[0]: y}) if is_branch(found) else y
    return wrong


@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_a_small_term_anywhere_is_refuted(derivative):
    """In the last entry of each gradient; of each tangent, in the last entry of the output's."""
    check, found, f, cases = parts_of(derivative)
    x, constants = cases[-1]
    names, parts = all_leaves([f"d{name}" for name in inspect.signature(f).parameters], x, x)
    if derivative.endswith("_vjp_vjp"):  # the gradient for dO is the tangent of O, and so on
        names = ["O_dot", *(f"{name}_dot" for name in names[1:])]
    for k, name in enumerate(names):
        if parts[k] is None:
            continue
        is_vjp = check is check_vjp
        wrong = added_to(found, k) if is_vjp else added_of(found, k, len(x))
        with pytest.raises(AssertionError, match=f"^refuted: {name if is_vjp else '[YO]_dot'} differs( at|$)"):
            check(wrong, f, *x, exact=True, **constants)


@pytest.mark.parametrize("derivative", DERIVATIVES)
def test_another_order_is_refuted(derivative):
    check, found, f, cases = parts_of(derivative)
    x, constants = cases[-1]
    with pytest.raises(AssertionError, match="^refuted"):
        check(in_reverse(found), f, *x, exact=True, **constants)
