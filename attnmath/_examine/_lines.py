"""A case as lines that can be pasted: imports, inputs, the call, what it gives, what is right."""

import inspect
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from attnmath._examine._candidate import Candidate
from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._layouts import scores_axes, to_layout
from attnmath._examine._sketch import Sketch, case_of, inputs
from attnmath._examine._steps import Steps

# From the axes b, h, s, d of a problem to the candidate's; and the same for a mask's.
AXES = {"bhsd": "", "bshd": ".swapaxes(1, 2)", "sbhd": ".transpose(2, 0, 1, 3)", "hsd": "[0]",
        "shd": "[0].swapaxes(0, 1)", "sd": "[0, 0]"}  # fmt: skip
LACKING = {"hsd": "[0]", "shd": "[0]", "sd": "[0, 0]"}
OWN = {"O": "o", "dQ": "dq", "dK": "dk", "dV": "dv", "dB": "db"}


def lines(x: Sketch, candidate: Candidate, means: Conventions, dtype: str) -> str:
    """The case, the call, and the entry that is most wrong."""
    case, layout = case_of(x, dtype), candidate.layout or means.layout or "bhsd"
    outcome = candidate.run(case, means)
    found = [*_imports(x, candidate, dtype), "", *inputs(x, dtype), ""]
    found += _call(candidate, case, means, layout, dtype)
    if outcome.answer is None:
        return "\n".join([*found, f"# {outcome.error.sentence}"])
    want = Steps(case, means).answer()
    name, at = worst(outcome.answer, want)
    mine, theirs = ", ".join(map(str, at)), ", ".join(map(str, _place(name, at, layout)))
    found += ["", _right(case, means, name)]
    entry = f"{OWN[name]}[{theirs}]"
    entry = f"{entry}.item()" if candidate.library.name == "torch" else f"float({entry})"
    found.append(f'print("{name}[{mine}] is", {entry}, "and should be", float(right[{mine}]))')
    got, right = getattr(outcome.answer, name)[at], getattr(want, name)[at]
    return "\n".join([*found, f"# {name}[{mine}] is {got:.6g} and should be {right:.6g}"])


def worst(got: Answer, want: Answer) -> tuple[str, tuple[int, ...]]:
    """The letter and the entry that are most wrong, compared with the largest entry."""
    found = []
    for name in OWN:
        a, b = getattr(got, name), getattr(want, name)
        if a is not None and b is not None and a.shape == b.shape:
            with np.errstate(all="ignore"):
                error = np.where(a == b, 0.0, np.abs(a - b) / (np.abs(b).max(initial=0.0) or 1.0))
            error = np.where(np.isnan(error), np.inf, error)
            at = np.unravel_index(int(error.argmax()), error.shape)
            found.append((float(error[at]), name, tuple(map(int, at))))
    return max(found)[1:]


def _imports(x: Sketch, candidate: Candidate, dtype: str) -> list[str]:
    library = candidate.library.name
    found = ["import numpy as np"] + ([f"import {library}"] if library != "numpy" else [])
    if library == "numpy" and dtype == "bfloat16":
        found.append("import ml_dtypes")
    found.append("import attnmath")
    if x.numbers == "normal" and x.listed is None:
        found.append("from attnmath.rounding import nearest")
    for fn in filter(None, (candidate.fn, candidate.backward)):
        module, name = getattr(fn, "__module__", None), _name(fn, candidate)
        if module != "__main__" and getattr(sys.modules.get(module), name, None) is fn:
            found.append(f"from {module} import {name}")
        else:
            found.append(f"# {name} is your own function")
    if library == "jax" and dtype == "float64":
        found.append('jax.config.update("jax_enable_x64", True)')
    return found


def _call(candidate: Candidate, case: Case, means: Conventions, layout: str, dtype: str) -> list[str]:
    """The arrays of the candidate's library, and the candidate's output and gradients."""
    library, axes = candidate.library.name, AXES[layout]
    by_autograd = candidate.backward is None and library == "torch"
    make = {
        "numpy": f"np.array({{}}, {'ml_dtypes.bfloat16' if dtype == 'bfloat16' else repr(dtype)})",
        "torch": f"torch.tensor({{}}, dtype=torch.{dtype}{', requires_grad=True' * by_autograd})",
        "jax": f"jax.numpy.array({{}}, {dtype!r})",
    }[library]
    plain = make.replace(", requires_grad=True", "")
    found = [f"q, k, v = ({make.format('x' + axes)} for x in (Q, K, V))"]
    found.append("do = " + _dO(plain, case, axes, layout, library))
    options, given = _options(candidate, case, means, layout)
    for name, value in given.items():
        is_bool = name == "mask" and means.mask != "add"
        kind = {"torch": "torch.tensor({})", "jax": "jax.numpy.array({})", "numpy": "{}"}[library]
        pattern = kind if is_bool else make if name == "b" else plain
        found.append(f"{name} = {pattern.format(value)}")
    call = f"{_name(candidate.fn, candidate)}(q, k, v{options})"
    leaves, names = ("q, k, v, b", "dq, dk, dv, db") if "b" in given else ("q, k, v", "dq, dk, dv")
    if candidate.backward:
        back = f"{_name(candidate.backward, candidate)}(do, q, k, v{options})"
        return [*found, f"o = {call}", f"{names} = {back}"]
    if library == "torch":
        grad = f"torch.autograd.grad(o, ({leaves}), do, allow_unused=True)"
        return [*found, f"o = {call}", f"{names} = {grad}"]
    if library == "jax":
        return [*found, f"o, pull = jax.vjp(lambda {leaves}: {call}, {leaves})", f"{names} = pull(do)"]
    return [*found, f"o = {call}"]


def _dO(make: str, case: Case, axes: str, layout: str, library: str) -> str:
    """dO, in the order in memory that is the case's."""
    rank = len(layout)
    if "strided dO" in case.traits and library != "jax":
        turned = f".permute({', '.join(map(str, reversed(range(rank))))})" if library == "torch" else ".T"
        return make.format(f"dO{axes}.T.copy()") + turned
    if "broadcast dO" in case.traits and library != "jax":
        one, shape = make.format(f"np.ones({(1,) * rank})"), to_layout(case.dO, layout).shape
        return f"{one}.expand({shape})" if library == "torch" else f"np.broadcast_to({one}, {shape})"
    return make.format("dO" + axes)


def _options(
    candidate: Candidate, case: Case, means: Conventions, layout: str
) -> tuple[str, dict[str, str]]:
    """The keywords of the call, and the arrays among them with what they are made from."""
    words, lacking = candidate.options, LACKING.get(layout, "")
    value, arrays = {}, {}
    if case.keep is not None:
        forms = {"keep": "keep", "drop": "~keep", "add": "np.where(keep, 0.0, -np.inf)"}
        form = forms[means.mask or "keep"]
        arrays["mask"] = f"({form}){lacking}" if lacking else form
        value["mask"] = "mask"
    if case.bias is not None:
        arrays["b"], value["bias"] = f"bias{lacking}", "b"
    if case.R is not None:
        arrays["r"], value["dropout_mask"] = f"R{lacking}", "r"
    if case.scale is not None:
        value["scale"] = repr(case.scale)
    for word, on in (("causal", case.causal), ("groups", case.sizes["G"] != case.sizes["H"])):
        if on or _default(candidate.fn, words.get(word)) not in (False, None):
            value[word] = str(on)
    for word, (name, nothing) in _nothing(case, means, layout).items():
        if word not in value and _default(candidate.fn, words.get(word)) is inspect.Parameter.empty:
            value[word] = name or nothing
            arrays |= {name: nothing} if name else {}
    named = (f", {words[w]}={x}" for w, x in value.items() if isinstance(words.get(w), str))
    return "".join(named), arrays


def _nothing(case: Case, means: Conventions, layout: str) -> dict[str, tuple[str, str]]:
    """What changes nothing, for an option without a default: the name of an array, and what it is."""
    shape = scores_axes(np.zeros((1, 1, case.sizes["n"], case.sizes["m"])), layout).shape
    masks = {"keep": f"np.ones({shape}, bool)", "drop": f"np.zeros({shape}, bool)", "add": f"np.zeros({shape})"}
    return dict(
        mask=("mask", masks[means.mask or "keep"]), bias=("zeros", f"np.zeros({shape})"),
        dropout_mask=("ones", f"np.ones({shape})"), scale=("", repr(case.gamma(means))), dropout=("", "0.0"),
    )  # fmt: skip


def _right(case: Case, means: Conventions, name: str) -> str:
    """The line that computes the right answer by the formulas of this package."""
    s = case.sizes
    seen = ["keep"] if case.keep is not None else []
    if case.causal:
        align = means.causal or "lower_right"
        seen.append(f"attnmath.causal_mask({s['n']}, {s['m']}, align={align!r})")
    B = "bias" if case.bias is not None else "0.0" if seen else "None"
    given = [f"np.where({' & '.join(seen)}, {B}, -np.inf)" if seen else B]
    if case.scale is not None or means.scale not in (None, "1/sqrt(d_k)"):
        given.append(f"gamma={float(case.gamma(means))!r}")
    given += ["R=R"] if case.R is not None else []
    drop, r, K, V, sum_ = "dropout_" * (case.R is not None), s["H"] // s["G"], "K", "V", ""
    if r > 1:
        tiled = means.groups == "interleaved"
        K, V = (f"np.tile({x}, (1, {r}, 1, 1))" if tiled else f"np.repeat({x}, {r}, 1)" for x in "KV")
        inner = f"{r}, {s['G']}" if tiled else f"{s['G']}, {r}"
        sum_ = f".reshape({s['b']}, {inner}, {s['m']}, -1).sum({1 if tiled else 2})"
    arguments = ", ".join([*(["dO"] if name != "O" else []), "Q", K, V, *(given if given != ["None"] else [])])
    if name == "O":
        return f"right = attnmath.{drop}attention({arguments})"
    after = sum_ if name in ("dK", "dV") else ""
    if name == "dB":
        axes = tuple(i for i, k in enumerate(case.bias.shape) if k == 1)
        after = f".sum({axes}, keepdims=True)" if seen and axes else ""
    return f"right = attnmath.{drop}attention_vjp({arguments}).{name}{after}"


def _place(name: str, at: tuple[int, ...], layout: str) -> list[int]:
    """The place of an entry in the candidate's own axes."""
    if name == "dB":
        return list(at[LACKING.get(layout, "").count("0") :])
    return [dict(zip("bhsd", at))[letter] for letter in layout]


def _name(fn: Callable, candidate: Candidate) -> str:
    """Its own name; a letter for a lambda, a partial function, a module."""
    name = getattr(fn, "__name__", "")
    return name if name.isidentifier() else "backward" if fn is candidate.backward else "f"


def _default(fn: Callable, keyword: Any) -> Any:
    try:
        return inspect.signature(getattr(fn, "forward", fn)).parameters[keyword].default
    except (KeyError, TypeError, ValueError):
        return None
