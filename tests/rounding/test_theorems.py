"""The bounds of the page: each is argued for, is what a function computes, and cannot be made smaller unseen."""

import importlib
import inspect
import pkgutil
import re
from dataclasses import replace

import pytest

from attnmath import rounding
from attnmath.page.language.chapter import PageFault
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import judge

LABEL = r"prp:(?:rounding_\w+|sink_rounding)"


@pytest.fixture(scope="module")
def book(request):
    return Book.at(request.config.rootpath)


def bounds_of(book):
    return {label: one for label, one in book.displays.items()
            if re.fullmatch(LABEL, label) and one.has_inequality}


def named():
    """The labels in the docstrings of the functions of attnmath.rounding."""
    names = [f"{rounding.__name__}.{one.name}" for one in pkgutil.iter_modules(rounding.__path__)]
    modules = [importlib.import_module(name) for name in names]
    texts = [f.__doc__ or "" for module in modules for _, f in inspect.getmembers(module, inspect.isfunction)
             if f.__module__ == module.__name__]
    return {label for text in texts for label in re.findall(LABEL, text)}


def test_each_bound_of_the_page_is_argued_for_and_is_a_function(book):
    labels = bounds_of(book)
    assert len(labels) == 13 and {*labels} == named()
    for label, display in labels.items():
        assert book.derivation(display).label == label.replace("prp:", "why:")


SMALLER = [
    ("rounding_weights", "(m + 9)", "m"),
    ("rounding_vjp", "(n + 9)", "n"),
    ("rounding_scale_vjp", "(n m + 12)", "(n m)"),
    ("rounding_statistic", r"\lvert f_i - g_i \rvert", r"(f_i - g_i)"),  # of the output alone
    ("rounding_scores_vjp", r"(\bar U_{ij} + \bar \epsilon_i)", r"\bar U_{ij}"),  # D is off as well
    ("rounding_jvp", r"+ \bar \nu_i (\lvert O_{ia} \rvert + \bar O_{ia})", ""),
]


@pytest.mark.parametrize("name, old, new", SMALLER)
def test_a_smaller_bound_is_refused_by_the_page(book, name, old, new):
    display = book.displays[f"prp:{name}"]
    assert old in display.text
    changed = replace(display, text=display.text.replace(old, new))
    with pytest.raises(PageFault, match="value"):
        judge(book.with_display(changed), changed)
