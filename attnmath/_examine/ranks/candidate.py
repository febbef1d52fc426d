"""A candidate that is called on each rank, and judged as one function of all tokens."""

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from math import ceil, lcm
from typing import Any

import numpy as np
import torch

from attnmath._examine.contract.attempt import Call
from attnmath._examine.contract.candidate import Candidate, Outcome
from attnmath._examine.contract.functions import Broken, Fault, name_of
from attnmath._examine.contract.layouts import axes_of, parts_of_layout, to_layout
from attnmath._examine.contract.signature import own_keywords
from attnmath._examine.problems.bounds import right_answer
from attnmath._examine.problems.case import Answer, Case, Conventions, Sizes
from attnmath._examine.ranks.over import Over
from attnmath._examine.ranks.pool import Pool
from attnmath._examine.ranks.spread import Spread
from attnmath.rounding.formats import nearest

ASKING = 10.0  # seconds for a call that only asks whether uneven lengths are taken
ENOUGH = 7  # tokens: a length of problems that ask
NEAR = {"float64": 1e-9, "float32": 1e-3, "bfloat16": 0.1, "float16": 0.02}  # of the largest number
KEYWORDS = {"causal": ("causal", "is_causal"), "scale": ("scale", "softmax_scale", "sm_scale")}  # of most rings


def near(x: np.ndarray, y: np.ndarray, dtype: str) -> bool:
    """Whether two outputs are the same up to the order of sums."""
    return bool(np.abs(x - y).max() <= NEAR[dtype] * np.abs(y).max())


class RankedCandidate(Candidate):
    """fn(q, k, v, **options) -> o on each rank with its own tokens; backward, if there is one, in the same way."""

    def __init__(
        self, fn: Callable, backward: Callable | None, spread: Spread, *, time_limit: float = 30.0,
        pool: Any = None, device: Any = None, without: Collection[str] = (),
        parameters: Mapping[str, Any] | None = None, **how: Any,
    ) -> None:
        self.spread = spread
        pool = pool or Pool((fn, backward), spread.ranks, time_limit, device)
        self.over = Over(fn, backward, spread, pool)
        given = (parameters or {}).items()
        self.over.parameters = {name: torch.as_tensor(x).detach().double() for name, x in given}
        if lengths := {len(x) for x in self.over.parameters.values() if x.ndim == 1}:  # as a sink of each head
            how["sizes"] = {"H": min(lengths), **(how.get("sizes") or {})}
        how = {**how, "framework": "torch", "time_limit": 12 * time_limit + 60}  # longer than the ranks may take
        super().__init__(self.over, None if backward is None else self.over.way_back, **how)
        self.steps = spread.ranks, spread.unit
        self.spoken_of = {*self.options, *self.options.values(), *without}  # what to look for is what is left
        self.found: dict[str, str] = {}
        not_ours = Fault("raises", "lengths that the ranks do not divide are not tried under torchrun")
        self.uneven: dict[str, Fault | None] = {}  # of lengths that differ, or are 0 on some: why not
        if not isinstance(pool, Pool):  # which cannot be begun again
            self.uneven = dict.fromkeys(("uneven", "few"), not_ours)

    def __repr__(self) -> str:
        return f"{name_of(self.over.fn)} {self.spread.words}"

    def again(self, dtype: str) -> "RankedCandidate":
        """The same functions with numbers of another format."""
        other = copy.copy(self)
        other.given_dtype = dtype
        other._use("torch")
        return other

    def stated(self, sizes: Sizes) -> Sizes:
        """Sizes that nobody refuses who takes any: n = m, as many tokens and heads on each rank."""
        ranks, unit = self.spread.ranks, self.spread.unit
        n = unit * ceil(max(sizes.n, sizes.m, ENOUGH) / unit)
        H = ranks * ceil(sizes.H / ranks)
        return super().stated(replace(sizes, n=n, m=n, H=H))

    def look_for_options(self, means: Conventions) -> None:
        """A causal mask and a scale that nobody spoke of, by the usual names, where they are taken."""
        names, _ = own_keywords(self.over.fn) or ([], True)
        for word, usual in KEYWORDS.items():
            name = next((x for x in names if x in usual and not self.spoken_of & {word, x}), None)
            if name is not None and self._takes_option(word, name, means):
                self.options[word] = self.found[word] = name

    def _takes_option(self, word: str, name: str, means: Conventions) -> bool:
        """Whether it takes a keyword as one of our words; of what is always causal, whether it can be other."""
        other, always = self.with_options(**{word: name}), word == "causal" and "causal" in self.options
        s, rng = self.stated(self.sizes or Sizes()), np.random.default_rng(0)
        Q, K, V = (rng.standard_normal((s.b, H, s.n, d)) for H, d in ((s.H, s.d_k), (s.G or s.H, s.d_k),
                                                                      (s.G or s.H, s.d_v)))
        plain = Case(Q, K, V, np.zeros((*Q.shape[:3], s.d_v)))
        asked = replace(plain, causal=True) if word == "causal" else replace(plain, scale=0.3)
        with_it, without = (other.run(x, means, forward=True).answer for x in (asked, plain))
        if with_it is None or without is None:
            return with_it is not None and not always
        return not (always and np.array_equal(with_it.O, without.O))

    @property
    def words(self) -> str:
        """What it was found to take, options by their names included."""
        said = "".join(f"; {word} by its keyword {name}" for word, name in self.found.items())
        return super().words.replace("n = m only", "n = m, nothing else is asked over ranks") + said

    @contextmanager
    def on(self, ranks: int) -> Iterator["RankedCandidate | None"]:
        """The same function over another number of ranks; None where these are not ours to begin."""
        if not isinstance(self.over.pool, Pool):
            yield None
            return
        other = RankedCandidate(self.over.fn, None, self.spread._replace(ranks=ranks), time_limit=ASKING,
                                options=self.options, dtype=self.dtype, device=self.device,
                                parameters=self.over.parameters)
        try:
            yield other
        finally:
            other.worker.close()
            other.close()

    def others(self, case: Case) -> Iterator[tuple["RankedCandidate", Case, str]]:
        """It on one rank, then over one fewer, or three for two; a problem for both; the ranks in words."""
        for ranks in (1, 3 if self.spread.ranks == 2 else self.spread.ranks - 1):
            with self.on(ranks) as other:
                case = self.suiting(case, ranks)
                if other is not None:
                    yield other, case, "on one rank" if ranks == 1 else f"over {ranks} ranks"

    def elsewhere(self, case: Case, means: Conventions) -> str:
        """That over another number of ranks its output is another, or right; nothing where it is the same."""
        for other, suited, where in self.others(case):
            here, there = (x.run(suited, means, forward=True).answer for x in (self, other))
            if here and there:
                if near(here.O, there.O, self.dtype):
                    return ""
                right = near(there.O, right_answer(suited, means).O, self.dtype)
                return f"{where} its output is {'right' if right else 'another'}"
        return ""

    def suiting(self, case: Case, ranks: int) -> Case:
        """A problem of the kind whose sizes suit this number of ranks as well."""
        s, rng = case.sizes, np.random.default_rng(9)
        n, H = 2 * lcm(self.spread.unit, self.spread._replace(ranks=ranks).unit), s["H"]
        n += s["n"] % self.spread.unit != 0
        if "H" not in self.told_sizes and s["G"] == H:
            H = lcm(self.spread.ranks, ranks)
        G = H if s["G"] == s["H"] else s["G"]
        shapes = (H, s["d_k"]), (G, s["d_k"]), (G, s["d_v"]), (H, s["d_v"])
        Q, K, V, dO = (nearest(rng.standard_normal((s["b"], h, n, d)), self.dtype) for h, d in shapes)
        return Case(Q, K, V, dO, causal=case.causal, scale=case.scale)

    def close(self) -> None:
        """The ranks end."""
        self.over.pool.close()

    def run(self, case: Case, means: Conventions | None = None, seed: int = 0, *, forward: bool = False,
            only: str | None = None) -> Outcome:
        """The candidate's answer; what ranks cannot be given is refused."""
        if (why := self._refused(case, means or Conventions())) and not self.worker.hung:
            return Outcome(None, why, (), case)
        outcome = super().run(case, means, seed, forward=forward, only=only)
        if self.over.pool.given_up is not None:
            self.worker.hung = self.over.pool.given_up
        return outcome

    def _refused(self, case: Case, means: Conventions) -> Fault | None:
        """Why a problem is not given."""
        n, m = case.sizes["n"], case.sizes["m"]
        if n != m:
            return Fault("raises", "a rank has as many queries as keys, its own tokens")
        if n % self.spread.unit == 0:
            return None
        kind = "few" if n < self.spread.unit else "uneven"
        if kind not in self.uneven:
            if kind == "few" and self._asked("uneven", means):
                self.uneven["few"] = self.uneven["uneven"]
            else:
                self._asked(kind, means)
        return self.uneven[kind]

    def _asked(self, kind: str, means: Conventions) -> Fault | None:
        """Why lengths that the ranks do not divide are not taken; asked once, there and back."""
        if kind not in self.uneven:
            unit, heads = self.spread.unit, self.sizes.H if self.sizes else self.spread.ranks
            n = max(1, unit - 1) if kind == "few" else 2 * unit + 1
            x = np.zeros((1, heads if "h" in (means.layout or "bhsd") else 1, n, 16))
            self.over.limit = min(ASKING, self.over.pool.limit)
            try:
                self.uneven[kind] = super().run(Case(x, x, x, x), means).error
            finally:
                self.over.limit = None
        return self.uneven[kind]

    def attempt(self, case: Case, call: Call, faults: list[Fault]) -> Answer:
        """The answer; where the axes of queries are is said to what is called."""
        over, letters = self.over, parts_of_layout(call.layout)[0]
        if any("s" not in axes_of(call.layout, of) for of in "QKO"):
            raise Broken(Fault("options", f"its layout {call.layout} has no axis of tokens"))
        over.layout, over.shape = call.layout, tuple(to_layout(case.dO, call.layout, "O").shape)
        scores = "".join(x for x in "bhnm" if x in "nm" or x in letters)
        axes = {"mask": call.means.mask_axes or scores, "bias": call.means.bias_axes or scores,
                "dropout_mask": scores}
        own: Mapping[str, Any] = self.options
        over.rows = {own[word]: x.index("n") for word, x in axes.items()
                     if isinstance(own.get(word), str) and "n" in x}
        differentiated = case.bias is not None and "constant bias" not in case.traits
        over.bias = own["bias"] if differentiated else None
        over.faults.clear()
        answer = super().attempt(case, call, faults)
        faults += over.faults
        self.output.beside = over.beside
        return answer
