"""Which mistake of a layer is it? Wrong closed forms, alone and in pairs; otherwise the place and the laws."""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, product
from typing import Any

import numpy as np

from attnmath._examine.diagnosis.diagnosis import MistakeForm
from attnmath._examine.layer.layer import LayerAnswer, LayerSteps
from attnmath._examine.layer.mistakes import DICTIONARY
from attnmath._examine.layer.running_error import Bounded, formats
from attnmath._examine.layer.tried import Tried
from attnmath._examine.problems.steps import Mistake
from attnmath._examine.report.report import Finding
from attnmath._words.arrays import T

PROBLEMS = 6  # that a name has to explain: of each kind the smallest
FIRSTS = 4  # first mistakes beside which a second one is looked for
VAGUE = 0.02  # where wrong forms are allowed more than this, several would fit


def diagnose_layer(problems: Sequence[Tried]) -> list[Finding]:
    """The mistakes that explain all problems, or that there is no name, and where it is wrong."""
    wrong = sorted((t for t in problems if t.wrong), key=lambda t: (-len(t.wrong), t.size))
    if not wrong:
        return []
    sharp = [t for t in wrong if is_sharp(t)]
    if sharp and all(t.gives(()) for t in sharp):
        return [without_name(wrong, (), ": it is off by little more than rounding")]
    sharp = [t for t in sharp if not t.gives(())]
    if not sharp:
        return [without_name(wrong, (), ": rounding is too coarse to tell mistakes apart; try float32")]
    right = [t for t in problems if not t.wrong and is_sharp(t)]
    first, *others = one_of_each_kind(sharp) + sorted(right, key=lambda t: -t.size)[:1]
    for form in forms_in(first):
        if first.gives(form.changes) and all(explained_by([form.mistake], t) for t in others):
            return [with_name(form, wrong)]
    partly = partly_explained(first)
    for form, _ in partly[:FIRSTS]:
        other = second_mistake(form, first, others)
        if other is not None:
            return [with_name(x, wrong) for x in (form, other)]
    return [without_name(wrong, ())]


def is_sharp(t: Tried) -> bool:
    """Whether wrong forms can be told apart: they may be off by little, and weights differ."""
    return max(t.slack.values()) <= VAGUE and "uniform" not in t.case.traits


def one_of_each_kind(wrong: Sequence[Tried]) -> list[Tried]:
    """The smallest of each kind: of each set of outputs that are wrong, and of each trait."""
    chosen: list[Tried] = []
    seen: set[object] = set()
    for t in wrong:
        kind = {frozenset(t.wrong), *t.case.traits}
        if not kind <= seen:
            chosen.append(t)
        seen |= kind
    return chosen[:PROBLEMS]


def forms_in(t: Tried, mistakes: Iterable[Mistake] = DICTIONARY) -> Iterator[MistakeForm]:
    """Every mistake in every form that it can have in a problem."""
    for mistake in mistakes:
        for word, change in mistake.forms(t.case, t.means):
            yield MistakeForm(mistake, word, (change,))


def explained_by(mistakes: Sequence[Mistake], t: Tried) -> bool:
    """Whether mistakes, each in one of its forms, give what came; one that cannot show there changes nothing."""
    each = [[form.changes for form in forms_in(t, [mistake])] or [()] for mistake in mistakes]
    return any(t.gives(chain(*changes)) for changes in product(*each))


def partly_explained(t: Tried) -> list[tuple[MistakeForm, frozenset[str]]]:
    """The forms that explain a part of what is wrong and spoil nothing that is right, most first."""
    found = []
    for form in forms_in(t):
        s = t.steps(form.changes)
        here = frozenset(name for name in t.wrong if t.gives_output(name, s))
        if here and all(t.gives_output(name, s) for name in t.names if name not in t.wrong):
            found.append((form, here))
    return sorted(found, key=lambda x: -len(x[1]))


def second_mistake(form: MistakeForm, t: Tried, others: Sequence[Tried]) -> MistakeForm | None:
    """The mistake that together with a first one gives what came, in all problems."""
    for other in forms_in(t):
        pair = form.mistake, other.mistake
        if pair[0].name == pair[1].name or not t.gives(form.changes + other.changes):
            continue
        if all(explained_by(pair, x) for x in others):
            return other
    return None


def with_name(form: MistakeForm, wrong: Sequence[Tried]) -> Finding:
    """A mistake with its name."""
    first, count = wrong[0], len(wrong)
    evidence = f"this wrong formula gives what came, up to rounding, in {count} wrong problem" + "s" * (count > 1)
    return form.finding(first.where(), "; ".join(filter(None, (evidence, laws(first)))))


def without_name(wrong: Sequence[Tried], names: Collection[str], why: str = "") -> Finding:
    """Something is wrong and has no name: the place, the laws, the terms."""
    first = wrong[0]
    evidence = [f"in the problem '{first.case.name}' with {', '.join(sorted(first.case.traits))}"]
    evidence += filter(None, (laws(first), proportions(first)))
    title = "the mistake has no name here, in " + ", ".join(sorted(names or first.wrong)) + why
    return Finding("unnamed", "unnamed", title, first.where(), evidence="; ".join(evidence))


# ---- what always holds, chapters/laws.md --------------------------------------------------------


class ReturnedGradients:
    """What came, with the bound of each number, and the weights, which have none."""

    def __init__(self, t: Tried) -> None:
        self.t, self.case = t, t.case

    def __getattr__(self, letter: str) -> Any:
        if letter not in LayerAnswer._fields:
            return getattr(self.case.W, letter)
        x = getattr(self.t.got, letter)
        return None if x is None else Bounded(x, getattr(self.t.off, letter), formats("float64").own)

    def gauge(self, a: str) -> Any:
        """W^T dW + b^T db of each head."""
        W, b = getattr(self, f"W_{a}"), getattr(self, f"b_{a}")
        x = T(W) @ getattr(self, f"dW_{a}")
        if b is None:
            return x
        return x + b[:, :, None] * getattr(self, f"db_{a}").reshape(*b.shape[:1], 1, b.shape[1])

    def shared(self, x: Any) -> Any:
        """The sum over the heads that read the same keys and values."""
        H, G = len(self.W_Q), len(self.W_K)
        return x.reshape(G, H // G, *x.shape[1:]).sum(1)

    def tokens(self, *letters: str) -> Any:
        """The sum of dW W^T over the heads: what X^T dX has to be."""
        total: Any = 0.0
        for a in letters:
            each = getattr(self, f"dW_{a}") @ T(getattr(self, f"W_{a}"))
            total = each.sum(0) + total
        return total


def _over_tokens(X: np.ndarray, dX: Bounded) -> Bounded:
    d = X.shape[2]
    return X.reshape(-1, d).T @ dX.reshape(-1, d)


LAWS: dict[str, Callable[[ReturnedGradients], tuple[Any, Any] | None]] = {
    "W_Q and W_K may trade a matrix": lambda g: None if g.case.rotary else (
        g.shared(g.gauge("Q")), T(g.gauge("K"))),
    "W_V and W_O may trade a matrix": lambda g: (g.gauge("V"), g.shared(g.dW_O @ T(g.W_O))),
    "X^T dX": lambda g: (_over_tokens(g.case.X, g.dX), g.tokens(*("QKV" if g.case.Z is None else "Q"))),
    "Z^T dZ": lambda g: None if g.case.Z is None else (_over_tokens(g.case.Z, g.dZ), g.tokens("K", "V")),
    "db_K = 0": lambda g: None if g.db_K is None or g.case.rotary else (g.db_K, 0.0),
    "db_V = db_O W_O^T": lambda g: None if g.db_V is None or g.db_O is None else (
        g.db_V, g.shared((g.db_O.reshape(1, 1, -1) @ T(g.W_O))[:, 0])),
    "db_O = sum of dY": lambda g: None if g.db_O is None else (
        g.db_O, g.case.dY.reshape(-1, g.case.dY.shape[2]).sum(0)),
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

PATHS = {"by_Q": "queries", "by_K": "keys", "by_V": "values"}


def proportions(t: Tried) -> str:
    """For each wrong output, how often each of its terms is in it, by least squares, where that explains it."""
    s, found = t.steps(), []
    for name in t.wrong:
        got, parts = getattr(t.got, name), parts_of(name, s)
        basis = np.stack([x.ravel() for x in parts.values()], 1)
        if not np.isfinite(got).all() or got.size <= len(parts):
            continue
        times = np.linalg.lstsq(basis, got.ravel(), rcond=None)[0]
        if t.inside(name, (basis @ times).reshape(got.shape), 4.0 * max(1.0, np.abs(times).max())).all():
            found.append(f"{name} = " + " + ".join(f"{c:.4g} x {word}" for c, word in zip(times, parts)))
    return "; ".join(found)


def parts_of(name: str, s: LayerSteps) -> dict[str, np.ndarray]:
    """The terms that an output is the sum of; itself where it has one alone."""
    letters = {"dX": ("by_Q", "by_K", "by_V") if s.given.Z is None else ("by_Q",), "dZ": ("by_K", "by_V")}
    if name in letters:
        return {f"the path through the {PATHS[x]}": getattr(s, x) for x in letters[name]}
    return {f"the right {name}": getattr(s, name)}
