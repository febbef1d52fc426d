"""How it is shown: HTML for a notebook, XML for continuous integration, a line that says what is being done."""

import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from xml.etree import ElementTree

PATIENCE = 1.5  # seconds without a word on the screen
# No colour is set: the reader's own, light or dark, have the contrast that they chose.
CELL_STYLE = "text-align:left;vertical-align:top;padding:0.1em 0.8em 0.1em 0"
BOX_STYLE = "border-left:0.3em solid currentColor;padding:0.2em 0 0.2em 0.8em;max-width:60em"


def html(candidate: str, sentence: str, rows: Iterable[tuple[str, str]], smallest: str | None) -> str:
    """A box with the verdict, a table of what was found, and the smallest case."""
    body = "".join(
        f'<tr><th scope="row" style="{CELL_STYLE}">{escape(label.strip())}</th>'
        f'<td style="{CELL_STYLE}">{_cell(value)}</td></tr>'
        for label, value in rows
    )
    parts = [
        f'<section aria-label="Examination of {escape(candidate)}" style="{BOX_STYLE}">',
        f"<p><strong>{escape(candidate)} is {escape(sentence)}.</strong></p>",
        f'<table style="border-collapse:collapse"><tbody>{body}</tbody></table>',
    ]
    if smallest:
        lines = _cell(smallest.rstrip() + "\n")
        parts.append(f"<details><summary>The smallest case that fails</summary>{lines}</details>")
    return "".join(parts) + "</section>"


def _cell(value: str) -> str:
    """The text; lines that can be pasted stay lines, and can be scrolled without a mouse."""
    return f'<pre tabindex="0" style="overflow:auto">{escape(value)}</pre>' if "\n" in value else escape(value)


def junit(
    candidate: str, seconds: float, verdict: tuple[str | None, str], text: str, errors: int,
    groups: Mapping[str, tuple[str, Sequence[str]]],
) -> str:
    """A test suite: the verdict first, then a test case for each group of problems.

    verdict: "failure", "error" or None, and a sentence; of each group a message and the lines of what fails
    """
    kind, sentence = verdict
    failures = int(kind == "failure") + sum(bool(lines) for _, lines in groups.values())
    suite = ElementTree.Element(
        "testsuite", name=f"attnmath examine {candidate}", tests=str(1 + len(groups)), failures=str(failures),
        errors=str(errors), skipped="0", time=f"{seconds:.3f}",
    )

    def case(name: str) -> ElementTree.Element:
        return ElementTree.SubElement(suite, "testcase", classname=candidate, name=name, time="0")

    first = case("verdict")
    if kind:
        ElementTree.SubElement(first, kind, message=_xml(sentence)).text = _xml(text)
    for name, (message, lines) in groups.items():
        found = case(name)
        if lines:
            ElementTree.SubElement(found, "failure", message=message).text = _xml("\n".join(lines))
    ElementTree.SubElement(suite, "system-out").text = _xml(text)
    suites = ElementTree.Element("testsuites")
    suites.append(suite)
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _xml(text: str) -> str:
    """The text without the characters that XML cannot hold."""
    return re.sub("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)


class Progress:
    """Says what is being done, if it is wanted; one line in place of another where it is a screen."""

    def __init__(self, wanted: bool, screen: bool) -> None:
        self.wanted, self.screen, self.width = wanted, screen, 0
        self.start = self.last = time.monotonic()

    def __call__(self, what: str) -> None:
        """What is being done; nothing, once all is done."""
        now = time.monotonic()
        if not what:
            self.end()
        if not what or not self.wanted or now < (self.start if self.screen else self.last) + PATIENCE:
            return
        line = f"{now - self.start:4.0f} s  {what}"
        if self.screen:
            print(f"\r{line:<{self.width}}", end="", file=sys.stderr, flush=True)
        else:
            print(line, file=sys.stderr, flush=True)
        self.width, self.last = len(line), now

    def end(self) -> None:
        """Take the line away."""
        if self.screen and self.width:
            print("\r" + " " * self.width + "\r", end="", file=sys.stderr, flush=True)
