"""The numbers of captions: found in digits and words, and compared with what the cell asserts."""

import re
from pathlib import Path

import pytest

from attnmath.page.language.cells import numbers, unasserted
from attnmath.page.language.chapter import read_text

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("words, value", [
    ("22.798", 22.798), ("1e-8", 1e-8), ("16,384", 16384), ("$10^{-13}$", 1e-13), ("$2^{-53}$", 2.0**-53),
    ("$5\\cdot 10^{-6}$", 5e-6), ("$1/16$", 1 / 16), ("$\\sqrt 3$", 3), ("4u", 4), ("-40", 40), ("$d_k = 256$", 256),
    ("a twentieth", 1 / 20), ("two thirds", 2 / 3), ("one half", 0.5), ("half", 0.5), ("nine tenths", 0.9),
    ("a hundredth", 0.01), ("a millionth", 1e-6), ("twice", 2), ("tenfold", 10), ("a hundredfold", 100),
    ("one and a half times", 1.5), ("ten thousand times", 1e4), ("ten thousand million", 1e10), ("forty", 40),
    ("fifteen", 15), ("a thousand", 1000), ("Two", 2), ("a quarter", 0.25), ("a sixth", 1 / 6),
])
def test_a_number_is_found(words, value):
    ((found, x, _),) = numbers(f"It is {words} of them.")
    assert x == pytest.approx(value, rel=1e-12) and found


@pytest.mark.parametrize("text", ["the third query", "one of them", "$X_0$", "$t^2$", "$W^{(1)}$", "float32", "h²",
                                  "zero", "tent", "often", "a one"])
def test_what_is_no_number(text):
    assert numbers(text) == []


CELL = """n = 6
far = [1.5 * k for k in range(n)]
for name, size in (("a", 64), ("b", 1024)):
    P = weights(size)
    assert P.max() > 0.9
assert 17 == 17 and not 18 != 18 and 19, "19"
assert 21 == 21 < n and (22 if 22 else 23)
assert max(far) < 30 and close(far, 22.798) and rest < 1e-8
plt.plot(far, lw=0.7, alpha=0.25)"""


@pytest.mark.parametrize("caption", ["Six, up to 22.798.", "Below $10^{-8}$, above 0.9, for 64 and 1024.",
                                     "One and a half times.", "To eight digits.", "Above 90 percent.", "At most 30."])
def test_a_caption_that_its_cell_asserts(caption):
    assert unasserted(caption, CELL) == []


@pytest.mark.parametrize("caption, words", [
    ("Up to 17.", "17"), ("Up to 18.", "18"), ("Up to 19.", "19"), ("Up to 22.", "22"), ("Up to 23.", "23"),
    ("Up to 22.799.", "22.799"), ("Below $10^{-7}$.", "10^{-7}"), ("Seven of them.", "Seven"), ("A quarter.", "A quarter"),
    ("Twice as large.", "Twice"), ("Above 91 percent.", "91 percent"), ("To nine digits.", "nine digits"),
    ("The line 0.7 wide.", "0.7"),       # of the drawing, and asserted by nothing
])
def test_a_changed_number_is_found(caption, words):
    assert unasserted(caption, CELL) == [words]


def test_the_fault_has_its_place():
    text = f"text\n\n```{{code-cell}} python\n---\nmystnb:\n  figure:\n    caption: |\n      Up to\n      0.8.\n---\n{CELL}\n```\n"
    (fault,) = read_text(text, "c.md").faults
    assert str(fault) == "c.md:9:7: no assertion of the cell has the number '0.8' of its caption"


def test_every_number_of_every_caption_can_turn_the_build_red():
    """Each is changed by hand, to one that its cell does not have."""
    changed = 0
    for path in sorted((ROOT / "chapters").glob("[!_]*.md")):
        text = path.read_text("utf-8")
        for cell in re.findall(r"^```\{code-cell\}.*?^```$", text, re.M | re.S):
            caption = re.search(r"^    caption: (.*?)(?=^  \w|^    \w)", cell, re.M | re.S)
            if caption and numbers(caption[1]):
                words = numbers(caption[1])[-1][0]
                edited = cell.replace(caption[1], caption[1].replace(words, words.replace(words.strip(), "7919")))
                changed += bool(read_text(edited).faults) or pytest.fail(f"{path.name}: {words}")
    assert changed > 50
