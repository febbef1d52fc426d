"""Chapters are texts (.md, MyST); their notebooks (.ipynb) are made from them and carry the stored outputs.

    python tools/nb.py check              each notebook is its text's, each was run, and the table
                                          of contents lists every chapter
    python tools/nb.py run [name ...]     make the notebooks from the texts, byte for byte the same
    python tools/nb.py text [name ...]    the same where the code is as it was: its outputs stay, nothing runs
    python tools/nb.py code name ...      back into the text what was changed in a notebook's code
    python tools/nb.py colab FOLDER       copies that install the package first, for Colab

What a notebook says stands in plain Markdown, for hosts that know no MyST: see derived.py.
`check` compares contents, never file times: after a clone, times say nothing.
"""

import argparse
import concurrent.futures
import os
import re
import sys
from pathlib import Path

import jupytext
import nbformat
import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
import derived  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
CONFIG = jupytext.config.load_jupytext_configuration_file(str(ROOT / "pyproject.toml"))
KEPT_KEYS = ("tags", "mystnb")
KNOWN_TAGS = {"hide-input", "hide-output", "hide-cell", "remove-input", "remove-output",
              "remove-cell", "raises-exception"}
PATHS = re.compile(
    r"/(?:home|root|tmp|work|opt|usr|var|mnt|Users|private)/[\w.-]|[A-Z]:\\\\?Users|site-packages"
)
ADDRESS = re.compile(r"\bat 0x[0-9a-f]{6,}")
SHOWN = {"text/plain", "text/markdown", "image/svg+xml", "image/png", "image/jpeg"}    # bitmaps: below
NBVAL_OFF = re.compile(r"nbval[-_](ignore|skip|check)", re.IGNORECASE)
HEADER = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
          "language_info": {"name": "python", "pygments_lexer": "ipython3"}}


def texts(folder):
    """The chapters that have code, by name."""
    return {path.stem: path for path in sorted(folder.glob("*.md"))
            if not path.stem.startswith("_") and "{code-cell}" in path.read_text("utf-8")}


def read_text(path):
    """The chapter's text as a notebook without outputs."""
    book = jupytext.read(path, config=CONFIG)
    cells = []
    for number, cell in enumerate(book.cells, 1):
        meta = {key: cell.metadata[key] for key in KEPT_KEYS if cell.metadata.get(key)}
        make = {"code": nbformat.v4.new_code_cell, "markdown": nbformat.v4.new_markdown_cell,
                "raw": nbformat.v4.new_raw_cell}[cell.cell_type]
        cells.append(make(cell.source, metadata=meta, id=f"{path.stem}-{number:03}"))
    jupytext_meta = {"default_lexer": "ipython3"}
    return nbformat.v4.new_notebook(cells=cells, metadata={**HEADER, "jupytext": jupytext_meta})


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


def derive(path, book=None):
    """The chapter's text as the notebook that is stored, without outputs."""
    return (book or derived.Book(path.parent)).notebook(read_text(path), path.stem)


def make(path, kernel_name=None, env=None):
    """Text to executed notebook; returns whether the file changed."""
    return store(path, execute(derive(path), path.parent, kernel_name, env))


def store(path, book):
    """Write a chapter's notebook; returns whether the file changed."""
    new = nbformat.writes(book, version=4).rstrip("\n") + "\n"
    target = path.with_suffix(".ipynb")
    if target.exists() and target.read_text("utf-8") == new:
        return False
    target.write_text(new, "utf-8")
    return True


def code(book):
    return {cell.id: cell for cell in book.cells if cell.cell_type == "code"}


def sources(book):
    return [(id, cell.source) for id, cell in code(book).items()]


def say_again(path, book):
    """The notebook's words from the text, with the outputs that it has; whether it changed, or None."""
    new, old = derive(path, book), nbformat.read(path.with_suffix(".ipynb"), as_version=4)
    if sources(new) != sources(old):
        return None
    fill(new, old)
    return store(path, new)


def fill(book, stored):
    """Give each cell what it printed in another notebook; the cells that are not there."""
    known = code(stored)
    for id, cell in code(book).items():
        if id in known:
            cell.update(outputs=known[id].outputs, execution_count=known[id].execution_count)
    return [id for id in code(book) if id not in known]


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


def check_cells(name, text, book):
    """What differs between a text and its notebook."""
    if len(text.cells) != len(book.cells):
        yield f"{name}.ipynb: {len(book.cells)} cells, the text has {len(text.cells)}"
    for number, (want, have) in enumerate(zip(text.cells, book.cells, strict=False), 1):
        where = f"{name}.ipynb: cell {number}"
        if want.cell_type != have.cell_type:
            yield f"{where} is {have.cell_type}, the text has {want.cell_type}"
        elif want.source != have.source:
            line = next((i for i, (a, b) in enumerate(
                zip((want.source + "\n\0").split("\n"), (have.source + "\n\0").split("\n"),
                    strict=False), 1) if a != b), 1)
            yield f"{where} differs from the text in its line {line}"
        if dict(want.metadata) != dict(have.metadata):
            yield f"{where}: metadata {dict(have.metadata)}, the text has {dict(want.metadata)}"
        if want.id != have.get("id"):
            yield f"{where}: id {have.get('id')!r}, not {want.id!r}"
    for key in text.metadata:
        if book.metadata.get(key) != text.metadata[key]:
            yield f"{name}.ipynb: metadata {key!r} is {book.metadata.get(key)!r}"
    for key in set(book.metadata) - set(text.metadata):
        yield f"{name}.ipynb: metadata {key!r} is not the text's"


def check_outputs(name, book):
    """What is wrong with the stored outputs, as far as it shows without running."""
    expected = 0
    for number, cell in enumerate(book.cells, 1):
        where = f"{name}.ipynb: cell {number}"
        if NBVAL_OFF.search(cell.source) or any(map(NBVAL_OFF.search, cell.metadata.get("tags", []))):
            yield f"{where} switches its own validation off"
        unknown = set(cell.metadata.get("tags", [])) - KNOWN_TAGS
        if unknown:
            yield f"{where}: unknown tags {sorted(unknown)}"
        if cell.cell_type != "code":
            continue
        expected += 1
        if cell.execution_count != expected:
            yield f"{where}: execution count {cell.execution_count}, not {expected}: not run in order"
        if "image" in cell.metadata.get("mystnb", {}) or "figure" in cell.metadata.get("mystnb", {}):
            mystnb = cell.metadata["mystnb"]
            if not mystnb.get("image", {}).get("alt"):
                yield f"{where}: a figure without alternative text"
            if not mystnb.get("figure", {}).get("caption"):
                yield f"{where}: a figure without a caption"
        raises = "raises-exception" in cell.metadata.get("tags", [])
        errors = [out for out in cell.outputs if out.output_type == "error"]
        if raises != bool(errors):
            yield f"{where}: " + ("tagged raises-exception, raises nothing" if raises
                                  else f"stored error {errors[0].ename}")
        for out in cell.outputs:
            if out.get("name") == "stderr":
                yield f"{where}: writes to stderr"
            data = dict(out.get("data", {}))
            yield from (f"{where}: {kind} in its output, which nobody runs; print text, or draw"
                        for kind in sorted(data.keys() - SHOWN))
            if "text/markdown" in data and mathematics("".join(data["text/markdown"])):
                yield f"{where}: mathematics in its output is not run; write it in the text, $$ … $$ (prp:name)"
            if any(kind in data for kind in ("image/png", "image/jpeg")):
                yield f"{where}: a bitmap, which nobody compares; call book_style()"
            if "image/svg+xml" in data and not cell.metadata.get("mystnb", {}).get("figure"):
                yield f"{where}: a figure without caption and alternative text"
            words = "\n".join([out.get("text", ""), out.get("evalue", "")]
                              + [str(v) for k, v in data.items() if k != "image/svg+xml"])
            for pattern, what in ((PATHS, "a path of a machine"), (ADDRESS, "a memory address")):
                found = pattern.search(words)
                if found:
                    yield f"{where}: {what} in its output, {found.group()!r}"
            if out.output_type == "execute_result" and out.execution_count != cell.execution_count:
                yield f"{where}: output of run {out.execution_count}"


def mathematics(markdown):
    """Whether Markdown that a cell shows asserts something, or has what a chapter may not have."""
    from attnmath.page._chapter import read_text as read

    chapter = read(markdown)
    return bool(chapter.asserted or chapter.displays or chapter.faults)


def check_text(name, path):
    """The text's own header is the one that jupytext writes."""
    source = path.read_text("utf-8")
    if not source.startswith("---\n"):
        yield f"{name}.md: no header"
        return
    header = yaml.safe_load(source.split("\n---\n")[0][4:])
    expected = {"format_name": "myst", "format_version": 0.13, "extension": ".md"}
    representation = header.get("jupytext", {}).get("text_representation", {})
    for key, value in expected.items():
        if representation.get(key) != value:
            yield f"{name}.md: text_representation.{key} is {representation.get(key)!r}, not {value!r}"
    if header.get("kernelspec") != HEADER["kernelspec"]:
        yield f"{name}.md: kernelspec is not {HEADER['kernelspec']}"


def check_toc(root):
    """The table of contents lists each chapter once, a notebook's by its full name."""
    toc = yaml.safe_load((root / "_toc.yml").read_text("utf-8"))
    listed = [toc["root"]] + [entry["file"] for part in toc["parts"] for entry in part["chapters"]]
    folder = root / "chapters"
    coded = texts(folder)
    wanted = {f"chapters/{path.stem}" + (".ipynb" if path.stem in coded else "")
              for path in folder.glob("*.md") if not path.stem.startswith("_")}
    yield from (f"_toc.yml: {name} is not listed" for name in sorted(wanted - set(listed)))
    yield from (f"_toc.yml: {name} is no chapter" for name in sorted(set(listed) - wanted))
    yield from (f"_toc.yml: {name} is listed twice"
                for name in sorted({name for name in listed if listed.count(name) > 1}))


def check(folder):
    """Every complaint about the pairs in a folder and about its place in the book."""
    yield from check_toc(folder.parent)
    chapters, words = texts(folder), derived.Book(folder)
    for path in sorted(folder.glob("*.ipynb")):
        if path.stem not in chapters:
            yield f"{path.name}: a notebook without a text"
    for name, path in chapters.items():
        target = path.with_suffix(".ipynb")
        if not target.exists():
            yield f"{name}.md: a text with code and no notebook; make notebooks"
            continue
        book = nbformat.read(target, as_version=4)
        yield from check_text(name, path)
        try:
            text = derive(path, words)
        except derived.Unknown as unknown:
            yield f"{name}.md: {unknown} is not there, or not known outside of the book"
            continue
        yield from (f"{name}.md: {wrong}" for wrong in derived.disturbed(text))
        yield from check_cells(name, text, book)
        yield from check_outputs(name, book)


def colab(folder, target, repository, commit):
    """Copies of the notebooks that install the package at this commit first, and whose links need no folder."""
    target.mkdir(parents=True, exist_ok=True)
    line = f'%pip install --quiet "attnmath[page] @ git+{repository}@{commit}"'
    here = repository.replace("https://github.com", "https://colab.research.google.com/github")
    for name, path in texts(folder).items():
        source = path.with_suffix(".ipynb").read_text("utf-8")
        source = re.sub(r"\]\((?=\w+\.ipynb)", f"]({here}/blob/colab/", source)
        source = re.sub(r"\]\((?=\w+\.md)", f"]({repository}/blob/{commit}/chapters/", source)
        book = nbformat.reads(source.replace("](../", f"]({repository}/blob/{commit}/"), as_version=4)
        book.cells.insert(0, nbformat.v4.new_code_cell(line, id=f"{name}-install"))
        (target / f"{name}.ipynb").write_text(nbformat.writes(book, version=4) + "\n", "utf-8")


def main(argv=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--chapters", type=Path, default=ROOT / "chapters")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("check")
    run = commands.add_parser("run")
    run.add_argument("names", nargs="*", help="chapters; all when none is named")
    run.add_argument("--jobs", type=int, default=2)
    commands.add_parser("text").add_argument("names", nargs="*", help="chapters; all when none is named")
    commands.add_parser("code").add_argument("names", nargs="+", help="chapters")
    to_colab = commands.add_parser("colab")
    to_colab.add_argument("folder", type=Path)
    to_colab.add_argument("--repository", required=True)
    to_colab.add_argument("--commit", required=True)
    args = parser.parse_args(argv)
    if args.command == "check":
        complaints = list(check(args.chapters))
        print("\n".join(complaints) or f"{len(texts(args.chapters))} pairs of text and notebook agree")
        return bool(complaints)
    if args.command == "colab":
        colab(args.chapters, args.folder, args.repository, args.commit)
        return 0
    known = texts(args.chapters)
    names = [Path(name).stem for name in args.names] or list(known)
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"no chapter with code is called {', '.join(unknown)}; there are {', '.join(known)}")
    if args.command == "code":
        complaints = [wrong for name in names for wrong in take_code(known[name])]
        print("\n".join(complaints), end="\n" * bool(complaints))
        return bool(complaints)
    if args.command == "text":
        book, stale = derived.Book(args.chapters), []
        for name in names:
            changed = say_again(known[name], book)
            stale += [name] * (changed is None)
            said = {None: "its code has changed; run it", True: "written", False: "unchanged"}
            print(f"{name}.ipynb: {said[changed]}")
        return bool(stale)
    if len(names) < 3:      # sooner done than the libraries of all kernels are imported
        return run_all(names, known, args.jobs)
    from kernels import NAME, serving

    with serving(environment()) as env:
        os.environ["JUPYTER_PATH"] = env["JUPYTER_PATH"]
        return run_all(names, known, args.jobs, NAME, env)


def run_all(names, known, jobs, *kernel):
    """Make these notebooks, side by side; whether one of them failed."""
    from nbclient.exceptions import CellExecutionError

    failed = False
    with concurrent.futures.ProcessPoolExecutor(jobs) as pool:
        runs = {name: pool.submit(make, known[name], *kernel) for name in names}
        for name, run in runs.items():
            try:
                print(f"{name}.ipynb: {'written' if run.result() else 'unchanged'}", flush=True)
            except CellExecutionError as error:
                failed = True
                print(f"chapters/{name}.md:{place(known[name], error)}: {error.ename}: {error.evalue}")
    return failed


if __name__ == "__main__":
    sys.exit(main())
