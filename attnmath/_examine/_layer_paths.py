"""In which proportions the paths of a gradient were added up, by least squares."""

import numpy as np

from attnmath._examine._case import Conventions
from attnmath._examine._layer_judge import Tried
from attnmath._examine._layer_steps import LayerSteps

NAMES = {"by_Q": "queries", "by_K": "keys", "by_V": "values"}


def paths(t: Tried, means: Conventions) -> str:
    """For each wrong output, how often each of its terms is in it, where that explains it."""
    s, found = LayerSteps(t.case, means), []
    for name in t.wrong:
        got = getattr(t.got, name)
        terms = terms_of(name, s)
        basis = np.stack([x.ravel() for x in terms.values()], 1)
        if not np.isfinite(got).all() or got.size <= len(terms):
            continue
        weights = np.linalg.lstsq(basis, got.ravel(), rcond=None)[0]
        if t.inside(name, (basis @ weights).reshape(got.shape), 4.0 * max(1.0, np.abs(weights).max())).all():
            found.append(f"{name} = " + " + ".join(f"{w:.4g} x {word}" for w, word in zip(weights, terms)))
    return "; ".join(found)


def terms_of(name: str, s: LayerSteps) -> dict[str, np.ndarray]:
    """The terms that an output is the sum of; itself where it has one alone."""
    letters = {"dX": ("by_Q", "by_K", "by_V") if s.case.Z is None else ("by_Q",), "dZ": ("by_K", "by_V")}
    if name in letters:
        return {f"the path through the {NAMES[x]}": getattr(s, x) for x in letters[name]}
    return {f"the right {name}": getattr(s, name)}
