"""The mistakes of a layer that have a name: a few operators over its letters; those of a head follow."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations, permutations
from math import prod
from typing import Any

import numpy as np

from attnmath._examine.layer import layer
from attnmath._examine.layer.latent import LEARNED
from attnmath._examine.layer.latent import MATRICES as DOWN
from attnmath._examine.layer.latent_mistakes import LATENT, WRONG_LATENTS, lost
from attnmath._examine.layer.layer import LAYER_STEPS, LayerCase
from attnmath._examine.layer.rank_mistakes import OF_TOKENS
from attnmath._examine.mistakes.mistakes import MISTAKES
from attnmath._examine.mistakes.wrong_pieces import WRONG_PIECES
from attnmath._examine.mistakes.wrong_rank_masks import WRONG_RANKS
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import Forms, Mistake, StepChanges, Wordings, bind, only
from attnmath._formulas.heads import Weights
from attnmath._words.arrays import T

MULTI, VJP = "chapters/heads.md, eq:multihead_map", "chapters/heads.md, eq:multihead_vjp"
MATRICES, BIASES = Weights._fields[:4], Weights._fields[4:]
# Letters that do not reach the output.
AFTER = {x for x in LAYER_STEPS if x[0] == "d" or "_back" in x or x.startswith("by_")}
Holds = Callable[[LayerCase], bool]
WHEN: dict[str, Holds] = {
    "always": lambda case: True,
    "self": lambda case: case.Z is None and "W_DKV" not in case.learned,
    "cross": lambda case: case.Z is not None,
    "alike": lambda case: case.Z is not None and case.X.shape == case.Z.shape,  # X and Z can be mixed up
    "turns": lambda case: case.rotary is not None,
}


def edit(name: str, title: str, cure: str, change: StepChanges, when: str | Holds = "always") -> Mistake:
    """A mistake with one form, in the problems that have room for it."""
    forms = only(change, WHEN[when] if isinstance(when, str) else when)
    return Mistake(name, title, forms, VJP if change.keys() <= AFTER else MULTI, cure)


# ---- operators ----------------------------------------------------------------------------------


def exchanged(moves: dict[str, str]) -> StepChanges:
    """Each letter has the value of another one's step."""
    return {a: bind(lambda s, x, b: s.table[b](s), b) for a, b in moves.items()}


def mean(letters: tuple[str, ...], axes: int) -> StepChanges:
    """A mean over sequences, or over all tokens, instead of a sum."""
    return {x: lambda s, y: None if y is None else y / prod(s.given.X.shape[:axes]) for x in letters}


def from_tokens(tokens: str, a: str) -> StepChanges:
    """The gradient of a projection that is built from other tokens."""
    return {f"dW_{a}": lambda s, x: layer.weight_gradient(getattr(s, tokens), getattr(s, f"d{a}_flat"), len(x))}


def of_all_heads(turn: Callable[[np.ndarray], np.ndarray], name: str) -> Callable[[Any, Any], Any]:
    """A step that turns the matrix of all heads: of W_Q, W_K, W_V (d, H k), of W_O (H k, d)."""
    def turned(s: Any, W: np.ndarray) -> np.ndarray:
        M = turn(layer.one_below_another(W) if name == "W_O" else layer.side_by_side(W))
        return M.reshape(W.shape) if name == "W_O" else layer.split_heads(M[None], len(W))[0]

    return turned


def transposed(M: np.ndarray) -> np.ndarray:
    """Transposed, if it is square."""
    return M.T if len(M) == M.shape[1] else M


def several(*forms: tuple[str, StepChanges]) -> Forms:
    """A mistake with several forms."""
    return lambda case, means: iter(forms)


def used_turned(*names: str) -> tuple[str, StepChanges]:
    """Matrices that are used transposed, both ways."""
    turns = {x: of_all_heads(transposed, x) for x in names}
    return ", ".join(names), turns | {f"d{x}": turn for x, turn in turns.items()}


def rearranged_heads(memory: str, flat: str) -> dict[str, StepChanges]:
    """Heads whose numbers (b, H, n, k) are read with other axes, and put together with those that are last.

    They are split, put together, or both, in this way; forward and back, or back alone.
    """
    def merge(x: np.ndarray) -> np.ndarray:
        size = dict(zip("bHnk", x.shape))
        x = x.reshape([size[c] for c in memory]).transpose([memory.index(c) for c in flat])
        return x.reshape(size["b"], size["n"], -1)

    def split(x: np.ndarray, H: int) -> np.ndarray:
        size = dict(zip("bnHk", (*x.shape[:2], H, x.shape[2] // H)))
        x = x.reshape([size[c] for c in flat]).transpose([flat.index(c) for c in memory])
        return x.reshape([size[c] for c in "bHnk"])

    split_back: StepChanges = {"merge_back": lambda s, x: split}
    merge_back: StepChanges = {"split_back": lambda s, x: merge}
    merged = {"merge": merge_back["split_back"], **split_back}
    parted = {"split": split_back["merge_back"], **merge_back}
    return {"heads_merged_{}": merged, "heads_split_{}": parted, "heads_all_{}": {**merged, **parted},
            "heads_split_{}_back": split_back, "heads_merged_{}_back": merge_back}


PLACES = {
    "heads_merged_{}": "the outputs of the heads are put together",
    "heads_all_{}": "heads are split and put together",
    "heads_split_{}": "queries, keys and values are split into heads",
    "heads_split_{}_back": "the way back splits dY W_O^T into heads",
    "heads_merged_{}_back": "the way back puts dQ, dK and dV together",
}
ORDERS = {
    "interleaved": ("bHnk", "bnkH", "every H-th entry to a head", "entry c of head h stands at h d_k + c"),
    "by_view": ("bnHk", "bnHk", "without exchanging axes: tokens and heads mix",
                "(b, n, H k) and (b, n, H, k) are the same in memory, (b, H, n, k) is not: exchange n and H"),
    "across_batch": ("Hbnk", "bnHk", "with the axes of batch and heads exchanged: sequences mix",
                     "(b H, n, k) is (b, H, n, k), not (H, b, n, k)"),
}


def blocks_exchanged(case: LayerCase, means: Conventions) -> Wordings:
    """W_Q, W_K and W_V, or two of them, at each other's places."""
    for order in list(permutations("QKV"))[1:]:
        move = {a: b for a, b in zip("QKV", order) if a != b}
        for words, parts in {"weights and biases": "Wb", "weights": "W", "biases": "b"}.items():
            if alike(case, parts, *move):
                moved = {f"{p}_{a}": f"{p}_{b}" for p in parts for a, b in move.items()}
                back = exchanged({f"d{b}": f"d{a}" for a, b in moved.items()})
                yield f"{words} of Q, K, V used in the order {', '.join(order)}", {**exchanged(moved), **back}


def gradients_exchanged(case: LayerCase, means: Conventions) -> Wordings:
    """Two gradients at each other's places."""
    for (a, b), parts in ((pair, parts) for pair in combinations("QKV", 2) for parts in ("Wb", "W")):
        if alike(case, parts, a, b):
            change = exchanged({f"d{p}_{x}": f"d{p}_{y}" for p in parts for x, y in ((a, b), (b, a))})
            yield f"dW_{a} and dW_{b}", change


def alike(case: LayerCase, parts: str, *letters: str) -> bool:
    """Whether these weights are there, and have the same shape."""
    shapes = [[getattr(getattr(case.W, f"{p}_{a}"), "shape", None) for a in letters] for p in parts]
    return all(len({*x}) == 1 and None not in x for x in shapes)


def dW_K_without_b_Q(case: LayerCase, means: Conventions) -> Wordings:
    """The closed form for a layer without biases."""
    def dkeys(s: Any, x: Any) -> np.ndarray:
        Q = layer.rotated(s.split(layer.projected(s.X, s.W_Q, None), s.H), s.cos, s.sin, s.pairing)
        return s.gamma_back * T(s.dA) @ Q

    alone: StepChanges = {"dW_K": lambda s, x: s.apart(alone, {"dkeys": dkeys}).dW_K}
    if case.W.b_Q is not None:
        yield "in dW_K alone", alone
        yield "in all that dK reaches", {"dkeys": dkeys}


def one_entry(name: str) -> list[tuple[str, StepChanges]]:
    """A gradient of one entry of the batch alone: the first, the last."""
    def of_one(s: Any, x: np.ndarray | None, at: int) -> np.ndarray | None:
        given, one = s.given, slice(at, at + 1 or None)
        keep = given.keep if given.keep is None or len(given.keep) == 1 else given.keep[one]
        Z = None if given.Z is None else given.Z[one]
        some = replace(given, X=given.X[one], Z=Z, dY=given.dY[one], keep=keep)
        return None if x is None else getattr(type(s)(some, s.means), name)

    return [("the first", {name: bind(of_one, 0)}), ("the last", {name: bind(of_one, -1)})]


def per_weight(x: str) -> Iterator[Mistake]:
    """The mistakes that each weight and its gradient may have."""
    formula = LATENT if x in LEARNED else VJP

    def mistake(name: str, title: str, cure: str, *forms: tuple[str, StepChanges]) -> Mistake:
        def where_there(case: LayerCase, means: Conventions) -> Wordings:
            weight = case.learned.get(x) if x in LEARNED else getattr(case.W, x)
            yield from forms if weight is not None else ()

        return Mistake(name, title, where_there, formula, cure)

    if x != "b_K":  # whose gradient is 0
        yield mistake(f"d{x}_missing", f"{x} gets no gradient", f"do not detach {x}", ("", lost(f"d{x}")))
    yield mistake(f"d{x}_batch_mean", f"d{x} is a mean over the batch instead of a sum", SUM,
                  ("", mean((f"d{x}",), 1)))
    yield mistake(f"d{x}_one_entry", f"d{x} comes from one entry of the batch alone", SUM, *one_entry(f"d{x}"))
    if x in MATRICES:
        turned, misread = of_all_heads(transposed, x), of_all_heads(lambda M: M.T.reshape(M.shape), x)
        forms = ("", {f"d{x}": turned}), ("the numbers are read in the other order", {f"d{x}": misread})
        yield mistake(f"d{x}_transposed", f"d{x} is transposed", f"d{x} has the shape of {x}", *forms)
    elif x in BIASES:
        no: StepChanges = {x: lambda s, b: None, f"d{x}": lambda s, db: np.zeros_like(getattr(s.given.W, x))}
        yield mistake(f"{x}_missing", f"the bias {x} is not used", f"add {x}", ("", no))._replace(formula=MULTI)
    elif x not in DOWN:
        yield mistake(f"d{x}_token_mean", f"d{x} is a mean over all tokens instead of a sum", SUM,
                      ("", mean((f"d{x}",), 2)))


def no_turn(end: str) -> StepChanges:
    """Angles of 0, from here on."""
    return {f"cos{end}": lambda s, x: np.ones_like(x), f"sin{end}": lambda s, x: np.zeros_like(x)}


OTHER = {"half": "interleaved", "interleaved": "half"}
DW, DB = tuple(f"d{x}" for x in Weights._fields), tuple(f"d{x}" for x in BIASES)
SUM, TURN = "sum over batch and tokens", "turn queries and keys alone, both"
PAIRS = "half: entry c with c + d_k/2; interleaved: 2 c with 2 c + 1"
LAYER_MISTAKES: list[Mistake] = [
    # the heads and the way through W_O
    edit("W_O_untransposed", "the way back uses W_O, not its transpose", "dO = dY W_O^T",
         {"W_O_back": lambda s, x: transposed(x)}),
    edit("W_O_ignored_back", "the way back leaves out W_O: dO = dY", "dO = dY W_O^T",
         {"W_O_back": lambda s, x: np.eye(len(x)) if len(x) == x.shape[1] else x}),
    *(edit(name.format(order), f"{PLACES[name]} {words}", cure, change)
      for order, (memory, flat, words, cure) in ORDERS.items()
      for name, change in rearranged_heads(memory, flat).items()),
    # each weight, and blocks of them
    *(mistake for x in (*Weights._fields, *LEARNED) for mistake in per_weight(x)),
    Mistake("W_used_transposed", "a weight matrix is used transposed", several(
        *map(used_turned, MATRICES), used_turned(*MATRICES[:3]), used_turned(*MATRICES)), MULTI,
        "x W, where a linear layer of PyTorch keeps W^T"),
    edit("W_O_transposed_once", "W_O is used transposed in the way forward alone", "Y = sum O_h W_O,h",
         {"W_O": of_all_heads(transposed, "W_O"),
          "W_O_back": lambda s, x: T(layer.one_below_another(s.given.W.W_O))}),
    Mistake("blocks_exchanged", "blocks of the projections stand at each other's places", blocks_exchanged,
            MULTI, "look up the order in which queries, keys and values are packed"),
    Mistake("gradients_exchanged", "two gradients of weights stand at each other's places", gradients_exchanged,
            VJP, "look up the order in which they are returned"),
    Mistake("dW_K_without_b_Q", "dW_K leaves out the bias of the queries", dW_K_without_b_Q, VJP,
            "dK = gamma dA^T Q, with the bias b_Q in Q"),
    edit("b_O_per_head", "the bias b_O is added once for every head", "add b_O once, after the sum over the heads",
         {"Y": lambda s, Y: Y + (s.H - 1) * s.b_O, "db_O": lambda s, x: s.H * x},
         lambda case: case.W.b_O is not None),
    *(edit(f"{name}_mean", f"gradients of {which} are means over {what} instead of sums", SUM,
           mean(letters, axes)) for name, which, what, letters, axes in (
        ("batch", "weights", "the batch", DW, 1), ("token", "weights", "all tokens", DW, 2),
        ("bias", "biases", "all tokens", DB, 2), ("bias_batch", "biases", "the batch", DB, 1))),
    # tokens and paths
    *(edit(f"dW_{a}_from_{x}", f"dW_{a} is built from {x} instead of {right}", f"dW_{a} = {right}^T d{a}",
           from_tokens(x, a), "alike")
      for a, x, right in (("K", "X", "Z"), ("V", "X", "Z"), ("Q", "Z", "X"))),
    edit("dX_dZ_exchanged", "dX and dZ stand at each other's places", "X asks, Z answers",
         exchanged({"dX": "dZ", "dZ": "dX"}), "alike"),
    edit("Z_ignored", "keys and values come from X instead of Z", "keys and values come from Z",
         {"Z": lambda s, x: s.X, "dX": lambda s, x: s.by_Q + s.by_K + s.by_V, "dZ": lambda s, x: 0 * x}, "alike"),
    *(edit(f"{x}_misses_{a}", f"{x} misses the path through the {word}", f"{x} is a sum over its paths",
           lost(f"by_{a}"), when)
      for x, when in (("dX", "self"), ("dZ", "cross"))
      for a, word in (("Q", "queries"), ("K", "keys"), ("V", "values")) if x + a != "dZQ"),
    *(edit(name, f"nothing comes back to {what}", "do not detach the tokens", lost(*letters), when)
      for name, what, letters, when in (
        ("dX_missing", "X through the queries", ["by_Q"], "cross"), ("dZ_missing", "Z", ["dZ"], "cross"),
        ("dX_zero", "X", ["dX"], "self"), ("dX_missing", "the tokens", ["dX", "dZ"], "cross"))),
    edit("residual_inside", "the layer adds its own input: Y + X",
         "examine the layer without its residual connection",
         {"Y": lambda s, Y: Y + s.X, "dX": lambda s, x: x + s.dY}),
    edit("residual_back", "dX contains the gradient of a residual connection that the layer does not have",
         "dX without dY", {"dX": lambda s, x: x + s.dY}),
    # rotary embedding
    edit("rope_not_pulled_back", "the rotary embedding is not undone on the way back",
         "turn dQ and dK back by the same angles", no_turn("_back"), "turns"),
    edit("rope_back_sign", "the way back turns dQ and dK forward once more", "the sine changes its sign",
         {"sin_back": lambda s, x: -x}, "turns"),
    edit("rope_sign", "the rotary embedding turns the other way",
         "q cos + turned(q) sin, where turned(q) is (-second half, first half)", {"sin": lambda s, x: -x},
         "turns"),
    edit("rope_pairing", "the rotary embedding pairs other entries: half and interleaved are mixed up", PAIRS,
         {"pairing": lambda s, x: OTHER[x]}, "turns"),
    edit("rope_pairing_back", "the way back pairs other entries in the rotary embedding", PAIRS,
         {"pairing_back": lambda s, x: OTHER[x]}, "turns"),
    edit("rope_halves_back", "the way back takes the sine after the turn, where its halves differ",
         "dq cos + (dq sin) turned back", {"sin_back": lambda s, x: np.roll(x, x.shape[-1] // 2, -1)}, "turns"),
    edit("rope_missing", "there is no rotary embedding", TURN, no_turn(""), "turns"),
    edit("rope_keys_missing", "the rotary embedding does not turn the keys", TURN,
         {"K": lambda s, x: s.K_unturned, "dK_flat": lambda s, x: s.split_back(s.dK)}, "turns"),
    edit("rope_values", "the rotary embedding turns the values too", TURN,
         {"V": lambda s, x: layer.rotated(x, s.cos, s.sin, s.pairing), "dV_flat": lambda s, x: s.split_back(
             layer.rotated(s.dV, s.cos_back, s.sin_back, s.pairing_back, back=True))}, "turns"),
]


def of_heads(m: Mistake) -> Mistake:
    """A mistake of a head, for the heads of a layer."""
    return m._replace(forms=lambda case, means: m.forms(case.heads, means))


DICTIONARY: list[Mistake] = [*map(of_heads, WRONG_RANKS), *OF_TOKENS, *LAYER_MISTAKES, *WRONG_LATENTS,
                             *map(of_heads, [*WRONG_PIECES, *MISTAKES])]
