"""A candidate: somebody's attention, called with problems in its own library's arrays."""

import copy
import functools
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from attnmath._examine.contract import contract
from attnmath._examine.contract.attempt import Call, Called, ask, reading
from attnmath._examine.contract.functions import (
    BadDevice,
    Broken,
    Fault,
    guess,
    libraries_in_order,
    message,
    name_of,
    whole_numbers,
)
from attnmath._examine.contract.layouts import forced_sizes, to_layout
from attnmath._examine.contract.libraries import Numpy, dtype_name, framework
from attnmath._examine.contract.signature import checked_options
from attnmath._examine.contract.state import Kept
from attnmath._examine.contract.worker import Worker
from attnmath._examine.problems.case import Answer, Case, Conventions, Sizes
from attnmath._examine.problems.taken import ANY, checked_sizes

SHARE = 0.4  # of the limit of a call: what will take longer, going by the calls before, is not tried


@dataclass(frozen=True)
class Outcome:
    """What a candidate made of a case."""

    answer: Answer | None  # None: there is nothing to judge; error says why
    error: Fault | None
    faults: tuple[Fault, ...]
    case: Case  # with the dropout that was drawn

    @property
    def refusal(self) -> Fault:
        """Why there is no answer."""
        assert self.error is not None
        return self.error


class Candidate(Called):
    """Somebody's attention, and how it is called.

    fn(q, k, v, **options) -> o; backward(do, q, k, v, **options) -> dq, dk, dv, and the bias's
    gradient where a bias takes part. Without backward: torch's autograd, or jax.vjp; of a NumPy
    function the output alone is judged.

    options: from our words (OPTIONS) to the candidate's own keywords, or a set of words that are
    its keywords too. causal=True in place of a keyword: it always is; groups=None: it takes fewer
    heads of keys and values without being told.
    """

    join = staticmethod(contract.joined_answer)

    def __init__(
        self, fn: Callable, backward: Callable | None = None, *,
        options: Mapping[str, Any] | Iterable[str] | None = None, framework: str | None = None, dtype: Any = None,
        layout: str | None = None, device: Any = None, time_limit: float = 30.0,
        sizes: Mapping[str, int] | None = None,
    ) -> None:
        contract.check_candidate(fn, backward, layout, time_limit)
        self.fn, self.backward, self.layout, self.device = fn, backward, layout, device
        self.time_limit, self.output = time_limit, contract.Output(fn)
        self.options = checked_options(fn, options)
        self.framework, self.given_dtype = framework, None if dtype is None else dtype_name(dtype)
        self.worker, self.kept, self.earlier = Worker(), Kept(), []
        self.letters = "f", "backward"  # of functions without a name
        self.reference: Candidate | None = None  # what it has to agree with, where that is another function
        self.misfit: Fault | None = None
        self.told_sizes = checked_sizes(sizes)
        if self.told_sizes.get("G") not in (None, self.told_sizes.get("H")):
            self.options.setdefault("groups", None)
        self.sizes: Sizes | None = None  # some that detect finds that it takes
        self.taken = ANY  # all that it found of sizes
        if framework is not None:
            self._use(framework)

    def __repr__(self) -> str:
        return name_of(self.fn)

    @property
    def takes(self) -> set[str]:
        """What problems for it may have."""
        return {"dropout" if x == "dropout_mask" else x for x in self.options} - {"seed"}

    @property
    def forward_only(self) -> bool:
        """Whether there are no gradients to judge."""
        return self.framework == "numpy" and self.backward is None

    def again(self, dtype: str) -> "Candidate":
        """The same functions with numbers of another format."""
        other = Candidate(self.fn, self.backward, options=self.options, framework=self.framework, dtype=dtype,
                          layout=self.layout, device=self.device, time_limit=self.time_limit)
        other.worker, other.kept = self.worker, self.kept
        other.told_sizes, other.sizes, other.taken = self.told_sizes, self.sizes, self.taken
        return other

    @property
    def words(self) -> str:
        """What it was found to take."""
        return f"takes {self.taken.words}"

    def stated(self, sizes: Sizes) -> Sizes:
        """These sizes, but those that were stated."""
        told = dict(self.told_sizes)
        if sizes.square and len(lengths := {"n", "m"} & set(told)) == 1:
            told |= dict.fromkeys("nm", told[lengths.pop()])
        if sizes.d_k == sizes.d_v and "d_k" in told:
            told.setdefault("d_v", told["d_k"])
        return replace(sizes, **told)

    def with_options(self, **more: Any) -> "Candidate":
        """The same with other keywords for some of our words."""
        other = copy.copy(self)
        other.options = self.options | more
        return other

    def uncompiled(self) -> "Candidate":
        """The same, where JAX compiles nothing: what a program keeps from call to call is seen."""
        arrays = copy.copy(self.library)  # which is found before the candidate is copied
        other = copy.copy(self)
        other.arrays, arrays.eager = arrays, True
        return other

    # its library

    @property
    def library(self) -> Numpy:
        """The library of its arrays: told, guessed by what it names, or else tried."""
        if self.misfit:
            raise Broken(self.misfit)
        if self.framework is None:
            self._find()
        return self.arrays

    @property
    def dtype(self) -> str:
        """The name of the format of its numbers."""
        return self.library.dtype

    def _find(self) -> None:
        """The library by what its code names, or the first whose arrays it takes and gives back."""
        names = libraries_in_order(self.fn, self.backward)
        told = []
        for name in names:
            try:
                self._use(name)
                fault = None if len(names) == 1 else self._refusal()
            except ImportError as error:
                fault = Fault("framework", str(error))
            if fault is None:
                return
            told.append((name, fault))
            if fault.name == "hangs":
                break
        self.framework, first = None, told[0][1]
        named = guess(self.fn)
        if first.name == "raises" and len(named) == 1 and names[0] == named[0]:  # it may be the sizes
            self._use(names[0])
            return
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
            self.arrays.inside(lambda: self.arrays.array(np.zeros(1)))
        except (AssertionError, RuntimeError) as error:  # a device that is not there
            raise BadDevice(f"examine: device is {self.device!r}: {message(error)}") from error

    def _refusal(self) -> Fault | None:
        """What goes wrong when it is given the arrays of its library, of 4, 3 and 2 axes."""
        lib, first = self.arrays, None

        def call(layout: str, s: int, d: int) -> None:
            one = np.ones([size if letter in layout else 1 for letter, size in zip("bhsd", (2, 2, s, d))])
            case = Case(one, one, one, one)
            args = [lib.array(to_layout(x, layout)) for x in (case.Q, case.K, case.V)]
            options, _ = self.own_keywords(case, Call(Conventions(), layout))
            self.output.shape = tuple(args[2].shape)
            if self.backward is None and lib.name != "numpy":
                O, _ = ask(lib.differentiated, self.output, args, options, None)
            else:
                O = ask(lib.called, self.output, args, options)
            with reading():
                if not lib.is_array(O):
                    raise Broken(Fault("type", f"it returns {contract.kind(O)}"))

        layouts = [self.layout] if self.layout else ["bhsd", "hsd", "sd"]
        named = (x for x in whole_numbers(self.fn, 0) if 2 < x <= 1024)
        own = [(128, d) for d in itertools.islice(dict.fromkeys(named), 6)]
        for (s, d), layout in itertools.product([(2, 2), (128, 64), *own], layouts):  # some take whole tiles alone
            s, d = self.told_sizes.get("n", s), self.told_sizes.get("d_k", d)
            try:
                self.in_time(functools.partial(call, layout, s, d))
                return None
            except Broken as broken:
                first = first or broken.fault
                if first.name == "hangs":
                    break
        return first

    # its calls

    def in_time(self, call: Callable) -> Any:
        """What a call returns, in the candidate's thread and under its library's settings."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                kept = functools.partial(self.kept.around, call)
                return self.worker.call(lambda: self.arrays.inside(kept), self.time_limit)
            finally:
                self.kept.undo()  # of a call that hangs; else it has been done

    def keywords(self, case: Case, means: Conventions, layout: str) -> dict[str, Any]:
        """The options of a call, by the candidate's own keywords."""
        return self.in_time(lambda: self.own_keywords(case, Call(means, layout)))[0]

    def run(
        self, case: Case, means: Conventions | None = None, seed: int = 0, *, forward: bool = False,
        only: str | None = None,
    ) -> Outcome:
        """The candidate's answer to a case, in float64; what it did wrong on the way.

        forward: the output alone; only="dK" (torch): k alone requires a gradient.
        """
        means = means or Conventions()
        faults: list[Fault] = []
        call = Call(means, self.layout or means.layout or "bhsd", seed, forward, only)
        answer, error = None, None
        try:
            if self.worker.hung:
                raise Broken(self.worker.hung)
            takes = {*self.options, *(["dropout"] if "dropout_mask" in self.options else [])}
            takes |= {"groups"} if "G" in forced_sizes(call.layout) else set()
            if other := [f"{x} is {n}" for x, n in self.told_sizes.items() if case.sizes[x] != n]:
                raise Broken(Fault("raises", f"sizes says that {' and '.join(other)} alone"))
            if lacking := [word for word in case.needs if word not in takes]:
                raise Broken(Fault("options", f"it has no option for {' and '.join(lacking)}"))
            self.library  # noqa: B018, found at the first call
            if self.options.get("causal") is True and not case.causal:
                case = replace(case, causal=True)
                if not case.seen(means).any(-1).all():
                    case = replace(case, traits=case.traits | {"empty row"})
            if case.R is not None and "dropout_mask" not in self.options:
                case = self._with_dropout(case, case.R, call)
            answer = self._joined(case, call, faults)
        except Broken as broken:
            error = broken.fault
        return Outcome(answer, error, tuple(dict.fromkeys(faults)), case)

    def _joined(self, case: Case, call: Call, faults: list[Fault]) -> Answer:
        """The answer to a case that may have to be given in parts."""
        answers = []
        for at, part in contract.parts_of_case(case, call.layout):
            scores, pace = part.Q.size // part.Q.shape[-1] * part.K.shape[2], self.worker.pace
            if pace.expected(call.forward, scores, self._seconds) > SHARE * self.time_limit:
                size = f"{part.sizes['n']} queries and {part.sizes['m']} keys within {self.time_limit:g} s"
                raise Broken(Fault("slow", f"too slow for {size}"))
            given = part, call, faults
            answers.append((at, self.in_time(functools.partial(self.attempt, *given))))
            pace.note(call.forward, scores, self.worker.spent, given)
        return self.join(case, answers)

    def _seconds(self, given: tuple) -> float:
        """The seconds of a processor of a call with what was given."""
        self.in_time(functools.partial(self.attempt, *given))
        return self.worker.spent

    def _with_dropout(self, case: Case, R: np.ndarray, call: Call) -> Case:
        """The case with the dropout that the candidate draws from this seed, in place of R.

        It is read off with Q = 0 and unit vectors as values, as many as a value has entries.
        """
        s = case.sizes
        found = np.zeros((s["b"], s["H"], s["n"], s["m"]))
        for start in range(0, s["m"], s["d_v"]):
            V = np.zeros(case.V.shape)
            V[..., start:, :] = np.eye(s["m"] - start, s["d_v"])
            O = self._joined(replace(case, Q=0 * case.Q, V=V), call._replace(forward=True, only=None), []).O
            found[..., start : start + s["d_v"]] = O[..., : s["m"] - start]
        return replace(case, R=np.where(found != 0, R.max(), 0.0))
