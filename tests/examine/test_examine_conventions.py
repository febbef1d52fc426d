"""Conventions are read off, also where a candidate is wrong; and hazards are found beside."""

import functools

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention as sdpa

from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.layouts import AXIS_ORDERS
from attnmath._examine.diagnosis.conventions import detect
from attnmath._examine.diagnosis.habits import hazards
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.taken import Taken
from candidates import OPTIONS, T, backward, forward

TORCH = dict(mask="attn_mask", bias="attn_mask", causal="is_causal", scale="scale", groups="enable_gqa",
             dropout="dropout_p")
OURS = Conventions("bhsd", "keep", "lower_right", "blocks", "1/sqrt(d_k)", "zero")
THEIRS = OURS.told(causal="upper_left")
DTYPES = ("float64", "float32", "bfloat16", "float16")


def math_kernel(*args, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return sdpa(*args, **options)


def found(fn, grads=None, told=None, **how):
    means, findings = detect(Candidate(fn, grads, **({"options": OPTIONS} | how)), told)
    return means, [(finding.kind, finding.name) for finding in findings]


def with_(before=None, after=None, **fixed):
    """The right forward, with its options or its output changed."""

    def fn(q, k, v, **options):
        options = options | fixed if before is None else before(q, k, options)
        O = forward(q, k, v, **options)
        return O if after is None else after(O)

    return fn


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("fn", [sdpa, math_kernel])
def test_pytorch(fn, dtype):
    assert found(fn, options=TORCH, dtype=dtype) == (THEIRS, [])


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_numpy_pair(dtype):
    assert found(forward, backward, dtype=dtype) == (OURS, [])


def test_what_is_told_stays():
    told = Conventions(layout="bhsd", mask="keep", causal="lower_right", groups="interleaved", scale="1", empty="nan")
    assert found(sdpa, told=told, options=TORCH) == (told, [])


def test_nothing_is_said_of_options_that_are_not_there():
    """Only heads of groups, which need no keyword, are looked for."""
    known = Conventions(layout="bhsd", scale="1/sqrt(d_k)", groups="blocks")
    assert found(forward, options=None) == (known, [])


# ---- layout ------------------------------------------------------------------------------------


def laid_out(layout, fn=forward):
    letters = [x for x in "bhsd" if x in layout]
    there, back = [letters.index(x) for x in layout], [layout.index(x) for x in letters]

    def other(*args, **options):
        assert all(x.ndim == len(layout) for x in args)
        return fn(*(x.transpose(back) for x in args), **options).transpose(there).copy()

    return other


@pytest.mark.parametrize("layout", AXIS_ORDERS)
def test_layout(layout):
    assert found(laid_out(layout), options=None)[0].layout == layout


@pytest.mark.parametrize("layout", ["bhsd", "bshd", "sbhd", "hsd", "shd"])
def test_layout_of_a_wrong_candidate(layout):
    """One row of O is wrong, and the scale."""

    def wrong(q, k, v):
        O = forward(q, k, v, scale=1.0)
        O[..., 1, :] = 0
        return O

    means, findings = found(laid_out(layout, wrong), options=None)
    assert (means.layout, means.scale) == (layout, "1")


def square(q, k, v):
    assert q.shape == k.shape == v.shape
    return forward(q, k, v)


def tiles(q, k, v):
    assert q.shape[-2] % 128 == 0 and q.shape[-1] == 64
    return forward(q, k, v)


@pytest.mark.parametrize("fn", [square, tiles])
def test_sizes_that_are_taken(fn):
    candidate = Candidate(fn)
    means, findings = detect(candidate)
    assert (means.layout, means.scale, findings) == ("bhsd", "1/sqrt(d_k)", [])
    assert candidate.taken == SIZES_TAKEN[fn]


SIZES_TAKEN = {
    square: Taken(square=True, same_width=True),
    tiles: Taken(only=(("d_k", 64),), multiples=(("n", 128),)),
}
FAILS = {
    "raises": lambda q, k, v: 1 / 0,
    "type": lambda q, k, v: None,
    "wrong_number": lambda q, k, v: (forward(q, k, v)[..., :1], None),
    "shape": lambda q, k, v: forward(q, k, v)[..., :1, :],
}


@pytest.mark.parametrize("name", FAILS)
def test_what_cannot_be_judged(name):
    means, findings = found(FAILS[name], backward, framework="numpy", options=None)
    assert means.layout is None and findings == [("contract", name)]


# ---- masks -------------------------------------------------------------------------------------


def masked(how):
    """A candidate whose mask is understood in another way."""

    def before(q, k, options):
        mask = options.pop("mask", None)
        return options if mask is None else options | how(mask)

    return with_(before)


def added(mask):
    assert mask.dtype != bool
    return {"bias": mask}


def dropped(mask):
    assert mask.dtype == bool
    return {"mask": ~mask}


MASKS = {"keep": masked(lambda mask: {"mask": mask}), "drop": masked(dropped), "add": masked(added)}


@pytest.mark.parametrize("kind", MASKS)
def test_mask(kind):
    means, findings = found(MASKS[kind], options=["mask"])
    assert (means.mask, findings) == (kind, [])


def test_mask_ignored():
    means, findings = found(masked(lambda mask: {}), options=["mask"])
    assert means.mask is None and ("mistake", "mask_ignored") in findings


def test_mask_of_no_kind():
    means, findings = found(masked(lambda mask: {"mask": np.roll(mask, 2, -1)}), options=["mask"])
    assert means.mask is None and ("unnamed", "mask_unexplained") in findings


def test_mask_that_is_refused():
    def refuses(q, k, v, mask=None):
        if mask is not None:
            raise RuntimeError("no masks")
        return forward(q, k, v)

    assert ("contract", "raises") in found(refuses, options=["mask"])[1]


@pytest.mark.parametrize("kind", MASKS)
def test_mask_of_a_wrong_candidate(kind):
    """Hidden keys keep a little weight, and the first row is wrong."""

    def leaks(q, k, v, **options):
        O = 0.999 * MASKS[kind](q, k, v, **options) + 0.001 * v.mean(-2, keepdims=True)
        O[..., 0, :] = 0
        return O

    assert found(leaks, options=["mask"], framework="numpy")[0].mask == kind


# ---- causal masks ------------------------------------------------------------------------------


def offset(o):
    """Each query sees the keys up to its own place plus o(n, m)."""

    def before(q, k, options):
        n, m = q.shape[-2], k.shape[-2]
        seen = np.arange(m) <= np.arange(n)[:, None] + o(n, m)
        return {"mask": seen} if options.get("causal") else {}

    return with_(before)


@pytest.mark.parametrize("wrong", [-1, 0, 1])
@pytest.mark.parametrize("name, o", [("upper_left", lambda n, m: 0), ("lower_right", lambda n, m: m - n)])
def test_causal(name, o, wrong):
    """Also where the mask is off by one; the problems show that."""
    means, findings = found(offset(lambda n, m: o(n, m) + wrong), options=["causal"])
    assert (means.causal, findings) == (name, [])


def test_causal_that_switches():
    means, findings = found(offset(lambda n, m: 0 if n < m else m - n), options=["causal"])
    assert means.causal is None and findings == [("unnamed", "causal_unexplained")]


def test_causal_ignored():
    means, findings = found(offset(lambda n, m: m), options=["causal"])
    assert means.causal is None and findings == [("mistake", "causal_ignored")]


def test_causal_backwards():
    def before(q, k, options):
        seen = np.arange(k.shape[-2]) >= np.arange(q.shape[-2])[:, None]
        return {"mask": seen} if options.get("causal") else {}

    assert found(with_(before), options=["causal"])[1] == [("unnamed", "causal_unexplained")]


def test_causal_of_squares_alone():
    """For n = m there is nothing to tell."""

    def fn(q, k, v, causal=False):
        assert q.shape[-2] == k.shape[-2]
        return forward(q, k, v, causal=causal)

    means, findings = found(fn, options=["causal"])
    assert means.causal is None and findings == []


@pytest.mark.parametrize("name, fn", [("lower_right", functools.partial(forward, causal=True)),
                                      ("upper_left", lambda q, k, v: sdpa(q, k, v, is_causal=True))])
def test_causal_without_being_asked(name, fn):
    candidate = Candidate(fn)
    means, findings = detect(candidate)
    assert means.causal == name and [f.name for f in findings] == ["always_causal"]
    assert candidate.options["causal"] is True


# ---- groups ------------------------------------------------------------------------------------


def grouped(owner):
    def fn(q, k, v):
        heads = [owner(h, q.shape[1], k.shape[1]) for h in range(q.shape[1])]
        return forward(q, k[:, heads], v[:, heads])

    return fn


@pytest.mark.parametrize("name, owner", [("blocks", lambda h, H, G: h // (H // G)),
                                         ("interleaved", lambda h, H, G: h % G)])
def test_groups(name, owner):
    means, findings = found(grouped(owner), options={"groups": None})
    assert (means.groups, findings) == (name, [])


def test_groups_of_another_kind():
    fn = grouped(lambda h, H, G: G - 1 - h // (H // G))
    means, findings = found(fn, options={"groups": None})
    assert means.groups is None and findings == [("unnamed", "groups_unexplained")]


@pytest.mark.parametrize("after", [
    lambda O: O + 0.4 * O[:, ::-1], lambda O: 0.5 * O, lambda O: O * np.nan])
def test_groups_of_a_program_that_is_wrong_elsewhere(after):
    """No head is read by itself, so that nothing is said of which."""
    read = grouped(lambda h, H, G: G - 1 - h // (H // G))
    assert found(lambda q, k, v: after(read(q, k, v)), options={"groups": None})[1] == []


# ---- numbers -----------------------------------------------------------------------------------

SCALES = {
    "1/sqrt(d_k)": lambda d, H: d**-0.5,
    "1": lambda d, H: 1.0,
    "1/d_k": lambda d, H: 1 / d,
    "1/sqrt(H d_k)": lambda d, H: (H * d) ** -0.5,
    "log(2)/sqrt(d_k)": lambda d, H: np.log(2) * d**-0.5,
}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize("name", SCALES)
def test_scale(name, dtype):
    fn = with_(lambda q, k, options: {"scale": q.dtype.type(SCALES[name](q.shape[-1], q.shape[1]))})
    means, findings = found(fn, options=None, dtype=dtype)
    assert (means.scale, findings) == (name, [])


def test_scale_that_is_a_little_off():
    """Nearest to the usual one: the problems show the rest."""
    fn = with_(lambda q, k, options: {"scale": 1.01 * q.shape[-1] ** -0.5})
    assert found(fn, options=None)[0].scale == "1/sqrt(d_k)"


def test_scale_that_is_unknown():
    fn = with_(lambda q, k, options: {"scale": q.shape[-1] ** -0.25})
    means, (finding,) = detect(Candidate(fn))
    assert means.scale is None and finding.name == "scale_unexplained"
    assert finding.title.endswith("none of the usual ones: 0.5 for d_k = 16, 0.420448 for d_k = 32")


def test_scale_of_weights_that_do_not_move():
    fn = with_(lambda q, k, options: {"scale": 0.0})
    assert found(fn, options=None)[1] == [("unnamed", "scale_unexplained")]


def mixed(q, k, v):
    """Batch elements and tokens in each other's place, as after an exchange that was read wrongly."""
    b, H, n, _ = q.shape
    at = np.arange(b * n).reshape(b, 2, -1).swapaxes(0, 1).reshape(b, n) if n % 2 == 0 else np.arange(b * n).reshape(b, n)
    x, y, z = (a.swapaxes(1, 2).reshape(b * n, H, -1)[at].swapaxes(1, 2) for a in (q, k, v))
    O = forward(x, y, z).swapaxes(1, 2).reshape(b * n, H, -1)
    return O[np.argsort(at.ravel())].reshape(b, n, H, -1).swapaxes(1, 2)


@pytest.mark.parametrize("fn", [mixed, lambda q, k, v: forward(q, k, v) + forward(q, k * 9, v)])
def test_nothing_is_said_of_the_scale_of_what_is_wrong_elsewhere(fn):
    assert found(fn, options=None, sizes={"n": 6, "m": 6})[1] == []


EMPTY = {
    "zero": lambda P, empty: np.where(empty, 0, P),
    "uniform": lambda P, empty: np.where(empty, 1 / P.shape[-1], P),
    "sum": lambda P, empty: np.where(empty, 1.0, P),
    "nan": lambda P, empty: np.where(empty, np.nan, P),
}


def empty_rows(how):
    def fn(q, k, v, mask=True):
        mask = np.ones((q.shape[-2], k.shape[-2]), bool) & mask
        A = np.where(mask, q @ T(k) * q.shape[-1] ** -0.5, -1e300)
        E = np.exp(A - A.max(-1, keepdims=True))
        return how(E / E.sum(-1, keepdims=True), ~mask.any(-1, keepdims=True)) @ v

    return fn


@pytest.mark.parametrize("name", EMPTY)
def test_empty_rows(name):
    means, findings = found(empty_rows(EMPTY[name]), options=["mask"])
    assert (means.mask, means.empty, findings) == ("keep", name, [])


@pytest.mark.parametrize("name", EMPTY)
def test_empty_rows_of_a_causal_mask(name):
    """With more queries than keys, the first see nothing; nobody has to ask for it."""
    rows = empty_rows(EMPTY[name])

    def fn(q, k, v, causal=True):
        seen = np.tri(q.shape[-2], k.shape[-2], k.shape[-2] - q.shape[-2], dtype=bool)
        return rows(q, k, v, seen if causal else True)

    for options in None, ["causal"]:
        means, findings = found(fn, options=options)
        assert (means.causal, means.empty) == ("lower_right", name)
        assert findings == ([] if options else [("convention", "always_causal")])


def test_empty_rows_of_another_kind():
    fn = empty_rows(lambda P, empty: np.where(empty, np.eye(1, P.shape[-1]), P))
    means, findings = found(fn, options=["mask"])
    assert means.empty is None and findings == [("unnamed", "empty_unexplained")]


def torch_filled(fill, stop=False):
    def fn(q, k, v, mask=None):
        A = q @ k.mT / q.shape[-1] ** 0.5
        A = A if mask is None else A.masked_fill(~mask, fill) if stop else A + torch.where(mask, 0.0, fill)
        return A.softmax(-1) @ v

    return fn


@pytest.mark.parametrize("fill, stop, name", [(-1e30, False, "uniform with gradient"), (-1e30, True, "uniform"),
                                              (-np.inf, True, "nan")])
def test_empty_rows_and_their_gradients(fill, stop, name):
    means, findings = found(torch_filled(fill, stop), options=["mask"])
    assert (means.mask, means.empty, findings) == ("keep", name, [])


def test_float32_inside_of_float64():
    def fn(q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).float().softmax(-1).double() @ v

    assert found(fn, options=None, dtype="float64")[0].inside == "float32"
    assert found(lambda q, k, v: fn(q, k, v).float().double(), options=None, dtype="float64")[0].inside == "float32"
    scores = found(lambda q, k, v: ((q.float() @ k.float().mT).double() / q.shape[-1] ** 0.5).softmax(-1) @ v,
                   options=None, dtype="float64")
    assert scores[0].inside == "float32"
    assert found(sdpa, options=None, dtype="float64")[0].inside is None


@pytest.mark.parametrize("short", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_half_precision_inside(short, dtype):
    def weights(q, k, v):
        return (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1).to(short).to(v.dtype) @ v

    def whole(q, k, v):
        return sdpa(*(x.to(short) for x in (q, k, v))).to(q.dtype)

    for fn in weights, whole:
        means, findings = found(fn, options=None, dtype=dtype)
        assert means.inside == str(short).removeprefix("torch.")
        assert findings == [("mistake", "half_precision_inside")]


@pytest.mark.parametrize("fn", [lambda q, k, v: v.mean(-2, keepdims=True) + 0 * q[..., :1],
                                lambda q, k, v: v[..., :1, :] + 0 * q[..., :1],
                                lambda q, k, v: forward(1e9 * q, k, v)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_that_every_format_has_are_not_short(fn, dtype):
    means, findings = found(fn, options=None, dtype=dtype, framework="numpy")
    assert means.inside is None and "half_precision_inside" not in [name for _, name in findings]


def dropping(factor, keep=lambda rate: 1 - rate):
    def fn(q, k, v, p=0.0):
        P = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        return (P * (torch.rand_like(P) < keep(p)) * factor(p) if p else P) @ v

    return fn


@pytest.mark.parametrize("fn, expected", [
    (dropping(lambda p: 1 / (1 - p)), []),
    (dropping(lambda p: 1), [("mistake", "f_drop_norescale")]),
    (dropping(lambda p: 1, lambda p: 1), [("mistake", "dropout_ignored")]),
    (dropping(lambda p: 1 / p), [("unnamed", "dropout_unexplained")]),
    (dropping(lambda p: 1 / p, lambda p: p), [("unnamed", "dropout_unexplained")]),
])
def test_dropout(fn, expected):
    assert found(fn, options={"dropout": "p"})[1] == expected


# ---- hazards -----------------------------------------------------------------------------------


def hazards_of(fn, grads=None, **how):
    candidate = Candidate(fn, grads, **how)
    means, _ = detect(candidate)
    return {hazard.name: hazard for hazard in hazards(candidate, means)}


def printed(hazard, capsys, **known):
    """What the lines of a hazard print."""
    exec(hazard.evidence, known)
    return capsys.readouterr().out


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_pytorch_and_a_finite_mask(dtype, capsys):
    """The default kernel on a CPU: too large, by a factor of the number of keys."""
    hazard = hazards_of(sdpa, options=TORCH, dtype=dtype)["finite_mask"]
    assert "dQ and dV are too large, by a factor of the number of keys" in hazard.title
    assert hazard.where == "2 keys: 2 times, 4 keys: 4 times, 8 keys: 8 times, 64 keys: 64 times"
    text = printed(hazard, capsys)
    assert "tensor([[[[1.]]]]" in text and "dQ = [[[[0.5]]]]" in hazard.evidence


def test_pytorch_and_a_negative_scale(capsys):
    hazard = hazards_of(sdpa, options=TORCH)["negative_scale"]
    assert hazard.title == "with a negative scale and causal masking, O and dQ and dK and dV are NaN"
    assert "nan" in printed(hazard, capsys)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_math_kernel_has_no_hazard(dtype):
    assert hazards_of(math_kernel, options=TORCH, dtype=dtype) == {}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_the_numpy_pair_has_no_hazard(dtype):
    assert hazards_of(forward, backward, options=OPTIONS, dtype=dtype) == {}


def test_pytorch_and_an_added_mask():
    """Where the mask itself is what is added."""
    options = {"mask": "attn_mask"}
    candidate = Candidate(sdpa, options=options)
    assert [h.name for h in hazards(candidate, OURS.told(mask="add"))] == ["finite_mask"]
    assert candidate.options == options


def test_empty_row(capsys):
    fn = torch_filled(-np.inf, True)
    hazard = hazards_of(fn, options=["mask"])["nan_spreads"]
    assert hazard.title == "a row that may attend to nothing gives NaN in O and dV"
    assert hazard.where == "also outside of its row: dV"
    assert "nan" in printed(hazard, capsys, fn=fn)


def test_hazards_of_numpy(capsys):
    """A mask before the scale, and weights from the log-sum-exp: lines for NumPy."""

    def fn(q, k, v, bias=0.0, causal=False, scale=1.0):
        A = q @ T(k)
        if causal:
            A = np.where(np.tri(*A.shape[-2:]), A, -np.inf)
        A = A * scale + bias
        top = A.max(-1, keepdims=True)
        with np.errstate(all="ignore"):
            return np.exp(A - (top + np.log(np.exp(A - top).sum(-1, keepdims=True)))) @ v

    found = hazards_of(fn, options=["bias", "causal", "scale"], framework="numpy")
    assert sorted(found) == ["finite_mask", "negative_scale"]
    for hazard in found.values():
        assert "import numpy as np" in hazard.evidence and "# right: O = " in hazard.evidence
        assert printed(hazard, capsys, fn=fn)


@pytest.mark.parametrize("layout", AXIS_ORDERS)
def test_lines_of_a_pair(layout, capsys):
    """Forward and backward in NumPy, in every layout, with a mask that may not hide all of a row."""

    def nan(fn):
        def wrong(*args, mask=None):
            found = fn(*args, **({} if mask is None else {"mask": mask}))
            return found if mask is None or mask.any(-1).all() else spoiled(found)

        return wrong

    def spoiled(x):
        return tuple(map(spoiled, x)) if isinstance(x, tuple) else x + np.nan

    letters = [x for x in "bhsd" if x in layout]
    there, back = [letters.index(x) for x in layout], [layout.index(x) for x in letters]

    def grads(*args, **options):
        return tuple(x.transpose(there).copy() for x in backward(*(x.transpose(back) for x in args), **options))

    fn, b = nan(laid_out(layout)), nan(grads)
    fn.__name__, b.__name__ = "fn", "b"
    (hazard,) = hazards_of(fn, b, options=["mask"], layout=layout).values()
    assert hazard.name == "nan_spreads" and "dq, dk, dv = b(do, q, k, v, mask=mask)" in hazard.evidence
    assert printed(hazard, capsys, fn=fn, b=b).count("array(") == 3


def test_a_mask_that_acts_by_whole_tiles_is_not_ignored():
    def tiles_alone(q, k, v, *, causal=False, **options):
        """Tiles of 128 keys that are in the future are skipped; nothing is hidden inside of one."""
        A = q @ T(k) / np.sqrt(q.shape[-1])
        future = np.arange(A.shape[-1]) // 128 * 128 > np.arange(A.shape[-2])[:, None]
        E = np.exp(A - A.max(-1, keepdims=True)) * ~(causal & future)
        return E / E.sum(-1, keepdims=True) @ v

    def ignoring(q, k, v, *, causal=False, **options):
        return tiles_alone(q, k, v)

    names = [[x.name for x in detect(Candidate(fn, options={"causal": "causal"}))[1]] for fn in (tiles_alone, ignoring)]
    assert "causal_ignored" not in names[0] and "causal_ignored" in names[1]
