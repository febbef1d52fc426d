"""What roundings make of a number, of a product and of a sum: how far each may be off.

A rounding multiplies a number by e to the power of at most its unit roundoff, up or down;
so roundings add up in the exponent, where the errors of the scores are already.
"""

import math

from array_api_compat import is_torch_array

from attnmath._words.arrays import ALL, Array, Scalar, is_number, namespace, rowsum, shape, sum_to
from attnmath.rounding.formats import Model
from attnmath.rounding.strips import At, part, zeros

# e to this power says that nothing is promised, and still can be multiplied.
MOST_EXPONENT = 300.0


def grown(x: Array, off: Array, steps: float, least: float = 0.0) -> Array:
    """How far x may be off after more roundings, which multiply it by e^steps at most."""
    more = abs(x)
    more *= math.expm1(min(steps, MOST_EXPONENT))
    return lifted(add(more, off, math.exp(min(steps, MOST_EXPONENT))), least)


def onward(off: Array, size: Array, steps: float, least: float = 0.0) -> Array:
    """How far a number of this size may be off after more roundings, in the place of how far it was."""
    off *= math.exp(min(steps, MOST_EXPONENT))
    return lifted(add(off, size, math.expm1(min(steps, MOST_EXPONENT))), least)


def lifted(x: Array, least: Scalar) -> Array:
    """Numbers that are not negative, and so much more where they are not 0."""
    if not is_number(least) or least and not (math.prod(shape(x)) and namespace(x).min(x) > 2.0**60 * least):
        return x + least * (x > 0)
    return x


def add(x: Array, y: Array, z: Scalar) -> Array:
    """x + y z, in the place of x."""
    if is_torch_array(x) and is_torch_array(y):
        return x.add_(y, alpha=z) if is_number(z) else x.addcmul_(y, z)
    x += y * z
    return x


def spread(P: Array, below: Array, phi: Array) -> Array:
    """P (e^phi - 1) for P = e^-below, in the place of phi; also where P is too small for a number."""
    xp = namespace(P)
    if math.prod(shape(phi)) and not xp.max(phi) < 1:
        far = xp.exp(xp.clip(phi - below, max=MOST_EXPONENT)) - P
        return xp.where(phi < 1, P * xp.expm1(xp.clip(phi, max=1.0)), far)
    phi = phi.expm1_() if is_torch_array(phi) else xp.expm1(phi, out=phi)
    phi *= P
    return phi


def product(
    f: Model, X: Array, X_off: Array | None, Y: Array, k: float, stores: int = 1, size: Scalar = 0.0
) -> Array:
    """How far X Y, times what is of this size, may be off: each term is rounded k times, and stored in between."""
    steps = k * f.sums + (stores - 1) * f.stored
    return lifted(grown(X, 0.0 if X_off is None else X_off, steps) @ abs(Y), lost(f, k, stores, size))


def lost(f: Model, k: float, stores: int, size: Scalar) -> Scalar:
    """What underflow may cost in a sum of k terms that is stored in between, times what is of this size."""
    return (k * f.least_sum + (stores - 1) * f.least_stored) * (1 + size) + size * f.least_stored


def largest(gamma: Scalar) -> Scalar:
    """The size of a scale; the largest, if queries or keys have scales of their own."""
    if is_number(gamma) or 0 in shape(gamma):
        return abs(gamma) if is_number(gamma) else 0.0
    return namespace(gamma).max(abs(gamma), axis=tuple(range(-min(2, gamma.ndim), 0)), keepdims=True)


def row_sum_off(f: Model, x: Array, off: Array, k: float) -> Array:
    """How far the row sum of x may be off, products and all; x is not negative."""
    return grown(rowsum(x), rowsum(off), (k + 2) * f.sums + f.entries, k * f.least_entry)


class Sums:
    """How far a gradient may be off, summed strip by strip to the shape of what was broadcast, and returned."""

    def __init__(self, f: Model, x: Array, size: tuple[int, ...], like: Scalar) -> None:
        """Of gradients of this size, in the library of x."""
        self.f, self.steps, self.shared = f, f.stored + 2 * f.entries, shape(like) != size
        self.count = math.prod(size) // max(math.prod(shape(like)), 1)  # how many are added up
        # How far it is off; where it is shared, also what it is, and the sizes of that.
        self.off, *self.sums = (zeros(x, shape(like)) for _ in range(1 + 2 * self.shared))

    def add(self, at: At, x: Array, off: Array) -> None:
        """What a strip, or all strips of some items, make of it."""
        if not self.shared:
            part(self.off, at)[...] = grown(x, off, self.steps, self.f.least_stored)
            return
        for total, more in zip((self.off, *self.sums), (off, x, abs(x))):
            here = part(total, at)
            here += sum_to(more, here)

    def returned(self) -> Array:
        """How far the sum is off, once it is complete."""
        if not self.shared:
            return self.off
        f, (x, size) = self.f, self.sums
        more = grown(size, self.off, self.steps + f.entries + (self.count + 8) * f.sums)
        more = more + self.count * max(f.least_sum, f.least_stored) * (more > 0)
        return grown(x, more, f.stored, f.least_stored)


def gathered(f: Model, x: Array, off: Array, like: Scalar | None) -> Array | None:
    """How far x is off, summed to the shape of what was broadcast, and returned."""
    if like is None:
        return None
    sums = Sums(f, x, shape(x), like)
    sums.add((ALL,) * x.ndim, x, off)
    return sums.returned()
