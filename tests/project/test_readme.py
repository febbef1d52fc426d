"""What README.md tells an engineer: its types, its report, and how the project is set up."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
SLIPS = [  # each is an error for a checker of types that knows the package
    "import attnmath\nattnmath.attenton()",
    "from attnmath.torch import scaled_dot_product",
    "import torch, attnmath.torch\nq = torch.ones(2, 3)\nattnmath.torch.scaled_dot_product_attention(q, q, q, is_casual=True)",
    "import torch, attnmath.torch\nq = torch.ones(2, 3)\nattnmath.torch.scaled_dot_product_attention(q, q, q, is_causal='no')",
    "import torch, attnmath.torch\nq = torch.ones(2, 3)\nattnmath.torch.scaled_dot_product_attention(q, q, q).shap",
    "from attnmath import examine\nexamine(len).sentences",
    "import attnmath\nattnmath.attention('a', 3, [1])",
    "import numpy, attnmath\nx = numpy.ones((4, 3))\nattnmath.attention(x, x, x).detach()",
    "import torch, attnmath\nx = torch.ones(4, 3)\nattnmath.attention_vjp(x, x, x, x).dQ.astype(float)",
    "import numpy, attnmath\nx = numpy.ones((4, 3))\nattnmath.softmax(x, temperature=2)",
    "import numpy, attnmath\nx = numpy.ones((4, 3))\nattnmath.flash_attention(x, x, x).L",
    "import numpy, attnmath\nx = numpy.ones((4, 3))\nattnmath.check_vjp(attnmath.silu_vjp, attnmath.silu, x).entries",
]


NUMPY = "import numpy, attnmath\nx = numpy.ones((4, 3))\n"
RIGHT = [NUMPY + line for line in (
    "attnmath.flash_attention(x, x, x).shape",
    "attnmath.flash_attention(x, x, x, with_L=True).L.shape",
    "attnmath.flash_attention_jvp(x, None, None, None, None, x, x, x).shape",
    "attnmath.check_vjp(attnmath.silu_vjp, attnmath.silu, (2, 3), exact=True).entries",
    "attnmath.attention(x, x, x, attnmath.bias(attnmath.causal_mask(4, 4), like=x)).shape",
    "attnmath.rounding.nearest(x, 'float16').shape",
    "attnmath.examine(attnmath.attention).sentence.upper()",
)]


@pytest.fixture(scope="module")
def typed(tmp_path_factory):
    """What mypy says of some programs, file by file, all read in one run."""
    folder = tmp_path_factory.mktemp("typed")
    programs = {f"{kind}_{i}.py": text for kind, texts in (("example", EXAMPLES), ("right", RIGHT), ("slip", SLIPS)) for i, text in enumerate(texts)}
    for name, text in programs.items():
        (folder / name).write_text(text)
    said = subprocess.run([sys.executable, "-m", "mypy", "--no-error-summary", "--config-file", ROOT / "pyproject.toml",
                           "--cache-dir", ROOT / ".mypy_cache", *programs], cwd=folder, capture_output=True, text=True,
                          env={**os.environ, "MYPYPATH": str(ROOT)})
    assert not said.stderr
    errors = [line for line in said.stdout.splitlines() if ": error: " in line]
    return {name: [line for line in errors if line.startswith(name)] for name in programs}


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_has_no_error_of_types(typed, number):
    assert typed[f"example_{number}.py"] == []


@pytest.mark.parametrize("number", range(len(RIGHT)))
def test_what_an_option_asks_for_has_its_type(typed, number):
    assert typed[f"right_{number}.py"] == []


@pytest.mark.parametrize("number", range(len(SLIPS)))
def test_a_slip_is_an_error_of_types(typed, number):
    assert len(typed[f"slip_{number}.py"]) == 1


def test_the_report_is_that_of_the_example():
    code = EXAMPLES[0].replace("print(report.sentence)", "")
    names = {}
    exec(compile(code, "README.md", "exec"), names)
    told = re.search(r"`print\(report\)` has the rest:\n\n```text\n(.*?)```", README, re.DOTALL)[1]
    assert EXAMPLES[0].endswith("\nprint(report.sentence)\n") and str(names["report"]).startswith(told)


def recorded(tmp_path, *names):
    """A folder of programs that only write down how they are called, and that file."""
    log = tmp_path / "log"
    for name in names:
        (tmp_path / name).write_text(f'#!/bin/sh\necho {name} "$@" >> {log}\n')
        (tmp_path / name).chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}", "HOME": str(tmp_path)}, log


def test_binder_takes_pytorch_without_cuda(tmp_path):
    env, log = recorded(tmp_path, "uv", "python")
    subprocess.run(["bash", ROOT / ".binder" / "postBuild"], cwd=ROOT, env=env, check=True)
    first, second = log.read_text().splitlines()
    assert first.startswith("uv pip install ") and " --torch-backend=cpu " in first
    assert first.endswith(" --requirement requirements.lock --requirement requirements-lab.lock")
    assert second.startswith("python -m pip install ") and " --no-deps " in second
    assert (ROOT / ".binder" / "requirements.txt").read_text() == "-r ../requirements-cpu.lock\n"  # nothing before uv


def commands(*words):
    env = {name: x for name, x in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS", "TORCH", "TORCH_INDEX")}
    done = subprocess.run(["make", "--dry-run", "--always-make", "env", *words], cwd=ROOT, env=env, capture_output=True,
                          text=True, check=True)
    return [line for line in done.stdout.splitlines() if " install " in line]


def test_one_choice_takes_pytorch_without_cuda():
    assert "`make TORCH=cpu book`" in README
    plain, cpu = commands(), commands("TORCH=cpu")
    assert len(plain) == 2 and cpu[2:] == plain
    assert cpu[0].endswith("--requirement requirements-cpu.lock") and "uv pip install" in cpu[1]
    assert "--torch-backend=cpu" in cpu[1] and "torch==" in cpu[1]


def test_the_setup_is_whole():
    setup = README.partition("## Two commands")[2].partition("\n## ")[0]
    for part in ("git clone ADDRESS", "cd attnmath", "make book", "make test", "python -m venv", "python -m pytest",
                 "uv pip install --torch-backend=cpu --requirement requirements.lock"):
        assert part in setup
