"""Published formulas that are wrong or conditional: their failure is what is asserted."""

from dataclasses import replace

import pytest

from attnmath.page.language.chapter import PageFault, read_text
from attnmath.page.misprints.misprints import tally
from attnmath.page.scenes.cast import Cast, Letter
from attnmath.page.scenes.settings import Setting
from attnmath.page.verdicts.book import Book
from attnmath.page.verdicts.judge import judge


def no_bias(values, sizes):
    values["c"] = values["c"] * 0


def no_factor(values):
    values["F"] = values["F"] * 0


def same(values, sizes):
    values["X"] = values["F"]


def weights(values, sizes):
    values["X"] = values["F"] @ values["W"]


# X is F in two settings (d_v = d_k), F W in the others; c is a bias, zero in one of them.
LAYER = Cast(
    name="published",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "F": Letter(("n", "d_k")),
        "W": Letter(("d_k", "d_v")),
        "U": Letter(("m", "d_v")),
        "X": Letter(("n", "d_v")),
        "c": Letter(("1", "d_v")),
        "mathbb P": Letter(("d_k", "d_k"), "prp:unit"),
        "A": Letter(("n", "m"), "prp:scores"),
    },
    outputs=("A",),
    loss="f",
    settings=(
        Setting("products", 1, change=weights),
        Setting("no bias", 2, change=lambda v, s: (weights(v, s), no_bias(v, s))),
        Setting("raw", 3, {"d_v": 3}, change=same),
        Setting("other sizes", 4, {"n": 3, "m": 2, "d_k": 4, "d_v": 5}, change=weights),
    ),
)
PAGE = r"$$ A = (F W + \mathbf 1 c) U^{\mathsf T} $$ (prp:scores)" "\n\n$$ \\mathbb P = I_{d_k} $$ (prp:unit)"


def book(display: str, label: str = "err:tested") -> Book:
    text = f"\n{PAGE}\n\n$$ {display} $$ ({label})\n"
    return Book([read_text(text, "chapters/page.md")], {"page": (LAYER,)})


def verdict(display: str):
    of = book(display)
    return judge(of, of.displays["err:tested"])


def refusal(display: str, label: str = "err:tested") -> str:
    of = book(display, label)
    with pytest.raises(PageFault) as caught:
        judge(of, of.displays[label])
    return str(caught.value)


def how_it_fails(found):
    if found.met:
        return "conditional"
    if found.ill_typed == found.settings:
        return "ill-typed"
    return "unequal" if not found.ill_typed else "ill-typed or unequal"


@pytest.mark.parametrize("display, word", [
    (r"A = F W U^{\mathsf T} \quad\text{when } c = 0", "conditional"),
    (r"\frac{\partial f}{\partial W} = X^{\mathsf T} dA\, U \quad\text{when } X = F", "conditional"),
    (r"A = F W U", "ill-typed"),
    (r"dW = U^{\mathsf T} dA", "ill-typed"),
    (r"dc = dA\, U", "ill-typed"),
    (r"\sum_{l=1}^m F_{il} = 0", "ill-typed or unequal"),
    (r"A = F W U^{\mathsf T} + F W", "ill-typed"),
    (r"A_{ij} = \sum_l F_{il} (W U^{\mathsf T})_{lj} - \sum_p c_p U_{jp}", "conditional?"),
    (r"\frac{\partial f}{\partial U} = 2 \frac{\partial f}{\partial A}^{\mathsf T} F W", "unequal"),
    (r"dW = X^{\mathsf T} dA\, U \cdot 2", "ill-typed or unequal"),
])
def test_how_a_published_formula_fails(display, word):
    if word == "conditional?":  # right where c = 0, and this is not said
        assert "state the condition" in refusal(display)
        return
    found = verdict(display)
    assert how_it_fails(found) == word
    assert found.least > 1e-3 or found.ill_typed == found.settings


def test_both_oracles_count_every_setting():
    found = verdict(r"A = F W U^{\mathsf T} \quad\text{when } c = 0")
    assert (found.met, found.settings) == (2, 6)
    assert found.comparisons == 8


def test_the_size_of_the_error_is_measured():
    found = verdict(r"dU = 3\, dA^{\mathsf T} (F W + \mathbf 1 c)")
    assert found.least == pytest.approx(2 / 3) == found.most


@pytest.mark.parametrize("display, words", [
    (r"A = (F W + \mathbf 1 c) U^{\mathsf T}", "it holds in the setting"),
    (r"A = (1 + 0.0005) (F W + \mathbf 1 c) U^{\mathsf T}", "it holds in the setting"),
    (r"A = F W U^{\mathsf T}", "it holds in the setting 'no bias'"),
    (r"A = 2 F W U^{\mathsf T} \quad\text{when } c = 0", "differ by"),
    (r"A = F U^{\mathsf T} \quad\text{when } U = 0", "no setting of the cast meets"),
    (r"A = (F W + \mathbf 1 c) U^{\mathsf T} \quad\text{when } c = c \cdot 1", "it holds in every"),
    (r"A = F Y", "not in the cast"),
    (r"A = f U", "the loss"),
    (r"A = F W^{\mathsf T}^{\mathsf T}", "two scripts"),
    (r"A \approx F W U^{\mathsf T} \quad\text{within } 0.1", "no bound"),
    (r"A = F W U^{\mathsf T} \quad\text{when } c_l = 0, \quad dU = 2\, dA^{\mathsf T} X", ""),
])
def test_what_an_err_label_may_not_say(display, words):
    assert words in refusal(display)


@pytest.mark.parametrize("display, words", [
    (r"A_{hj} = (F W + \mathbf 1 c)_h (U_j)^{\mathsf T}", "h runs over the heads"),
    (r"A_{ij}^{\mathsf T} = A_{ij}", "the transpose of a number"),
    (r"(F^{\mathsf T} F)^2 = F^{\mathsf T} F F^{\mathsf T} F", "no power of a 3×3 matrix"),
    (r"i A_{ij} = i (F W + \mathbf 1 c)_i (U_j)^{\mathsf T}", "stands as a factor"),
    (r"\delta_{ij} = \delta_{ji}", "no letter says how far"),
    (r"\operatorname{softmax}(A)_{ij} = \exp(A_{ij}) / \sum_j \exp(A_{ij})", "both summed and free"),
    (r"\operatorname{tr}(\mathbf 1 \mathbf 1^{\mathsf T}) = n", "known lengths"),
    (r"\frac{\partial A}{\partial W} = 0", "a matrix needs vec"),
    (r"\operatorname{diag}(\mathbb P) = \mathbf 1", "diag needs a row or a column"),
    (r"A = \exp(A) / A", "cannot divide by a"),
    (r"\sum_{l \le i} A_{lj} - A_{ij} = \sum_{l \le i} A_{l-1, j}", "index 0 of 4"),
    (r"A = (F W + c) U^{\mathsf T}", "'+' needs equal shapes, not 4×2 and 1×2"),
    (r"X = F W \circ \operatorname{rowsum}(F)", "'∘' needs equal shapes"),
    (r"A = \operatorname{attention}(F, U)", "attention: missing a required argument: 'V'; it needs Q, K and V"),
    (r"A_{ij} = \sum_{h \in g} A_{ij}", "no groups of heads"),
])
def test_what_the_page_cannot_read_is_not_ill_typed(display, words):
    """They may be true: another notation, or another name for an index, would do."""
    assert words in refusal(display)


def test_a_line_that_holds_hides_behind_no_local_name_that_does_not_fit():
    for lines in (r"G := F U \\ A = (F W + \mathbf 1 c) U^{\mathsf T} \\ A = G",
                  r"G := F U \\ H := U \\ A = G \\ A = (F W + \mathbf 1 c) H^{\mathsf T}"):
        assert "it holds in the setting" in refusal(rf"\begin{{aligned}} {lines} \end{{aligned}}")
    assert how_it_fails(verdict(r"\begin{aligned} G := F U \\ A = G \end{aligned}")) == "ill-typed"


def test_each_line_has_the_loss_that_it_speaks_of():
    """On both outputs together, W and c would get gradients from both."""
    cast = replace(LAYER, letters={**LAYER.letters, "Y": Letter(("n", "d_v"), "prp:sum")}, outputs=("A", "Y"))
    page = PAGE + "\n\n$$ Y = F W + \\mathbf 1 c $$ (prp:sum)"
    lines = r"dW = F^{\mathsf T} dA\, U, \quad dc = \mathbf 1^{\mathsf T} dY"
    of = Book([read_text(f"\n{page}\n\n$$ {lines} $$ (err:tested)\n", "chapters/page.md")], {"page": (cast,)})
    with pytest.raises(PageFault, match="it holds in the setting"):
        judge(of, of.displays["err:tested"])


def with_setting(display: str, setting: Setting) -> Book:
    """The page's book with one more setting."""
    cast = replace(LAYER, settings=(*LAYER.settings, setting))
    text = f"\n{PAGE}\n\n$$ {display} $$ (err:tested)\n"
    return Book([read_text(text, "chapters/page.md")], {"page": (cast,)})


def test_a_local_name_may_fit_in_one_setting_alone():
    of = with_setting(r"\begin{aligned} G := F U \\ G = F U \cdot 1 \end{aligned}",
                      Setting("square", 9, {"m": 3}))
    with pytest.raises(PageFault, match="it holds in the setting 'square'"):
        judge(of, of.displays["err:tested"])


def test_a_condition_that_leaves_nothing_shows_nothing():
    def nothing(values, sizes):
        no_bias(values, sizes)
        no_factor(values)

    of = with_setting(r"A = 2 F W U^{\mathsf T} \quad\text{when } F = 0 \text{and } c = 0",
                      Setting("nothing", 9, change=nothing))
    with pytest.raises(PageFault, match="both sides are 0"):
        judge(of, of.displays["err:tested"])


def test_what_holds_for_any_matrices_is_no_correction():
    of = book(r"(F W) U^{\mathsf T} = 2 F (W U^{\mathsf T})")
    assert tally(of, of.displays["err:tested"]).corrections == ()


def test_a_bound_that_says_nothing_is_no_correction():
    of = book(r"\lVert A \rVert \le \lVert F \rVert / 1000")
    assert how_it_fails(judge(of, of.displays["err:tested"])) == "unequal"
    assert tally(of, of.displays["err:tested"]).corrections == ()


def test_a_difference_of_rounding_is_none():
    """Both sides are zero: one of them to rounding only."""
    words = refusal(r"(F W - F W \cdot 3 / 3) U^{\mathsf T} = 0 \cdot A")
    assert "it holds in the setting" in words


def test_a_condition_needs_a_setting_that_is_not_degenerate():
    text = r"A = F W U^{\mathsf T} \quad\text{when } c = 0"
    settings = tuple(
        replace(s, change=lambda v, z: (weights(v, z), no_bias(v, z), no_factor(v)))
        if s.name == "no bias" else s for s in LAYER.settings
    )
    of = Book([read_text(f"\n{PAGE}\n\n$$ {text} $$ (err:tested)\n", "chapters/page.md")],
              {"page": (replace(LAYER, settings=settings),)})
    with pytest.raises(PageFault, match="degenerate"):
        judge(of, of.displays["err:tested"])


def test_a_line_that_holds_hides_behind_no_other():
    lines = r"dU = 2\, dA^{\mathsf T} F W, \quad A = (F W + \mathbf 1 c) U^{\mathsf T}"
    assert "it holds in the setting" in refusal(lines)


def test_the_gradient_of_the_loss_is_the_gradient():
    of = book(r"\frac{\partial f}{\partial W} = F^{\mathsf T} dA\, U", "prp:tested")
    assert judge(of, of.displays["prp:tested"]).error < 1e-14
    assert "differ" in refusal(r"\frac{\partial f}{\partial W} = F^{\mathsf T} dA\, U \cdot 2", "prp:tested")


def test_one_symbol_makes_it_true():
    of = book(r"A = (F W - \mathbf 1 c) U^{\mathsf T} \quad\text{when } c = 0")
    found = tally(of, of.displays["err:tested"])
    assert found.corrections == (r"A = (F W + \mathbf 1 c) U^{\mathsf T}",)
    assert found.tried > 40 and not found.survivors


def test_a_change_of_a_local_name_is_no_correction_by_itself():
    lines = r"G := F W \\ A = (G - \mathbf 1 c) U^{\mathsf T} \quad\text{when } c = 0"
    of = book(rf"\begin{{aligned}} {lines} \end{{aligned}}")
    better = tally(of, of.displays["err:tested"]).corrections
    assert better == (r"A = (G + \mathbf 1 c) U^{\mathsf T}",)


def test_a_lost_inverse_is_found_again():
    of = book(r"A = (F W + \mathbf 1 c) U^{\mathsf T} \operatorname{diag}(\operatorname{rowsum}(U))"
              r" \operatorname{diag}(\operatorname{rowsum}(U))")
    better = tally(of, of.displays["err:tested"]).corrections
    assert len(better) == 2 and all("^{-1}" in one for one in better)


def test_two_casts_have_two_names():
    other = replace(LAYER, outputs=())
    with pytest.raises(PageFault, match="the name 'published' is taken"):
        Book([], {"page": (LAYER,), "other": (other,)})


def test_a_letter_made_of_constants_has_the_tangent_zero():
    dots = r"\dot A = (\dot F \mathbb P W + F \dot W + \mathbf 1 \dot c) U^{\mathsf T}"
    of = book(dots + r" + (F W + \mathbf 1 c) \dot U^{\mathsf T}, \quad \dot{\mathbb P} = 0", "prp:tested")
    assert judge(of, of.displays["prp:tested"]).error < 1e-14
