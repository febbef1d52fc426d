"""One attention head that drops some of its weights, and its derivatives."""

from typing import Annotated

from attnmath._formulas.attention import AttentionGradients, attention, attention_jvp, attention_vjp
from attnmath._given.checked import checked
from attnmath._given.letters import AnyArray, Bias, Factors, Keys, Kind, Outputs, Queries, Scale, Values, rate
from attnmath._words.arrays import reached


@checked
def dropout_mask(
    U: Annotated[Kind, "...", rate],
    rho: Annotated[AnyArray | float, "()", rate],
) -> Annotated[Kind, "..."]:
    """The factors of the weights: 0 at the rate rho, 1 / (1 - rho) for the others.

    U (...), rho () -> R (...)

    U are uniform draws from [0, 1), made by the caller: the same U gives the same R
    again. Raises TypeError unless U is an array of floating-point numbers, ValueError
    for draws outside of [0, 1) and for a rate outside of it.
    Derived in chapters/dropout.md, eq:dropout_mask.
    """
    return reached(U, rho) / (1 - rho)


@checked
def dropout_attention(
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The output of a head whose weights are multiplied by R, entry by entry.

    Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m), gamma (),
    R (..., n, m) -> O (..., n, d_v)

    The same as attention with its R. The rows of P * R need not sum to 1. Conditions
    and errors as for attention_map.
    Derived in chapters/dropout.md, eq:dropout_attention.
    """
    return attention(Q, K, V, B, gamma, R=R)


@checked
def dropout_attention_vjp(
    dO: Outputs[Kind],
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> AttentionGradients[Kind]:
    """The gradients of the loss in all inputs of a head, with the R of the way forward.

    dO (..., n, d_v), Q (..., n, d_k), K (..., m, d_k), V (..., m, d_v), B (..., n, m),
    gamma (), R (..., n, m) -> dQ, dK, dV, dB, dgamma, each of the shape of its argument

    The same as attention_vjp with its R.
    Derived in chapters/dropout.md, eq:dropout_attention_vjp.
    """
    return attention_vjp(dO, Q, K, V, B, gamma, R=R)


@checked
def dropout_attention_jvp(
    Q_dot: Queries[Kind] | None, K_dot: Keys[Kind] | None,
    V_dot: Values[Kind] | None, B_dot: Bias[Kind] | None, gamma_dot: Scale | None,
    Q: Queries[Kind], K: Keys[Kind], V: Values[Kind],
    B: Bias[Kind] | None = None, gamma: Scale | None = None,
    *, R: Factors[Kind] | None = None,
) -> Outputs[Kind]:
    """The tangent of the output of a head with dropout, from those of all its inputs.

    Q_dot (..., n, d_k), K_dot (..., m, d_k), V_dot (..., m, d_v), B_dot (..., n, m),
    gamma_dot (), then the arguments of dropout_attention -> O_dot (..., n, d_v)

    The same as attention_jvp with its R.
    Derived in chapters/dropout.md, eq:dropout_attention_jvp.
    """
    dots = Q_dot, K_dot, V_dot, B_dot, gamma_dot
    return attention_jvp(*dots, Q, K, V, B, gamma, R=R)
