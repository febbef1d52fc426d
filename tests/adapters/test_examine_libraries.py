"""The attention functions of transformers are found right, in each of their formats; that of JAX, which compiles
each size anew, in test_examine_layers.py and in benchmarks/false_alarms.py.
"""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))

from correct_libraries import LIBRARIES  # noqa: E402

from examined import examined, further  # noqa: E402

CASES = [(name, dtype) for name, correct in LIBRARIES.items() if "transformers" in name for dtype in correct.dtypes]


@pytest.mark.parametrize("name, dtype", CASES)
def test_right(name, dtype):
    report = examined(LIBRARIES[name], dtype, framework=LIBRARIES[name].framework)
    assert report.right, str(report)
    assert not further(report)
