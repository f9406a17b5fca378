"""Whether a WAV's sound goes on behind its end as claimed: recorders that crash leave an old claim, and ffmpeg reads no
further."""

from __future__ import annotations

import os
import re

from pipeline.media.chunks import HEAD_BYTES, NAME, behind, layout, wave_sound

_LEAST_BYTES = 4_000
"""Half a second of telephone sound: less behind the claimed end is no loss worth a second look."""
_MOST_CHUNKS = 256
_BLOCKS, _BLOCK_BYTES = 256, 4096
"""How much is read of what begins with zeros, to tell padding from silence."""
_TAG = re.compile(rb"ID3[\x02-\x04]\x00|APETAGEX")
"""What taggers for other formats put behind a file, in no chunk."""
_CHUNKS_BEHIND = frozenset({b"LIST", b"id3 ", b"ID3 ", b"bext", b"iXML", b"JUNK", b"FLLR", b"_PMX", b"cue ", b"data"})
"""Chunks known to stand behind the sound: they may be cut short themselves."""


def understated(fd: int) -> bool:
    """Return whether a WAV's sound goes on behind its end as claimed.

    What follows is no sound if it is chunks to the file's end, zeros, a tag or another recording, one behind the other.
    """
    found, size = wave_sound(fd), os.fstat(fd).st_size
    if found is None or found.claimed is None:
        return False
    at = _next(fd, found.begins, found.claimed)
    for _ in range(_MOST_CHUNKS):
        if size - at < _LEAST_BYTES:
            return False
        head = os.pread(fd, HEAD_BYTES, at)
        claimed = int.from_bytes(head[4:8], "little")
        if layout(head) is not None or _TAG.match(head):
            return False
        if not NAME.match(head) or at + 8 + claimed > size + 1:
            return head[:4] not in _CHUNKS_BEHIND and not _is_padding(fd, at, size)
        at = _next(fd, at + 8, claimed)
    return True


def _next(fd: int, begins: int, claimed: int) -> int:
    """Return where the chunk behind the one with that content is."""
    return behind(fd, begins + claimed) if claimed % 2 else begins + claimed


def _is_padding(fd: int, at: int, size: int) -> bool:
    """Return whether nothing but zeros stands from there to the file's end; of much, evenly spread blocks are read."""
    step = max(_BLOCK_BYTES, (size - at) // _BLOCKS)
    return not any(any(os.pread(fd, _BLOCK_BYTES, block)) for block in range(at, size, step))
