"""What a right candidate does whatever its numbers are: the same twice, 0 for 0, twice for twice."""

import itertools
from dataclasses import replace

import numpy as np

from attnmath._examine._calls import Fault
from attnmath._examine._candidate import Candidate
from attnmath._examine._case import Answer, Case, Conventions
from attnmath._examine._contract import OF
from attnmath._examine._probes import TRIED, Sizes, problem
from attnmath._examine._steps import Steps
from attnmath._roundoff import nearest, unit_roundoff

GRADIENTS = "dQ", "dK", "dV"


def probes(candidate: Candidate, means: Conventions) -> list[Fault]:
    """What the candidate does that no attention may do, found by calling it again."""
    sizes = candidate.sizes or TRIED[0]
    candidate.library.eager = True
    try:
        first = _repeated(candidate, means, sizes)
        if any(fault.name != "unordered_sums" for fault in first):
            return first  # what else is seen comes of that
        exact = () if first else (_linear, _alone)  # these compare bit for bit
        checks = (_stale, _ordered, *exact)
        return first + [fault for check in checks for fault in check(candidate, means, sizes)]
    finally:
        candidate.library.eager = False


def drawn(candidate: Candidate, sizes: Sizes, seed: int) -> Case:
    """A gaussian problem in numbers of every format."""
    rng = np.random.default_rng(seed)
    case = problem(sizes, rng)
    names = "Q", "K", "V", "dO"
    form = "bfloat16" if candidate.dtype != "float16" else "float16"
    return replace(case, **{x: nearest(rng.standard_normal(getattr(case, x).shape), form) for x in names})


def there(answer: Answer) -> dict[str, np.ndarray]:
    """The parts of an answer that there are."""
    return {name: x for name, x in answer._asdict().items() if x is not None}


def unlike(one: Answer, other: Answer) -> list[str]:
    """The names of the parts that differ, in any bit but the sign of zero."""
    x, y = there(one), there(other)
    return [name for name in x if name in y and not np.array_equal(x[name], y[name], equal_nan=True)]


def largest(one: Answer, other: Answer) -> float:
    """The largest difference, by the largest entry of its part."""
    x, y = there(one), there(other)
    parts = [np.abs(x[name] - y[name]).max() / max(np.abs(x[name]).max(), 1e-300) for name in x if name in y]
    return float(max(parts))


def _repeated(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """The same problem again, at once and after another."""
    case, other = (drawn(candidate, sizes, seed) for seed in (1, 2))
    order = (case, case, case, other, case, other, case)
    one, two, three, _, four, _, five = (candidate.run(x, means).answer for x in order)
    if any(x is None for x in (one, two, three, four, five)):
        return []
    if names := unlike(one, two) or unlike(one, three) or unlike(four, five):
        what = f"{' and '.join(names)} of two calls with the same arguments differ"
        size = max(largest(one, x) for x in (two, three, four, five))
        evidence = f"{what}, by {size:.1e} of the largest entry"
        if size < 64 * unit_roundoff(candidate.dtype):
            return [Fault("unordered_sums", f"{evidence}: sums are taken in whatever order")]
        if size > 0.01 and unlike(two, one) and largest(_minus(two, one), _minus(three, two)) < 1e-3:
            return [Fault("accumulates_into_grad", f"{what}: each call adds to what the call before left")]
        return [Fault("nondeterministic", evidence)]
    if names := unlike(one, four):
        for _ in range(4):  # or it was chance that the same came twice
            candidate.run(other, means)
            again = candidate.run(case, means).answer
            if again is None or unlike(again, four):
                what = f"{' and '.join(names)} of two calls with the same arguments differ"
                return [Fault("nondeterministic", what)]
        return [Fault("state", f"{' and '.join(names)} depend on the call before")]
    return []


def _minus(one: Answer, other: Answer) -> Answer:
    return Answer(*(None if x is None or y is None else x - y for x, y in zip(one, other)))


def _linear(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """The gradients of 0 are 0, and those of 2 dO are twice those of dO, bit for bit."""
    case = drawn(candidate, sizes, 1)
    one, zero, two = (
        candidate.run(replace(case, dO=factor * case.dO), means).answer for factor in (1.0, 0.0, 2.0)
    )
    if one is None or zero is None or two is None or one.dQ is None:
        return []
    grown = [name for name in GRADIENTS if there(zero).get(name) is not None and there(zero)[name].any()]
    if grown:
        same = all(np.array_equal(there(zero)[name], there(one)[name]) for name in grown)
        if same:
            return [Fault("dO_ignored", "the gradient dO is ignored: dO = 0 gives the same gradients")]
        return [Fault("not_linear", f"{' and '.join(grown)} of dO = 0 are not 0")]
    if candidate.dtype == "float16":  # its least numbers round when they are doubled
        return []
    off = [name for name in unlike(two, one._replace(**{x: 2 * y for x, y in there(one).items()})) if name != "O"]
    if off:
        return [Fault("not_linear", f"{' and '.join(off)} of 2 dO are not exactly twice those of dO")]
    return []


def _stale(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """Right in the first call with new shapes, wrong in the second, whichever problem comes first."""
    for b, seeds in ((5, (3, 4)), (6, (4, 3))):
        cases = [drawn(candidate, replace(sizes, b=b), seed) for seed in seeds]
        answers = [candidate.run(case, means).answer for case in cases]
        if None in answers:
            return []
        first, second = (largest(Steps(case, means).answer(), x) for case, x in zip(cases, answers))
        if not (first <= 0.03 and second >= 0.2):  # also where one of them is NaN
            return []
    sentence = "right in the first call with new shapes, wrong in the second: it uses what it kept of the first"
    return [Fault("stale_kv", sentence)]


def _ordered(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """dQ, dK, dV in this order, where their shapes do not tell them apart."""
    size = sizes.d_k
    case = drawn(candidate, replace(sizes, n=sizes.m, d_k=size, d_v=size), 4)
    answer, want = candidate.run(case, means).answer, Steps(case, means).answer()
    if answer is None or any(getattr(answer, name) is None for name in GRADIENTS):
        return []
    got = [getattr(answer, name) for name in GRADIENTS]
    for order in itertools.permutations(range(3)):
        near = [largest(Answer(getattr(want, GRADIENTS[i])), Answer(x)) < 0.05 for x, i in zip(got, order)]
        if all(near) and order != (0, 1, 2):
            name = "kv_swapped" if order == (0, 2, 1) else "wrong_order"
            come = ", ".join(GRADIENTS[i] for i in order)
            return [Fault(name, f"the gradients come as {come}, where dQ, dK, dV are expected")]
    return []


def _alone(candidate: Candidate, means: Conventions, sizes: Sizes) -> list[Fault]:
    """Each argument alone requires a gradient; on problems that are exact in every format."""
    if candidate.library.name != "torch" or candidate.backward is not None:
        return []
    m = sizes.m if sizes.square and sizes.m > 7 else 4
    s, rng = replace(sizes, n=m if sizes.square else 5, m=m), np.random.default_rng(5)
    case, faults = problem(s, rng), []
    V, dO = (rng.integers(-1, 2, x.shape).astype(float) for x in (case.V, case.dO))
    no_queries = replace(case, V=V, dO=dO)
    units = np.broadcast_to(np.eye(s.n, s.d_k), case.Q.shape)
    no_keys = replace(no_queries, Q=np.array(units), K=np.zeros(case.K.shape))
    exact = {"dQ": no_queries, "dK": no_keys, "dV": no_queries}
    if "bias" in candidate.options:
        exact["dB"] = replace(no_queries, bias=np.zeros((1, 1, s.n, s.m)))
    for name, problem_ in exact.items():
        want = getattr(candidate.run(problem_, means).answer, name, None)
        if want is None or not np.array_equal(want, getattr(Steps(problem_, means).answer(), name)):
            continue  # it is wrong in any case
        outcome = candidate.run(problem_, means, only=name)
        got = getattr(outcome.answer, name, None)
        if got is None or not np.array_equal(got, want):
            letter = OF[name]
            why = outcome.error.sentence if outcome.error else f"{name} is another than with the others"
            faults.append(Fault("requires_grad", f"it fails where {letter} alone requires a gradient: {why}"))
    return faults
