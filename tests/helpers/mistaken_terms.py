"""Mistakes in a term of the way back: the scale, the row term, dA and the products; the output is right."""

import math

import torch

from mistaken_program import Program, planted, read_transposed

TERMS = {}


def mistake(wrong, **more):
    return planted(TERMS, wrong, **more)


# ---- the scale


@mistake("dQ")
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


@mistake("dQ dK dB")
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


@mistake("dQ dK dB")
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
