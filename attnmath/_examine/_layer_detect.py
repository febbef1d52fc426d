"""What a layer means: the form of its weights, its layout, masks, scale, the format of its softmax."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine._case import Conventions
from attnmath._examine._layer_calls import MASKS, arity, layouts, wrapped, wrapped_back
from attnmath._examine._layer_described import Broken, Layer
from attnmath._examine._layer_families import Draw, Given, hidden
from attnmath._examine._layer_judge import Tried, tried
from attnmath._examine._layer_mistakes import DICTIONARY, LAYER_MISTAKES
from attnmath._examine._layer_near import formats
from attnmath._examine._layer_own import Reading, readings
from attnmath._examine._layer_run import run
from attnmath._examine._layer_steps import LayerSteps, NearSteps
from attnmath._roundoff import ratio

SCALES = [m for m in DICTIONARY if "scale" in m.name and m.name.startswith("f_")]  # of the way forward
# Letters that do not reach the output.
AFTER = {x for x in LayerSteps.table if x[0] == "d" or "_back" in x or x.startswith("by_")}


class Known(NamedTuple):
    """A layer as it is understood, and what had to be found out."""

    layer: Layer
    means: Conventions
    reading: Reading | None = None
    layout: str = "bnd"
    mask: tuple[str, str] | None = None


class Own(NamedTuple):
    """A layer of one's own, as examine_layer is told of it."""

    fn: Callable
    weights: Mapping[str, Any]
    backward: Callable | None
    heads: int | None
    mask: str | None  # its keyword
    rotary: Callable | None
    pairing: str | None
    causal: bool | None
    layout: str | None
    reading: tuple[str, str] | None


def possible(own: Own) -> Iterator[Known]:
    """Everything that a layer could be by the shapes of its weights, the usual first."""
    some = next(iter(own.weights.values()))
    count = arity(own.fn, functional=not hasattr(some, "requires_grad"))
    if count not in (1, 2, 3):
        raise ValueError(
            f"examine_layer: the layer takes {count} arrays; it needs to take X, or X and Z, or queries,"
            " keys and values"
            + ("" if hasattr(some, "requires_grad") else ", and then its weights")
        )
    found = list(readings(own.weights, own.heads, alone=count == 1))
    if own.reading is not None:
        found = [(r, ours) for r, ours in found if r == own.reading]
    if not found:
        shapes = ", ".join(f"{k} {tuple(w.shape)}" for k, w in own.weights.items())
        raise ValueError(
            f"examine_layer: the weights have the shapes {shapes}, which fit no form that is known;"
            " heads=H may be missing"
        )
    if hasattr(some, "requires_grad"):
        found.sort(key=lambda x: not x[0].into.endswith(") d"))  # PyTorch's own form
    for layout, causal, pairing, (reading, ours) in product(
        layouts(own.layout),
        (own.causal,) if own.causal is not None else (False, True) if count == 1 else (False,),
        (own.pairing,) if own.rotary is None or own.pairing else ("half", "interleaved"),
        found,
    ):
        layer = Layer(
            wrapped(own.fn, count, layout), own.weights, ours, name=name_of(own.fn), cross=count > 1,
            causal=causal, rotary=own.rotary, pairing=pairing, batched=layout != "nd",
            module=own.fn if hasattr(own.fn, "modules") and hasattr(some, "requires_grad") else None,
            backward=None if own.backward is None else wrapped_back(own.backward, count, layout),
        )  # fmt: skip
        yield Known(layer, Conventions(), reading, layout)


def name_of(fn: Any) -> str:
    """What a layer is called."""
    return getattr(fn, "__qualname__", None) or type(fn).__name__


def output(layer: Layer, g: Given, dtype: str) -> np.ndarray | Broken:
    """What the layer returns for a problem."""
    try:
        return run(layer, g.case, g.numbers, dtype).Y
    except Broken as broken:
        return broken


def fits(Y: np.ndarray | Broken, g: Given, means: Conventions, dtype: str) -> bool:
    """Whether an output is right, up to its bound."""
    if isinstance(Y, Broken):
        return False
    near = NearSteps(g.case, means, formats(dtype, means.inside)).Y
    return ratio(Y, near.x, near.off) <= 1


def wrong_forms(Y: np.ndarray, g: Given, means: Conventions, dtype: str) -> int | None:
    """The place in the dictionary of the first mistake that gives an output; None if none does."""
    near = NearSteps(g.case, means, formats(dtype, means.inside)).Y
    for place, mistake in enumerate([*LAYER_MISTAKES, *SCALES]):
        for _, change in mistake.forms(g.case, means):
            if change.keys() <= AFTER:
                continue
            wrong = LayerSteps(g.case, means, [change]).Y
            if wrong.shape == Y.shape and (abs(Y - wrong) <= 8 * near.off.max()).all():
                return place
    return None


def understood(all_known: list[Known], told: Conventions, dtype: str, seed: int | None) -> tuple[Known, bool]:
    """The first that the layer's output agrees with; else the first that makes a known mistake of it."""
    outputs: dict[tuple, Any] = {}
    tries = []
    for known in all_known:
        g = Draw(known.layer, dtype, seed).given("what it means", 2, 4, 5 if known.layer.cross else 4)
        key = known.layout, g.case.X.shape, g.case.keys.shape
        if key not in outputs:
            outputs[key] = output(known.layer, g, dtype)
        for inside in (told.inside, *(["float32"] if dtype == "float64" and told.inside is None else [])):
            means = told.told(inside=inside)
            if fits(outputs[key], g, means, dtype):
                return known._replace(means=means), True
        tries.append((known, g, outputs[key]))
    came = [(k, g, Y) for k, g, Y in tries if not isinstance(Y, Broken)]
    places = [wrong_forms(Y, g, told, dtype) for _, g, Y in came] if len(came) > 1 else []
    named = [(place, i) for i, place in enumerate(places) if place is not None]
    if named:
        return came[min(named)[1]][0]._replace(means=told), False
    return (came or tries)[0][0]._replace(means=told), False


def with_mask(known: Known, own: Own, told: Conventions, dtype: str, seed: int | None) -> tuple[Known, str | None]:
    """The layer with masks in the form that it takes; otherwise why it takes none."""
    count, taken, why = arity(own.fn, functional=known.layer.framework != "torch"), None, None
    for mask in MASKS:
        if told.mask not in (None, mask[0]):
            continue
        back = own.backward and wrapped_back(own.backward, count, known.layout, own.mask, mask)
        axes = mask[1].replace("b 1", "b")
        call = wrapped(own.fn, count, known.layout, own.mask, mask)
        layer = replace(known.layer, call=call, backward=back, masks=axes)
        g = asked(layer, axes, dtype, seed)
        Y, means = output(layer, g, dtype), known.means.told(mask=mask[0])
        if fits(Y, g, means, dtype):
            return known._replace(layer=layer, mask=mask, means=means), None
        if isinstance(Y, Broken):
            why = why or str(Y)
        elif taken is None:
            taken = known._replace(layer=layer, means=means)
    return (known, why) if taken is None else (taken, None)


def asked(layer: Layer, axes: str, dtype: str, seed: int | None) -> Given:
    """A problem with a mask that hides a little, and of each row something else where it can."""
    g = Draw(layer, dtype, seed).given("its masks", 2, 4, 5)
    b, n, m = len(g.case.X), g.case.X.shape[1], g.case.keys.shape[1]
    scattered = np.add.outer(np.arange(n), np.arange(m)) % 3 > 0
    rows = (np.arange(m) < np.array([m - 1, 2])[:b, None])[:, None, None]
    if axes == "n m":
        return hidden(g, scattered[None, None])
    return hidden(g, rows if axes == "b m" else rows & (scattered | (np.arange(m) == 0)))


def trial(known: Known, g: Given, dtype: str) -> Tried | Broken:
    """A problem, run and compared."""
    try:
        got = run(known.layer, g.case, g.numbers, dtype, g.train)
    except Broken as broken:
        return broken
    return tried(g.case, got, known.means, dtype)
