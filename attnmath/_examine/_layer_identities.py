"""What always holds between the gradients of a layer, as evidence: chapters/laws.md."""

from collections.abc import Callable

import numpy as np

from attnmath._examine._layer_judge import Tried
from attnmath._examine._layer_near import Near, formats
from attnmath._examine._steps import T

Side = Callable[["Gradients"], object]


class Gradients:
    """What came, with the bound of each number; W without one."""

    def __init__(self, t: Tried) -> None:
        self.case, self.f = t.case, formats("float64").own
        for name, x, off in zip(t.got._fields, t.got, t.off):
            setattr(self, name, None if x is None else Near(x, off, self.f))
        for name in ("W_Q", "W_K", "W_V", "W_O", "b_Q", "b_K", "b_V"):
            setattr(self, name, getattr(t.case.W, name))

    def gauge(self, a: str) -> object:
        """W^T dW + b^T db of each head."""
        W, b = getattr(self, f"W_{a}"), getattr(self, f"b_{a}")
        x = T(W) @ getattr(self, f"dW_{a}")
        if b is None:
            return x
        return x + b[:, :, None] * getattr(self, f"db_{a}").reshape(*b.shape[:1], 1, b.shape[1])

    def shared(self, x: object) -> object:
        """The sum over the heads that read the same keys and values."""
        H, G = len(self.W_Q), len(self.W_K)
        return x.reshape(G, H // G, *x.shape[1:]).sum(1)

    def tokens(self, *letters: str) -> object:
        """The sum of dW W^T over the heads: what X^T dX has to be."""
        total = 0.0
        for a in letters:
            each = getattr(self, f"dW_{a}") @ T(getattr(self, f"W_{a}"))
            total = each.sum(0) + total
        return total


def _over(X: np.ndarray, dX: Near) -> object:
    d = X.shape[2]
    return X.reshape(-1, d).T @ dX.reshape(-1, d)


LAWS: dict[str, tuple[str, Callable[[Gradients], tuple | None]]] = {
    "W_Q and W_K may trade a matrix": ("N1", lambda g: None if g.case.rotary else
                                       (g.shared(g.gauge("Q")), T(g.gauge("K")))),
    "W_V and W_O may trade a matrix": ("N2", lambda g: (
        g.gauge("V"), g.shared(g.dW_O @ T(g.W_O)))),
    "X^T dX": ("N3q", lambda g: (_over(g.case.X, g.dX), g.tokens(*("QKV" if g.case.Z is None else "Q")))),
    "Z^T dZ": ("N3kv", lambda g: None if g.case.Z is None else (_over(g.case.Z, g.dZ), g.tokens("K", "V"))),
    "db_K = 0": ("H3", lambda g: None if g.db_K is None or g.case.rotary else (g.db_K, 0.0)),
    "db_V = db_O W_O^T": ("H4", lambda g: None if g.db_V is None or g.db_O is None else (
        g.db_V, g.shared((g.db_O.reshape(1, 1, -1) @ T(g.W_O))[:, 0]))),
    "db_O = sum of dY": ("dbO", lambda g: None if g.db_O is None else (
        g.db_O, g.case.dY.reshape(-1, g.case.dY.shape[2]).sum(0))),
}  # fmt: skip


def residuals(t: Tried) -> dict[str, bool]:
    """For each law that a layer of this kind has, whether it holds within the bounds."""
    g, out = Gradients(t), {}
    for words, (_, sides) in LAWS.items():
        pair = sides(g) if all(x is None or np.isfinite(x).all() for x in t.got) else None
        if pair is not None:
            gap = pair[0] - pair[1]
            out[words] = bool((abs(gap.x) <= gap.off).all())
    return out


def identities(t: Tried) -> str:
    """Which laws fail and which hold, in words."""
    found = residuals(t)
    parts = [
        f"{word}: " + ", ".join(names)
        for word, holds in (("broken laws", False), ("laws that hold", True))
        if (names := [law for law, x in found.items() if x == holds])
    ]
    return "; ".join(parts)
