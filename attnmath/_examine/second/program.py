"""The second derivatives of a head, step by step: its tangent, and the tangents of its gradients.

The steps are those of problems/steps.py and more; what a tangent uses has letters of its own (P_t, B_t,
gamma_t, ...), so that a mistake there alone can be said. The double backward gives O_dot, dQ_dot, dK_dot, dV_dot.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.layer.running_error import Bounded, softmax_bounded
from attnmath._examine.problems.bounds import STORED_AFTER, program, right_and_bounds
from attnmath._examine.problems.case import ARRAYS, Case, Conventions
from attnmath._examine.problems.steps import STEPS, Step, Steps, downstream, empty_weight, grouped, plain_softmax
from attnmath._words.arrays import T, rowsum
from attnmath.rounding.formats import Model, nearest

DOTS = "Q_dot", "K_dot", "V_dot"
POISON = 2.0**30  # a number of every format that has it
LARGEST = 2.0**13  # of a number in float16, whose sums may be several times that on their way
LETTERS = {"jvp": ("O_dot",), "double backward": ("O_dot", "dQ_dot", "dK_dot", "dV_dot")}


class SecondAnswer(NamedTuple):
    """The tangent of the output and those of the gradients; O where a jvp returns it too."""

    O_dot: np.ndarray
    dQ_dot: np.ndarray | None = None
    dK_dot: np.ndarray | None = None
    dV_dot: np.ndarray | None = None
    O: np.ndarray | None = None

    @property
    def there(self) -> dict[str, np.ndarray]:
        """The parts that there are, by their letters."""
        return {letter: x for letter, x in self._asdict().items() if x is not None}


@dataclass(frozen=True, eq=False)
class SecondCase(Case):
    """A problem with the tangents of its queries, keys and values."""

    Q_dot: Any = None
    K_dot: Any = None
    V_dot: Any = None

    def with_arrays(self, f: Callable[[np.ndarray], np.ndarray], *names: str) -> "SecondCase":
        """With f of the arrays of these names, or of all, the tangents included."""
        names = names or (*ARRAYS, *DOTS)
        more = tuple(f"{name}_dot" for name in names if name in ("Q", "K", "V") and len(names) < len(ARRAYS))
        found = super().with_arrays(f, *dict.fromkeys((*names, *more)))
        assert isinstance(found, SecondCase)
        return found

    def alone(self, *kept: str) -> "SecondCase":
        """With these tangents alone; the others are zero."""
        return self.with_arrays(lambda x: 0 * x, *(x for x in DOTS if x not in kept))


def with_tangents(case: Case, dtype: str, rng: np.random.Generator, kept: Sequence[str] = DOTS) -> SecondCase:
    """The problem with tangents at random, numbers of the format; those that are not kept are zero."""
    dots = dict[str, Any]()
    for name, x in zip(DOTS, (case.Q, case.K, case.V)):
        drawn = nearest(rng.standard_normal(x.shape), dtype)
        dots[name] = drawn if name in kept else 0 * drawn
    if "poison" in case.traits:  # a double backward multiplies three of them before it hides them
        case = case.with_arrays(lambda x: np.clip(x, -POISON, POISON), "K", "V")
    return moving(case, dots)


def moving(case: Case, dots: Mapping[str, Any]) -> SecondCase:
    """The problem with these tangents."""
    given: dict[str, Any] = {x: getattr(case, x) for x in (*ARRAYS, "causal", "scale", "name", "traits")}
    return SecondCase(**given, **dots)


def second_case(s: Steps) -> Any:
    """The problem, which has tangents."""
    return s.case


SECOND: dict[str, Step] = {
    **STEPS,
    # what is given, and what the tangent uses
    "Q_dot": lambda s: second_case(s).Q_dot,
    "K_dot": lambda s: second_case(s).K_dot,
    "V_dot": lambda s: second_case(s).V_dot,
    "gamma_t": lambda s: s.gamma,
    "owner_t": lambda s: s.owner,
    "owner_dot": lambda s: s.owner,
    "B_t": lambda s: s.B,
    "R_t": lambda s: s.R,
    "keys_t": lambda s: s.K[:, s.owner_t],
    "values_t": lambda s: s.V[:, s.owner_t],
    "keys_dot": lambda s: s.K_dot[:, s.owner_dot],
    "values_dot": lambda s: s.V_dot[:, s.owner_dot],
    "hidden": lambda s: np.isneginf(s.B_t) | np.zeros(s.seen.shape, bool),
    "A_t": lambda s: s.gamma * (s.factor(s.Q) @ T(s.factor(s.keys_t))) + s.B_t,
    "P_t": lambda s: s.spread(s.softmax(s.A_t)),
    "O_t": lambda s: (s.P_t * s.R_t) @ s.values_t,
    # the tangent of the output
    "QdotK": lambda s: s.factor(s.Q_dot) @ T(s.factor(s.keys_t)),
    "QKdot": lambda s: s.factor(s.Q) @ T(s.factor(s.keys_dot)),
    "QK_dot": lambda s: s.QdotK + s.QKdot,
    "A_dot": lambda s: s.shown(s.gamma_t * s.QK_dot),
    "mu": lambda s: rowsum(s.P_t * s.A_dot),
    "P_dot": lambda s: s.P_t * (s.A_dot - s.mu),
    "R_P": lambda s: s.R_t,
    "R_V": lambda s: s.R_t,
    "PdotV": lambda s: (s.P_dot * s.R_P) @ s.values_t,
    "PVdot": lambda s: (s.P_t * s.R_V) @ s.values_dot,
    "O_dot": lambda s: s.PdotV + s.PVdot,
    # the tangents of the gradients
    "R_first": lambda s: s.R_t,
    "R_dP": lambda s: s.R_t,
    "R_dV": lambda s: s.R_t,
    "gamma_Q": lambda s: s.gamma_back,
    "gamma_K": lambda s: s.gamma_back,
    "dP": lambda s: s.shown((s.dO @ T(s.values_t)) * s.R_first),
    "D": lambda s: rowsum(s.P_t * s.dP),
    "dA": lambda s: s.shown(s.P_t * (s.dP - s.D)),
    "mu_back": lambda s: s.mu,
    "P_dot_back": lambda s: s.P_t * (s.A_dot - s.mu_back),
    "dP_dot": lambda s: s.shown((s.dO @ T(s.values_dot)) * s.R_dP),
    "DPdot": lambda s: rowsum(s.P_dot_back * s.dP),
    "DVdot": lambda s: rowsum(s.P_t * s.dP_dot),
    "D_dot": lambda s: s.DPdot + s.DVdot,
    "D_first": lambda s: s.D,
    "dA_first": lambda s: s.P_dot_back * (s.dP - s.D_first),
    "dA_second": lambda s: s.P_t * (s.dP_dot - s.D_dot),
    "dA_dot": lambda s: s.shown(s.dA_first + s.dA_second),
    "dAdotK": lambda s: s.over(s.dA_dot, s.keys_t),
    "dAKdot": lambda s: s.over(s.dA, s.keys_dot),
    "dQ_dot": lambda s: s.gamma_Q * (s.dAdotK + s.dAKdot),
    "dAdotQ": lambda s: s.over(T(s.dA_dot), s.Q),
    "dAQdot": lambda s: s.over(T(s.dA), s.Q_dot),
    "dkeys_dot": lambda s: s.gamma_K * (s.dAdotQ + s.dAQdot),
    "dvalues_dot": lambda s: s.over(T(s.P_dot_back * s.R_dV), s.dO),
    "dK_dot": lambda s: s.group(s.dkeys_dot),
    "dV_dot": lambda s: s.group(s.dvalues_dot),
}
SECOND_DOWNSTREAM = downstream(SECOND)


class SecondSteps(Steps):
    """The letters of a head's second derivatives for one case."""

    table: Mapping[str, Step] = SECOND
    downstream: Mapping[str, frozenset[str]] = SECOND_DOWNSTREAM

    def output(self, letter: str) -> Any:
        """One of the outputs."""
        return getattr(self, letter)

    def second(self, letters: Iterable[str]) -> SecondAnswer:
        """Some of the outputs."""
        return SecondAnswer(**{letter: self.output(letter) for letter in letters})

    # what numbers with a bound do otherwise

    def softmax(self, A: Any) -> Any:
        return plain_softmax(A)

    def factor(self, x: Any) -> Any:
        """A factor of a product, that may be scaled before."""
        return x

    def over(self, a: Any, b: Any) -> Any:
        """A product whose growing sum may be stored tile by tile."""
        return a @ b

    def where(self, rows: np.ndarray, value: float, x: Any) -> Any:
        return np.where(rows, value, x)

    def group(self, x: Any) -> Any:
        return grouped(x, self.owner_t, self.K.shape[1])

    # queries that may attend to nothing

    def spread(self, P: Any) -> Any:
        """The weights, all alike in the rows of queries without keys where the conventions say so."""
        weight = empty_weight(self.means.empty, P.shape[-1])
        return self.where(self.hidden.all(-1, keepdims=True), weight, P) if weight else P

    def shown(self, x: Any) -> Any:
        """Zero at keys that are hidden, and in rows without keys where nothing passes through these."""
        empty = self.hidden.all(-1, keepdims=True)
        passes = str(self.means.empty).endswith("with gradient")
        return self.where(self.hidden & ~empty | (empty & (not passes)), 0.0, x)


def fits(case: SecondCase, means: Conventions, dtype: str) -> bool:
    """Whether no letter comes near the largest number of the format, which float16 alone has near."""
    if dtype != "float16":
        return True
    s = SecondSteps(case, means)
    s.second(LETTERS["double backward"])
    letters = (x for name, x in vars(s).items() if name in SECOND and name != "A_t" and np.ndim(x))
    return all(np.abs(x[np.isfinite(x)]).max(initial=0.0) < LARGEST for x in map(np.asarray, letters))


# ---- how far a correct program may be off -------------------------------------------------------


def worse(a: Bounded, *others: Bounded) -> Bounded:
    """The same number found in several ways, as far off as the worst."""
    off = a.off
    for b in others:
        off = np.maximum(off, b.off)
    return Bounded(a.x, off, a.f)


def _tangent_of_scores(s: Any) -> Bounded:
    """A program may subtract the tangent of the largest score from all, which is rounded at the size of both."""
    A_dot = s.shown(s.gamma_t * s.QK_dot)
    at = np.where(s.hidden, -np.inf, s.A_t.x).argmax(-1)[..., None]
    most = abs(np.take_along_axis(A_dot.x, at, -1))
    off = A_dot.off + s.f.entries * (abs(A_dot.x) + most) + np.take_along_axis(A_dot.off, at, -1) * s.f.entries
    return s.shown(Bounded(A_dot.x, off, s.f))


def _weighted_tangent(s: Any) -> Bounded:
    """P_dot V as it stands, or as (P A_dot) V - mu O, as it is found tile by tile."""
    return worse((s.P_dot * s.R_P) @ s.values_t, (s.P_t * s.A_dot * s.R_P) @ s.values_t - s.mu * s.O_t)


def _scores_tangent(s: Any) -> Bounded:
    """By the product rule, or by the two backward steps of softmax, as autograd has them."""
    into = s.dP_dot + s.A_dot * (s.dP - s.D) - s.dP * s.mu
    return s.shown(worse(s.dA_first + s.dA_second, s.P_t * (into - rowsum(s.P_t * into))).again())


def _exactly(letter: str) -> Step:
    return lambda s: Bounded(SECOND[letter](s), 0.0, s.f)


BOUNDED: dict[str, Step] = {
    **SECOND,
    **{x: _exactly(x) for x in ("Q", "K", "V", "dO", *DOTS)},
    "R": lambda s: 1.0 if s.case.R is None else s.case.R,
    "A_dot": _tangent_of_scores,
    "PdotV": _weighted_tangent,
    "D": lambda s: worse(rowsum(s.P_t * s.dP), rowsum(s.dO * s.O_t)),
    "D_dot": lambda s: worse(s.DPdot + s.DVdot, rowsum(s.dO * s.O_dot)),
    "dA": lambda s: s.shown((s.P_t * (s.dP - s.D)).again()),
    "dA_dot": _scores_tangent,
}


class BoundedSecond(SecondSteps):
    """The same steps with numbers that say how far a correct program may have them off."""

    table: Mapping[str, Step] = BOUNDED

    def __init__(self, case: SecondCase, means: Conventions, f: Model) -> None:
        super().__init__(case, means)
        self.f = f

    def softmax(self, A: Bounded) -> Bounded:
        return softmax_bounded(A)

    def factor(self, x: Bounded) -> Bounded:
        return x.again()

    def over(self, a: Bounded, b: Bounded) -> Bounded:
        stores = a.shape[-1] // STORED_AFTER
        once = a @ b
        return Bounded(once.x, once.off + stores * self.f.stored * (abs(a.x) @ abs(b.x)), self.f)

    def where(self, rows: np.ndarray, value: float, x: Bounded) -> Bounded:
        return Bounded(np.where(rows, value, x.x), np.where(rows, self.f.entries * abs(value), x.off), self.f)

    def group(self, x: Bounded) -> Bounded:
        G, H = self.K.shape[1], x.shape[1]
        total, size, off = (grouped(y, self.owner_t, G) for y in (x.x, abs(x.x), x.off))
        return Bounded(total, off + (H // G + 1) * max(self.f.sums, self.f.entries) * size, self.f).again()


def second_and_bounds(
    case: SecondCase, means: Conventions, dtype: str, part: str, primal: bool = False
) -> tuple[SecondAnswer, SecondAnswer]:
    """The right second derivatives in float64, and how far those of a correct program may be off."""
    letters = LETTERS[part]
    with np.errstate(all="ignore"):
        right = SecondSteps(case, means).second(letters)
        bounded = BoundedSecond(case, means, program(dtype, means))
        off = SecondAnswer(**{letter: bounded.output(letter).off for letter in letters})
    if primal:
        want, most = right_and_bounds(case, means, dtype)
        right, off = right._replace(O=want.O), off._replace(O=most.O)
    return right, off
