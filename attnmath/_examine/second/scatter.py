"""In a short format: whether the errors of an array together are those of roundings.

The bounds are for errors that all point the same way; where two differences follow each other, as in a
double backward, they are larger than the numbers themselves in bfloat16. A typical error is far smaller. It is
measured: the program is run with every letter off by a rounding, up or down at random, and its root mean
square is compared with that of the error, over each head. This is no theorem.
"""

import numpy as np

from attnmath._examine.problems.bounds import JudgedLetter, judge_answer
from attnmath._examine.problems.case import Conventions
from attnmath._examine.problems.steps import StepChanges, Steps
from attnmath._examine.second.program import LETTERS, SecondAnswer, SecondCase, SecondSteps
from attnmath._words.tolerance import SECOND_SCATTER
from attnmath.rounding.formats import FORMATS, unit_roundoff

SHAKEN = ("QdotK", "QKdot", "QK_dot", "A_t", "P_t", "A_dot", "mu", "P_dot", "PdotV", "PVdot", "O_dot", "mu_back",
          "P_dot_back", "dP", "D", "dA", "dP_dot", "DPdot", "DVdot", "D_dot", "dA_first", "dA_second", "dA_dot",
          "dAdotK", "dAKdot", "dQ_dot", "dAdotQ", "dAQdot", "dkeys_dot", "dvalues_dot", "dK_dot", "dV_dot")
DRAWS = 3
FEWEST = 16  # numbers
ALIKE = {"ties", "uniform", "broadcast dO", "poison", "rows far apart", "large negative scores", "empty row"}


def typical(case: SecondCase, means: Conventions, dtype: str, part: str) -> dict[str, np.ndarray] | None:
    """The root mean square of a typical error of each head, (b, h, 1, 1); None where roundings are alike."""
    if dtype not in ("bfloat16", "float16") or case.traits & ALIKE:
        return None
    u, least = unit_roundoff(dtype), 2.0**-25 if dtype == "float16" else 2.0 ** FORMATS[dtype].low
    right, found = SecondSteps(case, means), dict[str, np.ndarray]()
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)

        def shake(_: Steps, x: np.ndarray, rng: np.random.Generator = rng) -> np.ndarray:
            return x + (u * x + least * (x != 0)) * rng.choice([-1.0, 1.0], x.shape)

        changes: StepChanges = dict.fromkeys(SHAKEN, shake)
        other = SecondSteps(case, means, (changes,))
        for letter in LETTERS[part]:
            error = other.output(letter) - right.output(letter)
            found[letter] = found.get(letter, 0.0) + (error**2).mean((-2, -1), keepdims=True) / DRAWS
    return found


def judge_second(
    got: SecondAnswer, want: SecondAnswer, off: SecondAnswer, scatter: dict[str, np.ndarray] | None
) -> dict[str, JudgedLetter]:
    """Each letter, entry by entry, and in a short format its arrays as wholes."""
    judged = judge_answer(got, want, off, None)  # type: ignore[arg-type]  # it asks for its letters alone
    for letter, mean in (scatter or {}).items():
        x, v = getattr(want, letter), judged[letter]
        if v.where is None or x[0, 0].size < FEWEST or not np.isfinite(got.there[letter]).all():
            continue
        squares = ((got.there[letter] - x) ** 2).mean((-2, -1), keepdims=True)
        heads = np.sqrt(squares / np.maximum(mean, mean.mean() + 1e-300)) / SECOND_SCATTER
        beyond = float(heads.max())
        wrong = v.wrong | (heads > 1) & ~v.wrong.any((-2, -1), keepdims=True)
        judged[letter] = v._replace(aggregate=beyond, wrong=wrong)
    return judged
