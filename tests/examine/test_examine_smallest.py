"""The smallest case that fails: how small it gets, and that the pasted lines show what they say."""

import contextlib
import functools
import io
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnmath import examine
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.diagnosis.paste import worst_entry
from attnmath._examine.diagnosis.smallest import (
    KINDS_OF_NUMBERS,
    MEMORY,
    MOST_CALLS,
    Recipe,
    case_of,
    pasted_recipe,
    smallest,
)
from attnmath._examine.problems.bounds import bounds, judge_answer, right_answer
from attnmath._examine.problems.case import SHAPES, Answer, Case, Conventions
from attnmath._examine.problems.families import cases
from attnmath._examine.problems.steps import Steps
from attnmath.rounding.formats import nearest
from mistaken import MISTAKES
from mistaken_program import OPTIONS, Program


def judge_of(candidate, means, dtype, called=None):
    """What is wrong in an answer, by the yardstick."""

    def judge(case):
        if called is not None:
            called.append(case)
        outcome = candidate.run(case, means)
        if outcome.answer is None:
            return {}
        off = bounds(outcome.case, means, dtype)
        verdicts = judge_answer(outcome.answer, right_answer(outcome.case, means), off, dtype)
        return {name: x.wrong for name, x in verdicts.items() if not x.passed}

    return judge


def shrunk_lines(candidate, means, dtype, judge=None, of=None):
    judge = judge or judge_of(candidate, means, dtype)
    takes = {"dropout" if word == "dropout_mask" else word for word in candidate.options}
    tried = [(case, judge(case)) for case in of or cases(takes, dtype, 0)]
    return smallest(candidate, means, dtype, judge, [(case, wrong) for case, wrong in tried if wrong])


def pasted(text, *functions):
    """What the lines print where the functions are known, and the names that they make."""
    names = {getattr(f, "__name__", letter): f for f, letter in zip(functions, ("f", "backward")) if f}
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(text, names)
    return out.getvalue().strip(), names


def numbers(line):
    """The number that it gives and the right one, of a line that says both."""
    return map(float, re.search(r" is (\S+) and should be (\S+)$", line).groups())


def shrunk(key, dtype="float32"):
    p = MISTAKES[key]
    candidate, means = Candidate(p.fn, p.backward, options=p.options, dtype=dtype), Conventions(**p.conventions)
    text = shrunk_lines(candidate, means, dtype)
    return text, *pasted(text, p.fn, p.backward)


@pytest.mark.parametrize(("key", "shapes"), [
    ("D_missing", dict(Q=(1, 1, 1, 1), K=(1, 1, 1, 1))),
    ("dQ_noscale", dict(Q=(1, 1, 1, 2), K=(1, 1, 2, 2), V=(1, 1, 2, 1))),
    ("gqa_last", dict(Q=(1, 2, 1, 1), K=(1, 1, 2, 1))),
    ("batch_first_only", dict(Q=(2, 1, 1, 1))),
    ("last_tile", dict(Q=(1, 1, 1, 1), K=(1, 1, 17, 1))),
    ("mask_ignored", dict(Q=(1, 1, 1, 1), K=(1, 1, 2, 1), keep=(1, 1, 1, 2))),
    ("causal_off_by_one", dict(Q=(1, 1, 1, 1), K=(1, 1, 2, 1))),
    ("dV_nodrop", dict(Q=(1, 1, 1, 1), K=(1, 1, 1, 1), R=(1, 1, 1, 1))),
])
def test_it_is_small_and_its_lines_show_the_failure(key, shapes):
    text, printed, names = shrunk(key)
    assert {name: names[name].shape for name in shapes} == shapes
    assert names.keys() & {"keep", "bias", "R"} <= shapes.keys()
    got, want = numbers(printed)
    assert not abs(got - want) <= 1e-4 * abs(want)
    assert list(numbers(text.splitlines()[-1])) == pytest.approx([got, want], rel=1e-5, nan_ok=True)


def test_a_pair_of_functions_in_half_precision_too():
    text, printed, _ = shrunk("D_missing, NumPy, bshd")
    got, want = numbers(printed)
    assert "torch" not in text and abs(got - want) > 0.1
    _, printed, _ = shrunk("dQ_noscale", "bfloat16")
    got, want = numbers(printed)
    assert abs(got - want) > 0.004 * abs(want)


def test_the_same_case_is_found_again():
    assert shrunk("dQ_noscale")[0] == shrunk("dQ_noscale")[0]


def test_nothing_is_found_in_what_is_right():
    candidate, called = Candidate(Program(), options=OPTIONS, dtype="float32"), []
    judge = judge_of(candidate, Conventions(), "float32", called)
    (case, *_) = cases((), "float32", 0)
    assert smallest(candidate, Conventions(), "float32", judge, []) is None and called == []
    assert smallest(candidate, Conventions(), "float32", judge, [(case, {"O": np.ones(1)})]) is None
    assert 5 < len(called) < 100


def test_the_search_ends_after_some_calls():
    candidate, called = Candidate(Program(), options=OPTIONS, dtype="float32"), []

    def judge(case):  # nothing simpler is ever wrong, and each seed gives something
        called.append(case)
        return {"O": np.ones(case.Q.shape[:-1] + case.V.shape[-1:], bool)} if case.Q.sum() > 0 else {}

    smallest(candidate, Conventions(), "float32", judge, [(case, {"O": np.ones(1)}) for case in cases(OPTIONS, "float32", 0)])
    assert len(called) <= MOST_CALLS


def over_keys_alone(q, k, v):
    """Wrong in its gradients alone, but for a width of one: there in its output, too."""
    o = sdpa(q, k, v)
    return o + (o.detach() - o) / 2 + (1.0 if q.shape[-1] == 1 else 0.0)


def test_it_fails_for_the_same_reason():
    """The case of width one is smaller, and fails in another way."""
    candidate = Candidate(over_keys_alone, dtype="float64")
    of = [x for x in cases((), "float64", 0) if x.sizes["d_k"] > 1]
    text = shrunk_lines(candidate, Conventions(), "float64", of=of)
    printed, names = pasted(text, over_keys_alone)
    assert printed[:2] in ("dQ", "dK", "dV") and names["Q"].shape[-1] == 2


def causal_always(q, k, v):
    return sdpa(q, k, v, is_causal=True) + (v - v.detach())[..., : q.shape[-2], :]


def test_what_is_always_causal_is_compared_with_what_is_causal():
    candidate = Candidate(causal_always, options={"causal": True}, dtype="float64")
    means = Conventions(causal="upper_left")
    text = shrunk_lines(candidate, means, "float64", of=[x for x in cases((), "float64", 0) if x.sizes["n"] == x.sizes["m"]])
    assert "causal_mask(" in text
    got, want = numbers(pasted(text, causal_always)[0])
    assert abs(got - want) > 0.1


@pytest.mark.parametrize("empty", ["uniform", "sum", "nan"])
def test_rows_that_give_something_else_where_they_are_empty_are_left_out(empty):
    """The lines' right side gives 0 there: what is wrong in these rows alone has no lines."""
    candidate, called = Candidate(Program(), options=OPTIONS, dtype="float32"), []

    def judge(case):
        called.append(case)
        return {"O": np.ones(1)}

    smallest(candidate, Conventions(empty=empty), "float32", judge, [(x, {"O": np.ones(1)}) for x in cases(OPTIONS, "float32", 0)])
    assert called and all(case.seen(Conventions()).any(-1).all() for case in called)


def test_what_takes_some_sizes_alone_is_shown_in_these():
    def tiles(q, k, v):
        assert q.shape[2] == k.shape[2] and q.shape[2] % 16 == 0 and q.shape[-1] == 32
        return sdpa(q, k, v) * 1.5

    rng = np.random.default_rng(0)
    case = Case(*(rng.integers(-8, 9, (2, 3, 64, 32)) / 4 for _ in range(4)))
    text = shrunk_lines(Candidate(tiles, dtype="float64"), Conventions(), "float64", of=[case])
    _, names = pasted(text, tiles)
    assert names["Q"].shape == names["K"].shape == (1, 1, 16, 32)


@pytest.mark.parametrize("line", ["should be 1.0", "right = "])
def test_lines_that_do_not_fail_are_not_shown(line, monkeypatch):
    """The lines are spoiled: they print two numbers that are equal, or raise."""
    from attnmath._examine.diagnosis import smallest as module

    p, real = MISTAKES["D_missing"], module.lines_of_case

    def spoiled(*args):
        text = real(*args)
        return text.replace("right = ", "right = -1 + 0 * " if line == "right = " else "right = o or ")

    candidate, means = Candidate(p.fn, p.backward, options=p.options, dtype="float32"), Conventions(**p.conventions)
    assert shrunk_lines(candidate, means, "float32")
    monkeypatch.setattr(module, "lines_of_case", spoiled)
    assert shrunk_lines(candidate, means, "float32") is None


def test_it_leaves_nothing_behind(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    shrunk("D_missing")
    assert list(tmp_path.iterdir()) == [] and capfd.readouterr() == ("", "")


def test_nothing_is_larger_than_the_case_it_starts_from():
    rng, tried = np.random.default_rng(0), []
    Q, K, V, dO = (rng.normal(size=s) for s in [(2, 4, 5, 3), (2, 2, 6, 3), (2, 2, 6, 2), (2, 4, 5, 2)])
    start = Case(Q, K, V, dO, causal=True)
    candidate = Candidate(Program(), options=OPTIONS, dtype="float32")
    judge = judge_of(candidate, Conventions(), "float32", tried)
    smallest(candidate, Conventions(), "float32", judge, [(start, {"O": np.ones(1)})])
    assert len(tried) == 2 * len(KINDS_OF_NUMBERS) and all(case.causal for case in tried)
    for case in tried:
        assert all(case.sizes[k] <= size for k, size in start.sizes.items())
        assert case.keep is None and case.bias is None and case.R is None and case.scale is None


PLAIN = Recipe(b=2, G=2, n=3, m=4, d_k=4, d_v=3, seed=1)
SKETCHES = {
    "plain": {}, "listed": dict(b=1, G=1, n=1, m=2, d_k=2, d_v=1, listed=(1, 0, 0, 1, 2, 0, 1, -1, 1)),
    "causal": dict(causal=True), "groups": dict(r=3), "scale": dict(scale=0.5), "dropped": dict(dropped=True),
    **{f"mask {kind}": dict(mask=kind) for kind in ("shared", "heads", "batch", "all", "empty")},
    **{f"bias {kind}": dict(bias=kind) for kind in ("shared", "heads", "batch", "all")},
    "bias under a mask": dict(bias="shared", mask="heads", causal=True),
    **{kind: dict(memory=kind) for kind in MEMORY},
    "strided mask and bias": dict(mask="all", bias="all", memory="strided inputs"),
    **{kind: dict(numbers=kind) for kind in KINDS_OF_NUMBERS},
    "everything": dict(mask="all", causal=True, bias="heads", scale=2.0, dropped=True, r=2, memory="strided dO"),
}


VARIANTS = {
    **{layout: Conventions(layout) for layout in ("bshd", "sbhd", "hsd", "shd", "sd")},
    "mask drop": Conventions(mask="drop"), "mask add, bshd": Conventions("bshd", mask="add"),
    "upper-left": Conventions(causal="upper_left"), "interleaved": Conventions(groups="interleaved"),
    "scale 1": Conventions(scale="1"),
}


class Off(torch.autograd.Function):
    """Doubles and adds 1, on the way there or on the way back."""

    @staticmethod
    def forward(ctx, x, there):
        ctx.there = there
        return 2 * x + 1 if there else x.clone()

    @staticmethod
    def backward(ctx, dx):
        return dx if ctx.there else 2 * dx + 1, None


def one_letter_off(letter, means):
    """Attention as these conventions mean it, plainly written; one letter is doubled, with 1 added."""
    layout = means.layout or "bhsd"
    order = [layout.index(a) for a in "bhsd" if a in layout]
    lacking = [i for i, a in enumerate("bhsd") if a not in layout]

    def canonical(x):
        x = x.permute(order)
        for i in lacking:
            x = x.unsqueeze(i)
        return x

    def attention(
        q, k, v, attn_mask=None, bias=None, is_causal=False, scale=None, enable_gqa=False, dropout_mask=None
    ):
        letters = {"dQ": q, "dK": k, "dV": v, "dB": bias}
        q, k, v, bias = (Off.apply(x, False) if name == letter else x for name, x in letters.items())
        q, k, v = map(canonical, (q, k, v))
        (n, d), m, r = q.shape[2:], k.shape[2], q.shape[1] // k.shape[1]
        assert enable_gqa == (r > 1)
        k, v = (x.repeat(1, r, 1, 1) if means.groups == "interleaved" else x.repeat_interleave(r, 1) for x in (k, v))
        a = q @ k.mT * (scale if scale is not None else 1 if means.scale == "1" else d**-0.5)
        a = a if bias is None else a + bias
        i, j = torch.arange(n)[:, None], torch.arange(m)
        hidden = j > i + (0 if means.causal == "upper_left" else m - n) if is_causal else j < 0
        if attn_mask is not None:
            kinds = {"drop": attn_mask, "add": attn_mask == -torch.inf}
            hidden = hidden | kinds.get(means.mask, ~attn_mask if attn_mask.dtype == torch.bool else None)
        live = ~hidden.expand(a.shape).all(-1, keepdim=True)
        p = torch.softmax(a.masked_fill(hidden & live, -torch.inf), -1) * live
        o = (p if dropout_mask is None else p * dropout_mask) @ v
        for i in reversed(lacking):
            o = o.squeeze(i)
        o = o.permute([[a for a in "bhsd" if a in layout].index(a) for a in layout])
        return Off.apply(o, True) if letter == "O" else o

    return attention


def agrees(sketch, letter, means):
    """The lines are pasted and print the wrong and the right number of an entry of this letter."""
    fn = one_letter_off(letter, means)
    candidate = Candidate(fn, options=OPTIONS, dtype="float32", layout=means.layout)
    text = pasted_recipe(sketch, candidate, means, "float32")
    printed, _ = pasted(text, fn)
    assert printed.startswith(f"{letter}[")
    got, want = numbers(printed)
    assert got == pytest.approx(2 * want + 1, rel=1e-4, abs=1e-4)
    assert list(numbers(text.splitlines()[-1])) == pytest.approx([got, want], rel=1e-5, abs=1e-12)
    at = tuple(map(int, re.search(r"\[(.*?)\]", printed).group(1).split(",")))
    answer = Steps(case_of(sketch, "float32"), means).answer()
    assert want == pytest.approx(getattr(answer, letter)[at], rel=1e-12, abs=1e-15)


@pytest.mark.parametrize("letter", ["O", "dQ", "dK", "dV"])
@pytest.mark.parametrize("name", SKETCHES)
def test_lines_show_what_is_wrong_in_every_sketch(name, letter):
    agrees(replace(PLAIN, **SKETCHES[name]), letter, Conventions())


@pytest.mark.parametrize("kind", SHAPES)
@pytest.mark.parametrize("more", [{}, dict(mask="heads", causal=True), dict(b=1, G=1)], ids=["", "masked", "single"])
def test_lines_show_what_is_wrong_in_the_gradient_of_a_bias(kind, more):
    agrees(replace(PLAIN, bias=kind, **more), "dB", Conventions())


@pytest.mark.parametrize("letter", ["O", "dQ", "dK", "dV", "dB"])
@pytest.mark.parametrize("name", VARIANTS)
def test_lines_follow_the_conventions(name, letter):
    means = VARIANTS[name]
    few = {"b": 1} if "b" not in (means.layout or "b") else {}
    few |= {"G": 1} if "h" not in (means.layout or "h") else {"r": 2}
    sketch = replace(PLAIN, mask="shared", bias="shared" if letter == "dB" else None, causal=True, **few)
    agrees(sketch, letter, means)
    for memory in MEMORY if letter == "dK" else ():
        agrees(replace(sketch, memory=memory), letter, means)


def test_a_pair_of_functions_is_called_as_it_is():
    def forward(q, k, v):
        return np.zeros(q.shape, q.dtype) + v.sum()

    def backward(do, q, k, v):
        return do, do, do

    candidate = Candidate(forward, backward, dtype="float64")
    text = pasted_recipe(Recipe(n=2, m=2), candidate, Conventions(), "float64")
    assert "import torch" not in text and "# forward is your own function" in text
    got, want = numbers(pasted(text, forward, backward)[0])
    assert got != want


@pytest.mark.parametrize("layout", ["bhsd", "sd"])
@pytest.mark.parametrize("kind", ["keep", "drop", "add"])
def test_options_without_a_default_are_given_something_that_changes_nothing(kind, layout):
    plain = one_letter_off("dK", Conventions(layout, mask=kind))

    def attention(q, k, v, m, b, causal, r, *, s):
        return plain(q, k, v, m, b, causal, s, False, r)

    options = dict(mask="m", bias="b", causal="causal", dropout_mask="r", scale="s")
    candidate = Candidate(attention, options=options, dtype="float32", layout=layout)
    text = pasted_recipe(Recipe(n=2, m=3, d_k=2, seed=2), candidate, Conventions(layout, mask=kind), "float32")
    printed, _ = pasted(text, attention)
    got, want = numbers(printed)
    assert printed.startswith("dK[") and got == pytest.approx(2 * want + 1, rel=1e-4)


def test_functions_that_can_be_imported_are():
    candidate = Candidate(torch.nn.functional.scaled_dot_product_attention, options={"causal": "is_causal"})
    text = pasted_recipe(Recipe(causal=True), candidate, Conventions(causal="upper_left"), "float32")
    assert "import scaled_dot_product_attention\n" in text and "is_causal=True" in text
    got, want = numbers(pasted(text)[0])
    assert got == want


def test_what_raises_is_told():
    def attention(q, k, v):
        raise RuntimeError("no such kernel")

    text = pasted_recipe(Recipe(), Candidate(attention, framework="torch"), Conventions(), "float32")
    assert text.splitlines()[-1] == "# RuntimeError: no such kernel"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", KINDS_OF_NUMBERS)
def test_the_numbers_are_those_of_the_format(kind, dtype):
    case = case_of(replace(PLAIN, numbers=kind, bias="all"), dtype)
    for x in (case.Q, case.K, case.V, case.dO, case.bias):
        assert np.array_equal(nearest(x, dtype), x)
    assert (Steps(case).A.max() < -88) == (kind == "far below")


def test_the_worst_entry_is_found():
    want = Answer(np.ones((1, 1, 2, 2)), *(np.full((1, 1, 2, 2), 8.0) for _ in "QKV"))
    dQ, dK = want.dQ.copy(), want.dK.copy()
    dQ[0, 0, 0, 1], dK[0, 0, 1, 0] = 9, 10
    assert worst_entry(want._replace(dQ=dQ, dK=dK), want) == ("dK", (0, 0, 1, 0))
    dQ[0, 0, 0, 1] = np.nan
    assert worst_entry(want._replace(dQ=dQ, dK=dK), want) == ("dQ", (0, 0, 0, 1))
    dV = want.dV - 1
    assert worst_entry(want._replace(dQ=None, dK=dK[..., :1], dV=dV), want)[0] == "dV"


class OverQueries(torch.nn.Module):
    def forward(self, q, k, v):
        return over_queries(q, k, v)


@pytest.mark.parametrize("wrap", [lambda f: lambda q, k, v: f(q, k, v), functools.partial, lambda f: OverQueries()])
def test_what_has_no_name_is_called_f(wrap):
    """A lambda, a partial function, a module: the lines run as soon as there is an f."""
    lines = examine(wrap(over_queries), framework="torch", seed=0).smallest
    assert "# f is your own function" in lines and "o = f(q, k, v)" in lines
    exec(lines, {"f": wrap(over_queries)})


def over_queries(q, k, v):
    return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5, -2) @ v
