"""Large random primes, each one less than a multiple of the one below it; roots and fractions modulo them.

Where p divides q - 1, there is a g with g^p = 1 modulo q, and x -> g^x turns sums modulo p
into products modulo q: an exponential function between two finite fields.

The sign of a root has to be known. Where x and y have roots, sqrt(x y) = sqrt(x) sqrt(y). But sqrt(x^2)
is x or -x. A radicand that is seen without a root at some point, where all before it have theirs, is no
square and no product of them and a square: then all signs of its root are alike, and one point decides.
"""

from fractions import Fraction
from functools import lru_cache
from itertools import product
from math import nan
from random import Random

Residue = int | float | None  # nan where there is none at this point, None where there is none at all

BITS = 127  # of the lowest prime
CHOICE = 2**112  # about so many of this length are suitable: one in 88 is prime, one in 128 of these
SQUARES = (2, 3, 5, 7, 11, 13)  # have roots in every field, so that 1/sqrt(d_k) has one
SMALL = [n for n in range(2, 500) if all(n % k for k in range(2, n))]
WITH_ROOT = {n: {x for x in range(n) if (x in {k * k % n for k in range(1, n)}) != (n % 4 == 3)} - {0}
             for n in SQUARES[1:]}  # p modulo n, where n has a root modulo p, which is 7 modulo 8
LIMIT = 2**40  # a number without letters is the fraction of terms below this with its residue
SEARCHED = 6  # radicands whose products are looked through
WITNESSES = SMALL[:40]  # a composite number passes for a random base with at most 1/4


def is_prime(n: int) -> bool:
    """Whether n is a prime, by the test of Miller and Rabin."""
    if n < 500 or any(n % k == 0 for k in SMALL):
        return n in SMALL
    odd, twos = n - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    return all(_passes(n, base, odd, twos) for base in WITNESSES)


def _passes(n: int, base: int, odd: int, twos: int) -> bool:
    x = pow(base, odd, n)
    if x in (1, n - 1):
        return True
    for _ in range(twos - 1):
        x = x * x % n
        if x == n - 1:
            return True
    return False


def is_square(x: int, p: int) -> bool:
    """Whether x, not 0, is a square modulo the prime p: Euler's criterion."""
    return pow(x, (p - 1) // 2, p) == 1


def root(x: Residue, p: int) -> Residue:
    """The root of x modulo p that is of odd order; nan if there is none.

    Numbers of odd order take the place of the positive ones: products and quotients of
    them are such numbers, and -1 is not.
    """
    if not isinstance(x, int) or x == 0:
        return x
    odd = (p - 1) // (2 if p % 4 == 3 else 8)
    return pow(x, (odd + 1) // 2, p) if pow(x, odd, p) == 1 else nan


def inverse_mod(x: Residue, p: int) -> Residue:
    """1 / x modulo p; nan if x is 0."""
    if not isinstance(x, int):
        return x
    return pow(x, -1, p) if x else nan


@lru_cache(maxsize=512)
def chain(seed: int, length: int, has_i: bool) -> tuple[int, ...]:
    """Primes p_1, p_2, ... where each p_k divides p_(k+1) - 1.

    They are 7 modulo 8, so that half of all numbers have a root; all but the lowest are 9
    modulo 16 if -1 is to have one.
    """
    rng = Random(f"{seed} {length} {has_i}")
    primes = [_lowest(rng)]
    while len(primes) < length:
        primes.append(_above(primes[-1], has_i))
    return tuple(primes)


def _lowest(rng: Random) -> int:
    while True:
        p = rng.getrandbits(BITS - 1) | 1 << BITS - 1
        p += 7 - p % 8
        if _is_suitable(p):
            return p


def _above(p: int, has_i: bool) -> int:
    """The first suitable prime k p + 1."""
    k, step = (8, 16) if has_i else (2, 4)
    while not _is_suitable(k * p + 1):
        k += step
    return k * p + 1


def _is_suitable(p: int) -> bool:
    """A prime modulo which small numbers have roots."""
    if p % 4 == 3 and (p % 8 != 7 or any(p % n not in roots for n, roots in WITH_ROOT.items())):
        return False  # by quadratic reciprocity
    return all(p % k for k in SMALL) and (p % 4 == 3 or root(2, p) == root(2, p)) and is_prime(p)


def root_of_minus_one(p: int) -> int:
    """A number whose square is -1 modulo p, which is 1 modulo 4."""
    other = next(x for x in SMALL if not is_square(x, p))
    return pow(other, (p - 1) // 4, p)


def element(p: int, q: int, rng: Random) -> int:
    """A random number of order p modulo q, where p divides q - 1."""
    while True:
        g = pow(rng.randrange(2, q - 1), (q - 1) // p, q)
        if g != 1:
            return g


class Radicands:
    """What a root was taken of at a point, in order, without what is a product of others."""

    def __init__(self, q: int) -> None:
        self.q = q
        self.known: dict[int, tuple[int, Fraction]] = {}  # residue: its number in the order, or 0; the factor
        self.squares: set[int] = set()  # of letters that are positive, and their inverses

    @property
    def count(self) -> int:
        """How many there are that do not follow from others."""
        return max((which for which, _ in self.known.values()), default=0)

    def number(self, x: int) -> tuple[int, Fraction]:
        """The number of a radicand, from 1, and 1; if its root follows from others, 0 and a factor."""
        if x not in self.known:
            factor = self._factor(x)
            self.known[x] = (self.count + 1, Fraction(1)) if factor is None else (0, factor)
        return self.known[x]

    def _factor(self, x: int) -> Fraction | None:
        """The positive fraction by which it is a product of radicands and of their inverses."""
        others = [y for y, (which, _) in self.known.items() if which][-SEARCHED:]
        for powers in product((0, 1, -1), repeat=len(others)):
            ratio = x
            for y, power in zip(others, powers):
                ratio = ratio * pow(y, -power, self.q) % self.q
            if not any(powers):
                continue
            if ratio in self.squares:
                return Fraction(1)
            factor = reconstructed(ratio, self.q)
            if factor is not None and factor > 0:
                return factor
        return None

    def take_square(self, x: int) -> None:
        """x is the square of what is positive."""
        self.squares |= {x, pow(x, -1, self.q)}


def reconstructed(value: int, q: int) -> Fraction | None:
    """The fraction of two terms below LIMIT whose residue modulo q is value."""
    a, b, x, y = q, value, 0, 1
    while b >= LIMIT:
        a, b, x, y = b, a % b, y, x - a // b * y
    return Fraction(b, y) if 0 < abs(y) < LIMIT else None


@lru_cache
def square_part(x: int) -> tuple[int, tuple[int, ...]]:
    """n and different primes with x = n^2 times their product, for x below LIMIT."""
    primes: list[int] = []
    n, k = 1, 2
    while k * k <= x:
        while x % (k * k) == 0:
            x, n = x // (k * k), n * k
        if x % k == 0:
            x = x // k
            primes.append(k)
        k += 1
    return n, (*primes, *([x] if x > 1 else []))
