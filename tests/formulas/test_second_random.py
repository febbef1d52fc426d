"""The second order and the tiles in NumPy: a thousand random heads against autograd of the definition, and the complex step."""

from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import attnmath
from attnmath._words.tolerance import DROP_IN
from by_definition import apart, dotted, leaves, plain, slopes

STEP = 1e-100  # of the imaginary part: its square is lost


class Drawn(NamedTuple):
    """What hypothesis draws; the numbers follow from the seed."""

    batch: tuple
    ones: tuple  # of Q, K, V, R: whether their first axis is 1, and broadcasts
    sizes: tuple  # n, m, d_k, d_v
    B: str | None
    B_ones: tuple
    empty: bool  # a row of B is hidden everywhere
    gamma: str | None
    dropout: bool
    tile: tuple
    still: tuple  # of Q, K, V, B, gamma: which have no tangent
    size: float  # of the scores
    seed: int


bit, small = st.booleans(), st.integers(1, 4)
problems = st.builds(
    Drawn,
    batch=st.sampled_from([(), (2,), (3,), (2, 3), (1, 2)]),
    ones=st.tuples(bit, bit, bit, bit),
    sizes=st.tuples(st.integers(1, 8), st.integers(1, 8), small, small),
    B=st.sampled_from([None, "numbers", "mask", "mask", "far"]),
    B_ones=st.tuples(bit, bit, bit, bit),
    empty=bit,
    gamma=st.sampled_from([None, "zero", "negative", "array", "each head"]),
    dropout=bit,
    tile=st.tuples(small, small),
    still=st.tuples(bit, bit, bit, bit, bit),
    size=st.sampled_from([0.3, 1.0, 3.0]),
    seed=st.integers(0, 2**31 - 1),
)


class Head:
    """x = Q, K, V, B, gamma, their tangents, dO, dL, dO_dot and R of a problem, and what can be made of them."""

    def __init__(self, p):
        rng = np.random.default_rng(p.seed)
        n, m, d_k, d_v = p.sizes
        *lead, of_R = [(1, *p.batch[1:]) if one and p.batch else p.batch for one in p.ones]
        scores, whole = np.broadcast_shapes(*lead[:2]), np.broadcast_shapes(*lead)
        Q, K, V = (rng.normal(size=(*s, r, c)) for s, r, c in zip(lead, (n, m, m), (d_k, d_k, d_v)))
        gamma = dict(zero=0.0, negative=-0.7, array=rng.normal(size=())).get(p.gamma)
        gamma = rng.normal(size=(*scores[-1:], 1, 1)) if p.gamma == "each head" else gamma
        self.x = [p.size**0.5 * Q, p.size**0.5 * K, V, self.mask(p, rng, (*scores, n, m)), gamma]
        self.dots = [None if y is None or still else rng.normal(size=np.shape(y)) for y, still in zip(self.x, p.still)]
        self.dO, self.dO_dot = rng.normal(size=(2, *whole, n, d_v))
        self.dL = rng.normal(size=(*whole, n))
        of_R = (1, *whole[1:]) if p.ones[3] and whole else whole
        self.R = (rng.random((*of_R, n, m)) < 0.6) / 0.6 if p.dropout else None

    def mask(self, p, rng, shape):
        if p.B is None:
            return None
        shape = [1 if one else size for one, size in zip(p.B_ones, shape)]
        B, hidden = rng.normal(size=shape), rng.random(shape) < 0.4
        hidden[..., -1, :] |= p.empty
        return B if p.B == "numbers" else np.where(hidden, -np.inf if p.B == "mask" else -1e30, B)

    def ours(self, name, *before, **more):
        return getattr(attnmath, name)(*before, *self.x, **more, R=self.R)

    def stepped(self, name, *before):
        """The tangents of a function's results where all that has a tangent moves, by the complex step."""
        moved = [y if dot is None else y + 1j * STEP * dot for y, dot in zip(self.x, self.dots)]
        made = getattr(attnmath, name)(*before, *moved, R=self.R)
        return [None if y is None else np.imag(y) / STEP for y in (made if isinstance(made, tuple) else [made])]

    def theirs(self):
        """By autograd of the definition: O and L; the gradients; O_dot, L_dot; the tangents of the gradients, and
        those where dO moves too."""
        Q, K, V, B, gamma = self.x
        x = [Q, K, V, B, Q.shape[-1] ** -0.5 if gamma is None else gamma]
        *x, dO, dL = (None if y is None else leaves([torch.tensor(y, dtype=torch.float64)])[0] for y in (*x, self.dO, self.dL))
        O, L = plain(*x[:4], None if self.R is None else torch.tensor(self.R), scale=x[4], with_L=True)
        x = [y for y in x if y is not None]
        dots = [torch.zeros_like(y) if dot is None else torch.tensor(dot)
                for y, dot in zip(x, (dot for y, dot in zip((*self.x[:4], 0), self.dots) if y is not None))]
        of_O, of_L = slopes(O, x, dO), slopes(L, x, dL)
        O_dot, *second = slopes(dotted(of_O, dots), (dO, *x))
        (L_dot,) = slopes(dotted(of_L, dots), [dL])
        both = map(torch.add, second, slopes(O, x, torch.tensor(self.dO_dot)))
        return (O, L), [*map(torch.add, of_O, of_L)], (O_dot, L_dot), second, [*both]


def errors(p):
    """Of each function, how far it is from autograd and from the complex step."""
    head, tile = Head(p), dict(tile=p.tile)
    dots, dO = head.dots, head.dO
    outputs, first, tangents, second, moved = head.theirs()
    O_dot, steps = head.stepped("dropout_attention"), head.stepped("dropout_attention_vjp", dO)
    double = head.ours("attention_vjp_vjp", *dots, dO)
    double_flash = head.ours("flash_attention_vjp_vjp", *dots, dO, **tile)
    return {
        "flash_attention": off(head.ours("flash_attention", with_L=True, **tile), outputs),
        "flash_attention_vjp": off(head.ours("flash_attention_vjp", dO, dL=head.dL, **tile), first),
        "flash_attention_jvp": off(head.ours("flash_attention_jvp", *dots, with_L=True, **tile), tangents),
        "flash_attention_jvp, step": off(head.ours("flash_attention_jvp", *dots, **tile), O_dot),
        "flash_attention_vjp_vjp": off(double_flash, (tangents[0], *second)),
        "flash_attention_vjp_vjp, step": off(double_flash, (*O_dot, *steps)),
        "attention_vjp_vjp": off(double, (tangents[0], *second)),
        "attention_vjp_vjp, step": off(double, (*O_dot, *steps)),
        "attention_hvp": off(head.ours("attention_hvp", *dots, dO, dO_dot=head.dO_dot), moved),
        "attention_hvp, step": off(head.ours("attention_hvp", *dots, dO), steps),
    }


def off(got, want):
    """How far apart, where both are numbers; -inf, which only L has, in the same places."""
    got, want = ([tensor(y) for y in (z if isinstance(z, tuple | list) else [z]) if y is not None] for z in (got, want))
    assert all(torch.equal(a == -torch.inf, b == -torch.inf) for a, b in zip(got, want, strict=True))
    return apart(*([y.masked_fill(y == -torch.inf, 0) for y in z] for z in (got, want)))


def tensor(y):
    return y.detach() if isinstance(y, torch.Tensor) else torch.tensor(y)


@pytest.mark.parametrize("part", range(5))
@settings(max_examples=200, derandomize=True, deadline=None, database=None)
@given(p=problems)
def test_second_order_and_tiles(part, p):
    found = errors(p)
    assert max(found.values()) <= DROP_IN, found
