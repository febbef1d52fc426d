"""The factors of dropout: Philox's known answers, and the same factor for an entry wherever it is drawn."""

from contextlib import contextmanager

import pytest
import torch
from test_strips import factors

from attnmath.torch import philox, tiles
from attnmath.torch import scaled_dot_product_attention as attention
from attnmath.torch.functions import output_and_sums
from attnmath.torch.how import How
from by_definition import DERIVATIVES
from strips import cut_into

WORD = 2**32 - 1
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no such device"))]

# Random123, tests/kat_vectors, the lines "philox4x32 10": counter, key, result.
KNOWN = [[int(word, 16) for word in line.split()] for line in (
    "00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8",
    "ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd",
    "243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1",
)]


def words_of(counter, seed, device="cpu"):
    """What the module makes of four tensors, and of a number of 64 bits: (..., 4)."""
    counter = [torch.as_tensor(c, device=device) for c in counter]
    size = torch.broadcast_tensors(*counter)[0].numel()
    seed = seed - 2**64 if seed >= 2**63 else seed  # int64 has the same bits
    keys = philox.round_keys(torch.tensor(seed), torch.device(device))
    words = philox.philox(counter, keys, torch.empty(4, size, dtype=torch.int64, device=device))
    return (torch.stack(words, -1) & WORD).cpu()


def by_hand(counter, key):
    """Philox 4x32-10 with Python's whole numbers."""
    (a, b, c, d), (k, q) = counter, key
    for _ in range(10):
        one, other = 0xD2511F53 * a, 0xCD9E8D57 * c
        a, b, c, d = other >> 32 ^ b ^ k, other & WORD, one >> 32 ^ d ^ q, one & WORD
        k, q = k + 0x9E3779B9 & WORD, q + 0xBB67AE85 & WORD
    return a, b, c, d


def factor_by_hand(seed, h, i, j, rate):
    """The factor of one entry, as the module's text has it."""
    word = by_hand((h & WORD, i // 8, h >> 32, j), (seed & WORD, seed >> 32))[i % 4]
    if i % 8 >= 4:
        word = (word & 0xFFFF) << 16 | word >> 16
    signed = word - 2**32 if word >= 2**31 else word
    return (signed + 2**31 >= rate * 2**32) / (1 - rate)


def known_answers(device="cpu"):
    """Whether they come out: alone, in an array, and from words that broadcast."""
    for *line, w0, w1, w2, w3 in KNOWN:
        counter, seed, want = line[:4], line[4] | line[5] << 32, torch.tensor([w0, w1, w2, w3])
        many = [torch.full((5, 1, 3)[axis:], c, device=device) for axis, c in enumerate((*counter[:3], counter[3]))]
        if not torch.equal(words_of(counter, seed, device), want):
            return False
        if not all(torch.equal(x, want) for x in words_of([x.clone() for x in many], seed, device).view(-1, 4)):
            return False
    return True


def test_by_hand_has_the_known_answers():
    assert all(by_hand(x[:4], x[4:6]) == tuple(x[6:]) for x in KNOWN)


@pytest.mark.parametrize("device", DEVICES)
def test_known_answers(device):
    assert known_answers(device)


MISTAKES = {
    "a round too few": dict(ROUNDS=9),
    "a round too many": dict(ROUNDS=11),
    "multipliers exchanged": dict(MULTIPLIERS=(0xCD9E8D57, 0xD2511F53)),
    "another multiplier": dict(MULTIPLIERS=(0xD2511F53, 0xCD9E8D55)),
    "a multiplier as a signed number": dict(MULTIPLIERS=(0xD2511F53 - 2**32, 0xCD9E8D57)),
    "the key stays": dict(WEYL=(0, 0)),
    "the key's steps exchanged": dict(WEYL=(0xBB67AE85, 0x9E3779B9)),
    "another step of the key": dict(WEYL=(0x9E3779B9, 0xBB67AE84)),
    "a bit lost": dict(WORD=2**31 - 1),
    "a bit too many": dict(WORD=2**33 - 1),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_known_answers_refuse_a_mistake(mistake, monkeypatch):
    for name, value in MISTAKES[mistake].items():
        monkeypatch.setattr(philox, name, value)
    assert not known_answers()


FAR = dict(seed=2**63 - 2, h=2**62 + 12345, i=8 * 2**32 - 37, j=2**32 - 21), dict(seed=3, h=2**33 - 1, i=2**34 + 3, j=2**31 - 9)


@pytest.mark.parametrize("place", [dict(seed=0, h=0, i=0, j=0), dict(seed=2**40 + 7, h=3, i=5, j=2), *FAR])
@pytest.mark.parametrize("device", DEVICES)
def test_each_factor_is_that_of_its_four_numbers(place, device):
    seed, h, i, j = place.values()
    heads = torch.arange(h, h + 2, device=device)
    how = How(1.0, False, 0.375, torch.tensor(seed), first_row=i, first_key=j, heads=heads)
    R = factors(torch.zeros(2, 37, 1, device=device), torch.zeros(2, 21, 1, device=device), how)
    want = [[[factor_by_hand(seed, h + a, i + b, j + c, 0.375) for c in range(21)] for b in range(37)] for a in range(2)]
    assert torch.equal(R.cpu(), torch.tensor(want))


HOW = How(1.0, False, 0.25, torch.tensor(2**61 + 5))
Q, K = torch.zeros(2, 3, 45, 1), torch.zeros(2, 1, 50, 1)


@contextmanager
def threads(count):
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("rows, strip, counters", [(1, 1, 1), (3, 40, 1), (7, 600, 2**15), (8, 400, 100), (13, 10**5, 130)])
def test_the_same_for_strips_of_all_sizes(rows, strip, counters, monkeypatch):
    whole = factors(Q, K, HOW)
    monkeypatch.setitem(philox.COUNTERS, "cpu", counters)
    with cut_into(rows, strip, strip):
        assert torch.equal(factors(Q, K, HOW), whole)


def test_the_same_for_two_threads():
    q, k = torch.zeros(4, 300, 1), torch.zeros(4, 700, 1)
    with threads(1):
        one = factors(q, k, HOW)
    with threads(2):
        assert torch.equal(factors(q, k, HOW), one)


def test_a_part_has_the_factors_of_the_whole():
    whole, numbers = factors(Q, K, HOW), torch.arange(6).view(2, 3)
    for i, j in ((0, 0), (8, 7), (5, 30), (44, 49)):
        part = HOW._replace(first_row=i, first_key=j, heads=numbers[1:, :2])
        assert torch.equal(factors(Q[1:, :2, i:], K[1:, :, j:], part), whole[1:, :2, i:, j:])
    turned = HOW._replace(heads=numbers.flip(0)[:, [2, 0, 1]])
    assert torch.equal(factors(Q, K, turned), whole.flip(0)[:, [2, 0, 1]])
    alike = HOW._replace(heads=torch.tensor([[4]]))  # broadcast
    assert torch.equal(factors(Q, K, alike), whole[1:, 1:2].expand_as(whole))


def test_some_heads_and_rows_have_the_derivatives_of_the_whole():
    """Output, gradient and double backward of a call for a part, which says where it stands."""
    Q, K, V, G = (torch.randn(2, 3, size, 4, dtype=torch.float64) for size in (20, 9, 9, 20))
    how, seed = How(0.5, dropout=0.4), torch.tensor(8)

    def three(Q, K, V, G, how):
        Q = Q.clone().requires_grad_()
        O, _ = output_and_sums(Q, K, V, None, None, seed, how)
        (dQ,) = torch.autograd.grad(O, Q, G, create_graph=True)
        return torch.cat([O, dQ, *torch.autograd.grad(dQ.sin().sum(), Q)], -1)

    whole = three(Q, K, V, G, how)[:, 1:, 13:]
    part = [x[:, 1:] for x in (Q[..., 13:, :], K, V, G[..., 13:, :])]
    here = how._replace(first_row=13, heads=torch.tensor([[1, 2], [4, 5]]))
    assert abs(three(*part, here) - whole).max() < 1e-13
    assert abs(three(*part, how) - whole).max() > 0.1


def test_numbers_of_64_bits_have_the_same_factors_as_those_of_32():
    assert torch.equal(factors(Q.double(), K.double(), HOW).float(), factors(Q, K, HOW))


@pytest.mark.parametrize("options", [{}, dict(is_causal=True), dict(window=(4, 9))])
@pytest.mark.parametrize("cut", [(512, 2**20, 2**20), (3, 120, 12), (8, 200, 40), (5, 400, 1)])
def test_every_derivative_draws_the_same(cut, options, monkeypatch):
    """Each draw of each derivative, in strips and in tiles, is a part of what the definition has."""
    fill, drawn = tiles.Draws.fill, []

    def seen(draws, R, heads, rows, keys):
        fill(draws, R, heads, rows, keys)
        numbers = torch.arange(6).view(2, 3)[heads.box].flatten()
        drawn.append((draws.seed, numbers, rows, keys, R.clone()))

    init = tiles.Draws.__init__

    def noted(draws, how, *rest):
        init(draws, how, *rest)
        draws.seed = how.seed

    monkeypatch.setattr(tiles.Draws, "fill", seen)
    monkeypatch.setattr(tiles.Draws, "__init__", noted)
    x = tuple(torch.randn(2, 3, size, 2, dtype=torch.float64) for size in (11, 13, 13))
    more = tuple(map(torch.randn_like, x))
    dO, dO_dot = torch.randn(2, 2, 3, 11, 2, dtype=torch.float64)
    whole = {}
    with cut_into(*cut):
        for derivative in DERIVATIVES:
            torch.manual_seed(1)
            drawn.clear()
            derivative(lambda *x: attention(*x, dropout_p=0.4, **options), x, more, more, dO, dO_dot)
            assert drawn
            for seed, numbers, rows, keys, R in drawn:
                if int(seed) not in whole:
                    one = How(1.0, False, 0.4, seed)
                    with monkeypatch.context() as usual:
                        usual.setattr(tiles.Draws, "fill", fill)
                        whole[int(seed)] = factors(x[0], x[1], one).flatten(0, 1)
                assert torch.equal(R, whole[int(seed)][numbers][:, rows, keys]), derivative.__name__
    assert len(whole) == 1  # each call has one seed, each derivative that of its call


@pytest.mark.parametrize("rate", [0.001, 0.1, 0.5, 0.9])
def test_the_rate_and_the_neighbours(rate):
    """Within five deviations: how many are dropped, and how many together with another entry."""
    R = factors(torch.zeros(4, 512, 1), torch.zeros(4, 512, 1), How(1.0, False, rate, torch.tensor(11)))
    dropped = (R == 0).double()
    assert abs(dropped.mean() - rate) < 5 * (rate * (1 - rate) / R.numel()) ** 0.5
    assert torch.equal(R[R > 0].unique(), torch.tensor([1 / (1 - rate)]))
    z = (dropped - rate) / (rate * (1 - rate)) ** 0.5
    lags = [z[1:] * z[:-1]]
    for d in (*range(1, 10), 16, 32, 128, 256):
        lags += [z[:, d:] * z[:, :-d], z[..., d:] * z[..., :-d], z[:, d:, d:] * z[:, :-d, :-d]]
    assert all(abs(y.mean()) < 5 / y.numel() ** 0.5 for y in lags)


def test_rates_at_the_ends():
    def dropped(rate):
        return (factors(Q, K, HOW._replace(dropout=rate)) == 0).double().mean().item()

    assert [dropped(rate) for rate in (1e-12, 1 - 1e-12, 1.0)] == [0.0, 1.0, 1.0]


def test_a_seed_is_all_that_is_drawn():
    """The next number after a call and its derivatives is the same for all sizes."""
    after = []
    for n, m in ((1, 1), (30, 7), (5, 200)):
        torch.manual_seed(4)
        q, k = torch.ones(2, n, 3, requires_grad=True), torch.ones(2, m, 3)
        (dq,) = torch.autograd.grad(attention(q, k, k, dropout_p=0.5).sum(), q, create_graph=True)
        torch.autograd.grad(dq.square().sum(), q)
        after.append(torch.rand(()))
    torch.manual_seed(4)
    torch.randint(2**63 - 1, ())
    assert len({*map(float, after)}) == 1 and after[0] == torch.rand(())


def test_heads_that_share_keys_are_counted_like_others():
    q, k, eye = torch.zeros(2, 4, 6, 1), torch.zeros(2, 2, 9, 1), torch.eye(9).expand(2, 2, 9, 9)
    torch.manual_seed(0)
    shared = attention(q, k, eye, dropout_p=0.5, enable_gqa=True)
    torch.manual_seed(0)
    alone = attention(q, *(x.repeat_interleave(2, 1) for x in (k, eye)), dropout_p=0.5)
    assert torch.equal(shared, alone) and len({tuple(x.flatten().tolist()) for x in shared.flatten(0, 1)}) == 8


@pytest.mark.parametrize("where", [dict(first_row=-1), dict(first_key=-1), dict(first_row=2**35 - 44), dict(first_key=2**32 - 49)])
def test_places_without_a_counter_are_refused(where):
    with pytest.raises(ValueError, match="there are no such counters"):
        factors(Q, K, HOW._replace(**where))
