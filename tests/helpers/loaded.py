"""Programs beside the package, as modules: the tools and the book's extension."""

import importlib.util
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def load(path):
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


nb = load(ROOT / "tools" / "nb.py")
