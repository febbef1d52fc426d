"""Masks and groups that are others than they should be."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from attnmath._examine.mistakes.operators import POWERS
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import CAUSAL_MASK, GROUPS, Mistake, StepChanges, Wordings, only


def causal_unasked(case: Case, means: Conventions) -> Wordings:
    if not case.causal:
        yield "", steps.as_in("seen", replace(case, causal=True), means)


def bias_mask_ignored(case: Case, means: Conventions) -> Wordings:
    if case.bias is not None and np.isneginf(case.bias).any():
        yield "where it is in the bias", {"B": lambda s, x: np.zeros_like(x)}


def aligned(case: Case, means: Conventions) -> Wordings:
    if case.causal:
        other = "upper_left" if means.causal != "upper_left" else "lower_right"
        yield "", steps.as_in("seen", case, means.told(causal=other))


def seen_as(word: str, change: StepChanges) -> Wordings:
    """Another mask; a query that it leaves without a key has zeros, or the mean of all values."""
    yield word, change
    yield f"{word}; a row without keys is uniform".removeprefix("; "), {**change, **steps.EMPTY_ROWS["uniform"]}


Rule = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]  # of i, j, where j begins, a tile: what is seen
SHIFTED: dict[str, Rule] = {
    "a query does not see its own place": lambda i, j, start, t: j <= i + start - 1,
    "a query sees one place too many": lambda i, j, start, t: j <= i + start + 1,
}
RULES: dict[str, Rule] = {  # with tiles, or a buffer of t places
    "tiles of {} are hidden as a whole or not at all":
        lambda i, j, start, t: j // t * t <= i // t * t + t - 1 + start,
    "a query has its number in a tile of {}": lambda i, j, start, t: j <= i % t + start,
    "beyond {} places nothing is hidden": lambda i, j, start, t: (j <= i + start) | (i >= t) | (j >= t),
    "the future is seen, and the past is hidden": lambda i, j, start, t: j > i + start,
    "the present and the future are seen": lambda i, j, start, t: j >= i + start,
    "its diagonal is shifted by n - m": lambda i, j, start, t: j <= i + len(i) - len(j),
    "beyond {} places all is hidden": lambda i, j, start, t: (j <= i + start) & (i < t) & (j < t),
}


def causal_by(rules: dict[str, Rule]) -> steps.Forms:
    """Another rule than j <= i + start."""
    def forms(case: Case, means: Conventions) -> Wordings:
        n, m = case.Q.shape[2], case.K.shape[2]
        i, j, start = np.arange(n)[:, None], np.arange(m), 0 if means.causal == "upper_left" else m - n
        keep = True if case.keep is None else case.keep
        for word, rule in rules.items() if case.causal else ():
            for t in (256, *POWERS) if "{}" in word else (1,):
                yield from seen_as(word.format(t), {"seen": steps.bind(
                    lambda s, x, seen: np.broadcast_to(seen, x.shape), rule(i, j, start, t) & keep)})

    return forms


def either_mask(case: Case, means: Conventions) -> Wordings:
    if case.causal and case.keep is not None:
        yield "", {"seen": lambda s, x: case.without("keep").seen(means) | case.without("causal").seen(means)}


def inverted(case: Case, means: Conventions) -> Wordings:
    if case.keep is not None:
        yield from seen_as("", steps.as_in("seen", replace(case, keep=~case.keep), means))


def in_place_of_hidden_scores(scores: Callable[[steps.Steps, np.ndarray], np.ndarray]) -> StepChanges:
    return {"A": scores, "A_back": scores, "dA": lambda s, x: np.where(s.seen, x, 0.0)}


def hides(case: Case) -> bool:
    """Whether a mask that was asked for may hide a key."""
    return case.has("keep", "causal")


def finite_mask(case: Case, means: Conventions) -> Wordings:
    for number in (-1.0, -2.0, -5.0, -10.0, -20.0, -50.0, -100.0) if hides(case) else ():
        yield f"{number:g} is added", {"B": steps.bind(lambda s, x, c: s.bias + np.where(s.seen, 0.0, c), number)}
        yield f"{number:g} in place of the score", in_place_of_hidden_scores(
            steps.bind(lambda s, x, c: np.where(s.seen, x, c), number))


def mask_by_zero(case: Case, means: Conventions) -> Wordings:
    if not case.seen(means).all():
        yield "", in_place_of_hidden_scores(lambda s, x: np.where(s.seen, s.gamma * s.QK + s.bias, 0.0))


def other_groups(case: Case, means: Conventions) -> Wordings:
    yield "", {"owner": lambda s, x: case.other_owner(means)}


def other_heads(case: Case, means: Conventions) -> Wordings:
    """Heads of keys and values that are read in place of the own one."""
    right = case.owner(means)
    heads = np.arange(len(right))
    maps = {"all read the first": 0 * right, "all read the last": 0 * right + right.max(),
            "each reads that of the head before": np.roll(right, 1),
            "each reads that of the next head": np.roll(right, -1),
            **{f"head {h} reads the first": np.where(heads == h, 0, right) for h in heads[1:]}}
    for word, owner in maps.items():
        if (owner != right).any():
            yield word, {"owner": steps.bind(lambda s, x, owner: owner, owner)}


def other_sums(who: str) -> steps.Forms:
    def forms(case: Case, means: Conventions) -> Wordings:
        other = case.other_owner(means)
        sums: StepChanges = {"dK": lambda s, x: steps.grouped(s.dkeys, other, x.shape[1]),
                             "dV": lambda s, x: steps.grouped(s.dvalues, other, x.shape[1])}
        yield "", {x: step for x, step in sums.items() if x in who}

    return forms


def weighted_groups(pick: Callable[[int], np.ndarray]) -> StepChanges:
    """Sums over groups in which each member has the weight that pick gives for the size of the group."""
    def over(x: np.ndarray, s: steps.Steps) -> np.ndarray:
        weight = np.zeros(len(s.owner_back))
        for g in range(s.K.shape[1]):
            weight[s.owner_back == g] = pick(int(np.count_nonzero(s.owner_back == g)))
        return steps.grouped(x * weight[:, None, None], s.owner_back, s.K.shape[1])

    return {"dK": lambda s, x: over(s.dkeys, s), "dV": lambda s, x: over(s.dvalues, s)}


WRONG_MASKS: list[Mistake] = [
    # groups
    *(Mistake(name, f"{do} {who}", only({x: step for x, step in summed.items() if x in who}), GROUPS,
              "add over the group")
      for who in ("dK and dV", "dK", "dV") for name, do, summed in (
        ("gqa_last", "the last query head of a group alone comes into",
         weighted_groups(lambda size: np.arange(size) == size - 1)),
        ("gqa_first", "the first query head of a group alone comes into",
         weighted_groups(lambda size: np.arange(size) == 0)),
        ("gqa_mean", "a mean over each group, instead of a sum, comes into",
         weighted_groups(lambda size: np.full(size, 1 / size))),
        ("gqa_cut", "the first query heads alone, not sums over the groups, come into",
         {"dK": lambda s, x: s.dkeys[:, : x.shape[1]], "dV": lambda s, x: s.dvalues[:, : x.shape[1]]}))),
    *(Mistake("gqa_map_bwd", f"other groups are summed in {who}: h mod G and h // (H/G) are mixed up",
              other_sums(who), GROUPS, "query head h reads the head h // (H/G)")
      for who in ("dK and dV", "dK", "dV")),
    Mistake("f_gqa_map", "query heads read other heads of keys and values: h mod G and h // (H/G) are mixed up",
            other_groups, GROUPS, "query head h reads the head h // (H/G)"),
    Mistake("heads_read", "query heads read other heads of keys and values", other_heads, GROUPS,
            "query head h reads the head h // (H/G)"),
    # masks
    Mistake("f_align", "the causal mask has the other alignment", aligned, CAUSAL_MASK,
            "lower right: the last query has the place of the last key"),
    Mistake("causal_off_by_one", "the causal mask is off by one", causal_by(SHIFTED), CAUSAL_MASK, "j <= i"),
    Mistake("causal_ignored", "the causal mask is ignored", steps.ignored("seen", "causal"), CAUSAL_MASK,
            "use it"),
    Mistake("mask_ignored", "the mask is ignored", steps.ignored("seen", "keep"), CAUSAL_MASK, "use it"),
    Mistake("mask_ignored", "all masks are ignored", steps.ignored("seen", "keep", "causal"), CAUSAL_MASK,
            "use them"),
    Mistake("mask_ignored", "the mask is ignored", bias_mask_ignored, CAUSAL_MASK, "use it"),
    Mistake("causal_always", "it masks causally where that is not asked for", causal_unasked, CAUSAL_MASK,
            "mask where it is asked for"),
    Mistake("f_mask_inverted", "the mask's meaning is inverted", inverted, CAUSAL_MASK,
            "exchange True and False in the mask"),
    Mistake("f_mask_after", "the mask is put on the weights after the softmax",
            only({"B": lambda s, x: s.bias + np.zeros_like(x), "R": lambda s, x: x * s.seen}, hides), CAUSAL_MASK,
            "add -inf to the scores before the softmax"),
    Mistake("mask_leak_finite", "the mask is a number, and hidden keys keep a weight", finite_mask, CAUSAL_MASK,
            "a mask is -inf"),
    Mistake("mask_by_zero", "hidden scores are 0 instead of -inf", mask_by_zero, CAUSAL_MASK, "a mask is -inf"),
    Mistake("causal_rule", "the causal mask has another rule", causal_by(RULES), CAUSAL_MASK, "j <= i"),
    Mistake("either_mask", "what one of the mask and the causal mask lets through is seen", either_mask,
            CAUSAL_MASK, "both have to let it through"),
]
