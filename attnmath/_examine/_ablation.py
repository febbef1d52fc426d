"""What has to be there for a candidate to fail: its problems' traits, one taken away at a time."""

from dataclasses import replace
from typing import TYPE_CHECKING

from attnmath._examine._case import Case
from attnmath._examine._failures import representatives
from attnmath._examine._report import Finding

if TYPE_CHECKING:
    from attnmath._examine._examination import Examination

# A trait that is a mechanism: failing with it, and only with it, is a name.
MECHANISMS = {
    "strided dO": ("dO_strides", "dO is read as if it were contiguous", "use dO's strides, or copy it first"),
    "broadcast dO": ("dO_strides", "dO is read as if it were contiguous", "use dO's strides, or copy it first"),
    "strided inputs": ("input_strides", "an input is read as if it were contiguous",
                       "use its strides, or copy it first"),
    "d_v != d_k": ("strides_of_K_for_V", "the width of V is taken to be that of K", "V and O have d_v columns"),
    "large negative scores": ("lse_overflow", "scores far below 0 are not survived",
                              "subtract the row's maximum; a place outside of the tile has score -inf, not 0"),
    "empty row": ("empty_row_nan", "a row that may attend to nothing does not give zero, and pass back zero",
                  "divide by the sum of a row only where it is not 0"),
    "poison": ("hidden_leaks", "what a mask hides comes through", "a hidden weight is exactly 0"),
}  # fmt: skip
STRIDES = ("dO_strides", "input_strides")  # what comes of these may look like a factor, or zeros
INGREDIENTS = {
    "mask": dict(keep=None), "causal": dict(causal=False), "bias": dict(bias=None), "dropout": dict(R=None),
    "scale": dict(scale=None),
}  # fmt: skip


def without(case: Case, trait: str) -> Case | None:
    """The same problem with one ingredient less, where that can be taken away."""
    s, rest = case.sizes, case.traits - {trait}
    if trait == "mask" and "poison" in rest:  # what it hides must stay hidden
        return None
    if trait in INGREDIENTS:
        return replace(case, **INGREDIENTS[trait], traits=rest)
    if trait in ("strided dO", "broadcast dO", "strided inputs"):
        return replace(case, traits=rest)
    if trait == "batch" and s["b"] > 1:
        first = {k: x[:1] if x is not None and x.shape[0] > 1 else x
                 for k in ("Q", "K", "V", "dO", "keep", "bias", "R")
                 for x in [getattr(case, k)]}  # fmt: skip
        return replace(case, **first, traits=rest)
    if trait == "groups" and s["H"] != s["G"]:
        g = s["H"] // s["G"]
        return replace(case, K=case.K.repeat(g, 1), V=case.V.repeat(g, 1), traits=rest)
    if trait == "d_v != d_k":
        d = min(s["d_k"], s["d_v"])
        first = {k: getattr(case, k)[..., :d] for k in ("Q", "K", "V", "dO")}
        return replace(case, **first, traits=rest)
    if trait == "n != m":
        n = min(s["n"], s["m"])
        if any(x is not None and x.ndim >= 2 for x in (case.keep, case.bias, case.R)):
            return None
        first = {k: getattr(case, k)[:, :, :n] for k in ("Q", "K", "V", "dO")}
        return replace(case, **first, traits=rest)
    return None


def vague(x: Finding) -> bool:
    """Whether a finding says what came, but not what was done."""
    return x.kind == "unnamed" or x.kind == "mistake" and (x.name == "zeros" or x.name.endswith("_scaled"))


def by_trait(e: "Examination", found: list[Finding]) -> list[Finding]:
    """The findings, with what has to be there for the unnamed ones, and a name where that is one."""
    failing = [p.traits for p in e.problems if not p.passed and p.ratios]
    passing = [p.traits for p in e.problems if p.passed]
    always = frozenset.intersection(*failing) - frozenset().union(*passing) if failing else frozenset()
    cures = []
    for f in representatives(sorted(e.failures, key=lambda f: f.size))[:2]:
        for trait in sorted(f.case.traits):
            other = without(f.case, trait)
            if other is not None and e.solves(other):
                cures.append(trait)
    words = f"; not without {' and not without '.join(dict.fromkeys(cures))}" if cures else ""
    words += f"; only with {' and '.join(sorted(always))}" if always else ""
    named = _mechanism(failing, passing, cures)
    out = []
    for x in found:
        if named and (x.kind == "unnamed" or vague(x) and named[1][0] in STRIDES):
            traits, (name, title, cure) = named
            evidence = f"no problem fails without {' or '.join(traits)}{'' if not cures else words}"
            out.append(Finding("mistake", name, title, x.where, None, cure, evidence))
        else:
            out.append(replace(x, evidence=(x.evidence or "") + words) if x.kind == "unnamed" else x)
    return [x for i, x in enumerate(out) if x.kind != "mistake" or x.name not in {y.name for y in out[:i]}]


def _mechanism(
    failing: list[frozenset[str]], passing: list[frozenset[str]], cures: list[str]
) -> tuple[list[str], tuple[str, str, str]] | None:
    """The mechanism that all failures have; without it they are solved, or none with it is."""
    for meant in dict.fromkeys(MECHANISMS.values()):
        traits = {t for t, x in MECHANISMS.items() if x == meant}
        if all(traits & f for f in failing) and (traits & {*cures} or not any(traits & p for p in passing)):
            return sorted(traits & frozenset().union(*failing)), meant
    return None
