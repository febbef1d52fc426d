"""A report as a few plain lines, read in ten seconds."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from attnmath._examine._case import Conventions
    from attnmath._examine._report import Finding, Problem, Report

WIDTH = 100
FAMILIES = ("hard", "uniform", "gaussian", "peaked", "ties", "outliers", "positive", "tiny", "offset")
USUAL = {"causal": "lower_right", "groups": "blocks", "scale": "1/sqrt(d_k)", "empty": "zero"}
QUALIFIED = {
    "causal": lambda x: f"for {x.replace('_', '-')} alignment",
    "groups": lambda x: f"for {x} heads",
    "scale": lambda x: f"for the scale {x}",
    "empty": lambda x: f"for rows that may attend to nothing: {x}",
    "inside": lambda x: f"with a softmax in {x}",
}
NAMED = {"layout": "layout", "mask": "mask", "causal": "causal", "groups": "groups", "scale": "scale",
         "empty": "empty rows", "inside": "softmax in"}  # fmt: skip


def sentence(report: Report) -> str:
    """The verdict in one sentence."""
    if report.right:
        alone = any(f.name == "forward only" for f in report.findings)
        parts = ["right in its output, and no gradient was judged" if alone else "right", *_qualifiers(report)]
        if report.hazards:
            n = len(report.hazards)
            parts.append("with a hazard" if n == 1 else f"with {n} hazards")
        return ", ".join(parts)
    if report.unlisted:
        said = next((f.title for f in report.findings if f.kind == "unlisted"), "")
        return f"not an attention of the list; {said}" if said else "not an attention of the list"
    first = main_findings(report) or [f for f in report.findings if f.name == "refuses"]
    why = f": {first[0].title}" if first else ""
    more = f" (and {len(first) - 1} more)" if len(first) > 1 else ""
    if report.wrong:
        return f"wrong{why}{more}"
    return f"not judged, so nothing is known{why}{more}"


def main_findings(report: Report) -> list[Finding]:
    """The findings that make the verdict, those with a name first."""
    order = ("contract", "mistake", "unnamed", "unlisted")
    return sorted((f for f in report.findings if f.kind in order), key=lambda f: order.index(f.kind))


def text(report: Report) -> str:
    """The verdict, findings, hazards, conventions, what was tried, and the smallest case."""
    lines = textwrap.wrap(f"{report.candidate} is {sentence(report)}.", WIDTH)
    for label, value in rows(report):
        lines += _pasted(label, value) if "\n" in value else _wrapped(label, value)
    if report.smallest:
        lines += ["", "The smallest case that fails, to be pasted:", ""]
        lines += textwrap.indent(report.smallest.rstrip(), "    ").splitlines()
    return "\n".join(lines)


def _wrapped(label: str, value: str) -> list[str]:
    return textwrap.wrap(
        value, WIDTH, initial_indent=f"  {label:<13}", subsequent_indent=" " * 15,
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip


def _pasted(label: str, value: str) -> list[str]:
    """Lines that can be pasted stay as they are."""
    return [f"  {label}", *textwrap.indent(value.strip("\n"), "      ").splitlines()]


def rows(report: Report) -> Iterator[tuple[str, str]]:
    """A word and what it says, one for each line."""
    others = [f for f in report.findings if f not in main_findings(report)]
    for f in [*main_findings(report), *others, *report.hazards]:
        yield f.kind, f.title
        for label in ("where", "formula", "cure", "evidence"):
            if getattr(f, label):
                yield f"  {label}", getattr(f, label)
    for label, means in (("conventions", report.conventions), ("demanded", report.told)):
        if said(means):
            yield label, said(means)
    yield "tried", tried(report)


def said(means: Conventions) -> str:
    """The conventions in words, those that are known."""
    return ", ".join(
        f"{word} {getattr(means, name).replace('r_', 'r-')}"
        for name, word in NAMED.items()
        if getattr(means, name) is not None
    )


def tried(report: Report) -> str:
    """How much was tried, how long it took, and in what."""
    failed = sum(not p.passed for p in report.problems)
    seconds = f"{number(len(report.problems), 'problem')} in {report.seconds:.1f} s"
    each = ", ".join(f"{name} {_count(group)}" for name, group in groups(report).items())
    parts = [seconds + (f", {failed} fail" if failed else "") + (f": {each}" if each else "")]
    where = ", ".join(x for x in (report.framework, report.dtype) if x)
    parts += [where] if where else []
    parts.append(f"constant {report.constant:g}")
    parts += [] if report.seed is None else [f"seed {report.seed}"]
    return "; ".join(parts)


def groups(report: Report) -> dict[str, list[Problem]]:
    """The problems of each family, in the order in which they were tried."""
    found: dict[str, list[Problem]] = {}
    for p in report.problems:
        found.setdefault(family(p), []).append(p)
    return found


def family(problem: Problem) -> str:
    """The family of a problem: one of its traits, or its name up to a comma."""
    word = next((f for f in FAMILIES if f in problem.traits), None)
    return word or re.split("[,:]", problem.name)[0] or "other"


def number(n: int, what: str) -> str:
    """How many there are, with the word in the singular or plural."""
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"


def _count(group: list[Problem]) -> str:
    failed = sum(not p.passed for p in group)
    return f"{failed} of {len(group)}" if failed else str(len(group))


def _qualifiers(report: Report) -> list[str]:
    """The conventions that somebody could have expected otherwise."""
    found = []
    for name, phrase in QUALIFIED.items():
        value = getattr(report.conventions, name)
        if value not in (None, USUAL.get(name), getattr(report.told, name)):
            found.append(phrase(value))
    return found
