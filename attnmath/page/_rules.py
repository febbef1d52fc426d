"""A rule is a program: from the arguments of its function, line by line, to what that returns.

No letter comes from elsewhere, no line can be left out, and cases meet every entry once.
"""

from collections import Counter
from itertools import product

from attnmath.page._cast import Cast
from attnmath.page._nodes import Node, PageError, Statement
from attnmath.page._scene import Scene
from attnmath.page._scope import scope
from attnmath.page._trial import Trial


def refuse_gaps(name: str, statements: tuple, scene: Scene, given: set, results: set) -> None:
    """A PageError at a letter that nothing above gives, and at a line that nothing needs.

    `given` are the letters that the function is given, `results` those that it returns,
    each as (prefix, letter). A letter of the cast that is drawn at random stands for any value.
    """
    cast, axes = scene.cast, Trial(statements, scene).axes
    drawn = {("", k) for k, spec in cast.letters.items() if spec.origin == "random"}
    lines = [(statement, *_line(statement, cast, axes)) for statement in statements]
    made: set = set()
    for statement, left, right in lines:
        if left in given:
            raise PageError("letter", f"{written(left)} is an argument of {name}", statement.start)
        for key, node in right:
            if key == left or key not in made | given | drawn:
                message = f"{written(key)} is no argument of {name}, and no line above gives it"
                raise PageError("letter", message, node.start)
        made.add(left)
    for k, (statement, left, _) in enumerate(lines):
        used = {key for _, _, right in lines[k + 1 :] for key, _ in right}
        if left not in used | results:
            message = f"{written(left)} is no result of {name}, and no line below uses it"
            raise PageError("letter", message, statement.start)


def _line(statement: Statement, cast: Cast, axes: dict) -> tuple:
    """The letter that a line gives, and the letters that it is made from, with their nodes."""
    left = statement.members[0]
    left, subs = left.args if left.kind == "index" else (left, ())
    indices = [s.args[1] for s in subs if s.kind == "name" and s.args[1] not in cast.sizes]
    if left.kind != "name" or len(set(indices)) < len(subs) or statement.relations[0] not in ("=", ":="):
        raise PageError("label", "a line of a rule says what one letter is: letter = …", statement.start)
    rules = [member for member in statement.members[1:] if member.kind != "partial"]
    if len(rules) != 1 or set(statement.relations[1:]) > {"="}:
        message = "a line of a rule has one right side, beside the derivative that it is"
        raise PageError("label", message, statement.members[-1].start)
    found = scope(statement, cast, axes)
    known = {*found.free, *found.summed, *cast.sizes}
    parts = rules + [side for condition in statement.conditions for side in condition[1]]
    names = [node for part in parts for node in part.walk() if node.kind == "name"]
    right = [(_letter(n, cast), n) for n in names if n.args[0] or n.args[1] not in known]
    return _letter(left, cast), right


def _letter(node: Node, cast: Cast) -> tuple[str, str]:
    prefix, letter = node.args
    return prefix, cast.rows.get(letter, letter)


def written(key: tuple[str, str]) -> str:
    """A letter in a sentence."""
    prefix, letter = key
    return {"": "", "d": "d", "dot": "the tangent of ", "dotd": "the tangent of d"}[prefix] + letter


def refuse_other_cases(statements: tuple, scene: Scene) -> None:
    """A PageError where the cases of a letter leave an entry out, or meet it twice.

    A condition that speaks of the line's indices is a case; one on whole letters is a
    hypothesis, which may hold or not.
    """
    trial = Trial(statements, scene)
    met: dict = {}
    first: dict = {}
    cases: set = set()
    for statement in statements:
        key, subs = _entry(statement, scene.cast)
        first.setdefault(key, statement)
        found = scope(statement, scene.cast, trial.axes)
        names = {n.args for c in statement.conditions for side in c[1] for n in side.walk() if n.kind == "name"}
        if not names & {("", i) for i in found.free} and first[key] is statement:
            continue
        cases.add(key)
        seen = {tuple(frame.index[i] for i in subs) for frame in trial.frames(statement)}
        met.setdefault(key, Counter()).update(seen)
    for key in cases:
        statement = first[key]
        _, subs = _entry(statement, scene.cast)
        axis = scope(statement, scene.cast, trial.axes).axis
        for entry in product(*(range(1, scene.sizes[axis[i]] + 1) for i in subs)):
            if met[key][entry] != 1:
                where = ", ".join(f"{i} = {value}" for i, value in zip(subs, entry))
                says = "two lines say" if met[key][entry] else "no line says"
                message = f"{says} what {written(key)} is at {where}"
                raise PageError("label", message, statement.start)


def _entry(statement: Statement, cast: Cast) -> tuple:
    left = statement.members[0]
    left, subs = left.args if left.kind == "index" else (left, ())
    return _letter(left, cast), tuple(sub.args[1] for sub in subs)
