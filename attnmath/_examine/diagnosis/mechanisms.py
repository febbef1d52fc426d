"""Mistakes that are no closed form of the problem: of memory, of empty rows, of dropout, a threshold, a format.

Some are named by what has to be there for a candidate to fail: its problems' traits, one taken away at a time.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from attnmath._examine.diagnosis.coefficients import Failure
from attnmath._examine.diagnosis.diagnosis import representatives
from attnmath._examine.problems.bounds import bounds
from attnmath._examine.problems.case import INGREDIENTS, Case
from attnmath._examine.problems.steps import DROPOUT
from attnmath._examine.report.report import Finding, TriedProblem
from attnmath._words.arrays import T

# A trait that is a mechanism: failing with it, and only with it, is a name.
MECHANISMS = {
    "strided dO": ("dO_strides", "dO is read as if it were contiguous", "use dO's strides, or copy it first"),
    "broadcast dO": ("dO_strides", "dO is read as if it were contiguous", "use dO's strides, or copy it first"),
    "strided inputs": ("input_strides", "an input is read as if it were contiguous",
                       "use its strides, or copy it first"),
    "d_v != d_k": ("strides_of_K_for_V", "the width of V is taken to be that of K", "V and O have d_v columns"),
    "large negative scores": ("lse_overflow", "scores far below 0 are not survived",
                              "subtract the row's maximum; a place outside of the tile has score -inf, not 0"),
    "empty row": ("empty_row_nan", "a row that may attend to nothing does not give zero, and pass back zero",
                  "divide by the sum of a row only where it is not 0"),
    "poison": ("hidden_leaks", "what a mask hides comes through", "a hidden weight is exactly 0"),
}
STRIDES = ("dO_strides", "input_strides")  # what comes of these may look like a factor, or zeros
# Sums that are kept in the short format too are off by more than its bound, which keeps them wide.
SUMS = 8.0


def without_trait(case: Case, trait: str) -> Case | None:
    """The same problem with one ingredient less, where that can be taken away."""
    s, less = case.sizes, replace(case, traits=case.traits - {trait})
    if trait == "mask" and "poison" in less.traits:  # what it hides must stay hidden
        return None
    if trait in INGREDIENTS:
        return less.without(INGREDIENTS[trait])
    if trait in ("strided dO", "broadcast dO", "strided inputs"):
        return less
    if trait == "batch" and s["b"] > 1:
        return less.with_arrays(lambda x: x[:1])
    if trait == "groups" and s["H"] != s["G"]:
        return less.with_arrays(lambda x: x.repeat(s["H"] // s["G"], 1), "K", "V")
    if trait == "d_v != d_k":
        return less.with_arrays(lambda x: x[..., : min(s["d_k"], s["d_v"])], "Q", "K", "V", "dO")
    if trait == "n != m" and not any(x is not None and x.ndim >= 2 for x in (case.keep, case.bias, case.R)):
        return less.with_arrays(lambda x: x[:, :, : min(s["n"], s["m"])], "Q", "K", "V", "dO")
    return None


def vague(x: Finding) -> bool:
    """Whether a finding says what came, but not what was done."""
    return x.kind == "unnamed" or x.kind == "mistake" and (x.name == "zeros" or x.name.endswith("_scaled"))


def by_trait(
    found: Sequence[Finding], problems: Sequence[TriedProblem], failures: Sequence[Failure],
    solves: Callable[[Case], bool],
) -> list[Finding]:
    """The findings, with what has to be there for the unnamed ones, and a name where that is one."""
    failing = [p.traits for p in problems if not p.passed and p.ratios]
    passing = [p.traits for p in problems if p.passed]
    always = frozenset.intersection(*failing) - frozenset().union(*passing) if failing else frozenset()
    cures = []
    for f in representatives(sorted(failures, key=lambda f: f.size))[:2]:
        for trait in sorted(f.case.traits):
            other = without_trait(f.case, trait)
            if other is not None and solves(other):
                cures.append(trait)
    words = f"; not without {' and not without '.join(dict.fromkeys(cures))}" if cures else ""
    words += f"; only with {' and '.join(sorted(always))}" if always else ""
    named = _mechanism(failing, passing, cures)
    out = []
    for x in found:
        if named and (x.kind == "unnamed" or vague(x) and named[1][0] in STRIDES):
            traits, (name, title, cure) = named
            evidence = f"no problem fails without {' or '.join(traits)}{'' if not cures else words}"
            out.append(Finding("mistake", name, title, x.where, None, cure, evidence))
        else:
            out.append(replace(x, evidence=(x.evidence or "") + words) if x.kind == "unnamed" else x)
    return [x for i, x in enumerate(out) if x.kind != "mistake" or x.name not in {y.name for y in out[:i]}]


def _mechanism(
    failing: list[frozenset[str]], passing: list[frozenset[str]], cures: list[str]
) -> tuple[list[str], tuple[str, str, str]] | None:
    """The mechanism that all failures have; without it they are solved, or none with it is."""
    for meant in dict.fromkeys(MECHANISMS.values()):
        traits = {t for t, x in MECHANISMS.items() if x == meant}
        if all(traits & f for f in failing) and (traits & {*cures} or not any(traits & p for p in passing)):
            return sorted(traits & frozenset().union(*failing)), meant
    return None


def replayed(failures: Sequence[Failure]) -> list[Finding]:
    """Whether dV was made with another dropout mask: with n <= d_v it can be solved for."""
    if any(f.case.R is None for f in failures):
        return []
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
        if near.all() and drawn.any() and not np.array_equal(drawn, (s.R > 0) & (s.P > 1e-3)):
            return [Finding(
                "mistake", "drop_not_replayed", "the way back draws a dropout mask of its own", f.where(),
                DROPOUT, "keep the mask, or the state of the generator, for the way back",
                "solved for from dV, the weights of the way back are P times 0 or 1/(1 - rho) at other places",
            )]
    return []


def flushed(failures: Sequence[Failure]) -> list[Finding]:
    """Whether small numbers are zero, all below one threshold and none above."""
    lost, kept = 0.0, np.inf
    for f in failures:
        for x in f.wrong:
            got, want = getattr(f.got, x), np.abs(getattr(f.want, x))
            if got[f.wrong[x]].any():
                return []
            lost = max(lost, want[f.wrong[x]].max())
            kept = min(kept, want[got != 0].min(initial=np.inf))
    if not 0 < lost <= kept < np.inf:
        return []
    return [Finding(
        "mistake", "flush_to_zero", f"numbers below about {lost:.2g} are set to zero", failures[0].where(),
        None, "do not set small gradients to zero: with a mean loss all gradients are small",
        f"the largest that is lost is {lost:.3g}, the smallest that is kept {kept:.3g}",
    )]


def low_precision(failures: Sequence[Failure]) -> list[Finding]:
    """Whether all is right but for the precision, which is that of a shorter format."""
    order, dtype = ["float64", "float32", "float16", "bfloat16"], failures[0].dtype
    for form in order[order.index(dtype) + 1:] if dtype in order else []:
        worst = []
        for f in failures:
            with np.errstate(all="ignore"):  # float16 overflows where the candidate's format does not
                off = bounds(f.case, f.means, form)
            for x in f.wrong:
                got, want = getattr(f.got, x), getattr(f.want, x)
                with np.errstate(all="ignore"):
                    r = np.where(got == want, 0.0, np.abs(got - want) / getattr(off, x))
                worst.append(np.nan_to_num(r, nan=np.inf).max())
        letters = {x for f in failures for x in f.wrong}
        if 1e-3 < max(worst) <= SUMS and ("O" in letters or {"dK", "dV"} <= letters):
            return [Finding(
                "mistake", "low_precision", f"its precision is that of a shorter format, {form} or alike",
                failures[0].where(), None, f"keep sums and weights in {dtype}",
                f"all errors are within {max(worst):.2g} of what rounding to {form} allows",
            )]
    return []
