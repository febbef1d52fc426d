"""The bug museum: every planted mistake before every rule, and the page of the exhibits.

An exhibit with ranks is a case of tests/wild/rings_wrong.py; examine alone sees it, on so many processes.

    python tools/museum.py measure [name ...]   run the rules and examine on the mistakes, write museum.json
    python tools/museum.py examine [name ...]   examine alone; the rules as they were measured
    python tools/museum.py page                 write chapters/museum.md from it and from chapters/museum.yml
    python tools/museum.py check                whether the page is current, and the data without a fault
"""

import argparse
import json
import random
import sys
import warnings
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "helpers"), str(ROOT / "tests" / "wild"), str(ROOT / "tools")]
from museum_page import faults, page, rows_of  # noqa: E402

TABLE = ROOT / "attnmath" / "book" / "museum.json"
PAGE = ROOT / "chapters" / "museum.md"
DATA = ROOT / "chapters" / "museum.yml"
PUBLISHED = ROOT / "attnmath" / "book" / "published.json"
RIGHT = "right"  # the row of a program without a mistake


def exhibits() -> list[dict]:
    """The entries of the museum, in its order."""
    return yaml.safe_load(DATA.read_text("utf-8"))


def published() -> list[dict]:
    """What benchmarks/published.py has recorded."""
    return json.loads(PUBLISHED.read_text("utf-8")) if PUBLISHED.exists() else []


def accepted(name: str, shows: list[str]) -> dict[str, bool]:
    """Which rules accept this mistake; a candidate that raises is not accepted."""
    from museum_trials import LARGE, SIZES, bounded, candidate, right, trial

    from attnmath.book.rules import RULES
    from mistaken import MISTAKES
    from mistaken_program import Planted, Program

    # Where fast_mode fails, it tries every input to write a better message; the message is not read here.
    sys.modules["torch.autograd.gradcheck"]._run_slow_mode_and_get_error = lambda *_: ""
    planted = Planted(Program()) if name == RIGHT else MISTAKES[name]
    found = {}
    for rule, passes in {**RULES, "bound": bounded}.items():
        problem, more, told, rate = trial(shows, planted.options, SIZES.get(rule, LARGE))
        getattr(planted.fn, "first", {}).clear()  # what a plant keeps between calls
        random.seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                found[rule] = bool(passes(candidate(planted, more, rate), right(told, rate), problem))
            except Exception:  # whatever it is, a user sees it
                found[rule] = False
    return found


def examined(name: str, ranks: int | None = None) -> tuple[str, list[str]]:
    """The verdict of `examine`, and the names that it gives; with ranks of a case on so many processes."""
    from attnmath._examine.examine import examine

    how = dict(dtype="float32", seed=0, smallest=False, progress=False)
    if ranks:
        from rings_wrong import CASES

        c = CASES[name]
        told = {"replicated": c.gradient_of_parameters} if c.parameters else {}
        numbers = {x: [0.5 + i / 4 for i in range(c.heads[0][0])] for x in c.parameters}
        report = examine(c.function, ranks=ranks, conventions={"layout": c.order, **told}, layout=c.layout,
                         parameters=numbers, **how)
    else:
        from mistaken import MISTAKES

        p = MISTAKES[name]
        report = examine(p.fn, p.backward, options=p.options, conventions=p.conventions, layout=p.layout, **how)
    kinds = "mistake", "contract", "unnamed"
    return report.verdict, list(dict.fromkeys(f.name for f in report.findings if f.kind in kinds))


def measured(table: dict, names: list[str] = (), rules: bool = True) -> dict:
    """The table with these mistakes measured again, or all; with rules=False by examine alone."""
    chosen = [e for e in exhibits() if e["name"] in names or not names]
    right, rows = dict(table["right"]), rows_of(table)
    for shows in sorted({", ".join(e.get("shows", [])) for e in chosen if "ranks" not in e} if rules else ()):
        right[shows] = accepted(RIGHT, shows.split(", "))
        print("right", shows, _line(right[shows]), flush=True)
    for entry in chosen:
        name, row = entry["name"], {"family": entry["family"]}
        if "ranks" in entry:
            row["ranks"] = entry["ranks"]
        else:
            row["shows"] = ", ".join(entry.get("shows", []))
            row["accepted"] = accepted(name, entry.get("shows", [])) if rules else rows[name]["accepted"]
        row["verdict"], row["named"] = examined(name, entry.get("ranks"))
        rows[name] = row
        print(name, _line(row.get("accepted", {})), row["verdict"], *row["named"], flush=True)
    some = {e["name"]: rows[e["name"]] for e in exhibits() if e["name"] in rows}
    return {"right": right, "mistakes": {name: row for name, row in some.items() if "ranks" not in row},
            "ranks": {name: row for name, row in some.items() if "ranks" in row}}


def _line(row: dict[str, bool]) -> str:
    return "".join(".A"[passed] for passed in row.values())


def stale() -> list[str]:
    """What is wrong with the data, and whether the page is current."""
    import register

    from attnmath.book.rules import RULES

    table = json.loads(TABLE.read_text("utf-8"))
    texts = [p.read_text("utf-8") for p in (ROOT / "chapters").glob("[!_]*.md")]
    labels = {label for text in texts for label in register.labels(text)}
    found = [f"chapters/museum.yml: {x}" for x in faults(exhibits(), table, labels, [*RULES, "bound"])]
    if not found and PAGE.read_text("utf-8") != page(exhibits(), table, published()):
        found = ["chapters/museum.md is stale; run python tools/museum.py page"]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("measure", "examine", "page", "check"))
    parser.add_argument("names", nargs="*")
    given = parser.parse_args()
    if given.command == "check":
        found = stale()
        print("\n".join(found) or "the museum is current")
        return 1 if found else 0
    if given.command in ("measure", "examine"):
        before = json.loads(TABLE.read_text("utf-8")) if TABLE.exists() else {"right": {}, "mistakes": {}}
        table = measured(before, given.names, given.command == "measure")
        TABLE.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
    table = json.loads(TABLE.read_text("utf-8"))
    if len(rows_of(table)) == len(exhibits()):
        PAGE.write_text(page(exhibits(), table, published()), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
