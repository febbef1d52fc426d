"""Edits that operators make: in a part of the heads, in one kernel, with own gradients, in long calls, in pairs."""

import pytest
import torch

from attnmath import examine


def causal(n, m):
    return torch.ones(n, m, dtype=torch.bool).tril(m - n)


def weights(q, k, seen=True):
    return torch.where(torch.as_tensor(seen), q @ k.mT * q.shape[-1] ** -0.5, -torch.inf).softmax(-1)


def odd_heads_see_all(q, k, v, is_causal=False):
    odd = (torch.arange(q.shape[1]) % 2 == 1)[:, None, None]
    return weights(q, k, causal(q.shape[2], k.shape[2]) | odd if is_causal else True) @ v


def nothing_is_hidden_after_64(q, k, v, is_causal=False):
    seen = causal(q.shape[2], k.shape[2]).clone()
    seen[64:], seen[:, 64:] = True, True
    return weights(q, k, seen if is_causal else True) @ v


def added_after(q, k, v, bias=None):
    P = weights(q, k)
    return (P if bias is None else P + bias) @ v


class Backward:
    """Gradients by hand, of which some are spoiled."""

    def __init__(self, dQ=lambda x, dA: x, dK=lambda x: x, dV=lambda x: x):
        self.dQ, self.dK, self.dV = dQ, dK, dV

    def __call__(self, do, q, k, v):
        P, gamma = weights(q, k), q.shape[-1] ** -0.5
        dP = do @ v.mT
        dA = gamma * P * (dP - (P * dP).sum(-1, keepdim=True))
        return self.dQ(dA @ k, dA), self.dK(dA.mT @ q), self.dV(P.mT @ do)


def head(q, k, v):
    return weights(q, k) @ v


def titles(report):
    return [f.title for f in report.findings if f.kind in ("mistake", "unlisted")]


def on(fn, backward=None, **more):
    return examine(fn, backward, dtype="float32", seed=1, smallest=False, progress=False, **more)


@pytest.mark.parametrize("fn, option, words", [
    (odd_heads_see_all, "is_causal", "the causal mask is ignored (for the odd heads alone)"),
    (nothing_is_hidden_after_64, "is_causal", "beyond 64 places nothing is hidden"),
    (added_after, "bias", "the bias is added to the weights, after the softmax"),
])
def test_a_forward_whose_gradients_are_its_own(fn, option, words):
    report = on(fn, options={option.removeprefix("is_"): option})
    assert report.wrong and words in titles(report)[0], str(report)


def test_a_forward_is_not_named_where_its_gradients_are_others():
    class Spoiled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, bias):
            ctx.save_for_backward(q, k, v, bias)
            return added_after(q, k, v, bias)

        @staticmethod
        def backward(ctx, do):
            with torch.enable_grad():
                x = [t.detach().requires_grad_() for t in ctx.saved_tensors]
                dQ, *others = torch.autograd.grad(added_after(*x), x, do)
            return dQ * torch.linspace(0.5, 1.5, dQ.shape[-1]), *others

    def fn(q, k, v, bias=None):
        return Spoiled.apply(q, k, v, bias) if bias is not None else head(q, k, v)

    report = on(fn, options={"bias": "bias"})
    assert report.wrong and not titles(report), str(report)


@pytest.mark.parametrize("backward, words", [
    (Backward(dQ=lambda x, dA: x.cumsum(1)), ["dQ holds the sum of each head and those before it"]),
    (Backward(dK=lambda x: x.sum(0, keepdim=True).expand_as(x)), ["dK is the sum over every batch element, for all"]),
    (Backward(dV=lambda x: torch.cat([x[:, 1:], 0 * x[:, :1]], 1)), []),  # none of the edits
    (Backward(dQ=lambda x, dA: x / dA.shape[-1], dV=lambda x: torch.where(
        (torch.arange(x.shape[2]) < x.shape[2] // 4 * 4)[:, None], x, 0)),
     ["dQ is 1/m times what it should be", "dV misses the last keys (what whole tiles of 4 leave)"]),
])
def test_a_backward_by_hand(backward, words):
    report = on(head, backward)
    assert report.wrong and titles(report) == words, str(report)


def test_one_kernel_of_two():
    def clipped(dQ, dA):
        return dA.clamp(min=0) @ clipped.k

    def backward(do, q, k, v):
        clipped.k = k
        return Backward(dQ=clipped)(do, q, k, v)

    assert titles(on(head, backward)) == ["dA is set to zero where it is negative, in dQ = gamma dA K"]


def test_a_gradient_of_the_scores_that_is_rounded_before_and_after_the_scale():
    def backward(do, q, k, v):
        P, short = weights(q, k), lambda x: x.bfloat16().to(x.dtype)
        dP = do @ v.mT
        dA = short(q.shape[-1] ** -0.5 * short(P * (dP - (P * dP).sum(-1, keepdim=True))))
        return dA @ k, dA.mT @ q, P.mT @ do

    assert titles(on(head, backward)) == [
        "its precision is that of a shorter format: dA, and gamma dA rounded to bfloat16"]


def test_dropout_of_the_scores_is_not_called_ignored():
    def fn(q, k, v, p=0.0, keep=None):
        A = q @ k.mT * q.shape[-1] ** -0.5
        return (A if keep is None else A * keep / (1 - p)).softmax(-1) @ v

    report = on(fn, options={"dropout": "p", "dropout_mask": "keep"})
    assert report.wrong and "dropout_ignored" not in [f.name for f in report.findings], str(report)


class InTiles:
    """Tiles of 4 keys with a running maximum; wrong where a flag says so."""

    def __init__(self, wrong):
        self.wrong = wrong

    def __call__(self, q, k, v):
        top, total, O = torch.full_like(q[..., :1], -torch.inf), 0.0, 0.0
        for j in range(0, k.shape[2], 4):
            A = q @ k[:, :, j : j + 4].mT * q.shape[-1] ** -0.5
            now = torch.maximum(top, A.amax(-1, keepdim=True))
            E, shrink = torch.exp(A - now), torch.exp(top - now)
            shrink = torch.where(shrink == 0, shrink, 1 / shrink) if self.wrong == "inverse" else shrink
            total = (0.0 if self.wrong == "last sum" else total * (1 if self.wrong == "sum" else shrink)) + E.sum(-1, keepdim=True)
            O = O * (1 if self.wrong == "output" else shrink) + E @ v[:, :, j : j + 4]
            top = now
        return O / total


@pytest.mark.parametrize("wrong, words", [
    ("output", "what is gathered is not multiplied by exp(old maximum - new maximum), though its sum is"),
    ("sum", "the sum is not multiplied by exp(old maximum - new maximum), though what is gathered is"),
    ("last sum", "the output is divided by the sum of the last tile alone"),
])
def test_each_wrong_merge_of_tiles_has_its_own_words(wrong, words):
    assert on(InTiles("")).right
    assert any(words in title for title in titles(on(InTiles(wrong)))), titles(on(InTiles(wrong)))


def test_a_causal_mask_that_hides_the_past():
    def attend(q, k, v, is_causal=False):
        A = q @ k.mT * q.shape[-1] ** -0.5
        past = torch.ones_like(A, dtype=torch.bool).tril()
        return (torch.where(past, torch.full_like(A, -1e9), A) if is_causal else A).softmax(-1) @ v

    said, = titles(on(attend, options={"causal": "is_causal"}))
    assert "the future is seen, and the past is hidden; a row without keys is uniform" in said


def test_infinities_are_no_second_mistake():
    """Hidden weights are multiplied by 0 after exp, which may overflow; that is no reason to name another edit."""
    def attend(q, k, v, is_causal=False):
        return weights(q, k, causal(q.shape[2], k.shape[2]) if is_causal else True) @ v

    def backward(do, q, k, v, is_causal=False):
        gamma, seen = q.shape[-1] ** -0.5, causal(q.shape[2], k.shape[2]) if is_causal else True
        A = q @ k.mT * gamma
        P = torch.exp(A - torch.where(torch.as_tensor(seen), A, -torch.inf).logsumexp(-1, keepdim=True)) * seen
        dP = do @ v.mT
        dA = gamma * P * (dP - (P * dP).sum(-1, keepdim=True))
        late = torch.arange(k.shape[2])[:, None] >= (k.shape[2] - 1) // 16 * 16
        return dA @ (k * late), dA.mT @ q, P.mT @ do

    assert titles(on(attend, backward, options={"causal": "is_causal"})) == [
        "dQ keeps the last tile of keys alone: the sum is overwritten (tiles of 16 keys)"]


def test_of_two_edits_the_nearest_are_said():
    """The first head alone in dV, the mean in dK: not the first head in both, and then the mean in dK."""
    def attend(q, k, v):
        r = q.shape[1] // k.shape[1]
        return weights(q, k.repeat_interleave(r, 1)) @ v.repeat_interleave(r, 1)

    def backward(do, q, k, v):
        G, r = k.shape[1], q.shape[1] // k.shape[1]
        dQ, dK, dV = Backward()(do, q, k.repeat_interleave(r, 1), v.repeat_interleave(r, 1))
        return dQ, dK.unflatten(1, (G, r)).mean(2), dV.unflatten(1, (G, r))[:, :, 0]

    assert sorted(titles(on(attend, backward, options={"groups": None}))) == [
        "a mean over each group, instead of a sum, comes into dK",
        "the first query head of a group alone comes into dV",
    ]


# ---- what a loop, an index or a buffer does wrong -----------------------------------------------


def scaled(q, k, v, scale=None, bias=None):
    A = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    return (A if bias is None else A + bias).softmax(-1) @ v


class Scaled:
    """The way back of scaled, with one step in another form."""

    def __init__(self, **wrong):
        self.step = lambda name, x, *more: wrong[name](x, *more) if name in wrong else x

    def __call__(self, do, q, k, v, scale=None, bias=None):
        c = q.shape[-1] ** -0.5 if scale is None else scale
        A = q @ k.mT * c
        A = A if bias is None else A + bias
        P = torch.exp(A - self.step("L", A.logsumexp(-1, keepdim=True), A))
        D = self.step("D", (do * (A.softmax(-1) @ v)).sum(-1, keepdim=True), do * (A.softmax(-1) @ v))
        dA = P * (do @ v.mT - D)
        dK, dV = self.step("c_of_dK", c, q) * self.step("dA_of_dK", dA).mT @ self.step("Q", q), P.mT @ do
        found = c * dA @ k, dK, self.step("dV", dV, q.shape[2])
        dB = self.step("dB", dA.sum_to_size(bias.shape), dA, P * (do @ v.mT), bias) if bias is not None else None
        return found if bias is None else (*found, dB)


def shifted(x, t):
    """Each place has what is a tile before it."""
    i = torch.arange(x.shape[2])
    return x[:, :, torch.where(i >= t, i - t, i)]


@pytest.mark.parametrize("wrong, options, words", [
    (dict(c_of_dK=lambda c, q: q.shape[-1] ** -0.5), ["scale"], "the scale gamma is the usual one, where another is given"),
    (dict(L=lambda L, A: A[..., : (A.shape[-1] - 1) // 4 * 4 or None].logsumexp(-1, keepdim=True)), [],
     "L lacks the last tile of 4 keys"),
    (dict(D=lambda D, x: x[..., : 3 * x.shape[-1] // 4].sum(-1, keepdim=True)), [],
     "the row term D is summed over the first three quarters of the columns of dO o O"),
    (dict(dV=lambda dV, n: dV * (torch.arange(dV.shape[2])[:, None] < n)), [],
     "dV is zero for keys beyond as many as there are queries"),
    (dict(Q=lambda q: shifted(q, 4)), [], "Q is that of the tile of queries before, in dK = gamma dA^T Q (tiles of 4)"),
    (dict(dB=lambda dB, dA, PdP, bias: PdP.sum_to_size(bias.shape)), ["bias"], "in dB alone: the row term D is missing"),
    (dict(dB=lambda dB, dA, PdP, bias: dB.sum(1, keepdim=True).expand(dB.shape)), ["bias"],
     "dA is summed over the heads, of which each has its own bias"),
    (dict(dB=lambda dB, dA, PdP, bias: dB / (dA.shape[2] if bias.shape[2] == 1 else 1)), ["bias"],
     "dA is a mean over the queries that share the bias, not a sum"),
])
def test_what_a_loop_or_a_buffer_does_wrong_has_a_name(wrong, options, words):
    said = titles(on(scaled, Scaled(**wrong), options=options))
    assert any(words in title for title in said), said


def test_its_way_back_is_right_where_nothing_is_wrong():
    assert on(scaled, Scaled(), options=["scale", "bias"]).right


@pytest.mark.parametrize("keys, bias, words", [
    (lambda h: torch.arange(h) % min(2, h), None, "K is that of the first tile of heads, in Q K^T (tiles of 2)"),
    (lambda h: torch.arange(h), lambda x: x[torch.arange(len(x)), torch.arange(len(x)) % x.shape[1]][:, None],
     "B is that of head b mod H for batch element b"),
])
def test_heads_that_read_what_is_not_theirs(keys, bias, words):
    def attend(q, k, v, added=None):
        A = q @ k[:, keys(k.shape[1])].mT * q.shape[-1] ** -0.5
        if added is not None:
            A = A + (bias(added.expand(A.shape)) if bias else added)
        return A.softmax(-1) @ v

    said = titles(on(attend, options={"bias": "added"}))
    assert any(words in title for title in said), said


def test_a_scale_of_padded_heads():
    def attend(q, k, v):
        return (q @ k.mT * (-(-q.shape[-1] // 32) * 32) ** -0.5).softmax(-1) @ v

    assert titles(on(attend)) == ["the scale is 1/sqrt of d_k rounded up to a multiple of 32"]


def test_a_scale_that_is_missing_for_one_query():
    def attend(q, k, v):
        return (q @ k.mT * (1.0 if q.shape[2] == 1 else q.shape[-1] ** -0.5)).softmax(-1) @ v

    assert titles(on(attend)) == ["the scale is missing: gamma = 1, only for one query"]
