"""What benchmarks/gpu.py and benchmarks/compiled.py make of what they have found; neither GPU nor Triton is needed."""

import json
import sys
from argparse import Namespace
from pathlib import Path
from unittest.mock import patch

import pytest

from attnmath.torch.triton_blocks import blocks

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import compiled  # noqa: E402
import gpu  # noqa: E402


def point(n, jvp, double, *, memory=None, math=None, dtype="bfloat16", heads=2):
    """A point as it is recorded; the fused kernel takes 10 ms forward, 35 ms for both passes."""
    def found(ms, **more):
        return {"ms": [ms, ms + 1], "MiB": None, "TFLOP/s": 1.0, "share": 0.25, **more} if ms else {"absent": "memory"}

    none = {source: found(None) for source in gpu.SOURCES}
    return dict(dtype=dtype, d=64, causal=False, n=n, heads=heads, passes={
        "forward": none | {"fused": found(10.0), "triton": found(12.0)},
        "backward": none | {"fused": found(35.0)},
        "jvp": none | {"triton": found(jvp), "math": found(math), "strips": found(1.0)},
        "double": none | {"triton": found(double, MiB=memory), "math": found(math)},
    })


def test_rows_say_the_ratios_at_the_longest_length():
    (row,) = gpu.rows([point(1024, 11.0, 22.0, memory=8.0), point(4096, 30.0, 70.0, memory=32.0, math=90.0)])
    assert row == {
        "numbers": "bfloat16, 64", "n": 4096,
        "jvp / fused forward (goal 3.3)": "3.00", "fastest peer / jvp": "3.00", "jvp, share of the chip": "25%",
        "double / fused backward (goal 2.5)": "2.00", "fastest peer / double": "1.29", "double, share of the chip": "25%",
        "memory of the double backward grows as n to the": "1.00",
    }


def test_memory_that_grows_with_the_square_is_said():
    (row,) = gpu.rows([point(1024, 1.0, 1.0, memory=2.0, heads=64), point(4096, 1.0, 1.0, memory=8.0, heads=16)])
    assert row["memory of the double backward grows as n to the"] == "2.00"


def test_what_is_absent_is_a_dash():
    (row,) = gpu.rows([point(1024, None, 5.0)])
    assert row["jvp / fused forward (goal 3.3)"] == row["fastest peer / jvp"] == row["jvp, share of the chip"] == "-"


def test_goals_are_counted_and_the_strips_are_no_peer():
    found = gpu.goals([point(1024, 33.0, 87.6), point(4096, 33.1, 87.5, math=33.05)])
    assert found == {
        "jvp at most 3.3 times the fused forward": [1, 2], "jvp faster than a peer": [0, 1],
        "double at most 2.5 times the fused backward": [1, 2], "double faster than a peer": [0, 1],
    }


def test_half_the_products_under_a_causal_mask():
    p = gpu.Point("bfloat16", 64, False, 1024, 2)
    assert gpu.operations(p, "forward") == 4 * 2 * 1024**2 * 64  # as FlashAttention counts
    assert gpu.operations(p._replace(causal=True), "backward") == 7 * 2 * 1024**2 * 64


@pytest.mark.parametrize("name, peak", [("NVIDIA H100 PCIe", 756.0), ("NVIDIA H100 80GB HBM3", 989.4), ("NVIDIA H200", 989.4),
                                        ("NVIDIA A100-SXM4-80GB", 312.0), ("NVIDIA T4", None)])
def test_the_peak_of_a_chip(name, peak):
    with patch.object(gpu.torch.cuda, "get_device_name", lambda: name):
        assert gpu.peak("bfloat16", "cuda") == peak
        assert gpu.peak("bfloat16", "cpu") is None


def test_points_begin_with_what_tells_most_and_have_the_same_tokens():
    found = list(gpu.points(gpu.SIZES, gpu.HEADS))
    assert len(found) == len({*found}) == 7 * 8 and {p.n for p in found} == {2**k for k in range(10, 17)}
    assert all(p.n * p.heads == max(gpu.TOKENS, 2 * p.n) for p in found)


def test_a_kernel_that_is_off_stops_before_anything_is_measured():
    off = [dict(roundoffs=3.0, allowed=20), dict(roundoffs=float("nan"), allowed=20)]
    given = Namespace(minutes=8, dry=True, seconds=0)
    with (patch.object(gpu, "checks", lambda *_: iter(off)), patch.object(gpu, "machine", lambda _: {}),
          patch.object(gpu, "measured", lambda *_: pytest.fail("it was measured"))):
        data = gpu.record("cpu", given)
    assert data["points"] == [] and "rows" not in data


def test_a_point_for_which_there_is_no_time_is_named():
    with (patch.object(gpu, "checks", lambda *_: iter([])), patch.object(gpu, "machine", lambda _: {}),
          patch.object(gpu, "measured", lambda *_: {"absent": "memory"})):
        late = gpu.record("cpu", Namespace(minutes=0, dry=True, seconds=0))
        data = gpu.record("cpu", Namespace(minutes=8, dry=True, seconds=0))
    assert late["points"] == [] and len(late["no time for"]) == len(data["points"]) == 8
    json.dumps(data)
    assert {*data} == {"measured on", "dry", "checks", "points", "rows", "goals"} and data["dry"]


def test_a_dry_run_is_not_written_into_the_book(capsys):
    with patch.object(sys, "argv", ["gpu.py", "--dry", "--out", str(gpu.RESULTS)]), pytest.raises(SystemExit):
        gpu.main()
    assert "measures nothing" in capsys.readouterr().err


# ---- the table of what is compiled

KINDS = {"output": "forward", "output_jvp": "jvp", "by_rows": "rows", "by_columns": "columns", "by_tiles": "tiles"}


def kept():
    return json.loads(compiled.KEPT.read_text("utf-8"))


def test_all_pairs_are_compiled():
    found = compiled.pairs()
    options, dtypes = {"plain", *compiled.OPTIONS}, [*compiled.DTYPES]
    assert {(x.option, x.d) for x in found} == {(o, d) for o in options for d in compiled.SIZES}
    assert {(x.option, x.dtype) for x in found} == {(o, t) for o in options for t in dtypes}
    assert {(x.option, x.chip) for x in found} == {(o, c) for o in options for c in compiled.CHIPS}
    assert {(x.d, x.dtype) for x in found} == {(d, t) for d in compiled.SIZES for t in dtypes} - {(256, "float32")}


def test_the_table_has_no_fault_and_the_tiles_of_today():
    rows = kept()
    assert compiled.faults(rows) == []
    for row in rows:
        more = row["option"] in ("bias", "booleans", "dropout")
        cut = blocks(KINDS[row["kernel"]], row["d"], compiled.DTYPES[row["dtype"]], more)
        assert (row["rows"], row["keys"], row["warps"], row["stages"]) == cut[:4], compiled.line(row)


def test_what_is_kept_is_the_whole_table():
    assert {compiled.place(row)[:4] for row in kept()} == {*compiled.defaults(), *compiled.pairs(), *compiled.SLICE}


@pytest.mark.parametrize("change", [dict(spilled=8), dict(shared=228 * 1024), dict(tensor_memory=513), dict(failed="no")])
def test_a_fault_is_found(change):
    row = next(row for row in kept() if row["option"] == "causal")
    assert compiled.faults([row]) == [] and len(compiled.faults([row | change])) == 1


def test_a_change_is_found():
    row, other = kept()[:2]
    assert compiled.changed([row | dict(seconds=3.0)], [row, other]) == []
    (said,) = compiled.changed([row | dict(registers=row["registers"] + 1)], [row, other])
    assert "was" in said


def test_what_is_compiled_anew_takes_the_place_of_what_is_kept():
    row, other = kept()[:2]
    again = json.loads(compiled.merged([row, other], [row | dict(registers=1, seconds=2.0)]))
    assert again == [row | dict(registers=1), other]
    assert json.loads(compiled.merged([row], [other | dict(option="unknown")])) == [row]
