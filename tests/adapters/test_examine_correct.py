"""The attention of JAX and of transformers is found right, in each of its formats."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from correct_libraries import LIBRARIES  # noqa: E402

from test_examine_correct import examined  # noqa: E402

CASES = [(name, dtype) for name, correct in LIBRARIES.items() for dtype in correct.dtypes]


@pytest.mark.parametrize("name, dtype", CASES)
def test_right(name, dtype):
    report = examined(LIBRARIES[name], dtype, seed=CASES.index((name, dtype)))
    assert report.right, str(report)
    assert not report.findings
