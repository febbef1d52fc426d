"""What is lost, overwritten, exchanged or short: tiles, rows, heads, arguments, formats."""

from collections.abc import Callable
from functools import lru_cache

import numpy as np

from attnmath._examine.mistakes.operators import POWERS, Place
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import ATTENTION, BACK, Mistake, StepChanges, Wordings, only

TILES = (*POWERS, *(t for t in range(20, 0, -1) if t not in POWERS))
LOST: dict[str, Callable[[int, int], tuple[int, int]]] = {  # from where to where, by length and tile
    "the last tile of {}": lambda length, t: ((length - 1) // t * t, length),
    "a last tile of {} after the first": lambda length, t: (max((length - 1) // t * t, min(t, length)), length),
    "what whole tiles of {} leave": lambda length, t: (length // t * t, length),
    "what is left after whole tiles of {}, one at least": lambda length, t: (max(length // t, 1) * t, length),
    "all after the first {}": lambda length, t: (min(t, length), length),
    "the last {}": lambda length, t: (max(length - t, 0), length),
}
KEPT: dict[str, Callable[[int, int], tuple[int, int]]] = {
    "tiles of {}": lambda length, t: (0, (length - 1) // t * t),
}


def tile_lost(
    thing: str, before: bool, cut: Callable[[np.ndarray], StepChanges]
) -> Callable[[int], tuple[tuple[str, StepChanges], ...]]:
    """Without the last tile, or all before it, by length; cut gives the change for what is kept."""
    @lru_cache(64)  # many problems have the same length
    def forms(length: int) -> tuple[tuple[str, StepChanges], ...]:
        found = []
        for word, span in (KEPT if before else LOST).items():
            for t in TILES:
                start, stop = span(length, t)
                kept = np.ones(length, bool)
                kept[start:stop] = False
                found.append((f"{word.format(t)} {thing}" if before else word.format(t), cut(kept)))
        return tuple(found)

    return forms


def key_cuts(kept: np.ndarray, *letters: str) -> StepChanges:
    without: StepChanges = {
        "dA": lambda s, x: x * kept,
        **Place("dQ", "dA").change(lambda s, x: x * kept),
        "dkeys": lambda s, x: x * kept[:, None],
        "dvalues": lambda s, x: x * kept[:, None],
    }
    return {letter: without[letter] for letter in letters}


def key_tile(*letters: str, before: bool = False) -> steps.Forms:
    lost = tile_lost("keys", before, lambda kept: key_cuts(kept, *letters))
    return lambda case, means: iter(lost(case.K.shape[2]))


def first_key(*letters: str) -> steps.Forms:
    def forms(case: Case, means: Conventions) -> Wordings:
        kept = np.arange(case.K.shape[2]) > 0
        yield "", key_cuts(kept, *letters)

    return forms


def query_tile(*letters: str, before: bool = False) -> steps.Forms:
    def cut(kept: np.ndarray) -> StepChanges:
        rows = kept[:, None]
        without: StepChanges = {
            "dQ": lambda s, x: x * rows,
            **Place("dkeys", "dA").change(lambda s, x: x * rows),
            **Place("dvalues", "PR_back").change(lambda s, x: x * rows),
            "O": lambda s, x: x * rows,
        }
        return {letter: without[letter] for letter in letters}

    lost = tile_lost("queries", before, cut)
    return lambda case, means: iter(lost(case.Q.shape[2]))


def heads_mixed(letter: str) -> steps.Forms:
    def change(order: np.ndarray) -> StepChanges:
        return {letter: lambda s, x: x[:, order]}

    def forms(case: Case, means: Conventions) -> Wordings:
        heads = np.arange((case.Q if letter in ("dQ", "O") else case.K).shape[1])
        for by in heads[1:]:
            yield f"head h has that of h - {by}", change(np.roll(heads, by))
        if len(heads) > 2:
            yield "in reverse order", change(heads[::-1])
        for a in heads:
            for b in heads[:a]:
                order = np.where(heads == a, b, np.where(heads == b, a, heads))
                yield f"heads {b} and {a} exchanged", change(order)

    return forms


def batch_first(case: Case, means: Conventions) -> Wordings:
    if case.Q.shape[0] > 1:
        for letters in (("O",), ("dQ", "dK", "dV"), ("O", "dQ", "dK", "dV")):
            yield "in " + ", ".join(letters), {k: lambda s, x: np.repeat(x[:1], len(x), 0) for k in letters}


def values_as_keys(case: Case, means: Conventions) -> Wordings:
    if case.K.shape == case.V.shape:
        yield "", {"keys": lambda s, x: s.V[:, s.owner], "values": lambda s, x: s.K[:, s.owner],
                   "keys_back": lambda s, x: s.V[:, s.owner], "values_back": lambda s, x: s.K[:, s.owner],
                   "dK": lambda s, x: steps.grouped(s.dvalues, s.owner, s.K.shape[1]),
                   "dV": lambda s, x: steps.grouped(s.dkeys, s.owner, s.K.shape[1])}


def keys_as_queries(case: Case, means: Conventions) -> Wordings:
    if case.Q.shape == case.K.shape:
        yield "", {"Q": lambda s, x: s.case.K, "K": lambda s, x: s.case.Q, "dQ": lambda s, x: s.dkeys,
                   "dK": lambda s, x: s.gamma_back * s.dA @ s.keys_back}


def dK_and_dV_exchanged(case: Case, means: Conventions) -> Wordings:
    if case.K.shape == case.V.shape:
        yield "", {"dK": lambda s, x: steps.grouped(s.dvalues, s.owner_back, s.V.shape[1]),
                   "dV": lambda s, x: steps.grouped(s.dkeys, s.owner_back, s.K.shape[1])}


def rounded_to(x: np.ndarray, digits: int) -> np.ndarray:
    """By way of float32, as libraries do it: what is halfway then is rounded to even."""
    fraction, exponent = np.frexp(x.astype(np.float32).astype(float))
    return np.ldexp(np.rint(np.ldexp(fraction, digits)), exponent - digits)


def short_weights(case: Case, means: Conventions) -> Wordings:
    for word, digits in (("bfloat16", 8), ("float16", 11)):
        P = steps.bind(lambda s, P, digits: rounded_to(P, digits), digits)
        O = steps.bind(lambda s, O, digits: (rounded_to(s.P, digits) * s.R) @ s.values, digits)
        PR_back = steps.bind(lambda s, PR, digits: rounded_to(s.P_back, digits) * s.R_back, digits)
        for change in ({"P": P, "P_back": P}, {"O": O, "PR_back": PR_back}, {"P_back": P}, {"PR_back": PR_back},
                       {"O": O}):
            yield word, change


KEYS_LOST = tile_lost("keys", False, lambda kept: {"seen": lambda s, x: x & kept})


def keys_lost(case: Case, means: Conventions) -> Wordings:
    return iter(KEYS_LOST(case.K.shape[2]))


def short_buffer(case: Case, means: Conventions) -> Wordings:
    i, j = np.arange(case.Q.shape[2])[:, None], np.arange(case.K.shape[2])
    for t in (256, *POWERS):
        yield f"queries from {t} on see the first {t} keys", {
            "seen": steps.bind(lambda s, x, lost: x & ~lost, (i >= t) & (j >= t))}


PART = "the last tile may be a part"
WRONG_PLACES: list[Mistake] = [
    *(Mistake(name, f"{word} the last keys", key_tile(*letters), BACK, PART) for name, word, letters in (
        ("last_tile", "dA misses", ["dA"]), ("last_tile", "dQ misses", ["dQ"]),
        ("last_tile_dK", "dK misses", ["dkeys"]), ("last_tile_dV", "dV misses", ["dvalues"]),
        ("tail_keys_dropped", "dK and dV miss", ["dkeys", "dvalues"]),
        ("tail_keys_dropped", "dQ, dK and dV miss", ["dA", "dvalues"]))),
    *(Mistake("first_key", f"{word} the first key", first_key(*letters), BACK, "begin at key 0")
      for word, letters in (("dA misses", ["dA"]), ("dQ misses", ["dQ"]), ("dK misses", ["dkeys"]),
                            ("dV misses", ["dvalues"]), ("dK and dV miss", ["dkeys", "dvalues"]),
                            ("dQ, dK and dV miss", ["dA", "dvalues"]))),
    Mistake("last_row_zero", "the last row of dQ is zero",
            only({"dQ": lambda s, x: x * (np.arange(x.shape[2]) < x.shape[2] - 1)[:, None]}), BACK,
            "the last row is a row too"),
    Mistake("tail_rows_zero", "the last rows of dQ are zero", query_tile("dQ"), BACK, PART),
    Mistake("tail_rows_zero", "the last rows of O are zero", query_tile("O"), ATTENTION, PART),
    *(Mistake("last_queries_dropped", f"{word} the last queries", query_tile(*letters), BACK, PART)
      for word, letters in (("dK and dV miss", ["dkeys", "dvalues"]), ("dK misses", ["dkeys"]),
                            ("dV misses", ["dvalues"]))),
    *(Mistake(f"{x[:2]}_overwrite", f"{x} the last tile of {tiles} alone: {sums} overwritten", forms, BACK,
              "add to the sum") for x, tiles, sums, forms in (
        ("dK keeps", "queries", "the sum is", query_tile("dkeys", before=True)),
        ("dV keeps", "queries", "the sum is", query_tile("dvalues", before=True)),
        ("dK and dV keep", "queries", "the sums are", query_tile("dkeys", "dvalues", before=True)),
        ("dQ keeps", "keys", "the sum is", key_tile("dQ", before=True)))),
    # order
    *(Mistake("head_mixup", f"the heads of {x} are mixed up", heads_mixed(x),
              ATTENTION if x == "O" else BACK, "keep the order of the heads") for x in ("dQ", "dK", "dV", "O")),
    Mistake("batch_first_only", "every batch element has the result of the first", batch_first, ATTENTION,
            "use each element's own numbers"),
    Mistake("f_kv_swapped", "keys and values are exchanged", values_as_keys, ATTENTION, "softmax(Q K^T) V"),
    Mistake("f_qk_swapped", "queries and keys are exchanged", keys_as_queries, ATTENTION, "softmax(Q K^T) V"),
    Mistake("kv_swapped", "dK and dV are exchanged", dK_and_dV_exchanged, BACK, "return dQ, dK, dV"),
    Mistake("P_in_bf16", "the weights are kept in a short format", short_weights, BACK,
            "keep P in the format of the sums, or say that it is short"),
    Mistake("keys_lost", "keys are left out", keys_lost, ATTENTION, "the last tile may be a part"),
    Mistake("short_buffer", "later keys are left out", short_buffer, ATTENTION, "a query sees all keys"),
]
