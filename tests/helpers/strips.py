"""Strips and tiles that are small enough for small problems to have several."""

from unittest.mock import patch

from attnmath.torch import tiles


def cut_into(rows, strip, tile, fewest=1):
    """Strips of at most so many rows, and of so many numbers, of twice as many if kept; tiles of so many."""
    numbers = dict(STRIP_NUMBERS={"cpu": strip}, KEPT_NUMBERS={"cpu": 2 * strip}, TILE_NUMBERS={"cpu": tile})
    least, most = dict(FEWEST_ROWS=fewest, FEWEST_KEPT_ROWS=fewest), dict(MOST_ROWS=rows, MOST_CAUSAL_ROWS=rows)
    return patch.multiple(tiles, **least, **most, **numbers)
