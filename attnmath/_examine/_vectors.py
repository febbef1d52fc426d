"""Test vectors for programs in any language: inputs, every letter, and how far off is allowed."""

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from attnmath import rounding
from attnmath._examine._bounds import bounds
from attnmath._examine._case import Case, Conventions
from attnmath._examine._vectors_cases import Vector
from attnmath._examine._vectors_exact import letters, rounded
from attnmath._examine._vectors_files import README, WRITERS, Tensor

VERSION = 1  # of the numbers and of the index; another number means other vectors
ROLES = {
    **dict.fromkeys(("Q", "K", "V", "dO", "keep", "bias", "R"), "input"),
    **dict.fromkeys(("A", "P", "L", "dP", "D", "dA"), "intermediate"), "O": "output",
    **dict.fromkeys(("dQ", "dK", "dV", "dB", "dgamma"), "gradient"),
}  # fmt: skip


def write(
    folder: str | Path, form: str = "safetensors", dtypes: Sequence[str] = ("float64",),
    vectors: Sequence[Vector] | None = None, progress: Callable[[str], None] = str,
) -> str:  # fmt: skip
    """Write the vectors of these formats, index.json and README.txt; a sentence on what there is.

    Raises ImportError if the library for the files is not installed.
    """
    if vectors is None:
        from attnmath._examine._vectors_list import VECTORS as vectors
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


def index(form: str, entries: list[dict[str, Any]]) -> str:
    """The entries as JSON, one a line."""
    lines = ",\n".join(map(json.dumps, entries))
    return f'{{"format": "{form}", "version": {VERSION}, "vectors": [\n{lines}\n]}}\n'


def tensors_of(v: Vector, dtype: str) -> dict[str, Tensor]:
    """Every tensor of a case: its numbers as float64, and the format in which they are written."""
    case, means = v.case(dtype), v.means
    given = dict(Q=case.Q, K=case.K, V=case.V, dO=case.dO, bias=case.bias, R=case.R)
    found = {name: Tensor(x, dtype) for name, x in given.items() if x is not None}
    if case.keep is not None:
        found["keep"] = Tensor(np.broadcast_to(case.keep, _mask_shape(case)), "bool")
    exact = letters(case, means)
    found |= {name: Tensor(rounded(x, dtype), dtype) for name, x in exact.items() if x is not None}
    off = allowed(case, means, dtype)
    found |= {f"{name}_off": Tensor(_upward(x), "float64") for name, x in off.items()}
    return found


def allowed(case: Case, means: Conventions, dtype: str) -> dict[str, np.ndarray]:
    """How far each entry may be off: the output, the log-sum-exp, the gradients."""
    off = bounds(case, means, dtype)._asdict()
    B, owner = case.B(means), case.owner(means)
    nobody = np.isneginf(B).all((1, 2))[:, None, :, None]
    K, V = (np.where(nobody, 0.0, x)[:, owner] for x in (case.K, case.V))
    sums = None if dtype in ("float64", "float32") else "float32"
    also = dict(dtype=dtype, accumulate=sums, fused=False, R=case.R)
    off["L"] = rounding.attention(case.Q, K, V, B, case.scale, **also).L
    off["dgamma"] = rounding.attention_vjp(case.dO, case.Q, K, V, B, case.scale, **also).dgamma
    return {name: np.asarray(x) for name, x in off.items() if x is not None}


def entry(v: Vector, dtype: str, tensors: dict[str, Tensor], path: Path, folder: Path) -> dict[str, Any]:
    """What the index says of a file."""
    case = v.case(dtype)
    says: dict[str, Any] = dict(
        name=v.name, dtype=dtype, about=v.words, file=path.relative_to(folder).as_posix(),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(), numbers=digest(tensors), sizes=case.sizes,
        scale=case.scale, causal=v.causal, dropout=v.rate, exact=v.exact,
    )  # fmt: skip
    says["tensors"] = {
        name: dict(role=ROLES.get(name, "allowed error"), dtype=x.dtype, shape=x.values.shape)
        for name, x in sorted(tensors.items())
    }
    return says


def digest(tensors: dict[str, Tensor]) -> str:
    """The SHA-256 of the bytes of all tensors but the allowed errors, in the order of their names."""
    numbers = hashlib.sha256()
    for name in sorted(tensors.keys() & ROLES.keys()):
        numbers.update(tensors[name].stored().tobytes())
    return numbers.hexdigest()


def _mask_shape(case: Case) -> tuple[int, ...]:
    """The four axes b, H, n, m of a mask; those that it lacks have size 1."""
    return (1,) * (4 - case.keep.ndim) + case.keep.shape


def _upward(x: np.ndarray) -> np.ndarray:
    """x, or a little more: eight binary digits, so that machines whose exp differs agree."""
    fraction, exponent = np.frexp(x * (1 + 2.0**-20))
    return np.ldexp(np.ceil(fraction * 256), exponent - 8)
