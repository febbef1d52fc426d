"""What is refused, and the sentence that says so."""

import array_api_strict
import numpy as np
import pytest
import torch

from attnmath import (
    attention,
    attention_jvp,
    attention_map,
    attention_vjp,
    log_softmax,
    log_softmax_jvp,
    log_softmax_vjp,
    logsumexp,
    logsumexp_jvp,
    logsumexp_vjp,
    softmax,
    softmax_jacobian,
    softmax_jvp,
    softmax_vjp,
)

a = np.ones


def nan(shape):
    return a(shape) * np.nan


NEEDS_ARRAY = "needs to be an array (of NumPy, torch or another array-API library)"

CASES = [
    # shapes
    (ValueError, "attention: Q has shape (3,); it needs (..., n, d_k)",
     lambda: attention(a(3), a((5, 3)), a((5, 2)))),
    (ValueError, "attention: K has shape (5, 4); it needs (..., m, 3) to match Q of shape (4, 3)",
     lambda: attention(a((4, 3)), a((5, 4)), a((5, 2)))),
    (ValueError, "attention: K has shape (3,); it needs (..., m, 3) to match Q of shape (4, 3)",
     lambda: attention(a((4, 3)), a(3), a((5, 2)))),
    (ValueError, "attention_map: V has shape (6, 2); it needs (..., 5, d_v) to match K of shape (5, 3)",
     lambda: attention_map(a((4, 3)), a((5, 3)), a((6, 2)))),
    (ValueError, "attention: V has shape (5,); it needs (..., 5, d_v) to match K of shape (5, 3)",
     lambda: attention(a((4, 3)), a((5, 3)), a(5))),
    (ValueError, "attention: Q has shape (4, 0); it needs (..., n, d_k) with d_k > 0",
     lambda: attention(a((4, 0)), a((5, 0)), a((5, 2)))),
    (ValueError, "attention: K has shape (3, 5, 3); its leading axes (3,) need to broadcast against (2,),"
     " those of Q", lambda: attention(a((2, 4, 3)), a((3, 5, 3)), a((5, 2)))),
    (ValueError, "attention: V has shape (4, 2, 5, 2); its leading axes (4, 2) need to broadcast against"
     " (2, 3), those of Q and K", lambda: attention(a((2, 1, 4, 3)), a((3, 5, 3)), a((4, 2, 5, 2)))),
    (ValueError, "attention: B has shape (4, 6); it needs one that broadcasts to (4, 5), the shape of the scores",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), a((4, 6)))),
    (ValueError, "attention: B has shape (2, 4, 5); it needs one that broadcasts to (4, 5), the shape of the scores",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), a((2, 4, 5)))),
    (ValueError, "attention: B has shape (4, 5); it needs one that broadcasts to (1, 5), the shape of the scores",
     lambda: attention(a((1, 3)), a((5, 3)), a((5, 2)), a((4, 5)))),
    (ValueError, "attention: gamma has shape (2, 1, 1); it needs one that broadcasts to (4, 5), the shape"
     " of the scores", lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), None, a((2, 1, 1)))),
    (ValueError, "attention_vjp: dO has shape (4, 3); it needs (4, 2), the shape of O",
     lambda: attention_vjp(a((4, 3)), a((4, 3)), a((5, 3)), a((5, 2)))),
    (ValueError, "attention_vjp: dO has shape (4, 2); it needs (6, 4, 2), the shape of O",
     lambda: attention_vjp(a((4, 2)), a((4, 3)), a((5, 3)), a((6, 5, 2)))),
    (ValueError, "attention_jvp: K_dot has shape (4, 3); it needs (5, 3), the shape of K",
     lambda: attention_jvp(None, a((4, 3)), None, None, None, a((4, 3)), a((5, 3)), a((5, 2)))),
    (ValueError, "attention_jvp: B_dot has shape (4, 5); it needs to be None, as B is",
     lambda: attention_jvp(None, None, None, a((4, 5)), None, a((4, 3)), a((5, 3)), a((5, 2)))),
    (ValueError, "attention_jvp: gamma_dot has shape (2,); it needs (), the shape of gamma",
     lambda: attention_jvp(None, None, None, None, a(2), a((4, 3)), a((5, 3)), a((5, 2)))),
    (ValueError, "softmax: A has shape (); it needs (..., m)", lambda: softmax(a(()))),
    (ValueError, "softmax: tau has shape (2,); it needs one that broadcasts to (4, 5), the shape of A",
     lambda: softmax(a((4, 5)), a(2))),
    (ValueError, "softmax_vjp: dP has shape (5,); it needs (4, 5), the shape of P",
     lambda: softmax_vjp(a(5), a((4, 5)))),
    (ValueError, "softmax_jvp: A_dot has shape (5,); it needs (4, 5), the shape of A",
     lambda: softmax_jvp(a(5), None, a((4, 5)))),
    (ValueError, "softmax_jvp: tau_dot has shape (5,); it needs (), the shape of tau",
     lambda: softmax_jvp(None, a(5), a((4, 5)))),
    (ValueError, "logsumexp_vjp: dL has shape (4, 1); it needs (4,), the shape of L",
     lambda: logsumexp_vjp(a((4, 1)), a((4, 5)))),
    (ValueError, "logsumexp_jvp: A_dot has shape (4,); it needs (4, 5), the shape of A",
     lambda: logsumexp_jvp(a(4), a((4, 5)))),
    (ValueError, "log_softmax_vjp: dLambda has shape (4,); it needs (4, 5), the shape of Lambda",
     lambda: log_softmax_vjp(a(4), a((4, 5)))),
    (ValueError, "log_softmax_jvp: A_dot has shape (4,); it needs (4, 5), the shape of A",
     lambda: log_softmax_jvp(a(4), a((4, 5)))),
    # values
    (ValueError, "attention: B of shape (4, 5) holds NaN or +inf; its entries need to be numbers or -inf",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), nan((4, 5)))),
    (ValueError, "attention: B of shape (5,) holds NaN or +inf; its entries need to be numbers or -inf",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), a(5) * np.inf)),
    (ValueError, "softmax: tau is 0; it needs to be above 0, as a temperature is (rows lie along the last axis)", lambda: softmax(a(5), 0)),
    (ValueError, "softmax: tau is -1; it needs to be above 0, as a temperature is (rows lie along the last axis)", lambda: softmax(a(5), -1)),
    (ValueError, "softmax: tau of shape (2, 1) holds 0; it needs to be above 0, as a temperature is (rows lie along the last axis)",
     lambda: softmax(a((2, 5)), np.array([[1.0], [0.0]]))),
    (ValueError, "softmax_jacobian: tau is nan; it needs to be above 0, as a temperature is (rows lie along the last axis)",
     lambda: softmax_jacobian(a(5), np.nan)),
    (ValueError, "attention: gamma is inf; it needs to be a finite number",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), gamma=np.inf)),
    # kinds
    (TypeError, f"attention: Q is a list; it {NEEDS_ARRAY}",
     lambda: attention([[1.0]], a((5, 3)), a((5, 2)))),
    (TypeError, f"attention: V is a NoneType; it {NEEDS_ARRAY}",
     lambda: attention(a((4, 3)), a((5, 3)), None)),
    (TypeError, f"attention_vjp: dO is a NoneType; it {NEEDS_ARRAY}",
     lambda: attention_vjp(None, a((4, 3)), a((5, 3)), a((5, 2)))),
    (TypeError, f"attention: B is a float; it {NEEDS_ARRAY}",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), 0.5)),
    (TypeError, f"softmax: A is a float; it {NEEDS_ARRAY}", lambda: softmax(1.5)),
    (TypeError, f"logsumexp: A is a MaskedArray; it {NEEDS_ARRAY}",
     lambda: logsumexp(np.ma.array([1.0, 2.0]))),
    (TypeError, "softmax: tau is a bool; it needs to be an array or a number (of NumPy, torch or another"
     " array-API library)", lambda: softmax(a(5), True)),
    (TypeError, "softmax: tau is a NoneType; it needs to be an array or a number (of NumPy, torch or"
     " another array-API library)", lambda: softmax(a(5), None)),
    (TypeError, "softmax_vjp: dP has dtype int64; it needs floating-point numbers",
     lambda: softmax_vjp(np.arange(5), a(5), 2.0)),
    (TypeError, "softmax_jvp: A_dot has dtype float32; it needs that of A, float64",
     lambda: softmax_jvp(a(5, "f"), None, a(5), 2.0)),
    (TypeError, "softmax: A has dtype int64; it needs floating-point numbers",
     lambda: softmax(np.arange(5))),
    (TypeError, "softmax: A has dtype bool; it needs floating-point numbers",
     lambda: softmax(torch.ones(5) > 0)),
    (TypeError, "attention: B has dtype int32; it needs floating-point numbers",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), a((4, 5), np.int32))),
    (TypeError, "attention: B is boolean; it needs numbers that are added to the scores: 0 where a query"
     " may look and -inf where not, as in bias(mask, like=Q)",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2)), a((4, 5)) > 0)),
    (TypeError, "attention: K is an array of torch, but Q is one of numpy; all need to be of one library",
     lambda: attention(a((4, 3)), torch.ones((5, 3)), a((5, 2)))),
    (TypeError, "softmax_vjp: tau is an array of array_api_strict, but A is one of numpy; all need to be of"
     " one library", lambda: softmax_vjp(a(5), a(5), array_api_strict.asarray(1.0))),
    (TypeError, "attention: V has dtype float32; it needs that of Q, float64",
     lambda: attention(a((4, 3)), a((5, 3)), a((5, 2), np.float32))),
    (TypeError, "attention: K has dtype bfloat16; it needs that of Q, float16",
     lambda: attention(torch.ones(4, 3).half(), torch.ones(5, 3).bfloat16(), torch.ones(5, 2).half())),
]


DERIVATIVES = {
    "softmax": lambda A: softmax(A), "softmax_vjp": lambda A: softmax_vjp(A, A),
    "softmax_jvp": lambda A: softmax_jvp(A, None, A), "softmax_jacobian": lambda A: softmax_jacobian(A),
    "logsumexp": lambda A: logsumexp(A), "logsumexp_vjp": lambda A: logsumexp_vjp(A, A),
    "logsumexp_jvp": lambda A: logsumexp_jvp(A, A), "log_softmax": lambda A: log_softmax(A),
    "log_softmax_vjp": lambda A: log_softmax_vjp(A, A), "log_softmax_jvp": lambda A: log_softmax_jvp(A, A),
    "attention": lambda A: attention(A, A, A), "attention_map": lambda A: attention_map(A, A, A),
    "attention_vjp": lambda A: attention_vjp(A, A, A, A),
    "attention_jvp": lambda A: attention_jvp(None, None, None, None, None, A, A, A),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_every_function_says_its_own_name(name):
    """Each checks shapes and kinds under its own name, before any other function is called."""
    for wrong, error in ((a(()), ValueError), ([1.0], TypeError), (np.arange(3), TypeError)):
        with pytest.raises(error, match=f"^{name}: "):
            DERIVATIVES[name](wrong)


@pytest.mark.parametrize("error, sentence, call", CASES, ids=[f"{i}" for i in range(len(CASES))])
def test_one_sentence_says_what_is_wrong(error, sentence, call):
    with pytest.raises(error) as caught:
        call()
    assert str(caught.value) == sentence


@pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")
def test_a_numpy_matrix_whose_star_is_another_product_is_refused():
    with pytest.raises(TypeError, match="softmax: A is a matrix; it needs to be an array"):
        softmax(np.matrix([[1.0, 2.0]]))


@pytest.mark.parametrize("tau", [2, 2.0, np.float32(2), np.int64(2), np.array(2.0), 2 + 0j])
def test_a_number_may_come_in_many_kinds(tau):
    assert (softmax(np.array([1.0, 2.0]), tau) == softmax(np.array([1.0, 2.0]), 2.0)).all()
    assert softmax(np.array([1, 2], np.float32), np.float64(2)).dtype == np.float32


@pytest.mark.parametrize("array", [np.asarray, torch.as_tensor, array_api_strict.asarray])
def test_real_and_complex_of_one_precision_go_together(array):
    Q, K, V = (array(np.random.default_rng(0).normal(size=s)) for s in [(4, 3), (5, 3), (5, 2)])
    for x in [(Q + 0j, K, V), (Q, K, V + 0j), (Q, K, V, None, 0.5 + 0j)]:
        assert "complex128" in str(attention(*x).dtype)
    assert np.allclose(np.asarray(attention(Q, K, V, None, 2j)), np.conj(np.asarray(attention(Q, K, V, None, -2j))))


def test_values_are_looked_at_only_where_there_are_values():
    """Under vmap, and while a program is traced, NaN is not looked for, and nothing fails."""
    B = torch.full((2, 4, 5), torch.nan)
    Q, K, V = torch.ones(4, 3), torch.ones(5, 3), torch.ones(5, 2)
    assert torch.func.vmap(lambda B: attention(Q, K, V, B))(B).isnan().all()
    zero = torch.zeros(2)
    assert torch.func.vmap(lambda tau: softmax(Q, tau))(zero).shape == (2, 4, 3)
    with pytest.raises(ValueError, match="B of shape"):
        torch.func.grad(lambda Q: attention(Q, K, V, B[0]).sum())(Q)


@pytest.mark.filterwarnings("ignore")  # the compiler and the exporter warn of their own parts
def test_compiled_programs_look_at_no_values():
    x = torch.ones(4, 3), torch.ones(5, 3), torch.ones(5, 2), torch.full((4, 5), torch.nan)
    compiled = torch.compile(attention, backend="eager", fullgraph=True)
    assert compiled(*x).isnan().all()
    traced = torch.jit.trace(lambda *x: attention(*x), (*x[:3], torch.zeros(4, 5)))
    assert traced(*x).isnan().all()
