"""Parameters of a function over ranks: their gradients beside differences, its output beside that on one rank."""

from collections.abc import Iterator
from functools import partial
from math import log
from typing import Any

import numpy as np
import torch

from attnmath._examine.diagnosis.own_output import plain_cases, reference
from attnmath._examine.problems.case import Case
from attnmath._examine.problems.families import cases
from attnmath._examine.ranks.candidate import ASKING, RankedCandidate
from attnmath._examine.ranks.pool import Pool
from attnmath._examine.ranks.replicated import with_findings
from attnmath._examine.ranks.spread import Spread
from attnmath._examine.report.report import Finding, Report

NEAR = {"float64": 1e-9, "float32": 1e-3}  # of the largest number: the same output, from another order of sums


def with_parameters(e: Any, report: Report) -> Report:
    """The report of an examination, with what its parameters' gradients are, if it has parameters."""
    some = chosen(e)
    wide = reference(e.candidate, e.means, some) if e.candidate.over.parameters and some else None
    if wide is None or report.status == 2:
        return report
    return with_findings(report, [*of_gradients(e, wide, some), *beside_one_rank(e, wide, some[0])])


def chosen(e: Any) -> list[Case]:
    """Two problems: a plain one, and a causal one where it may be causal."""
    some = [c for c in cases(e.takes, "float64", e.seed, e.candidate.taken) if c.sizes["m"] > 1]
    causal = [c for c in some if c.traits >= {"gaussian", "causal"} and not c.traits & {"groups", "scale"}]
    return [*plain_cases(some)[:1], *causal[:1]]


def of_gradients(e: Any, wide: RankedCandidate, some: list[Case]) -> Iterator[Finding]:
    """What the ranks' gradients of the parameters are."""
    over, kinds = wide.over, list[dict[str, str]]()
    for case in some:
        answer = wide.run(case, e.means).answer
        for name, x in over.parameters.items() if answer is not None else ():
            rms = float(np.sqrt(np.mean(x.double().numpy() ** 2))) or 1.0
            size = float(np.linalg.norm(case.dO) * np.linalg.norm(answer.O))
            over.parts.read(name, partial(_change, e, wide, case, name), size, rms)
        kinds.append(dict(over.parts.means))
    for name, kind in kinds[0].items():
        over.parts.means[name] = kind if all(x.get(name) == kind for x in kinds) else "other"
    yield from over.parts.findings(e.told, "parameters")


def _change(e: Any, wide: RankedCandidate, case: Case, name: str, direction: np.ndarray, h: float) -> float:
    """The change of <dO, O> between -h and h in a direction of a parameter."""
    up, down = (output(e, wide, case, name, t * direction) for t in (h, -h))
    return float("nan") if up is None or down is None else float(((up - down) * case.dO).sum())


def output(e: Any, wide: RankedCandidate, case: Case, name: str = "", by: Any = 0.0) -> np.ndarray | None:
    """The output where a parameter is moved by something."""
    given = wide.over.parameters
    wide.over.parameters = {x: p + torch.as_tensor(by) if x == name else p for x, p in given.items()}
    try:
        answer = wide.run(case, e.means, forward=True).answer
        return None if answer is None else answer.O
    finally:
        wide.over.parameters = given


def beside_one_rank(e: Any, wide: RankedCandidate, case: Case) -> Iterator[Finding]:
    """Whether the output is that of the same function on one rank that has all tokens."""
    over, here = wide.over, output(e, wide, case)
    if here is None or not isinstance(over.pool, Pool):
        return
    one = RankedCandidate(over.fn, None, Spread(1), time_limit=ASKING, options=wide.options, dtype=wide.dtype,
                          device=wide.device, parameters=over.parameters)
    try:
        alone = output(e, one, case)
        if alone is None:
            title = f"its output was not compared with that on one rank: {one.run(case, e.means).refusal.sentence}"
            yield Finding("convention", "not_judged", title)
        elif not near(here, alone, wide.dtype):
            R, evidence = over.spread.ranks, f"in a problem of the sizes {case.sizes}"
            for name in over.parameters:
                more = output(e, one, case, name, log(R))
                if more is not None and near(here, more, wide.dtype):
                    title = f"{name} counts on each rank: the output is that of {name} + log {R} on one rank"
                    yield Finding("mistake", "rank_counts", title, "O", "chapters/normalizers.md",
                                  "add it once to each row, where the parts are merged", evidence)
                    return
            yield Finding("unnamed", "unlike_one_rank", f"its output over {R} ranks is not that on one rank", "O",
                          evidence=evidence)
    finally:
        one.worker.close()
        one.close()


def near(x: np.ndarray, y: np.ndarray, dtype: str) -> bool:
    """Whether two outputs are the same up to the order of sums."""
    return bool(np.abs(x - y).max() <= NEAR[dtype] * np.abs(y).max())
