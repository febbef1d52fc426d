"""Self-attention: the same tokens ask and answer, and their gradients meet again."""

from typing import Annotated, Generic, NamedTuple

from attnmath._formulas.heads import MultiheadMap, Results, Weights, multihead, multihead_jvp, multihead_vjp
from attnmath._given.checked import checked
from attnmath._given.letters import HeadsBias, HeadsFactors, HeadsScale, HeadsScaleGradient, Kind, Tokens

OwnWeights = Annotated[Weights[Kind], "d_z = d"]
OwnMap = Annotated[MultiheadMap[Kind], "Z = X", "m = n"]
OwnBias = Annotated[HeadsBias[Kind], "m = n"]
OwnFactors = Annotated[HeadsFactors[Kind], "m = n"]


class SelfAttentionGradients(NamedTuple, Generic[Kind]):
    """The gradients of self_attention, each of its argument's shape; or None for dB."""

    dX: Tokens[Kind]
    dW: OwnWeights[Kind]
    dB: OwnBias[Kind] | None
    dgamma: HeadsScaleGradient[Kind]


@checked
def self_attention(
    X: Tokens[Kind], W: OwnWeights[Kind],
    B: OwnBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, R: OwnFactors[Kind] | None = None,
) -> Results[Kind]:
    """The output of a layer whose queries, keys and values come from the same tokens.

    X (..., n, d), W Weights, B (..., H, n, n), gamma () or (H,), R (..., H, n, n)
    -> Y (..., n, d)

    Conditions and errors as for multihead_map, with X for Z.
    Derived in chapters/inputs.md, eq:self_attention.
    """
    return multihead(X, X, W, B, gamma, R=R)


@checked
def self_attention_vjp(
    dY: Results[Kind],
    X: Tokens[Kind], W: OwnWeights[Kind],
    B: OwnBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, R: OwnFactors[Kind] | None = None,
    given: OwnMap[Kind] | None = None,
) -> SelfAttentionGradients[Kind]:
    """The gradients of the loss in all inputs: in the tokens, the sum of all paths.

    dY (..., n, d), X (..., n, d), W Weights, B (..., H, n, n), gamma () or (H,),
    R (..., H, n, n), given MultiheadMap
    -> dX, dW, dB, dgamma, each of the shape of its argument

    dX is the sum of what returns through the queries, the keys and the values. Given is
    what multihead_map(X, X, W, B, gamma, R=R) returned. Conditions and errors as for
    multihead_map, with X for Z.

    >>> import numpy as np
    >>> from attnmath import Weights, bias, causal_mask, self_attention_vjp
    >>> shapes = (3, 6, 2), (3, 6, 2), (3, 6, 4), (3, 4, 6)  # three heads, d = 6
    >>> W = Weights(*(np.ones(shape) for shape in shapes))
    >>> X, dY = np.ones((5, 6)), np.ones((5, 6))
    >>> gradients = self_attention_vjp(dY, X, W, bias(causal_mask(5, 5), like=X))
    >>> gradients.dX.shape, gradients.dW.W_Q.shape
    ((5, 6), (3, 6, 2))

    Derived in chapters/inputs.md, eq:self_attention_vjp.
    """
    dX, dZ, dW, dB, dgamma = multihead_vjp(dY, X, X, W, B, gamma, R=R, given=given)
    return SelfAttentionGradients(dX + dZ, dW, dB, dgamma)


@checked
def self_attention_jvp(
    X_dot: Tokens[Kind] | None, W_dot: OwnWeights[Kind] | None,
    B_dot: OwnBias[Kind] | None, gamma_dot: HeadsScale | None,
    X: Tokens[Kind], W: OwnWeights[Kind],
    B: OwnBias[Kind] | None = None, gamma: HeadsScale | None = None,
    *, R: OwnFactors[Kind] | None = None,
) -> Results[Kind]:
    """The tangent of the output of self_attention, from those of all its arguments.

    X_dot (..., n, d), W_dot Weights, B_dot (..., H, n, n), gamma_dot () or (H,), then
    the arguments of self_attention -> Y_dot (..., n, d)

    A tangent has the shape of its argument; None is zero, also in W_dot. Conditions and
    errors as for multihead_map, with X for Z.
    Derived in chapters/inputs.md, eq:self_attention_jvp.
    """
    dots = X_dot, X_dot, W_dot, B_dot, gamma_dot
    return multihead_jvp(*dots, X, X, W, B, gamma, R=R)
