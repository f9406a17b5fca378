"""What holds for all tests."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

# As in the pipeline's own processes (`pipeline.hardware.environment`). It must be there before any test module imports
# torch: vLLM's CPU attention fails when the thread that steps has another number of threads than the one that built it.
os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """A run takes the signals that ask to stop, and ignores them in the end; pytest wants them back."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)
