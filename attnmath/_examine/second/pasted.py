"""The smallest problem in which a second derivative is wrong, as lines; they are run before they are shown."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from attnmath._examine.diagnosis import paste
from attnmath._examine.diagnosis.literals import (
    added_to_scores,
    array_of,
    laid_out,
    option_lines,
    over_groups,
    own_index,
    strided_lines,
)
from attnmath._examine.diagnosis.smallest import Recipe, case_of, input_lines, smallest
from attnmath._examine.problems.case import Case, Conventions
from attnmath._examine.second.calls import SAID, SHAPED, SecondCandidate
from attnmath._examine.second.program import DOTS, LETTERS, SecondCase, SecondSteps, moving

GIVEN = {"jvp": "{f}(q, k, v, q_dot, k_dot, v_dot{options})",
         "double backward": "{f}(q_dot, k_dot, v_dot, do, q, k, v{options})"}
RETURNED = {"jvp": "o_dot", "double backward": "do_bar, q_bar, k_bar, v_bar"}


def tangent_lines(case: Case, kept: Sequence[str]) -> list[str]:
    """Lines that make the tangents; those that are not kept are zero."""
    shapes = (x.shape for x in (case.Q, case.K, case.V))
    found = [f"{name} = rng_dot.integers(-8, 9, {shape}) / 4" if name in kept else f"{name} = np.zeros({shape})"
             for name, shape in zip(DOTS, shapes)]
    return ["rng_dot = np.random.default_rng(0)", *found]


def with_lines(case: Case, kept: Sequence[str]) -> SecondCase:
    """The case with the tangents that these lines make."""
    names: dict[str, Any] = {"np": np}
    exec("\n".join(tangent_lines(case, kept)), names)  # our own lines
    return moving(case, {x: names[x] for x in DOTS})


def smallest_second(
    candidate: SecondCandidate, means: Conventions, judge: Callable[[Case], Mapping[str, np.ndarray]],
    failed: Sequence[Any],
) -> str | None:
    """Lines that show a small case that fails as those did that failed; with one tangent, if that suffices."""
    given = [(f.case, f.wrong) for f in failed]
    for kept in (*((x,) for x in DOTS), DOTS):
        def judged(case: Case, kept: tuple = kept) -> Mapping[str, np.ndarray]:
            return judge(with_lines(case, kept))

        text = smallest(candidate, means, candidate.dtype, judged, given, partial(second_lines, kept=kept))
        if text is not None:
            return text
    return None


def second_lines(
    x: Recipe, candidate: SecondCandidate, means: Conventions, dtype: str, wrong: Mapping[str, np.ndarray],
    kept: Sequence[str],
) -> str:
    """The case as lines to paste."""
    part, library = candidate.part, candidate.library.name
    plain = case_of(x, dtype)
    inputs = [*input_lines(x, dtype), *tangent_lines(plain, kept)]
    outcome = candidate.run(with_lines(plain, kept), means)
    case: Any = outcome.case
    layout, got = candidate.layout or means.layout or "bhsd", outcome.answer
    if got is None:
        return f"# {outcome.refusal.sentence}"
    want = SecondSteps(case, means).second(LETTERS[part])
    letter, at = paste.worst_entry(got, want, wrong)  # type: ignore[arg-type]  # it asks for letters alone
    of = SHAPED[letter][0]
    places = at, own_index(of, at, layout, getattr(want, letter).shape[-1])
    mine, theirs = (", ".join(map(str, place)) for place in places)
    value, right = getattr(got, letter)[at], getattr(want, letter)[at]
    entry = ("{}[{}].item()" if library == "torch" else "float({}[{}])").format(SAID[part][letter], theirs)
    lines = [*paste._import_lines(inputs, candidate, means, dtype), "", *inputs, "",
             *_arrays(candidate, case, means, layout, dtype), *_call(candidate, case, means, layout), "",
             *_right(case, means, letter),
             f'print("{letter}[{mine}] is", {entry}, "and should be", float(right[{mine}]))']
    digits = next((k for k in (6, 9, 12) if f"{value:.{k}g}" != f"{right:.{k}g}"), 17)
    return "\n".join([*lines, f"# {letter}[{mine}] is {value:.{digits}g} and should be {right:.{digits}g}"])


def _arrays(candidate: SecondCandidate, case: Any, means: Conventions, layout: str, dtype: str) -> list[str]:
    """The arrays of the candidate's library."""
    library = candidate.library.name
    make = array_of(library, dtype)
    found = [f"{name.lower()} = {make.format(laid_out(name, getattr(case, name), layout, name[0]))}"
             for name in ("Q", "K", "V", *DOTS)]
    found.append(f"do = {paste._dO(make, case, layout, library)}")
    given = paste._given_options(candidate, case, means, layout)[1]
    found += option_lines(given, means, library, make, make)
    return found + strided_lines(case, means, layout, library, more=[x.lower() for x in DOTS])


def _call(candidate: SecondCandidate, case: Any, means: Conventions, layout: str) -> list[str]:
    """The call of the function, or of the library's derivative."""
    options, part = paste._given_options(candidate, case, means, layout)[0], candidate.part
    library = candidate.library.name
    f = paste._called(candidate.fn, candidate)
    if candidate.own is not True:
        call = GIVEN[part].format(f=paste._called(candidate.own, candidate), options=options)
        if part == "jvp":
            return [f"o_dot = {call}", "o_dot = o_dot[1] if isinstance(o_dot, tuple) else o_dot"]
        return [f"{RETURNED[part]} = {call}"]
    jvp = {"torch": "torch.func.jvp", "jax": "jax.jvp"}[library]
    own = f"lambda q, k, v: {f}(q, k, v{options})"
    if part == "jvp":
        return [f"o, o_dot = {jvp}({own}, (q, k, v), (q_dot, k_dot, v_dot))"]
    back = candidate.first.backward
    given = None if back is None else f"{paste._called(back, candidate.first)}(do, q, k, v{options})"
    if library == "jax":
        gradients = given or f"jax.vjp({own}, q, k, v)[1](do)"
        pull = f"jax.vjp(lambda do, q, k, v: {gradients}, do, q, k, v)[1]"
        return [f"{RETURNED[part]} = {pull}((q_dot, k_dot, v_dot))"]
    output = f"{f}(q, k, v{options})"
    gradients = given or f"torch.autograd.grad({output}, (q, k, v), do, create_graph=True)"
    return ["x = do, q, k, v = [y.requires_grad_() for y in (do, q, k, v)]", f"grads = {gradients}",
            f"{RETURNED[part]} = torch.autograd.grad(grads, x, (q_dot, k_dot, v_dot), allow_unused=True)"]


def _right(case: Any, means: Conventions, letter: str) -> list[str]:
    """The lines that compute the right answer by the formulas of this package."""
    given = [added_to_scores(case, means), repr(float(case.gamma(means)))]
    R = ", R=R" if case.R is not None else ""
    repeated, summed = over_groups(case, means)
    names = ["K", "V", "K_dot", "V_dot"]
    found = [f"{', '.join(names)} = {', '.join(map(repeated.format, names))}"] * bool(summed)
    summed = summed if letter[1] in "KV" else ""
    dots = "Q_dot, K_dot, V_dot, None, None"
    if letter == "O":
        return [*found, f"right = attnmath.attention(Q, K, V, {given[0]}, gamma={given[1]}{R})"]
    if letter == "O_dot":
        return [*found, f"right = attnmath.attention_jvp({dots}, Q, K, V, {', '.join(given)}{R})"]
    call = f"attnmath.attention_vjp_vjp({dots}, dO, Q, K, V, {', '.join(given)}{R})"
    return [*found, f"right = {call}.{letter}{summed}"]
