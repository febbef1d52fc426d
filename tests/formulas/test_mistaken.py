"""Each planted mistake is wrong where it says so, and nowhere else: against autograd in float64."""

import numpy as np
import pytest
import torch

from mistaken import MISTAKES
from mistaken_forward import Eager
from mistaken_pairs import BIASED, Pair
from mistaken_program import Planted, Program, lower_right, spread
from mistaken_tiles import Tiled
from mistaken_unknown import UNKNOWN

NAMES = "O dQ dK dV dB".split()


def drawn(seed, b, H, G, n, m, d_k, d_v, bias=None, keep=False, causal=False, rate=0.0, size=1.0, scale=None, strided=False, shift=0):
    """A problem: its arrays and the candidate's keywords."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return torch.tensor(size * rng.normal(size=shape))

    q, k, v, do = draw(b, H, n, d_k), draw(b, G, m, d_k), draw(b, G, m, d_v), draw(b, H, n, d_v)
    if strided:
        do = draw(b, H, d_v, n).mT
    mask = torch.tensor(rng.random((b, 1, n, m)) < 0.7) | (torch.arange(m) == 0) if keep else None
    return q, k, v, do, dict(
        mask=mask, bias=None if bias is None else draw(*bias) + shift, causal=causal, scale=scale, groups=H > G, rate=rate,
        dropout_mask=torch.tensor((rng.random((b, H, n, m)) >= rate) / (1 - rate)) if rate else None,
    )


PROBLEMS = [
    drawn(1, 2, 6, 2, 19, 37, 4, 5, bias=(6, 19, 37), causal=True, rate=0.3),
    drawn(2, 2, 6, 3, 33, 33, 4, 4, bias=(33, 33), keep=True, scale=0.7, strided=True),
    drawn(3, 1, 4, 2, 7, 5, 3, 3, size=1e-2),
    drawn(4, 2, 2, 2, 5, 9, 3, 3, bias=(5, 9), causal=True, rate=0.5, size=9.0),
    drawn(5, 1, 2, 1, 9, 5, 3, 4, causal=True),
    drawn(6, 1, 2, 2, 18, 18, 4, 4, bias=(18, 18), shift=-1000),
]


def truth(q, k, v, do, mask, bias, causal, scale, R):
    q, k, v, *extra = leaves = [x.clone().requires_grad_() for x in (q, k, v, bias) if x is not None]
    a = (q.shape[-1] ** -0.5 if scale is None else scale) * (q @ spread(k, q.shape[1]).mT)
    a = a + extra[0] if extra else a
    a = a if mask is None else a.masked_fill(~mask, -torch.inf)
    a = a.masked_fill(~lower_right(*a.shape[-2:]), -torch.inf) if causal else a
    p = torch.softmax(a, -1)
    p = torch.where((a == -torch.inf).all(-1, keepdim=True), 0.0, p)
    o = (p if R is None else p * R) @ spread(v, q.shape[1])
    return o.detach(), *torch.autograd.grad(o, leaves, do)


def keywords(planted, given):
    given = dict(given, dropout=given["rate"])
    return {planted.options[w]: x for w, x in given.items() if w in planted.options and x is not None and x is not False}


def called(planted, arrays, said, bias):
    """Output and gradients of a torch function, or of a pair in NumPy; what else it did."""
    odd = set()
    if planted.backward:
        turned = [x.transpose(1, 2) if planted.layout == "bshd" else x for x in arrays]
        q, k, v, do = given = [x.numpy().copy() for x in turned]
        said = {w: x.numpy() if isinstance(x, torch.Tensor) else x for w, x in said.items()}
        o = planted.fn(q, k, v, **said)
        got = [o.copy(), *planted.backward(do, q, k, v, **said)]
        planted.fn(-q, -k, -v, **said)
        if (o != got[0]).any():
            odd.add("reused")
        if any((x != y.numpy()).any() for x, y in zip(given, turned)):
            odd.add("inputs")
        got = [torch.tensor(x).transpose(1, 2) if planted.layout == "bshd" and i < 4 else torch.tensor(x) for i, x in enumerate(got)]
        return got, odd
    leaves = [x.clone().requires_grad_() for x in (*arrays[:3], bias) if x is not None]
    if bias is not None:
        said[planted.options["bias"]] = leaves[3]
    o = planted.fn(*leaves[:3], **said)
    gradients = torch.autograd.grad(o, leaves, arrays[3], allow_unused=True) if o.requires_grad else [None] * len(leaves)
    if any((x.detach() != y).any() for x, y in zip(leaves, arrays[:3])):
        odd.add("inputs")
    return (o.detach(), *gradients), odd


def run(planted, *arrays, given):
    """What the candidate answers, what is right, and what else it did."""
    q, k, v, do = arrays
    said = keywords(planted, given)
    bias = said.get(planted.options.get("bias"))
    R = given["dropout_mask"] if "dropout_mask" in planted.options else None
    if "dropout" in planted.options and given["rate"]:
        torch.manual_seed(5)
        R = Program().draw(q.shape[:3] + k.shape[2:3], given["rate"], q)
    torch.manual_seed(5)
    kept = {w: given[w] if w in planted.options else None for w in ("mask", "bias", "causal", "scale")}
    return *called(planted, arrays, said, bias), truth(*arrays, R=R, **kept)


def wrong_in(planted):
    wrong = set()
    for *arrays, given in PROBLEMS:
        for x in arrays, [-x.flip(0).clone() for x in arrays]:
            got, odd, want = run(planted, *x, given=given)
            wrong |= odd | ({"number"} if len(got) < len(want) else set())
            for name, x, y in zip(NAMES, got, want):
                if x is not None and x.shape != y.shape:
                    wrong.add("shape")
                elif x is None or not torch.allclose(x, y, rtol=1e-9, atol=1e-11 * float(y.abs().max())):
                    wrong.add(name)
    return wrong


RIGHT = {"program": Planted(Program()), "tiles": Planted(Tiled()), "eager": Planted(Eager()), "pair": Planted(Pair().forward, Pair().backward, options=BIASED)}


ALL = {**MISTAKES, **UNKNOWN}


@pytest.mark.parametrize("name", ALL)
def test_wrong_where_it_says(name):
    assert wrong_in(ALL[name]) == ALL[name].wrong


@pytest.mark.parametrize("name", RIGHT)
def test_right_without_its_mistake(name):
    assert wrong_in(RIGHT[name]) == set()
