"""Candidates in JAX: called, differentiated, watched; what they mean is read off."""

import sys
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from attnmath._examine.contract.candidate import Candidate  # noqa: E402
from attnmath._examine.diagnosis.conventions import detect  # noqa: E402
from attnmath._examine.diagnosis.habits import (
    broken_habits,  # noqa: E402
    hazards,  # noqa: E402
)
from attnmath._examine.problems.case import Conventions  # noqa: E402
from attnmath._examine.problems.steps import Steps  # noqa: E402
from candidates import backward, forward, hard_case, uniform_case  # noqa: E402

DOT = dict(mask="mask", bias="bias", causal="is_causal", scale="scale", groups=None)
MEANS = Conventions("bshd", "keep", "upper_left", "blocks", "1/sqrt(d_k)", "uniform")
CASES = {
    "hard": hard_case(causal=True),
    "uniform": uniform_case(bias=np.zeros((1, 1, 5, 4)), traits=frozenset({"strided dO"})),
    "mask": hard_case(keep=np.arange(7) != 3),
    "groups": uniform_case(G=1, traits=frozenset({"broadcast dO"})),
}


def eager(q, k, v, mask=None):
    A = jnp.einsum("bhnd,bhmd->bhnm", q, k) / q.shape[-1] ** 0.5
    A = A if mask is None else jnp.where(mask, A, -jnp.inf)
    return jax.nn.softmax(A, axis=-1) @ v


def same(outcome, means):
    assert (outcome.error, outcome.faults) == (None, ())
    want = Steps(outcome.case, means).answer()
    for name, x in want._asdict().items():
        if x is not None:
            np.testing.assert_array_equal(getattr(outcome.answer, name), x, err_msg=name)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_dot_product_attention(dtype, name):
    """Values as long as keys, which is all it takes."""
    case = CASES[name]
    case = replace(case, V=case.V[..., :16], dO=case.dO[..., :16])
    candidate = Candidate(jax.nn.dot_product_attention, options=DOT, dtype=dtype, layout="bshd")
    same(candidate.run(case, MEANS), MEANS)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_what_dot_product_attention_means(dtype):
    candidate = Candidate(jax.nn.dot_product_attention, options=DOT, dtype=dtype)
    means = MEANS.told(inside="float32" if dtype == "float64" else None)
    assert detect(candidate) == (means, [])


@pytest.mark.parametrize("fn", [eager, jax.jit(eager), lambda q, k, v: eager(q, k, v)])
def test_library(fn):
    wide = jax.config.jax_enable_x64
    candidate = Candidate(fn)
    assert (candidate.library.name, candidate.dtype) == ("jax", "float32")
    same(Candidate(fn, dtype="float64").run(hard_case()), None)
    assert jax.config.jax_enable_x64 == wide


def test_what_is_kept_from_call_to_call():
    """Not compiled, so that it is seen."""
    calls = []

    def noisy(q, k, v):
        calls.append(1)
        return eager(q, k, v) * (1 + 0.1 * np.random.default_rng(len(calls)).random())

    assert [fault.name for fault in broken_habits(Candidate(noisy), Conventions())] == ["nondeterministic"]
    assert broken_habits(Candidate(eager, options=["mask"]), Conventions()) == []


def test_what_looks_at_its_numbers_is_not_compiled():
    def looks(q, k, v):
        return eager(q, k, v) if float(q[0, 0, 0, 0]) < 1e30 else v

    looks(*(jnp.ones((1, 1, 1, 1)),) * 3)
    outcome = Candidate(looks, framework="jax").run(hard_case())
    assert outcome.error.name == "raises"  # jax.vjp itself lets nothing look at numbers
    assert Candidate(looks, framework="jax").run(hard_case(), forward=True).error is None


def test_a_pair():
    """Forward and backward given, in JAX's arrays."""

    def f(q, k, v):
        return jnp.asarray(forward(*map(np.asarray, (q, k, v))))

    def b(do, q, k, v):
        return tuple(map(jnp.asarray, backward(*map(np.asarray, (do, q, k, v)))))

    same(Candidate(f, b, framework="jax").run(uniform_case()), None)


BROKEN = {
    "type": lambda q, k, v: np.asarray(forward(*map(np.asarray, (q, k, v)))),
    "raises": lambda q, k, v: eager(q, k, v) @ jnp.ones((3, 3)),
    "wrong_number": lambda q, k, v: (eager(q, k, v)[0], 1),
    "shape": lambda q, k, v: eager(q, k, v)[:, :, :1],
    "integers": lambda q, k, v: eager(q, k, v).astype(int),
}


@pytest.mark.parametrize("name", BROKEN)
def test_contract(name):
    outcome = Candidate(BROKEN[name], framework="jax").run(uniform_case(), forward=True)
    assert outcome.answer is None and outcome.error.name == name


def test_pytorch_is_told_apart():
    torch = pytest.importorskip("torch")
    assert Candidate(lambda q, k, v: torch.softmax(q @ k.mT, -1) @ v).library.name == "torch"


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
def test_lines_of_a_hazard(dtype, capsys):
    """A row that may attend to nothing, as lines for JAX."""
    candidate = Candidate(eager, options=["mask"], dtype=dtype)
    (hazard,) = hazards(candidate, Conventions(layout="bhsd", mask="keep", empty="nan"))
    assert hazard.name == "nan_spreads" and "import jax\n" in hazard.evidence
    wide = jax.config.jax_enable_x64
    try:
        exec(hazard.evidence, {"eager": eager})
    finally:
        jax.config.update("jax_enable_x64", wide)
    printed = capsys.readouterr().out
    assert "nan" in printed and f"dtype={dtype}" in printed
