"""A layer of one's own: its weights, its heads, how it is called, and what it returns."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.contract.state import Kept
from attnmath._examine.layer.layer import ByName, Layer
from attnmath._examine.layer.weight_layouts import our_name
from attnmath._formulas.heads import Weights

TOKEN_LAYOUTS = "bnd", "nbd", "nd"
MASKING = "mask", "valid_len", "padding"  # in the names of what may be left out
CONTEXTS = {*("context memory encoder_hidden_states key_value_states hidden_states_kv xa kv x_kv key value"
              " keys values k v cond encoder_output enc_out source states other").split()}
MOST_HEADS = 16  # that are tried where nobody says how many there are


class MaskForm(NamedTuple):
    """What a layer's mask says, and its axes."""

    kind: str = "keep"  # "drop": True hides; "add": -inf hides
    axes: str = "b 1 n m"


MASK_AXES = "b 1 n m", "b n m", "b m", "n m"
MASK_FORMS = [MaskForm(kind, axes) for axes in MASK_AXES for kind in ("keep", "drop", "add")]


class Way(NamedTuple):
    """One way to call it: what each argument by position is, and those by name."""

    given: tuple[str, ...] = ("X",)  # "X" or "Z", or the "K" and "V" that Z holds side by side
    more: tuple[tuple[str, str | None], ...] = ()  # by name: "Z", or None
    keys: int | None = None  # the width of K

    @property
    def cross(self) -> bool:
        """Whether keys and values may come from other tokens."""
        return len(self.given) > 1 or any(x == "Z" for _, x in self.more)

    def read(self, ours: Callable[[ByName], Weights], weights: Mapping[str, Any]) -> "Way":
        """The same, with keys and values from tokens of their own where these have unlike widths."""
        W = ours({name: np.zeros(w.shape) for name, w in weights.items()})
        alike = W.W_K.shape[1] == W.W_V.shape[1]
        return self if alike else self._replace(given=("X", "K", "V"), keys=W.W_K.shape[1])


@dataclass
class OwnLayer:
    """A layer of one's own, as examine_layer is told of it."""

    fn: Callable[..., Any]
    weights: Mapping[str, Any]
    backward: Callable[..., Any] | None = None
    heads: int | None = None
    mask: str | None = None  # its keyword
    rotary: Callable[[int], tuple[Any, Any]] | None = None
    pairing: str | None = None
    causal: bool | None = None
    layout: str | None = None
    reading: tuple[str, str] | None = None
    kept: Kept = field(default_factory=Kept)  # the state of the process while it is called
    notes: dict[str, str] = field(default_factory=dict)  # what was seen when it was called
    way: Way | None = None  # in which it is called, where that is known

    @property
    def is_torch(self) -> bool:
        """Whether its weights are PyTorch's; all others are handed over."""
        return hasattr(next(iter(self.weights.values())), "requires_grad")

    @property
    def spread(self) -> Any:
        """Over which ranks its tokens are spread, and how; None for one process."""
        return getattr(self.fn, "spread", None)

    @property
    def module(self) -> Any:
        """The module that it is, of PyTorch; None for another."""
        return self.fn if hasattr(self.fn, "modules") and self.is_torch else None

    @property
    def name(self) -> str:
        """What it is called."""
        return getattr(self.fn, "__qualname__", None) or type(self.fn).__name__

    def arguments(self) -> list[inspect.Parameter]:
        """Those of its tokens, masks and options."""
        try:
            given = [*inspect.signature(getattr(self.fn, "forward", self.fn)).parameters.values()]
        except (TypeError, ValueError):
            given = [inspect.Parameter(x, inspect.Parameter.POSITIONAL_ONLY) for x in ("X", "Z")]
        given = [p for p in given if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        if self.is_torch:
            return given
        needed = [p.name for p in given if p.default is p.empty]
        return [p for p in given if p.name not in needed[-1:]]

    def ways(self) -> list[Way]:
        """The ways in which it may be called, those with what it needs alone first."""
        if self.way:
            return [self.way]
        kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
        given = self.arguments()
        needed = [p.name for p in given if p.default is p.empty and p.kind in kinds]
        tokens = [x for x in needed if not any(word in x for word in MASKING)]
        left = tuple((x, None) for x in needed if x not in tokens)
        context = tuple((p.name, "Z") for p in given if p.default is not p.empty and p.name in CONTEXTS)
        found = [Way(("X", "Z", "Z")[: len(tokens)], left)] if 1 <= len(tokens) <= 3 else []
        found += [Way(("X",), (*((x, None) for x in tokens[1:]), *left))] if len(tokens) > 1 else []
        found += [Way(("X",), (*left, *context))] if context and len(tokens) == 1 else []
        if not found:
            raise ValueError(
                f"examine_layer: the layer takes {len(tokens)} arrays; it needs to take X, or X and Z, or queries,"
                " keys and values" + ("" if self.is_torch else ", and then its weights")
            )
        return found

    def possible_heads(self) -> list[int | None]:
        """How many heads it may have: what is said, by it or of it, or else every number."""
        if self.heads is not None:
            return [self.heads]
        inside = vars(self.fn).items() if hasattr(self.fn, "modules") else ()
        called = {name: x for name, x in inside if name in ("h", "nh", "H") or "head" in name}
        said = {x for x in called.values() if type(x) is int and x > 0}
        most = {n for w in self.weights.values() for n in w.shape}
        every = [n for n in range(1, MOST_HEADS + 1) if any(m % n == 0 for m in most)]
        return [None, *sorted(said), *(n for n in every if n not in said)]

    def layer(self, way: Way, layout: str, ours: Callable[..., Weights], **more: Any) -> Layer:
        """The layer, called in this way."""
        call, back = self.calls(way, layout)
        return Layer(call, self.weights, ours, name=self.name, cross=way.cross, batched=layout != "nd",
                     rotary=self.rotary, module=self.module, backward=back, kept=self.kept,
                     multiple=self.spread.unit if self.spread else 1, **more)

    def calls(
        self, way: Way, layout: str, form: MaskForm | None = None
    ) -> tuple[Callable[..., Any], Callable[..., Any] | None]:
        """call and backward of its Layer."""
        def options(tokens: Mapping[str, Any], keep: Any) -> dict[str, Any]:
            found = {name: tokens[x] if x else None for name, x in way.more}
            if keep is not None and self.mask is not None and form is not None:
                found[self.mask] = masked_as(form, keep, tokens["X"])
            return found

        def tokens_of(X: Any, Z: Any) -> dict[str, Any]:
            x = _to_layout(X, layout)
            z = x if X is Z else _to_layout(Z, layout)
            found = {"X": x, "Z": z}
            return found | {"K": z[..., : way.keys], "V": z[..., way.keys :]} if way.keys else found

        def call(X: Any, Z: Any, keep: Any, *parameters: Any) -> Any:
            tokens = tokens_of(X, Z)
            out = self.fn(*(tokens[x] for x in way.given), *parameters, **options(tokens, keep))
            return _from_layout(self.first(out, tokens["X"]), layout)

        def back(dY: Any, X: Any, Z: Any, keep: Any, *parameters: Any) -> Any:
            tokens = tokens_of(X, Z)
            given = (_to_layout(dY, layout), *(tokens[x] for x in way.given), *parameters)
            out = self.backward(*given, **options(tokens, keep)) if self.backward else None
            if not isinstance(out, Mapping):
                return out
            found = {k: _from_layout(x, layout) if k.lstrip("d") in tokens else x for k, x in out.items()}
            sides = [found[k] for a in "KV" for k in (a, f"d{a}") if k in found] if way.keys else []
            return found | ({"Z": np.concatenate(sides, -1)} if len(sides) == 2 else {})

        return call, None if self.backward is None else back

    def first(self, out: Any, X: Any) -> Any:
        """The output among what it returns: the first of the shape of its tokens, or the first of all."""
        many = isinstance(out, Mapping | tuple | list)
        parts = list(out.values() if isinstance(out, Mapping) else out) if many else []
        parts = [x for x in parts if hasattr(x, "dtype")]
        if not parts:
            return out
        self.notes["returns"] = f"it returns {len(out)} things, of which the output is judged"
        return next((x for x in parts if x.shape == X.shape), parts[0])


def found_weights(module: Any) -> dict[str, Any]:
    """The parameters of a module, and what stands beside them in the place of one; all else has none."""
    found = dict(module.named_parameters()) if hasattr(module, "named_parameters") else {}
    for path, part in module.named_modules() if found or hasattr(module, "named_modules") else ():
        for name, x in vars(part).items():
            full = f"{path}.{name}" if path else name
            if hasattr(x, "is_floating_point") and x.is_floating_point() and x.ndim and our_name(full):
                found.setdefault(full, x)
    return found


def aliased(layer: Any, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights; where a module has a parameter with the same memory, that parameter."""
    own = {p.data_ptr(): p for p in layer.parameters()} if hasattr(layer, "named_parameters") else {}
    return {name: own.get(w.data_ptr(), w) if hasattr(w, "data_ptr") else w for name, w in weights.items()}


def unlearned(own: OwnLayer, without: Sequence[str]) -> Iterator[str]:
    """The weights that will get no gradient, and are not said to be meant so."""
    own_names = dict(own.module.named_parameters()) if own.module is not None else {}
    for name, p in own.weights.items():
        if own.module is not None and not p.requires_grad and name not in without:
            why = "requires_grad=False" if name in own_names else "it is no parameter"
            yield f"{name} gets no gradient ({why}); without={(name,)!r} says that it is meant"


def masked_as(form: MaskForm, keep: Any, like: Any) -> Any:
    """A mask as a layer wants it; raises ValueError where there is no such."""
    kind, axes = form
    if axes == "b m" and keep.shape[2] != 1 or axes == "n m" and keep.shape[0] != 1:
        raise ValueError(f"a mask of the axes {axes} cannot say this")
    keep = keep[{"b n m": np.s_[:, 0], "b m": np.s_[:, 0, 0], "n m": np.s_[0, 0]}.get(axes, np.s_[:])]
    if kind != "add":
        return keep if kind == "keep" else ~keep
    if hasattr(keep, "masked_fill"):
        return like.new_zeros(keep.shape).masked_fill(~keep, float("-inf"))
    return (like.ravel()[0] * 0) + keep.__array_namespace__().where(keep, 0.0, -float("inf")).astype(like.dtype)


def _to_layout(x: Any, layout: str) -> Any:
    return {"bnd": lambda: x, "nbd": lambda: x.swapaxes(0, 1), "nd": lambda: x[0]}[layout]()


def _from_layout(x: Any, layout: str) -> Any:
    layout = layout if hasattr(x, "shape") else "bnd"
    return x[None] if layout == "nd" else _to_layout(x, layout)
