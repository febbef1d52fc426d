"""What each public function is asked, for several shapes: is it what it means, and its derivatives?

A Case is a statement with its arguments. Values are drawn, but exact arithmetic reads from them
only the shapes and where -inf is: every other one becomes a letter. Sizes that are all equal come
first: there no shape tells.
"""

import ast
import functools
import inspect
from dataclasses import dataclass
from pathlib import Path

import numpy as np

import attnmath as a
import plain
from attnmath import Weights
from attnmath._words import arrays
from attnmath._words import layers as layer_words
from drawn import drawn

rng = np.random.default_rng(0)
LARGE = dict(settings=dict(LARGE=0))  # heads take turns for each entry of a batch
RECORDED = dict(settings=dict(is_writable=lambda x: False))  # as where a library records


@dataclass
class Case:
    """A statement of one of three kinds about the functions, and its arguments."""

    name: str
    kind: str
    functions: tuple
    x: tuple
    constants: dict
    settings: dict

    def judge(self, engine):
        """AssertionError if the statement is wrong, as the engine finds."""
        before = {name: getattr(layer_words, name) for name in self.settings}
        vars(layer_words).update(self.settings)
        try:
            getattr(engine, self.kind)(*self.functions, *self.x, **self.constants)
        finally:
            vars(layer_words).update(before)


def draw(*shape, hide=()):
    """Random numbers, -inf at these places."""
    x = rng.normal(size=shape)
    for k in hide:
        x[k] = -np.inf
    return x


def warm(*shape):
    """Random temperatures."""
    return abs(draw(*shape))


def scores():
    """Scores and a temperature of several shapes; masks, and a row without scores."""
    hidden = dict(hide=[(0, 0, 1), (1, 1)])
    return [
        [draw(2, 2), warm()], [draw(1, 3)], [draw(2, 2, 3, **hidden)],
        [draw(2, 2, 3, **hidden), warm(2, 1, 1)], [draw(2, 3), warm(3)], [draw(2, 3), warm(2, 3)],
        [draw(3), warm()],
    ]


def heads():
    """Q, K, V, B, gamma: all sizes equal, all different, broadcast batches, a mask, an empty row."""
    empty = dict(hide=[(0, 0), (1,), (2, 1)])
    return [
        [draw(2, 2), draw(2, 2), draw(2, 2), draw(2, 2), draw()],
        [draw(2, 3), draw(4, 3), draw(4, 5)],
        [draw(2, 1, 2, 2), draw(2, 3, 2), draw(2, 1, 3, 1), draw(2, 1, 2, 3, hide=[(0, 0, 0, 1), (1, 0, 1)]),
         draw(2, 1)],
        [draw(4, 2), draw(3, 2), draw(3, 3, 1), draw(4, 3, **empty), draw(3)],
        [draw(2, 2), draw(3, 2), draw(3, 1), draw(2, 1), draw(2, 3)],
        [draw(2, 1), draw(3, 1), draw(3, 2), None, draw(1, 1)],
    ]


def of_output(x):
    """A gradient of the output of a layer with these arguments."""
    X, Z, W, *_ = x
    return draw(*np.broadcast_shapes(X.shape[:-2], Z.shape[:-2]), *X.shape[-2:])


def rate(*shape):
    """Dropout's factors; what they are is left open."""
    return abs(draw(*shape))


def pieces():
    """O_a, L_a, O_b, L_b: queries with keys on both sides, on one, on none."""
    return [
        [draw(2, 2), draw(2), draw(2, 2), draw(2)],
        [draw(2, 3, 1), draw(2, 3, hide=[(0, 1), (1, 2)]), draw(2, 3, 1), draw(2, 3, hide=[(0, 1), (1, 0)])],
    ]


def weights(H, G, d, d_z, d_k, d_v, biases="QKVO"):
    """Random weights; the biases that are not named are None."""
    b = [draw(H, d_k), draw(G, d_k), draw(G, d_v), draw(d)]
    b = [x if name in biases else None for name, x in zip("QKVO", b)]
    return Weights(draw(H, d, d_k), draw(G, d_z, d_k), draw(G, d_z, d_v), draw(H, d_v, d), *b)


def layers():
    """X, Z, W, B, gamma, and constants: groups of heads, batches, masks, biases or none, R or none."""
    mask = dict(hide=[(0, 0, 1), (1, 0)])
    two, three = (draw(2, 2, 2), draw(2, 3, 2)), (draw(3, 2, 2), draw(3, 3, 1))
    return [
        [[draw(2, 2), draw(2, 2), weights(2, 2, 2, 2, 2, 2), draw(2, 2, 2), draw(2)], {}],
        [[draw(2, 1), draw(3, 2), weights(4, 2, 1, 2, 1, 1, "")], {}],
        [[draw(2, 2, 2), draw(3, 1), weights(2, 1, 2, 1, 2, 1, "KO"), draw(2, 2, 3, **mask), draw()],
         dict(R=rate(2, 2, 2, 3))],
        [[*two, weights(2, 2, 2, 2, 1, 2, "QV"), draw(2, 1, 2, 3, hide=[(0, 0, 1, 0)]), draw(2)],
         dict(R=rate(2, 3))],
        [[draw(1, 2, 2), *two[1:], weights(2, 1, 2, 2, 1, 1, "V")], {}],
        [[draw(2, 1, 2), draw(3, 2), weights(2, 2, 2, 2, 1, 1, "Q"), draw(3, hide=[(1,)]), draw(2)], RECORDED],
        [[*three, weights(2, 1, 2, 1, 1, 1, "QKVO")], LARGE],
        [[draw(2, 2), three[1], weights(2, 1, 2, 1, 1, 1, "V"), draw(2, 3)], LARGE],
        [[three[0], draw(3, 1), weights(2, 2, 2, 1, 1, 1, "O"), draw(2, 3, hide=[(1,)]), draw()], LARGE],
        [[*three, weights(2, 2, 2, 1, 1, 1, ""), draw(3, 2, 2, 3, hide=[(1, 0, 1)]), draw(2)],
         dict(R=rate(2, 1, 3), **LARGE)],
        [[*three, weights(2, 1, 2, 1, 1, 1, "K"), draw(3, 1, 2, 3, hide=[(0, 0, 1)]), draw(2)],
         dict(R=rate(3, 2, 2, 3), **LARGE)],
    ]


def latents():
    """X, W, theta, B, gamma, and constants: one pair, or a part of the features; a batch, masks, R."""
    def weights(H, d, d_q, d_k, d_r, d_c, d_v):
        shapes = (d, d_q), (H, d_q, d_k), (H, d_q, d_r), (d, d_c), (H, d_c, d_k), (H, d_c, d_v), (d, d_r), (H, d_v, d)
        return a.MLAWeights(*(draw(*shape) for shape in shapes))

    mask = draw(2, 2, hide=[(0, 1), (1,)])
    return [
        [[draw(2, 2), weights(2, 2, 2, 2, 2, 2, 2), draw(1), draw(2, 2), draw()], {}],
        [[draw(2, 1), weights(2, 1, 1, 1, 2, 1, 2), draw(1)], dict(layout="interleaved")],
        [[draw(2, 2), weights(1, 2, 1, 1, 4, 1, 1), draw(1), mask, draw(1)],
         dict(positions=np.array([3, 1]), layout="interleaved", R=rate(2, 2))],
        [[draw(2, 2, 1), weights(2, 1, 1, 1, 2, 1, 1), draw(1), draw(2, 2, 2), draw(2)],
         dict(positions=np.array([[0, 2], [1, 1]]))],
        [[draw(2, 2, 1), weights(1, 1, 2, 1, 2, 1, 1), draw(1)], LARGE],
    ]


def selves():
    """X, W, B, gamma, and constants."""
    return [
        [[draw(2, 2), weights(2, 2, 2, 2, 2, 2), draw(2, 2, 2), draw(2)], {}],
        [[draw(2, 3, 2), weights(2, 1, 2, 2, 1, 1, "KO"), draw(3, 3, hide=[(0, 1), (1,)]), draw()],
         dict(R=rate(2, 1, 3))],
        [[draw(2, 1), weights(4, 2, 1, 1, 2, 1, "")], dict(R=rate(4, 2, 2))],
    ]


def along(jacobians):
    """The tangent that Jacobians give: each times the tangent of its argument, added up."""
    def f_jvp(*x, **constants):
        x_dot, x = x[:len(x) // 2], x[len(x) // 2:]
        J = jacobians(*x, **constants)
        J = J if isinstance(J, tuple) else (J,)
        return sum(times_tangent(*pair) for pair in zip(J, x_dot) if pair[1] is not None)
    return f_jvp


def times_tangent(J, x_dot):
    """J[..., i, a, l, b] x_dot[..., l, b], summed over l, b; axes of x_dot in front are a batch."""
    last = J.shape[-2:]
    x_dot = np.broadcast_to(x_dot, np.shape(x_dot)[:-2] + last)
    return sum(J[..., *k] * x_dot[..., *k][..., None, None] for k in np.ndindex(last))


def of_scores(jacobian):
    """The tangent of softmax along A_dot, by its Jacobian."""
    def f_jvp(A_dot, A, **constants):
        J = jacobian(A, **constants)
        return sum(J[..., k] * A_dot[..., k, None] for k in range(A.shape[-1]))
    return f_jvp


def of_tokens(X_dot, W_dot, B_dot, gamma_dot, X, W, B=None, gamma=None, **constants):
    """The tangent of self_attention: along the tokens by its Jacobian, else by its own rule."""
    J = a.self_attention_jacobian(X, W, B, gamma, **constants)
    dots = None, W_dot, B_dot, gamma_dot
    return times_tangent(J, X_dot) + a.self_attention_jvp(*dots, X, W, B, gamma, **constants)


# ---- the table ------------------------------------------------------------------------------


def given(vjp):
    """A backward pass that is given what the way forward has computed."""
    def with_given(dY, *x, **constants):
        way = (x[0], *x) if vjp is a.self_attention_vjp else x
        return vjp(dY, *x, **constants, given=a.multihead_map(*way, **constants))
    return with_given


def along_both(dO, dL, Q, K, V, B=None, gamma=None, *, with_L, **constants):
    """The gradients of a loss on the output and on the log-sum-exp."""
    return a.flash_attention_vjp(dO, Q, K, V, B, gamma, dL=dL, **constants)


def attention_vjp_jvp(
    dO_dot, Q_dot, K_dot, V_dot, B_dot, gamma_dot, dO, Q, K, V, B=None, gamma=None, *, R=None
):
    """attention_hvp as the tangent of the gradients, which it is: that of dO comes first."""
    dots = Q_dot, K_dot, V_dot, B_dot, gamma_dot
    return a.attention_hvp(*dots, dO, Q, K, V, B, gamma, dO_dot=dO_dot, R=R)


def multihead_vjp_jvp(
    dY_dot, X_dot, Z_dot, W_dot, B_dot, gamma_dot, dY, X, Z, W, B=None, gamma=None, *, R=None
):
    """multihead_hvp in the same way."""
    dots = X_dot, Z_dot, W_dot, B_dot, gamma_dot
    return a.multihead_hvp(*dots, dY, X, Z, W, B, gamma, dY_dot=dY_dot, R=R)


def on_targets(f):
    """f with targets that are 0 but where they are asked for."""
    @functools.wraps(f)
    def with_zeros(*x, E, where):
        return f(*x, E=E * where)
    return with_zeros


def plain_self_attention(X, *x, **constants):
    return plain.multihead(X, X, *x, **constants)


FUNCTIONS = {  # what it means, the gradients, the tangents
    a.softmax: (plain.softmax, a.softmax_vjp, a.softmax_jvp),
    a.logsumexp: (plain.logsumexp, a.logsumexp_vjp, a.logsumexp_jvp),
    a.log_softmax: (plain.log_softmax, a.log_softmax_vjp, a.log_softmax_jvp),
    a.attention: (plain.attention, a.attention_vjp, a.attention_jvp),
    a.attention_map: (plain.attention_map, None, None),
    a.linear: (plain.linear, a.linear_vjp, a.linear_jvp),
    a.silu: (plain.silu, a.silu_vjp, a.silu_jvp),
    a.mlp: (plain.mlp, a.mlp_vjp, a.mlp_jvp),
    a.layer_norm: (plain.layer_norm, a.layer_norm_vjp, a.layer_norm_jvp),
    a.cross_entropy: (plain.cross_entropy, a.cross_entropy_vjp, a.cross_entropy_jvp),
    a.dropout_attention: (plain.attention, a.dropout_attention_vjp, a.dropout_attention_jvp),
    a.flash_attention: (plain.flash_attention, a.flash_attention_vjp, a.flash_attention_jvp),
    a.attention_vjp: (None, a.attention_vjp_vjp, None),
    a.dropout_attention_vjp: (None, a.attention_vjp_vjp, attention_vjp_jvp),
    a.multihead_vjp: (None, None, multihead_vjp_jvp),
    a.flash_attention_vjp: (None, a.flash_attention_vjp_vjp, None),
    a.merge: (plain.merge, a.merge_vjp, a.merge_jvp),
    a.multihead: (plain.multihead, a.multihead_vjp, a.multihead_jvp),
    a.multihead_map: (plain.multihead_map, None, None),
    a.self_attention: (plain_self_attention, a.self_attention_vjp, a.self_attention_jvp),
    a.latent_attention: (plain.latent_attention, a.latent_attention_vjp, a.latent_attention_jvp),
    a.rms_norm: (plain.rms_norm, a.rms_norm_vjp, a.rms_norm_jvp),
    a.softcap: (plain.softcap, a.softcap_vjp, a.softcap_jvp),
    a.qk_norm_attention: (plain.qk_norm_attention, a.qk_norm_attention_vjp, a.qk_norm_attention_jvp),
    a.sink_softmax: (plain.sink_softmax, a.sink_softmax_vjp, a.sink_softmax_jvp),
    a.sink_attention: (plain.sink_attention, a.sink_attention_vjp, a.sink_attention_jvp),
    a.sigmoid_attention: (plain.sigmoid_attention, a.sigmoid_attention_vjp, a.sigmoid_attention_jvp),
    a.capped_attention: (plain.capped_attention, a.capped_attention_vjp, a.capped_attention_jvp),
}


def asked():
    """Every function with arguments and constants, the simple ones first."""
    for x in scores():
        yield a.softmax, x, {}
        if len(x) == 1:
            yield a.logsumexp, x, {}
            yield a.log_softmax, x, {}
    yield a.softmax, [draw(2, 2)], dict(tau=2)
    yield a.softmax, [draw(2, 2)], dict(tau=3)
    for x in heads():
        yield a.attention, x, {}
        yield a.attention_map, x, {}
        yield a.dropout_attention, x, {}
        for f in (a.attention_map, a.dropout_attention):
            yield f, x, dict(R=rate(x[0].shape[-2], x[1].shape[-2]))
    for x, tile in zip(heads(), [1, 3, 2, 1, 2, 2]):
        R = rate(x[0].shape[-2], x[1].shape[-2])
        dO = draw(*np.broadcast_shapes(*(np.shape(part)[:-2] for part in x[:3])), x[0].shape[-2], x[2].shape[-1])
        yield a.flash_attention, x, dict(tile=tile)
        yield a.flash_attention, x, dict(tile=2, R=R)
        yield a.attention_vjp, [dO, *x], {}
        yield a.dropout_attention_vjp, [dO, *x], dict(R=R)
        yield a.flash_attention_vjp, [dO, *x], dict(tile=tile)
        yield a.flash_attention_vjp, [dO, *x], dict(tile=tile, R=R)
    for x in pieces():
        yield a.merge, x, {}
    yield a.attention, [draw(2, 2), draw(2, 2), draw(2, 2), draw(2, 2)], dict(gamma=0.5)
    yield a.linear, [draw(2, 2), draw(2, 2), draw(2)], {}
    yield a.linear, [draw(2, 1, 3), draw(3, 2), draw(1, 2)], {}
    yield a.linear, [draw(1, 2, 2), draw(2, 3)], {}
    yield a.silu, [draw(2, 3)], {}
    yield a.mlp, [draw(2, 2), draw(2, 2), draw(2), draw(2, 2), draw(2)], {}
    yield a.mlp, [draw(2, 1, 2), draw(2, 3), None, draw(3, 2), draw(2)], {}
    yield a.mlp, [draw(2, 2), draw(2, 3), draw(3), draw(3, 2), None], {}
    yield a.layer_norm, [draw(2, 2), draw(2), draw(2)], dict(epsilon=0.5)
    yield a.layer_norm, [draw(2, 1, 3), draw(3), draw(3)], dict(epsilon=2)
    yield a.cross_entropy, [draw(2, 2)], dict(E=draw(2, 2))
    where = np.array([[1, 0, 1], [0, 0, 0], [0, 0, 0]])
    yield a.cross_entropy, [draw(3, 3, hide=[(0, 1), (2,)])], dict(E=draw(3, 3), where=where)
    for x, constants in layers():
        yield a.multihead, x, constants
        yield a.multihead_map, x, constants
        yield a.multihead_vjp, [of_output(x), *x], constants
    for x, constants in selves():
        yield a.self_attention, x, constants
    for x, constants in latents():
        yield a.latent_attention, x, constants
    yield a.rms_norm, [draw(2, 2), draw(2)], dict(epsilon=0.5)
    yield a.rms_norm, [draw(2, 1, 3), draw(3)], dict(epsilon=0)
    yield a.softcap, [draw(2, 2), warm()], {}
    yield a.softcap, [draw(2, 1, 3), warm(2, 1, 1)], {}
    for Q, K, V, *rest in heads()[:1] + heads()[3:]:
        R = rate(Q.shape[-2], K.shape[-2])
        yield a.capped_attention, [Q, K, V, warm(), *rest], {}
        yield a.capped_attention, [Q, K, V, warm(Q.shape[-2], 1), *rest], dict(R=R)
    empty = draw(2, 2, 3, hide=[(0, 0, 1), (1, 1)])
    sinks = [[draw(2, 2), draw(2)], [draw(2, 3), draw()], [empty, draw(2)], [empty, draw(2, 3)], [empty, draw()]]
    for x in [*sinks, [empty, draw(2, hide=[(1,)])]]:  # a head without a sink, too
        yield a.sink_softmax, x, {}
    yield a.sigmoid_attention, [0 * draw(2, 2), draw(3, 2), draw(3, 2)], {}
    for Q, K, V, *rest in heads():
        R = rate(Q.shape[-2], K.shape[-2])
        H = np.broadcast_shapes(*(np.shape(x)[:-2] for x in (Q, K, V)))[-1:]
        yield a.sigmoid_attention, [Q, K, V, *rest], {}
        yield a.sigmoid_attention, [Q, K, V, *rest], dict(R=R)
        yield a.sink_attention, [Q, K, V, draw(), *rest], {}
        yield a.sink_attention, [Q, K, V, draw(*H, 2), *rest], {}
        yield a.sink_attention, [Q, K, V, draw(*H), *rest], dict(R=R)
    for Q, K, V, *rest in [[draw(2, 2), draw(2, 2), draw(2, 2)], [draw(1, 2), draw(2, 2), draw(2, 1), draw(2), draw()]]:
        yield a.qk_norm_attention, [Q, K, V, *draw(2, 2), *rest], dict(epsilon=2)
        yield a.qk_norm_attention, [Q, K, V, *draw(2, 2), *rest], dict(epsilon=3, R=rate(len(Q), 2))


MORE = {  # arguments of those below
    "rotary": [dict(X=draw(3, 4), theta=draw(2)),
               dict(X=draw(2, 1, 2, 6), theta=draw(2), positions=np.array([[2, 0], [1, 3]]), layout="interleaved")],
    "alibi": [dict(eta=draw(2), n=2, m=4, align="upper_left")],
    "relative_buckets": [dict(n=9, m=12, buckets=8, distance=7), dict(n=9, m=12, buckets=8, distance=7, sides="before"),
                         dict(n=1, m=140), dict(n=1, m=140, align="upper_left")],
}


def beside_its_test():
    """Functions of which the test file of their module says what they mean, as plain_name; with drawn arguments."""
    for path in sorted((Path(__file__).parents[1] / "formulas").glob("test_*.py")):
        text = path.read_text("utf-8")
        for node in ast.parse(text).body if "\ndef plain_" in text else ():
            name = getattr(node, "name", "").removeprefix("plain_")
            if isinstance(node, ast.FunctionDef) and node.name != name and hasattr(a, name):
                said = {"np": np, "plain": plain}
                exec(compile(ast.Module([node], []), path, "exec"), said)
                for x in [drawn(getattr(a, name), leading=(2,)), *MORE.get(name, [])]:
                    yield getattr(a, name), said[node.name], dict(x)


def cases():
    """The whole table."""
    found = []

    def add(kind, functions, x, constants, name=None):
        constants = dict(constants)
        settings = constants.pop("settings", {})
        functions = [on_targets(f) for f in functions] if "where" in constants else functions
        name = name or functions[0].__name__
        shapes = ", ".join(str(np.shape(part)) if not isinstance(part, tuple) else "W" for part in x)
        found.append(Case(f"{name} {kind} {shapes} {' '.join(constants)}", kind, functions, tuple(x), constants, settings))

    for f, x, constants in asked():
        definition, vjp, jvp = FUNCTIONS[f]
        if definition:
            add("equal", (f, definition), x, constants)
        if vjp:
            add("vjp", (vjp, f), x, constants)
        if jvp:
            name = jvp.__name__.replace("vjp_jvp", "hvp")
            add("jvp", (jvp, f), x, constants, name if "hvp" in name else None)
        if f in (a.multihead, a.self_attention):
            add("vjp", (given(vjp), f), x, constants, vjp.__name__ + " given")
        if f is a.flash_attention:
            with_L = constants | dict(with_L=True)
            add("equal", (f, plain.flash_output), x, with_L)
            add("vjp", (along_both, f), x, with_L, vjp.__name__ + " with L")
            add("jvp", (jvp, f), x, with_L)
    for f, definition, x in beside_its_test():
        order = inspect.signature(f).parameters.values()
        constants = {p.name: x.pop(p.name) for p in order if p.kind is p.KEYWORD_ONLY and p.name in x}
        least = [p.name for p in order if p.default is p.empty and p.name in x]  # the others have their defaults
        for names in dict.fromkeys([tuple(x), tuple(least)]):
            given_now = [x[name] for name in names]
            has_letters = any(np.shape(one) or isinstance(one, tuple) for one in given_now)
            add("equal" if has_letters else "same", (f, definition), given_now, constants)
            for kind in ("vjp", "jvp"):
                if derivative := getattr(a, f"{f.__name__}_{kind}", None):
                    add(kind, (derivative, f), given_now, constants)
    for x in scores():
        tau = dict(tau=x[1]) if len(x) > 1 else {}
        add("jvp", (of_scores(a.softmax_jacobian), a.softmax), x[:1], tau, "softmax_jacobian")
    for *x, gamma in (x if len(x) == 5 else [*x, None, None] for x in heads()):
        gamma = {} if gamma is None else dict(gamma=gamma)
        add("jvp", (along(a.jacobians), a.attention), x, gamma, "jacobians")
    for x, constants in selves():
        add("jvp", (of_tokens, a.self_attention), x, constants, "self_attention_jacobian")
    for f in (a.softmax, a.logsumexp, a.log_softmax):
        add("same", (f, FUNCTIONS[f][0]), [draw(2, 0)], {})
    add("same", (arrays.default_scale, plain.default_scale), [16, np.zeros(2)], {})
    add("same", (a.dropout_mask, plain.dropout_mask), [np.array([[0, 0.25, 0.5], [0.75, 0.625, 0.125]]), 0.5], {})
    add("same", (a.dropout_mask, plain.dropout_mask), [np.array([0.75, 0.5]), 0.75], {})
    return found
