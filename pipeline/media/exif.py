"""The orientation that TIFF and PNG files carry themselves: ffmpeg reads it from JPEG and WebP only (PNG from 8 on)."""

from __future__ import annotations

import os

from pipeline.media import tiff

_MOST_CHUNKS = 256
_PNG = b"\x89PNG\r\n\x1a\n"


def orientation(fd: int) -> int:
    """Return the orientation (1..8) in a file's TIFF header or PNG eXIf chunk; 1 if it has none."""
    start, length = _exif_chunk(fd) if os.pread(fd, 8, 0) == _PNG else (0, os.fstat(fd).st_size)
    first = next(tiff.directories(fd, start, length), {})
    value = first.get(tiff.ORIENTATION, 1)
    return value if 1 <= value <= 8 else 1


def _exif_chunk(fd: int) -> tuple[int, int]:
    """Return offset and length of a PNG's eXIf chunk, which stands before its pixels; (0, 0) without one."""
    at = len(_PNG)
    for _ in range(_MOST_CHUNKS):
        head = os.pread(fd, 8, at)
        length, name = int.from_bytes(head[:4], "big"), head[4:]
        if name == b"eXIf":
            return at + 8, length
        if len(head) < 8 or name == b"IDAT":
            break
        at += 12 + length
    return 0, 0
