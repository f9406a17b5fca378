"""Pictures that ffmpeg cannot read and Pillow can: animated WebP, AVIF stills, some kinds of TIFF.

Pillow runs in a process of its own (`pipeline.media.draw`), on the opened file, with a time limit.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import ItemError
from pipeline.media import draw
from pipeline.media.process import Collected, Log, Sink, TimedOut, plain, run
from pipeline.media.sandbox import Confinement
from pipeline.media.stills import behind
from pipeline.records import MediaFacts, Plan, Remark, VideoStream, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

WEBP, AVIF, TIFF = "webp_animated", "avif", "tiff_drawn"
CONTAINERS = frozenset({WEBP, AVIF, TIFF})
"""The names by which `MediaFacts.container` says that Pillow decodes."""
_FOLDERS = (sys.base_prefix, sys.prefix, os.path.dirname(draw.__file__))
"""Where Python, Pillow and the program lie."""
_ANIMATION_FLAG = 0x02
_MOST_CHUNKS = 100_000
_HEAD_BYTES = 1 << 16
_HDR_TRANSFERS = (16, 18)
"""PQ and HLG by ITU-T H.273, table 3."""
_HDR = Remark("colour_unconverted", "The picture is HDR; its colours and brightness are not converted.")
_MOVES = Remark("tracks_ignored", "The picture moves; its still alone is seen.")
_HEIC = (b"heic", b"heix", b"heim", b"heis", b"mif1")


def is_animated_webp(fd: int) -> bool:
    """Return whether a file is a WebP whose header says that it moves."""
    head = os.pread(fd, 21, 0)
    return head[:4] == b"RIFF" and head[8:16] == b"WEBPVP8X" and len(head) > 20 and bool(head[20] & _ANIMATION_FLAG)


def still_brand(fd: int) -> str | None:
    """Return `avif` or `heic` for a still picture of that kind by its major brand (ISO/IEC 23008-12), else None."""
    head = os.pread(fd, 64, 0)
    if head[4:8] != b"ftyp":
        return None
    # AVIF may call itself mif1, and say what it is among the compatible brands.
    if head[8:12] == b"avif" or (head[8:12] == b"mif1" and b"avif" in _compatible(head)):
        return AVIF
    return "heic" if head[8:12] in _HEIC else None


def _compatible(head: bytes) -> bytes:
    """Return the brands that a file says it is compatible with."""
    return head[16 : int.from_bytes(head[:4], "big")]


def probe_webp(fd: int, deadline: float, confinement: Confinement) -> MediaFacts:
    """Return the facts of an animated WebP: a video without sound. Raises ItemError as `probe_avif`."""
    delays_ms = [draw.shown_ms(delay_ms) for delay_ms in _webp_delays_ms(fd)]
    width, height = _size(fd, deadline, confinement)
    duration_s = sum(delays_ms) / 1000
    if len(delays_ms) < 2:
        return MediaFacts("image", WEBP, None, None, VideoStream(0, "webp", width, height, None, 0.0, None))
    video = VideoStream(0, "webp", width, height, len(delays_ms) / duration_s, 0.0, duration_s)
    return MediaFacts("video", WEBP, duration_s, None, video)


def probe_avif(fd: int, deadline: float, confinement: Confinement) -> MediaFacts:
    """Return the facts of an AVIF still. Raises ItemError unsupported_codec or probe_timeout."""
    facts, head = _still(fd, AVIF, "av1", deadline, confinement), os.pread(fd, _HEAD_BYTES, 0)
    remarks = (*([_HDR] if _is_hdr(head) else []), *([_MOVES] if b"avis" in _compatible(head) else []))
    return replace(facts, remarks=remarks)


def probe_tiff(fd: int, deadline: float, confinement: Confinement) -> MediaFacts:
    """Return the facts of a TIFF's first picture. Raises ItemError as `probe_avif`."""
    facts, hidden = _still(fd, TIFF, "tiff", deadline, confinement), behind(fd).text()
    return facts if hidden is None else replace(facts, remarks=(Remark("tracks_ignored", hidden),))


def _still(fd: int, container: str, codec: str, deadline: float, confinement: Confinement) -> MediaFacts:
    width, height = _size(fd, deadline, confinement)
    return MediaFacts("image", container, None, None, VideoStream(0, codec, width, height, None, 0.0, None))


def _is_hdr(head: bytes) -> bool:
    """Return whether an AVIF's first colour box (ISO/IEC 23008-12: colr, nclx) names PQ or HLG as transfer."""
    return int.from_bytes(head.partition(b"colrnclx")[2][2:4], "big") in _HDR_TRANSFERS


def frames(
    fd: int, plan: Plan, window: Window, count: int, deadline: float, confinement: Confinement
) -> tuple[NDArray[np.uint8], Log, int]:
    """Return a window's frames (n, height, width, 3), Pillow's messages and its exit status. Raises TimedOut."""
    found, log = np.empty((count, plan.height, plan.width, 3), np.uint8), Log()
    sink = Sink(memoryview(found.reshape(-1).data))
    clock = (plain(plan.frame_rate_hz or 1.0), plain(window.start_s))
    argv = _argv(fd, plan.width, plan.height, *clock, count)
    status = run(lambda _names: argv, fd, [sink], log, deadline, confinement, _FOLDERS)
    return found[: sink.used // found[0].size], log, status


def _size(fd: int, deadline: float, confinement: Confinement) -> tuple[int, int]:
    """Return width and height in pixels, upright. Raises ItemError unsupported_codec or probe_timeout."""
    answer, log = Collected(limit=100), Log()
    try:
        status = run(lambda _names: _argv(fd, "size"), fd, [answer], log, deadline, confinement, _FOLDERS)
    except TimedOut:
        raise ItemError("probe_timeout", "Pillow did not finish in time") from None
    numbers = answer.data.split()
    if status != 0 or len(numbers) != 2:
        raise ItemError(
            "unsupported_codec", f"a WebP, AVIF or TIFF picture that neither ffmpeg nor Pillow reads: {log.reason()}"
        )
    return int(numbers[0]), int(numbers[1])


def _argv(fd: int, *arguments: object) -> list[str]:
    return [sys.executable, "-I", draw.__file__, str(fd), *(str(argument) for argument in arguments)]


def _webp_delays_ms(fd: int) -> Iterator[int]:
    """Yield how long each frame of a WebP claims to be shown: ANMF chunks, bytes 12..14 of each."""
    at, size = 12, os.fstat(fd).st_size
    for _ in range(_MOST_CHUNKS):
        head = os.pread(fd, 23, at)
        if len(head) < 8 or at >= size:
            return
        if head[:4] == b"ANMF" and len(head) == 23:
            yield int.from_bytes(head[20:23], "little")
        at += 8 + math.ceil(int.from_bytes(head[4:8], "little") / 2) * 2
