"""Mistakes of what is kept between calls, changed, or cut off."""

import random

from mistaken_program import Program, planted

STATE = {}


def mistake(wrong, **more):
    return planted(STATE, wrong, kind="contract", **more)


@mistake("inputs")
class inputs_modified(Program):
    """The queries are scaled in place."""

    def forward(self, c):
        c.Q.mul_(c.gamma)
        c.gamma_back, c.gamma = c.gamma, 1.0
        return super().forward(c)

    def dQ(self, c):
        return c.gamma_back * (c.dA @ c.k)


@mistake("dQ")
class nondeterministic(Program):
    """A race: now one row of dQ is lost, now another."""

    def dQ(self, c):
        dQ = super().dQ(c)
        dQ[..., random.randrange(c.n), :] = 0
        return dQ


@mistake("dQ dK dV dB")
class stale_kv(Program):
    """The way back reads the keys and values of the first call with these shapes."""

    def __init__(self):
        self.first = {}

    def backward(self, c, do):
        key = c.Q.shape, c.K.shape, c.V.shape, c.Q.dtype
        c.K, c.V = self.first.setdefault(key, (c.K.clone(), c.V.clone()))
        return super().backward(c, do)


@mistake("dQ dK dV dB")
class detached(Program):
    """The output is cut off from its arguments."""

    def __call__(self, q, k, v, **options):
        return super().__call__(q, k, v, **options).detach()


@mistake("dK", name="detached", variant="keys")
class DetachedKeys(Program):
    """The keys are cut off."""

    def __call__(self, q, k, v, **options):
        return super().__call__(q, k.detach(), v, **options)


@mistake("dB", name="bias_missing", variant="none", also="dB_zero detached")
class BiasNone(Program):
    """The bias is taken for a constant: no gradient at all."""

    def __call__(self, q, k, v, bias=None, **options):
        return super().__call__(q, k, v, bias=None if bias is None else bias.detach(), **options)


