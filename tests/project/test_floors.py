"""The plan of the house: which folder may import which. An import against it is planted in every folder."""

from pathlib import Path

import pytest

import attnmath
from floors import ROOMS, faults, modules, room

PACKAGE = Path(attnmath.__file__).parent
FOLDERS = sorted({room(name) for name in modules(PACKAGE)})


def test_every_import_goes_down_and_there_is_no_circle():
    assert faults(modules(PACKAGE)) == []


def test_at_the_root_stand_the_faces_alone():
    assert {path.name for path in PACKAGE.iterdir() if path.name != "__pycache__"} == ROOMS | {
        "__init__.py", "__main__.py", "adapters.py", "testing.py", "py.typed"}


WAYS = {
    "plainly": "from {} import x",
    "as a module": "import {}",
    "inside a function": "def f():\n    from {} import x",
    "for types alone": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from {} import x",
    "by name": "from importlib import import_module\nimport_module('{}')",
    "by a name without the package's": "import importlib\nimportlib.import_module('attnmath.' + '{}'.lower())",
}
ways = pytest.mark.parametrize("way", WAYS)


def plant(way, own, other):
    """What is found if a module `own` imports a module `other`, which imports it again."""
    name = other.removeprefix("attnmath.") if way.startswith("by a name") else other
    more = {own: (WAYS[way].format(name), False), other: (f"import {own}\n", False)}
    return [fault for fault in faults(modules(PACKAGE) | more) if own in fault]


@ways
@pytest.mark.parametrize("folder", [folder for folder in FOLDERS if not folder.startswith("page")])
def test_an_import_of_what_stands_above_is_found_in_every_folder(folder, way):
    own, above = ".".join(filter(None, ["attnmath", folder, "planted"])), "attnmath.page.planted"
    assert any(fault.startswith(f"{own} imports {above}: page does not") for fault in plant(way, own, above))


@ways
@pytest.mark.parametrize("folder", FOLDERS)
def test_a_circle_is_found_in_every_folder(folder, way):
    own = ".".join(filter(None, ["attnmath", folder, "planted"]))
    assert any(fault.startswith("a circle") for fault in plant(way, own, own + "_too"))


@pytest.mark.parametrize("below, above", [("_words", "_given"), ("_given", "_exact"), ("_exact", "_formulas"), ("_formulas", "_exact"),
                                          ("_check", "_formulas"), ("_formulas", "_check"), ("rounding", "torch"),
                                          ("torch", "_examine"), ("_examine", "_vectors"), ("_vectors", "book")])
def test_neighbours_that_do_not_meet(below, above):
    found = faults({f"attnmath.{below}.x": (f"import attnmath.{above}.x", False), f"attnmath.{above}.x": ("", False)})
    assert len(found) == 1 and found[0].startswith(f"attnmath.{below}.x imports attnmath.{above}.x")


def test_a_folder_that_is_not_in_the_plan_is_found():
    assert faults({"attnmath.new.x": ("", False)}) == ["attnmath.new.x stands in new, which is no folder of the plan"]
