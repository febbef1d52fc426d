"""What a layer refuses, and the sentence that says so."""

import numpy as np
import pytest
import torch

from attnmath import (
    Weights,
    linear,
    linear_jvp,
    linear_vjp,
    multihead,
    multihead_jvp,
    multihead_map,
    multihead_vjp,
    self_attention,
    self_attention_jvp,
    self_attention_vjp,
)

a, INF = np.ones, np.inf
X, Z = a((9, 7)), a((5, 6))
W = Weights(a((4, 7, 3)), a((2, 6, 3)), a((2, 6, 8)), a((4, 8, 7)))
OWN = W._replace(W_K=a((2, 7, 3)), W_V=a((2, 7, 8)))  # for self-attention


def w(**changes):
    return W._replace(**changes)


def of(x=X, z=Z, w=W, *others, **more):
    return lambda: multihead(x, z, w, *others, **more)


NEEDS_ARRAY = "needs to be an array (of NumPy, torch or another array-API library)"
NEEDS_WEIGHTS = "it needs to be Weights, a named tuple of W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O"
NONE = (None,) * 5

SHAPES = [
    ("linear: X has shape (3,); it needs (..., n, d)", lambda: linear(a(3), a((3, 4)))),
    ("linear: W has shape (4, 5); it needs (3, m) to match X of shape (2, 3)", lambda: linear(a((2, 3)), a((4, 5)))),
    ("linear: W has shape (3,); it needs (3, m) to match X of shape (2, 3)", lambda: linear(a((2, 3)), a(3))),
    ("linear: b has shape (4,); it needs (5,) or (1, 5) to match W of shape (3, 5)", lambda: linear(a((2, 3)), a((3, 5)), a(4))),
    ("linear: b has shape (2, 5); it needs (5,) or (1, 5) to match W of shape (3, 5)",
     lambda: linear(a((2, 3)), a((3, 5)), a((2, 5)))),
    ("linear_vjp: dY has shape (2, 5); it needs (2, 4), the shape of Y",
     lambda: linear_vjp(a((2, 5)), a((2, 3)), a((3, 4)))),
    ("linear_vjp: dY has shape (2, 4); it needs (6, 2, 4), the shape of Y",
     lambda: linear_vjp(a((2, 4)), a((6, 2, 3)), a((3, 4)))),
    ("linear_jvp: W_dot has shape (2, 3); it needs (3, 4), the shape of W",
     lambda: linear_jvp(None, a((2, 3)), None, a((2, 3)), a((3, 4)))),
    ("linear_jvp: b_dot has shape (4,); it needs to be None, as b is",
     lambda: linear_jvp(None, None, a(4), a((2, 3)), a((3, 4)))),
    ("multihead: X has shape (7,); it needs (..., n, d)", of(x=a(7))),
    ("multihead: Z has shape (6,); it needs (..., m, d_z)", of(z=a(6))),
    ("multihead: Z has shape (3, 5, 6); its leading axes (3,) need to broadcast against (2,), those of X",
     of(x=a((2, 9, 7)), z=a((3, 5, 6)))),
    ("multihead: W.W_Q has shape (4, 7, 3); it needs (H, 6, d_k) to match X of shape (9, 6)", of(x=a((9, 6)))),
    ("multihead: W.W_Q has shape (7, 3); it needs (H, 7, d_k) to match X of shape (9, 7)", of(w=w(W_Q=a((7, 3))))),
    ("multihead: W.W_Q has shape (0, 7, 3); it needs (H, 7, d_k) with H > 0 to match X of shape (9, 7)",
     of(w=w(W_Q=a((0, 7, 3))))),
    ("multihead: W.W_Q has shape (4, 7, 0); it needs (H, 7, d_k) with d_k > 0 to match X of shape (9, 7)",
     of(w=w(W_Q=a((4, 7, 0)), W_K=a((2, 6, 0))))),
    ("multihead: W.W_K has shape (2, 6, 3); it needs (G, 7, 3) to match Z of shape (5, 7) and W.W_Q of shape"
     " (4, 7, 3)", of(z=a((5, 7)))),
    ("multihead: W.W_K has shape (2, 6, 4); it needs (G, 6, 3) to match Z of shape (5, 6) and W.W_Q of shape"
     " (4, 7, 3)", of(w=w(W_K=a((2, 6, 4))))),
    ("multihead: W.W_K has shape (0, 6, 3); it needs (G, 6, 3) with G > 0 to match Z of shape (5, 6) and W.W_Q of"
     " shape (4, 7, 3)", of(w=w(W_K=a((0, 6, 3))))),
    ("multihead: W.W_K has shape (3, 6, 3); it needs (G, 6, 3) with G that divides H = 4, to match Z of shape (5, 6) and"
     " W.W_Q of shape (4, 7, 3)", of(w=w(W_K=a((3, 6, 3)), W_V=a((3, 6, 8))))),
    ("multihead: W.W_V has shape (4, 6, 8); it needs (2, 6, d_v) to match W.W_K of shape (2, 6, 3)", of(w=w(W_V=a((4, 6, 8))))),
    ("multihead: W.W_V has shape (2, 5, 8); it needs (2, 6, d_v) to match W.W_K of shape (2, 6, 3)", of(w=w(W_V=a((2, 5, 8))))),
    ("multihead: W.W_O has shape (4, 7, 8); it needs (4, 8, 7) to match W.W_Q of shape (4, 7, 3) and W.W_V of shape (2, 6, 8)", of(w=w(W_O=a((4, 7, 8))))),
    ("multihead: W.b_Q has shape (12,); it needs (4, 3) to match W.W_Q of shape (4, 7, 3)", of(w=w(b_Q=a(12)))),
    ("multihead: W.b_K has shape (4, 3); it needs (2, 3) to match W.W_K of shape (2, 6, 3)", of(w=w(b_K=a((4, 3))))),
    ("multihead: W.b_V has shape (2, 3); it needs (2, 8) to match W.W_V of shape (2, 6, 8)", of(w=w(b_V=a((2, 3))))),
    ("multihead: W.b_O has shape (8,); it needs (7,) to match X of shape (9, 7)", of(w=w(b_O=a(8)))),
    ("multihead: B has shape (5, 9); it needs one that broadcasts to (4, 9, 5), the shape of the scores", of(X, Z, W, a((5, 9)))),
    ("multihead: B has shape (2, 9, 5); it needs one that broadcasts to (4, 9, 5), the shape of the scores",
     of(X, Z, W, a((2, 9, 5)))),
    ("multihead: B has shape (3, 1, 9, 5); it needs one that broadcasts to (2, 4, 9, 5), the shape of the scores",
     of(a((2, 9, 7)), Z, W, a((3, 1, 9, 5)))),
    ("multihead: R has shape (5, 9); it needs one that broadcasts to (4, 9, 5), the shape of the scores", of(R=a((5, 9)))),
    ("multihead: gamma has shape (2,); it needs () or (4,) to match W.W_Q of shape (4, 7, 3)", of(gamma=a(2))),
    ("multihead: gamma has shape (4, 1, 1); it needs () or (4,) to match W.W_Q of shape (4, 7, 3)", of(gamma=a((4, 1, 1)))),
    ("multihead_vjp: dY has shape (9, 6); it needs (9, 7), the shape of Y",
     lambda: multihead_vjp(a((9, 6)), X, Z, W)),
    ("multihead_vjp: dY has shape (9, 7); it needs (2, 9, 7), the shape of Y",
     lambda: multihead_vjp(X, X, a((2, 5, 6)), W)),
    ("multihead_vjp: given.Q has shape (4, 3, 3); it needs (4, 9, 3) to match X of shape (9, 7) and W.W_Q of shape (4, 7, 3)",
     lambda: multihead_vjp(X, X, Z, W, given=multihead_map(X[:3], Z, W))),
    ("multihead_vjp: given.K has shape (2, 4, 3); it needs (2, 5, 3) to match Z of shape (5, 6) and W.W_K of shape (2, 6, 3)",
     lambda: multihead_vjp(X, X, Z, W, given=multihead_map(X, Z[:4], W))),
    ("multihead_vjp: given.P has shape (9, 5); it needs (4, 9, 5) to match X of shape (9, 7) and Z of shape (5, 6) and W.W_Q of shape (4, 7, 3)",
     lambda: multihead_vjp(X, X, Z, W, given=multihead_map(X, Z, W)._replace(P=a((9, 5))))),
    ("multihead_jvp: X_dot has shape (2, 7); it needs (9, 7), the shape of X",
     lambda: multihead_jvp(a((2, 7)), *NONE[1:], X, Z, W)),
    ("multihead_jvp: W_dot.W_V has shape (2, 6, 3); it needs (2, 6, 8), the shape of W.W_V",
     lambda: multihead_jvp(None, None, w(W_V=a((2, 6, 3))), None, None, X, Z, W)),
    ("multihead_jvp: W_dot.b_O has shape (7,); it needs to be None, as W.b_O is",
     lambda: multihead_jvp(None, None, w(b_O=a(7)), None, None, X, Z, W)),
    ("multihead_jvp: B_dot has shape (9, 5); it needs to be None, as B is",
     lambda: multihead_jvp(None, None, None, a((9, 5)), None, X, Z, W)),
    ("multihead_jvp: gamma_dot has shape (4,); it needs (), the shape of gamma",
     lambda: multihead_jvp(None, None, None, None, a(4), X, Z, W)),
    ("self_attention: W.W_K has shape (2, 6, 3); it needs (G, 7, 3) to match W.W_Q of shape"
     " (4, 7, 3)", lambda: self_attention(X, W)),
    ("self_attention: X has shape (7,); it needs (..., n, d)", lambda: self_attention(a(7), W)),
    ("self_attention_vjp: dY has shape (9, 6); it needs (9, 7), the shape of Y",
     lambda: self_attention_vjp(a((9, 6)), X, OWN)),
    ("self_attention_jvp: X_dot has shape (9, 6); it needs (9, 7), the shape of X",
     lambda: self_attention_jvp(a((9, 6)), None, None, None, X, OWN)),
]

VALUES = [
    ("linear: X of shape (2, 3) holds NaN or infinity; it needs finite numbers",
     lambda: linear(a((2, 3)) * np.nan, a((3, 4)))),
    ("linear: W of shape (3, 4) holds NaN or infinity; it needs finite numbers",
     lambda: linear(a((2, 3)), a((3, 4)) * INF)),
    ("linear: b of shape (4,) holds NaN or infinity; it needs finite numbers",
     lambda: linear(a((2, 3)), a((3, 4)), -INF * a(4))),
    ("multihead: X of shape (9, 7) holds NaN or infinity; it needs finite numbers", of(x=np.where(np.eye(9, 7), np.nan, X))),
    ("multihead: Z of shape (5, 6) holds NaN or infinity; it needs finite numbers", of(z=-INF * Z)),
    ("multihead: W.W_V of shape (2, 6, 8) holds NaN or infinity; it needs finite numbers", of(w=w(W_V=INF * W.W_V))),
    ("multihead: W.b_O of shape (7,) holds NaN or infinity; it needs finite numbers", of(w=w(b_O=np.nan * a(7)))),
    ("multihead: gamma of shape (4,) holds NaN or infinity; it needs finite numbers", of(gamma=a(4) * INF)),
    ("multihead: gamma is nan; it needs to be a finite number", of(gamma=np.nan)),
    ("multihead: B of shape (9, 5) holds NaN or +inf; its entries need to be numbers or -inf", of(X, Z, W, np.nan * a((9, 5)))),
    ("multihead: B of shape (5,) holds NaN or +inf; its entries need to be numbers or -inf", of(X, Z, W, INF * a(5))),
    ("multihead: B of shape (9, 5) holds only 0 and 1, as a boolean mask does; it needs 0 where a query may look and"
     " -inf where not (if it is a bias, B - 1 has the same weights)", of(X, Z, W, np.eye(9, 5))),
    ("multihead: R of shape (9, 5) holds NaN, +inf or a number below 0; its entries need to be 0 or 1 / (1 - rho)",
     of(R=-a((9, 5)))),
    ("self_attention: B of shape (9, 9) holds only 0 and 1, as a boolean mask does; it needs 0 where a query may look"
     " and -inf where not (if it is a bias, B - 1 has the same weights)", lambda: self_attention(X, OWN, np.tri(9))),
]

KINDS = [
    (f"linear: W is a NoneType; it {NEEDS_ARRAY}", lambda: linear(a((2, 3)), None)),
    (f"linear: b is a float; it {NEEDS_ARRAY}", lambda: linear(a((2, 3)), a((3, 4)), 1.0)),
    ("linear: W has dtype float32; it needs that of X, float64", lambda: linear(a((2, 3)), a((3, 4), "f"))),
    ("linear: W has dtype int64; it needs floating-point numbers", lambda: linear(a((2, 3)), a((3, 4), np.int64))),
    (f"multihead: X is a list; it {NEEDS_ARRAY}", of(x=X.tolist())),
    (f"multihead: Z is a NoneType; it {NEEDS_ARRAY}", of(z=None)),
    (f"multihead: W.W_K is a NoneType; it {NEEDS_ARRAY}", of(w=w(W_K=None))),
    (f"multihead: W is a tuple; {NEEDS_WEIGHTS}", of(w=tuple(W))),
    (f"multihead: W is a dict; {NEEDS_WEIGHTS}", of(w=W._asdict())),
    (f"multihead: W is a NoneType; {NEEDS_WEIGHTS}", of(w=None)),
    (f"multihead: W is a type; {NEEDS_WEIGHTS}", of(w=type(W))),
    (f"multihead: W is a MultiheadMap; {NEEDS_WEIGHTS}", of(w=multihead_map(X, Z, W))),
    (f"multihead_jvp: W_dot is a ndarray; {NEEDS_WEIGHTS.replace('Weights', 'Weights or None')}",
     lambda: multihead_jvp(None, None, X, None, None, X, Z, W)),
    ("multihead_vjp: given is a ndarray; it needs to be MultiheadMap or None, a named tuple of Q, K, V, P, O, Y",
     lambda: multihead_vjp(X, X, Z, W, given=X)),
    (f"multihead_vjp: dY is a NoneType; it {NEEDS_ARRAY}", lambda: multihead_vjp(None, X, Z, W)),
    ("multihead: Z has dtype float32; it needs that of X, float64", of(z=Z.astype("f"))),
    ("multihead: W.b_K has dtype float32; it needs that of X, float64", of(w=w(b_K=a((2, 3), "f")))),
    ("multihead_vjp: given.O has dtype float32; it needs that of X, float64",
     lambda: multihead_vjp(X, X, Z, W, given=multihead_map(X, Z, W)._replace(O=a((4, 9, 8), "f")))),
    ("multihead: W.W_Q is an array of torch, but X is one of numpy; all need to be of one library",
     of(w=w(W_Q=torch.ones(4, 7, 3)))),
    ("multihead: R has dtype float32; it needs that of X, float64", of(R=a((9, 5), "f"))),
    ("multihead: B is boolean; it needs numbers that are added to the scores: 0 where a query may look and -inf where"
     " not, as in bias(mask, like=X)", of(X, Z, W, a((9, 5)) > 0)),
    ("multihead: B has dtype int64; it needs floating-point numbers", of(X, Z, W, a((9, 5), np.int64))),
    ("multihead_jvp: W_dot.W_O has dtype float32; it needs that of X, float64",
     lambda: multihead_jvp(None, None, w(W_O=W.W_O.astype("f")), None, None, X, Z, W)),
]

CASES = [(ValueError, *case) for case in SHAPES + VALUES] + [(TypeError, *case) for case in KINDS]


@pytest.mark.parametrize("error, sentence, call", CASES, ids=[f"{i}" for i in range(len(CASES))])
def test_one_sentence_says_what_is_wrong(error, sentence, call):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == sentence


CALLS = {
    "linear": lambda x: linear(x, x), "linear_vjp": lambda x: linear_vjp(x, x, x),
    "linear_jvp": lambda x: linear_jvp(x, None, None, x, x),
    "multihead": lambda x: multihead(x, x, W), "multihead_map": lambda x: multihead_map(x, x, W),
    "multihead_vjp": lambda x: multihead_vjp(x, x, x, W), "multihead_jvp": lambda x: multihead_jvp(*NONE, x, x, W),
    "self_attention": lambda x: self_attention(x, OWN), "self_attention_vjp": lambda x: self_attention_vjp(x, x, OWN),
    "self_attention_jvp": lambda x: self_attention_jvp(*NONE[1:], x, OWN),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("wrong, error", [(a(()), ValueError), ([1.0], TypeError), (np.arange(3), TypeError)])
def test_every_function_says_its_own_name(name, wrong, error):
    with pytest.raises(error, match=f"^{name}: "):
        CALLS[name](wrong)


def test_a_bias_of_zeros_and_ones_may_be_said_to_be_one():
    """A constant added to all scores of a row changes no weight."""
    B = np.random.default_rng(0).integers(0, 2, (9, 5)).astype(float)
    rng = np.random.default_rng(1)
    x, z = rng.normal(size=X.shape), rng.normal(size=Z.shape)
    want = multihead_map(x, z, W, B + 1e-30).P
    assert abs(multihead_map(x, z, W, B - 1).P - want).max() < 1e-15
    between = B * np.array([1, 0.5, 1, 1, 1])
    for fine in (np.zeros((9, 5)), np.ones((9, 5)), np.where(B, 0, -INF), 2 * B, np.where(B, 1, 0.5), between):
        multihead(X, Z, W, fine)


def test_values_are_looked_at_only_where_there_are_values():
    x, z, t = torch.ones(9, 7).double(), torch.ones(5, 6).double(), W._make(None if p is None else torch.tensor(p) for p in W)
    B = torch.stack([torch.eye(9, 5), torch.full((9, 5), torch.nan)]).double()
    mapped = torch.func.vmap(lambda B: multihead(x, z, t, B))(B)
    assert mapped[0].isfinite().all() and mapped[1].isnan().all()
    with pytest.raises(ValueError, match="B of shape"):
        torch.func.grad(lambda x: multihead(x, z, t, B[1]).sum())(x)


@pytest.mark.parametrize("mixed", ["X", "Z", "W_V", "gamma", "R", "B"])
def test_real_and_complex_of_one_precision_go_together(mixed):
    for array in (np.asarray, torch.as_tensor):
        x = dict(X=array(X), Z=array(Z), gamma=0.5, R=array(a((9, 5))), B=array(np.zeros((9, 5))))
        t = W._make(None if p is None else array(p) for p in W)
        if mixed == "W_V":
            t = t._replace(W_V=t.W_V + 0j)
        else:
            x[mixed] = x[mixed] + 0j
        assert "complex128" in str(multihead(W=t, **x).dtype)
        assert "complex128" in str(multihead_vjp(x["X"], W=t, **x).dW.W_K.dtype)
