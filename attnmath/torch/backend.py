"""Which program computes: the strips, or on request the Triton kernels, where they take the call.

This is the one place that decides. What PyTorch's kernels do not do of the output, of first
derivatives, tangents and second derivatives, the Triton kernels do (pip install
'attnmath[gpu]'): on CUDA devices from compute capability 8.0 on, and in Triton's interpreter
(TRITON_INTERPRET=1) on a processor, in bfloat16 and float16 for heads of up to 256, in float32 of
up to 128, of second derivatives 64, above which they would spill registers. They are tested in the
interpreter and compiled ahead of time, and have not run on a GPU. What they do not take, the strips
do with the same answer; where Triton is missing, too old or fails, one warning says why.
"""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any

import torch
from torch import Tensor

from attnmath._words.extras import absent
from attnmath.torch import strips
from attnmath.torch.how import How
from attnmath.torch.philox import EIGHT
from attnmath.torch.products import Derivatives
from attnmath.torch.tiles import broadcast_leading

OLDEST = 3, 7
LARGEST_HEAD = {torch.float32: 128, torch.bfloat16: 256, torch.float16: 256}  # triton_blocks.py says why
OF_SECOND = LARGEST_HEAD | {torch.float32: 64}
FAR = 2**31  # the kernels count in 32 bits within a head
CAPABILITY = 8, 0

said: set[str] = set()  # reasons that a warning has named
failed: set[tuple] = set()  # what is not tried again


def forward(
    Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How
) -> tuple[Tensor, Tensor | None]:
    """The output; L (..., n) where a kernel has made it.  -> O (..., n, d_v), L"""
    got = tried("forward", how, Q, K, V, B, S)
    return (strips.forward(Q, K, V, B, S, how), None) if got is None else got


def vjp(
    dO: Tensor, Q: Tensor, K: Tensor, V: Tensor, B: Tensor | None, S: Tensor | None, how: How,
    *, needs: Sequence[bool],
) -> Derivatives:
    """-> dQ, dK, dV, dB, dS"""
    return with_needs("vjp", 3, needs, how, dO, Q, K, V, B, S)


def jvp(*given: Any) -> Derivatives:
    """Q_dot, K_dot, V_dot, B_dot, S_dot, Q, K, V, B, S, how -> O, O_dot"""
    *x, how = given
    got = tried("jvp", how, *x)
    return strips.jvp(*given) if got is None else got


def second(*given: Any, needs: Sequence[bool]) -> Derivatives:
    """dO_dot, Q_dot, K_dot, V_dot, B_dot, S_dot, dO, Q, K, V, B, S, how -> O_dot, dQ_dot, ..., dS_dot"""
    *x, how = given
    return with_needs("second", 4, needs, how, *x)


def with_needs(name: str, bias: int, needs: Sequence[bool], how: How, *x: Tensor | None) -> Derivatives:
    """A function of which only some results are needed; the kernels leave to the strips the gradient of a
    bias with an axis of size 1."""
    by_strips = getattr(strips, name)
    B, (n, m) = x[-2], [y.shape[-2] for y in x[-5:-3] if y is not None]
    left = tuple(need and i == bias for i, need in enumerate(needs))
    if not any(left) or B is None or B.shape[-2:] == (n, m):
        left = ()
    own = tuple(need and not (left and left[i]) for i, need in enumerate(needs))
    got = tried(name, how, *x, needs=own) if any(own) else None
    if got is None:
        return by_strips(*x, how, needs=needs)
    return (*got[:bias], by_strips(*x, how, needs=left)[bias], *got[bias + 1 :]) if left else got


def tried(name: str, how: How, *x: Tensor | None, **options: Any) -> Any:
    """What the kernels give; None where they were not asked for, do not take the call, or fail."""
    if how.backend is None:
        return None
    reason = missing()
    if reason:
        warn(reason)
        return None
    sizes = (y if y is None else (y.dtype, y.shape[-1]) for y in x[-5:])
    key = name, *sizes, how.softcap is None, not how.dropout
    if key in failed or not takes(name, how, *x):
        return None
    try:
        return program(name)(*x, how, **options)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # compilers fail in many ways
        failed.add(key)
        warn(f"{name} failed with {type(error).__name__}: {first_line(error)}")
        return None


def warn(reason: str) -> None:
    """One warning for each reason."""
    if reason not in said:
        said.add(reason)
        warnings.warn(
            f"scaled_dot_product_attention: backend 'triton' is not used: {reason}", RuntimeWarning, stacklevel=2
        )


def first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "no reason given")


@cache
def missing() -> str | None:
    """Why there are no kernels; None where there are."""
    try:
        triton: Any = import_module("triton")
    except ImportError as error:
        return absent("triton") if error.name == "triton" else f"import triton: {first_line(error)}"
    version = str(getattr(triton, "__version__", "0"))
    release = tuple(int(part) for part in version.split("+")[0].split(".")[:2] if part.isdigit())
    if release < OLDEST:
        return f"triton {version} is too old; {'.'.join(map(str, OLDEST))} or newer is needed"
    return None


def program(name: str) -> Callable:
    """The function of the kernels, which are imported when first asked for."""
    return getattr(import_module("attnmath.torch.triton_launch"), name)


def interpreted() -> bool:
    """Whether Triton's interpreter takes the place of the compiler."""
    return bool(import_module("attnmath.torch.triton_tile").INTERPRETED.value)


def takes(name: str, how: How, *x: Tensor | None) -> bool:
    """Whether the kernels can do it; Q, K, V, B, S stand last."""
    given = [y for y in x if y is not None]
    Q, K, V = (y for y in x[-5:-2] if y is not None)
    lead, (n, d_k), (m, d_v) = broadcast_leading(*given), Q.shape[-2:], V.shape[-2:]
    largest = OF_SECOND if name == "second" else LARGEST_HEAD
    if max(d_k, d_v) > largest.get(Q.dtype, 0) or 0 in (*lead, n, m, d_k, d_v):
        return False
    if any(1 + sum((a - 1) * b for a, b in zip(y.shape[-2:], y.stride()[-2:])) >= FAR for y in given):
        return False
    heads = torch.Size(lead).numel()
    if max(n, m) * max(d_k, d_v) >= FAR or heads * (n + 15) * (m + 15) >= 256 * FAR and x[-2] is not None:
        return False
    if how.dropout and (min(how.first_row, how.first_key) < 0 or how.first_row + n > EIGHT * 2**32
                        or how.first_key + m > 2**32):
        return False
    if Q.device.type != "cuda":
        return Q.device.type == "cpu" and interpreted()
    return torch.version.cuda is not None and torch.cuda.get_device_capability(Q.device) >= CAPABILITY
