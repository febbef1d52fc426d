"""A copy of the project to change, and its commands run in it."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
COPIED = ("attnmath", "chapters", "tests", "tools", "_config.yml", "_toc.yml", "pyproject.toml")
UNUSED = shutil.ignore_patterns("__pycache__", "*.pyc", ".ipynb_checkpoints")


def copy_project(folder, *more):
    """The project without its environment, in a new folder."""
    folder.mkdir()
    for name in (*COPIED, *more):
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=UNUSED)
        else:
            shutil.copyfile(ROOT / name, folder / name)
    return folder


def run(folder, *words):
    """This Python with these words, on the package of the folder: its status, and all that it said."""
    env = {"PYTHONPATH": str(folder), "PATH": "/usr/bin:/bin", "HOME": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=env, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    return done.returncode, done.stdout
