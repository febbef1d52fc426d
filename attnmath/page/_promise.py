"""The function that an `eq:` label promises returns what the display says."""

import inspect

import numpy as np

import attnmath
from attnmath._tolerance import PAGE
from attnmath.page._nodes import PageError
from attnmath.page._scene import Scene
from attnmath.page._values import largest_gap, plain
from attnmath.page._vocabulary import is_rule


def code_name(prefix: str, letter: str) -> str:
    """How the code writes a letter of the page: dO, Q_dot, gamma, dgamma."""
    letter = letter.replace("^", "_")
    return {"": letter, "d": "d" + letter, "dot": letter + "_dot", "dotd": f"d{letter}_dot"}[prefix]


def check_function(name: str, statements: tuple, scene: Scene, magnitudes: dict) -> float:
    """`attnmath.name` on the letters of the cast returns the left sides of its display.

    `magnitudes` are those of the statements whose conditions this scene meets: what the
    others give is not compared here.
    """
    if not is_rule(name):
        raise PageError("label", f"attnmath has no function {name}")
    function = getattr(attnmath, name)
    names = {code_name(p, k): (p, k) for p in ("", "d", "dot") for k in scene.cast.letters}
    parameters = inspect.signature(function).parameters
    unknown = [p for p in parameters if p not in names]
    if unknown:
        raise PageError("label", f"parameter {unknown[0]} of {name} is not in the cast")
    try:
        out = function(**{p: natural(scene, *names[p]) for p in parameters})
    except (ValueError, TypeError) as error:
        raise PageError("function", str(error)) from None
    lefts = left_sides(statements, scene)
    if not lefts:
        raise PageError("label", "no line says what a letter is: letter = …")
    results = out._asdict() if hasattr(out, "_asdict") else {code_name(*list(lefts)[-1]): out}
    worst = 0.0
    for key, result in results.items():
        if names.get(key) not in lefts:
            raise PageError("label", f"{name} returns {key}; no line of the display gives it")
        run = [magnitudes[k] for k in lefts[names[key]] if k in magnitudes]
        if run:
            want = natural(scene, *names[key])
            worst = max(worst, _returned(name, key, plain(result), plain(want), max(run)))
    return worst


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


def _returned(name: str, key: str, got: np.ndarray, want: np.ndarray, magnitude: float) -> float:
    if got.shape != want.shape:
        raise PageError("label", f"{name} returns {key} of shape {got.shape}, not {want.shape}")
    error = largest_gap(got, want) / (magnitude or 1.0)
    if not error <= PAGE:
        raise PageError("function", f"{key} of {name} is off by {error:.1e} of the magnitude")
    return error


def natural(scene: Scene, prefix: str, letter: str):
    """A letter as code has it: without the axes that only make it a matrix."""
    array = scene.letter(prefix, letter)
    axes = scene.cast.letters[letter].axes
    return array.reshape(tuple(s for s, a in zip(array.shape, axes) if a != "1"))
