"""The edits that operators make at every place of the program, and the names of some of them."""

import re
from collections.abc import Callable, Iterator

from attnmath._examine.mistakes.along import (
    ALONG,
    BEYOND,
    IN_TILES,
    MANY,
    POWERS,
    SHORT_TOO,
    TILES_LOST,
    Operator,
    in_tile,
)
from attnmath._examine.mistakes.modes import FORWARD
from attnmath._examine.mistakes.operators import (
    EXCHANGED,
    FORMULAS,
    OF_READ,
    OF_READ_TRANSPOSED,
    POOL,
    SIZES,
    Place,
    fitting,
    other,
    said,
    shape,
)
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import DOWNSTREAM, STEPS, Forms, Mistake, Wordings


def _there(letter: str, case: Case) -> bool:
    needs = NEEDS.get(letter)
    return needs is None or getattr(case, needs) is not None


def operators_at(place: Place) -> Iterator[tuple[str, Operator, Callable[[Case], bool]]]:
    """All that fit a place: in words, with whether a problem has room for it."""
    at, letter = (place.step, place.letter), place.letter

    def there(case: Case) -> bool:
        return _there(letter, case)

    for some in fitting(place):
        for words, operator in some.items():
            yield words, operator, there
    sizes = SIZES.get(letter, "").split()
    for axis, size in enumerate(sizes):
        for words, operator in BEYOND.get((size, axis), {}).items():
            yield words, operator, there
        if size in WORDS:
            def wide(case: Case, axis: int = axis) -> bool:
                return there(case) and shape(letter, case)[axis] > 1

            for words, along in ALONG.items():
                lost = words.startswith("is zero for the ")  # also where there is one alone
                yield words.format(WORDS[size]), along(axis), there if lost else wide
    for y in POOL[place.step in BACK_STEPS] if at in EXCHANGED else ():
        alike_scores = SIZES[y].endswith("n m") is SIZES[letter].endswith("n m")
        if y != letter and alike_scores and y not in DOWNSTREAM[place.step]:
            def alike(case: Case, y: str = y) -> bool:
                return shape(y, case) == shape(letter, case)

            yield f"has {said(y)} in its place", other(y), alike


WORDS = {"b": "batch element", "H": "head", "G": "head", "n": "query", "m": "key"}
BACK_STEPS = frozenset(STEPS) - FORWARD
NEEDS = {"bias": "bias", "dB": "bias", "R": "R", "R_back": "R"}  # what a problem has to have
PLACES = [Place("", x) for x in "D dP dA bias seen O dQ dkeys dvalues dB dO L A R gamma_back".split()]
# What a step knows by its shape alone.
SHAPES = {("dK", "K"), ("dV", "V"), ("dK", "owner_back"), ("dV", "owner_back"), ("dB", "bias")}
PLACES += [Place(step, x) for step, f in STEPS.items() for x in f.__code__.co_names
           if x in STEPS and step in FORMULAS and step != "L" and (step, x) not in SHAPES]


def _edit(place: Place, words: str, operator: Operator, fits: Callable[[Case], bool]) -> Mistake:
    """An edit at a place, in the problems that have room for it."""
    def forms(case: Case, means: Conventions) -> Wordings:
        if fits(case):
            yield "", place.change(operator)

    return _mistake(place, words, forms)


def _mistake(place: Place, words: str, forms: Forms) -> Mistake:
    """An edit at a place in its forms."""
    x = said(place.letter)
    title = f"{x} {words}, in {place.words}" if place.step else f"{x} {words}"
    slug = re.sub("[^A-Za-z0-9]+", "_", f"{place.step} {place.letter} {words}").strip("_")
    name = KNOWN.get((*place, words), slug)
    cure = place.words if place.step else CURES.get(place.letter, place.words)
    return Mistake(name, TITLES.get(name, title), forms, place.formula, cure)


TITLES = {  # plainer than what an operator says
    "D_missing": "the row term D is missing: dA = P o dP",
    "softmax_detached": "no gradient passes through the softmax: dA = 0",
    "dQK_noscale": "dQ and dK miss the scale gamma",
}
CURES = {
    "bias": "A = gamma Q K^T + B, with the bias in B", "dO": "use the dO that is given",
    "R": "R is 0 or 1/(1 - rho), the same in both directions", "gamma_back": "dQ = gamma dA K, dK = gamma dA^T Q",
    "seen": "each batch element, head and query has its own row of the mask",
}


KNOWN = {  # names of some
    **{("", "dP", words): "dP_transposed" for words in OF_READ},
    **{("dB", "dA", words): "dB_transposed" for words in OF_READ},
    **{("dkeys", "dA", words): "dK_untransposed" for words in OF_READ_TRANSPOSED},
    **{("dvalues", "PR_back", words): "dV_PnotPT" for words in OF_READ_TRANSPOSED},
    **{("", x, "is zero"): "zeros" for x in ("dQ", "dkeys", "dvalues")},
    ("", "dB", "is zero"): "bias_missing", ("", "dA", "is zero"): "softmax_detached",
    ("dQ", "gamma_back", "is missing"): "dQ_noscale", ("dkeys", "gamma_back", "is missing"): "dK_noscale",
    ("", "gamma_back", "is missing"): "dQK_noscale", ("dQ", "gamma_back", "is used twice"): "dQ_scale2",
    ("dkeys", "gamma_back", "is used twice"): "dK_scale2", ("", "gamma_back", "is multiplied by ln 2"): "dQK_ln2",
    ("", "gamma_back", "is multiplied by log2(e)"): "dQK_log2e",
    ("dA", "D", "is missing"): "D_missing", ("", "D", "has the wrong sign"): "D_sign",
    ("", "D", "is halved"): "D_detached_half", ("", "D", "is a mean over the keys instead of a sum"): "D_mean",
    ("", "D", "is summed over the queries instead of the keys"): "D_wrong_axis",
    ("", "D", "is taken without the dropout mask"): "D_nodrop",
    ("", "D", "is that of the query before"): "D_rowmix", ("", "D", "is that of the next query"): "D_rowmix",
    ("", "dA", "has the wrong sign"): "dS_sign", ("", "dO", "is taken to be all ones"): "dO_ignored",
    ("dB", "dA", "is zero for all but the first batch element"): "dB_batch0",
    ("dB", "dA", "is that of the first batch element where they share the bias, not a sum"): "dB_batch0",
    ("", "dB", "is multiplied by gamma"): "dB_scaled", ("", "bias", "is missing"): "bias_ignored",
    ("PR_back", "R_back", "is missing"): "dV_nodrop", ("dP", "R_back", "is missing"): "dP_nodrop",
    ("", "R", "is missing"): "dropout_ignored", ("", "R", "lacks the factor 1/(1 - rho)"): "f_drop_norescale",
}


def generated() -> list[Mistake]:
    """Every edit that an operator makes at a place."""
    return [_edit(place, *one) for place in PLACES for one in operators_at(place)]


def in_every_tile() -> Iterator[Mistake]:
    """Every edit of a tile of heads, queries or keys at a place: what a loop over tiles may do wrong."""
    for place in PLACES:
        for axis, size in enumerate(SIZES.get(place.letter, "").split()):
            for words in (*IN_TILES, *TILES_LOST) if size in ("H", "n", "m") else ():
                yield _mistake(place, words.format(MANY[size]), _in_tiles(place, words, axis, size))


def _in_tiles(place: Place, words: str, axis: int, size: str) -> Forms:
    def forms(case: Case, means: Conventions) -> Wordings:
        for t in POWERS[1:] if _there(place.letter, case) else ():
            if case.sizes[size] > t or words in SHORT_TOO:
                yield f"tiles of {t}", place.change(in_tile(words, axis, t))

    return forms
