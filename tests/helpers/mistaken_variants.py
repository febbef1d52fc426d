"""Mistakes of caps, windows, sinks and slopes, planted into attention for PyTorch for as long as a test lasts."""

from attnmath.torch import higher, kernels, products, scores, sdpa, strips, tiles
from mistaken_second import ALL, BOTH_ORDERS, SECOND, STRIPS, planted

OF_SECOND = SECOND + "reverse_over_forward"
MISTAKES = {
    # ---- the cap
    "no cap": planted(
        scores, STRIPS, "A.div_(how.softcap).tanh_()", "A.div_(how.softcap)"),
    "the factor of the cap missing in the backward": planted(
        strips, "gradients reverse_over_forward", "dA.mul_(strip.bend)", "pass"),
    "the factor of the cap missing in the tangent": planted(
        scores, BOTH_ORDERS, "out.mul_(self.bend)", "pass"),
    "the factor of the cap missing in the double backward": planted(
        products, OF_SECOND, "tile.upper.mul_(bend)", "pass"),
    "the cap does not bend twice": planted(
        products, OF_SECOND, "tile.upper.addcmul_(X_dot.mul_(T), tile.lower, value=-2 / softcap)", "pass"),
    "the cap bends twice to the other side": planted(
        products, OF_SECOND, "value=-2 / softcap", "value=2 / softcap"),
    "the cap does not bend twice along two directions": planted(
        higher, "forward_over_forward", "bend * X_12 + bend_2 * X_1 * X_2", "bend * X_12"),
    # ---- the window
    "the window one key too wide to the left": planted(
        scores, STRIPS, "start = self.keys.start - edge\n", "start = self.keys.start - edge + 1\n"),
    "the window from the upper left": planted(
        tiles, ALL, "None if how.left is None else m - n - how.left", "None if how.left is None else -how.left"),
    "is_causal wins over the window": planted(
        tiles, ALL, "(0 if last is None else min(0, last)) if how.causal", "0 if how.causal"),
    "the first key of a strip left out": planted(
        tiles, ALL, "max(i + first, 0)", "max(i + first + 1, 0)"),
    "left is right": planted(
        sdpa, ALL, "left, right = window or (None, None)", "right, left = window or (None, None)"),
    # ---- sinks
    "the gradient of the sink forgotten": planted(
        strips, "gradients reverse_over_forward", "ds[..., 1:] -= (p_0 * D)", "ds[..., 1:] -= 0 * (p_0 * D)"),
    "the sign of the sink's gradient": planted(
        strips, "gradients reverse_over_forward", "ds[..., 1:] -= (p_0 * D)", "ds[..., 1:] += (p_0 * D)"),
    "the sink's gradient without its weight": planted(
        strips, "gradients reverse_over_forward", "ds[..., 1:] -= (p_0 * D)", "ds[..., 1:] -= (0 * p_0 + D)"),
    "the sink does not move": planted(
        strips, BOTH_ORDERS, "mu += s_dot[..., 1:] * run.s", "pass"),
    "the sink is not in the sums": planted(
        products, BOTH_ORDERS, "self.s += (self.sink - self.c).exp_()", "pass"),
    "the tangent of the sink's weight missing": planted(
        strips, OF_SECOND, "(p_0_dot * D + p_0 * D_dot)", "(p_0 * D_dot)"),
    "the sink's part of the tangent of D missing": planted(
        strips, OF_SECOND, "D_dot = -p_0_dot * D", "D_dot = 0 * D"),
    "the sink does not move along the other direction": planted(
        higher, "forward_over_forward", " + p_01 * s_2", ""),
    "the output of the kernel not scaled for the sink": planted(
        kernels, "output gradients", "O.mul_(share[..., None])", "O"),
    "the kernel's weights without the sink in the backward": planted(
        kernels, "gradients", "return O.mul_(share[..., None]), L.mask", "return O.mul_(share[..., None]), alone.mask"),
    "the gradient of the sink forgotten beside the kernel": planted(
        kernels, "gradients", "torch.cat([torch.zeros_like(ds), ds], -1)", "torch.cat([ds, torch.zeros_like(ds)], -1)"),
    "the sign of the sink's gradient beside the kernel": planted(
        kernels, "gradients", "ds = -(torch.exp", "ds = (torch.exp"),
    "of two blocks the later one has the gradients of the keys": planted(
        kernels, "gradients", "x[..., j, :] += part", "x[..., j, :] = part"),
    "the kernel's window one key too wide": planted(
        kernels, "output gradients", "ahead < first if", "ahead < first - 1 if"),
    "the kernel's window begins where the block does": planted(
        kernels, "output gradients", "max(start + first, 0), m", "max(start, 0), m"),
    # ---- slopes
    "the sign of the slope": planted(
        scores, STRIPS, "A.addcmul_(self.distance(), S[..., :1], value=-1)", "A.addcmul_(self.distance(), S[..., :1])"),
    "the slope does not move": planted(
        scores, BOTH_ORDERS, "out.addcmul_(self.distance(), S[..., :1], value=-1)", "pass"),
    "the sign of the slope's gradient": planted(
        scores, "gradients " + OF_SECOND, "S[:, 0, 0] -= dA", "S[:, 0, 0] += dA"),
    "distances from the upper left": planted(
        tiles, ALL, "+ (self.m - self.n)\n", "\n"),
    "distances with their sign": planted(
        scores, STRIPS, "out=out).abs_()", "out=out)"),
    "the sign of the slope in the kernel's mask": planted(
        kernels, "output gradients", "-call.s[..., :1]", "call.s[..., :1]"),
    "heads that share keys take each other's slopes": planted(
        sdpa, ALL, "of_heads = of_heads.unflatten(-3, (G, -1))", "of_heads = of_heads.unflatten(-3, (-1, G)).transpose(-4, -3)"),
}
