"""examine finds attnmath's attention for PyTorch right, and its attention by tiles, in every format they have."""

import numpy as np
import pytest
import torch

import attnmath
from attnmath.torch import scaled_dot_product_attention as sdpa
from correct import ALL, NUMPY, SDPA, Correct, Ours
from examined import examined, further


def func(q, k, v, attn_mask=None, **options):
    """Its gradients by torch.func, as those of a function of autograd."""
    return ByFunc.apply(q, k, v, attn_mask, options)


class ByFunc(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, attn_mask, options):
        x = (q, k, v) if attn_mask is None or attn_mask.dtype == torch.bool else (q, k, v, attn_mask)
        beside = (attn_mask,) if len(x) == 3 else ()
        O, ctx.pull = torch.func.vjp(lambda *x: sdpa(*x, *beside, **options), *x)
        return O

    @staticmethod
    def backward(ctx, dO):
        return (*ctx.pull(dO), None, None)[:5]


class ByTiles(Ours):
    """The pair of functions that go tile by tile, in NumPy."""

    tile = 5, 7

    def forward(self, q, k, v, **options):
        return attnmath.flash_attention(*self.arguments(q, k, v, **options), tile=self.tile)

    def backward(self, do, q, k, v, bias=None, **options):
        d = attnmath.flash_attention_vjp(do, *self.arguments(q, k, v, bias=bias, **options), tile=self.tile)
        b, G, m = k.shape[:3]
        dK, dV = (x.reshape(b, G, -1, m, x.shape[-1]).sum(2) for x in (d.dK, d.dV))
        if bias is None:
            return d.dQ, dK, dV
        axes = tuple(i for i, size in enumerate(bias.shape) if size == 1 != d.dB.shape[i])
        return d.dQ, dK, dV, np.sum(d.dB, axis=axes, keepdims=True)


CAUSAL = dict(causal="is_causal", scale="scale", groups="enable_gqa", dropout="dropout_p")
PROGRAMS = {
    "drop-in": Correct(sdpa, options={**SDPA, "dropout": "dropout_p"}),
    "drop-in, causal": Correct(sdpa, options=CAUSAL),
    "drop-in, by torch.func": Correct(func, options={**SDPA, "dropout": "dropout_p"}, dtypes=("float64", "bfloat16")),
    "tiles": Correct(ByTiles().forward, ByTiles().backward, **NUMPY),
}


@pytest.mark.parametrize("name, dtype", [(name, dtype) for name, x in PROGRAMS.items() for dtype in x.dtypes])
def test_right(name, dtype):
    report = examined(PROGRAMS[name], dtype, seed=ALL.index(dtype), framework=PROGRAMS[name].framework)
    assert report.right, str(report)
    assert not further(report)
