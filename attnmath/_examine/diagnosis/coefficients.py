"""A problem that went wrong; and what multiples of its separate terms say: a scale, a row term, a group."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from attnmath._examine.problems.bounds import where_in_words
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.steps import ATTENTION, BACK, GROUPS, StepChanges, Steps, grouped
from attnmath._examine.report.report import Finding
from attnmath._words.arrays import T, sum_to
from attnmath.rounding.formats import unit_roundoff

Deviation = tuple[str, str, str, str]  # name, sentence, formula, cure


@dataclass(frozen=True, eq=False)
class Failure:
    """A problem that went wrong: what came, what is right, how far off it may be."""

    case: Case
    got: Answer
    want: Answer
    off: Answer
    wrong: dict[str, np.ndarray]  # for each output, which entries
    means: Conventions
    dtype: str

    @property
    def generic(self) -> bool:
        """Whether its numbers have no structure of their own."""
        s, traits = self.case.sizes, self.case.traits
        drawn = bool(traits & {"gaussian", "peaked", "outliers"})
        return drawn and min(s["n"], s["m"], s["d_k"], s["d_v"]) > 1 and self.case.scale != 0

    @property
    def size(self) -> tuple[bool, int]:
        """How much there is to compute; last of all where infinities hide the numbers."""
        finite = all(np.isfinite(x).all() for x in self.got.there.values())
        return not finite, self.case.Q.size * self.case.K.shape[2]

    def where(self, letters: Iterable[str] = ()) -> str:
        """Where each of these outputs is wrong, or each that is."""
        return "; ".join(where_in_words(x, self.wrong[x], getattr(self.got, x)) for x in letters or self.wrong)

    def steps(self, changes: Iterable[StepChanges] = ()) -> Steps:
        """The problem solved with these changes."""
        return Steps(self.case, self.means, changes)

    def gives(self, changes: Iterable[StepChanges]) -> bool:
        """Whether wrong steps give everything that came."""
        s = self.steps(changes)
        letters = sorted(self.got.there, key=lambda x: x not in self.wrong)  # wrong ones first: most forms fail
        return all(self.gives_letter(x, s) for x in letters)

    def gives_letter(self, letter: str, s: Steps) -> bool:
        """Whether wrong steps give what came, up to the roundings that both forms have."""
        form, got, off = getattr(s, letter), getattr(self.got, letter), getattr(self.off, letter)
        if form is None or form.shape != got.shape:
            return False
        with np.errstate(all="ignore"):
            size = np.abs(form).max((-2, -1), keepdims=True, initial=0.0)
            return bool(np.all(np.abs(got - form) <= 4 * off + 16 * unit_roundoff(self.dtype) * size))


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


def from_terms(f: Failure) -> list[Finding]:
    """What is wrong, if every wrong output is a sum of multiples of its terms; otherwise nothing."""
    found = {x: fit for x, fit in fitted_terms(f.case, f.means, f.got, f.off) if x in f.wrong}
    if found.keys() != f.wrong.keys():
        return []
    findings: dict[str, Finding] = {}
    for letter, fit in found.items():
        for name, title, formula, cure in _deviations(letter, fit, f.case, f.means):
            old = findings.get(name)
            where = f"{old.where}; {f.where([letter])}" if old else f.where([letter])
            findings[name] = Finding("mistake", name, old.title if old else title, where, formula, cure,
                                     "least squares on the separate terms leaves rounding alone")
    both = [found[x].dP[0] for x in ("dQ", "dK") if x in found and found[x].all(found[x].dP[0])]
    if findings.keys() == {"dQ_scaled", "dK_scaled"} and len(both) == 2 and found["dQ"].near(both[0] * both[1], 1):
        title = f"dQ is {both[0]:.6g} times too large, and dK as much too small"
        where = "; ".join(x.where or "" for x in findings.values())
        return [Finding("mistake", "dQ_dK_swapscale", title, where, BACK, "scale both by gamma, once")]
    one = found["O"].dP[0] if "O" in found else 0.0
    if len(findings) > 1 and one and all(fit.all(one) for fit in found.values()):
        letters = ", ".join(found)
        return [Finding("mistake", "O_scaled", f"{letters} are {one:.6g} times what they should be", letters,
                        ATTENTION, f"divide O by {one:.6g}",
                        "least squares on the separate terms leaves rounding alone")]
    return list(findings.values())


def _deviations(letter: str, fit: Fit, case: Case, means: Conventions) -> Iterable[Deviation]:
    """Name, sentence, formula and cure for each deviation of the coefficients from 1."""
    g = len(fit.dP)
    if g > 1 and not fit.near(fit.dP, fit.dP.mean()):
        weights = ", ".join(f"{c:.3g}" for c in fit.dP)
        alone = [i for i, c in enumerate(fit.dP) if not fit.near(c, 0)]
        name = "gqa_last" if alone == [g - 1] else "gqa_first" if alone == [0] else "gqa_weights"
        yield (name, f"the members of a group come into dK and dV with the weights {weights}", GROUPS,
               "add over the group, each with weight 1")
        c = fit.dP[np.argmax(np.abs(fit.dP))]
        if name != "gqa_weights" and not fit.near(c, 1):
            yield from _scaled(letter, float(c), fit, case, means)
    else:
        c = float(fit.dP.mean())
        if not fit.near(c, 1):
            yield from _scaled(letter, c, fit, case, means)
    if fit.D is not None and np.abs(fit.dP).max() > fit.off:
        used = np.abs(fit.dP) > 8 * fit.off
        ratio = fit.D[used] / fit.dP[used]
        if not fit.near(ratio, 1):
            yield from _row_term_deviation(ratio, fit, case)


def _row_term_deviation(ratio: np.ndarray, fit: Fit, case: Case) -> Iterable[Deviation]:
    c = float(ratio.mean())
    known = {
        0.0: ("D_missing", "the row term D is missing: dA = P o dP"),
        -1.0: ("D_sign", "the row term D has the wrong sign: dA = P o (dP + D)"),
        0.5: ("D_detached_half", "the row term D is halved"),
        1 / case.K.shape[2]: ("D_mean", "the row term D is a mean over the keys instead of a sum"),
    }
    for value, (name, title) in known.items():
        if fit.near(ratio, value):
            yield name, title, BACK, "subtract D, the row sum of dO o O, from dP"
            return
    yield "D_scaled", f"the row term D is {c:.6g} times what it should be", BACK, "subtract D, once"


def _scaled(letter: str, c: float, fit: Fit, case: Case, means: Conventions) -> Iterable[Deviation]:
    """A whole output is a multiple of what it should be."""
    gamma, s = case.gamma(means), case.sizes
    g = s["H"] // s["G"]
    if fit.near(c, 0):
        yield f"{letter}_zero", f"{letter} is zero", BACK, f"compute {letter}, and return it"
        return
    known = {"gamma": gamma, "1/gamma": 1 / gamma if gamma else 0.0, "ln 2": np.log(2), "log2(e)": 1 / np.log(2)}
    if letter in ("dK", "dV"):
        known |= {"1/(H/G)": 1 / g, "H/G": g}
    if letter == "dB":
        known |= {"1/b": 1 / s["b"], "b": s["b"]}
    word = next((f" = {w}" for w, x in known.items() if x != 1 and fit.near(c, x)), "")
    name = {
        ("dQ", " = 1/gamma"): "dQ_noscale", ("dK", " = 1/gamma"): "dK_noscale",
        ("dQ", " = gamma"): "dQ_scale2", ("dK", " = gamma"): "dK_scale2",
        ("dK", " = 1/(H/G)"): "gqa_mean", ("dV", " = 1/(H/G)"): "gqa_mean",
        ("dB", " = 1/b"): "dB_mean", ("dB", " = gamma"): "dB_scaled",
    }.get((letter, word))
    formula = GROUPS if name == "gqa_mean" else ATTENTION if letter == "O" else BACK
    title = f"{letter} is {c:.6g}{word} times what it should be"
    yield name or f"{letter}_scaled", title, formula, f"divide {letter} by {c:.6g}{word}"
