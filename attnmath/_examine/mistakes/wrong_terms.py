"""Wrong terms: a factor, a sign, a row term, a transpose, a bias, a softmax, on the way forward or back."""

from collections.abc import Callable, Iterator

import numpy as np

from attnmath._examine.mistakes.operators import OF_READ, POWERS, Place
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import ATTENTION, BACK, GROUPS, Mistake, StepChanges, Wordings, only
from attnmath._words.arrays import rowsum


def dS_flipped(case: Case, means: Conventions) -> Wordings:
    in_dQ, in_dK = Place("dQ", "dA"), Place("dkeys", "dA")
    exchanged, transposed = OF_READ.values()
    yield "in dQ and dK", {**in_dQ.change(transposed), **in_dK.change(exchanged)}
    yield "in dQ", in_dQ.change(transposed)
    for read in (transposed, exchanged):
        yield "in dQ and dK", {**in_dQ.change(read), **in_dK.change(read)}
        yield "in dQ, dK and dB", {"dA": read}


def wrong_values(case: Case, means: Conventions) -> Wordings:
    in_dP = Place("dP", "values_back")

    def change(values: object) -> StepChanges:
        return in_dP.change(lambda s, x: s.V[:, values])

    G, owner = case.V.shape[1], case.owner(means)
    for by in range(1, G):
        yield f"head h + {by}", change((owner + by) % G)
    for g in range(G if G > 1 else 0):
        yield f"head {g} always", change([g])
    if 1 < G < len(owner):
        yield "h mod G and h // (H/G) are mixed up", change(case.other_owner(means))
    for by in (1, -1) if len(owner) > 1 else ():
        yield "of the next query head", in_dP.change(steps.bind(lambda s, x, by: np.roll(x, by, 1), by))


def over_axis(*axes: int) -> StepChanges:
    def softmax(A: np.ndarray) -> np.ndarray:
        E = np.exp(A - A.max(axes, keepdims=True, initial=-1e300))
        return E / np.maximum(E.sum(axes, keepdims=True), 1e-300)

    return {"P": lambda s, x: softmax(s.A), "P_back": lambda s, x: softmax(s.A_back),
            "D": lambda s, D: (s.P_back * s.dP).sum(axes, keepdims=True)}


# a softmax that is computed tile by tile


def tilings(m: int) -> Iterator[tuple[str, list[slice]]]:
    for t in dict.fromkeys([*POWERS, *range(20, 2, -1)]):
        if t < m:
            yield f"tiles of {t} keys", [slice(i, min(i + t, m)) for i in range(0, m, t)]
    for parts in (2, 3, 4, 8):
        if parts < m:
            t = -(-m // parts)
            yield f"{parts} parts of the keys", [slice(i, min(i + t, m)) for i in range(0, m, t)]
    if m > 2:
        yield "2 parts of the keys, the first the shorter", [slice(0, m // 2), slice(m // 2, m)]


def by_tile(A: np.ndarray, tiles: list[slice]) -> np.ndarray:
    return np.concatenate([steps.plain_softmax(A[..., t]) for t in tiles], -1)


def local_softmax(case: Case, means: Conventions) -> Wordings:
    for word, tiles in tilings(case.K.shape[2]):
        yield word, {"P_back": steps.bind(lambda s, P, tiles: by_tile(s.A_back, tiles), tiles)}


def running_maximum(s: steps.Steps, tiles: list[slice]) -> np.ndarray:
    """For each key the largest score of its row so far, at the end of the key's tile."""
    own = np.concatenate([s.A[..., tile].max(-1, keepdims=True) for tile in tiles], -1)
    top = np.maximum.accumulate(own, -1)
    top = np.where(np.isneginf(top), 0.0, top)
    return np.repeat(top, [tile.stop - tile.start for tile in tiles], -1)


def kept_as_gathered(numerator: bool, total: bool) -> Callable[..., np.ndarray]:
    """What is gathered, or its sum, is not multiplied by exp(old maximum - new maximum)."""
    def form(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
        top = running_maximum(s, tiles)
        above, below = (np.exp(s.A - (top if kept else top[..., -1:])) for kept in (numerator, total))
        return above / rowsum(below)

    return form


def wrong_sign(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
    """What was gathered before is multiplied by exp(new maximum - old maximum)."""
    top = running_maximum(s, tiles)
    return P * np.exp(np.minimum(2 * (top[..., -1:] - top), 700.0))


def merged_by(weigh: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """Parts with a softmax of their own, merged with weights that are exp of this instead of the log-sum-exp."""
    def form(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
        weights = steps.plain_softmax(np.concatenate([weigh(s.A[..., t]) for t in tiles], -1))
        return by_tile(s.A, tiles) * np.repeat(weights, [t.stop - t.start for t in tiles], -1)

    return form


MERGES: dict[str, Callable[..., np.ndarray]] = {
    "neither what is gathered nor its sum is multiplied by exp(old maximum - new maximum)":
        kept_as_gathered(True, True),
    "what is gathered is not multiplied by exp(old maximum - new maximum), though its sum is":
        kept_as_gathered(True, False),
    "the sum is not multiplied by exp(old maximum - new maximum), though what is gathered is":
        kept_as_gathered(False, True),
    "each has a softmax of its own, and their outputs are added": lambda s, P, tiles: by_tile(s.A, tiles),
    "each has a softmax of its own, and their outputs are averaged":
        lambda s, P, tiles: by_tile(s.A, tiles) / len(tiles),
    "what is gathered is multiplied by exp(new maximum - old maximum), the inverse of the factor": wrong_sign,
    "the output is divided by the sum of the last tile alone": lambda s, P, tiles: P / rowsum(P[..., tiles[-1]]),
    "their outputs are weighted by exp of their maxima, in place of exp of their log-sum-exp":
        merged_by(lambda A: A.max(-1, keepdims=True)),
    "their log-sum-exp is in base 2, and taken for one in base e":
        merged_by(lambda A: steps.log_sum_exp(A) / np.log(2)),
}


def bias_after(case: Case, means: Conventions) -> Wordings:
    if case.bias is not None:
        yield "", {"B": lambda s, x: x - s.bias, "P": lambda s, P: P + s.bias}


def epsilon(case: Case, means: Conventions) -> Wordings:
    for number in (1.0, 0.1, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6):
        yield f"{number:g}", {"P": steps.bind(
            lambda s, P, c: P / (1 + c * np.exp(s.A.max(-1, keepdims=True, initial=-1e300) - s.L)), number)}


def padded_sum(case: Case, means: Conventions) -> Wordings:
    """Keys that fill the last tile have the score 0, and come into the sum."""
    m = case.K.shape[2]
    for t in POWERS:
        if m % t:
            yield f"tiles of {t} keys", {"P": steps.bind(lambda s, P, more: P / (1 + more * np.exp(-s.L)), -m % t)}


def sum_in_tile(s: steps.Steps, D: np.ndarray, tiles: list[slice], P: np.ndarray | None = None) -> np.ndarray:
    through = (s.P_back if P is None else P) * s.dP
    return np.concatenate([np.broadcast_to(rowsum(through[..., t]), through[..., t].shape) for t in tiles], -1)


def sum_of_own_weights(s: steps.Steps, D: np.ndarray, tiles: list[slice]) -> np.ndarray:
    return sum_in_tile(s, D, tiles, by_tile(s.A_back, tiles))


def D_of_tile(case: Case, means: Conventions) -> Wordings:
    for word, tiles in tilings(case.K.shape[2]):
        yield word, {"D": steps.bind(sum_in_tile, tiles)}
        yield f"{word}, with weights that add up to 1 in each", {"D": steps.bind(sum_of_own_weights, tiles)}


def first_tile(case: Case, means: Conventions) -> Wordings:
    m = case.K.shape[2]
    for word, tiles in tilings(m):
        places = np.arange(m) % tiles[0].stop
        stale = steps.bind(lambda s, x, places: x[:, :, places], places)
        for which in ("keys", "values"), ("keys",), ("values",):
            yield f"{word}: {' and '.join(which)}", {f"{x}_back": stale for x in which}


def merged(form: Callable[..., np.ndarray]) -> Callable[[Case, Conventions], Wordings]:
    """Tiles are put together wrongly."""
    def forms(case: Case, means: Conventions) -> Wordings:
        for word, tiles in tilings(case.K.shape[2]):
            yield word, {"P": steps.bind(form, tiles), "P_back": lambda s, P: s.P}

    return forms


def padded_scale(t: int) -> Callable[[steps.Steps, float], float]:
    return lambda s, x: (-(-s.Q.shape[3] // t) * t) ** -0.5


SCALES: dict[str, tuple[str, Callable[[steps.Steps, float], float]]] = {
    "scale_usual": ("is 1/sqrt(d_k), where another was demanded", lambda s, x: s.Q.shape[3] ** -0.5),
    "f_noscale": ("is missing: gamma = 1", lambda s, x: 1.0),
    "f_scale_dk": ("is 1/d_k", lambda s, x: 1 / s.Q.shape[3]),
    "f_scale_dv": ("is 1/sqrt(d_v)", lambda s, x: s.V.shape[3] ** -0.5),
    "f_scale_heads": ("is 1/sqrt(H)", lambda s, x: s.Q.shape[1] ** -0.5),
    "f_scale_keys": ("is 1/sqrt(m)", lambda s, x: s.K.shape[2] ** -0.5),
    "f_scale_dmodel": ("is 1/sqrt(H d_k)", lambda s, x: (s.Q.shape[1] * s.Q.shape[3]) ** -0.5),
    **{f"f_scale_padded_{t}": (f"is 1/sqrt of d_k rounded up to a multiple of {t}", padded_scale(t))
       for t in POWERS[:5]},
    "scale_sqrt_twice": ("is d_k^(-1/4): the root is taken twice", lambda s, x: s.Q.shape[3] ** -0.25),
}
WRONG_GRADIENTS: list[Mistake] = [
    *(Mistake("zeros", f"{who} are zero", only(steps.multiplied(*letters, by=lambda s: 0)), BACK,
              "return what was computed") for who, letters in (
        ("dK and dV", ("dkeys", "dvalues")), ("dQ, dK and dV", ("dQ", "dkeys", "dvalues")),
        ("dQ, dK, dV and dB", ("dQ", "dkeys", "dvalues", "dB")))),
    *(Mistake("no_jacobian", "the softmax's Jacobian is missing: dA = dP", only({"dA": dA}), steps.JACOBIAN,
              "dA = P o (dP - D)") for dA in (
        lambda s, x: np.where(s.P_back > 1e-40, s.dP, 0.0),  # 0 in each format
        lambda s, x: np.where(s.seen, s.dP, 0.0), lambda s, x: s.dP)),
    Mistake("diagonal_jacobian", "only the diagonal of the softmax's Jacobian is used: dA = P o (1 - P) o dP",
            only({"dA": lambda s, x: s.P_back * (1 - s.P_back) * s.dP}), steps.JACOBIAN, "dA = P o (dP - D)"),
    Mistake("dS_T", "the gradient of the scores is used transposed", dS_flipped, BACK,
            "dQ = gamma dA K, dK = gamma dA^T Q"),
    Mistake("dP_wrong_head", "dP is taken with another head's values", wrong_values, GROUPS,
            "dP of head h is dO_h V^T with the values that head h reads"),
    Mistake("dB_mean", "dB is a mean over the batch instead of a sum",
            only({"dB": lambda s, x: x / len(s.Q) if len(x) == 1 else x}, lambda case: case.bias is not None),
            BACK, "sum dA over the axes along which the bias was broadcast"),
]

WRONG_WEIGHTS: list[Mistake] = [
    *(Mistake(name, f"the scale {words}", only({"gamma": gamma}, lambda case: case.scale is None), ATTENTION,
              "gamma = 1/sqrt(d_k), or the scale that is demanded") for name, (words, gamma) in SCALES.items()),
    Mistake("f_exp2", "2**x is taken in place of exp(x)",
            only(steps.multiplied("gamma", "bias", "dB", by=lambda s: np.log(2))), ATTENTION,
            "multiply the scores by log2(e) first"),
    Mistake("mask_after_scale", "the bias is added before the scale, and scaled with the scores",
            only(steps.multiplied("bias", "dB", by=lambda s: s.gamma), lambda case: case.bias is not None),
            ATTENTION, "scale the scores first, then add the bias"),
    Mistake("scale_ignored", "the scale that is given is ignored", steps.ignored("gamma", "scale"), ATTENTION,
            "use it"),
    *(Mistake("f_axis", f"the softmax is taken over the {over} instead of the keys", only(over_axis(*axes)),
              steps.SOFTMAX, "softmax is taken over the last axis, the keys")
      for over, axes in (("queries", [-2]), ("heads", [1]), ("batch elements", [0]),
                         ("queries of all batch elements", [0, -2]))),
    Mistake("epsilon", "a number is added to the sum of a row", epsilon, ATTENTION,
            "a sum of exponentials is not 0"),
    Mistake("local_lse", "the weights of the way back are normalised tile by tile", local_softmax, BACK,
            "normalise by the log-sum-exp of the whole row"),
    Mistake("bias_after_softmax", "the bias is added to the weights, after the softmax", bias_after, ATTENTION,
            "add it to the scores"),
    Mistake("padded_sum", "the keys that fill a tile come into the sum of a row", padded_sum, ATTENTION,
            "hide them: their score is -inf, not 0"),
    Mistake("D_of_tile", "the row term D is that of each tile alone", D_of_tile, BACK,
            "sum over all keys of the row"),
    Mistake("first_tile", "in the way back every tile has what belongs to the first", first_tile, BACK,
            "each tile has its own keys and values"),
    *(Mistake("f_merge", f"tiles of keys are put together wrongly: {words}", merged(form), ATTENTION,
              "multiply what is there, and its sum, by exp(old maximum - new maximum)")
      for words, form in MERGES.items()),
]
