"""What runs on a rank: it is handed its own rows, calls what is examined, and sends back what that gives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial, reduce
from typing import Any, NamedTuple

import numpy as np
import torch

from attnmath._examine.contract.contract import kind
from attnmath._examine.contract.functions import message

Function = Callable[..., Any]
GRADIENTS = "dQ", "dK", "dV", "dB"


class Sent(NamedTuple):
    """A tensor on its way from one process to another."""

    numbers: np.ndarray
    dtype: str
    order: tuple[int, ...]  # of its axes in memory, from the slowest to the fastest
    constant: tuple[int, ...] = ()  # along these it is one number in memory


def constant_axes(x: torch.Tensor) -> tuple[int, ...]:
    """Along which it has strides of 0."""
    return tuple(i for i, (step, size) in enumerate(zip(x.stride(), x.shape)) if step == 0 and size > 1)


def order_of(x: torch.Tensor) -> tuple[int, ...]:
    """The axes from the slowest to the fastest in memory."""
    return tuple(sorted(range(x.ndim), key=x.stride, reverse=True))


def lying(x: torch.Tensor, order: tuple[int, ...], constant: tuple[int, ...]) -> torch.Tensor:
    """The same numbers with the axes in this order in memory, or once where they are constant."""
    if constant:
        one = x
        for axis in constant:
            one = one.narrow(axis, 0, min(1, x.shape[axis]))
        return one.contiguous().expand(x.shape)
    return x.permute(order).contiguous().permute(np.argsort(order).tolist())


def sent(x: torch.Tensor) -> Sent:
    """A tensor as what can be sent, with how it lies in memory."""
    order, constant = order_of(x), constant_axes(x)
    x = x.detach().cpu().contiguous()
    short = x.dtype == torch.bfloat16
    numbers = (x.view(torch.int16) if short else x).numpy()
    return Sent(numbers, str(x.dtype).removeprefix("torch."), order, constant)


def received(x: Sent, device: Any = None) -> torch.Tensor:
    """The tensor that was sent, in memory as it was there."""
    y = torch.from_numpy(np.array(x.numbers))
    y = y.view(torch.bfloat16) if x.dtype == "bfloat16" else y
    return lying(y.to(device) if device is not None else y, x.order, x.constant)


def sent_or_not(x: Any) -> Any:
    """What is sent of an option: tensors as such."""
    return sent(x) if isinstance(x, torch.Tensor) else x


def received_or_not(x: Any, device: Any = None) -> Any:
    """What was sent of an option."""
    return received(x, device) if isinstance(x, Sent) else x


class Order(NamedTuple):
    """What a rank is to do: "forward" or "layer", "back" (of the last one), or "pair" (a way back of its own)."""

    what: str
    args: Sequence[Sent] = ()
    options: Mapping[str, Any] = {}
    needed: Sequence[str] = ()  # of q, k, v and of the keywords, which require a gradient
    shape: tuple[int, ...] = ()  # of the output
    seed: int = 0
    more: Any = None


class Reply(NamedTuple):
    """What came of it: tensors by name, None for one that is not there, and what is to be said."""

    tensors: Mapping[str, Any] = {}
    said: Mapping[str, str] = {}  # "returned", "beside", "changed"


@dataclass
class Rank:
    """The functions that are examined, on one rank, and the graph of the last call."""

    fn: Function
    backward: Function | None
    device: Any = None
    output: torch.Tensor | None = None
    leaves: dict[str, torch.Tensor] = field(default_factory=dict)
    before: list[Callable[[], Any]] = field(default_factory=list)  # what puts a module back as it was

    def answer(self, order: Order) -> tuple[str, Any]:
        """What is sent back: "done" and a reply, or "raised" and the error in a line."""
        try:
            with torch.enable_grad():
                return "done", getattr(self, order.what)(order)
        except BaseException as error:  # whatever it raises is its fault
            self.output, self.leaves = None, {}
            return "raised", message(error)

    def forward(self, order: Order) -> Reply:
        """The output for the rank's own rows."""
        self.output, self.leaves = None, {}
        given, options = self._given(order)
        asked = {name: x for name, x in {**dict(zip("qkv", given)), **options}.items() if name in order.needed}
        for x in asked.values():
            x.requires_grad_()
        O = self.fn(*given, **options)
        beside = ""
        if isinstance(O, tuple | list):
            found = next((x for x in O if tuple(getattr(x, "shape", ())) == order.shape), None)
            O, beside = (O, "") if found is None else (found, kind(O))
        if isinstance(O, torch.Tensor) and O.requires_grad and asked:
            self.output, self.leaves = O, asked
        found = {"O": O if isinstance(O, torch.Tensor) else None}
        said = {} if found["O"] is not None else {"returned": kind(O)}
        said |= {"beside": beside} if beside else {}
        said |= {} if self.output is None else {"attached": "yes"}
        return self._reply(found, said, order, given, options)

    def layer(self, order: Order) -> Reply:
        """The output for the rank's own tokens, with other numbers as the weights of the module."""
        self.output, self.leaves = None, {}
        (X,), numbers = self._given(order)
        module: Any = self.fn
        self.before = self.before or as_it_is(module)
        module.to(X.dtype).train(order.more)
        weights = {name: reduce(getattr, name.split("."), module) for name in order.options}
        for name, p in weights.items():
            p.data, p.grad = numbers[name], None
            if p.is_leaf:
                p.requires_grad_(name in order.needed)
        asked = {name: x for name, x in {"X": X.requires_grad_("X" in order.needed), **weights}.items()
                 if name in order.needed and x.is_leaf}
        Y = module(X)
        parts = list(Y.values() if isinstance(Y, Mapping) else Y) if isinstance(Y, Mapping | tuple | list) else [Y]
        parts = [x for x in parts if isinstance(x, torch.Tensor)]
        Y = next((x for x in parts if x.shape == X.shape), parts[0] if parts else None)
        if Y is not None and Y.requires_grad and asked:
            self.output, self.leaves = Y, asked
        said = {"returned": "no tensor"} if Y is None else {} if self.output is None else {"attached": "yes"}
        return self._reply({"O": Y}, said, order, [X], numbers)

    def restore(self) -> None:
        """A module is as it was before it was called."""
        for put_back in self.before:
            put_back()

    def back(self, order: Order) -> Reply:
        """The gradients of what the last call was given, where hooks put them as well."""
        given = [received(x, self.device) for x in order.args]
        if self.output is None:
            return Reply(dict.fromkeys(order.needed))
        output, leaves, self.output = self.output, self.leaves, None
        output.backward(given[0])
        return self._reply({name: x.grad for name, x in leaves.items()}, {}, order, given, {})

    def pair(self, order: Order) -> Reply:
        """The gradients that a way back of its own returns."""
        given, options = self._given(order)
        assert self.backward is not None
        found = self.backward(*given, **options)
        if not isinstance(found, tuple | list) or len(found) not in (3, 4):
            return Reply({}, {"returned": kind(found)})
        if odd := next((x for x in found if x is not None and not isinstance(x, torch.Tensor)), None):
            return Reply({}, {"returned": f"{kind(found)} with {kind(odd)} in it"})
        said = {"list": "yes"} if isinstance(found, list) else {}
        return self._reply(dict(zip(GRADIENTS, found)), said, order, given, options)

    def _given(self, order: Order) -> tuple[list[torch.Tensor], dict[str, Any]]:
        """What the functions are called with; random numbers begin anew."""
        torch.manual_seed(order.seed)
        options = {name: received_or_not(x, self.device) for name, x in order.options.items()}
        return [received(x, self.device) for x in order.args], options

    def _reply(
        self, found: Mapping[str, Any], said: Mapping[str, str], order: Order, given: Sequence[torch.Tensor],
        options: Mapping[str, Any],
    ) -> Reply:
        """What was found, and which of what was given is no longer what it was."""
        names = {"back": ["do"], "pair": ["do", *"qkv"], "layer": ["X"]}.get(order.what, [*"qkv"])
        pairs = [(name, x, y) for name, x, y in zip(names, given, order.args)]
        pairs += [(name, options[name], y) for name, y in order.options.items() if isinstance(y, Sent)]
        pairs = [(name, x, y) for name, x, y in pairs if sent(x).numbers.tobytes() != y.numbers.tobytes()]
        said = {**said, **({"changed": " and ".join(name for name, _, _ in pairs)} if pairs else {})}
        return Reply({name: None if x is None else sent(x) for name, x in found.items()}, said)


def as_it_is(module: Any) -> list[Callable[[], Any]]:
    """What puts the numbers, the gradients and the modes of a module back."""
    def parameter(p: Any, data: Any, grad: Any, needed: bool) -> None:
        p.grad, p.data = None, data
        p.grad = grad
        p.requires_grad_(needed)

    found = [partial(parameter, p, p.data, None if p.grad is None else p.grad.clone(), p.requires_grad)
             for p in module.parameters()]
    parts = list(module.modules())
    return [*found, *(partial(m._buffers.update, dict(m._buffers)) for m in parts),
            *(partial(setattr, m, "training", m.training) for m in parts)]
