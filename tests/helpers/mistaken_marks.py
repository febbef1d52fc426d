"""Mistakes of the way back in what is read, written and rounded; the output is right."""

import torch

from mistaken_program import Program, planted

MARKS = {}


def mistake(wrong, **more):
    return planted(MARKS, wrong, **more)


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


@mistake("dQ dK dV dB")
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


@mistake("dQ dK dV")
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


@mistake("dQ", also="dQ_scaled")
class one_percent(Program):
    """dQ one per cent too large."""

    def dQ(self, c):
        return 1.01 * super().dQ(c)


@mistake("dQ", also="dQ_scaled")
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
