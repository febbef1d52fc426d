"""What each piece of the page's language means, against NumPy; and its errors."""

import numpy as np
import pytest

from attnmath.page.language.nodes import PageError
from attnmath.page.language.syntax import parse
from attnmath.page.scenes.carried import NumPyScene
from attnmath.page.scenes.cast import Cast, Letter
from attnmath.page.scenes.evaluate import Frame
from attnmath.page.scenes.oracles import Independent, TorchScene
from attnmath.page.scenes.settings import Setting
from attnmath.page.scenes.values import detached
from attnmath.page.verdicts.trial import Trial

CAST = Cast(
    name="plain",
    sizes={"n": 4, "m": 5, "d": 3, "H": 2},
    letters={
        "Q": Letter(("n", "d")),
        "K": Letter(("m", "d")),
        "B": Letter(("n", "m")),
        "M": Letter(("d", "d")),
        "a": Letter(("1", "m")),
        "s": Letter(("n", "1")),
        "c": Letter(("1", "1")),
        "t": Letter(("n", "1"), "count"),
        "W": Letter(("H", "n", "d")),
    },
    outputs=(),
    settings=(Setting("random", 5),),
    rows={"q": "Q"},
)
SCENE = NumPyScene(CAST, CAST.settings[0], {})
Q, K, B, M, a, s, c, W, t = (SCENE.primals[k] for k in "QKBMascWt")
SECOND = int(t[1, 0])  # the entry of t with the index 2
INDEX = {"i": 2, "j": 3, "h": 2, "l": 1}


def frame(scene=SCENE):
    return Frame(scene, {"i": 4, "j": 5, "l": 3, "k": 5}, {}, INDEX)


def value(text, scene=SCENE):
    return frame(scene).evaluate(parse(f"{text} = 0")[0].members[0])


MEANINGS = {
    "Q": Q,
    "Q_i": Q[1:2],
    "q_i": Q[1:2],
    "Q_{il}": Q[1, 0],
    "q_{il}": Q[1, 0],
    "B_{1m}": B[0, 4],
    "B_{i+1, j}": B[2, 2],
    "a_j": a[0, 2],
    "s_i": s[1, 0],
    "W_h": W[1],
    "W_{hi}": W[1, 1:2],
    "W_{hil}": W[1, 1, 0],
    r"Q K^{\mathsf T}": Q @ K.T,
    r"Q K^{\mathsf T} \circ B": (Q @ K.T) * B,
    "c Q": c * Q,
    "2 Q": 2 * Q,
    "Q c": c * Q,
    r"c \cdot Q": c * Q,
    "-Q + Q M": Q @ M - Q,
    "Q / c": Q / c,
    r"\frac{1}{c}": 1 / c,
    r"\frac{Q}{n}": Q / 4,
    "M^{-1}": np.linalg.inv(M),
    "c^{-1}": 1 / c,
    "c^2": c**2,
    "2^c": 2**c,
    "e^{-c}": np.exp(-c),
    r"\sqrt{c}": np.sqrt(c),
    r"\exp(Q)": np.exp(Q),
    r"\tanh(Q)": np.tanh(Q),
    r"\cos(Q)": np.cos(Q),
    r"\sin(2 c)": np.sin(2 * c),
    r"\log(c)": np.log(c),
    r"\operatorname{rowsum}(B)": B.sum(1, keepdims=True),
    r"\operatorname{diag}(a)": np.diag(a[0]),
    r"\operatorname{diag}(s)": np.diag(s[:, 0]),
    r"\operatorname{tr}(M)": np.trace(M),
    r"\operatorname{vec}(Q)": Q.reshape(-1, 1),
    r"\operatorname{rank}(Q K^{\mathsf T})": 3,
    r"\det(M)": np.linalg.det(M),
    r"\operatorname{commutation}(n, d) \operatorname{vec}(Q)": Q.T.reshape(-1, 1),
    r"\operatorname{entropy}(\exp(a))": -(np.exp(a) * a).sum(),
    r"\langle Q, Q M \rangle": (Q * (Q @ M)).sum(),
    r"\lVert Q \rVert": np.sqrt((Q**2).sum()),
    r"\lVert Q \rVert_2": np.linalg.svd(Q)[1].max(),
    r"\lvert B \rvert": np.abs(B),
    r"\lvert i - j \rvert": 1,
    r"s \mathbf 1^{\mathsf T} + B": s + B,
    r"\mathbf 1 a - B": a - B,
    r"B \mathbf 1": B.sum(1, keepdims=True),
    r"\mathbf 1^{\mathsf T} B": B.sum(0, keepdims=True),
    r"\mathbf 1_n^{\mathsf T} \mathbf 1_n": 4,
    r"\mathbf 1 \mathbf 1^{\mathsf T} - B": 1 - B,
    r"\langle a, \mathbf 1^{\mathsf T} \rangle": a.sum(),
    r"I_d M": M,
    r"\delta_{ij}": 0,
    r"\delta_{i2}": 1,
    "a_{t_i}": a[0, SECOND - 1],
    "a_{t_i + 1}": a[0, SECOND],
    r"\delta_{i, t_i}": int(SECOND == 2),
    r"a^{\mathsf T} \otimes s": np.kron(a.T, s),
    r"\sum_k B_{ik} a_k": B[1] @ a[0],
    r"\sum_{k \le i} B_{ik}": B[1, :2].sum(),
    r"\sum_{k > 2} B_{ik}": B[1, 2:].sum(),
    r"\sum_{k=1}^{d} B_{ik}": B[1, :3].sum(),
    r"\sum_{k, l} K_{kl}": K.sum(),
    r"\prod_k a_k": a.prod(),
    r"\max_k a_k": a.max(),
    r"\min_k a_k": a.min(),
}


@pytest.mark.parametrize("text", MEANINGS)
@pytest.mark.parametrize("kind", [NumPyScene, TorchScene])
def test_meaning(text, kind):
    scene = SCENE if kind is NumPyScene else TorchScene(CAST, CAST.settings[0], {})
    got = value(text, scene)
    want = np.atleast_2d(np.asarray(MEANINGS[text], dtype=float))
    if any(got.free):
        got = got.grown(want.shape)
    assert detached(got.x).shape == want.shape
    assert np.allclose(detached(got.x), want, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", MEANINGS)
def test_the_magnitude_is_at_least_the_size(text):
    got = value(text)
    assert (got.m >= np.abs(got.x) * (1 - 1e-12)).all()


def test_the_magnitude_sees_what_cancels():
    got = value("B - B")
    assert not got.x.any() and (got.m >= 2 * np.abs(B)).all()


ERRORS = {
    "Q K": "shape",
    "Q + B": "shape",
    r"Q \circ B": "shape",
    "Q + 1": "shape",
    "s + B": "shape",
    "B / B": "shape",
    "Q^2": "shape",
    "B^{-1}": "shape",
    r"\operatorname{tr}(B)": "shape",
    r"\operatorname{diag}(B)": "shape",
    r"\langle Q, K \rangle": "shape",
    r"Q_{il}^{\mathsf T}": "shape",
    r"\mathbf 1^{\mathsf T} \mathbf 1": "shape",
    r"\operatorname{rowsum}(\mathbf 1 a)": "shape",
    r"\operatorname{softmax}(\mathbf 1 a)": "shape",
    "X": "letter",
    r"\operatorname{nothing}(Q)": "letter",
    "W": "index",
    "Q_{iln}": "index",
    "B_{i+3, j}": "index",
    "c_i": "index",
}


@pytest.mark.parametrize("text", ERRORS)
def test_error(text):
    with pytest.raises(PageError) as error:
        value(text)
    assert error.value.kind == ERRORS[text] and error.value.start is not None


def trial(text, scene=SCENE):
    return len(list(Trial(parse(text), scene).run()))


def test_free_indices_mean_for_all():
    assert trial(r"B_{ij} = \sum_k \delta_{jk} B_{ik}") == 20


def test_conditions_choose_indices():
    assert trial(r"B_{ij} = B_{ij} + 0 \quad \text{if } i < j \text{ and } j \le 3") == 3


def test_zero_stands_for_a_zero_matrix_only_beside_a_relation():
    assert trial("B - B = 0") == 1


def test_a_local_name_is_a_function_of_its_indices():
    assert trial(r"x_i := \sum_j B_{ij} \quad x_i = s_i - s_i + \operatorname{rowsum}(B)_i") == 4


@pytest.mark.parametrize(
    "text, message",
    [
        (r"B_{ij} = \sum_j B_{ij}", "both summed and free"),
        (r"B_{ij} = Q_{ij}", "runs over m and over d|runs over d and over m"),
        (r"s_i = \sum_j \sum_j B_{ij}", "summed twice"),
        (r"\delta_{ij} = \delta_{ji}", "how far"),
        (r"B = x", "x is not in the cast"),
        (r"B := Q \quad B = Q", "already"),
        (r"Q_h = Q_h", "h runs over the heads"),
        (r"a = b \quad \text{if } c", "needs a relation|not in the cast"),
        (r"c \approx c + 0", "within"),
    ],
)
def test_useful_errors(text, message):
    with pytest.raises(PageError, match=message):
        trial(text)


def test_approximately_within_a_bound():
    assert trial(r"c \approx c + 0.001 \quad \text{within } 0.01") == 1
    with pytest.raises(PageError):
        trial(r"c \approx c + 0.1 \quad \text{within } 0.01")


@pytest.mark.parametrize("text", [r"c < c + 1", r"c \le c", r"B \le B", r"c \ne c + 1", "0 < c"])
def test_relations_that_hold(text):
    assert trial(text)


@pytest.mark.parametrize(
    "text", [r"c < c", r"c + 1 \le c", r"B + B \le B", r"c \ne c + 0", r"c > c + 1", "c = 2 c"]
)
def test_relations_that_do_not(text):
    with pytest.raises(PageError, match="differ"):
        trial(text)


@pytest.mark.parametrize("factor", ["0.99999999999", "1.00000000001"])
def test_a_relative_error_of_1e_11_is_seen(factor):
    with pytest.raises(PageError):
        trial(rf"Q K^{{\mathsf T}} = {factor} Q K^{{\mathsf T}}")


def test_independent_letters_satisfy_algebra_only():
    free = Independent(CAST, CAST.settings[0], {})
    assert trial(r"(Q K^{\mathsf T})^{\mathsf T} = K Q^{\mathsf T}", free)
    with pytest.raises(PageError):
        trial(r"dQ = dQ + \dot Q", free)


def test_an_independent_letter_does_not_depend_on_what_was_asked_before_it():
    first, second = (Independent(CAST, CAST.settings[0], {}) for _ in range(2))
    second.letter("d", "W")
    for name in (("", "Q"), ("dot", "K"), ("d", "B")):
        assert np.array_equal(first.letter(*name), second.letter(*name))
    assert not np.array_equal(first.letter("", "B"), first.letter("d", "B"))
    assert np.all(np.abs(1 - np.abs(first.letter("", "Q"))) >= 0.1 - 1e-15)
