"""A layer that is none of the list, or has a reference: its gradients beside differences, or the reference's."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice, product
from math import ceil
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Broken
from attnmath._examine.diagnosis.own_output import MOST_ROUNDINGS, PRECISE, ROUGH, derivatives, nearest_derivative
from attnmath._examine.layer.layer import Layer, LayerCase
from attnmath._examine.layer.own_layer import OwnLayer
from attnmath._examine.layer.run import forward, returned
from attnmath._examine.problems.case import Conventions
from attnmath._examine.report.report import UNLISTED, Finding, Report, TriedProblem
from attnmath._formulas.heads import Weights
from attnmath._words.tolerance import CONSTANT
from attnmath.rounding.formats import nearest, ratio, unit_roundoff

LENGTHS = 5, 8, 16, 9, 49, 64, 17, 4, 50, 196, 128
NOTHING: Any = Weights._make([None] * len(Weights._fields))  # which weight is which is not known
PROBLEMS = 3
BENT = 2.0**-20  # of the tokens: a step so short that nothing but roundings is bent
SHAPES: list[Callable[[int, int], tuple[int, ...]]] = [  # of tokens: n and d
    lambda n, d: (2, n, d), lambda n, d: (n, d), lambda n, d: (2, d, n), lambda n, d: (2, d, n, n),
    lambda n, d: (2, n, n, d),
]
ZERO = 8.0  # roundings of the size that a gradient can have: below, it is as good as 0
LIMIT = 16.0  # times the error of the reference itself, of the largest in an array


def lengths_of(layer: Layer) -> list[int]:
    """The numbers of tokens to try."""
    return list(dict.fromkeys(layer.multiple * ceil(n / layer.multiple) for n in LENGTHS))


class OwnFunction:
    """A layer that is called, with sizes that it takes, and problems of these."""

    def __init__(self, own: OwnLayer, dtype: str, seed: int) -> None:
        self.own, self.dtype, self.rng = own, dtype, np.random.default_rng(seed)
        self.why, self.wide, self.layer = "it takes no tokens that were tried", "float64", None
        self.sizes: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        for way, shape in product(own.ways(), SHAPES[:1] if own.spread else SHAPES):
            if not self.sizes:
                layer = own.layer(way, "bnd", lambda x: NOTHING)
                self.sizes = list(islice(self._taken(layer, shape), PROBLEMS))
                self.layer = layer if self.sizes else None

    def _taken(self, layer: Layer, shape: Callable) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
        """The shapes of X and Z that it takes in its own format, or at least in float32."""
        widths = dict.fromkeys(n for w in self.own.weights.values() for n in reversed(w.shape))
        others = [x + (self.own.way.keys or 0 if self.own.way else 0) for x in widths]
        for d, d_z, n in product(widths, others if layer.cross else [0], lengths_of(layer)):
            lengths = (shape(n + 2, d_z), shape(n, d_z)) if layer.cross else ((),)
            for z, dtype in product(lengths, dict.fromkeys(("float64", self.dtype))):
                try:
                    size = forward(layer, self.case(layer, shape(n, d), z), dtype).size
                except Broken as broken:
                    self.why, size = broken.fault.sentence, 0
                if size:
                    self.wide = dtype
                    yield shape(n, d), z
                    break

    def case(self, layer: Layer, x: tuple[int, ...], z: tuple[int, ...]) -> LayerCase:
        """A problem of these shapes; dY comes later."""
        def normal(*shape: int, by: float = 1.0) -> np.ndarray:
            return nearest(by * self.rng.normal(size=shape), self.dtype)

        numbers = {k: normal(*s, by=x[-1] ** -0.5 if len(s) > 1 else 0.5) for k, s in layer.shapes.items()}
        X, name = normal(*x), f"tokens {x}" + f", {z}" * bool(z)
        return LayerCase(X, normal(*z) if z else None, NOTHING, X, numbers=numbers, name=name)

    def cases(self, layer: Layer) -> Iterator[LayerCase]:
        """A problem of each of its sizes, and one with larger tokens."""
        for i, (x, z) in enumerate([*self.sizes, self.sizes[0]]):
            case = self.case(layer, x, z)
            dY = nearest(self.rng.normal(size=forward(layer, case, self.wide).shape), self.dtype)
            yield replace(case, dY=dY, X=nearest(case.X * (2 if i == len(self.sizes) else 1), self.dtype))


def as_own_function(
    own: OwnLayer, reference: OwnLayer | None, dtype: str | None, told: Conventions, seed: int,
    findings: list[Finding],
) -> Report:
    """The report on a layer that is none of the list, or that has a reference."""
    dtype = dtype or str(next(iter(own.weights.values())).dtype).rpartition(".")[2]
    f = OwnFunction(own, dtype, seed)
    found, problems = own_findings(f) if reference is None else beside_reference(f, reference)
    kinds = {x.kind for x in (*found, *findings)}
    verdict = "wrong" if "unnamed" in kinds or findings or found[0].name == "nondeterministic" else "right"
    if verdict == "right" and not any(p.judged for p in problems):
        verdict = "not judged"
    if verdict == "right" and "unlisted" in kinds:
        verdict = UNLISTED
    return Report(verdict, own.name, "torch", dtype, told, (*findings, *found, *untried(own)), told=told,
                  seed=seed, problems=tuple(problems), constant=CONSTANT)


def untried(own: OwnLayer, used: tuple[str | None, ...] = ()) -> list[Finding]:
    """What it could be called with, and was not; what was seen in what it returns."""
    names = [p.name for p in own.arguments() if p.default is not p.empty and p.name not in used]
    found = [Finding("convention", name, title) for name, title in own.notes.items()]
    if names:
        found.append(Finding("convention", "not_tried", "not tried: " + ", ".join(f"`{x}`" for x in names)))
    return found


def own_findings(f: OwnFunction) -> tuple[list[Finding], list[TriedProblem]]:
    """Whether the gradients of a layer are those of its own output."""
    layer = f.layer
    if layer is None:
        return [Finding("contract", "raises", f.why)], []
    off, wrong, problems = dict[str, float](), dict[str, float](), []
    for case in f.cases(layer):
        if problem := _unlike_itself(layer, case, f.wide):
            return [problem], []
        each = dict(_errors(f, layer, case))
        beyond = {name: error for name, (error, far) in each.items() if far}
        off |= {name: max(off.get(name, 0.0), error) for name, (error, _) in each.items()}
        wrong |= {name: max(wrong.get(name, 0.0), error) for name, error in beyond.items()}
        ratios = {f"d{name}": x for name, (x, _) in each.items()}
        problems.append(TriedProblem(case.name, frozenset({"gaussian"}), ratios, not beyond))
    evidence = (f"in {len(problems)} problems, differences of its output in {f.wide} are off from its gradients,"
                " of their size, by: " + ", ".join(f"d{name} {x:.1g}" for name, x in off.items()))
    where = "its output is not that of attention in the form of the list"
    if not wrong:
        title = "its gradients are those of its own output"
        return [Finding("unlisted", "own gradients", title, where, evidence=evidence)], problems
    much = ", ".join(f"d{x} is zero" if np.isinf(size) else f"d{x} differs by {size:.2g} of its size"
                     for x, size in wrong.items())
    title = f"it is no attention of the list, and its gradients are not those of its own output: {much}"
    return [Finding("unnamed", "own_gradients", title, where, evidence=evidence)], problems


def _unlike_itself(layer: Layer, case: LayerCase, dtype: str) -> Finding | None:
    """That the same call gives other numbers, or that one sequence depends on the others."""
    Y = forward(layer, case, dtype)
    near = max(PRECISE, MOST_ROUNDINGS * unit_roundoff(dtype)) * abs(Y).max(initial=0.0)

    def same(x: np.ndarray, y: np.ndarray) -> bool:
        return x.shape == y.shape and bool((abs(x - y) <= near).all())

    if not same(forward(layer, case, dtype), Y):
        return Finding("contract", "nondeterministic", "the same call gives other numbers, in eval()")
    if case.X.ndim < 3:
        return None
    for axis in (0, 1) if layer.multiple == 1 else (0,):
        at = (slice(None),) * axis + (slice(0, 1),)
        try:
            alone = forward(layer, replace(case, X=case.X[at], Z=None if case.Z is None else case.Z[at]), dtype)
        except Broken:
            return None
        if same(alone, Y[at]):
            return None
    return Finding("unnamed", "batch_mixed", "the sequences of a batch change each other's output", "Y",
                   cure="look at every reshape: axes of batch, heads and tokens are exchanged in one of them")


def _errors(f: OwnFunction, layer: Layer, case: LayerCase) -> Iterator[tuple[str, tuple[float, bool]]]:
    """For each argument, how far its gradient is from the derivative, and whether that is too far."""
    Y, wide = returned(layer, case, f.wide)
    _, own = returned(layer, case, f.dtype)
    most, precise = min(MOST_ROUNDINGS * unit_roundoff(f.dtype), 1 / 8), PRECISE
    up, down = (forward(layer, replace(case, X=case.X * (1 + t)), f.wide) for t in (BENT, -BENT))
    if abs(up - 2 * Y + down).max() > 1e-9 * abs(Y).max():  # some of it is in float32, whatever the format
        precise = 8 * ROUGH
    tokens = {"X": case.X} | ({} if case.Z is None else {"Z": case.Z})
    for name, x in {**tokens, **case.numbers}.items():
        direction, rms = f.rng.standard_normal(x.shape), float(np.sqrt(np.mean(x**2))) or 1.0
        slopes, size, beyond = derivatives(_change(layer, case, name, direction, f.wide), rms), 0.0, False
        scale = float(np.linalg.norm(case.dY) * np.linalg.norm(Y)) / rms
        for back, allowed, dtype in ((wide, precise, f.wide), (own, max(precise, most), f.dtype)):
            mine, length = float((back[name] * direction).sum()), float(np.linalg.norm(back[name]))
            zero = max(ZERO * unit_roundoff(dtype), 1e-12) * scale
            near = nearest_derivative(mine, max(length, zero), slopes)
            if near is None:
                continue
            beyond |= near[0] > max(allowed * length, zero, 8 * near[1])
            size = max(size, near[0] / length if length else np.inf if near[0] > zero else 0.0)
        yield name, (size, beyond)


def _change(
    layer: Layer, case: LayerCase, name: str, direction: np.ndarray, dtype: str
) -> Callable[[float], float]:
    """h -> the change of <dY, Y> between -h and h in a direction of one argument."""
    def moved(by: np.ndarray) -> LayerCase:
        if name in case.numbers:
            return replace(case, numbers={**case.numbers, name: case.numbers[name] + by})
        return replace(case, **{name: getattr(case, name) + by})

    def change(h: float) -> float:
        up, down = (forward(layer, moved(t * direction), dtype) for t in (h, -h))
        return float(((up - down) * case.dY).sum())

    return change


# ---- beside a reference -------------------------------------------------------------------------


def beside_reference(f: OwnFunction, reference: OwnLayer) -> tuple[list[Finding], list[TriedProblem]]:
    """Whether output and gradients are those of a layer with the same parameters, up to its own rounding."""
    g = OwnFunction(reference, f.dtype, 0)
    if f.layer is None or g.layer is None:
        return [Finding("contract", "raises", f.why if f.layer is None else f"the reference: {g.why}")], []
    problems, far, size = [], dict[str, float](), unit_roundoff(f.dtype)
    measured = f.dtype if size >= unit_roundoff("float32") else "float32"
    for case in f.cases(f.layer):
        try:
            want, rough = (_everything(g.layer, case, x) for x in (g.wide, measured))
            got = _everything(f.layer, case, f.dtype)
        except Broken as broken:
            problems.append(TriedProblem(case.name, frozenset(), {}, False, broken.fault.sentence))
            continue
        noise = {x: LIMIT * abs(rough[x] - y).max(initial=0.0) / unit_roundoff(measured) for x, y in want.items()}
        allowed = {x: np.full(y.shape, size * (noise[x] + 4 * abs(y).max(initial=0.0))) for x, y in want.items()}
        ratios = {x: ratio(got[x], y, allowed[x]) if got[x].shape == y.shape else np.inf for x, y in want.items()}
        far |= {name: max(x, far.get(name, 0.0)) for name, x in ratios.items() if x > 1}
        problems.append(TriedProblem(case.name, frozenset({"gaussian"}), ratios, max(ratios.values()) <= 1))
    found = [Finding("convention", "reference", f"judged beside the reference {reference.name}, in {g.wide}")]
    if far:
        much = ", ".join(f"{name} {x:.3g} times" for name, x in far.items())
        title = f"{' and '.join(far)} {'is' if len(far) == 1 else 'are'} not what {reference.name} gives"
        evidence = f"in units of what is allowed, {LIMIT:g} times the reference's own rounding: {much}"
        found.insert(0, Finding("unnamed", "unlike_reference", title, evidence=evidence))
    return found, problems


def _everything(layer: Layer, case: LayerCase, dtype: str) -> Mapping[str, np.ndarray]:
    Y, back = returned(layer, case, dtype)
    return {"Y": Y, **{f"d{name}": x for name, x in back.items()}}
