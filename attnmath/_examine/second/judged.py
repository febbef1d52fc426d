"""A jvp and a double backward beside an examination: problems, verdict, findings, the smallest case."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Fault
from attnmath._examine.diagnosis.examination import Examination
from attnmath._examine.diagnosis.extent import LEAST_JUDGED, broken_contract
from attnmath._examine.problems.case import Case
from attnmath._examine.problems.families import cases
from attnmath._examine.report.report import UNLISTED, Finding, Report, TriedProblem
from attnmath._examine.second.calls import SecondCandidate, second_candidate
from attnmath._examine.second.naming import SecondFailure, named, unnamed
from attnmath._examine.second.pasted import smallest_second
from attnmath._examine.second.program import DOTS, SecondCase, fits, second_and_bounds, with_tangents
from attnmath._examine.second.scatter import judge_second, typical

ALONE = 4  # problems that are given with each tangent alone, too
FRESH = 12  # new problems that a name has to explain


class Second:
    """One function of second derivatives, and the problems that it was given."""

    def __init__(self, e: Examination, candidate: SecondCandidate) -> None:
        self.e, self.candidate, self.part = e, candidate, candidate.part
        self.means = replace(e.means, truncate=e.told.truncate)
        self.tried: list[TriedProblem] = []
        self.trials: list[SecondFailure] = []
        self.faults: dict[Fault, None] = {}

    def problems(self, seed: int) -> list[SecondCase]:
        """The problems of the first derivatives with tangents at random; some with each tangent alone."""
        rng = np.random.default_rng([seed, 5])
        e, dtype = self.e, self.candidate.dtype
        some = [c for c in cases(e.candidate.takes, dtype, seed, e.candidate.taken)
                if not ("empty row" in c.traits and self.means.empty == "nan")]
        found = [with_tangents(c, dtype, rng) for c in some]
        for name in DOTS:
            alike = (replace(c, name=f"{c.name}, {name.lower()} alone") for c in some[:ALONE])
            found += [with_tangents(c, dtype, rng, [name]) for c in alike]
        return [c for c in found if fits(c, self.means, dtype)]

    def give(self) -> None:
        """Let it solve all problems."""
        some = self.problems(self.e.seed)
        for i, case in enumerate(some):
            if self.candidate.worker.hung:
                return
            self.e.say(f"the {self.part}, problem {i + 1} of {len(some)}: {case.name}")
            tried, failure, faults = self.judged(case)
            self.tried.append(tried)
            self.trials += [failure] if failure else []
            self.faults |= dict.fromkeys(faults)

    def judged(self, given: Case) -> tuple[TriedProblem, SecondFailure | None, Sequence[Fault]]:
        """One problem: what came, beside what is right."""
        outcome = self.candidate.run(given, self.means)
        got: Any = outcome.answer
        if got is None:
            fault = outcome.refusal
            faults = (*outcome.faults, *[fault] * (fault.name not in ("raises", "options", "slow")))
            return TriedProblem(given.name, given.traits, {}, False, fault.sentence, self.part), None, faults
        case: Any = outcome.case
        dtype = self.candidate.dtype
        want, off = second_and_bounds(case, self.means, dtype, self.part, got.O is not None)
        verdicts = judge_second(got, want, off, typical(case, self.means, dtype, self.part))
        wrong = {x: v.wrong for x, v in verdicts.items() if not v.passed}
        ratios = {x: max(v.ratio, v.aggregate) for x, v in verdicts.items()}
        tried = TriedProblem(case.name, case.traits, ratios, not wrong, None, self.part)
        answers: dict[str, Any] = dict(got=got, want=want, off=off)
        return tried, SecondFailure(case, wrong=wrong, means=self.means, dtype=dtype, **answers), outcome.faults

    def ask(self, case: Case) -> SecondFailure | None:
        """One problem more, which is not counted."""
        return self.judged(case)[1]

    def first(self, case: Case) -> Any:
        """The candidate's own output and gradients, or None."""
        return self.candidate.first.run(case, self.means).answer

    def wrong_in(self, case: Case) -> dict[str, np.ndarray]:
        """What is wrong in its answer to a problem that is not counted."""
        return getattr(self.ask(case), "wrong", {})

    def contract(self) -> list[Finding]:
        """What was broken, each kind once."""
        wrong = any(f.wrong for f in self.trials)
        return broken_contract(self.faults, self.candidate.framework, wrong, f"the {self.part}: ")

    def refused(self) -> list[Finding]:
        """Too few problems judged; or the ones that it does not take, which is its right."""
        notes = [p.note for p in self.tried if not p.judged]
        if not notes:
            return []
        judged = len(self.tried) - len(notes)
        title = f"the {self.part} was judged in {judged} of {len(self.tried)} problems: {notes[0]}"
        few = judged < LEAST_JUDGED * len(self.tried)
        return [Finding("contract" if few else "convention", "too_few" if few else "refuses", title)]

    def diagnosed(self) -> list[Finding]:
        """A name, or what can be said without one; of a short format in float32, if it is wrong there too."""
        self.e.say(f"which mistake of the {self.part} it is")
        own, told = self, self.trials
        if self.candidate.dtype in ("bfloat16", "float16"):
            wide = Second(self.e, self.candidate.again("float32"))
            wide.give()
            own, told = (wide, wide.trials) if any(f.wrong for f in wide.trials) else (self, told)
        fresh = own.problems(self.e.seed + 1)
        fresh = sorted(fresh, key=lambda c: c.Q.size * c.K.shape[2])[: 3 * FRESH : 3]
        with np.errstate(all="ignore"):
            return named(told, fresh, own.ask, self.part) or [unnamed(told, own.ask, self.part, own.first)]


def with_second(e: Examination, report: Report, given: Mapping[str, Any], smallest: bool) -> Report:
    """The report with what was found of a jvp and of a double backward."""
    findings, problems, lines = [*report.findings], [*report.problems], report.smallest
    wrong, unknown = False, False
    for part, own in given.items():
        if why := _not_judged(e, report, part, own):
            kind = "contract" if report.right else "convention"
            findings.append(Finding(kind, "second", f"the {part} is not judged: {why}"))
            unknown = True
            continue
        second = Second(e, second_candidate(e.candidate, part, own))
        second.give()
        problems += second.tried
        broken, refused = second.contract(), second.refused()
        failed = [f for f in second.trials if f.wrong]
        findings += [*broken, *(second.diagnosed() if failed else []), *refused]
        wrong |= bool(broken or failed)
        unknown |= any(x.name == "too_few" for x in refused) or not any(p.judged for p in second.tried)
        if failed and smallest and lines is None:
            e.say("the smallest failing case")
            lines = smallest_second(second.candidate, second.means, second.wrong_in, failed)
    verdict = report.verdict
    if report.right:
        verdict = "wrong" if wrong else "not judged" if unknown else "right"
    found = tuple(dict.fromkeys(findings))
    return replace(report, verdict=verdict, findings=found, problems=tuple(problems), smallest=lines)


def _not_judged(e: Examination, report: Report, part: str, own: Any) -> str:
    """Why it cannot be judged: what it is the derivative of is not known to be right."""
    if report.verdict == UNLISTED or report.verdict == "not judged":
        return "the function itself was not judged as an attention of the list"
    if e.means.pieces is not None:
        return f"the second derivatives of attention with {e.means.pieces.words} are not judged"
    if e.reference is not None and not e.reference.plain:
        return "beside a reference second derivatives are not judged"
    off = {x for p in report.problems if p.failed for x, r in p.ratios.items() if not r <= report.constant}
    if "O" in off:
        return "the function itself is wrong in its output"
    if off and own is True and part == "double backward":
        return "the backward that it is the derivative of is wrong"
    return ""
