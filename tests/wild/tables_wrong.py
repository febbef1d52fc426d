"""Attention with a table of relative positions and one mistake each, as people make it (each written anew)."""

import math

import torch
import torch.nn.functional as F
from cases import collection
from latents_right import seeded
from tables_right import T5Attention, fixed_table, relative, t5_bucket, window_index
from torch import nn

CASES, case = collection()


def triangle(n, m):
    """True above the diagonal"""
    return torch.ones(n, m, dtype=torch.bool).triu(1)


class Packed(nn.Module):
    """in_proj_weight (3 D, D), a table (heads, 2 clip + 1) by the distance j - i clipped, out_proj; each case
    writes its forward, or its core alone."""

    def __init__(self, dim=32, heads=4, clip=4):
        super().__init__()
        self.heads, self.clip, self.scale = heads, clip, (dim // heads) ** -0.5
        self.in_proj_weight = nn.Parameter(torch.randn(3 * dim, dim) / math.sqrt(3 * dim))
        self.table = nn.Parameter(torch.randn(heads, 2 * clip + 1) * 0.5)
        self.out_proj = nn.Linear(dim, dim)

    def index(self, n):
        return relative(n, n).clamp(-self.clip, self.clip) + self.clip

    def forward(self, x):
        b, n, c = x.shape
        q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2)
                   for t in F.linear(x, self.in_proj_weight).chunk(3, dim=-1))
        o = self.core(q, k, v, self.index(n))
        return self.out_proj(o.transpose(1, 2).reshape(b, n, c))


def weights(q, k, bias, scale, causal):
    s = torch.einsum("bhid,bhjd->bhij", q, k) * scale + bias
    if causal:
        s = s.masked_fill(triangle(*s.shape[-2:]), float("-inf"))
    return torch.softmax(s, dim=-1)


def core_with(table_gradient, causal=True):
    """A hand-written core whose gradients of q, k, v are right; the table's gradient is what is handed in:
    table_gradient(ds, dp, index, table, scale), with ds the gradient of the logits (b, h, n, n)."""
    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, table, index, scale):
            p = weights(q, k, table[:, index], scale, causal)
            ctx.save_for_backward(q, k, v, table, index, p)
            ctx.scale = scale
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, table, index, p = ctx.saved_tensors
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            dtable = table_gradient(ds, p * dp, index, table, ctx.scale)
            return ctx.scale * ds @ k, ctx.scale * ds.mT @ q, p.mT @ do, dtable, None, None
    return Core


def to_rows(per_pair, index, table):
    """(h, n, n) summed into the rows of a table (h, r)"""
    return torch.zeros_like(table).index_add_(1, index.flatten(), per_pair.flatten(1))


# ---------------------------------------------------------------- functions whose output is wrong


@case(source="the two signs in use for the relative position (dmlc/gluon-nlp pull request 1470)")
def table_decoder_sign_of_distance():
    """A T5 decoder that hands query - key to the buckets of the past: every past key falls into bucket 0 (causal,
    scale 1, 12 buckets up to 24, fixed_table(12, 16, 8))."""
    table = fixed_table(12, 16, seed=8)

    def attention(query, key, value):
        n, m = query.shape[-2], key.shape[-2]
        context_position = torch.arange(n)[:, None]
        memory_position = torch.arange(m)[None, :]
        bucket = t5_bucket(context_position - memory_position, False, 12, 24)
        bias = table.to(query)[bucket, : query.shape[1]].permute(2, 0, 1)
        scores = (query @ key.mT + bias).masked_fill(triangle(n, m), float("-inf"))
        return scores.softmax(-1) @ value
    return attention


@case()
def table_buckets_zero_with_the_future():
    """T5's buckets in both directions with >= for >: a token's own position falls into the half of the future
    (scale 1, 8 buckets up to 20, fixed_table(8, 16))."""
    table = fixed_table(8, 16)

    def attention(q, k, v):
        rel = relative(q.shape[-2], k.shape[-2])
        half, exact = 4, 2
        distance = rel.abs()
        large = exact + (torch.log(distance.clamp(min=1).double() / exact) / math.log(20 / exact)
                         * (half - exact) + 1e-9).long()
        bucket = (rel >= 0).long() * half + torch.where(distance < exact, distance, large.clamp(max=half - 1))
        bias = table[:, : q.shape[1]].to(q.dtype)[bucket].permute(2, 0, 1).unsqueeze(0)
        return torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) + bias, dim=-1) @ v
    return attention


@case()
def table_log_part_without_divisor():
    """The logarithmic buckets are not divided by log(max_distance / max_exact), so that far distances reach the
    last bucket much too soon (causal, scale 1, 6 buckets up to 64, fixed_table(6, 16, 10))."""
    table = fixed_table(6, 16, seed=10)

    def bucket_of(n, num_buckets=6):
        max_exact = num_buckets // 2
        val_if_large = max_exact + (torch.log(n.double().clamp(min=1) / max_exact)
                                    * (num_buckets - max_exact)).long()
        return torch.where(n < max_exact, n, val_if_large.clamp(max=num_buckets - 1))

    def attend(q, k, v):
        i, j = q.shape[-2], k.shape[-2]
        n = (-relative(i, j)).clamp(min=0)
        bias = table[bucket_of(n), : q.shape[1]].to(q).permute(2, 0, 1)
        sim = torch.einsum("bhid,bhjd->bhij", q, k) + bias
        sim = sim.masked_fill(triangle(i, j), -torch.finfo(sim.dtype).max)
        return torch.einsum("bhij,bhjd->bhid", sim.softmax(dim=-1), v)
    return attend


@case()
def table_absolute_before_the_clip():
    """The distance loses its sign before it is clipped and shifted, so that keys before and after a query share a
    row (fixed_table(11, 1), clipped at 5, scores over sqrt(d))."""
    table = fixed_table(11, 1).flatten()

    def attn(q, k, v):
        distance = relative(q.size(-2), k.size(-2)).abs()
        index = torch.clamp(distance, -5, 5) + 5
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1)) + table[index].to(q.dtype)
        return F.softmax(scores, dim=-1) @ v
    return attn


@case()
def table_clip_wraps_around():
    """Distances are not clipped but taken modulo the table's length, so that far keys get near keys' biases
    (causal, fixed_table(5, 16, 11), rows for 0 .. 4 tokens back, scores over sqrt(d))."""
    table = fixed_table(5, 16, seed=11)

    def attn(q, k, v):
        n, m = q.size(-2), k.size(-2)
        back = -relative(n, m)
        bias = table[back % 5][..., : q.size(1)].movedim(-1, 0).to(q.dtype)
        scores = q @ k.mT * q.size(-1) ** -0.5 + bias
        return scores.masked_fill(back < 0, float("-inf")).softmax(-1) @ v
    return attn


@case()
def table_both_directions_in_a_decoder():
    """A causal T5 decoder keeps bidirectional=True: the past shares half of the buckets, with coarser distances,
    and the other half is never read (scale 1, 12 buckets up to 24, fixed_table(12, 16, 8))."""
    table = fixed_table(12, 16, seed=8)

    def attention(q, k, v):
        n, m = q.shape[2], k.shape[2]
        bucket = t5_bucket(relative(n, m), bidirectional=True, num_buckets=12, max_distance=24)
        scores = torch.matmul(q, k.transpose(-1, -2)) + F.embedding(bucket, table[:, : q.shape[1]].to(q)).permute(2, 0, 1)
        scores = scores + torch.full((n, m), float("-inf"), dtype=q.dtype).triu(1)
        return torch.matmul(F.softmax(scores, dim=-1), v)
    return attention


@case()
def table_added_after_softmax():
    """The bias is added to the weights after the softmax, whose rows then no longer sum to one (fixed_table(11, 1),
    clipped at 5, scores over sqrt(d))."""
    table = fixed_table(11, 1).flatten()

    def attention(query, key, value):
        weights = torch.softmax(query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5, dim=-1)
        index = relative(query.shape[-2], key.shape[-2]).clamp(-5, 5) + 5
        weights = weights + table.to(weights)[index]
        return weights @ value
    return attention


@case(source="wrappers that scale the sum of scores and bias")
def table_scaled_with_the_scores():
    """The bias is added before the scale, so that it too is divided by sqrt(d) (fixed_table(13, 16, 11), clipped at
    6)."""
    table = fixed_table(13, 16, seed=11)

    def attention(q, k, v):
        bias = table.to(q.dtype)[relative(q.shape[2], k.shape[2]).clamp(-6, 6) + 6]
        scores = torch.matmul(q, k.transpose(2, 3)) + bias[..., : q.shape[1]].permute(2, 0, 1)
        return torch.softmax(scores / math.sqrt(q.shape[3]), dim=3) @ v
    return attention


@case()
def table_t5_with_default_scale():
    """T5 by F.scaled_dot_product_attention with its own scale of 1 / sqrt(d), where T5's is 1 (16 buckets both ways
    up to 64, fixed_table(16, 16, 10))."""
    table = fixed_table(16, 16, seed=10)

    def sdpa(q, k, v):
        bucket = t5_bucket(relative(q.shape[-2], k.shape[-2]), num_buckets=16, max_distance=64)
        bias = table[:, : q.shape[1]].to(q.dtype)[bucket].permute(2, 0, 1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(q.shape[0], -1, -1, -1))
    return sdpa


@case()
def table_in_place_of_the_causal_mask():
    """The bias takes attn_mask's place in a decoder, and the causal mask is lost (16 buckets of the past up to 64,
    fixed_table(16, 16, 10), scale 1)."""
    table = fixed_table(16, 16, seed=10)

    def decoder_attention(q, k, v, is_causal=True):
        bucket = t5_bucket(relative(q.size(2), k.size(2)), False, 16, 64)
        bias = table[bucket].permute(2, 0, 1)[None, : q.size(1)].to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, is_causal=is_causal and bias is None, scale=1.0)
    return decoder_attention


@case(source="kimiyoung/transformer-xl pytorch/mem_transformer.py (_rel_shift), with scalar biases")
def table_rel_shift_of_one_row():
    """The shifted matrix is cut one column too far left: every distance is one off, and the farthest pair
    back gets the padding's 0 (fixed_table(127, 16, 9), scores over sqrt(d), not causal, as many keys as queries)."""
    table = fixed_table(127, 16, seed=9)

    def attention(q, k, v):
        h, n = q.shape[1:3]
        rows = table[63 - (n - 1) : 63 + n, :h].T.to(q.dtype)
        x = F.pad(rows[:, None, :].expand(-1, n, -1), (1, 0)).reshape(h, 2 * n * n)
        bias = x[:, : n * (2 * n - 1)].view(h, n, 2 * n - 1)[:, :, n - 1 :]
        return (q @ k.mT / math.sqrt(q.shape[-1]) + bias).softmax(-1) @ v
    return attention


@case()
def table_softmax_over_queries():
    """The biased scores are normalized over the queries instead of the keys (fixed_table(13, 16, 11), clipped at 6,
    scores over sqrt(d))."""
    table = fixed_table(13, 16, seed=11)

    def attention(q, k, v):
        index = relative(q.shape[2], k.shape[2]).clamp(-6, 6) + 6
        bias = table.to(q)[index, : q.shape[1]].permute(2, 0, 1)
        attn = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1]) + bias
        return torch.einsum("bhqk,bhkd->bhqd", attn.softmax(dim=-2), v)
    return attention


# ---------------------------------------------------------------- functions with a wrong backward


@case(source="recomputing backwards that forget the bias")
def table_backward_recomputes_without_bias():
    """The backward recomputes the weights from q and k alone, without the bias (fixed_table(13, 16, 11), clipped at
    6, scores over sqrt(d))."""
    table = fixed_table(13, 16, seed=11)

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            bias = table.to(q)[relative(q.shape[2], k.shape[2]).clamp(-6, 6) + 6, : q.shape[1]].permute(2, 0, 1)
            ctx.save_for_backward(q, k, v)
            return weights(q, k, bias, q.shape[-1] ** -0.5, False) @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            scale = q.shape[-1] ** -0.5
            p = weights(q, k, 0.0, scale, False)
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
            return ds @ k, ds.mT @ q, p.mT @ do
    return Attention.apply


@case()
def table_backward_with_distance_reversed():
    """The backward recomputes the weights with the bias of i - j, where the forward took j - i (fixed_table(11, 1),
    clipped at 5, scores over sqrt(d))."""
    table = fixed_table(11, 1).flatten()

    class Attention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            index = relative(q.shape[-2], k.shape[-2]).clamp(-5, 5) + 5
            s = q @ k.mT / q.shape[-1] ** 0.5 + table.to(q)[index]
            ctx.save_for_backward(q, k, v, s.logsumexp(-1, keepdim=True))
            return s.softmax(-1) @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, lse = ctx.saved_tensors
            i, j = torch.arange(q.shape[-2])[:, None], torch.arange(k.shape[-2])[None, :]
            s = q @ k.mT / q.shape[-1] ** 0.5 + table.to(q)[(i - j).clamp(-5, 5) + 5]
            p = torch.exp(s - lse)
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
            return ds @ k, ds.mT @ q, p.mT @ do
    return Attention.apply


@case()
def table_backward_scales_t5():
    """T5's core (scale 1) with a backward taken from scaled attention: dQ and dK carry 1 / sqrt(d) (8 buckets both
    ways up to 20, fixed_table(8, 16))."""
    table = fixed_table(8, 16)

    class T5Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            bucket = t5_bucket(relative(q.shape[2], k.shape[2]), True, 8, 20)
            p = torch.softmax(q @ k.mT + table.to(q)[bucket, : q.shape[1]].permute(2, 0, 1), dim=-1)
            out = p @ v
            ctx.save_for_backward(q, k, v, p, out)
            return out

        @staticmethod
        def backward(ctx, grad_output):
            q, k, v, p, out = ctx.saved_tensors
            delta = (grad_output * out).sum(-1, keepdim=True)
            grad_s = p * (grad_output @ v.mT - delta) / math.sqrt(q.shape[-1])
            return grad_s @ k, grad_s.mT @ q, p.mT @ grad_output
    return T5Core.apply


@case()
def table_backward_forgets_the_triangle():
    """The backward rebuilds the weights from the saved logsumexp with the bias but without the causal mask
    (fixed_table(13, 16, 11), clipped at 6, scores over sqrt(d))."""
    table = fixed_table(13, 16, seed=11)

    def logits(q, k):
        index = relative(q.shape[2], k.shape[2]).clamp(-6, 6) + 6
        return q @ k.mT * q.shape[-1] ** -0.5 + table.to(q)[index, : q.shape[1]].permute(2, 0, 1)

    class FlashLike(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            s = logits(q, k).masked_fill(triangle(q.shape[2], k.shape[2]), float("-inf"))
            o = s.softmax(-1) @ v
            ctx.save_for_backward(q, k, v, o, s.logsumexp(-1, keepdim=True))
            return o

        @staticmethod
        def backward(ctx, do):
            q, k, v, o, lse = ctx.saved_tensors
            p = torch.exp(logits(q, k) - lse)
            ds = p * (do @ v.mT - (do * o).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do
    return FlashLike.apply


# ---------------------------------------------------------------- layers whose output is wrong


@case("layer", source="microsoft/Swin-Transformer models/swin_transformer.py without the permute")
def table_viewed_heads_first():
    """The gathered biases (n, n, heads) are viewed as (heads, n, n) instead of permuted, which mixes heads and
    pairs; a window of 4 x 8 tokens in rows, not causal."""
    class WindowAttention(nn.Module):
        def __init__(self, dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            self.relative_position_bias_table = nn.Parameter(torch.randn(7 * 15, num_heads) * 0.5)
            self.register_buffer("relative_position_index", window_index(4, 8))
            self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

        def forward(self, x):
            B_, N, C = x.shape
            q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            index = self.relative_position_index[:N, :N].reshape(-1)
            bias = self.relative_position_bias_table[index].view(self.num_heads, N, N)
            attn = ((q * self.scale) @ k.transpose(-2, -1) + bias.unsqueeze(0)).softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))
    return seeded(WindowAttention)


@case("layer", source="282857341/nnFormer pull request 88 (fix the bug about position table)")
def table_window_stride_short():
    """Swin's index multiplies the rows' offset by 8 where 2 * 8 - 1 belongs, so that different offsets share a row
    of the table; a window of 4 x 8 tokens in rows, not causal."""
    class WindowAttention(nn.Module):
        def __init__(self, dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            self.relative_position_bias_table = nn.Parameter(torch.randn(7 * 15, num_heads) * 0.5)
            coords = torch.stack(torch.meshgrid(torch.arange(4), torch.arange(8), indexing="ij")).flatten(1)
            offsets = coords[:, :, None] - coords[:, None, :]
            self.register_buffer("relative_position_index", (offsets[0] + 3) * 8 + offsets[1] + 7)
            self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

        def forward(self, x):
            B_, N, C = x.shape
            q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            bias = self.relative_position_bias_table[self.relative_position_index[:N, :N]].permute(2, 0, 1)
            attn = ((q * self.scale) @ k.transpose(-2, -1) + bias).softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))
    return seeded(WindowAttention)


@case("layer", source="meshgrid calls with the other indexing")
def table_window_of_columns():
    """The coordinates come from meshgrid with indexing "xy", which lists a window of 4 x 8 tokens by rows of 4, while
    the tokens stand in rows of 8; not causal."""
    class WindowAttention(nn.Module):
        def __init__(self, dim=30, num_heads=3, height=4, width=8):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            self.table = nn.Parameter(torch.randn((2 * height - 1) * (2 * width - 1), num_heads) * 0.5)
            y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="xy")
            y, x = y.flatten(), x.flatten()
            dy, dx = y[:, None] - y[None, :] + height - 1, x[:, None] - x[None, :] + width - 1
            self.register_buffer("index", dy * (2 * width - 1) + dx)
            self.to_qkv, self.to_out = nn.Linear(dim, 3 * dim, bias=False), nn.Linear(dim, dim)

        def forward(self, x):
            b, n, c = x.shape
            q, k, v = (t.view(b, n, self.num_heads, -1).transpose(1, 2) for t in self.to_qkv(x).chunk(3, dim=-1))
            bias = self.table[self.index[:n, :n]].permute(2, 0, 1)
            return self.to_out(((q @ k.mT * self.scale + bias).softmax(-1) @ v).transpose(1, 2).reshape(b, n, c))
    return seeded(WindowAttention)


@case("layer")
def table_one_bias_per_query():
    """The decoder reads the bias of row 0 of the bucket matrix for every query, so that the bias depends on the
    key's position alone (causal, scale 1, 8 buckets of the past up to 20)."""
    class Decoder(T5Attention):
        def forward(self, hidden_states):
            q, k, v = (self.shape(f(hidden_states)) for f in (self.q, self.k, self.v))
            n = hidden_states.shape[1]
            bucket = t5_bucket(-torch.arange(n), bidirectional=False, num_buckets=8, max_distance=20)
            position_bias = self.relative_attention_bias(bucket).permute(1, 0)[None, :, None, :]
            scores = (q @ k.mT + position_bias).masked_fill(triangle(n, n), float("-inf"))
            return self.o(self.unshape(scores.softmax(-1) @ v))
    return seeded(Decoder)


# ---------------------------------------------------------------- layers whose table's gradient is wrong


@case("layer")
def table_read_by_data():
    """The bias is read from the table's .data, so that the learned table gets no gradient (clipped distances, not
    causal)."""
    class Attention(Packed):
        def core(self, q, k, v, index):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=self.table.data[:, index].unsqueeze(0))
    return seeded(Attention)


@case("layer", source="position biases cached by length")
def table_cached_without_gradient():
    """The position bias of each length is kept from the first call without its graph: the table gets no gradient,
    and later values of it are never read (scale 1, 8 buckets both ways up to 20, not causal)."""
    class Encoder(T5Attention):
        def __init__(self):
            super().__init__()
            self.cached = {}

        @torch.no_grad()
        def position_bias(self, n):
            key = (n, self.relative_attention_bias.weight.dtype)
            if key not in self.cached:
                bucket = t5_bucket(relative(n, n), True, 8, 20)
                self.cached[key] = self.relative_attention_bias(bucket).permute(2, 0, 1).unsqueeze(0)
            return self.cached[key]

        def forward(self, hidden_states):
            q, k, v = (self.shape(f(hidden_states)) for f in (self.q, self.k, self.v))
            scores = torch.matmul(q, k.transpose(3, 2)) + self.position_bias(hidden_states.shape[1])
            return self.o(self.unshape(F.softmax(scores, dim=-1) @ v))
    return seeded(Encoder)


@case("layer", source="nn.Embedding(..., padding_idx=0) taken over from token embeddings")
def table_padding_index():
    """The embedding of the buckets has padding_idx=0, so that bucket 0, a token's own position, never learns
    (causal, scale 1, 8 buckets of the past up to 20)."""
    class Decoder(T5Attention):
        def __init__(self):
            super().__init__()
            self.relative_attention_bias = nn.Embedding(8, self.n_heads, padding_idx=0)
            nn.init.normal_(self.relative_attention_bias.weight, std=0.5)

        def forward(self, x):
            q, k, v = (self.shape(f(x)) for f in (self.q, self.k, self.v))
            n = x.shape[1]
            bias = self.relative_attention_bias(t5_bucket(relative(n, n), False, 8, 20)).permute(2, 0, 1)
            scores = torch.einsum("bhqd,bhkd->bhqk", q, k) + bias
            return self.o(self.unshape(scores.masked_fill(triangle(n, n), -1e30).softmax(-1) @ v))
    return seeded(Decoder)


@case("layer", source="backwards by index assignment in place of index_add")
def table_last_occurrence_wins():
    """The lookup's backward assigns gradients to the table's rows by index, so that of all pairs with one offset
    only the last counts; a window of 4 x 8 tokens in rows, not causal."""
    class Lookup(torch.autograd.Function):
        @staticmethod
        def forward(ctx, table, index):
            ctx.save_for_backward(index)
            ctx.rows = table.shape
            return table[index]

        @staticmethod
        def backward(ctx, grad):
            (index,) = ctx.saved_tensors
            grad_table = grad.new_zeros(ctx.rows)
            grad_table[index] = grad
            return grad_table, None

    class WindowAttention(nn.Module):
        def __init__(self, dim=32, num_heads=4):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            self.relative_position_bias_table = nn.Parameter(torch.randn(7 * 15, num_heads) * 0.5)
            self.register_buffer("relative_position_index", window_index(4, 8))
            self.qkv, self.proj = nn.Linear(dim, dim * 3), nn.Linear(dim, dim)

        def forward(self, x):
            B_, N, C = x.shape
            q, k, v = self.qkv(x).reshape(B_, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            bias = Lookup.apply(self.relative_position_bias_table, self.relative_position_index[:N, :N].reshape(-1))
            bias = bias.view(N, N, -1).permute(2, 0, 1)
            attn = ((q * self.scale) @ k.transpose(-2, -1) + bias).softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))
    return seeded(WindowAttention)


@case("layer")
def table_gradient_averaged_over_batch():
    """A fused addition of the bias gives it the mean over the batch as gradient where the sum belongs (T5 encoder,
    scale 1, 8 buckets both ways up to 20)."""
    class AddBias(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scores, bias):
            return scores + bias

        @staticmethod
        def backward(ctx, grad):
            return grad, grad.mean(0, keepdim=True)

    class Encoder(T5Attention):
        def forward(self, hidden_states):
            n = hidden_states.shape[1]
            query_states, key_states = self.shape(self.q(hidden_states)), self.shape(self.k(hidden_states))
            bias = self.relative_attention_bias(t5_bucket(relative(n, n), True, 8, 20)).permute(2, 0, 1)[None]
            scores = AddBias.apply(torch.matmul(query_states, key_states.transpose(3, 2)), bias)
            attn_output = torch.matmul(F.softmax(scores, dim=-1), self.shape(self.v(hidden_states)))
            return self.o(self.unshape(attn_output)), bias
    return seeded(Encoder)


@case("layer")
def table_gradient_without_diagonal():
    """The pairs of a token with itself are left out of the table's gradient, as a strict triangle does."""
    def gradient(ds, dp, index, table, scale):
        return to_rows(torch.tril(ds.sum(dim=0), diagonal=-1), index, table)

    core = core_with(gradient)

    class Attention(Packed):
        def core(self, q, k, v, index):
            return core.apply(q, k, v, self.table, index, self.scale)
    return seeded(Attention)


@case("layer")
def table_gradient_averaged_over_pairs():
    """Each row of the table gets the mean of its pairs' gradients instead of their sum (not causal)."""
    def gradient(ds, dp, index, table, scale):
        counts = torch.bincount(index.flatten(), minlength=table.shape[1]).clamp(min=1)
        return to_rows(ds.sum(0), index, table) / counts

    core = core_with(gradient, causal=False)

    class Attention(Packed):
        def __init__(self):
            super().__init__(dim=24, heads=3, clip=6)

        def core(self, q, k, v, index):
            return core.apply(q, k, v, self.table, index, self.scale)
    return seeded(Attention)


@case("layer")
def table_gradient_before_the_row_sum():
    """The table's gradient is taken from P * dP, without the row sum that the softmax's backward subtracts."""
    core = core_with(lambda ds, dp, index, table, scale: to_rows(dp.sum(0), index, table))

    class Attention(Packed):
        def core(self, q, k, v, index):
            return core.apply(q, k, v, self.table, index, self.scale)
    return seeded(Attention)


@case("layer", source="kernels that hand dS, already scaled for dQ and dK, on to dbias")
def table_gradient_scaled():
    """The table's gradient carries the scale 1 / sqrt(d) of the scores, which the bias never had."""
    core = core_with(lambda ds, dp, index, table, scale: to_rows((ds * scale).sum(0), index, table))

    class Attention(Packed):
        def core(self, q, k, v, index):
            return core.apply(q, k, v, self.table, index, self.scale)
    return seeded(Attention)


@case("layer")
def table_gradient_by_reversed_distance():
    """The backward puts the gradients to the rows of i - j, where the forward read those of j - i (not causal)."""
    core = core_with(lambda ds, dp, index, table, scale: to_rows(ds.sum(0), index.T, table), causal=False)

    class Attention(Packed):
        def core(self, q, k, v, index):
            return core.apply(q, k, v, self.table, index, self.scale)
    return seeded(Attention)


@case("layer")
def table_gradient_drops_clipped():
    """Pairs whose distance was clipped give nothing to the table's gradient, so that its outer rows learn from one
    distance alone (not causal)."""
    def gradient(ds, dp, index, table, scale):
        clip = table.shape[1] // 2
        inside = relative(*index.shape).abs() <= clip
        return to_rows((ds * inside).sum(0), index, table)

    core = core_with(gradient, causal=False)

    class Attention(Packed):
        def __init__(self):
            super().__init__(clip=2)

        def core(self, q, k, v, index):
            return core.apply(q, k, v, self.table, index, self.scale)
    return seeded(Attention)


@case("layer")
def table_gradient_shared_by_heads():
    """The table has a column for each head, but its gradient is summed over the heads and given to all of them."""
    def gradient(ds, dp, index, table, scale):
        return to_rows(ds.sum((0, 1), keepdim=False).expand(table.shape[0], -1, -1), index, table)

    core = core_with(gradient)

    class Attention(Packed):
        def core(self, q, k, v, index):
            return core.apply(q, k, v, self.table, index, self.scale)
    return seeded(Attention)


@case("layer")
def table_gradient_of_first_example():
    """The hand-written softmax with bias gives the bias, shared by the batch, the first example's gradient alone
    (T5 decoder, causal, scale 1, 8 buckets of the past up to 20)."""
    class BiasedSoftmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, scores, bias):
            probs = torch.softmax(scores + bias, dim=-1)
            ctx.save_for_backward(probs)
            return probs

        @staticmethod
        def backward(ctx, grad):
            (probs,) = ctx.saved_tensors
            inner = probs * grad
            dscores = inner - probs * inner.sum(-1, keepdim=True)
            return dscores, dscores[0]

    class Decoder(T5Attention):
        def forward(self, x):
            q, k, v = (self.shape(f(x)) for f in (self.q, self.k, self.v))
            n = x.shape[1]
            bias = self.relative_attention_bias(t5_bucket(relative(n, n), False, 8, 20)).permute(2, 0, 1)
            bias = bias.masked_fill(triangle(n, n), float("-inf"))
            return self.o(self.unshape(BiasedSoftmax.apply(q @ k.mT, bias) @ v))
    return seeded(Decoder)
