"""A layer whose heads have pieces beside plain attention: its program, and how they are read off the layer.

Its tokens are unit vectors, so that its weights are the queries, keys and values that its heads are asked with.
What was read, and what its further parameters are for, is believed if it gives the output of the layer's problems.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from attnmath._examine.contract.candidate import Outcome
from attnmath._examine.contract.functions import Broken
from attnmath._examine.diagnosis.read_pieces import ALIKE, near, read_pieces
from attnmath._examine.diagnosis.read_table import learned_tables
from attnmath._examine.layer.draw import Draw, layer_cases
from attnmath._examine.layer.layer import LAYER_STEPS, Layer, LayerAnswer, LayerCase, LayerSteps
from attnmath._examine.layer.run import forward
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.measured import SHAKEN, measured_bounds
from attnmath._examine.problems.pieces import PIECES, Pieces, collected
from attnmath._examine.problems.steps import Step, StepChanges
from attnmath._formulas.heads import Weights
from attnmath._words.arrays import rowsum, sum_to

SOME = 12  # problems whose output is compared
LONG = 40  # tokens, which are not unit vectors
LEARNED = "gain_Q", "gain_K", "sink", "table"
TABLES = "bias", "table", "rel", "pos", "bucket", "dist"  # in the names of tables
SHAKEN_TOO = (*SHAKEN, *Weights._fields, "X", "Z", "dY", "Q_in", "K_in", "C", "dQ_flat", "dK_flat", "dV_flat",
              "by_Q", "by_K", "by_V", *LayerAnswer._fields)


class PiecedSteps(LayerSteps):
    """The steps of a layer whose heads have pieces, some of whose numbers it learns."""

    table: Mapping[str, Step] = LAYER_STEPS | PIECES | {
        "Q_in": lambda s: s.Q_unturned, "K_in": lambda s: s.K_unturned,
        "gain_Q": lambda s: _gain(s, "gain_Q"), "gain_K": lambda s: _gain(s, "gain_K"),
        "sink": lambda s: s.given.learned.get("sink", s.means.pieces.sink),
        "beta": lambda s: PIECES["beta"](s) if "table" not in s.given.learned else s.means.pieces.table.by_head(
            s.given.learned["table"]),
        "dC_of_table": lambda s: s.dC * s.means.pieces.table.times,
        "dtable": lambda s: collected(s, s.dC_of_table) if "table" in s.given.learned else None,
        "dQ_flat": lambda s: s.split_back(s.dQ_left), "dK_flat": lambda s: s.split_back(s.dK_left),
        "Q_of_gain": lambda s: s.means.pieces.normed(s.Q_in), "K_of_gain": lambda s: s.means.pieces.normed(s.K_in),
        "by_gain_Q": lambda s: _summed(s, "gain_Q", s.dQ_normed * s.Q_of_gain),
        "by_gain_K": lambda s: _summed(s, "gain_K", s.dK_normed * s.K_of_gain),
        "dgain_Q": lambda s: s.by_gain_Q + s.by_gain_K if shared(s) else s.by_gain_Q,
        "dgain_K": lambda s: s.by_gain_Q + s.by_gain_K if shared(s) else s.by_gain_K,
        "P_of_sink": lambda s: 1 - rowsum(s.P_back), "D_of_sink": lambda s: s.D,
        "dsink": lambda s: _summed(s, "sink", -s.P_of_sink * s.D_of_sink),
    }


def shared(s: Any) -> bool:
    """Whether queries and keys have the same gain."""
    gains = [s.given.learned.get(x) for x in ("gain_Q", "gain_K")]
    return gains[0] is not None and gains[0] is gains[1]


def _gain(s: Any, name: str) -> Any:
    learned = s.given.learned.get(name)
    return 1.0 if learned is None else s.means.pieces.offset + _of_heads(learned, s.case.Q.shape[-1])


def _of_heads(x: np.ndarray, k: int) -> np.ndarray:
    """Of all heads (1, k), or of each (H, 1, k)."""
    return x.reshape(-1, 1, k)


def _summed(s: Any, name: str, each: np.ndarray) -> np.ndarray | None:
    """A gradient (b, H, n, k) summed to the shape of what is learned."""
    learned = s.given.learned.get(name)
    total: Any = None if learned is None else sum_to(each, _of_heads(learned, each.shape[-1]))
    return None if learned is None else total.reshape(learned.shape)


def steps_of(case: LayerCase, means: Conventions, changes: Sequence[StepChanges] = ()) -> LayerSteps:
    """A layer's problem, solved by its program."""
    pieces = means.pieces
    kind = LayerSteps if pieces is None else pieces.latent.program if pieces.latent else PiecedSteps
    return kind(case, means, changes)


def right_and_measured(case: LayerCase, means: Conventions, dtype: str) -> tuple[LayerAnswer, LayerAnswer]:
    """The right answer, and how far a correct program may be off."""
    def program(means: Conventions, changes: Sequence[StepChanges]) -> LayerAnswer:
        return steps_of(case, means, changes).layer_answer()

    return measured_bounds(program, means, dtype, SHAKEN_TOO)


class LayerHeads:
    """The heads of a layer as a function of queries, keys and values; further parameters have these values."""

    def __init__(self, layer: Layer, values: Mapping[str, Any]) -> None:
        self.layer, self.values, self.taken = layer, values, self
        ends = np.cumsum([0, *(prod(shape) for shape in layer.shapes.values())])
        at = {name: np.arange(start, stop, dtype=float).reshape(shape) for (name, shape), start, stop
              in zip(layer.shapes.items(), ends, ends[1:])}
        self.ends, weights = ends[1:-1], layer.ours(at)
        self.places = {**weights._asdict(), **layer.learns(at)}  # where in all parameters each weight stands
        (self.H, self.d, self.d_k), (self.G, self.d_K, _), (_, self.d_V, self.d_v) = (w.shape for w in weights[:3])

    def sizes(self, asked: Sequence[int]) -> tuple[int, ...]:
        """b, H, G, n, m, d_k, d_v: as many tokens as there may be unit vectors."""
        n = asked[3] if asked[3] >= LONG else min(asked[3], self.d, self.d_K, self.d_V)
        return 1, self.H, self.G, n, n, self.d_k, self.d_v

    def asked(self, case: Case) -> tuple[np.ndarray, np.ndarray, dict[str, np.ndarray]]:
        """Tokens and weights that give its heads these queries, keys and values."""
        n = case.Q.shape[2]
        if n < LONG:
            X, Z = np.eye(n, self.d), self.both(np.eye(n, self.d_K), np.eye(n, self.d_V))
            inputs = [np.zeros((len(x[0]), d, x.shape[-1])) for x, d in
                      ((case.Q, self.d), (case.K, self.d_K), (case.V, self.d_V))]
            for w, x in zip(inputs, (case.Q, case.K, case.V)):
                w[:, :n] = x[0]
        else:  # values alone, the same in all heads
            values = np.zeros((n, self.d_V))
            values[:, : self.d_v] = case.V[0, 0, :, : self.d_V]
            X, Z = np.zeros((n, self.d)), self.both(np.zeros((n, self.d_K)), values)
            X = X if self.layer.cross else Z
            inputs = [np.zeros(self.places[x].shape) for x in ("W_Q", "W_K", "W_V")]
            inputs[2][:] = np.eye(self.d_V, self.d_v)
        return X, Z, dict(zip(("W_Q", "W_K", "W_V"), inputs))

    def both(self, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
        """The tokens of keys and values: the same, unless they have widths of their own."""
        return values if self.d_K == self.d_V else np.concatenate((keys, values), -1)

    def run(self, case: Case, means: Conventions, forward: bool = False) -> Outcome:
        """Its answer to a problem."""
        columns, (X, Z, given) = self.H * self.d_v, self.asked(case)
        found: list[Any] = []
        for start in range(0, columns, self.d):
            part = np.zeros((columns, self.d))
            part[start : start + self.d] = np.eye(min(self.d, columns - start), self.d)
            found.append(self._output(X, Z, {**given, "W_O": part.reshape(self.H, self.d_v, self.d)}))
        if any(x is None for x in found):
            return Outcome(None, None, (), case)
        O = np.concatenate(found, -1)[..., :columns].reshape(1, len(X), self.H, self.d_v).swapaxes(1, 2)
        return Outcome(Answer(O), None, (), case)

    def _output(self, X: np.ndarray, Z: np.ndarray, weights: Mapping[str, np.ndarray]) -> np.ndarray | None:
        all_of_it = np.concatenate([np.broadcast_to(self.values.get(name, 0.0), shape).ravel() for name, shape
                                    in self.layer.shapes.items()])
        for x in Weights._fields + tuple(weights):
            if self.places[x] is not None:
                all_of_it[self.places[x].astype(int)] = weights.get(x, 0.0)
        numbers = {name: x.reshape(shape) for (name, shape), x
                   in zip(self.layer.shapes.items(), np.split(all_of_it, self.ends))}
        W = self.layer.ours(numbers)
        case = LayerCase(X[None], Z[None] if self.layer.cross else None, W, X[None], numbers=numbers)
        try:
            Y = forward(self.layer, case, "float64")
        except Broken:
            return None
        return Y if Y.shape == (1, *X.shape) else None


def compared(layer: Layer, seed: int) -> Iterator[tuple[LayerCase, np.ndarray]]:
    """Some problems without masks, and the layer's output."""
    found = 0
    for case in layer_cases(Draw(layer, "float64", seed)):
        try:
            Y = None if case.keep is not None or found == SOME else forward(layer, case, "float64")
        except Broken:
            continue
        if Y is not None:
            found += 1
            yield case, Y


Fitting = Callable[[Conventions, float], Any]  # what is meant, where its program gives the output as near as that


def read_heads(heads: "LayerHeads", some: Sequence[Any], told: Conventions, fitting: Fitting) -> Any:
    """What its heads are read as, if that fits; else None."""
    means = read_pieces(heads, told, lambda *x: fitting(*x) is not None) if len(some) > 2 else None
    return means and fitting(means, 10 * ALIKE[means.pieces.float32])


def with_pieces(layer: Layer, seed: int, told: Conventions) -> tuple[Layer, Conventions] | None:
    """The layer with its pieces, if it has such and its output is theirs."""
    some, heads = list(compared(layer, seed)), LayerHeads(layer, {})
    every = list(uses(heads))
    for offset in (0.0, 1.0) if any(every) else (0.0,):
        rng = np.random.default_rng(seed)
        heads.values = {name: rng.normal(size=layer.shapes[name]) if "table" in used else 0.0 if "sink" in used
                        else 1 - offset for name, used in further(heads).items()}

        def fitting(means: Conventions, alike: float, offset: float = offset) -> tuple[Layer, Conventions] | None:
            for learned, whole in product(every, (False, True) if means.pieces.norm is not None else (False,)):
                other = replace(layer, learned=learned)
                cases = [(replace(case, learned=other.learns(case.numbers)), Y) for case, Y in some]
                table, scale = heads.values.get(learned.get("table", "")), some[0][0].heads.gamma(means)
                for pieces in learned_tables(means.pieces, table, scale, 100 * alike):
                    named = with_learned(replace(means, pieces=pieces), learned, offset, whole)
                    if all(near(steps_of(case, named).Y, Y, alike) for case, Y in cases):
                        return other, named
            return None

        if fitted := read_heads(heads, some, told, fitting):
            plain = replace(fitted[1].pieces, float32=False, right=None, last=True) == Pieces()
            return None if plain else fitted
    return None


def with_learned(means: Conventions, learned: Mapping[str, str], offset: float, whole: bool) -> Conventions:
    """With the numbers of its pieces that are learned."""
    offset = offset if {*learned} & {"gain_Q", "gain_K"} else 0.0
    return replace(means, pieces=replace(means.pieces, learned=frozenset(learned), offset=offset, whole=whole))


def further(heads: LayerHeads) -> dict[str, list[str]]:
    """The parameters that are no projections, and what each may be by its size and its name."""
    used = {int(at.flat[0]) for at in heads.places.values() if at is not None}
    starts = [0, *heads.ends]
    found = {}
    for (name, shape), start in zip(heads.layer.shapes.items(), starts):
        size = prod(shape)
        if not any(start <= x < start + size for x in used):
            sizes = {"gain_Q": (heads.d_k, heads.H * heads.d_k), "gain_K": (heads.d_k, heads.G * heads.d_k),
                     "sink": (heads.H,)}
            fit = [x for x in LEARNED if size in sizes.get(x, ())]
            if len(shape) == 2 and heads.H in shape and any(word in name.lower() for word in TABLES):
                fit = ["table"]
            found[name] = [x for x in fit if (x == "sink") == ("sink" in name)] or fit
    return found


def uses(heads: LayerHeads) -> Iterator[dict[str, str]]:
    """What each further parameter may be for: the likely ones first."""
    may_be = further(heads)
    every = []
    for each in product(*([[], *([kind] for kind in kinds), kinds] for kinds in may_be.values())):
        there = [x for kinds in each for x in kinds]
        if len({*there}) == len(there):
            every.append({x: name for name, kinds in zip(may_be, each) for x in kinds})
    unlike = lambda use: sum(x[-1].lower() not in name.lower() for x, name in use.items())  # noqa: E731
    yield from sorted(every, key=lambda use: (-len(use), unlike(use)))
