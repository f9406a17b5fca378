"""The directories of a TIFF structure (TIFF 6.0, section 2): a file's own, or the one that EXIF data are."""

from __future__ import annotations

import os
from collections.abc import Iterator

SUBFILE_TYPE, COMPRESSION, PHOTOMETRIC, ORIENTATION, SAMPLES = 254, 259, 262, 274, 277
TILE_WIDTH, EXTRA_SAMPLES, DNG_VERSION = 322, 338, 50_706
BIG = (b"II+\0", b"MM\0+")
"""How a file of 64-bit offsets begins (BigTIFF); no directory of one is read."""
_ORDERS = {b"II*\0": "little", b"MM\0*": "big"}
_MOST_ENTRIES, _MOST_DIRECTORIES = 512, 10_000
_SHORT = 3


def directories(fd: int, start: int, length: int) -> Iterator[dict[int, int]]:
    """Yield each directory of the structure there: the first number under each tag; nothing if it is no TIFF."""
    head = os.pread(fd, min(8, length), start)
    order = _ORDERS.get(head[:4])
    if len(head) < 8 or order is None:
        return

    def number(data: bytes) -> int:
        return int.from_bytes(data, "big" if order == "big" else "little")

    at, seen = number(head[4:8]), set[int]()
    while at and at not in seen and at + 2 <= length and len(seen) < _MOST_DIRECTORIES:
        seen.add(at)
        count = number(os.pread(fd, 2, start + at))
        entries = os.pread(fd, min(12 * min(count, _MOST_ENTRIES), length - at - 2), start + at + 2)
        tags: dict[int, int] = {}
        for entry in (entries[i : i + 12] for i in range(0, len(entries) - 11, 12)):
            size = 2 if number(entry[2:4]) == _SHORT else 4
            tags.setdefault(number(entry[:2]), number(entry[8 : 8 + size]))
        yield tags
        behind = at + 2 + 12 * count
        at = number(os.pread(fd, 4, start + behind)) if behind + 4 <= length else 0
