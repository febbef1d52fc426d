"""Factors of dropout, held still."""

import numpy as np

from attnmath.page.scenes.settings import full


def dropped(values: dict, sizes: dict) -> None:
    """About a third of the factors is zero."""
    draws = np.random.default_rng(sizes["m"]).integers(0, 3, values["R"].shape)
    values["R"] = np.where(draws > 0, 1.5, 0.0)


no_dropout = full("R", 1.0)
