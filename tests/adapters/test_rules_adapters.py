"""The rule of JAX, as the museum has it, decides as JAX does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from jax.test_util import check_grads

from attnmath.book.rules import Probe, jax_rule

SHAPES = (2, 5, 3), (2, 7, 3), (2, 7, 4)


def attention(softmax, detached, factor):
    """With gradients that are too large by a factor; the output is right."""

    def f(q, k, v):
        O = softmax(q @ k.swapaxes(-1, -2) / 3**0.5) @ v
        return detached(O) + factor * (O - detached(O))

    return f


@pytest.mark.parametrize(("factor", "passes"), [(1.0, True), (1.0001, True), (1.1, False), (2.0, False), (-1.0, False)])
def test_the_rule_decides_as_jax_does(factor, passes):
    rng = np.random.default_rng(3)
    q, k, v = (rng.normal(size=shape) for shape in SHAPES)
    f = attention(lambda a: jax.nn.softmax(a, axis=-1), jax.lax.stop_gradient, factor)
    g = attention(lambda a: torch.softmax(a, -1), torch.Tensor.detach, factor)
    trial = Probe(tuple(map(torch.as_tensor, (q, k, v))), torch.as_tensor(rng.normal(size=(2, 5, 4))))
    try:
        check_grads(f, tuple(jnp.asarray(x, jnp.float32) for x in (q, k, v)), order=1, modes=["rev"])
        theirs = True
    except AssertionError:
        theirs = False
    assert theirs == jax_rule(g, g, trial) == passes
