"""The register: every claim, formula, code block, question and figure of the sources, judged.

`chapters/register/*.yml` has one list for each source. `faults` says what is wrong with them:
an entry whose evidence is not there, or whose verdict is not what the engine found.
"""

import re
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import yaml
from mdit_py_plugins.anchors.index import slugify

from attnmath.page.language.chapter import PageFault, _markdown, read_chapter, read_text
from attnmath.page.verdicts.book import Book, found_or_fault
from attnmath.page.verdicts.judge import judge

KINDS = ("claim", "formula", "code", "question", "figure")
VERDICTS = {
    "true": "it holds as stated",
    "conditional": "it holds in some of the cases that it speaks of, by a condition that it does not state",
    "wrong": "it does not hold in the case that it speaks of",
    "vacuous": "a check that accepts mistakes of any size that matters where it is used",
    "imprecise": "the words say more, or less, than what is meant or shown",
    "answered": "a question, answered here",
    "no claim": "nothing that this book could show to be true or false",
}
ERRATA = ("conditional", "wrong", "vacuous")  # what the errata list
NEEDED = ("id", "kind", "says", "verdict")
CELL = re.compile(r"^(`{3,})\{code-cell\}.*?^\1[ \t]*$", re.M | re.S)
ASSERTS = re.compile(r"^\s*assert\b|^[^#\n]*\b(check_\w*jp|within)\(|^:tags:.*\braises-exception\b", re.M)
KEYS = (*NEEDED, "evidence", "measured", "revised", "corrected", "text", "where")


class Source(NamedTuple):
    """A document: its chapter, the key of its entry in the bibliography, its name on the page."""

    chapter: str
    cite: str
    name: str


SOURCES = {
    "blog": Source("source_blog", "longx2022gradient", "A blog that validates $W^Q$"),
    "question": Source("source_question", "stackexchange2020gradient", "A question and its answer"),
    "sdpa": Source("source_sdpa", "coder1479sdpa", "PyTorch's attention, line by line"),
    "merge": Source("source_merge", "attentionsimplified", "Attention from scratch, and a merge"),
    "columns": Source("source_columns", "mathstackexchangecolumns", "Derivatives by columns"),
    "others": Source("other_texts", "", "Other public texts"),
}


def labels(text: str) -> list[str]:
    """The labels of the displays in a text, as the page's own reader finds them."""
    return [display.label for display in read_text(text).displays]


def sections(text: str) -> dict[str, tuple[str, str]]:
    """anchor -> (heading, what stands below it, up to the next heading of its level)."""
    tokens, lines = _markdown().parse(text), text.split("\n")
    found = [(token.tag, *token.map, title.content) for token, title in pairwise(tokens)
             if token.type == "heading_open" and token.level == 0]
    out = {}
    for k, (tag, _, below, heading) in enumerate(found):
        later = (start for other, start, *_ in found[k + 1:] if other <= tag)     # h2 <= h3
        out[slugify(heading)] = (heading, "\n".join(lines[below:next(later, len(lines))]))
    return out


class Register:
    """The entries of all sources, and what they point at."""

    def __init__(self, root: Path):
        self.chapters = root / "chapters"
        self.entries = {name: self._load(name) for name in SOURCES}
        self.texts = {path.stem: path.read_text("utf-8") for path in self.chapters.glob("[!_]*.md")}
        self.sections = {stem: sections(text) for stem, text in self.texts.items()}
        self.labels = {d.label for x in self.chapters.glob("[!_]*.md") for d in read_chapter(x, root).displays}
        rows = re.findall(r"^\| \{eq\}`(err:\w+)` \S+ \| .*? \| (\d+ of \d+) \| \w+ \| (.*?) \| (.*) \|$",
                          self.texts.get("ledger", ""), re.M)
        self.failing = {label: (where, how, better) for label, where, how, better in rows}

    def _load(self, name: str) -> list[dict]:
        path = self.chapters / "register" / f"{name}.yml"
        entries = yaml.safe_load(path.read_text("utf-8")) if path.exists() else []
        for entry in entries:
            if entry.get("verdict") is True:      # as YAML reads the bare word
                entry["verdict"] = "true"
        return entries

    def link(self, evidence: str) -> str:
        """The evidence as a link."""
        if ":" in evidence:
            return f"{{eq}}`{evidence}`"
        stem, _, anchor = evidence.partition("#")
        heading = self.sections[stem][anchor][0]
        end = "ipynb" if "{code-cell}" in self.texts[stem] else "md"
        return f"[{heading}]({stem}.{end}#{anchor})"

    def faults(self) -> list[str]:
        found = [f"{name}: no entries" for name, entries in self.entries.items() if not entries]
        for name, entries in self.entries.items():
            for number, entry in enumerate(entries, 1):
                found += [f"{entry.get('id')}: {fault}" for fault in self._faults(entry, name, number)]
        cited = {e for entries in self.entries.values() for entry in entries
                 for e in entry.get("evidence", ())}
        published = {label for label in self.labels if label.startswith("err:")}
        found += [f"{label}: no entry of the register has it" for label in sorted(published - cited)]
        return found

    def unheld(self, book: Book) -> list[str]:
        """Relations in what is said to hold instead that the source's chapter does not find to hold."""
        found = []
        for name, entries in self.entries.items():
            for entry in entries:
                text = read_text(str(entry.get("corrected", "")), f"chapters/{SOURCES[name].chapter}.md")
                told = [*text.faults, *(found_or_fault(judge, book, relation) for relation in text.asserted)]
                found += [f"{entry['id']}: {fault}" for fault in told if isinstance(fault, PageFault)]
        return found

    def _faults(self, entry: dict, name: str, number: int):
        if entry.get("id") != f"{name}-{number:02}":
            yield f"the id should be {name}-{number:02}"
        yield from (f"no {key}" for key in NEEDED if not entry.get(key))
        yield from (f"unknown key {key}" for key in entry if key not in KEYS)
        verdict, evidence = entry.get("verdict"), entry.get("evidence", [])
        if entry.get("kind") not in KINDS or verdict not in VERDICTS:
            yield f"kind {entry.get('kind')!r}, verdict {verdict!r}"
            return
        yield from (f"a bar in {key}" for key, x in entry.items() if "|" in str(x))
        needed = ["evidence"] if verdict != "no claim" else []
        needed += ["measured", "corrected"] if verdict in ERRATA else []
        needed += ["text", "where"] if name == "others" else []
        yield from (f"{verdict}, and no {key}" for key in needed if not entry.get(key))
        for one in evidence:
            yield from self._evidence_faults(one)
        hows = [self.failing[one][1] for one in evidence if one in self.failing]
        if hows:
            wanted = "conditional" if any(h.startswith("conditional") for h in hows) else "wrong"
            if verdict != wanted:
                yield f"verdict {verdict!r}, and the engine found {wanted!r}: {'; '.join(hows)}"

    def _evidence_faults(self, one: str):
        if ":" in one:
            if one not in self.labels:
                yield f"no display {one}"
            elif one.startswith("err:") and one not in self.failing:
                yield f"the ledger does not say how {one} fails; run make ledger"
            return
        stem, _, anchor = one.partition("#")
        if anchor not in self.sections.get(stem, {}):
            yield f"no heading {one}"
            return
        body = self.sections[stem][anchor][1]
        cells = (cell.group() for cell in CELL.finditer(body))
        if not any(map(ASSERTS.search, cells)) and not labels(body):
            yield f"nothing is asserted below {one}"
