"""Weights that all ranks have alike: is a rank's gradient its own part, or the sum over the ranks?"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.diagnosis.own_output import PRECISE, derivatives, nearest_derivative
from attnmath._examine.problems.case import Conventions
from attnmath._examine.report.report import Finding, Report

# Of a gradient on all ranks and their number, the whole gradient, by what each rank has.
READINGS: dict[str, Callable[[Sequence[Any], int], Any]] = {
    "sum": lambda parts, R: parts[0], "mean": lambda parts, R: R * parts[0], "part": lambda parts, R: sum(parts),
    "twice": lambda parts, R: parts[0] / R,
}
MEANT = {"sum": "summed over the ranks", "part": "each rank's own part, to be summed over the ranks",
         "mean": "means over the ranks"}
WRONG = {
    "part": ("not_summed", "are not summed over the ranks"),
    "mean": ("divided", "are divided by the number of ranks"),
    "sum": ("summed", "are summed over the ranks already, where each rank's own part is due"),
    "twice": ("twice", "are summed over the ranks twice"),
    "none": ("lost", "are zero, where the output depends on them"),
    "other": ("wrong", "are not those of the output, neither a rank's nor their sum"),
    "unused": ("unused", "are zero, as the output does not depend on them"),
}
UNJUDGED = "none", "other", "unused"  # which no reading makes right
ONCE = "sum the gradient of what all ranks have over the ranks, once"
CURES = {"unused": "use it in the output", "sum": "leave the sum over the ranks to the caller"}


class Parts:
    """For each weight the gradients of all ranks, as they came last, and what they are."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.came = ranks, dict[str, list[np.ndarray]]()
        self.means: dict[str, str] = {}  # by weight, of READINGS or UNJUDGED

    def whole(self, name: str, parts: list[Any]) -> Any:
        """The gradient, from those of all ranks."""
        self.came[name] = [x.detach().cpu().double().numpy() for x in parts]
        usual = next((x for x in self.means.values() if x in MEANT), "part")
        return READINGS.get(self.means.get(name, usual), READINGS[usual])(parts, self.ranks)

    def read(self, name: str, change: Callable[[np.ndarray, float], float], size: float, rms: float) -> None:
        """What the gradients that came are, beside differences of the output.

        change(direction, h) -> by what the loss changes from -h to h; size: of the loss, rms: of the weight
        """
        came = self.came[name]
        direction = np.random.default_rng(11).standard_normal(came[0].shape)
        slopes = derivatives(lambda h: change(direction, h), rms)
        along, least = [float((x * direction).sum()) for x in came], 1e-12 * size / rms

        def known(mine: float) -> bool:
            near = nearest_derivative(mine, max(abs(mine), least), slopes)
            return near is not None and near[0] <= max(100 * PRECISE * abs(mine), least, 8 * near[1])

        if not any(x.any() for x in came):
            self.means[name] = "unused" if known(0.0) else "none"
            return
        turned = [along[r:] + along[:r] for r in range(self.ranks)]
        self.means[name] = next((word for word, whole in READINGS.items()
                                 if all(known(whole(x, self.ranks)) for x in turned)), "other")

    def findings(self, told: Conventions, what: str) -> Iterator[Finding]:
        """What is wrong with them, and what is meant; a hazard where nobody stated what is not a sum."""
        kinds = {word: [name for name, x in self.means.items() if x == word] for word in (*READINGS, *UNJUDGED)}
        meant = told.replicated or next((word for word in MEANT if kinds[word]), None)
        for word, names in kinds.items():
            who = " and ".join(filter(None, [", ".join(names[:-1]), *names[-1:]]))
            if names and word != meant:
                name, said = WRONG[word]
                yield Finding("mistake", f"rank_weights_{name}", f"gradients of replicated {what} {said}: {who}",
                              ", ".join(f"d{x}" for x in names), "chapters/ring.md", CURES.get(word, ONCE))
            elif names:
                kind = "convention" if told.replicated or word == "sum" else "hazard"
                yield Finding(kind, f"replicated_{word}", f"the gradients of {who} are {MEANT[word]}",
                              cure=f"conventions={{'replicated': {word!r}}} says that it is meant")


def with_findings(report: Report, found: list[Finding]) -> Report:
    """The report with what was found beside; a mistake makes it wrong."""
    def of(*kinds: str) -> Iterator[Finding]:
        return (x for x in found if x.kind in kinds)

    verdict = "wrong" if any(of("mistake", "unnamed")) else report.verdict
    counted = any(x.name == "rank_counts" for x in found)  # which is why the output is wrong
    before = [x for x in report.findings if not (counted and x.kind == "unnamed")]
    findings = (*of("mistake", "unnamed"), *before, *of("convention"))
    return replace(report, verdict=verdict, findings=findings, hazards=(*report.hazards, *of("hazard")))
