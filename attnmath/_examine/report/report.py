"""What an examination found, and how it is told: in a few plain lines, or as JSON, HTML, XML."""

import json
import math
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from attnmath._examine.problems.case import Conventions
from attnmath._examine.report import display

FINDING_KINDS = "contract", "mistake", "unnamed", "unlisted", "convention", "hazard"
UNLISTED = "not in the list"
WIDTH = 100
LONG = 160  # letters of a title, as of an error's own words; the row below the sentence has all
SHOWN_FAMILIES = ("hard", "uniform", "gaussian", "peaked", "ties", "outliers", "positive", "tiny", "offset")
USUAL_CONVENTIONS = {"causal": "lower_right", "groups": "blocks", "scale": "1/sqrt(d_k)", "empty": "zero"}
QUALIFIED = {
    "causal": lambda x: f"for {x.replace('_', '-')} alignment",
    "groups": lambda x: f"for {x} heads",
    "scale": lambda x: f"for the scale {x}",
    "empty": lambda x: f"for rows that may attend to nothing: {x}",
    "inside": lambda x: f"with a softmax in {x}",
}
NAMED = {"layout": "layout", "mask": "mask", "causal": "causal", "groups": "groups", "scale": "scale",
         "empty": "empty rows", "inside": "softmax in"}
VERDICTS = {"right": 0, "wrong": 1, "not judged": 2, UNLISTED: 3}  # and the exit status of each


@dataclass(frozen=True)
class Finding:
    """One thing that was found: what, where, which formula it breaks, what to do."""

    kind: str  # one of FINDING_KINDS
    name: str  # the mistake's id, as "dQ_noscale"
    title: str  # in words, to follow "wrong: "
    where: str | None = None
    formula: str | None = None  # as "chapters/attention.md, eq:attention_vjp"
    cure: str | None = None
    evidence: str | None = None  # as "the error is 3,100 times what rounding allows"

    def __post_init__(self) -> None:
        _check_one_of("Finding: kind", self.kind, FINDING_KINDS)


@dataclass(frozen=True)
class TriedProblem:
    """One problem that was tried: by how much of its bound each output was off."""

    name: str
    traits: frozenset[str]
    ratios: Mapping[str, float]  # of "O", "dQ", ...; up to the constant is right
    passed: bool
    note: str | None = None


@dataclass(frozen=True)
class Report:
    """The verdict, and everything it rests on."""

    verdict: str  # one of VERDICTS
    candidate: str
    framework: str | None = None
    dtype: str | None = None
    conventions: Conventions = Conventions()
    findings: tuple[Finding, ...] = ()
    hazards: tuple[Finding, ...] = ()
    problems: tuple[TriedProblem, ...] = ()
    smallest: str | None = None  # lines to paste
    seconds: float = 0.0
    constant: float = 1.0
    told: Conventions = field(default_factory=Conventions)  # what was demanded
    seed: int | None = None  # with it, the same problems come again

    def __post_init__(self) -> None:
        _check_one_of("Report: verdict", self.verdict, VERDICTS)

    def __repr__(self) -> str:
        return f"<Report of {self.candidate}: {self.sentence}>"

    @property
    def right(self) -> bool:
        """Whether it is right, perhaps with a hazard."""
        return self.verdict == "right"

    @property
    def wrong(self) -> bool:
        """Whether it is wrong; False too where nothing could be judged, or it is not in the list."""
        return self.verdict == "wrong"

    @property
    def unlisted(self) -> bool:
        """Whether it is no attention of the list; its findings say whether its gradients are its own."""
        return self.verdict == UNLISTED

    @property
    def status(self) -> int:
        """The exit status: 0 right, 1 wrong, 2 not judged, 3 not in the list."""
        return VERDICTS[self.verdict]

    @property
    def sentence(self) -> str:
        """The verdict in one sentence."""
        if self.right:
            alone = any(f.name == "forward only" for f in self.findings)
            parts = ["right in its output, and no gradient was judged" if alone else "right", *_qualifiers(self)]
            if self.hazards:
                n = len(self.hazards)
                parts.append("with a hazard" if n == 1 else f"with {n} hazards")
            return ", ".join(parts)
        if self.unlisted:
            said = next((f.title for f in self.findings if f.kind == "unlisted"), "")
            return f"not an attention of the list; {said}" if said else "not an attention of the list"
        first = _main_findings(self) or [f for f in self.findings if f.name == "refuses"]
        why = f": {_short_title(first[0])}" if first else ""
        more = f" (and {len(first) - 1} more)" if len(first) > 1 else ""
        if self.wrong:
            return f"wrong{why}{more}"
        return f"not judged, so nothing is known{why}{more}"

    def __str__(self) -> str:
        lines = textwrap.wrap(f"{self.candidate} is {self.sentence}.", WIDTH)
        for label, value in _rows(self):
            lines += _labelled(label, value)
        if self.smallest:
            lines += ["", "The smallest case that fails, to be pasted:", ""]
            lines += textwrap.indent(self.smallest.rstrip(), "    ").splitlines()
        return "\n".join(lines)

    def raise_if_wrong(self, *, unlisted: bool = False) -> None:
        """Raise AssertionError with the report, unless it is right.

        What could not be judged raises too, as does an output without its gradients: a test that
        judged nothing must not pass. So does a function that is not in the list, for its output
        was compared with nothing; with unlisted=True it passes if its gradients are those of its
        own output.
        """
        __tracebackhide__ = True
        if unlisted and self.unlisted and any(f.name == "own gradients" for f in self.findings):
            return
        if not self.right or any(f.name == "forward only" for f in self.findings):
            raise AssertionError(str(self))

    def to_json(self) -> str:
        """Everything, and the verdict in a sentence, as JSON; numbers that are not finite are strings."""
        return json.dumps({"sentence": self.sentence} | _for_json(asdict(self)), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The report that to_json wrote."""
        x = json.loads(text)
        del x["sentence"]
        for name in ("conventions", "told"):
            x[name] = Conventions(**x[name])
        for name in ("findings", "hazards"):
            x[name] = tuple(Finding(**f) for f in x[name])
        for p in x["problems"]:
            p |= {"traits": frozenset(p["traits"]), "ratios": {k: float(r) for k, r in p["ratios"].items()}}
        x["problems"] = tuple(TriedProblem(**p) for p in x["problems"])
        return cls(**x)

    def _repr_html_(self) -> str:
        return display.html(self.candidate, self.sentence, _rows(self), self.smallest)

    def to_junit(self) -> str:
        """XML that continuous integration reads: a test case for each group of problems."""
        kind = None if self.right else "failure" if self.wrong else "error"
        groups = {}
        for name, group in _by_family(self).items():
            lines, count = [_line_of_problem(p) for p in group if not p.passed], _counted(len(group), "problem")
            groups[f"{name} ({count})"] = f"{len(lines)} of {count} fail", lines
        verdict = kind, self.sentence
        return display.junit(self.candidate, self.seconds, verdict, str(self), int(self.status == 2), groups)


def _check_one_of(what: str, value: str, values: Iterable[str]) -> None:
    if value not in values:
        raise ValueError(f"{what} is {value!r}; it needs to be one of {', '.join(values)}")


def _for_json(x: Any) -> Any:
    """x as JSON knows it."""
    if isinstance(x, Mapping):
        return {k: _for_json(y) for k, y in x.items()}
    if isinstance(x, frozenset):
        return sorted(x)
    if isinstance(x, list | tuple):
        return [_for_json(y) for y in x]
    if isinstance(x, bool | str | int | None):
        return x
    return float(x) if math.isfinite(x) else str(float(x))


def _short_title(finding: Finding) -> str:
    """Its title, without what is behind the first words of a long one; and where, if that is all that is known."""
    title = " ".join(finding.title.split())
    title = title if len(title) <= LONG else title[: LONG - 1].rstrip() + "…"
    if finding.kind == "unnamed" and finding.where:
        return f"{title} ({finding.where.replace('; ', ', ')})"
    return title


def _main_findings(report: Report) -> list[Finding]:
    """The findings that make the verdict, those with a name first."""
    order = ("contract", "mistake", "unnamed", "unlisted")
    return sorted((f for f in report.findings if f.kind in order), key=lambda f: order.index(f.kind))


def _labelled(label: str, value: str) -> list[str]:
    """A label and what it says, in lines that fit; those that can be pasted stay as they are."""
    if "\n" in value:
        return [f"  {label}", *textwrap.indent(value.strip("\n"), "      ").splitlines()]
    return textwrap.wrap(
        value, WIDTH, initial_indent=f"  {label:<13}", subsequent_indent=" " * 15,
        break_long_words=False, break_on_hyphens=False,
    )


def _rows(report: Report) -> Iterator[tuple[str, str]]:
    """A word and what it says, one for each line."""
    others = [f for f in report.findings if f not in _main_findings(report)]
    for f in [*_main_findings(report), *others, *report.hazards]:
        yield f.kind, f.title
        for label in ("where", "formula", "cure", "evidence"):
            if getattr(f, label):
                yield f"  {label}", getattr(f, label)
    for label, means in (("conventions", report.conventions), ("demanded", report.told)):
        if _conventions_said(means):
            yield label, _conventions_said(means)
    yield "tried", _tried(report)


def _conventions_said(means: Conventions) -> str:
    """The conventions in words, those that are known."""
    return ", ".join(
        f"{word} {getattr(means, name).replace('r_', 'r-')}"
        for name, word in NAMED.items()
        if getattr(means, name) is not None
    )


def _tried(report: Report) -> str:
    """How much was tried, how long it took, and in what."""
    failed = sum(not p.passed for p in report.problems)
    count = f"{_counted(len(report.problems), 'problem')} in {report.seconds:.1f} s"
    each = ", ".join(f"{name} {_count(group)}" for name, group in _by_family(report).items())
    where = ", ".join(x for x in (report.framework, report.dtype) if x)
    parts = [count + (f", {failed} fail" if failed else "") + (f": {each}" if each else ""), where,
             f"constant {report.constant:g}", "" if report.seed is None else f"seed {report.seed}"]
    return "; ".join(filter(None, parts))


def _by_family(report: Report) -> dict[str, list[TriedProblem]]:
    """The problems of each family, in the order in which they were tried."""
    found: dict[str, list[TriedProblem]] = {}
    for p in report.problems:
        word = next((f for f in SHOWN_FAMILIES if f in p.traits), None)  # or its name up to a comma
        found.setdefault(word or re.split("[,:]", p.name)[0] or "other", []).append(p)
    return found


def _counted(n: int, what: str) -> str:
    """How many there are, with the word in the singular or plural."""
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"


def _count(group: list[TriedProblem]) -> str:
    failed = sum(not p.passed for p in group)
    return f"{failed} of {len(group)}" if failed else str(len(group))


def _qualifiers(report: Report) -> list[str]:
    """The conventions that somebody could have expected otherwise."""
    means, told = report.conventions, report.told
    return [phrase(getattr(means, name)) for name, phrase in QUALIFIED.items()
            if getattr(means, name) not in (None, USUAL_CONVENTIONS.get(name), getattr(told, name))]


def _line_of_problem(problem: TriedProblem) -> str:
    ratios = ", ".join(f"{name} {x:.3g}" for name, x in problem.ratios.items())
    note = f" ({problem.note})" if problem.note else ""
    return f"{problem.name}: {ratios or 'nothing to compare'}{note}"
