"""What a file with a still picture holds behind it: a phone's film, a second lens's picture, further pages."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from pipeline.media import tiff

_SOI = b"\xff\xd8\xff"
_SOS, _EOI, _FILL = 0xDA, 0xD9, 0xFF
_ALONE = frozenset({0x01, *range(0xD0, 0xD9)})
_NEXT_MARKER = re.compile(rb"\xff[\x01-\xcf\xd8-\xfe]")
"""Where compressed pixels end: in them 0xff stands before zero or a restart marker only (ITU-T T.81, B.1.1.5)."""
_MULTI_PICTURE = b"MPF\0"
_GAIN_MAPS = (b"hdrgm:", b"HDRGainMap")
"""What the XMP of a gain map says (Ultra HDR, Apple): the same picture's brightness, not another picture."""
_FILM = re.compile(rb"\0\0[\0-\x03].ftyp", re.DOTALL)
_MOST_BYTES = 64 << 20
"""The largest photos of phones have forty megabytes; a mapping would save memory, but kills where a file shrinks."""
_MOST_PADDING = 1 << 16
_JPEG_COMPRESSIONS = (6, 7)
_REDUCED, _MASK = 1, 4


@dataclass(frozen=True, slots=True)
class Behind:
    """How many further pictures a file holds, and if a film; `ends` is where the picture ends that something follows,
    `row` if one picture after another follows, as in Motion JPEG."""

    pictures: int = 0
    film: bool = False
    ends: int | None = None
    row: bool = False

    def text(self) -> str | None:
        """Return a sentence on what is not seen, None if nothing is hidden."""
        if self.film:
            return "The file holds a film behind its picture (a motion photo); it is not seen."
        if self.pictures:
            return f"The file holds {self.pictures} more picture{'s' * (self.pictures > 1)}; the first alone is seen."
        return None


def behind(fd: int) -> Behind:
    """Return what follows the first picture of a JPEG or TIFF file; nothing for any other file."""
    head, size = os.pread(fd, 4, 0), os.fstat(fd).st_size
    if head[:3] == _SOI:
        return _behind_jpeg(os.pread(fd, _MOST_BYTES, 0))
    pages = [tags for tags in tiff.directories(fd, 0, size) if not tags.get(tiff.SUBFILE_TYPE, 0) & (_REDUCED | _MASK)]
    return Behind(pictures=max(0, len(pages) - 1))


def is_jpeg_in_tiff(fd: int) -> bool:
    """Return whether a TIFF's first picture is compressed as JPEG, which ffmpeg shows black; a DNG does not count."""
    first = next(tiff.directories(fd, 0, os.fstat(fd).st_size), {})
    return first.get(tiff.COMPRESSION) in _JPEG_COMPRESSIONS and tiff.DNG_VERSION not in first


def _behind_jpeg(data: bytes) -> Behind:
    """Return what follows the first picture; a row of pictures without an index of them is a film (Motion JPEG)."""
    ends = _jpeg_end(data, 0)
    if ends is None or ends == len(data):
        return Behind()
    indexed = data.find(_MULTI_PICTURE, 0, ends) >= 0
    if not indexed and data[ends : ends + _MOST_PADDING].lstrip(b"\0").startswith(_SOI):
        return Behind(row=True)
    if _FILM.search(data, ends):
        return Behind(film=True, ends=ends)
    return Behind(pictures=_pictures(data, ends) if indexed else 0, ends=ends)


def _pictures(data: bytes, at: int) -> int:
    """Return how many JPEGs that are no gain maps follow from there on."""
    count, ends = 0, at
    while (begins := data.find(_SOI, ends)) >= 0 and (found := _jpeg_end(data, begins)) is not None:
        ends = found
        count += not any(data.find(name, begins, ends) >= 0 for name in _GAIN_MAPS)
    return count


def _jpeg_end(data: bytes, begins: int) -> int | None:
    """Return where the JPEG that begins there ends, None if it has no end (ITU-T T.81, B.2)."""
    at = begins + 2
    while at + 1 < len(data) and data[at] == _FILL:
        marker = data[at + 1]
        if marker == _EOI:
            return at + 2
        if marker == _FILL:
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            if marker == _SOS:
                found = _NEXT_MARKER.search(data, at)
                if found is None:
                    return None
                at = found.start()
    return None
