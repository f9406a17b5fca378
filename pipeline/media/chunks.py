"""How much sound the chunk headers of WAV, AIFF and CAF claim: ffmpeg silently takes what is there for all of it, and
of a WAV no more than was claimed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

_MOST_CHUNKS = 256
_PLACEHOLDER = 0x7FFF_0000
"""Writers to pipes, which cannot come back to fill in the size, put 0 or the largest number they can think of."""


_MORE_BYTES = 12_600
_NAME = re.compile(rb"[\x20-\x7e]{4}")


@dataclass(frozen=True, slots=True)
class _Layout:
    first: int
    size_bytes: int
    order: Literal["little", "big"]
    padded: bool
    sound: bytes


_LAYOUTS = {
    (b"RIFF", b"WAVE"): _Layout(12, 4, "little", True, b"data"),
    (b"FORM", b"AIFF"): _Layout(12, 4, "big", True, b"SSND"),
    (b"FORM", b"AIFC"): _Layout(12, 4, "big", True, b"SSND"),
    (b"caff", None): _Layout(8, 8, "big", False, b"data"),
}


def lost_bytes(fd: int) -> int:
    """Return how many bytes of the sound that the file's header claims lie beyond the file's end; 0 if none do."""
    head, size = os.pread(fd, 12, 0), os.fstat(fd).st_size
    layout = _LAYOUTS.get((head[:4], head[8:12])) or _LAYOUTS.get((head[:4], None))
    if layout is None:
        return 0
    for name, begins, claimed in _chunks(fd, layout):
        if name == layout.sound:
            return max(0, begins + claimed - size) if claimed < _PLACEHOLDER else 0
    return 0


def understated(fd: int) -> bool:
    """Return whether a WAV's sound goes on behind its end as claimed: recorders that crash leave an old claim.

    A seventh of a second at least, at 44.1 kHz and 16 bits, where the next chunk's name should stand.
    """
    head, size = os.pread(fd, 12, 0), os.fstat(fd).st_size
    if (head[:4], head[8:12]) != (b"RIFF", b"WAVE"):
        return False
    for name, begins, claimed in _chunks(fd, _LAYOUTS[b"RIFF", b"WAVE"]):
        if name == b"data":
            ends = begins + claimed + claimed % 2
            more = os.pread(fd, _MORE_BYTES, ends) if 0 < claimed < _PLACEHOLDER and ends < size else b""
            return len(more) == _MORE_BYTES and any(more) and not _NAME.match(more)
    return False


def _chunks(fd: int, layout: _Layout) -> Iterator[tuple[bytes, int, int]]:
    """Yield each chunk's name, where its content begins, and how many bytes it claims."""
    at, head_bytes = layout.first, 4 + layout.size_bytes
    for _ in range(_MOST_CHUNKS):
        head = os.pread(fd, head_bytes, at)
        if len(head) < head_bytes:
            return
        claimed = int.from_bytes(head[4:], layout.order)
        yield head[:4], at + head_bytes, claimed
        at += head_bytes + claimed + (claimed % 2 if layout.padded else 0)
