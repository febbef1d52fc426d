"""The arithmetic of the page that moves is the package's: the file that is shipped, run in an engine."""

import json
from functools import lru_cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from py_mini_racer import MiniRacer

from attnmath import attention_map, attention_vjp, rounding
from attnmath.rounding import unit_roundoff

SOURCE = (Path(__file__).resolve().parents[2] / "chapters/_static/explorer_math.js").read_text("utf-8")
U = unit_roundoff("float64")
SHAPES = {"n": 3, "m": 4, "d_k": 2, "d_v": 2}


@lru_cache
def engine(source=SOURCE):
    """A function that calls one of the file's functions with numbers, infinities included."""
    context = MiniRacer()
    context.eval(source)
    context.eval("""
        const write = (_, x) => typeof x === "number" && !Number.isFinite(x) ? String(x) : x;
        const read = (_, x) => typeof x === "string" ? Number(x) : x;
        const call = (name, given) => JSON.stringify(explorerMath[name](...JSON.parse(given, read)), write);
    """)

    def run(name, *given):
        text = json.dumps([spell(x) for x in given], allow_nan=False)
        return json.loads(context.eval(f"call({json.dumps(name)}, {json.dumps(text)})"))

    return run


def spell(x):
    if isinstance(x, dict):
        return {name: spell(entry) for name, entry in x.items()}
    if isinstance(x, np.ndarray | list | tuple):
        return [spell(entry) for entry in x]
    return float(x) if np.isfinite(x) else str(float(x)).replace("inf", "Infinity")


def head(source=SOURCE, **x):
    return {name: np.array(X, dtype=float) for name, X in engine(source)("head", x).items()}


def given(seed=0, n=3, m=4, d_k=2, d_v=2, size=1.0, gamma=0.7):
    rng = np.random.default_rng(seed)
    shapes = {"Q": (n, d_k), "K": (m, d_k), "V": (m, d_v), "dO": (n, d_v), "B": (n, m)}
    x = {name: rng.normal(size=shape) for name, shape in shapes.items()}
    return x | {"Q": size * x["Q"], "gamma": gamma}


def reference(Q, K, V, B, gamma, dO):
    """What the package says, and how far off a correct result may be because numbers are rounded.

    Both results are rounded, so that the distance is at most twice the bound for one of them. The
    package's bounds hold for functions exp that are right to two roundoffs, as those of V8 and of the
    platform's library are; products with a unit matrix are exact, so that P has the bound of an output.
    """
    up, back = attention_map(Q, K, V, B, gamma), attention_vjp(dO, Q, K, V, B, gamma)
    off = rounding.attention(Q, K, V, B, gamma, dtype="float64")
    P_off = rounding.attention(Q, K, np.eye(len(K)), B, gamma, dtype="float64").O
    back_off = rounding.attention_vjp(dO, Q, K, V, B, gamma, dtype="float64")
    finite = np.where(np.isfinite(B), B, 0)
    # Sums of d_k products, a factor and a summand; sums of d_v products.
    A_off = (Q.shape[1] + 3) * U * (abs(gamma) * abs(Q) @ abs(K).T + abs(finite))
    dP_off = (V.shape[1] + 1) * U * abs(dO) @ abs(V).T
    D_off = (abs(dO) * off.O).sum(1, keepdims=True) + (V.shape[1] + 1) * U * (abs(dO) * abs(up.O)).sum(1, keepdims=True)
    return {
        "A": (up.A, A_off), "P": (up.P, P_off), "O": (up.O, off.O), "dP": (dO @ V.T, dP_off),
        "D": ((dO * up.O).sum(1, keepdims=True), D_off), "dA": (back.dB, back_off.dB),
        "dQ": (back.dQ, back_off.dQ), "dK": (back.dK, back_off.dK), "dV": (back.dV, back_off.dV),
    }


def wrong(source=SOURCE, **x):
    """The letters that differ by more than rounding, or in shape."""
    found, expected = head(source, **x), reference(**x)
    assert found.keys() == expected.keys()

    def differs(name):
        right, off = expected[name]
        if found[name].shape != right.shape:
            return True
        with np.errstate(invalid="ignore"):     # infinities that are equal are not subtracted
            return not ((found[name] == right) | (abs(found[name] - right) <= 2 * off)).all()

    return {name for name in expected if differs(name)}


def masked(x, *places):
    B = x["B"].copy()
    for place in places:
        B[place] = -np.inf
    return x | {"B": B}


GRID = {f"seed {seed}, size {size}, scale {gamma}": given(seed, size=size, gamma=gamma)
        for seed, size, gamma in product(range(4), (1e-3, 1.0, 30.0), (1e-3, 2**-0.5, 1.0, 64.0))}
GRID |= {
    "a forbidden pair": masked(given(10), (0, 1)),
    "a key that nobody reads": masked(given(11), np.s_[:, 2]),
    "an empty row": masked(given(12), 1),
    "nothing but empty rows": masked(given(13), np.s_[:]),
    "one key left": masked(given(14), np.s_[0, 1:]),
    "an empty row among large scores": masked(given(15, size=1e4), 2),
    "scores that overflow an exponential": given(16, size=1e6),
    "scores all alike": given(17, size=0.0) | {"B": np.zeros((3, 4))},
    "the best key forbidden": masked(given(18) | {"B": np.diag([900.0, 900, 900, 900])[:3]}, (0, 0)),
    "a negative scale": given(19, gamma=-0.7),
    "nothing sent back": given(20) | {"dO": np.zeros((3, 2))},
    "two equal values": given(21) | {"V": np.ones((4, 2))},
    "sizes that all differ": given(22, n=2, m=5, d_k=3, d_v=4),
    "one key": given(23, m=1),
}


@pytest.mark.parametrize("name", GRID)
def test_head_is_the_package_s(name):
    assert wrong(**GRID[name]) == set()


@pytest.mark.parametrize(("old", "new", "culprits"), [
    ("(dP[i][j] - D[i][0])", "dP[i][j]", {"dA", "dQ", "dK"}),
    ("weight * (dP", "(dP", {"dA", "dQ", "dK"}),
    ("dot(row, O[i])", "dot(row, dO[i])", {"D", "dA", "dQ", "dK"}),
    ("scaled(gamma, times(Q, T(K)))", "times(Q, T(K))", {"A", "P", "O", "D", "dA", "dQ", "dK", "dV"}),
    ("scaled(gamma, times(dA, K))", "times(dA, K)", {"dQ"}),
    ("scaled(gamma, times(T(dA), Q))", "times(T(dA), Q)", {"dK"}),
    ("times(dA, K)", "times(dA, V)", {"dQ"}),
    ("times(T(dA), Q)", "times(T(P), Q)", {"dK"}),
    ("times(T(dA), Q)", "times(T(dP), Q)", {"dK"}),
    ("times(T(P), dO)", "times(T(A), dO)", {"dV"}),
    ("times(dO, T(V))", "times(O, T(V))", {"dP", "dA", "dQ", "dK"}),
    ("const O = times(P, V)", "const O = times(A, V)", {"O", "D", "dA", "dQ", "dK"}),
    ("score + B[i][j]", "score", {"A", "P", "O", "D", "dA", "dQ", "dK", "dV"}),
    ("entry / sum)", "entry)", {"P", "O", "D", "dA", "dQ", "dK", "dV"}),
    ("Math.exp(score - largest)", "Math.exp(score)", {"P", "O", "D", "dA", "dQ", "dK", "dV"}),
    ("if (largest === -Infinity)", "if (false)", {"P", "O", "D", "dA", "dQ", "dK", "dV"}),
    # A mask after the softmax: the forbidden keys take part, and their weights are dropped.
    ("const P = A.map(softmax)", "const P = times(Q, T(K)).map((row, i) => softmax(row.map((a, j) => gamma * a + "
     "(B[i][j] > -Infinity ? B[i][j] : 0))).map((p, j) => B[i][j] > -Infinity ? p : 0))",
     {"P", "O", "D", "dA", "dQ", "dK", "dV"}),
    ("gamma * entry", "gamma * entry * (1 + 1e-12)", {"A", "P", "O", "D", "dA", "dQ", "dK", "dV"}),
])
def test_a_slip_in_a_formula_is_found(old, new, culprits):
    assert SOURCE.count(old) == 1
    slipped = SOURCE.replace(old, new)
    found = set().union(*(wrong(slipped, **x) for x in GRID.values()))
    assert found == culprits


def test_a_transposed_product_is_found():
    """Where the sizes allow it: as many queries as keys."""
    x = given(30, n=4, m=4)
    assert wrong(**x) == set()
    assert wrong(SOURCE.replace("times(T(dA), Q)", "times(dA, Q)"), **x) == {"dK"}
    assert wrong(SOURCE.replace("times(T(P), dO)", "times(P, dO)"), **x) == {"dV"}


def test_the_settings_are_the_matrices_that_they_say():
    rng = np.random.default_rng(3)
    state = {"Q": rng.normal(size=6), "K": rng.normal(size=8), "V": rng.normal(size=8), "B": rng.normal(size=12),
             "read": rng.integers(0, 2, 12), "t": [0.5], "angle": [0.0, 90.0, -120.0], "length": [1.0, 2.0, 0.5]}
    x = {name: np.array(X, dtype=float) for name, X in engine()("matrices", state).items()}
    assert (x["Q"] == state["Q"].reshape(3, 2)).all() and (x["K"] == state["K"].reshape(4, 2)).all()
    assert (x["V"] == state["V"].reshape(4, 2)).all()
    assert (x["B"] == np.where(state["read"], state["B"], -np.inf).reshape(3, 4)).all()
    assert abs(x["gamma"] - 1 / np.sqrt(2)) <= U
    expected = [[1, 0], [0, 2], [-0.25, -np.sqrt(3) / 4]]
    assert abs(x["dO"] - expected).max() <= 8 * U      # of angles in radians, rounded, and lengths up to 2


@pytest.mark.parametrize("name", GRID)
def test_the_picture_s_signs_are_those_of_dA(name):
    """What is drawn comes from <do_i, v_j - o_i>; where it has a sign, dA has the same one."""
    x = GRID[name]
    expected = reference(**x)
    P, O, dA, dP, D = (expected[letter][0] for letter in ("P", "O", "dA", "dP", "D"))
    reach = np.array(engine()("along", x["dO"], x["V"], O))
    # Two ways to one number, each of which is off by a few roundoffs of what is added up.
    size = (abs(x["dO"])[:, None] * (abs(x["V"])[None] + abs(O)[:, None])).sum(-1)
    assert (abs(reach - (dP - D)) <= 8 * (x["V"].shape[1] + 1) * U * size).all()
    signs = np.array([[engine()("sign", entry) for entry in row] for row in reach])
    told = (P > 0) & (signs != 0)
    assert (np.sign(dA)[told] * signs[told] >= 0).all()
    assert (abs(dA[signs == 0]) <= 1e-11).all()


def test_the_area_of_a_point_grows_with_its_weight():
    weights = np.linspace(0, 1, 11)
    areas = np.array([engine()("radius", weight) for weight in weights]) ** 2
    assert areas[0] > 0 and np.allclose(np.diff(areas, 2), 0, atol=1e-10) and (np.diff(areas) > 0).all()


def test_the_engine_says_what_it_is_told():
    """Infinities go both ways, and a matrix of another shape is seen."""
    x = GRID["an empty row"]
    assert (head(**x)["A"][1] == -np.inf).all() and (head(**x)["P"][1] == 0).all()
    assert wrong(SOURCE.replace("return { A, P, O,", "return { A: T(A), P, O,"), **x) == {"A"}
