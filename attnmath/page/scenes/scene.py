"""A scene: one cast with values for all its letters, and the derivatives that it can give.

The letters follow from the page's own definitions; an oracle (a subclass) differentiates
that program, so it knows no closed form.
"""

from collections.abc import Callable
from copy import copy
from functools import cached_property
from itertools import product
from math import prod
from typing import Any, Self

import numpy as np

from attnmath.page.language.nodes import Node, PageError
from attnmath.page.scenes.cast import Cast
from attnmath.page.scenes.evaluate import Frame
from attnmath.page.scenes.indexing import group_of, slope_value
from attnmath.page.scenes.settings import Setting
from attnmath.page.scenes.values import Value, detached, magnitude

Env = dict[str, Any]  # letter -> its value


class Scene:
    """A cast with values for its letters, and the derivatives by them."""

    # What an oracle gives.
    stack: Callable[[list], Any]  # the members of a family, in one array
    gradient: Callable[[str], Any]  # of the loss, by a letter
    tangent: Callable[[str], Any]  # of a letter, along the tangents of what is drawn
    second: Callable[[str, str], Any]  # the tangent of a gradient (d), or of a letter that is made of some
    slopes: Callable[[Frame, Node, str, list], Any]  # of an expression, by entries of a letter
    second_slopes: Callable[[Frame, Node, tuple, list], Any]  # of what is made of gradients

    def __init__(self, cast: Cast, setting: Setting, definitions: dict):
        self.cast, self.setting, self.definitions = cast, setting, definitions
        sizes = {**cast.sizes, **setting.sizes}
        products = {axis for spec in cast.letters.values() for axis in spec.axes if "*" in axis}  # such as H*d_v
        self.sizes = sizes | {axis: prod(sizes[a] for a in axis.split("*")) for axis in products}
        rng = np.random.default_rng(setting.seed)
        primals = [k for k, spec in cast.letters.items() if spec.is_primal]
        given: Env = {k: self.drawn(rng, k) for k in primals}
        self.tangents: Env = {k: self.drawn(rng, k) for k in primals}
        self.tangents |= {k: np.zeros(self.shape(k)) for k in cast.constants}
        self.cotangents: Env = {k: self.drawn(rng, k) for k in cast.outputs}
        self.turns: Env = {k: self.drawn(rng, k) for k in cast.moving}  # tangents of cotangents
        given |= {f"d{k}": dy for k, dy in self.cotangents.items()}
        given |= {f"dot {k}": x for k, x in self.tangents.items()}
        try:
            setting.change(given, self.sizes)
        except (LookupError, NameError, TypeError, ValueError) as error:
            said = f"the setting {setting.name!r} of the cast {cast.name!r} fails: {type(error).__name__}: {error}"
            raise PageError("letter", said) from error
        self.cotangents = {k: given.pop(f"d{k}") for k in cast.outputs}
        self.tangents = {k: given.pop(f"dot {k}") for k in self.tangents}
        for k, x in given.items():
            if x.shape != self.shape(k):
                message = f"the setting {setting.name!r} fills {k} with {x.shape}, not {self.shape(k)}"
                raise PageError("letter", message)
        self.outputs = cast.outputs[:1]
        self.cache: dict[tuple, Any] = {}
        self.pattern = self  # a scene of the cast whose sizes are pairwise distinct
        self.is_view = False  # with the letters of another point than its own
        self.is_moved = False  # whose gradients are differentiated
        self.primals: Env = {k: self.leaf(x) for k, x in given.items()}

    @cached_property
    def env(self) -> Env:
        """All letters but those that are found late; found once, when wanted, for all that share the cache."""
        return self.once(("env", "", ""), lambda: self.run(self.primals))

    def but(self, **parts: Any) -> Self:
        """The same scene with other parts; what it has found (`cache`) it shares, unless that is one of them."""
        scene = copy(self)
        vars(scene).update(parts)
        return scene

    def view(self, env: Env) -> Self:
        """The scene at another point: its letters are those of `env`."""
        return self.but(env=env, is_view=True)

    def paired(self, outputs: tuple) -> Self:
        """The same scene with the loss that pairs these outputs with their cotangents."""
        return self.but(outputs=outputs or self.cast.outputs[:1])

    def keeps(self, definitions: dict) -> bool:
        """Whether these definitions change none of the letters that are differentiated."""
        changed = [k for k, new in definitions.items() if new != self.definitions[k]]
        return all(d[k].is_late for k in changed for d in (definitions, self.definitions))

    def redefined(self, definitions: dict) -> Self:
        """The same values and derivatives; what is found after them is defined anew."""
        late = {letter for letter, found in self.definitions.items() if found.is_late}
        found_after = {(prefix, letter) for letter in late for prefix in ("", "dot")}
        kept = {key: x for key, x in self.cache.items() if key[1:3] not in found_after}
        cache = {key: x.redefined(definitions) if key[0] == "moved" else x for key, x in kept.items()}
        return self.but(definitions=definitions, cache=cache)

    # ---- values ------------------------------------------------------------------------------

    def array(self, x: Any) -> Any:
        """An array of the numbers that are compared."""
        return np.asarray(x, dtype=float)

    def drawn(self, rng: np.random.Generator, letter: str) -> Any:
        shape, origin = self.shape(letter), self.cast.letters[letter].origin
        if origin == "random" and shape != (1, 1):
            return rng.standard_normal(shape)
        size = rng.uniform(0.3, 3.0, shape)  # numbers are divided by: none near zero
        if origin in ("count", "mask"):
            low = origin == "count"
            return rng.integers(low, 2 + 2 * low, shape).astype(float)
        return size if origin == "positive" else size * rng.choice([-1, 1])

    def leaf(self, x: Any) -> Any:
        """What was drawn, so that derivatives by it can be taken."""
        return x

    tracked = leaf  # the same of a letter that follows from others
    shown = leaf  # a letter as a frame computes with it

    def shape(self, letter: str) -> tuple[int, ...]:
        return tuple(1 if a == "1" else self.sizes[a] for a in self.cast.letters[letter].axes)

    def zeros(self) -> set[str]:
        """The primals that this setting made zero."""
        return {k for k, x in self.primals.items() if not np.any(detached(x))}

    def run(self, primals: Env, bump: tuple[str, Any] | None = None) -> Env:
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
                if any(a != b and not free for a, b, free in zip(parts[0].shape, shape, parts[0].free)):
                    raise ValueError
                return parts[0].grown(shape).x
            x = self.stack([part.x for part in parts])  # points, members, rows, columns
            return x.reshape((*x.shape[:-3], *shape))
        except (ValueError, RuntimeError):
            raise PageError("shape", f"{letter} is defined by {parts[0]} matrices") from None

    def is_count(self, node: Node) -> bool:
        """Whether it is a letter of whole numbers that are given."""
        spec = self.cast.letters.get(node.args[1]) if node.kind == "name" and not node.args[0] else None
        return spec is not None and spec.origin == "count"

    def axes_of(self, letter: str, array: Any) -> tuple[int, int]:
        """How many axes count points (none or one), and how many members of a family."""
        spec = self.cast.letters[self.cast.rows.get(letter, letter)]
        return array.ndim - len(spec.axes), len(spec.axes) - 2

    # ---- letters -----------------------------------------------------------------------------

    def seen(self, prefix: str, letter: str) -> tuple[Any, float]:
        """A letter as a frame computes with it, and its magnitude; of a view only derivatives are wanted."""
        if self.is_view:
            return self.shown(self.letter(prefix, letter)), 0.0

        def find() -> tuple[Any, float]:
            x = self.letter(prefix, letter)
            return self.shown(x), self.magnitude(x)

        return self.once(("seen", *self._key(prefix, letter)), find)

    magnitude = staticmethod(magnitude)

    def _key(self, prefix: str, letter: str) -> tuple[str, str, tuple]:
        letter = self.cast.rows.get(letter, letter)
        return prefix, letter, () if letter in self.env and prefix in ("", "dot") else self.outputs

    def letter(self, prefix: str, letter: str) -> Any:
        """The value of a letter, its gradient (d), its tangent (dot), or the tangent of its gradient (dotd)."""
        letter = self.cast.rows.get(letter, letter)
        self.cast.axes(prefix, letter)
        if letter == self.cast.loss:
            raise PageError("letter", f"{letter} is the loss: it stands above a ∂")
        return self.value(prefix, letter)

    def value(self, prefix: str, letter: str) -> Any:
        """The same of a letter that may have it."""
        if prefix and self.is_view:
            raise PageError("grammar", "the derivative of a derivative is not read")
        if prefix == "" and letter in self.env:
            return self.env[letter]
        find = {"": self._late, "d": self._gradient, "dot": self._tangent, "dotd": self._second}
        return self.once(("letter", *self._key(prefix, letter)), lambda: find[prefix](letter))

    def once(self, key: tuple, find: Callable[[], Any]) -> Any:
        """What was found under this key, or is found now."""
        if key not in self.cache:
            self.cache[key] = find()
        return self.cache[key]

    def own(self, x: Any) -> Any:
        """x as an array of the library that this scene differentiates with."""
        return self.array(x)

    def _late(self, letter: str) -> Any:
        if self.is_view:
            raise PageError("letter", f"{letter} is not differentiated")
        return self.defined(letter, self)

    def _gradient(self, letter: str) -> Any:
        if letter in self.outputs:
            return self.own(self.cotangents[letter])
        self._check_path(letter)
        return self.gradient(letter)

    def _tangent(self, letter: str) -> Any:
        if letter in self.tangents:
            return self.own(self.tangents[letter])
        if letter in self.env:
            return self.tangent(letter)
        if not self.cast.has_second:
            raise PageError("letter", f"{letter} has no tangent")
        return self.second("", letter)

    def _second(self, letter: str) -> Any:
        """The tangent of a gradient: of what is given for an output, or of what follows."""
        if letter in self.outputs:
            return self.own(self.turns[letter])
        self._check_path(letter)
        return self.second("d", letter)

    def _check_path(self, letter: str) -> None:
        if letter not in self.env or letter not in self.sources(self.outputs):
            loss = f"the loss on {', '.join(self.outputs)} does not" if self.outputs else "there is no output to"
            raise PageError("letter", f"{loss} depend on {letter}")

    def downstream(self, letter: str) -> set[str]:
        """The letter, and all that are made from it."""
        makes = (k for k in self.definitions if letter in self.sources((k,)))
        return self.once(("downstream", letter), lambda: {letter, *makes})

    def sources(self, letters: tuple) -> set[str]:
        """All that these letters are made from."""
        seen: set[str] = set()
        stack = list(letters)
        while stack:
            definition = self.definitions.get(stack.pop())
            names = definition.body.names if definition else ()
            made_of = {self.cast.rows.get(name, name) for prefix, name in names if not prefix}
            stack += made_of - seen
            seen |= made_of
        return seen

    def slope(self, frame: Frame, node: Node) -> Value:
        """∂ numerator / ∂ letter: entries of the numerator by entries of the letter."""
        return slope_value(self, frame, node)
