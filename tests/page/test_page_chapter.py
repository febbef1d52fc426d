"""Displays are found where Markdown puts them, with their line and column."""

import pytest

from attnmath.book.notebook import as_table
from attnmath.page.language.chapter import read_text
from attnmath.page.language.nodes import PageError

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
# What a page could show without its being run: where it is found.
ESCAPES = {
    "a block that MathJax reads": ('<div class="math">\\[A = K\\]</div>\n', "1:1"),
    "a span that MathJax reads": ('so <span class="math">\\(A = K\\)</span>\n', "1:4"),
    "MathML": ("<math><mi>A</mi></math>\n", "1:1"),
    "MathML in a paragraph": ("so <math><mi>A</mi></math>\n", "1:4"),
    "a script": ("<script>1</script>\n", "1:1"),
    "a picture in HTML": ('<img src="a.svg" alt="A = K">\n', "1:1"),
    "more than a comment": ("<!-- c --> <b>x</b>\n", "1:1"),
    "brackets": ("so \\\\[ A = K \\\\] it is\n", "1:5"),
    "parentheses": ("so \\\\( A = K \\\\) it is\n", "1:5"),
    "in a paragraph's second line": ("so\nthat \\\\( A = K \\\\)\n", "2:7"),
    "an environment in a paragraph": ("so \\begin{equation} A = K \\end{equation}\n", "1:4"),
    "an environment in a formula": ("so $\\begin{aligned} A \\end{aligned}$\n", "1:4"),
    "lines in a formula": ("so $A \\\\ K$\n", "1:4"),
    "a formula set large": ("so $\\displaystyle A$\n", "1:4"),
    "another language": ("```{eval-rst}\n:math:`A`\n```\n", "1:1"),
    "any other language": ("```{eval-rst}\ntext\n```\n", "1:1"),
    "a role": ("so {math}`A = K`\n", "1:4"),
    "a role of another kind": ("so {raw-html}`A`\n", "1:4"),
    "a directive nobody knows": (":::{theorem}\nA\n:::\n", "1:1"),
    "a directive of a number": ("```{glue:math} x\n```\n", "1:1"),
    "a figure": ("```{figure} a.svg\n```\n", "1:1"),
    "a picture of a formula": ("so ![A = K](a.svg)\n", "1:4"),
    "a fence that readers typeset": ("```mermaid\nA\n```\n", "1:1"),
    "a fence of math": ("~~~math\nA\n~~~\n", "1:1"),
    "a fence of colons": (":::math\nA\n:::\n", "1:1"),
    "options in a header": (":::{note}\n---\ncaption: $$A = K$$\n---\n:::\n", "2:1"),
    "substitutions": ("---\nmyst:\n  substitutions: {k: $A$}\n---\n", "1:1"),
    "a class": (":::{note}\n:class: $$ A = K $$\n:::\n", "2:9"),
    "a title": (":::{note} so \\\\[ A \\\\]\n:::\n", "1:15"),
    "a caption": ("```{code-cell} python\n---\nmystnb:\n  figure:\n    caption: $$A$$ so\n---\n1\n```\n", "5:14"),
    "a block in a caption": (
        "```{code-cell} python\n---\nmystnb:\n  figure:\n    caption: |\n      $$ A $$ (prp:x)\n---\n1\n```\n", "5:1"),
    "a caption in one line": ('```{code-cell} python\n:mystnb: {figure: {caption: "$$A$$ so"}}\n1\n```\n', "2:30"),
    "a prompt": ("```{code-cell} python\n:mystnb: {code_prompt_show: $A$}\n1\n```\n", "1:1"),
    "words in a formula": ("so $A \\text{ equals } K$\n", "1:4"),
    "HTML in a caption": (
        "```{code-cell} python\n---\nmystnb:\n  figure:\n    caption: <i>x</i>\n---\n1\n```\n", "5:14"),
    "a cell that shows LaTeX": ("```{code-cell} python\n\nfrom IPython.display import Latex\n```\n", "3:6"),
    "a cell that shows HTML": ("```{code-cell} python\nimport IPython\n```\n", "2:8"),
    "a cell that is LaTeX": ("```{code-cell} python\n%%latex\nA\n```\n", "2:1"),
    "a class that shows LaTeX": ("```{code-cell} python\nclass A:\n    def _repr_latex_(self): ...\n```\n", "3:9"),
    "a relation between formulas": ("so $A$ = $K$ it is\n", "1:8"),
    "a relation before words": ("so $A$ ≤ one\n", "1:8"),
    "a relation in words": ("so dQ = gamma dA K\n", "1:7"),
    "a relation in capitals of formulas": ("so 𝑑𝑄 is 7\n", "1:4"),
    "a transpose in words": ("so dQ is dAᵀ K\n", "1:12"),
    "a product in words": ("so dA is P ∘ dP\n", "1:12"),
    "a norm in words": ("so ‖dQ‖ is one\n", "1:4"),
    "a square in words": ("so it is h²\n", "1:11"),
    "an arrow in words": ("so dQ → dK\n", "1:7"),
    "a wide sign in words": ("so dQ ＝ dK\n", "1:7"),
    "a definition in words": ("so dQ ≔ dK\n", "1:7"),
    "a sign that looks like another": ("so dQ ꞊ dK\n", "1:7"),
    "a heading": ("# dQ = 7\n", "1:6"),
    "bold words": ("so **dQ = 7**\n", "1:9"),
    "a cell of a table": ("| a |\n| --- |\n| dQ = 7 |\n", "3:6"),
    "a term of a list": ("dQ = 7\n: dK = 7\n", "1:1"),
    "a footnote": ("so[^1]\n\n[^1]: dQ = 7\n", "3:10"),
    "an exercise": (":::{exercise} dQ = 7\ntext\n:::\n", "1:18"),
    "a sign by its name": ("so dQ &equals; 7\n", "1:1"),
    "a sign by its number": ("so dQ &#61; 7\n", "1:1"),
    "a sign behind a stroke": ("so dQ \\= 7\n", "1:8"),
    "dollars by their number": ("so &#36;dQ = 7&#36;\n", "1:12"),
    "dollars that open nothing": ("so \\$dQ = 7\\$\n", "1:9"),
    "a link": ("so [dQ = 7](b)\n", "1:8"),
    "a link's title": ('so [it](b "dQ = 7")\n', "1:15"),
    "a reference's words": ("so {doc}`dQ = 7 <softmax>`\n", "1:13"),
    "an equation's words": ("so {eq}`dQ = 7 <eq:softmax>`\n", "1:12"),
    "a figure's words": ("so {numref}`dQ = 7 <fig>`\n", "1:16"),
    "code that is no code": ("so `dQ = 7 dA K` it is\n", "1:5"),
    "code with a letter of formulas": ("so `dQ is γ dAᵀ K` it is\n", "1:5"),
    "a fence without a language": ("```\ndQ = 7 dA K\n```\n", "1:1"),
    "a fence of text": ("```text\ndQ ≤ 7\n```\n", "1:1"),
    "a fence of what is not Python": ("```python\ndQ = 7 dA K\n```\n", "1:1"),
    "a fence of Python in other letters": ("```python\ndQ = γ\n```\n", "1:1"),
    "a fence of another language": ("```bash\ndQ=7\n```\n", "1:1"),
    "an indented text": ("so\n\n    dQ is 7 dA K\n", "3:1"),
    "words of a figure": (
        "```{code-cell} python\n---\nmystnb:\n  figure:\n    caption: So dQ = it\n---\n1\n```\n", "5:20"),
    "words for a figure": ("```{code-cell} python\n---\nmystnb:\n  image:\n    alt: So dQ = it\n---\n1\n```\n", "5:1"),
}


@pytest.mark.parametrize("text, line", REFUSED.values(), ids=REFUSED)
def test_what_would_be_shown_but_not_run_is_refused(text, line):
    faults = read_text(text, "c.md").faults
    assert faults and str(faults[0]).startswith(f"c.md:{line}:")


@pytest.mark.parametrize("text, place", ESCAPES.values(), ids=ESCAPES)
def test_no_way_leads_around_the_engine(text, place):
    said = [str(fault) for fault in read_text(text, "c.md").faults]
    assert any(one.startswith(f"c.md:{place}: ") for one in said), said


CELLS = {  # what a cell could show without its being run, and the line that says so
    "LaTeX by its type": ('display({"text/latex": "$A$"}, raw=True)', 1),
    "HTML by its type": ('x = 1\nd = {"text/html": "<b>A</b>"}', 2),
    "the display of the kernel": ("get_ipython().display_pub.publish({})", 1),
    "a method by its parts": ('setattr(A, "_repr_" + "latex_", f)', 1),
    "Markdown": ("from IPython.display import Markdown", 1),
    "Markdown by a magic": ("%%markdown\nA", 1),
    "a magic": ("x = 1\n%run other.py", 2),
    "another program's formulas": ("import sympy", 1),
    "another program's tables": ("import pandas as pd", 1),
    "a rule of one's own": ("def softmax_vjp(dP, A, tau=1):\n    return 7 * dP", 1),
    "a class of that name": ("class softmax: pass", 1),
    "a value of that name": ("x = 1\nsoftmax = x", 2),
    "a rule among others": ("a, softmax = 1, 2", 1),
    "a rule in a loop": ("for softmax in (1, 2): pass", 1),
    "a rule in a condition": ("if (softmax := 1): pass", 1),
    "a rule in a list": ("[softmax := x for x in y]", 1),
    "a rule by another's name": ("from attnmath import softmax as attention", 1),
    "a rule from elsewhere": ("from scipy.special import softmax", 1),
    "a rule from another module": ("from attnmath.rounding import attention", 1),
    "a module of that name": ("import numpy as softmax", 1),
    "a rule from within": ("def f():\n    global softmax\n    softmax = 1", 2),
    "a rule of the package": ("import attnmath\nattnmath.softmax = 1", 2),
    "a rule that is set": ('setattr(attnmath, "softmax", 1)', 1),
    "a rule in the table of names": ('globals()["softmax"] = 1', 1),
    "what is inside of a rule": ("softmax.__wrapped__ = 1", 1),
    "another way to show": ("def show(f): pass", 1),
    "a formula above a figure": ('ax.set_title("$dQ = 7 dA K$")', 1),
    "a formula in a figure": ('x = 1\nax.text(0, 0, r"so $dQ \\leq 7$")', 2),
    "a formula in a legend": ('ax.plot(x, label=r"$dQ \\approx 7$")', 1),
    "a formula in a program's text": ('ax.set_title(f"$dQ = {x} dA K$")', 1),
    "a formula in parts": ('ax.set_title("$dQ = " + "7 dA K$")', 1),
    "a relation between formulas": ('ax.set_title("$dQ$ = $7 dA K$")', 1),
    "a relation after a formula": ('ax.set_title("$dQ$ = dA K")', 1),
    "a relation before a formula": ('ax.set_title("dQ = $dA K$")', 1),
    "an arrow in a figure": ('ax.set_title(r"$dQ \\to dK$")', 1),
    "another alphabet in a figure": ('ax.set_title("$dQ ≔ dK$")', 1),
}


@pytest.mark.parametrize("cell, line", CELLS.values(), ids=CELLS)
def test_no_cell_leads_around_the_engine(cell, line):
    said = [str(fault) for fault in read_text(f"```{{code-cell}} python\n{cell}\n```\n", "c.md").faults]
    assert said and all(one.startswith(f"c.md:{1 + line}:") for one in said), said


@pytest.mark.parametrize("cell", [
    "from attnmath import softmax\nfrom attnmath.book.notebook import as_table, show", "x.softmax(1)", "f(softmax=1)",
    "def f(softmax):\n    bias = softmax\n    return bias", "[softmax for softmax in x]", "_, repr = 1, __repr__",
    'ax.set(xlabel="$d_k$", ylabel=r"norm of $\\partial Y / \\partial X$")', 'f"$d_k$ = {d}"', '"$t$ = 4"', '"$10^{-5}$"',
    '"a = b"', "f'${name}$'", "a[$x$",
])
def test_what_a_cell_may_do(cell):
    assert not read_text(f"```{{code-cell}} python\n{cell}\n```\n").faults


def test_a_table_is_rows():
    assert as_table("| a |\n| --- |").data == "| a |\n| --- |"
    with pytest.raises(ValueError, match="a row in each line"):
        as_table("| a |\n\n$$ A $$")


@pytest.mark.parametrize("text", [
    "<!-- a comment -->\n", "so <!-- a comment --> it is\n", "% a comment\n", "(target)=\n\ntext\n",
    "| $a$ | b |\n| --- | --- |\n| c | {doc}`d` |\n", ":::{exercise} a (b)\n:label: ex\ntext\n:::\n",
    "`\\\\[A\\\\]`\n", "```python\nA = '$$'\n```\n", "---\njupytext:\n  a: b\nkernelspec: c\n---\n",
    "so `f(…, exact=True)` and `mask=`\n", "h é “a” – 中文。\n",
])
def test_what_shows_no_mathematics_is_read(text):
    assert not read_text(text).faults


def test_functions_are_listed_in_their_own_language_on_one_page():
    text = "```{eval-rst}\n.. autofunction:: attnmath.softmax\n```\n"
    assert not read_text(text, "chapters/api.md").faults
    assert read_text(text.replace("softmax", "softmax\n\n:math:`A`"), "chapters/api.md").faults


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
