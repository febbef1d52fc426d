"""The factors of dropout: each depends on the seed, the head, the query and the key, and on nothing else.

The numbers are those of Philox 4x32-10, a function of a counter (four words of 32 bits) and
a key (two): J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, Parallel random numbers:
as easy as 1, 2, 3, SC11, 2011, doi:10.1145/2063384.2063405. The key is the seed. The
counter of head h, query i and key j is (h mod 2^32, i // 8, h // 2^32, j), and the entry has
word i mod 4 of the four that come out, its halves exchanged where i mod 8 is 4 or more. So a
strip, a tile, another process or another device draws for an entry what all others draw
for it. Queries i and i + 4 share a word: one compares it from the upper half on, the other
from the lower half on. Each is dropped at its rate; that both are differs from the square
of the rate by less than 2^-16. All other entries have words of their own.
"""

from math import prod
from typing import Any

import torch
from torch import Tensor

from attnmath.torch.how import How

MULTIPLIERS = 0xD2511F53, 0xCD9E8D57
WEYL = 0x9E3779B9, 0xBB67AE85  # what is added to the key from round to round
ROUNDS = 10
EIGHT = 8  # queries with one counter: four words, two halves each
SMALL = 3  # in so many rounds no product depends on head, query and key at once
WORD = 2**32 - 1
COUNTERS = {"cpu": 2**15}  # at a time: their arrays stay in the cache
ELSEWHERE = 2**22  # on other devices: enough work for one launch


class Draws:
    """The factors of one call with n queries and m keys, for heads with leading axes lead."""

    def __init__(self, how: How, lead: tuple, n: int, m: int, device: torch.device) -> None:
        self.keep, self.device = 1 - how.dropout, device
        self.row, self.key = row, key = how.first_row, how.first_key
        if min(row, key) < 0 or row + n > EIGHT * 2**32 or key + m > 2**32:
            places = f"queries {row} to {row + n}, keys {key} to {key + m}"
            raise ValueError(f"dropout: {places}; there are no such counters")
        heads = torch.arange(prod(lead), device=device).view(lead) if how.heads is None else how.heads
        self.heads = heads[..., None, None]
        self.keys = round_keys(how.seed, device)
        self.least = min(round(how.dropout * 2**32), WORD) - 2**31  # of the words that keep, read as signed

    def at(self, i: Tensor, j: Tensor, dtype: torch.dtype) -> Tensor:
        """The factors of all heads at queries i (r,) and keys j (k,), wherever they stand.  -> R (..., r, k)"""
        eights, place = torch.unique(i // EIGHT, return_inverse=True)
        shape = *self.heads.shape[:-2], len(eights), len(j)
        room = torch.empty(4, prod(shape), dtype=torch.int64, device=self.device)
        words = philox((self.heads & WORD, eights[:, None], self.heads >> 32 & WORD, j), self.keys, room)
        word = torch.stack(words, -2).flatten(-3, -2)[..., 4 * place + i % 4, :].to(torch.int32)
        other = i[:, None] % EIGHT >= 4
        kept = (torch.where(other, halves_exchanged(word), word) >= self.least).to(dtype)
        return kept * (1 / self.keep) if self.keep else torch.zeros_like(kept)

    def fill(self, R: Tensor, heads: Any, rows: slice, keys: slice) -> None:
        """R (h, rows, keys): 0 at the rate of dropout, to 2^-32, and 1 / (1 - rate) elsewhere."""
        if not self.keep:
            R.zero_()
            return
        h = heads.own(self.heads).expand(*heads.shape, 1, 1).reshape(-1, 1, 1)
        j = torch.arange(self.key + keys.start, self.key + keys.stop, device=self.device)
        first, last = self.row + rows.start, self.row + rows.stop - 1
        eights = range(first // EIGHT, last // EIGHT + 1)
        step = max(1, COUNTERS.get(self.device.type, ELSEWHERE) // max(len(h) * len(j), 1))
        room = torch.empty(4, len(h) * min(step, len(eights)) * len(j), dtype=torch.int64, device=self.device)
        for some in (eights[e : e + step] for e in range(0, len(eights), step)):
            i = torch.arange(some.start, some.stop, device=self.device)[:, None]
            words = philox((h & WORD, i, h >> 32 & WORD, j), self.keys, room)
            for w, word in enumerate(words):
                word = word.to(torch.int32)
                other = halves_exchanged(word)
                self.put(word, R, EIGHT * some.start + w - first)
                self.put(other, R, EIGHT * some.start + w + 4 - first)
        R *= 1 / self.keep

    def put(self, word: Tensor, R: Tensor, row: int) -> None:
        """1 into every eighth row of R, from this one on, where a word keeps; the word is lost."""
        skip = int(row < 0)  # the first of eight rows that R begins within
        part = R[:, row + EIGHT * skip : row + EIGHT * word.shape[1] : EIGHT]
        part.copy_(word[:, skip : skip + part.shape[1]].ge_(self.least))


def halves_exchanged(word: Tensor) -> Tensor:
    """A word in int32 with its halves exchanged."""
    return (word >> 16).bitwise_and_(2**16 - 1).add_(word, alpha=2**16)


def round_keys(seed: Any, device: torch.device) -> list[tuple]:
    """The key of each round, two words in int64, from a seed () of 64 bits: its lower half first."""
    key = torch.stack([seed, seed >> 32]).to(device) & WORD
    rounds = torch.arange(ROUNDS, device=device)[:, None]
    return [k.unbind() for k in key + rounds * torch.tensor(WEYL, device=device) & WORD]


def philox(counter: tuple, keys: list[tuple], room: Tensor) -> tuple[Tensor, ...]:
    """Four words for each counter, in int64; their lower 32 bits count.

    counter: four words in int64, which broadcast to the shape of the result, with N entries;
    room (4, N or more). A product of two words wraps modulo 2^64 in int64, which leaves all
    its bits: the upper word is what is shifted down, less the copies of the sign.
    """
    (c0, c1, c2, c3), (M0, M1) = counter, MULTIPLIERS
    for k0, k1 in keys[:SMALL]:
        p0, p1 = c0 * M0, c2 * M1
        c0, c2 = (p1 >> 32 & WORD) ^ (c1 ^ k0), (p0 >> 32 & WORD) ^ (c3 ^ k1)
        c1, c3 = p1 & WORD, p0 & WORD
    p0, p1, q0, q1 = room[:, : c0.numel()].view(4, *c0.shape)
    for k0, k1 in keys[SMALL:]:  # the same in arrays that are there; c1 and c3 keep their upper bits
        torch.mul(c0, M0, out=p0)
        torch.mul(c2, M1, out=p1)
        torch.bitwise_right_shift(p1, 32, out=c0).bitwise_xor_(c1).bitwise_xor_(k0).bitwise_and_(WORD)
        torch.bitwise_right_shift(p0, 32, out=c2).bitwise_xor_(c3).bitwise_xor_(k1).bitwise_and_(WORD)
        c1, c3, p0, p1, q0, q1 = p1, p0, q0, q1, p0, p1
    return c0, c1, c2, c3
