"""The smallest problem in which a layer is wrong, as lines to paste."""

from dataclasses import replace
from itertools import product

import numpy as np

from attnmath._examine._layer_detect import Known, trial
from attnmath._examine._layer_families import Draw, Given, hidden
from attnmath._examine._layer_judge import Tried

SEED = 0


def smallest_case(known: Known, dtype: str) -> str | None:
    """The first problem that fails, in the order of its size; halves and whole numbers."""
    draw, layer = Draw(known.layer, dtype, SEED), known.layer
    sizes = product((1, 2) if layer.batched else (1,), (1, 2, 3), (1, 2, 3) if layer.cross else (0,))
    for b, n, m in sorted(sizes, key=lambda s: (s[0] * (s[1] + s[2]), s)):
        for last_hidden in (False, True) if layer.masks and max(n, m) > 1 else (False,):
            g = whole(draw.given("", b, n, m), known, last_hidden)
            t = trial(known, g, dtype)
            if isinstance(t, Tried) and t.wrong:
                return lines(g, t, last_hidden)
    return None


def whole(g: Given, known: Known, last_hidden: bool) -> Given:
    """A problem of the same sizes, drawn as the lines say."""
    rng = np.random.default_rng(SEED)
    draw = lambda shape: rng.integers(-2, 3, shape) / 2  # noqa: E731
    X = draw(g.case.X.shape)
    Z = None if g.case.Z is None else draw(g.case.Z.shape)
    dY = draw(g.case.dY.shape)
    numbers = {name: draw(shape) for name, shape in known.layer.shapes.items()}
    g = replace(g, case=replace(g.case, X=X, Z=Z, dY=dY, W=known.layer.ours(numbers)), numbers=numbers)
    if not last_hidden:
        return g
    n, m = X.shape[1], g.case.keys.shape[1]
    return hidden(g, np.broadcast_to(np.arange(m) < max(m - 1, 1), (1, 1, n, m)))


def lines(g: Given, t: Tried, last_hidden: bool) -> str:
    """The problem, and what is wrong in it."""
    tokens = {"X": g.case.X, "Z": g.case.Z, "dY": g.case.dY}
    out = ["import numpy as np", f"rng = np.random.default_rng({SEED})"]
    out.append("draw = lambda *shape: rng.integers(-2, 3, shape) / 2")
    out += [f"{name} = draw({_sizes(x)})" for name, x in tokens.items() if x is not None]
    out.append("weights = {")
    out += [f'    "{name}": draw({_sizes(x)}),' for name, x in g.numbers.items()]
    out.append("}")
    if last_hidden:
        out.append("# and the last key is hidden from every query")
    for name in t.wrong:
        got, want = getattr(t.got, name), getattr(t.want, name)
        at = np.unravel_index(np.argmax(np.nan_to_num(abs(got - want), nan=np.inf)), got.shape)
        out.append(f"# {name}[{', '.join(map(str, at))}]: {got[at]:.8g}, right: {want[at]:.8g}")
    return "\n".join(out)


def _sizes(x: np.ndarray) -> str:
    return ", ".join(map(str, x.shape))
