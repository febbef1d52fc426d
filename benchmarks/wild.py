"""The collections of tests/wild before the checker: right code, mistakes, hostile candidates.

    python benchmarks/wild.py                     right in float64, float32 and bfloat16, the others in float32
    python benchmarks/wild.py --only right --dtypes float32
    python benchmarks/wild.py --every 2                  every second case
    python benchmarks/wild.py --only mistakes --names names.txt    what is named, beside what its author says

They were collected by people who had not read the checker. Whether a name is right is judged by a reader of what
--names writes, who has not read it either.
"""

import argparse
import os
import sys
import time
import warnings
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from typing import NamedTuple

WILD = Path(__file__).parent.parent / "tests" / "wild"
sys.path.insert(0, str(WILD))
COLLECTIONS = {
    "right": ["right", "right_later", "right_third", "right_fourth", "layers_right",
              "latents_right", "tables_right"],
    "mistakes": ["mistakes_public", "mistakes_imagined", "mistakes_later", "mistakes_third",
                 "mistakes_fourth", "layers_wrong", "latents_wrong", "tables_wrong"],
    "hostile": ["hostile", "hostile_later"],
    "second_right": ["second_right"],  # tangents and double backwards that somebody wrote by hand
    "second_mistakes": ["second_wrong"],
    "rings_right": ["rings_right"],  # over several processes
    "rings_mistakes": ["rings_wrong"],
}
RANKS = 3  # of a ring that takes them
FORMATS = "float64", "float32", "bfloat16"


class Outcome(NamedTuple):
    """One candidate in one format: what its author says, and what the checker says."""

    module: str
    name: str
    kind: str
    dtype: str
    about: str
    verdict: str
    sentence: str
    named: bool
    seconds: float


def cases_of(module):
    """The cases of a collection, by their names."""
    cases = __import__(module).CASES
    return {case.name: case for case in (map(of_ring, cases.values()) if isinstance(cases, dict) else cases)}


def of_ring(ring):
    """A case over several processes, as the others are: with what its author says of its ranks and parameters."""
    from cases import Case

    layer, heads = isinstance(ring.function, type), ring.heads[0][0]
    further = {"ranks": RANKS if RANKS in ring.ranks else ring.ranks[0], "layout": ring.layout}
    if ring.gradient_of_parameters:
        further["conventions"] = {"replicated": ring.gradient_of_parameters}
    if ring.parameters and not layer:
        numbers = [0.5 + i / heads for i in range(heads)]
        further["parameters"] = {name: numbers for name in ring.parameters}
    make, kind = (ring.function, "layer") if layer else (lambda: ring.function, "attention")
    return Case(ring.name, make, ring.sentence, kind, {}, further, ("float32",), ring.source)


def examined(module, name, dtype, isolate=False):
    """The report on a case."""
    import torch

    from attnmath import examine, examine_layer

    torch.set_num_threads(1)
    case = cases_of(module)[name]
    made = case.make()
    if isinstance(made, dict):  # with a derivative of the second order
        made, further = made["fn"], {name: made[name] for name in ("jvp", "vjp_vjp")}
        case = replace(case, further={**case.further, **further})
    more = {"isolate": True} if isolate else {}
    if case.kind == "layer":
        return examine_layer(made, dtype=dtype, seed=1, smallest=False, **case.further, **more)
    fns = made if isinstance(made, tuple) else (made,)
    return examine(*fns, options=dict(case.options), dtype=dtype, seed=1, smallest=False, time_limit=5,
                   progress=False, **case.further, **more)


def judged(report):
    """The verdict; what is right by a convention that nobody stated, a test does not accept."""
    try:
        report.raise_if_wrong()
    except AssertionError:
        return "right if meant" if report.right else report.verdict
    return report.verdict


def outcome(job):
    """What the checker says of a case, and how long it takes; an exception is a verdict of its own."""
    module, name, dtype, isolate = job
    warnings.simplefilter("ignore")
    case, began = cases_of(module)[name], time.perf_counter()
    try:
        report = examined(module, name, dtype, isolate)
        failed = any(f.name == "examination" for f in report.findings)
        verdict = "exception" if failed else judged(report)
        further = [f.title for f in report.findings if f.kind in ("mistake", "unnamed", "unlisted")]
        sentence = "; also: ".join([report.sentence, *(x for x in further if x[:40] not in report.sentence)])
        named = report.verdict == "wrong" and any(f.kind in ("mistake", "contract") for f in report.findings)
        named |= any(f.kind == "unlisted" and " in which " in f.title for f in report.findings)
    except BaseException as error:  # what the checker lets out
        verdict, sentence, named = "exception", repr(error), False
    seconds = time.perf_counter() - began
    return Outcome(module, name, case.kind, dtype, case.about, verdict, " ".join(sentence.split()), named, seconds)


def jobs_of(which, dtypes, only_case):
    """What is to be examined."""
    for module in COLLECTIONS[which]:
        for name, case in cases_of(module).items():
            if only_case in name:
                for dtype in dtypes if which != "hostile" else ["float32"]:
                    if dtype in case.formats:
                        yield module, name, dtype, which == "hostile"


def run(jobs, processes):
    """The outcomes, each candidate in a process that nothing else has dirtied."""
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        for job, result in [(job, pool.submit(outcome, job)) for job in jobs]:
            module, name, dtype, _ = job
            try:
                yield result.result()
            except Exception as error:  # a process that ended
                yield Outcome(module, name, "", dtype, "", "exception", repr(error), False, 0.0)


def table(which, outcomes):
    """How many of each verdict, for each format; and how long the middle one takes."""
    for dtype in dict.fromkeys(x.dtype for x in outcomes):
        here = [x for x in outcomes if x.dtype == dtype]
        groups = dict.fromkeys(x.kind for x in here) if which.endswith("right") else [""]
        for kind in groups:
            some = [x for x in here if not kind or x.kind == kind]
            counts = ", ".join(f"{n} {word}" for word, n in Counter(x.verdict for x in some).most_common())
            named = f"; {sum(x.named for x in some)} with a name" if which.endswith("mistakes") else ""
            seconds = f"median {median(x.seconds for x in some):.1f} s"
            print(f"{which:15} {kind:10} {dtype:9} {len(some):3}: {counts}{named}; {seconds}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=[*COLLECTIONS], help="one collection")
    parser.add_argument("--case", default="", help="cases whose name has this in it")
    parser.add_argument("--dtypes", nargs="+")
    parser.add_argument("--every", type=int, default=1, metavar="N", help="one case of N, evenly")
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 1)))
    parser.add_argument("--names", type=Path, help="where to write what is named, for a reader to judge")
    args = parser.parse_args()
    found = []
    for which in [args.only] if args.only else COLLECTIONS:
        outcomes = []
        dtypes = args.dtypes or (FORMATS if which.endswith("right") else ["float32"])
        for x in run(list(jobs_of(which, dtypes, args.case))[:: args.every], args.jobs):
            outcomes.append(x)
            print(f"{x.name:44} {x.dtype:9} {x.verdict:16} {x.seconds:5.1f} s  {x.sentence[:150]}", flush=True)
        found.append((which, outcomes))
    print()
    for which, outcomes in found:
        if outcomes:
            table(which, outcomes)
    if args.names:
        named = [x for which, outcomes in found if which.endswith("mistakes") for x in outcomes if x.named]
        args.names.write_text("".join(f"{x.name} {x.dtype}\n  author: {x.about}\n  checker: {x.sentence}\n"
                                      for x in named))


if __name__ == "__main__":
    sys.exit(main())
