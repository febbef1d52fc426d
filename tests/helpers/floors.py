"""Which module of the package imports which, by whatever way, and what the plan of the house says of that."""

import ast
from functools import cache
from graphlib import CycleError, TopologicalSorter

# From below; a floor imports what stands below it. What shares a floor does not meet, nor do formulas and exact arithmetic.
FLOORS = (("_words",), ("_given", "_exact"), ("_formulas", "_check"), ("rounding", "torch"), ("_examine",), ("_vectors",),
          ("",), ("book",), ("page",))
STRANGERS = ("_formulas", "_exact"), ("_given", "_check")


def modules(package):
    """Every module by its dotted name, with its text; a package has the name of its folder."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = path.read_text("utf-8"), path.name == "__init__.py"
    return found


@cache
def mentioned(name, text, is_package):
    """What may be a module among what a text imports, by a statement, wherever it stands, or by name: each or what it is of."""
    tree, inside = ast.parse(text), name if is_package else name.rpartition(".")[0]
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {(alias.name,) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: a relative import"
            found |= {(f"{node.module}.{alias.name}", node.module) for alias in node.names}
    if "import_module" in text:
        said = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        found |= {(x,) for word in said for x in (word, f"{inside}.{word}", f"attnmath.{word}")}
    return found


def imported(name, text, is_package, names):
    """The modules that a module imports; of `from a import b` it is a.b, if that is a module."""
    found = (next((x for x in either if x in names), name) for either in mentioned(name, text, is_package))
    return {*found} - {name}


def room(name):
    """The folder of a module; the faces stand in none."""
    parts = name.split(".")[1:]
    return ".".join(parts[:-1]) if len(parts) > 1 else parts[0] if parts and parts[0] in ROOMS else ""


ROOMS = {x for floor in FLOORS for x in floor} - {""}
FLOOR = {room: k for k, floor in enumerate(FLOORS) for room in floor}


def faults(found):
    """Every import against the plan, each as a sentence, and every circle."""
    edges = {name: imported(name, *text, found) for name, text in found.items()}
    wrong = []
    for name, others in edges.items():
        a = room(name).partition(".")[0]
        if a not in FLOOR:
            wrong.append(f"{name} stands in {a}, which is no folder of the plan")
            continue
        for other in others:
            b = room(other).partition(".")[0]
            if a != b and (FLOOR[b] >= FLOOR[a] or (a, b) in STRANGERS or (b, a) in STRANGERS):
                wrong.append(f"{name} imports {other}: {b or 'a face'} does not stand below {a or 'the faces'}")
    rooms = {}
    for name, others in edges.items():
        rooms.setdefault(room(name), set()).update({room(x) for x in others} - {room(name)})
    return wrong + [f"a circle: {' -> '.join(circle)}" for graph in (edges, rooms) for circle in circles(graph)]


def circles(graph):
    """Circles, until none is left when one import of each is taken away."""
    found = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
            return found
        except CycleError as error:
            found.append(error.args[1][::-1])
            graph[found[-1][0]].discard(found[-1][1])
