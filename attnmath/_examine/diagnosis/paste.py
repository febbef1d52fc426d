"""A case as lines that can be pasted: imports, inputs, the call, what it gives, what is right."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnmath._examine.contract.attempt import ask
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.contract import DROPOUT_FORMS, MASK_FORMS
from attnmath._examine.contract.functions import Broken, attribute, parameters
from attnmath._examine.contract.layouts import scores_axes, to_layout
from attnmath._examine.diagnosis.literals import (
    LACKING,
    TO_LAYOUT,
    added_to_scores,
    array_of,
    as_literal,
    laid_out,
    option_lines,
    over_groups,
    own_index,
    strided_lines,
)
from attnmath._examine.problems.case import Answer, Case, Conventions
from attnmath._examine.problems.steps import Steps

PUBLIC = {"torch._C._nn": "torch.nn.functional", "jax._src.nn.functions": "jax.nn"}
RETURNED_AS = {"O": "o", "dQ": "dq", "dK": "dk", "dV": "dv", "dB": "db"}


def lines_of_case(
    case: Case, inputs: Sequence[str], candidate: Candidate, means: Conventions, dtype: str,
    wrong: Mapping[str, np.ndarray] | None = None,
) -> str:
    """The case, made by the lines of inputs, the call, and the entry that is most wrong, among those that are."""
    layout, outcome = candidate.layout or means.layout or "bhsd", candidate.run(case, means)
    case = outcome.case  # some are always causal
    found = [*_import_lines(inputs, candidate, means, dtype), "", *inputs, ""]
    call, beside = _call(candidate, case, means, layout, dtype), candidate.reference
    want = Steps(case, means).answer() if beside is None else beside.run(case, means).answer
    if outcome.answer is None or want is None:
        return "\n".join([*found, *call, f"# {outcome.error and outcome.error.sentence}"])
    name, at = worst_entry(outcome.answer, want, wrong)
    width = getattr(want, name).shape[-1]
    mine, theirs = ", ".join(map(str, at)), ", ".join(map(str, own_index(name, at, layout, width)))
    got, right = getattr(outcome.answer, name)[at], getattr(want, name)[at]
    form = "{}[{}].item()" if candidate.library.name == "torch" else "float({}[{}])"
    if beside is not None:
        right_entry, before = form.format("right", theirs), _call(beside, case, means, layout, "float64")
        found += [*before, f"right = {RETURNED_AS[name]}", "", *call]
    elif means.pieces is not None:  # these have no formula in one line
        right_entry, found = repr(float(right)), [*found, *call, ""]
    else:
        right_entry, found = f"float(right[{mine}])", [*found, *call, "", _right(case, means, name)]
    entry = form.format(RETURNED_AS[name], theirs)
    found.append(f'print("{name}[{mine}] is", {entry}, "and should be", {right_entry})')
    digits = next((k for k in (6, 9, 12) if f"{got:.{k}g}" != f"{right:.{k}g}"), 17)
    return "\n".join([*found, f"# {name}[{mine}] is {got:.{digits}g} and should be {right:.{digits}g}"])


def fails_when_run(text: str, candidate: Candidate) -> bool:
    """Whether the lines, pasted, print what their last one says: an entry, and another that is right."""
    said: list[str] = []
    own = ((_called(f, x), f) for f, x in _functions(candidate))
    names = {k: f for k, f in own if f"# {k} is your own function" in text}
    names |= {"print": lambda *x: said.append(" ".join(map(str, x)))}
    try:
        candidate.in_time(lambda: ask(exec, text, names))
    except Broken:
        return False
    read = re.compile(r"#? ?(\w+\[.*?\]) is (\S+) and should be (\S+)")
    one, other = (read.fullmatch(line) for line in (" ".join(said), text.splitlines()[-1]))
    if one is None or other is None or one[1] != other[1]:
        return False
    (got, right), (first, second) = ((float(x[2]), float(x[3])) for x in (one, other))
    apart = abs(first - second) / 8 if np.isfinite(first - second) else 0.0
    near = all(a == b or a != a and b != b or abs(a - b) <= apart for a, b in ((got, first), (right, second)))
    return near and got != right


def worst_entry(
    got: Answer, want: Answer, wrong: Mapping[str, np.ndarray] | None = None
) -> tuple[str, tuple[int, ...]]:
    """The letter and the entry that are most wrong, compared with the largest entry; of those that are wrong."""
    found = []
    for name, b in want.there.items():
        a = got.there.get(name)
        if a is not None and a.shape == b.shape:
            with np.errstate(all="ignore"):
                error = np.where(a == b, 0.0, np.abs(a - b) / (np.abs(b).max(initial=0.0) or 1.0))
            error = np.where(np.isnan(error), np.inf, error)
            error = error if wrong is None else np.where(wrong.get(name, False), error, -1.0)
            at = np.unravel_index(int(error.argmax()), error.shape)
            found.append((float(error[at]), name, tuple(map(int, at))))
    _, name, place = max(found)
    return name, place


def _import_lines(inputs: Sequence[str], candidate: Candidate, means: Conventions, dtype: str) -> list[str]:
    library = candidate.library.name
    found = ["import numpy as np"] + ([f"import {library}"] if library != "numpy" else [])
    found += ["import ml_dtypes"] if library == "numpy" and dtype == "bfloat16" else []
    found += ["import attnmath"] if means.pieces is None else []
    found += ["from attnmath.rounding import nearest"] if any("nearest(" in line for line in inputs) else []
    found += _own_functions(candidate)
    return found + ['jax.config.update("jax_enable_x64", True)'] * (library == "jax" and dtype == "float64")


def _functions(candidate: Candidate) -> list[tuple[Callable, Candidate]]:
    """The candidate's functions, and those of its reference."""
    return [(fn, x) for x in (candidate, candidate.reference) if x for fn in (x.fn, x.backward) if fn is not None]


def _own_functions(candidate: Candidate) -> list[str]:
    """Where the candidate's functions are imported from, if they can be."""
    found = []
    for fn, owner in _functions(candidate):
        module, name = str(attribute(fn, "__module__")), _called(fn, owner)
        module = PUBLIC.get(module, module)
        known = module != "__main__" and getattr(sys.modules.get(module), name, None) is fn
        found.append(f"from {module} import {name}" if known else f"# {name} is your own function")
    return found


def _call(candidate: Candidate, case: Case, means: Conventions, layout: str, dtype: str) -> list[str]:
    """The arrays of the candidate's library, and the candidate's output and gradients."""
    library = candidate.library.name
    by_autograd = candidate.backward is None and library == "torch"
    plain = array_of(library, dtype)
    make = f"{plain[:-1]}, requires_grad=True)" if by_autograd else plain
    if layout in TO_LAYOUT:
        found = [f"q, k, v = ({make.format('x' + TO_LAYOUT[layout])} for x in (Q, K, V))"]
    else:
        each = (make.format(laid_out(of, getattr(case, of), layout, of)) for of in "QKV")
        found = [f"{of.lower()} = {line}" for of, line in zip("QKV", each)]
    found.append("do = " + _dO(plain, case, layout, library))
    options, given = _given_options(candidate, case, means, layout)
    constant = "constant bias" in case.traits  # a mask, or one whose gradient nobody asks for
    found += option_lines(given, means, library, plain, plain if constant else make)
    own = "qkv" if constant else "qkvb"
    found += strided_lines(case, means, layout, library, own if by_autograd else "")
    call = f"{_called(candidate.fn, candidate)}(q, k, v{options})"
    leaves, names = ("q, k, v, b", "dq, dk, dv, db") if "b" in given else ("q, k, v", "dq, dk, dv")
    leaves, names = ("q, k, v", "dq, dk, dv, *_") if constant else (leaves, names)
    if candidate.backward is not None:
        back = f"{_called(candidate.backward, candidate)}(do, q, k, v{options})"
        return [*found, f"o = {call}", f"{names} = {back}"]
    if library == "torch":
        grad = f"torch.autograd.grad(o, ({leaves}), do, allow_unused=True)"
        return [*found, f"o = {call}", f"{names} = {grad}"]
    if library == "jax":
        return [*found, f"o, pull = jax.vjp(lambda {leaves}: {call}, {leaves})", f"{names} = pull(do)"]
    return [*found, f"o = {call}"]


def _dO(make: str, case: Case, layout: str, library: str) -> str:
    """dO, one number in memory where it is broadcast."""
    shape = to_layout(case.dO, layout, "O").shape
    if "broadcast dO" in case.traits and library != "jax":
        one = make.format(f"np.ones({(1,) * len(shape)})")
        return f"{one}.expand({shape})" if library == "torch" else f"np.broadcast_to({one}, {shape})"
    return make.format(laid_out("dO", case.dO, layout, "O"))


def _given_options(
    candidate: Candidate, case: Case, means: Conventions, layout: str
) -> tuple[str, dict[str, str]]:
    """The keywords of the call, and the arrays among them with what they are made from."""
    words, lacking = candidate.options, LACKING.get(layout, "")
    value, arrays = {}, {}
    if case.keep is not None:
        form = MASK_FORMS[means.mask or "keep"]
        arrays["mask"] = _placed(form, case, means.mask_axes) or (f"({form}){lacking}" if lacking else form)
        value["mask"] = "mask"
    if case.bias is not None:
        arrays["b"], value["bias"] = _placed("bias", case, means.bias_axes) or f"bias{lacking}", "b"
    if case.R is not None:
        form = DROPOUT_FORMS[means.dropout or "factors"]
        arrays["r"] = f"({form}){lacking}" if lacking and form != "R" else f"{form}{lacking}"
        value["dropout_mask"] = "r"
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


def _placed(form: str, case: Case, axes: str | None) -> str | None:
    """What a mask or a bias on axes of its own is made from; None where it has the usual ones."""
    if axes is None:
        return None
    s, index = case.sizes, ", ".join(":" if letter in axes else "0" for letter in "bhnm")
    whole = f"np.broadcast_to({form}, {(s['b'], s['H'], s['n'], s['m'])})[{index}]"
    sizes = dict(b=s["b"], h=s["H"], n=s["n"], m=s["m"])
    return f"{whole}.reshape({tuple(sizes.get(letter, 1) for letter in axes)})" if "1" in axes else whole


def _nothing(case: Case, means: Conventions, layout: str) -> dict[str, tuple[str, str]]:
    """What changes nothing, for an option without a default: the name of an array, and what it is."""
    shape = scores_axes(np.zeros((1, 1, case.sizes["n"], case.sizes["m"])), layout).shape
    nothing = "ones" if (means.mask or "keep").startswith("keep") else "zeros"
    mask = f"np.{nothing}({shape}{', bool' if means.mask in (None, 'keep', 'drop') else ''})"
    form = DROPOUT_FORMS[means.dropout or "factors"]
    return dict(
        mask=("mask", _placed(mask, case, means.mask_axes) or mask), bias=("zeros", f"np.zeros({shape})"),
        dropout_mask=("ones", form.replace("R", f"np.ones({shape})")),
        scale=("", repr(case.gamma(means))), dropout=("", "0.0"),
    )


def _right(case: Case, means: Conventions, name: str) -> str:
    """The line that computes the right answer by the formulas of this package."""
    given = [added_to_scores(case, means)]
    hides = case.keep is not None or case.causal
    if case.scale is not None or means.scale not in (None, "1/sqrt(d_k)"):
        given.append(f"gamma={float(case.gamma(means))!r}")
    given += ["R=R"] if case.R is not None else []
    repeated, sum_ = over_groups(case, means)
    drop, K, V = "dropout_" * (case.R is not None), repeated.format("K"), repeated.format("V")
    arguments = ", ".join([*(["dO"] if name != "O" else []), "Q", K, V, *(given if given != ["None"] else [])])
    if name == "O":
        return f"right = attnmath.{drop}attention({arguments})"
    after = sum_ if name in ("dK", "dV") else ""
    if name == "dB":
        axes = tuple(i for i, k in enumerate(np.asarray(case.bias).shape) if k == 1)
        after = f".sum({axes}, keepdims=True)" if hides and axes else ""
    return f"right = attnmath.{drop}attention_vjp({arguments}).{name}{after}"


def _called(fn: Callable, candidate: Candidate) -> str:
    """Its own name; a letter for a lambda, a partial function, a module."""
    name = str(attribute(fn, "__name__", ""))
    return name if name.isidentifier() else candidate.letters[fn is candidate.backward]


def _default(fn: Callable, keyword: Any) -> Any:
    found = parameters(fn).get(keyword)
    return None if found is None else found.default


# ---- a tiny problem, written out number by number ----


def pasted(candidate: Candidate, case: Case, means: Conventions, want: Answer) -> str:
    """The inputs, the call, and what is right."""
    layout = candidate.layout or means.layout or "bhsd"
    inputs = [f"{name} = np.array({as_literal(x)})" for name in ("Q", "K", "V", "dO", "keep", "bias")
              if (x := getattr(case, name)) is not None]
    call = _call(candidate, case, means, layout, candidate.dtype)
    letters = ("O",) if candidate.forward_only else ("dQ", "dK", "dV")
    found = [x for x in _import_lines(inputs, candidate, means, candidate.dtype) if x != "import attnmath"]
    shown = ", ".join(RETURNED_AS[name] for name in letters)
    said = ", ".join(f"{name} = {as_literal(to_layout(getattr(want, name), layout, name))}" for name in letters)
    return "\n".join([*found, *inputs, *call, f"print(({shown}))", f"# right: {said}"])
