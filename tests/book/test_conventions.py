"""The questions of read_off.py, each asked about programs of either kind, and the read_off."""

import re
from pathlib import Path

import numpy as np
import pytest

from attnmath import attention, attention_vjp, bias, causal_mask
from attnmath.book import read_off

MAY = np.arange(3)[:, None] != np.full((1, 5), 1)  # the row 1 may read nothing
CHAPTER = (Path(__file__).parents[2] / "chapters" / "conventions.md").read_text("utf-8")
FORBID = {"mask": MAY}


def library(Q, K, V, dO=None, mask=None, added=None, causal=None, window=None, cap=None, scale=None,
            dropout=0.0, fill=-np.inf, owner=None, log=1.0, capped="A + E", kept=None, fails=False):
    """Attention with a choice for every convention."""
    K, V = (x if owner is None else x[:, owner] for x in (K, V))
    n, m = Q.shape[2], K.shape[2]
    may = np.ones((n, m), bool) if mask is None else mask
    if causal:
        may = may & causal_mask(n, m, align=causal)
        if window is not None:
            may = may & (np.arange(m) > np.arange(n)[:, None] - window)
    A = (Q.shape[-1] ** -0.5 if scale is None else scale) * Q @ K.swapaxes(-1, -2)
    soft = (lambda x: x) if cap is None else lambda x: cap * np.tanh(x / cap)
    E = 0.0 if added is None else added
    hide = lambda x: np.where(may, x, fill)  # noqa: E731
    A = {"A + E": lambda: hide(soft(A) + E), "cap(A + E)": lambda: hide(soft(A + E)),
         "cap(mask)": lambda: soft(hide(A + E))}[capped]()
    zero = 0 * Q[..., : 1], 0 * K[..., : 1]
    R = 1.0 if not dropout else (np.random.default_rng(0).random(A.shape) >= dropout) * kept
    if dO is not None:
        dQ, dK, dV, *_ = attention_vjp(dO, *zero, V, log * A)
        return 0 * Q + (dQ != 0).any(), 0 * K + (dK != 0).any(), dV
    P = attention(*zero, np.broadcast_to(np.eye(m), (*V.shape[:2], m, m)), log * A)
    return (P * R) @ V


def asked(question, *args, **fixed):
    def f(*x, **options):
        if options.pop("causal", False):
            options["causal"] = fixed.get("align", "upper_left")
        rest = {k: v for k, v in fixed.items() if k != "align"}
        if rest.pop("inverted", False) and "mask" in options:
            options["mask"] = ~options["mask"]
        return library(*x, **rest | options)

    return getattr(read_off, question)(f, *args)


CASES = [
    ("mask", {}, "may read"), ("mask", {"inverted": True}, "is hidden"),
    ("added", {}, "added"),
    ("causal", {}, "upper left"), ("causal", {"align": "lower_right"}, "lower right"),
    ("scale", {}, "1/√d_k"), ("scale", {"scale": 1.0}, "1"), ("scale", {"scale": 1 / 8}, "1/d_k"),
    ("order", {}, "cap, bias, mask"), ("order", {"capped": "cap(A + E)"}, "bias, cap, mask"),
    ("order", {"capped": "cap(mask)"}, "bias, mask, cap"),
    ("dropout", {"kept": 4 / 3}, "1/(1 − ρ)"), ("dropout", {"kept": 1.0}, "kept as they are"),
    ("groups", {"owner": np.arange(6) // 2}, "h // (H/G)"), ("groups", {"owner": np.arange(6) % 3}, "h mod G"),
    ("inside", {}, "own"), ("inside", {"log": 1 + 1e-7}, "float32"),
]


@pytest.mark.parametrize(("question", "choice", "answer"), CASES)
def test_each_question_has_the_answer_of_the_program(question, choice, answer):
    assert asked(question, **choice) == answer


@pytest.mark.parametrize(("question", "choice"), [
    ("scale", {"scale": 0.3}), ("scale", {"log": np.log(2)}), ("inside", {"log": 1.1}),
    ("groups", {"owner": np.array([0, 1, 1, 0, 2, 2])}), ("dropout", {"kept": 1.1}),
    ("causal", {"window": 1}), ("order", {"log": 1.1}),
])
def test_no_answer_is_given_where_none_fits(question, choice):
    if question == "causal":
        choice = {"fill": -1.0}
    with pytest.raises(ValueError, match="0 answers fit"):
        asked(question, **choice)


@pytest.mark.parametrize(("w", "answer"), [(0, "w"), (1, "w + 1")])
def test_a_window_with_and_without_the_own_key(w, answer):
    def f(*x, causal, window):
        return library(*x, causal="upper_left", window=window + w)

    assert read_off.window(f) == answer


@pytest.mark.parametrize("name", ["b h n d", "b n h d", "n b h d"])
def test_the_order_of_the_axes(name):
    axes = {"b h n d": (0, 1, 2, 3), "b n h d": (0, 2, 1, 3), "n b h d": (1, 2, 0, 3)}[name]
    back = np.argsort(axes)

    def raw(*x):
        return attention(*(a.transpose(axes) for a in x)).transpose(back)

    assert read_off.layout(raw) == name


@pytest.mark.parametrize(("row", "gradient", "answer"), [
    (0.0, lambda g, m: [0, 0, 0], "0; 0"),
    ("mean", lambda g, m: [0, 0, g / m], "mean; to V"),
    ("mean", lambda g, m: [1, 1, g / m], "mean; to Q, K, V"),
    ("mean", lambda g, m: [1, 1, g], "mean; to Q, K, V, m times too large"),
    (np.nan, lambda g, m: [np.nan, 0, 0], "NaN; NaN"),
    (0.0, None, "0"),
])
def test_the_answers_of_an_empty_row(row, gradient, answer):
    def f(Q, K, V, dO=None, mask=None):
        if dO is None:
            O = attention(Q, K, V, bias(mask))
            O[0, 0, 1] = V[0, 0].mean(0) if row == "mean" else row
            return O
        return gradient and [x + np.zeros_like(V) for x in gradient(dO[0, 0, 1], V.shape[2])]

    assert read_off.empty(f, mask=MAY) == answer


def test_the_base_of_a_logarithm():
    assert [read_off.base(np.full(3, x)) for x in (np.log(5), np.log2(5))] == ["e", "2"]


def test_a_claim_is_found_by_name_and_how_it_is_known():
    assert read_off.claimed("PyTorch SDPA, plain kernel")["causal"] == "upper left"
    with pytest.raises(StopIteration):
        read_off.claimed("a library that nobody knows")


def test_every_claim_is_in_a_table_and_says_how_it_is_known():
    tables = re.findall(r'overview\(\[(.*)\]\)', CHAPTER)
    columns = re.findall(r'"(\w+)"', " ".join(tables))
    assert columns == list(read_off.CLAIMS["columns"])
    for library in read_off.CLAIMS["library"]:
        assert library.keys() - {"name"} <= {"run", "adapters", "read"} and len(library) > 1
        for words in (library.get("run", {}), library.get("adapters", {}), library.get("read", {})):
            assert words.keys() <= set(columns)
        assert all(re.fullmatch(r"https://\S+", address) for _, address in library.get("read", {}).values())
        assert "run" not in library or f'"{library["name"]}"' in CHAPTER
    answers = {w for x in read_off.CLAIMS["library"] for how in ("run", "adapters") for w in x.get(how, {}).values()}
    assert set(read_off.CLAIMS["shown"]) <= answers


def test_a_table_marks_how_each_claim_is_known():
    lines = {line.split(" | ")[0]: line for line in read_off.overview(["causal", "scale"]).splitlines()}
    assert "| upper left | $1/\\sqrt{d_k}$ |" in lines["| PyTorch SDPA, plain kernel"]
    assert "| upper left\u00a0† |" in lines["| JAX `dot_product_attention`"]
    assert "[lower right](https://github.com/Dao" in lines["| FlashAttention 2 and 3"]
    assert "| Transformers, GPT-2" not in lines
