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
_MOST_PICTURES, _FEWEST_OF_A_FILM = 1_000, 10
_REDUCED, _MASK = 1, 4
_JPEG, _CMYK, _RGB = (6, 7), 5, 2
_SIZED = frozenset({*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC})
"""Markers that a picture's size follows (ITU-T T.81, table B.1)."""


@dataclass(frozen=True, slots=True)
class Behind:
    """How many further pictures a file holds, and if a film; `ends` is where the picture ends that something follows,
    `row` if so many pictures of one size follow each other that they are a film (Motion JPEG)."""

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
    whole = [not tags.get(tiff.SUBFILE_TYPE, 0) & (_REDUCED | _MASK) for tags in tiff.directories(fd, 0, size)]
    return Behind(pictures=sum(whole[1:]))


def is_tiff_beyond_ffmpeg(fd: int) -> bool:
    """Return whether ffmpeg shows a TIFF's first picture black or grey, or not at all, and Pillow has its colours.

    That is JPEG in TIFF, tiles, CMYK, a fourth colour that means nothing, and BigTIFF; raw pictures (DNG) are not.
    """
    if os.pread(fd, 4, 0) in tiff.BIG:
        return True
    first = next(tiff.directories(fd, 0, os.fstat(fd).st_size), {})
    if tiff.DNG_VERSION in first:
        return False
    unnamed = first.get(tiff.SAMPLES) == 4 and first.get(tiff.EXTRA_SAMPLES) == 0
    colours = first.get(tiff.PHOTOMETRIC)
    padded = colours == _CMYK or (colours == _RGB and unnamed)
    return first.get(tiff.COMPRESSION) in _JPEG or tiff.TILE_WIDTH in first or padded


def _behind_jpeg(data: bytes) -> Behind:
    """Return what follows the first picture."""
    ends, size = _jpeg(data, 0)
    if ends is None or ends == len(data):
        return Behind()
    sizes = _sizes(data, ends)
    indexed = data.find(_MULTI_PICTURE, 0, ends) >= 0
    if not indexed and len(sizes) + 1 >= _FEWEST_OF_A_FILM and set(sizes) == {size}:
        return Behind(row=True)
    if _FILM.search(data, ends):
        return Behind(film=True, ends=ends)
    return Behind(pictures=len(sizes), ends=ends)


def _sizes(data: bytes, at: int) -> list[bytes]:
    """Return the sizes of the JPEGs that follow from there on and are no gain maps, at most so many."""
    sizes: list[bytes] = []
    for _ in range(_MOST_PICTURES):
        begins = data.find(_SOI, at)
        ends, size = _jpeg(data, begins) if begins >= 0 else (None, None)
        if ends is None:
            break
        at = ends
        if size is not None and not any(data.find(name, begins, ends) >= 0 for name in _GAIN_MAPS):
            sizes.append(size)
    return sizes


def _jpeg(data: bytes, begins: int) -> tuple[int | None, bytes | None]:
    """Return where the JPEG that begins there ends, None if it has no end; and the height and width that it claims, as
    their bytes (ITU-T T.81, B.2)."""
    at, size = begins + 2, None
    while at + 1 < len(data) and data[at] == _FILL:
        marker = data[at + 1]
        if marker == _EOI:
            return at + 2, size
        if marker == _FILL:
            at += 1
        elif marker in _ALONE:
            at += 2
        else:
            if marker in _SIZED and size is None:
                size = data[at + 5 : at + 9]
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
            if marker == _SOS:
                found = _NEXT_MARKER.search(data, at)
                if found is None:
                    return None, size
                at = found.start()
    return None, size
