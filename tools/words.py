"""Count the words of the chapters: prose, headings, captions and folded text; an inline formula is one word.

    python tools/words.py              a table: words before the exercises, and the limit where there is one
    python tools/words.py check        which pages, and which way through the book, are over their limit

Displays, code and what a cell prints are not counted, nor is anything from the heading *Exercises* on.
"""

import re
import sys
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
WAY = ("index", "attention_map", "adjoints", "softmax", "attention")    # to the rule for dQ, dK, dV
WAY_ENDS = {"attention": "## The rule"}    # after this section nothing more is needed
LIMIT, LONGER, WAY_LIMIT = 1800, 2500, 6500
PARTS_LONGER = ("The sources, settled", "Reference")
MADE = ("ledger", "museum", "errata", "cheat_sheet", "sources", "api", "bibliography")    # written by tools

FRONT = re.compile(r"\A---\n.*?\n---\n", re.S)
DISPLAY = re.compile(r"^\$\$.*?\$\$[ \t]*(\([^)\n]*\))?[ \t]*$", re.S | re.M)
FENCE = re.compile(r"^(`{3,})[^\n]*\n(.*?)^\1[ \t]*$", re.S | re.M)
INLINE = re.compile(r"(?<!\\)\$[^$\n]+(?:\n[^$\n]+)*\$")
TARGET = re.compile(r"^\([\w-]+\)=$|^:{3,}.*$|^:\w+:.*$|^\|?[ :|-]+\|$", re.M)
ROLE = re.compile(r"\{[\w:]+\}`([^`<]*)(?:<[^`]*>)?`")
LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def count(text):
    """The words of some Markdown."""
    text = DISPLAY.sub(" ", FENCE.sub(" ", text))
    text = INLINE.sub(" formula ", TARGET.sub(" ", text))
    text = LINK.sub(r"\1", ROLE.sub("reference", text))
    return len(re.findall(r"[^\W_]+(?:['’._-][^\W_]+)*", text))


def before(text, heading):
    """The text up to a heading, without the rest."""
    return re.split(rf"^{re.escape(heading)}\b", text, maxsplit=1, flags=re.M)[0]


CAPTION = re.compile(r"^    caption: (?:\|\n((?:      .*\n|\n)*)|(.+))", re.M)


def captions(text):
    """The captions of the figures, which stand in the cells."""
    return "\n".join(block or line for block, line in CAPTION.findall(text))


def words(path, heading="## Exercises"):
    """The words of a chapter before a heading."""
    text = before(FRONT.sub("", path.read_text("utf-8")), heading)
    return count(text) + count(captions(text))


def section_end(path, heading):
    """The words up to the end of a section."""
    text = FRONT.sub("", path.read_text("utf-8"))
    start = text.index(f"\n{heading}\n") + 1
    stop = re.search(r"^## ", text[start + 3:], re.M)
    text = text[: start + 3 + stop.start()] if stop else text
    return count(text) + count(captions(text))


def chapters():
    """(part, stem) in the order of the contents."""
    toc = yaml.safe_load((ROOT / "_toc.yml").read_text("utf-8"))
    yield "", Path(toc["root"]).stem
    for part in toc["parts"]:
        for entry in part["chapters"]:
            yield part.get("caption", ""), Path(entry["file"]).stem


def limits():
    """(stem, words, limit) for each page that people write."""
    for part, stem in chapters():
        if stem not in MADE:
            longer = part in PARTS_LONGER or stem == "rounding"
            yield stem, words(ROOT / "chapters" / f"{stem}.md"), LONGER if longer else LIMIT


def way():
    """(stem, words) on the way from the first page to the end of the rule for dQ, dK, dV."""
    for stem in WAY:
        path = ROOT / "chapters" / f"{stem}.md"
        yield stem, section_end(path, WAY_ENDS[stem]) if stem in WAY_ENDS else words(path)


def main(command="table"):
    over = [f"{stem}: {n} words, {limit} at most" for stem, n, limit in limits() if n > limit]
    total = sum(n for _, n in way())
    if total > WAY_LIMIT:
        over.append(f"from {WAY[0]} to the rule of {WAY[-1]}: {total} words, {WAY_LIMIT} at most")
    if command == "check":
        print("\n".join(over))
        return bool(over)
    for stem, n, limit in limits():
        print(f"{stem:16} {n:6} {limit:6} {'over' if n > limit else ''}".rstrip())
    print(f"{'the way':16} {total:6} {WAY_LIMIT:6}  " + ", ".join(f"{s} {n}" for s, n in way()))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
