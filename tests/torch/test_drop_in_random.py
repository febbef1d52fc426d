"""attnmath.torch.scaled_dot_product_attention against its definition: every derivative in random problems.

`make test` has 360 of them, `make at-length` a thousand.
"""

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from attnmath._words.tolerance import DROP_IN
from attnmath.torch import scaled_dot_product_attention as sdpa
from by_definition import DERIVATIVES, apart, by_autograd, plain
from strips import cut_into

EXAMPLES = 60, pytest.param(170, marks=pytest.mark.at_length)  # of each kind
KINDS = "no mask", "causal", "lower right", "boolean", "numbers", "numbers that need a gradient"
LAYOUTS = "as it is", "transposed", "heads inside", "every second", "expanded"


class Drawn(NamedTuple):
    """What hypothesis draws; the numbers follow from the seed."""

    batch: tuple  # (), (H,), (b, H), (a, b, H)
    per_group: int  # query heads for one head of keys and values
    shared: tuple  # whether all batches have the same Q, K, V
    sizes: tuple  # n, m, d_k, d_v
    mask_ones: tuple  # for the last five axes of the mask, whether it is 1 long
    mask_short: int  # so many leading axes of the mask are left out
    empty: bool  # a row may attend to nothing
    far: float  # what hides, in a mask of numbers
    scale: float | None
    rate: float  # of dropout
    layouts: tuple  # of Q, K, V, mask, dO
    moving: tuple  # which of Q, K, V are differentiated; the others are constants
    size: float  # of Q, K and the mask
    strip: tuple  # how many rows and heads a strip has at most, and a tile of it how many keys
    seed: int


bit, layout = st.booleans(), st.sampled_from(LAYOUTS)
problems = st.builds(
    Drawn,
    batch=st.sampled_from([(), (1,), (3,), (1, 2), (2, 1), (2, 3), (3, 4), (2, 2, 2)]),
    per_group=st.sampled_from([1, 1, 2, 3]),
    shared=st.tuples(bit, bit, bit),
    sizes=st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 5), st.integers(1, 5)),
    mask_ones=st.tuples(bit, bit, bit, bit, bit),
    mask_short=st.integers(0, 3),
    empty=bit,
    far=st.sampled_from([-torch.inf, -torch.inf, -1000.0, -1e30]),
    scale=st.sampled_from([None, None, 0.0, -0.7, 1.3]),
    rate=st.sampled_from([0.0, 0.0, 0.3, 0.5]),
    layouts=st.tuples(layout, layout, layout, layout, layout),
    moving=st.tuples(bit, bit, bit).map(lambda x: x if any(x) else (True, True, True)),
    size=st.sampled_from([0.3, 1.0, 3.0]),
    strip=st.tuples(st.sampled_from([2, 3, 100]), st.sampled_from([2, 6, 100]), st.sampled_from([1, 2, 100])),
    seed=st.integers(0, 2**31 - 1),
)


def stored(x, layout):
    """x as it lies in memory before it is seen as others have it; expanded: all rows are its first."""
    if layout == "transposed":
        return x.mT.contiguous()
    if layout == "heads inside" and x.ndim > 2:
        return x.transpose(-3, -2).contiguous()
    if layout == "every second":
        return torch.stack([x, x], -1)
    return x[..., :1, :].contiguous() if layout == "expanded" else x


def seen(x, layout, rows):
    """What is stored, in the shape that attention takes: a view, not contiguous."""
    if layout == "transposed":
        return x.mT
    if layout == "heads inside" and x.ndim > 2:
        return x.transpose(-3, -2)
    if layout == "every second":
        return x[..., 0]
    return x.expand(*x.shape[:-2], rows, -1) if layout == "expanded" else x


def mask_of(kind, p, scores, rng, draw):
    """None, or what may be attended to: booleans, or numbers that are added."""
    if kind in ("no mask", "causal"):
        return None
    n, m = scores[-2:]
    if kind == "lower right":
        return torch.ones(n, m, dtype=torch.bool).tril(m - n)
    shape = [1 if one else s for one, s in zip(p.mask_ones[-len(scores):], scores)][min(p.mask_short, len(scores) - 2):]
    keep = torch.rand(shape, generator=rng) < 0.6
    if p.empty:
        keep[..., -1, :] = False
    return keep if kind == "boolean" else (p.size * draw(*shape)).masked_fill(~keep, p.far)


def made(kind, p):
    """Tensors Q, K, V, mask and dO."""
    rng = torch.Generator().manual_seed(p.seed)

    def draw(*shape):
        return torch.randn(*shape, generator=rng, dtype=torch.float64)

    n, m, d_k, d_v = p.sizes
    *batch, G = p.batch or (0,)
    H = G * p.per_group
    lead = [[*(1 if one else b for b in batch), h][: len(p.batch)] for one, h in zip(p.shared, (H, G, G))]
    whole = [*(max(sizes) for sizes in zip(*lead))]
    scores = *(max(sizes) for sizes in zip(*lead[:2])), n, m
    Q, K, V = draw(*lead[0], n, d_k), draw(*lead[1], m, d_k), draw(*lead[2], m, d_v)
    mask, dO = mask_of(kind, p, scores, rng, draw), draw(*whole, n, d_v)
    x = p.size**0.5 * Q, p.size**0.5 * K, V, mask, dO
    return x, draw


def factors(kind, p, Q, K, V, mask):
    """The factors of dropout, read off: the output for values that are the rows of the identity."""
    if not p.rate:
        return None
    eye = torch.eye(K.shape[-2], dtype=V.dtype).expand(*V.shape[:-1], -1)
    torch.manual_seed(p.seed)
    R = sdpa(Q, K, eye, mask, p.rate, kind == "causal", scale=p.scale, enable_gqa=bool(p.batch) and p.per_group > 1)
    return (R != 0).to(R.dtype) / (1 - p.rate)


def errors(kind, p):
    """Of each derivative, how far it is from that of the definition; a problem has several strips."""
    rows, heads, keys = p.strip
    m = p.sizes[1]
    with cut_into(rows, rows * heads * m, rows * heads * min(keys, m)):
        return errors_in_strips(kind, p)


def errors_in_strips(kind, p):
    (Q, K, V, mask, dO), draw = made(kind, p)
    rows = [0 if y is None else y.shape[-2] for y in (Q, K, V, mask)]
    Q, K, V, mask = held = [None if y is None else stored(y, layout) for y, layout in zip((Q, K, V, mask), p.layouts)]
    moving = [*p.moving, kind == KINDS[-1]]
    causal, grouped = kind == "causal", bool(p.batch) and p.per_group > 1

    def given(y):
        y = iter(y)
        y = [next(y) if moves else still for still, moves in zip(held, moving)]
        return [None if z is None else seen(z, *how) for z, *how in zip(y, p.layouts, rows)]

    def ours(*y):
        return sdpa(*given(y), p.rate, causal, scale=p.scale, enable_gqa=grouped)

    x = tuple(y for y, moves in zip(held, moving) if moves)
    R = factors(kind, p, *given(x))

    def theirs(*y):
        return plain(*given(y), R, causal, p.scale)

    x_dot, x_bar = (tuple(draw(*y.shape) for y in x) for _ in "ab")
    O_bar = seen(stored(dO, p.layouts[4]), p.layouts[4], dO.shape[-2])
    rest = x, x_dot, x_bar, O_bar, draw(*dO.shape)
    kept = [y.clone() for y in (*x, *x_dot, *x_bar, *rest[3:])]
    found, want = {}, by_autograd(theirs, *rest)
    for derivative in DERIVATIVES:
        torch.manual_seed(p.seed)
        found[derivative.__name__] = apart(derivative(ours, *rest), want[derivative.__name__])
    assert all(map(torch.equal, kept, (*x, *x_dot, *x_bar, *rest[3:]))), "an input was modified"
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("examples", EXAMPLES)
def test_every_derivative(kind, examples):
    @settings(max_examples=examples, derandomize=True, deadline=None, database=None)
    @given(p=problems)
    def in_each(p):
        found = errors(kind, p)
        assert max(found.values()) <= DROP_IN, found

    in_each()


def different_rows():
    """Of the 12 rows of the factors of two heads, in three strips each, how many are different."""
    Q, K, eye = torch.zeros(2, 6, 1), torch.zeros(2, 40, 1), torch.eye(40).expand(2, 40, 40)
    with cut_into(2, 80, 40):
        return len({tuple(row) for row in sdpa(Q, K, eye, dropout_p=0.5).flatten(0, 1).tolist()})


def test_each_head_and_each_strip_drops_other_weights():
    torch.manual_seed(0)
    assert different_rows() == 12
