"""What an examination found, and how it is told: in a few plain lines, or as JSON, HTML, XML."""

import json
import math
import os
import re
import textwrap
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from attnmath._examine.problems.case import Conventions
from attnmath._examine.report import display
from attnmath._examine.report.found import (
    Finding,
    TriedProblem,
    backward_in_words,
    by_family,
    check_one_of,
    conventions_said,
    counted,
    failed_count,
    judged_in_words,
    line_of_problem,
    parts_in_words,
)

UNLISTED = "not in the list"
WIDTH = 100
NAMES_LETTERS = "reference", "jvp", "double_backward"  # findings whose titles do so
EXPLAINS = "this edit of the program gives all that came"  # of a finding that leaves nothing over
LONG = 160  # letters of a title, as of an error's own words; the row below the sentence has all
USUAL_CONVENTIONS = {"causal": "lower_right", "groups": "blocks", "scale": "1/sqrt(d_k)", "empty": "zero"}
QUALIFIED: dict[str, Callable[[str], str]] = {
    "causal": lambda x: f"for {x.replace('_', '-')} alignment",
    "groups": lambda x: f"for groups in which query head h reads head {'h mod G' * (x == 'interleaved') or x}",
    "scale": lambda x: f"for the scale {x}",
    "empty": lambda x: f"for rows that may attend to nothing: {x}",
    "inside": lambda x: f"with a softmax in {x}",
}
# Hazards that a test fails on, and the convention that says that they are meant.
UNSTATED = {"unusual_scale": "scale", "interleaved_groups": "groups", "rate_without_effect": "dropout",
            "boolean_mask_added": "mask", "replicated_part": "replicated", "replicated_mean": "replicated"}
VERDICTS = {"right": 0, "wrong": 1, "not judged": 2, UNLISTED: 3}  # and the exit status of each


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
        check_one_of("Report: verdict", self.verdict, VERDICTS)

    def __repr__(self) -> str:
        return f"<Report of {self.candidate}: {self.sentence}>"

    def __bool__(self) -> bool:
        return self.right

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
            return self._right_sentence()
        if self.unlisted:
            said = next((f.title for f in self.findings if f.kind == "unlisted"), "")
            return f"not an attention of the list; {said}" if said else "not an attention of the list"
        first = _main_findings(self) or [f for f in self.findings if f.name == "refuses"]
        why = f": {_short_title(first[0])}" if first else ""
        more = f" (and {len(first) - 1} more)" if len(first) > 1 else ""
        if self.wrong:
            part = _wrong_part(self, first)
            return f"wrong{part and ' in '}{part}{why}{more}"
        return f"not judged, so nothing is known{why}{more}"

    def _right_sentence(self) -> str:
        """How much was judged right, for which conventions, and what was not tried."""
        names = {f.name for f in self.findings}
        count = f": {judged_in_words(self.problems)}" if self.problems else ""
        alone = " in its output, and no gradient was judged" if "forward only" in names else ""
        parts = [f"right{alone}{count}", *_qualifiers(self)]
        parts += ["as the reference"] if "reference" in names else []
        if n := len(self.hazards):
            parts.append("with a hazard" if n == 1 else f"with {n} hazards")
        of_several = [f.title for f in self.findings if f.name == "output_alone"]
        return "; ".join([", ".join(parts), *of_several, *self.not_tried])

    @property
    def not_tried(self) -> list[str]:
        """What could have been tried, and was not; at most one sentence."""
        return [f.title for f in self.findings if f.name == "not_tried"]

    def __str__(self) -> str:
        lines = textwrap.wrap(f"{self.candidate} is {self.sentence}.", WIDTH)
        for label, value in rows(self):
            lines += _labelled(label, value)
        if self.smallest:
            lines += ["", "The smallest case that fails, to be pasted:", ""]
            lines += textwrap.indent(self.smallest.rstrip(), "    ").splitlines()
        return "\n".join(lines)

    def raise_if_wrong(self, *, unlisted: bool = False, allow_not_judged: bool = False) -> None:
        """Raise AssertionError with the report, unless it is right.

        What could not be judged raises too, as does an output without its gradients, unless
        allow_not_judged=True: a test that judged nothing must not pass. So does a scale, or an
        order of heads, that is not the usual one and that nobody stated, and the other hazards of
        UNSTATED, unless conventions= says that they are meant; and a function that is
        not in the list, for its output was compared with nothing; with unlisted=True it passes
        if its gradients are those of its own output, as does one with pieces beside plain
        attention. What was not tried is a UserWarning.
        """
        __tracebackhide__ = True
        for said in self.not_tried:
            warnings.warn(f"{self.candidate}: {said}", UserWarning, stacklevel=3)
        if unlisted and self.unlisted and any(f.name == "own gradients" for f in self.findings):
            return
        if self.right and not unlisted and (pieces := getattr(self.conventions, "pieces", None)):
            said = f"attention with {pieces.words}: unlisted=True says that it is meant"
            raise AssertionError(f"{said}\n{self._once}")
        alone = any(f.name == "forward only" for f in self.findings)
        if allow_not_judged and (self.status == 2 or self.right and alone):
            return
        if unstated := [f for f in self.hazards if self.right and self._is_unstated(f)]:
            raise AssertionError(f"{unstated[0].title}: {unstated[0].cure}\n{self._once}")
        if not self.right or alone:
            raise AssertionError(self._once)

    @property
    def _once(self) -> str:
        """The whole of it; where torchrun has begun several ranks, which all have it, on the first alone."""
        first = self.told.ranks is None or os.environ.get("RANK", "0") == "0"
        return str(self) if first else f"{self.candidate} is {self.verdict}: rank 0 has the report"

    def _is_unstated(self, hazard: Finding) -> bool:
        """Whether it is a convention that nobody stated."""
        return hazard.name in UNSTATED and getattr(self.told, UNSTATED[hazard.name]) is None

    def to_json(self) -> str:
        """Everything, the sentence and the rows of the text, as JSON; numbers that are not finite are strings."""
        said = {"sentence": self.sentence, "rows": list(rows(self))}
        return json.dumps(said | _for_json(asdict(self)), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The report that to_json wrote."""
        x = json.loads(text)
        del x["sentence"], x["rows"]
        for name in ("conventions", "told"):
            x[name] = Conventions(**x[name])
        for name in ("findings", "hazards"):
            x[name] = tuple(Finding(**f) for f in x[name])
        for p in x["problems"]:
            p |= {"traits": frozenset(p["traits"]), "ratios": {k: float(r) for k, r in p["ratios"].items()}}
        x["problems"] = tuple(TriedProblem(**p) for p in x["problems"])
        return cls(**x)

    def _repr_html_(self) -> str:
        return display.html(self.candidate, self.sentence, rows(self), self.smallest)

    def to_junit(self) -> str:
        """XML that continuous integration reads: a test case for each group of problems."""
        kind = None if self.right else "failure" if self.wrong else "error"
        groups = {}
        for name, group in by_family(self.problems).items():
            lines, count = [line_of_problem(p) for p in group if p.failed], counted(len(group), "problem")
            groups[f"{name} ({count})"] = f"{len(lines)} of {count} fail", lines
        verdict = kind, self.sentence
        return display.junit(self.candidate, self.seconds, verdict, str(self), int(self.status == 2), groups)


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
    if finding.kind == "unnamed" and finding.where and finding.name not in NAMES_LETTERS:
        return f"{title} ({finding.where.replace('; ', ', ')})"
    return title


def _main_findings(report: Report) -> list[Finding]:
    """The findings that make the verdict, those with a name first."""
    order = ("contract", "mistake", "unnamed", "unlisted")
    some = [f for f in report.findings if f.kind in order]
    last = {"dB_missing"}  # after what is wrong, as a gradient that is None because of it
    explained = {f.name for f in some if f.kind == "mistake" and "all that came" in (f.evidence or "")}
    last |= {"detached"} if explained - {"zeros", "bias_missing"} else set()
    return sorted(some, key=lambda f: (f.name in last, order.index(f.kind)))


def _wrong_part(report: Report, first: list[Finding]) -> str:
    """The part that is wrong, in words; nothing where the numbers are not what is wrong."""
    if first and (first[0].kind == "contract" or first[0].name.startswith("rank_weights")):
        return ""
    if first and first[0].name == "own_gradients":
        return backward_in_words(list(dict.fromkeys(re.findall(r"\bd[QKVB]\b", first[0].title))))
    where = f"{first[0].where}" if first else ""
    if part := next((p.part for p in report.problems if p.part and where.startswith(f"the {p.part}")), ""):
        return f"the {part}"
    said = parts_in_words([p for p in report.problems if not p.part], report.constant)
    one = len(first) == 1 and EXPLAINS in (first[0].evidence or "")
    if one and re.fullmatch(r"d[QKVB](; d[QKVB])*", where):  # the output may be off by rounding
        return backward_in_words(where.split("; "))
    return said.partition(" and the backward")[0] if one else said  # the gradients are those of that output


def _labelled(label: str, value: str) -> list[str]:
    """A label and what it says, in lines that fit; those that can be pasted stay as they are."""
    if "\n" in value:
        return [f"  {label}", *textwrap.indent(value.strip("\n"), "      ").splitlines()]
    return textwrap.wrap(
        value, WIDTH, initial_indent=f"  {label:<13}", subsequent_indent=" " * 15,
        break_long_words=False, break_on_hyphens=False,
    )


def rows(report: Report) -> Iterator[tuple[str, str]]:
    """A word and what it says, one for each line: of the text, the table in HTML, and the JSON."""
    taken = [f.title.removeprefix("takes ") for f in report.findings if f.name == "takes"]
    for label, said in (("takes" if taken else "conventions", [*taken, conventions_said(report.conventions)]),
                        ("demanded", [conventions_said(report.told)])):
        if any(said):
            yield label, "; ".join(filter(None, said))
    others = [f for f in report.findings if f not in _main_findings(report) and f.name != "takes"]
    for f in [*_main_findings(report), *others, *report.hazards]:
        yield f.kind, f.title
        for label in ("where", "formula", "cure", "evidence"):
            if getattr(f, label):
                yield f"  {label}", getattr(f, label)
    yield "tried", _tried(report)


def _tried(report: Report) -> str:
    """How much was tried, how long it took, and in what."""
    failed, refused = sum(p.failed for p in report.problems), sum(not p.judged for p in report.problems)
    count = f"{counted(len(report.problems), 'problem')} in {report.seconds:.1f} s"
    each = ", ".join(f"{name} {failed_count(group)}" for name, group in by_family(report.problems).items())
    where = ", ".join(x for x in (report.framework, report.dtype) if x)
    parts = [count + (f", {failed} fail" if failed else "") + (f", {refused} not taken" if refused else "")
             + (f": {each}" if each else ""), where,
             f"constant {report.constant:g}", "" if report.seed is None else f"seed {report.seed}"]
    return "; ".join(filter(None, parts))


def _qualifiers(report: Report) -> list[str]:
    """The conventions that somebody could have expected otherwise."""
    means, told = report.conventions, report.told
    return [phrase(getattr(means, name)) for name, phrase in QUALIFIED.items()
            if getattr(means, name) not in (None, USUAL_CONVENTIONS.get(name), getattr(told, name))]
