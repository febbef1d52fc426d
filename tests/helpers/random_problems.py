"""Problems drawn at random, for tests and benchmarks: any family, any sizes, any of the options."""

from attnmath._examine.problems.case import SHAPES, Draft
from attnmath._examine.problems.families import FAMILIES, drawn_case


def random_case(options, dtype, rng, most=40):
    """A problem of any family, with up to so many queries and keys and any of the options."""
    while True:
        setting = random_setting(rng, most)
        if setting.needs <= set(options):
            return drawn_case(setting, dtype, rng)


def random_setting(rng, most):
    """Sizes, at most one of mask, causal and bias, and any of the others."""
    G, group = int(rng.integers(1, 4)), int(rng.choice([1, 1, 2, 3]))
    n, m = map(int, rng.integers(1, most + 1, 2))
    d_k, d_v = rng.choice([1, 5, 8, 16, 32], 2)
    d_v = d_v if rng.random() < 0.3 else d_k
    sizes = int(rng.integers(1, 4)), G * group, G, n, m, int(d_k), int(d_v)
    hides = rng.choice(["", "", "mask", "causal", "bias"])
    # PyTorch's kernel for processors multiplies the -inf of a key in the future by the scale.
    scales = [0.3, 0.05] if hides == "causal" else [0.3, 0.05, -0.3, 0.0]
    kinds = (*SHAPES, "padding", "empty") if hides == "mask" else (*SHAPES, "hidden")
    kind = str(rng.choice(kinds))
    return Draft(
        str(rng.choice(list(FAMILIES))), sizes,
        mask=kind if hides == "mask" else None, causal=bool(hides == "causal"),
        bias=kind if hides == "bias" else None,
        scale=float(rng.choice(scales)) if rng.random() < 0.2 else None,
        rho=float(rng.choice([0.1, 0.25, 0.5])) if rng.random() < 0.2 else 0.0,
        also=(str(rng.choice(["", "poison"] if kind == "padding" else ["", "strided dO", "broadcast dO"])),),
    )
