"""`python -m attnmath.page check|prove|misprints|ledger [chapter …]`."""

import argparse
import sys
import time
from itertools import zip_longest
from pathlib import Path

from attnmath._words.extras import EXTRAS, absent


def leave(error: ModuleNotFoundError) -> None:
    """Say what to install, and end, if this is the command; otherwise it is the caller's error."""
    library = (error.name or "attnmath").partition(".")[0]
    if __name__ != "__main__" or library == "attnmath":
        raise error
    sys.exit(f"python -m attnmath.page: {absent(library, EXTRAS.get(library, 'page'))}")


try:
    from attnmath.page.language.chapter import Display, PageFault
    from attnmath.page.ledger.ledger import render, report, stale, summary
    from attnmath.page.ledger.rows import (
        LISTED,
        Row,
        RowKeys,
        Shelf,
        identity_faults,
        judged,
        survivors,
        with_proofs,
    )
    from attnmath.page.verdicts.book import MISSING, Book, each_cast
    from attnmath.page.verdicts.labels import label_faults, posing, relation_counts, unrun
    from attnmath.page.verdicts.proofs import prove_display
    from attnmath.page.verdicts.published import Refuted
except ModuleNotFoundError as error:
    leave(error)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="attnmath.page", description=__doc__)
    parser.add_argument("command", choices=("check", "prove", "misprints", "ledger"))
    parser.add_argument("chapters", nargs="*", help="only these chapters")
    parser.add_argument("--root", type=Path, default=Path("."), help="the book's folder")
    only = parser.add_mutually_exclusive_group()
    only.add_argument("--check", action="store_true", help="ledger: only whether a part of it has changed")
    only.add_argument("--compare", action="store_true", help="ledger: make it afresh, and compare")
    options = parser.parse_args(argv)
    try:
        book = Book.at(options.root)
    except PageFault as fault:  # of its casts
        print(fault)
        return 1
    if not book.displays:
        print(f"no display found under {options.root / 'chapters'}")
        return 1
    wanted = {Path(name).stem for name in options.chapters}
    if lost := sorted(wanted - {chapter.stem for chapter in book.chapters}):
        parser.error(f"no chapter is called {', '.join(lost)}")
    start = time.monotonic()
    command = {"check": check, "prove": say_proofs, "misprints": try_misprints, "ledger": ledger}[options.command]
    failed = command(book, options, wanted)
    print(f"{time.monotonic() - start:.0f} s", file=sys.stderr)
    return 1 if failed else 0


def shelf_of(book: Book, options) -> Shelf:
    """What was found before; nothing, if all is made afresh."""
    return Shelf(options.root, RowKeys(book, options.root), is_empty=options.compare)


def check(book: Book, options, wanted: set[str]) -> bool:
    rows, faults = check_book(book, options.root, wanted, shelf_of(book, options))
    for fault in faults:
        print(fault)
    runs = sum(row.verdict.comparisons for row in rows)
    failing = sum(isinstance(row.verdict, Refuted) for row in rows)
    print(f"displays that hold: {len(rows) - failing}, published ones that fail: {failing},"
          f" comparisons: {runs}, faults: {len(faults)}")
    if not wanted:
        print("inline relations: {} run, {} that repeat a display, {} hypotheses".format(*relation_counts(book)))
    return bool(faults)


def check_book(book: Book, root: Path | None, wanted: set[str], shelf: Shelf | None = None) -> tuple[list, list]:
    """Every display of the chapters wanted, or of all; labels, functions, listings, tests."""
    faults = [fault for chapter in book.chapters for fault in chapter.faults]
    faults += label_faults(book, root, wanted) + unrun(book) + posing(book)
    if wanted:
        faults = [f for f in faults if Path(str(f).partition(":")[0]).stem in wanted]
    faults = book.faults + faults
    displays = displays_of(book, wanted)
    inline = [d for d in book.relations.values() if not wanted or d.stem in wanted]
    found = judged(book, root, displays + inline, shelf)
    said = [one for one in found if isinstance(one, PageFault)]
    faults += [one for one in said if not (book.faults and str(one).endswith(MISSING))]  # once is enough
    return [one for one in found[: len(displays)] if isinstance(one, Row)], faults


def displays_of(book: Book, wanted: set[str]) -> list[Display]:
    return [d for c in book.chapters for d in c.displays if not wanted or c.stem in wanted]


def say_proofs(book: Book, options, wanted: set[str]) -> bool:
    found = each_cast(prove_display, book, options.root, displays_of(book, wanted))
    faults = [one for one in found if isinstance(one, PageFault)]
    print("\n".join([*map(str, faults), *summary([one for one in found if one not in faults])]))
    return bool(faults)


def try_misprints(book: Book, options, wanted: set[str]) -> bool:
    _, lines, faults = rows_made(book, options.root, wanted, shelf_of(book, options))
    print("\n".join([*faults, *lines]))
    return bool(faults)


def rows_made(book: Book, root: Path, wanted: set[str], shelf: Shelf) -> tuple[list[Row], list, list[str]]:
    """The rows of the displays wanted, what is to be said of their misprints, and what is wrong."""
    rows, faults = check_book(book, root, wanted, shelf)
    if not faults:
        rows, faults = with_proofs(book, root, rows, shelf)
    if faults:
        return [], [], [*map(str, faults)]
    lines, faults = report([row.tally for row in rows if row.tally], shelf.keys.listed)
    lost = [entry for entry in shelf.keys.listed if entry.label not in book.displays]
    return rows, [*lines, survivors(rows)], faults + identity_faults(book, lost, LISTED)


def ledger(book: Book, options, wanted: set[str]) -> bool:
    path = options.root / "chapters" / "ledger.md"
    shelf = shelf_of(book, options)
    if options.check:
        old = stale(book, shelf.keys, options.root)
        for name in old:
            print(f"{path} is stale: {name} has changed; run make ledger")
        return bool(old)
    rows, lines, faults = rows_made(book, options.root, wanted, shelf)
    if wanted and not faults:
        print("\n".join([*summary([row.proof for row in rows if row.proof]), *lines]))
        displays = displays_of(book, set())
        rows = [row for display in displays if (row := shelf.row(display)) and row.proof]
        missing = len(displays) - len(rows)
        if missing:
            print(f"{path} is as it was: {missing} displays of other chapters are not known; run make ledger")
            return False
    text = "" if faults else render(book, rows, shelf.keys, options.root)
    if not options.compare and not faults:
        path.write_text(text, encoding="utf-8")
    faults = faults or differences(path, text)
    print("\n".join([*faults, f"{path}: {len(book.displays)} displays, {len(faults)} faults"]))
    return bool(faults)


def differences(path: Path, text: str) -> list[str]:
    """The lines of the ledger that differ from those that were found now."""
    old = path.read_text(encoding="utf-8").split("\n") if path.exists() else []
    both = enumerate(zip_longest(old, text.split("\n"), fillvalue=None), 1)
    return [f"{path}:{number}: it says {was!r}, and {now!r} was found; run make ledger"
            for number, (was, now) in both if was != now]


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ModuleNotFoundError as error:
        leave(error)
