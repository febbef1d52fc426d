"""Which layout and which sizes a candidate takes: found by asking, with forward calls that are small and few."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Fault, whole_numbers
from attnmath._examine.contract.layouts import AXIS_ORDERS, MORE_ORDERS, forced_sizes, parts_of_layout
from attnmath._examine.diagnosis.doubts import wider_layout
from attnmath._examine.diagnosis.limits import Asking, limits
from attnmath._examine.diagnosis.probes import TRIED, hard, right_rows
from attnmath._examine.problems.case import Case, Conventions, Sizes
from attnmath._examine.problems.steps import Steps
from attnmath._examine.report.report import Finding

MOST_SIZES = 160  # to be tried where none of the usual ones is taken
ENOUGH = 12  # sizes that are refused in the same words
# The usual sizes of kernels, the likely ones first; before them come numbers that the code or its errors name.
LENGTHS, WIDTHS, HEADS, ITEMS = (128, 7, 64, 256), (64, 128, 32, 16, 80, 96, 256), (3, 8, 4, 1, 2, 12, 16), (2, 1)
# Where queries and keys may be of one length alone: windows of 4 by 4, 7 by 7, 14 by 14 places, and usual ones.
ONE_LENGTH = (16, 24, 32, 48, 49, 50, 64, 77, 128, 196, 197, 256)
# Errors that no size mends.
OWN_ERRORS = ("ZeroDivisionError", "NameError", "ImportError", "ModuleNotFoundError", "UnboundLocalError")
Found = tuple[Conventions, Sizes | None, list[Finding]]


class Rows(NamedTuple):
    """How much of hard attention is right in one layout, and which causal mask explains it."""

    right: float
    layout: str
    always: str | None
    sizes: Sizes  # which the layout may have changed


def read_sizes(candidate: Candidate, means: Conventions) -> Found:
    """The layout, sizes that the candidate takes, and whether it is causal unasked; all of them in its `taken`."""
    best: Rows | None = None
    errors: dict[str, Fault] = {}
    told = means
    for sizes in map(candidate.stated, TRIED):
        rows, faults = _rows(candidate, means, sizes)
        if stop := next((x for x in faults.values() if x.name in ("hangs", "framework")), None):
            return means, None, [failed(stop)]
        errors = faults if rows else errors or faults
        if best := rows:
            break
    if best is None:  # it may take one query alone
        rows = _rows(candidate, means, candidate.stated(replace(TRIED[0], n=1)))[0]
        if rows and rows.right > 0.5 and errors[rows.layout].name == "raises":  # and does not lose the others
            best = rows
    if best and best.right <= 0.5 and not means.layout:  # others may need another number of heads
        for H in HEADS[1:3]:
            more = _rows(candidate, means, candidate.stated(replace(TRIED[0], b=3, H=H)))[0]
            best = more if more and more.right > 0.5 else best
    if not means.layout and (best is None or best.right <= 0.5):
        for sizes in TRIED[:2] if best is None else [best.sizes]:
            more = _rows(candidate, means, candidate.stated(sizes), MORE_ORDERS)[0]
            if more and more.right > 0.5:  # of another layout something can be right by chance
                best = more
                break
    if best is None and not _hopeless(errors.values()):
        numbers = _numbers(candidate, errors.values())
        for layouts in [[means.layout]] if means.layout else [AXIS_ORDERS, MORE_ORDERS]:
            best = best or _of_sizes(candidate, means, numbers, layouts)
    if best is None:
        return means, None, [failed(errors["bhsd" if "bhsd" in errors else next(iter(errors))])]
    first = best
    if not (means.layout or candidate.forward_only):
        best = _there_and_back(candidate, means, best)
    means = means.told(layout=best.layout)
    if "G" in forced_sizes(best.layout):
        candidate.options.setdefault("groups", None)
    said = []
    if best.always is not None and best.right == 1 and "causal" not in candidate.options:
        candidate.options["causal"] = True
        means = means.told(causal=means.causal or best.always)
        title, cure = "it is causal without being asked", 'options={"causal": True} says that it is meant'
        said.append(Finding("convention", "always_causal", title, cure=cure))
    if best.right == 1 and told.layout is None and best is first:
        said += wider_layout(best.layout, errors)
    one_width = _one_width(candidate, means, best)
    if one_width:
        title = "values of another width than that of keys are taken too, and their heads are cut elsewhere"
        said.append(Finding("hazard", "one_width", title, cure="refuse d_v != d_k, or cut v by its own width"))
    sizes, candidate.taken = limits(Asking(candidate, means, best.sizes), one_width)
    if candidate.taken.same_width and not one_width and _cut(Asking(candidate, means, best.sizes)):
        title = "values of another width than that of keys are taken too, and the output has that of keys"
        said.append(Finding("hazard", "one_width", title, cure="refuse d_v != d_k, or make it d_v wide"))
    return means, sizes, said


def _there_and_back(candidate: Candidate, means: Conventions, best: Rows) -> Rows:
    """The layout that was found, or another in which as much is right and the way back is taken as well."""
    def goes_back(rows: Rows) -> bool:
        case = hard(rows.sizes, np.random.default_rng(0))
        return candidate.run(case, means.told(layout=rows.layout)).answer is not None

    if goes_back(best):
        return best
    others = (_rows(candidate, means, best.sizes, [x])[0] for x in AXIS_ORDERS if x != best.layout)
    return next((x for x in others if x and x.right >= best.right and goes_back(x)), best)


def _one_width(candidate: Candidate, means: Conventions, best: Rows) -> bool:
    """Whether heads that share an axis with their numbers are right for values as wide as keys alone."""
    s = best.sizes
    if "(" not in parts_of_layout(best.layout)[0] or best.right < 1 or s.d_k != s.d_v:
        return False
    wide = Asking(candidate, means).takes(wider := replace(s, d_v=2 * s.d_k))
    rows = _rows(candidate, means, wider)[0] if wide else None
    return rows is not None and rows.right <= 0.5


def _cut(ask: Asking) -> bool:
    """Whether values of another width are taken, and the output has not theirs."""
    fault = ask.refusal(replace(ask.sizes, d_v=2 * ask.sizes.d_v))
    return fault is not None and fault.name == "shape"


def _of_sizes(
    candidate: Candidate, means: Conventions, numbers: list[int], layouts: Sequence[str]
) -> Rows | None:
    """The first sizes of which most rows are right in one of the layouts, or else that are taken.

    It is given up when it has said nothing new, up to numbers, of many sizes.
    """
    best, said, vain = None, set[str](), 0
    several = dict.fromkeys(map(candidate.stated, _sizes_with(numbers)))
    for sizes in itertools.islice(several, MOST_SIZES):
        rows, faults = _taken(candidate, means, sizes, layouts)
        if rows and rows.right > 0.5:
            return rows
        if rows and (layouts is not MORE_ORDERS or "," in rows.layout):  # keys of fewer axes are no accident
            best = best or rows
        now = {re.sub(r"0x[0-9a-f]+|\d+", "#", x.sentence) for x in faults if x}
        vain = 0 if now - said else vain + 1
        said |= now
        if vain >= ENOUGH * min(1 + len(numbers), 3) // (3 if layouts is MORE_ORDERS else 1):
            break
    if best is None and layouts is not MORE_ORDERS:
        named = dict.fromkeys(x for x in whole_numbers(candidate.fn, 0) if 4 < x <= 1024)
        for n in dict.fromkeys([*itertools.islice(named, 6), *ONE_LENGTH]):
            best = best or _taken(candidate, means, candidate.stated(replace(TRIED[1], n=n, m=n)), layouts)[0]
    return best


def _taken(
    candidate: Candidate, means: Conventions, sizes: Sizes, layouts: Sequence[str]
) -> tuple[Rows | None, list[Fault | None]]:
    """How much is right of these sizes in the layouts in which they are taken, and what went wrong in all."""
    faults = {x: Asking(candidate, means.told(layout=x)).refusal(_forced(sizes, x)) for x in layouts}
    taken = [x for x, fault in faults.items() if fault is None]
    return (_rows(candidate, means, sizes, taken)[0] if taken else None), list(faults.values())


def _forced(sizes: Sizes, layout: str) -> Sizes:
    """These sizes, as far as the layout has axes for them."""
    return replace(sizes, **forced_sizes(layout))


def failed(fault: Fault) -> Finding:
    """A call that gave nothing, as a finding."""
    return Finding("contract", fault.name, fault.sentence)


def _rows(
    candidate: Candidate, means: Conventions, sizes: Sizes, layouts: Sequence[str] = AXIS_ORDERS,
) -> tuple[Rows | None, dict[str, Fault]]:
    """The layout in which most rows of hard attention are right; and what went wrong in the others."""
    found: list[Rows] = []
    errors: dict[str, Fault] = {}
    known: dict[Sizes, tuple[Case, dict[str | None, np.ndarray]]] = {}
    for layout in [means.layout] if means.layout else layouts:
        merged = "(" in parts_of_layout(layout)[0]  # how many heads it takes is seen in its output alone
        for H in dict.fromkeys([sizes.H, *(HEADS if merged and "H" not in candidate.told_sizes else ())]):
            s = _forced(replace(sizes, H=H), layout)
            if s not in known:
                case = hard(s, np.random.default_rng(0))
                known[s] = case, {}
            case, forms = known[s]
            outcome = candidate.run(case, means.told(layout=layout), forward=True)
            if outcome.answer is None:
                errors.setdefault(layout, outcome.refusal)
                if outcome.refusal.name in ("hangs", "framework"):
                    return None, errors
                break
            if not forms:
                forms |= _forms(case)
            for always, want in forms.items():
                right = float(right_rows(outcome.answer.O, want).mean())
                found.append(Rows(right, layout, always, s))
    return max(found, key=lambda x: x.right, default=None), errors


def _forms(case: Case) -> dict[str | None, np.ndarray]:
    """The output without a mask, and with a causal one of either kind."""
    causal = {a: replace(case, causal=True) for a in ("upper_left", "lower_right")}
    return {None: Steps(case).O} | {a: Steps(x, Conventions(causal=a)).O for a, x in causal.items()}


def _hopeless(faults: Iterable[Fault]) -> bool:
    """Whether other sizes will not do: in the first layout it did not complain about what it was given."""
    return any(x.name != "raises" or x.sentence.startswith(OWN_ERRORS) for x in itertools.islice(faults, 1))


def _numbers(candidate: Candidate, faults: Iterable[Fault]) -> list[int]:
    """The numbers that its errors and its code name and that could be sizes, those of errors first."""
    said = [int(x) for fault in faults for x in re.findall(r"\b\d{1,4}\b", fault.sentence)]
    known = {x for s in TRIED[:2] for x in (*s.seven, s.b * s.H)}
    found = [x for x in (*said, *whole_numbers(candidate.fn, 0)) if 1 < x <= 1024 and x not in known]
    return list(dict.fromkeys(found))[:6]


def _sizes_with(numbers: list[int]) -> Iterator[Sizes]:
    """Sizes to try, those that are likely first."""
    lengths = dict.fromkeys([*LENGTHS[:1], *numbers, *LENGTHS[1:]])
    widths = list(dict.fromkeys([*numbers, *WIDTHS]))
    own = [(x, x) for x in numbers if x >= 8] + [(x, y) for x in numbers for y in numbers if x > y >= 8]
    pairs = [*own, *((x, x) for x in widths if (x, x) not in own)]
    heads = dict.fromkeys([*HEADS[:2], *(x for x in numbers if x <= 64), *HEADS[2:]])
    ranked = itertools.product(enumerate(ITEMS), enumerate(heads), enumerate(lengths), enumerate(pairs))
    for row in sorted(ranked, key=lambda row: sum(rank for rank, _ in row)):
        (_, b), (_, H), (_, n), (_, (d_k, d_v)) = row
        yield Sizes(b, H, n, n, d_k, d_v)
