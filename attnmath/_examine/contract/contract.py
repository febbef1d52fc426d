"""What a candidate must keep to in every call: which axis is which, what it returns, what it leaves alone.

b: the sequences of a batch, h: heads, s: places (n queries or m keys), d: numbers of a vector.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from attnmath._examine.contract.functions import Broken, Fault
from attnmath._examine.contract.layouts import AXIS_ORDERS, MORE_ORDERS, OURS, parts_of_layout, scores_axes
from attnmath._examine.contract.libraries import Numpy
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath.rounding.formats import FORMATS

GRADIENT_OF = {"dQ": "q", "dK": "k", "dV": "v", "dB": "the bias"}


MASK_FORMS = {  # of a mask that is True where a query may attend, as lines to paste
    "keep": "keep", "drop": "~keep", "keep as numbers": "1.0 * keep", "drop as numbers": "1.0 * ~keep",
    "add": "np.where(keep, 0.0, -np.inf)", "add a large number": "np.where(keep, 0.0, -3e4)",
}
DROPOUT_FORMS = {  # of a dropout mask R, 0 or 1/(1 - rho), as lines to paste
    "factors": "R", "keep": "R != 0", "keep as numbers": "1.0 * (R != 0)", "drop": "R == 0",
    "drop as numbers": "1.0 * (R == 0)",
}
# Of a mask or a bias, the likely ones first; None: with 1 where it is constant.
SCORES_AXES = (None, "bhnm", "b1nm", "bnm", "nm", "b11m", "b1m", "bm", "1hnm", "hnm")


def given_mask(case: Case, keep: np.ndarray, means: Conventions, layout: str) -> np.ndarray:
    """The mask in the candidate's own form, on its own axes."""
    keep = placed(case, keep, means.mask_axes, layout)
    forms = (keep, ~keep, 1.0 * keep, 1.0 * ~keep, np.where(keep, 0.0, -np.inf), np.where(keep, 0.0, -3e4))
    return dict(zip(MASK_FORMS, forms))[means.mask or "keep"]


def given_dropout(R: np.ndarray, means: Conventions) -> np.ndarray:
    """The dropout mask in the candidate's own form."""
    forms = (R, R != 0, 1.0 * (R != 0), R == 0, 1.0 * (R == 0))
    return np.array(dict(zip(DROPOUT_FORMS, forms))[means.dropout or "factors"])


def placed(case: Case, x: np.ndarray, axes: str | None, layout: str) -> np.ndarray:
    """A mask or bias on axes such as "bm"; Broken where it differs along one that they lack."""
    if axes is None:
        return scores_axes(x, layout)
    sizes = dict(zip("bhnm", (case.sizes[letter] for letter in ("b", "H", "n", "m"))))
    whole = np.broadcast_to(x, tuple(sizes.values()))
    x = whole[tuple(slice(None) if letter in axes else slice(0, 1) for letter in "bhnm")]
    if not (whole == x).all():
        raise Broken(Fault("options", f"it has no axis for this mask or bias, its axes are {' '.join(axes)}"))
    return np.array(x.reshape([sizes.get(letter, 1) for letter in axes]))


def parts_of_case(case: Case, layout: str) -> Iterator[tuple[tuple, Case]]:
    """The problems that a case falls into, each with its place in the batch and the heads.

    Without an axis of heads every query head has keys and values of its own.
    """
    s, layout = case.sizes, parts_of_layout(layout)[0]
    batches = [slice(None)] if "b" in layout else [slice(i, i + 1) for i in range(s["b"])]
    heads = [slice(None)] if "h" in layout else [slice(h, h + 1) for h in range(s["H"])]
    for at in itertools.product(batches, heads):

        def cut(x: np.ndarray, at: tuple[slice, slice] = at) -> np.ndarray:
            x = x.reshape((1,) * (4 - x.ndim) + x.shape)
            return x[tuple(i if size > 1 else slice(None) for i, size in zip(at, x.shape))]

        yield at, case.with_arrays(cut)


def joined_answer(case: Case, answers: list[tuple[tuple, Answer]]) -> Answer:
    """The answers to the parts of a case as the answer to it; the parts of dB are summed."""
    s, found = case.sizes, {}
    rows, keys = (s["b"], s["H"], s["n"]), (s["b"], s["G"], s["m"])
    shapes = dict(O=(*rows, s["d_v"]), dQ=(*rows, s["d_k"]), dK=(*keys, s["d_k"]), dV=(*keys, s["d_v"]))
    for name, shape in shapes.items():
        if all(name in answer.there for _, answer in answers):
            found[name] = np.empty(shape)
            for at, answer in answers:
                found[name][at] = answer.there[name]
    if case.bias is not None and all(answer.dB is not None for _, answer in answers):
        found["dB"] = np.zeros(case.bias.shape)
        whole = found["dB"].reshape((1,) * (4 - case.bias.ndim) + case.bias.shape)
        for at, answer in answers:
            whole[tuple(i if size > 1 else slice(None) for i, size in zip(at, whole.shape))] += answer.there["dB"]
    return Answer(**found)


# ---- what examine is given ----------------------------------------------------------------------


def check_candidate(fn: Any, backward: Any, layout: str | None, time_limit: float) -> None:
    """Raise TypeError or ValueError for what cannot be a candidate."""
    for name, function in (("fn", fn), ("backward", backward)):
        if not callable(function) and not (name == "backward" and function is None):
            raise TypeError(f"{name} must be a function, not {type(function).__name__}")
    if layout is not None and layout not in AXIS_ORDERS + MORE_ORDERS:
        raise ValueError(f"layout must be one of {', '.join(AXIS_ORDERS + MORE_ORDERS)}, not {layout!r}")
    if not isinstance(time_limit, int | float) or not 0 < time_limit < float("inf"):
        raise ValueError(f"time_limit must be a number of seconds above 0, not {time_limit!r}")


# ---- what it returns ----------------------------------------------------------------------------


def kind(x: Any) -> str:
    """What was returned, in a word or two."""
    if isinstance(x, tuple | list):
        return f"a {type(x).__name__} of {len(x)}"
    return "None" if x is None else f"{type(x).__module__}.{type(x).__name__}".removeprefix("builtins.")


def check_array(lib: Numpy, name: str, x: Any, like: Any, source: str) -> list[Fault]:
    """Raise Broken unless x is an array of the shape of like; the faults that let it be read."""
    if not lib.is_array(x):
        raise Broken(Fault("type", f"{name} is {kind(x)}, where an array of {lib.name} is expected"))
    if odd := lib.odd(x):
        raise Broken(Fault("type", f"{name} is {odd}, where a plain array is expected"))
    got, want = lib.dtype_of(x), lib.dtype_of(like)
    if got not in FORMATS:
        raise Broken(Fault("integers", f"{name} has the dtype {got}, where {source} has {want}"))
    if tuple(x.shape) != tuple(like.shape):
        shapes = f"{tuple(x.shape)}, where {tuple(like.shape)}"
        sentence = f"{name} has the shape {shapes} is expected, that of {source}"
        raise Broken(Fault("shape", sentence))
    if got != want:
        return [Fault("dtype", f"{name} has the dtype {got}, where {source} has {want}")]
    return []


class Output:
    """A function that may return more than its output: the first array that has its shape is taken."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.shape, self.beside = fn, (), ""

    def __call__(self, *args: Any, **options: Any) -> Any:
        O = self.fn(*args, **options)
        if isinstance(O, tuple | list):
            for x in O:
                if tuple(getattr(x, "shape", ())) == self.shape:
                    self.beside = kind(O)
                    return x
        return O


def check_output(lib: Numpy, O: Any, dO: Any) -> list[Fault]:
    """The output is one array; Broken if it cannot be read."""
    if isinstance(O, tuple | list):
        raise Broken(Fault("wrong_number", f"the output is {kind(O)}, where one array is expected"))
    return check_array(lib, "the output", O, dO, "q with the last axis of v")


def check_gradients(
    lib: Numpy, grads: Any, likes: Sequence, only: str | None = None
) -> tuple[dict[str, Any], list[Fault]]:
    """The gradients that can be read, by their names, and what is wrong with them."""
    faults, names = [], list(GRADIENT_OF)[: len(likes)]
    if isinstance(grads, list):
        faults.append(Fault("list", "the gradients come in a list, where a tuple is expected"))
    elif not isinstance(grads, tuple):
        raise Broken(Fault("wrong_number", f"the gradients are {kind(grads)}, where a tuple is expected"))
    if len(grads) == len(likes) - 1 == len(GRADIENT_OF) - 1:
        sentence = (f"dB is missing: {len(grads)} gradients are returned where a bias takes part, and"
                    f" {len(likes)} are expected ({', '.join(names)})")
        faults.append(Fault("dB_missing", sentence))
        likes = likes[:-1]
    elif len(grads) != len(likes):
        sentence = f"{len(grads)} gradients are returned, where {len(likes)} are expected ({', '.join(names)})"
        raise Broken(Fault("wrong_number", sentence))
    shapes, wanted = ([tuple(getattr(x, "shape", ())) for x in xs] for xs in (grads, likes))
    if shapes != wanted and sorted(shapes) == sorted(wanted):
        sentence = f"the gradients have the shapes {shapes}, which in another order are those of q, k, v"
        raise Broken(Fault("wrong_order", sentence))
    good = {}
    for name, x, like in zip(names, grads, likes):
        if x is None and only in (None, name):
            faults.append(Fault("detached", f"{name} is None: the output is cut off from {GRADIENT_OF[name]}"))
        if x is None:
            continue
        try:
            faults += check_array(lib, name, x, like, GRADIENT_OF[name])
            good[name] = x
        except Broken as broken:
            wide = name == "dB" and broken.fault.name == "shape" and x.ndim == like.ndim
            wide = wide and all(b in (a, 1) for a, b in zip(x.shape, like.shape))
            faults.append(broken.fault._replace(name="bias_not_reduced") if wide else broken.fault)
    return good, faults


def check_finite(read: Mapping[str, np.ndarray]) -> list[Fault]:
    """No NaN and no infinity, where nothing calls for one."""
    bad = [name for name, x in read.items() if not np.isfinite(x).all()]
    if not bad:
        return []
    x = read[bad[0]]
    where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
    count = int((~np.isfinite(x)).sum())
    sentence = f"{' and '.join(bad)} not finite: {bad[0]} has {count} of {x.size} entries, the first at {where}"
    return [Fault("not finite", sentence)]


def summed_dB(dB: np.ndarray, bias: np.ndarray, layout: str, axes: str | None) -> np.ndarray:
    """The gradient of what was given as bias, summed to the bias itself (b, H, n, m)."""
    if axes is not None:
        sizes = iter([size for size, letter in zip(dB.shape, axes) if letter != "1"])
        dB, layout = dB.reshape([next(sizes) if letter in axes else 1 for letter in "bhnm"]), OURS
    given = scores_axes(bias, layout)
    over = tuple(i for i, (a, b) in enumerate(zip(dB.shape, given.shape)) if b == 1 != a)
    return dB.sum(over, keepdims=True).reshape((1,) * (4 - bias.ndim) + bias.shape)


# ---- what it leaves alone -----------------------------------------------------------------------


class Watch:
    """What a call was given, and what the call before gave, as they were before the call."""

    def __init__(self, lib: Numpy, args: Sequence, dO: Any, options: Mapping, earlier: list) -> None:
        self.lib, self.args = lib, args
        self.given = dict(zip("qkv", args)) | {"do": dO}
        self.given |= {name: x for name, x in options.items() if lib.is_array(x)}
        self.before = {name: self.bits(x) for name, x in self.given.items()}
        self.earlier = earlier

    def bits(self, x: Any) -> tuple:
        return tuple(x.shape), self.lib.dtype_of(x), self.lib.read(x).tobytes()

    def faults(self, found: Mapping[str, Any], explicit: bool) -> list[Fault]:
        """What was changed, and which memory is shared."""
        faults = []
        if changed := [name for name, x in self.given.items() if self.bits(x) != self.before[name]]:
            faults.append(Fault("inputs_modified", f"it changes its inputs: {' and '.join(changed)}"))
        if any(self.bits(x) != bits for x, bits in self.earlier):
            faults.append(Fault("output_reused", "a call changes what the call before returned"))
        if self.lib.left_behind(self.args):
            sentence = "it writes into the .grad of its inputs, besides returning gradients"
            faults.append(Fault("accumulates_into_grad", sentence))
        given = {name: x for name, x in self.given.items() if name != "do" or explicit}
        pairs = [(a, x, b, y) for a, x in found.items() for b, y in given.items()]
        results = list(found.items()) if explicit else []  # those of autograd may be one buffer, of zeros say
        pairs += [(*results[i], *results[j]) for i in range(len(results)) for j in range(i)]
        if shared := [f"{a} and {b}" for a, x, b, y in pairs if self.shared(x, y)]:
            faults.append(Fault("memory_shared", f"the same memory belongs to {', to '.join(shared)}"))
        return faults

    def shared(self, x: Any, y: Any) -> bool:
        """Whether two arrays have an entry in common."""
        x, y = self.lib.memory(x), self.lib.memory(y)
        if x is None or y is None:
            return False
        try:
            return np.shares_memory(x, y, max_work=100_000)  # type: ignore[arg-type]  # its stub knows -1 and 0
        except np.exceptions.TooHardError:
            return False

    def kept(self, found: Mapping[str, Any]) -> list:
        """The results with their bits, for the call after this one."""
        return [(x, self.bits(x)) for x in found.values() if self.lib.memory(x) is not None]
