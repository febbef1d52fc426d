"""Pages made from what stands elsewhere: the overview of the sources, the errata, the cheat sheet.

Made as well are the table of contents in README.md, from `_toc.yml` and the titles of the chapters, and
the list of functions in chapters/api.md, from the last line of each docstring.

    python tools/pages.py           write them
    python tools/pages.py check     whether they are current, and the register without a fault
"""

import argparse
import inspect
import re
import sys
from pathlib import Path

import yaml

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[1])]
import derived  # noqa: E402
from register import ERRATA, SOURCES, VERDICTS, Register  # noqa: E402

import attnmath  # noqa: E402
from attnmath.page.language.syntax import unsized  # noqa: E402
from attnmath.page.verdicts.book import Book  # noqa: E402
from attnmath.page.verdicts.trial import Trial  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
MADE = "This page is made by `make pages`, from {}."

BEGIN, END = "<!-- The next lines are made by `make pages`. -->\n", "<!-- Until here. -->"    # README.md, api.md

OVERVIEW = f"""# What the sources say

{MADE.format("the register of claims, `chapters/register`")}

Five public documents asked the questions that this book answers. Their authors published when
nobody else did, and most of what they say is right. Each has a chapter, which runs what it claims,
as it claims it. The tables below list every claim, formula, block of code, question and figure, in
the order of the document, with the verdict and the place of the evidence. What is wrong or
conditional, there and elsewhere, is collected in the {{doc}}`errata`.

One standard holds for all of them, and for the {{doc}}`errata`.

1. A text is judged by what it says, in its own letters, and in the case that it speaks of: a sentence
   about an experiment by that experiment, a formula or a program by all sizes and inputs that it takes.
   A letter or word that it does not define is read the way in which the text fares best.
2. No text is charged with what it does not say. An identity is not judged by rounding, a shape not by the
   numbers in it, a sentence about the softmax not by what comes after. Such things may be worth knowing;
   then they stand beside a verdict that they do not change.
3. A verdict is for the whole entry. Of several clauses the weakest counts, and a quotation counts as the text's.
4. What our copy does not have is not judged, nor what would take experiments of another kind, such as
   training large models.
"""

ERRATA_HEAD = f"""# Errata

{MADE.format("the register of claims, `chapters/register`, and from the {doc}`ledger`")}

Published statements that are wrong, that hold only under a condition which their text does not
state, or that rest on a check which accepts mistakes of any size that matters. Each row links to
the check that fails. A formula in the last column is asserted to fail in every setting of its cast
that does not meet the condition; how, and by how much, is what the engine found when the
{{doc}}`ledger` was made, where also the changes of one symbol are listed that make it true.
"""

CHEAT_HEAD = f"""# Cheat sheet

{MADE.format("the displays of the chapters, their casts and their labels")}

Every gradient of a layer of attention, for the three kinds of attention in a transformer. Rows are
tokens: $X$ ($n \\times d$) makes the queries, $Z$ ($m \\times d_z$) the keys and values. $h$ runs over
the heads, $\\gamma$ is the scale ($1/\\sqrt{{d_k}}$ unless said) and $B$ the mask or bias, whose entries
may be $-\\infty$: a mask changes no formula. $dX$ is the gradient of the loss with respect to $X$, and
has its shape; $dY$ is given. $\\circ$ multiplies entry by entry, $\\operatorname{{rowsum}}$ sums each row to
a column, $\\mathbf 1$ is a column of ones. The last column leads to the display that derives the line.
"""


def cell(text) -> str:
    return " ".join(str(text).split())


def table(head: list[str], rows: list[list]) -> list[str]:
    lines = ["| " + " | ".join(head) + " |", "|" + " --- |" * len(head)]
    return [*lines, *("| " + " | ".join(map(cell, row)) + " |" for row in rows), ""]


def overview(register: Register) -> str:
    names = [name for name in SOURCES if name != "others"]
    lines = [OVERVIEW]
    used = [verdict for verdict in VERDICTS
            if any(e["verdict"] == verdict for name in names for e in register.entries[name])]
    lines += [f"- **{verdict}**: {VERDICTS[verdict]}." for verdict in used] + [""]
    revised = sum("revised" in e for name in names for e in register.entries[name])
    lines += [f"By this standard {revised} of our first verdicts were too harsh; each of them says so.", ""]
    rows = []
    for name in names:
        counts = [sum(e["verdict"] == v for e in register.entries[name]) for v in used]
        rows.append([f"{{doc}}`{SOURCES[name].chapter}` {{cite}}`{SOURCES[name].cite}`", *counts])
    lines += table(["chapter and source", *used], rows)
    for name in names:
        lines += [f"## {SOURCES[name].name}", "", f"The chapter: {{doc}}`{SOURCES[name].chapter}`.", ""]
        lines += table(["", "verdict", "what it says", "what was found, and where"],
                       [[e["id"].partition("-")[2], f"**{e['verdict']}**", f"{e['says']} ({e['kind']})",
                         found(register, e)] for e in register.entries[name]])
    return "\n".join(lines).rstrip() + "\n"


def judged(entry: dict) -> str:
    """The verdict, what was measured, and how an earlier verdict differed."""
    measured, revised = entry.get("measured"), entry.get("revised")
    found = f"**{entry['verdict']}**" + (f": {uncapital(measured)}" if measured else "")
    return found + (f". *{revised}.*" if revised else "")


def found(register: Register, entry: dict) -> str:
    """What was measured, how an earlier verdict differed, and where it is shown."""
    links = ", ".join(map(register.link, entry.get("evidence", ())))
    return " ".join(filter(None, [f"{entry['measured']}." if entry.get("measured") else "",
                                  f"*{entry['revised']}.*" if "revised" in entry else "",
                                  f"Shown in {links}" if links else ""]))


def uncapital(text: str) -> str:
    return text[0].lower() + text[1:] if text[1:2].islower() or text[1:2] == " " else text


def errata(register: Register) -> str:
    lines = [ERRATA_HEAD]
    for name in SOURCES:
        found = [e for e in register.entries[name] if e["verdict"] in ERRATA]
        cite = f" {{cite}}`{SOURCES[name].cite}`" if SOURCES[name].cite else ""
        lines += [f"## {SOURCES[name].name}", "", f"Read in {{doc}}`{SOURCES[name].chapter}`{cite}.", ""]
        lines += table(
            ["published", "verdict, and what holds", "the check"],
            [[(f"{e['text']}, {e['where']}: " if "text" in e else "") + e["says"],
              f"{judged(e)}{'' if 'revised' in e else '.'} *Holds:* {uncapital(e['corrected'])}",
              ", ".join(register.link(one) + fails(register, one) for one in e["evidence"])]
             for e in found])
    return "\n".join(lines).rstrip() + "\n"


def fails(register: Register, label: str) -> str:
    """How a published formula fails, and which change of one symbol mends it."""
    if label not in register.failing:
        return ""
    _, how, better = register.failing[label]
    return f" {how}" + (f"; true with {better}" if better != "none" else "")


def cheat_sheet(root: Path, book: Book) -> str:
    """One row for each line of the displays that the plan names."""
    plan = yaml.safe_load((root / "chapters" / "register" / "cheat_sheet.yml").read_text("utf-8"))
    lines = [CHEAT_HEAD]
    for section in plan:
        rules = [label[3:] for label in section["rows"] if label.startswith("eq:")]
        code = "In code: " + ", ".join(f"{{py:func}}`~attnmath.{rule}`" for rule in rules) + "."
        text = [section.get("text", "").strip(), code if rules else ""]
        lines += [f"## {section['title']}", "", " ".join(filter(None, text)), ""]
        rows = []
        for label, chosen in section["rows"].items():
            rows += rows_of(book, label, chosen or {})
        lines += table(["formula", "shape", "from"], rows)
    return "\n".join(lines).rstrip() + "\n"


def rows_of(book: Book, label: str, chosen: dict) -> list[list]:
    """The lines of a display, each with its shape and where it is derived."""
    display = book.displays[label]
    cast = book.cast_of(display)
    rows = []
    for statement in display.statements:
        left = re.split(r"\s*&?\s*=", display.text[statement.start:statement.end], maxsplit=1)[0]
        if statement.is_local or left not in chosen.get("only", [left]):
            continue
        formula = re.sub(r"\s*(&\s*\\q?quad|&|\\\\)\s*", " ", unsized(statement.stated(display.text)))
        where = chosen.get("why", {}).get(left, label)
        rows.append([f"${formula.strip()}$", shape_of(book, cast, statement), f"{{eq}}`{where}`"])
    if "only" in chosen and len(rows) != len(chosen["only"]):
        raise SystemExit(f"cheat_sheet.yml: {label} has not each of {chosen['only']}")
    return rows


def shape_of(book: Book, cast, statement) -> str:
    """The shape of a line's sides, in the names of the sizes."""
    scene = book.paired((statement,), book.scenes(cast)[0])
    frame = next(Trial((statement,), scene).frames(statement, ignore=True))
    names = {size: name for name, size in reversed(scene.sizes.items())} | {1: "1"}
    shape = frame.evaluate(statement.members[0]).shape
    return "a number" if shape == (1, 1) else "$" + r" \times ".join(names[s] for s in shape) + "$"


def contents(root: Path) -> str:
    """README.md with the book's contents, each line opening a notebook, and the book's address if it has one."""
    before, _, rest = (root / "README.md").read_text("utf-8").partition(BEGIN)
    address = yaml.safe_load((root / "_config.yml").read_text("utf-8"))["html"]["baseurl"]
    titles, rows, above = derived.Book(root / "chapters").titles, [], ""
    for part, file, number in derived.contents(root):
        name = file if file.endswith(".ipynb") else f"{file}.md"
        rows.append(["" if part == above else part, number or "", f"[{titles[Path(name).stem]}]({name})"])
        above = part
    said = f"The book is at <{address}>. " * bool(address) + (
        "Each line opens a notebook; where there is none, the page is best read in the built book.")
    lines = [before + BEGIN, said, "", *table(["part", "", "chapter"], rows), END]
    return "\n".join(lines) + rest.partition(END)[2]


def functions(root: Path) -> str:
    """chapters/api.md with every public name, in the order of the chapters and of the source."""
    before, _, rest = (root / "chapters" / "api.md").read_text("utf-8").partition(BEGIN)
    titles, lines, left = derived.Book(root / "chapters").titles, [], set(attnmath.__all__)
    for _, file, _ in derived.contents(root):
        stem = Path(file).stem
        here = sorted((place_of(name), name) for name in left if chapter_of(name) == stem)
        if here:
            lines += [f"## {titles[stem]}", "", "```{eval-rst}", ".. currentmodule:: attnmath"]
            for _, name in here:
                thing = getattr(attnmath, name)
                is_class = inspect.isclass(thing)
                kind = ("exception" if issubclass(thing, Exception) else "class") if is_class else "function"
                lines += [f".. auto{kind}:: attnmath.{name}", *["   :no-members:"] * is_class]
            lines += ["```", ""]
            left -= {name for _, name in here}
    if left:
        raise SystemExit(f"chapters/api.md: no chapter for {', '.join(sorted(left))}; the last line of a docstring"
                         " says it, as in `Derived in chapters/softmax.md, eq:softmax.`")
    return "\n".join([before + BEGIN, *lines, END]) + rest.partition(END)[2]


def chapter_of(name: str) -> str:
    """The chapter that the last line of a public object's docstring names."""
    found = re.search(r"chapters/(\w+)\.md[^\n]*$", inspect.getdoc(getattr(attnmath, name)) or "")
    return found[1] if found else ""


def place_of(name: str) -> tuple:
    thing = getattr(attnmath, name)
    return thing.__module__, inspect.getsourcelines(thing)[1]


def pages(root: Path, register: Register, book: Book) -> dict[str, str]:
    return {"chapters/sources.md": overview(register), "chapters/errata.md": errata(register),
            "chapters/cheat_sheet.md": cheat_sheet(root, book), "README.md": contents(root),
            "chapters/api.md": functions(root)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", nargs="?", choices=("write", "check"), default="write")
    command = parser.parse_args().command
    register, book = Register(ROOT), Book.at(ROOT)
    wrong = register.faults() or register.unheld(book)
    if wrong:
        print("\n".join(f"chapters/register: {fault}" for fault in wrong))
        return 1
    for name, text in pages(ROOT, register, book).items():
        path = ROOT / name
        if path.exists() and path.read_text("utf-8") == text:
            continue
        if command == "check":
            wrong.append(name)
            print(f"{name} is stale; run make pages")
        else:
            path.write_text(text, "utf-8")
            print(f"{name}: written")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
