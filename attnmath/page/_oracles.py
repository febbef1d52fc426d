"""Two oracles that share no line of differentiation, and one that knows no fact at all."""

from copy import copy
from math import prod
from zlib import crc32

import numpy as np

from attnmath.page._carried import Carried
from attnmath.page._dual import Dual, together
from attnmath.page._evaluate import Frame
from attnmath.page._nodes import Node, PageError
from attnmath.page._scene import Scene
from attnmath.page._slopes import slope_shape
from attnmath.page._values import Value, magnitude, plain

STEP = 1e-30  # of the complex step: no difference is taken, so it can be this small


class NumPyScene(Carried):
    """Derivatives by the complex step: Im f(x + ih e) / h; those of gradients by tangents beside."""

    def array(self, x) -> np.ndarray:
        return x if isinstance(x, Dual) else np.asarray(x, dtype=float)

    def stack(self, parts: list) -> np.ndarray:
        if any(isinstance(part, Dual) for part in parts):
            return together(np.stack, parts, axis=-3)
        return np.stack(np.broadcast_arrays(*parts), axis=-3)

    def bumped(self, letter: str) -> dict:
        """All letters where one entry of `letter` is bumped: a point for each of its entries."""
        key = ("bump", letter)
        if key not in self.cache:
            shape = self.shape(letter)
            bumps = 1j * STEP * np.eye(prod(shape)).reshape((-1, *shape))
            self.cache[key] = self.run(self.primals, (letter, bumps))
        return self.cache[key]

    def gradient(self, letter: str) -> np.ndarray:
        env = self.bumped(letter)
        out = np.zeros(prod(self.shape(letter)))
        for output in self.outputs:
            moved = env[output].imag * self.cotangents[output]
            axes = tuple(range(-self.cotangents[output].ndim, 0))
            out = out + moved.sum(axis=axes) / STEP
        return out.reshape(self.shape(letter))

    def tangent(self, letter: str) -> np.ndarray:
        if "tangents" not in self.cache:
            moved = {k: x + 1j * STEP * self.tangents[k] for k, x in self.primals.items()}
            self.cache["tangents"] = self.run(moved)
        return self.cache["tangents"][letter].imag / STEP

    def slopes(self, frame: Frame, numerator: Node, letter: str, entries: list) -> np.ndarray:
        view = self.view(self.bumped(letter))
        moved = frame.elsewhere(view, letter).evaluate(numerator)
        x = np.broadcast_to(moved.x, (prod(self.shape(letter)), *moved.shape))
        at = [np.ravel_multi_index(entry, self.shape(letter)) for entry in entries]
        return x[at].imag / STEP


class TorchScene(Scene):
    """Derivatives by torch's autograd, in float64.

    The letters are made, and differentiated, in torch. What compares them computes with their
    numbers in NumPy, which is sooner done; a view, which is differentiated, does not.
    """

    def start(self) -> None:
        import torch

        self.torch = torch
        self.primals = {
            k: torch.tensor(x, dtype=torch.float64).requires_grad_()
            for k, x in self.primals.items()
        }

    def array(self, x):
        return self.own(x) if self.is_view or self.is_moved else np.asarray(x, dtype=float)

    def own(self, x):
        if isinstance(x, self.torch.Tensor):
            return x
        return self.torch.tensor(np.asarray(x), dtype=self.torch.float64)

    def seen(self, prefix: str, letter: str):
        x = self.letter(prefix, letter)
        if self.is_view or self.is_moved:
            return self.own(x)
        key = ("seen", id(x))
        if key not in self.cache:
            self.cache[key] = (x, plain(x))  # which keeps the id in use
        return self.cache[key][1]

    def stack(self, parts: list):
        if self.torch.is_tensor(parts[0]):
            return self.torch.stack(parts)
        return np.stack(np.broadcast_arrays(*parts), axis=-3)

    def tracked(self, value):
        return value if value.requires_grad else value.clone().requires_grad_()  # of constants

    def gradient(self, letter: str):
        pairs = ((self.own(self.cotangents[k]), self.env[k]) for k in self.outputs)
        loss = sum((dy * y).sum() for dy, y in pairs)
        return self._grad(loss, self.env[letter], create_graph=self.is_moved, allow_unused=False)[0]

    def _grad(self, loss, by, **options) -> tuple:
        options = {"retain_graph": True, "allow_unused": True} | options
        return self.torch.autograd.grad(loss, by, **options)

    def tangent(self, letter: str):
        """J ẋ by two reverse sweeps: Jᵀv is linear in v, and its derivative pairs with ẋ."""
        if "tangents" not in self.cache:
            v = {k: self.torch.zeros_like(y).requires_grad_() for k, y in self.env.items()}
            total = sum((v[k] * y).sum() for k, y in self.env.items())
            names = list(self.primals)
            back = self._grad(total, [self.primals[k] for k in names], create_graph=True)
            pair = sum((g * self.own(self.tangents[k])).sum() for k, g in zip(names, back))
            forward = self._grad(pair, list(v.values()), create_graph=self.is_moved)
            moved = (self.torch.zeros_like(v[k]) if x is None else x for k, x in zip(v, forward))
            self.cache["tangents"] = dict(zip(v, moved))
        return self.cache["tangents"][letter]

    def slopes(self, frame: Frame, numerator: Node, letter: str, entries: list) -> np.ndarray:
        moved = frame.elsewhere(self.view(self.env), letter)
        key = ("slopes", *moved.key(numerator))
        if key not in moved.memo:
            moved.memo[key] = self._slopes(moved.evaluate(numerator).x, self.env[letter])
        return np.stack([moved.memo[key][..., *entry] for entry in entries])

    def second_slopes(self, frame: Frame, numerator: Node, name: tuple, entries: list) -> np.ndarray:
        """The derivative of what is made of gradients, which are differentiated once more."""
        graph = self.graph()
        by = graph.cotangents[name[1]] if name[0] else self.primals[name[1]]
        moved = frame.elsewhere(graph, "graph")
        key = ("slopes", name, *moved.key(numerator))
        if key not in moved.memo:
            moved.memo[key] = self._slopes(moved.evaluate(numerator).x, by)
        return np.stack([moved.memo[key][..., *entry] for entry in entries])

    def second(self, prefix: str, letter: str):
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
            scene = copy(self)
            scene.cache, scene.is_moved = {}, True
            scene.cotangents = {k: self.own(dy).requires_grad_() for k, dy in self.cotangents.items()}
            self.cache[key] = scene
        return self.cache[key].paired(self.outputs)

    def _slopes(self, value, by) -> np.ndarray:
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

    def draw(self, key: tuple, shape: tuple) -> np.ndarray:
        """Entries near neither 0 nor 1: pages divide by x and by 1 - x."""
        rng = np.random.default_rng([self.setting.seed, crc32(repr(unplaced(key)).encode())])
        sign = 1 if self.setting.name == "positive" else rng.choice([-1, 1], shape)
        return sign * (rng.uniform(0.5, 0.9, shape) + rng.choice([0, 0.6], shape))

    def run(self, primals: dict, bump: tuple | None = None) -> dict:
        return {}

    def array(self, x) -> np.ndarray:
        return np.asarray(x, dtype=float)

    def letter(self, prefix: str, letter: str) -> np.ndarray:
        letter = self.cast.rows.get(letter, letter)
        self.cast.axes(prefix, letter)
        if letter == self.cast.loss:
            raise PageError("letter", f"{letter} is the loss: it stands above a ∂")
        key = (prefix, letter)
        if key not in self.cache:
            self.cache[key] = self.draw(key, self.shape(letter))
        return self.cache[key]

    def slope(self, frame: Frame, node: Node) -> Value:
        above, below = (frame.evaluate(part).shape for part in node.args)
        key = (node, tuple(sorted(frame.index.items())))
        if key not in self.cache:
            self.cache[key] = self.draw(key, slope_shape(above, below))
        x = self.cache[key]
        return Value(x, np.full(x.shape, magnitude(x)))


def unplaced(x):
    """Nodes and tuples of them as tuples, without where they stand in the text."""
    if isinstance(x, Node):
        return x.kind, *map(unplaced, x.args)
    return tuple(map(unplaced, x)) if isinstance(x, tuple) else x
