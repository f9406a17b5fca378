"""Processor time that is left."""

from __future__ import annotations

import os
import time

from pipeline.hardware.processors import idle_cpu_s


def test_idle_time_grows_by_no_more_than_all_cores_can_idle() -> None:
    before, began = idle_cpu_s(), time.monotonic()
    time.sleep(0.5)
    after, spent_s = idle_cpu_s(), time.monotonic() - began
    assert before is not None and after is not None
    assert 0 <= after - before <= (os.cpu_count() or 1) * spent_s + 0.1
