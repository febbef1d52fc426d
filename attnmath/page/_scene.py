"""A scene: one cast with values for all its letters, and the derivatives that it can give.

The letters follow from the page's own definitions; an oracle (a subclass) differentiates
that program, so it knows no closed form.
"""

from copy import copy
from itertools import product
from math import prod
from typing import Any

import numpy as np

from attnmath.page._cast import Cast, Setting
from attnmath.page._evaluate import Frame
from attnmath.page._indexing import group_of
from attnmath.page._nodes import Node, PageError
from attnmath.page._slopes import slope
from attnmath.page._values import Value, magnitude, plain, text


class Scene:
    """A cast with values for its letters, and the derivatives by them."""

    def __init__(self, cast: Cast, setting: Setting, definitions: dict):
        self.cast, self.setting = cast, setting
        self.sizes = with_products(cast, {**cast.sizes, **setting.sizes})
        self.definitions = definitions
        rng = np.random.default_rng(setting.seed)
        primals = [k for k, spec in cast.letters.items() if spec.is_primal]
        self.primals = {k: self._draw(rng, k) for k in primals}
        self.tangents = {k: self._draw(rng, k) for k in primals}
        for k in cast.constants:
            self.tangents[k] = np.zeros(self.shape(k))
        self.cotangents = {k: self._draw(rng, k) for k in cast.outputs}
        self.turns = {k: self._draw(rng, k) for k in cast.moving}  # tangents of cotangents
        setting.change(self.primals, self.sizes)
        for k, x in self.primals.items():
            if x.shape != self.shape(k):
                message = f"the setting {setting.name!r} fills {k} with {x.shape}, not {self.shape(k)}"
                raise PageError("letter", message)
        self.outputs = cast.outputs[:1]
        self.cache: dict = {}
        self.pattern = self  # a scene of the cast whose sizes are pairwise distinct
        self.is_view = False  # with the letters of another point than its own
        self.is_moved = False  # whose gradients are differentiated
        self.start()
        self.env = self.run(self.primals)

    def start(self) -> None:
        """For the number type's own preparations."""

    def _draw(self, rng, letter: str) -> np.ndarray:
        shape, origin = self.shape(letter), self.cast.letters[letter].origin
        if origin == "random" and shape != (1, 1):
            return rng.standard_normal(shape)
        size = rng.uniform(0.3, 3.0, shape)  # numbers are divided by: none near zero
        if origin in ("count", "mask"):
            low = origin == "count"
            return rng.integers(low, 2 + 2 * low, shape).astype(float)
        return size if origin == "positive" else size * rng.choice([-1, 1])

    def tracked(self, value):
        """A letter's value, so that derivatives by it can be taken."""
        return value

    def shape(self, letter: str) -> tuple:
        return tuple(1 if a == "1" else self.sizes[a] for a in self.cast.letters[letter].axes)

    def zeros(self) -> set:
        """The primals that this setting made zero."""
        return {k for k, x in self.primals.items() if not np.any(plain(x))}

    def size(self, name: str) -> int | None:
        return self.sizes.get(name)

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
        """All letters, in the order of the cast; `bump` adds to one of them on its way.

        What does not follow from the bumped letter keeps its value.
        """
        view = self.view({})
        moving = self.downstream(bump[0]) if bump else self.cast.letters
        for letter, spec in self.cast.letters.items():
            if letter not in moving:
                if letter in self.env:
                    view.env[letter] = self.env[letter]
                continue
            if spec.is_primal:
                value = primals[letter]
            elif self.definitions[letter].is_late:
                continue
            else:
                value = self.defined(letter, view)
            value = self.tracked(value)
            if bump is not None and bump[0] == letter:
                value = value + bump[1]
            view.env[letter] = value
        return view.env

    def keeps(self, definitions: dict) -> bool:
        """Whether these definitions change none of the letters that are differentiated."""
        changed = [k for k, new in definitions.items() if new != self.definitions[k]]
        return all(d[k].is_late for k in changed for d in (definitions, self.definitions))

    def redefined(self, definitions: dict) -> "Scene":
        """The same values and derivatives; what is found after them is defined anew."""
        scene = copy(self)
        scene.definitions = definitions
        late = {letter for letter, found in self.definitions.items() if found.is_late}
        found_after = {(prefix, letter) for letter in late for prefix in ("", "dot")}
        kept = {key: x for key, x in self.cache.items() if key[:2] not in found_after}
        scene.cache = {key: x.redefined(definitions) if key[0] == "moved" else x for key, x in kept.items()}
        return scene

    def defined(self, letter: str, view: "Scene") -> Any:
        definition = self.definitions[letter]
        ranges = {i: self.sizes[a] for i, a in definition.ranges.items()}
        frame = Frame(view, ranges)
        spans = [range(1, ranges[i] + 1) for i in definition.indices]
        parts = []
        for values in product(*spans):
            at = frame.at(**dict(zip(definition.indices, values)))
            if definition.is_grouped:
                at = at.at(g=group_of(self, at.index["h"]))
            parts.append(at.evaluate(definition.body))
        shape = self.shape(letter)
        try:
            if not definition.indices:
                return parts[0].grown(shape).x
            x = self.stack([part.x for part in parts])  # points, members, rows, columns
            return x.reshape((*x.shape[:-3], *shape))
        except (ValueError, RuntimeError):
            found = text(parts[0])
            raise PageError("shape", f"{letter} is defined by {found} matrices") from None

    def magnitude(self, array, shape: tuple) -> np.ndarray:
        """The `magnitude` of a letter's array, found once, for a part of this shape."""
        if self.is_view:
            return np.zeros(shape)  # derivatives are taken of entries alone
        key = ("magnitude", id(array))
        if key not in self.cache:
            self.cache[key] = (array, magnitude(array))  # which keeps the id in use
        return np.full(shape, self.cache[key][1])

    def axes_of(self, letter: str, array) -> tuple[int, int]:
        """How many axes count points (none or one), and how many members of a family."""
        spec = self.cast.letters[self.cast.rows.get(letter, letter)]
        return array.ndim - len(spec.axes), len(spec.axes) - 2

    def letter(self, prefix: str, letter: str):
        """The value of a letter, its gradient (d), or its tangent (dot)."""
        letter = self.cast.rows.get(letter, letter)
        self.cast.axes(prefix, letter)
        if letter == self.cast.loss:
            raise PageError("letter", f"{letter} is the loss: it stands above a ∂")
        if prefix and self.is_view:
            raise PageError("grammar", "the derivative of a derivative is not read")
        if prefix == "" and letter in self.env:
            return self.env[letter]
        is_first = prefix == "dot" and letter in self.env
        key = (prefix, letter, () if is_first else self.outputs)
        if key not in self.cache:
            find = {"": self._late, "d": self._gradient, "dot": self._tangent, "dotd": self._second}
            self.cache[key] = find[prefix](letter)
        return self.cache[key]

    def seen(self, prefix: str, letter: str):
        """The value of a letter as a frame computes with it."""
        return self.letter(prefix, letter)

    def own(self, x):
        """x as an array of the library that this scene differentiates with."""
        return self.array(x)

    def _late(self, letter: str):
        if self.is_view:
            raise PageError("letter", f"{letter} is not differentiated")
        return self.defined(letter, self)

    def _gradient(self, letter: str):
        if letter in self.outputs:
            return self.own(self.cotangents[letter])
        self._needs_path(letter)
        return self.gradient(letter)

    def _second(self, letter: str):
        """The tangent of a gradient: of what is given for an output, or of what follows."""
        if letter in self.outputs:
            return self.own(self.turns[letter])
        self._needs_path(letter)
        return self.second("d", letter)

    def _needs_path(self, letter: str) -> None:
        if letter not in self.env or not self.upstream(letter):
            message = f"the loss on {', '.join(self.outputs)} does not depend on {letter}"
            raise PageError("letter", message)

    def downstream(self, letter: str) -> set:
        """The letter, and all that are made from it."""
        key = ("downstream", letter)
        if key not in self.cache:
            made = [k for k in self.definitions if letter in self.sources((k,))]
            self.cache[key] = {letter, *made}
        return self.cache[key]

    def upstream(self, letter: str) -> bool:
        """Whether one of the paired outputs is made from this letter."""
        return letter in self.sources(self.outputs)

    def sources(self, letters: tuple) -> set:
        """All that these letters are made from."""
        seen, stack = set(), list(letters)
        while stack:
            output = stack.pop()
            definition = self.definitions.get(output)
            for prefix, name in definition.names if definition else ():
                name = self.cast.rows.get(name, name)
                if prefix == "" and name not in seen:
                    seen.add(name)
                    stack.append(name)
        return seen

    def _tangent(self, letter: str):
        if letter in self.tangents:
            return self.own(self.tangents[letter])
        if letter in self.env:
            return self.tangent(letter)
        if not self.cast.has_second:
            raise PageError("letter", f"{letter} has no tangent")
        return self.second("", letter)

    def slope(self, frame: Frame, node: Node) -> Value:
        """∂ numerator / ∂ letter: entries of the numerator by entries of the letter."""
        return slope(self, frame, node)


def with_products(cast: Cast, sizes: dict) -> dict:
    """The sizes, and those of the axes that are products of two, such as H*d_v."""
    axes = {axis for spec in cast.letters.values() for axis in spec.axes if "*" in axis}
    return {**sizes, **{axis: prod(sizes[a] for a in axis.split("*")) for axis in axes}}
