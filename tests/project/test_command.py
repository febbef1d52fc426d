"""The command: what it is told, what it says, and its exit status; and what a test calls."""

import argparse
import json
import subprocess
import sys
import textwrap
from xml.etree import ElementTree

import pytest

import attnmath
from attnmath.__main__ import main
from attnmath._examine.report.display import Progress
from attnmath._examine.report.report import Finding, Report
from attnmath.testing import assert_attention_gradients, assert_layer_gradients

RIGHT = """
    import threading
    import numpy as np

    def forward(q, k, v, is_causal=False):
        return weights(q, k, is_causal) @ v

    def weights(q, k, is_causal):
        a = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]).astype(q.dtype)
        n, m = a.shape[-2:]
        if is_causal:
            a = np.where(np.arange(m) <= np.arange(n)[:, None] + m - n, a, -np.inf)
        e = np.where(np.isneginf(a), 0, np.exp(a - np.maximum(a.max(-1, keepdims=True), -1e4)))
        total = e.sum(-1, keepdims=True)
        return e / np.where(total == 0, 1, total)

    def backward(do, q, k, v, is_causal=False):
        p, s = weights(q, k, is_causal), 1 / np.sqrt(q.shape[-1]).astype(q.dtype)
        dp = do @ v.swapaxes(-1, -2)
        da = p * (dp - (p * dp).sum(-1, keepdims=True))
        return s * da @ k, s * da.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ do

    def wrong(do, q, k, v, is_causal=False):
        dq, dk, dv = backward(do, q, k, v, is_causal)
        return dq * np.sqrt(q.shape[-1]).astype(q.dtype), dk, dv

    def noisy(q, k, v, is_causal=False):
        print("a word from the candidate")
        return forward(q, k, v, is_causal)

    def hangs(q, k, v):
        threading.Event().wait()

    def raises(q, k, v):
        raise RuntimeError("no such kernel")

    number = 3
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder to stand in, with a module of somebody's own."""
    (tmp_path / "sub").mkdir()
    for place in ("mine_to_examine.py", "sub/other_to_examine.py"):
        (tmp_path / place).write_text(textwrap.dedent(RIGHT))
    (tmp_path / "needs_more.py").write_text("import a_library_that_nobody_has\n")
    (tmp_path / "jax_is_missing.py").write_text("raise ModuleNotFoundError('no jax', name='jax.numpy')\n")
    monkeypatch.setattr("attnmath._examine.contract.functions.find_spec", lambda name: None if name == "jax" else name)
    (tmp_path / "does_not_parse.py").write_text("x = 1\ndef f(:\n")
    (tmp_path / "ends_it_all.py").write_text("import sys\nsys.exit(0)\n")
    (tmp_path / "fails_at_once.py").write_text("raise OSError('no\\nGPU')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", sys.path[:])
    before = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - before:
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


@pytest.fixture
def asked(monkeypatch):
    """What examine would have been asked; its answer can be set."""
    found = argparse.Namespace(report=Report("right", "f"), calls=[])

    def examine(*args, **options):
        found.calls.append((args, options))
        return found.report

    monkeypatch.setattr(attnmath, "examine", examine, raising=False)
    monkeypatch.setattr("attnmath._examine.examine.examine", examine)
    return found


def shell(*words, cwd=None):
    return subprocess.run([sys.executable, "-m", "attnmath", *words], cwd=cwd, capture_output=True, text=True)


PAIR = ("mine_to_examine:forward", "--backward", "mine_to_examine:backward")


def test_a_right_pair_in_a_file_and_in_a_module(folder, capsys):
    assert main(["examine", *PAIR, "--options", "causal=is_causal"]) == 0
    assert capsys.readouterr().out.startswith("forward is right")
    file = "sub/other_to_examine.py"
    assert main(["examine", f"{file}:forward", "--backward", f"{file}:backward", "--dtype", "float32"]) == 0


def test_a_wrong_one_is_named(folder, capsys):
    words = ["examine", PAIR[0], "--backward", "mine_to_examine:wrong", "--json", "--junit", "found.xml"]
    assert main(words) == 1
    report = Report.from_json(capsys.readouterr().out)
    assert report.wrong and report.findings[0].name == "dQ_noscale"
    assert "mine_to_examine import forward" in report.smallest
    suite = ElementTree.parse(folder / "found.xml").find("testsuite")
    assert suite.find("testcase/failure") is not None and int(suite.get("failures")) > 1


def test_one_that_raises_is_not_judged(folder, capsys):
    assert main(["examine", "mine_to_examine:raises", "--framework", "numpy"]) == 2
    assert "no such kernel" in capsys.readouterr().out


def test_what_the_candidate_prints_is_no_part_of_the_report(folder, capsys):
    words = ["examine", "mine_to_examine:noisy", "--backward", PAIR[2], "--json"]
    assert main(words) == 0
    told = capsys.readouterr()
    report = Report.from_json(told.out)
    assert report.right and [x.name for x in report.hazards] == ["prints"] and told.err == ""


def test_what_ends_the_process_is_told(folder, capsys):
    """The command goes on; in its own process it would end with the candidate."""
    (folder / "ending.py").write_text("import os\ndef f(q, k, v): os._exit(0)\n")
    assert main(["examine", "ending:f"]) == 2
    assert "the process ended itself with the exit status 0" in " ".join(capsys.readouterr().out.split())
    assert shell("examine", "ending:f", "--in-process", cwd=folder).stdout == ""
    (folder / "ending_at_once.py").write_text("import os\nos._exit(0)\n")
    assert main(["examine", "ending_at_once:f"]) == 2


@pytest.mark.parametrize(("target", "message"), [
    ("mine_to_examine", "'mine_to_examine' names no function; write mine_to_examine:function"),
    (":f", "':f' names no function; write f:function"),
    ("nowhere_to_be:f", "there is no module nowhere_to_be; the current folder was searched too"),
    ("json.nowhere:f", "there is no module json.nowhere; the current folder was searched too"),
    ("nowhere.py:f", "there is no file nowhere.py"),
    ("sub/nowhere:f", "there is no file sub/nowhere"),
    ("./sub:f", "./sub is a folder"),
    ("..mine_to_examine:f", "'..mine_to_examine' is no module; write its name from the current folder, or its path"),
    ("jax_is_missing:f", "jax_is_missing: jax is not installed: pip install 'attnmath[adapters]'"),
    ("mine_to_examine:forwad", "mine_to_examine has no 'forwad'; did you mean forward?"),
    ("mine_to_examine:forward.deep", "mine_to_examine has no 'forward.deep'"),
    ("mine_to_examine:number", "mine_to_examine:number is int; it needs to be callable"),
    ("needs_more:f", "needs_more needs a_library_that_nobody_has, which is not installed"),
    ("needs_more.py:f", "needs_more.py needs a_library_that_nobody_has, which is not installed"),
    ("does_not_parse:f", "does_not_parse could not be imported: "),
    ("ends_it_all:f", "ends_it_all ends the program when it is imported"),
    ("fails_at_once:f", "fails_at_once could not be imported: OSError: no GPU"),
])
def test_what_cannot_be_loaded_is_one_clear_line(folder, capsys, target, message):
    assert main(["examine", target]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1
    assert told.err.startswith(f"attnmath examine: {message}")


def test_a_file_does_not_take_the_place_of_a_library(folder, asked):
    (folder / "json.py").write_text("def f(q, k, v): return v\n")
    assert main(["examine", "json.py:f", "--in-process"]) == 0
    assert sys.modules["json"] is json and asked.calls[0][0][0].__module__ == "examined_json"


def test_everything_that_is_told_is_passed_on(folder, asked):
    words = ["--options", "mask=attn_mask,causal=always,scale,groups", "--conventions", "causal=lower_right",
             "--dtype", "float16", "--layout", "bshd", "--framework", "numpy", "--device", "cpu",
             "--seed", "7", "--time-limit", "2.5", "--no-smallest", "--reference", PAIR[0], "--scale", "1",
             "--without", "dV,window", "--in-process", "--ranks", "4"]
    assert main(["examine", *PAIR, *words]) == 0
    (fn, backward), options = asked.calls[0]
    assert (fn.__name__, backward.__name__) == ("forward", "backward")
    assert callable(options.pop("progress")) and options.pop("reference").__name__ == "forward"
    assert options == dict(
        options={"mask": "attn_mask", "causal": True, "scale": "scale", "groups": None},
        conventions={"causal": "lower_right"}, dtype="float16", layout="bshd", framework="numpy", ranks=4,
        device="cpu", seed=7, time_limit=2.5, smallest=False, scale="1",
        without=["dV", "window"],
    )


@pytest.mark.parametrize(("words", "message"), [
    (["--options", "mask=m,maks=x"], "'maks' is none of mask, bias, causal"),
    (["--conventions", "causal"], "causal: it needs to be NAME=VALUE"),
    (["--conventions", "casual=x"], "'casual' is none of layout, mask"),
    (["--time-limit", "0"], "0: it needs to be a number of seconds above 0"),
    (["--time-limit", "nan"], "nan: it needs to be a number of seconds above 0"),
    (["--time-limit", "soon"], "soon: it needs to be a number of seconds above 0"),
    (["--dtype", "int8"], "invalid choice: 'int8'"),
    (["--seed", "x"], "invalid int value: 'x'"),
])
def test_words_that_are_not_understood(words, message, capsys):
    with pytest.raises(SystemExit) as left:
        main(["examine", "m:f", *words])
    told = capsys.readouterr().err
    assert left.value.code == 2 and message in told and told.count("\n") == 2


@pytest.mark.parametrize("error", [ValueError("layout is\n 'x'"), TypeError("t"), ImportError("jax is not there")])
def test_what_examine_refuses_is_one_clear_line(folder, monkeypatch, capsys, error):
    def refuse(*args, **options):
        raise error

    monkeypatch.setattr(attnmath, "examine", refuse, raising=False)
    assert main(["examine", PAIR[0]]) == 2
    assert capsys.readouterr().err == f"attnmath examine: {' '.join(str(error).split())}\n"


@pytest.mark.parametrize(("error", "told"), [(KeyboardInterrupt(), "interrupted\n"), (KeyError("ours"), "KeyError")])
def test_an_error_of_ours_is_never_the_status_of_a_wrong_one(folder, monkeypatch, capsys, error, told):
    def fail(*args, **options):
        raise error

    monkeypatch.setattr(attnmath, "examine", fail, raising=False)
    assert main(["examine", PAIR[0]]) == 2
    assert told in capsys.readouterr().err


def test_quiet_says_the_verdict_in_one_line(folder, asked, capsys):
    asked.report = Report("wrong", "f", findings=(Finding("mistake", "D_missing", "the row term is missing"),))
    assert main(["examine", PAIR[0], "--quiet"]) == 1
    assert capsys.readouterr().out == "f is wrong: the row term is missing\n"


def test_a_file_that_cannot_be_written(folder, asked, capsys):
    assert main(["examine", PAIR[0], "--junit", "nowhere/found.xml"]) == 2
    assert capsys.readouterr().err.startswith("attnmath examine: nowhere/found.xml cannot be written: ")


@pytest.mark.parametrize(("wanted", "screen", "told"), [
    (True, True, f"\r   2 s  the second of four\r{'   3 s  third':26}\r   4 s  fourth\r{'':14}\r"),
    (True, False, "   2 s  the second of four\n   4 s  fourth\n"),
    (False, False, ""),
])
def test_progress_is_told_when_it_takes_long(capsys, monkeypatch, wanted, screen, told):
    clock = [0.0]
    monkeypatch.setattr("attnmath._examine.report.display.time.monotonic", lambda: clock[-1])
    say = Progress(wanted, screen)
    for what in ("first", "the second of four", "third", "fourth"):
        clock.append(clock[-1] + 1.0)
        say(what)
    say.end()
    assert capsys.readouterr().err == told


def test_vectors(tmp_path, capsys):
    assert main(["vectors", str(tmp_path / "v"), "--format", "npz", "--dtype", "float16"]) == 0
    assert capsys.readouterr().out.endswith(f" and index.json: {tmp_path / 'v'}\n")
    index = json.loads((tmp_path / "v" / "index.json").read_text("utf-8"))
    assert {entry["dtype"] for entry in index["vectors"]} == {"float16"}
    (tmp_path / "file").write_text("")
    assert main(["vectors", str(tmp_path / "file"), "--format", "npz"]) == 2
    assert capsys.readouterr().err.startswith("attnmath vectors: ")


@pytest.mark.parametrize(("place", "message"), [
    ("", "DIR is empty; it needs to be the name of a folder"),
    (" ", "DIR is empty; it needs to be the name of a folder"),
    ("my.py", "my.py is a file; DIR needs to be a folder, or a name that is free"),
    ("my.py/deep/in", "my.py is a file; DIR needs to be a folder, or a name that is free"),
    ("/proc/nowhere", "/proc/nowhere cannot be written: No such file or directory"),
])
def test_a_folder_for_vectors_that_is_none(tmp_path, monkeypatch, capsys, place, message):
    (tmp_path / "my.py").write_text("")
    monkeypatch.chdir(tmp_path)
    assert main(["vectors", place, "--format", "npz", "--dtype", "float16"]) == 2
    assert capsys.readouterr().err == f"attnmath vectors: {message}\n"
    assert [path.name for path in tmp_path.iterdir()] == ["my.py"]


def test_an_empty_word_is_no_word_that_was_left_out(folder, asked, capsys):
    assert main(["examine", PAIR[0], "--backward", ""]) == 2 and not asked.calls
    assert main(["examine", PAIR[0], "--junit", ""]) == 2
    assert capsys.readouterr().err == ("attnmath examine: '' names no function; write module:function\n"
                                       "attnmath examine: '' cannot be written: No such file or directory\n")


def test_help_and_version_import_nothing_heavy():
    code = ("import sys; from attnmath.__main__ import main\n"
            "try: main([{!r}])\n"
            "except SystemExit as left: assert left.code == 0\n"
            "print([m for m in ('torch', 'jax', 'transformers', 'hypothesis', 'safetensors',"
            " 'attnmath._examine', 'attnmath._exact.prove') if m in sys.modules])")
    for word, said in (("--help", "usage: attnmath"), ("--version", f"attnmath {attnmath.__version__}\n")):
        done = subprocess.run([sys.executable, "-c", code.format(word)], capture_output=True, text=True, check=True)
        assert done.stdout.startswith(said) and done.stdout.endswith("\n[]\n")


def test_it_runs_from_the_shell(tmp_path):
    for words, status in ((["--version"], 0), ([], 2), (["examine", "nowhere_to_be:f"], 2)):
        done = shell(*words, cwd=tmp_path)
        assert done.returncode == status and "Traceback" not in done.stderr
    assert "COMMAND" in shell(cwd=tmp_path).stderr


def test_one_that_hangs_does_not_hang_the_command(folder):
    done = shell("examine", "mine_to_examine:hangs", "--framework", "numpy", "--time-limit", "0.2", cwd=folder)
    assert done.returncode == 2 and done.stderr == ""
    assert done.stdout.startswith("hangs is not judged, so nothing is known: a call did not come back within 0.2 s")


def test_what_a_test_calls(asked, monkeypatch):
    fn, backward = object(), object()
    assert_attention_gradients(fn, backward, dtype="float64", seed=1)
    assert asked.calls == [((fn, backward), dict(dtype="float64", seed=1))]
    asked.report = Report("wrong", "f", findings=(Finding("mistake", "D_missing", "the row term is missing"),))
    with pytest.raises(AssertionError, match="f is wrong: the row term is missing") as failed:
        assert_attention_gradients(fn)
    assert all(frame.frame.f_locals.get("__tracebackhide__") for frame in failed.traceback[1:])
    monkeypatch.setattr("attnmath._examine.layer.examine_layer.examine_layer", attnmath.examine)
    with pytest.raises(AssertionError, match="f is wrong"):
        assert_layer_gradients(fn, seed=2)
    assert asked.calls[-1] == ((fn,), dict(seed=2))
