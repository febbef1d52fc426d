"""What a candidate takes beside the sizes that were found: each asked for alone, with calls that are small."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Fault
from attnmath._examine.contract.layouts import axes_of, forced_sizes
from attnmath._examine.problems.case import Case, Conventions, Sizes
from attnmath._examine.problems.taken import Taken

LONG = 130  # queries and keys: what takes these is taken to be without a limit
WORDS = ("mask", "bias", "causal", "dropout", "dropout_mask", "groups")


@dataclass
class Asking:
    """A candidate that is asked which sizes it takes."""

    candidate: Candidate
    means: Conventions
    sizes: Sizes = Sizes()
    back: bool = False  # the way back has to take them too

    def refusal(self, sizes: Sizes, **fields: Any) -> Fault | None:
        """Why it does not answer to a problem of these sizes, which is as plain as can be."""
        b, H, G, n, m, d_k, d_v = sizes.seven
        G = fields.pop("G", G)
        Q, K, V, dO = map(np.zeros, ((b, H, n, d_k), (b, G, m, d_k), (b, G, m, d_v), (b, H, n, d_v)))
        case = Case(Q, K, V, dO, **fields)
        return self.candidate.run(case, self.means, forward=not self.back).error

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
        steps = [*self.candidate.steps, *(2**k for k in range(1, 9) if x % 2**k == 0), x]
        return next((g for g in dict.fromkeys(steps) if self.with_(letters, x + g)), None)


def limits(ask: Asking, one_width: bool) -> tuple[Sizes, Taken]:
    """Sizes for the other questions, and what may be of sizes, each asked for alone.

    one_width: that values are as wide as keys is known.
    """
    s, layout = ask.sizes, ask.means.layout or "bhsd"
    only: dict[str, int] = ask.candidate.told_sizes | forced_sizes(layout)
    queries = axes_of(layout, "Q")
    only |= {"H": s.H} if any(len(axes) > 1 for axes in queries) else {}
    multiples: dict[str, int] = {}
    square = s.square and _together(ask, ("n", "m"), only, multiples)
    same_width = s.d_k == s.d_v and _together(ask, ("d_k", "d_v"), only, multiples)
    if one_width and not same_width:
        _stepped(ask, ("d_k", "d_v"), only, multiples)
        same_width = True
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
    found = set()
    for word in set(WORDS) & set(candidate.options):
        ask = Asking(candidate, means, back=word in ("mask", "causal") and not candidate.forward_only)
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
