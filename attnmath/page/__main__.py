"""`python -m attnmath.page check|prove|misprints|ledger [chapter …]`."""

import argparse
import sys
import time
from collections import Counter
from functools import partial
from itertools import zip_longest
from pathlib import Path

from attnmath.page._book import Book
from attnmath.page._chapter import Fault
from attnmath.page._inline import counts, posing, unrun
from attnmath.page._judge import verdict_or_fault
from attnmath.page._labels import label_faults
from attnmath.page._ledger import render, stale, summary
from attnmath.page._listed import Entry, entries, identity_faults, report
from attnmath.page._misprints import tally
from attnmath.page._pool import each_cast, each_display
from attnmath.page._proofs import proof_or_fault
from attnmath.page._published import Refuted
from attnmath.page._survivors import proofs_or_faults


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="attnmath.page", description=__doc__)
    parser.add_argument("command", choices=("check", "prove", "misprints", "ledger"))
    parser.add_argument("chapters", nargs="*", help="only these chapters (not for the ledger)")
    parser.add_argument("--root", type=Path, default=Path("."), help="the book's folder")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="ledger: only whether a part of it has changed")
    only.add_argument("--compare", action="store_true", help="ledger: make it afresh, and compare")
    options = parser.parse_args(argv)
    book = Book.at(options.root)
    if not book.displays:
        print(f"no display found under {options.root / 'chapters'}")
        return 1
    wanted = {Path(name).stem for name in options.chapters}
    command = {"check": check, "prove": prove, "misprints": try_misprints, "ledger": ledger}[options.command]
    return command(book, options, wanted)


def check(book: Book, options, wanted: set[str]) -> int:
    verdicts, faults = check_book(book, options.root, wanted)
    for fault in faults:
        print(fault)
    runs = sum(verdict.comparisons for verdict in verdicts)
    failing = sum(isinstance(verdict, Refuted) for verdict in verdicts)
    print(f"displays that hold: {len(verdicts) - failing}, published ones that fail: {failing},"
          f" comparisons: {runs}, faults: {len(faults)}")
    if not wanted:
        print("inline relations: {} run, {} that repeat a display, {} hypotheses".format(*counts(book)))
    return 1 if faults else 0


def check_book(
    book: Book, root: Path, wanted: set[str], counted: bool = False
) -> tuple[list, list]:
    """Every display of the chapters wanted, or of all; labels, functions, listings, tests."""
    faults = [fault for chapter in book.chapters for fault in chapter.faults]
    faults += label_faults(book, root) + unrun(book) + posing(book)
    if wanted:
        faults = [f for f in faults if Path(str(f).partition(":")[0]).stem in wanted]
    chapters = [c for c in book.chapters if not wanted or c.stem in wanted]
    displays = [d for c in chapters for d in c.displays]
    inline = [d for d in book.relations.values() if not wanted or Path(d.path).stem in wanted]
    found = each_cast(partial(verdict_or_fault, counted=counted), book, root, displays + inline)
    faults += [one for one in found if isinstance(one, Fault)]
    return [one for one in found[: len(displays)] if not isinstance(one, Fault)], faults


def prove(book: Book, options, wanted: set[str]) -> int:
    start = time.monotonic()
    displays = [d for c in book.chapters for d in c.displays if not wanted or c.stem in wanted]
    proofs, faults = prove_book(book, options.root, displays)
    print("\n".join([*map(str, faults), *summary(proofs)]))
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if faults else 0


def prove_book(book: Book, root: Path, displays: list) -> tuple[list, list]:
    """What is proved of each display, and the faults."""
    found = each_cast(proof_or_fault, book, root, displays)
    faults = [one for one in found if isinstance(one, Fault)]
    return [one for one in found if one not in faults], faults


def try_misprints(book: Book, options, wanted: set[str]) -> int:
    start = time.monotonic()
    displays = [d for c in book.chapters for d in c.displays if not wanted or c.stem in wanted]
    _, lines, faults = misprinted(book, options.root, displays)
    print("\n".join(faults + lines))
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if faults else 0


def misprinted(book: Book, root: Path, displays: list) -> tuple[list, list, list]:
    """The tallies of all misprints, the lines of their summary, and what is wrong."""
    path = root / "tests" / "equivalent_misprints.txt"
    listed = entries(path) if path.exists() else []
    tallies = each_display(tally, root, displays)
    lines, faults = report(tallies, listed)
    faults += identity_faults(book, listed, path)
    words, wrong = prove_survivors(book, root, displays, tallies)
    lines.append("survivors: " + ", ".join(f"{count} {word}" for word, count in words.items()))
    return tallies, lines, faults + wrong


def prove_survivors(book: Book, root: Path, displays: list, tallies: list) -> tuple[Counter, list]:
    """How many of the misprints that float64 does not see are proved; those that are refuted."""
    alive = [Entry(s.label, s.statement, "", 0) for one in tallies for s in one.survivors]
    labels = {one.label for one in alive}
    work = partial(proofs_or_faults, alive)
    found = sum(each_cast(work, book, root, [d for d in displays if d.label in labels]), [])
    words = Counter(one.word for one in found if not isinstance(one, str))
    return words, [one for one in found if isinstance(one, str)]


def ledger(book: Book, options, wanted: set[str]) -> int:
    path = options.root / "chapters" / "ledger.md"
    if options.check:
        old = stale(book, options.root)
        for name in old:
            print(f"{path} is stale: {name} has changed; run make ledger")
        return 1 if old else 0
    start = time.monotonic()
    text, faults = made(book, options.root)
    if not options.compare and not faults:
        path.write_text(text, encoding="utf-8")
    faults = faults or differences(path, text)
    print("\n".join([*faults, f"{path}: {len(book.displays)} displays, {len(faults)} faults"]))
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if faults else 0


def made(book: Book, root: Path) -> tuple[str, list[str]]:
    """The text of the ledger, made afresh, and the faults of the displays and their misprints."""
    displays = [d for c in book.chapters for d in c.displays]
    verdicts, faults = check_book(book, root, set(), counted=True)
    proofs, wrong = ([], []) if faults else prove_book(book, root, displays)
    if faults or wrong:
        return "", [*map(str, faults + wrong)]
    tallies, _, faults = misprinted(book, root, displays)
    return render(book, verdicts, proofs, tallies, root), faults


def differences(path: Path, text: str) -> list[str]:
    """The lines of the ledger that differ from those that were found now."""
    old = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    return [
        f"{path}:{number}: it says {was!r}, and {now!r} was found; run make ledger"
        for number, (was, now) in enumerate(zip_longest(old, text.split("\n"), fillvalue=None), 1)
        if was != now
    ]


if __name__ == "__main__":
    sys.exit(main())
