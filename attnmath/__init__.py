"""The gradients of attention; the book beside them derives and executes each."""

from attnmath._attention import (
    attention,
    attention_jvp,
    attention_map,
    attention_vjp,
)
from attnmath._check import check_jvp, check_vjp
from attnmath._softmax import (
    log_softmax,
    log_softmax_jvp,
    log_softmax_vjp,
    logsumexp,
    logsumexp_jvp,
    logsumexp_vjp,
    softmax,
    softmax_jacobian,
    softmax_jvp,
    softmax_vjp,
)
from attnmath._step import complex_step

__version__ = "0.1.0"

__all__ = [
    "attention",
    "attention_jvp",
    "attention_map",
    "attention_vjp",
    "check_jvp",
    "check_vjp",
    "complex_step",
    "log_softmax",
    "log_softmax_jvp",
    "log_softmax_vjp",
    "logsumexp",
    "logsumexp_jvp",
    "logsumexp_vjp",
    "softmax",
    "softmax_jacobian",
    "softmax_jvp",
    "softmax_vjp",
]
