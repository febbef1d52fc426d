"""Our function in the place of torch.nn.functional's."""

from contextlib import contextmanager

import torch.nn.functional as F

from attnmath._torch._sdpa import scaled_dot_product_attention


@contextmanager
def patched_attention():
    """Within it, torch.nn.functional.scaled_dot_product_attention is ours.

    -> a context manager, whose value is the function

    What calls the function by its module does so for PyTorch's layers and for the models
    of Hugging Face that have attn_implementation="sdpa"; a name imported from the module
    before, and kernels that PyTorch's layers call without it, stay as they are. It holds
    for all threads, and ends with what stood there before.
    Derived in chapters/applications.md.
    """
    before = F.scaled_dot_product_attention
    F.scaled_dot_product_attention = scaled_dot_product_attention
    try:
        yield scaled_dot_product_attention
    finally:
        F.scaled_dot_product_attention = before
