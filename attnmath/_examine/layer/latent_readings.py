"""Which parameters of a layer with latents are which: by their shapes, and how heads lie in them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from attnmath._examine.layer.latent import ENDS, Moved, moved
from attnmath._examine.layer.layer import ByName
from attnmath._formulas.heads import Weights

# What each matrix leads from, and to: tokens d, latents q and c, all heads. DKV_R and UKV hold two side by side.
LEADS = {
    "Q": "d uq", "DQ": "d q", "UQ": "q uq", "UQ_alone": "q uk", "QR": "q ur", "DKV": "d c", "DKV_R": "d cr",
    "KR": "d r", "UKV": "c ukv", "UK": "c uk", "UV": "c uv", "O": "uv d",
}
QUERIES = ("Q",), ("DQ", "UQ"), ("DQ", "UQ_alone", "QR")
DOWN, UP = (("DKV_R",), ("DKV", "KR"), ("DKV",)), (("UKV",), ("UK", "UV"))
FORMS = [(*q, *down, *up, "O") for q, down, up in product(QUERIES, DOWN, UP)]
ORDERS = {  # of what lies side by side: k or v, and what is turned, r; h: in each head
    **dict.fromkeys(("Q", "UQ"), ("hkr", "hrk", "kr", "rk")), "UKV": ("hkv", "hvk", "kv", "vk"),
    "DKV_R": ("cr", "rc"),
}
Sizes = dict[str, int]


def latent_readings(
    weights: Mapping[str, Any], heads: Sequence[int | None]
) -> Iterator[tuple[Callable[[ByName], Weights], dict[str, Moved]]]:
    """All ways to read parameters as the matrices of latents: `ours`, and the place of each letter.

    heads: how many there may be, where the shapes do not say it
    """
    at = {name: np.arange(w.numel() if hasattr(w, "numel") else w.size).reshape(tuple(w.shape))
          for name, w in weights.items()}
    matrices, rows = ([x for x in at if at[x].ndim == n] for n in (2, 1))
    if len(matrices) + len(rows) < len(at):
        return
    for turned in (True, False):  # PyTorch's linear layers first
        lying = {x: at[x].T if turned else at[x] for x in matrices}
        found = [x for form in FORMS if len(form) == len(matrices) for x in _assigned(form, lying)]
        for named, sizes in sorted(found, key=lambda x: _disorder(x[0], matrices)):
            biases = {role: bias for role, x in named.items() if (bias := _bias(x, at)) in rows}
            left = [x for x in rows if x not in biases.values()]
            fused = {role: ORDERS[role] for role in named if role in ORDERS}
            for norm, whole, orders in product(
                _norms(left, at, sizes), _with_heads(sizes, heads), product(*fused.values())
            ):
                if whole["r"] or not any("r" in x[1:] for x in orders[:1]):
                    parts = _parts(named, biases, {**at, **lying}, whole, dict(zip(fused, orders)))
                    parts |= {x: [(name, at[name])] for x, name in norm.items()}
                    yield partial(_weights, parts), parts


def _assigned(form: Sequence[str], lying: Mapping[str, np.ndarray]) -> Iterator[tuple[dict[str, str], Sizes]]:
    """The matrices of a form, in every way in which their shapes fit together."""
    def further(named: dict[str, str], sizes: Sizes) -> Iterator[tuple[dict[str, str], Sizes]]:
        if len(named) == len(form):
            yield named, sizes
            return
        role = form[len(named)]
        for name, x in lying.items():
            ends = dict(zip(LEADS[role].split(), x.shape))
            if name not in named.values() and all(sizes.get(end, n) == n for end, n in ends.items()):
                yield from further({**named, role: name}, {**sizes, **ends})

    return further({}, {})


def _disorder(named: Mapping[str, str], declared: Sequence[str]) -> int:
    """How many pairs are declared in another order than ours."""
    places = [declared.index(x) for x in named.values()]
    return sum(a > b for i, a in enumerate(places) for b in places[i:])


def _bias(name: str, at: Mapping[str, np.ndarray]) -> str:
    return name.removesuffix("weight") + "bias" if name.endswith("weight") else ""


def _norms(left: Sequence[str], at: Mapping[str, np.ndarray], sizes: Sizes) -> Iterator[dict[str, str]]:
    """What is learned by the norms of the latents: a gain, or a gain and a shift."""
    gains = [x for x in left if not x.endswith("bias")]
    ends = [(a, sizes[x]) for a, x in zip(ENDS, "qc") if x in sizes]
    for owners in product([None, *ends], repeat=len(gains)):
        fits = all(end is not None and len(at[x]) == end[1] for x, end in zip(gains, owners))
        if fits and len({*owners}) == len(gains):
            named = {f"gain_C_{end[0]}": x for x, end in zip(gains, owners) if end}
            shifts = {x.replace("gain", "shift"): _bias(name, at) for x, name in named.items()}
            named |= {x: bias for x, bias in shifts.items() if bias in left}
            if len(named) == len(left):
                yield named


def _with_heads(sizes: Sizes, heads: Sequence[int | None]) -> Iterator[Sizes]:
    """The sizes with H, k, r and v, where there is such a number of heads."""
    r = sizes["cr"] - sizes["c"] if "cr" in sizes else sizes.get("r", 0)
    uk = sizes["uk"] if "uk" in sizes else sizes["ukv"] - sizes["uv"]
    ur = sizes["ur"] if "ur" in sizes else sizes.get("uq", uk) - uk
    for H in [ur // r] if r > 0 else dict.fromkeys(h for h in heads if h):
        if H > 0 and r >= 0 and ur == H * r and uk > 0 == uk % H == sizes["uv"] % H:
            yield {**sizes, "H": H, "k": uk // H, "r": r, "v": sizes["uv"] // H}


def _taken_apart(x: np.ndarray, order: str, sizes: Sizes) -> dict[str, np.ndarray]:
    """The parts of what lies side by side in this order, those of heads with an axis for the head."""
    letters, H = order.removeprefix("h"), sizes["H"]
    widths = [sizes[c] for c in letters]
    if order.startswith("h"):
        found = np.split(x.reshape(*x.shape[:-1], H, sum(widths)), [widths[0]], -1)
    elif "c" in order:
        found = np.split(x, [widths[0]], -1)
    else:
        found = [y.reshape(*y.shape[:-1], H, -1) for y in np.split(x, [H * widths[0]], -1)]
    return dict(zip(letters, found))


def _parts(
    named: Mapping[str, str], biases: Mapping[str, str], at: Mapping[str, np.ndarray], sizes: Sizes,
    orders: Mapping[str, str],
) -> dict[str, Moved]:
    """Where each letter stands: of Weights, what is turned first, and of LEARNED."""
    whole = {"UQ_alone": "hk", "QR": "hr", "UK": "hk", "UV": "hv"}
    found: dict[str, Any] = {}
    for kind, names in (("W", named), ("b", biases)):
        for role, name in names.items():
            x = at[name]
            if role in orders:
                parts = _taken_apart(x, orders[role], sizes)
            elif role in whole:
                parts = {whole[role][1]: x.reshape(*x.shape[:-1], sizes["H"], -1)}
            else:
                parts = {"": x}
            for letter, places in parts.items():
                if role == "O":
                    places = places if kind == "b" else places.reshape(sizes["H"], -1, places.shape[-1])
                elif kind == "W" and places.ndim == 3:
                    places = places.swapaxes(0, 1)
                into = {"DQ": "DQ", "O": "O", "KR": "KR", "DKV": "DKV", "DKV_R": "KR" if letter == "r" else "DKV",
                        "UKV": "V" if letter == "v" else "K", "UK": "K", "UV": "V"}.get(role, "Q")
                if places.size:
                    found.setdefault(f"{kind}_{into}", []).insert(0 if letter == "r" else 9, (name, places))
    return found


def _weights(parts: Mapping[str, Moved], numbers: ByName) -> Weights:
    """The parameters in the form of attnmath.Weights."""
    return Weights(**{x: moved(numbers, parts[x]) for x in Weights._fields if x in parts})
