"""The weights of a layer of one's own: which parameter is which, and how its numbers lie."""

import itertools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.layer.layer import ByName
from attnmath._formulas.heads import Weights

# What layers call their matrices; what is not here can be named W_Q, W_K, W_V, W_O, b_Q, ...
SPELLINGS = {
    "Q": "q query queries", "K": "k key keys", "V": "v val value values", "KV": "kv keyvalue",
    "O": "o out output outs unify unifyheads c proj", "QKV": "qkv querykeyvalue in inproj cattn pack",
}
LETTERS_OF = {name: letters for letters, names in SPELLINGS.items() for name in names.split()}
FILLERS = {*"w b to proj projection lin linear layer fc dense weight bias kernel h mat matrix heads net".split()}


class WeightLayout(NamedTuple):
    """How the numbers of the parameters lie: axes by their letters, as "(h k) d"."""

    into: str  # of W_Q, W_K, W_V, or of what holds them
    out: str  # of W_O


# By the number of axes.
INTO = {2: ["d (h k)", "(h k) d", "d (k h)", "(k h) d"], 3: ["h d k", "d h k", "h k d"]}
PACKED_INTO = {2: ["d (p h k)", "(p h k) d", "d (h p k)", "(h p k) d"], 3: ["p d (h k)", "p (h k) d"],
          4: ["p h d k", "d p h k"]}
OUT = {2: ["(h k) d", "d (h k)", "(k h) d", "d (k h)"], 3: ["h k d", "d h k"]}


def our_name(name: str) -> str | None:
    """"W_Q", "b_KV", ... for the name of a parameter; None for one that is none of attention."""
    if name in {f"{kind}_{letters}" for kind in "Wb" for letters in SPELLINGS}:
        return name
    for part in reversed(name.replace("in_proj_", "in_proj.").split(".")):
        words = re.findall("[a-z]+", re.sub("(?<=[a-z])(?=[A-Z])", "_", part).lower())
        telling = [w for w in words if w not in FILLERS]
        for word in ("".join(telling), "".join(telling).removeprefix("to"), "".join(telling).removeprefix("w")):
            if word in LETTERS_OF:
                return f"{_kind(name)}_{LETTERS_OF[word]}"
        if telling:
            return None
        if {"proj", "dense"} & {*words}:  # the projection of nothing else
            return f"{_kind(name)}_O"
    return None


def _kind(name: str) -> str:
    return "b" if name.rpartition(".")[2].endswith(("bias", "b")) else "W"


ORDERS: dict[int, list[tuple[str, ...]]] = {  # of matrices whose names say nothing, by their number
    4: list(itertools.permutations("QKVO")), 3: [("Q", "KV", "O")], 2: [("QKV", "O")],
}


def by_our_names(weights: Mapping[str, Any]) -> list[dict[str, str]]:
    """The name of each parameter by ours: as it says, or in each order; raises ValueError where one is missing."""
    found: dict[str, str] = {}
    for name in weights:
        found.setdefault(our_name(name) or "", name)
    found.pop("", None)
    missing = [x for x in ("W_Q", "W_K", "W_V", "W_O") if not any(x[2] in r and r[0] == "W" for r in found)]
    if not missing:
        return [found]
    matrices = [name for name, w in weights.items() if len(w.shape) > 1]
    if len(found) == len(weights) or len(matrices) not in ORDERS:
        raise ValueError(
            f"examine_layer: weights has {', '.join(weights)}; it needs {', '.join(missing)} as well"
            " (or W_QKV, W_KV for those that are packed)"
        )

    def owned(letters: str, name: str) -> dict[str, str]:
        bias = name.removesuffix("weight") + "bias"
        return {f"W_{letters}": name} | ({f"b_{letters}": bias} if bias != name and bias in weights else {})

    return [{k: x for pair in zip(order, matrices) for k, x in owned(*pair).items()}
            for order in ORDERS[len(matrices)]]


def rearranged(x: np.ndarray, axes: str, sizes: Mapping[str, int], to: str) -> np.ndarray:
    """An array whose axes have letters, in the order of others: "(h k) d" to "h d k"."""
    want = [group.strip("()").split() for group in re.findall(r"\(.*?\)|\w", axes)]
    found = dict(sizes)
    for group, size in zip(want, x.shape, strict=True):
        known = math.prod(sizes[c] for c in group if c in sizes)
        unknown = [c for c in group if c not in sizes]
        if len(unknown) > 1 or not known or size % known or not unknown and size != known:
            raise ValueError("no such reading")
        found |= {c: size // known for c in unknown}
    letters = [c for group in want for c in group]
    return x.reshape([found[c] for c in letters]).transpose([letters.index(c) for c in to.split()])


def readings(
    weights: Mapping[str, Any], heads: int | None, widths: int = 2
) -> list[tuple[WeightLayout, Callable[[ByName], Weights]]]:
    """All ways to read the parameters that fit their shapes, each with `ours`; tokens may have so many widths."""
    found = []
    for named in by_our_names(weights):
        shapes = {r: tuple(weights[name].shape) for r, name in named.items()}
        first = next(r for r in ("W_Q", "W_QKV", "W_KV") if r in shapes)
        into = (INTO if first == "W_Q" else PACKED_INTO).get(len(shapes[first]), [])
        for reading in itertools.starmap(WeightLayout, itertools.product(into, OUT.get(len(shapes["W_O"]), []))):
            if ("(k h)" in reading.into) != ("(k h)" in reading.out):
                continue  # heads that are packed in two ways are a mistake
            ours = reader(named, reading, heads)
            try:
                W = ours({name: np.zeros(w.shape) for name, w in weights.items()})
            except ValueError:
                continue
            (H, d, d_k), (G, d_z, k), v, o = W.W_Q.shape, W.W_K.shape, W.W_V.shape, W.W_O.shape
            of_tokens = d_z == d if widths == 1 else v[1] == d_z or widths == 3
            if k == d_k and v[0] == G and of_tokens and o == (H, v[2], d) and H % G == 0:
                found.append((reading, ours))
    alike = [x for x in found if x[0].into.startswith("(") != x[0].out.startswith("(")]
    return alike or found  # square matrices turned in two ways are a mistake


def reader(named: Mapping[str, str], reading: WeightLayout, heads: int | None) -> Callable[[ByName], Weights]:
    """`ours` for one way to read."""
    def ours(numbers: ByName) -> Weights:
        x = {r: np.asarray(numbers[name], float) for r, name in named.items()}
        if heads is None and "(" in reading.out:
            raise ValueError("heads=H may be missing")
        H = heads if heads is not None else x["W_O"].shape[reading.out.split().index("h")]
        W_O = rearranged(x["W_O"], reading.out, {"h": H}, "h k d")
        inputs = [part for r in x if r[2:] != "O" for part in _inputs(x, r, reading.into, W_O.shape)]
        return Weights(**dict(inputs), W_O=W_O, b_O=x.get("b_O"))

    return ours


def _inputs(x: ByName, name: str, into: str, out: tuple[int, ...]) -> Iterator[tuple[str, np.ndarray]]:
    """The parts of one parameter, such as W_K and W_V of W_KV, by name and with the heads in front."""
    (kind, letters), (H, d_v, d) = name.split("_"), out
    names, axes = [f"{kind}_{a}" for a in letters], _unpacked(into) if len(letters) == 1 else into
    if len(letters) > 1 and "p" not in into:
        axes = into.replace("h", "p h", 1)  # of W_KV beside a W_Q that is alone
    axes, to = (axes, "h d k") if kind == "W" else (_without_d(axes, x[name].ndim), "h k")
    blocks = _blocks(x[name], axes, H, d_v) if letters == "QKV" else None
    if blocks is not None:
        return zip(names, (rearranged(block, _unpacked(axes), {"k": d_v}, to) for block in blocks))
    sizes = {"h": H} if "Q" in letters else {"k": d_v if letters == "V" else x["W_Q"].size // (H * d)}
    if "p" in axes:
        return zip(names, rearranged(x[name], axes, sizes | {"p": len(letters)}, f"p {to}"))
    return zip(names, [rearranged(x[name], axes, sizes, to)])


def _blocks(w: np.ndarray, axes: str, H: int, k: int) -> list[np.ndarray] | None:
    """Q, K and V of a packed matrix one below the other, where keys and values have fewer heads."""
    if "(p h k)" not in axes:
        return None
    axis = 0 if axes.startswith("(") else 1
    G, rest = divmod(w.shape[axis] - H * k, 2 * k)
    return None if rest or not 0 < G < H else np.split(w, [H * k, (H + G) * k], axis)


def _unpacked(axes: str) -> str:
    """The axes of a matrix that is alone."""
    return axes.replace("p ", "").replace(" p", "")


def _without_d(axes: str, ndim: int) -> str:
    """The axes of the bias."""
    axes = axes.replace("d ", "").replace(" d", "")
    return "(" + axes.replace("(", "").replace(")", "") + ")" if ndim == 1 else axes
