"""Named tuples taken apart and put together."""

from collections import namedtuple

import pytest

from attnmath._words.named_tuples import (
    all_leaves,
    has_fields_of,
    is_branch,
    leaves,
    names_of_outputs,
    on_leaves,
    outputs,
    put_together,
)

Pair = namedtuple("Pair", "a b")
Three = namedtuple("Three", "x y z")
TREE = Three(1, Pair(2, 3), None)


class Structure:
    """Fields, but no tuple, as those of ctypes have."""

    _fields = ("x", "y")


@pytest.mark.parametrize("x, want", [(TREE, True), (Structure(), False), ((1, 2), False), ([1], False), (1, False), (None, False)])
def test_only_a_named_tuple_has_fields(x, want):
    assert is_branch(x) is want


def test_leaves_have_the_names_of_all_fields_above():
    assert leaves("W", TREE, TREE) == [("W.x", 1), ("W.y.a", 2), ("W.y.b", 3), ("W.z", None)]
    assert leaves("W", None, TREE) == [("W.x", None), ("W.y.a", None), ("W.y.b", None), ("W.z", None)]
    assert leaves("W", Three(5, None, 6), TREE)[1:] == [("W.y.a", None), ("W.y.b", None), ("W.z", 6)]
    assert leaves("X", (1, 2), 3.0) == [("X", (1, 2))]
    assert all_leaves(["X", "W"], [7, Pair(8, 9)], [0, Pair(0, 0)]) == (["X", "W.a", "W.b"], [7, 8, 9])
    assert all_leaves([], [], []) == ([], [])


def test_outputs_are_one_or_several_or_named_tuples_inside():
    assert outputs(4, 1.0) == (["Y"], [4]) and names_of_outputs(1.0) == ["Y"]
    assert outputs((4, None), (1, 2)) == (["Y0", "Y1"], [4, None])
    assert outputs(Three(4, Pair(5, 6), None), TREE) == (["x", "y.a", "y.b", "z"], [4, 5, 6, None])
    assert outputs((7, None, 8), TREE) == (["x", "y.a", "y.b", "z"], [7, None, None, 8])
    assert names_of_outputs(TREE) == ["x", "y", "z"]


@pytest.mark.parametrize("x, want", [
    (TREE, True), (None, True), (Three(0, None, 0), True), (Pair(1, 2), False), (tuple(TREE), False), (4, False),
    (Three(0, 5, 0), False), (Three(Pair(1, 2), Pair(1, 2), Pair(1, 2)), True),
])
def test_fits(x, want):
    assert has_fields_of(x, TREE) is want and has_fields_of(x, 1.0)


def test_folded_is_the_way_back():
    assert put_together([1, 2, 3, None, 4], [TREE, 0]) == [TREE, 4]
    assert type(put_together([1, 2], [Pair(0, 0)])[0]) is Pair
    assert on_leaves(lambda d, W, c=0: (d, W, c), None, TREE)(9, 1, 2, 3, None, c=5) == (9, TREE, 5)
