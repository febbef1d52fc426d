"""A layer over ranks: examined as one of all tokens, and what its ranks have as gradients of the weights."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Broken
from attnmath._examine.layer.layer import Layer, LayerCase
from attnmath._examine.layer.own_function import OwnFunction
from attnmath._examine.layer.own_layer import OwnLayer, found_weights
from attnmath._examine.layer.run import forward, returned
from attnmath._examine.problems.case import Conventions
from attnmath._examine.ranks.begin import judged_over_ranks
from attnmath._examine.ranks.replicated import MEANT, UNJUDGED, with_findings
from attnmath._examine.ranks.spread import Spread
from attnmath._examine.report.report import Report

REFUSED = "weights", "backward", "mask", "reference"  # what a layer over ranks is not given beside it
Examine = Callable[..., Report]


def layer_over_ranks(
    layer: Any, spread: Spread, given: Mapping[str, Any], isolate: bool, examine: Examine
) -> Report:
    """The report on a module of PyTorch that is called on each rank with its own tokens."""
    if beside := [name for name in REFUSED if given[name] is not None]:
        raise ValueError(f"examine_layer: over ranks it takes a layer without {' and '.join(beside)}")
    if not (hasattr(layer, "named_parameters") and found_weights(layer)):
        raise TypeError(f"examine_layer: layer is a {type(layer).__name__}; over ranks it needs to be a module of"
                        " PyTorch with weights")
    replicated = (given["conventions"] or {}).get("replicated")
    if replicated not in (None, *MEANT):
        one_of = ", ".join(MEANT)
        raise ValueError(f"examine_layer: conventions has replicated={replicated!r}; it needs one of {one_of}")
    work = partial(_examined, layer, spread, dict(given), examine)
    how = {"time_limit": given["time_limit"], "device": None}
    return judged_over_ranks(work, (layer, None), spread, how, lambda doing: None, isolate)


def _examined(
    layer: Any, spread: Spread, given: dict[str, Any], examine: Examine, say: Any, pool: Any = None
) -> Report:
    from attnmath._examine.ranks.layers import over_ranks
    from attnmath._examine.ranks.pool import Pool

    own_pool = pool is None and Pool((layer, None), spread.ranks, given["time_limit"])
    try:
        module, over = over_ranks(layer, found_weights(layer), spread, pool or own_pool)
        told = Conventions(**(given["conventions"] or {}))
        kinds_of_gradients(OwnLayer(module, over.weights, heads=given["heads"]), over, given["seed"] or 0)
        found = list(over.parts.findings(told, "weights"))
        for name in [x for x, kind in over.parts.means.items() if kind in UNJUDGED]:
            del over.parts.means[name]  # the problems tell
        report = examine(module, **given)
    finally:
        if own_pool:
            own_pool.close()
    report = replace(report, told=report.told.told(ranks=spread))
    return with_findings(report, [x for x in found if x.name not in LEFT])


LEFT = {f"rank_weights_{x}" for x in ("lost", "wrong", "unused")}


def kinds_of_gradients(own: OwnLayer, over: Any, seed: int) -> None:
    """For each weight whether a rank's gradient is its own part or the sum, beside differences of the output."""
    f = OwnFunction(own, "float64", seed)
    if f.layer is None:
        return
    layer, case = f.layer, next(f.cases(f.layer))
    try:
        Y, _ = returned(layer, case, f.wide)
        for name in list(over.parts.came):
            change = partial(_change, layer, case, name, f.wide)
            rms = float(np.sqrt(np.mean(case.numbers[name] ** 2))) or 1.0
            over.parts.read(name, change, float(np.linalg.norm(case.dY) * np.linalg.norm(Y)), rms)
    except Broken:  # the problems say why
        return


def _change(layer: Layer, case: LayerCase, name: str, dtype: str, direction: np.ndarray, h: float) -> float:
    """The change of <dY, Y> between -h and h in a direction of one weight."""
    moved = ({**case.numbers, name: case.numbers[name] + t * direction} for t in (h, -h))
    up, down = (forward(layer, replace(case, numbers=numbers), dtype) for numbers in moved)
    return float(((up - down) * case.dY).sum())
