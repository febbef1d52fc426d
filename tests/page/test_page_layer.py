"""What a layer needs of the page: blocks, groups of heads, weights, masks and counts."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest

import attnmath
from attnmath.page.language.chapter import PageFault, read_text
from attnmath.page.language.nodes import PageError
from attnmath.page.language.syntax import parse
from attnmath.page.misprints.misprints import tally
from attnmath.page.scenes.carried import NumPyScene
from attnmath.page.scenes.cast import Cast, Letter
from attnmath.page.scenes.evaluate import Frame
from attnmath.page.scenes.oracles import TorchScene
from attnmath.page.scenes.settings import Setting
from attnmath.page.scenes.values import detached
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import judge
from attnmath.page.verdicts.promise import arguments_in, check_function
from page_book import planted

SMALL = Cast(
    name="small layer",
    sizes={"n": 3, "m": 5, "d": 7, "H": 4, "G": 2},
    letters={
        "Q": Letter(("H", "n", "d")),
        "K": Letter(("G", "m", "d")),
        "W": Letter(("d", "m")),
        "c": Letter(("1", "d")),
        "chi": Letter(("n", "m"), "mask"),
        "t": Letter(("n", "1"), "count"),
        "A": Letter(("H", "n", "m"), "prp:scores"),
        "C": Letter(("n", "H*d"), "prp:beside"),
        "E": Letter(("n", "1"), "prp:late"),
    },
    outputs=("A", "C"),
    settings=(
        Setting("random", 1),
        Setting("another order", 2, {"n": 7, "m": 5, "d": 3, "H": 9, "G": 3}),
    ),
    names={"chi": "mask", "t": "lengths"},
)
PAGE = r"""
$$ A_h = Q_h K_g^{\mathsf T} \quad \text{if } h \in g $$ (prp:scores)

$$ C = [Q_1, \dots, Q_H] $$ (prp:beside)

$$ E = \operatorname{rowsum}(dC) $$ (prp:late)
"""


def book(display):
    text = PAGE + f"\n$$ {display} $$ (prp:tested)\n"
    return Book([read_text(text, "chapters/page.md")], {"page": (SMALL,)})


def verdict(display):
    one = book(display)
    return judge(one, one.displays["prp:tested"])


def scene(kind=NumPyScene):
    return book("C = C").scenes(SMALL, kind)[0]


def value(text, **index):
    one = scene()
    return Frame(one, {"h": 4}, {}, index).evaluate(parse(f"{text} = 0")[0].members[0]).x


def test_blocks_are_numpy_s():
    Q, W, c = (scene().env[k] for k in ("Q", "W", "c"))
    np.testing.assert_array_equal(value(r"[Q_1, Q_2]"), np.hstack([Q[0], Q[1]]))
    np.testing.assert_array_equal(value(r"[Q_1, \dots, Q_H]"), np.hstack(list(Q)))
    np.testing.assert_array_equal(value(r"[Q_1; \dots; Q_H]"), np.vstack(list(Q)))
    np.testing.assert_array_equal(value(r"[Q_3; c]"), np.vstack([Q[2], c]))
    wanted = np.block([[Q[0], np.ones((3, 1))], [c, np.ones((1, 1))]])
    np.testing.assert_array_equal(value(r"[Q_1, \mathbf 1_n; c, \mathbf 1_1]"), wanted)
    scores = [Q[h] @ W * (h + 1) for h in range(4)]
    np.testing.assert_allclose(value(r"[1 Q_1 W, \dots, H Q_H W]"), np.hstack(scores), rtol=1e-14)


def test_a_column_of_ones_takes_the_length_of_its_neighbour():
    Q = scene().env["Q"]
    np.testing.assert_array_equal(value(r"[Q_1, \mathbf 1]"), np.hstack([Q[0], np.ones((3, 1))]))


def test_heads_that_follow_each_other_share_a_group():
    one = scene()
    Q, K = one.env["Q"], one.env["K"]
    for h, g in enumerate((0, 0, 1, 1)):
        np.testing.assert_allclose(one.env["A"][h], Q[h] @ K[g].T, rtol=1e-14)
    np.testing.assert_allclose(value(r"\sum_{h \in g} Q_h", g=2), Q[2] + Q[3], rtol=1e-14)


TRUE = [
    r"dK_g = \sum_{h \in g} dA_h^{\mathsf T} Q_h",
    r"\sum_g \sum_{h \in g} A_h = \sum_h A_h",
    r"\dot A_h = \dot Q_h K_g^{\mathsf T} + Q_h \dot K_g^{\mathsf T} \quad \text{if } h \in g",
    r"dC = [dQ_1, \dots, dQ_H]",
    r"C^{\mathsf T} = [Q_1^{\mathsf T}; \dots; Q_H^{\mathsf T}]",
    r"x := [Q_1; \dots; Q_H] \quad \langle x, x \rangle = \langle C, C \rangle",
    r"\chi \circ \chi = \chi",
]


@pytest.mark.parametrize("display", TRUE)
def test_true(display):
    assert verdict(display).error < 1e-14


FALSE = [
    r"dK_g = \sum_h dA_h^{\mathsf T} Q_h",
    r"A_h = Q_h K_g^{\mathsf T}",
    r"C = [Q_H, \dots, Q_1]",
    r"C = [Q_1, \dots, Q_G]",
    r"C = [Q_2, \dots, Q_H]",
    r"C = [Q_1, \dots, Q_4]",
    r"C = [Q_1, \dots, K_H]",
    r"C = [Q_1, \dots]",
    r"C = [\dots, Q_H]",
    r"C = [Q_1, \dots, \dots, Q_H]",
    r"C = \dots",
    r"C = [Q_1, c]",
    r"C = [C]",
    r"[Q_1, \dots, Q_H]_{ij} = Q_{1ij}",
    r"[Q_1, Q_2; \dots; Q_1, Q_H] = 0 C",
    r"[\mathbf 1, \mathbf 1] = 0",
    r"h \in g",
    r"A_h = Q_h K_g^{\mathsf T} \quad \text{if } g \in h",
    r"K_g = \sum_{h \in G} K_g",
    r"K_g = \sum_{g \in h} K_g",
    r"Q_g = Q_g + 0 Q_g",
    r"K_h = K_h + 0 K_h",
]


@pytest.mark.parametrize("display", FALSE)
def test_false_or_meaningless(display):
    with pytest.raises(PageFault):
        verdict(display)


@pytest.mark.parametrize("display", [r"C = [Q_1, \dots, Q_H]", r"[Q_1; Q_2; Q_3] = [Q_1; Q_2; Q_3] + 0 [Q_1; Q_2; Q_3]"])
def test_a_block_s_members_are_misprinted(display):
    one = book(display)
    kinds = tally(one, one.displays["prp:tested"]).rejected
    assert kinds["shape"] + kinds["value"] >= 3


def test_letters_reach_functions_as_they_take_them():
    def function(mask, lengths, W, n, *, R=None, tiles=(2, 3)):
        return mask

    one = scene(TorchScene)
    names = {"mask": ("", "chi"), "lengths": ("", "t"), "W": ("", "W")}
    found = arguments_in(function, one, names)
    assert set(found) == {"mask", "lengths", "W", "n"} and found["n"] == 3
    assert found["mask"].dtype == bool and found["mask"].shape == (3, 5)
    assert found["lengths"].dtype == int and found["lengths"].shape == (3,)


def test_a_parameter_that_is_no_letter_and_has_no_default_is_a_fault():
    def function(W, *, R):
        return W

    with pytest.raises(PageError, match="parameter R of function is not in the cast"):
        arguments_in(function, scene(), {"W": ("", "W")})


class Both(NamedTuple):
    dQ: object
    dW: object


class Inner(NamedTuple):
    W_Q: object
    b_Q: object = None


LAYER = Cast(
    name="weights",
    sizes={"n": 3, "d": 5, "d_k": 2},
    letters={
        "X": Letter(("n", "d")),
        "W^Q": Letter(("d", "d_k")),
        "Q": Letter(("n", "d_k"), "prp:product"),
    },
    outputs=("Q",),
    settings=(Setting("random", 1),),
)


def check_weights(monkeypatch, function):
    """The promise of dX and dW^Q, kept by `function`."""
    function.__annotations__["W"] = Inner
    monkeypatch.setattr(attnmath, "product_vjp", planted(function), raising=False)
    monkeypatch.setattr(attnmath, "__all__", [*attnmath.__all__, "product_vjp"])
    text = r"$$ Q = X W^Q $$ (prp:product)"
    one = Book([read_text(text, "chapters/page.md")], {"page": (LAYER,)}).scenes(LAYER)[0]
    statements = parse(r"dX = dQ\, W^{Q\mathsf T} \quad dW^Q = X^{\mathsf T} dQ")
    return check_function("product_vjp", statements, one, {0: 1.0, 1: 1.0})


class Gradients(NamedTuple):
    dX: object
    dW: object


def test_the_weights_are_one_parameter_and_one_result(monkeypatch):
    def product_vjp(dQ, X, W):
        return Gradients(dQ @ W.W_Q.T, Inner(X.T @ dQ))

    assert check_weights(monkeypatch, product_vjp) < 1e-14


@pytest.mark.parametrize("factor, field", [((2, 1), "dX"), ((1, 2), "dW_Q")])
def test_a_wrong_field_of_the_weights_is_named(monkeypatch, factor, field):
    def product_vjp(dQ, X, W):
        return Gradients(factor[0] * dQ @ W.W_Q.T, Inner(factor[1] * X.T @ dQ))

    with pytest.raises(PageError, match=f"{field} of product_vjp is off"):
        check_weights(monkeypatch, product_vjp)


@pytest.mark.parametrize("kind, sentence", [
    (lambda dX, dW: Gradients(dX, None), "returns None for dW"),
    (lambda dX, dW: (dX, dW), "returns a tuple without names"),
    (lambda dX, dW: Gradients(dX, Inner(None)), r"returns dW_Q of shape \(\)"),
])
def test_weights_without_a_gradient_are_a_fault(monkeypatch, kind, sentence):
    with pytest.raises(PageError, match=f"product_vjp {sentence}"):
        check_weights(monkeypatch, lambda dQ, X, W: kind(dQ @ W.W_Q.T, Inner(X.T @ dQ)))


def test_a_field_that_no_line_gives_is_a_fault(monkeypatch):
    def product_vjp(dQ, X, W):
        return Gradients(dQ @ W.W_Q.T, Inner(X.T @ dQ, dQ.sum(0)))

    with pytest.raises(PageError, match="returns db_Q; no line"):
        check_weights(monkeypatch, product_vjp)


def test_what_is_bumped_moves_only_what_follows_from_it():
    one = scene()
    assert one.downstream("Q") == {"Q", "A", "C"} and one.downstream("W") == {"W"}
    bumped = one.bumped("K")  # with a point for each of its 2 · 5 · 7 entries
    assert bumped["C"] is one.env["C"] and bumped["A"].shape == (70, 4, 3, 5)
    assert np.count_nonzero(bumped["K"].imag) == 70


def test_a_constant_does_not_move():
    still = replace(SMALL, constants=("W",))
    one = Book([read_text(PAGE, "chapters/page.md")], {"page": (still,)}).scenes(still)[0]
    assert not one.tangents["W"].any() and one.tangents["Q"].any()
    for prefix in ("d", "dot"):
        with pytest.raises(PageError, match="W is a constant"):
            one.letter(prefix, "W")


def test_a_late_letter_defined_anew_keeps_the_gradients():
    one = book("C = C")
    old = one.scenes(SMALL)[0].paired(("C",))
    gradient, late = old.letter("d", "Q"), old.letter("", "E")
    changed = replace(one.displays["prp:late"], text=r"E = 2 \operatorname{rowsum}(dC)")
    new = one.with_display(changed).scenes(SMALL)[0].paired(("C",))
    assert new.letter("d", "Q") is gradient
    np.testing.assert_array_equal(new.letter("", "E"), 2 * late)


def test_a_letter_defined_anew_has_new_gradients():
    one = book("C = C")
    old = one.scenes(SMALL)[0].paired(("C",)).letter("d", "Q")
    changed = replace(one.displays["prp:beside"], text=r"C = [2 Q_1, \dots, 2 Q_H]")
    new = one.with_display(changed).scenes(SMALL)[0].paired(("C",)).letter("d", "Q")
    np.testing.assert_allclose(detached(new), 2 * detached(old), rtol=1e-14)
