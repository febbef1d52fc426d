"""An edit in both directions, in one alone, or in a program whose gradients are those of what it computes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attnmath._examine.problems.steps import FROM_O, WAYS, StepChanges, Steps

FORWARD = frozenset("gamma owner seen bias B Q K V R keys values QK A L P O".split())
# What the two ways to find D, and the two to find P, depend on: elsewhere they are the same.
UPSTREAM = FORWARD | frozenset("dO owner_back B_back keys_back values_back A_back P_back R_back dP".split())
# What the way back computes once more, from what the way forward has.
AGAIN: dict[str, tuple[str, Callable[[Steps], Any]]] = {
    "QK": ("A_back", lambda s: s.gamma * s.QK + s.B_back), "A": ("A_back", lambda s: s.A),
    "P": ("P_back", lambda s: s.P), "keys": ("keys_back", lambda s: s.keys),
    "values": ("values_back", lambda s: s.values), "L": ("P_back", lambda s: np.exp(s.A_back - s.L)),
}
BEFORE_BOTH = frozenset("dO owner_back B_back keys_back values_back A_back P_back R_back dP D dA".split())
OWN: StepChanges = {}  # beside other changes: the gradients are those of the output that they give
IN_BOTH, IN_OUTPUT, IN_WAY_BACK = "", "in the output alone: ", "in the way back alone: "
KERNELS = {"dQ": "in dQ alone: ", "dkeys": "in dK alone: ", "dB": "in dB alone: "}  # programs of their own
# Names that the same mistakes have in the way back alone.
BACK_NAMES = {
    "mask_ignored": "no_mask_bwd", "causal_ignored": "no_mask_bwd",
    "causal_always": "causal_always_bwd", "f_align": "align_bwd", "f_gqa_map": "gqa_map_bwd",
    "bias_ignored": "no_bias_bwd", "dropout_ignored": "drop_ignored_bwd", "f_drop_norescale": "drop_norescale_bwd",
    "P_in_bf16": "P_in_bf16",
}


def in_output(change: StepChanges) -> StepChanges:
    """The output is that of the edited program; the way back is right."""
    own: StepChanges = {"O": lambda s, x: s.apart(own, change).O}
    return own


def in_way_back(change: StepChanges) -> StepChanges:
    """The gradients are those of the edited program; the output is right, and so is what is kept of it."""

    def right(letter: str) -> Any:
        return lambda s, x: getattr(s.apart(own), letter)

    own: StepChanges = {**change, "O": right("O"), "L": right("L")}
    return own


def in_one(letter: str, way: tuple[StepChanges, ...], change: StepChanges) -> StepChanges:
    """One gradient is that of the edited program, the others are right."""
    own: StepChanges = {letter: lambda s, x: getattr(s.apart(own, *way, change), letter)}
    return own


def again(change: StepChanges) -> StepChanges:
    """With the same edit in what the way back computes once more."""

    def taken(step: Callable[[Steps], Any]) -> Callable[[Steps, Any], Any]:
        return lambda s, x: step(s)

    return {**{AGAIN[x][0]: taken(AGAIN[x][1]) for x in change if x in AGAIN}, **change}


def modes(change: StepChanges) -> Iterator[tuple[str, tuple[StepChanges, ...]]]:
    """Where an edit acts, in words, and all that then differs."""
    forward = {x: step for x, step in change.items() if x in FORWARD}
    whole = {**again(forward), **change} if forward else change
    ways = WAYS if UPSTREAM & whole.keys() else WAYS[:1]
    if forward:
        yield IN_BOTH, (OWN, forward)
    if "O" in change:
        forward = {}
    if forward:
        yield IN_OUTPUT, (in_output(forward),)
        yield IN_OUTPUT, (FROM_O, in_output(forward))
    back = in_way_back(whole)
    for way in ways:
        yield IN_BOTH, (*way, whole)
        if forward:
            yield IN_WAY_BACK, (*way, back)
        elif change.keys() & BEFORE_BOTH:
            for letter, words in KERNELS.items():
                yield words, (in_one(letter, way, change),)
