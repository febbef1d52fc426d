"""The function that an `eq:` label promises returns what the display says."""

import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import attnmath
from attnmath._algebraic import NotAlgebraic
from attnmath._arrays import is_exact
from attnmath._heads import MultiheadMap, Weights
from attnmath._tolerance import PAGE
from attnmath.page._cast import Cast
from attnmath.page._nodes import Inexact, PageError
from attnmath.page._rules import refuse_gaps, refuse_other_cases
from attnmath.page._scene import Scene
from attnmath.page._values import largest_gap, plain
from attnmath.page._vocabulary import is_rule


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
        out = function(**arguments(function, scene, names))
    except NotAlgebraic as error:
        raise Inexact("algebra", str(error)) from None
    except (ValueError, TypeError) as error:
        raise PageError("function", str(error)) from None
    lefts = left_sides(statements, scene)
    if not lefts:
        raise PageError("label", "no line says what a letter is: letter = …")
    if isinstance(out, tuple) and not hasattr(out, "_asdict"):
        raise PageError("label", f"{name} returns a tuple without names")
    results = dict(_results(out)) if hasattr(out, "_asdict") else {code_name(cast, *list(lefts)[-1]): out}
    for key in ("dW", "dW_dot"):
        if results.get(key, out) is None and "W_Q" in names:
            raise PageError("label", f"{name} returns None for {key}")
    refuse_gaps(name, statements, scene, given(function, names), set(map(names.get, results)))
    refuse_other_cases(statements, scene)
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


def arguments(function: Callable, scene: Scene, names: dict) -> dict:
    """What a function's parameters stand for: letters, sizes, the weights of a layer.

    A constant that is no letter of this cast, as dropout's R where nothing is dropped,
    keeps its default.
    """
    found: dict = {}
    for key, parameter in inspect.signature(function).parameters.items():
        if key in scene.cast.sizes:
            found[key] = scene.sizes[key]
        elif parameter.default is False:
            found[key] = True  # a switch, for results besides
        elif key in names:
            found[key] = natural(scene, *names[key])
        elif key in ("W", "W_dot") and "W_Q" in names:
            found[key] = _weights(scene, names, key.removeprefix("W"))
        elif parameter.kind != parameter.KEYWORD_ONLY or parameter.default is parameter.empty:
            raise PageError("label", f"parameter {key} of {function.__name__} is not in the cast")
    return found


def given(function: Callable, names: dict) -> set:
    """The letters that a function is given, with those of the weights and of the way forward."""
    keys = set(inspect.signature(function).parameters)
    for whole, fields in (("W", Weights), ("W_dot", Weights), ("given", MultiheadMap)):
        if whole in keys:
            keys |= {field + whole.removeprefix("W").removeprefix("given") for field in fields._fields}
    return {names[key] for key in keys & set(names)}


def _weights(scene: Scene, names: dict, suffix: str) -> Any:
    """The weights of a layer, or their tangents (suffix _dot); None where there is no letter."""
    fields = {k: names.get(k + suffix) for k in Weights._fields}
    return Weights(**{k: natural(scene, *name) if name else None for k, name in fields.items()})


def _results(out: tuple) -> Iterator[tuple]:
    """Name and value of all that a function returns; dW, dW_dot are those of all weights."""
    for key, result in out._asdict().items():
        if hasattr(result, "_asdict"):
            before, after = key.split("W")
            yield from ((before + field + after, x) for field, x in result._asdict().items())
        else:
            yield key, result


def left_sides(statements: tuple, scene: Scene) -> dict:
    """(prefix, letter) of each left side -> the statements that give it, in order.

    A statement gives a letter if it says what the letter, its row or its entry is, for all
    values of its indices, in terms of others.
    """
    rows = scene.cast.rows
    lefts: dict = {}
    for k, statement in enumerate(statements):
        left, subs = statement.members[0], ()
        if left.kind == "index":
            left, subs = left.args
        plain_indices = [s.args[1] for s in subs if s.kind == "name" and s.args[1] not in scene.sizes]
        if left.kind != "name" or statement.relations[0] != "=":
            continue
        if len(set(plain_indices)) < len(subs):
            continue
        key = (left.args[0], rows.get(left.args[1], left.args[1]))
        others = [n.args for member in statement.members[1:] for n in member.walk()
                  if n.kind == "name"]  # fmt: skip
        if key not in [(prefix, rows.get(letter, letter)) for prefix, letter in others]:
            lefts.setdefault(key, []).append(k)
    return lefts


def _returned(name: str, key: str, got: Any, want: Any, magnitude: float) -> float:
    if np.shape(got) != np.shape(want):
        raise PageError("label", f"{name} returns {key} of shape {np.shape(got)}, not {np.shape(want)}")
    if is_exact(want):
        if np.any(want != got):
            raise PageError("function", f"{key} of {name} differs exactly")
        return 0.0
    got, want = 1.0 * plain(got), 1.0 * plain(want)  # also of booleans
    error = largest_gap(got, want) / (magnitude or 1.0)
    if not error <= PAGE:
        raise PageError("function", f"{key} of {name} is off by {error:.1e} of the magnitude")
    return error


def natural(scene: Scene, prefix: str, letter: str):
    """A letter as code has it: without the axes that only make it a matrix.

    A batch of masks keeps its axis of one query, along which it broadcasts.
    """
    array = scene.own(scene.letter(prefix, letter))
    spec = scene.cast.letters[letter]
    if spec.origin == "mask" and len(spec.axes) == 3:
        return plain(array).astype(bool)
    array = array.reshape(tuple(s for s, a in zip(array.shape, spec.axes) if a != "1"))
    kind = {"count": int, "mask": bool}.get(spec.origin)
    return plain(array).astype(kind) if kind else array
