"""The checker itself: it reads annotations, looks once, and says what is wrong with a call."""

import inspect
import re
import subprocess
import sys
import threading
from collections import Counter
from typing import Annotated

import numpy as np
import pytest
import torch

import attnmath
from attnmath import Weights, attention, attention_jvp, attention_vjp, logsumexp, self_attention_vjp, silu, softmax
from attnmath._given import checked
from attnmath._given.arguments import arguments, line_of_shapes, read_shape, results
from attnmath._given.letters import Keys, Kind, Queries, Temperature
from drawn import drawn

FUNCTIONS = [x for x in vars(attnmath).values() if hasattr(x, "__wrapped__")]
functions = pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)


# ---- shapes stand in the annotations ------------------------------------------------------------

SHAPE = r"\(\)|\([\w.]+,(?: [\w.]+,?)*\)|\((?:[\w.]+, )*[\w. ]+\)"


def shapes_of(text):
    """Each letter of a line with the shapes that are written behind it."""
    return re.findall(rf"(\w+) ((?:{SHAPE})(?: or (?:{SHAPE}))*)", text)


def shapes_by_name(letters):
    """The shape of each argument or result; of a named tuple its name."""
    return {x.name.removeprefix("."): x.kind.__name__ if x.fields else x.shape for x in letters if x.fields or x.shape}


def given_shapes(function):
    return shapes_by_name(arguments(function))


def returned_shapes(function):
    return shapes_by_name(reversed([x for one in results(function) for x in one.letters()]))


def allowed(shape):
    """How a shape may be written: all of it, one of several, or () for what broadcasts."""
    return {str(shape), *(axes.written() for axes in shape.options), *(["()"] if shape.spreads else [])}


def wrong_shapes(function):
    """What the docstring's line of shapes says otherwise than the annotations, or leaves out."""
    line = " ".join(inspect.getdoc(function).split("\n\n")[1].split())
    before, after = line.split("->")
    given, returned = given_shapes(function), returned_shapes(function)
    faults = [x for x in shapes_of(before) if isinstance(given.get(x[0], ""), str) or x[1] not in allowed(given[x[0]])]
    if other := re.search(r"then the arguments of (\w+)", before):
        before += " ".join(given_shapes(getattr(attnmath, other[1])))
    faults += [(name, "is missing") for name in given if not re.search(rf"\b{name}\b", before)]
    for name, text in shapes_of(after):
        shape = returned.get(name, returned.get(""))
        faults += [(name, text)] * (shape is None or text not in allowed(shape))
    return faults + [(name, "is missing") for name in returned if name and not re.search(rf"\b{name}\b", after)]


@functions
def test_the_docstring_has_the_shapes_of_the_annotations(function):
    assert wrong_shapes(function) == []


def product(X: Annotated[Kind, "... n d"], W: Annotated[Kind, "d m"] | None = None) -> Annotated[Kind, "... n m"]:
    """A product.

    X (..., n, d), W (d, m) -> Y (..., n, m)
    """
    return X if W is None else X @ W


@pytest.mark.parametrize(("before", "after", "found"), [
    ("W (d, m)", "W (m, d)", [("W", "(m, d)")]), ("X (..., n, d)", "X (n, d)", [("X", "(n, d)")]),
    (", W (d, m)", "", [("W", "is missing")]), ("Y (..., n, m)", "Y (..., n, d)", [("Y", "(..., n, d)")]),
    ("W (d, m)", "W (d, m), b (m,)", [("b", "(m,)")]), ("", "", []),
])
def test_a_docstring_with_other_shapes_is_refused(monkeypatch, before, after, found):
    monkeypatch.setattr(product, "__doc__", product.__doc__.replace(before, after))
    assert wrong_shapes(product) == found


def test_what_is_written_of_the_arguments():
    assert line_of_shapes(attention_jvp) == (
        "Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m), gamma_dot () to (..., n, m),"
        " Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma () to (..., n, m), R (..., n, m)")
    assert line_of_shapes(attnmath.multihead).startswith("X (..., n, d), Z (..., m, d_z), W Weights, B (..., H, n, m)")
    assert line_of_shapes(attnmath.linear) == "X (..., n, d), W (d, m), b (m,) or (1, m)"


def no_shape(Q: Queries[Kind], h: Kind) -> Kind:
    return Q


def no_annotation(Q: Queries[Kind], h) -> Kind:
    return Q


def another_shape(Q_dot: Keys[Kind] | None, Q: Queries[Kind]) -> Kind:
    return Q


def of_nothing(h_dot: Queries[Kind] | None, Q: Queries[Kind]) -> Kind:
    return Q


def two_shapes(Q: Annotated[Kind, "n d", "n m"]) -> Kind:
    return Q


@pytest.mark.parametrize(("function", "sentence"), [
    (no_shape, "no_shape: h has no shape; an array needs its shape there"),
    (no_annotation, "no_annotation: h has no shape; an array needs its shape there"),
    (another_shape, "another_shape: Q_dot needs the shape of Q, whose tangent it is"),
    (of_nothing, "of_nothing: h_dot needs the shape of h, whose tangent it is"),
    (two_shapes, "two_shapes: Q has no shape; an array needs its shape there"),
])
def test_a_letter_without_a_shape_is_no_argument(function, sentence):
    with pytest.raises(TypeError, match=re.escape(sentence)):
        checked.checked(function)


@pytest.mark.parametrize("text", ["n, m", "... n ...", "(n m)", "to ", "()or H", "n  m", ""])
def test_what_is_no_shape_is_refused(text):
    with pytest.raises(ValueError, match="is no shape"):
        read_shape(text, [], {})
    with pytest.raises(ValueError, match="no rules"):
        read_shape("n m", ["n < m"], {})


def test_a_new_letter_is_checked():
    """dh is no letter of the package; it has the shape that its annotation says."""
    @checked.checked
    def entropy_vjp(dh: Annotated[Kind, "..."], P: Annotated[Kind, "... m"]) -> Annotated[Kind, "... m"]:
        return dh[..., None] * P

    with pytest.raises(ValueError, match=re.escape("entropy_vjp: dh has shape (3,); it needs (4,), the shape of h")):
        entropy_vjp(np.ones(3), np.ones((4, 5)))
    assert entropy_vjp(np.ones(4), np.ones((4, 5))).shape == (4, 5)


def test_shapes_are_checked_without_assertions_and_docstrings():
    code = "import numpy as np, attnmath as a; a.attention(np.ones((4, 3)), np.ones((5, 2)), np.ones((5, 2)))"
    done = subprocess.run([sys.executable, "-OO", "-c", code], capture_output=True, text=True)
    want = "ValueError: attention: K has shape (5, 2); it needs (..., m, 3) to match Q of shape (4, 3)"
    assert done.stderr.strip().endswith(want)


# ---- once ---------------------------------------------------------------------------------------


def looks(monkeypatch, call):
    """How often each argument's values are looked at in a call."""
    found = Counter()

    def fails(x, condition):
        found[id(x), condition] += 1
        return before(x, condition)

    before = checked.fails
    monkeypatch.setattr(checked, "fails", fails)
    call()
    return found


def test_values_are_looked_at_once(monkeypatch):
    """X, the weights, B (twice: two conditions) and R, of a layer with four heads."""
    x = drawn(self_attention_vjp)
    found = looks(monkeypatch, lambda: self_attention_vjp(**x))
    assert set(found.values()) == {1} and len(found) == 1 + len(Weights._fields) + 1 + 2 + 1


@functions
def test_no_value_is_looked_at_twice(monkeypatch, function):
    x = drawn(function)
    assert set(looks(monkeypatch, lambda: function(**x)).values()) <= {1}


def test_a_checker_that_looks_again_is_seen(monkeypatch):
    """As it would be if what a formula calls were checked like what a user calls."""
    @checked.checked
    def twice(A: Annotated[Kind, "... m"], tau: Temperature) -> Annotated[Kind, "... m"]:
        checked.CALL.inside = False
        return softmax(A, tau)

    x = drawn(twice)
    assert set(looks(monkeypatch, lambda: twice(**x)).values()) == {2}


def test_after_an_error_calls_are_checked_again():
    A = np.ones((4, 5))
    with pytest.raises(AttributeError):
        checked.checked(lambda_of_rows)(A)
    with pytest.raises(ValueError, match="softmax: tau is 0"):
        softmax(A, 0)


def lambda_of_rows(A: Annotated[Kind, "... m"]) -> Annotated[Kind, "... m"]:
    return A.no_such_thing


def test_another_thread_is_checked_meanwhile():
    inside, leave, said = threading.Event(), threading.Event(), []

    def slow(A: Annotated[Kind, "... m"]) -> Annotated[Kind, "... m"]:
        inside.set()
        leave.wait(60)
        return A

    def other():
        inside.wait(60)
        try:
            softmax(np.ones(3), 0)
        except ValueError as error:
            said.append(str(error))
        leave.set()

    thread = threading.Thread(target=other)
    thread.start()
    checked.checked(slow)(np.ones(3))
    thread.join()
    assert len(said) == 1 and said[0].startswith("softmax: tau is 0")


# ---- wrong calls --------------------------------------------------------------------------------

Q, K, V = np.ones((4, 3)), np.ones((5, 3)), np.ones((5, 2))
NEEDS = ("it needs a tangent for each argument, None where nothing moves, Q_dot, K_dot, V_dot, B_dot, gamma_dot, and"
         " then Q, K and V, and takes B, gamma and R=")


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda: attention(Q, K), "attention: missing a required argument: 'V'; it needs Q, K and V, and takes B, gamma and R="),
    (lambda: attention(V=V), "attention: missing a required argument: 'Q'; it needs Q, K and V, and takes B, gamma and R="),
    (lambda: attention_jvp(Q, K, V, Q, K, V), f"attention_jvp: missing a required argument: 'K'; {NEEDS}"),
    (lambda: attention_jvp(Q, K, V, Q=Q, K=K, V=V), f"attention_jvp: missing a required argument: 'B_dot'; {NEEDS}"),
    (lambda: attention(Q, K, V, None, None, None), "attention: too many positional arguments; it needs Q, K and V, and takes B, gamma and R="),
    (lambda: attention(Q, K, V, mask=None),
     "attention: got an unexpected keyword argument 'mask'; it needs Q, K and V, and takes B, gamma and R="),
    (lambda: attention(Q, K, V, K=K), "attention: multiple values for argument 'K'; it needs Q, K and V, and takes B, gamma and R="),
])
def test_a_wrong_call_gets_one_clear_sentence(call, sentence):
    with pytest.raises(TypeError) as told:
        call()
    assert str(told.value) == sentence


@pytest.mark.parametrize(("call", "sentence"), [
    (lambda x: softmax(x), "softmax: A has shape (); it needs (..., m)"),
    (lambda x: logsumexp(x), "logsumexp: A has shape (); it needs (..., m)"),
    (lambda x: attention(x, x, x), "attention: Q has shape (); it needs (..., n, d_k)"),
])
@pytest.mark.parametrize("number", [np.float64(3), np.float32(3), np.complex64(3)])
def test_a_number_of_numpy_is_an_array_without_axes(call, sentence, number):
    with pytest.raises(ValueError, match=re.escape(sentence)):
        call(number)
    assert abs(silu(np.float64(3)) - 3 / (1 + np.exp(-3))) < 1e-15


# ---- what comes out -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["attention_vjp", "attention", "self_attention_vjp", "mlp_vjp", "flash_attention_vjp"])
def test_autocast_changes_nothing(name):
    """Where PyTorch casts the factors of products, a head would mix two formats."""
    x = {p: tensors(a) for p, a in drawn(getattr(attnmath, name), dtype="float32").items()}
    want = getattr(attnmath, name)(**x)
    with torch.autocast("cpu", torch.bfloat16):
        got = getattr(attnmath, name)(**x)
        assert (x["X" if "X" in x else "Q"].mT @ x["X" if "X" in x else "Q"]).dtype == torch.bfloat16
    pairs = zip(leaves(got), leaves(want))
    assert all(g.dtype == torch.float32 and (g == w).all() for g, w in pairs)


def tensors(x):
    if isinstance(x, np.ndarray):
        return torch.as_tensor(x)
    return x._make(map(tensors, x)) if hasattr(x, "_fields") else x


def leaves(x):
    return [y for part in x for y in leaves(part)] if isinstance(x, tuple) else [x]


def test_a_bias_may_have_the_leading_axes_of_the_values_alone():
    rng = np.random.default_rng(0)
    x = [rng.normal(size=s) for s in ((4, 3), (5, 3), (2, 5, 2), (2, 4, 5), (2, 1, 1))]
    attnmath.check_vjp(attention_vjp, attention, *x)
    attnmath.check_jvp(attention_jvp, attention, *x)
    attnmath.check_vjp(attnmath.flash_attention_vjp, attnmath.flash_attention, *x, tile=2)
    for h in range(2):
        assert np.allclose(attention(*x)[h], attention(*x[:2], *(a[h] for a in x[2:])))


def test_help_shows_shapes():
    shown = str(inspect.signature(attention))
    assert shown == ("(Q: (..., n, d_k), K: (..., m, d_k), V: (..., m, d_v), B: (..., n, m) | None = None,"
                     " gamma: () to (..., n, m) | None = None, *, R: (..., n, m) | None = None) -> (..., n, d_v)")
    assert str(inspect.signature(attention_vjp)).endswith("-> AttentionGradients")
    assert str(inspect.signature(attnmath.flash_attention)).endswith("-> (..., n, d_v) or FlashOutput")
    for function in FUNCTIONS:  # no object of the checker's own
        assert not re.search(r"[<+]|attnmath", str(inspect.signature(function)))
