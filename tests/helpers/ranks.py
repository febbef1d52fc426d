"""Processes with a group of torch.distributed (gloo), which do what they are told side by side."""

import datetime
import os
import tempfile
import time
import traceback
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

# Read once, for all processes; the last is what autograd imports in the first way back.
PRELOADED = ["torch.distributed", "attnmath.torch", "attnmath.rounding", "torch.fx.experimental.symbolic_shapes"]
LIMIT = 60  # seconds until a rank has to have answered


def serve(rank, ranks, place, seconds, pipe):
    """What is told comes as (function, arguments) and runs as function(group, *arguments)."""
    torch.set_num_threads(1)
    long, timeout = (datetime.timedelta(seconds=x) for x in (2 * LIMIT, seconds))
    dist.init_process_group("gloo", init_method=f"file://{place}", rank=rank, world_size=ranks, timeout=long)
    groups = {size: dist.new_group(range(size), timeout=timeout) for size in range(1, ranks + 1)}
    while (told := pipe.recv()) is not None:  # with it comes the import of what is told
        size, function, arguments = told
        pipe.send("ready")
        pipe.recv()
        try:
            pipe.send((True, function(groups[size], *arguments)))
        except Exception as error:
            pipe.send((False, (type(error), str(error), traceback.format_exc())))


class Ranks:
    """So many processes; each smaller number of them has a group as well."""

    def __init__(self, ranks, seconds=20):
        self.folder = tempfile.TemporaryDirectory()
        context = mp.get_context("forkserver")
        context.set_forkserver_preload(PRELOADED)
        place = os.path.join(self.folder.name, "group")
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            own, other = context.Pipe()
            process = context.Process(target=serve, args=(rank, ranks, place, seconds, other), daemon=True)
            process.start()
            self.pipes.append(own)
            self.processes.append(process)

    def try_each(self, *told, limit=LIMIT):
        """told[rank] = (function, *arguments) -> for each: (True, result), (False, error) or None, if it never came."""
        for pipe, (function, *arguments) in zip(self.pipes, told):
            pipe.send((len(told), function, arguments))
        for pipe, _ in zip(self.pipes, told):  # so that none waits for another's imports
            assert self.answer(pipe, 2 * LIMIT) == "ready"
        for pipe, _ in zip(self.pipes, told):
            pipe.send("go")
        end = time.monotonic() + limit
        return [self.answer(pipe, max(0.0, end - time.monotonic())) for pipe, _ in zip(self.pipes, told)]

    @staticmethod
    def answer(pipe, limit):
        try:
            return pipe.recv() if pipe.poll(limit) else None
        except EOFError:
            return None

    def run(self, size, function, *arguments):
        """The results of function(group, *arguments) on so many ranks."""
        answers = self.try_each(*[(function, *arguments)] * size)
        for rank, answer in enumerate(answers):
            assert answer is not None, f"rank {rank} did not answer"
            assert answer[0], f"rank {rank}: {answer[1][2]}"
        return [answer[1] for answer in answers]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()
        self.folder.cleanup()


@contextmanager
def ranks(count, seconds=20):
    some = Ranks(count, seconds)
    try:
        yield some
    finally:
        some.close()
