"""What to install for a library that is not there."""

EXTRAS = {"torch": "torch", "jax": "adapters", "transformers": "adapters", "safetensors": "vectors",
          "triton": "gpu"}


def install(library: str, extra: str | None = None) -> str:
    """How to install a library: with the package's own extra, where it has one."""
    extra = extra or EXTRAS.get(library)
    return f"pip install 'attnmath[{extra}]'" if extra else f"pip install {library}"


def absent(library: str, extra: str | None = None) -> str:
    """One sentence for a library that is not there."""
    return f"{library} is not installed: {install(library, extra)}"
