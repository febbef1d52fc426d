"""What multiples of the separate terms of a problem say: a scale, a row term, a group."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.mistakes.wrong_masks import weighted_groups
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.steps import ATTENTION, BACK, GROUPS, Mistake, StepChanges, Steps, grouped
from attnmath._words.arrays import T, sum_to


class Fit(NamedTuple):
    """Coefficients of the terms with dP and of those with D, one for each member of a group."""

    dP: np.ndarray
    D: np.ndarray | None
    off: float  # how far a coefficient may be off

    def all(self, c: float) -> bool:
        """Whether every coefficient is c."""
        both = self.dP if self.D is None else np.concatenate([self.dP, self.D])
        return self.near(both, c)

    def near(self, x: float | np.ndarray, c: float | np.ndarray) -> bool:
        """Whether coefficients are c, up to rounding."""
        return bool(np.all(np.abs(x - c) <= self.off * (1 + np.abs(c))))


def separate_terms(case: Case, means: Conventions) -> dict[str, tuple[list[np.ndarray], list[np.ndarray]]]:
    """For each output the terms with dP, and those with D with their sign."""
    s = Steps(case, means)
    through, row = s.P * s.dP, -s.P * s.D
    G = s.K.shape[1]
    place = np.array([np.sum(s.owner[:h] == g) for h, g in enumerate(s.owner)])  # in its group

    def members(x: np.ndarray) -> list[np.ndarray]:
        return [grouped(x * (place == j)[:, None, None], s.owner, G) for j in range(place.max() + 1)]

    found = {
        "O": ([s.O], []),
        "dQ": ([s.gamma * through @ s.keys], [s.gamma * row @ s.keys]),
        "dK": (members(s.gamma * T(through) @ s.Q), members(s.gamma * T(row) @ s.Q)),
        "dV": (members(T(s.P * s.R) @ s.dO), []),
    }
    if case.bias is not None:
        found["dB"] = ([sum_to(through, case.bias)], [sum_to(row, case.bias)])
    return found


def fitted_terms(case: Case, means: Conventions, got: Answer, off: Answer) -> Iterator[tuple[str, Fit]]:
    """For each output that is a sum of multiples of its terms, up to rounding: the multiples."""
    for letter, (dP, D) in separate_terms(case, means).items():
        x, bound = getattr(got, letter), getattr(off, letter)
        if x is None or not np.isfinite(x).all():
            continue
        every = np.stack([t.ravel() for t in (*dP, *D)], 1)
        size = np.abs(every).sum(1)
        least = bound.ravel() + 1e-15 * size
        if not (np.isfinite(every).all() and np.isfinite(least).all()):
            continue
        weigh = 1 / np.where(least > 0, least, max(least.max(initial=0.0), 1e-300))
        c, _, rank, sizes = np.linalg.lstsq(every * weigh[:, None], x.ravel() * weigh, rcond=None)
        if rank < every.shape[1] or every.shape[0] < 2 * every.shape[1]:
            continue
        error = np.abs(x.ravel() - every @ c)
        if np.all(error <= 2 * (1 + np.abs(c).max()) * least):
            n = len(dP)
            yield letter, Fit(c[:n], c[n:] if D else None, 4 / sizes.min())


# ---- what the coefficients say: an edit, a letter or a row term times a number ------------------

Number = Callable[[Case, Conventions], float]
FACTORS: dict[str, Number] = {
    "gamma": lambda c, means: c.gamma(means),
    "1/gamma": lambda c, means: 1 / c.gamma(means) if c.gamma(means) else np.nan,
    "ln 2": lambda c, means: np.log(2),
    "log2(e)": lambda c, means: 1 / np.log(2),
    "1/(H/G)": lambda c, means: c.sizes["G"] / c.sizes["H"],
    "H/G": lambda c, means: c.sizes["H"] / c.sizes["G"],
    "1/b": lambda c, means: 1 / c.sizes["b"],
    "b": lambda c, means: c.sizes["b"],
    "1/m": lambda c, means: 1 / c.sizes["m"],
    "1/n": lambda c, means: 1 / c.sizes["n"],
    "n/m": lambda c, means: c.sizes["n"] / c.sizes["m"],
    "m/n": lambda c, means: c.sizes["m"] / c.sizes["n"],
    "1/H": lambda c, means: 1 / c.sizes["H"],
    "sqrt(gamma)": lambda c, means: abs(c.gamma(means)) ** 0.5,
    "1/sqrt(gamma)": lambda c, means: abs(c.gamma(means)) ** -0.5 if c.gamma(means) else np.nan,
    "sqrt(d_k/d_v)": lambda c, means: (c.sizes["d_k"] / c.sizes["d_v"]) ** 0.5,
    "sqrt(d_k)": lambda c, means: c.sizes["d_k"] ** 0.5,
    "1/sqrt(d_k)": lambda c, means: c.sizes["d_k"] ** -0.5,
}
LETTER_NAMES = {
    ("dQ", "1/gamma"): "dQ_noscale", ("dK", "1/gamma"): "dK_noscale", ("dQ", "gamma"): "dQ_scale2",
    ("dK", "gamma"): "dK_scale2", ("dK", "1/(H/G)"): "gqa_mean", ("dV", "1/(H/G)"): "gqa_mean",
    ("dB", "1/b"): "dB_mean", ("dB", "gamma"): "dB_scaled",
}
ROW_TERM = {  # name and title by the factor of D
    "0": ("D_missing", "the row term D is missing: dA = P o dP"),
    "-1": ("D_sign", "the row term D has the wrong sign: dA = P o (dP + D)"),
    "0.5": ("D_detached_half", "the row term D is halved"),
    "1/m": ("D_mean", "the row term D is a mean over the keys instead of a sum"),
}


WITHOUT_SCALE: StepChanges = {
    "dQ": lambda s, x: s.dA @ s.keys_back,
    "dK": lambda s, x: grouped(T(s.dA) @ s.Q, s.owner_back, s.K.shape[1]),
}


def _plain(c: float, off: float) -> float:
    """A number of few digits, or a simple fraction, if there is one as near as it is known; else the number."""
    fractions = [round(c * q) / q for q in range(1, 17)]
    decimals = [float(f"{c:.{digits}g}") for digits in range(1, 7)]
    return next((x for x in (*fractions, *decimals) if abs(x - c) <= off * (1 + abs(c))), c)


def _words_for(c: float, fit: Fit, f: Failure) -> list[tuple[str, Number]]:
    """What a coefficient may be: a known quantity of the problem, or the number alone."""
    known = [(word, number) for word, number in FACTORS.items()
             if fit.near(c, number(f.case, f.means)) and abs(number(f.case, f.means) - 1) > 1e-9]
    plain = _plain(c, fit.off)
    return [*known, (f"{plain:.6g}", lambda case, means: plain)]


def _letters_scaled(letters: list[str], word: str, number: Number) -> Mistake:
    """These outputs times a number."""
    change = steps.multiplied(*letters, by=lambda s: number(s.case, s.means))
    if word == "1/gamma" and {"dQ", "dK"} >= {*letters}:  # also where gamma is 0
        change = {x: WITHOUT_SCALE[x] for x in letters}
    names = {LETTER_NAMES.get((x, word), f"{x}_{'zero' if word == '0' else 'scaled'}") for x in letters}
    name = names.pop() if len(names) == 1 else "O_scaled" if "O" in letters else f"{letters[0]}_scaled"
    formula = GROUPS if name == "gqa_mean" else ATTENTION if "O" in letters else BACK
    verb, said = ("are", "they should be") if len(letters) > 1 else ("is", "it should be")
    who = ", ".join(letters)
    title = f"{who} {verb} zero" if word == "0" else f"{who} {verb} {word} times what {said}"
    return Mistake(name, title, steps.only(change), formula, f"divide {who} by {word}" if word != "0" else "")


def _row_term_scaled(word: str, number: Number) -> Mistake:
    """D times a number."""
    name, title = ROW_TERM.get(word, ("D_scaled", f"the row term D is {word} times what it should be"))
    change = steps.multiplied("D", by=lambda s: number(s.case, s.means))
    return Mistake(name, title, steps.only(change), BACK, "subtract D, the row sum of dO o O, from dP")


def _group_weights(letters: list[str], weights: np.ndarray) -> Mistake:
    """The members of a group with other weights than 1."""
    change = weighted_groups(lambda size: weights if size == len(weights) else np.ones(size))
    said = ", ".join(f"{c:.3g}" for c in weights)
    title = f"the members of a group come into {' and '.join(letters)} with the weights {said}"
    alone = [i for i, c in enumerate(weights) if c]
    last = len(weights) - 1
    name = "gqa_last" if alone == [last] else "gqa_first" if alone == [0] else "gqa_weights"
    return Mistake(name, title, steps.only({x: change[x] for x in letters}), GROUPS,
                   "add over the group, each with weight 1")


def scaled_letters(f: Failure) -> Iterator[tuple[Mistake, list[str]]]:
    """Each wrong output that is a multiple of what it should be, in its readings."""
    for letter, fit in fitted_terms(f.case, f.means, f.got, f.off):
        c = float(fit.dP.mean())
        if letter in f.wrong and fit.all(c) and not fit.near(c, 1):
            for reading in _words_for(c, fit, f):
                yield _letters_scaled([letter], *reading), [letter]


def from_terms(f: Failure) -> list[list[Mistake]]:
    """What is wrong, if every wrong output is a sum of multiples of its terms: mistakes, each in its readings."""
    found = {x: fit for x, fit in fitted_terms(f.case, f.means, f.got, f.off) if x in f.wrong}
    if found.keys() != f.wrong.keys():
        return []
    out: list[list[Mistake]] = []
    ratio = None
    scaled: dict[float, list[str]] = {}
    weighed: dict[tuple[float, ...], list[str]] = {}
    for letter, fit in found.items():
        used = np.abs(fit.dP) > 8 * fit.off
        if fit.D is not None and used.any():
            one = fit.D[used] / fit.dP[used]
            if not fit.near(one, one.mean()):
                return []
            if not fit.near(one, 1):
                ratio = float(one.mean()), fit
        c = float(fit.dP.mean())
        if len(fit.dP) > 1 and not fit.near(fit.dP, c):
            weighed.setdefault(tuple(_plain(x, fit.off) for x in fit.dP), []).append(letter)
        elif not fit.near(fit.dP, 1):
            same = next((x for x in scaled if fit.near(c, x)), c)
            scaled.setdefault(same, []).append(letter)
    if ratio:
        out.append([_row_term_scaled(*word) for word in _words_for(*ratio, f)])
    if sorted(map(len, scaled.values())) == [1, 1] and found.keys() == {"dQ", "dK"} and not (ratio or weighed):
        a, b = (next(c for c, letters in scaled.items() if x in letters) for x in ("dQ", "dK"))
        if found["dQ"].near(a * b, 1):
            a = _plain(a, found["dQ"].off)
            change = {**steps.multiplied("dQ", by=lambda s: a), **steps.multiplied("dK", by=lambda s: 1 / a)}
            title = f"dQ is {a:.6g} times too large, and dK as much too small"
            return [[Mistake("dQ_dK_swapscale", title, steps.only(change), BACK, "scale both by gamma, once")]]
    for c, letters in scaled.items():
        fit = found[letters[0]]
        out.append([_letters_scaled(letters, *word) for word in _words_for(c, fit, f)])
    out += [[_group_weights(letters, np.array(weights))] for weights, letters in weighed.items()]
    return out
