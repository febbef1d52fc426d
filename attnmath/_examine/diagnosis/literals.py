"""The numbers of an array as Python writes them, and its axes as the candidate has them, to be pasted."""

import numpy as np

from attnmath._examine.contract.layouts import axes_of, to_layout

# From the axes b, h, s, d of a problem to the candidate's; and the same for a mask's.
TO_LAYOUT = {"bhsd": "", "bshd": ".swapaxes(1, 2)", "sbhd": ".transpose(2, 0, 1, 3)", "hsd": "[0]",
             "shd": "[0].swapaxes(0, 1)", "sd": "[0, 0]"}
LACKING = {"hsd": "[0]", "shd": "[0]", "sd": "[0, 0]", "s(hd)": "[0]"}


def as_literal(x: np.ndarray) -> str:
    """An array's numbers; nothing of what does not fit on a line is left out."""
    if x.dtype == bool:
        return str(x.tolist())
    same = x.size and (x == x.flat[0]).all()
    if same and x.size > 8 and np.isfinite(x.flat[0]):
        return f"[{x.flat[0]!r}] * {x.size}" if x.ndim == 1 else _as_repeated(x.shape, float(x.flat[0]))
    return str(x.tolist()).replace("-inf", 'float("-inf")').replace("nan", 'float("nan")')


def _as_repeated(shape: tuple, number: float) -> str:
    text = f"[{number!r}] * {shape[-1]}"
    for size in reversed(shape[:-1]):
        text = f"[{text}]" if size == 1 else f"[{text}] * {size}"
    return text


def laid_out(name: str, x: np.ndarray, layout: str, of: str) -> str:
    """What a letter (b, h, s, d) is in the candidate's own axes."""
    if layout in TO_LAYOUT:
        return name + TO_LAYOUT[layout]
    letters = "".join(axes_of(layout, of))
    index = ", ".join(":" if letter in letters else "0" for letter in "bhsd")
    left = [letter for letter in "bhsd" if letter in letters]
    order = tuple(left.index(letter) for letter in letters)
    return f"{name}[{index}].transpose{order}.reshape{to_layout(x, layout, of).shape}"


def own_index(name: str, at: tuple[int, ...], layout: str, width: int) -> list[int]:
    """The place of an entry in the candidate's own axes, of vectors of this width."""
    if name == "dB":
        return list(at[LACKING.get(layout, "").count("0") :])
    place = dict(zip("bhsd", at))
    return [place[x] if len(x) == 1 else place["h"] * width + place["d"] for x in axes_of(layout, name)]
