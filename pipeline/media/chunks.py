"""Walks the chunks of WAV, AIFF and CAF, and how much sound they claim: of a WAV or CAF cut short ffmpeg silently takes
what is there for all of it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from pipeline.media.sizes import PLACEHOLDER, Claim, number

_MOST_CHUNKS = 256
HEAD_BYTES = 12
NAME = re.compile(rb"[\x20-\x7e]{4}")
_MOST_BYTES = 1 << 62
_SAMPLES_OF_ONE_SIZE = frozenset({1, 3, 6, 7, 0xFFFE})
"""WAVE format tags: integers, floats, A-law, mu-law, extensible."""
_BLOCKS_OF_ONE_SIZE = frozenset({0x02, 0x11, 0x31})
"""Those whose blocks all hold as many samples as the header says: Microsoft's and IMA's ADPCM, GSM."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a format writes its chunks: where the first is, how its size, and which holds the sound.

    `long` if the sound's size stands in a chunk of its own, ds64 (EBU Tech 3306, ITU-R BS.2088).
    """

    first: int
    size_bytes: int
    order: Literal["little", "big"]
    padded: bool
    sound: bytes
    long: bool = False


_WAVE = Layout(12, 4, "little", True, b"data")
_LONG_WAVE = Layout(12, 4, "little", True, b"data", long=True)
_AIFF = Layout(12, 4, "big", True, b"SSND")
_CAF = Layout(8, 8, "big", False, b"data")
_LAYOUTS = {
    (b"RIFF", b"WAVE"): _WAVE,
    (b"RF64", b"WAVE"): _LONG_WAVE,
    (b"BW64", b"WAVE"): _LONG_WAVE,
    (b"FORM", b"AIFF"): _AIFF,
    (b"FORM", b"AIFC"): _AIFF,
}


@dataclass(frozen=True, slots=True)
class Sound:
    """Where a file's sound begins, how many bytes it claims to have, and how many seconds by what stands before it.

    None for a placeholder, or where nothing tells the length.
    """

    begins: int
    claimed: int | None
    length_s: float | None


def layout(head: bytes) -> Layout | None:
    """Return how a recording that begins with these 12 bytes is laid out, None if it is no WAV, AIFF or CAF."""
    return _CAF if head[:4] == b"caff" else _LAYOUTS.get((head[:4], head[8:12]))


def claim(fd: int) -> Claim | None:
    """Return what the header of a WAV or CAF claims that ends before its sound does; None for any other file.

    Of an AIFF ffmpeg gives the length that its header claims.
    """
    kind, size = layout(os.pread(fd, HEAD_BYTES, 0)), os.fstat(fd).st_size
    found = None if kind is None or kind is _AIFF else sound(fd, kind)
    if found is None or found.claimed is None or not found.begins < size < found.begins + found.claimed:
        return None
    return Claim(found.claimed / (size - found.begins), found.length_s)


def wave_sound(fd: int) -> Sound | None:
    """Return the sound of a WAV, None for any other file."""
    kind = layout(os.pread(fd, HEAD_BYTES, 0))
    return None if kind is None or kind not in (_WAVE, _LONG_WAVE) else sound(fd, kind)


def sound(fd: int, kind: Layout) -> Sound | None:
    """Return the first sound of a file so laid out, None if it has none."""
    form, samples = b"", 0
    for name, begins, claimed in chunks(fd, kind):
        if name == b"fmt ":
            form = os.pread(fd, 20, begins)
        elif name == b"fact":
            samples = number(os.pread(fd, 4, begins), 0, 4)
        elif name == kind.sound:
            known = 0 < claimed < PLACEHOLDER or (kind is not _WAVE and claimed < _MOST_BYTES)
            return Sound(begins, claimed, _length_s(form, samples, claimed)) if known else Sound(begins, None, None)
    return None


def _length_s(form: bytes, samples: int, claimed_bytes: int) -> float | None:
    """Return the length of a WAV's sound by its chunks fmt and fact; None if they do not tell."""
    tag, rate_hz, block_bytes = number(form, 0, 2), number(form, 4, 4), number(form, 12, 2)
    if tag in _SAMPLES_OF_ONE_SIZE and block_bytes:
        samples = claimed_bytes // block_bytes
    elif tag in _BLOCKS_OF_ONE_SIZE and block_bytes:
        samples = claimed_bytes // block_bytes * number(form, 18, 2)
    return samples / rate_hz if samples and rate_hz else None


def chunks(fd: int, kind: Layout) -> Iterator[tuple[bytes, int, int]]:
    """Yield each chunk's name, where its content begins, and how many bytes it claims."""
    at, head_bytes, long_bytes = kind.first, 4 + kind.size_bytes, None
    for _ in range(_MOST_CHUNKS):
        head = os.pread(fd, head_bytes, at)
        if len(head) < head_bytes:
            return
        name, begins, claimed = head[:4], at + head_bytes, int.from_bytes(head[4:], kind.order)
        if kind.long and name == b"ds64":
            long_bytes = number(os.pread(fd, 8, begins + 8), 0, 8)
        elif name == kind.sound and long_bytes is not None:
            claimed, long_bytes = long_bytes, None
        yield name, begins, claimed
        at = behind(fd, begins + claimed) if kind.padded and claimed % 2 else begins + claimed
        if at > _MOST_BYTES:
            return


def behind(fd: int, ends: int) -> int:
    """Return where the next chunk is behind one of an odd number of bytes: some writers leave out the byte of
    padding."""
    return ends if ends < _MOST_BYTES and NAME.match(os.pread(fd, 4, ends)) else ends + 1
