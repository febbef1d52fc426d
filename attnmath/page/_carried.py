"""Second derivatives by carrying a tangent along: the scene whose letters are numbers x + ε y.

All that a scene finds, gradients included, it finds for such numbers as well; the ε part of a
gradient is its tangent. Where one entry of a letter moves alone, it is a column of a Hessian.
"""

from copy import copy
from typing import Any

import numpy as np

from attnmath.page._dual import Dual
from attnmath.page._evaluate import Frame
from attnmath.page._nodes import Node
from attnmath.page._scene import Scene


class Carried(Scene):
    """A scene that differentiates its own gradients."""

    def second(self, prefix: str, letter: str) -> Any:
        moved = self.moved("all", self.tangents, self.turns)
        return self.moving_part(moved.letter(prefix, letter), self.shape(letter))

    def second_slopes(self, frame: Frame, numerator: Node, name: tuple, entries: list) -> Any:
        """The numerator's derivative by each of these entries of a letter, or of its gradient."""
        found = []
        for entry in entries:
            unit = np.zeros(self.shape(name[1]))
            unit[entry] = 1.0
            units = {name[1]: unit}
            moved = self.moved((name, entry), *(({}, units) if name[0] else (units, {})))
            value = frame.elsewhere(moved, (name, entry)).evaluate(numerator)
            found.append(self.moving_part(value.x, value.shape))
        return self.array(np.stack([np.asarray(x) for x in found]))

    def moved(self, name: Any, tangents: dict, turns: dict) -> "Carried":
        """The scene along tangents of what is drawn: of the primals, and of the cotangents."""
        key = ("moved", name)
        if key not in self.cache:
            scene = copy(self)
            scene.cache, scene.env, scene.is_moved = {}, {}, True
            scene.primals = self._carrying(self.primals, tangents)
            scene.cotangents = self._carrying(self.cotangents, turns)
            scene.env = scene.run(scene.primals)
            self.cache[key] = scene
        return self.cache[key].paired(self.outputs)

    def _carrying(self, given: dict, tangents: dict) -> dict:
        still = {k: np.zeros(self.shape(k)) for k in given}
        return {k: Dual(self.array(x), self.array((still | tangents)[k])) for k, x in given.items()}

    def moving_part(self, x: Any, shape: tuple) -> Any:
        return self.array(x.y if isinstance(x, Dual) else np.zeros(shape))
