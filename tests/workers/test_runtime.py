"""Starting Ray, and being told to stop meanwhile."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# The interpreter prints and drops what a callback before a fork raises: Ray forks its processes while it starts.
STOPPED_BEFORE_A_FORK = """
    import os, signal, sys
    from pipeline import stopping
    from pipeline.workers.runtime import start_ray

    sent = []

    def stop_once():
        if not sent:
            sent.append(True)
            os.kill(os.getpid(), signal.{name})

    stopping.listen()
    os.register_at_fork(before=stop_once)
    try:
        start_ray(1, "cpu", sys.argv[1], 100_000_000)
    except KeyboardInterrupt:
        print("stopped", bool(sent))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
def test_a_signal_whose_exception_gets_lost_while_ray_starts_still_stops(name: str, tmp_path: Path) -> None:
    script = textwrap.dedent(STOPPED_BEFORE_A_FORK).format(name=name)
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], cwd=ROOT, capture_output=True, text=True, timeout=120, check=True
    )
    assert "Exception ignored in" in done.stderr, "the test no longer loses the exception"
    assert done.stdout.split() == ["stopped", "True"], done.stderr
