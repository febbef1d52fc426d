"""What is wrong with the pairs of text and notebook, without a run.

Contents are compared, never file times: after a clone, times say nothing.
"""

import re

import derived
import nbformat
import yaml
from notebooks import HEADER, derive, texts

KNOWN_TAGS = {"hide-input", "hide-output", "hide-cell", "remove-input", "remove-output",
              "remove-cell", "raises-exception"}
PATHS = re.compile(
    r"/(?:home|root|tmp|work|opt|usr|var|mnt|Users|private)/[\w.-]|[A-Z]:\\\\?Users|site-packages"
)
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
SHOWN = {"text/plain", "text/markdown", "image/svg+xml", "image/png", "image/jpeg"}    # bitmaps: below
NBVAL_OFF = re.compile(r"nbval[-_](ignore|skip|check)", re.IGNORECASE)


def check_cells(name, text, book):
    """What differs between a text and its notebook."""
    if len(text.cells) != len(book.cells):
        yield f"{name}.ipynb: {len(book.cells)} cells, the text has {len(text.cells)}"
    for number, (want, have) in enumerate(zip(text.cells, book.cells, strict=False), 1):
        where = f"{name}.ipynb: cell {number}"
        if want.cell_type != have.cell_type:
            yield f"{where} is {have.cell_type}, the text has {want.cell_type}"
        elif want.source != have.source:
            line = next((i for i, (a, b) in enumerate(
                zip((want.source + "\n\0").split("\n"), (have.source + "\n\0").split("\n"),
                    strict=False), 1) if a != b), 1)
            yield f"{where} differs from the text in its line {line}"
        if dict(want.metadata) != dict(have.metadata):
            yield f"{where}: metadata {dict(have.metadata)}, the text has {dict(want.metadata)}"
        if want.id != have.get("id"):
            yield f"{where}: id {have.get('id')!r}, not {want.id!r}"
    for key in text.metadata:
        if book.metadata.get(key) != text.metadata[key]:
            yield f"{name}.ipynb: metadata {key!r} is {book.metadata.get(key)!r}"
    for key in set(book.metadata) - set(text.metadata):
        yield f"{name}.ipynb: metadata {key!r} is not the text's"


def check_outputs(name, book):
    """What is wrong with the stored outputs, as far as it shows without running."""
    expected = 0
    for number, cell in enumerate(book.cells, 1):
        where = f"{name}.ipynb: cell {number}"
        if NBVAL_OFF.search(cell.source) or any(map(NBVAL_OFF.search, cell.metadata.get("tags", []))):
            yield f"{where} switches its own validation off"
        unknown = set(cell.metadata.get("tags", [])) - KNOWN_TAGS
        if unknown:
            yield f"{where}: unknown tags {sorted(unknown)}"
        if cell.cell_type != "code":
            continue
        expected += 1
        if cell.execution_count != expected:
            yield f"{where}: execution count {cell.execution_count}, not {expected}: not run in order"
        if "image" in cell.metadata.get("mystnb", {}) or "figure" in cell.metadata.get("mystnb", {}):
            mystnb = cell.metadata["mystnb"]
            if not mystnb.get("image", {}).get("alt"):
                yield f"{where}: a figure without alternative text"
            if not mystnb.get("figure", {}).get("caption"):
                yield f"{where}: a figure without a caption"
        raises = "raises-exception" in cell.metadata.get("tags", [])
        errors = [out for out in cell.outputs if out.output_type == "error"]
        if raises != bool(errors):
            yield f"{where}: " + ("tagged raises-exception, raises nothing" if raises
                                  else f"stored error {errors[0].ename}")
        for out in cell.outputs:
            if out.get("name") == "stderr":
                yield f"{where}: writes to stderr"
            data = dict(out.get("data", {}))
            yield from (f"{where}: {kind} in its output, which nobody runs; print text, or draw"
                        for kind in sorted(data.keys() - SHOWN))
            if "text/markdown" in data and mathematics("".join(data["text/markdown"])):
                yield f"{where}: mathematics in its output is not run; write it in the text, $$ … $$ (prp:name)"
            if any(kind in data for kind in ("image/png", "image/jpeg")):
                yield f"{where}: a bitmap, which nobody compares; call book_style()"
            if "image/svg+xml" in data and not cell.metadata.get("mystnb", {}).get("figure"):
                yield f"{where}: a figure without caption and alternative text"
            words = "\n".join([out.get("text", ""), out.get("evalue", "")]
                              + [str(v) for k, v in data.items() if k != "image/svg+xml"])
            for pattern, what in ((PATHS, "a path of a machine"), (ADDRESS, "a memory address")):
                found = pattern.search(words)
                if found:
                    yield f"{where}: {what} in its output, {found.group()!r}"
            if out.output_type == "execute_result" and out.execution_count != cell.execution_count:
                yield f"{where}: output of run {out.execution_count}"


def mathematics(markdown):
    """Whether Markdown that a cell shows asserts something, or has what a chapter may not have."""
    from attnmath.page.language.chapter import read_text as read

    chapter = read(markdown)
    return bool(chapter.asserted or chapter.displays or chapter.faults)


def check_text(name, path):
    """The text's own header is the one that jupytext writes."""
    source = path.read_text("utf-8")
    if not source.startswith("---\n"):
        yield f"{name}.md: no header"
        return
    header = yaml.safe_load(source.split("\n---\n")[0][4:])
    expected = {"format_name": "myst", "format_version": 0.13, "extension": ".md"}
    representation = header.get("jupytext", {}).get("text_representation", {})
    for key, value in expected.items():
        if representation.get(key) != value:
            yield f"{name}.md: text_representation.{key} is {representation.get(key)!r}, not {value!r}"
    if header.get("kernelspec") != HEADER["kernelspec"]:
        yield f"{name}.md: kernelspec is not {HEADER['kernelspec']}"


def check_toc(root):
    """The table of contents lists each chapter once, a notebook's by its full name."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf-8"))
    listed = [toc["root"]] + [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    folder = root / "chapters"
    coded = texts(folder)
    wanted = {f"chapters/{path.stem}" + (".ipynb" if path.stem in coded else "")
              for path in folder.glob("*.md") if not path.stem.startswith("_")}
    yield from (f"_toc.yml: {name} is not listed" for name in sorted(wanted - set(listed)))
    yield from (f"_toc.yml: {name} is no chapter" for name in sorted(set(listed) - wanted))
    yield from (f"_toc.yml: {name} is listed twice"
                for name in sorted({name for name in listed if listed.count(name) > 1}))


def check(folder):
    """Every complaint about the pairs in a folder and about its place in the book."""
    yield from check_toc(folder.parent)
    chapters, words = texts(folder), derived.Book(folder)
    for path in sorted(folder.glob("*.ipynb")):
        if path.stem not in chapters:
            yield f"{path.name}: a notebook without a text"
    for name, path in chapters.items():
        target = path.with_suffix(".ipynb")
        if not target.exists():
            yield f"{name}.md: a text with code and no notebook; make notebooks"
            continue
        book = nbformat.read(target, as_version=4)
        yield from check_text(name, path)
        try:
            text = derive(path, words)
        except derived.Unknown as unknown:
            yield f"{name}.md: {unknown} is not there, or not known outside of the book"
            continue
        yield from (f"{name}.md: {wrong}" for wrong in derived.disturbed(text))
        yield from check_cells(name, text, book)
        yield from check_outputs(name, book)
