"""Judges the collected identities: the false ones at many seeds, the true ones at a few; prints counts by kind."""

import contextlib
import io
import sys
import warnings
from collections import Counter
from multiprocessing import Pool
from pathlib import Path
from typing import Any

from attnmath import NotAlgebraic, prove

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "helpers"))
WORDS = ("proved", "refuted", "undecided", "refused")
SEEDS = {"false": 100, "true": 3}
# Factors that are 0 or 1 as long as the process lives: with a 1 on each side the statement is true.
OF_THE_PROCESS = ("the address is even", "the hash of a string is odd")


def verdict(left: Any, right: Any, case: Any, seed: int = 0) -> tuple[str, str]:
    """What prove says of a case: proved, refuted, undecided or refused, and the sentence."""
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            return "proved", str(prove(left, right, *case.shapes, seed=seed, **case.constants))
    except AssertionError as error:
        return ("refuted" if str(error).startswith("refuted") else "refused"), str(error) or "AssertionError"
    except NotAlgebraic as error:
        return ("undecided" if str(error).startswith("undecided") else "refused"), str(error)
    except Exception as error:  # what the functions themselves raise
        return "refused", f"{type(error).__name__}: {error}"


def judged(job: tuple[str, int, int]) -> tuple[str, str, str, list]:
    """Kind and name of a case of a collection, and its verdicts at so many seeds."""
    from false_identities import CASES as FALSE
    from true_identities import CASES as TRUE

    which, k, seeds = job
    case = (FALSE if which == "false" else TRUE)[k]
    warnings.simplefilter("ignore")
    found = []
    for seed in range(seeds):
        sides = case.make() if which == "false" else (case.left, case.right)
        found.append(verdict(*sides, case, seed)[0])
    return which, case.kind, case.name, found


def main(words: list[str]) -> int:
    """identities.py [seeds for the false ones [seeds for the true ones]]"""
    from false_identities import CASES as FALSE
    from true_identities import CASES as TRUE

    seeds = dict(zip(SEEDS, [*map(int, words), *[*SEEDS.values()][len(words) :]]))
    sizes = {"true": len(TRUE), "false": len(FALSE)}
    jobs = [(which, k, seeds[which]) for which, size in sizes.items() for k in range(size)]
    by_kind: dict = {"false": {}, "true": {}}
    wrong = []
    with Pool() as pool:
        for which, kind, name, found in pool.imap_unordered(judged, jobs):
            by_kind[which].setdefault(kind, Counter()).update(found)
            if ("proved" if which == "false" else "refuted") in found and name not in OF_THE_PROCESS:
                wrong.append(f"{which}: {kind}: {name}")
    for which, kinds in by_kind.items():
        print(f"{which} identities, {seeds[which]} seeds each")
        for kind, counts in [*sorted(kinds.items()), ("all", sum(kinds.values(), Counter()))]:
            print(f"  {kind:45}", *(f"{counts[word]:6} {word}" for word in WORDS))
    print(*wrong or ["no false one is proved, no true one is refuted"], sep="\n")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
