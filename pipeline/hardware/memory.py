"""How much memory this host, or the control group that the process lives in, has left; and not taking more of it."""

from __future__ import annotations

import ctypes
from contextlib import suppress
from pathlib import Path

import pyarrow as pa

_MEMINFO = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
# malloc.h of glibc; by default every thread may get an arena of its own, up to eight per core.
_M_ARENA_MAX, _ARENAS = -8, 2


def keep_memory_level() -> None:
    """Let this process give back what it frees: writing parts takes large pieces, in any of several threads.

    Arrow's own allocator keeps them, and so does each of the C library's arenas; call before the threads start.
    """
    pa.set_memory_pool(pa.system_memory_pool())
    with suppress(OSError, AttributeError):  # another C library than glibc
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, _ARENAS)


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
