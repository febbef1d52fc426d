"""Hazards: what a right candidate may still do to those who use it, each with its smallest case."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attnmath._examine._candidate import Candidate
from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._paste import pasted
from attnmath._examine._probes import TRIED, Sizes, problem
from attnmath._examine._report import Finding
from attnmath._examine._steps import Steps
from attnmath._roundoff import FORMATS, nearest, unit_roundoff

BY_KEYS = "are too large, by a factor of the number of keys"
# The smallest first; a kernel may not take them, and then the sizes that it was seen to take.
TINY = Sizes(1, 1, 1, 2, 1, 1), Sizes(1, 1, 2, 2, 1, 1), Sizes(1, 1, 4, 4, 16, 16)


def hazards(candidate: Candidate, means: Conventions) -> list[Finding]:
    """What may go wrong beside the verdict."""
    found = (check(candidate, means) for check in (_finite_mask, _empty_row, _negative_scale))
    return [finding for finding in found if finding is not None]


def _cases(candidate: Candidate) -> Iterator[Sizes]:
    own = candidate.sizes or TRIED[0]
    yield from TINY
    yield replace(own, m=8, n=8 if own.square else own.n) if own.m == 7 else own


def _whole(sizes: Sizes, **fields: object) -> Case:
    """Q = 0; the keys are 1 and -1 in turn, the values 1 and 0."""
    case = problem(sizes, np.random.default_rng(0), **fields)
    sign = np.where(np.arange(sizes.m) % 2, -1.0, 1.0)[:, None]
    K, V, dO = (np.ones(x.shape) for x in (case.K, case.V, case.dO))
    return replace(case, K=K * sign, V=V * (1 + sign) / 2, dO=dO)


def _off(got: Answer, want: Answer, unit: float) -> dict[str, np.ndarray]:
    """What is wrong by much more than rounding, by its name."""
    wrong = {}
    for name in ("O", "dQ", "dK", "dV"):
        x, y = getattr(got, name), getattr(want, name)
        if x is not None:
            bad = ~(np.abs(x - y) <= 64 * unit * max(np.abs(y).max(), 1.0))
            if bad.any():
                wrong[name] = bad
    return wrong


def _finite_mask(candidate: Candidate, means: Conventions) -> Finding | None:
    """Rows whose scores are all one large negative number: the weights are equal, 1/m."""
    options = candidate.options
    if "bias" not in options and not ("mask" in options and means.mask == "add"):
        return None
    top = FORMATS[candidate.dtype]
    least = -float((2 - 2.0 ** (1 - top.digits)) * 2.0**top.high)
    candidate.options = {"bias": options.get("mask")} | options
    try:
        found = []
        for fill in (nearest(np.array(-1e9), candidate.dtype), np.array(least)):
            for sizes in _cases(candidate) if np.isfinite(fill) else ():
                taken, finding = _finite(candidate, means, sizes, float(fill))
                found += [finding] if finding else []
                if taken:
                    break
    finally:
        candidate.options = options
    return next((f for f in found if BY_KEYS in f.title), found[0] if found else None)


def _finite(
    candidate: Candidate, means: Conventions, sizes: Sizes, fill: float
) -> tuple[bool, Finding | None]:
    """Whether the candidate takes these sizes, and what is wrong."""

    def wrong(s: Sizes) -> tuple:
        bias = np.full((1, 1, s.n, s.m), fill)
        case = _whole(s, bias=bias, traits=frozenset({"constant bias", "empty row"}))
        got, want = candidate.run(case, means).answer, Steps(case, means).answer()
        return case, got, want, {} if got is None else _off(got, want, unit_roundoff(candidate.dtype))

    case, got, want, off = wrong(sizes)
    if got is None:
        return False, None
    if not off:
        return True, None
    name = "dV" if "dV" in off else next(iter(off))
    factors = {}
    for s in (sizes, *(replace(sizes, m=m, n=m if sizes.square else sizes.n) for m in (4, 8, 64))):
        _, x, y, _ = wrong(s)
        with np.errstate(all="ignore"):
            ratio = None if x is None else (getattr(x, name) / getattr(y, name)).flatten()
        if ratio is not None and np.ptp(ratio) < 0.01 * abs(ratio[0]):
            factors[s.m] = float(ratio[0])
    by_keys = len(factors) > 1 and all(abs(f / m - 1) < 0.05 for m, f in factors.items())
    size = BY_KEYS if by_keys else "are not right"
    title = f"in a row masked by {fill:.3g} instead of -inf, {' and '.join(off)} {size}"
    read = ", ".join(f"{m} keys: {f:.8g} times" for m, f in factors.items())
    cure = "mask with -inf, or True and False; in a kernel, keep a row's maximum and its sum apart"
    lines = pasted(candidate, case, means, want)
    return True, Finding("hazard", "finite_mask", title, where=read or None, cure=cure, evidence=lines)


def _empty_row(candidate: Candidate, means: Conventions) -> Finding | None:
    """A query that may attend to nothing, and how far its NaN goes."""
    if "mask" not in candidate.options or means.empty not in (None, "nan"):
        return None
    for sizes in (*(s for s in TINY if s.n > 1), *_cases(candidate)):
        keep = np.ones((1, 1, sizes.n, sizes.m), bool)
        keep[:, :, 0] = False
        case = _whole(sizes, keep=keep, traits=frozenset({"empty row"}))
        got = candidate.run(case, means).answer
        if got is None:
            continue
        bad = {name: np.isnan(x) for name, x in got._asdict().items() if x is not None and np.isnan(x).any()}
        if not bad:
            return None
        spread = [name for name, x in bad.items() if name in ("dK", "dV") or x[:, :, 1:].any()]
        title = f"a row that may attend to nothing gives NaN in {' and '.join(bad)}"
        where = "its own row alone" if not spread else f"also outside of its row: {' and '.join(spread)}"
        want = Steps(case, means.told(empty="zero")).answer()
        lines = pasted(candidate, case, means, want)
        cure = "0 where the sum of a row's exponentials is 0, before it is divided by"
        return Finding("hazard", "empty_row_nan", title, where=where, cure=cure, evidence=lines)
    return None


def _negative_scale(candidate: Candidate, means: Conventions) -> Finding | None:
    """A negative scale with a mask, which -inf must be added to after the scale."""
    if "scale" not in candidate.options:
        return None
    for word in ("causal", "mask"):
        if word not in candidate.options:
            continue
        for sizes in (*TINY[1:], replace(candidate.sizes or TRIED[0], n=(candidate.sizes or TRIED[0]).m)):
            keep = np.tri(sizes.n, sizes.m, dtype=bool)[None, None]
            masked = {"causal": True} if word == "causal" else {"keep": keep}
            case = _whole(sizes, scale=-0.5, **masked)
            got, want = candidate.run(case, means).answer, Steps(case, means).answer()
            if got is None:
                continue
            if off := _off(got, want, unit_roundoff(candidate.dtype)):
                kind = "NaN" if any(np.isnan(getattr(got, name)).any() for name in off) else "wrong"
                name = "causal masking" if word == "causal" else "a mask"
                title = f"with a negative scale and {name}, {' and '.join(off)} are {kind}"
                cure = "mask after the scores are scaled"
                lines = pasted(candidate, case, means, want)
                return Finding("hazard", "negative_scale", title, cure=cure, evidence=lines)
            break
    return None
