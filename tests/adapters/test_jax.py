"""Every public function on JAX's arrays: NumPy's numbers, JAX's own derivatives, jit and vmap.

Run by 'make test-adapters', which installs JAX; 'make test' does not look into this folder.
"""

import inspect
import os
import subprocess
import sys
from functools import partial

os.environ["XLA_FLAGS"] = "--xla_backend_optimization_level=0"  # small programs, each run once

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

import attnmath  # noqa: E402
from drawn import drawn  # noqa: E402

jax.config.update("jax_enable_x64", True)

ROUNDINGS = 64  # of the largest number: sums of some dozen terms, exponentials of scores below ten


NO_ARRAYS = {"causal_mask", "window_mask", "relative_buckets"}
NAMES = [name for name in attnmath.__all__ if hasattr(getattr(attnmath, name), "__wrapped__") and name not in NO_ARRAYS]
DERIVED = [name for name in NAMES if {f"{name}_vjp", f"{name}_jvp"} <= set(NAMES)]
TWICE = [name for name in NAMES if name.endswith("_vjp_vjp")]
names = pytest.mark.parametrize("name", NAMES)
derived = pytest.mark.parametrize("name", DERIVED)


def case(name, dtype="float64", seed=0):
    """A function, and an array for each parameter; what is no array is bound to the function."""
    f = getattr(attnmath, name)
    x = drawn(f, seed, (6,), dtype)
    numbers = {p: x.pop(p) for p in list(x) if not hasattr(x[p], "dtype") and not hasattr(x[p], "_fields")}
    return partial(f, **numbers), x


def jaxed(x):
    return jax.tree.map(jnp.asarray, x)


def close(got, want, unit, exact=None):
    """The same tree of JAX's arrays, equal to some roundings of the largest number in it.

    A sum that cancels is off by more: by as much as what is wanted is off from what is exact, either way.
    """
    assert jax.tree.structure(got) == jax.tree.structure(want)
    pairs = [(np.asarray(g), np.asarray(w)) for g, w in zip(jax.tree.leaves(got), jax.tree.leaves(want))]
    assert all(isinstance(g, jax.Array) for g in jax.tree.leaves(got))
    assert all(g.shape == w.shape and g.dtype == w.dtype for g, w in pairs)
    assert all((np.isneginf(g) == np.isneginf(w)).all() for g, w in pairs)
    g, w = map(flat, zip(*pairs))
    off = 0 if exact is None else np.abs(w - flat(jax.tree.leaves(exact))).max(initial=0)
    return (np.abs(g - w) <= ROUNDINGS * unit * np.abs(w).max(initial=0) + 2 * off).all()


def flat(arrays):
    """All numbers in one vector, with 0 for -inf."""
    return np.concatenate([np.where(np.isneginf(a), 0, a).ravel() for a in map(np.asarray, arrays)])


def unit(dtype):
    return np.finfo(dtype).eps / 2


@names
def test_jax_gives_the_numbers_of_numpy(name):
    f, x = case(name)
    assert close(f(**jaxed(x)), f(**x), unit("float64"))


@names
def test_compiled_functions_give_the_same(name):
    """In single precision, and where a number is traced, which has no precision of its own."""
    f, x = case(name, "float32")
    x |= {p: 0.7 for p in ("gamma", "tau", "gamma_dot", "tau_dot") if p in x and np.shape(x[p]) == ()}
    exact = f(**jax.tree.map(lambda a: a.astype(np.float64) if a.dtype.kind == "f" else a, x))
    assert close(jax.jit(f)(**x), f(**x), unit("float32"), exact)


@names
def test_mapped_functions_give_each_its_own(name):
    f, xs = case(name)[0], [case(name, seed=seed)[1] for seed in range(3)]
    out = jax.jit(jax.vmap(lambda x: f(**x)))(jax.tree.map(lambda *a: jnp.stack(a), *xs))
    for i, x in enumerate(xs):
        assert close(jax.tree.map(lambda a, i=i: a[i], out), f(**x), unit("float64"))


def in_a_tuple(f):
    """f, which returns a tuple, of one result if it has one."""
    def g(*x):
        found = f(*x)
        return tuple(found) if isinstance(found, tuple) else (found,)
    return g


def rules(name):
    """A function, its vjp and its jvp, of the differentiable arguments alone; these, tangents, and dY."""
    f, x = case(name)
    f = partial(f.func, **{p: number for p, number in f.keywords.items() if p != "with_L"})
    f_vjp, f_jvp = (partial(getattr(attnmath, name + rule), **f.keywords) for rule in ("_vjp", "_jvp"))
    parameters = inspect.signature(f).parameters
    constants = {p: jaxed(x.pop(p)) for p in list(x) if parameters[p].kind is inspect.Parameter.KEYWORD_ONLY}
    f, f_vjp, f_jvp = (in_a_tuple(partial(g, **constants)) for g in (f, f_vjp, f_jvp))
    x, rng = jaxed(tuple(x.values())), np.random.default_rng(1)
    x_dot, dY = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), (x, jax.eval_shape(f, *x)))

    def gradients(dY, *x):
        return f_vjp(*dY, *x)

    return f, gradients, f_jvp, x, x_dot, dY


@derived
def test_gradients_and_tangents_are_those_of_jax(name):
    f, f_vjp, f_jvp, x, x_dot, dY = rules(name)
    by_rule = jax.jit(lambda dY, x, x_dot: (f_vjp(dY, *x), f_jvp(*x_dot, *x)))
    by_jax = jax.jit(lambda dY, x, x_dot: (jax.vjp(f, *x)[1](dY), jax.jvp(f, x, x_dot)[1]))
    for got, want in zip(by_rule(dY, x, x_dot), by_jax(dY, x, x_dot)):
        assert close(got, want, unit("float64"))


@derived
def test_second_derivatives_are_those_of_jax(name):
    """The rule is differentiated once more; no NaN from a masked score or an empty row."""
    f, f_vjp, _, x, x_dot, dY = rules(name)
    by_rule = jax.jit(lambda x, x_dot: jax.jvp(lambda *x: f_vjp(dY, *x), x, x_dot)[1])
    by_jax = jax.jit(lambda x, x_dot: jax.jvp(lambda *x: jax.vjp(f, *x)[1](dY), x, x_dot)[1])
    got = by_rule(x, x_dot)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(got))
    assert close(got, by_jax(x, x_dot), 16 * unit("float64"))


@pytest.mark.parametrize("name", TWICE)
def test_the_double_backward_is_that_of_jax(name):
    """The gradients of all arguments of a backward pass, from those in what it returns."""
    f, x = case(name)
    rule = partial(f, **{p: jaxed(x.pop(p)) for p in ("R",) if p in x})
    x = jaxed(tuple(x.values()))
    dots, x = x[:5], x[5:]
    backward = getattr(attnmath, name.removesuffix("_vjp"))
    backward = in_a_tuple(partial(backward, **rule.keywords))
    got = in_a_tuple(jax.jit(rule))(*dots, *x)
    assert all(np.isfinite(a).all() for a in got)
    assert close(got, jax.jit(lambda *x: jax.vjp(backward, *x)[1](dots))(*x), 16 * unit("float64"))


@pytest.mark.parametrize(("name", "backward"), [
    ("attention_hvp", "attention_vjp"), ("multihead_hvp", "multihead_vjp")])
def test_the_tangents_of_the_gradients_are_those_of_jax(name, backward):
    """All arguments of a backward pass move, dO or dY with them."""
    f, x = case(name)
    x, backward = jaxed(x), getattr(attnmath, backward)
    names = list(inspect.signature(backward).parameters)[:6]
    x_dot, given = tuple(x[f"{p}_dot"] for p in names), tuple(x[p] for p in names)
    by_jax = jax.jit(lambda x, x_dot: jax.jvp(lambda *x: backward(*x, R=R), x, x_dot)[1])
    R, got = x["R"], jax.jit(f)(**x)
    assert all(np.isfinite(a).all() for a in jax.tree.leaves(got))
    assert close(tuple(got), tuple(by_jax(given, x_dot)), 16 * unit("float64"))


def test_jacobians_are_those_of_jax():
    f, x = case("jacobians")
    x = {p: jnp.asarray(a[0] if p == "Q" else a) for p, a in x.items()}
    by_jax = jax.jacrev(attnmath.attention, argnums=(0, 1, 2, 3))(*x.values())
    assert close(tuple(jax.jit(f)(**x)), by_jax, unit("float64"))


def test_what_was_computed_may_be_given():
    f, x = case("multihead_vjp")
    given = {p: jaxed(x[p]) for p in x if p not in ("dY", "given")}
    x["given"] = jax.jit(attnmath.multihead_map)(**given)
    assert close(jax.jit(f)(**x), f(**x | {"given": None}), unit("float64"))


def test_values_are_those_of_jaxs_own_functions():
    A = jaxed(case("softmax")[1]["A"])
    rows = np.array([0, 2, 3])  # JAX has NaN in an empty row
    for ours, theirs in [(attnmath.softmax, jax.nn.softmax), (attnmath.log_softmax, jax.nn.log_softmax)]:
        assert close(ours(A)[rows], theirs(A)[rows], unit("float64"))
    assert close(attnmath.logsumexp(A), jax.nn.logsumexp(A, axis=-1), unit("float64"))
    Q, K, V, B = (jaxed(case("attention")[1][p]) for p in "QKVB")
    V = jnp.concat([V, V[:, :1]], axis=1)  # JAX wants d_v = d_k
    heads = [jnp.broadcast_to(a, (6, 1, *a.shape[-2:])).swapaxes(1, 2) for a in (Q[:, None], K, V)]
    theirs = jax.nn.dot_product_attention(*heads, bias=B, scale=0.7)[:, :, 0]
    # JAX takes the exponentials in single precision.
    assert close(attnmath.attention(Q, K, V, B, 0.7)[:, rows], theirs[:, rows], unit("float32"))


@pytest.mark.parametrize("wrong", [
    lambda x: x._replace(dQ=x.dQ * (1 + 1e-11)), lambda x: x._replace(dB=-x.dB),
    lambda x: x._replace(dK=x.dK.at[0, 0].add(1e-12)), lambda x: x._replace(dV=x.dV * jnp.nan),
])
def test_the_comparison_rejects_planted_mistakes(wrong):
    f, x = case("attention_vjp")
    right = f(**x)
    assert close(jaxed(right), right, unit("float64"))
    assert not close(wrong(jaxed(right)), right, unit("float64"))


def test_a_refused_argument_is_refused_in_jaxs_words_too():
    x = jaxed(case("attention")[1])
    with pytest.raises(TypeError, match="K has dtype float32; it needs that of Q, float64"):
        attnmath.attention(**x | {"K": x["K"].astype("float32")})
    with pytest.raises(TypeError, match="K is an array of numpy, but Q is one of jax"):
        attnmath.attention(**x | {"K": np.asarray(x["K"])})
    with pytest.raises(ValueError, match="B of shape .4, 5. holds NaN"):
        attnmath.attention(**x | {"B": x["B"] * jnp.nan})


def test_importing_the_package_does_not_import_jax():
    code = "import sys, attnmath; print('jax' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
