"""Parameters of a function over ranks: their gradients beside differences, its output over fewer ranks."""

from collections.abc import Iterator
from functools import partial
from math import log
from typing import Any

import numpy as np
import torch

from attnmath._examine.diagnosis.own_output import plain_cases, reference
from attnmath._examine.problems.case import Answer, Case
from attnmath._examine.problems.families import cases
from attnmath._examine.ranks.candidate import RankedCandidate, near
from attnmath._examine.ranks.replicated import with_findings
from attnmath._examine.report.report import Finding, Report


def with_parameters(e: Any, report: Report) -> Report:
    """The report of an examination, with what its parameters' gradients are, if it has parameters."""
    some = chosen(e)
    wide: Any = reference(e.candidate, e.means, some) if e.candidate.over.parameters and some else None
    if wide is None or report.status == 2:
        return report
    return with_findings(report, [*of_gradients(e, wide, some), *elsewhere(e, wide, some[0])])


def chosen(e: Any) -> list[Case]:
    """Two problems: a plain one, and a causal one where it may be causal."""
    some = [c for c in cases(e.candidate.takes, "float64", e.seed, e.candidate.taken) if c.sizes["m"] > 1]
    causal = [c for c in some if c.traits >= {"gaussian", "causal"} and not c.traits & {"groups", "scale"}]
    return [*plain_cases(some)[:1], *causal[:1]]


def of_gradients(e: Any, wide: RankedCandidate, some: list[Case]) -> Iterator[Finding]:
    """What the ranks' gradients of the parameters are."""
    over, kinds = wide.over, list[dict[str, str]]()
    for case in some:
        answer = wide.run(case, e.means).answer
        if answer is None:
            continue
        for name, x in over.parameters.items():
            rms = float(np.sqrt(np.mean(x.double().numpy() ** 2))) or 1.0
            size = float(np.linalg.norm(case.dO) * np.linalg.norm(answer.O))
            over.parts.read(name, partial(_change, e, wide, case, name), size, rms)
        kinds.append(dict(over.parts.means))
    for name, kind in (kinds[0] if kinds else {}).items():
        over.parts.means[name] = kind if all(x.get(name) == kind for x in kinds) else "other"
    yield from over.parts.findings(e.told, "parameters")


def _change(e: Any, wide: RankedCandidate, case: Case, name: str, direction: np.ndarray, h: float) -> float:
    """The change of <dO, O> between -h and h in a direction of a parameter."""
    up, down = (answered(e, wide, case, name, t * direction, True) for t in (h, -h))
    return float("nan") if up is None or down is None else float(((up.O - down.O) * case.dO).sum())


def answered(
    e: Any, wide: RankedCandidate, case: Case, name: str = "", by: Any = 0.0, forward: bool = False
) -> Answer | None:
    """The answer where a parameter is moved by something."""
    given = wide.over.parameters
    moved = given[name] + torch.as_tensor(by, dtype=torch.float64) if name else None
    wide.over.parameters = {**given, **({} if moved is None else {name: moved})}
    try:
        return wide.run(case, e.means, forward=forward).answer
    finally:
        wide.over.parameters = given


def elsewhere(e: Any, wide: RankedCandidate, case: Case) -> Iterator[Finding]:
    """Whether the output is that over another number of ranks: one, or one fewer where one is not taken."""
    R = wide.spread.ranks
    for other, suited, where in wide.others(case):
        here, there = answered(e, wide, suited), answered(e, other, suited)
        if here is None or there is None:
            continue
        if near(here.O, there.O, wide.dtype):
            return
        for name in wide.over.parameters:
            more = answered(e, other, suited, name, log(R / other.spread.ranks))
            if more is not None and more.there.keys() == here.there.keys() and all(
                    near(x, getattr(more, letter), wide.dtype) for letter, x in here.there.items()):
                title = f"{name} counts on each rank: it is as if it were larger by log {R}"
                yield Finding("mistake", "rank_counts", title, "O", "chapters/normalizers.md",
                              "add it once to each row, where the parts are merged")
                return
        yield Finding("unnamed", "unlike_elsewhere", f"its output over {R} ranks is not that {where}", "O")
        return
