"""Small problems, and what is read off the answers: a candidate's weights, and numbers that it chooses itself.

The weights are read with the unit vectors as values; with Q = 0 they are equal, so that what a
mask hides is seen at once. In hard attention one key has all the weight: O is made of rows of V.
The numbers are its scale, what an empty row gives, its precision.
"""

from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.problems.case import USUAL_SCALES, Case, Conventions, Rng, Sizes, scale_number
from attnmath._examine.problems.steps import Steps
from attnmath._examine.report.report import Finding
from attnmath.rounding.formats import FORMATS, nearest, unit_roundoff

# Tried in this order: kernels that want n = m, d_v = d_k, or whole tiles, are not wrong for that.
TRIED = (
    Sizes(),
    Sizes(d_v=16),
    Sizes(n=7, d_v=16),
    Sizes(b=3, H=2, n=64, m=64, d_k=64, d_v=64),
    Sizes(b=3, H=2, n=128, m=128, d_k=64, d_v=64),
)
Reading = tuple[str | None, list[Finding]]  # the convention that was found, and what was not
# Of what is hidden by a number, in place of -inf: exp of minus this is 0, also in float32 sums of short formats.
NO_WEIGHT = {"float64": 750.0, "float32": 110.0, "bfloat16": 110.0, "float16": 110.0}
ROUGH = 2.0**-5  # of numbers around 1: as near as any format has the output of the right function
SHORTER = {"float64": ("bfloat16", "float16", "float32"), "float32": ("bfloat16", "float16")}


def small_problem(sizes: Sizes, rng: Rng, G: int | None = None, **fields: Any) -> Case:
    """A problem with small whole numbers as values and gradients, unit vectors as keys, and Q = 0."""
    s, G = sizes, G or sizes.G or sizes.H
    arrays = dict(
        Q=np.zeros((s.b, s.H, s.n, s.d_k)),
        K=np.array(np.broadcast_to(np.eye(s.m, s.d_k), (s.b, G, s.m, s.d_k))),  # those after the first d_k score 0
        V=rng.integers(-99, 100, (s.b, G, s.m, s.d_v)).astype(float),
        dO=rng.integers(-9, 10, (s.b, s.H, s.n, s.d_v)).astype(float),
    )
    return Case(**(arrays | fields))


def hard(sizes: Sizes, rng: Rng, **fields: Any) -> Case:
    """Each query ranks the keys in an order of its own, and reads the first that it may."""
    s = sizes
    size = min(s.m, s.d_k)
    ranks = np.zeros((s.b, s.H, s.n, s.d_k))
    ranks[..., :size] = 1 + rng.permuted(np.broadcast_to(np.arange(size), (s.b, s.H, s.n, size)), axis=-1)
    gap = 2.0 ** np.floor(np.log2(60000 / size))  # scores that float16 can hold
    return small_problem(s, rng, Q=gap * ranks, **fields)


def gaussian_case(sizes: Sizes, rng: Rng, dtype: str) -> Case:
    """A gaussian problem in numbers of a format."""
    case = small_problem(sizes, rng)
    return case.with_arrays(lambda x: nearest(rng.standard_normal(x.shape), dtype), "Q", "K", "V", "dO")


def right_rows(O: np.ndarray, want: np.ndarray) -> np.ndarray:
    """The rows of hard attention that are right: to the nearest whole number."""
    return (np.abs(O - want) < 0.25).all(-1)


def read_weights(candidate: Any, case: Case, means: Conventions) -> np.ndarray | None:
    """The weights (b, H, n, m), read with unit vectors as values; None where it does not answer."""
    s = case.sizes
    found = np.zeros((s["b"], s["H"], s["n"], s["m"]))
    for start in range(0, s["m"], s["d_v"]):  # as many keys at a time as a value has entries
        stop = min(start + s["d_v"], s["m"])
        V = np.zeros(case.V.shape)
        V[..., np.arange(start, stop), np.arange(stop - start)] = 1
        outcome = candidate.run(replace(case, V=V), means, forward=True)
        if outcome.answer is None:
            return None
        found[..., start:stop] = outcome.answer.O[..., : stop - start]
    return found


def read_scale(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Reading:
    """gamma, from the odds of two keys whose scores are known, matched with the usual ones."""
    read = {d_k: _gamma(candidate, means, replace(sizes, d_k=d_k), rng) for d_k in (sizes.d_k, 2 * sizes.d_k)}
    found = {d_k: x for d_k, x in read.items() if x is not None}
    if not found:
        still = _stands_still(candidate, means, sizes)
        said = "the weights do not move with Q K^T"
        return None, [Finding("unnamed", "scale_unexplained", said)] if still else []
    with np.errstate(invalid="ignore"):
        logs = {name: max(abs(np.log(gamma / f(d_k, sizes.H))) for d_k, (gamma, _) in found.items())
                for name, f in USUAL_SCALES.items()}
    best = min(logs, key=logs.__getitem__)
    if logs[best] < 0.03:  # nearer than to any other; how exact it is, the problems tell
        return best, []
    (gamma, off), *others = sorted(found.values(), key=lambda x: x[1])
    if all(abs(gamma - x) <= off + more for x, more in others):  # the same for every d_k
        return _in_words(gamma, off, candidate.dtype), []
    if not all(gives_output(candidate, means, replace(sizes, d_k=d_k), str(x)) for d_k, (x, _) in found.items()):
        return None, []  # it is something else than the scale that moves the weights so
    said = ", ".join(f"{gamma:.6g} for d_k = {d_k}" for d_k, (gamma, _) in found.items())
    return None, [Finding("unnamed", "scale_unexplained", f"the scale is none of the usual ones: {said}")]


def gives_output(candidate: Candidate, means: Conventions, sizes: Sizes, scale: str) -> bool:
    """Whether the output is that of attention with this scale, in a problem of drawn numbers."""
    case = gaussian_case(sizes, np.random.default_rng(4), candidate.dtype)
    got = candidate.run(case, means, forward=True)
    want = Steps(got.case, means.told(scale=scale)).O
    return got.answer is not None and bool(np.abs(got.answer.O - want).max() < ROUGH)


def _stands_still(candidate: Candidate, means: Conventions, sizes: Sizes) -> bool:
    """Whether other queries and keys give the same output."""
    case, other = (gaussian_case(sizes, np.random.default_rng(seed), candidate.dtype) for seed in (4, 5))
    answers = (candidate.run(x, means, forward=True).answer for x in (case, replace(case, Q=other.Q, K=other.K)))
    one, two = (None if x is None else x.O for x in answers)
    return one is not None and two is not None and bool(np.abs(one - two).max() < ROUGH)


def _in_words(gamma: float, off: float, dtype: str) -> str:
    """A constant scale: a short decimal or 1/sqrt(d), if one is as near as it is known; else as it was read."""
    decimals = [f"{gamma:.{digits}g}" for digits in range(1, 7)]
    roots = [f"1/sqrt({round(gamma**-2)})"] if 0.04 < gamma <= 1 else []
    for most in (off, off + unit_roundoff(dtype) * abs(gamma)):  # a program may round it to its format
        for words in ([*decimals[:2], *roots], decimals[2:]):
            best = min(words, key=lambda word: abs(scale_number(word) - gamma))
            if abs(scale_number(best) - gamma) <= most:
                return best
    digits = int(np.ceil(-np.log10(off / abs(gamma)))) + 1
    return f"{gamma:.{min(digits, 17)}g}"


def _gamma(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> tuple[float, float] | None:
    """The scale of the scores, and how far it may be off, from many rows by least squares.

    Read from the log-odds of two keys, of which one has a score of gamma x and the other 0.
    """
    rough = _rough(candidate, means, sizes, rng)
    if rough is None:
        return None
    xs, ys = [], []
    for _ in range(8):
        case = small_problem(sizes, rng)
        x = nearest(rng.uniform(0.5, 3.0, case.Q.shape[:-1]) / abs(rough), candidate.dtype)
        case.Q[..., 0] = x
        W = read_weights(candidate, case, means)
        if W is None:
            return None
        with np.errstate(all="ignore"):
            odds = np.log(W[..., 0] / W[..., 1])
        seen = np.isfinite(odds) & np.isfinite(x)
        xs.append(x[seen])
        ys.append(odds[seen])
    x, y = np.concatenate(xs), np.concatenate(ys)
    if x.size < 8:
        return None
    gamma = float(x @ y / (x @ x))
    spread = float(np.sqrt(np.mean((y - gamma * x) ** 2) / (x @ x)))
    off = 4 * spread + max(unit_roundoff(candidate.dtype) / 16, 2.0**-50) * abs(gamma)
    return (gamma, off) if off < 0.1 * abs(gamma) else None


def _rough(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> float | None:
    """The scale to a digit or two, which says what scores to ask for."""
    x = 2.0 ** np.round(np.log2(sizes.d_k) / 2)
    for _ in range(6):
        case = small_problem(sizes, rng)
        case.Q[..., 0] = x
        W = read_weights(candidate, case, means)
        if W is None:
            return None
        with np.errstate(all="ignore"):
            odds = float(np.median(np.log(W[..., -1, 0] / W[..., -1, 1])))
        if not np.isfinite(odds) or abs(odds) > 4:
            x /= 8
        elif 0 < abs(odds) < 0.25:
            x *= 8
        else:
            return odds / x if odds else None
    return None


def read_fill(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Reading:
    """The number that is added to what a mask hides, if a score can be large enough to come through."""
    s, masked = sizes, "mask" in candidate.options and means.mask is not None
    if not (masked and not str(means.mask).startswith("add") or "causal" in candidate.options) or s.m > s.d_k:
        return None, []
    keep = np.broadcast_to(np.arange(s.m) < s.m - 1, (1, 1, 1, s.m)) if masked else None
    case = small_problem(s, rng, keep=keep, causal=not masked)
    case.V[...] = (np.arange(s.m) == s.m - 1)[:, None]  # O is the weight of the last key, which row 0 may not see

    equal = 1 / (1 + int(case.seen(means)[0, 0, 0].sum()))  # its weight where all of that row are equal

    def through(score: float) -> bool:
        case.Q[..., s.m - 1] = score / case.gamma(means)
        answer = candidate.run(case, means, forward=True).answer
        return answer is not None and bool((answer.O[:, :, 0] > equal).all())

    most = 2.0 ** FORMATS[candidate.dtype].high
    tops = 10.0 ** np.array([2.5, 4.5, 6.5, 10.5, 20.5, 31.5])
    low, high = 0.0, next((float(x) for x in tops if x < most and through(x)), 0.0)
    if not high or through(NO_WEIGHT[candidate.dtype]):  # what is hidden has a weight: no convention
        return None, []
    while high - low > 2.0**-30 * high:
        middle = (low + high) / 2 if low > high / 4 else max((low * high) ** 0.5, high / 1e4)
        low, high = (low, middle) if through(middle) else (middle, high)
    near = 2 * unit_roundoff(candidate.dtype)
    words = (f"{-high:.{digits}g}" for digits in range(1, 8))
    return next((x for x in words if abs(float(x) / -high - 1) < near), f"{-high:.9g}"), []


def read_empty(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Reading:
    """What a row gives whose keys are all hidden, and whether its gradient passes."""
    traits = frozenset({"empty row"})
    if "mask" in candidate.options:
        keep = np.ones((sizes.b, 1, sizes.n, sizes.m), bool)
        keep[:1] = False if "n" not in (means.mask_axes or "n") else keep[:1]
        keep[:, :, 0] &= "n" not in (means.mask_axes or "n")
        case = small_problem(sizes, rng, keep=keep, traits=traits)
    elif "causal" in candidate.options and means.causal == "lower_right" and not sizes.square:
        case = small_problem(replace(sizes, n=sizes.m, m=sizes.n), rng, causal=True, traits=traits)
    else:
        return None, []
    answer = candidate.run(case, means).answer or candidate.run(case, means, forward=True).answer
    if answer is None:
        return read_empty(candidate, means, replace(sizes, n=sizes.m), rng) if sizes.n < sizes.m else (None, [])
    hidden = np.s_[:1] if "n" not in (means.mask_axes or "n") else np.s_[:]  # one item, or a row of each
    row, mean = answer.O[hidden, :, 0], case.V[:, case.owner(means)].mean(2)[hidden]
    if np.isnan(row).any():
        return "nan", []
    if not row.any():
        return "zero", []
    for word, times in (("uniform", 1), ("sum", case.sizes["m"])):
        if np.abs(row - times * mean).max() < times:
            flows = answer.dQ is not None and answer.dQ[hidden, :, 0].any()
            return f"{word} with gradient" if flows else word, []
    title = "a row whose keys are all hidden gives neither zero, nor the mean or the sum of the values, nor NaN"
    return None, [Finding("unnamed", "empty_unexplained", title)]


def read_inside(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Reading:
    """A format shorter than the candidate's own, in which all its weights or outputs are."""
    if candidate.dtype not in SHORTER:
        return None, []
    case = gaussian_case(sizes, rng, candidate.dtype)
    W, answer = read_weights(candidate, case, means), candidate.run(case, means, forward=True).answer
    if W is None or answer is None:
        return None, []
    for form in SHORTER[candidate.dtype]:
        for name, x in (("the output", answer.O), ("the weights", W)):
            telling = ~np.isin(np.frexp(x)[0], (0.0, 0.5, -0.5))  # powers of two are in every format
            if np.isfinite(x).all() and telling.mean() > 0.5 and np.array_equal(nearest(x, form), x):
                if form == "float32":  # inside of float64 a convention; what is shorter is a mistake
                    return form, []
                title = f"{name} of a {candidate.dtype} program are {form} numbers, every one"
                cure = f"compute in {candidate.dtype}"
                return form, [Finding("mistake", "half_precision_inside", title, cure=cure)]
    error = np.abs(answer.O - Steps(case, means).O).max()
    if candidate.dtype == "float64" and 2**-44 < error < 2**-18:
        return "float32", []
    return None, []
