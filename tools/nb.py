"""Chapters are texts (.md, MyST); their notebooks (.ipynb) are made from them and carry the stored outputs.

    python tools/nb.py check              each notebook is its text's, each was run, and the table
                                          of contents lists every chapter
    python tools/nb.py run [name ...]     make the notebooks from the texts, byte for byte the same; what
                                          nothing has changed for is not run again, but for --fresh
    python tools/nb.py text [name ...]    the same where the code is as it was: its outputs stay, nothing runs
    python tools/nb.py code name ...      back into the text what was changed in a notebook's code
    python tools/nb.py changed            the notebooks that have not been compared with a new run since
                                          they, or something that they import, changed; runs.py
    python tools/nb.py compared           those that were named have been compared
    python tools/nb.py colab FOLDER       copies that fetch and install the project first, for Colab

What a notebook says stands in plain Markdown, for hosts that know no MyST: see derived.py.
`check` compares contents, never file times: after a clone, times say nothing.
"""

import argparse
import concurrent.futures
import os
import re
import sys
from pathlib import Path

import nbformat

sys.path.insert(0, str(Path(__file__).resolve().parent))
import derived  # noqa: E402
from notebooks import HEADER, ROOT, code, derive, fill, read_text, sources, store, texts  # noqa: E402
from pairs import check  # noqa: E402
from runs import Runs  # noqa: E402

MOST = 9    # complaints of one kind


def execute(book, folder, kernel_name=None, env=None):
    """Run the cells in a fresh kernel of this Python, as nbval will."""
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient
    from nbval.kernel import CURRENT_ENV_KERNEL_NAME, NbvalKernelspecManager

    kernel = AsyncKernelManager(kernel_name=kernel_name or CURRENT_ENV_KERNEL_NAME,
                                kernel_spec_manager=NbvalKernelspecManager())
    NotebookClient(book, km=kernel, timeout=120, record_timing=False, store_widget_state=False,
                   coalesce_streams=True,        # how often a kernel sends them depends on its pace
                   resources={"metadata": {"path": str(folder)}},
                   extra_arguments=["--IPKernelApp.log_level=ERROR"]).execute(env=env or environment())
    book.metadata["language_info"] = dict(HEADER["language_info"])
    book.metadata["kernelspec"] = dict(HEADER["kernelspec"])
    for cell in book.cells:
        for output in cell.get("outputs", []):
            if output.output_type == "error":      # the way of the traceback names this machine
                output.traceback = [f"{output.ename}: {output.evalue}"]
    return book


def environment():
    """The package beside the chapters; figures and warnings are not the caller's business."""
    env = {k: v for k, v in os.environ.items() if k not in ("MPLBACKEND", "PYTHONWARNINGS")}
    path = os.pathsep.join([str(ROOT), *filter(None, [env.get("PYTHONPATH")])])
    return {**env, "PYTHONHASHSEED": "0", "PYTHONPATH": path}


def make(path, kernel_name=None, env=None):
    """Text to executed notebook; returns whether the file changed."""
    return store(path, execute(derive(path), path.parent, kernel_name, env))


def say_again(path, book):
    """The notebook's words from the text, with the outputs that it has; whether it changed, or None."""
    new, old = derive(path, book), nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    if sources(new) != sources(old):
        return None
    fill(new, old)
    return store(path, new)


def take_code(path):
    """What was changed in the notebook's code, into the text; yields what is not found there once."""
    text = path.read_text("utf-8")
    stored = code(nbformat.read(path.with_suffix(".ipynb"), as_version=4))
    for id, cell in code(read_text(path)).items():
        before, after = (f"\n{source}\n```" for source in (cell.source, stored.get(id, cell).source))
        if before != after and text.count(before) != 1:
            yield f"{path.name}: the place of the cell {id} is not found"
        elif before != after:
            text = text.replace(before, after)
    path.write_text(text, "utf-8")


def place(path, error):
    """The line of the text at which the cell begins that raised an error."""
    cell = re.search(r"-{18}\n(.*?)\n-{18}", error.traceback, re.DOTALL)
    source = cell.group(1) if cell else "\0"
    return path.read_text("utf-8").split(source)[0].count("\n") + 1


def colab(folder, target, repository, commit):
    """Copies that fetch and install the project at this commit first, and whose links need no folder."""
    target.mkdir(parents=True, exist_ok=True)
    lines = (f"!git clone --quiet {repository} attnmath-book && git -C attnmath-book checkout --quiet {commit}\n"
             '%pip install --quiet --editable "./attnmath-book[page]"\n'
             'import sys; sys.path.insert(0, "attnmath-book")')    # for the kernel that runs already
    here = repository.replace("https://github.com", "https://colab.research.google.com/github")
    for name, path in texts(folder).items():
        source = path.with_suffix(".ipynb").read_text("utf-8")
        source = re.sub(r"\]\((?=\w+\.ipynb)", f"]({here}/blob/colab/", source)
        source = re.sub(r"\]\((?=\w+\.md)", f"]({repository}/blob/{commit}/chapters/", source)
        book = nbformat.reads(source.replace("](../", f"]({repository}/blob/{commit}/"), as_version=4)
        book.cells.insert(0, nbformat.v4.new_code_cell(lines, id=f"{name}-install"))
        (target / f"{name}.ipynb").write_text(nbformat.writes(book, version=4) + "\n", "utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--chapters", type=Path, default=ROOT / "chapters")
    commands = parser.add_subparsers(dest="command", required=True)
    for plain in ("check", "changed", "compared"):
        commands.add_parser(plain)
    run = commands.add_parser("run")
    run.add_argument("names", nargs="*", help="chapters; all when none is named")
    run.add_argument("--jobs", type=int, default=2)
    run.add_argument("--fresh", action="store_true", help="also what nothing has changed for")
    commands.add_parser("text").add_argument("names", nargs="*", help="chapters; all when none is named")
    commands.add_parser("code").add_argument("names", nargs="+", help="chapters")
    to_colab = commands.add_parser("colab")
    to_colab.add_argument("folder", type=Path)
    to_colab.add_argument("--repository", required=True)
    to_colab.add_argument("--commit", required=True)
    args = parser.parse_args(argv)
    known = texts(args.chapters)
    names = [Path(name).stem for name in getattr(args, "names", ())] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no chapter with code is called {', '.join(unknown)}; there are {', '.join(known)}")
    do = {"check": say_check, "changed": say_changed, "compared": compared, "code": say_code, "text": say_text,
          "run": run_changed, "colab": to_folder}
    return do[args.command](args, known, names)


def say_check(args, known, names):
    complaints = list(check(args.chapters))
    words = [x for x in complaints if "differs from the text" in x]
    said = [x for x in complaints if x not in words[MOST:]]
    if len(words) > MOST:    # a number that has moved is in many chapters
        said.append(f"and {len(words) - MOST} more that differ from their texts; make text says their words again")
    print("\n".join(said) or f"{len(known)} pairs of text and notebook agree")
    return bool(complaints)


def say_changed(args, known, names):
    runs = Runs(args.chapters)
    print(*(f"{args.chapters.name}/{name}.ipynb" for name in runs.asked(known)))


def compared(args, known, names):
    Runs(args.chapters).answered()


def to_folder(args, known, names):
    colab(args.chapters, args.folder, args.repository, args.commit)


def say_code(args, known, names):
    complaints = [wrong for name in names for wrong in take_code(known[name])]
    print("\n".join(complaints), end="\n" * bool(complaints))
    return bool(complaints)


def say_text(args, known, names):
    book, stale = derived.Book(args.chapters), []
    for name in names:
        changed = say_again(known[name], book)
        stale += [name] * (changed is None)
        said = {None: "its code has changed; run it", True: "written", False: "unchanged"}
        print(f"{name}.ipynb: {said[changed]}")
    return bool(stale)


def run_changed(args, known, names):
    """Run what has changed; of the others, say the words again."""
    runs, words = Runs(args.chapters), derived.Book(args.chapters)
    todo = []
    for name in names:
        changed = None if args.fresh or not runs.is_known(name) else say_again(known[name], words)
        todo += [name] * (changed is None)
        if changed is not None:
            print(f"{name}.ipynb: {'written' if changed else 'unchanged'}", flush=True)
    if len(todo) < 3:      # sooner done than the libraries of all kernels are imported
        return run_all(runs, todo, known, args.jobs)
    from kernels import NAME, serving

    with serving(environment()) as env:
        os.environ["JUPYTER_PATH"] = env["JUPYTER_PATH"]
        return run_all(runs, todo, known, args.jobs, NAME, env)


def run_all(runs, names, known, jobs, *kernel):
    """Make these notebooks, side by side; whether one of them failed."""
    from nbclient.exceptions import CellExecutionError

    failed = False
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        tasks = {name: pool.submit(make, known[name], *kernel) for name in names}
        for name, task in tasks.items():
            try:
                print(f"{name}.ipynb: {'written' if task.result() else 'unchanged'}", flush=True)
                runs.ran(name)
            except CellExecutionError as error:
                failed = True
                print(f"chapters/{name}.md:{place(known[name], error)}: {error.ename}: {error.evalue}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
