"""Whether a second recording follows in the same file (cat a.mp4 b.mp4): ffmpeg reads one of them only."""

from __future__ import annotations

import os

from pipeline.media.chunks import HEAD_BYTES, chunks, layout
from pipeline.records import Remark

_ANOTHER = Remark("tracks_ignored", "Another recording follows in the same file; it is neither heard nor seen.")
_SEVERAL = Remark("tracks_ignored", "The sound lies in several chunks; one of them alone is heard.")
_BOX_HEAD_BYTES = 16
_MOST_BOXES = 20_000
"""Ten hours of a film in fragments of four seconds."""
_FIRST_BOXES = frozenset({b"ftyp", b"moov", b"mdat", b"wide", b"free", b"skip"})


def joined(fd: int) -> Remark | None:
    """Return what is to be said of a file that holds more recordings than one, None for any other."""
    head = os.pread(fd, HEAD_BYTES, 0)
    if head[4:8] in _FIRST_BOXES:
        return _ANOTHER if _has_two_films(fd) else None
    kind = layout(head)
    if kind is None:
        return None
    sounds = 0
    for name, begins, _ in chunks(fd, kind):
        if layout(os.pread(fd, HEAD_BYTES, begins - 4 - kind.size_bytes)) is not None:
            return _ANOTHER
        sounds += name == kind.sound
        if sounds > 1:
            return _SEVERAL
    return None


def _has_two_films(fd: int) -> bool:
    """Return whether an ISO base media file (ISO/IEC 14496-12) begins anew: a second ftyp, and a moov behind it.

    Fragments, with or without a styp, and any number of mdat and free belong to one film.
    """
    wanted, at = [b"moov", b"ftyp", b"moov"], 0
    for _ in range(_MOST_BOXES):
        head = os.pread(fd, _BOX_HEAD_BYTES, at)
        size, name = int.from_bytes(head[:4], "big"), head[4:8]
        if size == 1:
            size = int.from_bytes(head[8:16], "big")
        if name == wanted[0]:
            wanted.pop(0)
        if not wanted:
            return True
        if not 8 <= size < 1 << 62:
            return False
        at += size
    return False
