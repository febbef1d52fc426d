"""What a layer means: the form of its weights, its layout, masks, scale, the format of its softmax."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields, replace
from itertools import islice, product
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.contract.functions import Broken
from attnmath._examine.layer.draw import Draw, hiding, layer_cases
from attnmath._examine.layer.latent import LatentLayer, with_latents
from attnmath._examine.layer.latent_readings import latent_readings
from attnmath._examine.layer.layer import ByName, Layer, LayerAnswer, LayerCase, LayerSteps
from attnmath._examine.layer.mistakes import AFTER, DICTIONARY
from attnmath._examine.layer.own_layer import MASK_FORMS, TOKEN_LAYOUTS, MaskForm, OwnLayer, Way
from attnmath._examine.layer.pieced import with_pieces
from attnmath._examine.layer.run import run
from attnmath._examine.layer.running_error import BoundedSteps, formats, right_output
from attnmath._examine.layer.tried import Tried
from attnmath._examine.layer.weight_layouts import WeightLayout, readings
from attnmath._examine.problems.case import Conventions
from attnmath._formulas.heads import Weights
from attnmath.rounding.formats import unit_roundoff

SCALES = None, "1", "1/d_k"
SMALLEST = 1e-15  # an epsilon that somebody would choose
MOST_WAYS = 60  # in which pieces are looked for
FEW = 24  # ways to read a layer in which a mistake is looked for


class KnownLayer(NamedTuple):
    """A layer as it is understood, and what had to be found out."""

    layer: Layer
    dtype: str
    seed: int
    means: Conventions = Conventions()
    reading: WeightLayout | None = None
    layout: str = "bnd"
    way: Way = Way()
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

    def fresh(self) -> Iterator[Tried | Broken]:
        """Problems that have not been tried: other numbers, and one query and one key more."""
        return map(self.trial, layer_cases(Draw(self.layer, self.dtype, self.seed + 1, longer=1)))


# ---- what it could be, and what it is -----------------------------------------------------------


def possible_layers(own: OwnLayer, dtype: str | None, seed: int) -> Iterator[KnownLayer]:
    """Everything that a layer could be by the shapes of its weights, the usual first."""
    found: list[tuple[Way, WeightLayout, Callable[[ByName], Weights]]] = [
        (way.read(ours, own.weights), reading, ours) for way, heads in product(own.ways(), own.possible_heads())
        for reading, ours in readings(own.weights, heads, len(way.given) if way.cross else 1)
        if own.reading in (None, reading)
    ]
    if not found:
        shapes = ", ".join(f"{k} {tuple(w.shape)}" for k, w in own.weights.items())
        raise ValueError(
            f"examine_layer: the weights have the shapes {shapes}, which fit no form that is known;"
            " heads=H may be missing"
        )
    if own.is_torch:
        found.sort(key=lambda x: not x[1].into.endswith(") d"))  # PyTorch's own form
    for layout, causal, pairing, (way, reading, ours) in product(
        TOKEN_LAYOUTS if own.layout is None else (own.layout,),
        (own.causal,) if own.causal is not None else (False, True),
        (own.pairing,) if own.rotary is None or own.pairing else ("half", "interleaved"),
        found,
    ):
        layer = own.layer(way, layout, ours, causal=causal, pairing=pairing)
        yield KnownLayer(layer, dtype or layer.dtype, seed, reading=reading, layout=layout, way=way)


def first_mistake(Y: np.ndarray, case: LayerCase, means: Conventions, dtype: str, most: int) -> int:
    """The place in the dictionary of the first mistake that gives an output; at most this one if none does."""
    off = BoundedSteps(case, means, formats(dtype, means.inside)).Y.off.max()
    for place, mistake in enumerate(DICTIONARY[:most]):
        for _, change in mistake.forms(case, means):
            if change.keys() <= AFTER:
                continue
            wrong = LayerSteps(case, means, [change]).Y
            if wrong.shape == Y.shape and (abs(Y - wrong) <= 8 * off).all():
                return place
    return most


def understood(candidates: Sequence[KnownLayer], told: Conventions) -> tuple[KnownLayer, bool]:
    """The first that the layer's output agrees with; else the first that makes a known mistake of it.

    A layer of PyTorch in a short format is read in float32, where few forms are alike.
    """
    dtype = candidates[0].dtype
    if dtype in ("bfloat16", "float16") and candidates[0].layer.framework == "torch":
        wide = [known._replace(dtype="float32") for known in candidates]
        if not isinstance(wide[0].answer(wide[0].draw.case("what it takes", 2, 4, 4)), Broken):
            found, agreed = understood(wide, told)
            return found._replace(dtype=dtype), agreed
    answers: dict[tuple[Any, ...], LayerAnswer | Broken] = {}
    came = []
    for known in candidates:
        case = known.draw.case("what it means", 2, 4, 5 if known.layer.cross else 4)
        key = known.layout, known.way, case.X.shape, case.context.shape
        got = answers[key] = answers.get(key) or known.answer(case)
        came += [] if isinstance(got, Broken) else [(known, case, got.Y)]
    for inside in (None, "float32") if dtype == "float64" and told.inside is None else (told.inside,):
        for known, case, Y in came:
            either = known.layer.causal and known.layer.cross and told.causal is None
            aligned = (None, "upper_left") if either else (told.causal,)
            scales = SCALES if told.scale is None and known.layer.scale is None else (told.scale,)
            for causal, scale in product(aligned, scales):
                means = told.told(inside=inside, causal=causal, scale=scale)
                if right_output(Y, case, means, dtype):
                    return known._replace(means=means), True
    if pieced := _pieced(came, told, candidates[0].layer.framework):
        return pieced, True
    first, least = came[0][0] if came else candidates[0], len(DICTIONARY)
    for known, case, Y in came[:FEW] if len(came) > 1 else ():
        place = first_mistake(Y, case, told, dtype, least)
        first, least = (known, place) if place < least else (first, least)
    return first._replace(means=told), False


def _pieced(came: Sequence[tuple[KnownLayer, Any, Any]], told: Conventions, framework: str) -> KnownLayer | None:
    """The first that agrees with its output if it has pieces beside plain attention."""
    ways = {(k.layout, k.way, k.reading, k.layer.ours): k for k, *_ in came if not k.layer.causal}
    if framework == "jax" or told.scale is not None or came and came[0][0].layer.rotary:
        return None
    for known in [*ways.values()][:MOST_WAYS]:
        if found := with_pieces(known.layer, known.seed, told):
            return _epsilon_of_format(known._replace(layer=found[0], means=found[1]))
    return None


def with_latent(own: OwnLayer, told: Conventions, dtype: str | None, seed: int) -> KnownLayer | None:
    """A layer whose keys and values come up from a latent, if its output is that of one."""
    if not own.is_torch or told.scale is not None or own.layout not in (None, "bnd"):
        return None
    ways = [way for way in own.ways() if not way.cross]
    for way, (ours, parts) in islice(product(ways, latent_readings(own.weights, own.possible_heads())), MOST_WAYS):
        plain = own.layer(way, "bnd", ours)
        layer = LatentLayer(**{x.name: getattr(plain, x.name) for x in fields(plain)}, parts=parts)
        if means := with_latents(layer, seed, told):
            return _epsilon_of_format(KnownLayer(layer, dtype or layer.dtype, seed, means, way=way))
    return None


def _epsilon_of_format(known: KnownLayer) -> KnownLayer:
    """With the rounding unit of its own format as epsilon of norms, where in float64 it was that or nothing."""
    pieces, unit = known.means.pieces, 2 * unit_roundoff(known.dtype)
    if pieces.norm is not None and pieces.norm < SMALLEST:
        pieces = replace(pieces, norm=unit)
    if pieces.latent and pieces.latent.epsilon < SMALLEST:
        pieces = replace(pieces, latent=pieces.latent._replace(epsilon=unit))
    return known._replace(means=replace(known.means, pieces=pieces))


def with_mask(known: KnownLayer, own: OwnLayer, told: Conventions) -> tuple[KnownLayer, str | None]:
    """The layer with masks in the form that it takes; otherwise why it takes none."""
    taken, why = None, None
    for form in MASK_FORMS:
        if told.mask not in (None, form.kind):
            continue
        axes, (call, back) = form.axes.replace("b 1", "b"), own.calls(known.way, known.layout, form)
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
    some = np.add.outer(np.arange(n), np.arange(m)) % 3 > 0
    rows = (np.arange(m) < np.array([m - 1, 2])[:b, None])[:, None, None]
    keep = {"n m": some[None, None], "b m": rows}
    return hiding(case, keep.get(axes, rows & (some | (np.arange(m) == 0))))
