"""Arrays that count: by hand for one small product, and for a whole pass against a plain loop."""

import numpy as np
import pytest

from attnmath.book import kernels
from attnmath.book.counted import PASSES, TILES_OF_SCORES, counted, working_set
from attnmath.book.counting import Counter, result, sums
from attnmath.book.kernels import Plan


def test_a_product_an_exponential_a_load_and_a_store():
    counter = Counter(itemsize=2)
    (x,) = counter.given(np.ones((6, 3)))
    tile = x[slice(0, 4)]
    assert (counter.read, counter.written) == (2 * 4 * 3, 0)
    y = np.exp(tile @ tile.mT)
    assert (counter.products, counter.exponentials) == (4 * 3 * 4, 4 * 4) and np.allclose(y, np.exp(3))
    room = result(x, 6, 4)
    room[slice(0, 4)] = y
    assert counter.written == 2 * 4 * 4 and (room.x[:4] == np.asarray(y)).all()
    room[slice(0, 4)] += y
    assert (counter.read, counter.written) == (24 + 32, 2 * 32)
    kept = result(x, 6, 1, is_statistic=True)
    kept[slice(0, 2)] = y[:2, :1]
    assert counter.written == 64 + 4 * 2
    (total,) = sums(tile, 5)
    assert (total == 0).all() and counter.sums == 4 * 4 * 5
    assert counter.working_set(2, (4, 7)) == 24 + 32 + 80 + 4 * 2 * 28


def test_what_goes_on_to_be_counted():
    counter = Counter()
    (x,) = counter.given(np.zeros((2, 3)))
    tile = x[slice(0, 2)]
    for y in (np.where(tile > 0, -np.inf, tile), tile.mT, tile + 1, np.maximum(tile, 0), tile.max(axis=-1, keepdims=True)):
        before = counter.exponentials
        assert np.exp(y).shape == y.shape and counter.exponentials == before + y.size


def test_numbers_are_those_of_plain_arrays():
    rng = np.random.default_rng(0)
    Q, K, V = (rng.normal(size=s) for s in ((5, 3), (7, 3), (7, 2)))
    plan = Plan(0.5, (2, 3), last=1)
    O, L = kernels.forward(*Counter().given(Q, K, V), plan)
    assert all((a.x == b).all() for a, b in zip((O, L), kernels.forward(Q, K, V, plan)))


def test_masked_tiles_are_neither_loaded_nor_computed():
    """Of 4 by 4 square tiles a causal mask leaves 10."""
    all_of, causal = (counted("forward", 8, 8, 3, 5, Plan(1.0, (2, 2), last=last)) for last in (None, 0))
    assert 16 * causal.products == 10 * all_of.products
    assert 16 * causal.exponentials == 10 * all_of.exponentials
    assert all_of.read - causal.read == 6 * 2 * 2 * (3 + 5)


@pytest.mark.parametrize("name", PASSES)
def test_products_beside_pytorchs_counter(name):
    """The forward pass is two products; the others a whole number of those with d_k and with d_v."""
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    n, m, d_k, d_v = 6, 8, 5, 7
    products = counted(name, n, m, d_k, d_v, Plan(1.0, (2, 4))).products
    q, k, v = (1, 1, n, d_k), (1, 1, m, d_k), (1, 1, m, d_v)
    if name == "forward":
        assert 2 * products == sdpa_flop_count(q, k, v)
    if name == "backward, atomics":
        assert 2 * products == sdpa_backward_flop_count((1, 1, n, d_v), q, k, v)


def test_working_sets_grow_with_the_tile_and_the_order():
    for tile in ((2, 3), (4, 5)):
        needs = [working_set(name, 6, 7, tile) for name in TILES_OF_SCORES]
        assert needs[0] < needs[1] < needs[3] and needs[2] < needs[3]
        assert all(working_set(name, 6, 7, (8, 9)) > need for name, need in zip(TILES_OF_SCORES, needs))
