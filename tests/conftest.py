"""Processes side by side have a thread each; there is little garbage to look for meanwhile."""

import gc
import os

for library in ("OMP", "OPENBLAS", "MKL"):    # before any of them is imported
    os.environ.setdefault(f"{library}_NUM_THREADS", "1")


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(100_000)
