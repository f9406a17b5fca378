"""How much processor time this machine has left."""

from __future__ import annotations

import os
from pathlib import Path

_STAT = Path("/proc/stat")
_IDLE = slice(4, 6)  # idle and waiting for disks


def idle_cpu_s() -> float | None:
    """Return the CPU seconds that nobody has used since the machine started, all cores together; None if untold."""
    try:
        first = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
        return sum(map(int, first[_IDLE])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None
