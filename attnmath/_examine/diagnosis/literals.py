"""What is pasted: numbers as Python writes them, the candidate's own axes, masks, groups and options in words."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from attnmath._examine.contract.layouts import axes_of, memory_order, parts_of_layout, to_layout
from attnmath._examine.problems.case import Case, Conventions

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


def array_of(library: str, dtype: str) -> str:
    """What makes an array of a library, with a gap for its numbers."""
    return {
        "numpy": f"np.array({{}}, {'ml_dtypes.bfloat16' if dtype == 'bfloat16' else repr(dtype)})",
        "torch": f"torch.tensor({{}}, dtype=torch.{dtype})",
        "jax": f"jax.numpy.array({{}}, {dtype!r})",
    }[library]


def option_lines(
    given: Mapping[str, str], means: Conventions, library: str, plain: str, leaf: str
) -> list[str]:
    """The arrays among the options: a mask of True and False, others in the format, a bias as a leaf."""
    found = []
    for name, value in given.items():
        is_bool = name == "mask" and means.mask in (None, "keep", "drop")
        kind = {"torch": "torch.tensor({})", "jax": "jax.numpy.array({})", "numpy": "{}"}[library]
        found.append(f"{name} = {(kind if is_bool else leaf if name == 'b' else plain).format(value)}")
    return found


def strided_lines(
    case: Case, means: Conventions, layout: str, library: str, leaves: Collection[str] = (),
    more: Sequence[str] = (),
) -> list[str]:
    """What puts the arrays in the order in memory that is the case's; leaves: those that require a gradient."""
    scores = 2 + sum(letter in parts_of_layout(layout)[0] for letter in "bh")
    ranks = {"do": ("dO", len(axes_of(layout, "O")))} if "strided dO" in case.traits else {}
    if "strided inputs" in case.traits:
        ranks |= {x: (x[0].upper(), len(axes_of(layout, x[0].upper()))) for x in ("q", "k", "v", *more)}
        ranks |= {"mask": ("mask", len(means.mask_axes or "") or scores)} if case.keep is not None else {}
        ranks |= {"b": ("bias", len(means.bias_axes or "") or scores)} if case.bias is not None else {}
    turn, copy = ("permute", "contiguous") if library == "torch" else ("transpose", "copy")
    found = []
    for name, (of, rank) in ranks.items() if library != "jax" else ():
        order = memory_order(of, rank, "contiguous rows" in case.traits)
        plain, leaf = (".detach()", ".requires_grad_()") if name in leaves else ("", "")
        back = tuple(np.argsort(order).tolist())
        found.append(f"{name} = {name}{plain}.{turn}{order}.{copy}().{turn}{back}{leaf}")
    return found


def added_to_scores(case: Case, means: Conventions) -> str:
    """The bias, and -inf where a key is hidden; "None" where nothing is added."""
    s, seen = case.sizes, ["keep"] if case.keep is not None else []
    if case.causal:
        seen.append(f"attnmath.causal_mask({s['n']}, {s['m']}, align={means.causal or 'lower_right'!r})")
    bias = "bias" if case.bias is not None else "0.0" if seen else "None"
    return f"np.where({' & '.join(seen)}, {bias}, -np.inf)" if seen else bias


def over_groups(case: Case, means: Conventions) -> tuple[str, str]:
    """What gives each query head its keys, with a gap for them, and sums their gradients; "" without groups."""
    s, tiled = case.sizes, means.groups == "interleaved"
    r = s["H"] // s["G"]
    if r == 1:
        return "{}", ""
    inner = f"{r}, {s['G']}" if tiled else f"{s['G']}, {r}"
    repeated = f"np.tile({{}}, (1, {r}, 1, 1))" if tiled else f"np.repeat({{}}, {r}, 1)"
    return repeated, f".reshape({s['b']}, {inner}, {s['m']}, -1).sum({1 if tiled else 2})"
