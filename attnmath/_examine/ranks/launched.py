"""The ranks as processes that torchrun has begun: the first leads, the others serve it until it has a report."""

import os
import pickle
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from attnmath._examine.contract.functions import Broken, Fault, Unusable
from attnmath._examine.contract.worker import Worker
from attnmath._examine.ranks.pool import GRACE, named
from attnmath._examine.ranks.rank import Order, Rank

Function = Callable[..., Any]
WAITS = timedelta(hours=6)  # for an order: the first rank may compute


def there(ranks: int) -> bool:
    """Whether this program is one rank of several; its group is begun if it is not there yet."""
    if not dist.is_initialized():
        if not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"} <= os.environ.keys():
            return False
        dist.init_process_group("gloo")
    if dist.get_world_size() != ranks:
        raise Unusable(f"ranks is {ranks}, and the group that is there has {dist.get_world_size()}")
    return True


class Launched:
    """The ranks of the group that is there; orders and replies go by its store."""

    calls = 0  # of this program: all ranks count alike
    given_up: Fault | None = None

    def __init__(self, functions: tuple[Function, Function | None], limit: float, device: Any = None) -> None:
        Launched.calls += 1
        store = dist.distributed_c10d._get_default_store()
        self.store: Any = dist.PrefixStore(f"attnmath_{Launched.calls}", store)
        self.rank, self.ranks, self.limit = dist.get_rank(), dist.get_world_size(), limit
        self.served, self.worker, self.number = Rank(*functions, device), Worker(), 0

    def ask(self, orders: Sequence[Order], limit: float | None = None) -> list[Any]:
        """What each rank replies to its order; Broken where one raises or does not answer."""
        if self.given_up is not None:
            raise Broken(self.given_up)
        seconds, self.number = self.limit if limit is None else limit, self.number + 1
        for r in range(1, self.ranks):
            self.store.set(f"order_{self.number}_{r}", pickle.dumps(orders[r]))
        answers: dict[int, tuple[str, Any]] = {}
        with suppress(Broken):  # it hangs
            answers[0] = self.worker.call(lambda: self.served.answer(orders[0]), seconds)
        until = time.monotonic() + (GRACE if 0 not in answers else seconds)
        for r in range(1, self.ranks):
            key = f"reply_{self.number}_{r}"
            try:
                self.store.wait([key], timedelta(seconds=max(until - time.monotonic(), GRACE / 4)))
                answers[r] = pickle.loads(self.store.get(key))
                self.store.delete_key(key)
            except RuntimeError:  # it is not there in time
                continue
        late = [r for r in range(self.ranks) if r not in answers]
        raised = {r: said for r, (kind, said) in answers.items() if kind == "raised"}
        if late:
            why = f"{named(late)} did not answer within {seconds:g} s"
            why += "".join(f"; rank {r}: {said}" for r, said in raised.items())
            self.given_up = Fault("hangs", why)
            raise Broken(self.given_up)
        if raised:
            rank, said = next(iter(raised.items()))
            raise Broken(Fault("raises", said if len(raised) == self.ranks else f"rank {rank}: {said}"))
        return [answers[r][1] for r in range(self.ranks)]

    def close(self) -> None:
        """Nothing: the ranks are not ours to end."""

    def finish(self, report: Any) -> None:
        """The others have the report, and go on."""
        self.served.restore()
        self.store.set("report", pickle.dumps(report))
        for r in range(1, self.ranks):
            self.store.set(f"order_{self.number + 1}_{r}", b"")

    def serve(self) -> Any:
        """Answer one order after another; the report in the end."""
        while True:
            self.number += 1
            key = f"order_{self.number}_{self.rank}"
            self.store.wait([key], WAITS)
            if not (order := self.store.get(key)):
                self.served.restore()
                return pickle.loads(self.store.get("report"))
            self.store.delete_key(key)
            with torch.random.fork_rng():
                answer = self.served.answer(pickle.loads(order))
            self.store.set(f"reply_{self.number}_{self.rank}", pickle.dumps(answer))


def judged(work: Callable[[Any, Any], Any], pool: Launched, say: Any) -> Any:
    """The report, on each rank: the first makes it, the others serve it."""
    if pool.rank:
        return pool.serve()
    report = work(say, pool)
    pool.finish(report)
    return report
