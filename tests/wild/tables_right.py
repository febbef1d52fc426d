"""Right attention with a bias from a table of relative positions, in the styles of today's public code (each
written anew)."""

import math

import torch
import torch.nn.functional as F
from cases import collection
from latents_right import seeded
from torch import nn

CASES, case = collection()


def fixed_table(rows, heads, seed=7):
    """A fixed table (rows, heads) in float64, standing for trained numbers."""
    g = torch.Generator().manual_seed(seed)
    return torch.randn(rows, heads, generator=g, dtype=torch.float64)


def t5_bucket(relative_position, bidirectional=True, num_buckets=32, max_distance=128):
    """T5's buckets of relative_position = memory_position - query_position"""
    relative_buckets = 0
    if bidirectional:
        num_buckets //= 2
        relative_buckets = relative_buckets + (relative_position > 0).long() * num_buckets
        relative_position = relative_position.abs()
    else:
        relative_position = -torch.min(relative_position, torch.zeros_like(relative_position))
    max_exact = num_buckets // 2
    is_small = relative_position < max_exact
    large = max_exact + (torch.log(relative_position.double() / max_exact) / math.log(max_distance / max_exact)
                         * (num_buckets - max_exact) + 1e-9).long()
    large = torch.min(large, torch.full_like(large, num_buckets - 1))
    return relative_buckets + torch.where(is_small, relative_position, large)


def relative(n, m):
    """(n, m), j - i"""
    return torch.arange(m)[None, :] - torch.arange(n)[:, None]


def window_index(height, width):
    """Swin's relative_position_index of a window, (height * width, height * width)"""
    coords = torch.stack(torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")).flatten(1)
    relative_coords = (coords[:, :, None] - coords[:, None, :]).permute(1, 2, 0).contiguous()
    relative_coords[:, :, 0] += height - 1
    relative_coords[:, :, 1] += width - 1
    relative_coords[:, :, 0] *= 2 * width - 1
    return relative_coords.sum(-1)


# ---------------------------------------------------------------- functions of query, key and value


@case(options={"mask": "mask"}, source="huggingface/transformers src/transformers/models/t5/modeling_t5.py")
def table_t5_encoder():
    """T5's encoder attention: no scale (1), a bias by T5's buckets in both directions (8 buckets, greatest
    distance 20; fixed_table(8, 16), the first columns for the heads there are), an additive mask besides; query i
    and key j stand at i and j."""
    table = fixed_table(8, 16)

    def attention(query_states, key_states, value_states, mask=None):
        scores = torch.matmul(query_states, key_states.transpose(3, 2))
        query_length, key_length = scores.shape[-2:]
        context_position = torch.arange(query_length, dtype=torch.long)[:, None]
        memory_position = torch.arange(key_length, dtype=torch.long)[None, :]
        bucket = t5_bucket(memory_position - context_position, True, 8, 20)
        values = F.embedding(bucket, table[:, : query_states.shape[1]].to(scores))
        position_bias = values.permute([2, 0, 1]).unsqueeze(0)
        if mask is not None:
            position_bias = position_bias + mask
        scores = scores + position_bias
        attn_weights = nn.functional.softmax(scores, dim=-1)
        return torch.matmul(attn_weights, value_states)
    return attention


@case(source="huggingface/transformers src/transformers/models/mt5/modeling_mt5.py")
def table_mt5_decoder():
    """mT5's decoder self-attention: no scale (1), causal, buckets of the past alone (12 buckets, greatest distance
    24; fixed_table(12, 16)); returns (output, weights, position_bias)."""
    table = fixed_table(12, 16, seed=8)

    def attention(q, k, v):
        n, m = q.shape[2], k.shape[2]
        bucket = t5_bucket(relative(n, m), bidirectional=False, num_buckets=12, max_distance=24)
        position_bias = table.to(q)[bucket, : q.shape[1]].permute(2, 0, 1)[None]
        causal = torch.full((n, m), torch.finfo(q.dtype).min, dtype=q.dtype).triu(1)
        scores = torch.einsum("bnqd,bnkd->bnqk", q, k) + (position_bias + causal)
        weights = torch.softmax(scores, dim=-1)
        return torch.einsum("bnqk,bnkd->bnqd", weights, v), weights, position_bias
    return attention


@case(source="scalar biases at Shaw's clipped distances (fairseq and tensor2tensor forks)")
def table_clipped_distance():
    """One bias for all heads at the distance j - i clipped to -5 .. 5 (fixed_table(11, 1)), scores over
    sqrt(d)."""
    clip = 5
    bias_table = fixed_table(2 * clip + 1, 1).flatten()

    def attn(q, k, v):
        length_q, length_k = q.size(-2), k.size(-2)
        range_q, range_k = torch.arange(length_q), torch.arange(length_k)
        distance = range_k[None, :] - range_q[:, None]
        distance_clipped = torch.clamp(distance, -clip, clip) + clip
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.size(-1))
        return F.softmax(scores + bias_table[distance_clipped].to(scores.dtype), dim=-1) @ v
    return attn


@case(source="kimiyoung/transformer-xl pytorch/mem_transformer.py (_rel_shift), with scalar biases")
def table_rel_shift():
    """Scalar biases for the distances -63 .. 63 (fixed_table(127, 16)) laid out by the shift of a padded matrix
    instead of an index; causal; scores over sqrt(d); as many keys as queries."""
    table = fixed_table(127, 16, seed=9)

    def rel_shift(x):
        """(h, n, 2n - 1) -> (h, n, n): entry (i, j) is x[i, n - 1 - i + j]"""
        h, n, w = x.shape
        x = F.pad(x, (0, 1)).reshape(h, n * (w + 1))
        return x[:, : n * w].view(h, n, w)[:, :, n - 1 :]

    def attention(q, k, v):
        h, n = q.shape[1:3]
        assert k.shape[2] == n
        rows = table[63 - (n - 1) : 63 + n, :h].T.to(q.dtype)
        bias = rel_shift(rows[:, None, :].expand(-1, n, -1))
        scores = q.mul(q.shape[-1] ** -0.5) @ k.mT + bias
        scores = scores.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
        return scores.softmax(-1) @ v
    return attention


@case(options={"mask": "attn_mask"}, source="pull requests that give T5 SDPA (huggingface/transformers 42453)")
def table_through_sdpa():
    """The bias of the buckets (16 both ways, greatest distance 64; fixed_table(16, 16)) goes into
    F.scaled_dot_product_attention as attn_mask, with a boolean mask (True keeps) filled in as -inf; scale 1."""
    table = fixed_table(16, 16, seed=10)

    def sdpa(q, k, v, attn_mask=None):
        bucket = t5_bucket(relative(q.shape[-2], k.shape[-2]), num_buckets=16, max_distance=64)
        bias = table[:, : q.shape[1]].to(q.dtype)[bucket].permute(2, 0, 1).unsqueeze(0)
        bias = bias.expand(q.shape[0], -1, -1, -1)
        if attn_mask is not None:
            bias = bias.masked_fill(attn_mask.logical_not(), float("-inf"))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=1.0)
    return sdpa


@case(source="ofirpress/attention_with_linear_biases, with the biases kept in a table")
def table_alibi_rows():
    """ALiBi kept as a table: row |i - j| up to 255 holds -slope * |i - j| for each head, slopes 2 ** (-8 (h+1) / H);
    both directions; scores over sqrt(d)."""
    def attention(q, k, v):
        heads = q.shape[1]
        slopes = torch.tensor([2 ** (-8 * (h + 1) / heads) for h in range(heads)], dtype=torch.float64)
        table = -torch.arange(256, dtype=torch.float64)[:, None] * slopes
        distance = relative(q.shape[2], k.shape[2]).abs()
        bias = table.to(q)[distance].movedim(-1, 0)
        return torch.softmax(q @ k.mT / q.shape[-1] ** 0.5 + bias, dim=-1) @ v
    return attention


@case(source="hand-written attention cores with a bias and a recomputed backward")
def table_function_with_backward():
    """An autograd.Function with a fixed table by clipped distance (fixed_table(13, 16), clipped at 6): the backward
    recomputes the weights with the bias, and dS needs no more; scores over sqrt(d)."""
    table = fixed_table(13, 16, seed=11)

    def probabilities(q, k):
        bias = table.to(q)[relative(q.shape[2], k.shape[2]).clamp(-6, 6) + 6, : q.shape[1]].permute(2, 0, 1)
        return torch.softmax(torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5 + bias, dim=-1)

    class BiasedAttention(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            ctx.save_for_backward(q, k, v)
            return probabilities(q, k) @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v = ctx.saved_tensors
            p = probabilities(q, k)
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * q.shape[-1] ** -0.5
            return ds @ k, ds.mT @ q, p.mT @ do
    return BiasedAttention.apply


@case(source="microsoft/Swin-Transformer models/swin_transformer.py (the core of WindowAttention)")
def table_window_core():
    """The core of Swin's window attention: a window of 6 x 6 tokens in rows, of which the first n are there, biases
    by (dy, dx) from fixed_table(121, 16) and window_index; scores over sqrt(d); as many keys as queries."""
    table, index = fixed_table(121, 16, seed=12), window_index(6, 6)

    def attention(q, k, v):
        N = q.shape[-2]
        q = q * q.shape[-1] ** -0.5
        attn = q @ k.transpose(-2, -1)
        bias = table[index[:N, :N].reshape(-1), : q.shape[1]].view(N, N, -1)
        attn = attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0).to(attn.dtype)
        return attn.softmax(dim=-1) @ v
    return attention


# ---------------------------------------------------------------- layers with a learned table


class T5Attention(nn.Module):
    """T5's parameters; d_kv of its own."""

    def __init__(self, d_model=32, d_kv=6, n_heads=4, buckets=8, max_distance=20):
        super().__init__()
        self.d_model, self.key_value_proj_dim, self.n_heads = d_model, d_kv, n_heads
        self.relative_attention_num_buckets, self.relative_attention_max_distance = buckets, max_distance
        self.inner_dim = n_heads * d_kv
        self.q = nn.Linear(d_model, self.inner_dim, bias=False)
        self.k = nn.Linear(d_model, self.inner_dim, bias=False)
        self.v = nn.Linear(d_model, self.inner_dim, bias=False)
        self.o = nn.Linear(self.inner_dim, d_model, bias=False)
        self.relative_attention_bias = nn.Embedding(buckets, n_heads)
        nn.init.normal_(self.relative_attention_bias.weight, std=0.5)

    def shape(self, states):
        return states.view(states.shape[0], -1, self.n_heads, self.key_value_proj_dim).transpose(1, 2)

    def unshape(self, states):
        return states.transpose(1, 2).contiguous().view(states.shape[0], -1, self.inner_dim)


@case("layer", options={"mask": "mask"}, source="huggingface/transformers src/transformers/models/t5/modeling_t5.py")
def table_t5_encoder_layer():
    """T5's encoder layer: q, k, v, o without biases, scale 1, the learned bias of 8 buckets in both directions, an
    additive mask besides; returns (output, position_bias)."""
    class Encoder(T5Attention):
        def compute_bias(self, query_length, key_length):
            device = self.relative_attention_bias.weight.device
            context_position = torch.arange(query_length, dtype=torch.long, device=device)[:, None]
            memory_position = torch.arange(key_length, dtype=torch.long, device=device)[None, :]
            bucket = t5_bucket(memory_position - context_position, True, self.relative_attention_num_buckets,
                               self.relative_attention_max_distance)
            return self.relative_attention_bias(bucket).permute([2, 0, 1]).unsqueeze(0)

        def forward(self, hidden_states, mask=None, position_bias=None):
            query_states, key_states = self.shape(self.q(hidden_states)), self.shape(self.k(hidden_states))
            value_states = self.shape(self.v(hidden_states))
            scores = torch.matmul(query_states, key_states.transpose(3, 2))
            if position_bias is None:
                position_bias = self.compute_bias(scores.shape[2], scores.shape[3])
                if mask is not None:
                    position_bias = position_bias + mask
            scores = scores + position_bias
            attn_output = self.unshape(torch.matmul(F.softmax(scores, dim=-1), value_states))
            return self.o(attn_output), position_bias
    return seeded(Encoder)


@case("layer", source="PiotrNawrot/nanoT5 and other small T5 repositories")
def table_t5_decoder_layer():
    """A T5 decoder's self-attention: causal, scale 1, buckets of the past alone; the bias and the triangle are
    added together."""
    class Decoder(T5Attention):
        def forward(self, x):
            q, k, v = (self.shape(f(x)) for f in (self.q, self.k, self.v))
            n = x.shape[1]
            bucket = t5_bucket(relative(n, n), bidirectional=False, num_buckets=8, max_distance=20)
            bias = self.relative_attention_bias(bucket).permute(2, 0, 1)
            bias = bias.masked_fill(torch.ones(n, n, dtype=torch.bool).triu(1), float("-inf"))
            return self.o(self.unshape((q @ k.mT + bias).softmax(-1) @ v))
    return seeded(Decoder)


@case("layer", source="microsoft/Swin-Transformer models/swin_transformer.py")
def table_swin_window():
    """Swin's WindowAttention: qkv with biases, relative_position_bias_table of (2 * 4 - 1) * (2 * 8 - 1) rows, the
    index in a buffer; a window of 4 x 8 tokens in rows, of which the first n are there; not causal."""
    class WindowAttention(nn.Module):
        def __init__(self, dim=32, window_size=(4, 8), num_heads=4):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            rows = (2 * window_size[0] - 1) * (2 * window_size[1] - 1)
            self.relative_position_bias_table = nn.Parameter(torch.randn(rows, num_heads) * 0.5)
            self.register_buffer("relative_position_index", window_index(*window_size))
            self.qkv = nn.Linear(dim, dim * 3)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            B_, N, C = x.shape
            qkv = self.qkv(x).reshape(B_, N, 3, self.num_heads, C // self.num_heads).permute(2, 0, 3, 1, 4)
            q, k, v = qkv[0], qkv[1], qkv[2]
            attn = (q * self.scale) @ k.transpose(-2, -1)
            index = self.relative_position_index[:N, :N]
            bias = self.relative_position_bias_table[index.reshape(-1)].view(N, N, -1)
            attn = (attn + bias.permute(2, 0, 1).contiguous().unsqueeze(0)).softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(B_, N, C))
    return seeded(WindowAttention)


@case("layer", source="microsoft/unilm beit/modeling_finetune.py")
def table_beit():
    """BEiT's attention: a class token first with three rows of its own in the table (to it, from it, itself), 6 x 6
    patches after it, of which the first n - 1 are there; q_bias and v_bias as parameters, no bias for keys."""
    class Attention(nn.Module):
        def __init__(self, dim=24, num_heads=3, window=(6, 6)):
            super().__init__()
            self.num_heads, self.scale = num_heads, (dim // num_heads) ** -0.5
            self.qkv = nn.Linear(dim, dim * 3, bias=False)
            self.q_bias, self.v_bias = nn.Parameter(torch.rand(dim) - 0.5), nn.Parameter(torch.rand(dim) - 0.5)
            rows = (2 * window[0] - 1) * (2 * window[1] - 1) + 3
            self.relative_position_bias_table = nn.Parameter(torch.randn(rows, num_heads) * 0.5)
            area = window[0] * window[1]
            index = torch.zeros(area + 1, area + 1, dtype=torch.long)
            index[1:, 1:] = window_index(*window)
            index[0, 0:], index[0:, 0], index[0, 0] = rows - 3, rows - 2, rows - 1
            self.register_buffer("relative_position_index", index)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            B, N, _ = x.shape
            qkv_bias = torch.cat((self.q_bias, torch.zeros_like(self.v_bias), self.v_bias))
            qkv = F.linear(input=x, weight=self.qkv.weight, bias=qkv_bias)
            q, k, v = qkv.reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)
            attn = q * self.scale @ k.transpose(-2, -1)
            bias = F.embedding(self.relative_position_index[:N, :N], self.relative_position_bias_table)
            attn = (attn + bias.permute(2, 0, 1)).softmax(dim=-1)
            return self.proj((attn @ v).transpose(1, 2).reshape(B, N, -1))
    return seeded(Attention)


@case("layer", source="lucidrains/x-transformers (RelativePositionBias)")
def table_x_transformers():
    """x-transformers' form: to_q, to_k, to_v, to_out without biases; an embedding by T5's buckets of the past times
    sqrt(dim_head), added to the scaled dots; causal by a triu mask."""
    class RelativePositionBias(nn.Module):
        def __init__(self, scale, heads, num_buckets=12, max_distance=30):
            super().__init__()
            self.scale, self.num_buckets, self.max_distance = scale, num_buckets, max_distance
            self.relative_attention_bias = nn.Embedding(num_buckets, heads)
            nn.init.normal_(self.relative_attention_bias.weight, std=0.2)

        def forward(self, i, j):
            q_pos, k_pos = torch.arange(j - i, j), torch.arange(j)
            n = (q_pos[:, None] - k_pos[None, :]).clamp(min=0)
            max_exact = self.num_buckets // 2
            large = torch.log(n.double().clamp(min=1) / max_exact) / math.log(self.max_distance / max_exact)
            large = (max_exact + (large * (self.num_buckets - max_exact) + 1e-9).long()).clamp(max=self.num_buckets - 1)
            values = self.relative_attention_bias(torch.where(n < max_exact, n, large))
            return values.permute(2, 0, 1) * self.scale

    class Attention(nn.Module):
        def __init__(self, dim=24, heads=2, dim_head=8):
            super().__init__()
            self.heads, self.scale = heads, dim_head ** -0.5
            self.to_q, self.to_k = (nn.Linear(dim, heads * dim_head, bias=False) for _ in range(2))
            self.to_v = nn.Linear(dim, heads * dim_head, bias=False)
            self.rel_pos = RelativePositionBias(dim_head ** 0.5, heads)
            self.to_out = nn.Linear(heads * dim_head, dim, bias=False)

        def forward(self, x):
            q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
            dots = torch.einsum("b h i d, b h j d -> b h i j", q, k) * self.scale
            i, j = dots.shape[-2:]
            dots = dots + self.rel_pos(i, j)
            dots = dots.masked_fill(torch.ones((i, j), dtype=torch.bool).triu(j - i + 1), -torch.finfo(dots.dtype).max)
            out = torch.einsum("b h i j, b h j d -> b h i d", dots.softmax(dim=-1), v)
            return self.to_out(out.transpose(1, 2).flatten(2))
    return seeded(Attention)


@case("layer", source="huggingface/pytorch-image-models timm/layers/pos_embed_rel.py (RelPosBias with fused attention)")
def table_timm_fused():
    """timm's fused form: the bias of a learned table, contiguous (1, h, n, n), is the attn_mask of
    F.scaled_dot_product_attention; layers of one row of up to 48 tokens, so a table of 95 distances i - j."""
    class RelPosBias(nn.Module):
        def __init__(self, window=48, num_heads=2):
            super().__init__()
            self.relative_position_bias_table = nn.Parameter(torch.randn(2 * window - 1, num_heads) * 0.5)
            self.register_buffer("relative_position_index", window_index(1, window), persistent=False)

        def get_bias(self, n):
            bias = self.relative_position_bias_table[self.relative_position_index[:n, :n]]
            return bias.permute(2, 0, 1).unsqueeze(0).contiguous()

    class Attention(nn.Module):
        def __init__(self, dim=28, num_heads=2):
            super().__init__()
            self.num_heads = num_heads
            self.qkv = nn.Linear(dim, dim * 3, bias=True)
            self.rel_pos = RelPosBias(num_heads=num_heads)
            self.proj = nn.Linear(dim, dim)

        def forward(self, x):
            B, N, C = x.shape
            q, k, v = self.qkv(x).reshape(B, N, 3, self.num_heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=self.rel_pos.get_bias(N))
            return self.proj(x.transpose(1, 2).reshape(B, N, C))
    return seeded(Attention)


@case("layer", source="SHI-Labs/NATTEN (rpb), in one dimension with masks")
def table_neighbourhood():
    """A neighbourhood of 3 tokens to each side: rpb of shape (heads, 7) by distance, everything farther masked;
    kernels of (heads, dim, d) as parameters by einsum."""
    class NeighborhoodAttention1D(nn.Module):
        def __init__(self, dim=24, heads=3, radius=3):
            super().__init__()
            self.radius, d = radius, dim // heads
            self.w_qkv = nn.Parameter(torch.randn(3, heads, dim, d) / math.sqrt(3 * dim))
            self.w_out = nn.Parameter(torch.randn(heads, d, dim) / math.sqrt(3 * dim))
            self.rpb = nn.Parameter(torch.randn(heads, 2 * radius + 1) * 0.5)

        def forward(self, x):
            q, k, v = torch.einsum("bnc,thcd->tbhnd", x, self.w_qkv)
            offset = relative(x.shape[1], x.shape[1])
            near = offset.abs() <= self.radius
            bias = self.rpb[:, offset.clamp(-self.radius, self.radius) + self.radius]
            scores = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5 + bias
            weights = scores.masked_fill(~near, float("-inf")).softmax(-1)
            return torch.einsum("bhij,bhjd,hdc->bic", weights, v, self.w_out)
    return seeded(NeighborhoodAttention1D)


@case("layer", source="memory-saving attention with a learned bias, backward by hand")
def table_function_layer():
    """A layer whose core is an autograd.Function: the table's gradient is dS summed over the batch and put to its
    rows by index_add_; clipped distances, causal, 1 / sqrt(d)."""
    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v, table, index, scale):
            s = torch.einsum("bhid,bhjd->bhij", q, k) * scale + table[:, index]
            p = s.masked_fill(torch.ones_like(index, dtype=torch.bool).triu(1), float("-inf")).softmax(-1)
            ctx.save_for_backward(q, k, v, table, index, p)
            ctx.scale = scale
            return p @ v

        @staticmethod
        def backward(ctx, do):
            q, k, v, table, index, p = ctx.saved_tensors
            dv = p.mT @ do
            dp = do @ v.mT
            ds = p * (dp - (p * dp).sum(-1, keepdim=True))
            dtable = torch.zeros_like(table).index_add_(1, index.flatten(), ds.sum(0).flatten(1))
            return ds @ k * ctx.scale, ds.mT @ q * ctx.scale, dv, dtable, None, None

    class Attention(nn.Module):
        def __init__(self, dim=30, heads=3, clip=6):
            super().__init__()
            self.heads, self.clip = heads, clip
            self.in_proj_weight = nn.Parameter(torch.randn(3 * dim, dim) / math.sqrt(3 * dim))
            self.table = nn.Parameter(torch.randn(heads, 2 * clip + 1) * 0.5)
            self.out_proj = nn.Linear(dim, dim)

        def forward(self, x):
            b, n, c = x.shape
            q, k, v = (t.view(b, n, self.heads, -1).transpose(1, 2)
                       for t in F.linear(x, self.in_proj_weight).chunk(3, dim=-1))
            index = relative(n, n).clamp(-self.clip, self.clip) + self.clip
            o = Core.apply(q, k, v, self.table, index, (c // self.heads) ** -0.5)
            return self.out_proj(o.transpose(1, 2).reshape(b, n, c))
    return seeded(Attention)


@case("layer", source="decoders with one learned scalar per head and distance")
def table_toeplitz_gather():
    """Causal layer with distance_bias (heads, 64): entry i - j is gathered for the past; separate projections with
    biases; scores over sqrt(d); the weights can be returned."""
    class DistanceAttention(nn.Module):
        def __init__(self, embed_dim=32, num_heads=4, max_len=64):
            super().__init__()
            self.num_heads, self.head_dim = num_heads, embed_dim // num_heads
            self.query, self.key = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
            self.value, self.output = nn.Linear(embed_dim, embed_dim), nn.Linear(embed_dim, embed_dim)
            self.distance_bias = nn.Parameter(torch.randn(num_heads, max_len) * 0.5)

        def forward(self, x, need_weights=False):
            b, n, _ = x.shape
            q, k, v = (f(x).view(b, n, self.num_heads, self.head_dim).permute(0, 2, 1, 3)
                       for f in (self.query, self.key, self.value))
            back = -relative(n, n)
            bias = self.distance_bias.unsqueeze(1).expand(-1, n, -1).gather(
                2, back.clamp(min=0).expand(self.num_heads, -1, -1))
            scores = (q @ k.transpose(2, 3)) / math.sqrt(self.head_dim) + bias
            weights = torch.where(back >= 0, scores, float("-inf")).softmax(dim=3)
            out = self.output((weights @ v).permute(0, 2, 1, 3).reshape(b, n, -1))
            return (out, weights) if need_weights else out
    return seeded(DistanceAttention)
