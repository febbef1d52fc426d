"""What JAX's attention returns, and sends back, for a query that may attend to nothing.

Run by 'make test-adapters'. chapters/empty_rows.md says what is asserted here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attnmath import causal_mask

MAY = np.ones((3, 5), bool)
MAY[1] = MAY[0, 2] = False
ANSWERS = [  # the options, the output, and whether dQ, dK and dV are 0, NaN or neither
    ("mask", dict(mask=MAY[None, None]), "mean", ["0", "0", "flows"]),
    ("-inf", dict(bias=np.where(MAY, 0, -np.inf)[None, None]), "NaN", ["NaN", "NaN", "NaN"]),
    ("-1e9", dict(bias=np.where(MAY, 0, -1e9)[None, None]), "mean", ["flows", "flows", "flows"]),
]


def attend(n=3, m=5, **options):
    rng = np.random.default_rng(0)
    x = [jnp.asarray(rng.normal(size=(1, k, 1, 4)), dtype=jnp.float32) for k in (n, m, m)]
    options = {k: jnp.asarray(a) if k == "mask" else jnp.asarray(a, jnp.float32) if k == "bias" else a
               for k, a in options.items()}
    return x, jax.vjp(lambda *x: jax.nn.dot_product_attention(*x, **options), *x)


def verdict(x):
    return "NaN" if jnp.isnan(x).any() else "0" if (x == 0).all() else "flows"


@pytest.mark.parametrize(("name", "options", "output", "gradients"), ANSWERS)
def test_an_empty_row_has_three_answers(name, options, output, gradients):
    (Q, K, V), (O, back) = attend(**options)
    if output == "NaN":
        assert jnp.isnan(O[0, 1]).all()
    else:
        assert jnp.allclose(O[0, 1], V[0].mean(axis=0), atol=1e-6)
    assert not jnp.isnan(O[0, jnp.array([0, 2])]).any()
    reads = jnp.zeros_like(O).at[0, 1].set(jnp.arange(1.0, 5.0, dtype=O.dtype))  # the empty row only
    assert [verdict(g) for g in back(reads)] == gradients


@pytest.mark.parametrize(("n", "m"), [(3, 5), (5, 3)])
def test_is_causal_is_aligned_with_the_upper_left_corner(n, m):
    causal = attend(n, m, is_causal=True)[1][0]
    for align, equal in [("upper_left", True), ("lower_right", False)]:
        mask = causal_mask(n, m, align=align)[None, None]
        assert bool(jnp.allclose(causal, attend(n, m, mask=mask)[1][0], atol=1e-6)) == equal
