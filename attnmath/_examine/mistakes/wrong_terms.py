"""Wrong terms: a factor, a sign, a row term, a transpose, a bias, a softmax, on the way forward or back."""

from collections.abc import Callable, Iterator

import numpy as np

from attnmath._examine.mistakes.operators import READINGS, misread_transpose, untransposed
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import ATTENTION, BACK, DROPOUT, GROUPS, Mistake, StepChanges, Wordings, only
from attnmath._words.arrays import T, rowsum, sum_to


def dS_flipped(case: Case, means: Conventions) -> Wordings:
    dQ: StepChanges = {"dQ": lambda s, x: s.gamma_back * misread_transpose(s.dA) @ s.keys_back}
    yield "in dQ and dK", {**dQ, "dkeys": lambda s, x: s.gamma_back * untransposed(s.dA) @ s.Q}
    yield "in dQ", dQ
    for read in READINGS:
        yield "in dQ and dK", {"dQ": steps.bind(lambda s, x, read: s.gamma_back * read(s.dA) @ s.keys_back, read),
                               "dkeys": steps.bind(lambda s, x, read: s.gamma_back * T(read(s.dA)) @ s.Q, read)}
        yield "in dQ, dK and dB", {"dA": steps.bind(lambda s, x, read: read(x), read)}


def dP_flipped(case: Case, means: Conventions) -> Wordings:
    for read in READINGS:
        yield "", {"dP": steps.bind(lambda s, x, read: read(x), read)}


def rolled(case: Case, means: Conventions) -> Wordings:
    for by, sign in ((1, "-"), (-1, "+")):
        yield f"that of row i {sign} 1", {"D": steps.bind(lambda s, D, by: np.roll(D, by, -2), by)}


def wrong_values(case: Case, means: Conventions) -> Wordings:
    def change(values: object) -> StepChanges:
        return {"dP": lambda s, x: (s.dO @ T(s.V[:, values])) * s.R_back}

    G, owner = case.V.shape[1], case.owner(means)
    for by in range(1, G):
        yield f"head h + {by}", change((owner + by) % G)
    for g in range(G if G > 1 else 0):
        yield f"head {g} always", change([g])
    for by in (1, -1) if len(owner) > 1 else ():
        yield "of the next query head", {
            "dP": steps.bind(lambda s, x, by: (s.dO @ T(np.roll(s.values_back, by, 1))) * s.R_back, by)}


def with_dropout(change: StepChanges) -> steps.Forms:
    return only(change, lambda case: case.R is not None)


def own_scale(gamma: Callable[[steps.Steps, float], float]) -> steps.Forms:
    return only({"gamma": gamma}, lambda case: case.scale is None)


def usual_scale(case: Case, means: Conventions) -> Wordings:
    if case.scale is None and means.scale not in (None, "1/sqrt(d_k)"):
        yield "", {"gamma": lambda s, x: s.Q.shape[3] ** -0.5}


def over_axis(axis: int) -> StepChanges:
    def softmax(A: np.ndarray) -> np.ndarray:
        return steps.plain_softmax(A.swapaxes(axis, -1)).swapaxes(axis, -1)

    return {"P": lambda s, x: softmax(s.A), "P_back": lambda s, x: softmax(s.A_back),
            "D": lambda s, D: (s.P_back * s.dP).sum(axis, keepdims=True)}


# a softmax that is computed tile by tile


def tilings(m: int) -> Iterator[tuple[str, list[slice]]]:
    for t in dict.fromkeys([128, 64, 32, 16, 8, 4, 2, 1, *range(20, 2, -1)]):
        if t < m:
            yield f"tiles of {t} keys", [slice(i, min(i + t, m)) for i in range(0, m, t)]


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


def unscaled(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
    E = np.exp(s.A - running_maximum(s, tiles))
    return E / rowsum(E)


def unscaled_numerator(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
    top = running_maximum(s, tiles)
    return np.exp(s.A - top) / rowsum(np.exp(s.A - top[..., -1:]))


def unscaled_sum(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
    top = running_maximum(s, tiles)
    return np.exp(s.A - top[..., -1:]) / rowsum(np.exp(s.A - top))


def sum_of_tiles(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
    return by_tile(s.A, tiles)


def mean_of_tiles(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
    return by_tile(s.A, tiles) / len(tiles)


def wrong_sign(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
    """What was gathered before is multiplied by exp(new maximum - old maximum)."""
    top = running_maximum(s, tiles)
    return P * np.exp(np.minimum(2 * (top[..., -1:] - top), 700.0))


def last_sum(s: steps.Steps, P: np.ndarray, tiles: list[slice]) -> np.ndarray:
    """Divided by the sum of the last tile alone."""
    return P / rowsum(P[..., tiles[-1]])


MERGES = unscaled, unscaled_numerator, unscaled_sum, sum_of_tiles, mean_of_tiles, wrong_sign, last_sum


def padded_sum(case: Case, means: Conventions) -> Wordings:
    """Keys that fill the last tile have the score 0, and come into the sum."""
    m = case.K.shape[2]
    for t in (128, 64, 32, 16, 8, 4, 2):
        if m % t:
            yield f"tiles of {t} keys", {"P": steps.bind(lambda s, P, more: P / (1 + more * np.exp(-s.L)), -m % t)}


def D_of_tile(case: Case, means: Conventions) -> Wordings:
    for word, tiles in tilings(case.K.shape[2]):
        yield word, {"D": steps.bind(lambda s, D, tiles: np.concatenate([
            np.broadcast_to(rowsum((s.P_back * s.dP)[..., t]), s.dP[..., t].shape) for t in tiles], -1), tiles)}


def first_tile(case: Case, means: Conventions) -> Wordings:
    m = case.K.shape[2]
    for word, tiles in tilings(m):
        places = np.arange(m) % tiles[0].stop
        yield word, {"keys_back": steps.bind(lambda s, x, places: x[:, :, places], places),
                     "values_back": steps.bind(lambda s, x, places: x[:, :, places], places)}


def merged_unscaled(case: Case, means: Conventions) -> Wordings:
    """Tiles are put together without the factor between their maxima, in several ways."""
    for word, tiles in tilings(case.K.shape[2]):
        for form in MERGES:
            yield word, {"P": steps.bind(form, tiles), "P_back": lambda s, P: s.P}


def all_zero(title: str, *letters: str) -> Mistake:
    zero = steps.multiplied(*letters, by=lambda s: 0)
    return Mistake("zeros", title, only(zero), BACK, "return what was computed")


BY_SCALE = ("dQ", "dQ"), ("dK", "dkeys")  # what is multiplied by gamma, and the letter of its step
WRONG_GRADIENTS: list[Mistake] = [
    all_zero("dQ is zero", "dQ"),
    all_zero("dK is zero", "dkeys"),
    all_zero("dV is zero", "dvalues"),
    all_zero("dK and dV are zero", "dkeys", "dvalues"),
    all_zero("dQ and dK and dV are zero", "dQ", "dkeys", "dvalues"),
    all_zero("dQ and dK and dV and dB are zero", "dQ", "dkeys", "dvalues", "dB"),
    Mistake("bias_missing", "dB is zero", only(steps.multiplied("dB", by=lambda s: 0)), BACK,
            "dB = dA, summed over the axes along which the bias was broadcast"),
    # scale
    *(Mistake(f"{x}_noscale", f"{x} misses the scale gamma", only({letter: product}), BACK,
              f"multiply {x} by gamma, once")
      for x, letter, product in (("dQ", "dQ", lambda s, x: s.dA @ s.keys_back),
                                 ("dK", "dkeys", lambda s, x: T(s.dA) @ s.Q))),
    Mistake("dQK_noscale", "dQ and dK miss the scale gamma", only({"gamma_back": lambda s, x: 1.0}), BACK,
            "multiply dA by gamma before its products with K and Q"),
    *(Mistake(f"{x}_scale2", f"{x} has the scale gamma twice",
              only(steps.multiplied(letter, by=lambda s: s.gamma)), BACK,
              f"multiply {x} by gamma once: the queries may already be scaled") for x, letter in BY_SCALE),
    Mistake("dQK_ln2", "dQ and dK have a factor ln 2 too many",
            only(steps.multiplied("gamma_back", by=lambda s: np.log(2))), BACK,
            "2**x in place of exp(x) needs log2(e) in the scores, and no factor in the gradients"),
    Mistake("dQK_log2e", "dQ and dK have a factor log2(e) too many",
            only(steps.multiplied("gamma_back", by=lambda s: 1 / np.log(2))), BACK,
            "the factor log2(e) of the scores in base 2 does not belong into the gradients"),
    # the softmax's Jacobian
    Mistake("D_missing", "the row term D is missing: dA = P o dP", only({"D": lambda s, D: 0 * D}), BACK,
            "subtract D, the row sum of dO o O, from dP"),
    Mistake("D_sign", "the row term D has the wrong sign: dA = P o (dP + D)", only({"D": lambda s, D: -D}), BACK,
            "subtract D"),
    Mistake("D_mean", "the row term D is a mean over the keys instead of a sum",
            only({"D": lambda s, D: D / s.K.shape[2]}), BACK, "sum over the keys"),
    Mistake("D_detached_half", "the row term D is halved", only({"D": lambda s, D: D / 2}), BACK,
            "subtract the whole D"),
    Mistake("D_rowmix", "the row term D is that of another row", rolled, BACK, "D of row i belongs to row i"),
    Mistake("D_wrong_axis", "the row term D is summed over the queries instead of the keys",
            only({"D": lambda s, D: (s.P_back * s.dP).sum(-2, keepdims=True)}), BACK,
            "sum each row, over the keys"),
    Mistake("D_nodrop", "the row term D is taken without the dropout mask",
            with_dropout({"D": lambda s, D: rowsum(s.P_back * (s.dO @ T(s.values_back)))}), DROPOUT,
            "D is the row sum of dO o O, with the O that dropout gave"),
    *(Mistake("no_jacobian", "the softmax's Jacobian is missing: dA = dP", only({"dA": dA}), steps.JACOBIAN,
              "dA = P o (dP - D)") for dA in (
        lambda s, x: np.where(s.P_back > 1e-40, s.dP, 0.0),  # 0 in each format
        lambda s, x: np.where(s.seen, s.dP, 0.0), lambda s, x: s.dP)),
    Mistake("diagonal_jacobian", "only the diagonal of the softmax's Jacobian is used: dA = P o (1 - P) o dP",
            only({"dA": lambda s, x: s.P_back * (1 - s.P_back) * s.dP}), steps.JACOBIAN, "dA = P o (dP - D)"),
    Mistake("dS_sign", "the gradient of the scores has the wrong sign", only({"dA": lambda s, x: -x}), BACK,
            "dA = P o (dP - D)"),
    Mistake("dS_T", "the gradient of the scores is used transposed", dS_flipped, BACK,
            "dQ = gamma dA K, dK = gamma dA^T Q"),
    Mistake("dK_untransposed", "the gradient of the scores is not transposed in dK",
            only({"dkeys": lambda s, x: s.gamma_back * untransposed(s.dA) @ s.Q}), BACK, "dK = gamma dA^T Q"),
    Mistake("dP_transposed", "dP is used transposed", dP_flipped, BACK, "dP = dO V^T"),
    Mistake("dV_PnotPT", "dV = P dO: the weights are not transposed",
            only({"dvalues": lambda s, x: untransposed(s.PR_back) @ s.dO}), BACK, "dV = P^T dO"),
    Mistake("softmax_detached", "no gradient passes through the softmax: dQ = dK = 0",
            only({"dA": lambda s, x: 0 * x}), steps.JACOBIAN, "do not detach the weights"),
    Mistake("dO_ignored", "the gradient dO is taken to be all ones", only({"dO": lambda s, x: np.ones_like(x)}),
            BACK, "use the dO that is given"),
    Mistake("dP_wrong_head", "dP is taken with another head's values", wrong_values, GROUPS,
            "dP of head h is dO_h V^T with the values that head h reads"),
]


def dB(change: Callable[[steps.Steps, np.ndarray], np.ndarray | None]) -> steps.Forms:
    return only({"dB": change}, lambda case: case.bias is not None)


WRONG_BIASES: list[Mistake] = [
    *(Mistake("dB_transposed", "dB is transposed", dB(steps.bind(lambda s, x, read: read(x), read)), BACK,
              "dB = dA, summed") for read in READINGS),
    Mistake("dB_batch0", "dB is that of the first batch element alone",
            dB(lambda s, x: np.asarray(sum_to(s.dA[:1], x)) if len(x) == 1 else x), BACK,
            "sum dA over the axes along which the bias was broadcast"),
    Mistake("dB_mean", "dB is a mean over the batch instead of a sum",
            dB(lambda s, x: x / len(s.Q) if len(x) == 1 else x), BACK,
            "sum dA over the axes along which the bias was broadcast"),
    Mistake("dB_scaled", "dB has the scale gamma", dB(lambda s, x: x * s.gamma), BACK,
            "the bias is added after the scale: dB = dA"),
    Mistake("bias_ignored", "the bias is not used at all", steps.ignored("B", "bias"), ATTENTION, "add the bias"),
    Mistake("mask_after_scale", "the bias is added before the scale, and scaled with the scores",
            only(steps.multiplied("bias", "dB", by=lambda s: s.gamma)), ATTENTION,
            "scale the scores first, then add the bias"),
]

WRONG_WEIGHTS: list[Mistake] = [
    # dropout
    Mistake("dV_nodrop", "dV uses the weights without dropout",
            with_dropout({"PR_back": lambda s, x: s.P_back}), DROPOUT, "dV = (P o R)^T dO"),
    Mistake("dP_nodrop", "dP is taken without the dropout mask",
            with_dropout({"dP": lambda s, x: s.dO @ T(s.values_back)}), DROPOUT, "dP = R o (dO V^T)"),
    Mistake("f_drop_norescale", "the factor 1/(1 - rho) is missing",
            with_dropout({"R": lambda s, x: (x > 0) * 1.0}), DROPOUT, "R is 0 or 1/(1 - rho)"),
    Mistake("dropout_ignored", "dropout is ignored", with_dropout({"R": lambda s, x: np.ones_like(x)}), DROPOUT,
            "multiply the weights by R"),
    # what is computed
    Mistake("scale_usual", "the scale is 1/sqrt(d_k), where another was demanded", usual_scale, ATTENTION,
            "use the scale that is demanded"),
    Mistake("f_noscale", "the scores are not scaled: gamma = 1",
            own_scale(lambda s, x: 1.0), ATTENTION, "gamma = 1/sqrt(d_k)"),
    Mistake("f_scale_dk", "the scale is 1/d_k",
            own_scale(lambda s, x: 1 / s.Q.shape[3]), ATTENTION, "gamma = 1/sqrt(d_k)"),
    Mistake("f_scale_dmodel", "the scale is 1/sqrt(H d_k)",
            own_scale(lambda s, x: (s.Q.shape[1] * s.Q.shape[3]) ** -0.5), ATTENTION, "gamma = 1/sqrt(d_k)"),
    Mistake("scale_sqrt_twice", "the root is taken twice: the scale is d_k^(-1/4)",
            own_scale(lambda s, x: s.Q.shape[3] ** -0.25), ATTENTION, "gamma = 1/sqrt(d_k)"),
    Mistake("scale_ignored", "the scale that is given is ignored", steps.ignored("gamma", "scale"), ATTENTION,
            "use it"),
    Mistake("f_exp2", "2**x is taken in place of exp(x)",
            only(steps.multiplied("gamma", "bias", "dB", by=lambda s: np.log(2))), ATTENTION,
            "multiply the scores by log2(e) first"),
    *(Mistake("f_axis", f"the softmax is taken over the {over} instead of the keys", only(over_axis(axis)),
              steps.SOFTMAX, "softmax is taken over the last axis, the keys")
      for over, axis in (("queries", -2), ("heads", 1), ("batch elements", 0))),
    Mistake("local_lse", "the weights of the way back are normalised tile by tile", local_softmax, BACK,
            "normalise by the log-sum-exp of the whole row"),
    Mistake("padded_sum", "the keys that fill a tile come into the sum of a row", padded_sum, ATTENTION,
            "hide them: their score is -inf, not 0"),
    Mistake("D_of_tile", "the row term D is that of each tile alone", D_of_tile, BACK, "sum over all keys of the row"),
    Mistake("first_tile", "the way back has the keys and values of the first tile in every tile", first_tile, BACK,
            "each tile has its own keys and values"),
    Mistake("f_merge", "tiles of keys are put together without the factor between their maxima", merged_unscaled,
            ATTENTION, "multiply what is there by exp(old maximum - new maximum)"),
]
