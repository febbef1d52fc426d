"""Of a published formula that fails: the changes of one symbol that make it true."""

from collections import Counter
from dataclasses import replace
from itertools import chain

from attnmath.page.language.chapter import Display
from attnmath.page.language.nodes import PageError, claims
from attnmath.page.language.syntax import parse, squeezed
from attnmath.page.misprints.mutations import STRENGTHENED, inverses, misprints
from attnmath.page.scenes.cast import Cast
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import facts_and_algebra, hold

# These change what is claimed, not the formula.
OTHER_CLAIMS = ("relation", "condition lost", "condition weaker", STRENGTHENED, "a tenth")


def corrections(book: Book, display: Display, cast: Cast) -> tuple[Counter, tuple[str, ...]]:
    """What becomes of the changes: how many fail, by kind, and those that hold everywhere."""
    failing: Counter[str] = Counter()
    found: dict[str, None] = {}
    changes = misprints(display.text, display.statements, cast)
    for misprint in chain(changes, inverses(display.text, display.statements)):
        if misprint.kind in OTHER_CLAIMS:
            continue
        text = misprint.apply(display.text)
        try:
            changed = parse(text)
            touched = _touched(changed, display.statements)
            bare = tuple(replace(statement, conditions=()) for statement in changed)
            if touched:
                hold(book, "prp:corrected", bare, book.scenes(cast), touched)
        except PageError as error:
            failing[error.kind] += 1
            continue
        if touched and _says_something(book, bare, cast, touched):
            shown = changed[touched[0]]
            found.setdefault(squeezed(text[shown.start : shown.end]))
    return failing, tuple(found)


def _touched(changed: tuple, published: tuple) -> tuple:
    """The lines that a change touches; all, where it touches a name that they may use."""
    if len(changed) != len(published):
        raise PageError("grammar", "another number of statements")
    pairs = enumerate(zip(changed, published))
    touched = tuple(k for k, (a, b) in pairs if a.members != b.members)
    return tuple(k for k, _ in claims(changed)) if any(changed[k].is_local for k in touched) else touched


def _says_something(book: Book, statements: tuple, cast: Cast, touched: tuple) -> bool:
    """Not a bound, which may be far from sharp; and not what holds for any matrices."""
    if any(set(statements[k].relations) != {"="} for k in touched):
        return False
    lines = tuple(s for k, s in enumerate(statements) if s.is_local or k in touched)
    return facts_and_algebra(book, lines, cast)[0] > 0
