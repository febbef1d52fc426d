"""Mistakes in the way back through what a head has beside plain attention."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.problems.pieces import Pieces, added_to_scores, collected, first_place
from attnmath._examine.problems.steps import (
    BACK,
    Forms,
    Mistake,
    StepChanges,
    Steps,
    Wordings,
    bind,
    plain_softmax,
)
from attnmath._words.arrays import rowsum

ROTARY = "chapters/positions.md, eq:rotary_vjp"
NORM = "chapters/norms_and_caps.md, eq:qk_norm_attention_vjp"
CAP = "chapters/norms_and_caps.md, eq:capped_attention_vjp"
SINK = "chapters/normalizers.md, eq:sink_attention_vjp"
SIGMOID = "chapters/normalizers.md, eq:sigmoid_attention_vjp"
TABLE = "chapters/positions.md, eq:table_bias_vjp"
WINDOW = "chapters/masks.md, eq:window_mask"
Back = Callable[[Pieces, np.ndarray, np.ndarray, Any, int], np.ndarray]  # dy, x, gain, start -> dx


def _back(end: str, back: Back) -> StepChanges:
    """The gradients of queries and keys go back in another way: to before the turn, "normed", or the norm."""
    def step(a: str) -> Callable[[Steps, np.ndarray], np.ndarray]:
        dy = f"d{a}" if end == "normed" else f"d{a}_normed"
        return lambda s, _: back(s.means.pieces, getattr(s, dy), getattr(s, f"{a}_in"), getattr(s, f"gain_{a}"),
                                 first_place(s) if a == "Q" else 0)

    return {f"d{a}_{end}": step(a) for a in "QK"}


def _worded(name: str, wordings: Sequence[tuple[str, StepChanges]]) -> Forms:
    """Of a head that has this piece."""

    def forms(case: Case, means: Conventions) -> Wordings:
        if means.pieces is not None and getattr(means.pieces, name) is not None:
            yield from wordings

    return forms


def _with(name: str, change: StepChanges) -> Forms:
    """In both gradients or in one."""
    each = [(x[:2], {x: step}) for x, step in change.items()]
    return _worded(name, [("dQ and dK", change), *each])


def _of(name: str, *changes: StepChanges) -> Forms:
    """In several forms without words."""
    return _worded(name, [("", change) for change in changes])


def _learned(name: str, *changes: StepChanges) -> Forms:
    """Of a layer that learns it."""
    def forms(case: Any, means: Conventions) -> Wordings:
        if means.pieces is not None and name in means.pieces.learned:
            yield from (("", change) for change in changes)

    return forms


def _without_D(case: Any, means: Conventions) -> Wordings:
    """Of a head with pieces that is a softmax."""
    if means.pieces is not None and means.pieces.sigmoid is None:
        yield "", {"dC": lambda s, x: s.P_back * s.dP}


def _other_layout(turns: Any) -> Any:
    return replace(turns, layout={"halves": "interleaved", "interleaved": "halves"}[turns.layout])


def _window(wider: int | None) -> StepChanges:
    """The way back has another window: by so many keys wider, or none."""
    def scores(s: Steps, x: np.ndarray) -> np.ndarray:
        pieces = s.means.pieces
        return added_to_scores(s, replace(pieces, left=None if wider is None else pieces.left + wider))

    return {"B_back": scores}


def _alone(s: Steps, x: np.ndarray) -> np.ndarray:
    """What is added in the way back: neither slopes nor a table."""
    return np.where(np.isneginf(s.B), -np.inf, s.bias)


def _of_near(s: Any, x: np.ndarray) -> np.ndarray:
    """Without the pairs whose distance the table's rule cuts off."""
    buckets = np.array(s.means.pieces.table.buckets)
    ahead, far = s.means.pieces.ahead(*x.shape[2:]), len(buckets) // 2
    changes = np.flatnonzero(np.diff(buckets)) - far  # distances that have another bucket than the next one
    return x * ((ahead >= changes.min(initial=0)) & (ahead <= changes.max(initial=0) + 1))


def _without_row(s: Any, x: np.ndarray, r: int) -> np.ndarray:
    """The numbers of one bucket are zero."""
    y = x.copy()
    s.means.pieces.table.by_head(y)[:, r] = 0.0
    return y


WRONG_TABLES: list[Any] = [
    ("lost", "is zero", "do not detach it", {"dtable": lambda s, x: 0 * x}),
    ("sign", "has the wrong sign", "add dA up", {"dtable": lambda s, x: -x}),
    ("side", "is added up by the distance i - j, not j - i", "take j - i", {
        "dtable": lambda s, x: collected(s, s.dC_of_table, -1)}),
    ("mean", "is the mean over the pairs of a bucket, not the sum", "add them up", *({"dtable": bind(
        lambda s, x, b: x / np.maximum(collected(s, np.ones_like(s.dC[:b])), 1), b)} for b in (None, 1))),
    ("batch_mean", "is the mean over the batch, not the sum", "add the batch up", {
        "dtable": lambda s, x: x / len(s.dC)}),
    ("first", "is that of the first batch element alone", "add the batch up", {
        "dtable": lambda s, x: collected(s, s.dC_of_table[:1])}),
    ("without_own", "leaves out the pairs of a token with itself", "add all pairs up", {
        "dC_of_table": lambda s, x: x * (s.means.pieces.ahead(*x.shape[2:]) != 0)}),
    ("without_far", "leaves out the pairs that are farther apart than the table reaches", "add all pairs up", {
        "dC_of_table": _of_near}),
    ("one_row", "is zero in one row", "let it learn (padding_idx of an embedding keeps a row)", *({
        "dtable": bind(_without_row, r)} for r in (0, -1))),
    ("all_heads", "is the sum over the heads, given to each", "give each head its own", {
        "dtable": lambda s, x: s.means.pieces.table.by_head(np.broadcast_to(
            s.means.pieces.table.by_head(x).sum(0), s.means.pieces.table.by_head(x).shape)).copy()}),
    ("without_D", "leaves out D", "add dA = P (dP - D) up", {
        "dC_of_table": lambda s, x: s.means.pieces.table.times * s.P_back * s.dP}),
    ("scaled", "is multiplied by the scale, which the table does not carry", "leave it out", {
        "dtable": lambda s, x: x * s.gamma}),
    ("noscale", "leaves out the scale that is applied after it", "multiply by it", {
        "dtable": lambda s, x: x / s.means.pieces.table.times}),
]
WRONG_PIECES = [
    Mistake("rotation_kept", "the gradients of what is rotated are not rotated back",
            _with("rotation", _back("normed", lambda p, dy, x, gain, start: dy)), ROTARY,
            "turn them back by the same angle"),
    Mistake("rotation_sign", "the gradients of what is rotated are rotated on, not back",
            _with("rotation", _back("normed", lambda p, dy, x, gain, start: p.turned(dy, start))), ROTARY,
            "turn them by minus the angle"),
    Mistake("rotation_layout", "the gradients are rotated back in the other layout of pairs",
            _with("rotation", _back("normed", lambda p, dy, x, gain, start: _other_layout(p.rotation).turned(
                dy, start, -1))), ROTARY, "pair the same features"),
    Mistake("norm_kept", "the gradients of what is normed are those before the norm",
            _with("norm", _back("left", lambda p, dy, x, gain, start: dy * gain)), NORM,
            "go back through the norm"),
    Mistake("norm_unprojected", "the gradient of a norm is divided by the root alone",
            _with("norm", _back("left", lambda p, dy, x, gain, start: dy * gain / p.root(x))), NORM,
            "subtract y times the mean of y dy"),
    Mistake("gain_left_out_back", "the way back through a norm leaves out its gain",
            _with("norm", _back("left", lambda p, dy, x, gain, start: p.unnormed(dy, x))), NORM,
            "multiply dy by the gain first"),
    Mistake("cap_slope_missing", "the slope of the cap is missing",
            _of("cap", {"bend": lambda s, x: np.ones_like(x)}), CAP, "multiply dA by 1 - tanh^2"),
    Mistake("cap_bendped", "the slope of the cap is taken at the capped score",
            _of("cap", {"bend": lambda s, x: s.means.pieces.bend(s.means.pieces.capped(s.X_back))},
                {"bend": lambda s, x: 1 - s.means.pieces.capped(s.X_back) ** 2}), CAP,
            "take 1 - tanh^2 of the score over the cap"),
    Mistake("cap_left_out_back", "the way back finds the weights again without the cap",
            _of("cap", {"A_back": lambda s, x: s.X_back + s.B_back}), CAP, "cap the scores again"),
    Mistake("sink_left_out_back", "the way back finds the weights again without the sink",
            _of("sink", {"P_back": lambda s, x: plain_softmax(s.A_back)}), SINK, "divide by the sum with it"),
    Mistake("sink_gradient_lost", "nothing comes back to the sinks",
            _learned("sink", {"dsink": lambda s, x: 0 * x}), SINK, "do not detach them"),
    Mistake("sink_gradient_sign", "the gradient of the sinks has the wrong sign",
            _learned("sink", {"dsink": lambda s, x: -x}), SINK, "dsink = -sum of p D"),
    Mistake("sink_gradient_without_D", "the gradient of the sinks leaves out D",
            _learned("sink", *({"D_of_sink": bind(lambda s, x, t: t + 0 * x, t)} for t in (1.0, -1.0))), SINK,
            "dsink = -sum of p D"),
    *(Mistake(f"gain_gradient_lost_{a}", f"nothing comes back to the gain of {a}",
              _learned(f"gain_{a}", {f"dgain_{a}": lambda s, x: 0 * x}), NORM, "do not detach it") for a in "QK"),
    Mistake("gain_before_norm", "the gradient of a gain is built from what is not normed", _learned("gain_Q", {
        "Q_of_gain": lambda s, x: s.Q_in, "K_of_gain": lambda s, x: s.K_in}), NORM, "dg = sum of dz x / root"),
    Mistake("all_seen_back", "the way back finds the weights again with all keys, where some are hidden",
            _of("right", {"B_back": lambda s, x: added_to_scores(s, replace(
                s.means.pieces, left=None, right=None))}), WINDOW, "hide what was hidden"),
    Mistake("window_left_out_back", "the way back finds the weights again without the window",
            _of("left", _window(None)), WINDOW, "hide what was hidden"),
    Mistake("window_other_back", "the window of the way back is one key wider or narrower",
            _worded("left", [("wider", _window(1)), ("narrower", _window(-1))]), WINDOW, "hide what was hidden"),
    Mistake("slopes_left_out_back", "the way back finds the weights again without the slopes",
            _of("slope", {"B_back": _alone}), "chapters/positions.md, eq:alibi", "add the slopes again"),
    Mistake("table_left_out_back", "the way back finds the weights again without the table",
            _of("table", {"B_back": _alone}), TABLE, "look the table up again"),
    Mistake("table_side_back", "the way back looks the table up for the distance i - j, not j - i", _of("table", {
        "B_back": lambda s, x: added_to_scores(s, s.means.pieces, -1)}), TABLE, "take j - i"),
    Mistake("table_align_back", "the way back looks the table up as if queries stood elsewhere among the keys",
            _of("table", {"B_back": lambda s, x: added_to_scores(s, replace(
                s.means.pieces, last=not s.means.pieces.last))}), TABLE, "align them as before"),
    *(Mistake(f"table_gradient_{name}", f"the gradient of the table {words}", _learned("table", *changes), TABLE,
              cure) for name, words, cure, *changes in WRONG_TABLES),
    Mistake("D_missing", "the row term D is missing: dA = P o dP", _without_D, BACK, "subtract D"),
    Mistake("sigmoid_with_D", "the gradient of the scores is that of a softmax, where the weights are sigmoids",
            _of("sigmoid", {"dC": lambda s, x: s.P_back * (s.dP - rowsum(s.P_back * s.dP))}), SIGMOID,
            "dA = P (1 - P) dP"),
]
