"""The transformer that is trained by hand, built out of PyTorch's own modules.

It knows no formula of this book: torch.nn.Transformer computes, autograd differentiates.
"""

import warnings
from typing import Any

from attnmath._sequences import Batch
from attnmath._training import Model


def twin(model: Model) -> Any:
    """A torch.nn.Module with the weights of the model."""
    import torch

    (tokens, d), (d_u,) = model.encoder.embedding.shape, model.encoder.network.b_U.shape
    net, double = torch.nn.Module(), dict(dtype=torch.float64)
    with warnings.catch_warnings():  # it says that it will not use a fast path
        warnings.simplefilter("ignore")
        net.transformer = torch.nn.Transformer(
            d, len(model.encoder.own.W_Q), 1, 1, d_u, 0.0, torch.nn.functional.silu,
            norm_first=True, batch_first=True, **double,
        )
    net.embedding_Z, net.embedding_X = (
        torch.nn.Linear(tokens, d, bias=False, **double) for _ in "ZX"
    )
    net.places_Z, net.places_X = (
        torch.nn.Parameter(torch.empty(half.places.shape, **double)) for half in model
    )
    net.last = torch.nn.Linear(d, tokens, **double)
    load(net, model)
    return net


def load(net: Any, model: Model) -> None:
    """Write the weights, or anything that has their places, into the module."""
    from attnmath.torch import load_weights

    E, D = net.transformer.encoder, net.transformer.decoder
    (e,), (d,), (encoder, decoder) = E.layers, D.layers, model
    load_weights(e.self_attn, encoder.own)
    load_weights(d.self_attn, decoder.own)
    load_weights(d.multihead_attn, decoder.cross)
    network = encoder.network, decoder.network
    pairs = [
        (net.embedding_Z, encoder.embedding.T), (net.embedding_X, decoder.embedding.T),
        (e.norm1, *encoder.norm_1), (e.norm2, *encoder.norm_2), (E.norm, *encoder.norm_3),
        (d.norm1, *decoder.norm_1), (d.norm2, *decoder.norm_2), (d.norm3, *decoder.norm_3),
        (D.norm, *decoder.norm_4), (net.last, decoder.W.T, decoder.b),
        (e.linear1, network[0].W_U.T, network[0].b_U), (e.linear2, network[0].W_D.T, network[0].b_D),
        (d.linear1, network[1].W_U.T, network[1].b_U), (d.linear2, network[1].W_D.T, network[1].b_D),
    ]
    for module, *arrays in pairs:
        for parameter, array in zip((module.weight, getattr(module, "bias", None)), arrays):
            _write(parameter, array)
    _write(net.places_Z, encoder.places)
    _write(net.places_X, decoder.places)


def _write(parameter: Any, array: Any) -> None:
    parameter.data.copy_(parameter.new_tensor(array))


def loss_of(net: Any, data: Batch) -> Any:
    """The loss as PyTorch computes it; its masks say True where nobody may attend."""
    import torch

    Z, X, E = (torch.as_tensor(x) for x in data[:3])
    hidden, n = ~Z.any(-1), X.shape[1]
    Y = net.transformer(
        net.embedding_Z(Z) + net.places_Z, net.embedding_X(X) + net.places_X,
        tgt_mask=torch.ones(n, n, dtype=torch.bool).triu(1),
        src_key_padding_mask=hidden, memory_key_padding_mask=hidden,
    )
    A, answers = net.last(Y), torch.where(E.any(-1), E.argmax(-1), -1)
    return torch.nn.functional.cross_entropy(A.mT, answers, ignore_index=-1)
