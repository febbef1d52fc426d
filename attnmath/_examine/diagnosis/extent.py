"""How much was judged: what was refused, not tried, not meant to be there; and what nobody stated."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np

from attnmath._examine.contract import signature
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.contract import GRADIENT_OF
from attnmath._examine.contract.functions import Fault
from attnmath._examine.diagnosis.probes import TRIED, gives_output, read_scale
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.report.found import Finding, TriedProblem
from attnmath.rounding.formats import unit_roundoff

# Where the first was found, the second says the same, or less.
SAID_OTHERWISE = {"dropout_ignored": "f_drop_norescale", "mask_meanings": "f_mask_inverted"}
HAZARDS = ("unordered_sums", "small_lost", "stored_sums")  # with them it may still be right
TELLING = {"gaussian", "peaked", "outliers"}  # numbers without a structure of their own
LEAST_JUDGED = 0.5  # of the problems that it was given: where fewer were judged, nothing is known


def small_lost(case: Case, got: Answer, want: Answer, wrong: Collection[str], dtype: str) -> Fault | None:
    """That with scores far below 0 each array is right to its largest number, and its small ones are lost.

    Scores are off by some roundings of their own size, and so is each weight by that share of itself.
    """
    if not wrong or "large negative scores" not in case.traits:
        return None
    longest = [np.sqrt((x * x).sum(-1)).max() for x in (case.Q, case.K)]
    scores = float(np.prod(longest)) * (case.Q.shape[-1] ** -0.5 if case.scale is None else abs(case.scale))
    for x in wrong:
        a, b = getattr(got, x), getattr(want, x)
        most = (64 + 4 * scores) * unit_roundoff(dtype) * np.abs(b).max(initial=0.0)
        if a is None or not (np.isfinite(a).all() and np.all(np.abs(a - b) <= most)):
            return None
    who, be = ", ".join(sorted(wrong)), "is" if len(wrong) == 1 else "are"
    return Fault("small_lost", f"with scores far below 0 {who} {be} right to the largest number of an array alone:"
                               " what is far smaller is lost in roundings")


def harmless(fault: Fault, framework: str | None) -> bool:
    """What is no more than a hazard; NumPy makes float64 of float32 where a number of its own is met."""
    wider = fault.name == "dtype" and framework == "numpy" and " float64," in fault.sentence
    return wider or fault.name in HAZARDS


def broken_contract(
    faults: Iterable[Fault], framework: str | None, numbers: bool, part: str = ""
) -> list[Finding]:
    """Each fault once; numbers that are not finite are judged as numbers, where these are wrong."""
    said = [f for f in faults if not (harmless(f, framework) or f.name == "not finite" and numbers)]
    first = {f.name: f for f in reversed(said)}
    return [Finding("contract", f.name, part + f.sentence) for f in reversed(first.values())]


def never_taken(problems: Sequence[TriedProblem], candidate: Candidate) -> list[Finding]:
    """The options that it was said to take, and did not take in any problem."""
    found = []
    for word in sorted(candidate.takes):
        with_it = [p for p in problems if word in p.traits]
        if with_it and not any(p.judged for p in with_it):
            said = {x: name for x, name in candidate.options.items() if x in (word, f"{word}_mask")}
            wrong = signature.misspelt((candidate.fn, candidate.backward), said)
            title = wrong or f"it was said to take {word}, and never takes it: {with_it[0].note}"
            found.append(Finding("contract", "options" if wrong else "option_refused", title))
    return found


def too_little(problems: Sequence[TriedProblem], candidate: Candidate) -> list[Finding]:
    """That too few problems were judged, or none with an option that it was said to take."""
    refused, count = [p for p in problems if not p.judged], len(problems)
    found = never_taken(problems, candidate)
    if count - len(refused) < LEAST_JUDGED * count:
        title = f"{count - len(refused)} of {count} problems were judged, where {LEAST_JUDGED:.0%} are the least"
        found.append(Finding("contract", "too_few", title, evidence=refused[0].note))
    return found


def refusals(problems: Sequence[TriedProblem], faults: Iterable[Fault]) -> list[Finding]:
    """Problems that it would not take, which is its right."""
    said: dict[str, list[str]] = {}
    contract, first = {f.sentence for f in faults}, dict[str, str]()
    for p in problems:
        if p.note and p.note not in contract:  # one sentence for those that differ in numbers
            said.setdefault(first.setdefault(re.sub(r"\d+", "#", p.note), p.note), []).append(p.name)
    found = []
    for note, names in said.items():
        where = ", ".join(names[:4]) + (", ..." if len(names) > 4 else "")
        slow, count = note.startswith("too slow"), f"{len(names)} of the problems"
        title = f"{count} not judged: {note}" if "the reference" in note else f"it does not take {count}: {note}"
        title = f"{count} not tried: {note}" if slow else title
        found.append(Finding("convention", "too_slow" if slow else "refuses", title, where=where))
    return found


def not_judged(candidate: Candidate, told: Conventions, without: frozenset[str]) -> list[Finding]:
    """What was demanded, or could be expected, and was not looked at."""
    found = []
    if candidate.forward_only:
        title = "its output alone was judged: without backward= a NumPy function has no gradients"
        found.append(Finding("convention", "forward only", title))
    for word in ("mask", "causal", "groups"):
        if getattr(told, word) not in (None, "none") and word not in candidate.options:
            title = f"{word} was demanded, and not judged: options says no {word}"
            found.append(Finding("convention", "not_judged", title))
    if letters := sorted(without & GRADIENT_OF.keys()):
        found.append(Finding("convention", "without", f"without {', '.join(letters)}, as was said"))
    if candidate.output.beside:
        title = f"of {candidate.output.beside} that it returns the output alone is judged"
        found.append(Finding("convention", "output_alone", title))
    if names := signature.not_tried(candidate.fn, candidate.options, without):
        title = f"not tried: {', '.join(f'`{name}`' for name in names)} (say options=)"
        found.append(Finding("convention", "not_tried", title))
    return found


def other_scale(candidate: Candidate, asked: str | None, means: Conventions) -> Finding | None:
    """That its scale is another than is demanded."""
    if asked is None:
        return None
    sizes, unscaled = candidate.sizes or TRIED[0], replace(means, scale=None)
    read = read_scale(candidate, unscaled, sizes, np.random.default_rng(1))[0]
    if read is None or read == asked or not gives_output(candidate, unscaled, sizes, read):
        return None
    title = f"the scale is {read}, and {asked} is demanded"
    return Finding("mistake", "scale", title, cure="multiply Q K^T by the scale that is demanded")


def unusual(means: Conventions, told: Conventions, problems: Sequence[TriedProblem] = ()) -> list[Finding]:
    """A scale, an order of heads or a sum that nobody demanded and that is unusual; a number in place of -inf.

    What was read off a wrong function is said where its output is right in a problem that would tell.
    """
    def shows(in_it: bool, trait: str) -> bool:
        some = [p.ratios.get("O", np.inf) for p in problems if (trait in p.traits) is in_it and p.judged
                and not p.traits.isdisjoint(TELLING)]
        return not some or min(some) <= 1

    found, scale = [], means.scale
    if told.empty is None and str(means.empty).startswith("sum"):
        title = "a row that may attend to nothing gives the sum of all values, m times their mean"
        cure = "hide with -inf, and give 0 where a row is hidden; or keep a row's maximum and its sum apart"
        found.append(Finding("hazard", "empty_row_sum", title, None, "chapters/empty_rows.md", cure))
    if fill := means.fill:
        title = f"what is hidden has {fill} added to its score, not -inf: a score beyond that comes through"
        found.append(Finding("hazard", "finite_fill", title, cure="mask with -inf"))
    if told.scale is None and scale not in (None, "1/sqrt(d_k)") and shows(False, "scale"):
        title = f"the scale is {scale}, where 1/sqrt(d_k) is usual"
        found.append(Finding("hazard", "unusual_scale", title, cure=f"scale={scale!r} says that it is meant"))
    if told.groups is None and means.groups == "interleaved" and shows(True, "groups"):
        title = "query head h reads head h mod G of the keys and values, where h // (H/G) is usual"
        cure = "conventions={'groups': 'interleaved'} says that it is meant"
        found.append(Finding("hazard", "interleaved_groups", title, cure=cure))
    return found


def each_once(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """The findings, without what another one says better."""
    found = tuple(findings)
    less = {SAID_OTHERWISE.get(x.name) for x in found}
    return tuple(x for x in found if x.name not in less)


def meant(faults: Iterable[Fault], without: frozenset[str]) -> list[Fault]:
    """The faults, but for those of gradients that are not meant to be there."""
    letters = without & GRADIENT_OF.keys()
    starts = tuple(f"{x} is {how}" for x in letters for how in ("None", "missing"))
    alone = tuple(f"it fails where {GRADIENT_OF[x]} alone" for x in letters)
    return [f for f in faults if not f.sentence.startswith(starts + alone)]
