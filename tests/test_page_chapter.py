"""Displays are found where Markdown puts them, with their line and column."""

import pytest

from attnmath.page._chapter import read_text
from attnmath.page._nodes import PageError

PLACES = {
    "alone": "text\n\n$$ A = K $$ (prp:x)\n",
    "lines": "$$\nA = K\n$$ (prp:x)\n",
    "list": "- item\n\n  $$\n  A = K\n  $$ (prp:x)\n",
    "quote": "> so:\n>\n> $$ A = K $$ (prp:x)\n",
    "note": "text\n\n:::{note}\nmore\n\n$$ A = K $$ (prp:x)\n:::\n",
    "nested": "::::{exercise} a\n\n:::{note}\n$$\nA = K\n$$ (prp:x)\n:::\n::::\n",
    "fenced": "```{admonition} t\n$$ A = K $$ (prp:x)\n```\n",
}


@pytest.mark.parametrize("text", PLACES.values(), ids=PLACES)
def test_a_display_is_found_with_its_place(text):
    chapter = read_text(text)
    (display,) = chapter.displays
    assert display.label == "prp:x" and not chapter.faults
    line, column = display.place(display.text.index("K"))
    assert text.split("\n")[line - 1][column - 1] == "K"


REFUSED = {
    "no label": ("$$ A = K $$\n", 1),
    "in a paragraph": ("so $$ A = K $$ it is\n", 1),
    "math directive": ("text\n\n```{math}\nA = K\n```\n", 3),
    "math fence": ("```math\nA = K\n```\n", 1),
    "unknown kind": ("$$ A = K $$ (law:x)\n", 1),
    "no kind": ("$$ A = K $$ (x)\n", 1),
    "in a note": (":::{note}\n$$ A = K $$\n:::\n", 2),
    "unclosed": ("text $$ A = K\n", 1),
    "spaces in a label": ("$$ A = K $$ (prp: x)\n", 1),
    "two names": ("$$ A = K $$ (prp:x y)\n", 1),
    "raw": ("```{raw} html\n<p>x</p>\n```\n", 1),
    "another language": ("```{eval-rst}\n.. math:: a\n```\n", 1),
    "capitals": ("```{Math}\nA\n```\n", 1),
    "included": ("```{include} other.md\n```\n", 1),
    "in a title": (":::{admonition} so $$ A = K $$\ntext\n:::\n", 1),
    "in HTML": ("<div>\n$$ A = K $$\n</div>\n", 1),
    "in a definition list": ("term\n:   text\n\n    $$ A = K $$\n", 4),
    "in a footnote": ("text[^1]\n\n[^1]: note\n\n    $$ A = K $$\n", 5),
    "environment": ("\\begin{align}\nA = K\n\\end{align}\n", 1),
}


@pytest.mark.parametrize("text, line", REFUSED.values(), ids=REFUSED)
def test_what_would_be_shown_but_not_run_is_refused(text, line):
    faults = read_text(text, "c.md").faults
    assert faults and str(faults[0]).startswith(f"c.md:{line}:")


@pytest.mark.parametrize(
    "cell, shown",
    [
        ("show(softmax)", {"softmax"}),
        ("---\ntags: [hide-input]\n---\nx = 1\nshow(attnmath.softmax)", {"softmax"}),
        ("# show(softmax)", set()),
        ("'show(softmax)'", set()),
        ("show(softmax)\nx = 1", set()),
        (":tags: [x]\nshow(softmax)", {"softmax"}),
        ("---\ntags: [remove-cell]\n---\nshow(softmax)", set()),
        ("show(softmax", set()),
    ],
)
def test_a_listing_is_the_last_line_of_a_cell(cell, shown):
    assert read_text(f"```{{code-cell}} ipython3\n{cell}\n```\n").shown == shown


def test_code_is_not_a_display():
    chapter = read_text("```{code-cell} ipython3\nx = '$$ A $$'\nshow(softmax)\n```\n\n`$$`\n")
    assert not chapter.displays and not chapter.faults
    assert chapter.shown == {"softmax"}


def test_an_error_of_a_display_points_into_the_file():
    display = read_text("text\n\n- b\n\n  $$\n  A &= K \\\\\n  B &= )\n  $$ (prp:x)\n", "c.md").displays[0]
    with pytest.raises(PageError) as error:
        _ = display.statements
    assert str(display.fault(error.value)).startswith("c.md:7:8: prp:x: grammar: cannot read ')'")
