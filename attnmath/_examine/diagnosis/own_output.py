"""A function that is no attention of the list: are its gradients those of its own output?

Its output is compared with nothing. In float64, where it takes that, derivatives of the output are
taken by differences, along a random direction of each argument, and compared with the gradients;
in the other problems along one direction of all arguments together, which takes a third of the calls.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.diagnosis.gate import LENGTHS, SIZES
from attnmath._examine.diagnosis.trial import ARGUMENT
from attnmath._examine.problems.bounds import judge_answer, right_and_bounds
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.families import cases
from attnmath._examine.report.report import Finding
from attnmath.rounding.formats import unit_roundoff

# Of a difference, in units of the size of the argument; the shortest meet few of many kinks.
STEP_SIZES = 2.0 ** -np.arange(3.0, 28.0, 3.0)
PRECISE = 1e-6  # of a gradient's size: differences in float64 are better than that by far
ROUGH = 2e-4  # differences that are not known so well say nothing
MOST_ROUNDINGS = 2.0**12  # that a gradient of a shorter format may be off by, at most 1/8
COMPARED_OPTIONS = ("mask", "causal", "bias", "scale", "groups")
# Where the layout of memory differs alone, or there is one key, a function is not told apart.
UNTOLD = frozenset({"strided inputs", "strided dO", "broadcast dO", "empty row", "poison", "dropout"})
UNIFORM = 1e-9  # of a row's size: how near in float64 it is to the mean of all values, where it is that mean
MORE = "reference=, your own plain function, says whether the output is right; check_vjp judges any gradient"
Directions = dict[str, tuple[np.ndarray, float]]  # of each argument, and what it is multiplied by
Allowed = Sequence[tuple[Answer, float, float]]  # what came, how far its gradients may be off; least of all


class Differences(NamedTuple):
    """How far the gradients are from the derivatives of the output."""

    off: dict[str, float]  # of each gradient's size
    wrong: dict[str, float]  # those that differ by more than rounding
    dtype: str  # of the differences
    sizes: list[dict[str, int]]  # of the problems
    uniform: bool  # in some, rows are the mean of all values, and were left out


def reference(candidate: Candidate, means: Conventions, some: Sequence[Case]) -> Candidate | None:
    """The candidate in float64, else in float32: the first in which it answers."""
    for dtype in ("float64", "float32"):
        if unit_roundoff(dtype) <= unit_roundoff(candidate.dtype):
            other = candidate if candidate.dtype == dtype else candidate.again(dtype)
            if any(other.run(case, means, forward=True).answer is not None for case in some[:3]):
                return other
    return None


def plain_cases(some: Sequence[Case]) -> list[Case]:
    """Gaussian problems with nothing but queries, keys and values, several, and groups if all have them."""
    drawn = [c for c in some if "gaussian" in c.traits and c.sizes["m"] > 1]
    drawn = [c for c in drawn if not c.traits & ({*COMPARED_OPTIONS, *UNTOLD} - {"groups"})]
    return [c for c in drawn if "groups" not in c.traits] or drawn


def plain_answers(
    candidate: Candidate, means: Conventions, some: Sequence[Case]
) -> Iterator[tuple[Case, Answer, Answer, Answer]]:
    """Each plain problem that the candidate takes: what came, what is right, how far off it may be."""
    for case in plain_cases(some):
        outcome = candidate.run(case, means, forward=True)
        if outcome.answer is not None:
            yield case, outcome.answer, *right_and_bounds(outcome.case, means, candidate.dtype)


def other_function(candidate: Candidate, means: Conventions, some: Sequence[Case]) -> str | None:
    """In which plain problems the output is not that of attention, if it is another function.

    It is if that is so in half of them, or in all above some length, as with a window. What is right
    in most plain problems is attention with a mistake.
    """
    off: list[Case] = []
    right: list[Case] = []
    for case, got, want, bound in plain_answers(candidate, means, some):
        (right if judge_answer(got, want, bound, None)["O"].passed else off).append(case)
    count = f"{len(off)} of {len(off) + len(right)} problems without options"
    if off and 2 * len(off) >= len(off) + len(right):
        return count
    for what in ("m", "n", "queries or keys"):
        length = LENGTHS[what]
        longest = max((length(c.sizes) for c in right), default=0)
        if len(off) > 1 and longest < min(length(c.sizes) for c in off):
            return f"{count}, all with more than {longest} {SIZES.get(what, what)}"
    return None


def known_multiple(candidate: Candidate, means: Conventions, some: Sequence[Case]) -> str:
    """That the output is attention times a number, and which, if it is so in all plain problems."""
    factors = []
    for _, got, truth, off in plain_answers(candidate, means, some):
        c = float((got.O * truth.O).sum() / (truth.O**2).sum())
        scaled, allowed = (x._replace(O=abs(c) * x.O) for x in (truth, off))
        if not judge_answer(got._replace(O=np.sign(c) * got.O), scaled, allowed, None)["O"].passed:
            return ""
        factors.append(f"{c:.6g}")
    return f"; it is attention times {' or '.join(dict.fromkeys(factors))}" if factors else ""


def chosen(candidate: Candidate, dtype: str, seed: int) -> tuple[list[Case], list[Case]]:
    """The problems to compare in: three without options, and one with each that it takes; and others."""
    some = cases(set(candidate.options), dtype, seed, candidate.taken)
    some = [c for c in some if not c.traits & UNTOLD and c.scale != 0]
    some = [c for c in some if "gaussian" in c.traits]
    several = [c for c in some if min(c.sizes["n"], c.sizes["m"]) > 1]
    with_option = [next((c for c in several if word in c.traits), None) for word in COMPARED_OPTIONS]
    picked = [*plain_cases(several)[:3], *(c for c in with_option if c is not None)]
    others = [c for c in plain_cases(some) if c not in picked]
    return list(dict.fromkeys(picked)), others


def compared_gradients(
    candidate: Candidate, other: Candidate, means: Conventions, some: Sequence[Case], others: Sequence[Case]
) -> Differences | None:
    """The gradients beside differences of the output of `other`; None where these say nothing."""
    rng = np.random.default_rng(7)
    off: dict[str, float] = {}
    wrong: dict[str, float] = {}
    sizes, uniform = [], False
    most = min(MOST_ROUNDINGS * unit_roundoff(candidate.dtype), 1 / 8)
    for case in (*some, *others):
        answer = candidate.run(case, means).answer
        wide = answer if other is candidate else other.run(case, means).answer
        if answer is None or wide is None or not np.isfinite(wide.O).all():
            continue
        if other.dtype == "float64" and (rows := uniform_rows(case, wide.O)).any() and not rows.all():
            kept, uniform = replace(case, dO=np.where(rows[..., None], 0.0, case.dO)), True
            answer, wide = (x.run(kept, means).answer for x in (candidate, other))
            if answer is None or wide is None:
                continue
            others = [kept if x is case else x for x in others]
            case = kept
        directions = {}
        for letter, name in ARGUMENT.items():
            x = getattr(case, name)
            if x is not None and not (letter == "dB" and wide.dB is None):
                rms = float(np.sqrt(np.mean(x[np.isfinite(x)] ** 2))) or 1.0
                directions[letter] = rng.standard_normal(x.shape) * np.isfinite(x), rms
        whole = 8 * float(np.linalg.norm(case.dO) * np.linalg.norm(wide.O))
        answers = ((wide, PRECISE, unit_roundoff(other.dtype) * whole),
                   (answer, max(PRECISE, most), unit_roundoff(candidate.dtype) * whole))
        if case in others:
            agrees = _agrees(other, means, case, directions, answers)
            sizes += [case.sizes] if agrees is not None else []
            if agrees is not False:
                continue
        else:
            sizes.append(case.sizes)
        for letter, (direction, rms) in directions.items():
            least = 1e-12 * float(np.linalg.norm(case.dO) * np.linalg.norm(wide.O)) / rms  # as good as 0
            for found in _errors(other, means, case, {letter: (direction, 1.0)}, answers, rms, least):
                if found is None:
                    if case in others:
                        continue
                    return None
                error, size, beyond = found
                off[letter] = max(off.get(letter, 0.0), error / size)
                if beyond:
                    wrong[letter] = max(wrong.get(letter, 0.0), error / size)
    return Differences(off, wrong, other.dtype, sizes, uniform) if sizes else None


def uniform_rows(case: Case, O: np.ndarray) -> np.ndarray:
    """The rows of the output that are the mean of the values of all keys, of several.

    So are those that see nothing where a large number is added to each score: the number swallows the
    score, and its gradient with it in differences, while autograd passes on that of equal scores.
    """
    (b, H, n, _), m = O.shape, case.V.shape[2]
    found = np.zeros((b, H, n), bool)
    for heads in (case.owner(Conventions()), case.other_owner(Conventions())) if m > 1 else ():
        mean = case.V.mean(2, keepdims=True)[:, heads]
        found |= np.abs(O - mean).max(-1) <= UNIFORM * np.abs(case.V).max()
    return found


def _agrees(
    candidate: Candidate, means: Conventions, case: Case, directions: Directions, answers: Allowed
) -> bool | None:
    """Whether all gradients together are the derivative of the output; None where that is not known."""
    for found in _errors(candidate, means, case, directions, answers, 1.0, 0.0, STEP_SIZES[2:7]):
        if found is None or found[2]:
            return None if found is None else False
    return True


def _errors(
    candidate: Candidate, means: Conventions, case: Case, directions: Directions, answers: Allowed,
    unit: float, least: float, steps: np.ndarray = STEP_SIZES,
) -> Iterator[tuple[float, float, bool] | None]:
    """How far gradients are from the derivative along these directions, their size, and whether that is too far.

    For each answer; None where the derivative is not known. unit is that of the steps, least of the sizes.
    """
    moved = {ARGUMENT[letter]: weight * direction for letter, (direction, weight) in directions.items()}
    slopes = derivatives(_change_along(candidate, means, case, moved), unit, steps)
    for answer, allowed, floor in answers:
        given = {letter: x for letter, x in directions.items() if letter in answer.there}
        mine = sum(w * float((answer.there[letter] * x).sum()) for letter, (x, w) in given.items())
        size = max(sum(w * float(np.linalg.norm(answer.there[letter])) for letter, (_, w) in given.items()), least)
        nearest = nearest_derivative(mine, size, slopes)
        yield nearest and (nearest[0], size, nearest[0] > max(allowed * size, 8 * nearest[1], floor / unit))


def nearest_derivative(
    mine: float, size: float, slopes: Sequence[tuple[float, float]]
) -> tuple[float, float] | None:
    """How far the nearest derivative that is known well enough is, and how well it is known; None without one."""
    known = [(abs(mine - y), unsure) for y, unsure in slopes if unsure <= ROUGH * max(size, abs(y))]
    return min(known) if np.isfinite(size) and known else None


def _change_along(
    candidate: Candidate, means: Conventions, case: Case, directions: dict[str, np.ndarray]
) -> Callable[[float], float]:
    """h -> the change of <dO, O> between -h and h in a direction of the named arguments."""
    def change(h: float) -> float:
        moved = ({name: getattr(case, name) + t * x for name, x in directions.items()} for t in (h, -h))
        ends = (replace(case, **arguments) for arguments in moved)
        up, down = (candidate.run(end, means, forward=True).answer for end in ends)
        return float("nan") if up is None or down is None else float(((up.O - down.O) * case.dO).sum())

    return change


def derivatives(
    change: Callable[[float], float], size: float, steps: np.ndarray = STEP_SIZES
) -> list[tuple[float, float]]:
    """The derivative by central differences of the fourth order, for each step but the first.

    Beside each, how far it is from that of the longer step before; no step suits every function:
    a long one meets kinks, and a short one roundings: where these hide every change, it says nothing.
    """
    found = [(8 * change(h) - change(2 * h)) / (12 * h) for h in steps * size]
    constant = not any(found)
    return [(y, abs(y - x)) for x, y in zip(found, found[1:]) if np.isfinite(x + y) and (y or constant)]


def own_gradients(found: Differences, where: str) -> Finding:
    """What was compared, as a finding."""
    rest = "; rows that are the mean of all values, as where nothing is seen, are left out" * found.uniform
    each = ", ".join(f"{letter} {size:.1g}" for letter, size in found.off.items())
    most = ", ".join(f"{x} {max(size[x] for size in found.sizes)}" for x in ("n", "m", "d_k"))
    evidence = (f"in {len(found.sizes)} problems with up to {most}, differences of its output in {found.dtype}"
                f" are off from its gradients by, of their size: {each}{rest}")
    if not found.wrong:
        title = "its gradients are those of its own output"
        return Finding("unlisted", "own gradients", title, where, cure=MORE, evidence=evidence)
    much = ", ".join(f"{letter} differs by {size:.2g} of its size" for letter, size in found.wrong.items())
    title = f"it is no attention of the list, and its gradients are not those of its own output: {much}"
    return Finding("unnamed", "own_gradients", title, where, cure=MORE, evidence=evidence)
