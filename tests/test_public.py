"""What the package promises about itself: names, documents, dependencies, untouched inputs."""

import ast
import inspect
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import attnmath

PACKAGE = Path(attnmath.__file__).parent
FORMULAS = ("_softmax", "_attention", "_projections", "_heads", "_inputs", "_blocks", "_dropout",
            "_jacobians", "_second", "_second_layer", "_flash", "_flash_second", "_merge")
CHAPTER = {"attention": "attention_map", "attention_map": "attention_map", "attention_vjp": "attention",
           "attention_jvp": "attention", "complex_step": "checking", "check_vjp": "checking",
           "check_jvp": "checking", "prove": "proved", "examine": "examine", "examine_layer": "examine",
           **dict.fromkeys(("linear", "linear_vjp", "linear_jvp"), "projections"),
           **dict.fromkeys(("multihead_map", "multihead", "multihead_vjp", "multihead_jvp"), "heads"),
           **dict.fromkeys(("self_attention", "self_attention_vjp", "self_attention_jvp"), "inputs"),
           **{name + kind: "blocks" for name in ("layer_norm", "silu", "mlp", "log_softmax", "cross_entropy")
              for kind in ("", "_vjp", "_jvp")},
           **dict.fromkeys(("causal_mask", "window_mask", "padding_mask", "document_mask", "bias",
                            "bias_from_multihead"), "masks"),
           **dict.fromkeys(("jacobians", "self_attention_jacobian"), "jacobians"),
           **{"dropout_" + name: "dropout" for name in ("mask", "attention", "attention_vjp", "attention_jvp")},
           **dict.fromkeys(("attention_hvp", "attention_vjp_vjp", "multihead_hvp"), "second"),
           **dict.fromkeys(("flash_attention", "flash_attention_vjp", "flash_attention_jvp", "flash_attention_vjp_vjp",
                            "merge", "merge_vjp", "merge_jvp"), "flash"),
           }  # fmt: skip
FUNCTIONS = [name for name in attnmath.__all__ if not inspect.isclass(getattr(attnmath, name))]
ARGUMENTS = (r"\b(scores|head|projection|layer|norm|entries|network|targets|draws|tiled|two_parts|dict)\("
             r"|= dots$|^found = ")  # lines that only check and name
functions = pytest.mark.parametrize("name", FUNCTIONS)


def imports(module):
    """The names of the package's modules that a module imports, and of other packages."""
    tree, found = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8")), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0
            found |= {f"{node.module}.{a.name}" if node.module == "attnmath" else node.module
                      for a in node.names}  # fmt: skip
    return found


def test_dependencies_point_one_way():
    own = {m: {i.removeprefix("attnmath.") for i in imports(m) if i.startswith("attnmath.")}
           for m in (p.stem for p in PACKAGE.glob("_*.py")) if not m.startswith("__")}  # fmt: skip
    assert own == {
        "_tolerance": set(), "_arrays": set(), "_arguments": {"_arrays"},
        "_softmax": {"_arguments", "_arrays"}, "_attention": {"_arguments", "_arrays", "_softmax"},
        "_layer_arrays": {"_arrays"}, "_layer_arguments": {"_arguments", "_arrays"},
        "_projections": {"_arrays", "_layer_arguments", "_layer_arrays"},
        "_heads": {"_arrays", "_layer_arguments", "_layer_arrays", "_softmax"},
        "_inputs": {"_arrays", "_heads", "_layer_arguments"},
        "_jacobians": {"_arguments", "_arrays", "_attention", "_heads", "_layer_arguments", "_layer_arrays"},
        "_block_arguments": {"_arguments", "_arrays", "_layer_arguments"},
        "_blocks": {"_arrays", "_block_arguments", "_projections", "_softmax"},
        "_mask_arguments": {"_arguments", "_arrays"}, "_masks": {"_arrays", "_mask_arguments"},
        "_dropout": {"_arguments", "_arrays", "_attention", "_softmax"},
        "_second": {"_arguments", "_arrays", "_dropout", "_softmax"},
        "_second_layer": {"_arrays", "_heads", "_layer_arguments", "_layer_arrays", "_second"},
        "_tile_arrays": {"_arrays"}, "_tile_arguments": {"_arguments", "_arrays", "_mask_arguments"},
        "_merge": {"_arrays", "_tile_arguments", "_tile_arrays"},
        "_flash": {"_arrays", "_attention", "_merge", "_tile_arguments", "_tile_arrays"},
        "_flash_second": {"_arrays", "_flash", "_second", "_tile_arguments", "_tile_arrays"},
        "_additive": {"_arrays", "_softmax"}, "_comparisons": {"_arrays", "_layer_arrays", "_projections"},
        "_training": {"_blocks", "_heads", "_inputs", "_masks", "_projections"},
        "_sequences": {"_blocks", "_training"}, "_twin": {"_sequences", "_training", "torch"},
        "_reading_heads": {"_arrays", "_heads", "_layer_arrays"},
        "_lipschitz": {"_attention"},
        "_step": {"_tolerance"}, "_leaves": set(), "_problem": {"_leaves", "_step", "_tolerance"},
        "_returned": {"_leaves", "_problem", "_step"},
        "_check": {"_exact_check", "_leaves", "_problem", "_proof", "_returned", "_step", "_tolerance"},
        "_primes": set(), "_radicands": set(), "_algebraic": set(), "_infinity": {"_algebraic", "_entries"},
        "_entries": {"_algebraic"}, "_numbers": {"_algebraic", "_entries", "_primes"},
        "_unknowns": {"_algebraic", "_infinity", "_numbers", "_primes", "_radicands", "_tolerance"},
        "_point": {"_algebraic", "_entries", "_infinity", "_numbers", "_primes", "_radicands", "_unknowns"},
        "_exact_arrays": {"_algebraic", "_entries", "_infinity", "_numbers", "_point"},
        "_exact_functions": {"_algebraic", "_exact_arrays"},
        "_exact_linalg": {"_algebraic", "_exact_arrays"},
        "_graph": {"_exact_arrays", "_infinity", "_numbers"},
        "_proof": {"_primes"},
        "_compare": {"_algebraic", "_exact_arrays", "_numbers", "_point", "_proof", "_tolerance"},
        "_calls": {"_algebraic", "_exact_arrays", "_infinity", "_leaves", "_numbers"},
        "_reals": {"_algebraic", "_calls", "_compare", "_tolerance"}, "_differences": {"_leaves", "_problem", "_step"},
        "_prove": {"_algebraic", "_calls", "_compare", "_exact_arrays", "_exact_functions", "_exact_linalg",
                   "_leaves", "_point", "_primes", "_proof", "_reals", "_step"},
        "_exact_check": {"_algebraic", "_calls", "_compare", "_differences", "_exact_arrays", "_graph", "_leaves", "_numbers",
                         "_point", "_problem", "_proof", "_prove", "_reals", "_returned", "_step", "_tolerance"},
        "_roundoff": {"_arrays"}, "_rounded_heads": {"_attention", "_roundoff"},
        "_rounding_steps": {"_arguments", "_arrays", "_roundoff"},
    }  # fmt: skip


@pytest.mark.parametrize("module", FORMULAS)
def test_formulas_call_the_vocabulary_and_each_other_only(module):
    assert {i for i in imports(module) if not i.startswith("attnmath.")} <= {"typing", "collections.abc"}
    tree = ast.parse((PACKAGE / f"{module}.py").read_text("utf-8"))
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
    for node in ast.parse((PACKAGE / f"{module}.py").read_text("utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            lines = ast.unparse(node.body[1:]).splitlines() if node.body[1:] else []
            formulas = [x for x in node.body[1:] if not isinstance(x, ast.Return)
                        and not is_renamed(x) and not re.search(ARGUMENTS, ast.unparse(x))]  # fmt: skip
            assert len(formulas) <= 10 and len(lines) <= 12, node.name
    source = (PACKAGE / f"{module}.py").read_text("utf-8")
    assert all(len(line) <= 88 for line in source.splitlines())


def test_importing_the_package_imports_neither_torch_nor_the_page():
    code = ("import sys, attnmath; print([m for m in ('torch', 'jax', 'transformers', 'lark', 'matplotlib',"
            " 'hypothesis', 'attnmath.page', 'attnmath._check', 'attnmath._prove') if m in sys.modules])")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_what_is_imported_late_is_there_all_the_same():
    code = "from attnmath import prove; import attnmath; print(prove is attnmath.prove)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "True\n"
    with pytest.raises(AttributeError, match="module 'attnmath' has no attribute 'prov'"):
        attnmath.prov  # noqa: B018


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
    assert re.fullmatch(r"[A-Z].*[a-z]\.", paragraphs[0].replace("\n", " "))
    assert "->" in paragraphs[1]
    stem = CHAPTER.get(name, "softmax")
    label = "" if stem in ("checking", "proved", "examine") else f", eq:{name}"
    assert inspect.getdoc(function).endswith(f"\nDerived in chapters/{stem}.md{label}.")


@functions
def test_every_function_is_typed(name):
    signature = inspect.signature(getattr(attnmath, name))
    assert signature.return_annotation is not inspect.Signature.empty
    assert all(p.annotation is not p.empty for p in signature.parameters.values())


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


SHAPES = dict(Q=(2, 4, 3), K=(5, 3), V=(5, 2), B=(4, 5), A=(4, 5), dP=(4, 5), dL=(4,), dO=(2, 4, 2),
              dLambda=(4, 5), tau=(), gamma=())  # fmt: skip
WEIGHTS = attnmath.Weights((4, 7, 3), (2, 6, 3), (2, 6, 8), (4, 8, 7), (4, 3), None, (2, 8), (7,))
OWN = {  # what has other shapes in the functions of this name
    "linear": dict(X=(2, 4, 3), W=(3, 5), b=(5,), dY=(2, 4, 5)),
    "multihead": dict(X=(2, 5, 7), Z=(2, 3, 6), W=WEIGHTS, B=(5, 3), gamma=(4,), R=(5, 3), dY=(2, 5, 7)),
    "self_attention": dict(X=(2, 5, 6), W=WEIGHTS._replace(W_Q=(4, 6, 3), W_O=(4, 8, 6), b_O=(6,)), B=(5, 5),
                           R=(5, 5), dY=(2, 5, 6)),
    "layer_norm": dict(X=(2, 4, 3), alpha=(3,), beta=(3,), epsilon=(), dY=(2, 4, 3)),
    "silu": dict(U=(2, 4), dF=(2, 4)),
    "mlp": dict(X=(2, 4, 3), W_U=(3, 5), b_U=(5,), W_D=(5, 3), b_D=(3,), dY=(2, 4, 3)),
    "cross_entropy": dict(E=(4, 5), dloss=()),
    "dropout_mask": dict(U=(4, 5), rho=()),
    "attention": dict(R=(4, 5)), "dropout_attention": dict(R=(4, 5)), "flash_attention": dict(R=(4, 5), dL=(2, 4), tile=(3, 2), with_L=True),
    "merge": dict(O_a=(2, 4, 3), L_a=(2, 4), O_b=(2, 4, 3), L_b=(2, 4), dO=(2, 4, 3), dL=(2, 4)),
}  # fmt: skip
MASKS = {  # whole numbers and booleans
    "causal_mask": dict(n=4, m=5), "window_mask": dict(n=4, m=5, w=2),
    "padding_mask": dict(lengths=np.array([2, 0]), m=5), "document_mask": dict(documents=np.array([1, 1, 2])),
    "bias": dict(mask=np.ones((4, 5), bool), added=np.ones(5)),
    "bias_from_multihead": dict(attn_mask=np.ones((4, 5), bool), key_padding_mask=np.full(5, 2.0)),
}  # fmt: skip


def arguments(name):
    """An array or number for each parameter of a function, with a masked score and an empty row."""
    if name in MASKS:
        return dict(MASKS[name])
    rng = np.random.default_rng(4)

    def made(shape):
        if isinstance(shape, attnmath.Weights):
            return shape._make(map(made, shape))
        return None if shape is None else rng.normal(size=shape)

    shapes = SHAPES | OWN.get(re.sub("_(map|vjp|jvp|hvp|vjp_vjp|jacobian)$", "", name), {})
    parameters = inspect.signature(getattr(attnmath, name)).parameters
    x = {p: shapes[p] if p in ("tile", "with_L") else made(shapes[p.removesuffix("_dot")])
         for p in parameters if p != "given"}  # fmt: skip
    for p in x.keys() & {"A", "B"}:
        x[p][1] = x[p][0, 2] = -np.inf
    for p in x.keys() & {"R", "epsilon"}:
        x[p] = np.abs(x[p])
    for p in x.keys() & {"U", "rho"} if name == "dropout_mask" else ():
        x[p] = np.abs(x[p]) % 1
    if "E" in x:  # what is hidden is no target
        x["E"] = np.where(np.isneginf(x["A"]), 0, x["E"])
    return x


def arrays(x):
    """All arrays in what is given or returned."""
    if isinstance(x, tuple):
        return [a for part in x for a in arrays(part)]
    return [x] if hasattr(x, "ndim") else []


@functions
def test_inputs_are_never_modified_nor_returned(name):
    if name.startswith("check_") or name in ("complex_step", "prove", "examine", "examine_layer"):
        return
    x = arguments(name)
    given = arrays(tuple(x.values()))
    before = [a.copy() for a in given]
    for a in given:
        a.setflags(write=False)
    out = getattr(attnmath, name)(**x)
    assert all(np.array_equal(a, b) for a, b in zip(given, before))
    for y in arrays(out):
        assert not any(np.shares_memory(y, a) for a in given)
        assert not np.isnan(y).any()
