"""Which parameters of a layer with latents are which: by their shapes, and how heads lie in them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from math import prod
from typing import Any

import numpy as np

from attnmath._examine.layer.latent import ENDS, Moved, moved
from attnmath._examine.layer.layer import ByName
from attnmath._formulas.heads import Weights

# What each matrix leads from, and to: tokens d, latents q and c, the heads' u. Some hold several side by side.
LEADS = {
    "Q": "d ukr", "Q_K": "d uk", "Q_R": "d ur", "DQ": "d q", "UQ": "q ukr", "UQ_K": "q uk", "UQ_R": "q ur",
    "DKV": "d c", "DKV_R": "d cr", "DQKV_R": "d qcr", "KR": "d r", "UKV": "c ukv", "UK": "c uk", "UV": "c uv",
    "O": "uv d",
}
DOWN, UP = (("DKV_R",), ("DKV", "KR"), ("DKV",)), (("UKV",), ("UK", "UV"))
QUERIES = ("Q",), ("DQ", "UQ"), ("DQ", "UQ_K", "UQ_R"), ("Q_K", "Q_R")
FORMS = [(*q, *down, *up, "O") for q, down, up in product(QUERIES, DOWN, UP)]
FORMS += [("DQKV_R", *q, *up, "O") for q, up in product((("UQ",), ("UQ_K", "UQ_R")), UP)]
ORDERS = {  # of what lies side by side; h: in each head
    **dict.fromkeys(("Q", "UQ"), ("hkr", "hrk", "kr", "rk")), "UKV": ("hkv", "hvk", "kv", "vk"),
    "DKV_R": ("cr", "rc"), "DQKV_R": ("qcr",), "Q_K": ("hk",), "UQ_K": ("hk",), "Q_R": ("hr",), "UQ_R": ("hr",),
    "UK": ("hk",), "UV": ("hv",), "DQ": ("q",), "DKV": ("c",), "KR": ("r",),
}
LETTER = {"UKV": {"k": "K", "v": "V"}, "UK": {"k": "K"}, "UV": {"v": "V"}}  # all other heads are those of queries
DOWN_TO = {"q": "DQ", "c": "DKV", "r": "KR"}
Sizes = dict[str, int]
Named = dict[str, tuple[str, np.ndarray]]  # each matrix: the parameter, and its places as (in, out)


def latent_readings(
    weights: Mapping[str, Any], heads: Sequence[int | None]
) -> Iterator[tuple[Callable[[ByName], Weights], dict[str, Moved]]]:
    """All ways to read parameters as the matrices of latents: `ours`, and the place of each letter.

    heads: how many there may be, where the shapes do not say it
    """
    at = {name: np.arange(prod(w.shape)).reshape(tuple(w.shape)) for name, w in weights.items()}
    matrices, rows = [x for x in at if at[x].ndim in (2, 3)], [x for x in at if at[x].ndim == 1]
    if len(matrices) + len(rows) < len(at):
        return
    for turned in (True, False):  # PyTorch's linear layers first
        lying = {x: list(_lying(at[x], turned)) for x in matrices}
        found = [x for form in FORMS if len(form) == len(matrices) for x in _assigned(form, lying)]
        for named, sizes in sorted(found, key=lambda x: _disorder(x[0], matrices)):
            biases = {role: (bias, at[bias]) for role, (name, _) in named.items() if (bias := _bias(name)) in rows}
            left = [x for x in rows if x not in [name for name, _ in biases.values()]]
            several = {role: ORDERS[role] for role in named if role in ORDERS}
            for norm, whole, orders in product(
                _norms(left, at, sizes), _with_heads(sizes, heads), product(*several.values())
            ):
                parts = _parts(named, biases, whole, dict(zip(several, orders)))
                parts |= {x: [(name, at[name])] for x, name in norm.items()}
                yield partial(_weights, parts), parts


def _lying(x: np.ndarray, turned: bool) -> Iterator[np.ndarray]:
    """The places of a matrix as (in, out); the heads may have an axis of their own."""
    if x.ndim == 2:
        yield x.T if turned else x
    elif not turned:
        yield from (x.reshape(len(x), -1), x.reshape(-1, x.shape[2]))


def _assigned(form: Sequence[str], lying: Mapping[str, Sequence[np.ndarray]]) -> Iterator[tuple[Named, Sizes]]:
    """The matrices of a form, in every way in which their shapes fit together."""
    def further(named: Named, sizes: Sizes) -> Iterator[tuple[Named, Sizes]]:
        if len(named) == len(form):
            yield named, sizes
            return
        role, used = form[len(named)], [name for name, _ in named.values()]
        for name, x in ((name, x) for name, some in lying.items() if name not in used for x in some):
            ends = dict(zip(LEADS[role].split(), x.shape))
            if all(sizes.get(end, n) == n for end, n in ends.items()):
                yield from further({**named, role: (name, x)}, {**sizes, **ends})

    return further({}, {})


def _disorder(named: Named, declared: Sequence[str]) -> int:
    """How many pairs are declared in another order than ours."""
    places = [declared.index(name) for name, _ in named.values()]
    return sum(a > b for i, a in enumerate(places) for b in places[i:])


def _bias(name: str) -> str:
    return name.removesuffix("weight") + "bias" if name.endswith("weight") else ""


def _norms(left: Sequence[str], at: Mapping[str, np.ndarray], sizes: Sizes) -> Iterator[dict[str, str]]:
    """What is learned by the norms of the latents: a gain, or a gain and a shift."""
    gains = [x for x in left if not x.endswith("bias")]
    ends = [(a, sizes[x]) for a, x in zip(ENDS, "qc") if x in sizes]
    for owners in product([None, *ends], repeat=len(gains)):
        fits = all(end is not None and len(at[x]) == end[1] for x, end in zip(gains, owners))
        if fits and len({*owners}) == len(gains):
            named = {f"gain_C_{end[0]}": x for x, end in zip(gains, owners) if end}
            shifts = {x.replace("gain", "shift"): _bias(name) for x, name in named.items()}
            named |= {x: bias for x, bias in shifts.items() if bias in left}
            if len(named) == len(left):
                yield named


def _with_heads(sizes: Sizes, heads: Sequence[int | None]) -> Iterator[Sizes]:
    """The sizes with H, k, r and v, where there is such a number of heads."""
    r = sizes["qcr"] - sizes["q"] - sizes["c"] if "qcr" in sizes else (
        sizes["cr"] - sizes["c"] if "cr" in sizes else sizes.get("r", 0))
    uk = sizes["uk"] if "uk" in sizes else sizes["ukv"] - sizes["uv"]
    ur = sizes["ur"] if "ur" in sizes else sizes.get("ukr", uk) - uk
    if sizes.get("ukv", uk + sizes["uv"]) != uk + sizes["uv"]:
        return
    for H in [ur // r] if r > 0 else dict.fromkeys(h for h in heads if h):
        if H > 0 and r >= 0 and ur == H * r and uk > 0 == uk % H == sizes["uv"] % H:
            yield {**sizes, "H": H, "k": uk // H, "r": r, "v": sizes["uv"] // H}


def _taken_apart(x: np.ndarray, order: str, sizes: Sizes) -> dict[str, np.ndarray]:
    """The parts of what lies side by side in this order, those of heads with an axis for the head."""
    letters, H = order.removeprefix("h"), sizes["H"]
    widths = np.cumsum([sizes[c] for c in letters])
    if order.startswith("h"):
        found = np.split(x.reshape(*x.shape[:-1], H, widths[-1]), widths[:-1], -1)
    elif {*letters} & {"c", "q"} or letters == "r":
        found = np.split(x, widths[:-1], -1)
    else:
        found = [y.reshape(*y.shape[:-1], H, -1) for y in np.split(x, H * widths[:-1], -1)]
    return dict(zip(letters, found))


def _parts(named: Named, biases: Named, sizes: Sizes, orders: Mapping[str, str]) -> dict[str, Moved]:
    """Where each letter stands: of Weights, what is turned first, and of LEARNED."""
    found: dict[str, Any] = {}
    for kind, of_roles in (("W", named), ("b", biases)):
        for role, (name, x) in of_roles.items():
            if role == "O":
                found[f"{kind}_O"] = [(name, x.reshape(sizes["H"], -1, x.shape[-1]) if kind == "W" else x)]
                continue
            down = LEADS[role].startswith("d ") and "u" not in LEADS[role]
            for letter, places in _taken_apart(x, orders[role], sizes).items():
                places = places.swapaxes(0, 1) if places.ndim == 3 else places
                into = DOWN_TO[letter] if down else LETTER.get(role, {}).get(letter, "Q")
                if places.size:
                    found.setdefault(f"{kind}_{into}", []).insert(0 if letter == "r" else 9, (name, places))
    return found


def _weights(parts: Mapping[str, Moved], numbers: ByName) -> Weights:
    """The parameters in the form of attnmath.Weights."""
    return Weights(**{x: moved(numbers, parts[x]) for x in Weights._fields if x in parts})
