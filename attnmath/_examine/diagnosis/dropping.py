"""What dropout multiplies a weight by, and what a dropout mask holds: factors, or what is kept or dropped."""

from dataclasses import replace

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.diagnosis.probes import Reading, read_weights, small_problem
from attnmath._examine.diagnosis.repeated import unlike
from attnmath._examine.problems.case import Case, Conventions, Rng, Sizes
from attnmath._examine.report.report import Finding


def read_dropout(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Reading:
    """What a weight that is kept is multiplied by, at a rate of 3/4; and what a dropout mask holds."""
    if "dropout_mask" in candidate.options:
        return _read_dropout_mask(candidate, means, sizes, rng)
    R = np.full((sizes.b, sizes.H, sizes.n, sizes.m), 4.0)
    W = read_weights(candidate, small_problem(sizes, rng, R=R), means)
    if W is None:
        return None, []
    kept = W[W != 0]
    factor, share = (float(np.median(kept)) * sizes.m if kept.size else 0.0), kept.size / W.size
    if abs(factor - 4) < 0.1 and 0 < share < 0.5:
        return None, []
    return None, [_wrong_dropout(factor, share, share < 0.5)]


def _read_dropout_mask(candidate: Candidate, means: Conventions, sizes: Sizes, rng: Rng) -> Reading:
    """Factors, 0 or 1/(1 - rho), or what is kept, or what is dropped: the form that gives the right weights."""
    kept = rng.random((sizes.b, sizes.H, sizes.n, sizes.m)) < 0.4
    case, rate = small_problem(sizes, rng, R=4.0 * kept), "dropout" in candidate.options
    wrong: dict[str, float] = {}  # by which factor the kept weights are, where these are the right ones
    ignored = False
    for form in ("keep", "keep as numbers", "drop", "drop as numbers", "factors"):
        W = read_weights(candidate, case, means.told(dropout=form))
        if W is None or not kept.any():
            continue
        factor = float(np.median(W[kept])) * sizes.m
        if np.abs(W * sizes.m - case.R).max() < 0.1:
            if form != "factors":
                return form, []
            return _rate_without_effect(candidate, case, means) if rate else (None, [])
        ignored |= np.ptp(W * sizes.m) < 0.1 and abs(factor - 1) < 0.1
        if not W[~kept].any() and W[kept].all():
            wrong[form] = factor
    if not wrong:
        nothing = ignored and _without_effect(candidate, case, means)
        return None, [_wrong_dropout(1.0, 1.0, False)] if nothing else []
    form = "factors" if "factors" in wrong and not rate else next(iter(wrong))
    return form, [_wrong_dropout(wrong[form], float(kept.mean()), True)]


def _without_effect(candidate: Candidate, case: Case, means: Conventions) -> bool:
    """Whether a mask changes nothing, where the scores are not all alike."""
    draw = np.random.default_rng(5).standard_normal
    case = replace(case, Q=draw(case.Q.shape), K=draw(case.K.shape))
    some = [candidate.run(x, means, forward=True).answer for x in (case, replace(case, R=None))]
    return some[0] is None or some[1] is None or bool(np.abs(some[0].O - some[1].O).max() < 1e-6)


def _rate_without_effect(candidate: Candidate, case: Case, means: Conventions) -> Reading:
    """That a rate changes nothing beside factors: if a mask of what is kept is meant, its factor is missing.

    It is meant, if the gradients depend on the rate and the output does not.
    """
    assert case.R is not None
    name, numbers = candidate.options["dropout"], means.told(dropout="keep as numbers")
    rates = (replace(case, R=top * (case.R > 0)) for top in (4.0, 2.0))  # two rates, with the same mask
    one, other = (candidate.run(x, numbers).answer for x in rates)
    if one is None or other is None or "O" in (changed := unlike(one, other)):
        return None, []
    if changed:
        kept = candidate.run(case, means.told(dropout="keep")).answer is not None
        return "keep" if kept else "keep as numbers", [_wrong_dropout(1.0, float(np.mean(case.R > 0)), True)]
    title = (f"`{name}` changes nothing where a dropout mask is given: if the mask says what is kept,"
             " the factor 1/(1 - rho) is missing")
    cure = "divide by 1 - rho; or conventions={'dropout': 'factors'} says that the mask holds 0 or 1/(1 - rho)"
    return None, [Finding("hazard", "rate_without_effect", title, cure=cure)]


def _wrong_dropout(factor: float, share: float, drops: bool) -> Finding:
    """Dropout that is ignored, or whose factor is another."""
    if share == 1 and abs(factor - 1) < 0.1:
        return Finding("mistake", "dropout_ignored", "dropout is ignored", cure="multiply P by R")
    evidence = f"at the rate 0.75, {share:.0%} of the weights are kept, times {factor:.3g}"
    missing = abs(factor - 1) < 0.1 and drops
    kind, name = ("mistake", "f_drop_norescale") if missing else ("unnamed", "dropout_unexplained")
    return Finding(kind, name, "kept weights are not multiplied by 1/(1 - rho)", evidence=evidence)
