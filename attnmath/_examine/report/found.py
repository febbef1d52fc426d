"""What can be found, and the problems that were tried; how they are said in words."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from attnmath._examine.problems.case import Conventions

FINDING_KINDS = "contract", "mistake", "unnamed", "unlisted", "convention", "hazard"
SHOWN_FAMILIES = ("hard", "uniform", "gaussian", "peaked", "ties", "outliers", "positive", "tiny", "offset")
OUTPUTS = "O", "Y"
MOST_LETTERS = 4  # that are said in a sentence
SAID = {"interleaved": "interleaved (query head h reads head h mod G)"}
NAMED = {"layout": "layout", "mask": "mask", "causal": "causal", "groups": "groups", "scale": "scale",
         "empty": "empty rows", "dropout": "dropout mask", "inside": "softmax in"}


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
        check_one_of("Finding: kind", self.kind, FINDING_KINDS)


@dataclass(frozen=True)
class TriedProblem:
    """One problem that was tried: by how much of its bound each output was off."""

    name: str
    traits: frozenset[str]
    ratios: Mapping[str, float]  # of "O", "dQ", ...; up to the constant is right
    passed: bool
    note: str | None = None  # why it was not judged
    part: str = ""  # "jvp", "double backward"; else of the function and its gradients

    @property
    def judged(self) -> bool:
        """Whether there was something to compare; what it would not take is no failure."""
        return self.passed or bool(self.ratios)

    @property
    def failed(self) -> bool:
        """Whether something that was compared is wrong."""
        return bool(self.ratios) and not self.passed


def check_one_of(what: str, value: str, values: Iterable[str]) -> None:
    """Raise ValueError for a word that is not one of these."""
    if value not in values:
        raise ValueError(f"{what} is {value!r}; it needs to be one of {', '.join(values)}")


def conventions_said(means: Conventions) -> str:
    """The conventions in words, those that are known."""
    known = {word: getattr(means, name) for name, word in NAMED.items()}
    said = [f"{word} {SAID.get(x, x.replace('r_', 'r-'))}" for word, x in known.items() if x is not None]
    return ", ".join([*said, *([means.pieces.words] if means.pieces else [])])


def by_family(problems: Iterable[TriedProblem]) -> dict[str, list[TriedProblem]]:
    """The problems of each family, in the order in which they were tried."""
    found: dict[str, list[TriedProblem]] = {}
    for p in problems:
        word = p.part or next((f for f in SHOWN_FAMILIES if f in p.traits), None)  # or its name up to a comma
        found.setdefault(word or re.split("[,:]", p.name)[0] or "other", []).append(p)
    return found


def counted(n: int, what: str) -> str:
    """How many there are, with the word in the singular or plural."""
    return f"{n or 'no'} {what}{'' if n == 1 else 's'}"


def failed_count(group: Sequence[TriedProblem]) -> str:
    """How many failed of how many."""
    failed = sum(p.failed for p in group)
    return f"{failed} of {len(group)}" if failed else str(len(group))


def line_of_problem(problem: TriedProblem) -> str:
    """Its name, and what each output came to."""
    ratios = ", ".join(f"{name} {x:.3g}" for name, x in problem.ratios.items())
    note = f" ({problem.note})" if problem.note else ""
    return f"{problem.name}: {ratios or 'nothing to compare'}{note}"


def parts_in_words(problems: Sequence[TriedProblem], constant: float) -> str:
    """Which part is wrong: the forward, or the backward where the output is right; nothing if not known."""
    forward, letters = False, dict[str, None]()
    for p in problems:
        off = [x for x, ratio in p.ratios.items() if p.failed and not ratio <= constant]
        forward = forward or any(x in OUTPUTS for x in off)
        letters |= {} if any(x in OUTPUTS for x in off) else dict.fromkeys(off)
    order = list(dict.fromkeys(x for p in problems for x in p.ratios))
    backward = backward_in_words(sorted(letters, key=order.index))
    return " and ".join(filter(None, ["the forward" if forward else "", backward]))


def judged_in_words(problems: Sequence[TriedProblem]) -> str:
    """How many were judged: 61 of 63 problems; jvp: 40 of 40."""
    parts = {p.part: [x for x in problems if x.part == p.part] for p in problems}
    said = []
    for part, some in parts.items():
        judged, count = sum(p.judged for p in some), counted(len(some), "problem")
        said.append(f"{part}: {judged} of {len(some)}" if part else f"{judged} of {count}")
    return "; ".join(said)


def backward_in_words(letters: Sequence[str]) -> str:
    """The backward, with the gradients that are wrong; nothing where none is."""
    said = ", ".join(letters[:MOST_LETTERS]) + (", ..." if len(letters) > MOST_LETTERS else "")
    return f"the backward ({said})" if letters else ""
