"""A layer in plain NumPy, one sequence and one head after the other, and mistakes planted in it.

Written from the description of each mistake alone: nothing of attnmath is used here. Weights are
nn.Linear's: W_Q (H k, d), W_O (d, H v), biases in a row.
"""

import numpy as np

H, K, D = 3, 4, 12  # heads, their size, the width of tokens; square, so that nothing shows by its shape


def weights(dtype, rope=False, width=D):
    """Parameters; in cross-attention Z is as wide as X."""
    shapes = {"W_Q": (H * K, D), "W_K": (H * K, width), "W_V": (H * K, width), "W_O": (D, H * K),
              "b_Q": (H * K,), "b_K": (H * K,), "b_V": (H * K,), "b_O": (D,)}
    return {name: np.zeros(shape, dtype) for name, shape in shapes.items()}


def tables(n):
    """cos and sin of a rotary embedding whose two halves differ."""
    angles = np.outer(np.arange(n) + 1.0, [1.0, 0.3, 0.8, 0.1])
    return np.cos(angles), np.sin(angles)


def quarter(x):
    """(a, b) -> (-b, a), halves."""
    a, b = x[:, : K // 2], x[:, K // 2 :]
    return np.concatenate([-b, a], 1)


def quarter_back(x):
    a, b = x[:, : K // 2], x[:, K // 2 :]
    return np.concatenate([b, -a], 1)


def neighbours(x):
    """The same for neighbouring entries."""
    out = np.empty_like(x)
    out[:, 0::2], out[:, 1::2] = -x[:, 1::2], x[:, 0::2]
    return out


def neighbours_back(x):
    out = np.empty_like(x)
    out[:, 0::2], out[:, 1::2] = x[:, 1::2], -x[:, 0::2]
    return out


class Student:
    """A layer with the mistakes that are named; cross(X, Z, W) or alone(X, W), and their way back."""

    def __init__(self, *mistakes, rope=False, causal=False):
        self.mistakes, self.rope, self.causal = mistakes, rope, causal

    def has(self, name):
        return name in self.mistakes

    def forward(self, X, Z, W, mask=None):
        return np.stack([self.one(X[i], Z[i], W, None if mask is None else mask[i if len(mask) > 1 else 0])["Y"]
                         for i in range(len(X))])

    def used(self, W):
        """The weights as they enter."""
        W = dict(W)
        if self.has("W_used_transposed"):
            W["W_V"] = W["W_V"].T
        if self.has("blocks_exchanged"):
            W["W_K"], W["W_V"], W["b_K"], W["b_V"] = W["W_V"], W["W_K"], W["b_V"], W["b_K"]
        for name in ("b_Q", "b_V", "b_O"):
            if self.has(f"{name}_missing"):
                W[name] = 0 * W[name]
        return W

    def turn(self, x):
        if not self.rope:
            return x
        cos, sin = (t.astype(x.dtype) for t in tables(len(x)))
        if self.has("rope_sign"):
            sin = -sin
        return x * cos + (neighbours if self.has("rope_pairing") else quarter)(x) * sin

    def turn_back(self, dx):
        if not self.rope or self.has("rope_not_pulled_back"):
            return dx
        cos, sin = (t.astype(dx.dtype) for t in tables(len(dx)))
        if self.has("rope_sign") or self.has("rope_back_sign"):
            sin = -sin
        if self.has("rope_halves_back"):
            return dx * cos + quarter_back(dx) * sin
        back = neighbours_back if self.has("rope_pairing") or self.has("rope_pairing_back") else quarter_back
        return dx * cos + back(dx * sin)

    def columns(self, h, of_output=False):
        """Where the entries of head h stand."""
        if of_output and self.has("heads_interleaved"):
            return np.arange(K) * H + h
        return h * K + np.arange(K)

    def one(self, X, Z, W, mask=None):
        """Everything of the way forward for one sequence."""
        W = self.used(W)
        Z = X if self.has("Z_ignored") else Z
        said = np.zeros((len(X), H * K), X.dtype)
        heads = []
        gamma = D**-0.5 if self.has("f_scale_dmodel") else K**-0.5
        if self.has("f_noscale"):
            gamma = 1.0
        for h in range(H):
            c = self.columns(h)
            q = self.turn(X @ W["W_Q"][c].T + W["b_Q"][c])
            k = Z @ W["W_K"][c].T + W["b_K"][c]
            k = k if self.has("rope_keys_missing") else self.turn(k)
            v = Z @ W["W_V"][c].T + W["b_V"][c]
            scores = (q @ k.T * X.dtype.type(gamma)).astype(X.dtype)
            if self.causal:
                scores = np.where(np.tri(len(q)) > 0, scores, -np.inf)
            if mask is not None:
                scores = np.where(mask[0], scores, -np.inf)
            p = np.exp(scores - scores.max(1, keepdims=True))
            p = (p / p.sum(1, keepdims=True)).astype(X.dtype)
            heads.append((q, k, v, p))
            said[:, self.columns(h, True)] = p @ v
        if self.has("heads_merged_by_view"):
            said = np.stack([said[:, self.columns(h)] for h in range(H)]).reshape(len(X), H * K)
        Y = said @ W["W_O"].T + W["b_O"] * (H if self.has("b_O_per_head") else 1)
        if self.has("residual_inside"):
            Y = Y + X
        return dict(Y=Y.astype(X.dtype), said=said, heads=heads, gamma=X.dtype.type(gamma), Z=Z, W=W)

    def backward(self, dY, X, Z, W, mask=None):
        """The gradients by name, summed over the batch."""
        parts = [self.one_back(dY[i], X[i], Z[i], W, None if mask is None else mask[i if len(mask) > 1 else 0])
                 for i in range(len(X))]
        out = {name: np.stack([p[name] for p in parts]) for name in ("X", "Z")}
        for name in W:
            each = [p[name] for p in parts]
            out[name] = sum(each)
            if self.has("batch_mean"):
                out[name] = out[name] / len(each)
            if self.has(f"d{name}_one_entry"):
                out[name] = each[0]
            if self.has(f"d{name}_missing"):
                out[name] = 0 * out[name]
            if self.has(f"d{name}_transposed"):
                out[name] = out[name].T
        if self.has("gradients_exchanged"):
            out["W_K"], out["W_V"] = out["W_V"], out["W_K"]
        return out

    def one_back(self, dY, X, Z, W_given, mask=None):
        """The gradients for one sequence."""
        f = self.one(X, Z, W_given, mask)
        W, Z_used = f["W"], f["Z"]
        dX, dZ = np.zeros_like(X), np.zeros_like(Z)
        g = {name: np.zeros_like(w) for name, w in W.items()}
        dsaid = dY @ W["W_O"]
        if self.has("W_O_untransposed"):
            dsaid = dY @ W["W_O"].T
        if self.has("W_O_ignored_back"):
            dsaid = dY
        g["W_O"] += dY.T @ f["said"]
        g["b_O"] += dY.sum(0) * (H if self.has("b_O_per_head") else 1)
        if self.has("heads_merged_by_view"):
            dsaid = dsaid.reshape(H, len(X), K)
            dsaid = np.concatenate([dsaid[h] for h in range(H)], 1)
        dprojected = {x: np.zeros((len(t), H * K), X.dtype) for x, t in (("Q", X), ("K", Z), ("V", Z))}
        for h in range(H):
            c = self.columns(h)
            q, k, v, p = f["heads"][h]
            do = dsaid[:, self.columns(h, True)]
            if self.has("heads_split_interleaved"):
                do = dsaid[:, h::H]
            dv, dp = p.T @ do, do @ v.T
            row = (p * dp).sum(1, keepdims=True)
            ds = p * (dp if self.has("D_missing") else dp - row) * f["gamma"]
            dq, dk = ds @ k, ds.T @ q
            if self.has("dQ_noscale"):
                dq = dq / f["gamma"]
            if self.has("dW_K_without_b_Q"):
                dk = ds.T @ self.turn(X @ W["W_Q"][c].T)
            dprojected["Q"][:, c] = self.turn_back(dq)
            dprojected["K"][:, c] = dk if self.has("rope_keys_missing") else self.turn_back(dk)
            dprojected["V"][:, c] = dv
        for x in "QKV":
            tokens = X if x == "Q" else Z_used
            if self.has(f"dW_{x}_from_X"):
                tokens = X
            if self.has(f"dW_{x}_from_Z"):
                tokens = Z
            d = dprojected[x]
            g[f"W_{x}"] += d.T @ tokens
            g[f"b_{x}"] += d.sum(0)
            back = d @ W[f"W_{x}"]
            if self.has(f"path_{x}_missing"):
                back = 0 * back
            if self.has(f"path_{x}_twice"):
                back = 2 * back
            if x == "Q" or self.has("Z_ignored"):
                dX += back
            else:
                dZ += back
        if self.has("W_used_transposed"):
            g["W_V"] = g["W_V"].T
        if self.has("blocks_exchanged"):
            g["W_K"], g["W_V"], g["b_K"], g["b_V"] = g["W_V"], g["W_K"], g["b_V"], g["b_K"]
        for name in ("b_Q", "b_V", "b_O"):
            if self.has(f"{name}_missing"):
                g[name] = 0 * g[name]
        if self.has("residual_inside") or self.has("residual_back"):
            dX = dX + dY
        if self.has("dX_dZ_exchanged"):
            dX, dZ = dZ, dX
        if self.has("one_percent"):
            g["W_V"] = g["W_V"] * g["W_V"].dtype.type(1.01)
        if self.has("first_row"):
            dX[0] = 0
        return dict(X=dX, Z=dZ, **g)

    def cross(self, X, Z, W, **mask):
        return self.forward(X, Z, W, **mask)

    def cross_back(self, dY, X, Z, W, **mask):
        return self.backward(dY, X, Z, W, **mask)

    def alone(self, X, W, **mask):
        return self.forward(X, X, W, **mask)

    def alone_back(self, dY, X, W, **mask):
        back = self.backward(dY, X, X, W, **mask)
        back["X"] = back["X"] + back.pop("Z")
        return back


CROSS = """
    W_O_untransposed W_O_ignored_back heads_split_interleaved heads_interleaved heads_merged_by_view
    dW_Q_transposed dW_K_transposed dW_V_transposed dW_O_transposed W_used_transposed blocks_exchanged
    gradients_exchanged dW_K_from_X dW_V_from_X dW_Q_from_Z dX_dZ_exchanged Z_ignored dW_K_without_b_Q
    b_Q_missing b_V_missing b_O_missing b_O_per_head db_V_missing db_Q_missing db_O_missing dW_V_missing
    batch_mean db_V_one_entry dW_Q_one_entry dW_O_one_entry D_missing dQ_noscale f_scale_dmodel f_noscale
""".split()
SAME_LENGTH = {"dW_K_from_X", "dW_V_from_X", "dW_Q_from_Z", "dX_dZ_exchanged", "Z_ignored"}
ALONE = {
    "path_Q_missing": "dX_misses_Q", "path_K_missing": "dX_misses_K", "path_V_missing": "dX_misses_V",
    "residual_inside": "residual_inside", "residual_back": "residual_back", "D_missing": "D_missing",
    "W_O_untransposed": "W_O_untransposed", "batch_mean": "batch_mean", "dW_Q_transposed": "dW_Q_transposed",
    "heads_merged_by_view": "heads_merged_by_view", "dW_K_without_b_Q": "dW_K_without_b_Q",
}
CROSS_PATHS = {"path_K_missing": "dZ_misses_K", "path_V_missing": "dZ_misses_V", "path_Q_missing": "dX_missing"}
ROPE = "rope_not_pulled_back rope_back_sign rope_sign rope_pairing rope_pairing_back rope_halves_back rope_keys_missing".split()
UNNAMED = "one_percent first_row path_K_twice".split()
