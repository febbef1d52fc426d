"""The layer against automatic differentiation of PyTorch's own layer, and of PyTorch's attention.

Every configuration is drawn: sizes that all differ, a batch or none, masks of every kind, biases.
An error is relative to the magnitude of what is summed up for the entry that it is in.
"""

import copy

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.attention import SDPBackend, sdpa_kernel

from attnmath import multihead_map, multihead_vjp, self_attention, self_attention_vjp
from attnmath.torch import weights_from
from torch_layer import each, excess, flat, magnitudes, reference, sum_over, weights

ALLOWED = 1e-12
CONFIGURATIONS = 1_100  # of each of the two kinds
drawn = settings(max_examples=CONFIGURATIONS, derandomize=True, deadline=None, database=None)
seeds = st.integers(0, 2**32 - 1)
LIBRARIES = {"numpy": np.asarray, "torch": torch.as_tensor}


def hide(rng, B, share):
    """B with a share of its entries, and some whole rows, at -inf."""
    B[rng.random(B.shape) < share] = -np.inf
    B[rng.random(B.shape[:-1]) < share / 3] = -np.inf
    return B


@st.composite
def layers(draw):
    """Any layer: dY, X, Z, W, B, gamma, R; the sizes; the library that it is computed in."""
    G = draw(st.integers(1, 3))
    H = G * draw(st.integers(1, 3))
    sizes = n, m, d, d_z, d_k, d_v, *batch = draw(st.permutations([s for s in range(1, 11) if s not in (G, H)]))[:8]
    rng = np.random.default_rng(draw(seeds))
    W = weights(rng, H, G, d, d_z, d_k, d_v, draw(st.tuples(*[st.booleans()] * 4)), 10 ** draw(st.floats(-1, 1)))
    batches = [batch[draw(st.integers(0, 2)) :] for _ in "XZ"]
    X, Z = (rng.normal(size=(*lead, *own)) for lead, own in zip(batches, [(n, d), (m, d_z)]))
    scores = *np.broadcast_shapes(*batches), H, n, m
    B = R = None
    if draw(st.booleans()):
        shape = [1 if draw(st.booleans()) else s for s in scores][draw(st.integers(0, len(scores) - 1)) :]
        B = hide(rng, rng.normal(size=shape), draw(st.sampled_from([0, 0.3])))
    if draw(st.booleans()):
        R = (rng.random(scores) < 0.8) / 0.8
    gamma = draw(st.sampled_from([None, 0.7, rng.normal(size=()), rng.normal(size=H)]))
    dY = rng.normal(size=(*scores[:-3], n, d)) * 10 ** draw(st.floats(-6, 3))
    return (dY, X, Z, W, B, gamma, R), (H, G, *sizes), draw(st.sampled_from(sorted(LIBRARIES)))


def test_multihead_vjp_agrees_with_automatic_differentiation_of_pytorchs_attention():
    seen, errors = [], []

    @drawn
    @given(layers())
    def agrees(problem):
        *x, R = problem[0]
        Y, want = reference(*x, R)
        *arrays, mask = each(LIBRARIES[problem[2]], [*x, R])
        map_ = multihead_map(*arrays[1:], R=mask)
        assert abs(np.asarray(map_.Y) - Y).max() <= 1e-13 * (1 + abs(Y).max())
        sizes = magnitudes(*x, R)
        for given_ in (map_, None) if R is None else (map_,):
            errors.append(excess(flat(multihead_vjp(*arrays, R=mask, given=given_)), want, sizes))
            assert errors[-1] <= ALLOWED
        seen.append(problem)

    agrees()
    print(f"{len(seen)} configurations, largest error {max(errors):.1e} of the magnitude")
    assert len(seen) >= 1_000 and all(len(set(s)) == len(s) - (s[0] == s[1]) for _, s, _ in seen)
    (_, X, Z, W, B, gamma, R), shapes = zip(*(x for x, *_ in seen)), [np.shape(x[4]) for x, *_ in seen]
    assert {s[0] // s[1] for _, s, _ in seen} == {1, 2, 3} and {library for *_, library in seen} == set(LIBRARIES)
    assert {tuple(w is None for w in w[4:]) for w in W} == set(np.ndindex(2, 2, 2, 2))
    assert {x.ndim - z.ndim for x, z in zip(X, Z)} == {-2, -1, 0, 1, 2} and {len(s) for s in shapes} == {0, 1, 2, 3, 4, 5}
    assert any(b is not None and np.isneginf(b).all(-1).any() and not np.isneginf(b).all() for b in B)
    assert {np.shape(g) for g in gamma} >= {(), (1,), (2,), (9,)} and {r is None for r in R} == {True, False}


@st.composite
def modules(draw):
    """PyTorch's layer, as it is set up and called, and the numbers in it."""
    H, d_k = draw(st.sampled_from([(h, k) for h in range(1, 5) for k in range(1, 6) if h != k]))
    n, m, d_z, b = draw(st.permutations([s for s in range(2, 10) if s not in (H, d_k, H * d_k)]))[:4]
    kind = draw(st.sampled_from(["self", "cross", "cross, separate"]))
    m, d_z = n if kind == "self" else m, d_z if kind == "cross, separate" else H * d_k
    b = draw(st.sampled_from([b, None]))
    setup = dict(bias=draw(st.booleans()), batch_first=draw(st.booleans()), kdim=d_z, vdim=d_z)
    mask = draw(st.sampled_from([None, "boolean", "float"]))
    spread = draw(st.booleans()) and mask is not None  # one mask for each head of each entry of the batch
    padding = draw(st.booleans())
    return kind, (H, d_k, n, m, d_z, b), setup, mask, spread, padding, draw(st.booleans()), draw(seeds)


def by_module(kind, sizes, setup, mask, spread, padding, need_weights, seed):
    """The module, its Y and all gradients; dY, X, Z, W and B as multihead takes them."""
    (H, d_k, n, m, d_z, b), rng = sizes, np.random.default_rng(seed)
    module = torch.nn.MultiheadAttention(H * d_k, H, dtype=torch.float64, **setup)
    grads = copy.deepcopy(module)
    lead = () if b is None else (b,)
    dY, X, Z = (rng.normal(size=(*lead, *s)) for s in [(n, H * d_k), (n, H * d_k), (m, d_z)])
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.as_tensor(rng.normal(size=parameter.shape)))
    B, scores = np.zeros((n, m)), (b or 1) * H * spread
    hidden, padded = rng.random((scores, n, m) if spread else (n, m)) < 0.3, rng.random((*lead, m)) < 0.3
    if need_weights:  # it returns NaN in rows that are empty
        hidden[..., 0] = padded[..., 0] = False
    bias = rng.normal(size=hidden.shape)
    x = [torch.tensor(a, requires_grad=True) for a in (X, Z, np.where(hidden, -np.inf, bias))]
    call = dict(need_weights=need_weights)
    if mask:
        call["attn_mask"] = torch.as_tensor(hidden) if mask == "boolean" else x[2]
        B = np.where(hidden, -np.inf, bias * (mask == "float")).reshape(*lead * spread, *(H,) * spread, n, m)
    if padding:
        key = torch.as_tensor(padded)
        call["key_padding_mask"] = torch.where(key, -torch.inf, 0.0).double() if mask == "float" else key
        B = B + np.where(padded, -np.inf, 0)[..., None, None, :]
    X_, Z_ = (a if b is None or setup["batch_first"] else a.transpose(0, 1) for a in x[:2])
    Z_ = X_ if kind == "self" else Z_
    with sdpa_kernel(SDPBackend.MATH):
        Y = module(X_, Z_, Z_, **call)[0]
    Y = Y if b is None or setup["batch_first"] else Y.transpose(0, 1)
    x = [x[0], *x[1:2] * (kind != "self"), *x[2:] * (mask == "float"), *module.parameters()]
    found = list(torch.autograd.grad(Y, x, torch.as_tensor(dY)))
    with torch.no_grad():
        for parameter in list(grads.parameters())[::-1]:
            parameter.copy_(found.pop())
    dB = found.pop() if mask == "float" else None
    return Y.detach().numpy(), found, weights_from(grads), dB, dY, X, Z, each(np.asarray, weights_from(module)), B


def test_multihead_vjp_agrees_with_automatic_differentiation_of_pytorchs_layer():
    seen, errors = [], []

    @drawn
    @given(modules())
    def agrees(problem):
        Y, dtokens, dW, dB, dY, X, Z, W, B = by_module(*problem)
        array = LIBRARIES["torch" if problem[-1] % 2 else "numpy"]
        if problem[0] == "self":
            x = each(array, [X, W, B])
            dX, dW_, dB_, _ = self_attention_vjp(array(dY), *x)
            got, made, Z = [dX], self_attention(*x), X
        else:
            x = each(array, [X, Z, W, B])
            made = multihead_map(*x)
            dX, dZ, dW_, dB_, _ = multihead_vjp(array(dY), *x, given=made)
            got, made = [dX, dZ], made.Y
        assert abs(np.asarray(made) - Y).max() <= 1e-13 * (1 + abs(Y).max())
        sX, sZ, *sizes, sB, _ = magnitudes(dY, X, Z, W, B)
        sizes = [sX + sZ, *sizes] if problem[0] == "self" else [sX, sZ, *sizes]
        got, want = [*got, *dW_], each(np.asarray, [*dtokens, *dW])
        if dB is not None:
            shape = dB.shape if dB.ndim == 2 else B.shape
            got.append(sum_over(torch.as_tensor(dB_), shape))
            sizes.append(sum_over(torch.as_tensor(sB), shape).numpy())
            want.append(dB.numpy().reshape(shape))
        errors.append(excess(got, want, sizes))
        assert errors[-1] <= ALLOWED
        seen.append(problem)

    agrees()
    print(f"{len(seen)} configurations, largest error {max(errors):.1e} of the magnitude")
    assert len(seen) >= 1_000
    kinds, sizes, setups, masks, spreads, paddings, needs, _ = zip(*seen)
    assert len(set(zip(kinds, masks, spreads, paddings, needs))) == 3 * 5 * 2 * 2
    assert len({(s["bias"], s["batch_first"], kind, size[-1] is None) for s, kind, size in zip(setups, kinds, sizes)}) == 24
