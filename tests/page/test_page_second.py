"""The tangent of a gradient on the page: two oracles, exact numbers, and what must be refused."""

from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest

import attnmath
from attnmath._exact.arrays import letters
from attnmath._exact.point import Point
from attnmath._formulas.attention import attention, attention_vjp
from attnmath.page.language.chapter import PageFault, read_text
from attnmath.page.language.nodes import PageError
from attnmath.page.misprints.edits import latex
from attnmath.page.misprints.misprints import tally
from attnmath.page.scenes.carried import Dual, Duals, combined
from attnmath.page.scenes.oracles import TorchScene
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import facts_and_algebra, judge
from attnmath.page.verdicts.proofs import Exactly
from page_book import HEAD, PAGE, planted

Found = namedtuple("Found", "dV_dot, dK_dot")
STILL = replace(HEAD, name="still", has_second=True)
MOVING = replace(HEAD, name="moving", has_second=True, moving=("O",))


def book(display, label="prp:tested", casts=(STILL, MOVING)):
    text = PAGE + f"\n$$ {display} $$ ({label})\n"
    of = Book([read_text(text, "chapters/page.md")], {"page": casts})
    return of, of.chapters[0].displays[-1]


TRUE = [
    (r"\dot{dQ} = \dot{dA} K + dA \dot K, \quad \dot{dK} = \dot{dA}^{\mathsf T} Q + dA^{\mathsf T} \dot Q", "still"),
    (r"\dot{dV} = \dot P^{\mathsf T} dO, \quad \dot{dP} = dO \dot V^{\mathsf T}", "still"),
    (r"\dot D = \operatorname{rowsum}(dO \circ \dot O)", "still"),
    (r"\dot{dA} = \dot P \circ (dP - D \mathbf 1^{\mathsf T}) + P \circ (\dot{dP} - \dot D \mathbf 1^{\mathsf T})", "still"),
    (r"\dot{dA} = \dot P \circ (dL \mathbf 1^{\mathsf T})", "still"),
    (r"\dot{dV} = \dot P^{\mathsf T} dO + P^{\mathsf T} \dot{dO}", "moving"),
    (r"\dot D = \operatorname{rowsum}(dO \circ \dot O + \dot{dO} \circ O)", "moving"),
    (r"x := \langle dQ, \dot Q \rangle + \langle dK, \dot K \rangle + \langle dV, \dot V \rangle"
     r"\quad x = \langle dO, \dot O \rangle, \quad \frac{\partial x}{\partial dO} = \dot O, \quad"
     r" \frac{\partial x}{\partial Q} = \dot{dQ}, \quad \frac{\partial x}{\partial V} = \dot{dV}", "still"),
    (r"\frac{\partial dv_j}{\partial v_l} = 0, \quad \frac{\partial D_i}{\partial dO_i} = o_i", "still"),
    (r"\frac{\partial \operatorname{vec}(dV)}{\partial \operatorname{vec}(dO)} = P^{\mathsf T} \otimes I_{d_v}", "still"),
]


@pytest.mark.parametrize("display, cast", TRUE)
def test_what_is_true_of_second_derivatives_holds_and_is_proved(display, cast):
    of, tested = book(display)
    verdict = judge(of, tested)
    assert (verdict.cast, verdict.scenes) == (cast, 10) and verdict.error < 1e-14
    assert Exactly(of).proof(tested).word == "proved"


FALSE = [
    (r"\dot{dQ} = \dot{dA} K", "differ"),
    (r"\dot{dQ} = \dot{dA} K + 1.0000000001\, dA \dot K", "differ"),
    (r"\dot{dV} = \dot P^{\mathsf T} dO + P^{\mathsf T} dO", "differ"),
    (r"\dot{dV} = \dot P^{\mathsf T} dO + 0 \dot{dO}^{\mathsf T} P", "shape"),
    (r"\dot{dV} = \dot P^{\mathsf T} dO + 0 P^{\mathsf T} \dot{dO}", "differ"),  # it moves there
    (r"\dot{dA} = \dot P \circ (dP - D \mathbf 1^{\mathsf T}) + P \circ \dot{dP}", "differ"),
    (r"\dot D = \operatorname{rowsum}(dO \circ \dot O) + 0 \operatorname{rowsum}(\dot{dO})", "differ"),
    (r"x := \langle dQ, \dot Q \rangle \quad \frac{\partial x}{\partial Q} = \dot{dQ}", "differ"),
    (r"x := \langle dQ, \dot Q \rangle \quad \frac{\partial x}{\partial Q} = 0", "differ"),
    (r"\dot{dM} = M", "does not depend on M"),
    (r"\frac{\partial dQ_{ij}}{\partial A_{kl}} = 0", "by what is given alone"),
    (r"\frac{\partial dQ_{ij}}{\partial dA_{kl}} = 0", "by what is given alone"),
    (r"x := \frac{\partial D_1}{\partial dO_1} \quad \frac{\partial x_1}{\partial V_{1, 1}} = 0", "derivative of a derivative"),
]


@pytest.mark.parametrize("display, message", FALSE)
def test_what_is_false_of_second_derivatives_is_refused(display, message):
    with pytest.raises(PageFault, match=message):
        judge(*book(display))


@pytest.mark.parametrize("display", [FALSE[0][0], FALSE[4][0], FALSE[7][0]])
def test_what_is_false_is_refuted_exactly(display):
    of, tested = book(display)
    with pytest.raises(PageError, match="differ exactly"):
        Exactly(of).proof(tested)


def test_other_casts_have_no_tangents_of_gradients():
    for display in (r"\dot{dQ} = Q + 0 Q", r"\dot D = D + 0 D"):
        with pytest.raises(PageFault, match="tangent"):
            judge(*book(display, casts=(HEAD,)))
    with pytest.raises(PageFault, match="the tangent of dO is not in the cast"):
        judge(*book(r"\dot{dO} = dO + 0 dO", casts=(STILL,)))


def test_a_direction_is_held_still_while_a_gradient_is_differentiated():
    of, tested = book(r"\frac{\partial \langle dV, \dot V \rangle}{\partial dO} = P \dot V")
    assert judge(of, tested).error < 1e-14


def test_the_two_oracles_agree_on_every_tangent_of_a_gradient():
    of, _ = book(r"A = Q K^{\mathsf T}")
    for cast in (STILL, MOVING):
        for first, second in zip(of.scenes(cast), of.scenes(cast, TorchScene)):
            for output, names in (("O", "QKVAPO"), ("L", "QKAL")):
                names = [k for k in names if cast.moves(k)]
                a, b = first.paired((output,)), second.paired((output,))
                for name in names:
                    x, y = a.letter("dotd", name), b.letter("dotd", name).detach().numpy()
                    assert abs(x - y).max() <= 1e-13 * max(1, abs(x).max()), (cast.name, name)


def test_the_tangent_of_a_gradient_is_a_difference_of_gradients():
    """A third way, of less accuracy, that shares nothing with the two oracles."""
    of, _ = book(r"A = Q K^{\mathsf T}")
    for scene in of.scenes(MOVING):
        x, h = scene.primals, 1e-5
        dO = scene.cotangents["O"]
        ends = [attention_vjp(dO + t * scene.turns["O"],
                              *(x[k] + t * scene.tangents[k] for k in "QKV"), gamma=1.0)
                for t in (h, -h)]
        for k, (ahead, behind) in zip("QKV", zip(*ends)):
            want = (ahead - behind) / (2 * h)
            assert np.allclose(scene.letter("dotd", k), want, rtol=1e-7, atol=1e-7)


def test_a_function_of_tangents_of_gradients_keeps_its_promise(monkeypatch):
    lines = r"\dot{dK} = \dot{dA}^{\mathsf T} Q + dA^{\mathsf T} \dot Q, \quad \dot{dV} = \dot P^{\mathsf T} dO + P^{\mathsf T} \dot{dO}"
    of, tested = book(lines, "eq:promised")

    def judged(factor):
        def promised(dO, Q, K, V, Q_dot, K_dot, V_dot, dO_dot, P, P_dot, dA, dA_dot):  # all that the lines need
            dots = Q_dot, K_dot, V_dot, None, None
            found = attnmath.attention_hvp(*dots, dO, Q, K, V, gamma=1.0, dO_dot=dO_dot)
            return Found(found.dV_dot, factor * found.dK_dot)

        monkeypatch.setattr(attnmath, "promised", planted(promised), raising=False)
        return judge(of, tested)

    monkeypatch.setattr(attnmath, "__all__", [*attnmath.__all__, "promised"])
    assert judged(1).cast == "moving"
    with pytest.raises(PageFault, match="dK_dot of promised is off by"):
        judged(1 + 1e-9)


def test_steps_with_tangents_of_gradients_are_told_apart():
    chain = r"\langle \dot{dV}, V \rangle = \langle \dot P^{\mathsf T} dO, V \rangle = \langle dO, \dot P V \rangle"
    of, tested = book(chain, "why:tested")
    assert facts_and_algebra(of, tested.statements, STILL) == (1, 1)


def test_a_misprint_of_a_tangent_of_a_gradient_is_rejected():
    assert latex("dotd", "gamma") == r"\dot{d\gamma}"
    of, tested = book(r"\dot{dV} = \dot P^{\mathsf T} dO")
    found = tally(of, tested)
    assert found.survivors == () and found.tried > 40


# ---- numbers that carry a tangent --------------------------------------------------------------

X, X_DOT = np.random.default_rng(1).uniform(0.5, 2, (2, 3, 3))
FUNCTIONS = {
    "exp": Duals.exp, "log": Duals.log, "sqrt": Duals.sqrt, "tanh": Duals.tanh, "cos": Duals.cos,
    "sin": Duals.sin,
    "inv": Duals.linalg.inv, "x + x": lambda x: x + x, "1 - x": lambda x: 1 - x, "x - 1": lambda x: x - 1,
    "x * x": lambda x: x * x, "3 x": lambda x: np.full((3, 3), 3.0) * x, "x / x x": lambda x: x / (x * x),
    "1 / x": lambda x: 1 / x, "x @ x": lambda x: x @ x, "X @ x": lambda x: X @ x, "x @ X": lambda x: x @ X,
    "x ** 3": lambda x: x**3, "-x": lambda x: -x, "x.mT": lambda x: x.mT @ x, "x[0]": lambda x: x[0] * x[1],
    "sum": lambda x: x * x.sum(-1, keepdims=True), "reshape": lambda x: x.reshape(9) * 2.0,
    "attention": lambda x: attention(x, 1 * x, x * x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_tangent_is_carried_as_the_complex_step_finds_it(name):
    f = FUNCTIONS[name]
    got = f(Dual(X, X_DOT))
    if name in ("exp", "log", "sqrt", "tanh", "cos", "sin", "inv"):
        f = getattr(np.linalg if name == "inv" else np, name)
    want = f(X + 1e-30j * X_DOT)
    assert np.allclose(got.x, want.real, rtol=1e-14) and np.allclose(got.y, want.imag / 1e-30, rtol=1e-12)


def test_comparisons_look_at_the_value():
    x = Dual(X, X_DOT)
    assert ((x == X) & (x <= X) & (x >= x) & ~(x != X) & ~(x < X) & ~(x > 9)).all()
    assert (Duals.where(X > 1, x, 0).y == np.where(X > 1, X_DOT, 0)).all()
    assert not isinstance(Duals.max(x, axis=-1), Dual) and not isinstance(Duals.real(x), Dual)


def test_stacked_with_what_does_not_move():
    both = combined(np.stack, [Dual(X, X_DOT), X])
    assert (both.x == np.stack([X, X])).all() and (both.y == np.stack([X_DOT, 0 * X])).all()
    assert isinstance(combined(np.stack, [X, X]), np.ndarray)


def test_exact_numbers_carry_tangents_too():
    point = Point()
    Q, K, V, dots = (letters(point, (2, 2)) for _ in "QKVx")
    moved = attention(Dual(Q, dots), Dual(K, 0 * dots), Dual(V, 0 * dots), gamma=1)
    want = attnmath.attention_jvp(dots, 0 * dots, 0 * dots, None, None, Q, K, V, gamma=1)
    assert (moved.y == want).all()
