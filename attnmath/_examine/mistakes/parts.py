"""An edit in a part of the program's work alone: some batch elements, heads, queries or keys."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.mistakes.along import MANY, POWERS
from attnmath._examine.mistakes.operators import SIZES
from attnmath._examine.problems.case import Case
from attnmath._examine.problems.steps import StepChanges, Steps

Rule = Callable[[np.ndarray, int], np.ndarray]  # which places of so many
RULES: dict[str, Rule] = {
    "the first of the {}": lambda i, k: i == 0, "all {} but the first": lambda i, k: i > 0,
    "the last of the {}": lambda i, k: i == k - 1, "all {} but the last": lambda i, k: i < k - 1,
    "the odd {}": lambda i, k: i % 2 == 1, "the even {}": lambda i, k: i % 2 == 0,
}
SPANS: dict[str, Callable[[np.ndarray, int, int], np.ndarray]] = {
    "{} from {t} on": lambda i, k, t: i >= t,
    "the first {t} {}": lambda i, k, t: i < t,
    "the {} after whole tiles of {t}": lambda i, k, t: i >= k // t * t,
    "the {} of the last tile of {t}": lambda i, k, t: i >= (k - 1) // t * t,
}


def _within(span: Callable[[np.ndarray, int, int], np.ndarray], t: int, i: np.ndarray, k: int) -> np.ndarray:
    return span(i, k, t)


class Part(NamedTuple):
    """Some of the places along one axis."""

    size: str  # b, H, n or m
    words: str
    rule: Rule

    def among(self, length: int) -> np.ndarray:
        """Which of so many."""
        return self.rule(np.arange(length), length)

    def of(self, change: StepChanges, case: Case) -> StepChanges:
        """The change in this part; nothing where a letter has no such axis."""
        chosen = self.among(case.sizes[self.size])
        if any(self.size not in SIZES.get(x, "b H n m").split() for x in change):
            return {}

        def partly(letter: str) -> Callable[[Steps, Any], Any]:
            sizes = SIZES.get(letter, "b H n m").split()
            here = chosen.reshape([-1 if x == self.size else 1 for x in sizes])
            return lambda s, x: np.where(here, change[letter](s, x), x)

        return {letter: partly(letter) for letter in change}


def parts_of(size: str, wrong: np.ndarray) -> Iterator[Part]:
    """The parts that what is wrong may be: wrong tells for each place along the axis whether it is."""
    if wrong.all() or not wrong.any():
        return
    i, k = np.arange(len(wrong)), len(wrong)
    for words, rule in RULES.items():
        if size in "bH" and np.array_equal(rule(i, k), wrong):
            yield Part(size, words.format(MANY[size]), rule)
    for words, span in SPANS.items() if size in "nm" else ():
        for t in dict.fromkeys([int(wrong.argmax()), k - int(wrong[::-1].argmax()), *POWERS]):
            if t > 0 and np.array_equal(span(i, k, t), wrong):
                yield Part(size, words.format(MANY[size], t=t), partial(_within, span, t))
