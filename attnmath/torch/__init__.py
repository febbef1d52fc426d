"""For PyTorch: attention with all its derivatives; weights out of its layer and back.

sdpa       scaled_dot_product_attention
patched    the same in the place of PyTorch's, and of that of transformers' models
asked      what it may be given
functions  a head and its derivatives, as functions that PyTorch differentiates
operators  the same as operators, which PyTorch records as one
kernels    first derivatives by PyTorch's own kernels, where these are right
backend    the strips, or on request the Triton kernels
triton_launch   calls of the Triton kernels, imported when they are asked for
triton_blocks   how large a tile is
triton_forward  the output with its log-sum-exp, and with its tangent
triton_rows     the tangents of the output and of the gradient of the queries
triton_columns  the tangents of the gradients of keys, values and a bias
triton_entries  what the last two do entry by entry
triton_tile     one tile: what is read, capped, added, hidden and dropped there
strips     to second order, strip by strip of the rows
higher     of every order, strip by strip
ring       ring_attention: tokens spread over processes; its messages, passes and tiles
layouts    which tokens stand on which
products   sums over the keys, products and their factors
tiles      what a call is cut into
philox     the factors of dropout, from counters
scores     one tile: what is capped, added, hidden and dropped there
how        what stands beside the tensors: constants, what all functions have in common
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np
from array_api_compat import is_array_api_obj, is_torch_array

from attnmath._formulas.heads import Weights
from attnmath._given.kinds import what
from attnmath._words.arrays import is_complex, number_type
from attnmath._words.extras import absent

try:
    import torch
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(f"attnmath.torch: {absent('torch')}", name="torch") from None

if TYPE_CHECKING:
    from attnmath.torch.patched import patched_attention
    from attnmath.torch.ring import ring_attention
    from attnmath.torch.sdpa import scaled_dot_product_attention

__all__ = ["load_weights", "patched_attention", "ring_attention", "scaled_dot_product_attention", "weights_from"]
PLACES = {"patched_attention": "patched", "ring_attention": "ring", "scaled_dot_product_attention": "sdpa"}


if not TYPE_CHECKING:

    def __getattr__(name):
        """Attention is imported when it is asked for: it imports PyTorch's compiler."""
        if name not in __all__:
            here = import_module(__name__)
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}", name=name, obj=here)
        return getattr(import_module(f"attnmath.torch.{PLACES[name]}"), name)


def __dir__() -> list[str]:
    return __all__


def weights_from(module: torch.nn.MultiheadAttention) -> Weights[torch.Tensor]:
    """The weights of PyTorch's layer, as multihead takes them.

    module with embed_dim d, num_heads H, kdim = vdim = d_z
    -> W_Q (H, d, d/H), W_K (H, d_z, d/H), W_V (H, d_z, d/H), W_O (H, d/H, d),
    b_Q (H, d/H), b_K (H, d/H), b_V (H, d/H), b_O (d,); None for a module without biases

    The numbers are copied: what is done to the module later does not reach them. With
    them, multihead(X, Z, W, B) is what the module returns for the queries X, and Z as
    keys and values, the batch first, without dropout. Raises TypeError for another
    kind of module; ValueError for a module with kdim unlike vdim, with add_bias_kv or
    add_zero_attn.
    Derived in chapters/heads.md.
    """
    _check("weights_from", module)
    H, d_k = module.num_heads, module.head_dim

    def heads(W: torch.Tensor) -> torch.Tensor:
        return W.detach().reshape(H, d_k, -1).mT.clone()

    if module.in_proj_weight is None:
        inputs = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    else:
        inputs = module.in_proj_weight.chunk(3)
    W_Q, W_K, W_V = map(heads, inputs)
    W_O = module.out_proj.weight.detach().T.reshape(H, d_k, -1).clone()
    if module.in_proj_bias is None:
        return Weights(W_Q, W_K, W_V, W_O)
    b_Q, b_K, b_V = module.in_proj_bias.detach().reshape(3, H, d_k).clone()
    b_O = module.out_proj.bias.detach().clone()
    return Weights(W_Q, W_K, W_V, W_O, b_Q, b_K, b_V, b_O)


def load_weights(module: torch.nn.MultiheadAttention, W: Weights) -> None:
    """Write weights into PyTorch's layer, which from then on computes multihead.

    module with embed_dim d, num_heads H, kdim = vdim = d_z; W_Q (H, d, d/H),
    W_K (G, d_z, d/H), W_V (G, d_z, d/H), W_O (H, d/H, d), b_Q (H, d/H), b_K (G, d/H),
    b_V (G, d/H), b_O (d,) -> None

    The numbers are converted to the module's dtype. Heads that share keys and values
    get a copy each, since the module has as many of both as of queries; a bias of None
    becomes zero. Raises what weights_from raises, and, before anything is written,
    ValueError for a wrong shape and for a bias that the module has no place for.
    Derived in chapters/heads.md.
    """
    _check("load_weights", module)
    own = weights_from(module)
    if not isinstance(W, tuple) or getattr(W, "_fields", None) != Weights._fields:
        raise TypeError(
            f"load_weights: W is a {type(W).__name__}; it needs to be Weights, a named"
            f" tuple of {', '.join(Weights._fields)}"
        )
    new: Any = Weights._make(map(_fitting, Weights._fields, W, own))
    with torch.no_grad():
        d, rows = module.embed_dim, [w.mT.flatten(0, 1) for w in new[:3]]
        if module.in_proj_weight is None:
            module.q_proj_weight.copy_(rows[0])
            module.k_proj_weight.copy_(rows[1])
            module.v_proj_weight.copy_(rows[2])
        else:
            module.in_proj_weight.copy_(torch.cat(rows))
        module.out_proj.weight.copy_(new.W_O.reshape(d, d).T)
        if module.in_proj_bias is not None:
            module.in_proj_bias.copy_(torch.cat([b.flatten() for b in new[4:7]]))
            module.out_proj.bias.copy_(new.b_O)


def _check(function: str, module: object) -> None:
    """The module is PyTorch's layer, and computes nothing but multihead."""
    if not isinstance(module, torch.nn.MultiheadAttention):
        raise TypeError(
            f"{function}: module is a {type(module).__name__}; it needs to be a"
            " torch.nn.MultiheadAttention"
        )
    if module.kdim != module.vdim:
        raise ValueError(
            f"{function}: module has kdim {module.kdim} and vdim {module.vdim}; they"
            " need to be equal, since keys and values come from the same Z"
        )
    for name, there in (
        ("add_bias_kv", module.bias_k is not None),
        ("add_zero_attn", module.add_zero_attn),
    ):
        if there:
            raise ValueError(
                f"{function}: module has {name}; it needs to be without, since"
                " multihead has no token of its own among the keys"
            )


def _fitting(name: str, w: Any, own: torch.Tensor | None) -> torch.Tensor | None:
    """w as a tensor like the module's own, a copy for each head."""
    if own is None and w is None:
        return None
    is_real = is_array_api_obj(w) and number_type(w).is_floating and not is_complex(w)
    if w is not None and not is_real:
        raise TypeError(
            f"load_weights: W.{name} {what(w)}; it needs to be an array of real"
            " floating-point numbers"
        )
    if own is None:
        raise ValueError(
            f"load_weights: W.{name} has shape {tuple(w.shape)}; it needs to be None,"
            " since the module has no biases"
        )
    if w is None and name.startswith("b_"):
        return torch.zeros_like(own)
    if w is None:
        raise ValueError(
            f"load_weights: W.{name} is None; it needs the shape {tuple(own.shape)}"
        )
    w = w if is_torch_array(w) else np.array(w)  # a copy: torch takes no negative strides
    w = torch.as_tensor(w, device=own.device)
    shape, H = tuple(w.shape), own.shape[0]
    if name[2:] in "KV" and shape and shape[0]:
        w = w.repeat_interleave(H // shape[0], dim=0)
    if w.shape != own.shape:
        raise ValueError(
            f"load_weights: W.{name} has shape {shape}; it needs {tuple(own.shape)}, to"
            " match the module"
        )
    return w
