"""The lines of code are those that a reader of the code counts; no module and no function is long."""

import ast

import pytest

from loaded import ROOT, load

lines = load(ROOT / "tools" / "lines.py").lines

SOURCE = '''"""What it is."""

import ast  # a comment


# another
def f(x):
    """Of two
    lines."""
    text = """no

docstring"""
    return [x,
            text]


class A:
    "Words."
    b: int = 1
'''


def test_words_and_blank_lines_are_no_code():
    assert lines(SOURCE) == 9
    assert lines(SOURCE.replace("text = ", "")) == 9    # a text that stands alone is no docstring here
    assert lines('"""Words."""\n') == lines("\n\n# words\n") == 0


MODULE, FUNCTION = 300, 60  # lines at most, with blank lines and words


def long_parts(name, source):
    """The module, if it is long, and each of its functions that is."""
    found = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    lengths = {name: (len(source.splitlines()), MODULE)}
    lengths |= {f"{name}: {node.name}": (node.end_lineno - node.lineno + 1, FUNCTION) for node in found}
    return [f"{what} has {length} lines; {most} are enough" for what, (length, most) in lengths.items() if length > most]


def test_no_module_and_no_function_is_long():
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in (ROOT / "attnmath").rglob("*.py")}
    assert [fault for name, text in texts.items() for fault in long_parts(name, text)] == []


@pytest.mark.parametrize("source, said", [
    ("x = 1\n" * 301, "m has 301 lines; 300 are enough"),
    ("class A:\n    def f():\n" + "        x = 1\n" * 60, "m: f has 61 lines; 60 are enough"),
])
def test_what_is_long_is_found(source, said):
    assert long_parts("m", source) == [said]
