"""A report as HTML for a notebook, and as the XML that continuous integration reads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from attnmath._examine import _report_text as words

if TYPE_CHECKING:
    from attnmath._examine._report import Problem, Report

# No colour is set: the reader's own, light or dark, have the contrast that they chose.
CELL = "text-align:left;vertical-align:top;padding:0.1em 0.8em 0.1em 0"
BOX = "border-left:0.3em solid currentColor;padding:0.2em 0 0.2em 0.8em;max-width:60em"


def html(report: Report) -> str:
    """A box with the verdict, a table of what was found, and the smallest case."""
    from html import escape

    body = "".join(
        f'<tr><th scope="row" style="{CELL}">{escape(label.strip())}</th>'
        f'<td style="{CELL}">{_cell(value)}</td></tr>'
        for label, value in words.rows(report)
    )
    parts = [
        f'<section aria-label="Examination of {escape(report.candidate)}" style="{BOX}">',
        f"<p><strong>{escape(report.candidate)} is {escape(words.sentence(report))}.</strong></p>",
        f'<table style="border-collapse:collapse"><tbody>{body}</tbody></table>',
    ]
    if report.smallest:
        parts.append(
            "<details><summary>The smallest case that fails</summary>"
            f"{_cell(report.smallest.rstrip() + chr(10))}</details>"
        )
    return "".join(parts) + "</section>"


def _cell(value: str) -> str:
    """The text; lines that can be pasted stay lines, and can be scrolled without a mouse."""
    from html import escape

    return f'<pre tabindex="0" style="overflow:auto">{escape(value)}</pre>' if "\n" in value else escape(value)


def junit(report: Report) -> str:
    """A test suite: the verdict first, then a test case for each family of problems."""
    from xml.etree import ElementTree as tree

    groups = words.groups(report)
    failed = {name: [p for p in group if not p.passed] for name, group in groups.items()}
    suite = tree.Element(
        "testsuite", name=f"attnmath examine {report.candidate}", tests=str(1 + len(groups)),
        failures=str(report.wrong + sum(map(bool, failed.values()))),
        errors=str(int(report.status == 2)), skipped="0", time=f"{report.seconds:.3f}",
    )  # fmt: skip

    def case(name: str) -> tree.Element:
        return tree.SubElement(suite, "testcase", classname=report.candidate, name=name, time="0")

    verdict = case("verdict")
    if not report.right:
        kind = "failure" if report.wrong else "error"
        tree.SubElement(verdict, kind, message=_xml(words.sentence(report))).text = _xml(str(report))
    for name, group in groups.items():
        found = case(f"{name} ({words.number(len(group), 'problem')})")
        if failed[name]:
            message = f"{len(failed[name])} of {words.number(len(group), 'problem')} fail"
            lines = "\n".join(map(_line, failed[name]))
            tree.SubElement(found, "failure", message=message).text = _xml(lines)
    tree.SubElement(suite, "system-out").text = _xml(str(report))
    suites = tree.Element("testsuites")
    suites.append(suite)
    tree.indent(suites)
    return tree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _line(problem: Problem) -> str:
    ratios = ", ".join(f"{name} {x:.3g}" for name, x in problem.ratios.items())
    note = f" ({problem.note})" if problem.note else ""
    return f"{problem.name}: {ratios or 'nothing to compare'}{note}"


def _xml(text: str) -> str:
    """The text without the characters that XML cannot hold."""
    return re.sub("[^\t\n\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]", "", text)
