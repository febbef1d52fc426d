"""The page's language: what a display is read as, and where an error points."""

import pytest

from attnmath.page.language.nodes import PageError
from attnmath.page.language.syntax import parse, unset


def member(text):
    return parse(f"{text} = 0")[0].members[0]


def shape_of(node):
    """The tree as nested tuples: kind first."""
    if not hasattr(node, "kind"):
        return tuple(map(shape_of, node)) if isinstance(node, tuple) else node
    return (node.kind, *map(shape_of, node.args))


def name(letter, prefix=""):
    return ("name", prefix, letter)


READINGS = {
    "dA": name("A", "d"),
    r"\dot A": name("A", "dot"),
    r"\dot{dA}": name("A", "dotd"),
    r"d\gamma": name("gamma", "d"),
    "d_k": name("d_k"),
    r"\bar k": name("bar k"),
    "W^Q": name("W^Q"),
    "A B": ("prod", (name("A"), name("B"))),
    r"A \circ B C": ("had", name("A"), ("prod", (name("B"), name("C")))),
    "A / c": ("div", name("A"), name("c")),
    "e^x": ("func", "exp", (name("x"),)),
    "c^2": ("power", name("c"), ("number", 2.0)),
    "M^{-1}": ("inverse", name("M")),
    r"X^{\mathsf T}_{ij}": ("transpose", ("index", name("X"), (name("i"), name("j")))),
    r"X_{ij}^{\mathsf T}": ("transpose", ("index", name("X"), (name("i"), name("j")))),
    r"W_h^{Q\mathsf T}": ("transpose", ("index", name("W^Q"), (name("h"),))),
    r"\delta_{ij}": ("delta", name("i"), name("j")),
    r"\mathbf 1_m": ("one", name("m")),
    "I_n": ("identity", name("n")),
    r"-A + B": ("sum", ("-", "+"), (name("A"), name("B"))),
    r"\lVert J \rVert_2": ("norm", name("J"), 2.0),
    r"\operatorname{rowsum}(A B)": ("func", "rowsum", (("prod", (name("A"), name("B"))),)),
    r"\operatorname{log\_softmax}(A)": ("func", "log_softmax", (name("A"),)),
    r"\frac{A}{c}": ("div", name("A"), name("c")),
    r"\frac{\partial P_{ij}}{\partial c}": (
        "partial", ("index", name("P"), (name("i"), name("j"))), name("c"),
    ),
}


@pytest.mark.parametrize("text", READINGS)
def test_reading(text):
    assert shape_of(member(text)) == READINGS[text]


def test_a_sum_reaches_to_the_next_sign_or_relation():
    tree = member(r"\sum_j P_{ij} v_j + c")
    assert tree.kind == "sum" and [t.kind for t in tree.args[1]] == ["big", "name"]


def test_a_sum_has_its_range():
    node = member(r"\sum_{j \le i + m - n} P_{ij}")
    assert node.args[:3] == ("sum", ("j",), ("<=",))


def test_statements_conditions_and_chains():
    text = r"\begin{aligned} x &:= A \\ a &= b \\ &= c \quad \text{when } B = 0 \end{aligned}"
    local, chain = parse(text)
    assert local.is_local and not local.conditions
    assert [m.args[1] for m in chain.members] == ["a", "b", "c"]
    assert chain.conditions[0][0] == "when"


def test_a_condition_governs_its_line():
    first, second, third = parse(
        r"\begin{aligned} a = b, \quad c = b \quad \text{if } i \le j \\ b = a \end{aligned}"
    )
    assert first.conditions == second.conditions != ()
    assert third.conditions == ()


@pytest.mark.parametrize("shape", ["(n \\times m)", "(n \\times m )", "( n\\times (H d_v) )"])
def test_a_statement_stops_behind_its_shape(shape):
    text = f"A = B, \\quad {shape} \\quad C = A"
    first, second = parse(text)
    assert text[first.start : first.stop] == f"A = B, \\quad {shape}" and first.stated(text) == "A = B"
    assert second.stated(text) == "C = A"


def test_what_lays_a_statement_out_is_not_said():
    texts = r"A &= \Bigl(B\,\Bigr) \\[4pt] &\quad {} + C.", "A = (B) + C"
    assert unset(texts[0]) == unset(texts[1]) != unset("A = (B) - C")


def test_nodes_know_their_place():
    text = r"dQ = \gamma\, dA\, K + M_{ij}"
    for node in parse(text)[0].nodes():
        assert parse(f"{text[node.start : node.end]} = 0")[0].members[0] == node


@pytest.mark.parametrize(
    "text, at",
    [
        ("A = ", 3),
        ("A = B +", 7),
        ("A = (B", 6),
        ("A B", 3),
        (r"A = \foo B", 4),
        (r"A = \mathsf T", 4),
        (r"A = \delta B", 4),
        ("A = B / C D", 6),
        ("a = b_{i = j}", 5),
        (r"a = \sum_{2} b", 10),
    ],
)
def test_what_cannot_be_read_is_refused_at_its_place(text, at):
    with pytest.raises(PageError) as error:
        parse(text)
    assert abs(error.value.start - at) <= 3 and error.value.message


SAME = [    # what only says how a line is set
    (r"\begin{aligned} A &= B \\[4pt] &\quad {} + C \\[0.5em] B &= C \end{aligned}",
     r"\begin{aligned} A &= B \\ &\quad + C \\ B &= C \end{aligned}"),
    (r"\begin{aligned}{} [Q, K] &= A \\ {}[V, K] &= B \end{aligned}", r"[Q, K] = A, \quad [V, K] = B"),
    (r"A = \Bigl(B + \frac{C}{c}\Bigr)\, \Bigl\langle A, C \Bigr\rangle", r"A = (B + \frac{C}{c}) \langle A, C \rangle"),
    (r"c = \Bigl\lVert \frac{A}{c} \Bigr\rVert_2 \log\Bigl(c\Bigr)", r"c = \lVert \frac{A}{c} \rVert_2 \log(c)"),
]


@pytest.mark.parametrize("text, same", SAME)
def test_sizes_and_room_say_nothing(text, same):
    assert shape_of(tuple(m for s in parse(text) for m in s.members)) == shape_of(
        tuple(m for s in parse(same) for m in s.members))


@pytest.mark.parametrize("text", [
    r"\begin{aligned} [Q, K] &= A \end{aligned}",
    "\\begin{aligned}\n[Q, K] &= A \\end{aligned}",
    r"\begin{aligned} A &= B \\ [Q, K] &= A \end{aligned}",
])
def test_a_bracket_that_tex_takes_for_an_option_is_refused(text):
    with pytest.raises(PageError, match="TeX takes") as error:
        parse(text)
    assert text[error.value.start] == "["


@pytest.mark.parametrize("text", ["A = {} B", r"A^{} = B", r"A_{}{i} = B"])
def test_an_empty_group_stands_at_the_head_of_a_line(text):
    with pytest.raises(PageError):
        parse(text)


def test_an_error_says_what_may_stand_there():
    with pytest.raises(PageError, match=r"cannot read '\)'; here may stand .*a letter"):
        parse("A = )")
