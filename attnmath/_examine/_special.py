"""Mistakes that are no closed form of the problem: another dropout mask, a threshold, a format."""

from collections.abc import Sequence

import numpy as np

from attnmath._examine._case import Conventions
from attnmath._examine._failures import Failure
from attnmath._examine._mistake import DROPOUT
from attnmath._examine._place import place
from attnmath._examine._report import Finding
from attnmath._examine._steps import Steps, T
from attnmath._examine._yardstick import bounds

# Sums that are kept in the short format too are off by more than its bound, which keeps them wide.
SUMS = 8.0


def special(failures: Sequence[Failure], means: Conventions, dtype: str) -> list[Finding]:
    """What explains all failures and is none of the wrong closed forms; mostly nothing."""
    return replayed(failures, means, dtype) or flushed(failures, means, dtype)


def _where(f: Failure) -> str:
    return "; ".join(place(x, wrong, getattr(f.got, x)) for x, wrong in f.wrong.items())


def replayed(failures: Sequence[Failure], means: Conventions, dtype: str) -> list[Finding]:
    """Whether dV was made with another dropout mask: with n <= d_v it can be solved for."""
    if any(f.case.R is None for f in failures):
        return []
    for f in failures:
        s = Steps(f.case, means)
        d_v, n, top = f.case.V.shape[3], f.case.Q.shape[2], f.case.R.max()
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
                "mistake", "drop_not_replayed", "the way back draws a dropout mask of its own", _where(f),
                DROPOUT, "keep the mask, or the state of the generator, for the way back",
                "solved for from dV, the weights of the way back are P times 0 or 1/(1 - rho) at other places",
            )]  # fmt: skip
    return []


def flushed(failures: Sequence[Failure], means: Conventions, dtype: str) -> list[Finding]:
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
        "mistake", "flush_to_zero", f"numbers below about {lost:.2g} are set to zero", _where(failures[0]),
        None, "do not set small gradients to zero: with a mean loss all gradients are small",
        f"the largest that is lost is {lost:.3g}, the smallest that is kept {kept:.3g}",
    )]  # fmt: skip


def short(failures: Sequence[Failure], means: Conventions, dtype: str) -> list[Finding]:
    """Whether all is right but for the precision, which is that of a shorter format."""
    order = ["float64", "float32", "float16", "bfloat16"]
    for form in order[order.index(dtype) + 1:] if dtype in order else []:
        worst = []
        for f in failures:
            with np.errstate(all="ignore"):  # float16 overflows where the candidate's format does not
                off = bounds(f.case, means, form)
            for x in f.wrong:
                got, want = getattr(f.got, x), getattr(f.want, x)
                with np.errstate(all="ignore"):
                    r = np.where(got == want, 0.0, np.abs(got - want) / getattr(off, x))
                worst.append(np.nan_to_num(r, nan=np.inf).max())
        letters = {x for f in failures for x in f.wrong}
        if 1e-3 < max(worst) <= SUMS and ("O" in letters or {"dK", "dV"} <= letters):
            return [Finding(
                "mistake", "low_precision", f"its precision is that of a shorter format, {form} or alike",
                _where(failures[0]), None, f"keep sums and weights in {dtype}",
                f"all errors are within {max(worst):.2g} of what rounding to {form} allows",
            )]  # fmt: skip
    return []
