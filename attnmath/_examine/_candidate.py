"""A candidate: somebody's attention, called with problems in its own library's arrays."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnmath._examine import _contract
from attnmath._examine._calls import Broken, Fault, Worker, message
from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._frameworks import dtype_name, framework, is_imported
from attnmath._examine._guess import guess
from attnmath._examine._layouts import from_layout, joined, parts, scores_axes, to_layout

OPTIONS = ("mask", "bias", "causal", "scale", "groups", "dropout", "dropout_mask", "seed")
SWITCHES = ("causal", "groups")  # given as True or False


@dataclass(frozen=True)
class Outcome:
    """What a candidate made of a case."""

    answer: Answer | None  # None: there is nothing to judge; error says why
    error: Fault | None
    seconds: float
    faults: tuple[Fault, ...]
    case: Case  # with the dropout that was drawn


class Candidate:
    """Somebody's attention, and how it is called.

    fn(q, k, v, **options) -> o; backward(do, q, k, v, **options) -> dq, dk, dv, and the bias's
    gradient where a bias takes part. Without backward: torch's autograd, or jax.vjp; of a NumPy
    function the output alone is judged.

    options: from our words (OPTIONS) to the candidate's own keywords, or a set of words that are
    its keywords too. causal=True in place of a keyword: it always is; groups=None: it takes fewer
    heads of keys and values without being told.
    """

    def __init__(
        self,
        fn: Callable,
        backward: Callable | None = None,
        *,
        options: Mapping[str, Any] | Iterable[str] | None = None,
        framework: str | None = None,
        dtype: Any = None,
        layout: str | None = None,
        device: Any = None,
        time_limit: float = 30.0,
    ) -> None:
        _contract.check_candidate(fn, backward, layout, time_limit)
        self.fn, self.backward, self.layout, self.device = fn, backward, layout, device
        self.time_limit = time_limit
        self.options = _contract.checked_options(options, OPTIONS)
        self.framework, self.given_dtype = framework, None if dtype is None else dtype_name(dtype)
        self.worker, self.earlier = Worker(), []
        self.hangs = self.misfit = self.sizes = None  # sizes: what detect finds that it takes
        if framework is not None:
            self._use(framework)

    def __repr__(self) -> str:
        fn = self.fn.func if isinstance(self.fn, functools.partial) else self.fn
        return getattr(fn, "__name__", type(fn).__name__)

    # its library

    @property
    def library(self) -> Any:
        """The library of its arrays: told, guessed by what it names, or else tried."""
        if self.misfit:
            raise Broken(self.misfit)
        if self.framework is None:
            self._use(self._tried())
        return self.arrays

    @property
    def dtype(self) -> str | None:
        """The name of the format of its numbers; None where no library suits it."""
        try:
            return self.library.dtype
        except Broken:
            return self.given_dtype

    def _use(self, name: str) -> None:
        dtype = self.given_dtype or ("float64" if name == "numpy" else "float32")
        self.arrays, self.framework = framework(name, dtype, self.device), name

    def _tried(self) -> str:
        """The first library whose arrays it takes and gives back."""
        names = guess(self.fn) + (guess(self.backward) if self.backward else [])
        for name in ("torch", "jax"):
            if name in names and not {"torch", "jax", "any"} - {name} & set(names):
                return name
        order = ["numpy", "torch", "jax"] if self.backward else ["torch", "jax", "numpy"]
        if "numpy" in names and "any" not in names:  # its functions are called on numbers, too
            order = [name for name in order if name == "numpy" or name in names or is_imported(name)]
        told = []
        for name in order:
            try:
                self._use(name)
                faults = [self._accepts(rank) for rank in (4, 3, 2)]
                if None in faults:
                    return name
                told.append(f"with {name}: {faults[0].sentence}")
            except ImportError as error:
                told.append(str(error))
            finally:
                self.framework = None
        self.misfit = Fault("framework", f"no library's arrays suit it: {'; '.join(told)}")
        if len({sentence.partition(": ")[2] for sentence in told}) == 1:
            self.misfit = Fault("raises", told[0].partition(": ")[2])
        raise Broken(self.misfit)

    def _accepts(self, rank: int) -> Fault | None:
        """Whether it takes arrays of the library: what went wrong."""
        x = np.ones((2,) * rank)

        def call() -> None:
            q, k, v = (self.arrays.array(x) for _ in range(3))
            if self.backward is None and self.arrays.name != "numpy":
                O, _ = self._asked(self.arrays.differentiated, self.fn, [q, k, v], {}, None)
            else:
                O = self._asked(self.fn, q, k, v)
            if not self.arrays.is_array(O):
                raise Broken(Fault("type", f"it returns {type(O).__name__}"))

        try:
            self._in_time(call)
        except Broken as broken:
            return broken.fault

    # its calls

    def _in_time(self, call: Callable) -> Any:
        return self.worker.call(lambda: self.arrays.inside(call), self.time_limit)

    def _asked(self, function: Callable, *args: Any, **options: Any) -> Any:
        """What the candidate's own code returns; Broken where it raises."""
        try:
            return function(*args, **options)
        except Broken:
            raise
        except (Exception, SystemExit, KeyboardInterrupt, GeneratorExit) as error:
            raise Broken(Fault("raises", message(error))) from error

    def lacks(self, case: Case) -> list[str]:
        """The words of the options that a case needs and the candidate has not."""
        s = case.sizes
        needs = dict(
            mask=case.keep is not None,
            bias=case.bias is not None,
            causal=case.causal,
            scale=case.scale is not None,
            groups=s["G"] != s["H"],
            dropout=case.R is not None and "dropout_mask" not in self.options,
        )
        return [word for word, needed in needs.items() if needed and word not in self.options]

    def run(
        self,
        case: Case,
        means: Conventions | None = None,
        seed: int = 0,
        *,
        forward: bool = False,
        only: str | None = None,
    ) -> Outcome:
        """The candidate's answer to a case, in float64; what it did wrong on the way.

        forward: the output alone; only="dK" (torch): k alone requires a gradient.
        """
        began, faults, means = time.perf_counter(), [], means or Conventions()
        layout = self.layout or means.layout or "bhsd"
        answer = error = None
        try:
            if self.hangs:
                raise Broken(self.hangs)
            if lacking := self.lacks(case):
                raise Broken(Fault("options", f"it has no option for {' and '.join(lacking)}"))
            self.library  # noqa: B018, found at the first call
            if self.options.get("causal") is True and not case.causal:
                case = replace(case, causal=True)
            if case.R is not None and "dropout_mask" not in self.options:
                case = self._with_dropout(case, means, layout, seed)
            answer = self._joined(case, means, layout, seed, faults, forward, only)
        except Broken as broken:
            error = broken.fault
            self.hangs = error if error.name == "hangs" else None
        seconds = time.perf_counter() - began
        return Outcome(answer, error, seconds, tuple(dict.fromkeys(faults)), case)

    def _joined(
        self, case: Case, means: Conventions, layout: str, seed: int, faults: list, *how: Any
    ) -> Answer:
        """The answer to a case that may have to be given in parts."""
        answers = []
        for at, part in parts(case, layout):
            call = functools.partial(self._attempt, part, means, layout, seed, faults, *how)
            answers.append((at, self._in_time(call)))
        return joined(case, answers)

    def _attempt(
        self,
        case: Case,
        means: Conventions,
        layout: str,
        seed: int,
        faults: list,
        forward: bool = False,
        only: str | None = None,
    ) -> Answer:
        """One call, there and back; in the candidate's thread."""
        lib, traits = self.arrays, case.traits
        own = "strided" if "strided inputs" in traits else "own"
        spread = "strided" if "strided dO" in traits else "broadcast" if "broadcast dO" in traits else "own"
        args = [lib.arranged(to_layout(x, layout), own) for x in (case.Q, case.K, case.V)]
        dO = lib.arranged(to_layout(case.dO, layout), spread)
        options, bias = self._keywords(case, means, layout, seed)
        watch = _contract.Watch(lib, args, dO, options, self.earlier)
        drawn = case.R is not None and "dropout_mask" not in self.options

        def seeded() -> None:
            if drawn:
                lib.seed(seed)

        seeded()
        if self.backward or forward or lib.name == "numpy":
            O, pull = self._asked(lib.called, self.fn, args, options), None
        else:
            O, pull = self._asked(lib.differentiated, self.fn, args, options, bias, only)
        faults += _contract.check_output(lib, O, dO)
        found = {"O": O}
        if self.backward and not forward:
            seeded()
            grads = self._asked(self.backward, dO, *args, **options)
        elif pull:
            grads = self._asked(pull, dO)
        else:
            grads = None
        if grads is not None:
            likes = args + ([options[bias]] if bias else [])
            good, more = _contract.check_gradients(lib, grads, likes, only)
            found.update(good)
            faults += more
        faults += watch.faults(found, bool(self.backward))
        self.earlier = watch.kept(found)
        read = {name: lib.read(x) for name, x in found.items()}
        if not traits & {"poison", "empty row"}:
            faults += _contract.check_finite(read)
        dB = read.pop("dB", None)
        read = {name: from_layout(x, layout) for name, x in read.items()}
        return Answer(**read, dB=None if dB is None else _contract.summed_dB(dB, case, layout))

    def _keywords(self, case: Case, means: Conventions, layout: str, seed: int) -> tuple[dict, str | None]:
        """The options in the candidate's own words, and the name of the bias among them."""
        lib, words, given = self.arrays, self.options, {}
        together = words.get("mask") is not None and words.get("mask") == words.get("bias")
        keep, bias = case.keep, case.bias
        if bias is not None and keep is not None and together:
            keep, bias = None, np.where(keep, bias, -np.inf)
        if keep is not None:
            forms = {"keep": keep, "drop": ~keep, "add": np.where(keep, 0.0, -np.inf)}
            given["mask"] = lib.array(scores_axes(forms[means.mask or "keep"], layout))
        if bias is not None:
            given["bias"] = lib.array(scores_axes(bias, layout))
        given["causal"], given["groups"] = case.causal, case.sizes["G"] != case.sizes["H"]
        if case.scale is not None:
            given["scale"] = case.scale
        if case.R is not None:
            top = case.R.max()
            given["dropout"] = float(1 - 1 / top) if top > 1 else 0.0
            whole = np.broadcast_to(case.R, case.seen(means).shape)
            given["dropout_mask"] = lib.array(scores_axes(np.array(whole), layout))
            given["seed"] = lib.seed(seed) if "seed" in words else None
        named = {words[word]: x for word, x in given.items() if isinstance(words.get(word), str)}
        return named, words["bias"] if bias is not None and "constant bias" not in case.traits else None

    def keywords(self, case: Case, means: Conventions, layout: str, seed: int = 0) -> dict[str, Any]:
        """The options of a call, by the candidate's own keywords."""
        return self._in_time(lambda: self._keywords(case, means, layout, seed))[0]

    def _with_dropout(self, case: Case, means: Conventions, layout: str, seed: int) -> Case:
        """The case with the dropout that the candidate draws from this seed, read off with V = I."""
        s = case.sizes
        eye = np.broadcast_to(np.eye(s["m"]), (s["b"], s["G"], s["m"], s["m"]))
        probe = replace(case, V=eye, dO=np.zeros((s["b"], s["H"], s["n"], s["m"])))
        found = self._joined(probe, means, layout, seed, [], True).O
        return replace(case, R=np.where(found != 0, case.R.max(), 0.0))
