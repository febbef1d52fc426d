"""Which roots are new, and which follow from others: the sign of a root has to be known.

Where x and y have roots, sqrt(x y) = sqrt(x) sqrt(y). But sqrt(x^2) is x or -x. A radicand that is
seen without a root at some point, where all before it have theirs, is no square and no product
of them and a square: then all signs of its root are alike, and one point decides.
"""

from fractions import Fraction
from itertools import product

from attnmath._primes import SQUARES

LIMIT = 2**40  # a number without letters is the fraction of terms below this with its residue
SEARCHED = 6  # radicands whose products are looked through


class Radicands:
    """What a root was taken of at a point, in order, without what is a product of others."""

    def __init__(self, q: int) -> None:
        self.q, self.known = q, {}  # residue -> its number in the order, or 0
        self.squares: set[int] = set()  # of letters that are positive, and their inverses

    @property
    def count(self) -> int:
        """How many there are that do not follow from others."""
        return max(self.known.values(), default=0)

    def number(self, x: int) -> int:
        """The number of a radicand, from 1; 0 if its root follows from those before it."""
        if x not in self.known:
            self.known[x] = 0 if self._follows(x) else self.count + 1
        return self.known[x]

    def _follows(self, x: int) -> bool:
        """Whether it is a product of radicands, or of their inverses, and small primes."""
        others = [y for y, which in self.known.items() if which][-SEARCHED:]
        for powers in product((0, 1, -1), repeat=len(others)):
            ratio = x
            for y, power in zip(others, powers):
                ratio = ratio * pow(y, -power, self.q) % self.q
            if any(powers) and (ratio in self.squares or self._has_root(reconstructed(ratio, self.q))):
                return True
        return False

    def take_square(self, x: int) -> None:
        """x is the square of what is positive."""
        self.squares |= {x, pow(x, -1, self.q)}

    def _has_root(self, constant: Fraction | None) -> bool:
        """Whether it is a positive fraction whose prime factors all have roots."""
        if constant is None or constant <= 0:
            return False
        rest = constant.numerator * constant.denominator
        for prime in SQUARES:
            while rest % prime == 0:
                rest //= prime
        return rest == 1


def reconstructed(value: int, q: int) -> Fraction | None:
    """The fraction of two terms below LIMIT whose residue modulo q is value."""
    a, b, x, y = q, value, 0, 1
    while b >= LIMIT:
        a, b, x, y = b, a % b, y, x - a // b * y
    return Fraction(b, y) if 0 < abs(y) < LIMIT else None
