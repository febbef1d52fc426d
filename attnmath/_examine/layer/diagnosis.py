"""Which mistake of a layer is it? Edits of the program that explain all; else the place and the laws."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from attnmath._examine.diagnosis.diagnosis import said
from attnmath._examine.diagnosis.gate import Edit, edits_of, explains, proof
from attnmath._examine.layer import latent
from attnmath._examine.layer.layer import LayerAnswer
from attnmath._examine.layer.mistakes import DICTIONARY
from attnmath._examine.layer.running_error import Bounded, formats
from attnmath._examine.layer.tried import Tried
from attnmath._examine.problems.steps import StepChanges
from attnmath._examine.report.report import Finding
from attnmath._words.arrays import T

FIRSTS = 4  # first edits beside which a second one is looked for
MOST_PAIRS = 100  # that give what came in one problem


def diagnose_layer(problems: Sequence[Tried], fresh: Callable[[], Iterable[object]] = tuple) -> list[Finding]:
    """The edits that explain all problems, those that passed included, and fresh ones; else where it is wrong."""
    trials: list[Any] = sorted(problems, key=lambda t: (not t.wrong, not t.telling, -len(t.wrong), t.size))
    wrong = [t for t in trials if t.wrong]
    telling = [t for t in wrong if t.telling]
    if wrong and not telling:
        why = "it is off by little more than rounding" if any(t.sharp for t in wrong) else (
            "rounding is too coarse to tell mistakes apart; try float32")
        return [without_name(wrong, ": " + why)]
    for proposals in (one_edit(telling[0]), islice(two_edits(telling[0]), MOST_PAIRS)) if wrong else ():
        proofs = [one for edits in proposals if (one := proof(edits, trials))]
        proofs = [one for one in proofs if one.always] or proofs
        more: list[Any] = [t for t in fresh() if isinstance(t, Tried)] if proofs else []
        proofs = [again for one in proofs if (again := proof(one.edits, [*trials, *more]))]
        if proofs and (found := said(proofs, wrong, len(trials), more, None, ())):
            return [replace(x, evidence="; ".join(filter(None, (x.evidence, laws(telling[0]))))) for x in found]
    return [without_name(wrong)] if wrong else []


def one_edit(t: Any) -> Iterator[tuple[Edit, ...]]:
    """Each edit that gives what came in a problem."""
    return ((edit,) for edit, changes in forms_in(t) if explains((edit,), t, changes))


def two_edits(t: Any) -> Iterator[tuple[Edit, ...]]:
    """Edits that explain a part of what is wrong and spoil nothing, and seconds that complete them."""
    found = []
    for edit, changes in forms_in(t):
        s = t.steps(changes)
        here = [name for name in t.wrong if t.gives_output(name, s)]
        if here and all(t.gives_output(name, s) for name in t.names if name not in t.wrong):
            found.append((len(here), edit, changes))
    for _, first, mine in sorted(found, key=lambda x: -x[0])[:FIRSTS]:
        for other, changes in forms_in(t):
            if other.mistake.name != first.mistake.name and t.explained_by((*mine, *changes)):
                yield first, other


def forms_in(t: Any) -> Iterator[tuple[Edit, tuple[StepChanges, ...]]]:
    """Every mistake in every form that it can have in a problem."""
    return (x for mistake in DICTIONARY for x in edits_of(mistake, t))


def without_name(wrong: Sequence[Tried], why: str = "") -> Finding:
    """Something is wrong and has no name: the place, the laws, the terms."""
    first = wrong[0]
    evidence = [f"in the problem '{first.case.name}' with {', '.join(sorted(first.case.traits))}"]
    evidence += filter(None, (laws(first), proportions(first)))
    title = "the mistake has no name here, in " + ", ".join(sorted(first.wrong)) + why
    return Finding("unnamed", "unnamed", title, first.where(), evidence="; ".join(evidence))


# ---- what always holds, chapters/laws.md --------------------------------------------------------


class ReturnedGradients:
    """What came, with the bound of each number, and the weights, which have none."""

    def __init__(self, t: Tried) -> None:
        self.t, self.case = t, t.case
        self.latent = t.means.pieces is not None and t.means.pieces.latent is not None

    def __getattr__(self, letter: str) -> Any:
        if letter not in LayerAnswer._fields:
            return getattr(self.case.W, letter)
        x = getattr(self.t.got, letter)
        return None if x is None else Bounded(x, getattr(self.t.off, letter), formats("float64").own)

    def gauge(self, a: str) -> Any:
        """W^T dW + b^T db of each head."""
        x, b = T(getattr(self, f"W_{a}")) @ getattr(self, f"dW_{a}"), getattr(self, f"b_{a}")
        return x if b is None else x + b[:, :, None] * getattr(self, f"db_{a}").reshape(len(b), 1, -1)

    def shared(self, x: Any) -> Any:
        """The sum over the heads that read the same keys and values."""
        return x.reshape(len(self.W_K), -1, *x.shape[1:]).sum(1)

    def tokens(self, X: np.ndarray, dX: Any, letters: str) -> tuple[Any, Any]:
        """X^T dX, and what it has to be: the sum of dW W^T over the heads."""
        each = [(getattr(self, f"dW_{a}") @ T(getattr(self, f"W_{a}"))).sum(0) for a in letters]
        return X.reshape(-1, X.shape[2]).T @ dX.reshape(-1, X.shape[2]), sum(each, 0.0)


LAWS: dict[str, Callable[[ReturnedGradients], tuple[Any, Any] | None]] = {
    "W_Q and W_K may trade a matrix": lambda g: None if g.case.rotary or g.t.means.pieces else (
        g.shared(g.gauge("Q")), T(g.gauge("K"))),
    "W_V and W_O may trade a matrix": lambda g: (g.gauge("V"), g.shared(g.dW_O @ T(g.W_O))),
    "X^T dX": lambda g: None if g.latent else g.tokens(g.case.X, g.dX, "QKV" if g.case.Z is None else "Q"),
    "Z^T dZ": lambda g: None if g.case.Z is None or g.case.own_values else g.tokens(g.case.Z, g.dZ, "KV"),
    "db_K = 0": lambda g: None if g.db_K is None or g.case.rotary or g.t.means.pieces else (g.db_K, 0.0),
    "db_V = db_O W_O^T": lambda g: None if g.db_V is None or g.db_O is None or g.t.means.pieces else (
        g.db_V, g.shared((g.db_O.reshape(1, 1, -1) @ T(g.W_O))[:, 0])),
    "db_O = sum of dY": lambda g: None if g.db_O is None else (g.db_O, g.case.dY.sum((0, 1))),
}


def laws(t: Tried) -> str:
    """Which laws fail within the bounds and which hold, of those that a layer of this kind has."""
    g = ReturnedGradients(t)
    finite = all(x is None or np.isfinite(x).all() for x in t.got)
    found: dict[bool, list[str]] = {False: [], True: []}
    for law, sides in LAWS.items():
        pair = sides(g) if finite else None
        if pair is not None:
            gap = pair[0] - pair[1]
            found[bool((abs(gap.x) <= gap.off).all())].append(law)
    words = {False: "broken laws", True: "laws that hold"}
    return "; ".join(f"{words[holds]}: {', '.join(names)}" for holds, names in found.items() if names)


# ---- what a wrong gradient is the sum of --------------------------------------------------------

PATHS = {"by_Q": "queries", "by_K": "keys", "by_V": "values", **latent.PATHS}


def proportions(t: Tried) -> str:
    """For each wrong output, how often each of its terms is in it, by least squares, where that explains it."""
    s, found = t.steps(), []
    alone = t.case.Z is None
    paths = {"dX": ["by_Q", "by_K", "by_V"] if alone else ["by_Q"],
             "dZ": [] if t.case.own_values else ["by_K", "by_V"]}
    if isinstance(s, latent.LatentSteps):
        paths = {"dX": [*latent.PATHS]}
    for name in t.wrong:
        words = {f"the path through the {PATHS[x]}": x for x in paths.get(name, ())} or {f"the right {name}": name}
        got, basis = getattr(t.got, name), np.stack([getattr(s, x).ravel() for x in words.values()], 1)
        if not np.isfinite(got).all() or got.size <= len(words):
            continue
        times = np.linalg.lstsq(basis, got.ravel(), rcond=None)[0]
        if t.inside(name, (basis @ times).reshape(got.shape), 4.0 * max(1.0, np.abs(times).max())).all():
            found.append(f"{name} = " + " + ".join(f"{c:.4g} x {word}" for c, word in zip(times, words)))
    return "; ".join(found)
