"""How much memory this host, or the control group that the process lives in, has left."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the bytes that can still be taken without swapping; a very large number where nothing tells."""
    found = [2**62]
    with suppress(OSError, ValueError, IndexError):
        line = next(line for line in _MEMINFO.read_text(encoding="ascii").splitlines() if "MemAvailable" in line)
        found.append(int(line.split()[1]) * 1024)
    with suppress(OSError, ValueError):
        limit = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        found.append(limit - int((_GROUP / "memory.current").read_text(encoding="ascii")) + _cache_bytes())
    return min(found)


def _cache_bytes() -> int:
    """Return what the control group's kernel would give back: cached files that nobody holds."""
    for line in (_GROUP / "memory.stat").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0
