"""Right implementations of attention before the checker's bounds: how near they come, and how often it is wrong.

    python benchmarks/false_alarms.py                       1,000 random problems for each, and each format
    python benchmarks/false_alarms.py --problems 100 --only tiles --dtypes float32 bfloat16
    python benchmarks/false_alarms.py --libraries           JAX and transformers too, where they are installed
    python benchmarks/false_alarms.py --second              tangents and double backwards in place of gradients

A problem is drawn at random: family, sizes up to 40 rows and keys, mask or bias, groups, scale, dropout,
strides. Implementations that take the same options solve the same problems. The largest error is in units of
its bound; above 1 it would be a false alarm. So it is for the tests over many entries of short formats.
"""

import argparse
import sys
import time
import zlib
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import torch

import attnmath
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.diagnosis.conventions import detect
from attnmath._examine.problems.bounds import CONSTANT, judge_answer, right_and_bounds
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.families import FAMILIES, drawn_case
from attnmath._examine.second.calls import second_candidate
from attnmath._examine.second.program import LETTERS, fits, second_and_bounds, with_tangents
from attnmath._examine.second.scatter import judge_second, typical

TESTS = Path(__file__).parent.parent / "tests" / "helpers"
sys.path.insert(0, str(TESTS))
from random_problems import random_setting  # noqa: E402


def implementations(libraries):
    sys.path.insert(0, str(TESTS.parent / "adapters"))
    from correct import CORRECT

    if not libraries:
        return CORRECT
    from correct_libraries import LIBRARIES

    return CORRECT | LIBRARIES


def problems_of(takes, dtype, seed, alike):
    """Random problems without end; so many in turn have the same sizes and differ in family and numbers."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{sorted(takes)} {dtype}".encode())])
    while True:
        setting = random_setting(rng, 40)
        for _ in range(alike if setting.needs <= takes else 0):
            yield drawn_case(replace(setting, name=str(rng.choice(list(FAMILIES)))), dtype, rng)


class Run:
    """One implementation in one format: what it has solved so far."""

    def __init__(self, name, correct, dtype):
        self.name, self.dtype = name, dtype
        told = dict(options=correct.options, dtype=dtype, layout=correct.layout, framework=correct.framework)
        self.candidate = Candidate(correct.fn, correct.backward, **told)
        self.means, _ = detect(self.candidate, Conventions(layout=correct.layout))
        self.worst, self.many, self.place = 0.0, 0.0, ""
        self.alarms, self.judged, self.refused, self.seconds = 0, 0, {}, 0.0

    def solve(self, case, seed, truths):
        """One problem; truths holds what is right of it for those who mean the same by it."""
        began = time.perf_counter()
        outcome = self.candidate.run(case, self.means, seed=seed)
        self.seconds += time.perf_counter() - began
        if outcome.answer is None:
            sentence = outcome.error.sentence
            self.refused[sentence] = self.refused.get(sentence, 0) + 1
            return
        means = replace(self.means, layout=None)
        drawn = outcome.case is not case and outcome.case.R is not case.R
        if drawn or means not in truths:
            truth = right_and_bounds(outcome.case, means, self.dtype)
            truths.update({} if drawn else {means: truth})
        else:
            truth = truths[means]
        verdicts = judge_answer(outcome.answer, *truth, self.dtype)
        self.judged += 1
        self.alarms += not all(v.passed for v in verdicts.values())
        for letter, v in verdicts.items():
            self.many = max(self.many, v.aggregate)
            if v.ratio > self.worst:
                self.worst, self.place = v.ratio, f"{letter}, {case.name}"

    def __str__(self):
        numbers = f"{self.judged:8} {self.worst:7.3f} {self.many:6.3f} {self.alarms:6}"
        line = f"{self.name:40} {self.dtype:9} {numbers}  {self.place}"
        return "\n".join([line, *(f"{'':41}refused {n} times: {said}" for said, n in self.refused.items())])


NUMPY = dict(
    jvp=lambda *x: attnmath.attention_jvp(*x[3:], None, None, *x[:3]),
    vjp_vjp=lambda *x: tuple(attnmath.attention_vjp_vjp(*x[:3], None, None, *x[3:])[:4]),
)


def second_runs(dtype):
    """Right second derivatives: of PyTorch's math kernel, the drop-in, a plain program, and those of NumPy."""
    from attnmath.torch import scaled_dot_product_attention
    from correct import SDPA, math_kernel
    from second_orders import OPTIONS, jvp_with, plain, vjp_vjp_with

    options = SDPA | {"causal": "is_causal"}
    given = {
        "math kernel": (math_kernel, options, "torch", True, True),
        "attnmath.torch": (scaled_dot_product_attention, options, "torch", True, True),
        "by hand, every array rounded": (plain, OPTIONS, "torch", jvp_with(), vjp_vjp_with()),
        "attnmath, arrays of NumPy": (attnmath.attention, {}, "numpy", NUMPY["jvp"], NUMPY["vjp_vjp"]),
    }
    for name, (fn, options, library, *functions) in given.items():
        if library == "torch" or dtype in ("float64", "float32"):
            first = Candidate(fn, options=options, dtype=dtype, layout="bhsd", framework=library)
            means = replace(detect(first, Conventions(layout="bhsd"))[0], layout=None)
            for part, own in zip(LETTERS, functions):
                yield f"{name}, {part}", second_candidate(first, part, own), means


def second(dtypes, problems, seed):
    """The same table for second derivatives; many: in units of what is allowed."""
    alarms_of_all = 0
    for dtype in dtypes:
        for name, candidate, means in second_runs(dtype):
            worst, many, place, alarms, judged = 0.0, 0.0, "", 0, 0
            rng = np.random.default_rng([seed, 9])
            drawn = problems_of(frozenset(candidate.first.takes), dtype, seed, 1)
            drawn = (with_tangents(case, dtype, rng) for case in drawn)
            for i, case in enumerate(islice((c for c in drawn if fits(c, means, dtype)), problems)):
                outcome = candidate.run(case, means, seed=i)
                if outcome.answer is None:
                    print(name, outcome.error.sentence)
                    continue
                primal = outcome.answer.O is not None
                want, off = second_and_bounds(outcome.case, means, dtype, candidate.part, primal)
                shaken = typical(outcome.case, means, dtype, candidate.part)
                verdicts = judge_second(outcome.answer, want, off, shaken)
                judged += 1
                alarms += not all(v.passed for v in verdicts.values())
                for letter, v in verdicts.items():
                    many = max(many, v.aggregate)
                    if v.ratio > worst:
                        worst, place = v.ratio, f"{letter}, {case.name}"
            print(f"{name:40} {dtype:9} {judged:8} {worst:7.3f} {many:6.3f} {alarms:6}  {place}", flush=True)
            alarms_of_all += alarms
    return alarms_of_all


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32", "bfloat16", "float16"])
    parser.add_argument("--only", default="", help="implementations whose name has this in it")
    parser.add_argument("--libraries", action="store_true", help="JAX and transformers too")
    parser.add_argument("--second", action="store_true", help="tangents and double backwards")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    heading = f"{'implementation':40} {'format':9} problems largest   many alarms  where"
    if args.second:
        print(heading, flush=True)
        total = second(args.dtypes, args.problems, args.seed)
        print(f"{total} false alarms; an error of {CONSTANT:g} bounds is allowed")
        return bool(total)
    groups = {}
    for name, correct in implementations(args.libraries).items():
        if args.only in name:
            takes = frozenset("dropout" if x == "dropout_mask" else x for x in correct.options)
            groups.setdefault((takes, correct.alike), []).append((name, correct))
    print(heading, flush=True)
    total = 0
    for dtype in args.dtypes:
        for (takes, alike), group in groups.items():
            runs = [Run(name, correct, dtype) for name, correct in group if dtype in correct.dtypes]
            for i, case in enumerate(islice(problems_of(takes, dtype, args.seed, alike), args.problems)):
                truths = {}
                for run in runs:
                    run.solve(case, i, truths)
            for run in runs:
                print(run, flush=True)
                total += run.alarms
    print(f"{total} false alarms; an error of {CONSTANT:g} bounds is allowed")
    return bool(total)


if __name__ == "__main__":
    sys.exit(main())
