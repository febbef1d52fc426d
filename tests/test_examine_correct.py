"""Right implementations are found right, in each of their formats; benchmarks/false_alarms.py has more of it."""

import pytest

from attnmath import examine
from correct import CORRECT

CASES = [(name, dtype) for name, correct in CORRECT.items() for dtype in correct.dtypes]


def examined(correct, dtype, seed, **more):
    return examine(
        correct.fn, correct.backward, options=correct.options, layout=correct.layout, dtype=dtype,
        framework=correct.framework, seed=seed, smallest=False, progress=False, **more,
    )  # fmt: skip


@pytest.mark.parametrize("name, dtype", CASES)
def test_right(name, dtype):
    report = examined(CORRECT[name], dtype, seed=CASES.index((name, dtype)))
    assert report.right, str(report)
    assert not report.findings
