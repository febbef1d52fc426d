"""The libraries that a candidate may compute with."""

import sys
from typing import Any

from attnmath._examine._jax_arrays import Jax
from attnmath._examine._numpy_arrays import DTYPES, Numpy
from attnmath._examine._torch_arrays import Torch

FRAMEWORKS = {"torch": Torch, "jax": Jax, "numpy": Numpy}


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of any library, or of one that is named."""
    name = dtype if isinstance(dtype, str) else getattr(dtype, "__name__", str(dtype))
    name = name.rpartition(".")[2]
    if name not in DTYPES:
        raise ValueError(f"dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    return name


def framework(name: str, dtype: str, device: Any = None) -> Numpy:
    """A library by its name; ImportError says what to install."""
    if name not in FRAMEWORKS:
        raise ValueError(f"framework must be one of {', '.join(FRAMEWORKS)}, not {name!r}")
    try:
        return FRAMEWORKS[name](dtype, device)
    except ImportError as error:
        extra = {"torch": "'attnmath[torch]'", "jax": "'attnmath[adapters]'"}.get(name, "ml_dtypes")
        raise ImportError(f"{error.name or name} is not installed: pip install {extra}") from error


def is_imported(name: str) -> bool:
    """Whether the program has imported a library already."""
    return name in sys.modules
