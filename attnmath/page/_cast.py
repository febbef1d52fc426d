"""The cast: every letter with its shape, and scenes that give the letters values.

Primals are drawn at random. The other letters follow from the page's own definitions, so
that the oracle differentiates what the page says and knows no closed form. A scene is one
cast with values: NumPy with the complex step as its oracle, or torch with autograd.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attnmath.page._evaluate import Frame, Local
from attnmath.page._scope import scope
from attnmath.page._syntax import Node, PageError, Statement
from attnmath.page._values import Value, magnitude, plain

STEP = 1e-30  # of the complex step: no difference is taken, so it can be this small


class Letter(NamedTuple):
    """Axes from the left (the last two are the matrix); `origin` is random or a label."""

    axes: tuple[str, ...]
    origin: str = "random"


@dataclass(frozen=True)
class Setting:
    """One way to fill a cast: a seed, sizes of its own, a change of the primals."""

    name: str
    seed: int
    sizes: dict = field(default_factory=dict)
    change: Callable[[dict, dict], None] = lambda values, sizes: None


@dataclass(frozen=True)
class Cast:
    """Letters with their origin; outputs carry a random cotangent each."""

    name: str
    sizes: dict
    letters: dict
    outputs: tuple
    settings: tuple
    rows: dict = field(default_factory=dict)  # q -> Q: q_i is row i of Q

    def knows(self, letter: str) -> bool:
        return letter in self.letters or letter in self.rows

    def axes(self, prefix: str, letter: str, at: int | None = None) -> tuple:
        """The axes that a letter's subscripts consume, from the left."""
        if prefix == "" and letter in self.sizes:
            return ()
        spec = self.letters.get(self.rows.get(letter, letter))
        if spec is None:
            raise PageError("letter", f"{letter} is not in the cast {self.name!r}", at)
        return tuple(axis for axis in spec.axes if axis != "1")


class Definition(NamedTuple):
    """`letter_{indices} := body`, as a display of the page gives it."""

    indices: tuple
    body: Node
    ranges: dict  # index -> axis name
    locals: dict

    @property
    def is_late(self) -> bool:
        """It speaks of gradients or derivatives: found after them, not differentiated."""
        nodes = list(self.body.walk())
        return any(n.kind == "partial" or n.kind == "name" and n.args[0] for n in nodes)

    @property
    def names(self) -> set:
        return {n.args for n in self.body.walk() if n.kind == "name"}


def define(cast: Cast, letter: str, statements: tuple[Statement, ...]) -> Definition | None:
    """The first statement whose left side is the letter, or its entries or rows."""
    locals_: dict = {}
    for statement in statements:
        if statement.is_local:
            continue
        left = statement.members[0]
        base, subs = left.args if left.kind == "index" else (left, ())
        if base.kind != "name" or base.args[0] or statement.relations[0] != "=":
            continue
        if cast.rows.get(base.args[1], base.args[1]) == letter:
            found = scope(statement, cast, locals_)
            names = tuple(sub.args[1] for sub in subs)
            return Definition(names, statement.members[1], found.axis, {})
    return None


class Scene:
    """A cast with values. `letter`, `size`, `array` and `partial` are what frames ask."""

    def __init__(self, cast: Cast, setting: Setting, definitions: dict):
        self.cast, self.setting = cast, setting
        self.sizes = {**cast.sizes, **setting.sizes}
        self.definitions = definitions
        rng = np.random.default_rng(setting.seed)
        primals = [k for k, spec in cast.letters.items() if spec.origin == "random"]
        self.primals = {k: self._draw(rng, k) for k in primals}
        self.tangents = {k: self._draw(rng, k) for k in primals}
        self.cotangents = {k: self._draw(rng, k) for k in cast.outputs}
        setting.change(self.primals, self.sizes)
        self.outputs = cast.outputs[:1]
        self.cache: dict = {}
        self.is_view = False  # with the letters of another point than its own
        self.start()
        self.env = self.run(self.primals)

    def start(self) -> None:
        """For the number type's own preparations."""

    def _draw(self, rng, letter: str) -> np.ndarray:
        shape = self.shape(letter)
        if shape == (1, 1):
            return rng.uniform(0.5, 1.5, shape)
        return rng.standard_normal(shape)

    def shape(self, letter: str) -> tuple:
        return tuple(1 if a == "1" else self.sizes[a] for a in self.cast.letters[letter].axes)

    def zeros(self) -> set:
        """The primals that this setting made zero."""
        return {k for k, x in self.primals.items() if not np.any(plain(x))}

    def size(self, name: str) -> int | None:
        return self.sizes.get(name)

    def axes(self, prefix: str, letter: str) -> tuple:
        return self.cast.axes(prefix, letter)

    def view(self, env: dict) -> "Scene":
        """The scene at another point: its letters are those of `env`."""
        scene = copy(self)
        scene.env, scene.is_view = env, True
        return scene

    def paired(self, outputs: tuple) -> "Scene":
        """The same scene with the loss that pairs these outputs with their cotangents."""
        scene = copy(self)
        scene.outputs = outputs or self.cast.outputs[:1]
        return scene

    def run(self, primals: dict, bump: tuple | None = None) -> dict:
        """All letters, in the order of the cast; `bump` adds to one of them on its way."""
        view = self.view({})
        for letter, spec in self.cast.letters.items():
            if spec.origin == "random":
                value = primals[letter]
            elif self.definitions[letter].is_late:
                continue
            else:
                value = self.defined(letter, view)
            if bump is not None and bump[0] == letter:
                value = value + bump[1]
            view.env[letter] = value
        return view.env

    def defined(self, letter: str, view: "Scene") -> Any:
        definition = self.definitions[letter]
        ranges = {i: self.sizes[a] for i, a in definition.ranges.items()}
        frame = Frame(view, ranges, definition.locals)
        spans = [range(1, ranges[i] + 1) for i in definition.indices]
        parts = [
            frame.at(**dict(zip(definition.indices, values))).evaluate(definition.body)
            for values in product(*spans)
        ]
        shape = self.shape(letter)
        if not definition.indices:
            return parts[0].grown(shape).x
        return self.stack([part.x for part in parts]).reshape(shape)

    def letter(self, prefix: str, letter: str):
        """The value of a letter, its gradient (d), or its tangent (dot)."""
        letter = self.cast.rows.get(letter, letter)
        self.cast.axes(prefix, letter)
        if prefix == "" and letter in self.env:
            return self.env[letter]
        key = (prefix, letter, self.outputs if prefix == "d" or prefix == "" else ())
        if key not in self.cache:
            find = {"": self._late, "d": self._gradient, "dot": self._tangent}
            if prefix not in find:
                raise PageError("letter", "the tangent of a gradient is not in this cast")
            self.cache[key] = find[prefix](letter)
        return self.cache[key]

    def _late(self, letter: str):
        if self.is_view:
            raise PageError("letter", f"{letter} is not differentiated")
        return self.defined(letter, self)

    def _gradient(self, letter: str):
        if letter in self.outputs:
            return self.array(self.cotangents[letter])
        if letter not in self.env or not self.upstream(letter):
            message = f"the loss on {', '.join(self.outputs)} does not depend on {letter}"
            raise PageError("letter", message)
        return self.gradient(letter)

    def upstream(self, letter: str) -> bool:
        """Whether one of the paired outputs is made from this letter."""
        seen, stack = set(), list(self.outputs)
        while stack:
            output = stack.pop()
            definition = self.definitions.get(output)
            for prefix, name in definition.names if definition else ():
                name = self.cast.rows.get(name, name)
                if prefix == "" and name not in seen:
                    seen.add(name)
                    stack.append(name)
        return letter in seen

    def _tangent(self, letter: str):
        if letter in self.tangents:
            return self.array(self.tangents[letter])
        if letter not in self.env:
            raise PageError("letter", f"{letter} has no tangent")
        return self.tangent(letter)

    def partial(self, frame: Frame, node: Node) -> Value:
        """∂ numerator / ∂ letter: entries of the numerator by entries of the letter."""
        numerator, denominator = node.args
        for inner in numerator.walk():
            if inner.kind == "partial" or inner.kind == "name" and inner.args[0]:
                message = "the derivative of a derivative is not read"
                raise PageError("grammar", message, inner.start)
        letter, entries, below = self._entries(frame, denominator)
        slopes = self.slopes(frame, numerator, letter, entries)  # entries × rows × columns
        above = slopes.shape[1:]
        shape = slope_shape(above, below)
        x = slopes.reshape((len(entries), -1)).T.reshape(shape)
        return Value(self.array(x), magnitude(x))

    def _entries(self, frame: Frame, node: Node) -> tuple:
        """The letter of a denominator, its entries (from 0), and the shape they form."""
        if node.kind == "func" and node.args[0] == "vec":
            letter, entries, _ = self._entries(frame, node.args[1][0])
            return letter, entries, (len(entries), 1)
        base, subs = node.args if node.kind == "index" else (node, ())
        name = base.args if base.kind == "name" else ("?", "")
        letter = self.cast.rows.get(name[1], name[1])
        if name[0] or letter not in self.env:
            raise PageError("letter", "only a letter can stand below", node.start)
        shape = self.shape(letter)
        fixed = list(map(frame.integer, subs))
        spans = []
        for length, axis in zip(shape, self.cast.letters[letter].axes):
            take = fixed.pop(0) - 1 if fixed and axis != "1" else None
            spans.append(range(length) if take is None else (take,))
        entries = list(product(*spans))
        return letter, entries, tuple(map(len, spans))[-2:]


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


class NumPyScene(Scene):
    """Derivatives by the complex step: Im f(x + ih e) / h."""

    def array(self, x) -> np.ndarray:
        return np.asarray(x, dtype=float)

    def stack(self, parts: list) -> np.ndarray:
        return np.stack(parts)

    def bumped(self, letter: str, entry: tuple) -> dict:
        key = ("bump", letter, entry)
        if key not in self.cache:
            bump = np.zeros(self.shape(letter), dtype=complex)
            bump[entry] = 1j * STEP
            self.cache[key] = self.run(self.primals, (letter, bump))
        return self.cache[key]

    def gradient(self, letter: str) -> np.ndarray:
        out = np.zeros(self.shape(letter))
        for entry in np.ndindex(out.shape):
            env = self.bumped(letter, entry)
            for output in self.outputs:
                out[entry] += np.sum(self.cotangents[output] * env[output].imag) / STEP
        return out

    def tangent(self, letter: str) -> np.ndarray:
        if "tangents" not in self.cache:
            moved = {k: x + 1j * STEP * self.tangents[k] for k, x in self.primals.items()}
            self.cache["tangents"] = self.run(moved)
        return self.cache["tangents"][letter].imag / STEP

    def slopes(self, frame: Frame, numerator: Node, letter: str, entries: list) -> np.ndarray:
        out = []
        for entry in entries:
            view = self.view(self.bumped(letter, entry))
            moved = Frame(view, frame.ranges, frame.locals, frame.index)
            out.append(np.imag(moved.evaluate(numerator).x) / STEP)
        return np.array(out)


class TorchScene(Scene):
    """Derivatives by torch's autograd, in float64."""

    def start(self) -> None:
        import torch

        self.torch = torch
        self.primals = {
            k: torch.tensor(x, dtype=torch.float64).requires_grad_()
            for k, x in self.primals.items()
        }

    def array(self, x):
        if isinstance(x, self.torch.Tensor):
            return x
        return self.torch.tensor(np.asarray(x), dtype=self.torch.float64)

    def stack(self, parts: list):
        return self.torch.stack(parts)

    def gradient(self, letter: str):
        pairs = ((self.array(self.cotangents[k]), self.env[k]) for k in self.outputs)
        loss = sum((dy * y).sum() for dy, y in pairs)
        return self.torch.autograd.grad(loss, self.env[letter], retain_graph=True)[0]

    def tangent(self, letter: str):
        if "tangents" not in self.cache:
            forward = self.torch.autograd.forward_ad
            with forward.dual_level():
                dual = {
                    k: forward.make_dual(x.detach(), self.array(self.tangents[k]))
                    for k, x in self.primals.items()
                }
                env = self.run(dual)
                zero = self.torch.zeros_like
                found = {k: (x, forward.unpack_dual(x).tangent) for k, x in env.items()}
                self.cache["tangents"] = {
                    k: zero(x) if t is None else t.detach() for k, (x, t) in found.items()
                }
        return self.cache["tangents"][letter]

    def slopes(self, frame: Frame, numerator: Node, letter: str, entries: list) -> np.ndarray:
        value = frame.evaluate(numerator).x
        out = np.zeros((len(entries), *value.shape))
        for r, c in np.ndindex(*value.shape):
            slope = None
            if value.requires_grad:
                slope = self.torch.autograd.grad(
                    value[r, c], self.env[letter], retain_graph=True, allow_unused=True
                )[0]
            for k, entry in enumerate(entries):
                out[k, r, c] = 0.0 if slope is None else float(slope[entry])
        return out


class Independent(Scene):
    """Every letter, gradient and tangent a random matrix of its own: facts fail here."""

    def start(self) -> None:
        self.rng = np.random.default_rng(self.setting.seed + 1000)

    def run(self, primals: dict, bump: tuple | None = None) -> dict:
        return {}

    def array(self, x) -> np.ndarray:
        return np.asarray(x, dtype=float)

    def letter(self, prefix: str, letter: str) -> np.ndarray:
        letter = self.cast.rows.get(letter, letter)
        self.cast.axes(prefix, letter)
        key = (prefix, letter)
        if key not in self.cache:
            self.cache[key] = self.rng.uniform(0.5, 1.5, self.shape(letter))
        return self.cache[key]

    def partial(self, frame: Frame, node: Node) -> Value:
        above, below = (frame.evaluate(part).shape for part in node.args)
        key = (node, tuple(sorted(frame.index.items())))
        if key not in self.cache:
            self.cache[key] = self.rng.uniform(0.5, 1.5, slope_shape(above, below))
        return Value(self.cache[key], magnitude(self.cache[key]))


def locals_of(statements, cast: Cast, scene: Scene) -> tuple[dict, dict]:
    """The local definitions of a display, and the axes of each for its subscripts."""
    locals_: dict = {}
    axes: dict = {}
    for statement in statements:
        if not statement.is_local:
            continue
        left, body = statement.members[0], statement.members[1]
        base, subs = left.args if left.kind == "index" else (left, ())
        if base.kind != "name":
            raise PageError("letter", "':=' names a letter", left.start)
        if cast.knows(base.args[1]) and base.args[0] == "" or base.args[1] in cast.sizes:
            message = f"{base.args[1]} is a letter of the cast already"
            raise PageError("letter", message, left.start)
        found = scope(statement, cast, axes)
        ranges = {i: scene.sizes[a] for i, a in found.axis.items()}
        names = tuple(sub.args[1] for sub in subs)
        locals_[base.args] = Local(names, body, ranges)
        first = {i: 1 for i in names}
        shape = Frame(scene, ranges, locals_, first).evaluate(body).shape
        known = {size: axis for axis, size in cast.sizes.items()}
        rest = tuple(known.get(s, "?") for s in shape if s != 1)
        axes[base.args] = tuple(found.axis[i] for i in names) + rest
    return locals_, axes
