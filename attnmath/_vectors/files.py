"""Test vectors for programs in any language: inputs, every letter, and how far off is allowed; as files."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import numpy as np

from attnmath import rounding
from attnmath._examine.problems.bounds import bounds
from attnmath._examine.problems.case import Case, Conventions
from attnmath._vectors.cases import VECTORS, VectorCase
from attnmath._vectors.exact import exact_letters, rounded
from attnmath._vectors.variants import VARIANTS, WEIGHTS, Variant
from attnmath._words.extras import absent

VERSION = 2  # of the numbers and of the index; another number means other vectors
LEARNED = "theta", "c", "sigma", "eta", "beta", "alpha_Q", "alpha_K", *WEIGHTS
TENSOR_ROLES = {
    **dict.fromkeys(("Q", "K", "V", "dO", "keep", "bias", "R", "X", "dY", "buckets", *LEARNED), "input"),
    **dict.fromkeys(("A", "P", "L", "dP", "D", "dA"), "intermediate"), **dict.fromkeys("OY", "output"),
    **dict.fromkeys(("dQ", "dK", "dV", "dB", "dgamma", "dX", *(f"d{x}" for x in LEARNED)), "gradient"),
}
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

Where the index has pieces, they come to this, and there are no intermediates; query i stands at
place i + m - n, key j at j, and the letters that follow are inputs with gradients of their names:

    norm     Q is alpha_Q * Q / root(mean square of the row + the number in the index), K likewise
    rotary   pair p is turned by place * theta[p]: (x, y) -> (x cos - y sin, x sin + y cos); its
             features are p and p + r for "half_split", 2 p and 2 p + 1 for "interleaved", with r
             numbers in theta; the features from 2 r on stay; after the norm
    cap      A = c tanh(scale * Q K^T / c) before bias and masks
    slopes   -eta[h] * |place of the query - place of the key| is added to A
    table    beta[h, buckets] is added to A; the buckets of the pairs are those of T5
    sinks    P = exp(A) / (exp(sigma[h]) + sum of exp(A)), so that a row sums to less than 1
    sigmoid  P = 1 / (1 + exp(-A)), 0 where A is -inf
    latent   from X (b, n, d), with W_UQ, W_UK, W_UV, W_QR, W_O for each head and row vectors:
             q = X W_DQ, c = X W_DKV; Q = q W_UQ, K = c W_UK, V = c W_UV; q W_QR and X W_KR, one
             key for all heads, are turned by theta, and A = scale * (Q K^T + turned * turned^T);
             Y is the sum of O W_O over the heads, dY its gradient

Shapes: Q, dO (b, H, n, d); K, V (b, G, m, d); A, P, dP, dA, R (b, H, n, m); L, D (b, H, n);
keep and bias have four axes and broadcast against (b, H, n, m). Arrays are in C order, little-
endian. keep: 1 = may attend. Where a key is hidden, A is -inf, and P, dP and dA are written as 0.
causal: "lower_right" hides key j from query i where j > i + m - n, "upper_left" where j > i.

index.json lists every file with its sizes, the scale (exactly this number was used), causal,
the rate of dropout, pieces, what is known of the allowed errors ("proved" or "measured"), and
each tensor with role, dtype and shape; sha256 is that of the file, and numbers that of the bytes
of all tensors but the allowed errors, in the order of their names.

What is guaranteed. The inputs are numbers of the format. From them everything was computed with
150 decimal digits, and rounded once, to nearest, ties to even: what you read is the number of the
format nearest to the true one (float16, bfloat16, float32 and float64 alike). The tensors but
those ending in _off are the same to the byte on every machine.

How far off may a program be? X_off has, for each entry of X, an error that a correct program in
this format may have: every operation rounded to the format (float16 and bfloat16: sums in
float32), in any order. Where the index says "proved" it is a bound, so usually ten to a thousand
times what you will see; an entry that is further off is wrong. Where it says "measured", as of
all cases with pieces, nothing is proved: it is eight times the largest error of three runs in
which every operation is off by a rounding, up or down by chance (angles: one of float32 at most).
Where X_off is 0, and in files whose index says "exact", only the exact number is right; in exact
files, too, every sum may be taken in any order.

buckets is int32. bfloat16 in an npz file is written as uint16, the upper half of the float32.
"""

STORED = {"float64": "<f8", "float32": "<f4", "float16": "<f2", "bool": "|b1", "int32": "<i4"}


@dataclass(frozen=True)
class Tensor:
    """Numbers of a format, as float64 or booleans."""

    values: np.ndarray
    dtype: str  # "float64", "float32", "bfloat16", "float16", "bool", "int32"

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
        raise ImportError(absent("safetensors")) from error
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
        np.savez(path, allow_pickle=False, **{name: tensors[name].stored() for name in sorted(tensors)})


WRITERS: dict[str, tuple[str, Callable[[dict[str, Tensor], Path | None], None]]] = {
    "safetensors": ("safetensors", save_safetensors),
    "npz": ("npz", save_npz),
}


class TensorEntry(TypedDict):
    """What the index says of a tensor."""

    role: str
    dtype: str
    shape: tuple[int, ...]


class FileEntry(TypedDict):
    """What the index says of a file."""

    name: str
    dtype: str
    about: str
    file: str
    sha256: str
    numbers: str
    sizes: dict[str, int]
    scale: float | None
    causal: str | None
    dropout: float
    exact: bool
    pieces: dict[str, Any]
    allowed: str
    tensors: dict[str, TensorEntry]


def write(
    folder: str | Path, form: str = "safetensors", dtypes: Sequence[str] = ("float64",),
    vectors: Sequence[VectorCase] = (*VECTORS, *VARIANTS), progress: Callable[[str], object] = str,
) -> str:
    """Write the vectors of these formats, index.json and README.txt; a sentence on what there is.

    Raises ImportError if the library for the files is not installed.
    """
    folder, (suffix, save) = Path(folder), WRITERS[form]
    save({}, None)  # the library is there, or nothing is written
    entries = []
    for dtype in dict.fromkeys(dtypes):
        (folder / dtype).mkdir(parents=True, exist_ok=True)
        for v in vectors:
            progress(f"{dtype}: {v.name}")
            tensors, path = tensors_of(v, dtype), folder / dtype / f"{v.name}.{suffix}"
            save(tensors, path)
            entries.append(entry(v, dtype, tensors, path, folder))
    (folder / "index.json").write_text(index(form, entries), "utf-8")
    (folder / "README.txt").write_text(README, "utf-8")
    size = sum((folder / e["file"]).stat().st_size for e in entries)
    return f"{len(entries)} files of {len(vectors)} cases, {size / 1e6:.1f} MB, and index.json: {folder}"


def index(form: str, entries: list[FileEntry]) -> str:
    """The entries as JSON, one a line."""
    lines = ",\n".join(map(json.dumps, entries))
    return f'{{"format": "{form}", "version": {VERSION}, "vectors": [\n{lines}\n]}}\n'


def tensors_of(v: VectorCase, dtype: str) -> dict[str, Tensor]:
    """Every tensor of a case: its numbers as float64, and the format in which they are written."""
    case, means, others = v.case(dtype), v.means, {}
    if isinstance(v, Variant):
        given, letters, off = v.given(dtype), v.solved(dtype), v.allowed(dtype)
        others = {"buckets": Tensor(v.buckets, "int32")} if "table" in v.pieces else {}
    else:
        given = dict(Q=case.Q, K=case.K, V=case.V, dO=case.dO, bias=case.bias, R=case.R)
        letters, off = exact_letters(case, means), allowed(case, means, dtype)
    found = others | {name: Tensor(x, dtype) for name, x in given.items() if x is not None}
    if case.keep is not None:
        found["keep"] = Tensor(case.keep[(None,) * (4 - case.keep.ndim)], "bool")
    found |= {name: Tensor(rounded(np.asarray(x), dtype), dtype) for name, x in letters.items()}
    found |= {f"{name}_off": Tensor(_upward(x), "float64") for name, x in off.items()}
    return found


def allowed(case: Case, means: Conventions, dtype: str) -> dict[str, np.ndarray]:
    """How far each entry may be off: the output, the log-sum-exp, the gradients."""
    off = bounds(case, means, dtype)._asdict()
    B, owner = case.B(means), case.owner(means)
    somebody = np.any(B > -np.inf, (1, 2))[:, None, :, None]
    K, V = (np.where(somebody, x, 0.0)[:, owner] for x in (case.K, case.V))
    sums = None if dtype in ("float64", "float32") else "float32"
    inputs = case.Q, K, V, B, case.scale
    off["L"] = rounding.attention(*inputs, dtype=dtype, accumulate=sums, fused=False, R=case.R).L
    back = rounding.attention_vjp(case.dO, *inputs, dtype=dtype, accumulate=sums, fused=False, R=case.R)
    off["dgamma"] = back.dgamma
    return {name: np.asarray(x) for name, x in off.items() if x is not None}


def entry(v: VectorCase, dtype: str, tensors: dict[str, Tensor], path: Path, folder: Path) -> FileEntry:
    """What the index says of a file."""
    pieces, kind = (v.said, "measured") if isinstance(v, Variant) else ({}, "proved")
    return FileEntry(
        name=v.name, dtype=dtype, about=v.words, file=path.relative_to(folder).as_posix(),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(), numbers=digest_of_tensors(tensors),
        sizes=v.named_sizes, scale=v.scale_in(dtype), causal=v.causal, dropout=v.rate, exact=v.exact,
        pieces=pieces, allowed=kind,
        tensors={
            name: TensorEntry(role=TENSOR_ROLES.get(name, "allowed error"), dtype=x.dtype, shape=x.values.shape)
            for name, x in sorted(tensors.items())
        },
    )


def digest_of_tensors(tensors: dict[str, Tensor]) -> str:
    """The SHA-256 of the bytes of all tensors but the allowed errors, in the order of their names."""
    numbers = hashlib.sha256()
    for name in sorted(tensors.keys() & TENSOR_ROLES.keys()):
        numbers.update(tensors[name].stored().tobytes())
    return numbers.hexdigest()


def _upward(x: np.ndarray) -> np.ndarray:
    """x, or a little more: eight binary digits, so that machines whose exp differs agree."""
    fraction, exponent = np.frexp(x * (1 + 2.0**-20))
    return np.ldexp(np.ceil(fraction * 256), exponent - 8)
