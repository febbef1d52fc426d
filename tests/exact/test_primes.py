"""The primes of exact arithmetic, certified by flint, which proves that a number is prime."""

from math import nan
from random import Random

import pytest
from flint import fmpz, fmpz_mod_ctx

from attnmath._exact import primes as primes_module
from attnmath._exact.primes import (
    SQUARES,
    chain,
    element,
    inverse_mod,
    is_prime,
    is_square,
    root,
    root_of_minus_one,
)

CHAINS = [(seed, length, has_i) for seed in range(3) for length in (2, 3) for has_i in (False, True)]


def order_is_odd(x, p):
    """Whether x^k = 1 for the odd part k of p - 1."""
    k = p - 1
    return pow(x, k // (k & -k), p) == 1


chains = pytest.mark.parametrize("given", CHAINS)


@chains
def test_the_primes_are_primes(given):
    assert all(fmpz(p).is_prime() for p in chain(*given))


@chains
def test_each_prime_divides_the_next_less_one(given):
    primes = chain(*given)
    assert len(primes) == given[1] and all((q - 1) % p == 0 for p, q in zip(primes, primes[1:]))


@chains
def test_the_primes_are_large_and_grow(given):
    primes = chain(*given)
    assert list(primes) == sorted(set(primes)) and primes[0] > 2**126


@chains
def test_minus_one_has_a_root_where_it_is_asked_for(given):
    lowest, *others = chain(*given)
    assert not is_square(lowest - 1, lowest)
    assert all(is_square(p - 1, p) == given[2] for p in others)


@chains
def test_two_has_a_root_of_odd_order_and_minus_one_has_none(given):
    """So that there is a root of 1/2, and one of each power of it; numbers of odd order are like positive ones."""
    for p in chain(*given):
        r = root(2, p)
        assert r * r % p == 2 and order_is_odd(r, p) and root(p - 1, p) != root(p - 1, p)


@chains
def test_small_numbers_have_roots(given):
    """flint's root, and ours."""
    for p in chain(*given):
        field = fmpz_mod_ctx(fmpz(p))
        for x in SQUARES if p % 4 == 3 else SQUARES[:1]:
            assert field(x).sqrt() ** 2 == x and field(x).sqrt() in (root(x, p), p - root(x, p))


@pytest.mark.parametrize("length", [2, 3])
def test_minus_one_is_a_square_of_what_is_returned(length):
    assert all(pow(root_of_minus_one(p), 2, p) == p - 1 for p in chain(2, length, True)[1:])


def test_another_seed_has_other_primes_and_the_same_seed_the_same():
    primes = [chain(seed, 2, False)[0] for seed in range(4)]
    assert len(set(primes)) == 4
    primes_module.chain.cache_clear()
    assert primes == [chain(seed, 2, False)[0] for seed in range(4)]


def test_is_prime_agrees_with_flint():
    """Up to ten thousand, and for pseudoprimes to many bases."""
    assert all(is_prime(n) == fmpz(n).is_prime() for n in range(10_000))
    carmichael = 561, 41041, 825265, 321197185, 3215031751, 3825123056546413051
    large = [k * 2**89 + 1 for k in range(1, 200)] + [(2**61 - 1) * (2**89 - 1), 2**127 - 1]
    assert all(is_prime(n) == fmpz(n).is_prime() for n in (*carmichael, *large))


@pytest.mark.parametrize("has_i", [False, True])
def test_an_element_has_the_order_that_is_asked_for(has_i):
    p, q = chain(1, 2, has_i)
    g = element(p, q, Random(2))
    assert g != 1 and pow(g, p, q) == 1  # p is a prime: no smaller order


def numbers(p, count=100):
    return [Random(f"{p} {k}").randrange(1, p) for k in range(count)]


@pytest.mark.parametrize("has_i", [False, True])
def test_a_root_is_one_and_is_of_odd_order(has_i):
    """It is there for half of all numbers, or for one in eight."""
    p = chain(3, 2, has_i)[-1]
    there = {x: root(x, p) for x in numbers(p) if root(x, p) == root(x, p)}
    assert 2 < len(there) < 25 if has_i else 30 < len(there) < 70
    assert all(r * r % p == x and order_is_odd(r, p) for x, r in there.items())


@pytest.mark.parametrize("has_i", [False, True])
def test_a_number_without_such_a_root_is_told(has_i):
    p = chain(3, 2, has_i)[-1]
    for x in numbers(p):
        assert (root(x, p) == root(x, p)) == order_is_odd(x, p)
    assert root(p - 1, p) != root(p - 1, p)


@pytest.mark.parametrize("has_i", [False, True])
def test_the_root_of_a_product_is_the_product_of_the_roots(has_i):
    p = chain(4, 2, has_i)[-1]
    x, y, *_ = (x for x in numbers(p) if root(x, p) == root(x, p))
    assert root(x * y % p, p) == root(x, p) * root(y, p) % p


def test_what_is_missing_stays_missing():
    p = chain(5, 2, False)[0]
    assert root(None, p) is None and inverse_mod(None, p) is None
    assert root(nan, p) != root(nan, p) and inverse_mod(nan, p) != inverse_mod(nan, p)
    assert inverse_mod(0, p) != inverse_mod(0, p) and root(0, p) == 0


def test_an_inverse_is_one():
    p = chain(5, 2, False)[0]
    assert all(x * inverse_mod(x, p) % p == 1 for x in numbers(p))
