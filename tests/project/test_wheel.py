"""The package as its user gets it: built, installed where nothing else is, and run."""

import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
SOURCES = ("attnmath", "pyproject.toml", "MANIFEST.in", "README.md", "CHANGELOG.md", "LICENSE")


def readme_examples():
    """The README's examples that need NumPy alone, and the outputs that they promise."""
    found = re.findall(r"```python\n(.*?)```\n+```text\n(.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    return [(example, output) for example, output in found if "torch" not in example]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in SOURCES:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
        copy(ROOT / name, source / name)
    subprocess.run([sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-index",
                    "--no-build-isolation", "--wheel-dir", folder, source], check=True)
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """The Python of an environment that holds the wheel and its two dependencies alone."""
    env = tmp_path_factory.mktemp("bare") / "env"
    venv.create(env, symlinks=True, with_pip=False)
    python = env / "bin" / "python"
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", "--quiet",
                    "--no-deps", "--no-index", wheel], check=True)
    site = next(env.glob("lib/python*/site-packages"))
    for name in ("numpy", "array_api_compat"):
        installed = Path(find_spec(name).origin).parent
        for folder in (installed, installed.with_name(f"{name}.libs")):
            if folder.exists():
                (site / folder.name).symlink_to(folder)
    return python


def run(python, code, tmp_path):
    return subprocess.run([python, "-I", "-W", "error", "-c", code], cwd=tmp_path, check=True,
                          capture_output=True, text=True).stdout


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    assert "attnmath/py.typed" in names and not any(re.match("attnmath/(book|page)/", name) for name in names)
    assert {name.split("/")[0] for name in names} == {
        "attnmath", f"attnmath-{PROJECT['version']}.dist-info"}
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_wheel_tells_its_readme_and_its_changes(wheel):
    with zipfile.ZipFile(wheel) as package:
        metadata = next(n for n in package.namelist() if n.endswith("dist-info/METADATA"))
        text = package.read(metadata).decode()
    assert f"Version: {PROJECT['version']}\n" in text
    assert (ROOT / "README.md").read_text("utf-8").strip() in text
    assert (ROOT / "CHANGELOG.md").read_text("utf-8").strip() in text


def test_the_readme_s_examples_run_where_nothing_else_is_installed(bare, tmp_path):
    examples = readme_examples()
    assert len(examples) == 3
    for example, output in examples:
        assert run(bare, example, tmp_path) == output


def test_the_bare_environment_is_bare(bare, tmp_path):
    code = """
from importlib.util import find_spec
print([name for name in ("torch", "lark", "pytest", "matplotlib", "hypothesis", "safetensors", "tools") if find_spec(name)])
import attnmath; print(attnmath.__file__)"""
    found, origin = run(bare, code, tmp_path).splitlines()
    assert found == "[]"
    assert Path(origin).is_relative_to(bare.parent.parent)


CANDIDATE = """
import numpy as np

def forward(q, k, v):
    a = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True) @ v

def zeros(do, q, k, v):
    return 0 * q, 0 * k, 0 * v
"""


def command(python, *words, cwd):
    return subprocess.run([python.parent / "attnmath", *words], cwd=cwd, capture_output=True, text=True)


def test_the_command_runs_where_nothing_else_is_installed(bare, tmp_path):
    assert command(bare, "--version", cwd=tmp_path).stdout == f"attnmath {PROJECT['version']}\n"
    (tmp_path / "mine.py").write_text(CANDIDATE)
    judged = command(bare, "examine", "mine:forward", "--backward", "mine:zeros", cwd=tmp_path)
    assert judged.returncode == 1 and judged.stderr == ""
    assert "forward is wrong in the backward" in judged.stdout and " and should be " in judged.stdout
    missing = command(bare, "examine", "mine:forward", "--framework", "torch", cwd=tmp_path)
    assert missing.returncode == 2 and "pip install 'attnmath[torch]'" in missing.stdout + missing.stderr
    missing = command(bare, "vectors", "v", cwd=tmp_path)
    assert missing.returncode == 2 and missing.stderr.endswith("pip install 'attnmath[vectors]'\n")


def test_every_public_name_is_there(bare, tmp_path):
    code = "import attnmath; print([n for n in attnmath.__all__ if not hasattr(attnmath, n)])"
    assert run(bare, code, tmp_path) == "[]\n"


def test_one_version_everywhere():
    changelog = re.search(r"^## (\d\S*)", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert changelog.group(1) == citation["version"] == PROJECT["version"]
