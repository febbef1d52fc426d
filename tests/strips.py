"""Strips and tiles that are small enough for small problems to have several."""

from unittest.mock import patch

from attnmath._torch import _tiles


def cut_into(rows, strip, tile, fewest=1):
    """Strips of at most so many rows, and of so many numbers, of twice as many if kept; tiles of so many."""
    numbers = dict(ELEMENTS={"cpu": strip}, KEPT={"cpu": 2 * strip}, TILE={"cpu": tile})
    return patch.multiple(_tiles, ROWS=fewest, TALL=fewest, ENOUGH=rows, STAIRS=rows, **numbers)
