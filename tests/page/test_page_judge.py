"""What is true is accepted, what is not is refused, by both oracles; errors are useful."""

from pathlib import Path

import numpy as np
import pytest
import torch

import attnmath
from attnmath._words.tolerance import PAGE
from attnmath.page.language.chapter import PageFault
from attnmath.page.language.syntax import parse
from attnmath.page.scenes.carried import NumPyScene
from attnmath.page.scenes.casts import written
from attnmath.page.scenes.evaluate import Frame
from attnmath.page.scenes.oracles import TorchScene
from attnmath.page.scenes.values import detached
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import judge
from page_book import HEAD, book, last, planted

ROW_MEAN = r"\begin{aligned} U &:= \operatorname{rowsum}(P \circ dP) && (%s \times 1) \\" \
    r"dA &= P \circ (dP - U \mathbf 1^{\mathsf T}) && (%s \times m) \end{aligned}"
TRUE = [
    r"dV = P^{\mathsf T} dO, \qquad dP = dO\, V^{\mathsf T}",
    r"dA = P \circ (dP - D \mathbf 1^{\mathsf T})",
    r"dA_{ij} = P_{ij} \langle dO_i, v_j - o_i \rangle",
    r"dQ = dA\, K, \quad dK = dA^{\mathsf T} Q",
    r"\dot A = \dot Q K^{\mathsf T} + Q \dot K^{\mathsf T}",
    r"\dot P = P \circ (\dot A - \operatorname{rowsum}(P \circ \dot A) \mathbf 1^{\mathsf T})",
    r"\langle dO, \dot O \rangle = \langle dQ, \dot Q \rangle + \langle dK, \dot K \rangle + \langle dV, \dot V \rangle",
    r"\frac{\partial P_{ij}}{\partial A_{kl}} = \delta_{ik} P_{ij} (\delta_{jl} - P_{il})",
    r"\frac{\partial o_i}{\partial q_i} = \sum_j P_{ij} (v_j - o_i)^{\mathsf T} k_j",
    r"\frac{\partial L_i}{\partial A_i} = P_i, \quad \frac{\partial \langle L, L \rangle}{\partial A} = 2 (L \mathbf 1^{\mathsf T}) \circ P",
    r"\frac{\partial \operatorname{vec}(O)}{\partial \operatorname{vec}(V)} = P \otimes I_{d_v} \quad (n d_v \times m d_v)",
    r"dA = (dL\, \mathbf 1^{\mathsf T}) \circ P",
    r"A = 0, \quad L = \log(m) \mathbf 1 \quad \text{if } K = 0",
    ROW_MEAN % ("n", "n"),
]


@pytest.mark.parametrize("display", TRUE)
def test_true(display):
    one = book(display)
    verdict = judge(one, last(one))
    assert verdict.scenes == 10 and verdict.comparisons >= 2 and verdict.error < 1e-14


FALSE = [
    (r"dV = P\, dO", "shape: no product of 4×5 and 4×2"),
    (r"dA = P \circ dP", "value: the sides of '=' differ by"),
    (r"dA = P \circ (dP + D \mathbf 1^{\mathsf T})", "differ"),
    (r"dQ = 2\, dA\, K", "differ"),
    (r"dQ = 1.0000000001\, dA\, K", "differ"),
    (r"\dot A = \dot Q K^{\mathsf T}", "differ"),
    (r"\dot P = P \circ \dot A", "differ"),
    (r"\frac{\partial P_{ij}}{\partial A_{kl}} = P_{ij} (\delta_{jl} - P_{il})", "differ"),
    (r"\operatorname{rowsum}(P) \le 0.5 \operatorname{rowsum}(P)", "differ"),
    (r"dQ = dQ", "the sides are identical"),
    (r"dM = M", "the loss on O does not depend on M"),
    (r"dD = D", "the loss on O does not depend on D"),
    (r"\dot D = D", "D has no tangent"),
    (r"\frac{\partial dA_{ij}}{\partial Q_{kl}} = 0", "derivative of a derivative"),
    (r"A = 0 \quad \text{if } V = 0", "no setting of the cast meets the condition"),
    (r"M = 0 \quad \text{if } c = 0", "only a degenerate setting meets the condition"),
    (r"S = P", "S is not in the cast"),
    (r"dV = P^{\mathsf T} dO \quad (d_v \times m)", "the left side has the shape 5 × 2 here"),
    (r"\operatorname{vec}(P) = \operatorname{vec}(\operatorname{softmax}(A)) \quad (n d_v \times 1)", "the shape 20 × 1 here"),
    (ROW_MEAN % ("m", "n"), "the left side has the shape 4 × 1 here"),
    (ROW_MEAN % ("n", "m"), "the left side has the shape 4 × 5 here"),
]


@pytest.mark.parametrize("display, message", FALSE)
def test_false(display, message):
    one = book(display)
    with pytest.raises(PageFault, match=message) as error:
        judge(one, last(one))
    assert str(error.value).startswith("chapters/page.md:8:")


def test_the_slip_is_reported_at_its_step():
    chain = "\\begin{aligned}\n\\langle dO, O \\rangle &= \\langle dV, V \\rangle \\\\\n" \
        "&= \\langle D, \\mathbf 1 \\rangle \\\\\n&= \\langle dP, A \\rangle\n\\end{aligned}"
    one = book(chain)
    with pytest.raises(PageFault, match=r"page\.md:11:4: prp:tested: value"):
        judge(one, last(one))


def test_steps_are_told_apart():
    chain = r"\langle dO, P V \rangle = \langle dO\, V^{\mathsf T}, P \rangle = \langle dP, P \rangle"
    one = book(chain, "why:tested")
    verdict = judge(one, last(one), counted=True)
    assert (verdict.algebra, verdict.facts) == (1, 1)


@pytest.mark.parametrize(
    "label, display, message",
    [
        ("eq:nothing", "dV = P^{\\mathsf T} dO", "no function nothing"),
        ("eq:softmax", "A = Q K^{\\mathsf T}", "is off by|parameter tau"),
        ("eq:logsumexp_vjp", r"dA = \operatorname{softmax}(A) \circ ((dL + dL) \mathbf 1^{\mathsf T}) / 2 + 0 A", ""),
        ("eq:attention_map", r"P = \operatorname{softmax}(A)", "parameter B"),
    ],
)
def test_a_function_must_return_its_display(label, display, message):
    one = book(display, label)
    if not message:
        assert judge(one, last(one)).error < 1e-14
        return
    with pytest.raises(PageFault, match=message):
        judge(one, last(one))


def test_a_wrong_function_is_refused(monkeypatch):
    monkeypatch.setattr(attnmath, "logsumexp", planted(lambda A: A.max(-1)))
    one = book()
    with pytest.raises(PageFault, match="eq:logsumexp: function: L of logsumexp is off by"):
        judge(one, one.displays["eq:logsumexp"])


def test_a_missing_definition_is_refused():
    one = Book([], {"page": (HEAD,)})
    with pytest.raises(Exception, match="eq:logsumexp defines L|prp:head defines A"):
        one.scenes(HEAD)


@pytest.fixture(scope="module")
def real_book(request):
    return Book.at(request.config.rootpath)


ROOT = Path(__file__).parents[2]
NAMES = [cast.name for casts in written(ROOT).values() for cast in casts if not isinstance(cast, str)]


@pytest.fixture(scope="module")
def casts(real_book):
    return {cast.name: cast for casts in real_book.casts.values() for cast in casts}


@pytest.mark.parametrize("name", NAMES)
def test_both_oracles_agree_on_every_letter(real_book, casts, name):
    """The complex step and autograd, which share no line of differentiation."""
    cast = casts[name]
    moving = [k for k in cast.letters if k not in cast.constants]
    with np.errstate(all="ignore"):
        pairs = zip(real_book.scenes(cast), real_book.scenes(cast, TorchScene))
        for first, second in pairs:
            env = [k for k in cast.letters if k in first.env]
            _agree([(first.letter("", k), second.letter("", k)) for k in env])
            dots = [k for k in env if k in moving]
            _agree([(first.letter("dot", k), second.letter("dot", k)) for k in dots])
            for output in cast.outputs:
                a, b = first.paired((output,)), second.paired((output,))
                above = [k for k in dots if k in a.sources(a.outputs)]
                _agree([(a.letter("d", k), b.letter("d", k)) for k in above])
                _agree([(a.letter("dotd", k), b.letter("dotd", k)) for k in above if cast.moves(k)])


def _agree(pairs: list) -> None:
    """Up to rounding of the largest: a gradient may be small, or zero, as a sum of larger ones."""
    known = []
    for x, y in pairs:
        x, y = detached(x).ravel(), detached(y).ravel()
        there = np.isfinite(x) & np.isfinite(y)  # not tau's derivative where a score is -inf
        known.append((x[there], y[there]))
    scale = max((np.abs(x).max(initial=1.0) for x, _ in known), default=1.0)
    for x, y in known:
        assert np.abs(x - y).max(initial=0.0) <= PAGE * scale


def test_sizes_are_pairwise_distinct_and_never_one(casts):
    for cast in casts.values():
        sizes = [size for name, size in cast.sizes.items() if name not in cast.readings]
        assert len(set(sizes)) == len(sizes) and min(sizes, default=2) > 1


def test_definitions_have_the_values_of_torch(real_book, casts):
    """A wrong definition with its matching derivative would pass the oracle."""
    attention = torch.nn.functional.scaled_dot_product_attention
    for scene in real_book.scenes(casts["head"], TorchScene):
        Q, K, V, B, gamma = (scene.env[k].detach() for k in ("Q", "K", "V", "B", "gamma"))
        A = gamma * (Q @ K.T) + B
        empty = torch.isinf(A).all(1, keepdim=True)
        assert torch.allclose(scene.env["A"], A, atol=1e-14)
        weights = torch.where(empty, 0, torch.softmax(A, -1))
        assert torch.allclose(scene.env["P"], weights, atol=1e-14)
        assert torch.allclose(scene.env["L"][:, 0], torch.logsumexp(A, -1), atol=1e-14)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            O = attention(Q[None], K[None], V[None], B[None], scale=float(gamma))[0]
        assert torch.allclose(scene.env["O"], O, atol=1e-14)
    for scene in real_book.scenes(casts["softmax"], TorchScene):
        A, tau = scene.env["A"].detach(), scene.env["tau"].detach()
        assert torch.allclose(scene.env["P"], torch.softmax(A / tau, -1), atol=1e-14)
        assert torch.allclose(scene.env["L"][:, 0], torch.logsumexp(A, -1), atol=1e-14)
    for scene in real_book.scenes(casts["loss"], TorchScene):
        A = scene.env["A"].detach()
        assert torch.allclose(scene.env["Lambda"], torch.log_softmax(A, -1), atol=1e-14)


def test_the_complex_step_scene_takes_no_difference():
    """Its gradients do not change when the step shrinks by ten orders of magnitude."""
    from attnmath.page.scenes import carried

    one = book()
    scene = one.scenes(HEAD)[0]
    first = scene.paired(("O",)).letter("d", "Q")
    assert carried.COMPLEX_STEP < 1e-20 and isinstance(scene, NumPyScene)
    second = detached(one.scenes(HEAD, TorchScene)[0].paired(("O",)).letter("d", "Q"))
    assert np.abs(first - second).max() < 1e-14


def test_torchs_letters_are_compared_as_numbers():
    scene = book().scenes(HEAD, TorchScene)[0]
    node = parse(r"dO\, V^{\mathsf T} = 0")[0].members[0]
    assert isinstance(scene.letter("d", "O"), torch.Tensor)
    assert isinstance(Frame(scene, {}).evaluate(node).x, np.ndarray)
