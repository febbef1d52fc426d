"""Chapters as notebooks: read from their texts, and stored."""

import sys
from pathlib import Path

import jupytext
import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent))
import derived  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
CONFIG = jupytext.config.load_jupytext_configuration_file(str(ROOT / "pyproject.toml"))
KEPT_KEYS = ("tags", "mystnb")
HEADER = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
          "language_info": {"name": "python", "pygments_lexer": "ipython3"}}


def texts(folder):
    """The chapters that have code, by name."""
    return {path.stem: path for path in sorted(folder.glob("*.md"))
            if not path.stem.startswith("_") and "{code-cell}" in path.read_text("utf-8")}


def read_text(path):
    """The chapter's text as a notebook without outputs."""
    book = jupytext.read(path, config=CONFIG)
    cells = []
    for number, cell in enumerate(book.cells, 1):
        meta = {key: cell.metadata[key] for key in KEPT_KEYS if cell.metadata.get(key)}
        make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell,
                "raw": nbformat.v4.new_raw_cell}[cell.cell_type]
        cells.append(make(cell.source, metadata=meta, id=f"{path.stem}-{number:03}"))
    jupytext_meta = {"default_lexer": "ipython3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={**HEADER, "jupytext": jupytext_meta})


def derive(path, book=None):
    """The chapter's text as the notebook that is stored, without outputs."""
    return (book or derived.Book(path.parent)).notebook(read_text(path), path.stem)


def store(path, book):
    """Write a chapter's notebook; returns whether the file changed."""
    new = nbformat.writes(book, version=4).rstrip("\n") + "\n"
    target = path.with_suffix(".ipynb")
    if target.exists() and target.read_text("utf-8") == new:
        return False
    target.write_text(new, "utf-8")
    return True


def code(book):
    return {cell.id: cell for cell in book.cells if cell.cell_type == "code"}


def sources(book):
    return [(id, cell.source) for id, cell in code(book).items()]


def fill(book, stored):
    """Give each cell what it printed in another notebook; the cells that are not there."""
    known = code(stored)
    for id, cell in code(book).items():
        if id in known:
            cell.update(outputs=known[id].outputs, execution_count=known[id].execution_count)
    return [id for id in code(book) if id not in known]
