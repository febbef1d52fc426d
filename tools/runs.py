"""Which notebooks have to be run again: those whose code, whose outputs, or what they import has changed.

Kept in `_build/runs.json`: a number for each notebook as it was when it was `made` by a run, and when its
outputs were `compared` with those of another run. Of the package, the files count that a notebook
imports, and what those import; so do its data, `kernels.py`, and the versions of all libraries.
"""

import json
import sys
from functools import cache

import nbformat
from notebooks import ROOT, code

sys.path.insert(0, str(ROOT))
from attnmath.page.ledger.imports import Imports, digest, installed  # noqa: E402


class Runs:
    """What is known of the notebooks in a folder."""

    def __init__(self, folder):
        self.folder, self.path = folder, folder.parent / "_build" / "runs.json"
        self.known = json.loads(self.path.read_text("utf-8")) if self.path.exists() else {}
        self.imports = Imports({"attnmath": ROOT / "attnmath", folder.name: folder})
        self.content = cache(lambda path: digest(path.read_bytes()))

    def key(self, name):
        """A number for the code of a notebook, what it printed, and all that it imports."""
        cells = code(nbformat.read(self.folder / f"{name}.ipynb", as_version=4))
        printed = [(id, cell.source, cell.outputs) for id, cell in cells.items()]
        files = self.imports.files_of("\n".join(cell.source for cell in cells.values()))
        files = {*files, ROOT / "tools" / "kernels.py"}
        contents = sorted((self.imports.place(path), self.content(path)) for path in files)
        return digest(printed, contents, installed())

    def is_known(self, name):
        """Whether a run would give what is stored."""
        if not (self.folder / f"{name}.ipynb").exists():
            return False
        return self.key(name) in (self.known.get(kind, {}).get(name) for kind in ("made", "compared"))

    def ran(self, name):
        self.keep("made", {name: self.key(name)})

    def asked(self, names):
        """The notebooks that have to be compared with a new run; they are remembered as they are now."""
        keys = {name: self.key(name) for name in names if (self.folder / f"{name}.ipynb").exists()}
        new = {name: key for name, key in keys.items() if self.known.get("compared", {}).get(name) != key}
        self.known.pop("asked", None)
        self.keep("asked", new)
        return list(new)

    def answered(self):
        """What was asked last has been compared, and agrees."""
        self.keep("compared", self.known.pop("asked", {}))

    def keep(self, kind, keys):
        self.known.setdefault(kind, {}).update(keys)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_text(json.dumps(self.known, indent=1, sort_keys=True) + "\n", "utf-8")
