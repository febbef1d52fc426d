"""The bounds of rounding are never exceeded by right programs, come near some, and weaker ones are exceeded."""

import sys
from pathlib import Path

import numpy as np
import pytest

import attnmath
from attnmath import rounding as promised
from attnmath.book.measured import sharpness, worst_over_bound
from attnmath.rounding import bounds, formats, lemmas, nearest, ratio, unit_roundoff
from attnmath.rounding.heads import fused_head

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import rounding as measured  # noqa: E402

SIMULATED = [name for name in measured.PROGRAMS if name.startswith("simulated")]
FUSED = dict(dtype="bfloat16", accumulate="float32")


def alone(x, dtype):
    """The first problem of a batch."""
    *x, gamma = (nearest(a[0], dtype) for a in x)
    return *x, float(gamma.flat[0])


# ---- never above 1 ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", measured.FORMATS)
def test_right_programs_lie_inside(dtype):
    """One batch of each family; no more than the record says of programs that round alike everywhere."""
    table, record = measured.Table(), sharpness()["programs"]
    for family in measured.FAMILIES:
        table.add(*measured.judge(family, dtype, 1))
    assert table.right()
    for name in SIMULATED:
        for letter, (r, _) in table.programs()[name][dtype].items():
            assert r <= 1.01 * record[name][dtype][letter][0], (name, letter)


def test_the_record_is_whole_and_all_inside():
    data = sharpness()
    assert {*data["programs"]} == {*measured.PROGRAMS} and [*data["problems"]] == [*measured.FORMATS]
    for counts in data["problems"].values():
        assert {*counts} == {*measured.FAMILIES} and min(counts.values()) > 0
        assert sum(counts[family] for family in measured.RANDOM) >= 10_000
    letters = {(dtype, letter) for formats_ in data["letters"].values() for dtype, found in formats_.items()
               for letter in found}
    assert letters == {(dtype, letter) for dtype in measured.FORMATS for letter in measured.LETTERS}
    for name, formats_ in data["programs"].items():
        for dtype, found in formats_.items():
            outside = {letter for letter, (r, _) in found.items() if r > 1}
            assert outside == ({"L"} if name == "PyTorch, flash" and dtype != "float32" else set())


@pytest.mark.parametrize("dtype", measured.FORMATS)
@pytest.mark.parametrize("letter", measured.LETTERS)
def test_no_bound_is_ten_times_too_large_everywhere(letter, dtype):
    r, _ = worst_over_bound(sharpness(), letter, dtype)
    assert 0.1 < r <= 1


# ---- bounds that are too small are exceeded -----------------------------------------------------------


def test_a_bound_that_forgets_the_error_of_D_is_exceeded(monkeypatch):
    """Values with a common part: D is large, and its roundings are the same for a whole row."""
    x = measured.drawn(np.random.default_rng(0), 4, 6, 3, 3, count=1)
    x[3] += 20
    x = alone(x, "bfloat16")
    found, want = fused_head(*x, "bfloat16")[2], attnmath.attention_vjp(*x)

    def ratios():
        return [ratio(*three) for three in zip(found[:4], want, promised.attention_vjp(*x, **FUSED))]

    assert max(ratios()) <= 1
    known = bounds.row_statistic
    monkeypatch.setattr(bounds, "row_statistic", lambda *given: (known(*given)[0], 0 * known(*given)[1]))
    dQ, dK, _, dB = ratios()
    assert min(dQ, dK, dB) > 10


@pytest.mark.parametrize("group", [4, 8, 16])
def test_a_bound_that_assumes_the_nearest_is_exceeded_by_sums_that_cut_off(group, monkeypatch):
    """A score of 400 features in bfloat16, all but one just below the last digit of their sum in float32."""
    Q = np.full((1, 400), nearest(1.96 * unit_roundoff("float32"), "bfloat16"))
    Q[0, 0] = 1
    one = np.ones((1, 1))
    given = Q, np.ones((1, 400)), one, np.zeros((1, 1)), 1.0
    with measured.products(lambda X, Y: measured.cut_off(X, Y, group)):
        L = fused_head(one, *given, "bfloat16")[1]
    want = attnmath.attention_map(*given).L

    def over():
        return ratio(L, want, promised.attention(*given, **FUSED, truncate=True).L)

    assert 0.5 < over() <= 1
    monkeypatch.setattr(formats, "TRUNCATED", 1.0)
    assert over() > 1.5


def test_m_roundings_of_a_term_are_too_few_and_m_and_8_are_not():
    """The numerator of a row with five keys in tiles of four, in bfloat16; the second tile has a larger score.

    The factor between the two maxima is off by less than two unit roundoffs, as an exponential may be. The first
    term goes through a product and two sums, then through the factor, its product and one more sum. (Of a whole
    head even the bound with m holds: it allows more for exponents and logarithms than any one program takes.)
    """
    u, m, more, tiny = unit_roundoff("bfloat16"), 5, 0.06396484375, 0.00098419189453125
    E, V = np.array([[0.400390625, 1, 1, 1, 1]]), np.array([[0.65625, tiny, tiny, 0, tiny]]).T
    factor = 0.9453125
    assert abs(np.log(factor) + more) < 2 * u
    assert all(np.array_equal(nearest(x, "bfloat16"), x) for x in (E, V, more, factor))
    N = 0.0
    for k in range(4):
        N = nearest(N + nearest(E[0, k] * V[k, 0], "bfloat16"), "bfloat16")
    N = nearest(nearest(factor * N, "bfloat16") + E[0, 4] * V[4, 0], "bfloat16")
    f, weights = formats.model("", "bfloat16", None, True), E * np.exp([-more, -more, -more, -more, 0])

    def over(steps):
        return ratio(N[None, None], weights @ V, lemmas.product(f, weights, None, V, steps))

    assert over(f.over_keys(m)) > 1.2 and 0.4 < over(f.over_keys(m) + 8) <= 1


# ---- what the record's problems have found --------------------------------------------------------------


@pytest.mark.parametrize(("scaled", "kind"), [("Q", {}), ("K", {}), ("Q", dict(accumulate="float32", fused=False))])
def test_a_small_scale_may_lose_the_gradient_of_scores(scaled, kind):
    """One query, two keys: the scale times dA is below the least step of float16, and meets a factor of 64."""
    Q, K = (np.array([[64.0]]), np.zeros((2, 1))) if scaled == "Q" else (np.ones((1, 1)), np.array([[64.0], [0]]))
    B = np.array([[-64 * 2.0**-12, 0]]) if scaled == "K" else np.zeros((1, 2))
    V = nearest(np.array([[2e-4], [-2e-4]]), "float16")
    x = np.ones((1, 1)), Q, K, V, B, 2.0**-12
    got = attnmath.attention_vjp(*(np.asarray(a, np.float16) for a in x))
    want, bound = attnmath.attention_vjp(*x), promised.attention_vjp(*x, dtype="float16", **kind)
    lost = "dK" if scaled == "Q" else "dQ"
    assert not getattr(got, lost).any() and getattr(want, lost).all()
    assert 0.3 < ratio(getattr(got, lost), getattr(want, lost), getattr(bound, lost)) <= 1


def test_a_large_scale_multiplies_what_a_product_has_lost():
    """dA times the keys, rounded to the steps of float16 and only then scaled."""
    one = np.ones((1, 1))
    x = one, 0 * one, np.array([[77 * 2.0**-24], [0]]), np.array([[2.0**-7], [-(2.0**-7)]]), np.zeros((1, 2)), 100.0
    want = attnmath.attention_vjp(*x)
    kept = nearest(100 * nearest(want.dB @ x[2], "float16"), "float16")
    bound = promised.attention_vjp(*x, dtype="float16", accumulate="float32", fused=False).dQ
    assert abs(kept - want.dQ).item() > 20 * 2.0**-24 and 0.2 < ratio(kept, want.dQ, bound) <= 1


def test_a_sum_that_grows_in_float16_may_lose_a_step_each_time():
    """dV of 320 queries, added in tiles of 40 whose parts lie between the steps of float16."""
    n, tile = 320, 40
    dO = np.full((n, 1), 2.0**-24)
    x = dO, np.zeros((n, 1)), np.zeros((64, 1)), np.zeros((64, 1)), np.zeros((n, 64)), 1.0
    dV = np.zeros((64, 1))
    for k in range(0, n, tile):
        dV = nearest(dV + dO[k:k + tile].sum() / 64, "float16")
    want = attnmath.attention_vjp(*x).dV
    told = dict(dtype="float16", accumulate="float32")
    once, often = (promised.attention_vjp(*x, **told, stores=s).dV for s in (1, n // tile))
    assert ratio(dV, want, once) > 1 and 0.1 < ratio(dV, want, often) <= 1
