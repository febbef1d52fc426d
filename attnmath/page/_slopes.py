"""Derivatives of expressions: ∂ above / ∂ below, entries of the one by those of the other."""

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np

from attnmath.page._nodes import Misfit, Node, PageError
from attnmath.page._values import Value, magnitude


def loss_gradient(node: Node, loss: str) -> Node | None:
    """The name that ∂ loss / ∂ letter has elsewhere in the book: d and the letter."""
    if node.kind != "partial" or not loss or node.args[0].args != ("", loss):
        return None
    below = node.args[1]
    base, subs = below.args if below.kind == "index" else (below, None)
    if base.kind != "name" or base.args[0]:
        raise PageError("letter", "only a letter can stand below", below.start)
    name = replace(base, args=("d", base.args[1]))
    return name if subs is None else replace(below, args=(name, subs))


def partial(scene: Any, frame: Any, node: Node) -> Value:
    """∂ numerator / ∂ letter: entries of the numerator by entries of the letter."""
    plain = loss_gradient(node, scene.cast.loss)
    if plain is not None:
        return frame.evaluate(plain)
    return scene.slope(frame, node)


def slope(scene: Any, frame: Any, node: Node) -> Value:
    """∂ numerator / ∂ letter, by the derivatives of the scene."""
    numerator, denominator = node.args
    is_late = _is_late(scene, frame, numerator)
    if scene.is_view or scene.is_moved or is_late and not scene.cast.has_second:
        raise PageError("grammar", "the derivative of a derivative is not read")
    name, entries, below = _entries(scene, frame, denominator, is_late)
    find = scene.second_slopes if is_late else scene.slopes
    slopes = find(frame, numerator, name if is_late else name[1], entries)  # entries × rows × columns
    above = slopes.shape[1:]
    shape = slope_shape(above, below)
    x = slopes.reshape((len(entries), -1)).T.reshape(shape)
    return Value(scene.array(x), np.full(shape, magnitude(x)))


def _is_late(scene: Any, frame: Any, node: Node) -> bool:
    """Whether a gradient or a tangent stands in what is differentiated, or in what that is made of."""
    for name in (n.args for n in node.walk() if n.kind == "name"):
        local, definition = frame.locals.get(name), scene.definitions.get(name[1])
        if local and _is_late(scene, frame, local.body) or not local and name[0]:
            return True
        if definition and definition.is_late:
            return True
    return False


def _entries(scene: Any, frame: Any, node: Node, is_late: bool) -> tuple:
    """The letter of a denominator, with its prefix; its entries (from 0); the shape they form."""
    if node.kind == "func" and node.args[0] == "vec":
        name, entries, _ = _entries(scene, frame, node.args[1][0], is_late)
        return name, entries, (len(entries), 1)
    base, subs = node.args if node.kind == "index" else (node, ())
    name = base.args if base.kind == "name" else ("?", "")
    letter = scene.cast.rows.get(name[1], name[1])
    if name[1] in scene.cast.rows and not subs:
        raise PageError("index", f"{name[1]} is a row: it needs its index", node.start)
    given = is_late and (letter in scene.outputs if name[0] == "d" else not name[0] and letter in scene.primals)
    if is_late and not given:
        raise PageError("letter", "a gradient is differentiated by what is given alone", node.start)
    if not given and (name[0] or letter not in scene.env):
        raise PageError("letter", "only a letter can stand below", node.start)
    shape = scene.shape(letter)
    fixed = list(map(frame.integer, subs))
    spans = []
    for length, axis in zip(shape, scene.cast.letters[letter].axes):
        take = fixed.pop(0) - 1 if fixed and axis != "1" else None
        if take is not None and not 0 <= take < length:
            raise Misfit("index", f"index {take + 1} of {length}", node.start)
        spans.append(range(length) if take is None else (take,))
    entries = list(product(*spans))
    return (name[0], letter), entries, tuple(map(len, spans))[-2:]


def slope_shape(above: tuple, below: tuple) -> tuple:
    """The shape of ∂ above / ∂ below: entries of the one by entries of the other.

    A number by a matrix has the matrix's shape; a row by a row, or a column by a column,
    has a row for each entry above.
    """
    if below == (1, 1):
        return above
    if above == (1, 1):
        return below
    if above[0] == below[0] == 1 or above[1] == below[1] == 1:
        return (max(above), max(below))
    raise PageError("shape", "a row by a row, a column by a column; a matrix needs vec")
