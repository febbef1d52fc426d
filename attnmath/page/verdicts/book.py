"""All chapters, the scenes in which their displays are run, and work on the displays side by side."""

import gc
import importlib
import os
import sys
import warnings
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from copy import copy
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from attnmath.page.language.chapter import Chapter, Display, PageFault, read_chapter
from attnmath.page.language.nodes import Misfit, PageError, claims, inequalities, names_in
from attnmath.page.scenes.carried import NumPyScene
from attnmath.page.scenes.cast import Cast, scope
from attnmath.page.scenes.casts import Written, completed, define, written
from attnmath.page.scenes.indexing import loss_gradient
from attnmath.page.scenes.oracles import Independent
from attnmath.page.scenes.scene import Scene
from attnmath.page.scenes.settings import Setting
from attnmath.page.verdicts.promise import left_sides
from attnmath.page.verdicts.trial import Trial, locals_of

MISSING = "it is missing"  # said of a display that the casts need
# Free letters once with both signs and once positive, for logarithms and roots.
FREE = (Setting("signed", 1), Setting("positive", 2))


class Book:
    """All chapters, and the scenes in which their displays are run."""

    before: "Book | None" = None  # the book before a change of one display

    def __init__(self, chapters: list[Chapter], casts: Written):
        self.chapters = chapters
        self.casts: dict[str, tuple[Cast, ...]]
        self.faults: list[PageFault]
        self.casts, self.faults = completed(chapters, casts)
        self.displays = {d.label: d for c in chapters for d in c.displays}
        self.relations = {d.label: d for c in chapters if self.casts.get(c.stem) for d in c.asserted}
        self._scenes: dict = {}
        self._casts: dict = {}

    @classmethod
    def at(cls, root: Path) -> "Book":
        paths = sorted((root / "chapters").glob("[!_]*.md"))
        return cls([read_chapter(path, root) for path in paths], written(root))

    def scenes(self, cast: Cast, kind: type[Scene] = NumPyScene) -> tuple[Scene, ...]:
        """The cast in all its settings, on NumPy or on torch; or with free letters."""
        key = (cast.name, kind)
        if key not in self._scenes:
            self._scenes[key] = self._fill(cast, kind)
        return self._scenes[key]

    def definitions(self, cast: Cast) -> dict:
        """How the page's displays define the letters of a cast that are not drawn."""
        definitions = {}
        for letter, spec in cast.letters.items():
            if spec.is_primal:
                continue
            display = self.displays.get(spec.origin)
            found = define(cast, letter, display.statements) if display else None
            if found is None:
                message = f"{spec.origin} defines {letter} of the cast {cast.name!r}; {MISSING}"
                raise PageError("letter", message)
            definitions[letter] = found
        return definitions

    def _fill(self, cast: Cast, kind: type[Scene]) -> tuple[Scene, ...]:
        definitions = self.definitions(cast)
        old = self.before.scenes(cast, kind) if self.before else ()
        if old and old[0].keeps(definitions):
            return tuple(scene.redefined(definitions) for scene in old)
        settings = FREE if kind is Independent else cast.settings
        with np.errstate(all="ignore"):
            scenes = tuple(kind(cast, setting, definitions) for setting in settings)
        return tuple(scene.but(pattern=scenes[0]) for scene in scenes)

    def cast_of(self, display: Display) -> Cast:
        """The first cast of the chapter that has all letters of the display.

        If there is none, the error is that of the cast which knows most of them.
        """
        casts = self.casts.get(display.stem)
        if not casts:
            raise PageError("letter", f"this chapter has no cast; write chapters/_casts/{display.stem}.py")
        letters = {letter for _, letter in names_in(display.statements)}
        errors: list[PageError] = []
        for cast in casts:
            try:
                self.check_names(display.statements, cast)
                return cast
            except PageError as error:
                errors.append(error)
        cast, worst = max(zip(casts, errors), key=lambda one: sum(map(one[0].knows, letters)))
        if display.kind == "err" and isinstance(worst, Misfit):  # it is judged, not refused
            return cast
        raise worst

    def casts_of(self, display: Display) -> tuple[Cast, ...]:
        """All casts of the chapter that know the display; `cast_of` is the first of them.

        A cast knows a display if it has its letters, with the axes that they have in the first
        cast, if the same of them and the same gradients are held still, if it names what the cast
        is about, and if its lines can be computed there, true or not. A definition, which says what
        a letter of its cast is, belongs to that cast alone; and so does a published formula that
        fails (err:), whose letters mean what its source says.
        """
        key = display.label, display.text
        if key not in self._casts:
            first = self.cast_of(display)
            rest = [cast for cast in self.casts[display.stem] if cast is not first]
            is_alone = display.kind == "err" or self._defines(display, first)
            known = () if is_alone else filter(lambda cast: self._knows(cast, display, first), rest)
            self._casts[key] = (first, *known)
        return self._casts[key]

    def stage(self, display: Display, kind: type[Scene] = NumPyScene) -> tuple[Scene, ...]:
        """All scenes in which a display has to hold."""
        return sum((self.scenes(cast, kind) for cast in self.casts_of(display)), ())

    def derivation(self, display: Display) -> Display | None:
        """What argues for an inequality: a `why:` of its name, above it on its page, that ends with the same.

        Each side of each inequality has to stand in a chain of the derivation, of the same letters: of a cast
        in which the display holds as well.
        """
        found = self.displays.get(f"why:{display.name}")
        if display.kind == "why" or not (found and found.has_inequality and display.has_inequality):
            return None
        is_above = found.path == display.path and found.line < display.line
        if not is_above or self.cast_of(found) not in self.casts_of(display):
            return None
        derived = inequalities(found.statements, chained=True)
        return found if all(one in derived for one in inequalities(display.statements)) else None

    def _defines(self, display: Display, cast: Cast) -> bool:
        if any(spec.origin == display.label for spec in cast.letters.values()):
            return True
        lefts = left_sides(display.statements, self.scenes(cast)[0])
        given = {k for prefix, k in lefts if not prefix and k in cast.letters and cast.letters[k].is_primal}
        return display.kind == "eq" and bool(given)

    def _knows(self, cast: Cast, display: Display, first: Cast) -> bool:
        named = {k for _, k in names_in(display.statements)}
        if cast.about and cast.about not in named:
            return False
        letters = {first.rows.get(k, k) for k in named} & first.letters.keys()
        if any(cast.rows.get(k, k) not in cast.letters for k in letters):
            return False
        if any(cast.letters[k].axes != first.letters[k].axes for k in letters & cast.letters.keys()):
            return False
        if letters & set(first.constants) != letters & set(cast.constants) or cast.moving != first.moving:
            return False
        return all(self._computes(cast, display.statements, k) for k in range(len(display.statements)))

    def _computes(self, cast: Cast, statements: tuple, k: int) -> bool:
        try:
            scene = self.paired(statements, self.scenes(cast)[0])
            for _ in Trial(statements, scene).run((k,), ignore=True):
                pass
        except PageError as error:
            return error.kind == "value"
        return True

    def check_names(self, statements: tuple, cast: Cast) -> None:
        named = locals_of(statements, cast, self.paired(statements, self.scenes(cast)[0]))
        axes = {name: one.axes for name, one in named.items()}
        for _, statement in claims(statements):
            scope(statement, cast, axes)

    def with_display(self, changed: Display) -> "Book":
        """The book with one display in another wording."""
        book = copy(self)
        book.before, book.displays = self, self.displays | {changed.label: changed}
        book._scenes, book._casts = {}, {}
        return book

    def paired(self, statements: tuple, scene: Scene) -> Scene:
        """The loss of a display pairs the outputs whose cotangents stand in it."""
        return scene.paired(self.outputs(statements, scene.cast))

    def all_paired(self, statements: tuple, scenes: tuple) -> tuple[Scene, ...]:
        """The same in each of many scenes, most of which have one cast."""
        casts = {scene.cast.name: scene.cast for scene in scenes}
        outputs = {name: self.outputs(statements, cast) for name, cast in casts.items()}
        return tuple(scene.paired(outputs[scene.cast.name]) for scene in scenes)

    def outputs(self, statements: tuple, cast: Cast) -> tuple[str, ...]:
        """The outputs whose cotangents stand in these lines."""
        names, partials = names_in(statements), [n for s in statements for n in s.nodes() if n.kind == "partial"]
        gradients = filter(None, (loss_gradient(node, cast.loss) for node in partials))
        names |= {name for found in gradients for name in found.names}
        named = {cast.rows.get(letter, letter) for prefix, letter in names if prefix in ("d", "dotd")}
        return tuple(o for o in cast.outputs if o in named)


# ---- work on the displays of a book, side by side ------------------------------------------------

# On Linux the processes are forked from this one, which has read the book and imported torch; elsewhere each
# does so for itself.
FORKS = sys.platform == "linux"  # elsewhere a system's libraries do not survive it


def each_cast(work: Callable, book: Book, root: Path | None, displays: list[Display], at_a_time: int = 0) -> list:
    """`work(book, display)` for each display, in their order; the fault, where there is one.

    The displays of a cast are done in one process, where its gradients are found once; or so many
    at a time, if the work takes much longer than the gradients.
    """
    groups: dict[str, list[Display]] = defaultdict(list)
    for display in displays:
        groups[_cast_name(book, display)].append(display)
    tasks = [(work, [d.label for d in group[k : k + (at_a_time or len(group))]])
             for group in groups.values() for k in range(0, len(group), at_a_time or len(group))]
    if not tasks:
        return []
    texts = {display.label: display.text for display in displays}
    tasks.sort(key=lambda task: -sum(len(texts[label]) ** 2 for label in task[1]))  # what takes long comes first
    if FORKS:
        importlib.import_module("torch")
    found: dict[str, Any] = {}
    for (_, labels), results in zip(tasks, _run(book, root, tasks)):
        found.update(zip(labels, results))
    return [found[display.label] for display in displays]


def _cast_name(book: Book, display: Display) -> str:
    try:
        return book.cast_of(display).name
    except PageError:
        return ""


def _run(book: Book | None, root: Path | None, tasks: list[tuple]) -> list:
    context = get_context("fork" if FORKS else "spawn")
    given = book if FORKS else None, root
    pool = ProcessPoolExecutor(os.cpu_count(), context, initializer=_open, initargs=given)
    with pool, warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # 3.12 sees OpenBLAS's sleeping threads
        return list(pool.map(_do, tasks))


_BOOK: Book | None = None


def _open(book: Book | None, root: Path | None) -> None:
    global _BOOK
    _BOOK = book or Book.at(root or Path("."))
    gc.set_threshold(100_000)  # there is little garbage, and many nodes and values to look through


def _do(task: tuple) -> list:
    work, labels = task
    assert _BOOK is not None, "_open has run"
    displays = _BOOK.displays | _BOOK.relations
    return [found_or_fault(work, _BOOK, displays[label]) for label in labels]


def found_or_fault(work: Callable, book: Book, display: Display) -> Any:
    """What the work finds of a display, or its fault."""
    try:
        return work(book, display)
    except PageError as error:
        return display.fault(error)
    except PageFault as fault:
        return fault
