"""What is the same in many examinations is done once."""

from unittest.mock import patch

import pytest

from attnmath._examine.diagnosis import examination
from examined import ONCE, forget

MEDDLING = "test_examine_collections", "test_examine_process", "test_examine_wild"  # some change NumPy itself


@pytest.fixture(autouse=True, scope="module")
def once(request):
    """Problems are drawn and solved once, for all candidates that take and mean the same."""
    if request.module.__name__ in MEDDLING:
        yield
    else:
        with patch.multiple(examination, **ONCE):
            yield
        forget()
