"""Beside the verdict: inference, empty rows, weights that no output depends on; the smallest problem."""

from collections import UserDict
from collections.abc import Mapping
from dataclasses import replace
from itertools import product

import numpy as np

from attnmath._examine.contract.functions import Broken
from attnmath._examine.layer.conventions import KnownLayer
from attnmath._examine.layer.draw import hiding
from attnmath._examine.layer.layer import Layer, LayerAnswer, LayerCase
from attnmath._examine.layer.run import forward, returned
from attnmath._examine.layer.running_error import right_output
from attnmath._examine.layer.tried import Tried
from attnmath._examine.problems import steps
from attnmath._examine.problems.steps import EMPTY_ROWS, StepChanges
from attnmath._examine.report.report import Finding
from attnmath.rounding.formats import unit_roundoff

SEED = 0  # of the smallest problem
EMPTY = "chapters/empty_rows.md"
NEAR = 2.0**-6  # of an array's largest number: what is hidden by -1e9 loses digits of its scores
TIMES = "gradients times m"
POLICIES: dict[str, list[StepChanges]] = {
    **{word: [changes] for word, changes in EMPTY_ROWS.items()},
    TIMES: [{**changes, **steps.FROM_O, "P": EMPTY_ROWS["uniform"]["P"]}  # exp(A - L), rounded, on the way back
            for word, changes in EMPTY_ROWS.items() if word.startswith("sum")],
    "unmasked": [{"B": lambda s, B: np.where(np.isneginf(B).all(-1, keepdims=True), 0.0, B)}],
}
UNUSUAL_POLICIES: dict[str | None, tuple[str, str]] = {
    TIMES: ("empty_row_times_m", "gives the mean of the values, and gradients that are too large, by a factor of"
            " the number of keys"),
    "unmasked": ("empty_row_unmasked", "reads all keys as if nothing were hidden"),
    None: ("empty_row_other", "gives neither 0 nor the mean or the sum of the values nor NaN"),
}


def inference(known: KnownLayer, case: LayerCase) -> list[Finding]:
    """Whether the output in eval() without gradients is right as well: there may be a fast path."""
    try:
        Y = forward(known.layer, case, known.dtype)
    except Broken as broken:
        return [Finding("contract", *broken.fault)]
    if right_output(Y, case, known.means, known.dtype):
        return []
    title = "the output under torch.no_grad() differs from that with gradients"
    return [Finding("unnamed", "inference", title, "Y", None, "look for a path for inference alone")]


def empty_case(known: KnownLayer, b: int, n: int, m: int) -> tuple[LayerCase, LayerAnswer | Broken]:
    """A problem in which the last sequence may read nothing, or the last query, and what came."""
    case = known.draw.case("nothing to read", b, n, m)
    b, n, m = case.lengths
    hidden = np.arange(b)[:, None, None, None] if by_sequence(known) else np.arange(n)[:, None]
    keep = np.broadcast_to(hidden < hidden.max(), (b, 1, 1, m) if by_sequence(known) else (1, 1, n, m))
    case = hiding(case, keep, "empty row")
    return case, known.answer(case)


def by_sequence(known: KnownLayer) -> bool:
    """Whether the keys of each sequence can be hidden apart."""
    return "b" in known.layer.masks and known.layer.batched


def empty_rows(known: KnownLayer) -> tuple[list[Finding], str | None]:
    """The policy for queries that may attend to nothing, and the hazard where it is none of the usual."""
    if not known.layer.masks:
        return [], None
    case, got = empty_case(known, 2, 3, 4)
    what = "a sequence of padding alone" if by_sequence(known) else "a query that may attend to nothing"
    if isinstance(got, Broken):
        return [Finding("hazard", "empty_row_raises", f"{what}: {got.fault.sentence}")], None
    bad = [name for name, x in got._asdict().items() if x is not None and not np.isfinite(x).all()]
    if not bad:
        word = policy(known, case, got)
        said = UNUSUAL_POLICIES.get(word)
        evidence = f"where the scores of {what} are hidden: {case.lengths[1]} queries, {case.lengths[2]} keys"
        cure = "hide with -inf, or True and False, and give 0 where a row is hidden"
        return [Finding("hazard", said[0], f"{what} {said[1]}", None, EMPTY, cure, evidence)] if said else [], (
            "uniform" if word == TIMES else word)
    _, least = empty_case(known, 1, 1, 1)
    same = not isinstance(least, Broken) and any(x is not None and np.isnan(x).any() for x in least)
    b, n, m = (1, 1, 1) if same else case.lengths
    weights = any(name[:2] in ("dW", "db") for name in bad)
    title = "makes gradients of weights NaN, for the whole batch" if weights else "makes the output NaN"
    evidence = f"smallest case: {b} x {n} queries, {m} keys, all of them hidden from the last of them"
    evidence += f"\n{known.layer.paste}" if known.layer.paste and same else ""
    return [Finding("hazard", "empty_row_nan", f"{what} {title}", "NaN in " + ", ".join(bad), EMPTY,
                    "leave it out, or let each query see one key", evidence)], "nan"


def policy(known: KnownLayer, case: LayerCase, got: LayerAnswer) -> str | None:
    """What a row that may attend to nothing gives: the nearest of those that are known, if it is near."""
    t = Tried.of(case, got, known.means, known.dtype)
    if not t.wrong:
        return "zero"
    far: dict[str, float] = {}
    for word, changes in ((word, x) for word, forms in POLICIES.items() for x in forms):
        s = t.steps((changes,))
        off = max(float(abs(getattr(got, x) - (form := getattr(s, x))).max() / (abs(form).max() or 1.0))
                  for x in t.names if x != "db_K")
        far[word] = min(off, far.get(word, off))
    nearest = min(far, key=lambda word: far[word])
    return nearest if far[nearest] <= max(NEAR, 8 * unit_roundoff(known.dtype)) else None


def further_weights(known: KnownLayer, case: LayerCase) -> list[Finding]:
    """The gradients of weights that a right output does not depend on: they need to be zero."""
    read = Recorded({name: np.zeros(shape) for name, shape in known.layer.shapes.items()})
    known.layer.ours(read)
    known.layer.learns(read)
    names = [name for name in known.layer.parameters if name not in read.seen]
    try:
        back = returned(known.layer, case, known.dtype)[1] if names else {}
    except Broken:
        return []
    return [Finding("unnamed", "further_weight", f"the gradient of {name} is not zero; no output depends on it",
                    f"d{name}") for name in names if name in back and back[name].any()]


class Recorded(UserDict[str, np.ndarray]):
    """Numbers by name, and which of them were read."""

    def __init__(self, numbers: Mapping[str, np.ndarray]) -> None:
        self.seen: set[str] = set()
        super().__init__(numbers)

    def __getitem__(self, name: str) -> np.ndarray:
        self.seen.add(name)
        return super().__getitem__(name)


# ---- the smallest problem that fails --------------------------------------------------------------


def smallest_case(known: KnownLayer) -> str | None:
    """The first problem that fails, in the order of its size, as lines to paste; halves and whole numbers."""
    layer, draw = known.layer, known._replace(seed=SEED).draw
    sizes = product((1, 2) if layer.batched else (1,), (1, 2, 3), (1, 2, 3) if layer.cross else (0,))
    for b, n, m in sorted(sizes, key=lambda s: (s[0] * (s[1] + s[2]), s)):
        for last_hidden in (False, True) if layer.masks and max(n, m) > 1 else (False,):
            t = known.trial(in_halves(draw.case("", b, n, m), layer, last_hidden))
            if isinstance(t, Tried) and t.wrong:
                return pasted_lines(t, last_hidden)
    return None


def in_halves(case: LayerCase, layer: Layer, last_hidden: bool) -> LayerCase:
    """A problem of the same sizes, drawn as the lines say."""
    rng = np.random.default_rng(SEED)

    def draw(shape: tuple[int, ...]) -> np.ndarray:
        return np.divide(rng.integers(-2, 3, shape), 2)

    X, Z, dY = draw(case.X.shape), None if case.Z is None else draw(case.Z.shape), draw(case.dY.shape)
    numbers, (_, n, m) = {name: draw(shape) for name, shape in layer.shapes.items()}, case.lengths
    case = replace(case, X=X, Z=Z, dY=dY, W=layer.ours(numbers), numbers=numbers, learned=layer.learns(numbers))
    keep = np.broadcast_to(np.arange(m) < max(m - 1, 1), (1, 1, n, m))
    return hiding(case, keep) if last_hidden else case


def pasted_lines(t: Tried, last_hidden: bool) -> str:
    """The problem, and what is wrong in it."""
    def numbers(*x: int) -> str:
        return ", ".join(map(str, x))

    at = t.case.W.W_K.shape[1]
    tokens = {"X": t.case.X, "Z": t.case.Z, "dY": t.case.dY}
    out = ["import numpy as np", f"rng = np.random.default_rng({SEED})",
           "draw = lambda *shape: rng.integers(-2, 3, shape) / 2",
           *(f"{name} = draw({numbers(*x.shape)})" for name, x in tokens.items() if x is not None), "weights = {",
           *(f'    "{name}": draw({numbers(*x.shape)}),' for name, x in t.case.numbers.items()), "}"]
    out += [f"# its keys are Z[..., :{at}], its values Z[..., {at}:]"] if t.case.own_values else []
    out += ["# and the last key is hidden from every query"] if last_hidden else []
    for name in t.wrong:
        got, want = getattr(t.got, name), getattr(t.want, name)
        at = np.unravel_index(np.argmax(np.nan_to_num(abs(got - want), nan=np.inf)), got.shape)
        out.append(f"# {name}[{numbers(*map(int, at))}]: {got[at]:.8g}, right: {want[at]:.8g}")
    return "\n".join(out)
