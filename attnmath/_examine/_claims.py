"""The claims about libraries in conventions.toml, and the tables that are made from them."""

import tomllib
from collections.abc import Iterable
from pathlib import Path

CLAIMS = tomllib.loads(Path(__file__).with_name("conventions.toml").read_text("utf-8"))


def claimed(name: str, how: str = "run") -> dict[str, str]:
    """What is claimed of a library, by how it is known: run, adapters or read."""
    return next(library for library in CLAIMS["library"] if library["name"] == name)[how]


def overview(columns: Iterable[str]) -> str:
    """A table in Markdown: † for what the adapters' tests measure, a link for what was read."""
    columns = list(columns)
    rows = [["library", *(CLAIMS["columns"][c] for c in columns)], ["---"] * (1 + len(columns))]
    for library in CLAIMS["library"]:
        cells = {k: _shown(v) for k, v in library.get("run", {}).items()}
        cells |= {k: f"{_shown(v)}\u00a0†" for k, v in library.get("adapters", {}).items()}
        cells |= {k: f"[{_shown(v)}]({address})" for k, (v, address) in library.get("read", {}).items()}
        if cells.keys() & set(columns):
            rows.append([library["name"], *(cells.get(c, "–") for c in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _shown(word: str) -> str:
    """As a formula, if it is one; short words stay on one line."""
    word = CLAIMS["shown"].get(word, word)
    return word.replace(" ", "\u00a0") if len(word) < 9 else word
