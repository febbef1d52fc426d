"""The candidate on its ranks, and the report that is made there; PyTorch is imported where it is needed."""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from attnmath._examine.contract.functions import name_of
from attnmath._examine.contract.process import judged_apart
from attnmath._examine.ranks.spread import Spread


def ranked(
    fn: Any, backward: Any, spread: Spread, how: Mapping[str, Any], without: Collection[str], pool: Any
) -> Any:
    """The candidate on its ranks: those that there are, or processes of this program."""
    from attnmath._examine.ranks.candidate import RankedCandidate

    more = {k: x for k, x in how.items() if k != "framework"}
    return RankedCandidate(fn, backward, spread, pool=pool, without=without, **more)


def with_parameters(examination: Any, report: Any) -> Any:
    """The report, with what the gradients of its parameters are."""
    from attnmath._examine.ranks.parameters import with_parameters

    return with_parameters(examination, report)


def judged_over_ranks(
    work: Callable[..., Any], functions: tuple[Any, Any], spread: Spread, how: Mapping[str, Any], say: Any,
    isolate: bool,
) -> Any:
    """The report that work(say, pool) makes: on the ranks that torchrun has begun, or in a process of its own."""
    from attnmath._examine.ranks import launched

    limit = how["time_limit"]
    if launched.there(spread.ranks):
        return launched.judged(work, launched.Launched(functions, limit, how["device"]), say)
    name = f"{name_of(functions[0])} {spread.words}"
    return judged_apart(work, name, max(limit, 10.0), say) if isolate else work(say)
