"""Attention whose tokens are spread over the processes of a group, differentiable in every direction."""

from math import prod
from typing import Any, NoReturn

import torch
from torch import Tensor

from attnmath.torch.asked import NAME as OF_ONE
from attnmath.torch.asked import TENSOR_DTYPES, check_call
from attnmath.torch.how import How
from attnmath.torch.layouts import LAYOUTS, positions
from attnmath.torch.ring_messages import NAME, Link, number_of
from attnmath.torch.ring_passes import Attention
from attnmath.torch.ring_tiles import Call
from attnmath.torch.sdpa import canonical, cast, scaled_dot_product_attention, slopes_and_sinks
from attnmath.torch.tiles import broadcast_leading

Layout = str | tuple[Tensor, Tensor]
MODULUS = 2**60  # of sums of squares, which have to fit into 64 bits
FAR = 2**60  # beyond any key


@torch.compiler.disable
def ring_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0, is_causal: bool = False, scale: float | None = None, enable_gqa: bool = False, *,
    group: Any = None, layout: Layout = "contiguous", softcap: float | None = None,
    sinks: torch.Tensor | None = None, window: tuple[int | None, int | None] | None = None,
) -> torch.Tensor:
    """scaled_dot_product_attention of a sequence whose tokens are spread over processes.

    On rank r: query (..., n_r, d_k), key (..., m_r, d_k), value (..., m_r, d_v), attn_mask
    boolean, broadcasting to (..., n_r, m), sinks (..., H) -> (..., n_r, d_v)

    Every process of a group of torch.distributed calls it at the same time, with its own
    queries, keys and values; n and m are the sums of the n_r and m_r. It returns its own
    rows. The arguments, but for three, mean what they mean in attnmath.torch's
    scaled_dot_product_attention, of the whole sequence.
    group: the processes; None is all of them.
    layout: which places in the sequence a rank's tokens have. "contiguous": part r of as
    many as there are ranks. "zigzag": parts r and 2 R - 1 - r of 2 R for R ranks, so that a
    causal mask leaves all about the same work. Parts differ by a token at most, those with
    more come first. Or the places themselves, two tensors in int64, (n_r,) of the queries
    and (m_r,) of the keys.
    attn_mask: this rank's rows of the mask, with the columns in the order of the sequence.

    Blocks of keys and values go round, as messages from each rank to the next, so that a
    rank's memory grows with n_r + m_r; memory and messages are counted in the chapter ring.
    It has derivatives backward and forward, of every order, in every order (torch.autograd,
    its forward_ad, torch.func with vmap), in which all ranks have to take part, in the same
    order and with what needs a gradient alike. torch.compile leaves it as it is. A loss is
    the sum of the ranks' losses; the gradient of a tensor that all ranks have a copy of, as
    of sinks, is each rank's part of it. Dropout has one seed, drawn from the default
    generator of rank 0, and drops what it drops in one process. A group of one is
    scaled_dot_product_attention.
    Raises TypeError and ValueError as there, for a floating attn_mask, for a layout
    that does not fit to the lengths, and for a process that is not in the group; RuntimeError
    without a process group, and, on each rank, where ranks do not fit to each other, or
    where one is not heard of within the group's time limit.
    Derived in chapters/ring.md, prp:ring_gradients.
    """
    link = Link(group)
    options = dropout_p, is_causal, scale, enable_gqa, softcap, sinks, window
    with link.before_agreement():
        query, key, value = cast(query, key, value)
        check(query, key, value, attn_mask, options, layout)
    if link.size == 1 and isinstance(layout, str):
        return scaled_dot_product_attention(
            query, key, value, attn_mask, *options[:4], softcap=softcap, sinks=sinks, window=window
        )
    return spread(link, query, key, value, attn_mask, options, layout)


def spread(
    link: Link, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: tuple, layout: Layout
) -> Tensor:
    """The same of checked arguments."""
    enable_gqa, sinks = options[3], options[5]
    tensors = canonical(query, key, value, mask, slopes_and_sinks(None, sinks), enable_gqa)
    if not enable_gqa:
        tensors = [x if x is None else x.unsqueeze(-3) for x in tensors]
    Q, K, V, mask, S = tensors
    lead = broadcast_leading(Q, K, V)  # the last: heads that share keys
    call = agreed(link, Q, K, V, mask, lead, options, layout)
    own, h, g = lead[:-1], prod(lead[:-1]), lead[-1]
    Q = Q.expand(*lead, *Q.shape[-2:]).reshape(h, g, *Q.shape[-2:])
    if mask is not None:
        mask = mask.expand(*own, *mask.shape[-3:]) if prod(mask.shape[:-3]) > 1 else mask
        mask = mask.reshape(-1, *mask.shape[-3:])
    K, V = (x[..., 0, :, :].expand(*own, *x.shape[-2:]).reshape(h, *x.shape[-2:]) for x in (K, V))
    O, l, c = Attention.apply(call, mask, Q, K, V)
    if S is not None:
        O = with_sinks(O, c + l, S[..., 1:].expand(*lead, 1, 1).reshape(h, g, 1, 1))
    O = O.to(query.dtype).view(*lead, *O.shape[-2:])
    O = O.flatten(-4, -3) if enable_gqa else O.squeeze(-3)
    return O[0] if max(x.ndim for x in (query, key, value)) == 2 else O


def with_sinks(O: Tensor, L: Tensor, s: Tensor) -> Tensor:
    """One more key with the score s and the value 0 takes a share of each row: O exp(L) / (exp(L) + exp(s))."""
    empty = L == -torch.inf
    share = torch.sigmoid(L.masked_fill(empty, 0) - s.to(L.dtype))
    return O * share.masked_fill(empty, 0)


def check(query: Any, key: Any, value: Any, mask: Any, options: tuple, layout: Any) -> None:
    """Raises TypeError or ValueError for what this rank alone can see."""
    try:
        check_call(query, key, value, None, *(*options, None, None))
    except (TypeError, ValueError) as error:
        raise type(error)(str(error).replace(OF_ONE, NAME, 1)) from None
    lengths = query.shape[-2], key.shape[-2]
    if isinstance(layout, str):
        if layout not in LAYOUTS:
            refuse(ValueError, f"layout is {layout!r}", f"one of {', '.join(map(repr, LAYOUTS))}, or two tensors")
    elif not isinstance(layout, tuple | list) or [isinstance(x, Tensor) for x in layout] != [True, True]:
        refuse(TypeError, f"layout is a {type(layout).__name__}", "a name, or the places of queries and of keys")
    else:
        for name, x, n in zip(("queries", "keys"), layout, lengths):
            if x.dtype != torch.int64 or x.shape != (n,) or x.layout != torch.strided or x.device.type == "meta":
                got = f"layout gives the {name} places of dtype {x.dtype} and shape {tuple(x.shape)}"
                refuse(ValueError, got, f"a dense tensor of torch.int64 and shape ({n},)")
    if mask is None:
        return
    if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
        got = f"dtype {mask.dtype}" if isinstance(mask, Tensor) else f"type {type(mask).__name__}"
        refuse(TypeError, f"attn_mask has {got}", "torch.bool (True: may attend)")
    if mask.device != query.device or mask.layout != torch.strided:
        refuse(ValueError, f"attn_mask is on {mask.device}, {mask.layout}", f"to be dense and on {query.device}")
    if options[1]:
        refuse(ValueError, "attn_mask is given with is_causal=True", "one of the two")
    leads = [query.shape[:-2]] if options[3] else [x.shape[:-2] for x in (query, key, value)]
    need = (*torch.broadcast_shapes(*leads), lengths[0])
    if mask.ndim > len(need) + 1 or any(a not in (1, b) for a, b in zip(mask.shape[-2::-1], need[::-1])):
        needs = f"a shape that broadcasts to {need} and a column for each key of all ranks"
        refuse(ValueError, f"attn_mask has shape {tuple(mask.shape)}", needs)


def refuse(error: type[Exception], found: str, need: str) -> NoReturn:
    raise error(f"{NAME}: {found}; it needs {need}")


def agreed(
    link: Link, Q: Tensor, K: Tensor, V: Tensor, mask: Tensor | None, lead: tuple, options: tuple, layout: Layout
) -> Call:
    """The constants of a call, after all ranks have compared theirs.

    Raises ValueError, on all of them, for a layout or a mask that does not fit to the
    lengths of some rank.
    """
    dropout_p, is_causal, scale, enable_gqa, softcap, sinks, window = options
    with link.before_agreement():
        scale = float(Q.shape[-1]) ** -0.5 if scale is None else float(scale)
        softcap = None if softcap is None else float(softcap)
        window = [x if x is None else min(int(x), FAR) for x in window or (None, None)]
        how = How(scale, bool(is_causal), float(dropout_p), None, softcap, *window)
        alike = {
            "dtype": TENSOR_DTYPES.index(Q.dtype), "lead": number_of(*lead),
            "d_k": Q.shape[-1], "d_v": V.shape[-1],
            "layout": LAYOUTS.index(layout) if isinstance(layout, str) else len(LAYOUTS),
            "options": number_of(how, bool(enable_gqa), sinks is None, mask is None),
        }  # fmt: skip
        places = () if isinstance(layout, str) else layout
        own = dict(
            n=Q.shape[-2], m=K.shape[-2], columns=1 if mask is None else mask.shape[-1],
            seed=int(torch.randint(2**63 - 1, ())) if dropout_p and link.rank == 0 else 0,
            places=sum(int(x.sum()) for x in places), squares=sum(int((x * x).sum()) for x in places) % MODULUS,
        )  # fmt: skip
    found = link.agree(**alike, **own)
    n, m = sum(found["n"]), sum(found["m"])
    check_all(found, n, m, layout)
    shape = prod(lead[:-1]), lead[-1]
    seed, keys = found["seed"][0], tuple(found["m"])
    return Call(link, how, seed, layout, n, m, keys, shape, Q.device, tuple(alike.items()))


def check_all(found: dict, n: int, m: int, layout: Layout) -> None:
    """Raises ValueError where the lengths of the ranks, the layout and the masks do not fit together."""
    ranks = len(found["n"])
    for rank, columns in enumerate(found["columns"]):
        if columns not in (1, m):
            got = f"attn_mask has {columns} columns on rank {rank}"
            refuse(ValueError, got, f"{m}, one for each key of all ranks")
        for side, total, of in (("n", n, "queries"), ("m", m, "keys")):
            size = found[side][rank]
            need = len(positions(layout, total, ranks, rank)) if isinstance(layout, str) else size
            if size != need:
                refuse(ValueError, f"rank {rank} has {size} of {total} {of}", f"{need} in the layout {layout!r}")
    sums = n * (n - 1) // 2 + m * (m - 1) // 2
    squares = sum(x * (x - 1) * (2 * x - 1) // 6 for x in (n, m)) % MODULUS
    if not isinstance(layout, str) and (sum(found["places"]), sum(found["squares"]) % MODULUS) != (sums, squares):
        refuse(ValueError, "layout leaves places out, or has some twice", "each place of the sequence on one rank")
