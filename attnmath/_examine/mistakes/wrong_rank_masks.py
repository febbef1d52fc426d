"""What goes wrong over ranks in masks, in the rest of a length, and in the order of heads; and all of it."""

from collections.abc import Iterator

import numpy as np

from attnmath._examine.mistakes import wrong_merges as merges
from attnmath._examine.mistakes import wrong_ranks as of
from attnmath._examine.mistakes.blocks import Blocks, by_blocks, forward_alone
from attnmath._examine.problems import steps
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.steps import (
    ATTENTION,
    BACK,
    CAUSAL_MASK,
    Mistake,
    StepChanges,
    Steps,
    Wordings,
    bind,
)


def rules(b: Blocks) -> Iterator[tuple[str, np.ndarray]]:
    """Which query sees which key, by other rules than the places in the sequence; (n, n)."""
    n = len(b.rank)
    i, j = np.arange(n)[:, None], np.arange(n)
    right, own = j <= i, b.own
    in_line = np.argsort(np.argsort(b.rank * n + b.local))  # rank after rank
    chunk = np.where(b.half, 2 * b.ranks - 1 - b.rank, b.rank) if b.zigzag else b.rank
    yield "each block by places in the block, not in the sequence", b.local <= b.local[:, None]
    yield "blocks of other ranks are seen as a whole", right | ~own
    yield "only a rank's own block is seen", right & own
    yield "blocks are seen as a whole or not at all", chunk <= chunk[:, None]
    yield "blocks of earlier ranks are hidden, those of later ones are seen", np.where(
        own, right, b.rank > b.rank[:, None])
    yield "the first rank's block is not seen by the others", right & (own | (b.rank > 0))
    yield "blocks of earlier ranks by places in the block", right & (own | (b.local <= b.local[:, None]))
    yield "a key at the query's own place is hidden on all ranks but the first", right & ((i != j) | (
        b.rank[:, None] == 0))
    for more in (0, 1):
        other = b.key_in((2 * b.rank[:, None] + more - b.rank) % b.ranks)
        yield "blocks have the masks of each other, in the order of steps of the way forward", np.take_along_axis(
            right, other, 1)
    if b.zigzag:
        yield "as if the ranks had contiguous tokens", in_line <= in_line[:, None]
        half = n // (2 * b.ranks)
        yield "as if the second part of the queries came right after the first", j <= (
            b.rank * half + b.local)[:, None]
        for word, other in (("earlier", b.rank < b.rank[:, None]), ("later", b.rank > b.rank[:, None])):
            for q, who in ((None, "all queries"), (False, "the first part of the queries"),
                           (True, "the second part of the queries")):
                for k, whom in ((None, "all keys"), (False, "the first part of the keys"),
                                (True, "the second part of the keys")):
                    there = (q is None or b.half[:, None] == q) & (k is None or b.half == k) & (own | True)
                    yield f"of blocks of {word} ranks {who} see {whom}", np.where(other, there, right)
    else:
        half = n // (2 * b.ranks)
        if half and n % (2 * b.ranks) == 0:
            c = i // half, j // half
            zig = [np.minimum(x, 2 * b.ranks - 1 - x) * 2 + (x >= b.ranks) for x in c]
            at = zig[0] * half + i % half, zig[1] * half + j % half
            yield "as if the ranks had zigzag tokens", at[1] <= at[0]
    for way, words in b.ways:
        if way == -1:
            yield f"blocks are seen up to the step that is the rank{words}", np.where(
                own, right, b.step(-1) <= b.rank[:, None])


@by_blocks
def causal_rule(b: Blocks, case: Case, means: Conventions) -> Wordings:
    if case.causal:
        keep = True if case.keep is None else case.keep
        right = np.tril(np.ones((len(b.rank),) * 2, bool))
        for words, rule in rules(b):
            if (rule != right).any():
                seen = bind(lambda s, x, seen: np.broadcast_to(seen, x.shape), rule & keep)
                yield from both({"seen": seen}, words)


def both(change: StepChanges, words: str) -> Wordings:
    """An edit of the way forward, and the same where the way back is right but for what it is handed."""
    yield words, change
    yield f"{words}, and not in the way back", forward_alone(change)


@by_blocks
def block_skipped(b: Blocks, case: Case, means: Conventions) -> Wordings:
    yield from both({"seen": lambda s, x: x & ~b.own}, "the rank's own, the diagonal, is skipped")
    yield from both({"seen": lambda s, x: x & ~(b.own & (b.rank > 0))},
                    "the rank's own, the diagonal, is skipped on all ranks but the first")
    for way, words in b.ways:
        kept = b.step(way) < b.ranks - 1
        seen = bind(lambda s, x, kept: x & kept, kept)
        yield from both({"seen": seen}, f"that of the last step is skipped{words}")
    for r in (0, b.ranks - 1):
        yield from both({"seen": bind(lambda s, x, r: x & (b.rank != r), r)},
                        f"that of the {'last' if r else 'first'} rank is skipped")


@by_blocks
def block_twice(b: Blocks, case: Case, means: Conventions) -> Wordings:
    log2 = np.log(2)
    yield from both({"A": lambda s, x: x + log2 * b.own}, "the rank's own, the diagonal")
    for way, words in b.ways:
        last = b.step(way) == b.ranks - 1
        yield from both({"A": bind(lambda s, x, last: x + log2 * last, last)}, f"that of the last step{words}")


@by_blocks
def rest_lost(b: Blocks, case: Case, means: Conventions) -> Wordings:
    n = len(b.rank)
    least = min(map(len, b.places))
    for word, rest in (("what ranks have more than others", b.local >= least),
                       ("the end of the sequence", np.arange(n) >= n // b.ranks * b.ranks)):
        if rest.any():
            rows = ~rest[:, None]
            yield f"{word}, as keys", {"seen": bind(lambda s, x, kept: x & kept, ~rest)}
            closed = np.cumsum(~rest) - 1 <= np.arange(n)[:, None] if case.causal else True
            keep = True if case.keep is None else case.keep
            yield f"{word}, as keys, and the places of the others are closed up", {
                "seen": bind(lambda s, x, kept: np.broadcast_to(kept, x.shape), closed & ~rest & keep)}
            lost = bind(lambda s, y, rows: y * rows, rows)
            yield f"{word}, as queries", {"O": lost, "dQ": lost}
            yield f"{word}, in dK and dV", {"dkeys": lost, "dvalues": lost}


def exchanged(b: Blocks, x: np.ndarray) -> np.ndarray:
    """Parts of the heads and blocks of tokens in the place of each other: an exchange too many, or one missing."""
    h, out = x.shape[1] // b.ranks, x.copy()
    for r in range(b.ranks):
        for t in range(b.ranks):
            to, of_ = b.places[t], b.places[r]
            out[:, r * h : (r + 1) * h, to] = x[:, t * h : (t + 1) * h, of_]
    return out


def head_orders(b: Blocks, H: int) -> Iterator[tuple[str, np.ndarray]]:
    order = np.arange(H).reshape(b.ranks, -1)
    yield "head r of each rank's, then the next", order.T.ravel()
    yield "the ranks in the order of their heads", np.argsort(order.T.ravel())
    for by in range(1, b.ranks):
        yield f"those of the rank {by} before", np.roll(order, by, 0).ravel()
    yield "the ranks in reverse order", order[::-1].ravel()


def heads_mixed(letters: tuple[str, ...]) -> steps.Forms:
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        heads = [case.sizes["G" if x in ("K", "V", "dK", "dV") else "H"] for x in letters]
        if any(H % b.ranks or H == b.ranks == 1 for H in heads) or len(set(heads)) > 1:
            return
        for words, order in head_orders(b, heads[0]):
            if (order != np.arange(heads[0])).any():
                yield words, {x: bind(lambda s, y, order: y[:, order], order) for x in letters}
        if len({len(p) for p in b.places}) == 1:
            yield "heads and tokens are exchanged once too often", dict.fromkeys(
                letters, lambda s, y: exchanged(b, y))

    return forms


@by_blocks
def not_sent_back(b: Blocks, case: Case, means: Conventions) -> Wordings:
    alike = len({len(p) for p in b.places}) == 1
    if alike and not any(case.sizes[x] % b.ranks for x in "HG"):
        for words, letters in (("of what is given and of dO", ("dO", "dQ", "dK", "dV")), ("of dO alone", ("dO",)),
                               ("of what is given alone", ("dQ", "dK", "dV"))):
            yield words, dict.fromkeys(letters, lambda s, x: exchanged(b, x))


def batch_mixed(there: tuple[str, ...], back: bool) -> steps.Forms:
    """What an exchange gives, ranks first, is read as if the batch came first; on the way back the same."""
    @by_blocks
    def forms(b: Blocks, case: Case, means: Conventions) -> Wordings:
        size, order = case.sizes["b"], np.concatenate(b.places)
        if size == 1 or len({len(p) for p in b.places}) > 1:
            return
        at = np.arange(size * len(order)).reshape(size, b.ranks, -1).swapaxes(0, 1).reshape(size, -1)
        inverse = np.argsort(at.ravel()).reshape(at.shape)

        def mixed(s: Steps, x: np.ndarray, at: np.ndarray) -> np.ndarray:
            lines = x[:, :, order].swapaxes(1, 2)  # (b, n, H, d), rank after rank
            out = np.empty_like(x)
            out[:, :, order] = lines.reshape(-1, *lines.shape[2:])[at].swapaxes(1, 2)
            return out

        yield "", {**{x: bind(mixed, at) for x in there}, **({"O": bind(mixed, inverse)} if back else {})}

    return forms


RING = "chapters/flash.md"
HOME = "bring the gradient of a block to where the block is from"
STALE = {"K and V": "the keys and values of a step are", "K": "the keys of a step are",
         "V": "the values of a step are"}
WRONG_RANKS: list[Mistake] = [
    *(Mistake(f"rank_stale{'_bwd' * back}", f"{'in the way back ' * back}{words} not those of its block",
              of.stale(back, letters), RING, "each step has the block that came in it")
      for back in (True, False) for letters, words in STALE.items()),
    *(Mistake("rank_missing", f"contributions to {who} are wrong", of.missing(letters), RING,
              "each query and each key that it sees count once, on whichever rank")
      for who, letters in of.WHO.items()),
    *(Mistake("rank_moved", f"{who} {'stand' if 'and' in who else 'stands'} with the wrong tokens",
              of.moved(letters), RING, HOME) for who, letters in of.ROWS.items()),
    *(Mistake("rank_late", f"contributions to {who} stand with the wrong block", of.others_moved(letters),
              RING, HOME)
      for who, letters in of.WHO.items()),
    *(Mistake("rank_late", f"contributions to {who} stand with the wrong block", of.other_way_round(letters),
              RING, "send the gradient of a block the way that the block goes")
      for who, letters in of.WHO.items() if "dQ" not in letters),
    *(Mistake("rank_memory", f"the numbers of {who} are laid into memory in another order", of.in_memory(letters),
              BACK, "receive into memory that is contiguous, or copy into it")
      for who, letters in of.ROWS.items()),
    *(Mistake(f"rank_{name}", f"{who} {'are' if 'and' in who else 'is'} {words} the number of ranks",
              of.scaled(letters, by), RING, "a sum over the ranks, no mean, and once")
      for who, letters in of.WHO.items() for name, words, by in (
          ("divided", "divided by", lambda R: 1 / R), ("multiplied", "multiplied by", float))),
    Mistake("rank_local_lse", "the weights of the way back are normalised by a part's log-sum-exp",
            merges.local_weights, RING, "normalise by the log-sum-exp of the whole row"),
    Mistake("rank_merge", "the parts of a row are merged wrongly", merges.merged, RING,
            "bring the parts to one maximum, or to the log-sum-exp of the whole row, before they are added"),
    Mistake("rank_padded", "keys that fill up the shorter blocks are attended", merges.padded, ATTENTION,
            "hide what is filled up with zeros"),
    Mistake("rank_scale", "the scale is applied once more at each step", of.scaled_again, ATTENTION,
            "scale the queries, or the scores, once"),
    Mistake("rank_D", "the row term D is that of a part of the row", merges.part_of_D, RING,
            "D = rowsum(dO o O), with the whole output"),
    Mistake("rank_causal", "the causal mask has another rule over ranks", causal_rule, CAUSAL_MASK,
            "j <= i by places in the whole sequence"),
    Mistake("rank_block_skipped", "a block of keys is left out", block_skipped, ATTENTION,
            "each query sees every key that it may see, on whichever rank"),
    Mistake("rank_block_twice", "a block of keys counts twice", block_twice, ATTENTION, "each key counts once"),
    Mistake("rank_rest", "what is left over of a length is lost", rest_lost, ATTENTION,
            "ranks may have unlike numbers of tokens"),
    *(Mistake("rank_heads", f"the heads of {' and '.join(letters)} are in another order after they were exchanged",
              heads_mixed(letters), ATTENTION if letters[0] in "OQKV" else BACK, "keep the order of the heads")
      for letters in (("O",), ("Q",), ("K",), ("V",), ("K", "V"), ("dQ",), ("dK",), ("dV",), ("dK", "dV"),
                      ("dQ", "dK", "dV"))),
    Mistake("rank_not_sent", "where heads and tokens are exchanged the way back sends nothing", not_sent_back,
            BACK, "the way back of an exchange is the exchange the other way"),
    *(Mistake("rank_batch", f"batch elements and tokens of {who} are mixed where they were exchanged",
              batch_mixed(there, back), ATTENTION, "bring the batch to the front, then join ranks and tokens")
      for who, there, back in (("Q, K, V and O", ("Q", "K", "V"), True), ("Q, K and V", ("Q", "K", "V"), False),
                               ("O", (), True), ("K and V", ("K", "V"), False))),
]
