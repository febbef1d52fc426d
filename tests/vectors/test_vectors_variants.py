"""The vectors of today's attention: torch's autograd agrees in every format, and what forgets a factor does not."""

import hashlib
import json
from decimal import localcontext
from functools import cache

import flint
import numpy as np
import pytest
import torch

from attnmath._vectors.exact import EXACTLY, rounded
from attnmath._vectors.files import TENSOR_ROLES, digest_of_tensors, tensors_of, write
from attnmath._vectors.numbers import in_digits
from attnmath._vectors.variants import VARIANTS, WEIGHTS

FORMATS = {x: getattr(torch, x) for x in ("float64", "float32", "bfloat16", "float16")}
BY_NAME = {v.name: v for v in VARIANTS}
NUMBERS = "aab633c2aaee5f35"  # of all of them in all formats: the same on every machine


@cache
def values(name, dtype):
    return {k: x.values for k, x in tensors_of(BY_NAME[name], dtype).items()}


def with_gradient_of(value, other):
    """One number forward, another's derivative back."""
    return value.detach() + other - other.detach()


def turned(x, theta, first, layout, mistake, sign=1):
    wide = torch.promote_types(x.dtype, torch.float32)
    r, places = theta.shape[0], torch.arange(first, first + x.shape[-2], dtype=wide)
    angle = sign * places[:, None] * theta.to(wide)
    c, s = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
    half = x.shape[-1] // 2 if mistake == "the pairs of a whole turn" else r
    a, b = (slice(0, r), slice(half, half + r)) if layout == "half_split" else (slice(0, 2 * r, 2), slice(1, 2 * r, 2))
    y = x.clone()
    y[..., a], y[..., b] = x[..., a] * c - x[..., b] * s, x[..., a] * s + x[..., b] * c
    return y


def rotation(v, x, mistake):
    """What turns queries or keys; written from the README that comes with the vectors, as all here."""
    layout = v.layout
    if mistake == "the other layout":
        layout = {"half_split": "interleaved", "interleaved": "half_split"}[layout]
    theta = x["theta"].detach() if mistake == "no gradient of the frequencies" else x["theta"]

    def turn(y, first):
        z = turned(y, theta, first, layout, mistake)
        back = turned(y, theta, first, layout, mistake, -1)
        return with_gradient_of(z, back) if mistake == "turned on, not back" else z

    return turn


def normed(y, gain, epsilon, mistake):
    root = ((y * y).mean(-1, keepdim=True) + epsilon).sqrt()
    z = y / (root.detach() if mistake == "the root is a constant" else root)
    return z if mistake == "no gain" else gain * z


def weighed(v, x, A, mistake):
    """The weights of the keys."""
    if "sigmoid" in v.pieces:
        P = A.sigmoid()
        if mistake == "a row sum is subtracted":
            return with_gradient_of(P, A.softmax(-1))
        return with_gradient_of(P, P.detach() * A.nan_to_num(neginf=0)) if mistake == "no factor 1 - P" else P
    if "sinks" not in v.pieces or mistake == "no sink":
        return torch.nan_to_num(A.softmax(-1))
    sinks = x["sigma"].detach() if mistake == "no gradient of the sinks" else x["sigma"]
    column = sinks[:, None, None].expand(*A.shape[:-1], 1)
    if mistake == "a sink for all queries, not each":
        column = torch.where(torch.arange(A.shape[-2])[:, None] > 0, -torch.inf, column)
    return torch.cat((A, column), -1).softmax(-1)[..., :-1]


def capped(X, c, mistake):
    Y = c * torch.tanh(X / c)
    return {"no cap": X, "no slope of the cap": with_gradient_of(Y, X)}.get(mistake, Y)


def of_head(v, x, keep, gamma, mistake):
    (_, H, G, n, m, *_), Q, K = v.sizes, x["Q"], x["K"]
    met = 0 if mistake == "the first query at the first key" else m - n
    if "norm" in v.pieces:
        Q, K = (normed(y, x[a], v.said["norm"], mistake) for y, a in ((Q, "alpha_Q"), (K, "alpha_K")))
    if v.layout:
        turn = rotation(v, x, mistake)
        Q, K = turn(Q, met), K if mistake == "keys stay" else turn(K, 0)
    K, V = (y.repeat_interleave(H // G, 1) for y in (K, x["V"]))
    A = gamma * (Q @ K.mT)
    if "cap" in v.pieces:
        A = capped(A, x["c"], mistake)
    distance = (torch.arange(m) - torch.arange(met, met + n)[:, None]).abs().to(A.dtype)
    if "slopes" in v.pieces:
        A = A - (x["eta"][:, None, None] * distance if mistake != "one slope" else x["eta"][0] * distance)
    if "table" in v.pieces:
        buckets = x["buckets"].long()
        beta = x["beta"].detach() if mistake == "no gradient of the table" else x["beta"]
        A = A + beta[:, buckets.clamp(max=3) if mistake == "one direction" else buckets]
    A = A.masked_fill(~keep, -torch.inf)
    return weighed(v, x, A, mistake) @ V


def of_layer(v, x, keep, gamma, mistake):
    q, c = x["X"] @ x["W_DQ"], x["X"] @ x["W_DKV"]
    up = {k: y[:, None] @ x[f"W_{k}"] for k, y in (("UQ", q), ("UK", c), ("UV", c), ("QR", q))}
    turn, own = rotation(v, x, mistake), (x["X"] @ x["W_KR"])[:, None]
    own = own.detach() if mistake == "no gradient of the shared key" else own
    own = own if mistake == "keys stay" else turn(own, 0)
    A = gamma * (up["UQ"] @ up["UK"].mT)
    if mistake != "no turned part":
        A = A + gamma * (turn(up["QR"], 0) @ own.mT)
    O = A.masked_fill(~keep, -torch.inf).softmax(-1) @ up["UV"]
    return (O @ x["W_O"]).sum(1)


def by_autograd(v, x, dtype, mistake=None):
    """The output and all gradients by torch, in this format."""
    learned = {k: torch.tensor(y, dtype=dtype).requires_grad_() for k, y in x.items() if f"d{k}_off" in x}
    given = learned | {k: torch.tensor(x[k], dtype=dtype) for k in ("dO", "dY") if k in x}
    given |= {"buckets": torch.tensor(x["buckets"])} if "buckets" in x else {}
    n, m = v.sizes[3:5]
    keep = torch.ones(n, m, dtype=torch.bool).tril(m - n) if v.causal else torch.tensor(x.get("keep", np.ones((n, m), bool)))
    if mistake == "one key more":
        keep = keep | keep.roll(-1, -1)
    gamma = torch.tensor(v.scale_in(str(dtype).removeprefix("torch.")), dtype=dtype).requires_grad_()
    f = of_layer if "latent" in v.pieces else of_head
    O = f(v, given, keep, gamma, mistake)
    letter = "Y" if "latent" in v.pieces else "O"
    grads = torch.autograd.grad(O, [*learned.values(), gamma], given[f"d{letter}"], allow_unused=True, materialize_grads=True)
    found = {letter: O.detach()} | dict(zip((f"d{k}" for k in (*learned, "gamma")), grads))
    return {k: y.double().numpy() for k, y in found.items()}


def farthest(name, form, dtype, mistake=None):
    """By how much of what is allowed in the file autograd in a dtype differs, at most."""
    x, found = values(name, form), {}
    for k, y in by_autograd(BY_NAME[name], x, FORMATS[dtype], mistake).items():
        assert y.shape == x[k].shape and np.isfinite(x[k]).all()
        found[k] = float((abs(y - x[k]) / x[f"{k}_off"]).max())
    assert found.keys() == {k.removesuffix("_off") for k in x if k.endswith("_off")}
    return max(found.values())


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", BY_NAME)
def test_autograd_agrees_in_the_format(name, dtype):
    assert farthest(name, dtype, dtype) <= 1


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", BY_NAME)
def test_autograd_in_float64_is_nearer(name, dtype):
    assert farthest(name, dtype, "float64") <= 0.3


MISTAKES = {
    "softcap": ["no cap", "no slope of the cap"],
    "cap_in_window": ["no cap", "no slope of the cap", "one key more", "keys stay"],
    "sinks": ["no sink", "no gradient of the sinks", "a sink for all queries, not each"],
    "sinks_padding": ["no sink", "no gradient of the sinks"],
    "sinks_in_window": ["no sink", "one key more", "turned on, not back"],
    "rotary_halves": ["the other layout", "keys stay", "turned on, not back", "no gradient of the frequencies"],
    "rotary_interleaved": ["the other layout", "keys stay", "turned on, not back"],
    "rotary_part": ["the other layout", "the pairs of a whole turn"],
    "rotary_part_interleaved": ["the other layout"],
    "rotary_fewer_queries": ["the first query at the first key", "turned on, not back"],
    "normed_and_rotated": ["no gain", "the root is a constant", "the first query at the first key"],
    "alibi_slopes": ["one slope"],
    "table": ["one direction", "no gradient of the table"],
    "qk_norm": ["no gain", "the root is a constant"],
    "sigmoid": ["a row sum is subtracted", "no factor 1 - P"],
    "latent": ["no turned part", "keys stay", "no gradient of the shared key", "turned on, not back", "the other layout"],
    "latent_interleaved": ["the other layout"],
}


@pytest.mark.parametrize(("name", "mistake"), [(name, x) for name, all_of_it in MISTAKES.items() for x in all_of_it])
def test_what_forgets_a_factor_is_refused(name, mistake):
    assert farthest(name, "float32", "float32", mistake) > 100
    assert farthest(name, "bfloat16", "float64", mistake) > 1


def test_each_variant_has_a_mistake():
    assert MISTAKES.keys() == BY_NAME.keys()


@pytest.mark.parametrize("name", BY_NAME)
def test_fifty_digits_less_give_the_same_numbers(name):
    v = BY_NAME[name]
    with localcontext(EXACTLY) as context:
        context.prec = 100
        found = v.answer({k: in_digits(x) for k, x in v.all_given("float64").items()})
    for k, x in found.items():
        assert np.array_equal(rounded(np.asarray(x), "float64"), values(name, "float64")[k]), k


@pytest.mark.parametrize("f", ["cos", "sin", "tanh", "exp", "sqrt"])
def test_functions_of_decimals(f):
    points = np.array([0.0, 2.0**-40, 0.375, 1.0, 11.25, 14.0] + [-0.375, -11.25] * (f != "sqrt"))
    with localcontext(EXACTLY):
        found = getattr(np, f)(in_digits(points))
    before, flint.ctx.prec = flint.ctx.prec, 700
    try:
        for x, y in zip(points, found):
            true = getattr(flint.arb(x), f)()
            assert abs(flint.arb(str(y)) - true) < flint.arb(10) ** -138 * (abs(true) + (abs(true) == 0))
    finally:
        flint.ctx.prec = before


def test_the_numbers_are_the_same_everywhere():
    total = hashlib.sha256()
    for v in VARIANTS:
        for dtype in FORMATS:
            total.update(digest_of_tensors(tensors_of(v, dtype)).encode())
    assert total.hexdigest().startswith(NUMBERS)


@pytest.mark.parametrize("v", VARIANTS, ids=BY_NAME)
def test_each_learned_input_has_its_gradient_and_each_tensor_a_role(v):
    found = tensors_of(v, "float32")
    unlearned = {"keep", "buckets", "dO", "dY"}
    inputs = {k for k in found if TENSOR_ROLES.get(k) == "input"} - unlearned
    gradients = {k for k in found if TENSOR_ROLES.get(k) == "gradient"}
    assert gradients == {f"d{k}" for k in inputs} | {"dgamma"}
    assert {k for k in found if not k.endswith("_off")} <= TENSOR_ROLES.keys()
    assert "latent" not in v.pieces or inputs == {"X", "theta", *WEIGHTS}


def test_the_index_says_the_pieces_and_that_what_is_allowed_is_measured(tmp_path):
    write(tmp_path, "npz", ["float32"], [BY_NAME["normed_and_rotated"], BY_NAME["table"]])
    first, second = json.loads((tmp_path / "index.json").read_text("utf-8"))["vectors"]
    assert first["pieces"] == {"norm": 2.0**-20, "rotary": "half_split"} and second["pieces"] == {"table": True}
    assert first["allowed"] == second["allowed"] == "measured"
    assert second["tensors"]["buckets"] == {"role": "input", "dtype": "int32", "shape": [4, 7]}
    readme = (tmp_path / "README.txt").read_text("ascii")
    assert all(f"\n    {piece} " in readme for v in VARIANTS for piece in v.said)
