"""A function of whole tensors that calls another on each rank with the rank's own rows."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from attnmath._examine.contract.contract import GRADIENT_OF
from attnmath._examine.contract.functions import Broken, Fault, attribute, name_of
from attnmath._examine.contract.layouts import axes_of
from attnmath._examine.ranks.rank import Order, Reply, constant_axes, lying, order_of, received, sent, sent_or_not
from attnmath._examine.ranks.replicated import Parts
from attnmath._examine.ranks.spread import Spread

Function = Callable[..., Any]


class Over:
    """fn(q, k, v, **options) -> o on each rank with its own tokens, as a function of all tokens.

    backward(do, q, k, v, **options) -> dq, dk, dv on each rank in the same way, if there is one. Masks and
    biases are cut along their axis of queries; each rank has those of its own queries, to all keys.
    """

    def __init__(self, fn: Function, backward: Function | None, spread: Spread, pool: Any) -> None:
        self.fn, self.own_backward, self.spread, self.pool = fn, backward, spread, pool
        self.__name__, self.__wrapped__ = name_of(fn), fn
        self.__module__, self.__doc__ = attribute(fn, "__module__"), None
        if callable(forward := attribute(fn, "forward")):
            self.forward = forward
        self.layout, self.shape = "bhsd", tuple[int, ...]()  # of the axes; of the output
        self.rows: dict[str, int] = {}  # of options: which axis is that of the queries
        self.bias: str | None = None  # the option that has a gradient
        self.parameters: dict[str, torch.Tensor] = {}  # that all ranks are given, and have gradients
        self.parts = Parts(spread.ranks)
        self.limit: float | None = None  # of a call that only asks
        self.faults: dict[Fault, None] = {}
        self.beside = ""

    def __call__(self, q: Any, k: Any, v: Any, **options: Any) -> Any:
        options |= {name: x.to(q.device, q.dtype) for name, x in self.parameters.items()}
        given = {"q": q, "k": k, "v": v, **options}
        needed = [name for name, x in given.items() if isinstance(x, torch.Tensor) and x.requires_grad]
        needed += list(self.parameters) if needed else []
        replies = self._asked("forward", (q, k, v), options, needed)
        O = self._joined(replies, "O", "O", self.shape, "the output")
        self.beside = next((x.said["beside"] for x in replies if "beside" in x.said), self.beside)
        return joined(self, replies, O, needed, given)

    def way_back(self, do: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
        """The gradients that the way back of each rank returns, joined."""
        replies = self._asked("pair", (do, q, k, v), options, ())
        if odd := next((x.said["returned"] for x in replies if "returned" in x.said), None):
            raise Broken(Fault("wrong_number", f"the gradients are {odd}, where a tuple is expected"))
        likes = {"dQ": q, "dK": k, "dV": v, **({"dB": options[self.bias]} if self.bias else {})}
        names = [name for name in likes if all(name in x.tensors for x in replies)]
        found = [self._gradient(replies, name, self.bias if name == "dB" else name, likes[name]) for name in names]
        return found if any("list" in x.said for x in replies) else tuple(found)

    def pulled(self, dO: Any, needed: Sequence[str], likes: Sequence[Any]) -> list[Any]:
        """The gradients of the last call, joined."""
        orders = [Order("back", [sent(x)], needed=tuple(needed)) for x in self._cut(dO, self._axis("O"))]
        replies = self._done(orders)
        return [self._gradient(replies, name, f"d{name.upper()}" if name in "qkv" else name, like, name)
                for name, like in zip(needed, likes)]

    # what is sent

    def _axis(self, of: str) -> int:
        return axes_of(self.layout, of).index("s")

    def _cut(self, x: torch.Tensor, axis: int) -> list[torch.Tensor]:
        """Each rank's own rows; where they lie otherwise in memory than in order, so do these."""
        order, constant = order_of(x), constant_axes(x)
        return [lying(x.index_select(axis, p), order, constant) for p in self.spread.places(x.shape[axis])]

    def _asked(
        self, what: str, args: Sequence[Any], options: Mapping[str, Any], needed: Sequence[str]
    ) -> list[Reply]:
        """What each rank makes of its own part."""
        cut = [self._cut(x.detach(), self._axis(of)) for x, of in zip(args, "OQKV"[4 - len(args):])]
        each: list[dict[str, Any]] = [{} for _ in range(self.spread.ranks)]
        for name, x in options.items():
            axis = self.rows.get(name) if isinstance(x, torch.Tensor) else None
            one = [x] * len(each) if axis is None or x.shape[axis] == 1 else self._cut(x.detach(), axis)
            for mine, part in zip(each, one):
                mine[name] = sent_or_not(part)
        seed, axis = torch.initial_seed(), self._axis("O")
        shapes = [tuple(len(p) if i == axis else size for i, size in enumerate(self.shape))
                  for p in self.spread.places(self.shape[axis])]
        return self._done([
            Order(what, [sent(x[r]) for x in cut], each[r], tuple(needed), shapes[r], seed)
            for r in range(len(each))])

    def _done(self, orders: Sequence[Order]) -> list[Reply]:
        replies = self.pool.ask(orders, self.limit)
        for rank, x in enumerate(replies):
            if "changed" in x.said:
                said = f"it changes its inputs: {x.said['changed']} on rank {rank}"
                self.faults.setdefault(Fault("inputs_modified", said))
        return replies

    # what comes back

    def _gradient(self, replies: Sequence[Reply], said: str, name: str | None, like: Any, key: str = "") -> Any:
        """One gradient, joined; None where no rank has one."""
        key = key or said
        if key in self.parameters:
            return self._of_parameter(replies, key, like)
        if all(x.tensors.get(key) is None for x in replies):
            return None
        if said in ("dB", self.bias) or name not in GRADIENT_OF:
            return self._of_option(replies, key, like)
        return self._joined(replies, key, name, tuple(like.shape), name)

    def _of_option(self, replies: Sequence[Reply], key: str, like: Any) -> Any:
        """The gradient of a bias: its rows, or the sum over the ranks where they share it."""
        axis = self.rows.get(self.bias or key)
        if axis is not None and like.shape[axis] > 1:
            return self._put_together(replies, key, axis, tuple(like.shape), "dB")
        return torch.stack([received(x.tensors[key]) for x in replies if x.tensors.get(key) is not None]).sum(0)

    def _of_parameter(self, replies: Sequence[Reply], key: str, like: Any) -> Any:
        """The gradient of what all ranks have, from theirs."""
        came = [x.tensors.get(key) for x in replies]
        return self.parts.whole(key, [torch.zeros_like(like) if x is None else received(x) for x in came])

    def _joined(self, replies: Sequence[Reply], key: str, of: str, shape: tuple[int, ...], what: str) -> Any:
        """The rows of all ranks in the order of the sequence."""
        odd = next((x.said["returned"] for x in replies if "returned" in x.said), None)
        if odd is not None:
            raise Broken(Fault("type", f"{what} is {odd}, where a tensor with the rank's own rows is expected"))
        return self._put_together(replies, key, self._axis(of), shape, what)

    def _put_together(self, replies: Sequence[Reply], key: str, axis: int, shape: tuple, what: str) -> Any:
        places = self.spread.places(shape[axis])
        wanted = [tuple(len(p) if i == axis else size for i, size in enumerate(shape)) for p in places]
        parts = [None if x.tensors.get(key) is None else received(x.tensors[key]) for x in replies]
        for rank, (x, want) in enumerate(zip(parts, wanted)):
            if x is not None and tuple(x.shape) != want:
                raise Broken(Fault("shape", _other_shape(what, rank, tuple(x.shape), want, axis, shape)))
        first = next(x for x in parts if x is not None)
        whole = first.new_zeros(shape)
        for x, p in zip(parts, places):
            if x is not None:
                whole.index_copy_(axis, p, x.to(first.dtype))
        return whole


def _other_shape(what: str, rank: int, got: tuple, want: tuple, axis: int, whole: tuple) -> str:
    """That a rank returns other rows than its own."""
    if len(got) == len(want) and all(a == b for i, (a, b) in enumerate(zip(got, want)) if i != axis):
        all_of_it = ", all of them" if got == whole else ""
        return f"{what} of rank {rank} has {got[axis]} rows{all_of_it}, where the rank has {want[axis]} tokens"
    return f"{what} of rank {rank} has the shape {got}, where {want} is expected"


def joined(over: Over, replies: Sequence[Reply], O: Any, needed: Sequence[str], given: Mapping[str, Any]) -> Any:
    """The output of all ranks, whose way back is theirs, if one has any."""
    if not any("attached" in x.said for x in replies):
        return O
    return _Joined.apply(over, needed, O, *(given[name] for name in needed))


class _Joined(torch.autograd.Function):
    """The output of all ranks, whose way back is that of each rank."""

    @staticmethod
    def forward(ctx: Any, over: Over, needed: Sequence[str], O: Any, *given: Any) -> Any:
        ctx.over, ctx.needed, ctx.likes = over, needed, [x.detach() for x in given]
        ctx.set_materialize_grads(False)
        return O.clone()

    @staticmethod
    def backward(ctx: Any, *dO: Any) -> Any:
        return None, None, None, *ctx.over.pulled(dO[0], ctx.needed, ctx.likes)
