"""A book of one page for the tests of the engine: softmax, one head without a bias."""

import numpy as np

from attnmath.page.language.chapter import read_text
from attnmath.page.scenes.cast import Cast, Letter
from attnmath.page.scenes.settings import Setting
from attnmath.page.verdicts.book import Book


def zero_scale(values, sizes):
    values["K"] = np.zeros_like(values["K"])


def two_zeros(values, sizes):
    values["M"] = np.zeros_like(values["M"])
    values["c"] = np.zeros_like(values["c"])


HEAD = Cast(
    name="small",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "M": Letter(("d_k", "d_k")),
        "c": Letter(("1", "d_k")),
        "A": Letter(("n", "m"), "prp:head"),
        "P": Letter(("n", "m"), "prp:head"),
        "O": Letter(("n", "d_v"), "prp:head"),
        "L": Letter(("n", "1"), "eq:logsumexp"),
        "D": Letter(("n", "1"), "prp:statistic"),
    },
    outputs=("O", "L"),
    rows={"q": "Q", "k": "K", "v": "V", "o": "O"},
    settings=(
        Setting("random", 1),
        Setting("n = m", 2, {"n": 5}),
        Setting("n > m", 5, {"n": 3, "m": 2, "d_k": 4, "d_v": 5}),
        Setting("no keys", 3, change=zero_scale),
        Setting("two zeros", 4, change=two_zeros),
    ),
)

PAGE = r"""
$$ A = Q K^{\mathsf T}, \quad P = \operatorname{softmax}(A), \quad o_i = \sum_j P_{ij} v_j $$ (prp:head)

$$ L_i = \log\Big(\sum_j e^{A_{ij}}\Big) $$ (eq:logsumexp)

$$ D = \operatorname{rowsum}(dO \circ O) $$ (prp:statistic)
"""


def planted(function):
    """A function that stands in the place of a formula."""
    function.__module__ = "attnmath._formulas.planted"
    return function


def book(display: str = "", label: str = "prp:tested") -> Book:
    """The page, and one display more."""
    text = PAGE + (f"\n$$ {display} $$ ({label})\n" if display else "")
    return Book([read_text(text, "chapters/page.md")], {"page": (HEAD,)})


def last(of: Book):
    return of.chapters[0].displays[-1]
