"""A layer of PyTorch that is called on each rank with its own tokens, as one of all tokens."""

import copy
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from attnmath._examine.contract.functions import Broken, Fault
from attnmath._examine.ranks.over import Over, joined
from attnmath._examine.ranks.rank import Order, Reply, sent
from attnmath._examine.ranks.spread import Spread


class OverLayer(Over):
    """module(X (b, n_r, d)) -> Y on each rank; of each weight the gradients of all ranks are kept."""

    def __init__(self, module: Any, weights: Mapping[str, Any], spread: Spread, pool: Any) -> None:
        super().__init__(module, None, spread, pool)
        self.layout, self.weights = "bsd", weights

    def called(self, X: Any, training: bool) -> Any:
        """The output of all ranks, differentiable in the tokens and the weights."""
        if X.ndim != 3:
            raise Broken(Fault("options", "over ranks tokens are (b, n, d)"))
        given = {"X": X, **self.weights}
        needed = [name for name, x in given.items() if x.requires_grad]
        numbers = {name: sent(x) for name, x in self.weights.items()}
        replies = self._done([Order("layer", [sent(x)], numbers, tuple(needed), tuple(x.shape), more=training)
                              for x in self._cut(X.detach(), 1)])
        Y = next((x.tensors["O"] for x in replies if x.tensors["O"] is not None), None)
        shape = X.shape if Y is None else (*Y.numbers.shape[:1], X.shape[1], *Y.numbers.shape[2:])
        return joined(self, replies, self._joined(replies, "O", "O", tuple(shape), "the output"), needed, given)

    def _gradient(self, replies: Sequence[Reply], said: str, name: str | None, like: Any, key: str = "") -> Any:
        """That of the tokens joined; that of a weight by what its ranks have."""
        if key == "X":
            return self._joined(replies, key, "Q", tuple(like.shape), "dX")
        return self._of_parameter(replies, key, like)


def over_ranks(module: Any, weights: Mapping[str, Any], spread: Spread, pool: Any) -> tuple[Any, OverLayer]:
    """The module with the same parameters, whose forward calls it on each rank; and what that does."""
    over, kind = OverLayer(module, weights, spread, pool), type(module)

    @functools.wraps(kind.forward)
    def forward(self: Any, X: Any, *others: Any, **options: Any) -> Any:
        if others or any(x is not None for x in options.values()):
            raise Broken(Fault("options", "over ranks a layer is given its tokens alone"))
        return over.called(X, self.training)

    other = copy.copy(module)
    other.spread = spread
    other.__class__ = type(f"{kind.__name__} {spread.words}", (kind,), {"forward": forward})
    return other, over
