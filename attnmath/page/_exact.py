"""Scenes of exact numbers: every letter at a random point of a finite field."""

from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._algebraic import NotAlgebraic
from attnmath._exact_arrays import ExactArray, each, exact, letters
from attnmath._graph import backward, bare, forward, made_of, tracked
from attnmath._point import Point
from attnmath.page._carried import Carried
from attnmath.page._cast import Cast, Setting
from attnmath.page._dual import Dual, parts, together
from attnmath.page._dual import each as both
from attnmath.page._evaluate import Frame
from attnmath.page._nodes import Inexact, Node


class ExactScene(Carried):
    """Derivatives by the rules of sums, products, quotients and exponentials, without rounding."""

    def __init__(self, cast: Cast, setting: Setting, definitions: dict, point: Point):
        self.point = point
        try:
            super().__init__(cast, setting, definitions)
        except NotAlgebraic as error:
            raise Inexact("algebra", f"the setting {setting.name!r}: {error}") from None

    def _draw(self, rng: Any, letter: str) -> Any:
        if self.cast.letters[letter].origin in ("count", "mask"):
            return super()._draw(rng, letter)
        if self.cast.letters[letter].origin == "positive":
            return each(lambda _: self.point.positive(), np.zeros(self.shape(letter)))
        return letters(self.point, self.shape(letter))

    def array(self, x: Any) -> Any:
        return x if isinstance(x, ExactArray | Dual) else exact(np.asarray(x), self.point)

    def own(self, x: Any) -> Any:
        return both(bare, self.array(x))

    def stack(self, parts: list) -> Any:
        return both(self.array, together(lambda arrays: np.stack([np.asarray(x) for x in arrays]), parts))

    def tracked(self, value: Any) -> Any:
        return both(tracked, self.array(value))

    def magnitude(self, array: Any, shape: tuple) -> np.ndarray:
        return np.zeros(shape)

    def seen(self, prefix: str, letter: str) -> Any:
        x = self.letter(prefix, letter)
        if self.is_view:
            return x
        key = ("seen", id(x))
        if key not in self.cache:
            self.cache[key] = (x, both(bare, x))  # which keeps the id in use
        return self.cache[key][1]

    def gradient(self, letter: str) -> Any:
        key = ("slopes of the loss", self.outputs)
        if key not in self.cache:
            losses = [[(y, dy) for y, dy in pairs if y.slopes is not None] for pairs in self._losses()]
            self.cache[key] = [backward(pairs, made_of(y for y, _ in pairs)) for pairs in losses]
        entries = values(self.env[letter])[0]
        found = [each(lambda x, f=f: f.get(id(x), self.point.zero), entries) for f in self.cache[key]]
        return Dual(*found) if self.is_moved else found[0]

    def _losses(self) -> list:
        """The entries of the outputs, each with its factor in the loss; in the loss's tangent."""
        loss, moved = [], []
        for k in self.outputs:
            y, dy = values(self.env[k]), values(self.own(self.cotangents[k]))
            loss += zip(y[0].flat, dy[0].flat)
            if self.is_moved:
                moved += [*zip(y[1].flat, dy[0].flat), *zip(y[0].flat, dy[1].flat)]
        return [loss, moved] if self.is_moved else [loss]

    def tangent(self, letter: str) -> Any:
        if "tangents" not in self.cache:
            roots = [x for letter in self.env.values() for part in values(letter) for x in part.flat]
            seeds = {
                id(x): dot
                for k in self.primals
                for x, dot in zip(values(self.env[k])[0].flat, self.own(self.tangents[k]).flat)
            }
            self.cache["tangents"] = forward(made_of(x for x in roots if x.slopes is not None), seeds)
        found = self.cache["tangents"]
        return both(lambda part: each(lambda x: found.get(id(x), self.point.zero), part), self.env[letter])

    def slopes(self, frame: Frame, numerator: Node, letter: str, entries: list) -> Any:
        moved = frame.elsewhere(self.view(self.env), letter)
        key = ("slopes", *moved.key(numerator))
        if key not in moved.memo:
            moved.memo[key] = [self._slopes(y, letter) for y in moved.evaluate(numerator).x.flat]
        shape = moved.evaluate(numerator).shape
        found = [[slopes[entry] for slopes in moved.memo[key]] for entry in entries]
        return self.array(np.array(found, dtype=object).reshape(len(entries), *shape))

    def _slopes(self, y: Any, letter: str) -> Any:
        """The derivative of a number by each entry of a letter."""
        found = {} if y.slopes is None else backward([(y, self.point.one)], made_of([y]))
        return each(lambda x: found.get(id(x), self.point.zero), self.env[letter])


def values(x: Any) -> list:
    """The numbers of an array; those of the value and those of the tangent, if it carries one."""
    return [np.asarray(part) for part in (parts(x) if isinstance(x, Dual) else (x,))]


def roomy(cast: Cast, setting: Setting) -> Setting:
    """The setting with sizes so large that the scores are independent and uniform.

    d_k is n or m at least; in a layer d is n, and d_z is m, at least.
    """
    sizes = {**cast.sizes, **setting.sizes}
    n = sizes.get("n", 0)
    m = sizes.get("m", n)
    least = {"d_k": min(n, m)} | ({"d": n, "d_z": m} if "H" in sizes else {})
    raised = {}
    for name, size in least.items():
        if sizes.get(name, size) < size and not cast.readings:
            sizes[name] = raised[name] = 1 + max(sizes.values())
    return replace(setting, sizes={**setting.sizes, **raised})
