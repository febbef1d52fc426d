"""Mistakes of a tangent or of a double backward: steps of the program that differ, made, not collected.

A term is missing, doubled, halved or has the wrong sign; a factor is missing or taken twice; what moves is held
still; one operand stands in another's place; a mask or the order of the heads is another; a running sum is
not rescaled where the largest score grows from tile to tile; a tail of rows is lost.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import StepChanges, bind, grouped
from attnmath._examine.second.program import DOTS
from attnmath._examine.second.sums import TILES, TIMES, Change, SecondEdit, reverse, unrescaled
from attnmath._words.arrays import T, rowsum

JVP = "chapters/attention.md, eq:attention_jvp"
BACK = "chapters/second.md, eq:attention_vjp_vjp"
TERMS = {  # of the sums, in words
    "QdotK": "the term Q_dot K^T", "QKdot": "the term Q K_dot^T", "PdotV": "the term P_dot V",
    "PVdot": "the term P V_dot",
    "DPdot": "the term P_dot o dP of D_dot", "DVdot": "the term P o dP_dot of D_dot",
    "dA_first": "the term P_dot o (dP - D)", "dA_second": "the term P o (dP_dot - D_dot)",
    "dAdotK": "the term dA_dot K", "dAKdot": "the term dA K_dot", "dAdotQ": "the term dA_dot^T Q",
    "dAQdot": "the term dA^T Q_dot",
    "mu": "the row mean mu of A_dot", "mu_back": "the row mean mu of A_dot, on the way back,",
    "D": "the row term D", "D_first": "the row term D of P_dot o (dP - D)",
    "D_dot": "D_dot, the tangent of the row term,",
    "P_dot": "P_dot in the tangent of the output", "P_dot_back": "P_dot on the way back",
    "dP_dot": "dP_dot = dO V_dot^T", "dA": "dA in the terms dA K_dot and dA^T Q_dot",
    "dA_dot": "dA_dot", "A_dot": "A_dot",
    "O_dot": "O_dot", "dQ_dot": "dQ_dot", "dkeys_dot": "dK_dot", "dvalues_dot": "dV_dot",
    "Q_dot": "Q_dot", "K_dot": "K_dot", "V_dot": "V_dot",
}
STILL = {  # what it means that a letter is missing
    "mu": "the row mean mu of A_dot is missing: P_dot = P o A_dot, as if the log-sum-exp stood still",
    "mu_back": "the row mean mu of A_dot is missing on the way back: P_dot = P o A_dot there",
    "D_dot": "D is held still: D_dot is missing from dA_dot",
    "P_dot_back": "P is held still on the way back: P_dot is zero in dA_dot and dV_dot",
    "dP_dot": "dP_dot = dO V_dot^T is missing from dA_dot",
}
FACTORS = {
    ("gamma_t",): "the scale gamma of A_dot", ("gamma_Q",): "the scale gamma of dQ_dot",
    ("gamma_K",): "the scale gamma of dK_dot", ("gamma_Q", "gamma_K"): "the scale gamma of dQ_dot and dK_dot",
    ("gamma_t", "gamma_Q", "gamma_K"): "the scale gamma of all tangents",
    ("R_P",): "the dropout mask of P_dot V", ("R_V",): "the dropout mask of P V_dot",
    ("R_P", "R_V"): "the dropout mask of the tangent of the output", ("R_dP",): "the dropout mask of dP_dot",
    ("R_first",): "the dropout mask of dP", ("R_dV",): "the dropout mask of dV_dot",
    ("R_first", "R_dP"): "the dropout mask of dP and dP_dot", ("R_t",): "the dropout mask of all tangents",
}
SCALED = ("QdotK", "QKdot", "dAdotK", "dAKdot", "dAdotQ", "dAQdot")
PLACED: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {  # title: the step, and what stands in its place
    "K stands in the place of K_dot": ("keys_dot", lambda s, x: s.keys_t),
    "Q stands in the place of Q_dot": ("Q_dot", lambda s, x: s.Q),
    "V stands in the place of V_dot": ("values_dot", lambda s, x: s.values_t),
    "K stands in the place of K_dot in dA K_dot": ("dAKdot", lambda s, x: s.dA @ s.keys_t),
    "Q stands in the place of Q_dot in dA^T Q_dot": ("dAQdot", lambda s, x: T(s.dA) @ s.Q),
    "K_dot stands in the place of K in dA_dot K": ("dAdotK", lambda s, x: s.dA_dot @ s.keys_dot),
    "Q_dot stands in the place of Q in dA_dot^T Q": ("dAdotQ", lambda s, x: T(s.dA_dot) @ s.Q_dot),
    "Q_dot stands in the place of Q in Q K_dot^T": ("QKdot", lambda s, x: s.Q_dot @ T(s.keys_dot)),
    "K_dot stands in the place of K in Q_dot K^T": ("QdotK", lambda s, x: s.Q_dot @ T(s.keys_dot)),
    "P_dot stands in the place of P in P V_dot": ("PVdot", lambda s, x: (s.P_dot * s.R_V) @ s.values_dot),
    "V_dot stands in the place of V in P_dot V": ("PdotV", lambda s, x: (s.P_dot * s.R_P) @ s.values_dot),
    "P stands in the place of P_dot in dV_dot": ("dvalues_dot", lambda s, x: T(s.P_t * s.R_dV) @ s.dO),
    "D stands in the place of D_dot": ("D_dot", lambda s, x: s.D),
    "D_dot stands in the place of D in P_dot o (dP - D)": ("D_first", lambda s, x: s.D_dot),
    "dA stands in the place of dA_dot in dQ_dot": ("dAdotK", lambda s, x: s.dA @ s.keys_t),
    "dA stands in the place of dA_dot in dK_dot": ("dAdotQ", lambda s, x: T(s.dA) @ s.Q),
    "dA_dot stands in the place of dA in dA K_dot": ("dAKdot", lambda s, x: s.dA_dot @ s.keys_dot),
    "dA_dot stands in the place of dA in dA^T Q_dot": ("dAQdot", lambda s, x: T(s.dA_dot) @ s.Q_dot),
    "P stands in the place of P_dot in P_dot o (dP - D)": ("dA_first", lambda s, x: s.P_t * (s.dP - s.D_first)),
    "P_dot stands in the place of P in P o (dP_dot - D_dot)": (
        "dA_second", lambda s, x: s.P_dot_back * (s.dP_dot - s.D_dot)),
    "mu is a mean of A_dot without the weights P": ("mu", lambda s, x: s.A_dot.mean(-1, keepdims=True)),
    "mu is a sum of A_dot without the weights P": ("mu", lambda s, x: rowsum(s.A_dot)),
    "mu is divided by the number of keys": ("mu", lambda s, x: x / s.P_t.shape[-1]),
    "mu is taken of the weights after dropout": ("mu", lambda s, x: rowsum(s.P_t * s.R_t * s.A_dot)),
    "mu is summed over the queries instead of the keys": (
        "mu", lambda s, x: (s.P_t * s.A_dot).sum(-2, keepdims=True)),
    "the factor P is missing from P_dot": ("P_dot", lambda s, x: s.A_dot - s.mu),
    "the factor P is missing from P_dot, on the way back": ("P_dot_back", lambda s, x: s.A_dot - s.mu_back),
    "P_dot is not transposed in dV_dot": ("dvalues_dot", lambda s, x: (s.P_dot_back * s.R_dV) @ s.dO),
    "dA_dot is not transposed in dK_dot": ("dAdotQ", lambda s, x: s.dA_dot @ s.Q),
    "dA is not transposed in dK_dot": ("dAQdot", lambda s, x: s.dA @ s.Q_dot),
    "Q_dot K^T is transposed": ("QdotK", lambda s, x: T(x)),
    "Q K_dot^T is transposed": ("QKdot", lambda s, x: T(x)),
    "dP_dot is transposed": ("dP_dot", lambda s, x: T(x)),
    "dA_dot is transposed": ("dA_dot", lambda s, x: T(x)),
    "D_dot is taken without the dropout mask": ("D_dot", lambda s, x: rowsum(
        s.P_dot_back * (s.dO @ T(s.values_t)) + s.P_t * (s.dO @ T(s.values_dot)))),
}
FROM_OUTPUT: StepChanges = {"D_dot": lambda s, x: rowsum(s.dO * s.O_dot)}
WAYS: tuple[tuple[StepChanges, ...], ...] = ((), (FROM_OUTPUT,))  # in wrong code D_dot is not the same by both


def _always(change: StepChanges) -> Change:
    return lambda case, means: change


def _with_dropout(change: StepChanges) -> Change:
    return lambda case, means: {} if case.R is None else change


def _times(letter: str, c: float) -> Change:
    return _always({letter: lambda s, x: c * x})


def second_edits() -> Iterator[SecondEdit]:
    """All of them, the plain ones first."""
    for letter, words in TERMS.items():
        for said, c in TIMES.items():
            title = STILL.get(letter) if c == 0 else None
            yield SecondEdit(f"{letter} {said}", title or f"{words} {said}", _times(letter, c))
    for letters, words in FACTORS.items():
        ones: StepChanges = {x: lambda s, x: x * 0 + 1.0 for x in letters}
        twice: StepChanges = {x: lambda s, x: x * x for x in letters}
        change = _with_dropout if letters[0].startswith("R_") else _always
        for said, steps in (("is missing", ones), ("is taken twice", twice)):
            yield SecondEdit(f"{'+'.join(letters)} {said}", f"{words} {said}", change(steps))
    for letter in SCALED:
        yield SecondEdit(f"{letter} scaled", f"{TERMS[letter]} has the scale gamma twice",
                         _always({letter: lambda s, x: s.gamma * x}))
        yield SecondEdit(f"{letter} unscaled", f"{TERMS[letter]} lacks the scale gamma",
                         _always({letter: lambda s, x: x / s.gamma}))
    for letter in ("A_dot", "mu", "QdotK", "QKdot", "D_dot", "dQ_dot", "dkeys_dot"):
        for word, c in (("log2(e)", np.log2(np.e)), ("ln 2", np.log(2))):
            title = f"{TERMS[letter].rstrip(',')} is multiplied by {word}"
            yield SecondEdit(f"{letter} {word}", title, _times(letter, float(c)))
    for title, (letter, f) in PLACED.items():
        yield SecondEdit(title, title, _always({letter: f}))
    yield from _masks()
    yield from _heads()
    yield from unrescaled()
    yield from reverse()
    yield from _tails()


def _masks() -> Iterator[SecondEdit]:
    """What hides keys, or is added, is another in the tangent."""
    for words, names in (("mask", ("keep",)), ("causal mask", ("causal",)), ("bias", ("bias",)),
                         ("mask and the causal mask", ("keep", "causal"))):
        def without(case: Case, means: Conventions, names: tuple = names) -> StepChanges:
            if not all(case.has(name) for name in names):
                return {}
            return {"B_t": lambda s, x: s.case.without(*names).B(s.means) + 0 * s.seen}
        yield SecondEdit(f"no {words}", f"the {words} is missing where the tangent takes P", without)

    def other(case: Case, means: Conventions) -> StepChanges:
        align = "lower_right" if means.causal == "upper_left" else "upper_left"
        n, m = case.Q.shape[2], case.K.shape[2]
        return {"B_t": lambda s, x: s.case.B(s.means.told(causal=align))} if case.causal and n != m else {}
    yield SecondEdit("causal", "the causal mask of the tangent has the other alignment", other)


def _heads() -> Iterator[SecondEdit]:
    """Heads that share keys: another order, one head for a sum, a mean for a sum."""
    def fewer(case: Case) -> bool:
        return case.K.shape[1] < case.Q.shape[1]

    for letter, words in (("owner_dot", "K_dot and V_dot"), ("owner_t", "all tangents")):
        def order(case: Case, means: Conventions, letter: str = letter) -> StepChanges:
            return {letter: lambda s, x: s.case.other_owner(s.means)} if fewer(case) else {}
        yield SecondEdit(f"{letter} order", f"the heads of {words} are read in the other order of groups", order)

    def one(last: bool) -> Callable[[Any, Any, str], Any]:
        def pick(s: Any, x: Any, heads: str) -> Any:
            at = [np.flatnonzero(s.owner_t == g)[-1 if last else 0] for g in range(x.shape[1])]
            return getattr(s, heads)[:, at]
        return pick

    forms: dict[str, Callable[[Any, Any, str], Any]] = {
        "has the first query head of a group alone, where all are summed": one(False),
        "has the last query head of a group alone, where all are summed": one(True),
        "is a mean over the query heads of a group, not a sum": lambda s, x, _: x * x.shape[1] / s.Q.shape[1],
        "is summed over the other order of groups": lambda s, x, heads: grouped(
            getattr(s, heads), s.case.other_owner(s.means), x.shape[1]),
    }
    for letters in (("dK_dot",), ("dV_dot",), ("dK_dot", "dV_dot")):
        for words, form in forms.items():
            def change(case: Case, means: Conventions, letters: tuple = letters, form: Any = form) -> StepChanges:
                heads = {"dK_dot": "dkeys_dot", "dV_dot": "dvalues_dot"}
                return {x: bind(form, heads[x]) for x in letters} if fewer(case) else {}
            many = words.replace("has ", "have ").replace("is ", "are ", 1) if len(letters) > 1 else words
            yield SecondEdit(f"{'+'.join(letters)} {words}", f"{' and '.join(letters)} {many}", change)


def _tails() -> Iterator[SecondEdit]:
    """Rows behind the last whole tile that are lost."""
    for letter in DOTS:
        for t in (8, *TILES):
            def change(case: Case, means: Conventions, letter: str = letter, t: int = t) -> StepChanges:
                rows = getattr(case, letter).shape[2]
                kept = np.arange(rows)[:, None] < rows - rows % t
                return {} if kept.all() else {letter: lambda s, x: np.where(kept, x, 0.0)}
            title = f"the rows of {letter} behind the last whole tile of {t} are lost"
            yield SecondEdit(f"{letter} tail {t}", title, change)

