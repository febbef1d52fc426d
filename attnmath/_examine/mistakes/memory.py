"""Mistakes of how memory is read, of rows that may attend to nothing, and of one place that is rounded."""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from attnmath._examine.contract.layouts import OURS, axes_of, from_layout, memory_order, to_layout
from attnmath._examine.mistakes.blocks import blocks_of
from attnmath._examine.mistakes.operators import Place
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import ATTENTION, BACK, Mistake, StepChanges, Steps, Wordings
from attnmath._words.arrays import T
from attnmath.rounding.formats import FORMATS, nearest


def in_parts(places: Callable[..., np.ndarray], x: np.ndarray, layout: str, of: str, *other: str) -> np.ndarray:
    """For each entry the place in memory that is read; of each part alone, where its layout lacks axes."""
    there = "".join(axes_of(layout, of))
    part = x[tuple(slice(None if letter in there else 1) for letter in OURS)]
    first = np.arange(0, x.size, max(1, part.size))
    return (first[:, None] + places(part, layout, of, *other)).ravel()


def in_memory(x: np.ndarray, layout: str, of: str, contiguous_rows: bool) -> np.ndarray:
    """The places of Q, K, V or dO, itself strided."""
    y = to_layout(np.arange(x.size).reshape(x.shape), layout, of)
    order = memory_order(of, y.ndim, contiguous_rows)
    return np.ascontiguousarray(y.transpose(order)).transpose(np.argsort(order))


def strided(x: np.ndarray, layout: str, of: str, other: str = "", contiguous_rows: bool = False) -> np.ndarray:
    """Where each entry is looked for in memory that is strided: as if contiguous, or by the strides of another."""
    y = in_memory(x, layout, of, contiguous_rows)
    steps = np.array((in_memory(x, layout, other, contiguous_rows) if other else y.copy()).strides) // y.itemsize
    read = y.ravel("K")[np.tensordot(steps, np.indices(y.shape), 1) % y.size]
    return from_layout(read, layout, of, x.shape[1]).ravel()


def broadcast(x: np.ndarray, layout: str, of: str) -> np.ndarray:
    """Where each entry is looked for in memory that has one row for all queries."""
    one = to_layout(np.arange(x.size).reshape(x.shape)[:, :, :1], layout, of)
    return from_layout(np.resize(one, to_layout(x, layout, of).shape), layout, of, x.shape[1]).ravel()


def read(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    return x.ravel()[places].reshape(x.shape)


def scattered(x: np.ndarray, places: np.ndarray) -> np.ndarray:
    """What autograd makes of the gradient of what was read."""
    out = np.zeros(x.size)
    np.add.at(out, places, x.ravel())
    return out.reshape(x.shape)


def misread(letters: str, places: dict[str, np.ndarray], back: bool) -> StepChanges:
    """These letters of Q, K and V are read in other places; with back their gradients return there."""
    change: StepChanges = {x: steps.bind(lambda s, y, p: read(y, p), places[x]) for x in letters}
    if back:
        change = {**change, **{f"d{x}": steps.bind(lambda s, y, p: scattered(y, p), places[x]) for x in letters}}
    return change


def input_strides(case: Case, means: Conventions) -> Wordings:
    if "strided inputs" in case.traits and means.layout is not None:
        read_by = partial(strided, contiguous_rows="contiguous rows" in case.traits)
        places = {x: in_parts(read_by, getattr(case, x), means.layout, x) for x in "QKV"}
        for letters in ("QKV", "Q", "K", "V", "QK", "KV"):
            for back in (True, False):
                yield " and ".join(letters), misread(letters, places, back)


def strides_of_another(case: Case, means: Conventions) -> Wordings:
    if "strided inputs" in case.traits and means.layout is not None and case.K.shape == case.V.shape:
        read_by = partial(strided, contiguous_rows="contiguous rows" in case.traits)
        places = {x: in_parts(read_by, getattr(case, x), means.layout, x, y) for x, y in ("KV", "VK")}
        for letters, said in (("K", "K by those of V"), ("V", "V by those of K"), ("KV", "K and V exchanged")):
            for back in (True, False):
                yield said, misread(letters, places, back)


def dO_strides(case: Case, means: Conventions) -> Wordings:
    for trait, places in (("strided dO", strided), ("broadcast dO", broadcast)):
        if trait in case.traits and means.layout is not None:
            yield "", {"dO": steps.bind(lambda s, x, p: read(x, p), in_parts(places, case.dO, means.layout, "dO"))}


def values_as_wide_as_keys(case: Case, means: Conventions) -> Wordings:
    (b, G, m, d_v), d_k = case.V.shape, case.K.shape[3]
    if d_k != d_v:
        row = np.arange(m)[:, None] * d_k + np.arange(d_v)
        heads = np.arange(b * G)[:, None, None]
        for places in (heads * m * d_v + row % (m * d_v), (heads * m * d_k + row) % case.V.size):
            for back in (True, False):
                yield "", misread("V", {"V": places.ravel()}, back)


# ---- rows that may attend to nothing ------------------------------------------------------------


def _in_empty_rows(number: float) -> Callable[[Steps, np.ndarray], np.ndarray]:
    return lambda s, P: np.where(steps.rows_without_keys(s), number, P)


def empty_rows(case: Case, means: Conventions) -> Wordings:
    nan = _in_empty_rows(np.nan)
    if "empty row" in case.traits:
        yield "they are NaN", {"P": nan, "P_back": nan}
        yield "they are NaN in the output", {"P": nan}
        yield "they are NaN", {"P": nan, "P_back": nan, "dA": steps.zero_without_keys}
        for word, weight in (("uniform", "1/m"), ("sum", "1")):
            changes = steps.EMPTY_ROWS[word]
            yield f"their weights are {weight}", steps.EMPTY_ROWS[f"{word} with gradient"]
            yield f"their weights are {weight} in the output", {"P": changes["P"]}
            yield f"their weights are {weight}, without a gradient of the scores", changes


def passed_back(case: Case, means: Conventions) -> Wordings:
    """Where such a row gives something by convention: the weights of another convention on the way back alone."""
    if "empty row" in case.traits and means.empty in steps.EMPTY_ROWS:
        other = {"uniform": "the mean of the values", "sum": "their sum"}
        for word, said in other.items():
            P_back = steps.EMPTY_ROWS[word]["P_back"]
            if word not in means.empty:
                yield f"as if it gave {said}", {"P_back": P_back}
                yield f"as if it gave {said}", {"P_back": P_back, "dA": steps.zero_without_keys}
        yield "as if it gave 0", {"P_back": steps.zero_without_keys}


PASSED_BACK = Mistake(
    "empty_row_back", "what a row that may attend to nothing passes back does not belong to its output",
    passed_back, BACK, "the way back has the weights of the way forward: 1/m for a mean, 1 for a sum",
)
MEMORY: list[Mistake] = [
    Mistake("input_strides", "an input is read as if it were contiguous", input_strides, ATTENTION,
            "use its strides, or copy it first"),
    Mistake("strides_of_another", "an input is read by the strides of another", strides_of_another, ATTENTION,
            "each tensor has strides of its own"),
    Mistake("dO_strides", "dO is read as if it were contiguous", dO_strides, BACK,
            "use dO's strides, or copy it first"),
    Mistake("strides_of_K_for_V", "the width of V is taken to be that of K", values_as_wide_as_keys, ATTENTION,
            "V and O have d_v columns"),
    Mistake("empty_row_nan", "a row that may attend to nothing does not give zero, and pass back zero", empty_rows,
            ATTENTION, "divide by the sum of a row only where it is not 0"),
]


# ---- one place that is rounded ------------------------------------------------------------------

PLACES: dict[str, tuple[str, ...]] = {
    "the weights": ("P", "P_back"), "the weights of the way back": ("P_back",), "the weights in dV": ("PR_back",),
    "the scores": ("A", "A_back"), "the products Q K^T": ("QK",),
    "dP": ("dP",), "dA": ("dA",), "O": ("O",), "D": ("D",),
    "Q, K and V": ("Q", "K", "V"), "Q, K, V and dO": ("Q", "K", "V", "dO"), "dO": ("dO",), "V": ("V",),
    "Q and K": ("Q", "K"), "Q": ("Q",), "K": ("K",), "O and the gradients": ("O", "dQ", "dK", "dV"),
    "dQ, dK and dV": ("dQ", "dK", "dV"), "dQ": ("dQ",), "dK": ("dK",), "dV": ("dV",),
    "dK and dV": ("dK", "dV"),
}


def roundings(dtype: str, ranks: bool = False) -> Iterator[tuple[str, str, StepChanges]]:
    """Each place, each shorter format, and the steps that round there."""
    order = ["float64", "float32", "float16", "bfloat16"]
    for form in order[order.index(dtype) + 1:] if dtype in order else []:
        twice = steps.bind(lambda s, x, form: rounded(s.gamma * rounded(x, form), form) / s.gamma, form)
        yield "dA, and gamma dA", form, {**Place("dQ", "dA").change(twice), **Place("dkeys", "dA").change(twice)}
        for way, words in ((1, ""), (-1, ", round the other way")) if ranks else ():
            yield f"dK and dV at each step of the ring{words}", form, {
                x: steps.bind(rounded_on_the_way, x, way, form) for x in ("dK", "dV")}
        for place, letters in PLACES.items():
            yield place, form, {x: steps.bind(lambda s, y, form: rounded(y, form), form) for x in letters}


def rounded_on_the_way(s: Steps, x: np.ndarray, letter: str, way: int, form: str) -> np.ndarray:
    """dK or dV as a sum over the steps of a ring, rounded after each."""
    b = blocks_of(s.case, s.means)
    assert b is not None
    total = np.zeros(x.shape)
    for t in range(b.ranks):
        here = b.step(way) == t
        parts = s.gamma_back * T(s.dA * here) @ s.Q if letter == "dK" else T(s.PR_back * here) @ s.dO
        total = rounded(total + steps.grouped(parts, s.owner_back, x.shape[1]), form)
    return total


def rounded(x: np.ndarray, form: str) -> np.ndarray:
    """To the nearest numbers of a format; infinities stay."""
    with np.errstate(all="ignore"):
        return nearest(np.asarray(x, float), form) if FORMATS[form] else x
