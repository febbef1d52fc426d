"""Which layout and which sizes a candidate takes: found by asking, with forward calls that are small and few."""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Fault, whole_numbers
from attnmath._examine.contract.layouts import AXIS_ORDERS, MORE_ORDERS, axes_of, forced_sizes, parts_of_layout
from attnmath._examine.diagnosis.doubts import wider_layout
from attnmath._examine.diagnosis.probes import TRIED, hard, right_rows
from attnmath._examine.problems.case import Case, Conventions, Sizes
from attnmath._examine.problems.steps import Steps
from attnmath._examine.problems.taken import Taken
from attnmath._examine.report.report import Finding

MOST_SIZES = 160  # to be tried where none of the usual ones is taken
ENOUGH = 12  # sizes that are refused in the same words
LONG = 130  # queries and keys: what takes these is taken to be without a limit
# The usual sizes of kernels, the likely ones first; before them come numbers that the code or its errors name.
LENGTHS, WIDTHS, HEADS, ITEMS = (128, 7, 64, 256), (64, 128, 32, 16, 80, 96, 256), (3, 8, 4, 1, 2, 12, 16), (2, 1)
# Errors that no size mends.
OWN_ERRORS = ("ZeroDivisionError", "NameError", "ImportError", "ModuleNotFoundError", "UnboundLocalError")
WORDS = ("mask", "bias", "causal", "dropout", "dropout_mask", "groups")
Found = tuple[Conventions, Sizes | None, list[Finding]]


class Rows(NamedTuple):
    """How much of hard attention is right in one layout, and which causal mask explains it."""

    right: float
    layout: str
    always: str | None
    sizes: Sizes  # which the layout may have changed


@dataclass
class Asking:
    """A candidate that is asked which sizes it takes."""

    candidate: Candidate
    means: Conventions
    sizes: Sizes = Sizes()

    def refusal(self, sizes: Sizes, **fields: Any) -> Fault | None:
        """Why it does not answer to a problem of these sizes, which is as plain as can be."""
        b, H, G, n, m, d_k, d_v = sizes.seven
        G = fields.pop("G", G)
        Q, K, V, dO = map(np.zeros, ((b, H, n, d_k), (b, G, m, d_k), (b, G, m, d_v), (b, H, n, d_v)))
        case = Case(Q, K, V, dO, **fields)
        return self.candidate.run(case, self.means, forward=True).error

    def takes(self, sizes: Sizes, **fields: Any) -> bool:
        """Whether it answers to such a problem."""
        return self.refusal(sizes, **fields) is None

    def with_(self, letters: Sequence[str], size: int) -> bool:
        """Whether it takes what it is known to take, with other numbers for these."""
        return self.takes(replace(self.sizes, **dict.fromkeys(letters, size)))

    def step(self, letters: Sequence[str]) -> int | None:
        """Of which number these sizes have to be multiples; None where they may be one number alone."""
        x = getattr(self.sizes, letters[0])
        if self.with_(letters, x + 1):
            return 1
        steps = [2**k for k in range(1, 9) if x % 2**k == 0] + [x]
        return next((g for g in dict.fromkeys(steps) if self.with_(letters, x + g)), None)


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
    means = means.told(layout=best.layout)
    if "G" in forced_sizes(best.layout):
        candidate.options.setdefault("groups", None)
    said = []
    if best.always is not None and best.right == 1 and "causal" not in candidate.options:
        candidate.options["causal"] = True
        means = means.told(causal=means.causal or best.always)
        title, cure = "it is causal without being asked", 'options={"causal": True} says that it is meant'
        said.append(Finding("convention", "always_causal", title, cure=cure))
    if best.right == 1 and told.layout is None:
        said += wider_layout(best.layout, errors)
    sizes, candidate.taken = _limits(Asking(candidate, means, best.sizes))
    return means, sizes, said


def _of_sizes(
    candidate: Candidate, means: Conventions, numbers: list[int], layouts: Sequence[str]
) -> Rows | None:
    """The first sizes of which most rows are right in one of the layouts, or else that are taken.

    It is given up when it has said nothing new, up to numbers, of many sizes.
    """
    best, said, vain = None, set[str](), 0
    several = dict.fromkeys(map(candidate.stated, _sizes_with(numbers)))
    for sizes in itertools.islice(several, MOST_SIZES):
        faults = {x: Asking(candidate, means.told(layout=x)).refusal(_forced(sizes, x)) for x in layouts}
        if taken := [x for x, fault in faults.items() if fault is None]:
            rows = _rows(candidate, means, sizes, taken)[0]
            if rows and rows.right > 0.5:
                return rows
            best = best or (rows if layouts is not MORE_ORDERS else None)
        now = {re.sub(r"0x[0-9a-f]+|\d+", "#", x.sentence) for x in faults.values() if x}
        vain = 0 if now - said else vain + 1
        said |= now
        if vain >= ENOUGH * min(1 + len(numbers), 3) // (3 if layouts is MORE_ORDERS else 1):
            break
    return best


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


def _limits(ask: Asking) -> tuple[Sizes, Taken]:
    """Sizes for the other questions, and what may be of sizes, each asked for alone."""
    s, layout = ask.sizes, ask.means.layout or "bhsd"
    only: dict[str, int] = ask.candidate.told_sizes | forced_sizes(layout)
    queries = axes_of(layout, "Q")
    only |= {"H": s.H} if "hd" in queries else {}
    multiples: dict[str, int] = {}
    square = s.square and _together(ask, ("n", "m"), only, multiples)
    same_width = s.d_k == s.d_v and _together(ask, ("d_k", "d_v"), only, multiples)
    alone = [*(() if square else ("n", "m")), *(() if same_width else ("d_k", "d_v"))]
    alone += [letter for letter, axis in (("b", "b"), ("H", "h")) if axis in queries]
    for letter in alone:
        if letter not in only:
            _stepped(ask, (letter,), only, multiples)
    most = _most(ask, only, multiples)
    more = multiples.get("n", 1)
    at_most = not square and "n" not in only and not ask.with_(("n",), (s.m // more + 1) * more)
    taken = Taken(square, at_most, same_width, tuple(only.items()), tuple(multiples.items()), most)
    b, H, G, n, m, d_k, d_v = taken.sizes(Sizes().seven)
    small = Sizes(b, H, n, m, d_k, d_v, None if G == H else G)
    return (small if ask.takes(small) else s), taken


def _stepped(ask: Asking, letters: Sequence[str], only: dict[str, int], multiples: dict[str, int]) -> None:
    """Note of which number these sizes, which are equal, have to be multiples, or that they may be one alone."""
    step = ask.step(letters)
    if step is None:
        only |= dict.fromkeys(letters, getattr(ask.sizes, letters[0]))
    elif step > 1:
        multiples |= dict.fromkeys(letters, step)


def _together(
    ask: Asking, letters: tuple[str, str], only: dict[str, int], multiples: dict[str, int]
) -> bool:
    """Whether two sizes have to be equal; then they are noted together."""
    x = getattr(ask.sizes, letters[0])
    if set(letters) & set(only):
        return False
    step = ask.step(letters) or x
    if any(ask.with_((letter,), y) for letter in letters for y in (x + step, x // 2) if y):
        return False
    _stepped(ask, letters, only, multiples)
    return letters[0] not in only


def _most(ask: Asking, only: dict[str, int], multiples: dict[str, int]) -> int | None:
    """The largest number of queries and keys, if it is not large."""
    step = max(multiples.get("n", 1), multiples.get("m", 1))
    top = -(-LONG // step) * step
    if {"n", "m"} & set(only) or ask.with_(("n", "m"), top):
        return None
    fewest = -(-max(ask.sizes.n, ask.sizes.m) // step)
    return step * (fewest + _last(lambda k: ask.with_(("n", "m"), (fewest + k) * step), top // step - fewest))


def _last(holds: Callable[[int], bool], top: int) -> int:
    """The last number below top for which it holds, if it holds up to some number."""
    low, high = 0, top
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)
    return low


def square_with(candidate: Candidate, means: Conventions, sizes: Sizes) -> frozenset[str]:
    """The options with which the candidate takes n = m alone."""
    if sizes.square:
        return frozenset()
    ask, found = Asking(candidate, means), set()
    for word in set(WORDS) & set(candidate.options):
        for s in (sizes, replace(sizes, n=sizes.m)):
            case_takes = _asked(ask, s, word)
            if case_takes:
                found |= {word.removesuffix("_mask")} if s.square else set()
                break
    return frozenset(found)


def _asked(ask: Asking, s: Sizes, word: str) -> bool:
    """Whether it takes these sizes with this option."""
    scores = np.zeros((s.b, 1, s.n, s.m))
    fields: dict[str, dict[str, Any]] = {
        "mask": {"keep": scores == 0}, "bias": {"bias": scores}, "causal": {"causal": True},
    }
    if "dropout" in word:
        return ask.takes(s, R=np.full((s.b, s.H, s.n, s.m), 2.0))
    if word == "groups":
        return s.H == 1 or ask.takes(replace(s, H=s.H if s.G else 2 * s.H), G=s.G or s.H)
    return ask.takes(s, **fields[word])
