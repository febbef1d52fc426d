"""Which files something is made of: its own, those of the modules that it imports, and so on.

Nothing is run. Imports count wherever they stand, in a function as well, and so do those by name;
a name that the package itself offers leads to the module that has it. A file of data counts where
its name is written down.
"""

import ast
import hashlib
import sys
from collections.abc import Collection, Iterator
from functools import cache, lru_cache
from importlib.metadata import distributions
from pathlib import Path

DATA = (".json", ".lark", ".toml", ".yml")
parsed = lru_cache(maxsize=512)(ast.parse)


class Imports:
    """The modules of some packages, by the folder of each."""

    def __init__(self, packages: dict[str, Path]):
        self.packages = {package: folder.resolve() for package, folder in packages.items()}
        self.modules: dict[str, Path] = {}
        self.data: dict[str, Path] = {}
        for package, folder in packages.items():
            for path in sorted(folder.rglob("*")):
                if path.suffix == ".py":
                    parts = path.relative_to(folder).with_suffix("").parts
                    parts = parts[:-1] if parts[-1:] == ("__init__",) else parts
                    self.modules[".".join((package, *parts))] = path.resolve()
                elif path.suffix in DATA:
                    self.data[path.name] = path.resolve()
        self.read = cache(self._read)

    def place(self, path: Path) -> str:
        """Where a file is, on any machine."""
        for package, folder in self.packages.items():
            if path.is_relative_to(folder):
                return f"{package}/{path.relative_to(folder).as_posix()}"
        return path.name

    def files(self, path: Path, stop: Collection[Path] = ()) -> frozenset[Path]:
        """A file, and those of all that it imports; what is in `stop` is not followed."""
        return self._all({path}, stop)

    def files_of(self, source: str) -> frozenset[Path]:
        """The files that a text of code imports, as those of a module; all, of one that is no Python."""
        try:
            return self._all(set(self.named(parsed(source), "")), ())
        except SyntaxError:
            return frozenset(self.modules.values())

    def _all(self, found: set[Path], stop: Collection[Path]) -> frozenset[Path]:
        found = found.difference(stop)
        left = list(found)
        while left:
            new = self.read(left.pop()).difference(found, stop)
            found |= new
            left += new
        return frozenset(found)

    def _read(self, path: Path) -> frozenset[Path]:
        """The files that a file names."""
        if path.suffix != ".py":
            return frozenset()
        module = next((name for name, place in self.modules.items() if place == path), path.stem)
        package = module if path.name == "__init__.py" else module.rpartition(".")[0]
        return frozenset(self.named(parsed(path.read_text(encoding="utf-8")), package))

    def named(self, tree: ast.AST, package: str) -> Iterator[Path]:
        """The files that are named in a module, or a cell, of this package."""
        whole = {}  # what the packages themselves are called here
        for node in ast.walk(tree):
            match node:
                case ast.Import(names):
                    for alias in names:
                        if alias.name in self.packages:
                            whole[alias.asname or alias.name] = alias.name
                        else:
                            yield from self.module(alias.name)
                case ast.ImportFrom(module, names, level):
                    base = ".".join(package.split(".")[: len(package.split(".")) - level + 1]) if level else ""
                    for alias in names:
                        yield from self.name(".".join(filter(None, (base, module))), alias.name)
                case ast.Call(ast.Name("import_module") | ast.Attribute(attr="import_module"), [place, *_]):
                    yield from self.dynamic(place)
                case ast.Constant(str(text)) if text in self.data:
                    yield self.data[text]
        yield from self.attributes(tree, whole)

    def attributes(self, tree: ast.AST, whole: dict[str, str]) -> Iterator[Path]:
        """What is taken from a package; all of it, where it is handed on as a whole."""
        taken = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(ast.Name(name), attribute) if name in whole:
                    yield from self.name(whole[name], attribute)
                case ast.Name(name) if name in whole and id(node) not in taken:
                    yield self.modules[whole[name]]

    def module(self, name: str) -> Iterator[Path]:
        """A module's file, and those of the packages around it that do something."""
        parts = name.split(".")
        for k in range(2, len(parts) + 1):
            path = self.modules.get(".".join(parts[:k]))
            if path and (k == len(parts) or path.name == "__init__.py" and does_something(path)):
                yield path

    def name(self, module: str, name: str) -> Iterator[Path]:
        """What `from module import name` means."""
        if f"{module}.{name}" in self.modules:
            yield from self.module(f"{module}.{name}")
        elif module not in self.packages:
            yield from self.module(module)
        else:
            yield from self.offered(module).get(name, [self.modules[module]])

    def offered(self, package: str) -> dict[str, list[Path]]:
        """The names that a package imports from its modules, and where they are."""
        tree = parsed(self.modules[package].read_text(encoding="utf-8"))
        return {alias.asname or alias.name: list(self.name(node.module, alias.name))
                for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module
                for alias in node.names if node.module != package}

    def dynamic(self, place: ast.expr) -> Iterator[Path]:
        """import_module("a.b"), or import_module(f"a.{x}"): all modules that it may be."""
        match place:
            case ast.Constant(str(name)):
                yield from self.module(name)
            case ast.JoinedStr([ast.Constant(str(start)), *_]):
                for name in self.modules:
                    if name.startswith(start):
                        yield from self.module(name)


def digest(*parts: object) -> str:
    """One number for texts, or for lists of them."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@cache
def installed() -> str:
    """The Python, and the versions of all that is installed for it."""
    return digest(sys.version, sorted({f"{one.name} {one.version}" for one in distributions()}))


def does_something(path: Path) -> bool:
    """Whether there is more in a file than words about it."""
    tree = parsed(path.read_text(encoding="utf-8"))
    return any(not isinstance(node, ast.Expr) for node in tree.body)
