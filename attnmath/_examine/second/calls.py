"""A candidate's jvp and its double backward, called as the candidate itself is.

jvp(q, k, v, q_dot, k_dot, v_dot) -> o_dot, or o and o_dot
vjp_vjp(q_dot, k_dot, v_dot, do, q, k, v) -> do_bar, q_bar, k_bar, v_bar
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from attnmath._examine.contract import contract
from attnmath._examine.contract.attempt import Call, ask, reading
from attnmath._examine.contract.candidate import Candidate
from attnmath._examine.contract.functions import Broken, Fault
from attnmath._examine.contract.layouts import from_layout
from attnmath._examine.second.program import DOTS, SecondAnswer, SecondCase

SAID = {"jvp": {"O_dot": "o_dot", "O": "o"},
        "double backward": {"O_dot": "do_bar", "dQ_dot": "q_bar", "dK_dot": "k_bar", "dV_dot": "v_bar"}}
KEYWORD = {"jvp": "jvp", "double backward": "vjp_vjp"}
SHAPED = {"O_dot": ("O", "H"), "O": ("O", "H"), "dQ_dot": ("Q", "H"), "dK_dot": ("K", "G"), "dV_dot": ("V", "G")}


class NoDerivatives(ValueError):
    """A library that has no derivatives of its own was asked for them."""


def checked_second(jvp: Any, vjp_vjp: Any) -> dict[str, Any]:
    """The functions that were given, by the part of the report; raises TypeError for what is no function."""
    functions = {"jvp": jvp, "double backward": vjp_vjp}
    for part, f in functions.items():
        if f is not None and f is not True and not callable(f):
            given = f"examine: {KEYWORD[part]} is {f!r}"
            raise TypeError(f"{given}; it needs to be a function, or True for that of the library")
    return {part: f for part, f in functions.items() if f is not None}


class SecondCandidate(Candidate):
    """The same candidate, asked for second derivatives; backward is the function that gives them."""

    part: str
    first: Candidate
    own: Any  # the function, or True: that of the library

    def again(self, dtype: str) -> "SecondCandidate":
        """The same functions with numbers of another format."""
        return second_candidate(self.first.again(dtype), self.part, self.own)

    @staticmethod
    def join(case: Any, answers: list) -> Any:
        """The answers to the parts of a case as the answer to it."""
        if not isinstance(answers[0][1], SecondAnswer):
            return contract.joined_answer(case, answers)
        like = dict(O_dot=case.dO, O=case.dO, dQ_dot=case.Q, dK_dot=case.K, dV_dot=case.V)
        found = {letter: np.empty(like[letter].shape) for letter in answers[0][1].there}
        for at, answer in answers:
            for letter, x in found.items():
                x[at] = answer.there[letter]
        return SecondAnswer(**found)

    def _seconds(self, given: tuple) -> float:
        """The worker is shared, so what took long may have been a call of the first derivatives."""
        own = given[1].forward or isinstance(given[0], SecondCase)
        return super()._seconds(given) if own else self.first._seconds(given)

    def attempt(self, case: Any, call: Call, faults: list[Fault]) -> Any:
        """The second derivatives; what was done wrong is added to the faults."""
        if call.forward:
            return super().attempt(case, call, faults)
        assert isinstance(case, SecondCase)
        lib, layout, traits = self.arrays, call.layout, case.traits
        args, dots = self.placed(case, layout, "QKV"), self.placed(case, layout, DOTS)
        dO = self.placed_dO(case, layout)
        options, _ = self.own_keywords(case, call)
        watch = contract.Watch(lib, args, dO, options | dict(zip(map(str.lower, DOTS), dots)), self.earlier)
        self.output.shape = tuple(dO.shape)
        if case.R is not None and "dropout_mask" not in self.options:
            lib.seed(call.seed)
        found = self._derived(args, dots, dO, options)
        with reading():
            likes, said = dict(O=dO, O_dot=dO, dQ_dot=args[0], dK_dot=args[1], dV_dot=args[2]), SAID[self.part]
            for letter, x in found.items():
                source = "o" if letter.startswith("O") else letter[1].lower()
                faults += contract.check_array(lib, said[letter], x, likes[letter], source)
            faults += watch.faults({said[letter]: x for letter, x in found.items()}, self.own is not True)
            self.earlier = watch.kept(found)
            read = {letter: lib.read(x) for letter, x in found.items()}
        if not traits & {"poison", "empty row"}:
            faults += contract.check_finite(read)
        return SecondAnswer(**{letter: from_layout(x, layout, SHAPED[letter][0], case.sizes[SHAPED[letter][1]])
                               for letter, x in read.items()})

    def _derived(self, args: Sequence, dots: Sequence, dO: Any, options: Mapping) -> dict[str, Any]:
        """What comes, by its letters."""
        if self.part == "jvp":
            if self.own is True:
                return dict(zip(("O", "O_dot"), ask(library_jvp, self, args, dots, options)))
            x = ask(self.own, *args, *dots, **options)
            if isinstance(x, tuple) and len(x) == 2:
                return dict(O_dot=x[1], O=x[0])
            if isinstance(x, tuple | list):
                sentence = f"jvp returns {contract.kind(x)}, where o_dot, or a tuple of o and o_dot, is expected"
                raise Broken(Fault("wrong_number", sentence))
            return dict(O_dot=x)
        if self.own is True:
            x = ask(library_double_backward, self, args, dots, dO, options)
        else:
            x = ask(self.own, *dots, dO, *args, **options)
        if not isinstance(x, tuple) or len(x) != 4:
            expected = "a tuple of do_bar, q_bar, k_bar, v_bar is expected"
            raise Broken(Fault("wrong_number", f"vjp_vjp returns {contract.kind(x)}, where {expected}"))
        return dict(zip(SAID[self.part], x))


def second_candidate(first: Candidate, part: str, own: Any) -> SecondCandidate:
    """The candidate with a function of second derivatives; raises ValueError where its library has none."""
    if own is True and first.library.name == "numpy":
        given = f"examine: {KEYWORD[part]} is True"
        raise NoDerivatives(f"{given}; NumPy has no derivatives of its own, so it needs a function")
    other: Any = copy.copy(first)
    other.__class__ = SecondCandidate
    other.first, other.part, other.own, other.earlier = first, part, own, []
    other.backward, other.letters = None if own is True else own, ("f", KEYWORD[part])
    return other


def library_jvp(c: SecondCandidate, args: Sequence, dots: Sequence, options: Mapping) -> tuple:
    """The output and its tangent by torch.func.jvp or jax.jvp."""
    jvp = c.arrays.torch.func.jvp if c.arrays.name == "torch" else c.arrays.jax.jvp  # type: ignore[attr-defined]
    O, O_dot = jvp(lambda q, k, v: c.output(q, k, v, **options), tuple(args), tuple(dots))
    return O, O_dot


def library_double_backward(
    c: SecondCandidate, args: Sequence, dots: Sequence, dO: Any, options: Mapping
) -> tuple:
    """The gradients of the gradients, by autograd through the way back, or by jax.vjp of it."""
    lib: Any = c.arrays
    backward: Callable | None = c.first.backward
    if lib.name == "jax":
        def gradients(dO: Any, *x: Any) -> tuple:
            if backward is not None:
                return tuple(backward(dO, *x, **options))
            return lib.jax.vjp(lambda q, k, v: c.output(q, k, v, **options), *x)[1](dO)

        return tuple(lib.jax.vjp(gradients, dO, *args)[1](tuple(dots)))
    grad = lib.torch.autograd.grad
    x = [y.detach().requires_grad_() for y in (dO, *args)]
    if backward is not None:
        found = backward(*x, **options)
    else:
        found = grad(c.output(*x[1:], **options), x[1:], x[0], create_graph=True)
    reached = [(y, dot) for y, dot in zip(found, dots) if y.requires_grad]
    if not reached:
        raise Broken(Fault("detached", "autograd sees no way from its gradients back to do, q, k, v"))
    out = grad([y for y, _ in reached], x, [dot for _, dot in reached], allow_unused=True)
    return tuple(lib.torch.zeros_like(y) if z is None else z for y, z in zip(x, out))
