"""What the package promises about itself: names, documents, dependencies, untouched inputs."""

import ast
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest

import attnmath
from drawn import drawn
from floors import mentioned

PACKAGE = Path(attnmath.__file__).parent
FORMULAS = sorted(path.stem for path in (PACKAGE / "_formulas").glob("[!_]*.py"))
FUNCTIONS = [name for name in attnmath.__all__ if not inspect.isclass(getattr(attnmath, name))]
CHECKED = [name for name in FUNCTIONS if hasattr(getattr(attnmath, name), "__wrapped__")]
functions = pytest.mark.parametrize("name", FUNCTIONS)
checked = pytest.mark.parametrize("name", CHECKED)


@pytest.mark.parametrize("module", FORMULAS)
def test_formulas_call_the_vocabulary_and_each_other_only(module):
    text = (PACKAGE / "_formulas" / f"{module}.py").read_text("utf-8")
    imported = {either[-1] for either in mentioned(f"attnmath._formulas.{module}", text, False)}
    assert {name for name in imported if not name.startswith("attnmath.")} <= {"typing", "collections.abc"}
    tree = ast.parse(text)
    calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
    assert all(isinstance(call, ast.Name) for call in calls)
    words = {alias.name for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    words |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    assert {call.id for call in calls} <= words | {"dict", "map", "zip"}


def is_renamed(line):
    """A line that computes nothing: `dB = dA`, `found = dQ, dK, dV`."""
    parts = [line.value, *getattr(line.value, "elts", ())]
    return isinstance(line, ast.Assign) and all(isinstance(x, ast.Name | ast.Tuple) for x in parts)


@pytest.mark.parametrize("module", FORMULAS)
def test_formulas_are_short_and_fit_a_page(module):
    for node in ast.parse((PACKAGE / "_formulas" / f"{module}.py").read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            lines = ast.unparse(node.body[1:]).splitlines() if node.body[1:] else []
            formulas = [x for x in node.body[1:] if not isinstance(x, ast.Return)
                        and not is_renamed(x)]
            assert len(formulas) <= 10 and len(lines) <= 12, node.name
    source = (PACKAGE / "_formulas" / f"{module}.py").read_text("utf-8")
    assert all(len(line) <= 88 for line in source.splitlines() if not line.startswith("from "))


def test_importing_the_package_imports_neither_torch_nor_the_page():
    code = ("import sys, attnmath; print([m for m in ('torch', 'jax', 'transformers', 'lark', 'matplotlib',"
            " 'hypothesis', 'attnmath.page', 'attnmath._check.check', 'attnmath._exact.prove') if m in sys.modules])")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_is_imported_late_is_there_all_the_same():
    code = "from attnmath import prove; import attnmath; print(prove is attnmath.prove)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"
    with pytest.raises(AttributeError, match="module 'attnmath' has no attribute 'prov'"):
        attnmath.prov  # noqa: B018


MODULES = "adapters", "rounding", "testing", "torch"


def shell(code, without="nothing"):
    """What a fresh Python prints in which one library is not installed, and how it ends."""
    missing = f"""
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {without!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""
    done = subprocess.run([sys.executable, "-c", missing + code], capture_output=True, text=True, cwd=PACKAGE.parent)
    return done.stdout, done.stderr.strip().rpartition("\n")[2]


def test_dir_is_what_is_public_and_nothing_else():
    assert dir(attnmath) == sorted([*attnmath.__all__, *MODULES, "__version__"])
    assert {"examine", "examine_layer", "check_vjp", "check_jvp", "prove", "complex_step"} <= set(dir(attnmath))
    for name in MODULES:
        module = getattr(attnmath, name)
        assert dir(module) == sorted(module.__all__) and all(hasattr(module, x) for x in dir(module))


def test_dir_is_the_same_before_anything_is_used_and_afterwards():
    out, _ = shell("import attnmath; before = dir(attnmath); attnmath.examine, attnmath.rounding.nearest\n"
                   "print(before == dir(attnmath), len(before), 'attnmath.torch' in sys.modules)")
    assert out == f"True {len(attnmath.__all__) + 5} False\n"


def test_a_module_is_loaded_when_it_is_first_used():
    out, _ = shell("import attnmath; print([n for n in ('torch', *" + repr([f"attnmath.{m}" for m in MODULES])
                   + ") if n in sys.modules]); print(attnmath.torch.weights_from.__name__, attnmath.testing.__name__)")
    assert out == "[]\nweights_from attnmath.testing\n"


def test_a_misspelled_name_is_told_the_right_one():
    for code, near in (("attnmath.examin_", "examine"), ("attnmath.torch.weights_fro", "weights_from")):
        assert shell(f"import attnmath; {code}")[1].endswith(f"Did you mean: '{near}'?")


@pytest.mark.parametrize("code", [
    "import attnmath.torch", "from attnmath import torch", "import attnmath; attnmath.torch",
    "from attnmath.torch import scaled_dot_product_attention", "import attnmath.adapters as a; a.sdpa()",
    "import attnmath; attnmath.examine(len, framework='torch')",
])
def test_without_torch_one_sentence_says_what_to_install(code):
    _, error = shell(code, without="torch")
    assert re.fullmatch(r"(\w+: |attnmath\.torch: )+torch is not installed: pip install 'attnmath\[torch\]'", error)


def test_without_torch_everything_else_goes_on():
    out, error = shell("import attnmath, pydoc; print(hasattr(attnmath, 'torch'), len(pydoc.render_doc(attnmath)) > 10000)",
                       without="torch")
    assert (out, error) == ("False True\n", "")


@pytest.mark.parametrize(("library", "extra"), [("lark", "page"), ("yaml", "page")])
def test_the_page_without_its_libraries_says_what_to_install(library, extra):
    out, error = shell("import runpy; sys.argv[1:] = ['check']; runpy.run_module('attnmath.page', run_name='__main__')",
                       without=library)
    assert (out, error) == ("", f"python -m attnmath.page: {library} is not installed: pip install 'attnmath[{extra}]'")


def test_every_library_of_the_package_is_in_its_extra():
    """What stands at the head of the modules of a room is installed with its extra."""
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text("utf-8"))["project"]
    called = {"yaml": "pyyaml", "flint": "python-flint", "markdown_it": "markdown-it-py", "IPython": "ipython",
              "cycler": "matplotlib", "matplotlib_inline": "ipython"}
    everywhere = {"numpy", "array-api-compat"}
    for room, extras in {"_*": (), "_examine/ranks": ("torch",), "rounding": (), "torch": ("torch", "gpu"), "page": ("page",), "book": ("page", "torch")}.items():
        named = {re.split("[>=<]", x)[0] for extra in extras for x in project["optional-dependencies"][extra]}
        for path in (p for folder in PACKAGE.glob(room) if folder.is_dir() for p in folder.rglob("*.py")):
            if room == "_*" and path.is_relative_to(PACKAGE / "_examine" / "ranks"):
                continue  # a room of PyTorch's own, which examine enters when it is asked for ranks
            for node in ast.parse(path.read_text("utf-8")).body:
                names = [a.name for a in node.names] if isinstance(node, ast.Import) else (
                    [node.module] if isinstance(node, ast.ImportFrom) else [])
                roots = {name.partition(".")[0] for name in names} - sys.stdlib_module_names - {"attnmath"}
                assert {called.get(x, x).replace("_", "-") for x in roots} <= everywhere | named, path


def test_public_names():
    assert attnmath.__all__ == sorted(attnmath.__all__)
    public = {n for n, x in vars(attnmath).items() if not n.startswith("_") and not inspect.ismodule(x)}
    assert public == set(attnmath.__all__)
    assert re.fullmatch(r"\d+\.\d+\.\d+", attnmath.__version__)
    assert (PACKAGE / "py.typed").is_file()


@functions
def test_every_function_is_documented_in_one_form(name):
    function = getattr(attnmath, name)
    paragraphs = inspect.getdoc(function).split("\n\n")
    assert re.fullmatch(r"[A-Z].*[a-z]\.", paragraphs[0].replace("\n", " ")), f"{name}: its docstring begins with no sentence"
    assert "->" in paragraphs[1], f"{name}: below the first sentence of its docstring stands no line of shapes, with ->"
    derived = re.fullmatch(r"Derived in chapters/(\w+)\.md(?:, eq:(\w+))?\.", paragraphs[-1].split("\n")[-1])
    assert derived, f"{name}: the last line of its docstring is not 'Derived in chapters/stem.md, eq:{name}.'"
    stem, label = derived.groups()
    assert not label or name in CHECKED, f"{name} has a display and is not @checked"
    assert label == (name if name in CHECKED else None), f"{name}: the last line of its docstring names {label}"
    text = (PACKAGE.parent / "chapters" / f"{stem}.md").read_text("utf-8")
    assert f"(eq:{name})" in text or not label, f"chapters/{stem}.md has no display eq:{name}"


@functions
def test_every_function_is_typed(name):
    signature = inspect.signature(getattr(attnmath, name))
    without = [p.name for p in signature.parameters.values() if p.annotation is p.empty]
    without += ["what it returns"] * (signature.return_annotation is inspect.Signature.empty)
    assert not without, f"{name}: without a type: {', '.join(without)}"


def positional(name):
    parameters = inspect.signature(getattr(attnmath, name)).parameters.values()
    return [p.name for p in parameters if p.kind is not p.KEYWORD_ONLY]


@functions
def test_one_signature_for_every_derivative(name):
    parameters = positional(name)
    if name.startswith("check_") or not name.endswith(("_vjp", "_jvp")):
        return
    forward = positional(name[:-4])
    if name.endswith("_vjp_vjp"):  # what arrives for dX acts as a tangent of X
        gradients = forward[1:]
        assert parameters == [f"{x}_dot" for x in gradients] + forward
    elif name.endswith("_vjp"):
        outputs = parameters[: len(parameters) - len(forward)]
        assert outputs and all(x.startswith("d") for x in outputs) and parameters[len(outputs):] == forward
    else:
        assert parameters == [f"{x}_dot" for x in forward] + forward


def arrays(x):
    """All arrays in what is given or returned."""
    if isinstance(x, tuple):
        return [a for part in x for a in arrays(part)]
    return [x] if hasattr(x, "ndim") else []


@checked
def test_inputs_are_never_modified_nor_returned(name):
    x = drawn(getattr(attnmath, name))
    given = arrays(tuple(x.values()))
    before = [a.copy() for a in given]
    for a in given:
        a.setflags(write=False)
    out = getattr(attnmath, name)(**x)
    assert all(np.array_equal(a, b) for a, b in zip(given, before))
    for y in arrays(out):
        assert not any(np.shares_memory(y, a) for a in given)
        assert not np.isnan(y).any()
