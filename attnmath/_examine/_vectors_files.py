"""How test vectors are written: safetensors or npz, and a text for those who read them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

README = """\
Test vectors for the gradients of attention
===========================================

For each query head h, and its head of keys and values g = h // (H / G):

    A  = scale * Q K^T + bias, and -inf where keep is false or a causal mask hides the key
    P  = softmax of each row of A; a row that is -inf everywhere has P = 0, O = 0, L = -inf
    L  = log of the sum of exp of each row of A (natural logarithm)
    O  = (P * R) V;  R is 0 or 1 / (1 - rate), given; without R it is 1
    dP = (dO V^T) * R,  D = row sums of P * dP,  dA = P * (dP - D)
    dQ = scale * dA K,  dK = scale * dA^T Q,  dV = (P * R)^T dO, over the query heads of g
    dB = dA summed to the shape of bias,  dgamma = sum of dA * (Q K^T): the scale's gradient

Shapes: Q, dO (b, H, n, d); K, V (b, G, m, d); A, P, dP, dA, R (b, H, n, m); L, D (b, H, n);
keep and bias have four axes and broadcast against (b, H, n, m). Arrays are in C order, little-
endian. keep: 1 = may attend. Where a key is hidden, A is -inf, and P, dP and dA are written as 0.
causal: "lower_right" hides key j from query i where j > i + m - n, "upper_left" where j > i.

index.json lists every file with its sizes, the scale (exactly this number was used), causal,
the rate of dropout, and each tensor with role, dtype and shape; sha256 is that of the file, and
numbers that of the bytes of all tensors but the allowed errors, in the order of their names.

What is guaranteed. The inputs are numbers of the format. From them everything was computed with
150 decimal digits, and rounded once, to nearest, ties to even: what you read is the number of the
format nearest to the true one (float16, bfloat16, float32 and float64 alike). The tensors but
those ending in _off are the same to the byte on every machine.

How far off may a program be? X_off has, for each entry of X, an error that a correct program in
this format may have: every operation rounded to the format (float16 and bfloat16: sums in
float32), in any order. It is a proved bound, so usually ten to a thousand times what you will see;
an entry that is further off is wrong. Where X_off is 0, and in files whose index says "exact", only
the exact number is right; in exact files, too, every sum may be taken in any order.

bfloat16 in an npz file is written as uint16, the upper half of the float32.
"""

STORED = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bool": "|b1"}


@dataclass(frozen=True)
class Tensor:
    """Numbers of a format, as float64 or booleans."""

    values: np.ndarray
    dtype: str  # "float64", "float32", "bfloat16", "float16", "bool"

    def stored(self) -> np.ndarray:
        """The numbers in their format; bfloat16 as uint16."""
        if self.dtype == "bfloat16":
            x = np.ascontiguousarray(self.values, "<f4")
            return (x.view("<u4") >> np.uint32(16)).astype("<u2").reshape(self.values.shape)
        return np.ascontiguousarray(self.values).astype(STORED[self.dtype]).reshape(self.values.shape)


def save_safetensors(tensors: dict[str, Tensor], path: Path | None) -> None:
    """Write a file; with no path, only see that the library is there."""
    try:
        from safetensors import TensorSpec, serialize_file
    except ImportError as error:
        raise ImportError("safetensors is not installed: pip install 'attnmath[vectors]'") from error
    if path is None:
        return
    arrays = {name: tensors[name].stored() for name in sorted(tensors)}  # alive while it is written
    specs = {
        name: TensorSpec(dtype=tensors[name].dtype, shape=x.shape, data_ptr=x.ctypes.data, data_len=x.nbytes)
        for name, x in arrays.items()
    }
    serialize_file(specs, path)


def save_npz(tensors: dict[str, Tensor], path: Path | None) -> None:
    """Write a file of NumPy; bfloat16 as uint16."""
    if path is not None:
        np.savez(path, **{name: tensors[name].stored() for name in sorted(tensors)})


WRITERS: dict[str, tuple[str, Callable[[dict[str, Tensor], Path | None], None]]] = {
    "safetensors": ("safetensors", save_safetensors),
    "npz": ("npz", save_npz),
}
