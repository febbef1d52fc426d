"""Numbers of a format, what a head makes of them there, and the bounds."""

import numpy as np

from attnmath import attention_jvp, attention_map, attention_vjp, rounding
from attnmath.page.scenes.cast import drawn, made, positive
from attnmath.page.scenes.settings import calm, causal, divided, filling, full, hidden, setting, three
from attnmath.rounding import bounds, tangents
from attnmath.rounding.formats import Model, float64, model
from attnmath.rounding.heads import stepwise_head, stepwise_jvp

from ._head import HEAD
from ._rounded import allowed, at_the_limit, both_sides, still, turned

INPUTS = ("Q", "K", "V", "B", "gamma")


@filling
def in_format(values: dict, sizes: dict, dtype: str) -> None:
    """Inputs in the format, a head that rounds every step to it, and the bounds for that."""
    for name in (*INPUTS, "dO"):
        values[name] = rounding.nearest(values[name], dtype)
    x = [values[name] for name in INPUTS[:-1]] + [values["gamma"].item()]
    dO, f = values["dO"], model("", dtype, None, True)
    given = bounds.Inputs(*x, R=None, dO=dO)
    w = bounds.weight_bounds(f, given)
    bound = rounding.attention(*x, dtype=dtype)
    head = stepwise_head(dO, *x, dtype)
    values["u"] = np.array([[f.sums]])
    n, m = sizes["n"], sizes["m"]
    values["theta"], values["hat P"] = head.theta, head.P
    values["t"], values["s"], values["w"] = (values["u"] * k for k in (m + 9, n + 9, n * m + 12))
    values["eta"], values["bar P"] = np.where(np.isinf(values["B"]), 0, w.eta), w.P_off
    values["bar O"], values["bar L"] = bound.O, bound.L[:, None]
    values["hat O"], values["hat L"] = head.O, head.L[:, None]
    P, P_off = bounds.factor(f, given, w)
    O, O_off = bounds.output_off(f, given, P, P_off)
    dP, values["bar U"] = bounds.weights_vjp(f, given)
    D, values["bar epsilon"] = bounds.row_statistic(f, given, w, O, O_off, dP, values["bar U"])
    values["bar F"] = bounds.scores_vjp(f, given, w, O, O_off)[1]
    values["U"], values["epsilon"] = head.dP - dP, head.D - D
    values["F"] = head.back.dB - w.P * (dP - D)
    right, off = attention_vjp(dO, *x), rounding.attention_vjp(dO, *x, dtype=dtype)
    for letter, got, want, far in zip(INPUTS, head.back, right, off):
        values[f"tilde {letter}"] = np.reshape(got - want, values[letter].shape)
        values[f"bar {letter}"] = np.reshape(far, values[letter].shape)
    moving_in_format(values, dtype, given, w)


def moving_in_format(values: dict, dtype: str, given: bounds.Inputs, w: bounds.WeightBounds) -> None:
    """Tangents in the format, what a head makes of them that rounds every step, and the bounds for that."""
    for name in INPUTS:
        values[f"dot {name}"] = rounding.nearest(values[f"dot {name}"], dtype)
    f, x = model("", dtype, None, True), (*given[:4], given.gamma)
    dots = [values[f"dot {name}"] for name in INPUTS]
    dots[-1] = dots[-1].item()
    A_dot, values["bar M"] = tangents.scores_jvp(f, given, w, *dots)
    values["mu"], values["bar nu"] = tangents.mean_jvp(f, w, A_dot, values["bar M"])
    mu, M_far, nu_far = values["mu"], values["bar M"], values["bar nu"]
    P_dot, values["bar S"] = tangents.weights_jvp(f, w, A_dot, M_far, mu, nu_far)
    values["bar N"] = tangents.output_jvp(f, given, w, dots[2], A_dot, values["bar M"])
    found = stepwise_jvp(*dots, *x, dtype)
    right = A_dot, mu, P_dot, attention_jvp(*dots, *x)
    for letter, got, want in zip(("M", "nu", "S", "N"), found, right):
        values[letter] = got - want


def far(values: dict, sizes: dict) -> None:
    """One row whose scores lie far below zero, and one a little."""
    values["B"] = values["B"] - np.array([300.0, 8.0] + [0.0] * (sizes["n"] - 2))[:, None]


def apart(values: dict, sizes: dict) -> None:
    """Rows and columns of sizes that are far apart; the scores stay as they are."""
    def powers(size: str) -> np.ndarray:
        return 16.0 ** np.arange(sizes[size])

    values["dO"] = values["dO"] / powers("n")[:, None]
    for dot in ("", "dot "):
        values[dot + "V"] = values[dot + "V"] * powers("d_v")
        values[dot + "K"], values[dot + "Q"] = values[dot + "K"] * powers("d_k"), values[dot + "Q"] / powers("d_k")
    values["B"] = values["B"] - 6.0 * np.arange(sizes["m"])


def cancelling(values: dict, sizes: dict) -> None:
    """Keys that are liked alike, values that add up to nearly nothing, and a dO along them."""
    values["Q"], values["B"] = values["Q"] / 64, 0 * values["B"]
    values["V"] = values["V"][:1] * (-1.0) ** np.arange(sizes["m"])[:, None]
    values["dO"] = abs(values["dO"]) * np.sign(values["V"][:1])


SIZES = {"n": 4, "m": 5, "d_k": 2, "d_v": 3}
OTHER = {"n": 3, "m": 4, "d_k": 5, "d_v": 2}
ERRORS = HEAD.plus(
    drawn("c, E, hat L, epsilon"), name="errors", sizes=SIZES,
    settings=(*three(306, calm, **OTHER), setting("masked", 307, calm, causal())),
)
WRONG = HEAD.plus(positive("u"), name="errors in a format", sizes=SIZES, about="u")
ROUNDING = WRONG.plus(
    positive("t, s, w") | drawn("eta, bar P, bar L, bar O, theta, hat L, hat O, hat P, U, epsilon, F")
    | drawn("bar U, bar epsilon, bar F, bar Q, bar K, bar V, bar B, bar gamma")
    | drawn("tilde Q, tilde K, tilde V, tilde B, tilde gamma, mu, M, nu, S, N, bar M, bar nu, bar S, bar N"),
    name="rounding",
    settings=(
        setting("bfloat16", 301, in_format("bfloat16")),
        setting("float32, scores far from 0", 305, far, in_format("float32")),
        setting("bfloat16, sizes far apart", 308, apart, in_format("bfloat16")),
        setting("bfloat16, values that cancel", 309, cancelling, in_format("bfloat16"), n=3, m=4, d_k=2, d_v=19),
        setting("bfloat16, masked", 303, causal(), in_format("bfloat16")),
        setting("bfloat16, masked, sizes in another order", 304, causal(), hidden("B", (-1, 0)),
                in_format("bfloat16"), n=3, m=4, d_k=5, d_v=2),
    ),
)


def exponents(values: dict, sizes: dict) -> None:
    """How far the exponents may be off."""
    f, given = rounding_of(values)
    values["eta"] = bounds.weight_bounds(f, given).eta


def statistic(values: dict, sizes: dict) -> None:
    """D from the output or from the weights, and how far it may be off."""
    f, given = rounding_of(values)
    P, O = attention_map(*given[:5])[1], attention_map(*given[:5])[3]
    dP, D = given.dO @ given.V.T, (given.dO * O).sum(1, keepdims=True)
    u, m, d_v = f.sums, sizes["m"], sizes["d_v"]
    w = bounds.weight_bounds(f, given)._replace(P=P, P_off=values["bar P"])
    far = bounds.row_statistic(f, given, w, O, values["bar O"], dP, values["bar U"].copy())[1]
    part = {k: values[k] for k in ("phi", "chi", "psi", "tau", "kappa", "rho", "omega")}
    x = given.dO * (O + part["phi"] * values["bar O"]) * np.exp((d_v + 3) * u * part["chi"])
    y = (P + part["psi"] * values["bar P"]) * (dP + part["tau"] * values["bar U"])
    x, y = (one.sum(1, keepdims=True) - D for one in (x, y * np.exp((m + 3) * u * part["kappa"])))
    z = ((1 + part["rho"]) * x + (1 - part["rho"]) * y) / 2
    values["bar epsilon"], values["epsilon"] = far, np.exp(u * part["omega"]) * (D + z) - D


def outwards(values: dict, sizes: dict) -> None:
    """Errors of dA that have its signs."""
    _, given = rounding_of(values)
    dA = attention_vjp(float64(values["dO"]), *given[:5]).dB
    values["psi"] = values["psi"] * np.sign(dA)


def tangent(values: dict, sizes: dict) -> None:
    """The tangent of the output, its weights first or its sums first, and how far it may be off."""
    f, given = rounding_of(values)
    dots = [float64(values[f"dot {name}"]) for name in INPUTS]
    dots[-1], u, m = dots[-1].item(), f.sums, sizes["m"]
    _, P, _, O = attention_map(*given[:5])
    w, M_far = bounds.weight_bounds(f, given)._replace(P=P, P_off=values["bar P"]), values["bar M"]
    A_dot = tangents.scores_jvp(f, given, w, *dots)[0]
    mu, nu_far = tangents.mean_jvp(f, w, A_dot, M_far)
    P_dot, S_far = tangents.weights_jvp(f, w, A_dot, M_far, mu, nu_far)
    O_far = bounds.output_off(f, given, *bounds.factor(f, given, w))[1]
    V, V_dot, t = given.V, dots[2], (m + 9) * u
    part = {k: values[k] for k in ("phi", "chi", "psi", "tau", "omega", "kappa", "rho", "alpha", "beta")}
    late, r = np.exp(3 * u * part["omega"]), np.exp(2 * u) * (
        w.P_off * abs(A_dot) + (P + w.P_off) * M_far) + P * abs(A_dot) * np.expm1(2 * u)
    way = np.exp((t - u) * part["chi"])
    x = late * ((P_dot + part["phi"] * S_far) * way @ V) - P_dot @ V
    y = late * ((P * A_dot + part["psi"] * r) * way @ V) - (P * A_dot) @ V + mu * O
    y -= np.exp(4 * u * part["kappa"]) * (mu + part["tau"] * nu_far) * (O + part["rho"] * O_far)
    z = late * ((P + part["phi"] * w.P_off) * np.exp(t * part["chi"]) @ V_dot) - P @ V_dot
    v = ((1 + part["beta"]) * x + (1 - part["beta"]) * y) / 2 + z
    O_dot, grown = P_dot @ V + P @ V_dot, np.exp(u * part["alpha"])
    values |= {"t": np.array([[t]]), "mu": mu, "bar nu": nu_far, "bar S": S_far, "bar O": O_far}
    values |= {"N": grown * v + (grown - 1) * O_dot,
               "bar N": tangents.output_jvp(f, given, w, V_dot, A_dot, M_far)}


def rounding_of(values: dict) -> tuple[Model, bounds.Inputs]:
    """Everything rounded to one format with this u, without underflow."""
    Q, K, V, B, gamma, dO, u = (float64(values[name]) for name in (*INPUTS, "dO", "u"))
    given, u = bounds.Inputs(Q, K, V, B, gamma.item(), R=None, dO=dO), u.item()
    return Model(u, u, u, *[0.0] * 4, exp_error=2.0, log_error=2.0), given

EXPONENT = WRONG.plus(
    drawn("phi: n m, chi: n m, psi: n m, kappa: m d_k, eta")
    | made("theta", "why:rounding_exponent"),
    name="errors of exponents",
    settings=(
        *allowed(310, "phi", "chi", "psi", "kappa", bounds=exponents, **OTHER),
        setting("all that is allowed, below zero", 334, divided(512, "u"),
                at_the_limit("phi", "chi", "psi", "kappa"), turned("psi"), turned("gamma"), full("B", -40.0),
                exponents),
    ),
)
WEIGHTS = WRONG.plus(
    positive("eta") | drawn("phi: n m, chi: n m, psi: n m, tau: n m, omega: n 1, kappa: n 1")
    | made("t, bar L, bar P", "prp:rounding_weights") | made("hat L, hat P", "why:rounding_weights"),
    name="errors of weights",
    settings=(
        *allowed(312, "phi", "chi", "psi", "tau", "omega", "kappa",
                 small=divided(64, "eta"), limit=turned("kappa"), **OTHER),
        setting("all that is allowed, and much, downwards", 335, divided(64, "u"),
                at_the_limit("phi", "chi", "psi", "tau", "omega", "kappa"), turned("psi"), turned("tau"), still),
    ),
)
OUTPUT = WRONG.plus(
    positive("t, bar P") | drawn("phi: n m, chi: n m, omega: n d_v")
    | made("bar O", "prp:rounding_output") | made("hat O", "why:rounding_output"),
    name="errors of outputs",
    settings=allowed(314, "phi", "chi", "omega", small=divided(64, "t", "bar P"), **OTHER),
)
WEIGHTS_VJP = WRONG.plus(
    drawn("phi: n m, omega: m d_v")
    | made("bar U", "prp:rounding_weights_vjp") | made("U", "why:rounding_weights_vjp"),
    name="errors of dP",
    settings=allowed(316, "phi", "omega", **OTHER),
)
STATISTIC = WRONG.plus(
    positive("bar P, bar O, bar U")
    | drawn("phi: n d_v, chi: n d_v, psi: n m, tau: n m, kappa: n m, rho: n 1, omega: n 1, epsilon, bar epsilon"),
    name="errors of D",
    settings=(
        *allowed(318, "phi", "chi", "psi", "tau", "kappa", "rho", "omega",
                 bounds=statistic, limit=turned("rho"), **OTHER),
        setting("a D that is hardly off", 340, divided(512, "u"), divided(512, "bar P", "bar O", "bar U"),
                at_the_limit("phi", "chi", "psi", "tau", "kappa", "rho", "omega"), turned("rho"), statistic),
    ),
)
SCORES_VJP = WRONG.plus(
    positive("bar P, bar U, bar epsilon")
    | drawn("phi: n m, chi: n m, psi: n m, tau: n m, kappa: n m, omega: n 1")
    | made("bar F", "prp:rounding_scores_vjp") | made("F", "why:rounding_scores_vjp"),
    name="errors of dA",
    settings=(
        *allowed(320, "phi", "chi", "psi", "tau", "kappa", "omega",
                 small=divided(64, "bar P", "bar U", "bar epsilon"), limit=turned("omega"), **OTHER),
        *both_sides(344, "V"),
    ),
)
VJP = WRONG.plus(
    positive("t, bar P, bar F")
    | drawn("phi: n m, chi: n m, psi: n m, rho: n m, omega: n d_k, kappa: m d_k, tau: m d_v")
    | made("s, bar Q, bar K, bar V, bar B", "prp:rounding_vjp")
    | made("tilde Q, tilde K, tilde V, tilde B", "why:rounding_vjp"),
    name="errors of gradients",
    settings=(
        *allowed(322, "phi", "chi", "psi", "rho", "omega", "kappa", "tau",
                 small=divided(64, "t", "bar P", "bar F"), **OTHER),
        setting("all that is allowed, the other sign", 348, divided(512, "u"), divided(64, "t", "bar P", "bar F"),
                at_the_limit("phi", "chi", "psi", "rho", "omega", "kappa", "tau"), turned("dO"), turned("phi")),
    ),
)
SCALE_VJP = WRONG.plus(
    positive("bar F") | drawn("phi: n m, chi: n m, psi: n m, kappa: m d_k, omega: number")
    | made("w, bar gamma", "prp:rounding_scale_vjp") | made("tilde gamma", "why:rounding_scale_vjp"),
    name="errors of the scale",
    settings=(
        *allowed(324, "phi", "chi", "psi", "kappa", "omega",
                 small=divided(2.0**16, "dO", "bar F"), limit=turned("dO"), **OTHER),
        setting("each dA larger in size", 338, divided(512, "u"), divided(64, "bar F"),
                at_the_limit("phi", "chi", "psi", "kappa", "omega"), outwards),
        setting("each dA larger in size, the other sign", 338, divided(512, "u"), divided(64, "bar F"),
                at_the_limit("phi", "chi", "psi", "kappa", "omega"), turned("dO"), outwards),
    ),
)
SCORES_JVP = WRONG.plus(
    drawn("phi: n m, chi: n m, psi: n m, kappa: m d_k, tau: m d_k, omega: m d_k")
    | made("bar M", "prp:rounding_scores_jvp") | made("M", "why:rounding_scores_jvp"),
    name="errors of tangents of scores",
    settings=(
        *allowed(326, "phi", "chi", "psi", "kappa", "tau", "omega", **OTHER),
        setting("all that is allowed, below zero", 342, divided(512, "u"),
                at_the_limit("phi", "chi", "psi", "kappa", "tau", "omega"),
                turned("Q"), turned("dot Q"), turned("dot B")),
    ),
)
MEAN_JVP = WRONG.plus(
    positive("t, bar P, bar M") | drawn("phi: n m, chi: n m, psi: n m, omega: n 1")
    | made("mu, bar nu", "prp:rounding_mean_jvp") | made("nu", "why:rounding_mean_jvp"),
    name="errors of means of tangents",
    settings=allowed(336, "phi", "chi", "psi", "omega", small=divided(64, "t", "bar P", "bar M"), **OTHER),
)
WEIGHTS_JVP = WRONG.plus(
    positive("bar P, bar M, bar nu")
    | drawn("phi: n m, chi: n m, psi: n m, tau: n m, kappa: n m, omega: n 1")
    | made("mu", "prp:rounding_mean_jvp")
    | made("bar S", "prp:rounding_weights_jvp") | made("S", "why:rounding_weights_jvp"),
    name="errors of tangents of weights",
    settings=(
        *allowed(330, "phi", "chi", "psi", "tau", "kappa", "omega",
                 small=divided(64, "bar P", "bar M", "bar nu"), limit=turned("omega"), **OTHER),
        *both_sides(346, "dot B"),
    ),
)
JVP = WRONG.plus(
    positive("bar P, bar M, t, bar O, bar nu, bar S")
    | drawn("phi: n m, chi: n m, psi: n m, omega: n d_v, kappa: n d_v, tau: n d_v, rho: n d_v, alpha: n d_v")
    | drawn("beta: n d_v, mu, N, bar N"),
    name="errors of tangents",
    settings=(
        *allowed(332, "phi", "chi", "psi", "tau", "omega", "kappa", "rho", "alpha", "beta",
                 bounds=tangent, **OTHER),
        setting("small tangents", 339, divided(512, "u"), divided(2.0**16, "bar M", *(f"dot {x}" for x in INPUTS)),
                at_the_limit("phi", "chi", "psi", "tau", "omega", "kappa", "rho", "alpha", "beta"),
                turned("V"), turned("dot V"), tangent),
    ),
)

CASTS = (ERRORS, ROUNDING, EXPONENT, WEIGHTS, OUTPUT, WEIGHTS_VJP, STATISTIC, SCORES_VJP, VJP, SCALE_VJP,
         SCORES_JVP, MEAN_JVP, WEIGHTS_JVP, JVP)
