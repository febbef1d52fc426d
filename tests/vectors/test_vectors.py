"""The test vectors: each number is the nearest to the true one; torch's autograd agrees."""

import hashlib
import json
import math
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from functools import cache
from itertools import product

import flint
import numpy as np
import pytest
import torch

from attnmath._vectors.cases import VECTORS
from attnmath._vectors.exact import exact_letters, rounded
from attnmath._vectors.files import Tensor, digest_of_tensors, tensors_of, write

FORMATS = {"float64": (53, -1022), "float32": (24, -126), "bfloat16": (8, -126), "float16": (11, -14)}
BY_NAME = {v.name: v for v in VECTORS}
SMALL = ("one_by_one", "one_key", "plain", "groups_of_two", "padding_all", "alibi", "exact_hard", "peaked")
NUMBERS = "e7771b895de6ff71"  # of the small ones in all formats: the same on every machine


@cache
def made(name, dtype):
    return tensors_of(BY_NAME[name], dtype)


def values(name, dtype):
    return {k: x.values for k, x in made(name, dtype).items()}


def seen(v, x):
    """Which query may attend to which key; written from the README that comes with the vectors."""
    b, H, _, n, m, *_ = v.sizes
    i, j = np.arange(n)[:, None], np.arange(m)
    hidden = {None: i < 0, "lower_right": j > i + m - n, "upper_left": j > i}[v.causal]
    return np.broadcast_to(x.get("keep", True) & ~hidden & np.isfinite(x.get("bias", 0.0)), (b, H, n, m))


def by_autograd(v, x):
    """The output and the gradients by torch, in float64."""
    dtype, (H, G) = torch.float64, v.sizes[1:3]
    Q, K, V, gamma = (torch.tensor(x[k], dtype=dtype, requires_grad=True) for k in ("Q", "K", "V", "scale"))
    look = torch.tensor(seen(v, x))
    bias = torch.tensor(np.nan_to_num(x.get("bias", np.zeros((1, 1, 1, 1))), neginf=0.0), requires_grad=True)
    A = gamma * (Q @ K.repeat_interleave(H // G, 1).mT) + bias
    live = look.any(-1, keepdim=True)
    P = torch.softmax(A.masked_fill(~look & live, -torch.inf), -1) * live
    O = (P * torch.tensor(x.get("R", 1.0))) @ V.repeat_interleave(H // G, 1)
    grads = torch.autograd.grad(O, (Q, K, V, gamma, bias), torch.tensor(x["dO"]))
    found = dict(zip(("O", "dQ", "dK", "dV", "dgamma", "dB"), (O.detach(), *grads)))
    return {k: y.numpy() for k, y in found.items() if k != "dB" or "bias" in x}


def errors(v, dtype, x):
    """By how much of what is allowed autograd differs from the vector."""
    x = x | {"scale": v.case(dtype).scale}
    found = {}
    for k, y in by_autograd(v, x).items():
        error, allowed = abs(y - x[k]), x[f"{k}_off"]
        found[k] = float(np.where(error == 0, 0, error / np.where(allowed == 0, 1e-300, allowed)).max())
    return found


@pytest.mark.parametrize(
    ("name", "dtype"), list(product(BY_NAME, ["float32"])) + list(product(SMALL, [f for f in FORMATS if f != "float32"]))
)
def test_autograd_agrees(name, dtype):
    assert max(errors(BY_NAME[name], dtype, values(name, dtype)).values()) <= 0.1


@pytest.mark.parametrize("letter", ["O", "dQ", "dK", "dV", "dgamma"])
def test_autograd_does_not_agree_with_a_planted_mistake(letter):
    v, x = BY_NAME["groups_causal"], values("groups_causal", "float32")
    assert errors(v, "float32", x | {letter: 1.01 * x[letter]})[letter] > 1


class Enclosed:
    """A case in flint's enclosures of real numbers, entry by entry; nothing is shared with ours."""

    def __init__(self, v, x, scale):
        b, H, G, n, m, d_k, d_v = v.sizes
        look, (zero, gamma) = seen(v, x), (flint.arb(0), flint.arb(scale))
        R = np.broadcast_to(x.get("R", 1.0), look.shape)
        B = np.broadcast_to(np.nan_to_num(x.get("bias", np.zeros((1, 1, 1, 1))), neginf=0.0), look.shape)
        self.found = {k: {} for k in ("A", "P", "L", "O", "dP", "D", "dA", "dQ", "dK", "dV", "dB")}
        self.found["dgamma"] = {(): zero}
        arb = {k: np.vectorize(flint.arb, [object])(x[k]) for k in ("Q", "K", "V", "dO")}
        for s, h, i in np.ndindex(b, H, n):
            g, keys = h // (H // G), [j for j in range(m) if look[s, h, i, j]]
            q, do = arb["Q"][s, h, i], arb["dO"][s, h, i]
            dot = {j: sum((a * c for a, c in zip(q, arb["K"][s, g, j])), zero) for j in keys}
            A = {j: gamma * dot[j] + flint.arb(B[s, h, i, j]) for j in keys}
            total = sum((a.exp() for a in A.values()), zero)
            P = {j: A[j].exp() / total if len(keys) > 1 else flint.arb(1) for j in keys}
            r = {j: flint.arb(R[s, h, i, j]) for j in keys}
            dP = {j: r[j] * sum((a * c for a, c in zip(do, arb["V"][s, g, j])), zero) for j in keys}
            D = sum((P[j] * dP[j] for j in keys), zero)
            for name, row in (("A", A), ("P", P), ("dP", dP)):
                self.found[name].update({(s, h, i, j): row[j] for j in keys})
            self.found["D"][s, h, i] = D
            if keys:
                self.found["L"][s, h, i] = total.log()
            for j in keys:
                dA = self.found["dA"][s, h, i, j] = P[j] * (dP[j] - D)
                self.add("dgamma", (), dA * dot[j])
                if "bias" in x:
                    self.add("dB", tuple(0 if k == 1 else a for k, a in zip(x["bias"].shape, (s, h, i, j))), dA)
                for c in range(d_k):
                    self.add("dQ", (s, h, i, c), gamma * dA * arb["K"][s, g, j][c])
                    self.add("dK", (s, g, j, c), gamma * dA * q[c])
                for c in range(d_v):
                    self.add("O", (s, h, i, c), P[j] * r[j] * arb["V"][s, g, j][c])
                    self.add("dV", (s, g, j, c), P[j] * r[j] * do[c])

    def add(self, name, at, term):
        self.found[name][at] = self.found[name].get(at, flint.arb(0)) + term


def is_nearest(y, true, dtype):
    """Whether no number of the format is nearer to what is enclosed than y."""
    digits, low = FORMATS[dtype]
    if true == y:
        return True
    exponent = max(math.frexp(y)[1], low + 1)
    half = flint.arb(2) ** (exponent - digits - 1)
    inward = half / 2 if abs(math.frexp(y)[0]) == 0.5 and exponent > low + 1 else half
    outward = (true - flint.arb(y)) * (1 if y >= 0 else -1)
    if outward == half or outward == -inward:  # halfway, the even one
        return math.ldexp(abs(y), digits - exponent) % 2 == 0
    return bool(outward < half) and bool(outward > -inward)


@pytest.fixture
def precise(dtype):
    """Enough digits to tell half of the least number of the format from 0."""
    before, flint.ctx.prec = flint.ctx.prec, 1400 if dtype == "float64" else 400
    yield
    flint.ctx.prec = before


FEW = [v.name for v in VECTORS if math.prod(v.sizes[:2] + v.sizes[3:5]) < 60]


@pytest.mark.parametrize(
    ("name", "dtype"), list(product(FEW, ["float64"])) + list(product(SMALL, [f for f in FORMATS if f != "float64"]))
)
def test_every_number_is_the_nearest(name, dtype, precise):
    v, x = BY_NAME[name], values(name, dtype)
    enclosed = Enclosed(v, x, v.case(dtype).scale).found
    for letter, entries in enclosed.items():
        if letter in x:
            others = np.ones(x[letter].shape, bool)
            for at, true in entries.items():
                others[at] = False
                assert is_nearest(float(x[letter][at]), true, dtype), (letter, at)
            empty = -np.inf if letter in ("A", "L") else 0.0
            assert (x[letter][others] == empty).all(), letter


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_next_number_is_not_the_nearest(dtype, precise):
    x = values("plain", dtype)
    enclosed = Enclosed(BY_NAME["plain"], x, 0.5).found["dQ"]
    for at, true in enclosed.items():
        y = float(x["dQ"][at])
        step = 2.0 ** (math.frexp(y)[1] - FORMATS[dtype][0])
        assert not is_nearest(y + step, true, dtype) and not is_nearest(y - step, true, dtype)


def test_rounding_is_done_once():
    tie, more = "1.00390625", "00000000000000000000000000000000000001"  # between two numbers of bfloat16
    x = np.array([Decimal(text) for text in (tie, tie + more, "1.00390624" + 40 * "9", f"-{tie}{more}")])
    assert rounded(x, "bfloat16").tolist() == [1.0, 1 + 2.0**-7, 1.0, -1 - 2.0**-7]
    assert rounded(x, "float64").tolist() == [1 + 2.0**-8, 1 + 2.0**-8, 1 + 2.0**-8, -1 - 2.0**-8]


@pytest.mark.parametrize("name", [v.name for v in VECTORS if v.exact])
def test_exact_cases_are_the_same_in_every_format(name):
    first = values(name, "float64")
    for dtype in FORMATS:
        for letter, x in values(name, dtype).items():
            if not letter.endswith("_off") and letter not in ("L", "A"):
                assert np.array_equal(x, first[letter]), (dtype, letter)
    assert not first["dK"].any()


@pytest.mark.parametrize("v", VECTORS, ids=BY_NAME)
def test_inputs_are_numbers_of_their_format(v):
    for dtype, (digits, low) in FORMATS.items():
        case = v.case(dtype)
        for x in filter(lambda x: x is not None, (case.Q, case.K, case.V, case.dO, case.bias, case.R)):
            x = x[np.isfinite(x)]
            last = np.ldexp(1.0, np.maximum(np.frexp(x)[1], low + 1) - digits)
            assert np.array_equal(np.rint(x / last), x / last)


def test_what_the_list_covers():
    sizes = [dict(zip("bHGnm", v.sizes), d_k=v.sizes[5], d_v=v.sizes[6]) for v in VECTORS]
    assert {17, 33, 65} <= {s["n"] for s in sizes}
    assert {1, 2, 3} <= {s["H"] // s["G"] for s in sizes}
    assert any(s["d_v"] < s["d_k"] for s in sizes) and any(s["d_v"] > s["d_k"] for s in sizes)
    for alignment in ("lower_right", "upper_left"):
        for sign in (-1, 0, 1) if alignment == "lower_right" else (-1, 1):
            assert any(v.causal == alignment and np.sign(s["n"] - s["m"]) == sign
                       for v, s in zip(VECTORS, sizes))
    assert min(Counter(v.name for v in VECTORS).values()) == max(Counter(v.name for v in VECTORS).values()) == 1
    assert any(not seen(v, values(v.name, "float32")).any(-1).all() for v in VECTORS if v.causal is None)
    assert values("far_below_zero", "float32")["L"].max() < -88
    poison = BY_NAME["poison"]
    nobody = ~seen(poison, values("poison", "float32")).any((1, 2))
    assert nobody.any() and (values("poison", "float32")["V"][:, 0][nobody] == np.float32(1e30)).all()


def test_the_numbers_are_the_same_everywhere():
    total = hashlib.sha256()
    for name in SMALL:
        for dtype in FORMATS:
            total.update(digest_of_tensors(made(name, dtype)).encode())
    assert total.hexdigest().startswith(NUMBERS)


def read(path, dtype):
    from safetensors.torch import load_file

    if path.suffix == ".safetensors":
        return {k: x.double().numpy() for k, x in load_file(path).items()}
    with np.load(path) as file:
        stored = dict(file)
    for k, x in stored.items():
        if x.dtype == np.uint16:
            stored[k] = (x.astype(np.uint32) << 16).view(np.float32)
    return {k: x.astype(float) for k, x in stored.items()}


@pytest.mark.parametrize("form", ["safetensors", "npz"])
def test_files_hold_what_the_index_says(form, tmp_path):
    some = [BY_NAME[name] for name in ("plain", "bias_hidden", "one_key")]
    said = write(tmp_path / "a", form, list(FORMATS), some)
    assert said.startswith("12 files of 3 cases, ")
    index = json.loads((tmp_path / "a" / "index.json").read_text("utf-8"))
    assert index["format"] == form and len(index["vectors"]) == 12
    for entry in index["vectors"]:
        path, dtype = tmp_path / "a" / entry["file"], entry["dtype"]
        assert hashlib.sha256(path.read_bytes()).hexdigest() == entry["sha256"]
        x, want = read(path, dtype), values(entry["name"], dtype)
        assert x.keys() == want.keys() == entry["tensors"].keys()
        for k, says in entry["tensors"].items():
            assert np.array_equal(x[k], want[k]) and list(x[k].shape) == says["shape"]
    write(tmp_path / "b", form, list(FORMATS), some)
    for file in (tmp_path / "a").rglob("*.*"):
        assert file.read_bytes() == (tmp_path / "b" / file.relative_to(tmp_path / "a")).read_bytes()
    assert "lower_right" in (tmp_path / "a" / "README.txt").read_text("ascii")


def test_what_to_install_is_said_before_anything_is_written(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'attnmath\[vectors\]'"):
        write(tmp_path / "new", "safetensors")
    assert not (tmp_path / "new").exists()


def test_bfloat16_is_the_upper_half_of_float32():
    x = Tensor(np.array([1.0, -2.5, -np.inf]), "bfloat16")
    assert x.stored().tolist() == [0x3F80, 0xC020, 0xFF80]


def test_the_settings_of_decimal_do_not_matter():
    v = BY_NAME["plain"]
    code = ("import decimal; decimal.getcontext().prec = 5; decimal.DefaultContext.prec = 5;"
            "from attnmath._vectors.files import digest_of_tensors, tensors_of;"
            "from attnmath._vectors.cases import VECTORS;"
            "print(digest_of_tensors(tensors_of(next(v for v in VECTORS if v.name == 'plain'), 'float64')))")
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == digest_of_tensors(made("plain", "float64"))
    assert exact_letters(v.case("float64"), v.means)["P"].shape == (1, 1, 4, 4)
