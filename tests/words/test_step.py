"""Arrays and numbers as the checks see them. (complex_step itself is tested in test_check.py.)"""

from collections import namedtuple

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath._words import complex_step as s

U = 2.0**-53
Pair = namedtuple("Pair", "a b")
ARRAYS = [np.asarray, torch.as_tensor, array_api_strict.asarray]


def test_a_rounding_is_one_unit_in_the_last_place_up_or_down():
    ones = np.ones((30, 2))
    off = s.off_by_a_rounding(ones, np.random.default_rng(0)) - ones
    assert off.shape == ones.shape and set(off.ravel().tolist()) == {2 * U, -2 * U}
    assert {tuple(row) for row in np.sign(off)} == {(1, 1), (1, -1), (-1, 1), (-1, -1)}
    assert abs(s.off_by_a_rounding(1.0, np.random.default_rng(0)) - 1) == 2 * U
    assert (s.off_by_a_rounding(np.array([0.0, -np.inf]), np.random.default_rng(0)) == [0, -np.inf]).all()
    draws = {s.off_by_a_rounding(1.0, np.random.default_rng(k)) for k in range(20)}
    assert draws == {1 - 2 * U, 1 + 2 * U}


@pytest.mark.parametrize("array", ARRAYS)
def test_numbers_keep_their_kind(array):
    x = array(np.array([[1.0, 2.0, 3.0]]))
    rng = np.random.default_rng(0)
    made = [s.own_numbers(x), s.random_like(x, rng), s.off_by_a_rounding(x, rng), s.in_kind_of(np.zeros((1, 3)), x)]
    made += list(s.units(x))
    assert all(type(y) is type(x) and tuple(y.shape) == (1, 3) and y.dtype == x.dtype for y in made)
    assert (s.numpy_of(made[0]) == [[1, 2, 3]]).all() and made[0] is not x
    assert isinstance(s.numpy_of(x), np.ndarray)
    assert [s.numpy_of(e).tolist() for e in s.units(x)] == [[[1, 0, 0]], [[0, 1, 0]], [[0, 0, 1]]]
    assert s.as_vector((x, None, 4.0, s.numpy_of(x)[0])).tolist() == [1, 2, 3, 4, 1, 2, 3]


def test_plain_numbers_keep_their_kind():
    rng = np.random.default_rng(0)
    assert s.own_numbers(2) == 2.0 and type(s.own_numbers(2)) is float
    assert type(s.random_like(2.0, rng)) is float and list(s.units(5.0)) == [1.0]
    assert s.as_vector(3).tolist() == [3.0] and s.as_vector(None).tolist() == [] and s.as_vector(3).dtype == float
    draws = [s.random_like(2.0, np.random.default_rng(k)) for k in range(200)]
    assert abs(np.mean(draws)) < 0.3 and 0.8 < np.std(draws) < 1.2


def test_a_copy_is_private():
    for x in (np.ones(2), torch.ones(2, dtype=torch.float64)):
        y = s.own_numbers(x)
        y += 1
        assert (x == 1).all()


def test_torch_tensors_lose_gradient_and_conjugation():
    x = torch.tensor([1 + 2j], dtype=torch.complex128, requires_grad=True)
    assert s.numpy_of(x.conj()).tolist() == [1 - 2j]
    assert s.complex_if_torch(torch.ones(2, dtype=torch.float64)).dtype == torch.complex128
    x = np.ones(2)
    assert s.complex_if_torch(x) is x and s.complex_if_torch(0.5) == 0.5


def test_tuples_are_taken_apart_and_put_together():
    assert s.each_part(abs, Pair(-1, (None, -2))) == Pair(1, (None, 2))
    assert type(s.each_part(abs, Pair(-1, -2))) is Pair and s.each_part(abs, None) is None
    assert s.flat_parts((1, 2)) == (1, 2) and s.flat_parts(Pair(1, 2)) == (1, 2) and s.flat_parts(3) == (3,)


def test_what_is_real():
    assert all(map(s.is_real, (1, 2.5, np.ones(2), torch.ones(2), np.float64(1))))
    assert not any(map(s.is_real, (1j, "a", None, np.ones(2) * 1j, np.ones(2) > 0, [1.0])))


def test_finite():
    assert s.without_infinities(np.array([1.0, np.inf, -np.inf, -2])).tolist() == [1, 0, 0, -2]


def test_a_derivative_is_the_imaginary_part_in_units_of_the_step():
    assert s.COMPLEX_STEP == 1e-30
    assert s.derivative(complex(3, 2e-30)) == 2.0 and s.derivative(5.0) == 0.0
    assert s.derivative(np.array([1j * 1e-30, 2.0])).tolist() == [1.0, 0.0]
    assert s.derivative(np.array([3.0, 2.0])).tolist() == [0.0, 0.0]


def test_an_array_is_made_on_the_device_of_its_model():
    assert s.in_kind_of(np.zeros(2), torch.ones(2, device="meta")).device.type == "meta"
