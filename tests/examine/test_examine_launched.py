"""Ranks that torchrun has begun: each calls the checker, each has the same report, it is printed once."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SCRIPT = """
import sys
from functools import partial

import torch
import torch.distributed as dist

import rings
from attnmath import examine, examine_layer
from attnmath.testing import assert_attention_gradients

torch.set_num_threads(1)
dist.init_process_group("gloo")  # the group that is there
few = dict(seed=3, smallest=False, progress=False)
which = sys.argv[1]
if which == "right":
    reports = [examine(rings.ring, ranks=2, options={"causal"}, **few)]
    reports += [examine_layer(rings.RankLayer("sum"), ranks=2, seed=1, smallest=False)]
elif which == "wrong":
    reports = [examine_layer(rings.RankLayer("sum but W_Q"), ranks=2, seed=1, smallest=False)]
else:
    assert_attention_gradients(partial(rings.slipping, slip="divided"), ranks=2, options={"causal"}, **few)
for report in reports:
    print(f"rank {dist.get_rank()}: {report.status}", flush=True)
    if dist.get_rank() == 0:
        print(report, flush=True)
total = torch.tensor([float(x.status) for x in reports])
dist.all_reduce(total)  # the group is as it was
dist.destroy_process_group()
sys.exit(max(x.status for x in reports))
"""


def launched(folder, *arguments):
    """The exit status, and what two ranks print."""
    (folder / "script.py").write_text(SCRIPT)
    paths = os.pathsep.join([str(ROOT), str(ROOT / "tests" / "helpers")])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0",
               "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", *arguments]
    done = subprocess.run(command, cwd=folder, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": paths},
                          capture_output=True, text=True, timeout=240)
    return done.returncode, done.stdout, done.stderr


def test_functions_and_layers_that_are_right(tmp_path):
    status, said, error = launched(tmp_path, "script.py", "right")
    assert status == 0, error
    assert sorted(re.findall(r"rank \d: \d", said)) == ["rank 0: 0", "rank 0: 0", "rank 1: 0", "rank 1: 0"]
    assert said.count("ring over 2 ranks, contiguous is right") == said.count("RankLayer over 2 ranks") == 1, said


def test_a_layer_that_is_wrong(tmp_path):
    status, said, _ = launched(tmp_path, "script.py", "wrong")
    assert status != 0 and said.count("weights are not summed over the ranks: W_Q") == 1, said
    assert said.count("RankLayer over 2 ranks, contiguous is wrong") == 1


def test_an_assertion_fails(tmp_path):
    status, _, error = launched(tmp_path, "script.py", "assert")
    assert status != 0 and error.count("AssertionError: slipping over 2 ranks, contiguous is wrong") == 2, error
    assert error.count("is wrong: rank 0 has the report") == error.count("  tried ") == 1, error


def test_the_command(tmp_path):
    status, said, error = launched(tmp_path, "-m", "attnmath", "examine", "rings:whole", "--ranks", "2")
    assert status != 0 and said.count("has 8 rows, all of them, where the rank has 4 tokens") <= 2, said
    assert said.count("whole over 2 ranks, contiguous is") == 1, said + error
