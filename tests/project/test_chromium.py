"""Where the accessibility run gets its browser from, on machines that have none."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parents[2] / "tools" / "chromium.py"


def run(folder, **env):
    """What the tool says on a machine on which the programs in this folder are all there is."""
    done = subprocess.run([sys.executable, TOOL], env={"PATH": str(folder), **env}, capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip()


def program(path, text="exit 0"):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_one_on_the_path_is_taken(tmp_path):
    program(tmp_path / "google-chrome")
    assert run(tmp_path) == (0, str(tmp_path / "google-chrome"))


def test_one_that_is_named_is_taken_or_missed(tmp_path):
    program(tmp_path / "chromium")
    other = program(tmp_path / "other")
    assert run(tmp_path, CHROMIUM=str(other)) == (0, str(other))
    status, words = run(tmp_path, CHROMIUM="nowhere")
    assert status == 1 and words == "There is no nowhere. Name a Chromium: CHROMIUM=/path/to/chromium make accessible"


def test_where_none_can_be_had_a_sentence_says_what_to_install(tmp_path):
    status, words = run(tmp_path)
    assert status == 1 and words.startswith("There is no Chromium on PATH. Install the package chromium")
    program(tmp_path / "apt-get", "exit 100")       # without a network, or without such a package
    status, words = run(tmp_path)
    assert status == 1 and "There is no Chromium on PATH" in words


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root installs")
def test_root_installs_it(tmp_path):
    made = tmp_path / "chromium"
    program(tmp_path / "apt-get", f'echo "$@" >> {tmp_path}/called\n[ "$1" = install ] && {{ echo "#!/bin/sh" > {made}; /bin/chmod 755 {made}; }}')
    status, words = run(tmp_path)
    assert status == 0 and words.splitlines()[-1] == str(made)
    update, install = (tmp_path / "called").read_text().splitlines()
    assert update.startswith("update") and "chromium" in install.split()
