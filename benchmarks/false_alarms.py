"""Right implementations of attention before the checker's bounds: how near they come, and how often it is wrong.

    python benchmarks/false_alarms.py                       1,000 random problems for each, and each format
    python benchmarks/false_alarms.py --problems 100 --only tiles --dtypes float32 bfloat16
    python benchmarks/false_alarms.py --libraries           JAX and transformers too, where they are installed

A problem is drawn at random: family, sizes up to 40 rows and keys, mask or bias, groups, scale, dropout,
strides. The largest error is in units of its bound; above 1 it would be a false alarm.
"""

import argparse
import sys
import time
import zlib
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from attnmath._examine._candidate import Candidate
from attnmath._examine._case import Conventions
from attnmath._examine._conventions import detect
from attnmath._examine._families import FAMILIES, made, random_setting
from attnmath._examine._yardstick import CONSTANT, bounds, judge, right

TESTS = Path(__file__).parent.parent / "tests"


def implementations(libraries):
    sys.path[:0] = [str(TESTS), str(TESTS / "adapters")]
    from correct import CORRECT

    if not libraries:
        return CORRECT
    from correct_libraries import LIBRARIES

    return CORRECT | LIBRARIES


def problems_of(takes, dtype, rng, alike):
    """Random problems without end; so many in turn have the same sizes and differ in family and numbers."""
    while True:
        setting = random_setting(takes, rng, 40)
        for _ in range(alike if setting.needs <= takes else 0):
            yield made(replace(setting, name=str(rng.choice(list(FAMILIES)))), dtype, rng)


def measured(name, correct, dtype, problems, seed):
    """The largest error in bounds, where it is, how many false alarms, how many problems were refused."""
    told = dict(options=correct.options, dtype=dtype, layout=correct.layout, framework=correct.framework)
    candidate = Candidate(correct.fn, correct.backward, **told)
    means, _ = detect(candidate, Conventions(layout=correct.layout))
    takes = {"dropout" if x == "dropout_mask" else x for x in correct.options}
    rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
    worst, place, alarms, refused, judged = 0.0, "", 0, {}, 0
    for case in problems_of(takes, dtype, rng, correct.alike):
        if judged + sum(refused.values()) == problems:
            break
        outcome = candidate.run(case, means, seed=judged)
        if outcome.answer is None:
            refused[outcome.error.sentence] = refused.get(outcome.error.sentence, 0) + 1
            continue
        judged += 1
        case = outcome.case
        verdicts = judge(outcome.answer, right(case, means), bounds(case, means, dtype), dtype)
        alarms += not all(v.passed for v in verdicts.values())
        for letter, v in verdicts.items():
            largest = max(v.ratio, v.aggregate)
            if largest > worst:
                worst, place = largest, f"{letter}, {case.name}"
    return worst, place, alarms, judged, refused


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=1000)
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32", "bfloat16", "float16"])
    parser.add_argument("--only", default="", help="implementations whose name has this in it")
    parser.add_argument("--libraries", action="store_true", help="JAX and transformers too")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{'implementation':42} {'format':9} {'problems':>8} {'largest':>8} {'alarms':>6}  where; time")
    total = 0
    for name, correct in implementations(args.libraries).items():
        for dtype in correct.dtypes:
            if args.only not in name or dtype not in args.dtypes:
                continue
            began = time.perf_counter()
            worst, place, alarms, judged, refused = measured(name, correct, dtype, args.problems, args.seed)
            total += alarms
            seconds = time.perf_counter() - began
            print(f"{name:42} {dtype:9} {judged:8} {worst:8.3f} {alarms:6}  {place}; {seconds:.0f} s", flush=True)
            for sentence, times in refused.items():
                print(f"{'':42} refused {times} times: {sentence}", flush=True)
    print(f"{total} false alarms; an error of {CONSTANT:g} bounds is allowed")
    return bool(total)


if __name__ == "__main__":
    sys.exit(main())
