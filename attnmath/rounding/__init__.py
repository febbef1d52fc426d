"""How far a correct attention may be off, entry by entry, because its numbers are rounded.

bounds   the bounds of the output and of the gradients
formats  number formats, and what three kinds of programs round
heads    two heads that round like real programs
"""

from attnmath.rounding.bounds import attention, attention_vjp
from attnmath.rounding.formats import nearest, ratio, unit_roundoff

__all__ = ["attention", "attention_vjp", "nearest", "ratio", "unit_roundoff"]


def __dir__() -> list[str]:
    return __all__
