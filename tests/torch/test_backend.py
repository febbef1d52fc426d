"""What is asked of the Triton kernels and not done there is done by the strips, with the same answer and one warning."""

import sys
import types
import warnings
from contextlib import contextmanager
from unittest.mock import patch

import pytest
import torch

from attnmath.torch import backend
from attnmath.torch import scaled_dot_product_attention as attention
from attnmath.torch.how import How

Q, K, V = torch.randn(3, 2, 5, 4, generator=torch.Generator().manual_seed(1))


@contextmanager
def afresh(triton=None):
    """Nothing said, nothing failed, and a module in the place of Triton; None: it is not installed."""
    backend.missing.cache_clear()
    with patch.dict(sys.modules, triton=triton), patch.object(backend, "said", set()), patch.object(backend, "failed", set()):
        yield
    backend.missing.cache_clear()


def release(version):
    module = types.ModuleType("triton")
    module.__version__ = version
    return module


def derivatives(**options):
    def f(*x):
        return attention(*x, softcap=2.0, **options)

    O, O_dot = torch.func.jvp(f, (Q, K, V), (K, V, Q))
    pull = torch.func.vjp(lambda *x: torch.func.vjp(f, *x)[1](V), Q, K, V)[1]
    return O, O_dot, *pull((V, Q, K))


@pytest.mark.parametrize("module, reason", [
    (None, r"triton is not installed: pip install 'attnmath\[gpu\]'"),
    (release("3.2.0"), r"triton 3\.2\.0 is too old; 3\.7 or newer is needed"),
])
def test_without_kernels_one_warning_says_why_and_the_answer_is_the_same(module, reason):
    want = derivatives()
    with afresh(module):
        with pytest.warns(RuntimeWarning, match=f"^scaled_dot_product_attention: backend 'triton' is not used: {reason}$") as said:
            got = derivatives(backend="triton")
        assert len(said) == 1
        derivatives(backend="triton")  # a second warning would be an error
    assert all(map(torch.equal, got, want))


def test_a_kernel_that_fails_is_not_tried_again():
    tried = []

    def failing(name):
        def f(*_, **__):
            tried.append(name)
            raise ValueError("no such instruction\nand more")

        return f

    want = derivatives()
    with (afresh(release("3.7.1")), patch.object(backend, "program", failing),
          patch.object(backend, "takes", lambda *_: True), warnings.catch_warnings(record=True) as said):
        warnings.simplefilter("always")
        got = derivatives(backend="triton")
        derivatives(backend="triton")
    assert all(map(torch.equal, got, want))
    assert len(tried) == len(set(tried)) == len(said) and {"forward", "jvp", "vjp", "second"} >= set(tried)
    assert all("failed with ValueError: no such instruction" in str(w.message) and "more" not in str(w.message) for w in said)


def test_memory_that_is_used_up_is_said_as_such():
    def full(*_, **__):
        raise torch.OutOfMemoryError("full")

    with (afresh(release("3.7.1")), patch.object(backend, "program", lambda name: full),
          patch.object(backend, "takes", lambda *_: True), pytest.raises(torch.OutOfMemoryError)):
        derivatives(backend="triton")


@pytest.mark.parametrize("x", [
    [Q.double()] * 3, [torch.ones(1, 5, 129)] * 3, [torch.ones(1, 5, 257, dtype=torch.bfloat16)] * 3,
    [torch.ones(1, 0, 4), torch.ones(1, 5, 4), torch.ones(1, 5, 4)], [torch.ones(1, 5, 4), *[torch.ones(1, 0, 4)] * 2],
])
def test_what_no_kernel_takes(x):
    with patch.object(backend, "interpreted", lambda: True):
        assert not backend.takes("forward", How(1.0), *x, None, None)
        assert backend.takes("forward", How(1.0), Q, K, V, None, None)


def test_on_a_processor_it_takes_the_interpreter():
    with patch.object(backend, "interpreted", lambda: False):
        assert not backend.takes("forward", How(1.0), Q, K, V, None, None)


@pytest.mark.parametrize("name", ["cuda", "", 3])
def test_another_backend_is_refused(name):
    with pytest.raises(ValueError, match=f"backend is {name!r}; it needs None or 'triton'"):
        attention(Q, K, V, backend=name)


def test_second_derivatives_of_wide_heads_in_float32_are_those_of_the_strips():
    wide, half = [torch.ones(1, 5, 65)] * 3, [torch.ones(1, 5, 65, dtype=torch.bfloat16)] * 3
    with patch.object(backend, "interpreted", lambda: True):
        assert [backend.takes(name, How(1.0), *wide, None, None) for name in ("jvp", "second")] == [True, False]
        assert backend.takes("second", How(1.0), *half, None, None)
