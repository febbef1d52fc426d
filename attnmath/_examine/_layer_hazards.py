"""What may go wrong beside the verdict: rows that may attend to nothing, and inference."""

import numpy as np

from attnmath._examine._layer_case import LayerAnswer
from attnmath._examine._layer_described import Broken
from attnmath._examine._layer_detect import Known
from attnmath._examine._layer_diagnosis import agrees
from attnmath._examine._layer_families import Draw, Given, hidden
from attnmath._examine._layer_judge import tried
from attnmath._examine._layer_near import formats
from attnmath._examine._layer_run import forward, run
from attnmath._examine._layer_steps import LayerSteps, NearSteps
from attnmath._examine._report import Finding
from attnmath._roundoff import ratio


def padded(
    known: Known, dtype: str, seed: int | None, sizes: tuple[int, int, int]
) -> tuple[Given, LayerAnswer | Broken]:
    """A problem in which the last sequence may read nothing, and what came."""
    g = Draw(known.layer, dtype, seed).given("nothing to read", *sizes)
    b = sizes[0]
    keep = np.ones((b, 1, 1, g.case.keys.shape[1]), bool)
    keep[-1] = False
    g = hidden(g, keep, "empty row")
    try:
        return g, run(known.layer, g.case, g.numbers, dtype)
    except Broken as broken:
        return g, broken


def empty_rows(known: Known, dtype: str, seed: int | None) -> tuple[list[Finding], str | None]:
    """The policy for a sequence that is padding alone; a hazard where NaN comes out."""
    if "b" not in known.layer.masks or not known.layer.batched:
        return [], None
    g, got = padded(known, dtype, seed, (2, 3, 4))
    if isinstance(got, Broken):
        return [Finding("hazard", "empty_row_raises", f"a sequence of padding alone: {got}")], None
    there = {name: x for name, x in zip(LayerAnswer._fields, got) if x is not None}
    bad = [name for name, x in there.items() if not np.isfinite(x).all()]
    if not bad:
        return [], policy(known, g, got, dtype)
    small, least = padded(known, dtype, seed, (1, 1, 1))
    same = not isinstance(least, Broken) and any(x is not None and np.isnan(x).any() for x in least)
    b, n, m = (1, 1, 1) if same else (2, 3, 4)
    weights = [name for name in bad if name[:2] in ("dW", "db")]
    title = "a sequence of padding alone makes gradients of weights NaN, for the whole batch"
    title = title if weights else "a sequence of padding alone makes the output NaN"
    evidence = f"smallest case: {b} x {n} queries, {m} keys, all of them hidden in the last sequence"
    if known.layer.paste and same:
        evidence += "\n" + known.layer.paste
    return [Finding(
        "hazard", "empty_row_nan", title, "NaN in " + ", ".join(bad), "chapters/empty_rows.md",
        "leave such sequences out, or let each query see one key", evidence,
    )], "nan"  # fmt: skip


def policy(known: Known, g: Given, got: LayerAnswer, dtype: str) -> str | None:
    """What a row that may attend to nothing gives: zero, or the mean of the values."""
    t = tried(g.case, got, known.means, dtype)
    if not t.wrong:
        return "zero"
    empty = ~g.case.seen(known.means).any(-1, keepdims=True)
    m = g.case.keys.shape[1]
    mean = {"P": lambda s, P: np.where(empty, 1 / m, P)}
    still = mean | {"dA": lambda s, x: np.where(empty, 0.0, x)}
    fitting = []
    for word, change in (("uniform", still), ("uniform with gradient", mean)):
        s = LayerSteps(g.case, known.means, [change, {"P_back": lambda s, P: s.P}])
        if all(agrees(name, s, t) for name in t.names):
            far = sum(float(abs(getattr(got, name) - getattr(s, name)).sum()) for name in t.names)
            fitting.append((far, word))
    return min(fitting)[1] if fitting else None


def inference(known: Known, g: Given, dtype: str) -> list[Finding]:
    """Whether the output in eval() without gradients is right as well: there may be a fast path."""
    try:
        Y = forward(known.layer, g.case, g.numbers, dtype)
    except Broken as broken:
        return [Finding("contract", broken.name, str(broken))]
    near = NearSteps(g.case, known.means, formats(dtype, known.means.inside)).Y
    if Y.shape == near.x.shape and ratio(Y, near.x, near.off) <= 1:
        return []
    title = "the output under torch.no_grad() differs from that with gradients"
    return [Finding("unnamed", "inference", title, "Y", None, "look for a path for inference alone")]
