"""Slips of an author that look like mathematics: each is refused, none of them silently read.

Every line was once accepted by a version of the engine; each has its cast in page_book.
"""

import pytest

from attnmath.page.language.chapter import PageFault
from attnmath.page.verdicts.judge import judge
from page_book import book, last

SLIPS = [
    # exponents, scripts, numbers
    r"10^{-3} = 0.1 \operatorname{tr}(M) / \operatorname{tr}(M)",
    r"(Q K^{\mathsf T})^{A} = Q K^{\mathsf T} + 0 A",
    r"(Q K^{\mathsf T})^T = Q K^{\mathsf T} + 0 A",
    r"2^{A} = 2 + 0 n",
    r"A^{\mathsf T \mathsf T} = A + 0 A",
    r"\lVert M \rVert_F = \lVert M \rVert_2",
    r"\lVert M \rVert_1 = \lVert M \rVert_2",
    r"I_{nm} = I_n + 0 I_n",
    r"L = L_{1_2} + L",
    r"P_1_2 = P_{12} + 0 n",
    r"2 3 P = 6 P",
    # letters and indices
    r"dQ = dA\, k",
    r"dA_ij = dA_{ij} + 0 n",
    r"L i = i L",
    r"A_{ic} c = c A_{ic} + 0 n",
    r"O = o",
    # what TeX sets otherwise
    r"A &= Q K^{\mathsf T} \\ P &= \operatorname{softmax}(A)",
    r"\begin{aligned} A = Q K^{\mathsf T} + 0 A",
    r"\left A = Q K^{\mathsf T} + 0 A",
    r"\left( A ) = Q K^{\mathsf T} + 0 A",
    # local names
    r"x := A = P \quad x = A + 0 A",
    r"n = n + 0 := n - 1",
    r"x_i := A_i \quad \text{if } n = 77",
    r"x := A",
    r"x := A \quad P = P + 0 A",
    r"dA := P \quad dA = P + 0 A",
    r"\dot A := P \quad \dot A = P + 0 A",
    r"x := A \quad x := P \quad x = P + 0 P",
    r"x := dA \quad \frac{\partial x_{ij}}{\partial Q_{kl}} = 0",
    # lengths of 1
    r"\mathbf 1 = 1",
    r"\mathbf 1 + 1 = 2",
    r"\operatorname{tr}(\mathbf 1 \mathbf 1^{\mathsf T}) = 1",
    r"L + \mathbf 1 \mathbf 1^{\mathsf T} = L + \mathbf 1",
    # indices that leave their range
    r"\frac{\partial P_{ij}}{\partial A_{i-1, j}} = 0",
    r"\sum_{j > 3}^{m} L_j = L_4",
    r"(Q K^{\mathsf T})_{ij} = A_{ij} + 0 Q_{ij}",
    # comparisons
    r"10^{20} P + A = 10^{20} P + 2 A",
    r"dA = P \circ (dP + D \mathbf 1^{\mathsf T}) + 10^{17} P - 10^{17} P",
    r"\frac{L_1}{0.1 + 0.2 - 0.3} = 5",
    r"0.3 < 0.1 + 0.2",
    r"A \approx P \quad \text{within } 1000",
    r"A = P \quad \text{within } 0.5",
    r"\langle A, A \rangle = 0 \quad \text{when } K \le 0",
    # settings that are too tame
    r"n \le m",
    r"d_k = d_v + 1",
    r"m = 5",
    # functions
    r"\operatorname{check_vjp}(A, A) = A",
    r"\operatorname{attention_map}(Q, K, V) = A",
    r"\operatorname{softmax_jacobian}(A) = A",
    r"\operatorname{rowsum}(A, P) = L",
    # no value
    r"M^{-1} = 2 M^{-1} \quad \text{when } M = 0",
    r"d_2 = 3",
    r"I_{2.5} = I_2",
    r"\sum_2 A = A",
    r"x_2 := A \quad x_2 = A + 0 A",
    r"A = P \quad \text{if } L_1 \approx 1",
]


@pytest.mark.parametrize("display", SLIPS)
def test_a_slip_is_refused(display):
    one = book(display)
    with pytest.raises(PageFault):
        judge(one, last(one))


PROMISES = [
    ("eq:logsumexp", r"L_1 < L_1 + 1"),
    ("eq:logsumexp", r"L = 1 L"),
    ("eq:logsumexp", r"L \ne A \mathbf 1"),
    ("eq:softmax", r"P \ge 0 A"),
    ("eq:logsumexp", r"L_1 = \operatorname{logsumexp}(A_1)"),
    ("eq:logsumexp", r"\dot{dA} = A"),
]


@pytest.mark.parametrize("label, display", PROMISES)
def test_a_promise_needs_a_line_that_gives_the_letter(label, display):
    one = book(display, label)
    with pytest.raises(PageFault):
        judge(one, last(one))


RIGHT = [
    r"\lVert A \rVert_F^2 = \langle A, A \rangle",
    r"x := \operatorname{rowsum}(P) \quad x_i = \sum_j P_{ij}",
    r"\sum_{j < i} P_{ij} = \sum_{j \le i - 1} P_{ij} + 0 n",
    r"\frac{\partial \lvert L_i \rvert}{\partial L_i} = \frac{L_i}{\lvert L_i \rvert}",
    r"\frac{\partial \det(M)}{\partial M} = \det(M) (M^{-1})^{\mathsf T} \quad \text{if } \lVert M \rVert > 0",
    r"\sum_l \frac{\partial (\max_j A_{ij})}{\partial A_{il}} = 1 + 0 n",
    r"\frac{\partial (\min_j A_{2j})}{\partial A_{1l}} = 0 n",
    r"\max_{i,j} A_{ij} + \min_{i,j} (0 n - A_{ij}) = 0 n",
    r"10^{-1} L = 0.1 L + 0 L",
    r"2^{-2} L = 0.25 L + 0 L",
]


@pytest.mark.parametrize("display", RIGHT)
def test_right_displays_are_read(display):
    one = book(display)
    assert judge(one, last(one)).comparisons > 0
