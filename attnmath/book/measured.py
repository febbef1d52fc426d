"""What benchmarks/second_order.py, rounding.py, ring.py and compiled.py have found: tables and a figure."""

import json
from collections.abc import Iterable
from importlib.resources import files
from typing import Any

import numpy as np

from attnmath.book.notebook import as_table

TOKEN_COUNTS = (512, 1024, 2048, 4096, 8192)
RATIO_ROWS = {
    "forward / fused forward": "ours forward / fused forward",
    "both passes / fused both passes": "ours backward / fused backward",
    "JVP / fused forward": "ours jvp / fused forward",
    "math JVP / JVP": "math jvp / ours jvp",
    "double backward / fused both passes": "ours double / fused backward",
    "math double backward / double backward": "math double / ours double",
    "math, all three passes / all three passes": "math second / ours second",
}
LINES = {
    "math second": "math, double backward",
    "math jvp": "math, JVP",
    "ours second": "ours, double backward",
    "ours jvp": "ours, JVP",
    "fused backward": "fused, backward",
}
PASSES = {"jvp": "tangent"}  # as the page calls them
APPLICATIONS = {"mean_flow": "mean velocity", "penalised": "gradient penalty", "burgers": "Burgers"}


def measured() -> dict[str, Any]:
    """The record."""
    return json.loads(files("attnmath.book").joinpath("second_order.json").read_text("utf-8"))


def sharpness() -> dict[str, Any]:
    """The record of the worst errors of right programs over their bounds of rounding."""
    return json.loads(files("attnmath.book").joinpath("rounding.json").read_text("utf-8"))


def worst_over_bound(data: dict, letter: str, dtype: str) -> tuple[float, str]:
    """The largest of a letter in a format, of all programs that lie inside, and whose it is."""
    each = (formats.get(dtype, {}) for formats in data["letters"].values())
    found = [here[letter][:2] for here in each if letter in here]
    ratio, program = max(found)
    return ratio, program


def sharpness_table(data: dict) -> Any:
    """Letter by letter and format by format the worst error over its bound, and whose it is.

    Last what may lie outside, and in which family of problems.
    """
    letters = {"O": "$O$", "L": "$L$", "dP": "$dP$", "D": "$D$", "dQ": "$dQ$", "dK": "$dK$", "dV": "$dV$",
               "dB": "$dB$", "dgamma": "$d\\gamma$"}
    heads = list(data["problems"])
    rows = {name: ["{:.2f} ({})".format(*worst_over_bound(data, letter, dtype)) for dtype in heads]
            for letter, name in letters.items()}
    outside = data["programs"]["PyTorch, flash"]
    rows["$L$ of PyTorch, flash"] = ["{:.2f} ({})".format(*outside[dtype]["L"]) for dtype in heads]
    return _table("error over bound", heads, rows.items())


def machine(data: dict) -> str:
    """On what it was measured, in a line."""
    about = data["measured on"]
    kind = f" ({about['instructions']})" if "instructions" in about else ""
    return f"{about['device']}{kind}, {about['cores']} cores, {about['threads']} threads, PyTorch {about['torch']}"


def point(n: int, heads: int, causal: bool) -> str:
    return f"n = {n}, H = {heads}" + ", causal" * causal


def ratio_table(data: dict, heads: int = 1) -> Any:
    """The ratios of the shortest times by n; in brackets those with the causal mask."""
    def cell(name: str, n: int) -> str:
        pair = [data["times"].get(point(n, heads, causal), {"ratios": {}})["ratios"].get(name)
                for causal in (False, True)]
        return "" if None in pair else "{:.2f} ({:.2f})".format(*(each[0] for each in pair))

    rows = {row: [cell(name, n) for n in TOKEN_COUNTS] for row, name in RATIO_ROWS.items()}
    return _table("time of, by n", TOKEN_COUNTS, rows.items())


def step_table(data: dict) -> Any:
    """One training step of each application: math over ours in time, and MiB of both."""
    rows = {APPLICATIONS[name]: [str(each["n"]), f"{each['math_s'] / each['ours_s']:.2f}",
                          f"{each['ours_MiB']:.0f}", f"{each['math_MiB']:.0f}"]
            for name, each in data["applications"].items()}
    heads = ["tokens", "time, math / ours", "MiB, ours", "MiB, math"]
    return _table("step", heads, rows.items())


def ring_record() -> dict[str, Any]:
    """The record of what the ranks of a ring sent, and how many tiles each computed."""
    return json.loads(files("attnmath.book").joinpath("ring.json").read_text("utf-8"))


def tiles_table(data: dict) -> Any:
    """The tiles that each rank computed under a causal mask, from rank 0 on."""
    rows = {f"{each['layout']}, {each['ranks']} ranks": [", ".join(map(str, each["tiles"])), str(each["rows"])]
            for each in data["tiles"]}
    return _table("layout", ["tiles of each rank", "tiles in a row"], rows.items())


def bytes_table(data: dict) -> Any:
    """What a rank sent, by running and by the formula; on paper, gathered keys and all-to-all instead."""
    rows = {f"{PASSES.get(each['derivative'], each['derivative'])}, {each['ranks']} ranks":
            [f"{each[name]:,}" for name in ("sent", "formula")] + [f"{x:,.0f}" for x in on_paper(each)]
            for each in data["bytes"]}
    return _table("pass", ["sent", "formula", "gathered keys", "all-to-all"], rows.items())


def on_paper(each: dict) -> tuple[float, float]:
    """The bytes a rank sends if it gathers keys, and if it exchanges tokens for heads; no headers.

    Keys are gathered again in each pass; after an exchange what came is kept. n is
    the number of keys of all ranks, and of queries, whose heads are those of the keys.
    """
    ranks, k, v = each["ranks"], each["d_k"], each["d_v"]
    own = each["n"] * each["h"] * each["itemsize"] / ranks
    blocks, exchanged = {
        "forward": (1, 2 * (k + v)),
        "backward": (2, 2 * (k + v)),
        "jvp": (2, 2 * (k + v)),
        "double backward": (5, 4 * k + 3 * v),
    }[each["derivative"]]
    return (ranks - 1) * blocks * (k + v) * own, (ranks - 1) / ranks * exchanged * own


def gpu_record() -> dict[str, Any] | None:
    """The record of benchmarks/gpu.py, None if there is none."""
    path = files("attnmath.book").joinpath("gpu.json")
    return json.loads(path.read_text("utf-8")) if path.is_file() else None


def gpu_table(data: dict | None) -> Any:
    """What was measured on a GPU, a row for each of data["rows"], which have the same names in the same order."""
    if data is None:
        return as_table("| on a GPU |\n| --- |\n| not measured |")
    first, *names = data["rows"][0]
    return _table(first, names, ((str(row[first]), [str(row[x]) for x in names]) for row in data["rows"]))


def compiled_record() -> list[dict[str, Any]]:
    """The record of benchmarks/compiled.py: what the kernels take of three chips, that need not be there."""
    return json.loads(files("attnmath.book").joinpath("compiled.json").read_text("utf-8"))


def compiled_table(data: list[dict], dtype: str = "bfloat16", d: int = 64, option: str = "causal") -> Any:
    """For one size of the heads: each kernel's tile, and on each chip registers of a thread, KiB of a block."""
    chips = list(dict.fromkeys(row["chip"] for row in data))
    cells: dict[str, list[str]] = {}
    for row in data:
        if (row["dtype"], row["d"], row["option"]) == (dtype, d, option):
            of = f", {row['of']}" if row["of"] else ""
            tile = cells.setdefault(f"`{row['kernel']}`{of}", [f"{row['rows']} x {row['keys']}"])
            tile.append(f"{row['registers']}, {row['shared'] / 1024:.0f}")
    return _table("kernel", ["tile", *(f"sm_{chip}" for chip in chips)], cells.items())


def _table(first: str, heads: Any, rows: Iterable) -> Any:
    top = [first, *map(str, heads)]
    lines = [top, ["---"] + ["---:"] * len(heads), *([name, *cells] for name, cells in rows)]
    return as_table("\n".join("| " + " | ".join(line) + " |" for line in lines))


def curve(data: dict, name: str, what: str, *, heads: int = 1, causal: bool = False) -> tuple:
    """n, and the milliseconds ("times") or MiB ("memory") of a program there, where measured."""
    found = {}
    for n in TOKEN_COUNTS:
        here = data[what].get(point(n, heads, causal), {})
        here = here.get("ms", {}) if what == "times" else here
        if name in here:
            found[n] = here[name][0] if what == "times" else here[name]
    return np.array(list(found)), np.array(list(found.values()))


def power_of_n(n: np.ndarray, y: np.ndarray) -> float:
    """The power of n with which y grows, from n = 1024 on."""
    far = (n >= 1024) & (y > 0)
    return float(np.polyfit(np.log(n[far]), np.log(y[far]), 1)[0])


def scaling_figure(data: dict, *, causal: bool = False) -> dict:
    """Time and memory against n, log-log, one head.  -> the slopes, by program and "times" or "memory" """
    import matplotlib.pyplot as plt

    slopes = {}
    _, panels = plt.subplots(2, 1, figsize=(5.2, 7.2))
    for ax, (what, unit) in zip(panels, (("times", "milliseconds"), ("memory", "MiB"))):
        for (name, label), mark in zip(LINES.items(), "os^vD"):
            n, y = curve(data, name, what, causal=causal)
            slopes[name, what] = power_of_n(n, y)
            ax.loglog(n, y, marker=mark, ms=4, label=f"{label}: {slopes[name, what]:.1f}")
        ax.set(xlabel="$n$", ylabel=unit, xticks=TOKEN_COUNTS)
        ax.set_xticks(TOKEN_COUNTS, map(str, TOKEN_COUNTS))
        ax.minorticks_off()
        ax.set_ylim(top=12 * ax.get_ylim()[1])                  # room for the legend
        ax.legend(loc="upper left", fontsize=10.5, labelspacing=0.3,
                  title="program: its slope", title_fontsize=10.5)
    return slopes
