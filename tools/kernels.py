"""Kernels for the notebooks that do not each import the same libraries again.

    python tools/kernels.py COMMAND ...

runs COMMAND with a Jupyter kernel called `book`. On Linux one process imports LIBRARIES, and
forks a kernel for each notebook: as fresh as a new one (a test compares what the two say of
themselves), in a tenth of the time. `attnmath` is not among the libraries: each kernel imports
it anew. Where there is no such process, where it was asked with another environment than its
own, or where a system's libraries do not survive a fork, `book` is an ordinary kernel.

Nothing outlives COMMAND: the process that forks ends with the pipe to its standard input, a
kernel with the small program that Jupyter takes for it (`connect`), and that one with the
process that started it.
"""

import contextlib
import json
import os
import select
import signal
import socket
import sys

LIBRARIES = (
    "numpy", "array_api_compat.numpy", "matplotlib.pyplot", "matplotlib.backends.backend_agg",
    "matplotlib.backends.backend_svg", "torch", "torch.nn.attention.bias", "array_api_compat.torch",
    "ipykernel.kernelapp", "ipykernel.ipkernel", "ipykernel.debugger", "stack_data", "pygments.lexers.python",
    "pygments.formatters.terminal256",
)
OWN = ("JPY_", "PYTEST_", "COLUMNS", "LINES", "TORCHINDUCTOR_")    # who asks may have others
FORKS = sys.platform == "linux"          # on macOS, Accelerate and Metal break in a forked process
NAME = "book"
HERE = os.path.abspath(__file__)
MEANWHILE = {"MPLBACKEND": "module://matplotlib_inline.backend_inline",
             "PYDEVD_DISABLE_FILE_VALIDATION": "1"}     # or the debugger says what it cannot see


# ---- what the caller sees ---------------------------------------------------------------------


@contextlib.contextmanager
def serving(environment):
    """The environment, with the kernel `book` added to what Jupyter finds in it."""
    import subprocess
    import tempfile

    with tempfile.TemporaryDirectory(prefix="kernels-") as folder:
        found = os.pathsep.join(filter(None, [folder, environment.get("JUPYTER_PATH")]))
        environment = {**environment, "JUPYTER_PATH": found}
        address = os.path.join(folder, "socket")
        listener = listen(address)
        if not listener:
            specify(folder, [sys.executable, "-m", "ipykernel_launcher"])
            yield environment
            return
        # A bare Python, without site and variables: it only passes things on.
        specify(folder, [sys.executable, "-I", "-S", HERE, "--connect", address])
        command = [sys.executable, HERE, "--serve", str(listener.fileno())]
        server = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE,
                                  pass_fds=[listener.fileno()])
        listener.close()
        try:
            yield environment
        finally:
            server.stdin.close()
            server.wait()


def listen(address):
    """A socket for those who want a kernel; None where a kernel cannot be forked."""
    with contextlib.suppress(OSError):
        if FORKS:
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(address)
            listener.listen(64)
            return listener
    return None


def specify(folder, command):
    """Write down for Jupyter how the kernel `book` starts."""
    spec = {"argv": [*command, "-f", "{connection_file}"], "language": "python",
            "display_name": "Python 3", "metadata": {"debugger": True}}
    home = os.path.join(folder, "kernels", NAME)
    os.makedirs(home)
    with open(os.path.join(home, "kernel.json"), "w", encoding="utf-8") as file:
        json.dump(spec, file)


# ---- the process that forks -------------------------------------------------------------------


def serve(listener):
    """Import the libraries; fork for each connection, until the standard input closes."""
    environment = dict(os.environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)     # Ctrl-C is the command's
    if sys.path[0] == os.path.dirname(HERE):
        del sys.path[0]
    load()
    while True:
        ready, _, _ = select.select([sys.stdin, listener], [], [])
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0 if sys.stdin in ready else os.WNOHANG)[0]:
                pass
        if sys.stdin in ready:
            return
        connection, _ = listener.accept()
        import warnings

        with warnings.catch_warnings():              # 3.12 warns of OpenBLAS's sleeping threads
            warnings.simplefilter("ignore")
            child = os.fork()
        if child == 0:
            listener.close()
            become_kernel(connection, environment)
            return
        connection.close()


def load():
    """The libraries, as a kernel has them: it names this backend before it runs a cell."""
    import importlib

    before = {name: os.environ.get(name) for name in MEANWHILE}
    for name, value in MEANWHILE.items():
        os.environ.setdefault(name, value)
    for name in LIBRARIES:
        if not select.select([sys.stdin], [], [], 0)[0]:     # else the command is done already
            with contextlib.suppress(ImportError):
                importlib.import_module(name)
    if "matplotlib.backends.backend_svg" in sys.modules:
        draw()
    for name in MEANWHILE:
        if before[name] is None:
            del os.environ[name]


def draw():
    """A figure that nobody sees: matplotlib finds its fonts and learns its mathematics."""
    import io

    from matplotlib import rc_context
    from matplotlib.figure import Figure

    with rc_context({"mathtext.fontset": "cm"}):
        figure = Figure()
        figure.subplots().set_xlabel("size $d_k$")
        figure.savefig(io.BytesIO(), format="svg")


def become_kernel(connection, environment):
    """Take over what `connect` was given: files, folder, variables, arguments."""
    import importlib
    import threading

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    message, files, _, _ = socket.recv_fds(connection, 1 << 20, 3)
    while not message.endswith(b"\n"):
        more = connection.recv(1 << 20)
        if not more:                                 # who asked is gone
            return
        message += more
    request = json.loads(message)
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(request["folder"])
    if differ(environment, request["environment"]):
        connection.sendall(b"0\n")
        return
    for name in filter(is_own, {*environment, *request["environment"]}):
        os.environ.pop(name, None)
        if name in request["environment"]:
            os.environ[name] = request["environment"][name]
    connection.sendall(b"%d\n" % os.getpid())
    threading.Thread(target=end_with, args=(connection,), daemon=True).start()
    importlib.invalidate_caches()
    if "numpy" in sys.modules:                       # else all kernels draw the same numbers
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].default_generator.seed()
    from ipykernel import kernelapp

    sys.argv = [kernelapp.__file__, *request["arguments"]]
    kernelapp.launch_new_instance(parent_handle=1)   # `end_with` sees to it


def is_own(name):
    return name.startswith(OWN)


def differ(one, other):
    """Whether two environments differ in what a library may have read while it was imported."""
    return any(one.get(name) != other.get(name) for name in {*one, *other} if not is_own(name))


def end_with(connection):
    """A kernel ends when the program ends that Jupyter takes for it."""
    with contextlib.suppress(OSError):
        connection.recv(1)
    os.kill(os.getpid(), signal.SIGKILL)


# ---- what Jupyter takes for the kernel ----------------------------------------------------------


def connect(address, arguments):
    """Ask for a kernel, pass signals on to it, and end when it ends; or become one."""
    parent = os.getppid()
    kernel, connection = ask(address, arguments)
    if not kernel:
        command = [sys.executable, "-m", "ipykernel_launcher", *arguments]
        os.execv(sys.executable, command)
    signal.signal(signal.SIGINT, lambda number, frame: os.kill(kernel, number))
    while os.getppid() == parent:
        ready, _, _ = select.select([connection], [], [], 1.0)
        if ready:
            return


def ask(address, arguments):
    """The number of the process that is now a kernel, and the connection to it; 0 for none."""
    request = {"arguments": arguments, "folder": os.getcwd(), "environment": dict(os.environ)}
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(address)
        message = json.dumps(request).encode() + b"\n"
        sent = socket.send_fds(connection, [message], [0, 1, 2])
        connection.sendall(message[sent:])
        return int(connection.recv(64) or 0), connection
    except OSError:
        return 0, None


def main(arguments):
    if arguments[:1] == ["--connect"]:
        connect(arguments[1], arguments[2:])
        return 0
    if arguments[:1] == ["--serve"]:
        serve(socket.socket(fileno=int(arguments[1])))
        return 0
    if not arguments:
        print(__doc__)
        return 2
    import subprocess

    signal.signal(signal.SIGINT, lambda number, frame: None)      # Ctrl-C is the command's
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with serving(dict(os.environ)) as environment:
        return subprocess.run(arguments, env=environment, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
