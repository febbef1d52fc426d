"""What is no closed form: dropout drawn anew, a threshold, a rounded place; and what has no name."""

from collections.abc import Sequence

import numpy as np

from attnmath._examine.diagnosis.coefficients import from_terms
from attnmath._examine.diagnosis.gate import Threshold, conditions
from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.mistakes.memory import roundings
from attnmath._examine.problems import steps
from attnmath._examine.problems.steps import DROPOUT, WAYS, StepChanges
from attnmath._examine.report.report import Finding
from attnmath._words.arrays import T
from attnmath.rounding.formats import unit_roundoff

# What can be said, without a name of the edit, of a candidate that fails in these problems alone.
PROPERTIES = {  # what all failing problems have one of
    ("large negative scores", "rows far apart"): ("lse_overflow", "large scores are not survived",
                              "subtract the row's maximum; a place outside of the tile has score -inf, not 0"),
    ("empty row",): ("empty_row_nan", "a row that may attend to nothing does not give zero, and pass back zero",
                  "divide by the sum of a row only where it is not 0"),
    ("poison",): ("hidden_leaks", "what a mask hides comes through", "a hidden weight is exactly 0"),
}
NOT_ALIKE = ("empty_row_other",
             "rows that may attend to nothing are not alike, or pass back what does not belong to their output",
             "the weights 1 for a sum and 1/m for a mean, forward and back; or 0")
REPRODUCED = 0.97  # of the entries: where a number lies between two of a format, either may come


def replayed(failures: Sequence[Failure]) -> list[Finding]:
    """Whether the way back has another dropout mask: with n <= d_v it can be solved for from dV."""
    if any(f.case.R is None for f in failures):
        return []
    solved = 0
    for f in failures:
        s = f.steps()
        d_v, n, top = f.case.V.shape[3], f.case.Q.shape[2], s.R.max()
        if "dV" not in f.wrong or n > d_v or s.owner.max() + 1 < len(s.owner):
            continue
        if np.linalg.cond(f.case.dO).max() > 1e4:
            continue
        PR = T(f.got.dV @ np.linalg.pinv(f.case.dO))  # dV = (P o R)^T dO
        ratio = np.where(s.P > 1e-3, PR / np.where(s.P > 1e-3, s.P, 1.0), 0.0)
        drawn = ratio > top / 2
        near = np.abs(ratio - np.where(drawn, top, 0.0)) < 1e-2 * top  # from P > 1e-3 and cond < 1e4, in float32
        own = np.array_equal(drawn, (s.R > 0) & (s.P > 1e-3))
        small = (s.P > 0) & (s.P <= 1e-3)  # there it cannot be seen, and changes little
        change: StepChanges = {"R_back": steps.bind(lambda s, R, drawn, top: drawn * top, drawn, top)}
        if not near.all() or own or not (small.any() or any(f.explained_by((*way, change)) for way in WAYS)):
            return []
        solved += not small.any()
    if not solved:
        return []
    return [Finding(
        "mistake", "drop_not_replayed", "the way back draws a dropout mask of its own", failures[0].where(),
        DROPOUT, "keep the mask, or the state of the generator, for the way back",
        "with the mask that dV has, P times 0 or 1/(1 - rho) at other places, all gradients are what came",
    )]


def flushed(trials: Sequence[Failure]) -> list[Finding]:
    """Whether small numbers are zero, all below one threshold and none above, in all problems."""
    lost, kept = 0.0, np.inf
    letters = {x for f in trials for x in f.wrong}
    for f in trials:
        for x in letters & f.got.there.keys():
            got, want, off = getattr(f.got, x), np.abs(getattr(f.want, x)), getattr(f.off, x)
            if x in f.wrong and got[f.wrong[x]].any():
                return []
            if x in f.wrong:
                lost = max(lost, (want - off)[f.wrong[x]].max())
            kept = min(kept, (want + off)[got != 0].min(initial=np.inf))
    if not 0 < lost <= kept < np.inf:
        return []
    first = next(f for f in trials if f.wrong)
    return [Finding(
        "mistake", "flush_to_zero", f"numbers below about {lost:.2g} are set to zero", first.where(),
        None, "do not set small gradients to zero: with a mean loss all gradients are small",
        f"the largest that is lost is {lost:.3g}, the smallest that is kept {kept:.3g}",
    )]


def rounded_somewhere(trials: Sequence[Failure]) -> list[Finding]:
    """Whether rounding one place to a shorter format gives the numbers that came, in all problems."""
    trials = [f for f in trials if f.case.traits.isdisjoint({"poison", "large negative scores", "empty row"})]
    found: dict[str, list[str]] = {}
    for place, form, change in roundings(trials[0].dtype, trials[0].means.ranks is not None) if trials else ():
        if all(_reproduced(f, change, unit_roundoff(form)) for f in trials):
            found.setdefault(form, []).append(place)
    if len(found) != 1 or len(places := next(iter(found.values()))) > 3:
        return []
    form, first = next(iter(found)), next(f for f in trials if f.wrong)
    title = f"its precision is that of a shorter format: {' or '.join(places)} rounded to {form}"
    cure = f"keep {places[0]} in {first.dtype}, or say that it is short"
    return [Finding("mistake", "low_precision", title, first.where(), None, cure,
                    f"rounding there alone gives the numbers that came, in {len(trials)} problems")]


def _reproduced(f: Failure, change: StepChanges, unit: float) -> bool:
    """Whether nearly all numbers come out, to the precision of the candidate's own format.

    The others may be the next number of the format, or nearer than the largest error.
    """
    s = f.steps((change,))
    for x in f.got.there:
        form, got, off = s.output(x), getattr(f.got, x), getattr(f.off, x)
        with np.errstate(all="ignore"):
            near = (np.abs(got - form) <= 4 * off) | np.isnan(off)
            most = np.abs(got - getattr(f.want, x)).max()
            most = np.maximum(most, 2.5 * unit * np.abs(form))
            if near.mean() < REPRODUCED or np.any(~near & ~(np.abs(got - form) < most)):
                return False
    return True


def sameness(f: Failure, again: Failure | None) -> bool:
    """Whether a repeated call gave the same numbers, up to rounding."""
    if again is None or again.got.there.keys() != f.got.there.keys():
        return False
    pairs = ((getattr(f.got, x), getattr(again.got, x), getattr(f.off, x)) for x in f.got.there)
    with np.errstate(all="ignore"):
        return all(bool(np.all((a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= off) | np.isnan(off)))
                   for a, b, off in pairs)


# ---- without a name -----------------------------------------------------------------------------


def without_name(trials: Sequence[Failure], why: str = "") -> Finding:
    """What is wrong, by how much, and when, as far as that is the same in all failing problems."""
    failures = sorted((f for f in trials if f.wrong), key=lambda f: (not f.generic, f.size))
    first = failures[0]
    when = _when(failures, [f for f in trials if not f.wrong])
    title = f"the mistake has no name here: {_property(failures)}, {when}"
    name, cure = "unnamed", None
    for traits, (known, words, advice) in PROPERTIES.items():
        if not any(f.case.traits.isdisjoint(traits) for f in failures):
            if known == "empty_row_nan" and first.means.empty in steps.EMPTY_ROWS:
                known, words, advice = NOT_ALIKE
            name, cure, title = known, advice, f"{words} ({_property(failures)}, {when})"
    evidence = f"in the problem '{first.case.name}' with {', '.join(sorted(first.case.traits))}"
    return Finding("unnamed", name, title, first.where(sorted(first.wrong)), cure=cure,
                   evidence="; ".join(filter(None, (evidence, why))))


def _property(failures: Sequence[Failure]) -> str:
    """What is the same in all failing problems."""
    letters = sorted({x for f in failures for x in f.wrong}, key="O dQ dK dV dB".split().index)
    who, be = ", ".join(letters), "are" if len(letters) > 1 else "is"
    wrong = [(getattr(f.got, x)[w], f.case) for f in failures for x, w in f.wrong.items()]
    if all(not x.any() for x, _ in wrong):
        return f"{who} {be} zero where it is wrong" if be == "is" else f"{who} are zero where they are wrong"
    if all(not np.isfinite(x).all() for x, _ in wrong):
        return f"{who} {be} not finite"
    generic = [f for f in failures if f.telling]
    said = {m[-1].title for f in generic for m in from_terms(f)[:1] if len(from_terms(f)) == 1}
    if len(said) == 1 and all(len(from_terms(f)) == 1 for f in generic):
        return said.pop()
    return f"{who} {be} wrong"


def _when(failures: Sequence[Failure], right: Sequence[Failure]) -> str:
    """The condition that failing problems have in common, or how many there are."""
    found = list(conditions([f.case for f in failures], [f.case for f in right])) if right else []
    if 0 < len(found) <= 3:
        words = [x.condition().words if isinstance(x, Threshold) else x.words for x in found]
        return f"only {' or '.join(words)}"
    total = len(failures) + len(right)
    return f"in {len(failures)} of {total} problems" if right else f"in all {total} problems"
