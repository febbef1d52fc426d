"""Two mistakes in one program."""

from mistaken import MISTAKES

PAIRS = """
D_missing dQ_noscale, gqa_last dK_noscale, dV_nodrop dQ_scale2, dS_sign gqa_mean, D_mean drop_norescale_bwd,
dB_mean dK_scale2, dB_batch0 D_sign, dV_PnotPT no_bias_bwd, align_bwd dK_noscale, last_tile_dV dK_overwrite,
f_noscale f_mask_after, f_align mask_after_scale, bias_missing dP_wrong_head, f_gqa_map f_scale_dk,
no_mask_bwd dQ_noscale, D_rowmix dB_scaled, dQ_noscale dV_nodrop, f_drop_norescale scale_ignored
"""


def both(a, b):
    """A program with the parts that one mistake replaces, and those of another."""
    parts = type(MISTAKES[a].fn), type(MISTAKES[b].fn)
    return type(f"{a}_and_{b}", parts, {})()


def planted_twice():
    """(a, b) -> the two, and the program that has both."""
    twice = {}
    for pair in PAIRS.split(","):
        a, b = pair.split()
        twice[a, b] = MISTAKES[a], MISTAKES[b], both(a, b)
    return twice
