"""Tables and figure of what the benchmarks of second order and of rounding have measured."""

import json

import numpy as np
import pytest

from attnmath.book import measured as m


def record(times=2.0, memory=1.0):
    """Times and memory that grow with given powers of n."""
    data = {"measured on": {"device": "P", "cores": 3, "threads": 2, "torch": "9.1"}, "times": {}, "memory": {}}
    for n in m.TOKEN_COUNTS:
        for causal in (False, True):
            key = m.point(n, 1, causal)
            ratios = {name: [1 + causal + i, 7.0] for i, name in enumerate(m.RATIO_ROWS.values())}
            data["times"][key] = {"ms": {name: [n**times, 0] for name in m.LINES}, "ratios": ratios}
            data["memory"][key] = {name: n**memory + causal for name in m.LINES}
    return data


@pytest.mark.parametrize("power", [0.5, 1.0, 2.0])
def test_the_slope_is_the_power(power):
    n = np.array(m.TOKEN_COUNTS)
    assert m.power_of_n(n, 3 * n**power) == pytest.approx(power, abs=1e-12)
    bent = np.where(n < 1024, 1000.0, n**power)  # where n is small, other things take the time
    assert m.power_of_n(n, bent) == pytest.approx(power, abs=1e-12)


def test_the_figure_has_a_line_for_each_program_and_gives_the_slopes():
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    slopes = m.scaling_figure(record())
    lines = [line for ax in plt.gcf().axes for line in ax.lines]
    assert len(lines) == 2 * len(m.LINES) == len(slopes)
    for (_, what), found in slopes.items():
        assert found == pytest.approx({"times": 2, "memory": 1}[what], abs=1e-9)
    assert lines[0].get_label().endswith(": 2.0") and lines[-1].get_label().endswith(": 1.0")
    plt.close("all")


def test_the_tables_have_the_figures_of_the_record():
    rows = m.ratio_table(record()).data.splitlines()
    assert rows[0] == "| time of, by n | 512 | 1024 | 2048 | 4096 | 8192 |"
    assert rows[2].startswith("| forward / fused forward | 1.00 (2.00) |") and len(rows) == 2 + len(m.RATIO_ROWS)
    assert set(m.ratio_table(record(), heads=8).data.splitlines()[2].split("|")[2:-1]) == {"  "}  # not measured
    step = {"n": 64, "math_s": 3.0, "ours_s": 2.0, "math_MiB": 90.4, "ours_MiB": 8.6}
    assert m.step_table({"applications": {"burgers": step}}).data.endswith("| Burgers | 64 | 1.50 | 9 | 90 |")
    assert m.machine(record()) == "P, 3 cores, 2 threads, PyTorch 9.1"


def test_the_table_of_errors_over_bounds_has_the_worst_program_and_what_lies_outside():
    rows = m.sharpness_table(m.sharpness()).data.splitlines()
    assert rows[0] == "| error over bound | float32 | float16 | bfloat16 |" and len(rows) == 2 + 9 + 1
    data = {"problems": {"float16": {}}, "letters": {
        "all": {"float16": {"O": [0.25, "one", "f"]}}, "fused": {"float16": {"O": [0.5, "two", "g"]}}, "cut off": {}}}
    assert m.worst_over_bound(data, "O", "float16") == (0.5, "two")


def test_the_record_of_the_package_is_whole():
    data = m.measured()
    assert json.loads(json.dumps(data)) == data
    assert set(data) == {"measured on", "times", "kept", "memory", "applications", "long"}
    for n in m.TOKEN_COUNTS:
        for causal in (False, True):
            assert {*m.LINES} <= {*data["memory"][m.point(n, 1, causal)]}
            assert {*m.RATIO_ROWS.values()} <= {*data["times"][m.point(n, 1, causal)]["ratios"]}
            for least, middle in data["times"][m.point(n, 1, causal)]["ms"].values():
                assert 0 < least <= middle
    assert "ours jvp" in data["long"]
    assert all(each["MiB"] < 256 and each["n"] == 65536 for each in data["long"].values())
    assert {*data["applications"]} == {*m.APPLICATIONS}


def test_the_tables_of_a_ring_have_what_was_sent_and_the_other_ways_on_paper():
    each = {"derivative": "forward", "ranks": 4, "sent": 1234, "formula": 1234, "n": 8, "h": 3, "d_k": 2, "d_v": 5,
            "itemsize": 8}  # 2 keys of 3 heads on a rank, 7 numbers each
    assert m.on_paper(each) == (3 * 2 * 3 * 7 * 8, 3 / 4 * 2 * 3 * 14 * 8)
    assert m.on_paper(each | {"derivative": "backward"})[0] == 2 * m.on_paper(each)[0]
    tiles = {"layout": "zigzag", "ranks": 2, "tiles": [18, 19], "rows": 8}
    data = {"bytes": [each], "tiles": [tiles]}
    assert m.bytes_table(data).data.endswith("| forward, 4 ranks | 1,234 | 1,234 | 1,008 | 504 |")
    assert m.tiles_table(data).data.endswith("| zigzag, 2 ranks | 18, 19 | 8 |")


def test_the_record_of_a_ring_is_whole():
    data = m.ring_record()
    assert data["header"] == 8 * 17
    assert all(each["sent"] == each["formula"] > 0 for each in data["bytes"])
    assert {each["derivative"] for each in data["bytes"]} == {"forward", "backward", "jvp", "double backward"}
    assert all(len(each["tiles"]) == each["ranks"] for each in data["tiles"])


def test_the_table_of_what_is_compiled_has_a_row_for_each_kernel_and_a_column_for_each_chip():
    row = dict(chip=80, dtype="bfloat16", d=64, option="causal", kernel="output", of="", rows=128, keys=64,
               registers=200, shared=24576)
    rows = [row, row | dict(chip=90, registers=125, shared=33000), row | dict(option="bias"), row | dict(d=32),
            row | dict(kernel="by_rows", of="second", keys=32), row | dict(dtype="float32")]
    text = m.compiled_table(rows).data
    assert text.splitlines()[0] == "| kernel | tile | sm_80 | sm_90 |"
    assert text.splitlines()[2:] == ["| `output` | 128 x 64 | 200, 24 | 125, 32 |",
                                     "| `by_rows`, second | 128 x 32 | 200, 24 |"]
    assert {row["chip"] for row in m.compiled_record()} == {80, 90, 100}
