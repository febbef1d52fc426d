"""Messages round a ring of processes: blocks that pass on, sums that come home, headers that must agree."""

import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

NAME = "ring_attention"
FIELDS = {  # of a header, and what is said of a rank where it differs; None: it may
    "refused": "its arguments were refused there",
    "call": "it is at another call",
    "work": "it computes something else",
    "step": "it is at another step",
    "dtype": "it has another dtype",
    "lead": "it has other leading axes",
    "d_k": "it has another d_k",
    "d_v": "it has another d_v",
    "layout": "it has another layout",
    "options": "it has other options (mask, dropout, causal, scale, groups, cap, sinks or window)",
    "bytes": "its message has another length",
} | dict.fromkeys(["n", "m", "columns", "seed", "places", "squares"])
WIDTH = 8 * len(FIELDS)  # bytes of a header: a whole number of 64 bits for each field


@dataclass
class Tally:
    """What this process has done: bytes and messages that it sent, tiles of scores that it computed."""

    bytes: int = 0
    messages: int = 0
    tiles: int = 0


TALLY = Tally()
CALLS: dict[Any, int] = {}  # how often the ranks of a group have agreed


class Link:
    """A process's place in a ring: it sends to the next rank and receives from the one before."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available():
            raise RuntimeError(f"{NAME}: this PyTorch was built without torch.distributed")
        if not dist.is_initialized():
            raise RuntimeError(f"{NAME}: there is no process group; call torch.distributed.init_process_group")
        self.group: Any = dist.group.WORLD if group is None else group
        if self.group is dist.GroupMember.NON_GROUP_MEMBER:
            raise ValueError(f"{NAME}: group is one without this process; it needs to be one that has it")
        if not isinstance(self.group, dist.ProcessGroup):
            raise TypeError(f"{NAME}: group is a {type(group).__name__}; it needs to be a ProcessGroup")
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        self.device = torch.device("cuda" if dist.get_backend(self.group) == "nccl" else "cpu")

    def agree(self, **fields: int) -> dict[str, list[int]]:
        """What every rank has in each field, in the order of the ranks.

        Raises RuntimeError on each rank if one was refused its arguments, or has another
        value in a field in which all must have the same.
        """
        CALLS[self.group] = fields["call"] = CALLS.get(self.group, 0) + 1
        own = header(fields, self.device)
        every = [torch.empty_like(own) for _ in range(self.size)]
        with said(f"{NAME}: rank {self.rank} waits for the headers of all ranks"):
            dist.all_gather(every, own, group=self.group)
        count(self.size - 1, WIDTH)
        rows = [x.tolist() for x in every]
        for rank, row in enumerate(rows):
            self.compare(rank, row, rows[self.rank] if rank != self.rank and not fields.get("refused") else row)
        return dict(zip(FIELDS, map(list, zip(*rows))))

    @contextmanager
    def before_agreement(self) -> Iterator[None]:
        """The other ranks learn of what goes wrong on this one, and need not wait for it."""
        try:
            yield
        except Exception:
            if self.size > 1:
                self.agree(refused=1)
            raise

    def compare(self, rank: int, row: Sequence[int], want: Sequence[int]) -> None:
        """Raises RuntimeError if a header of a rank is not what is wanted."""
        for difference, got, need in zip(FIELDS.values(), row, want):
            if difference and got != need:
                raise RuntimeError(f"{NAME}: rank {rank} does not fit to rank {self.rank}: {difference}")

    def round(
        self, block: list[Tensor], keys: Sequence[int], compute: Callable, **fields: int
    ) -> list[Tensor]:
        """Every block passes through every rank, and its sums follow it home.

        compute(origin, block) -> this rank's parts of the sums of the block of rank origin.
        All are tensors (..., keys of the rank, width). A block is sent on before the work
        that this overlaps with, its sums during the next.  -> the sums of this rank's block
        """
        coming, sums = None, []
        for step in range(self.size):
            origin, before = (self.rank - step) % self.size, (self.rank - step - 1) % self.size
            passing = None
            if step + 1 < self.size:
                passing = Shift(self, block, keys[before], dict(fields, step=2 * step))
            sums = compute(origin, block)
            if coming is not None:
                sums = [x.add_(y) for x, y in zip(sums, coming.wait())]
            if sums and self.size > 1:
                coming = Shift(self, sums, keys[before], dict(fields, step=2 * step + 1))
            if passing is not None:
                block = passing.wait()
        return sums if coming is None else coming.wait()


class Shift:
    """Tensors (..., keys, width) on their way to the next rank, others from the rank before."""

    def __init__(self, link: Link, tensors: list[Tensor], keys: int, fields: dict[str, int]) -> None:
        self.link, self.before = link, (link.rank - 1) % link.size
        self.shapes = [(*x.shape[:-2], keys, x.shape[-1]) for x in tensors]
        self.dtypes, device = [x.dtype for x in tensors], tensors[0].device
        call = CALLS[link.group]
        self.sizes = [prod(shape) * x.element_size() for shape, x in zip(self.shapes, tensors)]
        parts = [x.contiguous().view(-1).view(torch.uint8) for x in tensors]
        own = header(dict(fields, call=call, bytes=sum(map(len, parts))), device)
        self.want = header(dict(fields, call=call, bytes=sum(self.sizes)), device).tolist()
        self.own = torch.cat([own.view(torch.uint8), *parts])
        self.room = self.own.new_empty(WIDTH + sum(self.sizes))
        self.waits = f"{NAME}: rank {link.rank} waits for a message from rank {self.before}"
        with said(self.waits):
            self.works = dist.batch_isend_irecv([
                dist.P2POp(dist.isend, self.own, group=link.group, group_peer=(link.rank + 1) % link.size),
                dist.P2POp(dist.irecv, self.room, group=link.group, group_peer=self.before),
            ])
        count(1, len(self.own))

    def wait(self) -> list[Tensor]:
        """Those that have come."""
        with said(self.waits):
            for work in self.works:
                work.wait()
        head, *parts = self.room.split([WIDTH, *self.sizes])
        self.link.compare(self.before, head.view(torch.int64).tolist(), self.want)
        return [x.view(dtype).view(shape) for x, dtype, shape in zip(parts, self.dtypes, self.shapes)]


def header(fields: dict[str, int], device: torch.device) -> Tensor:
    """The fields as numbers, 0 for those that are not given."""
    return torch.tensor([fields.get(name, 0) for name in FIELDS], dtype=torch.int64, device=device)


def number_of(*things: Any) -> int:
    """A number that stands for them in a header."""
    return zlib.crc32(repr(things).encode())


def count(messages: int, size: int) -> None:
    TALLY.messages += messages
    TALLY.bytes += messages * size


@contextmanager
def said(what: str) -> Iterator[None]:
    """What goes wrong in torch.distributed, as one sentence that says what was waited for."""
    try:
        yield
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0]
        raise RuntimeError(f"{what} in vain: {reason}") from error
