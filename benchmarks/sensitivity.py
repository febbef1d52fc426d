"""How small an error examine sees: in each format, planted into PyTorch's answers.

    python benchmarks/sensitivity.py

What is measured, and how: benchmarks/README.md.
"""

import argparse

import torch

from attnmath._examine.problems.bounds import judge_answer, right_and_bounds
from attnmath._examine.problems.case import Answer, Conventions
from attnmath._examine.problems.families import cases
from attnmath._examine.problems.steps import Steps, T, grouped
from attnmath.rounding.formats import nearest

OPTIONS = {"mask", "bias", "causal", "scale", "groups"}
MEANS = Conventions(causal="upper_left", empty="zero")
LETTERS = "dQ", "dK", "dV"
FORMATS = "float64", "float32", "float16", "bfloat16"


def kernel(case, dtype):
    """O, dQ, dK and dV of PyTorch's function and its autograd."""
    leaves = [torch.tensor(x).to(getattr(torch, dtype)).requires_grad_() for x in (case.Q, case.K, case.V)]
    mask, causal = None if case.keep is None else torch.tensor(case.keep), case.causal
    if case.bias is not None:  # with all that is hidden
        mask, causal = torch.tensor(case.B(MEANS)).to(leaves[0].dtype), False
    O = torch.nn.functional.scaled_dot_product_attention(
        *leaves, attn_mask=mask, is_causal=causal, scale=case.scale, enable_gqa=True
    )
    found = torch.autograd.grad(O, leaves, torch.tensor(case.dO).to(O.dtype))
    return Answer(*(x.detach().double().numpy() for x in (O, *found)))


def zero_row(case, letter, x):
    """The last row of one head is zero."""
    x = x.copy()
    x[-1, -1, -1] = 0
    return x


def dropped(case, letter, x):
    """The last tile of 16 is left out of a sum: keys for dQ, queries for dK and dV."""
    s, last = Steps(case, MEANS), slice(-16, None)
    if letter == "dQ":
        return x - s.gamma * s.dA[..., last] @ s.keys[..., last, :]
    rows, by = (s.gamma * s.dA, s.Q) if letter == "dK" else (s.P * s.R, s.dO)
    return x - grouped(T(rows[..., last, :]) @ by[..., last, :], s.owner, x.shape[1])


def seen(mistake, problems, dtype, letter):
    """Of how many problems the judge says that this letter is wrong."""
    count = 0
    for case, got, want, off in problems:
        wrong = nearest(mistake(case, letter, getattr(got, letter)), dtype)
        judged = judge_answer(got._replace(**{letter: wrong}), want._replace(dB=None), off, dtype)
        count += not judged[letter].passed
    return count


def smallest(problems, dtype, letter):
    """The least of 1, 2, 5, 10, ... times 10^-k by which all may be too large, to be seen in one problem."""
    sizes = [c * 10.0**-k for k in range(17) for c in (5, 2, 1)]
    found = None
    for size in sizes:
        if not seen(lambda case, letter, x, size=size: (1 + size) * x, problems, dtype, letter):
            return found
        found = size
    return found


def main():
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--seed", type=int, default=0)
    given = options.parse_args()
    torch.set_num_threads(1)
    print("format, letter: smallest factor - 1 | problems that show a last row of zeros, a dropped tile")
    for dtype in FORMATS:
        some = cases(OPTIONS, dtype, given.seed)
        problems = [(case, kernel(case, dtype), *right_and_bounds(case, MEANS, dtype)) for case in some]
        long = [p for p in problems if min(p[0].Q.shape[2], p[0].K.shape[2]) > 16]
        for letter in LETTERS:
            assert not seen(lambda case, letter, x: x, problems, dtype, letter)
            rows, tiles = seen(zero_row, problems, dtype, letter), seen(dropped, long, dtype, letter)
            print(f"{dtype:8} {letter}: {smallest(problems, dtype, letter):.0e} | "
                  f"{rows} of {len(problems)}, {tiles} of {len(long)}", flush=True)


if __name__ == "__main__":
    main()
