"""Derivatives of exact numbers: each knows what it was made of, and its derivative by that."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from attnmath._exact_arrays import each
from attnmath._infinity import Infinite
from attnmath._numbers import Number


def tracked(x: Any) -> Any:
    """An array of the same numbers, by which others can be differentiated."""
    return each(lambda entry: entry.tracked(), x)


def bare(x: Any) -> Any:
    """An array of the same numbers, as constants."""
    return each(lambda entry: entry.bare(), x)


def made_of(roots: Iterable[Number]) -> list[Number]:
    """All that the roots are made of, and they themselves: what is made of others comes later."""
    order: list[Number] = []
    seen: set[int] = set()
    stack = [(x, False) for x in roots]
    while stack:
        x, is_done = stack.pop()
        if is_done:
            order.append(x)
        elif id(x) not in seen and x.slopes is not None:
            seen.add(id(x))
            stack.append((x, True))
            stack += [(part, False) for part, _ in x.slopes]
    return order


def gradient(outputs: Any, weights: Any, by: Any) -> Any:
    """The derivative of the sum of weight * output by each entry of `by`."""
    pairs = [(y, w) for y, w in zip(_flat(outputs), _flat(weights)) if y.slopes is not None]
    found = backward(pairs, made_of(y for y, _ in pairs))
    return each(lambda x: found.get(id(x), x.point.zero), by)


def backward(pairs: list, order: list) -> dict[int, Number]:
    """The derivative of the sum of weight * output by everything in `order`."""
    found: dict[int, Number] = {}
    for y, w in pairs:
        found[id(y)] = found[id(y)] + w if id(y) in found else w
    for x in reversed(order):
        slope = found.get(id(x))
        if slope is None:
            continue
        for part, derivative in x.slopes:
            if part.slopes is not None:
                term = slope.times(derivative)
                found[id(part)] = found[id(part)] + term if id(part) in found else term
    return found


def forward(order: list, tangents: dict[int, Number]) -> dict[int, Number]:
    """The tangent of everything in `order`, from those of some of it."""
    found = dict(tangents)
    for x in order:
        for part, derivative in x.slopes:
            if id(part) in found:
                term = found[id(part)].times(derivative)
                found[id(x)] = found[id(x)] + term if id(x) in found else term
    return found


def tangent(outputs: Any, moving: list[tuple]) -> Any:
    """The tangents of the outputs, where each pair in `moving` is an array and its tangent."""
    seeds = {id(x): dot for whole, dots in moving for x, dot in zip(_flat(whole), _flat(dots))}
    found = forward(made_of(y for y in _flat(outputs) if y.slopes is not None), seeds)
    return each(lambda y: found.get(id(y), y.point.zero), outputs)


def _flat(x: Any) -> list:
    return [entry for entry in np.asarray(x).ravel() if entry.__class__ in (Number, Infinite)]
