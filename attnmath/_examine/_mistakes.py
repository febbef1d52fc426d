"""The mistakes that have a name: each is a wrong closed form, said as the steps that differ."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from attnmath._examine._case import Case, Conventions
from attnmath._examine._steps import Change, Steps, T, grouped, rowsum, softmax

Forms = Callable[[Case, Conventions], Iterator[tuple[str, Change]]]


class Mistake(NamedTuple):
    """A name, a sentence, the steps that differ, the formula that they break, and the cure.

    forms gives the changes, with a word on each where there are several, such as the tile.
    """

    name: str
    title: str
    forms: Forms
    formula: str
    cure: str


def _one(change: Change) -> Forms:
    return lambda case, means: iter([("", change)])


def _times(*letters: str, by: Callable[[Steps], float]) -> Change:
    return {letter: lambda s, x: None if x is None else by(s) * x for letter in letters}


# ---- what the way back may start from: found anew, or kept --------------------------------------


def _log_sum_exp(s: Steps) -> np.ndarray:
    top = s.A.max(-1, keepdims=True)
    top = np.where(np.isneginf(top), 0.0, top)
    return top + np.log(rowsum(np.exp(s.A - top)))


FROM_O: Change = {"D": lambda s, D: rowsum(s.dO * s.O)}
FROM_L: Change = {"P_back": lambda s, P: np.exp(s.A_back - _log_sum_exp(s))}
# D and P are the same in right code however they are found; in wrong code they are not.
WAYS: tuple[tuple[Change, ...], ...] = ((), (FROM_O,), (FROM_L,), (FROM_L, FROM_O))


# ---- masks, bias, causal alignment, groups ------------------------------------------------------


def _other(case: Case, **changes: object) -> Callable[[Steps], np.ndarray]:
    return lambda s: replace(case, **changes).B(s.means)


def _mask_forgotten(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for word, change in (
        ("", dict(keep=None, causal=False)), ("the causal mask", dict(causal=False)),
        ("the mask that is given", dict(keep=None)),
    ):  # fmt: skip
        if any(getattr(case, k) is not None and getattr(case, k) is not False for k in change):
            B = _other(case, **change)
            yield word, {"B_back": lambda s, x, B=B: B(s)}
    if case.bias is not None and np.isneginf(case.bias).any():
        yield "", {"B_back": lambda s, x: np.zeros_like(x)}


def _ignored(letter: str, **change: object) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        other = replace(case, **change)
        if any(getattr(case, k) is not None and getattr(case, k) is not False for k in change):
            yield "", {letter: lambda s, x: getattr(Steps(other, s.means), letter)}

    return forms


def _turned(case: Case, means: Conventions) -> Conventions:
    other = "upper_left" if means.causal != "upper_left" else "lower_right"
    return means.told(causal=other)


def _aligned(*letters: str) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        if case.causal:
            other = _turned(case, means)
            yield "", {x: lambda s, y, x=x: getattr(Steps(case, other), x) for x in letters}

    return forms


def _causal_shifted(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    n, m = case.Q.shape[2], case.K.shape[2]
    for word, by in (("a query does not see its own place", -1), ("a query sees one place too many", 1)):
        if case.causal:
            start = 0 if means.causal == "upper_left" else m - n
            seen = np.arange(m) <= np.arange(n)[:, None] + start + by
            if case.keep is not None:
                seen = seen & case.keep
            yield word, {"seen": lambda s, x, seen=seen: np.broadcast_to(seen, x.shape)}


def _inverted(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    if case.keep is not None:
        other = replace(case, keep=~case.keep)
        yield "", {"seen": lambda s, x: other.seen(s.means)}


def _finite_mask(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for number in (-1.0, -10.0, -50.0, -100.0):
        yield f"{number:g} is added", {"B": lambda s, x, c=number: s.bias + np.where(s.seen, 0.0, c)}
        yield f"{number:g} in place of the score", {
            "A": lambda s, x, c=number: np.where(s.seen, x, c),
            "A_back": lambda s, x, c=number: np.where(s.seen, x, c),
            "dA": lambda s, x: np.where(s.seen, x, 0.0),
        }


def _mask_by_zero(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    def scores(s: Steps) -> np.ndarray:
        return np.where(s.seen, s.gamma * s.QK + s.bias, 0.0)

    if not case.seen(means).all():
        yield "", {"A": lambda s, x: scores(s), "A_back": lambda s, x: scores(s),
                   "dA": lambda s, x: np.where(s.seen, x, 0.0)}  # fmt: skip


def _map(case: Case, means: Conventions) -> np.ndarray:
    return case.owner(means.told(groups="blocks" if means.groups == "interleaved" else "interleaved"))


def _mapped(letter: str) -> Forms:
    return lambda case, means: iter([("", {letter: lambda s, x: _map(case, means)})])


def _group(pick: Callable[[np.ndarray], float]) -> Change:
    """Sums over groups in which each member has the weight that pick gives."""

    def over(x: np.ndarray, s: Steps) -> np.ndarray:
        weight = np.zeros(len(s.owner_back))
        for g in range(s.K.shape[1]):
            weight[s.owner_back == g] = pick(np.flatnonzero(s.owner_back == g))
        return grouped(x * weight[:, None, None], s.owner_back, s.K.shape[1])

    return {"dK": lambda s, x: over(s.dkeys, s), "dV": lambda s, x: over(s.dvalues, s)}


# ---- tiles --------------------------------------------------------------------------------------


def _starts(length: int) -> Iterator[int]:
    """Where a last tile may begin, the usual tiles first; at 0 where there is one tile alone."""
    usual = [(length - 1) // t * t for t in (128, 64, 32, 16, 8, 4, 2)]
    yield from dict.fromkeys([*usual, *_all_of_few(length)])


def _all_of_few(length: int) -> range:
    """Every place inside, where there are not many."""
    return range(length - 1, 0, -1) if length <= 20 else range(0)


def _key_tile(*letters: str, before: bool = False) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        m = case.K.shape[2]
        for start in _starts(m):
            axis = (np.arange(m) >= start) ^ before
            cut = {
                "dA": lambda s, x, a=axis: x * ~a,
                "dQ": lambda s, x, a=axis: s.gamma_back * (s.dA * ~a) @ s.keys_back,
                "dkeys": lambda s, x, a=axis: x * ~a[:, None],
                "dvalues": lambda s, x, a=axis: x * ~a[:, None],
            }
            where = f"keys {0 if before else start} to {(start if before else m) - 1}"
            yield where, {k: cut[k] for k in letters}

    return forms


def _first_key(*letters: str) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        for word, change in _key_tile(*letters, before=True)(case, means):
            if word == "keys 0 to 0":
                yield "", change

    return forms


def _query_tile(*letters: str, before: bool = False) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        n = case.Q.shape[2]
        for start in _starts(n):
            rows = ((np.arange(n) >= start) ^ before)[:, None]
            cut = {
                "dQ": lambda s, x, a=rows: x * ~a,
                "dkeys": lambda s, x, a=rows: s.gamma_back * T(s.dA * ~a) @ s.Q,
                "dvalues": lambda s, x, a=rows: T(s.PR_back * ~a) @ s.dO,
                "O": lambda s, x, a=rows: x * ~a,
            }
            where = f"queries {0 if before else start} to {(start if before else n) - 1}"
            yield where, {k: cut[k] for k in letters}

    return forms


def _tiles(m: int) -> Iterator[tuple[int, list[slice]]]:
    for t in dict.fromkeys([128, 64, 32, 16, 8, 4, 2, 1, *_all_of_few(m)]):
        if t < m:
            yield t, [slice(i, min(i + t, m)) for i in range(0, m, t)]


def _by_tile(A: np.ndarray, tiles: list[slice]) -> np.ndarray:
    return np.concatenate([softmax(A[..., t]) for t in tiles], -1)


def _local(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for t, tiles in _tiles(case.K.shape[2]):
        yield f"tiles of {t} keys", {"P_back": lambda s, P, x=tiles: _by_tile(s.A_back, x)}


def _merged(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    """Tiles are put together without the factor between their maxima, in four ways."""
    for t, tiles in _tiles(case.K.shape[2]):
        def tops(s: Steps, x: list[slice] = tiles, running: bool = True) -> np.ndarray:
            own = np.concatenate([s.A[..., a].max(-1, keepdims=True) for a in x], -1)
            top = np.maximum.accumulate(own, -1) if running else own
            top = np.where(np.isneginf(top), 0.0, top)
            return np.repeat(top, [a.stop - a.start for a in x], -1)

        def unscaled(s: Steps, P: np.ndarray, top: Callable = tops) -> np.ndarray:
            E = np.exp(s.A - top(s))
            return E / rowsum(E)

        def numerator(s: Steps, P: np.ndarray, top: Callable = tops) -> np.ndarray:
            last = top(s)[..., -1:]
            return np.exp(s.A - top(s)) / rowsum(np.exp(s.A - last))

        def denominator(s: Steps, P: np.ndarray, top: Callable = tops) -> np.ndarray:
            last = top(s)[..., -1:]
            return np.exp(s.A - last) / rowsum(np.exp(s.A - top(s)))

        def added(s: Steps, P: np.ndarray, x: list[slice] = tiles) -> np.ndarray:
            return _by_tile(s.A, x)

        def mean(s: Steps, P: np.ndarray, x: list[slice] = tiles) -> np.ndarray:
            return _by_tile(s.A, x) / len(x)

        for form in (unscaled, numerator, denominator, added, mean):
            yield f"tiles of {t} keys", {"P": form}
            yield f"tiles of {t} keys", {"P": form, "P_back": lambda s, P: s.P}


# ---- transposed, permuted -----------------------------------------------------------------------


def _untransposed(x: np.ndarray) -> np.ndarray:
    """(n, m) where its transpose belongs: the same numbers, read in rows of the other length."""
    return x.reshape(*x.shape[:-2], *x.shape[:-3:-1])


def _transposed(x: np.ndarray) -> np.ndarray:
    """The transpose where x (n, m) belongs, read in rows of the other length."""
    return _untransposed(T(x).copy())


def _dS_flipped(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    dQ: Change = {"dQ": lambda s, x: s.gamma_back * _transposed(s.dA) @ s.keys_back}
    dK: Change = {"dkeys": lambda s, x: s.gamma_back * _untransposed(s.dA) @ s.Q}
    yield "in dQ and dK", dQ | dK
    yield "in dQ", dQ
    for read in READINGS:
        yield "in dQ and dK", {"dQ": lambda s, x, r=read: s.gamma_back * r(s.dA) @ s.keys_back,
                               "dkeys": lambda s, x, r=read: s.gamma_back * T(r(s.dA)) @ s.Q}  # fmt: skip
        yield "in dQ, dK and dB", {"dA": lambda s, x, r=read: r(x)}


def _dP_flipped(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for read in READINGS:
        yield "", {"dP": lambda s, x, r=read: r(x)}


READINGS = (_transposed, lambda x: T(_untransposed(x)))  # of a buffer with its strides exchanged


def _rolled(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for by in (1, -1):
        yield f"that of row i {'-' if by > 0 else '+'} 1", {"D": lambda s, D, r=by: np.roll(D, r, -2)}


def _wrong_values(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    G, owner = case.V.shape[1], case.owner(means)
    for by in range(1, G):
        yield f"head h + {by}", {"dP": lambda s, x, o=(owner + by) % G: (s.dO @ T(s.V[:, o])) * s.R_back}
    for g in range(G if G > 1 else 0):
        yield f"head {g} always", {"dP": lambda s, x, g=g: (s.dO @ T(s.V[:, [g]])) * s.R_back}
    if len(owner) > 1:
        for by in (1, -1):
            yield "of the next query head", {
                "dP": lambda s, x, r=by: (s.dO @ T(np.roll(s.values_back, r, 1))) * s.R_back}  # fmt: skip


def _heads_mixed(letter: str) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        H = (case.Q if letter in ("dQ", "O") else case.K).shape[1]
        for by in range(1, H):
            yield f"head h has that of h - {by}", {letter: lambda s, x, r=by: np.roll(x, r, 1)}
        if H > 2:
            yield "in reverse order", {letter: lambda s, x: x[:, ::-1]}
        for a in range(H):
            for b in range(a):
                order = np.arange(H)
                order[[a, b]] = b, a
                yield f"heads {b} and {a} exchanged", {letter: lambda s, x, o=order: x[:, o]}

    return forms


def _batch_first(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    if case.Q.shape[0] > 1:
        for letters in (("O",), ("dQ", "dK", "dV"), ("O", "dQ", "dK", "dV")):
            word = "in " + ", ".join(letters)
            yield word, {k: lambda s, x: np.repeat(x[:1], len(x), 0) for k in letters}


def _dB(change: Callable[[Steps, np.ndarray], np.ndarray]) -> Forms:
    def forms(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
        if case.bias is not None:
            yield "", {"dB": change}

    return forms


def _short(digits: int) -> Callable[[Steps, np.ndarray], np.ndarray]:
    def shorter(s: Steps, x: np.ndarray) -> np.ndarray:
        fraction, exponent = np.frexp(x)
        return np.ldexp(np.rint(np.ldexp(fraction, digits)), exponent - digits)

    return shorter


def _short_weights(case: Case, means: Conventions) -> Iterator[tuple[str, Change]]:
    for word, digits in (("bfloat16", 8), ("float16", 11)):
        r = _short(digits)
        yield word, {"P": r, "P_back": r}
        yield word, {"O": lambda s, O, r=r: (r(s, s.P) * s.R) @ s.values,
                     "PR_back": lambda s, P, r=r: r(s, s.P_back) * s.R_back}  # fmt: skip
        yield word, {"P_back": r}
        yield word, {"PR_back": lambda s, P, r=r: r(s, s.P_back) * s.R_back}
        yield word, {"O": lambda s, O, r=r: (r(s, s.P) * s.R) @ s.values}


def _dropout(change: Change) -> Forms:
    return lambda case, means: iter([] if case.R is None else [("", change)])


BACK, ATTENTION = "eq:attention_vjp", "eq:attention_map"
MASKS, GROUPS, DROPOUT = "eq:causal_mask", "eq:multihead_vjp", "eq:dropout_attention_vjp"

MISTAKES: list[Mistake] = [
    *(Mistake("zeros", f"{' and '.join(x.replace('dkeys', 'dK').replace('dvalues', 'dV') for x in zero)} "
              f"{'is' if len(zero) == 1 else 'are'} zero", _one({x: lambda s, y: 0 * y for x in zero}), BACK,
              "return what was computed")
      for zero in (("dQ",), ("dkeys",), ("dvalues",), ("dkeys", "dvalues"), ("dQ", "dkeys", "dvalues"))),
    Mistake("bias_missing", "dB is zero", _one({"dB": lambda s, x: None if x is None else 0 * x}), BACK,
            "dB = dA, summed over the axes along which the bias was broadcast"),
    # scale
    Mistake("dQ_noscale", "dQ misses the scale gamma", _one(_times("dQ", by=lambda s: 1 / s.gamma)), BACK,
            "multiply dQ by gamma, once"),
    Mistake("dK_noscale", "dK misses the scale gamma", _one(_times("dkeys", by=lambda s: 1 / s.gamma)), BACK,
            "multiply dK by gamma, once"),
    Mistake("dQK_noscale", "dQ and dK miss the scale gamma", _one({"gamma_back": lambda s, x: 1.0}), BACK,
            "multiply dA by gamma before its products with K and Q"),
    Mistake("dQ_scale2", "dQ has the scale gamma twice", _one(_times("dQ", by=lambda s: s.gamma)), BACK,
            "multiply dQ by gamma once: the queries may already be scaled"),
    Mistake("dK_scale2", "dK has the scale gamma twice", _one(_times("dkeys", by=lambda s: s.gamma)), BACK,
            "multiply dK by gamma once: the queries may already be scaled"),
    Mistake("dQK_ln2", "dQ and dK have a factor ln 2 too many",
            _one(_times("gamma_back", by=lambda s: np.log(2))), BACK,
            "2**x in place of exp(x) needs log2(e) in the scores, and no factor in the gradients"),
    Mistake("dQK_log2e", "dQ and dK have a factor log2(e) too many",
            _one(_times("gamma_back", by=lambda s: 1 / np.log(2))), BACK,
            "the factor log2(e) of the scores in base 2 does not belong into the gradients"),
    # the softmax's Jacobian
    Mistake("D_missing", "the row term D is missing: dA = P o dP", _one({"D": lambda s, D: 0 * D}), BACK,
            "subtract D, the row sum of dO o O, from dP"),
    Mistake("D_sign", "the row term D has the wrong sign: dA = P o (dP + D)", _one({"D": lambda s, D: -D}), BACK,
            "subtract D"),
    Mistake("D_mean", "the row term D is a mean over the keys instead of a sum",
            _one({"D": lambda s, D: D / s.K.shape[2]}), BACK, "sum over the keys"),
    Mistake("D_detached_half", "the row term D is halved", _one({"D": lambda s, D: D / 2}), BACK,
            "subtract the whole D"),
    Mistake("D_rowmix", "the row term D is that of another row", _rolled, BACK, "D of row i belongs to row i"),
    Mistake("D_wrong_axis", "the row term D is summed over the queries instead of the keys",
            _one({"D": lambda s, D: (s.P_back * s.dP).sum(-2, keepdims=True)}), BACK,
            "sum each row, over the keys"),
    Mistake("D_nodrop", "the row term D is taken without the dropout mask",
            _dropout({"D": lambda s, D: rowsum(s.P_back * (s.dO @ T(s.values_back)))}), DROPOUT,
            "D is the row sum of dO o O, with the O that dropout gave"),
    Mistake("no_jacobian", "the softmax's Jacobian is missing: dA = dP",
            _one({"dA": lambda s, x: np.where(s.seen, s.dP, 0.0)}), "eq:softmax_vjp", "dA = P o (dP - D)"),
    Mistake("no_jacobian", "the softmax's Jacobian is missing: dA = dP", _one({"dA": lambda s, x: s.dP}),
            "eq:softmax_vjp", "dA = P o (dP - D)"),
    Mistake("diagonal_jacobian", "only the diagonal of the softmax's Jacobian is used: dA = P o (1 - P) o dP",
            _one({"dA": lambda s, x: s.P_back * (1 - s.P_back) * s.dP}), "eq:softmax_vjp", "dA = P o (dP - D)"),
    Mistake("dS_sign", "the gradient of the scores has the wrong sign", _one({"dA": lambda s, x: -x}), BACK,
            "dA = P o (dP - D)"),
    Mistake("dS_T", "the gradient of the scores is used transposed", _dS_flipped, BACK,
            "dQ = gamma dA K, dK = gamma dA^T Q"),
    Mistake("dK_untransposed", "the gradient of the scores is not transposed in dK",
            _one({"dkeys": lambda s, x: s.gamma_back * _untransposed(s.dA) @ s.Q}), BACK, "dK = gamma dA^T Q"),
    Mistake("dP_transposed", "dP is used transposed", _dP_flipped, BACK, "dP = dO V^T"),
    Mistake("dV_PnotPT", "dV = P dO: the weights are not transposed",
            _one({"dvalues": lambda s, x: _untransposed(s.PR_back) @ s.dO}), BACK, "dV = P^T dO"),
    Mistake("softmax_detached", "no gradient passes through the softmax: dQ = dK = 0",
            _one({"dA": lambda s, x: 0 * x}), "eq:softmax_vjp", "do not detach the weights"),
    Mistake("dO_ignored", "the gradient dO is taken to be all ones", _one({"dO": lambda s, x: np.ones_like(x)}),
            BACK, "use the dO that is given"),
    Mistake("dP_wrong_head", "dP is taken with another head's values", _wrong_values, GROUPS,
            "dP of head h is dO_h V^T with the values that head h reads"),
    # bias
    Mistake("dB_transposed", "dB is transposed", _dB(lambda s, x: _transposed(x)), BACK, "dB = dA, summed"),
    Mistake("dB_transposed", "dB is transposed",
            _dB(lambda s, x: T(_untransposed(x))), BACK, "dB = dA, summed"),
    Mistake("dB_batch0", "dB is that of the first batch element alone",
            _dB(lambda s, x: s.dA[:1].sum(tuple(i for i in (1,) if x.shape[i] == 1), keepdims=True)), BACK,
            "sum dA over the axes along which the bias was broadcast"),
    Mistake("dB_mean", "dB is a mean over the batch instead of a sum", _dB(lambda s, x: x / len(s.Q)), BACK,
            "sum dA over the axes along which the bias was broadcast"),
    Mistake("dB_scaled", "dB has the scale gamma", _dB(lambda s, x: x * s.gamma), BACK,
            "the bias is added after the scale: dB = dA"),
    Mistake("no_bias_bwd", "the bias is forgotten in the way back",
            lambda case, means: iter([] if case.bias is None else
                                     [("", {"B_back": lambda s, x: np.where(s.seen, 0.0, -np.inf)})]),
            BACK, "the weights of the way back are those of the way forward"),
    Mistake("bias_ignored", "the bias is not used at all", _ignored("B", bias=None), ATTENTION, "add the bias"),
    Mistake("mask_after_scale", "the bias is added before the scale, and scaled with the scores",
            _one({"bias": lambda s, x: x * s.gamma, "dB": lambda s, x: None if x is None else x * s.gamma}),
            ATTENTION, "scale the scores first, then add the bias"),
    # groups
    Mistake("gqa_last", "dK and dV keep the last query head of a group alone",
            _one(_group(lambda x: (np.arange(len(x)) == len(x) - 1) * 1.0)), GROUPS, "add over the group"),
    Mistake("gqa_first", "dK and dV keep the first query head of a group alone",
            _one(_group(lambda x: (np.arange(len(x)) == 0) * 1.0)), GROUPS, "add over the group"),
    Mistake("gqa_mean", "dK and dV are means over a group instead of sums",
            _one(_group(lambda x: np.full(len(x), 1 / len(x)))), GROUPS, "add over the group"),
    Mistake("gqa_map_bwd", "the way back maps query heads to heads of keys in another way",
            _mapped("owner_back"), GROUPS, "use one map in both directions"),
    Mistake("f_gqa_map", "query heads read other heads of keys and values: h mod G and h // (H/G) are mixed up",
            _mapped("owner"), GROUPS, "query head h reads the head h // (H/G)"),
    # masks
    Mistake("no_mask_bwd", "the mask is forgotten in the way back", _mask_forgotten, MASKS,
            "the weights of the way back are those of the way forward"),
    Mistake("causal_always_bwd", "the way back masks causally where nothing is masked",
            lambda case, means: iter([] if case.causal else [("", {
                "B_back": lambda s, x: replace(case, causal=True).B(s.means)})]), MASKS,
            "the mask of the way back is that of the way forward"),
    Mistake("align_bwd", "the causal mask of the way back has another alignment", _aligned("B_back"), MASKS,
            "use one alignment in both directions"),
    Mistake("f_align", "the causal mask has the other alignment", _aligned("B"), MASKS,
            "lower right: the last query has the place of the last key"),
    Mistake("causal_off_by_one", "the causal mask is off by one", _causal_shifted, MASKS, "j <= i"),
    Mistake("causal_ignored", "the causal mask is ignored", _ignored("B", causal=False), MASKS, "use it"),
    Mistake("mask_ignored", "the mask is ignored", _ignored("B", keep=None), MASKS, "use it"),
    Mistake("f_mask_inverted", "the mask's meaning is inverted", _inverted, MASKS,
            "exchange True and False in the mask"),
    Mistake("f_mask_after", "the mask is put on the weights after the softmax",
            _one({"B": lambda s, x: s.bias + np.zeros_like(x), "R": lambda s, x: x * s.seen}), MASKS,
            "add -inf to the scores before the softmax"),
    Mistake("mask_leak_finite", "the mask is a number, and hidden keys keep a weight", _finite_mask, MASKS,
            "a mask is -inf"),
    Mistake("mask_by_zero", "hidden scores are 0 instead of -inf", _mask_by_zero, MASKS, "a mask is -inf"),
    # dropout
    Mistake("drop_ignored_bwd", "dropout is forgotten in the way back",
            _dropout({"R_back": lambda s, x: np.ones_like(x)}), DROPOUT, "use the mask of the way forward"),
    Mistake("drop_norescale_bwd", "the factor 1/(1 - rho) is missing in the way back",
            _dropout({"R_back": lambda s, x: (x > 0) * 1.0}), DROPOUT, "R is 0 or 1/(1 - rho)"),
    Mistake("dV_nodrop", "dV uses the weights without dropout",
            _dropout({"PR_back": lambda s, x: s.P_back}), DROPOUT, "dV = (P o R)^T dO"),
    Mistake("dP_nodrop", "dP is taken without the dropout mask",
            _dropout({"dP": lambda s, x: s.dO @ T(s.values_back)}), DROPOUT, "dP = R o (dO V^T)"),
    Mistake("f_drop_norescale", "the factor 1/(1 - rho) is missing",
            _dropout({"R": lambda s, x: (x > 0) * 1.0}), DROPOUT, "R is 0 or 1/(1 - rho)"),
    Mistake("dropout_ignored", "dropout is ignored", _dropout({"R": lambda s, x: np.ones_like(x)}), DROPOUT,
            "multiply the weights by R"),
    # what is computed
    Mistake("f_noscale", "the scores are not scaled: gamma = 1",
            _one({"gamma": lambda s, x: 1.0}), ATTENTION, "gamma = 1/sqrt(d_k)"),
    Mistake("f_scale_dk", "the scale is 1/d_k",
            _one({"gamma": lambda s, x: 1 / s.Q.shape[3]}), ATTENTION, "gamma = 1/sqrt(d_k)"),
    Mistake("f_scale_dmodel", "the scale is 1/sqrt(H d_k)",
            _one({"gamma": lambda s, x: (s.Q.shape[1] * s.Q.shape[3]) ** -0.5}), ATTENTION, "gamma = 1/sqrt(d_k)"),
    Mistake("scale_sqrt_twice", "the root is taken twice: the scale is d_k^(-1/4)",
            _one({"gamma": lambda s, x: s.Q.shape[3] ** -0.25}), ATTENTION, "gamma = 1/sqrt(d_k)"),
    Mistake("scale_ignored", "the scale that is given is ignored", _ignored("gamma", scale=None), ATTENTION,
            "use it"),
    Mistake("f_exp2", "2**x is taken in place of exp(x)",
            _one({"gamma": lambda s, x: x * np.log(2), "bias": lambda s, x: x * np.log(2),
                  "dB": lambda s, x: None if x is None else x * np.log(2)}), ATTENTION,
            "multiply the scores by log2(e) first"),
    Mistake("f_axis", "the softmax is taken over the queries instead of the keys",
            _one({"P": lambda s, x: T(softmax(T(s.A))), "P_back": lambda s, x: T(softmax(T(s.A_back))),
                  "D": lambda s, D: (s.P_back * s.dP).sum(-2, keepdims=True)}), "eq:softmax",
            "softmax is taken over the last axis, the keys"),
    # tiles
    Mistake("local_lse", "the weights of the way back are normalised tile by tile", _local, BACK,
            "normalise by the log-sum-exp of the whole row"),
    Mistake("f_merge", "tiles of keys are put together without the factor between their maxima", _merged,
            ATTENTION, "multiply what is there by exp(old maximum - new maximum)"),
    Mistake("last_tile", "dA misses the last keys", _key_tile("dA"), BACK, "the last tile may be a part"),
    Mistake("last_tile", "dQ misses the last keys", _key_tile("dQ"), BACK, "the last tile may be a part"),
    Mistake("last_tile_dK", "dK misses the last keys", _key_tile("dkeys"), BACK, "the last tile may be a part"),
    Mistake("last_tile_dV", "dV misses the last keys", _key_tile("dvalues"), BACK, "the last tile may be a part"),
    Mistake("tail_keys_dropped", "dK and dV miss the last keys", _key_tile("dkeys", "dvalues"), BACK,
            "the last tile may be a part"),
    Mistake("tail_keys_dropped", "dQ, dK and dV miss the last keys", _key_tile("dA", "dvalues"), BACK,
            "the last tile may be a part"),
    *(Mistake("first_key", f"{word} the first key", _first_key(*letters), BACK, "begin at key 0")
      for word, letters in (("dA misses", ["dA"]), ("dQ misses", ["dQ"]), ("dK misses", ["dkeys"]),
                            ("dV misses", ["dvalues"]), ("dK and dV miss", ["dkeys", "dvalues"]),
                            ("dQ, dK and dV miss", ["dA", "dvalues"]))),
    Mistake("last_row_zero", "the last row of dQ is zero",
            _one({"dQ": lambda s, x: x * (np.arange(x.shape[2]) < x.shape[2] - 1)[:, None]}), BACK,
            "the last row is a row too"),
    Mistake("tail_rows_zero", "the last rows of dQ are zero", _query_tile("dQ"), BACK,
            "the last tile may be a part"),
    Mistake("tail_rows_zero", "the last rows of O are zero", _query_tile("O"), ATTENTION,
            "the last tile may be a part"),
    Mistake("last_queries_dropped", "dK and dV miss the last queries", _query_tile("dkeys", "dvalues"), BACK,
            "the last tile may be a part"),
    Mistake("last_queries_dropped", "dK misses the last queries", _query_tile("dkeys"), BACK,
            "the last tile may be a part"),
    Mistake("last_queries_dropped", "dV misses the last queries", _query_tile("dvalues"), BACK,
            "the last tile may be a part"),
    Mistake("dK_overwrite", "dK keeps the last tile of queries alone: the sum is overwritten",
            _query_tile("dkeys", before=True), BACK, "add to the sum"),
    Mistake("dV_overwrite", "dV keeps the last tile of queries alone: the sum is overwritten",
            _query_tile("dvalues", before=True), BACK, "add to the sum"),
    Mistake("dK_overwrite", "dK and dV keep the last tile of queries alone: the sums are overwritten",
            _query_tile("dkeys", "dvalues", before=True), BACK, "add to the sum"),
    Mistake("dQ_overwrite", "dQ keeps the last tile of keys alone: the sum is overwritten",
            _key_tile("dQ", before=True), BACK, "add to the sum"),
    # order
    *(Mistake("head_mixup", f"the heads of {x} are mixed up", _heads_mixed(x),
              ATTENTION if x == "O" else BACK, "keep the order of the heads") for x in ("dQ", "dK", "dV", "O")),
    Mistake("batch_first_only", "every batch element has the result of the first", _batch_first, ATTENTION,
            "use each element's own numbers"),
    Mistake("kv_swapped", "dK and dV are exchanged",
            lambda case, means: iter([("", {"dK": lambda s, x: grouped(s.dvalues, s.owner_back, s.V.shape[1]),
                                            "dV": lambda s, x: grouped(s.dkeys, s.owner_back, s.K.shape[1])})]
                                     if case.K.shape == case.V.shape else []), BACK, "return dQ, dK, dV"),
    Mistake("P_in_bf16", "the weights are kept in a short format", _short_weights, BACK,
            "keep P in the format of the sums, or say that it is short"),
]  # fmt: skip
