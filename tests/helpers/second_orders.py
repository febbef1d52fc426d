"""A jvp and a double backward as somebody writes them in PyTorch, right, or with a mistake by its name."""

import torch

OPTIONS = dict(mask="mask", causal="causal", scale="scale", groups=None, dropout_mask="drop")


def weights(q, k, mask=None, causal=False, scale=None):
    """The weights, zero in the rows of queries without keys; and the scale."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    a = q @ k.mT * scale
    hidden = torch.zeros_like(a, dtype=torch.bool)
    hidden = hidden if mask is None else hidden | ~mask
    hidden = hidden | torch.ones_like(hidden).triu(a.shape[-1] - a.shape[-2] + 1) if causal else hidden
    empty = hidden.all(-1, keepdim=True)
    return torch.softmax(a.masked_fill(hidden & ~empty, -torch.inf), -1).masked_fill(empty, 0), scale


def heads(q, *some):
    return [x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in some]


def summed(x, like):
    return x.reshape(x.shape[0], like.shape[1], -1, *x.shape[2:]).sum(2)


def plain(q, k, v, mask=None, causal=False, scale=None, drop=None):
    k, v = heads(q, k, v)
    p, _ = weights(q, k, mask, causal, scale)
    return (p if drop is None else p * drop) @ v


def jvp_with(wrong=""):
    """A jvp, with a mistake."""

    def jvp(q, k, v, q_dot, k_dot, v_dot, mask=None, causal=False, scale=None, drop=None):
        k, v, k_dot, v_dot = heads(q, k, v, k_dot, v_dot)
        p, s = weights(q, k, mask, causal, scale)
        r = torch.ones_like(p) if drop is None else drop
        a_dot = s * (q_dot @ k.mT + (s if wrong == "scaled twice" else 1) * q @ k_dot.mT)
        a_dot = q_dot @ k.mT + q @ k_dot.mT if wrong == "no scale" else a_dot
        mu = (p * a_dot).sum(-1, keepdim=True) if wrong != "no mean" else 0
        p_dot = p * (a_dot - mu)
        second = (p if wrong == "no dropout" else p * r) @ v_dot
        second = -second if wrong == "sign" else 0 * second if wrong == "no term" else second
        second = 0 * second if wrong == "causal term" and causal else second
        return (p_dot * r) @ v + second + (0.1 * (p @ v_dot) ** 2 if wrong == "squares" else 0)

    return jvp


def tiled_with(wrong="", tile=32):
    """The same by tiles of keys, whose running sums are rescaled, all but those that are named."""

    def jvp(q, k, v, q_dot, k_dot, v_dot, scale=None):
        s = q.shape[-1] ** -0.5 if scale is None else scale
        top = torch.full((*q.shape[:3], 1), -torch.inf, dtype=q.dtype)
        sums = dict.fromkeys(("l", "r", "acc", "A", "H"), 0.0)
        for j in range(0, k.shape[2], tile):
            kj, vj, kj_dot, vj_dot = (x[:, :, j : j + tile] for x in (k, v, k_dot, v_dot))
            a, a_dot = q @ kj.mT * s, s * (q_dot @ kj.mT + q @ kj_dot.mT)
            new = torch.maximum(top, a.amax(-1, keepdim=True))
            e, factor = torch.exp(a - new), torch.exp(top - new)
            h = e * a_dot
            tiles = dict(l=e.sum(-1, keepdim=True), r=h.sum(-1, keepdim=True), acc=e @ vj, A=e @ vj_dot, H=h @ vj)
            sums = {x: sums[x] * (1 if x in wrong.split() else factor) + y for x, y in tiles.items()}
            top = new
        o = sums["acc"] / sums["l"]
        return o, (sums["A"] + sums["H"] - sums["r"] * o) / sums["l"]

    return jvp


def vjp_vjp_with(wrong=""):
    """A double backward, with a mistake."""

    def vjp_vjp(q_dot, k_dot, v_dot, do, q, k, v, mask=None, causal=False, scale=None, drop=None):
        like = k
        k, v, k_dot, v_dot = heads(q, k, v, k_dot, v_dot)
        p, s = weights(q, k, mask, causal, scale)
        r = torch.ones_like(p) if drop is None else drop
        a_dot = s * (q_dot @ k.mT + q @ k_dot.mT)
        p_dot = p * (a_dot - (p * a_dot).sum(-1, keepdim=True))
        o_dot = (p_dot * r) @ v + (p * r) @ v_dot
        dp, dp_dot = (do @ v.mT) * r, (do @ v_dot.mT) * r
        d, d_dot = (p * dp).sum(-1, keepdim=True), (do * o_dot).sum(-1, keepdim=True)
        d_dot = 0 * d_dot if wrong == "D held still" else d_dot
        da = p * (dp - d)
        first = p_dot * (dp - d) if wrong != "P held still" else 0
        da_dot = first + p * (dp_dot - d_dot)
        dq = s * (da_dot @ k + (0 if wrong == "no dA K_dot" else da @ k_dot))
        dk = s * (da_dot.mT @ q + da.mT @ q_dot)
        dk = dk * s if wrong == "scale of dK" else dk
        dv = ((p_dot if wrong != "P for P_dot" else p) * (1 if wrong == "no dropout" else r)).mT @ do
        one = like.shape[1] < q.shape[1] and wrong == "one head"
        dk = dk[:, :: q.shape[1] // like.shape[1]] if one else summed(dk, like)
        return o_dot, dq, dk, summed(dv, like)

    return vjp_vjp


class Dual:
    """A kernel with the signatures of jvp_flash_attention."""

    @staticmethod
    def fwd(q, k, v, attn_mask=None, dropout_p=0.0, causal=False, sm_scale=None, warp_specialize=True, USE_TMA=True):
        return plain(q, k, v, attn_mask, causal, sm_scale)

    @staticmethod
    def fwd_dual(q, k, v, attn_mask=None, dropout_p=0.0, causal=False, sm_scale=None, warp_specialize=True,
                 USE_TMA=True):
        return plain(q, k, v, attn_mask, causal, sm_scale)


def rcm(wrong=""):
    """A kernel with the signature of NVlabs/rcm."""

    def attention(q, k, v, tq, tk, tv, sm_scale=None):
        return plain(q, k, v, scale=sm_scale), jvp_with(wrong)(q, k, v, tq, tk, tv, scale=sm_scale)

    return attention


def backward_with(constant=""):
    """A backward that autograd differentiates, with statistics that it takes for constants."""

    def backward(do, q, k, v, mask=None, causal=False, scale=None, drop=None):
        like = k
        k, v = heads(q, k, v)
        p, s = weights(q, k, mask, causal, scale)
        if "L" in constant:
            a = q @ k.mT * s
            lse = torch.logsumexp(a.masked_fill(p == 0, -torch.inf), -1, keepdim=True).detach()
            p = torch.where(p == 0, 0.0, torch.exp(torch.where(p == 0, 0.0, a - lse.clamp(min=-1e30))))
        r = torch.ones_like(p) if drop is None else drop
        dp, o = (do @ v.mT) * r, (p * r) @ v
        d = (do * (o.detach() if "O" in constant else o)).sum(-1, keepdim=True)
        da = p * (dp - (d.detach() if "D" in constant else d))
        return s * da @ k, summed(s * da.mT @ q, like), summed((p * r).mT @ do, like)

    return backward
