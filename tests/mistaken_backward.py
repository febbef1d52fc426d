"""Mistakes in a term of the way back; the output is right."""

import math

import torch
from mistaken_program import RATE, Program, gathered, planted, summed_to, upper_left

BACKWARD = {}


def mistake(wrong, **more):
    return planted(BACKWARD, wrong, **more)


# ---- the scale


@mistake("dQ", thread="pytorch/pytorch#105202")
class dQ_noscale(Program):
    """dQ without the scale."""

    def dQ(self, c):
        return c.dA @ c.k


@mistake("dK")
class dK_noscale(Program):
    """dK without the scale."""

    def dK(self, c):
        return c.dA.mT @ c.q


@mistake("dQ dK")
class dQK_noscale(Program):
    """dQ and dK without the scale."""

    def dQ(self, c):
        return c.dA @ c.k

    def dK(self, c):
        return c.dA.mT @ c.q


@mistake("dK")
class dK_scale2(Program):
    """The queries were scaled beforehand, and dK is scaled once more."""

    def dK(self, c):
        return (c.dA.mT @ (c.q * c.gamma)) * c.gamma


@mistake("dQ")
class dQ_scale2(Program):
    """The scale twice in dQ."""

    def dQ(self, c):
        return (c.gamma * c.dA) @ (c.gamma * c.k)


@mistake("dQ dK")
class dQK_ln2(Program):
    """A kernel in powers of two: ln 2 is multiplied into dQ and dK, where it has no place."""

    def dQ(self, c):
        return math.log(2) * super().dQ(c)

    def dK(self, c):
        return math.log(2) * super().dK(c)


@mistake("dQ dK")
class dQ_dK_swapscale(Program):
    """dQ twice too large, dK half of what it should be."""

    def dQ(self, c):
        return 2 * super().dQ(c)

    def dK(self, c):
        return super().dK(c) / 2


# ---- the row term D


@mistake("dQ dK dB")
class D_missing(Program):
    """The row term of softmax's derivative is left out."""

    def D(self, c):
        return 0.0


@mistake("dQ dK dB")
class D_sign(Program):
    """The row term is added."""

    def dA(self, c):
        return c.p * (c.dP + c.D)


@mistake("dQ dK dB")
class D_rowmix(Program):
    """Each row has the row term of the row before it."""

    def D(self, c):
        return super().D(c).roll(1, -2)


@mistake("dQ dK dB")
class D_mean(Program):
    """The mean over the keys in place of the sum."""

    def D(self, c):
        return super().D(c) / c.m


@mistake("dQ dK dB", thread="Dao-AILab/flash-attention#2439")
class D_nodrop(Program):
    """The row term from the weights before dropout."""

    def D(self, c):
        return (c.p * (c.do @ c.v.mT)).sum(-1, keepdim=True)


@mistake("dQ dK dB")
class D_wrong_axis(Program):
    """Summed over the queries in place of the keys."""

    def D(self, c):
        return (c.p * c.dP).sum(-2, keepdim=True)


@mistake("dQ dK dB")
class D_detached_half(Program):
    """Half of the row term."""

    def D(self, c):
        return super().D(c) / 2


@mistake("dQ dK dB", thread="paiml/trueno#86")
class no_jacobian(Program):
    """Softmax is taken for the identity: dA = dP."""

    def dA(self, c):
        return torch.where(c.p == 0, 0.0, c.dP)


# ---- dS


@mistake("dQ dK dB")
class dS_sign(Program):
    """The gradient of the scores with the wrong sign."""

    def dA(self, c):
        return -super().dA(c)


def read_transposed(x):
    """A buffer read with its two strides exchanged."""
    return x.mT.reshape(x.shape)


@mistake("dQ dK")
class dS_T(Program):
    """The buffer of dA is read with its strides exchanged (its transpose, when n = m) for dQ and dK."""

    def dQ(self, c):
        return c.gamma * (read_transposed(c.dA) @ c.k)

    def dK(self, c):
        return c.gamma * (read_transposed(c.dA).mT @ c.q)


@mistake("dK")
class dK_untransposed(Program):
    """dK = dA Q: the transpose is forgotten (the buffer is read as it lies)."""

    def dK(self, c):
        return c.gamma * (c.dA.reshape(*c.dA.shape[:-2], c.m, c.n) @ c.q)


@mistake("dQ dK dB")
class dP_transposed(Program):
    """dP is written with its strides exchanged (its transpose, when n = m); D is right."""

    def dP(self, c):
        return read_transposed(super().dP(c))


@mistake("dV")
class dV_PnotPT(Program):
    """dV = P dO: the transpose is forgotten (the buffer is read as it lies)."""

    def dV(self, c):
        p = self.dropped(c, c.p).contiguous()
        return p.reshape(*p.shape[:-2], c.m, c.n) @ c.do


@mistake("dQ dK dB")
class dP_wrong_head(Program):
    """dP with the values of the next head."""

    def dP(self, c):
        return self.dropped(c, c.do @ c.v.roll(-1, 1).mT)


# ---- bias


@mistake("dB")
class dB_transposed(Program):
    """The gradient of the bias with its strides exchanged (its transpose, when n = m)."""

    def dB(self, c):
        return None if c.bias is None else summed_to(read_transposed(c.dA), c.bias.shape)


@mistake("dB")
class dB_batch0(Program):
    """The gradient of the bias of the first batch element, for all."""

    def dB(self, c):
        if c.bias is None or c.bias.ndim == 4 and c.bias.shape[0] == c.b > 1:
            return super().dB(c)
        return summed_to(c.dA[:1], c.bias.shape)


@mistake("dB")
class dB_mean(Program):
    """The mean over the batch in place of the sum."""

    def dB(self, c):
        if c.bias is None or c.bias.ndim == 4 and c.bias.shape[0] == c.b > 1:
            return super().dB(c)
        return summed_to(c.dA.mean(0, keepdim=True), c.bias.shape)


@mistake("dB", thread="jax-ml/jax#36702")
class dB_scaled(Program):
    """The scale of the scores is multiplied into the gradient of the bias."""

    def dB(self, c):
        return None if c.bias is None else c.gamma * super().dB(c)


@mistake("dB", thread="facebookresearch/xformers#783")
class bias_missing(Program):
    """The bias has no gradient: zero."""

    def dB(self, c):
        return None if c.bias is None else torch.zeros_like(c.bias)


# ---- groups


@mistake("dK dV", thread="stanford-crfm/levanter#449")
class gqa_last(Program):
    """The last head of each group overwrites what the others gave."""

    def dK_shared(self, c, dK):
        return dK[:, c.H // c.G - 1 :: c.H // c.G].contiguous()

    dV_shared = dK_shared


@mistake("dK dV")
class gqa_first(Program):
    """Only the first head of each group gives to the shared keys and values."""

    def dK_shared(self, c, dK):
        return dK[:, :: c.H // c.G].contiguous()

    dV_shared = dK_shared


@mistake("dK dV")
class gqa_mean(Program):
    """The mean over the group in place of the sum."""

    def dK_shared(self, c, dK):
        return gathered(dK, c.G) * c.G / c.H

    dV_shared = dK_shared


@mistake("dQ dK dV dB", thread="XunhaoLai/native-sparse-attention-triton#27")
class gqa_map_bwd(Program):
    """Back, head h reads the keys and values h mod G; forward it was h // (H/G)."""

    def keys(self, c):
        return c.K.repeat(1, c.H // c.G, 1, 1)

    def values(self, c):
        return c.V.repeat(1, c.H // c.G, 1, 1)

    def dK_shared(self, c, dK):
        return dK.view(c.b, c.H // c.G, c.G, *dK.shape[2:]).sum(1)

    dV_shared = dK_shared


# ---- masks


@mistake("dQ dK dV dB")
class align_bwd(Program):
    """Causal to the lower right forward, to the upper left back."""

    def hidden_back(self, c, a):
        a = a if c.keep is None else torch.where(c.keep, a, -torch.inf)
        return a if c.causal is None else torch.where(upper_left(c.n, c.m), a, -torch.inf)


@mistake("dQ dK dV dB", thread="meta-pytorch/MSLK#263")
class no_mask_bwd(Program):
    """The masks are forgotten on the way back."""

    def hidden_back(self, c, a):
        return a


@mistake("dQ dK dV dB")
class no_bias_bwd(Program):
    """The bias is forgotten where the weights are computed again."""

    def scores_back(self, c):
        return c.gamma * (c.q @ c.k.mT)


# ---- dropout


@mistake("dQ dK dV dB", options=RATE, thread="Dao-AILab/flash-attention#612")
class drop_not_replayed(Program):
    """The way back draws a dropout mask of its own."""

    def dropped_back(self, c, p):
        if not c.rate:
            return p
        if not hasattr(c, "R_back"):
            c.R_back = self.draw(p.shape, c.rate, p)
        return p * c.R_back


@mistake("dQ dK dV dB")
class drop_ignored_bwd(Program):
    """No dropout on the way back."""

    def dropped_back(self, c, p):
        return p


@mistake("dQ dK dV dB")
class drop_norescale_bwd(Program):
    """The 1/(1 - rate) is missing on the way back."""

    def dropped_back(self, c, p):
        return p if c.R is None else p * (c.R != 0)


@mistake("dV")
class dV_nodrop(Program):
    """dV from the weights before dropout."""

    def dV(self, c):
        return c.p.mT @ c.do


# ---- what is read and written


@mistake("dK dV")
class kv_swapped(Program):
    """dK and dV exchanged."""

    def backward(self, c, do):
        dQ, dK, dV, dB = super().backward(c, do)
        return (dQ, dV, dK, dB) if dK.shape == dV.shape else (dQ, dK, dV, dB)


@mistake("dQ dK dV dB")
class dO_ignored(Program):
    """The gradient that arrives is taken to be all ones."""

    def cotangent(self, c, do):
        return torch.ones_like(do)


@mistake("dQ dK dV dB", thread="Dao-AILab/flash-attention#355")
class dO_strides(Program):
    """The gradient that arrives is read as if it lay contiguous in memory."""

    def cotangent(self, c, do):
        size = do.untyped_storage().nbytes() // do.element_size()
        memory = do.as_strided((size,), (1,), 0)
        return memory[(do.storage_offset() + torch.arange(do.numel())) % size].view(do.shape)


@mistake("dQ")
class head_mixup(Program):
    """The heads of dQ are written one place too far."""

    def dQ(self, c):
        return super().dQ(c).roll(1, 1)


@mistake("dQ dK dV", thread="NVIDIA/TransformerEngine#3216")
class batch_first_only(Program):
    """All batch elements receive the gradients of the first."""

    def backward(self, c, do):
        dQ, dK, dV, dB = super().backward(c, do)
        return dQ[:1].repeat(c.b, 1, 1, 1), dK[:1].repeat(c.b, 1, 1, 1), dV[:1].repeat(c.b, 1, 1, 1), dB


@mistake("dQ")
class last_row_zero(Program):
    """The loop over queries ends one too early: the last row of dQ is zero."""

    def dQ(self, c):
        dQ = super().dQ(c)
        dQ[..., -1, :] = 0
        return dQ


@mistake("dK dV")
class first_key(Program):
    """The loop over keys begins at the second: dK and dV of the first key are zero."""

    def dK(self, c):
        dK = super().dK(c)
        dK[..., 0, :] = 0
        return dK

    def dV(self, c):
        dV = super().dV(c)
        dV[..., 0, :] = 0
        return dV


# ---- sizes


@mistake("dQ")
class one_percent(Program):
    """dQ one per cent too large."""

    def dQ(self, c):
        return 1.01 * super().dQ(c)


@mistake("dQ")
class one_permille(Program):
    """dQ one per mille too large."""

    def dQ(self, c):
        return 1.001 * super().dQ(c)


@mistake("dQ")
class noise(Program):
    """dQ with noise of one per mille of its size."""

    def dQ(self, c):
        dQ = super().dQ(c)
        wave = torch.sin(1 + 7 * torch.arange(dQ.numel(), dtype=dQ.dtype)).view(dQ.shape)
        return dQ + 1e-3 * dQ.abs().mean() * wave


@mistake("dQ dK dV dB")
class P_in_bf16(Program):
    """The weights are kept in bfloat16 for the way back."""

    def weights(self, c):
        return super().weights(c).bfloat16().to(c.q.dtype)


@mistake("dQ dK dV dB", kind="precision")
class flush_to_zero(Program):
    """Gradients below 1e-4 become zero."""

    def backward(self, c, do):
        return [None if x is None else torch.where(x.abs() < 1e-4, 0.0, x) for x in super().backward(c, do)]


@mistake("dQ dK dV dB")
class zeros(Program):
    """All gradients are zero."""

    def backward(self, c, do):
        return [None if x is None else torch.zeros_like(x) for x in (c.Q, c.K, c.V, c.bias)]
