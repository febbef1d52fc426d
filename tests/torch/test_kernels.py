"""A forked kernel is as fresh as an ordinary one, obeys as one, and leaves nothing behind."""

import os
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import nbformat
import pytest
from jupyter_client.manager import KernelManager
from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

TOOL = Path(__file__).resolve().parents[2] / "tools" / "kernels.py"
ENVIRONMENT = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "PYTHONPATH", "PYTHONHASHSEED")}

sys.path.insert(0, str(TOOL.parent))
import kernels  # noqa: E402

sys.path.remove(str(TOOL.parent))
forked = pytest.mark.skipif(not kernels.FORKS, reason="kernels are not forked on this system")

# What a notebook could notice, in an order that does not depend on hashes.
PROBE = """
import sys
print("torch" in sys.modules, any(name.startswith("attnmath") for name in sys.modules))
import gc, os, random, signal, threading, warnings
import matplotlib, matplotlib.pyplot, numpy, torch
import torch.nn.attention.bias
own = ("JPY_", "PYTEST_", "JUPYTER_PATH")
print(*sorted(f"{k}={v}" for k, v in os.environ.items() if not k.startswith(own)), sep="\\n")
print(*sys.path, os.getcwd(), *sys.flags, __name__, sys.argv[1:2], sep="\\n")
print(*sorted(map(str, warnings.filters)), sep="\\n")
print(matplotlib.get_backend(), *sorted(f"{k}={v}" for k, v in matplotlib.rcParams.items()), sep="\\n")
print(numpy.get_printoptions(), numpy.geterr(), torch.get_num_threads(),
      torch.get_default_dtype(), torch.is_grad_enabled(), gc.isenabled(), gc.get_threshold())
print(*(signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD, signal.SIGTERM)))
print(threading.active_count(), os.umask(0o022), os.getpgid(0) == os.getpid())
"""
DRAWN = "import random, numpy, torch; print(random.random(), numpy.random.random(), float(torch.rand(1)))"


@contextmanager
def kernel(name, environment):
    """A kernel that runs cells and says what they print."""
    manager = KernelManager(kernel_name=name, kernel_spec_manager=NbvalKernelspecManager())
    manager.start_kernel(env=environment, cwd=str(TOOL.parent))
    client = manager.client()
    client.start_channels()

    def run(cell):
        said = []
        client.execute_interactive(cell, timeout=60, store_history=False, output_hook=said.append)
        return "".join(m["content"].get("text", "") or m["content"].get("ename", "") for m in said)

    try:
        client.wait_for_ready(timeout=60)
        yield manager, client, run
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture(scope="module")
def served():
    """The environment in which the kernel `book` is forked."""
    with kernels.serving(ENVIRONMENT) as environment, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", environment["JUPYTER_PATH"])
        yield environment


def ends(process):
    """Whether a process is gone within ten seconds."""
    for _ in range(100):
        status = Path(f"/proc/{process}/stat")
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.1)
    return False


@forked
def test_a_forked_kernel_says_of_itself_what_an_ordinary_one_says(served):
    with kernel("book", served) as (_, _, run):
        one, drawn = run(PROBE), run(DRAWN)
    with kernel("book", served) as (_, _, run):
        another = run(DRAWN)
    with kernel(CURRENT_ENV_KERNEL_NAME, served) as (_, _, run):
        ordinary = run(PROBE)
    assert one.splitlines()[0] == "True False", "the libraries are there, attnmath is not"
    assert ordinary.splitlines()[0] == "False False"
    assert one.splitlines()[1:] == ordinary.splitlines()[1:]
    for ours, theirs in zip(drawn.split(), another.split(), strict=True):
        assert ours != theirs


@forked
def test_it_is_interrupted_and_killed_as_an_ordinary_one(served):
    with kernel("book", served) as (manager, client, run):
        process = int(run("import os; print(os.getpid())"))
        asked = client.execute("import time; print('it sleeps', flush=True); time.sleep(60)",
                               stop_on_error=False)
        while "it sleeps" not in client.get_iopub_msg(timeout=10)["content"].get("text", ""):
            pass
        manager.interrupt_kernel()
        reply = client.get_shell_msg(timeout=10)
        while reply["parent_header"]["msg_id"] != asked:
            reply = client.get_shell_msg(timeout=10)
        assert reply["content"]["ename"] == "KeyboardInterrupt"
        assert run("print(1)") == "1\n"
    assert ends(process)


@forked
def test_when_a_kernel_ends_its_manager_sees_it(served):
    with kernel("book", served) as (manager, client, run):
        assert manager.is_alive()
        client.execute("import os; os._exit(1)")
        assert ends(manager.provisioner.pid)
        assert not manager.is_alive()


@forked
@pytest.mark.parametrize("more", [{"OMP_NUM_THREADS": "3"}, {"PYTHONHASHSEED": "0"}])
def test_another_environment_has_a_kernel_of_its_own(served, more):
    with kernel("book", {**served, **more}) as (_, _, run):
        seen = run(f"import os, sys; print({list(more)[0]!r} in os.environ, 'torch' in sys.modules)")
    assert seen == "True False\n"


@forked
@pytest.mark.parametrize("said", [b"", b'{"arguments":'])
def test_who_asks_for_a_kernel_and_goes_leaves_none_behind(said):
    code = (f"import socket, sys; sys.path.insert(0, {str(TOOL.parent)!r}); import kernels\n"
            f"one, other = socket.socketpair(); other.sendall({said!r}); other.close()\n"
            "kernels.become_kernel(one, {})")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=10)


@forked
def test_the_workers_of_pytest_have_forked_kernels(served, tmp_path):
    output = nbformat.v4.new_output("stream", name="stdout", text="True\n")
    cell = nbformat.v4.new_code_cell("import sys; print('torch' in sys.modules)", execution_count=1,
                                     outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "probe.ipynb")
    command = [sys.executable, "-m", "pytest", "-q", "-n1", "--nbval", "--nbval-kernel-name=book",
               "-p", "no:cacheprovider", tmp_path]
    done = subprocess.run(command, cwd=tmp_path, env=served, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_a_system_that_does_not_fork_has_ordinary_kernels(monkeypatch):
    monkeypatch.setattr(kernels, "FORKS", False)
    with kernels.serving(ENVIRONMENT) as environment:
        monkeypatch.setenv("JUPYTER_PATH", environment["JUPYTER_PATH"])
        with kernel("book", environment) as (_, _, run):
            assert run("import sys; print('torch' in sys.modules)") == "False\n"


def test_the_command_ends_as_by_itself_and_nothing_is_left():
    command = [sys.executable, "-c", "import os; print(os.environ['JUPYTER_PATH']); raise SystemExit(7)"]
    done = subprocess.run([sys.executable, TOOL, *command], env=ENVIRONMENT, capture_output=True, text=True)
    assert done.returncode == 7 and not done.stderr
    folder = done.stdout.strip().split(os.pathsep)[0]
    assert not Path(folder).exists()
    if kernels.FORKS:       # no process has the folder's socket open
        commands = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
        assert not any(folder.encode() in command for command in commands)
