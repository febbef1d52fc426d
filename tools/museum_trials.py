"""One problem for each exhibit of the museum, in which its mistake shows; and the candidate as f(*inputs)."""

import math

import torch

from attnmath.book.rules import Probe
from mistaken_program import lower_right

# How large a problem is that a rule can afford: gradcheck tries every input, and differences in float32 drown in
# rounding where many outputs are summed.
SMALL = dict(b=2, H=4, G=4, n=5, m=7, d=3)
MIDDLE = dict(b=2, H=4, G=4, n=19, m=37, d=3)
LARGE = dict(b=2, H=4, G=4, n=90, m=130, d=16)
SIZES = {"gradcheck": SMALL, "JAX check_grads": MIDDLE, "HIPS check_grads": MIDDLE}
RATE = 0.25


def trial(shows, options, sizes):
    """A problem in which a mistake shows: what both are called with, and the options of the candidate."""
    b, H, G, n, m, d = (sizes[k] for k in ("b", "H", "G", "n", "m", "d"))
    G, d_v = 2 if "groups" in shows else G, d + 1 if "wide values" in shows else d
    draw = torch.Generator().manual_seed(n)
    q, k, v, dO = (torch.randn(s, generator=draw, dtype=torch.float64)
                   for s in ((b, H, n, d), (b, G, m, d), (b, G, m, d_v), (b, H, n, d_v)))
    if "low scores" in shows:
        q[..., 0], k[..., 0] = 10.0, -12.0 * math.sqrt(d)
    more, told = {}, {}
    if "mask" in shows or "empty row" in shows:
        told["mask"] = torch.rand((b, 1, n, m), generator=draw) < 0.7
        told["mask"][..., 0] = True
    if "empty row" in shows:
        told["mask"][:, :, 1] = False
    if "causal" in shows:
        told["causal"] = True
    if "scale" in shows:
        told["scale"] = 0.9
    if "groups" in shows:
        told["groups"] = True
    bias = torch.randn((1, H, n, m), generator=draw, dtype=torch.float64) if "bias" in shows else None
    if "dropout" in shows:
        kept = torch.rand((b, H, n, m), generator=draw, dtype=torch.float64) >= RATE
        told["dropout_mask"] = kept / (1 - RATE)
    more = {options[word]: value for word, value in told.items() if word in options}
    rate = options.get("dropout") if "dropout" in shows and "dropout_mask" not in options else None
    if rate:
        more[rate] = RATE
    seen = told.get("mask", torch.ones((), dtype=torch.bool))
    seen = seen & lower_right(n, m) if "causal" in told else seen
    return Probe((q, k, v) if bias is None else (q, k, v, bias), dO), more, {**told, "seen": seen}, rate


def right(told, rate):
    """Attention as one writes it, in plain operations."""

    def attention(q, k, v, bias=None):
        H, G = q.shape[1], k.shape[1]
        k, v = (x.repeat_interleave(H // G, 1) for x in (k, v))
        A = told.get("scale", q.shape[-1] ** -0.5) * (q @ k.mT)
        A = A if bias is None else A + bias
        A = A.masked_fill(~told["seen"], -math.inf)
        empty = (A == -math.inf).all(-1, keepdim=True)
        P = torch.softmax(A.masked_fill(empty, 0), -1).masked_fill(empty, 0)
        if rate:
            torch.manual_seed(0)
            P = P * ((torch.rand(P.shape, dtype=torch.float64) >= rate).to(P.dtype) / (1 - rate))
        elif "dropout_mask" in told:
            P = P * told["dropout_mask"].to(P.dtype)
        return P @ v

    attention.told = told
    return attention


def candidate(planted, more, rate):
    """The planted mistake as f(q, k, v[, bias]); a pair in NumPy gets a way into autograd."""
    word = planted.options.get("bias", "bias")

    def attention(q, k, v, bias=None):
        if rate:
            torch.manual_seed(0)
        if q.dtype in (torch.bfloat16, torch.float16):  # as kernels do: float32 inside
            return attention(*(x.float() for x in (q, k, v, bias) if x is not None)).to(q.dtype)
        biased = {} if bias is None else {word: bias}
        own = {key: in_format(x, q.dtype) for key, x in more.items()}
        if planted.backward is not None:
            return Paired.apply(planted, own, q, k, v)
        return planted.fn(q, k, v, **biased, **own)

    class Paired(torch.autograd.Function):
        @staticmethod
        def forward(ctx, planted, own, *x):
            ctx.planted, ctx.own, ctx.x = planted, own, x
            return torch.as_tensor(planted.fn(*map(as_numpy, x), **own)).to(x[0].dtype)

        @staticmethod
        def backward(ctx, dO):
            got = ctx.planted.backward(as_numpy(dO), *map(as_numpy, ctx.x), **ctx.own)
            return None, None, *(torch.as_tensor(g).to(dO.dtype) for g in got)

    return attention


def in_format(x, dtype):
    return x.to(dtype) if torch.is_tensor(x) and x.is_floating_point() else x


def as_numpy(x):
    return x.detach().numpy()


def bounded(f, right, problem):
    """Closed form and rounding bound on this one problem, in float32."""
    from attnmath._examine.problems.bounds import bounds, judge_answer
    from attnmath._examine.problems.bounds import right_answer as exact
    from attnmath._examine.problems.case import Answer, Case, Conventions
    from attnmath.book.rules import both_passes

    q, k, v, *bias = (x.float().double().numpy() for x in problem.inputs)
    told = right.told
    R = told.get("dropout_mask")
    case = Case(q, k, v, problem.dO.float().double().numpy(), bias=bias[0] if bias else None,
                keep=told["mask"].numpy() if "mask" in told else None, causal=told.get("causal", False),
                scale=told.get("scale"), R=None if R is None else R.float().double().numpy())
    means = Conventions()
    got = Answer(*(x.numpy() for x in both_passes(f, problem, "float32")))
    off = bounds(case, means, "float32")
    return all(x.passed for x in judge_answer(got, exact(case, means), off, "float32").values())
