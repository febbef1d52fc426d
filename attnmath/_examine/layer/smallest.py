"""The smallest problem that a layer fails, as lines to paste."""

from dataclasses import replace
from itertools import product

import numpy as np

from attnmath._examine.layer.conventions import KnownLayer
from attnmath._examine.layer.draw import hiding
from attnmath._examine.layer.layer import Layer, LayerCase
from attnmath._examine.layer.tried import Tried

SEED = 0


def smallest_case(known: KnownLayer) -> str | None:
    """The first problem that fails, in the order of its size, as lines to paste; halves and whole numbers."""
    layer, draw = known.layer, known._replace(seed=SEED).draw
    sizes = product((1, 2) if layer.batched else (1,), (1, 2, 3), (1, 2, 3) if layer.cross else (0,))
    for b, n, m in sorted(sizes, key=lambda s: (s[0] * (s[1] + s[2]), s)):
        for last_hidden in (False, True) if layer.masks and max(n, m) > 1 else (False,):
            t = known.trial(in_halves(draw.case("", b, n, m), layer, last_hidden))
            if isinstance(t, Tried) and t.wrong:
                return pasted_lines(t, last_hidden)
    return None


def in_halves(case: LayerCase, layer: Layer, last_hidden: bool) -> LayerCase:
    """A problem of the same sizes, drawn as the lines say."""
    rng = np.random.default_rng(SEED)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return np.divide(rng.integers(-2, 3, shape), 2)

    X, Z, dY = draw(case.X.shape), None if case.Z is None else draw(case.Z.shape), draw(case.dY.shape)
    numbers = {name: draw(shape) for name, shape in layer.shapes.items()}
    case = replace(case, X=X, Z=Z, dY=dY, W=layer.ours(numbers), numbers=numbers)
    if not last_hidden:
        return case
    _, n, m = case.lengths
    return hiding(case, np.broadcast_to(np.arange(m) < max(m - 1, 1), (1, 1, n, m)))


def pasted_lines(t: Tried, last_hidden: bool) -> str:
    """The problem, and what is wrong in it."""
    def numbers(*x: int) -> str:
        return ", ".join(map(str, x))

    tokens = {"X": t.case.X, "Z": t.case.Z, "dY": t.case.dY}
    out = ["import numpy as np", f"rng = np.random.default_rng({SEED})"]
    out.append("draw = lambda *shape: rng.integers(-2, 3, shape) / 2")
    out += [f"{name} = draw({numbers(*x.shape)})" for name, x in tokens.items() if x is not None]
    out.append("weights = {")
    out += [f'    "{name}": draw({numbers(*x.shape)}),' for name, x in t.case.numbers.items()]
    out.append("}")
    if last_hidden:
        out.append("# and the last key is hidden from every query")
    for name in t.wrong:
        got, want = getattr(t.got, name), getattr(t.want, name)
        at = np.unravel_index(np.argmax(np.nan_to_num(abs(got - want), nan=np.inf)), got.shape)
        out.append(f"# {name}[{numbers(*map(int, at))}]: {got[at]:.8g}, right: {want[at]:.8g}")
    return "\n".join(out)
