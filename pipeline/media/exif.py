"""The orientation that TIFF and PNG files carry themselves: ffmpeg reads it from JPEG and WebP only (PNG from 8 on)."""

from __future__ import annotations

import os

_ORIENTATION = 0x0112
_MOST_ENTRIES, _MOST_CHUNKS = 512, 256
_PNG = b"\x89PNG\r\n\x1a\n"


def orientation(fd: int) -> int:
    """Return the orientation (1..8) in a file's TIFF header or PNG eXIf chunk; 1 if it has none."""
    head = os.pread(fd, 8, 0)
    if head == _PNG:
        return _of_tiff(*_exif_chunk(fd), fd)
    return _of_tiff(0, os.fstat(fd).st_size, fd)


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


def _of_tiff(start: int, length: int, fd: int) -> int:
    """Return the orientation in the first directory of the TIFF structure that starts there."""
    head = os.pread(fd, min(8, length), start)
    order = {b"II*\0": "little", b"MM\0*": "big"}.get(head[:4])
    if len(head) < 8 or order is None:
        return 1
    big = order == "big"

    def number(data: bytes) -> int:
        return int.from_bytes(data, "big" if big else "little")

    directory = number(head[4:8])
    if directory + 2 > length:
        return 1
    count = min(number(os.pread(fd, 2, start + directory)), _MOST_ENTRIES)
    entries = os.pread(fd, min(12 * count, length - directory - 2), start + directory + 2)
    for at in range(0, len(entries) - 11, 12):
        if number(entries[at : at + 2]) == _ORIENTATION:
            value = number(entries[at + 8 : at + 10])
            return value if 1 <= value <= 8 else 1
    return 1
