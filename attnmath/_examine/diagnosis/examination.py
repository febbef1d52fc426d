"""The stages of an examination: cheapest first, and no further than is needed for a clear answer."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Broken, Fault, failure_of
from attnmath._examine.diagnosis import own_output
from attnmath._examine.diagnosis.conventions import detect
from attnmath._examine.diagnosis.diagnosis import diagnose
from attnmath._examine.diagnosis.habits import broken_habits, hazards
from attnmath._examine.diagnosis.mechanisms import without_name
from attnmath._examine.diagnosis.probes import TRIED, read_scale
from attnmath._examine.diagnosis.smallest import smallest as smallest_case
from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.problems.bounds import judge_answer, right_and_bounds
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.exact_problems import exact_answer, exact_bounds, exact_cases
from attnmath._examine.problems.families import cases
from attnmath._examine.report.report import UNLISTED, Finding, Report, TriedProblem
from attnmath._words.tolerance import CONSTANT
from attnmath.rounding.formats import unit_roundoff

# Threads that add in whatever order they finish: the numbers may still be right.
HAZARDS = ("unordered_sums",)
REFUSALS = ("raises", "options")
# With these, the numbers say nothing about the formulas.
OTHER_NUMBERS = ("wrong_order", "wrong_number", "shape", "list", "type", "integers", "output_reused", "stale_kv",
                 "nondeterministic")


class JudgedCase(NamedTuple):
    """One problem, tried: what is told of it, what went wrong, and what the candidate must not do."""

    tried: TriedProblem
    failure: Failure | None
    faults: tuple[Fault, ...]


class Examination:
    """One candidate, what was found out about it, and the problems that it was given."""

    def __init__(self, candidate: Candidate, told: Conventions, seed: int, say: Callable[[str], None]) -> None:
        self.candidate, self.told, self.seed, self.say = candidate, told, seed, say
        self.means = told
        self.problems: list[TriedProblem] = []
        self.failures: list[Failure] = []
        self.trials: list[Failure] = []  # those that passed included
        self.faults: dict[Fault, None] = {}
        self.notes: list[Finding] = []
        self.said: set[str] = set()

    def report(self, smallest: bool) -> Report:
        """Stage after stage, until the answer is clear."""
        try:
            self.candidate.library  # noqa: B018, which library it is for may take a call to find out
        except (Broken, ImportError) as error:
            sentence = error.fault.sentence if isinstance(error, Broken) else str(error)
            return self._report("not judged", [Finding("contract", "framework", sentence)])
        self.say("its contract and its conventions")
        self.means, self.notes = detect(self.candidate, self.told)
        if self.dtype != "float64":  # a float64 program may have a float32 softmax; else short is short
            self.means = replace(self.means, inside=self.told.inside)
        if self.means.layout is None and any(x.kind == "contract" for x in self.notes):
            return self._report("not judged", [])
        self.faults |= dict.fromkeys(broken_habits(self.candidate, self.means))
        self.say("problems without rounding")
        self.give(exact_cases(self.takes, self.dtype, self.seed), exact=True)
        self.give(cases(self.takes, self.dtype, self.seed))
        if not any(p.passed or p.ratios for p in self.problems):
            return self._report("not judged", self._contract() + self._refusals())
        self._options_refused()
        found = self._diagnosed() if self.failures else []
        if any(x.kind == "unlisted" for x in found):
            self.notes = [x for x in self.notes if x.kind == "convention"]
            beside = [Finding("hazard", x.name, x.title) for x in self._contract()]
            return self._report(UNLISTED, found + self._refusals(), beside)
        wrong = bool(self._contract()) or any(p.ratios and not p.passed for p in self.problems)
        wrong = wrong or any(x.kind == "mistake" for x in self.notes)
        lines = None
        if smallest and self.failures:
            self.say("the smallest failing case")
            lines = smallest_case(self.candidate, self.means, self.takes, self.dtype, lambda x: not self.solves(x))
        self.say("hazards")
        beside = [] if wrong else hazards(self.candidate, self.means)
        beside += [Finding("hazard", f.name, f.sentence) for f in self.faults if f.name in HAZARDS]
        self.notes += self._not_judged()
        beside += self._unusual()
        found = self._contract() + found + self._refusals()
        return self._report("wrong" if wrong else "right", found, beside, lines)

    def failed(self, error: BaseException) -> Report:
        """That the examination itself failed, and where: no word on the candidate."""
        self.notes = []
        return self._report("not judged", [Finding("unnamed", "examination", failure_of(error))])

    def _not_judged(self) -> list[Finding]:
        """What was demanded, or could be expected, and was not looked at."""
        found = []
        if self.forward_only:
            title = "its output alone was judged: without backward= a NumPy function has no gradients"
            found.append(Finding("convention", "forward only", title))
        for word in ("mask", "causal", "groups"):
            if getattr(self.told, word) not in (None, "none") and word not in self.candidate.options:
                title = f"{word} was demanded, and not judged: options says no {word}"
                found.append(Finding("convention", "not_judged", title))
        return found

    def _unusual(self) -> list[Finding]:
        """A scale that nobody demanded, and that is not the usual one."""
        scale = self.means.scale
        if self.told.scale is not None or scale in (None, "1/sqrt(d_k)"):
            return []
        title = f"the scale is {scale}, where 1/sqrt(d_k) is usual"
        cure = "conventions={'scale': ...} says what is meant"
        return [Finding("hazard", "unusual_scale", title, cure=cure)]

    @property
    def dtype(self) -> str:
        """The format of the candidate's numbers."""
        return self.candidate.dtype

    @property
    def forward_only(self) -> bool:
        """Whether there are no gradients to judge."""
        return self.candidate.framework == "numpy" and self.candidate.backward is None

    @property
    def takes(self) -> set[str]:
        """What its problems may have."""
        return {"dropout" if x == "dropout_mask" else x for x in self.candidate.options} - {"seed"}

    def give(self, some: Sequence[Case], exact: bool = False) -> None:
        """Let the candidate solve problems, judge what comes, and keep count."""
        for i, case in enumerate(some):
            if self.candidate.worker.hung:
                return
            self.say(f"problem {i + 1} of {len(some)}: {case.name}")
            judged = self.judged(case, exact)
            self.problems.append(judged.tried)
            self.trials += [judged.failure] if judged.failure else []
            self.failures += [judged.failure] if judged.failure and judged.failure.wrong else []
            self.faults |= dict.fromkeys(judged.faults)

    def judged(self, case: Case, exact: bool = False) -> JudgedCase:
        """One problem: what came, beside what is right and how far off it may be."""
        taken = self.candidate.sizes
        if taken is not None and taken.square and case.sizes["n"] != case.sizes["m"]:
            note = "of the sizes that were tried it takes n = m alone"
            return JudgedCase(TriedProblem(case.name, case.traits, {}, False, note), None, ())
        outcome = self.candidate.run(case, self.means)
        if outcome.answer is None:
            fault = outcome.refusal
            faults = outcome.faults + ((fault,) if fault.name not in REFUSALS else ())
            return JudgedCase(TriedProblem(case.name, case.traits, {}, False, fault.sentence), None, faults)
        case, got = outcome.case, outcome.answer
        want, off = right_and_bounds(case, self.means, self.dtype)
        bits = exact_answer(case, self.means, self.dtype) if exact else None
        if bits is not None:  # None: with its conventions something has to be rounded
            verdicts = judge_answer(got, bits, exact_bounds(bits, off), None)
        else:
            verdicts = judge_answer(got, want, off, self.dtype)
        if self.forward_only:
            verdicts = {"O": verdicts["O"]}
        passed = all(v.passed for v in verdicts.values())
        came = {x: v.wrong for x, v in verdicts.items() if not v.passed and x in got.there}
        tried = TriedProblem(case.name, case.traits, {x: v.ratio for x, v in verdicts.items()}, passed)
        return JudgedCase(tried, Failure(case, got, want, off, came, self.means, self.dtype), outcome.faults)

    def _options_refused(self) -> None:
        """What it was said to take, and never takes, is a fault."""
        for word in sorted(self.takes if not {f.name for f in self.faults} & {*OTHER_NUMBERS} else ()):
            with_it = [p for p in self.problems if word in p.traits]
            if with_it and all(p.note and not p.ratios for p in with_it):
                note = with_it[0].note
                sentence = f"it was said to take {word}, and never takes it: {note}"
                self.faults[Fault("option_refused", sentence)] = None
                self.notes = [x for x in self.notes if x.title != note]
                self.said.add(str(note))

    def _diagnosed(self) -> list[Finding]:
        """Names; a short format is diagnosed in float32, if it is wrong there too."""
        self.say("which mistake it is")
        if any(f.name in OTHER_NUMBERS for f in self.faults):
            return [without_name(self.trials)]
        e = self
        if self.dtype in ("bfloat16", "float16"):
            wide = Examination(self.candidate.again("float32"), self.told, self.seed, self.say)
            wide.means = self.means
            wide.give(cases(self.takes, "float32", self.seed))
            e = wide if wide.failures else self
        with np.errstate(all="ignore"):
            found = self._named(e, e.means)
            told = self.told
            if any(x.name == "f_align" for x in found) and told.causal is None:  # nobody said which is meant
                other = "upper_left" if e.means.causal != "upper_left" else "lower_right"
                found = self._named(e, replace(e.means, causal=other)) or found
            elif any(x.kind != "mistake" for x in found) and e.means.empty not in (None, "zero"):
                # It was read with a mask that may be taken wrongly.
                again = self._named(e, replace(e.means, empty="zero"))
                found = again if again and all(x.kind == "mistake" for x in again) else found
        named = all(x.kind == "mistake" for x in found)
        demanded = told != Conventions(layout=told.layout)
        # It may be another function, if its gradients are those of O.
        far = [x.name for x in found] == ["O_scaled"] or len(found) > 1 and any("O" in f.wrong for f in e.failures)
        if named and (demanded or not far):
            return found
        another = self._another()
        return [another] if another and (another.kind == "unlisted" or not named) else found

    def _named(self, e: "Examination", means: Conventions) -> list[Finding]:
        """What is wrong with what e was given, by these conventions."""

        def ask(case: Case) -> Failure | None:
            f = e.judged(case).failure
            return f and f.under(means)

        more = cases(e.takes, e.dtype, self.seed + 1)
        trials = [f.under(means) for f in e.trials]
        return diagnose(trials, more, ask) if any(f.wrong for f in trials) else []

    def _another(self) -> Finding | None:
        """That it is a function that is not in the list, and whether its gradients are those of its output."""
        if {f.name for f in self._contract()} - {"not finite"} or any(x.kind == "mistake" for x in self.notes):
            return None
        if self.told.scale is not None:
            sizes, unscaled = self.candidate.sizes or TRIED[0], replace(self.means, scale=None)
            if read := read_scale(self.candidate, unscaled, sizes, np.random.default_rng(1))[0]:
                title = f"the scale is {read}, and {self.told.scale} is demanded"
                return Finding("mistake", "scale", title, cure="multiply Q K^T by the scale that is demanded")
        some, others = own_output.chosen(self.candidate, self.dtype, self.seed)
        other = own_output.reference(self.candidate, self.means, some)
        short = unit_roundoff(self.dtype) > unit_roundoff("float32")
        one = self.candidate.again("float32") if short and other else self.candidate
        count = own_output.other_function(one, self.means, cases((), one.dtype, self.seed))
        if count is None:
            return None
        where = f"its output is not that of attention in {count}"
        if self.forward_only or other is None:
            title = f"its gradients in {self.dtype}, which it takes alone, were not judged"
            title = "no gradient was judged" if self.forward_only else title
            return Finding("unlisted", "not compared", title, where)
        found = own_output.compared_gradients(self.candidate, other, self.means, some, others)
        if found is None:
            return None
        return own_output.own_gradients(found, where + own_output.known_multiple(one, self.means, some))

    def solves(self, case: Case) -> bool:
        """Whether it solves a problem that is not counted; also where it does not take it."""
        tried = self.judged(case).tried
        return tried.passed or not tried.ratios

    def _contract(self) -> list[Finding]:
        """Each fault once; numbers that are not finite are judged as numbers."""
        quiet = {*HAZARDS, *(["not finite"] if self.failures else [])}
        first = {f.name: f for f in reversed(self.faults) if f.name not in quiet}
        return [Finding("contract", f.name, f.sentence) for f in reversed(first.values())]

    def _refusals(self) -> list[Finding]:
        """Problems that it would not take, which is its right."""
        said: dict[str, list[str]] = {}
        contract = {f.sentence for f in self.faults} | self.said
        first: dict[str, str] = {}
        for p in self.problems:
            if p.note and p.note not in contract:  # one sentence for those that differ in numbers
                said.setdefault(first.setdefault(re.sub(r"\d+", "#", p.note), p.note), []).append(p.name)
        return [Finding("convention", "refuses", f"it does not take {len(names)} of the problems: {note}",
                        where=", ".join(names[:4]) + (", ..." if len(names) > 4 else ""))
                for note, names in said.items()]

    def _report(
        self, verdict: str, findings: Sequence[Finding],
        beside: Sequence[Finding] = (), lines: str | None = None,
    ) -> Report:
        known = self.candidate.framework is not None
        names = {x.name for x in findings if x.kind == "mistake"}
        findings = (*findings, *(x for x in self.notes if x.name not in names))
        if any(x.name == "dropout_ignored" for x in findings):  # its factor is then missing, too
            findings = tuple(x for x in findings if x.name != "f_drop_norescale")
        return Report(
            verdict, repr(self.candidate), self.candidate.framework, self.dtype if known else None,
            self.means, findings, tuple(beside), tuple(self.problems), lines,
            constant=CONSTANT, told=self.told,
        )
