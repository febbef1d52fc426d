"""Which roots are new, and which follow from others: the sign of a root has to be known.

Where x and y have roots, sqrt(x y) = sqrt(x) sqrt(y). But sqrt(x^2) is x or -x. A radicand that is
seen without a root at some point, where all before it have theirs, is no square and no product
of them and a square: then all signs of its root are alike, and one point decides.
"""

from fractions import Fraction
from functools import lru_cache
from itertools import product

LIMIT = 2**40  # a number without letters is the fraction of terms below this with its residue
SEARCHED = 6  # radicands whose products are looked through


class Radicands:
    """What a root was taken of at a point, in order, without what is a product of others."""

    def __init__(self, q: int) -> None:
        self.q, self.known = q, {}  # residue -> its number in the order, or 0; the factor it has
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
    n, primes, k = 1, [], 2
    while k * k <= x:
        while x % (k * k) == 0:
            x, n = x // (k * k), n * k
        if x % k == 0:
            x = x // k
            primes.append(k)
        k += 1
    return n, (*primes, *([x] if x > 1 else []))
