"""One call of somebody's functions, there and back: arrays made, contract watched, results read."""

import inspect
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import numpy as np

from attnmath._examine.contract import contract
from attnmath._examine.contract.functions import Broken, Fault, Stop, message, parameters
from attnmath._examine.contract.layouts import from_layout, scores_axes, to_layout
from attnmath._examine.contract.libraries import Numpy
from attnmath._examine.problems.case import Answer, Case, Conventions

IN_PLACE = "leaf Variable that requires grad is being used in an in-place operation"  # PyTorch's words


def ask(function: Callable, *args: Any, **options: Any) -> Any:
    """What the candidate's own code returns; Broken where it raises."""
    try:
        return function(*args, **options)
    except (Broken, Stop):
        raise
    except BaseException as error:  # it runs in a thread of its own, so that no one else's end is caught
        said = message(error)
        _forget(error)
    raise Broken(Fault("inputs_modified" if IN_PLACE in said else "raises", said))


@contextmanager
def reading() -> Iterator[None]:
    """While what came back is read, whatever it raises is its own fault."""
    try:
        yield
    except (Broken, Stop):
        raise
    except BaseException as error:
        said = message(error)
        _forget(error)
        raise Broken(Fault("type", f"what it returns cannot be read: {said}")) from None


def _forget(error: BaseException) -> None:
    """The calls through which it came: who raises the same error each time would keep them all."""
    with suppress(BaseException):
        error.__traceback__ = error.__context__ = None


def _memory(case: Case) -> str:
    """How what it is given lies in memory."""
    strided = "contiguous rows" if "contiguous rows" in case.traits else "strided"
    return strided if "strided inputs" in case.traits else "own"


class Call(NamedTuple):
    """How a candidate is called."""

    means: Conventions
    layout: str
    seed: int = 0
    forward: bool = False  # for the output alone
    only: str | None = None  # of the gradients; "dK": k alone requires one


class Called:
    """Two functions, their options by their own keywords, and the arrays of their library."""

    fn: Callable[..., Any]
    backward: Callable[..., Any] | None
    options: dict[str, Any]
    output: contract.Output
    arrays: Numpy
    earlier: list[tuple]  # what the call before returned, and its bits
    steps: tuple[int, ...] = ()  # of which sizes may have to be multiples, beside powers of two

    def look_for_options(self, means: Conventions) -> None:
        """Options that nobody spoke of: none, what is not named is not tried."""

    def elsewhere(self, case: Case, means: Conventions) -> str:
        """That over another number of ranks its output is another, in words; nothing for one process."""
        return ""

    def attempt(self, case: Case, call: Call, faults: list[Fault]) -> Answer:
        """The answer; what was done wrong is added to the faults."""
        lib, backward, traits = self.arrays, self.backward, case.traits
        means, layout, seed, forward, only = call
        args, dO = self.placed(case, layout, "QKV"), self.placed_dO(case, layout)
        options, bias = self.own_keywords(case, call)
        watch = contract.Watch(lib, args, dO, options, self.earlier)
        self.output.shape = tuple(dO.shape)
        drawn = case.R is not None and "dropout_mask" not in self.options

        def seeded(function: Callable, *args: Any, **options: Any) -> Any:
            if drawn:
                lib.seed(seed)
            return ask(function, *args, **options)

        grads = None
        if forward or lib.name == "numpy" or backward is not None:
            O = seeded(lib.called, self.output, args, options)
            with reading():
                faults += contract.check_output(lib, O, dO)
            if backward is not None and not forward:
                grads = seeded(backward, dO, *args, **options)
        else:
            O, pull = seeded(lib.differentiated, self.output, args, options, bias, only)
            with reading():
                faults += contract.check_output(lib, O, dO)
            grads = ask(pull, dO)
        with reading():
            found = {"O": O}
            if grads is not None or backward is not None and not forward:
                likes = args + ([options[bias]] if bias else [])
                good, more = contract.check_gradients(lib, grads, likes, only)
                found |= good
                faults += more
            faults += watch.faults(found, backward is not None)
            self.earlier = watch.kept(found)
            read = {name: lib.read(x) for name, x in found.items()}
        if not traits & {"poison", "empty row"}:
            faults += contract.check_finite(read)
        dB = read.pop("dB", None)
        heads = dict(O="H", dQ="H", dK="G", dV="G")
        read = {name: from_layout(x, layout, name, case.sizes[heads[name]]) for name, x in read.items()}
        if dB is not None and case.bias is not None:
            read["dB"] = contract.summed_dB(dB, case.bias, layout, means.bias_axes)
        return Answer(**read)

    def placed(self, case: Case, layout: str, names: Iterable[str]) -> list[Any]:
        """Q, K, V, or their tangents, in its library and layout, and in memory as the case wants them."""
        own = _memory(case)
        return [self.arrays.arranged(to_layout(getattr(case, x), layout, x[0]), own, x[0]) for x in names]

    def placed_dO(self, case: Case, layout: str) -> Any:
        """dO in the same way, in memory of its own kind."""
        traits = case.traits
        spread = "strided" if "strided dO" in traits else "broadcast" if "broadcast dO" in traits else "own"
        return self.arrays.arranged(to_layout(case.dO, layout, "O"), spread, "dO")

    def own_keywords(self, case: Case, call: Call) -> tuple[dict[str, Any], str | None]:
        """The options in the functions' own words, and the one among them that has a gradient."""
        means, layout, seed, *_ = call
        lib, words, given = self.arrays, self.options, self._needed(case, means, layout)
        own = _memory(case)
        keep, bias = case.keep, case.bias
        if keep is not None and bias is not None and words.get("mask") == words.get("bias") is not None:
            bias = np.where(keep, bias, -np.inf)  # one argument for both
        elif keep is not None:
            given["mask"] = lib.arranged(contract.given_mask(case, keep, means, layout), own, "mask")
        if bias is not None:
            given["bias"] = lib.arranged(contract.placed(case, bias, means.bias_axes, layout), own, "bias")
        given["causal"], given["groups"] = case.causal, case.sizes["G"] != case.sizes["H"]
        if case.scale is not None:
            given["scale"] = case.scale
        if case.R is not None:
            top = case.R.max()
            given["dropout"] = float(1 - 1 / top) if top > 1 else 0.0
            whole = np.broadcast_to(case.R, case.seen(means).shape)
            given["dropout_mask"] = lib.array(scores_axes(contract.given_dropout(whole, means), layout))
            given["seed"] = lib.seed(seed) if "seed" in words else None
        named = {words[word]: x for word, x in given.items() if isinstance(words.get(word), str)}
        differentiated = bias is not None and "constant bias" not in case.traits
        return named, words["bias"] if differentiated else None

    def _needed(self, case: Case, means: Conventions, layout: str) -> dict[str, Any]:
        """What changes nothing, for the options that fn cannot be called without."""
        s, known = case.sizes, parameters(self.fn)
        scores = scores_axes(np.zeros((1, 1, s["n"], s["m"])), layout)
        mask = contract.given_mask(case, np.ones((1, 1, s["n"], s["m"]), bool), means, layout)
        bias = contract.placed(case, np.zeros((1, 1, s["n"], s["m"])), means.bias_axes, layout)
        factors = contract.given_dropout(scores + 1, means)
        nothing = dict(mask=mask, bias=bias, dropout_mask=factors, scale=case.gamma(means), dropout=0.0)
        without = [word for word, name in self.options.items()
                   if name in known and known[name].default is inspect.Parameter.empty]
        given = {word: nothing[word] for word in without if word in nothing}
        return {word: self.arrays.array(x) if isinstance(x, np.ndarray) else x for word, x in given.items()}
