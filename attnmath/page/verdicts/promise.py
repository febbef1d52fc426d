"""The function that an `eq:` label promises returns what the display says; and the display is a program for it.

No letter comes from elsewhere, no line can be left out, and cases meet every entry once.
"""

import inspect
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any, NamedTuple, get_args

import numpy as np

import attnmath
from attnmath._exact.outcomes import NotAlgebraic, line_of_error
from attnmath._words.arrays import is_exact
from attnmath._words.tolerance import PAGE
from attnmath.page.language.nodes import Inexact, Name, Node, PageError, Statement, claims
from attnmath.page.scenes.cast import Cast, scope
from attnmath.page.scenes.evaluate import is_rule
from attnmath.page.scenes.scene import Scene
from attnmath.page.scenes.values import detached, largest_gap
from attnmath.page.verdicts.trial import Trial


def code_name(cast: Cast, prefix: str, letter: str) -> str:
    """How the code writes a letter of the page: dO, Q_dot, gamma, dgamma, W_Q."""
    letter = cast.names.get(letter, letter.replace("^", "_"))
    return {"": letter, "d": "d" + letter, "dot": letter + "_dot", "dotd": f"d{letter}_dot"}[prefix]


def code_names(cast: Cast) -> dict:
    """How the code writes the letters of a cast -> (prefix, letter)."""
    names = {code_name(cast, p, k): (p, k) for p in ("", "d", "dot") for k in cast.letters}
    return names | {code_name(cast, "dotd", k): ("dotd", k) for k in cast.letters if cast.moves(k)}


def check_function(name: str, statements: tuple, scene: Scene, magnitudes: dict) -> float:
    """`attnmath.name` on the letters of the cast returns the left sides of its display.

    `magnitudes` are those of the statements whose conditions this scene meets: what the
    others give is not compared here.
    """
    if not is_rule(name):
        raise PageError("label", f"attnmath has no function {name}")
    function = getattr(attnmath, name)
    cast, names = scene.cast, code_names(scene.cast)
    try:
        out = function(**arguments_in(function, scene, names))
    except NotAlgebraic as error:
        raise Inexact("algebra", str(error)) from None
    except (ValueError, TypeError) as error:
        raise PageError("function", str(error)) from None
    except (AttributeError, LookupError, NameError) as error:
        raise PageError("function", f"{type(error).__name__}: {error}, at {line_of_error(error)}") from error
    lefts = left_sides(statements, scene)
    if not lefts:
        raise PageError("label", "no line says what a letter is: letter = …")
    if isinstance(out, tuple) and not hasattr(out, "_asdict"):
        raise PageError("label", f"{name} returns a tuple without names")
    results = dict(_results(out)) if hasattr(out, "_asdict") else {code_name(cast, *list(lefts)[-1]): out}
    for key in ("dW", "dW_dot"):
        if results.get(key, out) is None and "W_Q" in names:
            raise PageError("label", f"{name} returns None for {key}")
    trial = Trial(statements, scene)
    lines = [rule_line(statement, cast, trial.axes) for statement in statements]
    refuse_gaps(name, lines, cast, letters_given(function, names), set(map(names.get, results)))
    refuse_other_cases(lines, trial)
    worst = 0.0
    for key, result in results.items():
        if result is None and key not in names:
            continue  # of an argument that is None here
        if names.get(key) not in lefts:
            raise PageError("label", f"{name} returns {key}; no line of the display gives it")
        run = [magnitudes[k] for k in lefts[names[key]] if k in magnitudes]
        if run:
            want = natural(scene, *names[key])
            worst = max(worst, _returned(name, key, result, want, max(run)))
    return worst


def arguments_in(function: Callable, scene: Scene, names: dict) -> dict:
    """What a function's parameters stand for: letters, sizes, the weights of a layer.

    A constant that is no letter of this cast, as dropout's R where nothing is dropped,
    keeps its default.
    """
    found: dict = {}
    tuples = _tuples(function)
    sizes = {scene.cast.names.get(k, k): size for k, size in scene.sizes.items()}
    for key, parameter in inspect.signature(function).parameters.items():
        if key in sizes:
            found[key] = sizes[key]
        elif key in scene.setting.options:
            found[key] = scene.setting.options[key]
        elif parameter.default is False:
            found[key] = True  # a switch, for results besides
        elif key in names:
            found[key] = natural(scene, *names[key])
        elif key in ("W", "W_dot") and key in tuples and tuples[key]._fields[0] in names:
            found[key] = _weights(tuples[key], scene, names, key.removeprefix("W"))
        elif parameter.kind != parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            raise PageError("label", f"parameter {key} of {function.__name__} is not in the cast")
    return found


def letters_given(function: Callable, names: dict) -> set:
    """The letters that a function is given, with those of the weights and of the way forward."""
    keys = set(inspect.signature(function).parameters)
    for whole, kind in _tuples(function).items():
        keys |= {field + whole.removeprefix("W").removeprefix("given") for field in kind._fields}
    return {names[key] for key in keys & set(names)}


def _tuples(function: Callable) -> dict[str, Any]:
    """The arguments that are several letters together, by their annotations: a tuple with names, or None."""
    annotated = {key: one for key, one in inspect.get_annotations(function).items() if key != "return"}
    return {key: kind for key, whole in annotated.items()
            for kind in (whole, *get_args(whole)) if hasattr(kind, "_fields")}


def _weights(kind: Any, scene: Scene, names: dict, suffix: str) -> Any:
    """The weights of a layer, or their tangents (suffix _dot); None where there is no letter."""
    fields = {k: names.get(k + suffix) for k in kind._fields}
    return kind(**{k: natural(scene, *name) if name else None for k, name in fields.items()})


def _results(out: Any) -> Iterator[tuple]:
    """Name and value of all that a named tuple has; dW, dW_dot are those of all weights."""
    for key, result in out._asdict().items():
        if hasattr(result, "_asdict"):
            before, after = key.split("W")
            yield from ((before + field + after, x) for field, x in result._asdict().items())
        else:
            yield key, result


def left_sides(statements: tuple, scene: Scene) -> dict[Name, list[int]]:
    """The letter of each left side -> the statements that give it, in terms of others, in order."""
    lefts: dict[Name, list[int]] = defaultdict(list)
    for k, statement in claims(statements):
        found = _left(statement, scene.cast)
        others = {_whole(scene.cast, *name) for member in statement.members[1:] for name in member.names}
        if found and found[0] not in others:
            lefts[found[0]].append(k)
    return dict(lefts)


def _returned(name: str, key: str, got: Any, want: Any, magnitude: float) -> float:
    if np.shape(got) != np.shape(want):
        raise PageError("label", f"{name} returns {key} of shape {np.shape(got)}, not {np.shape(want)}")
    if is_exact(want):
        if np.any(want != got):
            raise PageError("function", f"{key} of {name} differs exactly")
        return 0.0
    got, want = 1.0 * detached(got), 1.0 * detached(want)  # also of booleans
    error = largest_gap(got, want) / (magnitude or 1.0)
    if not error <= PAGE:
        raise PageError("function", f"{key} of {name} is off by {error:.1e} of the magnitude")
    return error


def natural(scene: Scene, prefix: str, letter: str) -> Any:
    """A letter as code has it: without the axes that only make it a matrix.

    A batch of masks keeps its axis of one query, along which it broadcasts.
    """
    array = scene.own(scene.letter(prefix, letter))
    spec = scene.cast.letters[letter]
    if spec.origin == "mask" and len(spec.axes) == 3:
        return detached(array).astype(bool)
    array = array.reshape(tuple(length for length, axis in zip(array.shape, spec.axes) if axis != "1"))
    kind = {"count": int, "mask": bool}.get(spec.origin)
    return detached(array).astype(kind) if kind else array


# ---- a rule is a program: from the arguments of its function, line by line, to what that returns ----


class RuleLine(NamedTuple):
    """A line of a rule: the letter that it gives, the indices there, what it is, what that is made from."""

    statement: Statement
    left: Name
    indices: tuple[str, ...]
    rule: Node
    right: list[tuple[Name, Node]]
    free: list[str]
    axis: dict[str, str]


def refuse_gaps(name: str, lines: list[RuleLine], cast: Cast, given: set, results: set) -> None:
    """A PageError at a letter that nothing above gives, and at a line that nothing needs.

    `given` are the letters that the function is given, `results` those that it returns,
    each as (prefix, letter). A letter of the cast that is drawn at random stands for any value.
    """
    drawn = {("", k) for k, spec in cast.letters.items() if spec.origin == "random"}
    made: set[Name] = set()
    for line in lines:
        if line.left in given:
            raise PageError("letter", f"{spoken(line.left)} is an argument of {name}", line.statement.start)
        for key, node in line.right:
            if key == line.left or key not in made | given | drawn:
                message = f"{spoken(key)} is no argument of {name}, and no line above gives it"
                raise PageError("letter", message, node.start)
        made.add(line.left)
    for k, line in enumerate(lines):
        used = {key for below in lines[k + 1 :] for key, _ in below.right}
        if line.left not in used | results:
            message = f"{spoken(line.left)} is no result of {name}, and no line below uses it"
            raise PageError("letter", message, line.statement.start)


def refuse_other_cases(lines: list[RuleLine], trial: Trial) -> None:
    """A PageError where the cases of a letter leave an entry out, or meet it twice.

    A condition that speaks of the line's indices is a case; one on whole letters is a
    hypothesis, which may hold or not.
    """
    met: dict[Name, Counter] = defaultdict(Counter)
    first: dict[Name, RuleLine] = {}
    for line in lines:
        names = {letter for side in line.statement.sides[len(line.statement.members) :] for letter in side.bare}
        if first.setdefault(line.left, line) is line and not names & set(line.free):
            continue
        frames = trial.frames(line.statement)
        met[line.left].update({tuple(frame.index[i] for i in line.indices) for frame in frames})
    for key, count in met.items():
        line = first[key]
        for entry in product(*(range(1, trial.scene.sizes[line.axis[i]] + 1) for i in line.indices)):
            if count[entry] != 1:
                where = ", ".join(f"{i} = {value}" for i, value in zip(line.indices, entry))
                says = "two lines say" if count[entry] else "no line says"
                raise PageError("label", f"{says} what {spoken(key)} is at {where}", line.statement.start)


def rule_line(statement: Statement, cast: Cast, axes: dict) -> RuleLine:
    left = _left(statement, cast)
    if left is None:
        raise PageError("label", "a line of a rule says what one letter is: letter = …", statement.start)
    rules = [member for member in statement.members[1:] if member.kind != "partial"]
    if len(rules) != 1 or set(statement.relations[1:]) > {"="}:
        message = "a line of a rule has one right side, beside the derivative that it is"
        raise PageError("label", message, statement.members[-1].start)
    found = scope(statement, cast, axes)
    known = {*found.free, *found.summed, *cast.sizes}
    parts = (*rules, *statement.sides[len(statement.members) :])
    names = [node for part in parts for node in part.walk() if node.kind == "name"]
    right = [(_whole(cast, *n.args), n) for n in names if n.args[0] or n.args[1] not in known]
    return RuleLine(statement, *left, rules[0], right, found.free, found.axis)


def _left(statement: Statement, cast: Cast) -> tuple[Name, tuple[str, ...]] | None:
    """The letter that a line gives, and its indices, for all of which it says what the letter is."""
    left = statement.members[0]
    indices = tuple(s.args[1] for s in left.subs if s.kind == "name" and s.args[1] not in cast.sizes)
    if left.base.kind != "name" or len(set(indices)) < len(left.subs) or statement.relations[0] not in ("=", ":="):
        return None
    return _whole(cast, *left.base.args), indices


def _whole(cast: Cast, prefix: str, letter: str) -> Name:
    """A letter, or that of which it is a row."""
    return prefix, cast.rows.get(letter, letter)


def spoken(key: Name) -> str:
    """A letter in a sentence."""
    prefix, letter = key
    return {"": "", "d": "d", "dot": "the tangent of ", "dotd": "the tangent of d"}[prefix] + letter
