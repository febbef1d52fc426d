"""Right implementations are found right, in each of their formats; benchmarks/false_alarms.py has more of it."""

import pytest

from correct import ALL, CORRECT
from examined import examined, further

CASES = [(name, dtype) for name, correct in CORRECT.items() for dtype in correct.dtypes]


@pytest.mark.parametrize("name, dtype", CASES)
def test_right(name, dtype):
    report = examined(CORRECT[name], dtype, seed=ALL.index(dtype), framework=CORRECT[name].framework)
    assert report.right, str(report)
    assert not further(report)
