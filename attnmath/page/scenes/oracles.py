"""Scenes on torch, of exact numbers, and with letters that know no fact at all.

The complex step (`carried.py`) and torch's autograd share no line of differentiation. Exact numbers put every
letter at a random point of a finite field.
"""

from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np

from attnmath._exact.arrays import bare, each_entry, exact, letters, made_of, pull_back, push_forward, tracked
from attnmath._exact.outcomes import NotAlgebraic
from attnmath._exact.point import Point
from attnmath._words.arrays import is_exact
from attnmath.page.language.nodes import Inexact, Node
from attnmath.page.scenes.carried import Carried, Dual, both, combined, value_and_tangent
from attnmath.page.scenes.cast import Cast
from attnmath.page.scenes.evaluate import Frame
from attnmath.page.scenes.indexing import slope_shape
from attnmath.page.scenes.scene import Env, Scene
from attnmath.page.scenes.settings import Setting
from attnmath.page.scenes.values import Value, detached, magnitude


class TorchScene(Scene):
    """Derivatives by torch's autograd, in float64.

    The letters are made, and differentiated, in torch. What compares them computes with their
    numbers in NumPy, which is sooner done; a view, which is differentiated, does not.
    """

    def __init__(self, cast: Cast, setting: Setting, definitions: dict):
        import torch

        self.torch = torch
        super().__init__(cast, setting, definitions)

    def leaf(self, x: Any) -> Any:
        return self.own(x).requires_grad_()

    def array(self, x: Any) -> Any:
        return self.own(x) if self.is_view or self.is_moved else np.asarray(detached(x), dtype=float)

    shown = array

    def own(self, x: Any) -> Any:
        return x if self.torch.is_tensor(x) else self.torch.tensor(np.asarray(x), dtype=self.torch.float64)

    def stack(self, parts: list) -> Any:
        if self.torch.is_tensor(parts[0]):
            return self.torch.stack(parts)
        return np.stack(np.broadcast_arrays(*parts), axis=-3)

    def tracked(self, value: Any) -> Any:
        return value if value.requires_grad else value.clone().requires_grad_()  # of constants

    def gradient(self, letter: str) -> Any:
        pairs = ((self.own(self.cotangents[k]), self.env[k]) for k in self.outputs)
        loss = sum((dy * y).sum() for dy, y in pairs)
        return self._grad(loss, self.env[letter], create_graph=self.is_moved, allow_unused=False)[0]

    def _grad(self, loss: Any, by: Any, create_graph: bool = False, allow_unused: bool = True) -> tuple:
        grad = self.torch.autograd.grad
        return grad(loss, by, retain_graph=True, create_graph=create_graph, allow_unused=allow_unused)

    def tangent(self, letter: str) -> Any:
        """J ẋ by two reverse sweeps: Jᵀv is linear in v, and its derivative pairs with ẋ."""
        key = ("tangents",)
        if key not in self.cache:
            v = {k: self.torch.zeros_like(y).requires_grad_() for k, y in self.env.items()}
            total = sum((v[k] * y).sum() for k, y in self.env.items())
            names = list(self.primals)
            back = self._grad(total, [self.primals[k] for k in names], create_graph=True)
            pair = sum((g * self.own(self.tangents[k])).sum() for k, g in zip(names, back))
            forward = self._grad(pair, list(v.values()), create_graph=self.is_moved)
            moved = (self.torch.zeros_like(v[k]) if x is None else x for k, x in zip(v, forward))
            self.cache[key] = dict(zip(v, moved))
        return self.cache[key][letter]

    def slopes(self, frame: Frame, numerator: Node, letter: str, entries: list) -> np.ndarray:
        moved = frame.elsewhere(self.view(self.env), letter)
        return self._entries(moved, numerator, letter, self.env[letter], entries)

    def second_slopes(self, frame: Frame, numerator: Node, name: tuple, entries: list) -> np.ndarray:
        """The derivative of what is made of gradients, which are differentiated once more."""
        graph = self.graph()
        by = graph.cotangents[name[1]] if name[0] else self.primals[name[1]]
        return self._entries(frame.elsewhere(graph, "graph"), numerator, name, by, entries)

    def _entries(self, frame: Frame, numerator: Node, name: Any, by: Any, entries: list) -> np.ndarray:
        key = ("slopes", name, *frame.key(numerator))
        if key not in frame.memo:
            frame.memo[key] = self._slopes(frame.evaluate(numerator).x, by)
        return np.stack([frame.memo[key][..., *entry] for entry in entries])

    def second(self, prefix: str, letter: str) -> Any:
        """The tangent of a gradient, by two more reverse sweeps."""
        graph = self.graph()
        x = graph.letter(prefix, letter)
        given = [(y, self.tangents[k]) for k, y in self.primals.items()]
        given += [(graph.cotangents[k], turn) for k, turn in self.turns.items()]
        v = self.torch.zeros_like(x, requires_grad=True)
        back = self._grad((v * x).sum(), [y for y, _ in given], create_graph=True)
        pairs = [(g * self.own(dot)).sum() for g, (_, dot) in zip(back, given) if g is not None]
        (found,) = self._grad(sum(pairs), v) if pairs else (None,)
        return self.torch.zeros_like(x) if found is None else found

    def graph(self) -> "TorchScene":
        """The scene whose gradients, and what is made of them, can be differentiated."""
        key = ("moved", "graph")
        if key not in self.cache:
            turned = {k: self.own(dy).requires_grad_() for k, dy in self.cotangents.items()}
            self.cache[key] = self.but(cache={}, is_moved=True, cotangents=turned)
        return self.cache[key].paired(self.outputs)

    def _slopes(self, value: Any, by: Any) -> np.ndarray:
        """Each entry of a value by each entry of a letter."""
        out = np.zeros((*value.shape, *by.shape))
        for r, c in np.ndindex(*value.shape):
            slope = self._grad(value[r, c], by)[0] if value.requires_grad else None
            if slope is not None:
                out[r, c] = slope.detach().numpy()
        return out


class Independent(Scene):
    """Every letter, gradient and tangent a random matrix of its own: facts fail here.

    A matrix depends on its name alone, not on which others were asked for before it.
    """

    def independent(self, key: tuple, shape: tuple) -> np.ndarray:
        """Entries near neither 0 nor 1, and small: pages divide by x and by 1 - x, and products are exponents."""
        rng = np.random.default_rng([self.setting.seed, crc32(repr(key).encode())])
        sign = 1 if self.setting.name == "positive" else rng.choice([-1, 1], shape)
        return sign * (rng.uniform(0.5, 0.9, shape) + rng.choice([0, 0.6], shape)) / 2

    def run(self, primals: Env, bump: tuple[str, Any] | None = None) -> Env:
        return {}

    def value(self, prefix: str, letter: str) -> np.ndarray:
        key = (prefix, letter)
        return self.once(("letter", *key), lambda: self.independent(key, self.shape(letter)))

    def slope(self, frame: Frame, node: Node) -> Value:
        above, below = (frame.evaluate(part).shape for part in node.args)
        key = (node, tuple(sorted(frame.index.items())))
        x = self.once(key, lambda: self.independent(key, slope_shape(above, below)))
        return Value(x, np.full(x.shape, magnitude(x)))


class ExactScene(Carried):
    """Derivatives by the rules of sums, products, quotients and exponentials, without rounding."""

    def __init__(self, cast: Cast, setting: Setting, definitions: dict, point: Point):
        self.point = point
        try:
            super().__init__(cast, setting, definitions)
            assert self.env is not None  # found now, so that it is said what is not algebraic
        except NotAlgebraic as error:
            raise Inexact("algebra", f"the setting {setting.name!r}: {error}") from None

    def drawn(self, rng: np.random.Generator, letter: str) -> Any:
        if self.cast.letters[letter].origin in ("count", "mask"):
            return super().drawn(rng, letter)
        if self.cast.letters[letter].origin == "positive":
            return each_entry(lambda _: self.point.positive(), np.zeros(self.shape(letter)))
        return letters(self.point, self.shape(letter))

    def array(self, x: Any) -> Any:
        return x if isinstance(x, Dual) or is_exact(x) else exact(np.asarray(x), self.point)

    def own(self, x: Any) -> Any:
        return both(bare, self.array(x))

    def stack(self, parts: list) -> Any:
        return both(self.array, combined(lambda arrays: np.stack([np.asarray(x) for x in arrays]), parts))

    def tracked(self, value: Any) -> Any:
        return both(tracked, self.array(value))

    def magnitude(self, x: Any) -> float:
        return 0.0

    def shown(self, x: Any) -> Any:
        return x if self.is_view else both(bare, x)

    def gradient(self, letter: str) -> Any:
        key = ("slopes of the loss", self.outputs)
        if key not in self.cache:
            losses = [[(y, dy) for y, dy in pairs if y.slopes is not None] for pairs in self._losses()]
            self.cache[key] = [pull_back(pairs, made_of(y for y, _ in pairs)) for pairs in losses]
        entries = numbers_of(self.env[letter])[0]
        found = [each_entry(lambda x, f=f: f.get(id(x), self.point.zero), entries) for f in self.cache[key]]
        return Dual(*found) if self.is_moved else found[0]

    def _losses(self) -> list:
        """The entries of the outputs, each with its factor in the loss; in the loss's tangent."""
        loss: list[tuple] = []
        moved: list[tuple] = []
        for k in self.outputs:
            y, dy = numbers_of(self.env[k]), numbers_of(self.own(self.cotangents[k]))
            loss += zip(y[0].flat, dy[0].flat)
            if self.is_moved:
                moved += [*zip(y[1].flat, dy[0].flat), *zip(y[0].flat, dy[1].flat)]
        return [loss, moved] if self.is_moved else [loss]

    def tangent(self, letter: str) -> Any:
        key = ("tangents",)
        if key not in self.cache:
            roots = [x for letter in self.env.values() for part in numbers_of(letter) for x in part.flat]
            seeds = {id(x): dot for k in self.primals
                     for x, dot in zip(numbers_of(self.env[k])[0].flat, self.own(self.tangents[k]).flat)}
            self.cache[key] = push_forward(made_of(x for x in roots if x.slopes is not None), seeds)
        found = self.cache[key]
        return both(lambda part: each_entry(lambda x: found.get(id(x), self.point.zero), part), self.env[letter])

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
        found = {} if y.slopes is None else pull_back([(y, self.point.one)], made_of([y]))
        return each_entry(lambda x: found.get(id(x), self.point.zero), self.env[letter])


def numbers_of(x: Any) -> list:
    """The numbers of an array; those of the value and those of the tangent, if it carries one."""
    return [np.asarray(part) for part in (value_and_tangent(x) if isinstance(x, Dual) else (x,))]


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
