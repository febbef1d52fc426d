"""The steps of a head against torch's autograd; the wrong ones, the separate terms, the place."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from attnmath import examine
from attnmath._examine.diagnosis.coefficients import from_terms
from attnmath._examine.diagnosis.diagnosis import diagnose
from attnmath._examine.diagnosis.trial import Failure
from attnmath._examine.mistakes.mistakes import GENERATED, IN_TILES, MISTAKES
from attnmath._examine.mistakes.modes import in_way_back, modes
from attnmath._examine.problems.bounds import spans, where_in_words
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.steps import STEPS, WAYS, Steps

ROOT = Path(__file__).parents[2]


def case(seed=0, n=4, m=6, d_v=7, **changes):
    """Everything at once: groups, batch, causal, mask, bias, dropout, a scale."""
    r = np.random.default_rng(seed)
    numbers = (r.normal(size=s) for s in [(2, 6, n, 3), (2, 2, m, 3), (2, 2, m, d_v), (2, 6, n, d_v)])
    keep = r.random((2, 1, n, m)) < 0.8
    keep[..., 0] = True
    return replace(Case(*numbers, keep=keep, bias=r.normal(size=(1, 6, n, m)), causal=True, scale=0.3,
                        R=(r.random((2, 6, n, m)) < 0.7) / 0.7, traits=frozenset({"gaussian"})), **changes)


def by_autograd(x, means):
    """The answer of a head that is written in torch, with its own gradients."""
    Q, K, V = (torch.tensor(a, requires_grad=True) for a in (x.Q, x.K, x.V))
    H, G, n, m = Q.shape[1], K.shape[1], Q.shape[2], K.shape[2]
    owner = torch.arange(H) % G if means.groups == "interleaved" else torch.arange(H) // (H // G)
    A = Q @ K[:, owner].mT * (x.scale or x.Q.shape[3] ** -0.5)
    bias = None if x.bias is None else torch.tensor(x.bias, requires_grad=True)
    A = A if bias is None else A + bias
    seen = torch.ones(n, m, dtype=torch.bool)
    if x.causal:
        seen = seen.tril(0 if means.causal == "upper_left" else m - n)
    if x.keep is not None:
        seen = seen & torch.tensor(x.keep)
    P = torch.softmax(A.masked_fill(~seen, -1e300), -1).masked_fill(~seen, 0)
    O = (P if x.R is None else P * torch.tensor(x.R)) @ V[:, owner]
    letters = [Q, K, V] + ([] if bias is None else [bias])
    return Answer(*(a.detach().numpy() for a in (O, *torch.autograd.grad(O, letters, torch.tensor(x.dO)))))


CASES = {
    "everything": case(), "n > m, one head": case(1, n=9, keep=None, K=case(1).K[:, :1], V=case(1).V[:, :1], causal=False,
                                                  bias=None, R=None, Q=np.ones((2, 6, 4, 3))),
    "plain": case(2, keep=None, bias=None, causal=False, scale=None, R=None), "shared bias": case(3, bias=np.ones((1, 1, 1, 6))),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("groups", ["blocks", "interleaved"])
@pytest.mark.parametrize("causal", ["upper_left", "lower_right"])
def test_steps_are_a_head_and_its_gradients(name, groups, causal):
    x, means = CASES[name], Conventions(groups=groups, causal=causal)
    if x.dO.shape[2] != x.Q.shape[2]:
        x = replace(x, dO=x.dO[:, :, : x.Q.shape[2]])
    for got, want in zip(Steps(x, means).answer(), by_autograd(x, means)):
        assert (got is None) == (want is None)
        if got is not None:
            np.testing.assert_allclose(got, want, rtol=0, atol=1e-13 * max(1, np.abs(want).max()))


SETTINGS = [case(), case(keep=np.random.default_rng(8).random((2, 6, 4, 6)) < 0.8), case(n=5, m=5), case(4, n=5, m=5, d_v=3), case(keep=None), case(keep=None, causal=False, bias=None),
            case(5, n=9, m=21), case(6, n=5, m=5, scale=None, K=np.random.default_rng(6).normal(size=(2, 6, 5, 3)),
                                     V=np.random.default_rng(7).normal(size=(2, 6, 5, 7))),
            case(keep=None, causal=False, bias=np.where(case().keep, case().bias, -np.inf))]


@pytest.mark.parametrize("mistake", range(len(MISTAKES)), ids=[f"{x.name}-{i}" for i, x in enumerate(MISTAKES)])
def test_every_mistake_is_one(mistake):
    """In some setting it gives another answer, of the right shapes; and its letters are steps."""
    differs = False
    for x, means in product(SETTINGS, (Conventions(), Conventions(scale="0.5"))):
        right = Steps(x, means).answer()
        for _, change in MISTAKES[mistake].forms(x, means):
            assert change.keys() <= STEPS.keys()
            wrong = Steps(x, means, [change]).answer()
            assert [a.shape for a in wrong if a is not None] == [a.shape for a in right if a is not None]
            differs |= any(not np.allclose(a, b) for a, b in zip(wrong, right) if a is not None)
    assert differs


def test_every_edit_that_is_generated_is_one():
    """In some setting it changes something, in each of its directions it can be computed, and no title stands twice."""
    r = np.random.default_rng(9)
    wide = Case(*(r.normal(size=(2, 2, n, 134)) for n in (3, 5, 5, 3)))
    biased = [case(bias=r.normal(size=shape)) for shape in ((1, 1, 4, 6), (2, 6, 1, 6), (2, 6, 4, 1))]
    long = Case(*(r.normal(size=(3, 2, n, 5)) for n in (134, 130, 130, 134)))
    settings = [(x, Steps(x)) for x in (*SETTINGS, wide, *biased, long, case(n=7, m=4))]
    for mistake in (*GENERATED, *IN_TILES):
        answers = ((right, right.changed(changes).answer()) for x, right in settings
                   for _, change in mistake.forms(x, Conventions()) for _, changes in modes(change))
        assert any(a.shape != b.shape or not np.allclose(a, b) for right, wrong in answers
                   for a, b in zip(wrong, right.answer()) if a is not None), mistake.title
    every = [*GENERATED, *IN_TILES]
    assert len({m.title for m in every}) == len(every)


def test_every_formula_stands_where_it_is_said_to():
    for mistake in [*MISTAKES, *GENERATED]:
        path, label = mistake.formula.split(", ")
        assert f"({label})" in (ROOT / path).read_text("utf-8")


@pytest.mark.parametrize("way", WAYS)
def test_the_ways_back_are_the_same_in_right_code(way):
    x = case()
    for got, want in zip(Steps(x, changes=way).answer(), Steps(x).answer()):
        np.testing.assert_allclose(got, want, atol=1e-13)


def failure(x, got):
    want = Steps(x).answer()
    off = Answer(*(None if a is None else 1e-14 * np.abs(a).max() * np.ones_like(a) for a in want))
    wrong = {k: np.abs(getattr(got, k) - getattr(want, k)) > getattr(off, k) for k in want._fields
             if getattr(want, k) is not None}
    return Failure(x, got, want, off, {k: w for k, w in wrong.items() if w.any()}, Conventions(), "float64")


def terms_of(got, x):
    """The first reading of each mistake that the separate terms show."""
    return {readings[0].name: readings[0] for readings in from_terms(failure(x, got))}


def test_the_separate_terms():
    x = case(causal=False, keep=None, R=None)
    s, want = Steps(x), Steps(x).answer()
    assert terms_of(want, x) == {}
    assert "1/gamma times" in terms_of(want._replace(dQ=want.dQ / 0.3), x)["dQ_noscale"].title
    assert "1.001 times" in terms_of(want._replace(dV=want.dV * 1.001), x)["dV_scaled"].title
    assert set(terms_of(want._replace(dK=want.dK / 3, dV=want.dV / 3), x)) == {"gqa_mean"}
    assert set(terms_of(want._replace(dQ=want.dQ * 2, dK=want.dK / 2), x)) == {"dQ_dK_swapscale"}
    without_D = Steps(x, changes=[{"D": lambda s, D: 0 * D}]).answer()
    assert set(terms_of(without_D, x)) == {"D_missing"}
    assert set(terms_of(without_D._replace(dQ=without_D.dQ / 0.3), x)) == {"D_missing", "dQ_noscale"}
    thirds = Steps(x, changes=[{"D": lambda s, D: 0.3001 * D}]).answer()
    assert "0.3001 times" in terms_of(thirds, x)["D_scaled"].title
    assert terms_of(want._replace(dQ=want.dQ + s.Q), x) == {}
    all_of_it = Answer(*(a * 1.01 for a in want))
    assert [y.title for y in terms_of(all_of_it, x).values()] == ["O, dQ, dK, dV, dB are 1.01 times what they should be"]


def named(*names, x=None):
    """What the diagnosis says of mistakes made together in two problems."""
    failures = []
    for i in (0, 1):
        y = case(i) if x is None else x
        firsts = (next(m for m in MISTAKES if m.name == name.replace("align_bwd", "f_align")) for name in names)
        changes = [next(iter(m.forms(y, Conventions())))[1] for m in firsts]
        changes = [in_way_back(c) if name == "align_bwd" else c for c, name in zip(changes, names)]
        failures.append(failure(y, Steps(y, changes=changes).answer()))
    return [f.name for f in diagnose(failures)]


def test_two_at_once():
    for pair in (("gqa_mean", "dB_mean"), ("dQ_noscale", "dB_batch0"), ("D_missing", "dV_nodrop"), ("dV_nodrop", "dB_mean")):
        assert set(named(*pair)) == {*pair}
    found = named("align_bwd", "dV_nodrop")  # each changes dV
    assert {"align_bwd", "dV_nodrop"} <= set(found) or "unnamed" in found


def test_what_has_no_name_has_a_place():
    x = case()
    want = Steps(x).answer()
    dK = want.dK.copy()
    dK[:, 1, 2:4] += np.sin(np.arange(dK[:, 1, 2:4].size)).reshape(dK[:, 1, 2:4].shape)
    (found,) = diagnose([failure(x, want._replace(dK=dK))])
    assert (found.kind, found.name, found.where) == ("unnamed", "unnamed", "dK, head 1, rows 2 to 3")


def test_the_place():
    assert spans(np.array([0, 3, 4, 5])) == "0, 3 to 5"
    assert spans(np.arange(0, 20, 2)) == "10 between 0 and 18"
    wrong = np.zeros((2, 3, 61, 5), bool)
    wrong[:, 1, 48:] = True
    assert where_in_words("dK", wrong, np.zeros(wrong.shape)) == "dK, head 1, rows 48 to 60 (exactly zero)"
    assert where_in_words("dK", wrong, np.ones(wrong.shape)) == "dK, head 1, rows 48 to 60"
    assert where_in_words("dK", wrong, np.full(wrong.shape, np.nan)) == "dK, head 1, rows 48 to 60 (NaN)"


def softmax(A):
    E = np.exp(A - A.max(-1, keepdims=True))
    return E / E.sum(-1, keepdims=True)


def forward(q, k, v):
    return softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])) @ v


def backward(do, q, k, v, D=1.0):
    P = softmax(q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]))
    dP = do @ v.swapaxes(-1, -2)
    dA = P * (dP - D * (P * dP).sum(-1, keepdims=True)) / np.sqrt(q.shape[-1])
    return dA @ k, dA.swapaxes(-1, -2) @ q, P.swapaxes(-1, -2) @ do


def test_a_function_of_numpy():
    assert examine(forward, backward, seed=1).right
    report = examine(forward, lambda *x: backward(*x, D=0.0), seed=1, smallest=False)
    assert report.wrong and [f.name for f in report.findings if f.kind != "convention"] == ["D_missing"]
    assert report.problems and report.seed == 1
    alone = examine(forward, seed=1)
    assert alone.right and "its output alone was judged" in str(alone)
    scaled = examine(lambda q, k, v: forward(q, k, v) * 1.001, seed=1, smallest=False)
    assert scaled.unlisted and "no gradient was judged" in str(scaled)


def test_what_was_said_and_is_not_so():
    """An option that is never taken, a demand that nothing judges, a scale that nobody demanded."""
    report = examine(forward, backward, options={"mask": "no_such_word"}, smallest=False)
    assert report.status == 2 and "no such keyword" in report.sentence
    def refuses(*x, mask=None):
        return forward(*x) if mask is None else 1 / 0
    report = examine(refuses, lambda *x, mask=None: backward(*x), options=["mask"], smallest=False)
    assert report.status == 2 and "option_refused" in [f.name for f in report.findings if f.kind == "contract"]
    report = examine(forward, backward, conventions={"causal": "lower_right"}, smallest=False)
    assert report.right and "not_judged" in [f.name for f in report.findings]
    assert "unusual_scale" not in [f.name for f in report.hazards]
    report = examine(lambda q, k, v: forward(q * np.sqrt(q.shape[-1]), k, v), smallest=False)
    assert report.conventions.scale == "1" and "unusual_scale" in [f.name for f in report.hazards]


def test_an_output_alone_does_not_pass_as_gradients():
    with pytest.raises(AssertionError, match="no gradient was judged"):
        examine(forward, framework="numpy").raise_if_wrong()
    examine(forward, backward, framework="numpy").raise_if_wrong()


def test_the_seed_makes_the_problems():
    def asked(seed):
        sums = []

        def seen(q, k, v):
            sums.append(float(np.abs(q).sum()))
            return forward(q, k, v)

        examine(seen, backward, seed=seed, smallest=False)
        return sums

    first, again, other = asked(3), asked(3), asked(4)
    assert first == again != other


@pytest.mark.parametrize(
    "wrong, words",
    [
        (dict(conventions={"mask": "True"}), r"mask='True'; it needs one of 'keep', 'drop', 'keep as numbers'"),
        (dict(conventions={"masks": "keep"}), "conventions has 'masks'; it can have layout, mask, causal"),
        (dict(layout="bhs"), "layout"),
        (dict(options={"masks": "m"}), "masks"),
        (dict(dtype="int8"), "int8"),
        (dict(framework="tensorflow"), "tensorflow"),
        (dict(time_limit=0), "time_limit"),
        (dict(seed=-1), "seed is -1; it needs to be a whole number from 0"),
        (dict(seed="a"), "seed is 'a'"),
    ],
)
def test_what_a_caller_may_say(wrong, words):
    with pytest.raises(ValueError, match=words):
        examine(forward, backward, **wrong)


def test_what_cannot_be_called():
    with pytest.raises(TypeError, match="fn"):
        examine(3)
