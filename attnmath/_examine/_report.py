"""What an examination found, and how it is told: as text, JSON, HTML, JUnit's XML."""

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Self

from attnmath._examine import _report_markup, _report_text
from attnmath._examine._case import Conventions

KINDS = "contract", "mistake", "unnamed", "unlisted", "convention", "hazard"
UNLISTED = "not in the list"
VERDICTS = {"right": 0, "wrong": 1, "not judged": 2, UNLISTED: 3}  # and the exit status of each


@dataclass(frozen=True)
class Finding:
    """One thing that was found: what, where, which formula it breaks, what to do."""

    kind: str  # one of KINDS
    name: str  # the mistake's id, as "dQ_noscale"
    title: str  # in words, to follow "wrong: "
    where: str | None = None
    formula: str | None = None  # as "chapters/attention.md, eq:attention_vjp"
    cure: str | None = None
    evidence: str | None = None  # as "the error is 3,100 times what rounding allows"

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"Finding: kind is {self.kind!r}; it needs to be one of {', '.join(KINDS)}")


@dataclass(frozen=True)
class Problem:
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
    problems: tuple[Problem, ...] = ()
    smallest: str | None = None  # lines to paste
    seconds: float = 0.0
    constant: float = 1.0
    told: Conventions = field(default_factory=Conventions)  # what was demanded
    seed: int | None = None  # with it, the same problems come again

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(
                f"Report: verdict is {self.verdict!r}; it needs to be one of {', '.join(VERDICTS)}"
            )

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
        return _report_text.sentence(self)

    def __str__(self) -> str:
        return _report_text.text(self)

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
        return json.dumps({"sentence": self.sentence} | _plain(asdict(self)), indent=1, ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The report that to_json wrote."""
        x = json.loads(text)
        del x["sentence"]
        for name in ("conventions", "told"):
            x[name] = Conventions(**x[name])
        for name in ("findings", "hazards"):
            x[name] = tuple(Finding(**f) for f in x[name])
        x["problems"] = tuple(_problem(**p) for p in x["problems"])
        return cls(**x)

    def _repr_html_(self) -> str:
        return _report_markup.html(self)

    def to_junit(self) -> str:
        """XML that continuous integration reads: a test case for each group of problems."""
        return _report_markup.junit(self)


def _problem(traits: list[str], ratios: dict[str, Any], **other: Any) -> Problem:
    return Problem(traits=frozenset(traits), ratios={k: float(x) for k, x in ratios.items()}, **other)


def _plain(x: Any) -> Any:
    """x as JSON knows it."""
    if isinstance(x, Mapping):
        return {k: _plain(y) for k, y in x.items()}
    if isinstance(x, frozenset):
        return sorted(x)
    if isinstance(x, list | tuple):
        return [_plain(y) for y in x]
    if isinstance(x, bool | str | int | None):
        return x
    return float(x) if math.isfinite(x) else str(float(x))
