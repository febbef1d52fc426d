"""The stages of an examination: cheapest first, and no further than is needed for a clear answer."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Broken, Fault, failure_of
from attnmath._examine.diagnosis import extent
from attnmath._examine.diagnosis.conventions import detect, mask_beside_pieces, readings
from attnmath._examine.diagnosis.diagnosis import GENERATED_NAMES, diagnose
from attnmath._examine.diagnosis.doubts import fewer_axes
from attnmath._examine.diagnosis.habits import broken_habits, hazards
from attnmath._examine.diagnosis.mechanisms import without_name
from attnmath._examine.diagnosis.reference import Reference, ReferenceFunctions, unlike_reference
from attnmath._examine.diagnosis.repeated import unrepeated
from attnmath._examine.diagnosis.smallest import smallest as smallest_case
from attnmath._examine.diagnosis.stored_sums import judged_as_stored
from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.diagnosis.unlisted import unlisted
from attnmath._examine.problems.bounds import judge_answer, right_and_bounds
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.exact_problems import exact_answer, exact_bounds, exact_cases
from attnmath._examine.problems.families import cases
from attnmath._examine.report.report import UNLISTED, Finding, Report, TriedProblem
from attnmath._words.tolerance import CONSTANT

AGAIN = 6  # problems that failed, the smallest, are given again before anything is named
REFUSALS = ("raises", "options", "slow")
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

    def __init__(self, candidate: Candidate, told: Conventions, seed: int, say: Callable[[str], None],
                 without: frozenset[str] = frozenset(), reference: ReferenceFunctions | None = None) -> None:
        self.candidate, self.told, self.seed, self.say = candidate, told, seed, say
        self.without = without | ({"dB"} if without & {"bias", candidate.options.get("bias")} else set())
        self.given = reference
        self.reference: Reference | None = None  # made when the candidate's library is known
        self.means = self.asked = told  # asked: with what a reference means
        self.problems: list[TriedProblem] = []
        self.failures: list[Failure] = []
        self.trials: list[Failure] = []  # those that passed included
        self.faults: dict[Fault, None] = {}
        self.notes: list[Finding] = []

    def report(self, smallest: bool) -> Report:
        """Stage after stage, until the answer is clear."""
        try:
            self.candidate.library  # noqa: B018, which library it is for may take a call to find out
        except (Broken, ImportError) as error:
            sentence = error.fault.sentence if isinstance(error, Broken) else str(error)
            return self._report("not judged", [Finding("contract", "framework", sentence)])
        self.say("its contract and its conventions")
        if self.given:
            self.reference = Reference(self.candidate, self.given)
            self.asked = self.reference.conventions(self.told)
        self.means, self.notes = detect(self.candidate, self.asked)
        if self.given:  # what the candidate means where the reference does not say is told by the problems
            self.notes = [x for x in self.notes if x.kind in ("contract", "convention")]
        if self.dtype != "float64":  # a float64 program may have a float32 softmax; else short is short
            self.means = replace(self.means, inside=self.told.inside)
        if self.candidate.sizes is not None:
            self.notes.insert(0, Finding("convention", "takes", self.candidate.words))
        if self.means.layout is None and any(x.kind == "contract" for x in self.notes):
            return self._report("not judged", [])
        self.faults |= dict.fromkeys(extent.meant(broken_habits(self.candidate, self.means), self.without))
        self.say("problems without rounding")
        self.give(exact=True)
        self.give()
        if not any(p.passed or p.ratios for p in self.problems):
            self.faults |= dict.fromkeys(filter(None, [self.candidate.worker.hung]))
            found = self._contract() or extent.never_taken(self.problems, self.candidate)
            return self._report("not judged", found + extent.refusals(self.problems, self.faults))
        self._again()
        found = self._diagnosed() if self.failures else fewer_axes(
            self.candidate, self.means, self.asked, self.without)
        if self.reference:
            self.notes.append(self.reference.finding())
            self.means = self.reference.shown(self.means)
        if any(x.kind == "unlisted" for x in found):
            return self._own_function(found)
        wrong = bool(self._contract()) or any(x.kind == "mistake" for x in (*self.notes, *found))
        wrong = wrong or any(p.ratios and not p.passed for p in self.problems)
        lines, plain = None, self.means.pieces is None and (self.reference is None or self.reference.plain)
        self.candidate.reference = None if self.reference is None or plain else self.reference.wide
        if smallest and self.failures:
            self.say("the smallest failing case")
            failed = [(f.case, f.wrong) for f in self.failures]
            lines = smallest_case(self.candidate, self.means, self.dtype, self.wrong_in, failed)
        self.say("hazards")
        beside = [] if wrong or not plain else hazards(self.candidate, self.means)
        beside += [x for x in self.notes if x.kind == "hazard"]
        self.notes = [x for x in self.notes if x.kind != "hazard"]
        said = [f for f in self.faults if extent.harmless(f, self.candidate.framework)]
        beside += [Finding("hazard", *x) for x in (*said, *self.candidate.kept.sentences)]
        self.notes += extent.not_judged(self.candidate, self.told, self.without)
        beside += [] if self.reference else extent.unusual(self.means, self.told, self.problems)
        found = self._contract() + found + extent.refusals(self.problems, self.faults)
        if not wrong and (little := extent.too_little(self.problems, self.candidate)):
            return self._report("not judged", [*little, *found], beside)
        return self._report("wrong" if wrong else "right", found, beside, lines)

    def _again(self) -> None:
        """Some of what failed, given again: is it answered as before?"""
        some = sorted(self.failures, key=lambda f: f.size)[:AGAIN]
        if not any(f.name in (*OTHER_NUMBERS, "accumulates_into_grad") for f in self.faults):
            self.faults |= dict.fromkeys(unrepeated(self.candidate, self.means, [(f.case, f.got) for f in some]))

    def _with_pieces(self, means: Conventions) -> list[Finding]:
        """What is found beside a head with these pieces; it is another function where its output is not theirs."""
        before = self.means, self.notes, self.problems, self.failures, self.trials
        self.notes = [x for x in self.notes if x.kind in ("contract", "convention")]
        self.means = mask_beside_pieces(self.candidate, means)
        self.problems, self.failures, self.trials = [], [], []
        self.give()
        if not any("O" in f.wrong for f in self.failures):
            return self._diagnosed() if self.failures else []
        self.means, self.notes, self.problems, self.failures, self.trials = before
        found = self._another(pieces=False)
        return [found] if isinstance(found, Finding) else []

    def _own_function(self, found: Sequence[Finding]) -> Report:
        """The report on a function that is none of the list."""
        self.notes = [x for x in self.notes if x.kind == "convention"]
        self.notes += extent.not_judged(self.candidate, self.told, self.without)
        beside = [Finding("hazard", x.name, x.title) for x in self._contract()]
        little = extent.never_taken(self.problems, self.candidate)
        found = [*little, *found, *extent.refusals(self.problems, self.faults)]
        return self._report("not judged" if little else UNLISTED, found, beside)

    def failed(self, error: BaseException) -> Report:
        """That the examination itself failed, and where: no word on the candidate."""
        self.notes = []
        return self._report("not judged", [Finding("unnamed", "examination", failure_of(error))])

    @property
    def dtype(self) -> str:
        """That of the candidate."""
        return self.candidate.dtype

    def cases(self, seed: int, exact: bool = False) -> Sequence[Case]:
        """Problems for what it takes, always the same."""
        return (exact_cases if exact else cases)(self.candidate.takes, self.dtype, seed, self.candidate.taken)

    def give(self, exact: bool = False) -> None:
        """Let the candidate solve problems, judge what comes, and keep count."""
        some = self.cases(self.seed, exact)
        for i, case in enumerate(some):
            if self.candidate.worker.hung:
                return
            self.say(f"problem {i + 1} of {len(some)}: {case.name}")
            judged = self.judged(case, exact)
            self.problems.append(judged.tried)
            self.trials += [judged.failure] if judged.failure else []
            self.failures += [judged.failure] if judged.failure and judged.failure.wrong else []
            self.faults |= dict.fromkeys(judged.faults)

    def judged(self, given: Case, exact: bool = False) -> JudgedCase:
        """One problem: what came, beside what is right and how far off it may be."""
        outcome = self.candidate.run(given, self.means)
        if outcome.answer is None:
            fault = outcome.refusal
            faults = tuple(extent.meant([*outcome.faults, *[fault] * (fault.name not in REFUSALS)], self.without))
            return JudgedCase(TriedProblem(given.name, given.traits, {}, False, fault.sentence), None, faults)
        got, wanted = outcome.answer, self._wanted(given, outcome.case)
        if isinstance(wanted, Fault):
            return JudgedCase(TriedProblem(given.name, given.traits, {}, False, wanted.sentence), None, ())
        case, want, off, plain = wanted
        got = got._replace(**{x: getattr(want, x) for x in self.without & want.there.keys()})
        bits = exact_answer(case, self.means, self.dtype) if exact and plain else None
        if bits is not None:  # None: with its conventions something has to be rounded
            bits = bits.each(lambda x, _: x, want)
            verdicts = judge_answer(got, bits, exact_bounds(bits, off, case, self.means), None)
        else:
            verdicts = judge_answer(got, want, off, self.dtype)
        verdicts = {"O": verdicts["O"]} if self.candidate.forward_only else verdicts
        verdicts, stored = judged_as_stored(verdicts, got, case, self.means, off, self.dtype)
        broken = [*outcome.faults, *stored]
        wrong = {x for x, v in verdicts.items() if not v.passed}
        if lost := extent.small_lost(case, got, want, wrong, self.dtype):
            broken.append(lost)
            verdicts = {x: v for x, v in verdicts.items() if v.passed}
        passed = all(v.passed for v in verdicts.values())
        came = {x: v.wrong for x, v in verdicts.items() if not v.passed and x in got.there}
        ratios = {x: max(v.ratio, v.aggregate) for x, v in verdicts.items() if x not in self.without}
        tried = TriedProblem(case.name, case.traits, ratios, passed)
        failure = Failure(case, got, want, off, came, self.means, self.dtype)
        return JudgedCase(tried, failure, tuple(extent.meant(broken, self.without)))

    def _wanted(self, given: Case, case: Case) -> tuple[Case, Answer, Answer, bool] | Fault:
        """The problem, what is right, how far off it may be, and whether that is attention's."""
        if self.reference:
            return self.reference.wanted(given, self.means, self.dtype)
        return case, *right_and_bounds(case, self.means, self.dtype), True

    def _diagnosed(self) -> list[Finding]:
        """Names; a short format is diagnosed in float32, if it is wrong there too."""
        self.say("which mistake it is")
        if any(f.name in OTHER_NUMBERS for f in self.faults):
            return [without_name(self.trials)]
        if self.reference and not self.reference.plain:
            return [unlike_reference(self.failures, sum(p.judged for p in self.problems), repr(self.reference))]
        e = self
        if self.dtype in ("bfloat16", "float16"):
            wide = Examination(self.candidate.again("float32"), self.told, self.seed, self.say, self.without)
            wide.means = self.means
            wide.give()
            e = wide if wide.failures else self
        found, named = self._explained(e, True)
        demanded = self.asked != Conventions(layout=self.asked.layout)
        far = len(found) > 1 and any("O" in f.wrong for f in e.failures)
        far |= {x.name for x in found} <= {"O_scaled", *GENERATED_NAMES}
        if named and (demanded or not far):  # else it may be another function
            return found
        another = self._another()
        if isinstance(another, Conventions):
            return self._with_pieces(another)
        if another and another.kind == "unlisted":
            in_which = f"; it is attention in which {found[0].title}" if named and len(found) == 1 else ""
            return [replace(another, title=another.title + in_which)]
        found, named = (found, True) if named else self._explained(e, False)
        return found if named or not another else [another]

    def _explained(self, e: "Examination", alone: bool) -> tuple[list[Finding], bool]:
        """By the edits of one reading of the conventions, or at least by one; whether all of it has a name."""
        with np.errstate(all="ignore"):
            found = list[Finding]()
            for means, one in readings(self.asked, e.means, [f.case for f in e.failures]):
                if alone or not one:
                    again = self._named(e, means, alone)
                    found = again if _named_all(again) else found or again
                if _named_all(found):
                    break
            if any(x.name == "f_align" for x in found) and self.asked.causal is None:  # nobody said which is meant
                other = "upper_left" if e.means.causal != "upper_left" else "lower_right"
                found = self._named(e, replace(e.means, causal=other), alone) or found
        return found, _named_all(found)

    def _named(self, e: "Examination", means: Conventions, alone: bool = False) -> list[Finding]:
        """What is wrong with what e was given, by these conventions."""

        def ask(case: Case) -> Failure | None:
            f = e.judged(case).failure if e.candidate.taken.fits(case) else None  # what was cut may not
            return f and f.under(means)

        trials = [f.under(means) for f in e.trials]
        return diagnose(trials, e.cases(self.seed + 1), ask, alone) if any(f.wrong for f in trials) else []

    def _another(self, pieces: bool = True) -> Conventions | Finding | None:
        """What it means, if it has pieces; else that it is not in the list, and of what its gradients are."""
        if {f.name for f in self._contract()} - {"not finite"} or any(x.kind == "mistake" for x in self.notes):
            return None
        if another := extent.other_scale(self.candidate, self.asked.scale, self.means):
            return another
        pieced = self.given or self.means.pieces
        return None if pieced else unlisted(self.candidate, self.means, self.seed, self.trials, pieces)

    def wrong_in(self, case: Case) -> dict[str, np.ndarray]:
        """What is wrong in its answer to a problem that is not counted: for each output, which entries."""
        return getattr(self.judged(case).failure, "wrong", {})

    def _contract(self) -> list[Finding]:
        return extent.broken_contract(self.faults, self.candidate.framework, bool(self.failures))

    def _report(self, verdict: str, findings: Sequence[Finding], beside: Sequence[Finding] = (),
                lines: str | None = None) -> Report:
        names = {x.name for x in findings if x.kind == "mistake"}  # which explain what was read, too
        notes = [x for x in self.notes if x.name not in names and not (names and x.kind == "unnamed")]
        findings = extent.each_once((*findings, *notes))
        return Report(
            verdict, repr(self.candidate), self.candidate.framework, self.candidate.framework and self.dtype,
            self.means, findings, tuple(beside), tuple(self.problems), lines, constant=CONSTANT, told=self.told)


def _named_all(found: Sequence[Finding]) -> bool:
    return bool(found) and all(x.kind == "mistake" for x in found)
