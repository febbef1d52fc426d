"""Count the words of the chapters: prose, headings, captions and folded text; an inline formula is one word.

    python tools/words.py    a table: words before the exercises, and the limit

Displays, code and what a cell prints are not counted, nor is anything from the heading *Exercises* on; of
*rounding* neither are the proofs that are folded.
"""

import re
import sys
from pathlib import Path

from derived import contents

ROOT = Path(__file__).resolve().parent.parent
TO_THE_EXERCISES = re.compile(r"[\s\S]*?(?=^## Exercises$|\Z)", re.M)
TO_THE_RULE = re.compile(r"[\s\S]*?^## The rule$[\s\S]*?(?=^## )", re.M)    # for dQ, dK, dV, in attention.md
LIMIT, LONGER, WAY_LIMIT = 1800, 2500, 6500
PARTS_LONGER = ("The sources, settled", "Reference")
STEMS_LONGER = ("kernels", "rounding")
MADE = ("ledger", "museum", "errata", "cheat_sheet", "sources", "api", "bibliography")    # written by tools

FRONT = re.compile(r"\A---\n.*?\n---\n", re.S)
DISPLAY = re.compile(r"^\$\$.*?\$\$[ \t]*(\([^)\n]*\))?[ \t]*$", re.S | re.M)
FOLDED = re.compile(r"^:::\{admonition\}.*\n:class: dropdown\n[\s\S]*?^:::$", re.M)
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


CAPTION = re.compile(r"^    caption: (?:\|\n((?:      .*\n|\n)*)|(.+))", re.M)


def captions(text):
    """The captions of the figures, which stand in the cells."""
    return "\n".join(block or line for block, line in CAPTION.findall(text))


def words(path, part=TO_THE_EXERCISES):
    """The words of a part of a chapter, from its beginning."""
    text = part.match(FRONT.sub("", path.read_text("utf-8")))[0]
    text = FOLDED.sub("", text) if path.stem == "rounding" else text
    return count(text) + count(captions(text))


def chapters(root):
    """(part, stem) of each page that people write, in the order of the contents."""
    return [(part, Path(file).stem) for part, file, _ in contents(root) if Path(file).stem not in MADE]


def limits(root):
    """(stem, words, limit) for each page that people write."""
    for part, stem in chapters(root):
        longer = part in PARTS_LONGER or stem in STEMS_LONGER
        yield stem, words(root / "chapters" / f"{stem}.md"), LONGER if longer else LIMIT


def way(root):
    """(stem, words) from the first page to the end of the rule for dQ, dK, dV."""
    stems = [stem for _, stem in chapters(root)]
    for stem in stems[:stems.index("attention")]:
        yield stem, words(root / "chapters" / f"{stem}.md")
    yield "attention", words(root / "chapters" / "attention.md", TO_THE_RULE)


def over(root):
    """What is longer than it may be, a sentence each."""
    for stem, n, limit in limits(root):
        if n > limit:
            yield f"{stem}: {n} words, {limit} at most"
    total = sum(n for _, n in way(root))
    if total > WAY_LIMIT:
        yield f"from the first page to the rule for dQ, dK, dV: {total} words, {WAY_LIMIT} at most"


def main():
    for stem, n, limit in limits(ROOT):
        print(f"{stem:16} {n:6} {limit:6} {'over' * (n > limit)}".rstrip())
    print(f"{'the way':16} {sum(n for _, n in way(ROOT)):6} {WAY_LIMIT:6}  "
          + ", ".join(f"{stem} {n}" for stem, n in way(ROOT)))
    return bool(list(over(ROOT)))


if __name__ == "__main__":
    sys.exit(main())
