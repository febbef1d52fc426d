"""Reads a chapter: its displays with their places, and the cells that show functions.

MyST's own Markdown parser finds the displays, also in lists, quotes and directives; what
it would set as a display but carries no label is refused.
"""

import ast
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from markdown_it import MarkdownIt
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.front_matter import front_matter_plugin
from mdit_py_plugins.myst_blocks import myst_block_plugin
from mdit_py_plugins.myst_role import myst_role_plugin

from attnmath.page._nodes import PageError, Statement
from attnmath.page._syntax import parse

KINDS = ("eq", "why", "prp", "err")
LABEL = re.compile(rf"({'|'.join(KINDS)}):[A-Za-z]\w*")
UNREAD = ("math", "latex", "tex", "raw", "include", "literalinclude")
CODE = ("", "code", "code-block", "sourcecode", "bibliography", "toctree")


class Fault(Exception):
    """One sentence with its place: file:line:column: label: what is wrong."""

    def __init__(self, path, line: int, column: int, label: str, message: str):
        self.parts = (path, line, column, label, message)
        where = f"{path}:{line}:{column}: "
        super().__init__(where + (f"{label}: " if label else "") + message)

    def __reduce__(self):  # so that it can come from another process
        return Fault, self.parts


@dataclass(frozen=True)
class Display:
    """One labelled display: its LaTeX, and the line of the file where that begins."""

    path: str
    label: str
    text: str
    line: int
    lines: tuple  # the file's lines, for columns

    @property
    def kind(self) -> str:
        return self.label.partition(":")[0]

    @property
    def name(self) -> str:
        return self.label.partition(":")[2]

    @property
    def statements(self) -> tuple[Statement, ...]:
        return parse(self.text)

    def place(self, offset: int | None) -> tuple[int, int]:
        """Line and column in the file of an offset in the display's text."""
        before = self.text[: offset or 0].split("\n")
        line = self.line + len(before) - 1
        source = self.text.split("\n")[len(before) - 1]
        column = max(self.lines[line - 1].find(source), 0) if source.strip() else 0
        return line, column + len(before[-1]) + 1

    def fault(self, error: PageError) -> Fault:
        line, column = self.place(error.start)
        message = f"{error.kind}: {error.message}"
        return Fault(self.path, line, column, self.label, message)


@dataclass(frozen=True)
class Chapter:
    path: str
    stem: str
    text: str
    displays: tuple[Display, ...]
    shown: frozenset  # names of the functions whose source a cell shows
    faults: tuple[Fault, ...]


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.use(dollarmath_plugin, double_inline=True, allow_labels=True)
    parser.use(front_matter_plugin).use(myst_block_plugin).use(myst_role_plugin)
    parser.use(deflist_plugin).use(footnote_plugin)
    return parser.use(colon_fence_plugin).use(amsmath_plugin)


def read(path: Path, root: Path | None = None) -> Chapter:
    """The chapter in a MyST file; what cannot be accepted is in its faults."""
    name = str(path.relative_to(root)) if root else str(path)
    return read_text(path.read_text(encoding="utf-8"), name)


def read_text(text: str, name: str = "chapter.md") -> Chapter:
    lines = tuple(text.split("\n"))
    displays: list[Display] = []
    faults: list[Fault] = []
    shown: set[str] = set()
    _collect(text, 0, name, lines, displays, faults, shown)
    return Chapter(name, Path(name).stem, text, tuple(displays), frozenset(shown), tuple(faults))


def _collect(text, above, name, lines, displays, faults, shown) -> None:
    def refuse(line: int, message: str, column: int = 1) -> None:
        faults.append(Fault(name, line, column, "", message))

    for token in _markdown().parse(text):
        start = above + (token.map[0] if token.map else 0) + 1
        if token.type == "math_block":
            refuse(start, "a display without a label; write $$ … $$ (prp:name)")
        elif token.type == "math_block_label":
            displays.append(_display(token, start, name, lines))
            if not LABEL.fullmatch(token.info):
                refuse(start, f"label {token.info!r}; a label is {', '.join(KINDS)}, a colon, a name")
        elif token.type == "amsmath":
            refuse(start, "an environment outside $$ … $$ is not read")
        elif token.type in ("fence", "colon_fence"):
            directive = re.match(r"\{([\w:-]+)\}", token.info.strip())
            kind = directive.group(1).lower() if directive else ""
            if kind in UNREAD or token.info.strip() == "math":
                refuse(start, f"{kind or 'math'} is not read; write $$ … $$ (prp:name)")
            elif kind == "eval-rst":
                if "math:" in token.content:
                    refuse(start, "mathematics in another language; write $$ … $$ (prp:name)")
            elif "$$" in token.info:
                refuse(start, "a display in a title; give it its own lines")
            elif kind == "code-cell":
                shown.update(_shown(token.content))
            elif kind not in CODE:
                _collect(token.content, start, name, lines, displays, faults, shown)
        elif token.type == "html_block" and "$$" in token.content:
            refuse(start, "a display in HTML; write $$ … $$ (prp:name)")
        elif token.type == "inline":
            for child in token.children or ():
                if child.type == "math_inline_double":
                    refuse(start, "a display in the middle of a paragraph; give it its own lines")
                elif child.type == "text" and "$$" in child.content:
                    refuse(start, "'$$' that opens no display")


def _shown(cell: str) -> list[str]:
    """The function whose source a cell shows: its last line is show(name)."""
    source = re.sub(r"\A---\n.*?\n---\n", "", cell, flags=re.S)
    if re.search(r"remove-|hide-output", cell[: len(cell) - len(source)]):
        return []
    source = "\n".join(line for line in source.split("\n") if not line.startswith(":"))
    try:
        last = ast.parse(source).body[-1:]
    except SyntaxError:
        return []
    match last:
        case [ast.Expr(ast.Call(ast.Name("show"), [ast.Name(name) | ast.Attribute(attr=name)]))]:
            return [name]
    return []


def _display(token, start: int, name: str, lines: tuple) -> Display:
    """The text between the dollars, without the indentation of lists and quotes."""
    line = start
    first = token.content.lstrip("\n")
    line += len(token.content) - len(first)
    if "$$" in lines[start - 1] and not lines[start - 1].split("$$", 1)[1].strip():
        line += 0 if token.content.startswith("\n") else 1
    return Display(name, token.info, first.rstrip(), line, lines)
