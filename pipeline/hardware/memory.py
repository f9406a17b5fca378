"""How much memory this host, or the control group that the process lives in, has left."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the bytes that can still be taken without swapping; a very large number where nothing tells."""
    found = [2**62]
    with suppress(OSError, ValueError, LookupError):
        found.append(_meminfo_bytes("MemAvailable"))
    with suppress(OSError, ValueError):
        limit = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        found.append(limit - int((_GROUP / "memory.current").read_text(encoding="ascii")) + _cache_bytes())
    return min(found)


def total_bytes() -> int:
    """Return the memory of this host or control group, bytes; 0 where nothing tells."""
    found = []
    with suppress(OSError, ValueError, LookupError):
        found.append(_meminfo_bytes("MemTotal"))
    with suppress(OSError, ValueError):
        found.append(int((_GROUP / "memory.max").read_text(encoding="ascii")))
    return min(found, default=0)


def _meminfo_bytes(name: str) -> int:
    for line in _MEMINFO.read_text(encoding="ascii").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def _cache_bytes() -> int:
    """Return what the control group's kernel would give back: cached files that nobody holds."""
    for line in (_GROUP / "memory.stat").read_text(encoding="ascii").splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0
