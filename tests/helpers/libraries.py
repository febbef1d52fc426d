"""A call in every library, and the types of its results; the call takes the function that makes arrays."""

import array_api_strict
import numpy as np
import torch

U = 2.0**-53  # the unit roundoff of float64


def near(got, want, size=1.0, roundings=128):
    """Equal but for some roundings of the largest of the numbers added up (of this size)."""
    got, want = np.asarray(got), np.asarray(want)
    assert got.shape == want.shape
    return (np.abs(got - want) <= roundings * U * np.maximum(size, np.abs(want).max(initial=0))).all()


def called(call, array):
    Y = call(array)
    return Y if isinstance(Y, tuple) else (Y,)


def assert_same_in_every_library(call):
    want = called(call, np.asarray)
    for array in (torch.as_tensor, array_api_strict.asarray):
        assert all(near(g, w, 100) for g, w in zip(called(call, array), want, strict=True))


def assert_number_type_kept(call, dtype):
    assert {y.dtype for y in called(call, lambda x: np.asarray(x, dtype))} == {np.dtype(dtype)}
    assert len({y.dtype for y in called(call, lambda x: torch.as_tensor(np.asarray(x, dtype)))}) == 1
