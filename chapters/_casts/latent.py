"""A layer with latents, whole; and the latent alone, normed."""

from attnmath.page.scenes.cast import Cast, counts, drawn, made
from attnmath.page.scenes.settings import calm, divided, empty_row, masked, three, zero

from .positions import both_layouts
from .todays_layers import places

MATRICES = {"W^D^Q": "W_DQ", "W^U^Q": "W_UQ", "W^Q^R": "W_QR", "W^D^K^V": "W_DKV", "W^U^K": "W_UK",
            "W^U^V": "W_UV", "W^K^R": "W_KR", "C^K^V": "C_KV"}

small = divided(2, *list(MATRICES)[:-1])  # so that scores are of the size of one

LATENT = Cast(
    name="layer with latents",
    sizes={"n": 4, "d": 10, "d_q": 5, "d_k": 7, "d_r": 6, "d_c": 8, "d_v": 9, "r": 2, "H": 3},
    letters=drawn("X, W^D^Q, W^U^Q, W^Q^R, W^D^K^V, W^U^K, W^U^V, W^K^R, W^O, theta, B, gamma")
    | counts("t") | drawn("N, J")
    | made("C, S, C^Q, C^K^V, Q, K, V, bar Q, bar K, Q^R, K^R, A, P, O, Y", "eq:latent_attention")
    | made("D", "eq:latent_attention_vjp"),
    outputs=("Y",),
    names=MATRICES | {"bar Q": "Q_bar", "bar K": "K_bar", "t": "positions"},
    same={"m": "n"},
    constants=("t", "N", "J"),
    settings=(
        *both_layouts("random bias", 491, "d_r", calm, small, places),
        *both_layouts("causal", 493, "d_r", calm, small, places, masked),
        *both_layouts("empty row", 495, "d_r", calm, small, places, empty_row),
        *both_layouts("no bias, in other sizes", 497, "d_r", calm, small, places, zero("B"),
                      n=5, d=6, d_q=3, d_k=8, d_r=4, d_c=7, d_v=2, H=3),
    ),
)

NORMED = Cast(
    name="a normed latent",
    sizes={"n": 3, "d": 5, "d_c": 4},
    letters=drawn("X, W^D^K^V") | made("F, C^K^V", "prp:normed_latent"),
    outputs=("C^K^V",),
    names={"W^D^K^V": "W_DKV", "C^K^V": "C_KV"},
    settings=three(499, n=4, d=3, d_c=2),
)

CASTS = LATENT, NORMED
