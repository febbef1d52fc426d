"""A chapter in plain Markdown, which GitHub, JupyterLab, VS Code and Colab show; they know no MyST.

Roles become links and the numbers that the book gives, labels become tags, a caption follows its
figure, and the solutions follow at the end, under a heading that JupyterLab keeps closed.
"""

import re
import symtable
from collections import Counter
from functools import cached_property

import nbformat
import yaml

FENCE = r"^(?P<ticks>`{3,}|~{3,}).*?^(?P=ticks)[ \t]*$"
SPECIAL = re.compile(
    FENCE + r"|\{(?P<role>[\w:]+)\}`(?P<content>[^`]+)`|(?P<quotes>`+)(?!`).*?(?P=quotes)"
    r"|\$\$(?P<display>.+?)(?P<space>\s*)\$\$[ \t]*\((?P<label>[\w:-]+)\)|^\((?P<target>[\w-]+)\)=\n",
    re.DOTALL | re.MULTILINE)
DIRECTIVE = re.compile(r"^(?P<colons>:{3,})\{(?P<kind>[\w-]+)\}[ \t]*(?P<title>[^\n]*)\n"
                       r"(?P<options>(?::[\w-]+:[^\n]*\n)*)(?P<body>.*?)^(?P=colons)[ \t]*(?:\n|\Z)",
                       re.DOTALL | re.MULTILINE)
NUMBERED = re.compile(FENCE + r"|\$\$[ \t]*\((?P<display>[\w:-]+)\)[ \t]*$"
                      r"|^:::\{exercise\}[^\n]*\n:label: (?P<exercise>[\w-]+)$", re.DOTALL | re.MULTILINE)
FIGURE = re.compile(r"^    name: ([\w-]+)$", re.MULTILINE)
HEADING = re.compile(FENCE + r"|^(?:\((?P<target>[\w-]+)\)=\n)?#+ (?P<words>[^\n]+)$", re.DOTALL | re.MULTILINE)
REFERENCE = re.compile(r"(?P<words>.*?)\s*<(?P<target>[^<>]+)>", re.DOTALL)
NOTES = {"note", "tip", "warning", "important", "admonition", "dropdown"}
CODE = re.compile(FENCE + r"|(?<![}`])(`+)(?!`).+?(?<!`)\2(?!`)", re.DOTALL | re.MULTILINE)
RAW = re.compile(r"\{[\w:]+\}`|^:{3,}|^\([\w-]+\)=$|\b(?:eq|why|prp|err):[A-Za-z]", re.MULTILINE)


class Unknown(Exception):
    """What a text refers to and is not there, or cannot be said in plain Markdown."""


def contents(root):
    """The pages of the book in their order: part, file, and the number of the chapter or None."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf-8"))
    yield "", toc["root"], None
    number = 0
    for part in toc.get("parts", [toc]):
        for entry in part.get("chapters", []):
            number += bool(part.get("numbered"))
            yield part.get("caption", ""), entry["file"], number if part.get("numbered") else None


def raw(markdown):
    """What a host that knows no MyST would show as it is: roles, directives, labels."""
    return RAW.findall(CODE.sub("", markdown))


def disturbed(book):
    """Names that mean something else because a notebook runs its solutions at the end, and the page does not."""
    cells = [cell for cell in book.cells if cell.cell_type == "code"]
    known = {cell.id: names(cell.source) for cell in cells}
    for cell in cells:
        used, made = known[cell.id]
        for name in sorted(used - made):
            here, there = (next((before.id for before in reversed(order[:order.index(cell)])
                                 if name in known[before.id][1]), None)
                           for order in (cells, sorted(cells, key=lambda cell: cell.id)))
            if here != there:
                yield (f"{cell.id} has {name} from {there} on the page, and from {here} in the notebook, where "
                       "solutions follow at the end; give it a name of its own")


def names(source):
    """The names from outside that some code uses, and those that it makes."""
    tables = [symtable.symtable(source, "cell", "exec")]
    made = {x.get_name() for x in tables[0].get_symbols() if x.is_assigned() and not x.is_imported()}
    used = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        used |= {x.get_name() for x in table.get_symbols() if x.is_referenced() and not x.is_local() | x.is_free()
                 or x.is_referenced() and table.get_type() == "module"}
    return used, made


class Book:
    """What the chapters of a folder refer to: titles, numbers, headings, publications."""

    def __init__(self, folder):
        self.folder = folder
        self.texts = {path.stem: path.read_text("utf-8") for path in sorted(folder.glob("*.md"))}
        self.titles, self.places, self.numbers = {}, {}, {}
        counts = Counter()
        for _, file, chapter in contents(folder.parent):
            stem = file.rpartition("/")[2].removesuffix(".ipynb")
            for kind, label in self.labels(stem):
                counts[kind, chapter] += 1
                number = f"{chapter}.{counts[kind, chapter]}" if chapter else str(counts[kind, chapter])
                self.places[label], self.numbers[label] = stem, number
            for found in HEADING.finditer(self.texts.get(stem, "")):
                if found["words"]:
                    self.titles.setdefault(stem, found["words"])
                if found["target"]:
                    self.places[found["target"]] = f"{stem}#{found['words']}"

    def labels(self, stem):
        """What is numbered on a page, in the order of the page: (kind, label)."""
        for found in NUMBERED.finditer(self.texts.get(stem, "")):
            if found["ticks"]:
                yield from (("figure", name) for name in FIGURE.findall(found[0]))
            else:
                yield found.lastgroup, found[found.lastgroup]

    @cached_property
    def publications(self):
        from pybtex.database import parse_file

        return parse_file(self.folder / "references.bib", encoding="utf-8").entries

    def notebook(self, text, stem):
        """The text of a chapter, as read by tools/nb.py, in plain Markdown."""
        body, solutions = [], []
        place = body
        for cell in text.cells:
            if cell.cell_type == "markdown":
                said = {"": [], "-solution": []}
                for end, words in self.pieces(cell.source, stem, "" if place is body else "-solution"):
                    said[end] += [words] if words else []
                    place = solutions if end else body
                for end, words in said.items():
                    if words:
                        cells = solutions if end else body
                        cells.append(nbformat.v4.new_markdown_cell("\n\n".join(words), id=cell.id + end))
                continue
            if "hide-input" in cell.metadata.get("tags", []):
                cell.metadata["jupyter"] = {"source_hidden": True}
            place.append(cell)
            figure = cell.metadata.get("mystnb", {}).get("figure", {})
            if figure.get("caption"):
                name = figure.get("name")
                words = f"**{self.named('numref', name)}.** " if name in self.numbers else ""
                words += self.inline(figure["caption"].strip(), stem)
                place.append(nbformat.v4.new_markdown_cell(words, id=f"{cell.id}-caption"))
        if solutions:
            body.append(nbformat.v4.new_markdown_cell(
                "## Solutions", id=f"{stem}-solutions", metadata={"jp-MarkdownHeadingCollapsed": True}))
        text.cells = body + solutions
        return text

    def pieces(self, source, stem, end):
        """The parts of a Markdown cell, each with the end of its cell's id; the last tells where the next goes."""
        after = 0
        for found in DIRECTIVE.finditer(source):
            yield end, self.inline(source[after:found.start()].strip(), stem)
            after = found.end()
            kind, title, body = found["kind"], found["title"].strip(), self.inline(found["body"].strip(), stem)
            options = dict(re.findall(r"^:([\w-]+): *(.*)$", found["options"], re.MULTILINE))
            if kind == "exercise":
                yield end, f"### Exercise {self.number(options['label'])}: {title}\n\n{body}"
            elif kind in ("solution", "solution-start"):
                yield "-solution", f"### Solution of exercise {self.number(title)}\n\n{body}".strip()
                end = "-solution" if kind == "solution-start" else end
            elif kind == "solution-end":
                end = ""
            elif kind in NOTES:
                heading = title if kind in ("admonition", "dropdown") else kind.capitalize()
                yield end, re.sub("(?m)^", "> ", f"**{heading}.** {body}")
            else:
                raise Unknown(f"{stem}.md: the directive {kind}")
        yield end, self.inline(source[after:].strip(), stem)

    def inline(self, source, stem):
        """Markdown without roles and labels."""
        def plain(found):
            if found["role"]:
                return self.role(found["role"], found["content"], stem)
            if found["label"]:
                return rf"$${found['display']} \tag{{{self.number(found['label'])}}}{found['space']}$$"
            return "" if found["target"] else found[0]

        return SPECIAL.sub(plain, source)

    def number(self, label):
        if label not in self.numbers:
            raise Unknown(f"the label {label}")
        return self.numbers[label]

    def role(self, role, content, stem):
        """What a reader sees in the place of a role, and where it leads."""
        if role.startswith("cite"):
            return f"({'; '.join(self.cited(key.strip()) for key in content.split(','))})"
        given = REFERENCE.fullmatch(content)
        words, target = (given["words"], given["target"]) if given else (None, content)
        if role == "doc":
            target = target.removeprefix("/").removeprefix("chapters/")
            return self.link(words or self.titles.get(target), target)
        if role in ("eq", "ref", "numref") and target in self.places:
            place = self.places[target]
            words = words or self.named(role, target)
            return words if place == stem else self.link(words, place)
        raise Unknown(f"{stem}.md: {{{role}}}`{content}`")

    def named(self, role, label):
        """How a text calls what has a label."""
        if label not in self.numbers:
            return self.places[label].partition("#")[2]
        what = {"eq": "({})", "numref": "Figure {}", "ref": "exercise {}"}[role]
        return what.format(self.numbers[label])

    def link(self, words, place):
        """Markdown that leads to a chapter, or to one of its headings."""
        stem, _, heading = place.partition("#")
        if stem not in self.texts:
            raise Unknown(f"the page {stem}")
        file = f"{stem}.ipynb" if "{code-cell}" in self.texts[stem] else f"{stem}.md"
        return f"[{words}]({file}{'#' * bool(heading)}{heading.replace(' ', '-')})"

    def cited(self, key):
        """Authors and year of a publication, as a link where it has an address."""
        if key not in self.publications:
            raise Unknown(f"the publication {key}")
        entry = self.publications[key]
        names = [" ".join(map(str, person.rich_last_names)) for person in entry.persons["author"]]
        authors = " and ".join(names) if len(names) < 3 else f"{names[0]} et al."
        words = " ".join(filter(None, [authors, entry.fields.get("year")]))
        address = entry.fields.get("url") or "doi" in entry.fields and f"https://doi.org/{entry.fields['doi']}"
        return f"[{words}]({address})" if address else words
