"""Every small change of a formula function, judged by exact arithmetic.

    python tools/exact_mutants.py [--jobs N] [--modules softmax ...] [--slowest]

The changes are those of tools/mutations.py; the statements, about values, gradients and tangents,
are those of tests/helpers/exact_cases.py. Each change is judged by every case that runs the changed lines
until one rejects it: by a value, a shape, or an error; or by float64, where the change is an operation
that exact arithmetic does not have. What all accept survives, and has a line in
tests/equivalent_mutants.txt that says why nothing changes; a line that no case runs is listed there
once, with * for all its changes. Ends with 1 if a survivor is not listed, or a listed one is gone.
"""

import argparse
import multiprocessing
import sys
import time
import warnings
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "helpers"), str(ROOT / "tools")]

import mutations  # noqa: E402
import numpy as np  # noqa: E402

import attnmath  # noqa: E402
import exact_cases  # noqa: E402

LISTED = ROOT / "tests" / "equivalent_mutants.txt"
VERDICTS = "value", "shape", "error", "float64", "survivor", "not run"
OPEN = VERDICTS[4:]
DIFFER = "the sides differ for letters"  # a rejection, though the numbers that were tried agree
ROUNDING = 1e-9  # relative, of the few operations of a case


class Engine:
    """What a case asks: exact arithmetic; without letters, the same numbers."""

    @staticmethod
    def equal(f, definition, *x, **constants):
        attnmath.prove(f, definition, *x, **constants)

    @staticmethod
    def vjp(f_vjp, f, *x, **constants):
        attnmath.check_vjp(f_vjp, f, *x, exact=True, **constants)

    @staticmethod
    def jvp(f_jvp, f, *x, **constants):
        attnmath.check_jvp(f_jvp, f, *x, exact=True, **constants)

    @staticmethod
    def same(f, definition, *x, **constants):
        got, want = f(*x, **constants), np.asarray(definition(*x, **constants), float)
        if not np.array_equal(got, want):
            raise AssertionError(f"refuted: {f.__name__} of numbers")


class Floats(Engine):
    """The same in float64, where exact arithmetic does not have an operation of the mutant."""

    @staticmethod
    def equal(f, definition, *x, **constants):
        got, want = f(*x, **constants), definition(*x, **constants)
        for a, b in zip(got, want, strict=True) if isinstance(want, tuple) else [(got, want)]:
            np.testing.assert_allclose(a, np.asarray(b, float), rtol=ROUNDING, atol=ROUNDING)

    vjp = staticmethod(attnmath.check_vjp)
    jvp = staticmethod(attnmath.check_jvp)


def lines_of(case, engine=Engine):
    """The lines of the formula modules that a case runs: (file, line)."""
    files, met = {str(ROOT / name.replace(".", "/")) + ".py" for name in mutations.MODULES.values()}, set()

    def watch(frame, event, _):
        if frame.f_code.co_filename not in files:
            return None
        met.add((frame.f_code.co_filename, frame.f_lineno))
        return watch

    before = sys.gettrace()
    sys.settrace(watch)
    try:
        case.judge(engine)
    finally:
        sys.settrace(before)
    return met


class Judge:
    """All cases, and for each mutant those that run its lines."""

    def __init__(self, cases, engine=Engine):
        self.engine = engine
        self.cases = [(case, lines_of(case, engine)) for case in cases]

    def concerned(self, mutant):
        """The cases that run a line of the mutant."""
        file = mutant.original.__code__.co_filename
        lines = {(file, line) for line in mutant.lines}
        return [case for case, met in self.cases if lines & met]

    def __call__(self, mutant):
        """The verdict, the case that has given it, and what it said."""
        cases = self.concerned(mutant)
        with mutations.in_place(mutant), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for case in cases:
                verdict, said = self.ask(case)
                if verdict:
                    return verdict, case.name, said
        return "survivor" if cases else "not run", "", ""

    def ask(self, case):
        """Whether a case rejects, and how; it does not where exact arithmetic cannot decide."""
        try:
            case.judge(self.engine)
        except AssertionError as error:
            return "shape" if "shape" in str(error) else "value", str(error)
        except attnmath.NotAlgebraic as error:
            return ("value", str(error)) if DIFFER in str(error) else self.ask_floats(case)
        except Exception as error:
            return "error", f"{type(error).__name__}: {error}"
        return "", ""

    @staticmethod
    def ask_floats(case):
        try:
            case.judge(Floats)
        except AssertionError as error:
            return "float64", str(error)
        except Exception as error:
            return "error", f"{type(error).__name__}: {error}"
        return "", ""


def judged(judge, mutants, jobs):
    """Each mutant with its verdict, in order; on Linux by processes side by side."""
    if jobs == 1:
        yield from ((mutant, judge(mutant)) for mutant in mutants)
        return
    global _judge
    _judge = judge
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from zip(mutants, pool.imap(_by_worker, mutants, chunksize=16))


def _by_worker(mutant):
    return _judge(mutant)


def listed():
    """The survivors that are known, each with the reason."""
    lines = [line for line in LISTED.read_text("utf-8").splitlines() if line and line[0] != "#"]
    return dict(line.rsplit(" | ", 1) for line in lines)


def entries(mutant):
    """The lines of the list that a mutant may have: its own, or that of all changes of its statement."""
    return str(mutant), f"{mutant.module}.{mutant.function} | {mutant.before} | *"


def complaints(found, known):
    """What is wrong with the list: survivors without a reason, and reasons without a survivor."""
    survivors = [(mutant, verdict) for mutant, (verdict, *_) in found if verdict in OPEN]
    met = {x for mutant, _ in survivors for x in entries(mutant)}
    new = [f"{verdict}: {x}" for x, verdict in survivors if not known.keys() & set(entries(x))]
    modules = {mutant.module for mutant, _ in found}
    return new + [f"rejected, but listed: {x}" for x in known if x.split(".")[0] in modules and x not in met]


def table(found):
    """The counts of each module and of all, as a table of Markdown."""
    counts = Counter((mutant.module, verdict) for mutant, (verdict, *_) in found)
    rows = [[f"`{name}`", *(counts[name, verdict] for verdict in VERDICTS)]
            for name in dict.fromkeys(mutant.module for mutant, _ in found)]
    rows.append(["all", *(sum(row[k] for row in rows) for k in range(1, len(VERDICTS) + 1))])
    heads = ["| module | mutants | " + " | ".join(VERDICTS) + " |", "| --- |" + " ---: |" * (1 + len(VERDICTS))]
    return "\n".join(heads + [f"| {name} | {sum(x)} | " + " | ".join(map(str, x)) + " |" for name, *x in rows])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--modules", nargs="*", default=list(mutations.MODULES))
    parser.add_argument("--all", action="store_true", help="print every mutant and its verdict")
    asked = parser.parse_args()
    start = time.perf_counter()
    judge = Judge(exact_cases.cases())
    mutants = [x for module in asked.modules for x in mutations.mutants(module)]
    found = []
    for mutant, verdict in judged(judge, mutants, asked.jobs):
        found.append((mutant, verdict))
        if asked.all:
            print(verdict[0], mutant, *verdict[1:], sep=" | ", flush=True)
    wrong = complaints(found, listed())
    print(*wrong, table(found), f"{time.perf_counter() - start:.0f} seconds", sep="\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
