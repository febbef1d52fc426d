"""Layouts: which axis is which in a candidate's arrays, and problems that fit into them.

b: the sequences of a batch, h: heads, s: places (n queries or m keys), d: numbers of a vector.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from attnmath._examine._case import Answer, Case

LAYOUTS = ("bhsd", "bshd", "sbhd", "hsd", "shd", "sd")
OURS = "bhsd"


def to_layout(x: np.ndarray, layout: str) -> np.ndarray:
    """(b, h, s, d) -> the axes of the layout; those that it lacks have size 1."""
    lacking = tuple(axis for axis, letter in enumerate(OURS) if letter not in layout)
    left = [letter for letter in OURS if letter in layout]
    return x.squeeze(lacking).transpose([left.index(letter) for letter in layout])


def from_layout(x: np.ndarray, layout: str) -> np.ndarray:
    """The axes of the layout -> (b, h, s, d)."""
    left = [letter for letter in OURS if letter in layout]
    x = x.transpose([layout.index(letter) for letter in left])
    return x.reshape([x.shape[left.index(letter)] if letter in left else 1 for letter in OURS])


def scores_axes(x: np.ndarray, layout: str) -> np.ndarray:
    """A mask or bias (..., n, m) with the axes b, h, n, m, without those that the layout lacks."""
    x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    return x.squeeze(tuple(axis for axis, letter in enumerate("bh") if letter not in layout))


def parts(case: Case, layout: str) -> Iterator[tuple[tuple, Case]]:
    """The problems that a case falls into, each with its place in the batch and the heads.

    Without an axis of heads every query head has keys and values of its own.
    """
    s = case.sizes
    batches = [slice(None)] if "b" in layout else [slice(i, i + 1) for i in range(s["b"])]
    heads = [slice(None)] if "h" in layout else [slice(h, h + 1) for h in range(s["H"])]
    for b in batches:
        for h in heads:

            def cut(x: np.ndarray | None, at: tuple = (b, h)) -> np.ndarray | None:
                if x is None:
                    return None
                x = x.reshape((1,) * (4 - x.ndim) + x.shape)
                return x[tuple(i if size > 1 else slice(None) for i, size in zip(at, x.shape))]

            names = "Q", "K", "V", "dO", "keep", "bias", "R"
            yield (b, h), replace(case, **{name: cut(getattr(case, name)) for name in names})


def joined(case: Case, answers: list[tuple[tuple, Answer]]) -> Answer:
    """The answers to the parts of a case as the answer to it; the parts of dB are summed."""
    s, found = case.sizes, {}
    rows, keys = (s["b"], s["H"], s["n"]), (s["b"], s["G"], s["m"])
    shapes = dict(O=(*rows, s["d_v"]), dQ=(*rows, s["d_k"]), dK=(*keys, s["d_k"]), dV=(*keys, s["d_v"]))
    for name, shape in shapes.items():
        if all(getattr(answer, name) is not None for _, answer in answers):
            found[name] = np.empty(shape)
            for at, answer in answers:
                found[name][at] = getattr(answer, name)
    if case.bias is not None and all(answer.dB is not None for _, answer in answers):
        found["dB"] = np.zeros(case.bias.shape)
        whole = found["dB"].reshape((1,) * (4 - case.bias.ndim) + case.bias.shape)
        for at, answer in answers:
            whole[tuple(i if size > 1 else slice(None) for i, size in zip(at, whole.shape))] += answer.dB
    return Answer(**found) if "O" in found else None
