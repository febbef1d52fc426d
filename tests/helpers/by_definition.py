"""Attention of torch from its definition, and every derivative up to the second by plain autograd."""

import torch
from torch.autograd import grad
from torch.func import jvp, vjp


def plain(Q, K, V, mask=None, R=None, causal=False, scale=None, with_L=False, *,
          softcap=None, sinks=None, window=None, alibi_slopes=None):
    """softmax(scale Q K^T + mask) V with all its n x m numbers; 0 where a row may attend to nothing.

    mask: True may attend, or numbers that are added; R: the factors of dropout; fewer heads of keys and values
    than of queries: each serves a group of neighbours. with_L: also the log-sum-exp of the scores. sinks and
    slopes: one for each head. The last query stands at the last key.
    """
    if Q.ndim > 2 and K.ndim > 2 and 1 < K.shape[-3] < Q.shape[-3]:
        K, V = (x.repeat_interleave(Q.shape[-3] // x.shape[-3], -3) for x in (K, V))
    A = (Q.shape[-1] ** -0.5 if scale is None else scale) * (Q @ K.mT)
    n, m = A.shape[-2:]
    hidden = torch.ones(n, m, dtype=torch.bool).triu(1) if causal else torch.zeros((), dtype=torch.bool)
    if softcap is not None:
        A = softcap * torch.tanh(A / softcap)
    ahead = torch.arange(m) - torch.arange(m - n, m)[:, None]  # by how many places a key is later than the query
    if window is not None:
        left, right = (m + n if side is None else side for side in window)
        hidden = hidden | (ahead < -left) | (ahead > right)
    if alibi_slopes is not None:
        A = A - alibi_slopes[..., None, None] * abs(ahead)
    if mask is not None and mask.dtype == torch.bool:
        hidden = hidden | ~mask
    elif mask is not None:
        A, hidden = A + mask, hidden | (mask == -torch.inf)
    hidden = hidden.expand(torch.broadcast_shapes(hidden.shape, A.shape))
    empty = hidden.all(-1, keepdim=True)
    A = torch.where(hidden, torch.where(empty, 0.0, -torch.inf), A)
    P = torch.softmax(A if sinks is None else with_key(A, sinks), -1)[..., :m].masked_fill(empty, 0)
    O = (P if R is None else P * R) @ V
    if not with_L:
        return O
    c = A.detach().amax(-1)  # logsumexp of torch differentiates wrongly where scores are -1e30
    L = c + torch.log(torch.exp(A - c[..., None]).sum(-1))
    return O, L.masked_fill(empty[..., 0], -torch.inf).expand(O.shape[:-1])


def with_key(A, sinks):
    """One more key, with the score of the sink."""
    lead = torch.broadcast_shapes(A.shape[:-2], sinks.shape)
    A, sinks = A.expand(*lead, *A.shape[-2:]), sinks[..., None, None].expand(*lead, A.shape[-2], 1)
    return torch.cat([A, sinks], -1)


# Each of them: f(*x) -> O; x_dot, x_bar beside x; O_bar, O_dot beside O -> tensors. A bar is a cotangent.


def output(f, x, x_dot, x_bar, O_bar, O_dot):
    return (f(*x),)


def gradients(f, x, x_dot, x_bar, O_bar, O_dot):
    x = leaves(x)
    return grad(f(*x), x, O_bar)


def tangent(f, x, x_dot, x_bar, O_bar, O_dot):
    return jvp(f, x, x_dot)


def double_backward(f, x, x_dot, x_bar, O_bar, O_dot):
    """Of <x_bar, gradients>, the gradient in dO and in each x."""
    O_bar, *x = leaves((O_bar, *x))
    first = grad(f(*x), x, O_bar, create_graph=True)
    return grad(first, (O_bar, *x), x_bar, materialize_grads=True)


def forward_over_reverse(f, x, x_dot, x_bar, O_bar, O_dot):
    """The tangent of O and of the gradients where x and dO move; torch wants one place for each number."""

    def both(O_bar, *x):
        O, pull = vjp(f, *x)
        return O, pull(O_bar)

    O_dot, dots = jvp(both, (O_bar.contiguous(), *x), (O_dot, *x_dot))[1]
    return O_dot, *dots


def reverse_over_forward(f, x, x_dot, x_bar, O_bar, O_dot):
    """The gradients of <O_bar, O> + <O_dot, tangent> in x and in x_dot."""
    k = len(x)
    return vjp(lambda *y: jvp(f, y[:k], y[k:]), *x, *x_dot)[1]((O_bar, O_dot))


def forward_over_forward(f, x, x_dot, x_bar, O_bar, O_dot):
    """The second tangent, along x_dot and along x_bar, while x_dot moves by itself."""
    k = len(x)
    return (jvp(lambda *y: jvp(f, y[:k], y[k:])[1], (*x, *x_dot), (*x_bar, *x_dot))[1],)


DERIVATIVES = (output, gradients, tangent, double_backward, forward_over_reverse, reverse_over_forward,
               forward_over_forward)


def by_autograd(f, x, x_dot, x_bar, O_bar, O_dot):
    """What each of them has to give, by plain autograd, backward alone.

    The gradients are linear in dO: of <x_dot, gradients>, the gradient in dO is the tangent of O, and that in x
    the tangent of the gradients.
    """
    *x, dO = leaves((*x, O_bar))
    O = f(*x)
    first, of_O_dot = slopes(O, x, dO), slopes(O, x, O_dot)
    dot, bar = (slopes(dotted(first, z), (dO, *x)) for z in (x_dot, x_bar))
    dot_of_O_dot = slopes(dotted(of_O_dot, x_dot), x)
    (dot_bar,) = slopes(dotted(bar[1:], x_dot), [dO])
    return dict(
        output=(O,),
        gradients=first,
        tangent=(O, dot[0]),
        double_backward=bar,
        forward_over_reverse=(dot[0], *map(torch.add, dot[1:], of_O_dot)),
        reverse_over_forward=(*map(torch.add, first, dot_of_O_dot), *of_O_dot),
        forward_over_forward=(dot_bar + dot[0],),
    )


def slopes(y, x, y_bar=None):
    """The gradients of y in all x; where it does not depend on them, 0."""
    if not y.requires_grad:
        return [torch.zeros_like(z) for z in x]
    return grad(y, x, y_bar, create_graph=True, materialize_grads=True)


def dotted(a, b):
    return sum((y * z).sum() for y, z in zip(a, b))


def leaves(x):
    return [y.detach().requires_grad_() for y in x]


def apart(got, want):
    """The largest error in any of several tensors, relative to its largest number, or to 1 if that is more."""
    assert [y.shape for y in got] == [y.shape for y in want]
    assert [y.dtype for y in got] == [y.dtype for y in want]
    assert all(y.isfinite().all() for y in want)
    if not all(y.isfinite().all() for y in got):
        return torch.inf
    pairs = [(x.detach(), y.detach()) for x, y in zip(got, want, strict=True) if y.numel()]
    return max((float(abs(x - y).max() / abs(y).max().clamp_min(1)) for x, y in pairs), default=0.0)
