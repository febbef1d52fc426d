"""Code that was written without a look at the checker: what is right, what is another function, what is hostile.

    python tests/examine/test_examine_wild.py            every case, and the counts; the tests have every twelfth
"""

import sys
import warnings
from collections import Counter

import pytest
import torch

import wild_hostile
import wild_right
from attnmath import examine, examine_layer

EVERY = 12
EXPECTED = {"plain": ("right", "not judged"), "other": ("not in the list", "right"), "other-wrong": ("wrong",)}
# Right functions that are judged otherwise, and why.
OTHERWISE = {
    "merged_by_log_sum_exp": "wrong",  # 1 - sigmoid loses every digit of a small weight
}


@pytest.fixture(autouse=True, scope="module")
def as_before():
    threads, dtype, grad = torch.get_num_threads(), torch.get_default_dtype(), torch.is_grad_enabled()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)


def report_on(case, **more):
    """The report on a case, with its options; no exception may come out."""
    made = case.make()
    if getattr(case, "layer", False):
        return examine_layer(made[0] if isinstance(made, tuple) else made, seed=1, **_layer(made, case), **more)
    return examine(*made, seed=1, time_limit=5, progress=False, **case.options, **more)


def _layer(made, case):
    layer = made[0] if isinstance(made, tuple) else made
    return {"weights": dict(layer.named_parameters()), **case.options}


@pytest.mark.parametrize("case", wild_right.CASES[::EVERY], ids=lambda c: c.name)
def test_what_is_right_is_not_called_wrong(case):
    report = report_on(case, smallest=False)
    expected = (OTHERWISE[case.name],) if case.name in OTHERWISE else EXPECTED[case.family]
    assert report.verdict in expected, str(report)
    if report.unlisted:
        assert any(f.name == "own gradients" for f in report.findings), str(report)


@pytest.mark.parametrize("case", wild_hostile.CASES[::EVERY], ids=lambda c: c.name)
def test_nothing_leaves_the_checker(case):
    report = report_on(case, smallest=False)
    assert report.sentence and not any(f.name == "examination" for f in report.findings), str(report)


def main():
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    counts = Counter()
    for case in [*wild_right.CASES, *wild_hostile.CASES]:
        try:
            report = report_on(case, smallest=False)
            word, said = report.verdict, report.sentence
            word += " (itself failed)" if any(f.name == "examination" for f in report.findings) else ""
        except Exception as error:
            word, said = "exception", repr(error)
        counts[case.family, word] += 1
        print(f"{case.family:12} {case.name:44} {word:16} {said[:110]}", flush=True)
    for (family, word), count in sorted(counts.items()):
        print(f"{family:12} {word:28} {count}")


if __name__ == "__main__":
    sys.exit(main())
