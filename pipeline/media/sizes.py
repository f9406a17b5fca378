"""How much AVI and ASF files claim to hold: of one cut short ffmpeg takes what is there for the whole."""

from __future__ import annotations

import os
from dataclasses import dataclass

PLACEHOLDER = 0x7FFF_0000
"""Writers to pipes, which cannot come back to fill in a size, put 0 or the largest number they can think of."""
_ASF_HEADER = bytes.fromhex("3026b2758e66cf11a6d900aa0062ce6c")
_FILE_PROPERTIES = bytes.fromhex("a1dcab8c47a9cf118ee400c00c205365")
_FILE_PROPERTIES_BYTES = 104
_ASF_HEADER_BYTES, _ASF_HEAD_BYTES = 30, 24
_MOST_OBJECTS = 64
_BROADCAST = 1


@dataclass(frozen=True, slots=True)
class Claim:
    """What the header of a file cut short claims: `times` the bytes that are there, and the length in seconds, None
    where the header has no word on it."""

    times: float
    length_s: float | None = None


def claim(fd: int) -> Claim | None:
    """Return what an AVI or ASF file that ends before its claimed end claims; None for any other file."""
    head = os.pread(fd, 16, 0)
    if (head[:4], head[8:12]) == (b"RIFF", b"AVI "):
        return _of_avi(int.from_bytes(head[4:8], "little"), os.fstat(fd).st_size)
    return _of_asf(fd, os.fstat(fd).st_size) if head == _ASF_HEADER else None


def _of_avi(claimed_bytes: int, size_bytes: int) -> Claim | None:
    """Return the claim of an AVI's first RIFF chunk.

    Where a further one is cut (OpenDML, behind the first GB), ffmpeg itself gives the length as claimed.
    """
    ends = 8 + claimed_bytes
    return Claim(ends / size_bytes) if claimed_bytes < PLACEHOLDER and ends > size_bytes else None


def _of_asf(fd: int, size_bytes: int) -> Claim | None:
    """Return the claim of the File Properties Object (ASF specification, 3.2), whose times are in units of 100 ns, but
    for the preroll in ms, which the play time includes."""
    at = _ASF_HEADER_BYTES
    for _ in range(_MOST_OBJECTS):
        head = os.pread(fd, _FILE_PROPERTIES_BYTES, at)
        if head[:16] == _FILE_PROPERTIES and len(head) == _FILE_PROPERTIES_BYTES:
            claimed_bytes, length_s = number(head, 40, 8), number(head, 64, 8) / 1e7 - number(head, 80, 8) / 1e3
            cut = size_bytes < claimed_bytes < 1 << 62 and not number(head, 88, 4) & _BROADCAST
            return Claim(claimed_bytes / size_bytes, length_s) if cut else None
        object_bytes = number(head, 16, 8)
        if object_bytes < _ASF_HEAD_BYTES:
            return None
        at += min(object_bytes, size_bytes)
    return None


def number(data: bytes, at: int, length: int) -> int:
    """Return a little-endian number; what is missing of it counts as zeros."""
    return int.from_bytes(data[at : at + length], "little")
