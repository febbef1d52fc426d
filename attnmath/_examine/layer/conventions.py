"""What a layer means: the form of its weights, its layout, masks, scale, the format of its softmax."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.contract.functions import Broken
from attnmath._examine.layer.layer import Layer, LayerAnswer, LayerCase, LayerSteps
from attnmath._examine.layer.mistakes import DICTIONARY, LAYER_MISTAKES
from attnmath._examine.layer.run import Draw, hiding, run
from attnmath._examine.layer.running_error import BoundedSteps, Tried, formats, right_output
from attnmath._examine.layer.weight_layouts import WeightLayout, readings
from attnmath._examine.problems.case import Conventions

WRONG_SCALES = [m for m in DICTIONARY if "scale" in m.name and m.name.startswith("f_")]  # of the way forward
# Letters that do not reach the output.
AFTER = {x for x in LayerSteps.table if x[0] == "d" or "_back" in x or x.startswith("by_")}
TOKEN_LAYOUTS = "bnd", "nbd", "nd"


class MaskForm(NamedTuple):
    """What a layer's mask says, and its axes."""

    kind: str = "keep"  # "drop": True hides; "add": -inf hides
    axes: str = "b 1 n m"


MASK_AXES = "b 1 n m", "b n m", "b m", "n m"
MASK_FORMS = [MaskForm(kind, axes) for axes in MASK_AXES for kind in ("keep", "drop", "add")]


class OwnLayer(NamedTuple):
    """A layer of one's own, as examine_layer is told of it."""

    fn: Callable[..., Any]
    weights: Mapping[str, Any]
    backward: Callable[..., Any] | None
    heads: int | None
    mask: str | None  # its keyword
    rotary: Callable[[int], tuple[Any, Any]] | None
    pairing: str | None
    causal: bool | None
    layout: str | None
    reading: tuple[str, str] | None

    @property
    def is_torch(self) -> bool:
        """Whether its weights are PyTorch's; all others are handed over."""
        return hasattr(next(iter(self.weights.values())), "requires_grad")

    @property
    def arity(self) -> int:
        """How many arrays of tokens it takes: 1 self-attention, 2 X and Z, 3 queries, keys, values."""
        try:
            parameters = inspect.signature(getattr(self.fn, "forward", self.fn)).parameters.values()
        except (TypeError, ValueError):
            return 2
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        needed = [p for p in parameters if p.kind in kinds and p.default is p.empty]
        return len(needed) - (not self.is_torch)

    def calls(
        self, layout: str, form: MaskForm | None = None
    ) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        """call and backward of its Layer."""
        back = None if self.backward is None else self._wrapped(self.backward, layout, form, back=True)
        return self._wrapped(self.fn, layout, form), back

    def _wrapped(
        self, fn: Callable[..., Any], layout: str, form: MaskForm | None, back: bool = False
    ) -> Callable[..., Any]:
        """fn(X, Z, keep, *parameters), or fn(dY, X, Z, keep, *parameters), for one that takes other things."""
        count, keyword = self.arity, self.mask

        def call(*given: Any) -> Any:
            dY, (X, Z, keep, *parameters) = given[:back], given[back:]
            options = {}
            if keep is not None and keyword is not None and form is not None:
                options[keyword] = masked_as(form, keep, X)
            out = fn(*(_to_layout(x, layout) for x in (*dY, *(X, Z, Z)[:count])), *parameters, **options)
            if not back:
                return _from_layout(out, layout)
            if not isinstance(out, Mapping):
                return out
            return {k: _from_layout(x, layout) if k in ("X", "Z", "dX", "dZ") else x for k, x in out.items()}

        return call


class KnownLayer(NamedTuple):
    """A layer as it is understood, and what had to be found out."""

    layer: Layer
    dtype: str
    seed: int
    means: Conventions = Conventions()
    reading: WeightLayout | None = None
    layout: str = "bnd"
    form: MaskForm | None = None

    @property
    def draw(self) -> Draw:
        """Problems for it, always the same."""
        return Draw(self.layer, self.dtype, self.seed)

    def answer(self, case: LayerCase) -> LayerAnswer | Broken:
        """What it returns for a problem."""
        try:
            return run(self.layer, case, self.dtype)
        except Broken as broken:
            return broken

    def trial(self, case: LayerCase) -> Tried | Broken:
        """A problem, run and compared."""
        got = self.answer(case)
        return got if isinstance(got, Broken) else Tried.of(case, got, self.means, self.dtype)


def masked_as(form: MaskForm, keep: Any, like: Any) -> Any:
    """A mask as a layer wants it; raises ValueError where there is no such."""
    kind, axes = form
    if axes == "b m" and keep.shape[2] != 1 or axes == "n m" and keep.shape[0] != 1:
        raise ValueError(f"a mask of the axes {axes} cannot say this")
    keep = {"b 1 n m": lambda: keep, "b n m": lambda: keep[:, 0], "b m": lambda: keep[:, 0, 0],
            "n m": lambda: keep[0, 0]}[axes]()
    if kind != "add":
        return keep if kind == "keep" else ~keep
    if hasattr(keep, "masked_fill"):
        return like.new_zeros(keep.shape).masked_fill(~keep, float("-inf"))
    return (like.ravel()[0] * 0) + keep.__array_namespace__().where(keep, 0.0, -float("inf")).astype(like.dtype)


def _to_layout(x: Any, layout: str) -> Any:
    if layout == "bnd":
        return x
    return x.swapaxes(0, 1) if layout == "nbd" else x[0]


def _from_layout(x: Any, layout: str) -> Any:
    if layout == "bnd" or not hasattr(x, "shape"):
        return x
    return x.swapaxes(0, 1) if layout == "nbd" else x[None]


# ---- what it could be, and what it is -----------------------------------------------------------


def possible_layers(own: OwnLayer, dtype: str | None, seed: int) -> Iterator[KnownLayer]:
    """Everything that a layer could be by the shapes of its weights, the usual first."""
    count = own.arity
    if count not in (1, 2, 3):
        raise ValueError(
            f"examine_layer: the layer takes {count} arrays; it needs to take X, or X and Z, or queries,"
            " keys and values" + ("" if own.is_torch else ", and then its weights")
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
    if own.is_torch:
        found.sort(key=lambda x: not x[0].into.endswith(") d"))  # PyTorch's own form
    for layout, causal, pairing, (reading, ours) in product(
        TOKEN_LAYOUTS if own.layout is None else (own.layout,),
        (own.causal,) if own.causal is not None else (False, True) if count == 1 else (False,),
        (own.pairing,) if own.rotary is None or own.pairing else ("half", "interleaved"),
        found,
    ):
        call, back = own.calls(layout)
        layer = Layer(
            call, own.weights, ours, name=getattr(own.fn, "__qualname__", None) or type(own.fn).__name__,
            cross=count > 1, causal=causal, rotary=own.rotary, pairing=pairing, batched=layout != "nd",
            module=own.fn if hasattr(own.fn, "modules") and own.is_torch else None, backward=back,
        )
        yield KnownLayer(layer, dtype or layer.dtype, seed, reading=reading, layout=layout)


def first_mistake(Y: np.ndarray, case: LayerCase, means: Conventions, dtype: str) -> int | None:
    """The place in the dictionary of the first mistake that gives an output; None if none does."""
    off = BoundedSteps(case, means, formats(dtype, means.inside)).Y.off.max()
    for place, mistake in enumerate([*LAYER_MISTAKES, *WRONG_SCALES]):
        for _, change in mistake.forms(case, means):
            if change.keys() <= AFTER:
                continue
            wrong = LayerSteps(case, means, [change]).Y
            if wrong.shape == Y.shape and (abs(Y - wrong) <= 8 * off).all():
                return place
    return None


def understood(candidates: Sequence[KnownLayer], told: Conventions) -> tuple[KnownLayer, bool]:
    """The first that the layer's output agrees with; else the first that makes a known mistake of it."""
    answers: dict[tuple[Any, ...], LayerAnswer | Broken] = {}
    came, dtype = [], candidates[0].dtype
    for known in candidates:
        case = known.draw.case("what it means", 2, 4, 5 if known.layer.cross else 4)
        key = known.layout, case.X.shape, case.context.shape
        if key not in answers:
            answers[key] = known.answer(case)
        if isinstance(got := answers[key], Broken):
            continue
        for inside in (told.inside, *(["float32"] if dtype == "float64" and told.inside is None else [])):
            means = told.told(inside=inside)
            if right_output(got.Y, case, means, dtype):
                return known._replace(means=means), True
        came.append((known, case, got.Y))
    places = [first_mistake(Y, case, told, dtype) for _, case, Y in came] if len(came) > 1 else []
    named = [(place, i) for i, place in enumerate(places) if place is not None]
    first = came[min(named)[1] if named else 0][0] if came else candidates[0]
    return first._replace(means=told), False


def with_mask(known: KnownLayer, own: OwnLayer, told: Conventions) -> tuple[KnownLayer, str | None]:
    """The layer with masks in the form that it takes; otherwise why it takes none."""
    taken, why = None, None
    for form in MASK_FORMS:
        if told.mask not in (None, form.kind):
            continue
        axes, (call, back) = form.axes.replace("b 1", "b"), own.calls(known.layout, form)
        layer = replace(known.layer, call=call, backward=back, masks=axes)
        masked = known._replace(layer=layer, means=known.means.told(mask=form.kind))
        case = scattered(masked.draw, axes)
        got = masked.answer(case)
        if isinstance(got, Broken):
            why = why or got.fault.sentence
        elif right_output(got.Y, case, masked.means, known.dtype):
            return masked._replace(form=form), None
        elif taken is None:
            taken = masked
    return (known, why) if taken is None else (taken, None)


def scattered(draw: Draw, axes: str) -> LayerCase:
    """A problem with a mask that hides a little, and of each row something else where it can."""
    case = draw.case("its masks", 2, 4, 5)
    b, n, m = case.lengths
    keep = np.add.outer(np.arange(n), np.arange(m)) % 3 > 0
    rows = (np.arange(m) < np.array([m - 1, 2])[:b, None])[:, None, None]
    if axes == "n m":
        return hiding(case, keep[None, None])
    return hiding(case, rows if axes == "b m" else rows & (keep | (np.arange(m) == 0)))
