"""Every planted mistake before the checker: is it found, and under which name?

    python benchmarks/mistakes.py                          all of them, in float64 and float32
    python benchmarks/mistakes.py --only gqa --dtypes bfloat16
    python benchmarks/mistakes.py --unknown                those that are in no list
    python benchmarks/mistakes.py --twice                  two at once
"""

import argparse
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))

from examined import WORDS, examined, names, word  # noqa: E402
from mistaken import MISTAKES  # noqa: E402
from mistaken_twice import planted_twice  # noqa: E402
from mistaken_unknown import UNKNOWN  # noqa: E402


def chosen(args):
    """What to examine, and what is planted in it."""
    if not args.twice:
        for key, p in (UNKNOWN if args.unknown else MISTAKES).items():
            yield key, p, [p]
    else:
        for pair, (a, b, fn) in planted_twice().items():
            yield " and ".join(pair), replace(a, fn=fn, conventions={**a.conventions, **b.conventions}), [a, b]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dtypes", nargs="+", default=["float64", "float32"])
    parser.add_argument("--only", default="", help="mistakes whose name has this in it")
    parser.add_argument("--unknown", action="store_true")
    parser.add_argument("--twice", action="store_true")
    parser.add_argument("--seed", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(1)
    counts = {dtype: Counter() for dtype in args.dtypes}
    print(f"{'planted':34} {'format':9} {'':14} {'seconds':>7}  what is said")
    for key, planted, inside in chosen(args):
        for dtype in args.dtypes if args.only in key else ():
            report = examined(planted, dtype, args.seed, planted.conventions)
            judged = word(report, *inside)
            counts[dtype][judged] += 1
            said = ", ".join(names(report) + [f.where or f.title for f in report.findings if f.kind == "unnamed"])
            print(f"{key:34} {dtype:9} {judged:14} {report.seconds:7.1f}  {said}", flush=True)
    for dtype, count in counts.items():
        print(f"{dtype}: {sum(count.values())} examined; " + ", ".join(f"{count[w]} {w}" for w in WORDS))


if __name__ == "__main__":
    main()
