"""Memory grows with n + m: PyTorch's own count of bytes, at its highest, for every derivative."""

import json

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

from attnmath.torch import scaled_dot_product_attention as sdpa
from by_definition import DERIVATIVES, double_backward, gradients, plain, tangent
from strips import cut_into

n, m = 1600, 1700
MATRIX = 4 * n * m  # bytes of n x m numbers in float32


def highest(call, folder):
    """How many bytes were held at a time at most, more than before."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
        call()
    seen.export_chrome_trace(str(folder / "trace.json"))
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    held = most = 0
    for event in sorted((e for e in events if e.get("name") == "[memory]"), key=lambda e: e["ts"]):
        held += event["args"]["Bytes"]
        most = max(most, held)
    return most


def drawn(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


SEEN = drawn(n, m) > 0
CASES = {
    "plain": {},
    "causal": dict(is_causal=True),
    "boolean mask": dict(attn_mask=SEEN),
    "padding": dict(attn_mask=SEEN[:1]),
    "numbers": dict(attn_mask=torch.where(SEEN, 0.0, -torch.inf)),
    "one bias for all queries": dict(attn_mask=drawn(1, m)),
    "dropout": dict(dropout_p=0.3),
    "causal, dropout, wide values": dict(is_causal=True, dropout_p=0.3, d_v=7),
    "negative scale": dict(scale=-0.3, is_causal=True),
    "groups": dict(enable_gqa=True, H=2),
    "a cap": dict(softcap=2.0),
    "a window": dict(window=(300, 20)),
    "sinks and slopes": dict(of_heads=("sinks", "alibi_slopes")),
    "all of them": dict(of_heads=("sinks", "alibi_slopes"), softcap=2.0, window=(900, 0)),
}


@pytest.fixture(autouse=True)
def short_strips():
    """For these sizes, as the usual ones are for long sequences."""
    with cut_into(512, 2**15, 2**13, fewest=16):
        yield


def problem(case):
    """A function and what it is differentiated with; a bias that is the same for all queries moves too."""
    case = dict(CASES[case])
    H, d_v, of_heads = case.pop("H", 1), case.pop("d_v", 4), case.pop("of_heads", ())
    x = [drawn(1, H, n, 4), drawn(1, 1, m, 4), drawn(1, 1, m, d_v)]
    if case.get("attn_mask") is not None and case["attn_mask"].shape == (1, m) and case["attn_mask"].is_floating_point():
        x.append(case.pop("attn_mask"))
    x += [drawn(H) for _ in of_heads]

    def f(Q, K, V, *more):
        mask, more = more[: len(more) - len(of_heads)], more[len(more) - len(of_heads) :]
        return sdpa(Q, K, V, *mask, **dict(zip(of_heads, more)), **case)

    x_bar = tuple(torch.randn_like(y) for y in x)
    return f, tuple(x), x_bar, x_bar, drawn(1, H, n, d_v), drawn(1, H, n, d_v)


ALL = "numbers", "causal, dropout, wide values", "all of them"  # in the other cases, one that stands for each of the passes


@pytest.mark.parametrize("case, derivative", [
    (case, f) for case in CASES for f in (DERIVATIVES if case in ALL else (gradients, tangent, double_backward))
])
def test_far_less_than_a_matrix(case, derivative, tmp_path):
    given = problem(case)
    assert highest(lambda: derivative(*given), tmp_path) < MATRIX / 4


def test_a_matrix_is_seen(tmp_path):
    assert highest(lambda: plain(*problem("plain")[1]), tmp_path) >= 2 * MATRIX


def test_so_is_one_inside_of_a_kernel(tmp_path):
    """PyTorch makes numbers of a boolean mask: a matrix, which comes out of no operation."""
    kernel = torch.nn.functional.scaled_dot_product_attention
    assert highest(lambda: kernel(*problem("plain")[1], attn_mask=SEEN), tmp_path) >= MATRIX
