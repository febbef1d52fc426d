"""Beside the verdict: inference, rows that may attend to nothing, weights that no output depends on."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Broken
from attnmath._examine.layer.conventions import KnownLayer
from attnmath._examine.layer.draw import hiding
from attnmath._examine.layer.layer import LayerAnswer, LayerCase
from attnmath._examine.layer.run import forward, returned
from attnmath._examine.layer.running_error import right_output
from attnmath._examine.layer.tried import Tried
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import changes_of_empty_rows
from attnmath._examine.report.report import Finding


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


def padded(known: KnownLayer, b: int, n: int, m: int) -> tuple[LayerCase, LayerAnswer | Broken]:
    """A problem in which the last sequence may read nothing, and what came."""
    case = known.draw.case("nothing to read", b, n, m)
    b, _, m = case.lengths
    case = hiding(case, np.broadcast_to((np.arange(b) < b - 1)[:, None, None, None], (b, 1, 1, m)), "empty row")
    return case, known.answer(case)


def padding_alone(known: KnownLayer) -> tuple[list[Finding], str | None]:
    """The policy for a sequence that is padding alone; a hazard where NaN comes out."""
    if "b" not in known.layer.masks or not known.layer.batched:
        return [], None
    case, got = padded(known, 2, 3, 4)
    if isinstance(got, Broken):
        return [Finding("hazard", "empty_row_raises", f"a sequence of padding alone: {got.fault.sentence}")], None
    bad = [name for name, x in got._asdict().items() if x is not None and not np.isfinite(x).all()]
    if not bad:
        return [], policy(known, case, got)
    _, least = padded(known, 1, 1, 1)
    same = not isinstance(least, Broken) and any(x is not None and np.isnan(x).any() for x in least)
    b, n, m = (1, 1, 1) if same else (2, 3, 4)
    weights = any(name[:2] in ("dW", "db") for name in bad)
    title = "makes gradients of weights NaN, for the whole batch" if weights else "makes the output NaN"
    evidence = f"smallest case: {b} x {n} queries, {m} keys, all of them hidden in the last sequence"
    if known.layer.paste and same:
        evidence += "\n" + known.layer.paste
    return [Finding(
        "hazard", "empty_row_nan", f"a sequence of padding alone {title}", "NaN in " + ", ".join(bad),
        "chapters/empty_rows.md", "leave such sequences out, or let each query see one key", evidence,
    )], "nan"


def policy(known: KnownLayer, case: LayerCase, got: LayerAnswer) -> str | None:
    """What a row that may attend to nothing gives: zero, or the mean of the values."""
    t = Tried.of(case, got, known.means, known.dtype)
    if not t.wrong:
        return "zero"
    fitting = []
    for word in ("uniform", "uniform with gradient"):
        s = t.steps(changes_of_empty_rows(Conventions(empty=word)))
        if all(t.gives_output(name, s) for name in t.names):
            far = sum(float(abs(getattr(got, name) - getattr(s, name)).sum()) for name in t.names)
            fitting.append((far, word))
    return min(fitting)[1] if fitting else None


def further_weights(known: KnownLayer, case: LayerCase) -> list[Finding]:
    """The gradients of weights that a right output does not depend on: they need to be zero."""
    read = Recorded({name: np.zeros(shape) for name, shape in known.layer.shapes.items()})
    known.layer.ours(read)
    names = [name for name in known.layer.parameters if name not in read.seen]
    try:
        back = returned(known.layer, case, known.dtype)[1] if names else {}
    except Broken:
        return []
    return [Finding("unnamed", "further_weight", f"the gradient of {name} is not zero; no output depends on it",
                    f"d{name}") for name in names if name in back and back[name].any()]


class Recorded(dict[str, np.ndarray]):
    """Numbers by name, and which of them were read."""

    def __init__(self, numbers: Mapping[str, np.ndarray]) -> None:
        super().__init__(numbers)
        self.seen: set[str] = set()

    def __getitem__(self, name: str) -> np.ndarray:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """The same, where it is there."""
        self.seen.add(name)
        return super().get(name, default)
