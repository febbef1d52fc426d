"""The casts of the chapters on masks, empty rows and dropout."""

import numpy as np

from attnmath.page._cast import Cast, Letter, Setting


def _places(sizes: dict, align: str = "lower right") -> tuple:
    """The place of each query among the keys, and the keys."""
    n, m = sizes["n"], sizes["m"]
    return np.arange(n)[:, None] + (m - n if align == "lower right" else 0), np.arange(m)[None, :]


def _causal(values: dict, sizes: dict) -> None:
    place, j = _places(sizes)
    values["chi"] = (j <= place).astype(float)
    place, j = _places(sizes, "upper left")
    values["chi'"] = (j <= place).astype(float)


def _window(values: dict, sizes: dict) -> None:
    place, j = _places(sizes)
    values["chi"] = ((j <= place) & (j > place - sizes["w"])).astype(float)


def _padding(values: dict, sizes: dict) -> None:
    values["chi"] = (np.arange(sizes["m"]) < values["t"][..., None]).astype(float)


def _documents(values: dict, sizes: dict) -> None:
    values["chi"] = (values["phi"] == values["psi"].T).astype(float)


def _added(values: dict, sizes: dict) -> None:
    values["B"] = np.where(values["chi"] == 1, values["E"], -np.inf)


def _hidden(values: dict, sizes: dict) -> None:
    hidden = values["bar chi"] + values["hat chi"] > 0
    values["B"] = np.where(hidden, -np.inf, 0.0)


def _masked(values: dict, sizes: dict) -> None:
    """Every query keeps a key, not all of them the first; nobody may read the last key."""
    n, m = values["chi"].shape
    values["chi"][1:, 0] = values["chi"][0, 1] = 0
    values["chi"][np.arange(n), np.arange(n) % (m - 1)] = 1
    values["chi"][:, -1] = 0
    values["B"] = np.where(values["chi"] == 1, 0.0, -np.inf)


def _masked_causal(values: dict, sizes: dict) -> None:
    """Some queries keep no key if n > m."""
    place, j = _places(sizes)
    values["chi"] = (j <= place).astype(float)
    values["B"] = np.where(values["chi"] == 1, 0.0, -np.inf)


def _mask_of_bias(values: dict, sizes: dict) -> None:
    place, j = _places(sizes)
    values["B"] = np.where(j <= place, 0.0, -np.inf)


def _draws(values: dict, sizes: dict) -> None:
    """Uniform draws and a rate; the multipliers that follow from both."""
    rng = np.random.default_rng(sizes["n"])
    values["U"] = rng.integers(0, 64, values["U"].shape) / 64
    values["rho"] = rng.integers(16, 40, (1, 1)) / 64
    values["R"] = np.where(values["U"] < values["rho"], 0, values["R"] * 0 + 1) / (1 - values["rho"])


def _draws_and_mask(values: dict, sizes: dict) -> None:
    _draws(values, sizes)
    values["B"][0, 1] = values["B"][1] = -np.inf


def _draws_and_other_mask(values: dict, sizes: dict) -> None:
    _draws(values, sizes)
    values["B"][2, 0] = values["B"][-1] = -np.inf


def _draws_no_bias(values: dict, sizes: dict) -> None:
    _draws(values, sizes)
    values["B"] = np.zeros_like(values["B"])


CAUSAL = Cast(
    name="causal mask",
    sizes={"n": 4, "m": 6},
    letters={"chi": Letter(("n", "m"), "mask"), "chi'": Letter(("n", "m"), "mask")},
    outputs=(),
    names={"chi": "mask"},
    settings=(
        Setting("n < m", 201, change=_causal),
        Setting("n > m", 202, {"n": 6, "m": 4}, _causal),
        Setting("n = m", 203, {"n": 5, "m": 5}, _causal),
    ),
)

WINDOW = Cast(
    name="window mask",
    sizes={"n": 4, "m": 6, "w": 2},
    letters={"chi": Letter(("n", "m"), "mask")},
    outputs=(),
    names={"chi": "mask"},
    settings=(
        Setting("n < m", 211, change=_window),
        Setting("n > m", 212, {"n": 6, "m": 4, "w": 3}, _window),
        Setting("n = m", 213, {"n": 5, "m": 5, "w": 2}, _window),
    ),
)

PADDING = Cast(
    name="padding mask",
    sizes={"batch": 3, "m": 4},
    letters={"t": Letter(("batch", "1"), "count"), "chi": Letter(("batch", "1", "m"), "mask")},
    outputs=(),
    names={"chi": "mask", "t": "lengths"},
    settings=(
        Setting("three sequences", 221, change=_padding),
        Setting("two sequences", 222, {"batch": 2, "m": 5}, _padding),
        Setting("many sequences", 223, {"batch": 6, "m": 3}, _padding),
    ),
)

DOCUMENTS = Cast(
    name="document mask",
    sizes={"n": 4, "m": 6},
    letters={
        "phi": Letter(("n", "1"), "count"),
        "psi": Letter(("m", "1"), "count"),
        "chi": Letter(("n", "m"), "mask"),
    },
    outputs=(),
    names={"chi": "mask", "phi": "documents", "psi": "documents_of_keys"},
    settings=(
        Setting("n < m", 231, change=_documents),
        Setting("n > m", 232, {"n": 7, "m": 5}, _documents),
        Setting("n = m", 233, {"n": 6, "m": 6}, _documents),
    ),
)

BIAS = Cast(
    name="bias of a mask",
    sizes={"n": 4, "m": 6},
    letters={
        "chi": Letter(("n", "m"), "mask"),
        "E": Letter(("n", "m")),
        "B": Letter(("n", "m")),
    },
    outputs=(),
    names={"chi": "mask", "E": "added"},
    settings=(
        Setting("random", 241, change=_added),
        Setting("random again", 242, change=_added),
        Setting("n > m", 243, {"n": 6, "m": 3}, _added),
    ),
)

HIDDEN = Cast(
    name="masks that hide",
    sizes={"n": 4, "m": 6},
    letters={
        "bar chi": Letter(("n", "m"), "mask"),
        "hat chi": Letter(("1", "m"), "mask"),
        "B": Letter(("n", "m")),
    },
    outputs=(),
    names={"bar chi": "attn_mask", "hat chi": "key_padding_mask"},
    settings=(
        Setting("random", 251, change=_hidden),
        Setting("random again", 252, change=_hidden),
        Setting("n > m", 253, {"n": 6, "m": 3}, _hidden),
    ),
)

MASKED = Cast(
    name="masked head",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "gamma": Letter(("1", "1")),
        "chi": Letter(("n", "m"), "mask"),
        "B": Letter(("n", "m")),
        "A'": Letter(("n", "m"), "prp:masked_map"),
        "P'": Letter(("n", "m"), "prp:masked_map"),
        "P": Letter(("n", "m"), "prp:masked_map"),
        "O": Letter(("n", "d_v"), "prp:masked_map"),
        "O'": Letter(("n", "d_v"), "prp:masked_after"),
        "r": Letter(("n", "1"), "prp:kept"),
    },
    outputs=("O", "O'"),
    rows={"k": "K", "v": "V", "o": "O", "o'": "O'"},
    settings=(
        Setting("every query keeps a key", 261, change=_masked),
        Setting("causal", 262, change=_masked_causal),
        Setting("empty rows", 263, {"n": 5, "m": 3, "d_k": 2, "d_v": 4}, _masked_causal),
        Setting("n = m", 264, {"n": 5}, _masked_causal),
    ),
)

SHARED = Cast(
    name="shared biases",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "gamma": Letter(("1", "1")),
        "alpha": Letter(("n", "1")),
        "beta": Letter(("1", "m")),
        "eta": Letter(("1", "1")),
        "E": Letter(("n", "m")),
        "B": Letter(("n", "m")),
        "A": Letter(("n", "m"), "prp:bias_parts"),
        "P": Letter(("n", "m"), "prp:bias_parts"),
        "O": Letter(("n", "d_v"), "prp:bias_parts"),
    },
    outputs=("O",),
    rows={"q": "Q", "k": "K"},
    constants=("E", "B"),
    settings=(
        Setting("random bias", 271),
        Setting("causal", 272, change=_mask_of_bias),
        Setting("empty rows", 273, {"n": 5, "m": 3, "d_k": 2, "d_v": 4}, _mask_of_bias),
        Setting("n = m", 274, {"n": 5}),
    ),
)

EQUAL = Cast(
    name="equal scores",
    sizes={"n": 4, "m": 5, "d_v": 2},
    letters={
        "a": Letter(("n", "1")),
        "V": Letter(("m", "d_v")),
        "A": Letter(("n", "m"), "prp:equal_map"),
        "P": Letter(("n", "m"), "prp:equal_map"),
        "L": Letter(("n", "1"), "prp:equal_map"),
        "O": Letter(("n", "d_v"), "prp:equal_map"),
        "D": Letter(("n", "1"), "prp:equal_statistic"),
    },
    outputs=("O",),
    rows={"v": "V", "o": "O"},
    settings=(
        Setting("random", 281),
        Setting("random again", 282),
        Setting("n > m", 283, {"n": 5, "m": 3, "d_v": 4}),
    ),
)

DROPOUT = Cast(
    name="dropout",
    sizes={"n": 4, "m": 5, "d_k": 3, "d_v": 2},
    letters={
        "Q": Letter(("n", "d_k")),
        "K": Letter(("m", "d_k")),
        "V": Letter(("m", "d_v")),
        "B": Letter(("n", "m")),
        "gamma": Letter(("1", "1")),
        "U": Letter(("n", "m")),
        "rho": Letter(("1", "1")),
        "R": Letter(("n", "m")),
        "A": Letter(("n", "m"), "eq:dropout_attention"),
        "P": Letter(("n", "m"), "eq:dropout_attention"),
        "O": Letter(("n", "d_v"), "eq:dropout_attention"),
        "r": Letter(("n", "1"), "prp:dropout_mass"),
        "D": Letter(("n", "1"), "prp:dropout_statistic"),
    },
    outputs=("O",),
    rows={"v": "V", "o": "O"},
    constants=("U", "rho", "R"),
    settings=(
        Setting("random bias", 291, change=_draws),
        Setting("no bias", 292, change=_draws_no_bias),
        Setting("empty row", 293, change=_draws_and_mask),
        Setting("sizes in another order", 294, {"n": 5, "m": 3, "d_k": 2, "d_v": 4}, _draws),
        Setting("n = m, another empty row", 295, {"n": 5}, _draws_and_other_mask),
    ),
)

MASKS = (CAUSAL, WINDOW, PADDING, DOCUMENTS, BIAS, HIDDEN, MASKED, SHARED)
