"""What is right in one call and means something else in the next: on more axes, with a bias, as True and False."""

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.contract import MASK_FORMS
from attnmath._examine.contract.layouts import AXIS_ORDERS
from attnmath._examine.diagnosis.probes import gaussian_case, read_weights, small_problem
from attnmath._examine.problems.bounds import judge_answer, right_and_bounds
from attnmath._examine.problems.case import Case, Conventions, Sizes
from attnmath._examine.report.found import Finding

INVERSE = {"keep": "drop", "keep as numbers": "drop as numbers"}
INVERSE |= {drop: keep for keep, drop in INVERSE.items()}
BESIDE = {"bias": "a bias", "causal": "a causal mask", "scale": "a scale"}


def mask_doubts(candidate: Candidate, means: Conventions, told: Conventions, sizes: Sizes) -> list[Finding]:
    """What a mask hides in other calls than the one that its meaning was read in."""
    if means.mask is None or "mask" not in candidate.options:
        return []
    candidate = candidate.uncompiled()
    found = [] if told.mask else [_other_meaning(candidate, means, sizes), _added(candidate, means, sizes)]
    found += [] if told.mask_axes else [_other_axes(candidate, means, sizes)]
    return [x for x in found if x is not None]


def _drawn(case: Case, axes: str) -> np.ndarray:
    """What may be seen, different along these axes; each query sees the first key, and not the second."""
    sizes = dict(zip("bhnm", (case.sizes[x] for x in ("b", "H", "n", "m"))))
    keep = np.random.default_rng(6).random([size if x in axes else 1 for x, size in sizes.items()]) < 0.5
    keep[..., 0], keep[..., 1] = True, False
    return keep


def _hides(candidate: Candidate, means: Conventions, case: Case) -> bool | None:
    """Whether all weights of what is hidden are small, and no others; None where it does not answer."""
    W = read_weights(candidate, case, means)
    return None if W is None else bool(((W > 0.05 * W.max(-1, keepdims=True)) == case.seen(means)).all())


def _other_meaning(candidate: Candidate, means: Conventions, sizes: Sizes) -> Finding | None:
    """That True means the opposite in a call with another option."""
    if means.mask not in INVERSE:
        return None
    words, plain = candidate.options, small_problem(replace(sizes, n=sizes.m), np.random.default_rng(0))
    keep, several = _drawn(plain, means.mask_axes or "nm"), dict[str, dict[str, Any]]()
    scores = np.zeros((1, 1, plain.sizes["n"], plain.sizes["m"]))
    several["bias"], several["causal"], several["scale"] = {"bias": scores}, {"causal": True}, {"scale": 0.5}
    for word, fields in several.items():
        if word not in words or words[word] in (True, words["mask"]):
            continue
        case = replace(plain, keep=keep, **fields)
        turned = means.told(mask=INVERSE[means.mask])
        if _hides(candidate, means, case) is False and _hides(candidate, turned, case):
            without, beside = ("hides", "keeps") if means.mask.startswith("drop") else ("keeps", "hides")
            title = (f"the mask's meaning differs with and without {BESIDE[word]}:"
                     f" True {without} a key without it, and {beside} it with it")
            return Finding("mistake", "mask_meanings", title, cure="let True mean the same in every call")
    return None


def _added(candidate: Candidate, means: Conventions, sizes: Sizes) -> Finding | None:
    """That True and False are taken as well, and hide nothing: they are added as 1 and 0, or ignored."""
    case = small_problem(sizes, np.random.default_rng(0))
    case = replace(case, keep=_drawn(case, means.mask_axes or "nm"))
    if not (means.mask or "").startswith("add"):
        return None
    if any(_hides(candidate, means.told(mask=form), case) is not False for form in ("keep", "drop")):
        return None  # or they are refused
    title = "a mask of True and False is taken too, and hides nothing"
    cure = "hide by -inf, or refuse them; or conventions={'mask': 'add'} says that masks are numbers to be added"
    return Finding("hazard", "boolean_mask_added", title, cure=cure)


def _other_axes(candidate: Candidate, means: Conventions, sizes: Sizes) -> Finding | None:
    """That a mask of fewer axes is taken as well, and in no form hides what it says."""
    if not {"b", "h"} <= set(means.layout or "bhsd"):
        return None
    # No other axis is as long, so that none is taken for it: cut where there are more, or broadcast.
    for axes, b in (("bm", sizes.b), ("bnm", 1 + max(sizes.H, sizes.m))):
        case = small_problem(replace(sizes, n=sizes.m, b=b), np.random.default_rng(0))
        if b in (1, sizes.m, sizes.H) or sizes.H == sizes.m or candidate.told_sizes.get("b", b) != b:
            continue
        if not _hides(candidate, means, replace(case, keep=_drawn(case, means.mask_axes or "bnm"))):
            continue  # one for each batch element is taken wrongly, or so many are not: that is another matter
        masked = replace(case, keep=_drawn(case, axes))
        alike = [form for form in MASK_FORMS if form.startswith("add") is (means.mask or "").startswith("add")]
        forms = (means.told(mask=form, mask_axes=axes) for form in alike)
        hides = [x for x in (_hides(candidate, form, masked) for form in forms) if x is not None]
        if hides and not any(hides):
            usual = " ".join(means.mask_axes or "bhnm")
            title = (f"a mask with the axes {' '.join(axes)} is taken too, and does not hide the keys that it says"
                     f" (one with {usual} does)")
            cure = "give it the axes of the scores: mask[:, None, None, :] for b m; or refuse it"
            return Finding("mistake", "mask_on_other_axes", title, cure=cure)
    return None


def wider_layout(layout: str, refused: Collection[str]) -> list[Finding]:
    """That arrays with more axes in front are taken as well, and give something else."""
    wider = [x for x in AXIS_ORDERS if x.endswith(layout) and x not in (layout, *refused)]
    if layout not in AXIS_ORDERS or not wider:
        return []
    title = (f"arrays with the axes {' '.join(wider[0])} are taken too, and give something else than those with"
             f" {' '.join(layout)}, which are right")
    cure = f"count axes from the last, or refuse what has more; layout={layout!r} says that it takes these alone"
    return [Finding("mistake", "more_axes", title, cure=cure)]


def fewer_axes(
    candidate: Candidate, means: Conventions, told: Conventions, without: Collection[str]
) -> list[Finding]:
    """That arrays with fewer axes in front are taken as well, with a right output and other gradients."""
    sizes, layout, rng = candidate.sizes, means.layout or "", np.random.default_rng(0)
    if told.layout or candidate.layout or candidate.forward_only or sizes is None:
        return []
    for shorter in [x for x in AXIS_ORDERS if layout in AXIS_ORDERS and layout.endswith(x) and x != layout]:
        one = replace(sizes, b=1) if "h" in shorter else replace(sizes, b=1, H=1, G=None)
        for s in (replace(one, n=20, m=18), replace(one, n=20, m=20)):
            case, other = gaussian_case(s, rng, candidate.dtype), means.told(layout=shorter)
            got = candidate.run(case, other).answer
            if got is None:
                continue
            want, off = right_and_bounds(case, other, candidate.dtype)
            judged = judge_answer(got, want, off, candidate.dtype)
            wrong = [x for x, v in judged.items() if not v.passed and x not in without]
            if wrong and "O" not in wrong:
                title = (f"arrays with the axes {' '.join(shorter)} are taken too, and {', '.join(wrong)}"
                         f" {'are' if len(wrong) > 1 else 'is'} wrong with them")
                cure = f"count axes from the last, or refuse these; layout={layout!r} says that it takes no others"
                return [Finding("mistake", "fewer_axes", title, cure=cure)]
            break
    return []
