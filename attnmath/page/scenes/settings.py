"""Settings: each a way to fill a cast with numbers, by a seed, sizes of its own, and changes of what was drawn."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Change = Callable[[dict, dict], None]  # of the primals, their tangents and dO, in place, by the sizes


@dataclass(frozen=True)
class Setting:
    """One way to fill a cast: a seed, sizes of its own, a change of the primals; words for the function."""

    name: str
    seed: int
    sizes: dict = field(default_factory=dict)
    change: Change = lambda values, sizes: None
    options: dict = field(default_factory=dict)  # name of a parameter -> one of its words

    def then(self, *changes: Change) -> "Setting":
        """With these changes as well, one after the other."""

        def change(values: dict, sizes: dict) -> None:
            for one in (self.change, *changes):
                one(values, sizes)

        return replace(self, change=change)


def setting(name: str, seed: int, *changes: Change, options: dict | None = None, **sizes: int) -> Setting:
    """A setting with these changes, one after the other, and sizes of its own."""
    return Setting(name, seed, sizes, options=options or {}).then(*changes)


def three(seed: int, *changes: Change, last: str = "sizes in another order", **sizes: int) -> tuple[Setting, ...]:
    """Two fillings at random, and one in other sizes, where nothing else is to be varied."""
    return (
        setting("random", seed, *changes),
        setting("random again", seed + 1, *changes),
        setting(last, seed + 2, *changes, options=None, **sizes),
    )


def filling(change: Callable[..., None]) -> Callable[..., Change]:
    """A change that depends on more than the values and the sizes: of `zero`, zero("B") is one."""
    return lambda *what, **more: lambda values, sizes: change(values, sizes, *what, **more)


# ---- how settings fill a cast: what is zero, small or hidden; masks of the bias B ----------------


@filling
def zero(values: dict, sizes: dict, *letters: str) -> None:
    """These letters are zero."""
    for letter in letters:
        values[letter] = np.zeros_like(values[letter])


@filling
def zero_at(values: dict, sizes: dict, letter: str, place: Any) -> None:
    """A row of a letter, or a member of a family, is zero, and no other."""
    values[letter][place] = 0


@filling
def full(values: dict, sizes: dict, letter: str, value: float) -> None:
    """All entries of a letter are this number."""
    values[letter] = np.full(values[letter].shape, value)


@filling
def divided(values: dict, sizes: dict, by: float, *letters: str) -> None:
    """These letters are smaller."""
    for letter in letters:
        values[letter] = values[letter] / by


@filling
def hidden(values: dict, sizes: dict, letter: str, *places: Any) -> None:
    """Scores, or their bias, are -inf at these rows or entries."""
    for place in places:
        values[letter][place] = -np.inf


calm = divided(8, "gamma")  # so that no weight of attention is almost 1
last_row_empty = hidden("B", (0, 0), -1)  # nor may the first query attend to the first key


def empty_row(values: dict, sizes: dict) -> None:
    """A query that may attend to nothing; one with a masked key, and the first sees all, one of them hardly."""
    B = values["B"]
    B[2 % len(B), 2] = B[1] = -np.inf
    B[0, :2] = 0, -12


@filling
def causal(values: dict, sizes: dict, shift: int | None = None) -> None:
    """Query i may attend to the keys j <= i + shift; the last query to all keys, if no shift is given."""
    n, m = values["B"].shape
    ahead = ~np.tri(n, m, m - n if shift is None else shift, dtype=bool)
    values["B"] = np.where(ahead, -np.inf, values["B"])


masked = causal(1)  # so that the first row keeps two keys


def masked_before(values: dict, sizes: dict) -> None:
    """Query i may attend to the keys j >= i - 1: the first keys are hidden from the last ones."""
    n, m = values["B"].shape
    before = np.tri(n, m, -2, dtype=bool)
    values["B"] = np.where(before, -np.inf, values["B"])
