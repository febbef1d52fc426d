"""Mistakes of second derivatives and of strips, planted into attention for PyTorch for as long as a test lasts."""

import inspect
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType, ModuleType

from attnmath.torch import functions as functions_module
from attnmath.torch import higher, kernels, philox, products, scores, sdpa, strips, tiles

FIRST = "output gradients "
SECOND = "double_backward forward_over_reverse "
STRIPS = FIRST + "tangent " + SECOND + "reverse_over_forward"  # what is above has a way of its own
ALL = STRIPS + " forward_over_forward"


@dataclass(frozen=True)
class Planted:
    """A module in whose text something is written otherwise, and which derivatives are wrong then."""

    module: ModuleType
    wrong: frozenset
    written: tuple  # pairs: what stands there, what stands there by mistake


def planted(module, wrong, *written):
    return Planted(module, frozenset(wrong.split()), tuple(zip(written[::2], written[1::2])))


DIRECTION = "qi, qi_dot = how.scale * q[:, i], times_scale(rows_of(q_dot, i), how)\n            "
NO_DIRECTION = DIRECTION.replace("times_scale(rows_of(q_dot, i), how)", "rows_of(q_dot, i)")
BOTH_ORDERS = "tangent " + SECOND + "reverse_over_forward"
MISTAKES = {
    # ---- the tangent of the output
    "the tangent of the softmax without its mean": planted(
        strips, "tangent forward_over_reverse", "= U - mu * O[:, i]", "= U"),
    "the mean of what dropout leaves": planted(
        strips, "tangent forward_over_reverse", "mu += A_dot.mul_(E).sum(-1, keepdim=True)\n                    add_products", "mu += tile.drop(A_dot.mul_(E)).sum(-1, keepdim=True)\n                    add_products"),
    "the values do not move": planted(
        strips, "tangent forward_over_reverse", "O_dot[:, i] += N[..., d:]", "pass"),
    "the scale missing in the direction of Q": planted(
        strips, "tangent forward_over_reverse", DIRECTION + "query = ", NO_DIRECTION + "query = "),
    "the bias does not move": planted(
        strips, "tangent forward_over_reverse", "tile.arrays[1], query, columns_of(keys, j), B_dot, s_dot)", "tile.arrays[1], query, columns_of(keys, j), None, s_dot)"),
    # ---- the double backward
    "frozen statistics: no mean in the tangent of P": planted(
        products, SECOND + "reverse_over_forward", "return F.addcmul_(P, mu, value=-1)", "return F"),
    "the mean of what dropout leaves, second order": planted(
        strips, SECOND + "reverse_over_forward", "mu += A_dot.mul_(E).sum(-1, keepdim=True)\n        if", "mu += tile.drop(A_dot.mul_(E)).sum(-1, keepdim=True)\n        if"),
    "no D in what the tangent of P multiplies": planted(
        products, SECOND + "reverse_over_forward", "P_dot.mul_(dP_less_D)", "P_dot.mul_(dP_less_D + 1)"),
    "no tangent of D": planted(
        strips, SECOND + "reverse_over_forward", "tile.upper.addcmul_(tile.arrays[0], D_dot, value=-1)", "pass"),
    "D of one tile alone": planted(
        strips, SECOND + "reverse_over_forward", "D += torch.mul(", "D[:] = torch.mul("),
    "dA K_dot dropped": planted(
        strips, SECOND + "reverse_over_forward", ", (dA, rows_of(k_dot, j))", ""),
    "dA^T Q_dot dropped": planted(
        strips, SECOND + "reverse_over_forward", "(queries, tile.two if q_dot is not None else dA_dot)", "(qi.mT, dA_dot)"),
    "dA K_dot twice": planted(
        strips, SECOND + "reverse_over_forward", ", (dA, rows_of(k_dot, j))", ", (dA, rows_of(k_dot, j)), (dA, rows_of(k_dot, j))"),
    "no direction of V in the tangent of dP": planted(
        strips, SECOND + "reverse_over_forward", "right_factors(do_dot, v, v_dot)", "right_factors(do_dot, v, None)", "left_factor(dOi_dot, dOi, v_dot)", "left_factor(dOi_dot, dOi, None)"),
    "P V_dot missing in what goes to dO": planted(
        strips, "double_backward", "add_products(rows_of(O_dot, i), (PR, rows_of(v_dot, j)))", "pass"),
    "the direction of dO missing in that of dV": planted(
        strips, "forward_over_reverse reverse_over_forward", "(mT(dOi_dot), PR)", "(None, PR)"),
    "the scale missing in the direction of Q, second order": planted(
        strips, SECOND + "reverse_over_forward", DIRECTION + "dOi", NO_DIRECTION + "dOi"),
    "the scale missing in the tangent of dQ": planted(
        strips, SECOND + "reverse_over_forward", "if needs[1]:\n        totals[1] *= how.scale", "if False:\n        pass"),
    "dropout missing in the tangent of dP": planted(
        strips, SECOND + "reverse_over_forward", "tile.drop_(dP_dot)", "dP_dot"),
    "dropout missing in the tangent of dV": planted(
        strips, SECOND + "reverse_over_forward", "PR_dot = tile.drop(P_dot)", "PR_dot = P_dot"),
    "D missing, second order": planted(
        strips, SECOND + "reverse_over_forward", "tile.lower.sub_(D)", "tile.lower"),
    # ---- tiles
    "sums that do not follow the largest score": planted(
        products, BOTH_ORDERS, "self.total *= self.c.sub_(c).exp_()", "pass"),
    "weights of a tile relative to the largest score of another": planted(
        products, SECOND + "reverse_over_forward", "(c - self.c).exp_().div_(self.s)", "1 / self.s"),
    "the last tile left out": planted(
        scores, BOTH_ORDERS, "range(0, m, work.columns)", "range(0, max(m - work.columns, 1), work.columns)"),
    "each tile drops what the first one drops": planted(
        scores, SECOND + "reverse_over_forward", "self.R[..., some]", "self.R[..., : some.stop - start]"),
    "each tile keeps its weights where the others do": planted(
        scores, SECOND + "reverse_over_forward", "first = h * r * start", "first = 0"),
    "the triangle begins anew in each tile": planted(
        scores, BOTH_ORDERS, "start = max(self.keys.start - edge, 0)", "start = 0"),
    "a row that may attend to nothing, tile by tile": planted(
        products, BOTH_ORDERS, "self.s.masked_fill_(self.s == 0, 1)", "pass"),
    # ---- the backward
    "D missing": planted(
        products, "gradients reverse_over_forward", "return dA.addcmul_(P, D, value=-1), D", "return dA, D"),
    "the scale missing in dQ": planted(
        strips, "gradients reverse_over_forward", "if needs[0]:\n        totals[0] *= how.scale", "if False:\n        pass"),
    "the log-sum-exp trusted after a large finite mask": planted(
        kernels, "gradients", "bool(L.abs().amax() <= LARGEST_L)", "True"),
    # ---- strips
    "the triangle one key too wide": planted(
        tiles, STRIPS, "key > key[:, None]", "key > key[:, None] + 1"),
    "the triangle begins anew in each strip": planted(
        scores, ALL, "A[..., max(edge - self.keys.start, 0) :]", "A[..., : self.keys.stop - max(edge, self.keys.start)]"),
    "the last strip left out": planted(
        tiles, ALL, "range(0, n if m else 0, step)", "range(0, max(n - step, step) if m else 0, step)"),
    "the last key of a strip left out, causal": planted(
        tiles, ALL, "min(stop + last, m)", "min(max(stop + last - 1, 1), m)"),
    "of each strip the gradient of K, V overwrites that of the one before": planted(
        strips, "gradients reverse_over_forward", "for strip in heads.strips():\n            i, j = strip.rows, strip.keys\n            qi, dOi = how.scale * q[:, i], do[:, i]", "for strip in heads.strips():\n            i, j = strip.rows, strip.keys\n            qi, dOi = how.scale * q[:, i], do[:, i]\n            if dK is not None:\n                dK.zero_()"),
    "of all heads that share keys, one gives their gradient": planted(
        tiles, "gradients " + SECOND + "reverse_over_forward", "part += own.unflatten(0, self.shape).sum_to_size(part.shape)", "part += own.unflatten(0, self.shape)[tuple(slice(None) if a == b else slice(1) for a, b in zip(part.shape, own.unflatten(0, self.shape).shape))]"),
    "of the gradient of a mask that is broadcast, the last strip remains": planted(
        scores, "gradients " + SECOND + "reverse_over_forward", "part += self.as_scores(dA).sum_to_size(part.shape)", "part.copy_(self.as_scores(dA).sum_to_size(part.shape))"),
    "a row that may attend to nothing": planted(
        scores, FIRST + "reverse_over_forward", "if empty.any():", "if False:"),
    # ---- dropout
    "another seed in the backward": planted(
        functions_module, "gradients reverse_over_forward", "O, L, how._replace(seed=seed), needs)", "O, L, how._replace(seed=None if seed is None else seed + 1), needs)"),
    "another seed in the tangent": planted(
        functions_module, "tangent forward_over_reverse", "operators.jvp(*inputs, how._replace(seed=seed)", "operators.jvp(*inputs, how._replace(seed=None if seed is None else seed + 1)"),
    "another seed in the double backward": planted(
        functions_module, SECOND + "reverse_over_forward", "operators.second(*inputs, how._replace(seed=seed)", "operators.second(*inputs, how._replace(seed=None if seed is None else seed + 1)"),
    "another seed in the third order": planted(
        higher, "forward_over_forward", "how._replace(seed=seed)", "how._replace(seed=None if seed is None else seed + 1)"),
    "what is left is not scaled up": planted(
        philox, ALL, "R *= 1 / self.keep", "pass"),
    "each strip drops what the first one drops": planted(
        philox, "forward_over_forward", "first, last = self.row + rows.start, self.row + rows.stop - 1", "first, last = self.row, self.row + rows.stop - rows.start - 1"),
    "each tile draws as if it began at the first key": planted(
        philox, "tangent forward_over_reverse", "torch.arange(self.key + keys.start, self.key + keys.stop,", "torch.arange(self.key, self.key + keys.stop - keys.start,"),
    "each head drops what the first one drops": planted(
        philox, "", "torch.arange(prod(lead), device=device).view(lead)", "torch.arange(1, device=device).expand(lead)"),
    # ---- what is asked of whom
    "dO and its direction exchanged": planted(
        functions_module, "reverse_over_forward", "Second.apply(dO, *x_dot, dO_dot, *x,", "Second.apply(dO_dot, *x_dot, dO, *x,"),
    "what comes for dQ left out": planted(
        functions_module, "double_backward", "got = Second.apply(None, *x_dot, *x,", "got = Second.apply(None, None, *x_dot[1:], *x,"),
    "the gradient of a direction with dO in the place of its own cotangent": planted(
        functions_module, "reverse_over_forward", "Gradients.apply(dO_dot, *x, None", "Gradients.apply(dO, *x, None"),
    "the mean does not move along the other direction": planted(
        higher, "forward_over_forward", "total(P_1 * A_2 + P * A_12)", "total(P * A_12)"),
    "one direction of Q with the other one of K dropped": planted(
        higher, "forward_over_forward", ", (Q_2, K_1)", ""),
    "one weight with the other direction of V dropped": planted(
        higher, "forward_over_forward", " + dot(P_2 * R, V_1)", ""),
    # ---- conventions
    "the scale from the values' width": planted(
        sdpa, ALL, "float(query.shape[-1]) ** -0.5 if", "float(value.shape[-1]) ** -0.5 if"),
    "heads that share keys taken in turns": planted(
        sdpa, ALL, "query = query.unflatten(-3, (G, -1))", "query = query.unflatten(-3, (-1, G)).transpose(-4, -3)"),
}


@contextmanager
def mistake(name, among=MISTAKES):
    """Within it, the functions of the module run the mistaken text; who has them by name has them so too."""
    planted = among[name]
    text = inspect.getsource(planted.module)
    for right, wrong in planted.written:
        assert text.count(right) == 1, f"{right!r} stands {text.count(right)} times in {planted.module.__name__}"
        text = text.replace(right, wrong)
    mistaken = {"__name__": planted.module.__name__}
    exec(compile(text, planted.module.__file__, "exec"), mistaken)
    pairs = [*functions(vars(planted.module), mistaken, planted.module.__name__)]
    kept = [right.__code__ for right, _ in pairs]
    for right, wrong in pairs:
        right.__code__ = wrong.__code__
    try:
        yield
    finally:
        for (right, _), code in zip(pairs, kept):
            right.__code__ = code


def functions(ours, theirs, module):
    """Pairs of functions of the same name, those of classes too."""
    for name, thing in ours.items():
        thing = inspect.unwrap(thing)
        if getattr(thing, "__module__", None) != module:
            continue
        if isinstance(thing, FunctionType):
            yield thing, inspect.unwrap(theirs[name])
        elif isinstance(thing, type):
            yield from functions(vars(thing), vars(theirs[name]), module)
