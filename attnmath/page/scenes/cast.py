"""The cast: every letter with its shape, and where its value comes from.

Primals are drawn at random; the other letters follow from the definitions that the
displays give. A file of casts says neither the shapes that the tables of letters have nor the
displays of its own page: `casts.py` finds both.
"""

from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple

from attnmath.page.language.letters import NUMBER
from attnmath.page.language.nodes import PageError

PRIMAL = ("random", "positive", "count", "mask")


class Letter(NamedTuple):
    """Axes from the left (the last two are the matrix), and where the value comes from.

    `origin` is random, positive (random, for what must not be negative), count (a whole
    number from 1), mask (0 or 1, as a setting has it), or the label of a display. Until they
    are found in the tables of letters and on the page, axes are empty, and the origin is what
    all letters of one display have in common: their names.
    """

    axes: tuple[str, ...]
    origin: str = "random"

    @property
    def is_primal(self) -> bool:
        return self.origin in PRIMAL


@dataclass(frozen=True)
class Cast:
    """Letters with their origin; outputs carry a random cotangent each."""

    name: str
    sizes: dict
    letters: dict[str, Letter]
    settings: tuple
    outputs: tuple = ()
    rows: dict = field(default_factory=dict)  # q -> Q: q_i is row i of Q
    names: dict = field(default_factory=dict)  # letter -> its name in the code, if another
    constants: tuple = ()  # letters that never move: no tangent, no gradient
    readings: tuple = ()  # sizes that equal another one in a setting: a letter read in two ways
    loss: str = ""  # a name for the loss, where derivatives are written with ∂
    has_second: bool = False  # the tangents of gradients are letters of this cast
    moving: tuple = ()  # outputs whose gradients move; those of the others are held still
    same: dict = field(default_factory=dict)  # m -> n: where the tables say m, here it is n
    tables: str = ""  # the chapter whose tables have the shapes, if not its own
    file: str = ""  # where it is written

    def knows(self, letter: str) -> bool:
        return letter in self.letters or letter in self.rows or letter == self.loss != ""

    def moves(self, letter: str) -> bool:
        """Whether the gradient of a letter has a tangent."""
        return self.has_second and (letter in self.moving or letter not in self.outputs)

    def axes(self, prefix: str, letter: str, at: int | None = None) -> tuple:
        """The axes that a letter's subscripts consume, from the left."""
        if prefix == "" and letter in (*self.sizes, self.loss):
            return ()
        spec = self.letters.get(self.rows.get(letter, letter))
        if spec is None:
            place = f"; it is written in {self.file}" if self.file else ""
            raise PageError("letter", f"{letter} is not in the cast {self.name!r}{place}", at)
        if prefix and self.rows.get(letter, letter) in self.constants:
            raise PageError("letter", f"{letter} is a constant: it has no derivative", at)
        if prefix == "dotd" and not self.moves(self.rows.get(letter, letter)):
            raise PageError("letter", f"the tangent of d{letter} is not in the cast {self.name!r}", at)
        return tuple(axis for axis in spec.axes if axis != "1")

    def plus(self, letters: dict[str, Letter], **changes: Any) -> "Cast":
        """With more letters, of which those that are drawn come first, and other changes."""
        both = self.letters | letters
        made = {k: one for k, one in both.items() if not one.is_primal}
        return replace(self, letters={k: one for k, one in both.items() if one.is_primal} | made, **changes)

    def without(self, names: str, **changes: Any) -> "Cast":
        """Without some letters and their rows, and with other changes."""
        lost = {*_names(names)}
        letters = {k: one for k, one in self.letters.items() if k not in lost}
        rows = {row: k for row, k in self.rows.items() if k not in lost}
        return replace(self, letters=letters, rows=rows, **changes)


# ---- how a file of casts says it -----------------------------------------------------------------


def drawn(names: str, origin: str = "random") -> dict[str, Letter]:
    """Letters whose values are drawn: "Q, K, E: d_k d_k, c: number", each with a shape if no table has it."""
    found = {}
    for one in names.split(","):
        name, _, shape = map(str.strip, one.partition(":"))
        found[name] = Letter(NUMBER if shape == "number" else tuple(shape.split()), origin)
    return found


positive = partial(drawn, origin="positive")  # from what is not negative
counts = partial(drawn, origin="count")  # whole numbers from 1
masks = partial(drawn, origin="mask")  # 0 or 1, as a setting has it


def made(names: str, label: str = "") -> dict[str, Letter]:
    """Letters that one display defines: the first of the chapter's page that does, or that with this label."""
    return drawn(names, label or ", ".join(drawn(names)))


def rows(names: str) -> dict[str, str]:
    """Letters of rows: "q, hat p" are those of Q and of hat P."""
    matrices = (name.rpartition(" ") for name in _names(names))
    return {"".join(one): "".join((*one[:2], one[2].upper())) for one in matrices}


def _names(names: str) -> list[str]:
    return [name.strip() for name in names.split(",")]
