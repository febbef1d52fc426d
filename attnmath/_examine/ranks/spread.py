"""Over how many ranks tokens are spread, and how; PyTorch is imported where it is needed."""

import os
from importlib.util import find_spec
from typing import Any, NamedTuple

from attnmath._examine.contract.functions import Unusable
from attnmath._examine.contract.layouts import AXIS_ORDERS, MORE_ORDERS
from attnmath._words.extras import absent

LAYOUTS = "contiguous", "zigzag"  # as in attnmath.torch.layouts


class Spread(NamedTuple):
    """Over how many ranks the tokens are spread, and how."""

    ranks: int
    layout: str = "contiguous"

    @property
    def unit(self) -> int:
        """Lengths that are a multiple of this are the same on all ranks, and so are the two parts of a rank."""
        return self.ranks * (2 if self.layout == "zigzag" else 1)

    def places(self, n: int) -> list[Any]:
        """For each rank the places of its tokens, int64 (n_r,)."""
        from attnmath.torch.layouts import positions

        return [positions(self.layout, n, self.ranks, r) for r in range(self.ranks)]

    @property
    def words(self) -> str:
        """As they follow a name."""
        return f"over {self.ranks} ranks, {self.layout}"


def spread_of(ranks: int | None, layout: str | None) -> Spread | None:
    """Over which ranks, and how, if it is over ranks: None where nothing says so; raises for what cannot be."""
    named = layout in LAYOUTS
    if ranks is None and not named:
        return None
    if ranks is None and (size := os.environ.get("WORLD_SIZE", "")).isdigit():
        ranks = int(size)
    if ranks is None:
        raise ValueError(f"examine: layout is {layout!r}, which tokens a rank has; it needs ranks= beside it")
    if not isinstance(ranks, int) or isinstance(ranks, bool) or not 1 < ranks <= 64:
        raise ValueError(f"examine: ranks is {ranks!r}; it needs to be a whole number from 2 to 64")
    if not named and layout is not None and layout not in AXIS_ORDERS + MORE_ORDERS:
        raise ValueError(f"examine: layout is {layout!r}; over ranks it needs to be 'contiguous' or 'zigzag'")
    if find_spec("torch") is None:
        raise Unusable(f"ranks need PyTorch: {absent('torch')}")
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_gloo_available()):
        raise Unusable("ranks need torch.distributed with gloo, which this PyTorch was built without")
    return Spread(ranks, layout if named and layout else "contiguous")
