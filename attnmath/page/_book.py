"""All chapters, and the scenes in which their displays are run."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from attnmath.page._cast import Cast, Setting, define, locals_of
from attnmath.page._chapter import Chapter, Display, read
from attnmath.page._insert import bounds
from attnmath.page._nodes import Misfit, PageError
from attnmath.page._oracles import Independent, NumPyScene
from attnmath.page._promise import left_sides
from attnmath.page._scene import Scene
from attnmath.page._scope import scope
from attnmath.page._slopes import loss_gradient
from attnmath.page._trial import Trial

# Free letters once with both signs and once positive, for logarithms and roots.
FREE = (Setting("signed", 1), Setting("positive", 2))


class Book:
    """All chapters, and the scenes in which their displays are run."""

    def __init__(
        self,
        chapters: list[Chapter],
        casts: dict[str, tuple[Cast, ...]],
        before: "Book | None" = None,  # which differs in a display
    ):
        self.chapters, self.casts, self.before = chapters, casts, before
        self.displays = {d.label: d for c in chapters for d in c.displays}
        self.relations = {d.label: d for c in chapters if casts.get(c.stem) for d in c.asserted}
        names: dict[str, Cast] = {}
        for cast in (cast for of_chapter in casts.values() for cast in of_chapter):
            if names.setdefault(cast.name, cast) is not cast:
                raise ValueError(f"two casts have the name {cast.name!r}")
        self._scenes: dict = {}
        self._casts: dict = {}

    @classmethod
    def at(cls, root: Path) -> "Book":
        from attnmath.page._casts import CHAPTERS

        paths = sorted((root / "chapters").glob("[!_]*.md"))
        return cls([read(path, root) for path in paths], CHAPTERS)

    def scenes(self, cast: Cast, kind: type = NumPyScene) -> tuple[Scene, ...]:
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
                message = f"{spec.origin} defines {letter} of the cast {cast.name!r}; it is missing"
                raise PageError("letter", message)
            definitions[letter] = found
        return definitions

    def _fill(self, cast: Cast, kind: type) -> tuple[Scene, ...]:
        definitions = self.definitions(cast)
        old = self.before.scenes(cast, kind) if self.before else ()
        if old and old[0].keeps(definitions):
            return tuple(scene.redefined(definitions) for scene in old)
        settings = FREE if kind is Independent else cast.settings
        with np.errstate(all="ignore"):
            scenes = tuple(kind(cast, setting, definitions) for setting in settings)
        for scene in scenes:
            scene.pattern = scenes[0]
        return scenes

    def cast_of(self, display: Display) -> Cast:
        """The first cast of the chapter that has all letters of the display.

        If there is none, the error is that of the cast which knows most of them.
        """
        casts = self.casts.get(Path(display.path).stem)
        if not casts:
            raise PageError("letter", "this chapter has no cast")
        names = {n.args[1] for s in display.statements for n in s.nodes() if n.kind == "name"}
        errors = []
        for cast in casts:
            try:
                self.check_names(display.statements, cast)
                return cast
            except PageError as error:
                errors.append((sum(map(cast.knows, names)), -len(errors), error))
        _, number, error = max(errors)
        if display.kind == "err" and isinstance(error, Misfit):  # it is judged, not refused
            return casts[-number]
        raise error

    def casts_of(self, display: Display) -> tuple[Cast, ...]:
        """All casts of the chapter that know the display; `cast_of` is the first of them.

        A cast knows a display if it has its letters, with the axes that they have in the first
        cast, if the same of them and the same gradients are held still, and if its lines can be
        computed there, true or not. A definition, which says what a letter of its cast is, belongs
        to that cast alone; and so does a published formula that fails (err:), whose letters mean
        what its source says.
        """
        key = display.label, display.text
        if key not in self._casts:
            first = self.cast_of(display)
            rest = [cast for cast in self.casts[Path(display.path).stem] if cast is not first]
            is_alone = display.kind == "err" or self._defines(display, first)
            known = () if is_alone else filter(lambda cast: self._knows(cast, display, first), rest)
            self._casts[key] = (first, *known)
        return self._casts[key]

    def stage(self, display: Display, kind: type = NumPyScene) -> tuple[Scene, ...]:
        """All scenes in which a display has to hold."""
        return sum((self.scenes(cast, kind) for cast in self.casts_of(display)), ())

    def derivation(self, display: Display) -> Display | None:
        """What argues for an inequality: a `why:` of its name, above it on its page, that ends with the same.

        Each side of each inequality has to stand in a chain of the derivation, of the same letters.
        """
        found = self.displays.get(f"why:{display.name}")
        if display.kind == "why" or not (found and found.has_inequality and display.has_inequality):
            return None
        is_above = found.path == display.path and found.line < display.line
        if not is_above or self.cast_of(found) is not self.cast_of(display):
            return None
        derived = bounds(found.statements, chained=True)
        return found if all(one in derived for one in bounds(display.statements)) else None

    def _defines(self, display: Display, cast: Cast) -> bool:
        if any(spec.origin == display.label for spec in cast.letters.values()):
            return True
        lefts = left_sides(display.statements, self.scenes(cast)[0])
        return display.kind == "eq" and any(
            not prefix and cast.letters[k].is_primal for prefix, k in lefts if k in cast.letters
        )

    def _knows(self, cast: Cast, display: Display, first: Cast) -> bool:
        names = {n.args for s in display.statements for n in s.nodes() if n.kind == "name"}
        letters = {first.rows.get(k, k) for _, k in names} & first.letters.keys()
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
        scene = self.scenes(cast)[0].paired(self.outputs(statements, cast))
        axes = locals_of(statements, cast, scene)[1]
        for statement in statements:
            if not statement.is_local:
                scope(statement, cast, axes)

    def with_display(self, changed: Display) -> "Book":
        """The book with one display in another wording."""
        chapters = [
            replace(
                chapter,
                displays=tuple(changed if d.label == changed.label else d for d in chapter.displays),
            )
            for chapter in self.chapters
        ]
        return Book(chapters, self.casts, before=self)

    def paired(self, statements: tuple, scene: Scene) -> Scene:
        """The loss of a display pairs the outputs whose cotangents stand in it."""
        return scene.paired(self.outputs(statements, scene.cast))

    def outputs(self, statements: tuple, cast: Cast) -> tuple[str, ...]:
        """The outputs whose cotangents stand in these lines."""
        rows, loss = cast.rows, cast.loss
        nodes = [n for s in statements for n in s.nodes()]
        names = {n.args for n in nodes if n.kind == "name"}
        plain = (loss_gradient(n, loss) for n in nodes if n.kind == "partial")
        names |= {n.args for found in plain if found for n in found.walk() if n.kind == "name"}
        named = {rows.get(letter, letter) for prefix, letter in names if prefix in ("d", "dotd")}
        return tuple(o for o in cast.outputs if o in named)
