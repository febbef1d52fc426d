"""Reads a chapter: its displays with their places, its inline relations, and the cells that show functions.

MyST's own Markdown parser finds them, also in lists, quotes and directives. What would be
set as mathematics in any other way is refused: only what is listed here is accepted.
"""

import re
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import yaml
from markdown_it import MarkdownIt
from markdown_it.token import Token
from mdit_py_plugins.amsmath import amsmath_plugin
from mdit_py_plugins.colon_fence import colon_fence_plugin
from mdit_py_plugins.deflist import deflist_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin
from mdit_py_plugins.front_matter import front_matter_plugin
from mdit_py_plugins.myst_blocks import myst_block_plugin
from mdit_py_plugins.myst_role import myst_role_plugin

from attnmath.page.language.cells import refused, shown, unasserted
from attnmath.page.language.inline import COMMENT, WRITE, in_fence, in_words, is_hypothesis, states, unread
from attnmath.page.language.nodes import PageError, Statement
from attnmath.page.language.syntax import parse

MADE = ("ledger", "errata", "sources", "museum")  # made of what was run, and compared to the byte
LABELLED = ("eq", "why", "prp", "err")
LABEL = re.compile(rf"({'|'.join(LABELLED)}):[A-Za-z]\w*")
PROSE = ("note", "tip", "warning", "important", "admonition", "dropdown", "exercise", "solution",
         "solution-start", "solution-end")  # directives whose contents are Markdown
LISTS = ("bibliography", "toctree")
LANGUAGES = ("", "text", "python")
HEADER = {"jupytext", "kernelspec"}
OPTION_LINES = re.compile(r"---\n[\s\S]*?\n---\n|(:.*(\n|$))*")  # of a code cell
IN_CELLS = {"tags", "mystnb.markdown_format", "mystnb.figure.name", "mystnb.figure.caption", "mystnb.image.alt"}


class PageFault(Exception):
    """One sentence with its place: file:line:column: label: what is wrong."""

    def __init__(self, path: str, line: int, column: int, label: str, message: str):
        self.parts = (path, line, column, label, message)
        super().__init__(f"{path}:{line}:{column}: {label + ': ' if label else ''}{message}")

    def __reduce__(self) -> tuple:  # so that it can come from another process
        return PageFault, self.parts


@dataclass(frozen=True)
class Display:
    """One labelled display, or an inline relation: its LaTeX, and the line where that begins."""

    path: str
    label: str
    text: str
    line: int
    lines: tuple[str, ...]  # the file's lines, for columns

    @property
    def stem(self) -> str:
        return Path(self.path).stem

    @property
    def kind(self) -> str:
        return self.label.partition(":")[0]

    @property
    def name(self) -> str:
        return self.label.partition(":")[2]

    @cached_property
    def statements(self) -> tuple[Statement, ...]:
        return parse(self.text)

    def reworded(self, text: str, statements: tuple[Statement, ...]) -> "Display":
        """The display with another text, which says this."""
        changed = replace(self, text=text)
        vars(changed)["statements"] = statements
        return changed

    @property
    def has_inequality(self) -> bool:
        return any(r in ("<", "<=", ">", ">=") for s in self.statements for r in s.relations)

    def place(self, offset: int | None) -> tuple[int, int]:
        """Line and column in the file of an offset in the display's text."""
        before = self.text[: offset or 0].split("\n")
        line = self.line + len(before) - 1
        source = self.text.split("\n")[len(before) - 1]
        column = max(self.lines[line - 1].find(source), 0) if source.strip() else 0
        return line, column + len(before[-1]) + 1

    def fault(self, error: PageError) -> PageFault:
        return PageFault(self.path, *self.place(error.start), self.label, f"{error.kind}: {error.message}")


@lru_cache(maxsize=1)
def _markdown() -> MarkdownIt:
    parser = MarkdownIt("commonmark").enable("table")
    parser.use(dollarmath_plugin, double_inline=True, allow_labels=True)
    parser.use(front_matter_plugin).use(myst_block_plugin).use(myst_role_plugin)
    parser.use(deflist_plugin).use(footnote_plugin)
    return parser.use(colon_fence_plugin).use(amsmath_plugin)


@dataclass
class Chapter:
    """A page, and what is in it, token by token."""

    path: str
    text: str
    displays: list[Display] = field(default_factory=list)
    shown: set[str] = field(default_factory=set)  # names of the functions whose source a cell shows
    faults: list[PageFault] = field(default_factory=list)
    asserted: list[Display] = field(default_factory=list)  # inline relations, which are run
    hypotheses: list[Display] = field(default_factory=list)  # inline relations, which are not
    inline: list[str] = field(default_factory=list)  # every inline formula

    @cached_property
    def stem(self) -> str:
        return Path(self.path).stem

    @cached_property
    def lines(self) -> tuple[str, ...]:
        return tuple(self.text.split("\n"))

    def refuse(self, line: int, message: str, column: int = 1) -> None:
        self.faults.append(PageFault(self.path, line, column, "", message))

    def refuse_words(self, words: str, line: int, last: int, message: str) -> None:
        line, column = self.find(words, line, last)
        self.refuse(line, message, column)

    def find(self, words: str, line: int, last: int, column: int = 1) -> tuple[int, int]:
        """The first place of these words in some lines, from a column of the first one on."""
        words = words.strip().split("\n")[0]
        for number in range(line, min(last, len(self.lines)) + 1):
            at = self.lines[number - 1].find(words, column - 1 if number == line else 0)
            if at >= 0:
                return number, at + 1
        return line, column

    def collect(self, text: str, above: int) -> None:
        """The mathematics in Markdown that begins below this many lines of the file."""
        for token in _markdown().parse(text):
            start = above + (token.map[0] if token.map else 0) + 1
            if token.type == "math_block":
                self.refuse(start, f"a display without a label; {WRITE}")
            elif token.type == "math_block_label":
                self.display(token, start)
            elif token.type == "code_block":
                self.refuse(start, f"an indented text is not read; mathematics: {WRITE}; code: ```python")
            elif token.type == "amsmath":
                self.refuse(start, f"an environment outside $$ … $$ is not read; {WRITE}")
            elif token.type in ("fence", "colon_fence"):
                self.fenced(token, start)
            elif token.type == "front_matter":
                self.header(token.content, start)
            elif token.type == "html_block" and not COMMENT.fullmatch(token.content):
                self.refuse(start, f"HTML is not read; write Markdown, and mathematics as {WRITE[6:]}")
            elif token.type == "inline":
                self.paragraph(token.children, start, above + token.map[1] if token.map else start)

    def display(self, token: Token, start: int) -> None:
        """What stands between the dollars, without the indentation of lists and quotes."""
        first = token.content.lstrip("\n")
        line = start + len(token.content) - len(first)
        opening = self.lines[start - 1].partition("$$")
        if opening[1] and not opening[2].strip() and not token.content.startswith("\n"):
            line += 1
        self.displays.append(Display(self.path, token.info, first.rstrip(), line, self.lines))
        if not LABEL.fullmatch(token.info):
            self.refuse(start, f"label {token.info!r}; a label is {', '.join(LABELLED)}, a colon, a name")

    def fenced(self, token: Token, start: int) -> None:
        """A directive, or code."""
        info = token.info.strip()
        directive = re.match(r"\{([^\s}]+)\}\s*(.*)", info)
        kind, title = (directive[1].lower(), directive[2]) if directive else ("", "")
        if kind == "code-cell":
            self.cell(token.content, start)
        elif kind == "eval-rst" and self.stem == "api":
            if re.search(r"\b(math|raw|include)\b", token.content):
                self.refuse(start, f"mathematics in another language; {WRITE}")
        elif kind in PROSE:
            self.collect(title, start - 1)
            self.collect(token.content, start)
        elif kind in LISTS:
            self.collect(title, start - 1)
            if wrong := in_words(re.sub(r"<[^<>]*>$", "", token.content, flags=re.M)):
                self.refuse(start, wrong)
        elif kind or info.split(" ")[0] not in LANGUAGES or token.type == "colon_fence":
            what = kind or info or "a colon fence"
            self.refuse(start, f"{what} is not read; mathematics: {WRITE}; other text: Markdown")
        elif wrong := in_fence(info.split(" ")[0], token.content):
            self.refuse(start, wrong)

    def header(self, text: str, start: int) -> None:
        """What stands between --- and --- above a text: how it is kept, and nothing shown."""
        try:
            keys = set(yaml.safe_load(text) or {})
        except (yaml.YAMLError, TypeError):
            keys = {"what is no table"}
        for key in sorted(map(str, keys - (HEADER if start == 1 else set()))):
            self.refuse(start, f"{key} is not read here; a chapter's header has {' and '.join(sorted(HEADER))}")

    def cell(self, text: str, start: int) -> None:
        """A code cell: what it shows, and its figure's caption."""
        options_above = OPTION_LINES.match(text)
        head = options_above[0] if options_above else ""
        source, last = text[len(head) :], start + head.count("\n")
        for number, words, wrong in refused(source):
            self.refuse_words(words, last + number, last + number, wrong)
        try:
            options = _flat(yaml.safe_load(re.sub(r"^---$|^:", "", head, flags=re.M)) or {})
        except yaml.YAMLError:
            self.refuse(start, "the options of the cell are not read")
            return
        self.shown.update(shown(options.get("tags", []), source))
        for option in sorted(options.keys() - IN_CELLS):
            self.refuse(start, f"a cell has no option {option}; it may have {', '.join(sorted(IN_CELLS))}")
        if odd := in_words(str(options.get("mystnb.image.alt", ""))):
            self.refuse(self.find("alt:", start, last)[0], odd)
        line, _ = self.find("caption:", start, last)
        self.caption(str(options.get("mystnb.figure.caption", "")), source, line, last)

    def caption(self, caption: str, source: str, line: int, last: int) -> None:
        for token in _markdown().parse(caption):
            if token.type == "inline":
                self.paragraph(token.children, line, last)
            elif token.type not in ("paragraph_open", "paragraph_close"):
                self.refuse(line, f"a caption is one paragraph, without displays; {WRITE} in the text")
        for words in unasserted(caption, source):
            message = f"no assertion of the cell has the number {words!r} of its caption"
            self.refuse_words(words, line, last, message)

    def paragraph(self, children: list[Token] | None, line: int, last: int) -> None:
        """Text with inline formulas: relations that assert, relations that assume."""
        before, since, column = "", None, 1  # the words so far, and those after a hypothesis
        for child in children or ():
            words = {"softbreak": " ", "hardbreak": " ", "code_inline": "`"}.get(child.type, child.content)
            if child.type == "math_inline":
                line, column = self.find(f"${child.content}", line, last, column)
                assumed = is_hypothesis(before, since, child.content)
                since = "" if self.formula(child.content, line, column, assumed) else None
                before, column = before + "$", column + len(child.content) + 1
                continue
            fault = unread(child, quotes=self.stem in MADE)
            if fault:
                line, column = self.find(fault[0], line, last, column)
                self.refuse(line, fault[1], column)
            before, since = before + words, None if since is None else since + words

    def formula(self, text: str, line: int, column: int, hypothesis: bool) -> bool:
        """An inline formula; whether it is a hypothesis."""
        self.inline.append(text)
        try:
            if not states(text):
                return False
        except PageError as error:
            self.refuse(line, error.message, column)
            return False
        relation = Display(self.path, f"inline:{self.stem}_{line}_{column}", text, line, self.lines)
        (self.hypotheses if hypothesis else self.asserted).append(relation)
        return hypothesis


def _flat(options: dict) -> dict[str, Any]:
    """Nested options by their whole names: mystnb.figure.caption."""
    found: dict[str, Any] = {}
    for key, value in options.items():
        inner = _flat(value) if isinstance(value, dict) else {}
        found |= {f"{key}.{name}": x for name, x in inner.items()} or {str(key): value}
    return found


def read_chapter(path: Path, root: Path | None = None) -> Chapter:
    """The chapter in a MyST file; what cannot be accepted is in its faults."""
    name = str(path.relative_to(root)) if root else str(path)
    return read_text(path.read_text(encoding="utf-8"), name)


@lru_cache
def read_text(text: str, name: str = "chapter.md") -> Chapter:
    chapter = Chapter(name, text)
    chapter.collect(text, 0)
    return chapter
