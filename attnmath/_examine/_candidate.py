"""A candidate: somebody's attention, called with problems in its own library's arrays."""

import functools
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnmath._examine import _contract
from attnmath._examine._attempt import attempt, keywords
from attnmath._examine._calls import Broken, Fault, Worker, message
from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._frameworks import dtype_name, framework, in_order, refusal
from attnmath._examine._layouts import joined, parts

OPTIONS = ("mask", "bias", "causal", "scale", "groups", "dropout", "dropout_mask", "seed")


@dataclass(frozen=True)
class Outcome:
    """What a candidate made of a case."""

    answer: Answer | None  # None: there is nothing to judge; error says why
    error: Fault | None
    seconds: float
    faults: tuple[Fault, ...]
    case: Case  # with the dropout that was drawn


class BadDevice(ValueError):
    """A device that is not there."""


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
        name = getattr(fn, "__name__", None)
        return name if isinstance(name, str) else type(fn).__name__

    # its library

    @property
    def library(self) -> Any:
        """The library of its arrays: told, guessed by what it names, or else tried."""
        if self.misfit:
            raise Broken(self.misfit)
        if self.framework is None:
            self._find()
        return self.arrays

    @property
    def dtype(self) -> str | None:
        """The name of the format of its numbers; None where no library suits it."""
        try:
            return self.library.dtype
        except Broken:
            return self.given_dtype

    def _find(self) -> None:
        """The library by what its code names, or the first whose arrays it takes and gives back."""
        names = in_order(self.fn, self.backward)
        told = []
        for name in names:
            try:
                self._use(name)
                fault = None if len(names) == 1 else refusal(self)
            except ImportError as error:
                fault = Fault("framework", str(error))
            if fault is None:
                return
            told.append((name, fault))
            if fault.name == "hangs":
                break
        self.framework, first = None, told[0][1]
        if first.name == "hangs" or all(fault.sentence == first.sentence for _, fault in told):
            self.misfit = first
        else:
            each = "; ".join(f"with {name}: {fault.sentence}" for name, fault in told)
            self.misfit = Fault("framework", f"no library's arrays suit it: {each}")
        raise Broken(self.misfit)

    def _use(self, name: str) -> None:
        dtype = self.given_dtype or ("float64" if name == "numpy" else "float32")
        try:
            self.arrays, self.framework = framework(name, dtype, self.device), name
            self.arrays.array(np.zeros(1))
        except (AssertionError, RuntimeError) as error:  # a device that is not there
            raise BadDevice(f"examine: device is {self.device!r}: {message(error)}") from error

    # its calls

    def in_time(self, call: Callable) -> Any:
        """What a call returns, in the candidate's thread and under its library's settings."""
        return self.worker.call(lambda: self.arrays.inside(call), self.time_limit)

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

    def keywords(self, case: Case, means: Conventions, layout: str, seed: int = 0) -> dict[str, Any]:
        """The options of a call, by the candidate's own keywords."""
        return self.in_time(lambda: keywords(self, case, means, layout, seed))[0]

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
                if not case.seen(means).any(-1).all():
                    case = replace(case, traits=case.traits | {"empty row"})
            if case.R is not None and "dropout_mask" not in self.options:
                case = self._with_dropout(case, means, layout, seed)
            answer = self._joined(case, means, layout, seed, faults, forward, only)
        except Broken as broken:
            error = broken.fault
            self.hangs = error if error.name == "hangs" else None
        seconds = time.perf_counter() - began
        return Outcome(answer, error, seconds, tuple(dict.fromkeys(faults)), case)

    def _joined(self, case: Case, means: Conventions, layout: str, *how: Any) -> Answer:
        """The answer to a case that may have to be given in parts."""
        answers = []
        for at, part in parts(case, layout):
            call = functools.partial(attempt, self, part, means, layout, *how)
            answers.append((at, self.in_time(call)))
        return joined(case, answers)

    def _with_dropout(self, case: Case, means: Conventions, layout: str, seed: int) -> Case:
        """The case with the dropout that the candidate draws from this seed.

        It is read off with Q = 0 and unit vectors as values, as many as a value has entries.
        """
        s = case.sizes
        found = np.zeros((s["b"], s["H"], s["n"], s["m"]))
        for start in range(0, s["m"], s["d_v"]):
            V = np.zeros(case.V.shape)
            V[..., start:, :] = np.eye(s["m"] - start, s["d_v"])
            O = self._joined(replace(case, Q=0 * case.Q, V=V), means, layout, seed, [], True).O
            found[..., start : start + s["d_v"]] = O[..., : s["m"] - start]
        return replace(case, R=np.where(found != 0, case.R.max(), 0.0))
