"""What tests/adapters/transformers_layers.py has measured: how far today's layers are from a library's own."""

import json
from importlib.resources import files
from typing import Any

from attnmath.book.notebook import as_table


def compared() -> dict[str, Any]:
    """The record: versions; of each layer its class, what is cast there, and two errors for each name.

    The first error is with the casts to float32 replaced, the second as shipped, each a part of the
    largest number that is wanted.
    """
    return json.loads(files("attnmath.book").joinpath("compared_layers.json").read_text("utf-8"))


def layer_table(record: dict) -> Any:
    """Of each layer the class of the library, what is cast there, and the largest error of both kinds."""
    rows = ["| layer | class | computed in float32 as shipped | gradients | casts replaced | as shipped |",
            "| --- | --- | --- | ---: | ---: | ---: |"]
    for name, about in record["layers"].items():
        most = (max(pair[k] for pair in about["errors"].values()) for k in (0, 1))
        cells = name, f"`{about['class']}`", ", ".join(about["casts"]), str(len(about["errors"]) - 1)
        rows.append(f"| {' | '.join((*cells, *(f'{x:.0e}' for x in most)))} |")
    return as_table("\n".join(rows))


def weight_table(record: dict) -> Any:
    """Of each array of a layer the larger of the errors with the casts replaced, over its two variants."""
    models: dict[str, dict[str, float]] = {}
    for name, about in record["layers"].items():
        found = models.setdefault(name.partition(",")[0], {})
        for letter, (error, _) in about["errors"].items():
            found[letter] = max(error, found.get(letter, 0.0))
    letters = dict.fromkeys(letter for found in models.values() for letter in found)
    rows = [f"| array | {' | '.join(models)} |", "| --- |" + " ---: |" * len(models)]
    for letter in letters:
        cells = (f"{found[letter]:.0e}" if letter in found else "" for found in models.values())
        rows.append(f"| `{letter}` | {' | '.join(cells)} |")
    return as_table("\n".join(rows))
