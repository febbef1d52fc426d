"""A layer is judged under its own bound; every mistake planted in one is found, and has its name."""

import os

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import mistaken_layers as planted
from attnmath import Weights, adapters, examine_layer
from attnmath._examine.layer.layer import LayerAnswer, LayerCase, LayerSteps, Rotary
from attnmath._examine.layer.running_error import BoundedSteps, formats
from attnmath._examine.problems.case import Conventions
from attnmath.rounding.formats import nearest, ratio
from mistaken_layers import Student

b, H, G, n, m, d, d_z, k, v, d_y = 2, 4, 2, 5, 7, 9, 8, 6, 3, 10
USUAL = Conventions()


def drawn(rng, dtype, cross=True, turn=False, apart=False):
    """A problem with numbers of a format; all sizes differ; apart: values come from tokens of their own."""
    def f(*shape):
        return nearest(0.5 * rng.normal(size=shape), dtype)

    width = d_z if cross else d
    W = Weights(f(H, d, k), f(G, width, k), f(G, d_y if apart else width, v), f(H, v, d), f(H, k), f(G, k), f(G, v), f(d))
    rows = m if cross else n
    keep = rng.random((b, 1, n, rows)) < 0.7
    keep[..., 0] = True
    keep[0, 0, 1] = False  # a row that may attend to nothing
    rotary = Rotary(f(n, k), f(n, k), "interleaved" if rng.random() < 0.5 else "half") if turn else None
    return LayerCase(f(b, n, d), f(b, m, d_z + d_y * apart) if cross else None, W, f(b, n, d), keep, rotary=rotary)


def by_torch(case, dtype):
    """The same layer by PyTorch's own functions and autograd, in a format."""
    x = [None if a is None else torch.tensor(a, dtype=dtype, requires_grad=True) for a in (case.X, case.Z, *case.W)]
    X, Z, W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O = x
    Z = X if Z is None else Z

    def heads(X, W, b):
        return torch.einsum("bnd,hdk->bhnk", X, W) + b[:, None]

    def turned(x):
        if case.rotary is None:
            return x
        cos, sin = (torch.tensor(a, dtype=dtype) for a in case.rotary[:2])
        if case.rotary.pairing == "half":
            other = torch.cat([-x[..., k // 2 :], x[..., : k // 2]], -1)
        else:
            other = torch.stack([-x[..., 1::2], x[..., 0::2]], -1).flatten(-2)
        return x * cos + other * sin

    Q, K, V = turned(heads(X, W_Q, b_Q)), turned(heads(Z[..., : W_K.shape[1]], W_K, b_K)), heads(Z[..., -W_V.shape[1] :], W_V, b_V)
    K, V = (a.repeat_interleave(H // G, 1) for a in (K, V))
    O = F.scaled_dot_product_attention(Q, K, V, torch.tensor(case.keep))
    Y = torch.einsum("bhnk,hkd->bnd", O, W_O) + b_O
    there = [a for a in x if a is not None]
    found = iter(torch.autograd.grad(Y, there, torch.tensor(case.dY, dtype=dtype)))
    return LayerAnswer(Y.detach().double().numpy(), *(None if a is None else next(found).double().numpy() for a in x))


KINDS = [(True, False, False), (False, False, False), (False, True, False), (True, False, True)]


@pytest.mark.parametrize(("cross", "turn", "apart"), KINDS)
@pytest.mark.parametrize("seed", range(4))
def test_steps_are_those_of_autograd(cross, turn, apart, seed):
    case = drawn(np.random.default_rng(seed), "float64", cross, turn, apart)
    got, want = LayerSteps(case, USUAL).layer_answer(), by_torch(case, torch.float64)
    for name, x, y in zip(LayerAnswer._fields, got, want):
        assert (x is None) == (y is None)
        assert x is None or x.shape == y.shape and np.abs(x - y).max() < 1e-12, name  # sums of some dozen terms


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("cross", "turn", "apart"), KINDS)
def test_the_bound_holds_and_is_of_the_right_size(cross, turn, apart, dtype):
    """PyTorch's layer lies inside; in single precision no bound is ten thousand times its error."""
    worst = dict.fromkeys(LayerAnswer._fields, 0.0)
    for seed in range(6):
        case = drawn(np.random.default_rng(seed), dtype, cross, turn, apart)
        want, off = BoundedSteps(case, USUAL, formats(dtype)).right_and_off()
        got = by_torch(case, getattr(torch, dtype))
        for name, g, w, o in zip(LayerAnswer._fields, got, want, off):
            if g is not None:
                worst[name] = max(worst[name], ratio(g, w, o))
    assert max(worst.values()) <= 1
    if dtype == "float32":
        assert all(r > 1e-4 for name, r in worst.items() if r)
        assert sum(r > 0 for r in worst.values()) >= 10


def test_the_bound_of_a_wider_format_is_broken_by_a_shorter_one():
    case = drawn(np.random.default_rng(0), "bfloat16")
    want, off = BoundedSteps(case, USUAL, formats("float32")).right_and_off()
    got = by_torch(case, torch.bfloat16)
    assert all(ratio(*x) > 1 for x in zip(got, want, off))


# ---- planted mistakes


def report(student, dtype, alone=False, **told):
    fn, back = (student.alone, student.alone_back) if alone else (student.cross, student.cross_back)
    rotary = dict(rotary=planted.tables, pairing="half") if student.rope else {}
    return examine_layer(fn, backward=back, weights=planted.weights(dtype), heads=planted.H, seed=0, smallest=False,
                         reading=("(h k) d", "d (h k)"), **rotary, **told)


def names(report, *kinds):
    return [f.name for f in report.findings if f.kind in (kinds or ("mistake", "unnamed"))]


formats_judged = pytest.mark.parametrize("dtype", ["float64", "float32"])
SAID = {"heads_split_interleaved": "heads_split_interleaved_back", "heads_interleaved": "heads_merged_interleaved"}
PLANTED = [(name, SAID.get(name, name), False, False) for name in planted.CROSS if name != "f_noscale"]
PLANTED += [(name, want, False, False) for name, want in planted.CROSS_PATHS.items()]
PLANTED += [(name, want, True, False) for name, want in planted.ALONE.items()]
PLANTED += [(name, name, True, True) for name in planted.ROPE]


@formats_judged
@pytest.mark.parametrize(("name", "want", "alone", "rope"), PLANTED)
def test_a_planted_mistake_is_named(name, want, alone, rope, dtype):
    found = report(Student(name, rope=rope), dtype, alone)
    assert found.wrong
    assert names(found) == [want]
    # What cannot be done where there are more keys than queries is not taken there; a wrong shape breaks the contract.
    assert names(found, "contract") == (["shape"] if want == "dX_dZ_exchanged" else [])
    refused = want in planted.SAME_LENGTH and want != "dX_dZ_exchanged"
    assert ("refuses" in names(found, "convention")) == refused


@formats_judged
@pytest.mark.parametrize("name", planted.UNNAMED)
def test_what_has_no_name_is_said_to_have_none(name, dtype):
    found = report(Student(name), dtype, alone=True)
    assert found.wrong
    assert names(found) == ["unnamed"]
    evidence = found.findings[0].evidence
    assert {"one_percent": "dW_V = 1.01 x the right dW_V", "first_row": "broken laws: X^T dX",
            "path_K_twice": "1 x the path through the queries + 2 x the path through the keys"}[name] in evidence
    assert found.findings[0].where.startswith({"one_percent": "dW_V", "first_row": "dX, row 0"}.get(name, "dX"))


@formats_judged
@pytest.mark.parametrize(("pair", "alone"), [
    (("W_O_untransposed", "dW_K_without_b_Q"), False), (("D_missing", "db_V_one_entry"), False),
    (("path_K_missing", "db_V_one_entry"), True),
])
def test_two_mistakes_are_both_named(pair, alone, dtype):
    found = names(report(Student(*pair), dtype, alone))
    assert set(found) == {planted.ALONE[x] if alone and x in planted.ALONE else x for x in pair}


@formats_judged
@pytest.mark.parametrize(("alone", "rope", "causal"), [(False,) * 3, (True, False, False), (True, True, False),
                                                       (True, False, True), (True, True, True)])
def test_a_right_layer_is_right(alone, rope, causal, dtype):
    found = report(Student(rope=rope, causal=causal), dtype, alone)
    assert found.right, str(found)
    assert max(r for p in found.problems for r in p.ratios.values()) < 0.5
    assert ("causal" in names(found, "convention")) == causal


@formats_judged
def test_a_scale_of_one_is_said_and_fails_where_another_is_stated(dtype):
    found = report(Student("f_noscale"), dtype)
    assert found.right and "for the scale 1" in found.sentence
    assert [h.name for h in found.hazards] == ["unusual_scale"]
    assert report(Student("f_noscale"), dtype, conventions={"scale": "1/sqrt(d_k)"}).wrong


def test_in_short_formats_nothing_is_named_wrongly():
    found = report(Student("one_percent"), "float32", alone=True)
    assert found.wrong
    linear = torch.nn.MultiheadAttention(12, 3, dtype=torch.bfloat16)
    linear.register_forward_hook(lambda module, inputs, out: (2 * out[0], out[1]))
    found = examine_layer(linear, seed=0, smallest=False)
    assert found.wrong and set(names(found)) <= {"unnamed"}


@pytest.mark.parametrize("name", ["W_O_untransposed", "dW_Q_transposed", "D_missing", "db_V_one_entry"])
def test_the_laws_tell_mistakes_apart(name):
    evidence = report(Student(name), "float64").findings[0].evidence
    broken = evidence.partition("broken laws: ")[2].partition(";")[0]
    assert broken.split(", ") == {
        "W_O_untransposed": ["W_V and W_O may trade a matrix", "db_V = db_O W_O^T"],
        "dW_Q_transposed": ["W_Q and W_K may trade a matrix", "X^T dX"],
        "D_missing": ["db_K = 0"],
        "db_V_one_entry": ["W_V and W_O may trade a matrix", "db_V = db_O W_O^T"],
    }[name]


# ---- PyTorch's own layer, and one's own modules


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [dict(), dict(batch_first=True), dict(bias=False), dict(kdim=10, vdim=10)])
@pytest.mark.parametrize("need_weights", [True, False])
def test_pytorchs_layer_is_right(options, need_weights, dtype):
    module = torch.nn.MultiheadAttention(12, 3, dtype=dtype, **options)
    found = examine_layer(adapters.multihead_attention(module, need_weights=need_weights), seed=1)
    assert found.right, str(found)
    assert found.conventions.empty == ("nan" if need_weights else "zero")
    assert [h.name for h in found.hazards] == ["empty_row_nan"] * need_weights


def test_the_smallest_case_of_the_hazard_can_be_pasted(capsys):
    (hazard,) = examine_layer(torch.nn.MultiheadAttention(12, 3), seed=1).hazards
    exec(hazard.evidence.partition("\n")[2])
    assert "nan" in capsys.readouterr().out


class Own(torch.nn.Module):
    """Self-attention as many write it."""

    def __init__(self, mask="keep", axes="b 1 n m", layout="bnd", causal=False, fault=None):
        super().__init__()
        self.mask, self.axes, self.layout, self.causal, self.fault = mask, axes, layout, causal, fault
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (torch.nn.Linear(12, 12) for _ in range(4))

    def forward(self, x, attn_mask=None):
        x = {"bnd": lambda: x, "nbd": lambda: x.transpose(0, 1), "nd": lambda: x[None]}[self.layout]()
        q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        if attn_mask is not None:
            assert attn_mask.dtype == (x.dtype if self.mask == "add" else torch.bool)
            attn_mask = ~attn_mask if self.mask == "drop" else attn_mask
            size = {"b 1 n m": 4, "b n m": 3, "b m": 2, "n m": 2}[self.axes]
            assert attn_mask.ndim == size
            attn_mask = attn_mask[:, None] if self.axes == "b n m" else attn_mask
            attn_mask = attn_mask[:, None, None] if self.axes == "b m" else attn_mask
        y = F.scaled_dot_product_attention(q, k, v, attn_mask, is_causal=self.causal)
        y = y.transpose(1, 2).flatten(-2) if self.fault != "view" else y.reshape(x.shape)
        y = self.out_proj(y)
        return {"bnd": lambda: y, "nbd": lambda: y.transpose(0, 1), "nd": lambda: y[0]}[self.layout]()


class Masked(Own):
    """Hidden keys have a finite number added to their scores, or in their place."""

    def __init__(self, how, fill=None, axes="b 1 n m"):
        super().__init__(axes=axes)
        self.how, self.fill = how, fill

    def forward(self, x, attn_mask=None):
        q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        hidden = torch.zeros((), dtype=torch.bool) if attn_mask is None else ~attn_mask
        assert attn_mask is None or attn_mask.ndim == (4 if self.axes == "b 1 n m" else 2)
        fill = self.fill or torch.finfo(x.dtype).min
        B = x.new_zeros(hidden.shape).masked_fill(hidden, fill).expand(*q.shape[:2], x.shape[1], x.shape[1])
        if self.how == "fused":
            y = F.scaled_dot_product_attention(q, k, v, B)
        else:
            A = q @ k.mT / 2
            A = A.masked_fill(hidden, fill) if self.how in ("in place", "summed") else A + B
            P = torch.exp(A - A.logsumexp(-1, keepdim=True)) if "summed" in self.how else A.softmax(-1)
            y = (torch.where(hidden.all(-1, keepdim=True), 0.5 * P, P) if self.how == "half" else P) @ v
        return self.out_proj(y.transpose(1, 2).flatten(-2))


EMPTY = [
    ("fused", None, "uniform", ["empty_row_times_m"]), ("added", None, "uniform with gradient", []),
    ("in place", None, "uniform", []), ("added", -1e9, "unmasked", ["empty_row_unmasked"]),
    ("half", None, None, ["empty_row_other"]), ("fused", float("-inf"), "zero", []),
    ("in place", float("-inf"), "nan", ["empty_row_nan"]),
    ("summed", None, "sum", ["empty_row_sum"]), ("added and summed", None, "sum with gradient", ["empty_row_sum"]),
]


@pytest.mark.parametrize(("how", "fill", "policy", "hazards"), EMPTY)
@pytest.mark.parametrize("axes", ["b 1 n m", "n m"])
def test_what_an_empty_row_gives_is_said(how, fill, policy, hazards, axes):
    module = Masked(how, fill, axes).double()
    found = examine_layer(module, seed=1)
    assert found.right and found.conventions.empty == policy, str(found)
    assert [h.name for h in found.hazards] == hazards
    # What it says is what PyTorch does: the gradient of b_V in a row without keys.
    keep = torch.zeros(1, 1, 4, 4, dtype=torch.bool) if axes == "b 1 n m" else torch.zeros(4, 4, dtype=torch.bool)
    x = torch.randn(1, 4, 12, dtype=torch.float64)
    Y = module(x, attn_mask=keep)
    db_V, right = torch.autograd.grad(Y.sum(), module.v_proj.bias)[0], 4 * module.out_proj.weight.sum(0)
    summed = str(policy).startswith("sum")
    times = {"uniform": 4 if how == "fused" else 1, "sum": 4, "sum with gradient": 4, "zero": 0, "nan": np.nan, None: 0.5}.get(policy, 1)
    assert torch.allclose(db_V, times * right, equal_nan=True)
    mean = (module(x) if policy == "unmasked" else module.out_proj(module.v_proj(x).mean(1, keepdim=True)))
    mean = module.out_proj(module.v_proj(x).sum(1, keepdim=True)) if summed else mean
    as_said = summed or policy in ("uniform", "uniform with gradient", "unmasked")
    assert torch.allclose(Y, mean.expand_as(Y)) == as_said


@pytest.mark.parametrize("change", [
    lambda: torch.set_default_dtype(torch.float64), lambda: np.seterr(divide="raise"), lambda: os.chdir("/"),
])
def test_what_a_layer_changes_in_the_process_is_given_back_and_said(change):
    class Changing(Own):
        def forward(self, x):
            change()
            return super().forward(x)

    layer = Changing()
    before = torch.get_default_dtype(), np.geterr(), os.getcwd(), torch.random.get_rng_state()
    found = examine_layer(layer, seed=1)
    after = torch.get_default_dtype(), np.geterr(), os.getcwd(), torch.random.get_rng_state()
    assert before[:3] == after[:3] and torch.equal(before[3], after[3])
    assert found.right and [h.name for h in found.hazards] == ["global_state"], str(found)


class Wrong(Own):
    """A mistake of the way forward where a condition holds, another elsewhere; by autograd in both directions."""

    def __init__(self, how, other=None):
        super().__init__()
        self.how, self.other = how, other

    def forward(self, x):
        b, n, _ = x.shape
        fault = self.how(b, n) or self.other
        q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        y = F.scaled_dot_product_attention(q, k, v, scale=1 / 12**0.5 if fault == "width" else None)
        if fault == "across":
            y = y.reshape(3, b, n, 4).permute(1, 2, 0, 3).reshape(b, n, 12)
        else:
            y = y.reshape(x.shape) if fault == "view" else y.transpose(1, 2).flatten(-2)
        return self.out_proj(y)


TRIED = {1, 4, 5, 6, 9, 17, 2}  # lengths


@pytest.mark.parametrize(("how", "other", "want", "said"), [
    (lambda b, n: "across", None, ["heads_merged_across_batch"], ""),
    (lambda b, n: "width" if n > 5 else None, None, ["f_scale_dmodel"], "only for more than 5 "),
    (lambda b, n: "width" if n in TRIED else None, "view", [], ""),  # it is the width in all that is tried
    (lambda b, n: "width" if n in (5, 9) else None, None, ["unnamed"], ""),
    (lambda b, n: "width" if n in TRIED else None, "width", ["f_scale_dmodel"], ""),
])
def test_a_name_explains_what_was_tried_and_what_was_not(how, other, want, said):
    found = examine_layer(Wrong(how, other), seed=1, smallest=False)
    assert (found.wrong if want else found.unlisted) and names(found) == want, str(found)
    assert said in found.findings[0].title


def parameters(module):
    return dict(module.named_parameters())


@pytest.mark.parametrize("mask", ["keep", "drop", "add"])
@pytest.mark.parametrize("axes", ["b 1 n m", "b n m", "b m", "n m"])
def test_the_kind_of_a_mask_is_found_out(mask, axes):
    module = Own(mask, axes)
    found = examine_layer(module, weights=parameters(module), heads=3, mask="attn_mask", seed=1)
    assert found.right, str(found)
    assert found.conventions.mask == mask
    assert any(axes in f.title for f in found.findings if f.name == "mask")
    assert any("mask" in p.traits or "padding" in p.traits for p in found.problems)


@pytest.mark.parametrize("layout", ["bnd", "nbd", "nd"])
@pytest.mark.parametrize("causal", [False, True])
def test_layout_and_causal_mask_are_found_out(layout, causal):
    module = Own(layout=layout, causal=causal)
    found = examine_layer(module, weights=parameters(module), heads=3, seed=1)
    assert found.right, str(found)
    assert ([f.title for f in found.findings if f.name == "layout"] ==
            ([] if layout == "bnd" else [f"the tokens are {layout}"]))
    assert ("causal" in names(found, "convention")) == causal


def test_a_wrong_module_is_named_and_the_smallest_case_is_wrong():
    module = Own(fault="view")
    found = examine_layer(module, weights=parameters(module), heads=3, seed=1)
    assert names(found) == ["heads_merged_by_view"]
    space = {}
    exec(found.smallest, space)
    assert space["X"].shape == (1, 2, 12)
    with torch.no_grad():
        for name, p in module.named_parameters():
            p.copy_(torch.tensor(space["weights"][name]))
    said = next(line for line in found.smallest.splitlines() if line.startswith("# Y["))
    place, numbers = said[4:].split("]: ")
    Y = module(torch.tensor(space["X"], dtype=torch.float32)).detach().numpy()
    assert Y[tuple(map(int, place.split(",")))] == pytest.approx(float(numbers.split(",")[0]), rel=1e-6)


def test_the_parameters_are_as_before():
    module = Own()
    module.eval()
    module.q_proj.weight.requires_grad_(False)
    before = {name: (p.data_ptr(), p.clone(), p.requires_grad) for name, p in module.named_parameters()}
    examine_layer(module, weights=parameters(module), heads=3, seed=1)
    assert all((p.data_ptr(), p.requires_grad, p.grad) == (before[x][0], before[x][2], None) and
               torch.equal(p, before[x][1]) for x, p in module.named_parameters())
    assert not any(part.training for part in module.modules())


FORMS = {  # how the numbers lie, and the same projection; W (H, d, k) is what they are in our form
    "(h k) d": lambda x, W: x @ W.T, "d (h k)": lambda x, W: x @ W,
}


@pytest.mark.parametrize(("shapes", "project", "said"), [
    (dict(W_QKV=(36, 12), W_O=(12, 12)), lambda x, w: (x @ w["W_QKV"].T).split(12, -1), "(p h k) d"),
    (dict(W_QKV=(12, 36), W_O=(12, 12)), lambda x, w: (x @ w["W_QKV"]).split(12, -1), "d (p h k)"),
    (dict(W_QKV=(36, 12), W_O=(12, 12)),
     lambda x, w: [a.flatten(-2) for a in (x @ w["W_QKV"].T).unflatten(-1, (3, 3, 4)).unbind(-2)], "(h p k) d"),
    (dict(W_Q=(12, 12), W_KV=(24, 12), W_O=(12, 12)),
     lambda x, w: (x @ w["W_Q"].T, *(x @ w["W_KV"].T).split(12, -1)), "(h k) d"),
    (dict(W_Q=(3, 12, 4), W_K=(3, 12, 4), W_V=(3, 12, 4), W_O=(3, 4, 12)),
     lambda x, w: [torch.einsum("bnd,hdk->bnhk", x, w[f"W_{a}"]).flatten(-2) for a in "QKV"], "h d k"),
    (dict(W_Q=(12, 3, 4), W_K=(12, 3, 4), W_V=(12, 3, 4), W_O=(3, 4, 12)),
     lambda x, w: [torch.einsum("bnd,dhk->bnhk", x, w[f"W_{a}"]).flatten(-2) for a in "QKV"], "d h k"),
    (dict(W_Q=(12, 12), W_K=(12, 12), W_V=(12, 12), W_O=(12, 12)),
     lambda x, w: [x @ w[f"W_{a}"] for a in "QKV"], "d (h k)"),
    (dict(W_Q=(12, 12), W_K=(8, 12), W_V=(8, 12), W_O=(12, 12)),
     lambda x, w: [x @ w[f"W_{a}"].T for a in "QKV"], "(h k) d"),
])
def test_the_form_of_the_weights_is_found_out(shapes, project, said):
    heads = 3
    weights = {name: torch.nn.Parameter(torch.zeros(shape)) for name, shape in shapes.items()}
    if shapes.get("W_K", (0,))[0] == 8:  # two heads of keys for four of queries: sizes that differ
        heads, weights["W_Q"] = 4, torch.nn.Parameter(torch.zeros(16, 12))
        weights["W_O"] = torch.nn.Parameter(torch.zeros(12, 16))

    def layer(x):
        q, k, v = (a.unflatten(-1, (-1, 4)).transpose(1, 2) for a in project(x, weights))
        o = F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1]).transpose(1, 2).flatten(-2)
        out = weights["W_O"]
        if out.ndim == 3:
            return o @ out.flatten(0, 1)
        return o @ (out if said.startswith("d") else out.T)

    found = examine_layer(layer, weights=weights, heads=heads, seed=1)
    assert found.right, str(found)
    (weights_said,) = (f.title for f in found.findings if f.name == "weights")
    assert f"W_V {said}," in weights_said


# ---- the contract


def student(**changes):
    s = Student()
    given = dict(fn=s.alone, backward=s.alone_back) | changes
    return examine_layer(given["fn"], backward=given["backward"], weights=planted.weights("float32"), heads=3, seed=0)


def writes(X, W):
    X += 1
    return Student().alone(X, W)


@pytest.mark.parametrize(("changes", "name", "line"), [
    (dict(fn=lambda X, W: 1 / 0), "raises", "raises ZeroDivisionError"),
    (dict(fn=lambda X, W: ()), "type", "tuple of 0"),
    (dict(fn=lambda X, W: X.tolist()), "type", "returns a list"),
    (dict(fn=lambda X, W: X[..., :1]), "shape", "the output has shape"),
    (dict(fn=lambda X, W: X.astype(np.float64)), "dtype", "float64"),
    (dict(fn=writes), "inputs_modified", "writes into its inputs"),
    (dict(backward=None), "no_backward", "needs backward="),
    (dict(backward=lambda dY, X, W: [dY]), "type", "backward returns a list"),
    (dict(backward=lambda dY, X, W: {"X": dY}), "gradient_missing", "the gradient of W_Q is missing"),
])
def test_a_broken_contract_is_a_clear_line(changes, name, line):
    found = student(**changes)
    assert found.verdict == "not judged" and found.status == 2
    assert names(found, "contract") == [name]
    assert line in found.findings[0].title


def test_a_parameter_that_is_not_used_has_no_gradient():
    module = Own()
    found = examine_layer(lambda x: module(x.detach() + 0 * x), weights=parameters(module), heads=3, seed=1)
    assert names(found) == ["dX_zero"]


@pytest.mark.parametrize(("weights", "heads", "line"), [
    (dict(W_Q=np.zeros((12, 12))), 3, "it needs W_K, W_V, W_O as well"),
    (planted.weights("float32"), 5, "which fit no form that is known"),
])
def test_weights_that_fit_nothing_are_refused(weights, heads, line):
    with pytest.raises(ValueError, match=line):
        examine_layer(Student().alone, backward=Student().alone_back, weights=weights, heads=heads)


def wrongly_masked(how):
    """A layer whose mask does something else."""
    module = Own()

    def layer(x, attn_mask=None):
        hidden = None if attn_mask is None else how(attn_mask)
        return module(x, hidden)

    return layer, parameters(module)


@pytest.mark.parametrize(("how", "name"), [
    (lambda keep: torch.ones_like(keep), "mask_ignored"),
    (lambda keep: keep.roll(1, -1), "unnamed"),
])
def test_a_mask_that_does_something_else_is_no_convention(how, name):
    layer, weights = wrongly_masked(how)
    found = examine_layer(layer, weights=weights, heads=3, mask="attn_mask", seed=1, smallest=False)
    assert found.wrong and names(found) == [name]


def test_a_mask_that_is_not_taken_is_told():
    module = Own()
    found = examine_layer(module, weights=parameters(module), heads=3, mask="maske", seed=1, smallest=False)
    assert found.wrong and names(found, "contract") == ["mask"]
    assert "no mask by the name 'maske'" in found.findings[0].title


def test_what_is_demanded_and_is_otherwise_is_a_mistake():
    module = torch.nn.MultiheadAttention(12, 3)
    found = examine_layer(module, conventions={"empty": "zero"}, seed=1)
    assert found.wrong and names(found) == ["empty_row_nan"]
    found = examine_layer(module, conventions={"scale": "1"}, seed=1, smallest=False)
    assert found.wrong


# ---- another function, a reference, weights without gradients


class Normed(Own):
    """Queries and keys are normalized by the sum of their sizes: another function."""

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (3, 4)).transpose(1, 2) for f in (self.q_proj, self.k_proj, self.v_proj))
        q, k = (F.normalize(x, p=1, dim=-1) for x in (q, k.detach() if self.fault == "detached" else k))
        return self.out_proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)), None


def test_another_function_is_judged_by_its_own_derivatives():
    found = examine_layer(Normed(), seed=1)
    assert found.unlisted and any(f.name == "own gradients" for f in found.findings), str(found)
    found = examine_layer(Normed(fault="detached"), seed=1)
    assert found.wrong and names(found) == ["own_gradients"] and "dk_proj.weight is zero" in found.findings[0].title


def test_a_layer_beside_a_reference():
    found = examine_layer(Normed(), reference=Normed(), seed=1)
    assert found.right and "as the reference" in found.sentence, str(found)
    assert names(examine_layer(Normed(fault="detached"), reference=Normed(), seed=1)) == ["unlike_reference"]
    assert examine_layer(Own(), reference=Normed(), seed=1).wrong


def test_a_module_alone_is_enough_and_a_frozen_weight_has_to_be_meant():
    module = Own()
    assert examine_layer(module, seed=1).right
    module.q_proj.weight.requires_grad_(False)
    found = examine_layer(module, seed=1)
    assert found.wrong and names(found, "contract") == ["no_gradient"]
    assert examine_layer(module, seed=1, without=("q_proj.weight",)).right


class Enlarged(torch.autograd.Function):
    """x + 0 p, with a gradient of p that is far too large."""

    @staticmethod
    def forward(ctx, x, p):
        return x.clone()

    @staticmethod
    def backward(ctx, dx):
        return dx, dx.new_full((3,), 1e6)


def test_a_further_weight_is_judged():
    class Further(Own):
        def __init__(self):
            super().__init__()
            self.gain = torch.nn.Parameter(torch.zeros(3))

        def forward(self, x):
            return super().forward(Enlarged.apply(x, self.gain))

    found = examine_layer(Further(), seed=1)
    assert found.wrong and names(found) == ["further_weight"], str(found)


class ThreeWidths(torch.nn.Module):
    """Queries, keys and values from tokens of three widths; mistaken in one place, or in none."""

    def __init__(self, mistake=""):
        super().__init__()
        self.mistake, self.heads = mistake, 2
        self.q_proj, self.k_proj, self.v_proj = (torch.nn.Linear(x, 12) for x in (12, 7, 10))
        self.out_proj = torch.nn.Linear(12, 12)

    def forward(self, query, key, value):
        value = value.detach() if self.mistake == "value detached" else value
        key = key + 0.1 * value[..., :7] if self.mistake == "values among the keys" else key
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f, x in (
            (self.q_proj, query), (self.k_proj, key), (self.v_proj, value)))
        k = k.detach() if self.mistake == "keys detached" else k
        o = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(-2)
        return self.out_proj(o)


@pytest.mark.parametrize(("mistake", "said"), [
    ("", "right"), ("value detached", "dZ misses the path through the values"), ("keys detached", "dW_K"),
    ("values among the keys", "not an attention of the list")])
def test_tokens_of_three_widths(mistake, said):
    """It is read and judged as it is, with its way back."""
    report = examine_layer(ThreeWidths(mistake), dtype="float32", seed=1)
    assert said in report.sentence
    assert report.right == (not mistake)
    assert not report.smallest or "Z[..., 7:]" in report.smallest


@pytest.mark.parametrize("spoiled", [False, True])
def test_a_way_back_of_ones_own_gives_the_gradients_of_keys_and_values(spoiled):
    """In NumPy, by hand, for one head; by the names of a layer's arguments, or with a d in front."""
    def forward(X, K, V, W):
        Q, k, v = X @ W["W_Q"], K @ W["W_K"], V @ W["W_V"]
        A = Q @ np.swapaxes(k, 1, 2) / Q.shape[-1] ** 0.5
        E = np.exp(A - A.max(-1, keepdims=True))
        return Q, k, v, E / E.sum(-1, keepdims=True)

    def layer(X, K, V, W):
        *_, v, P = forward(X, K, V, W)
        return P @ v @ W["W_O"]

    def back(dY, X, K, V, W):
        (Q, k, v, P), t = forward(X, K, V, W), lambda x: np.swapaxes(x, 1, 2)
        dO = dY @ W["W_O"].T
        dP = dO @ t(v)
        dA = P * (dP - (P * dP).sum(-1, keepdims=True)) / Q.shape[-1] ** 0.5
        dq, dk, dv = dA @ k, t(dA) @ Q, t(P) @ dO
        dW = {"W_Q": (t(X) @ dq).sum(0), "W_K": (t(K) @ dk).sum(0), "W_V": (t(V) @ dv).sum(0),
              "W_O": (t(P @ v) @ dY).sum(0)}
        return {"X": dq @ W["W_Q"].T, "dK": dk @ W["W_K"].T, "V": (1 + spoiled) * dv @ W["W_V"].T, **dW}

    weights = {"W_Q": np.ones((12, 6)), "W_K": np.ones((7, 6)), "W_V": np.ones((10, 6)), "W_O": np.ones((6, 12))}
    report = examine_layer(layer, weights=weights, backward=back, heads=1, seed=1, smallest=False)
    assert report.verdict == ("wrong" if spoiled else "right"), str(report)
    assert not spoiled or "(dZ)" in report.sentence
