"""How far a correct attention may be off, entry by entry, because its numbers are rounded.

bounds    the bounds of the output and of the gradients
tangents  the bounds of the tangent of the output
sinks     the bound of the gradient of sinks
lemmas    what roundings make of a number, a product and a sum
formats   number formats, and what three kinds of programs round
heads     two heads that round like real programs
strips    what a head is cut into, so that memory is linear in queries and keys
"""

from attnmath.rounding.bounds import attention, attention_vjp
from attnmath.rounding.formats import nearest, ratio, unit_roundoff
from attnmath.rounding.tangents import attention_jvp

__all__ = ["attention", "attention_jvp", "attention_vjp", "nearest", "ratio", "unit_roundoff"]


def __dir__() -> list[str]:
    return __all__
