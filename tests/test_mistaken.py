"""Each planted mistake is wrong where it says so, and nowhere else: against autograd in float64."""

import numpy as np
import pytest
import torch
from mistaken import MISTAKES
from mistaken_program import Program, lower_right, spread

NAMES = "O dQ dK dV dB".split()


def drawn(seed, b, H, G, n, m, d_k, d_v, bias=None, keep=False, causal=False, rate=0.0, size=1.0, scale=None, strided=False):
    """A problem: its arrays and the candidate's keywords."""
    rng = np.random.default_rng(seed)

    def draw(*shape):
        return torch.tensor(size * rng.normal(size=shape))

    q, k, v, do = draw(b, H, n, d_k), draw(b, G, m, d_k), draw(b, G, m, d_v), draw(b, H, n, d_v)
    if strided:
        do = draw(b, H, d_v, n).mT
    mask = torch.tensor(rng.random((b, 1, n, m)) < 0.7) | (torch.arange(m) == 0) if keep else None
    return q, k, v, do, dict(
        mask=mask, bias=None if bias is None else draw(*bias), causal=causal, scale=scale, groups=H > G, rate=rate,
        dropout_mask=torch.tensor((rng.random((b, H, n, m)) >= rate) / (1 - rate)) if rate else None,
    )  # fmt: skip


PROBLEMS = [
    drawn(1, 2, 6, 2, 19, 37, 4, 5, bias=(6, 19, 37), causal=True, rate=0.3),
    drawn(2, 2, 6, 3, 33, 33, 4, 4, bias=(33, 33), keep=True, scale=0.7, strided=True),
    drawn(3, 1, 4, 2, 7, 5, 3, 3, size=1e-2),
    drawn(4, 2, 2, 2, 5, 9, 3, 3, bias=(5, 9), causal=True, rate=0.5, size=9.0),
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


def run(planted, q, k, v, do, given):
    """What the candidate answers, and what is right."""
    said = keywords(planted, given)
    bias = said.get(planted.options.get("bias"))
    R = given["dropout_mask"] if "dropout_mask" in planted.options else None
    if "dropout" in planted.options and given["rate"]:
        torch.manual_seed(5)
        R = Program().draw(q.shape[:3] + k.shape[2:3], given["rate"], q)
    torch.manual_seed(5)
    kept = {w: given[w] if w in planted.options else None for w in ("mask", "bias", "causal", "scale")}
    want = truth(q, k, v, do, R=R, **kept)
    leaves = [x.clone().requires_grad_() for x in (q, k, v, bias) if x is not None]
    if bias is not None:
        said[planted.options["bias"]] = leaves[3]
    o = planted.fn(*leaves[:3], **said)
    return (o.detach(), *torch.autograd.grad(o, leaves, do)), want


def wrong_in(planted):
    wrong = set()
    for *arrays, given in PROBLEMS:
        got, want = run(planted, *arrays, given)
        for name, x, y in zip(NAMES, got, want):
            if not torch.allclose(x, y, rtol=1e-9, atol=1e-11 * float(y.abs().max())):
                wrong.add(name)
    return wrong


@pytest.mark.parametrize("name", MISTAKES)
def test_wrong_where_it_says(name):
    assert wrong_in(MISTAKES[name]) == MISTAKES[name].wrong


def test_the_program_is_right():
    class Right(Program):
        """As it stands."""

    from mistaken_program import Planted

    assert wrong_in(Planted(Right())) == set()
