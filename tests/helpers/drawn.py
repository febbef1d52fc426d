"""Arguments for any public function, as its annotations ask for them."""

import inspect

import numpy as np

from attnmath._given import letters as given_letters
from attnmath._given import masks
from attnmath._given.arguments import PLAIN, arguments

SIZES = {"n": 4, "m": 5, "d": 6, "d_z": 7, "d_k": 3, "d_v": 2, "d_u": 8, "H": 4, "G": 2, "1": 1, "w": 2, "r": 2,
         "d_q": 3, "d_c": 2, "d_r": 6}
LATENTS = {"d_q", "d_c"}  # their matrices stand two in a row: halved, so that scores are below ten
VALUES = {  # what a condition asks for
    given_letters.cap: lambda rng, shape: 0.5 + rng.random(shape),
    given_letters.factors: lambda rng, shape: (rng.random(shape) < 0.8) / 0.8,
    given_letters.not_negative: lambda rng, shape: 0.25,
    given_letters.positive_number: lambda rng, shape: 0.01,
    given_letters.rate: lambda rng, shape: rng.random(shape) if shape else 0.3,
    given_letters.temperature: lambda rng, shape: 0.5 + rng.random(shape),
}
OPTIONS = {
    masks.whole_numbers: lambda rng, shape: np.sort(rng.integers(0, 5, shape)),
    masks.boolean_masks: lambda rng, shape: rng.random(shape) < 0.6,
    masks.to_hide_or_add: lambda rng, shape: rng.random(shape) < 0.4,
    masks.to_add: lambda rng, shape: rng.normal(size=shape),
    masks.like_array: lambda rng, shape: np.ones(()),
    given_letters.tile_sizes: lambda rng, shape: (3, 2),
}


def size(name):
    """Of an axis; what is not listed above has a size of its own."""
    return SIZES.setdefault(name, 9 + len(SIZES))


def drawn(function, seed=0, leading=(3,), dtype="float64", without=("given",)):
    """An argument for each parameter; a masked score and an empty row, where scores or a bias are given."""
    rng, given, made = np.random.default_rng(seed), arguments(function), {}
    letters = {x.name: x for one in given for x in one.letters() if x.shape and not x.option}
    first = next((x.name for x in letters.values() if not x.moves and not x.exact), None)

    def shape(letter):
        letter = letters[letter.belongs] if letter.moves else letter
        axes = letter.shape.options[-1]
        front = leading if axes.lead is not None and (first in (letter.name, axes.lead) or letter.exact and not axes.lead) else ()
        return (*(leading[-1:] if axes.lead == "heads" else front), *map(size, axes.names))

    def array(letter):
        condition = next((c for c in letter.conditions if c in VALUES), None)
        x = VALUES[condition](rng, shape(letter)) if condition else rng.normal(size=shape(letter))
        halved = LATENTS & {*(letters[letter.belongs] if letter.moves else letter).shape.options[-1].names}
        return x if type(x) is float else np.asarray(x / 2 if halved else x, dtype)

    for x in given:
        if x.name in without:
            continue
        if x.fields:
            made[x.name] = x.kind(*map(array, x.fields))
        elif x.option:
            made[x.name] = option(x, inspect.signature(function).parameters[x.name].default, rng, leading)
        else:
            made[x.name] = True if x.base in PLAIN else array(x)
    return hidden(made)


def option(x, default, rng, leading):
    """What is no array of floating-point numbers: a size, a word, a mask; None where that may be."""
    if x.option.ready not in OPTIONS:
        return SIZES[x.name] if default is inspect.Parameter.empty else default
    axes = x.shape.options[0] if x.shape else None
    front = leading if axes and axes.lead is not None and not x.shape.spreads else ()
    return OPTIONS[x.option.ready](rng, (*front, *map(size, axes.names)) if axes else ())


def hidden(x):
    """Scores and biases with -inf at some places; targets are 0 there."""
    for name in x.keys() & {"A", "B"}:
        x[name][..., 1, :] = x[name][..., 0, 2] = -np.inf
    for place, name in enumerate(("L_a", "L_b")):
        if name in x:
            x[name][place:, 0] = -np.inf
    if {"A", "E"} <= x.keys():
        x["E"] = np.where(np.isneginf(x["A"]), 0, abs(x["E"])).astype(x["A"].dtype)
    return x
