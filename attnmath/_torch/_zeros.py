"""Products, sums and parts in which None is zero, and costs nothing."""

import torch


def gather(total, *pairs):
    """Adds the product of each pair to a sum."""
    for left, right in pairs:
        if total is not None and left is not None and right is not None:
            total.baddbmm_(left, right)


def flat(x):
    """x (h, m, s) as (h, s, m), the faster side of a product."""
    return x.mT.contiguous()


def sides(a_dot, b, b_dot):
    """b^T, and the right factor of a_dot b^T + a b_dot^T as one product."""
    if a_dot is None or b_dot is None:
        bT = flat(b)
        return bT, bT if b_dot is None else flat(b_dot)
    both = torch.cat([b.mT, b_dot.mT], -2)
    return both[:, : b.shape[-1]], both


def beside(a_dot, a, b_dot):
    """The left factor of a_dot b^T + a b_dot^T as one product."""
    if a_dot is None or b_dot is None:
        return a_dot if b_dot is None else a
    return torch.cat([a_dot, a], -1)


def above(a, b):
    """Rows of a, then those of b."""
    return a if b is None else torch.cat([a, b], -2)


def rows(x, i):
    return None if x is None else x[:, i]


def columns(x, j):
    return None if x is None else x[..., j]


def turned(x):
    return None if x is None else x.mT


def scaled(x, how):
    return None if x is None else how.scale * x


def like(results, inputs):
    """The results in the types of their inputs."""
    return tuple(None if y is None else y.to(x.dtype) for y, x in zip(results, inputs))
