"""Pictures of long recordings that are looked at seldom: the key frames nearest to the moments, and no others decoded.

    listed        when key frames are shown     packets alone, nothing is decoded
    near_enough   whether they will do          see skipping.NEAR_SHARE
    decoded       those that are wanted         copied into a small file in memory, and decoded from there

So the cost grows with the frames that are looked at, not with the recording.
"""

from __future__ import annotations

import math
import os
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import ffmpeg
import numpy as np

from pipeline.errors import ItemError
from pipeline.media import pictures
from pipeline.media.headers import common_start_s
from pipeline.media.process import Collected, Log, Sink, Spool, Taker, opened
from pipeline.media.reader import Reader
from pipeline.media.sandbox import CONFINED, Confinement
from pipeline.media.skipping import NEAR_SHARE
from pipeline.records import MediaFacts, Plan, Window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

SHORTEST_STEP_S = 2.0
"""Moments closer than that are nearly always closer than key frames."""
_CODECS = frozenset({"av1", "h264", "hevc", "mpeg2video", "mpeg4", "vp8", "vp9"})
_CONTAINERS = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm", "mpegts"})
"""Those whose packets say when they are shown."""
_LISTING_BYTES = 8 << 20
_COPY_BYTES = 256 << 20
_TIME_SHARE = 1 / 4
_WHOLE = Window(0.0, 0.0)
_PACKET = re.compile(rb"^0, *-?\d+, *(-?\d+),", re.MULTILINE)
_TICK = re.compile(rb"^#tb 0: (\d+)/([1-9]\d*)$", re.MULTILINE)


@dataclass(frozen=True, slots=True, eq=False)
class KeyFrames:
    """The frames of each window, (n, height, width, 3), and how far the worst lies from its moment."""

    windows: list[NDArray[np.uint8]]
    off_s: float


def worth_listing(facts: MediaFacts, plan: Plan) -> bool:
    """Return whether key frames alone could do for this plan, and their times can be told from packets."""
    video, rate_hz = facts.video, plan.frame_rate_hz
    if video is None or rate_hz is None or video.interlaced or video.alpha:
        return False
    return video.codec in _CODECS and facts.container in _CONTAINERS and 1 / rate_hz >= SHORTEST_STEP_S


def key_times_s(
    path: bytes, facts: MediaFacts, plan: Plan, timeout_s: float, confinement: Confinement = CONFINED
) -> NDArray[np.float64] | None:
    """Return when the key frames of a recording are shown, see `listed`. Raises ItemError if it cannot be opened."""
    with opened(path, facts.first_bytes) as fd:
        return listed(Reader(fd, facts, plan, time.monotonic() + timeout_s, confinement))


def listed(reader: Reader) -> NDArray[np.float64] | None:
    """Return the times of all key frames, seconds of the recording, as they come; None if these are not in order, or it
    took too long."""
    listing = Collected(_LISTING_BYTES)
    with _hurried(reader):
        try:
            went_well = _give_packets(reader, "1", "framecrc", listing)
        except ItemError:
            return None
    tick = _TICK.search(listing.data)
    if not went_well or tick is None or len(listing.data) >= _LISTING_BYTES:
        return None
    ticks = np.array([int(packet) for packet in _PACKET.findall(listing.data)], np.float64)
    times_s = ticks * int(tick[1]) / int(tick[2]) - reader.shift_s(_WHOLE, False, True)
    return times_s if len(times_s) and np.all(np.diff(times_s) > 0) else None


def longest_gap_s(times_s: NDArray[np.float64]) -> float:
    """Return the longest time without a key frame between two of them, seconds; infinite for a single one."""
    return float(np.diff(times_s).max()) if len(times_s) > 1 else float("inf")


def moments_s(facts: MediaFacts, plan: Plan) -> list[NDArray[np.float64]]:
    """Return when a plan looks in each window, seconds of the recording, as long as pictures claim to last."""
    assert facts.video is not None
    each_s = np.arange(plan.frames // len(plan.windows)) / (plan.frame_rate_hz or 1.0)
    ends_s = math.inf
    if facts.video.duration_s is not None:
        ends_s = facts.video.start_s + facts.video.duration_s - common_start_s(facts.audio, facts.video)
    return [
        window.start_s + each_s[(each_s < window.duration_s) & (window.start_s + each_s < ends_s)]
        for window in plan.windows
    ]


def nearest(times_s: NDArray[np.float64], wanted_s: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return for each moment the number of the key frame that is nearest to it."""
    after = np.clip(np.searchsorted(times_s, wanted_s), 1, max(1, len(times_s) - 1))
    before = after - 1
    after = np.minimum(after, len(times_s) - 1)
    return np.where(wanted_s - times_s[before] <= times_s[after] - wanted_s, before, after)


def near_enough(times_s: NDArray[np.float64], facts: MediaFacts, plan: Plan) -> bool:
    """Return whether a key frame lies near each of the plan's moments."""
    wanted_s = np.concatenate(moments_s(facts, plan))
    if not len(wanted_s) or plan.frame_rate_hz is None:
        return False
    off_s = np.abs(times_s[nearest(times_s, wanted_s)] - wanted_s).max()
    return bool(off_s <= NEAR_SHARE / plan.frame_rate_hz)


def decoded(reader: Reader, times_s: NDArray[np.float64]) -> KeyFrames | None:
    """Return the frames for the moments, None if one of them is not whole in itself or could not be decoded."""
    by_window_s = moments_s(reader.facts, reader.plan)
    wanted_s = np.concatenate(by_window_s)
    chosen = nearest(times_s, wanted_s)
    distinct, places = np.unique(chosen, return_inverse=True)
    with os.fdopen(os.memfd_create("key frames"), "wb") as copy, _hurried(reader):
        try:
            frames = None
            if _copied(reader, distinct, copy.fileno()):
                frames = _frames(reader, copy.fileno(), len(distinct))
        except ItemError:
            return None
    if frames is None:
        return None
    ends = np.cumsum([len(window_s) for window_s in by_window_s])
    # One that stands for two moments is in there twice.
    parts = np.split(places, ends[:-1])
    off_s = float(np.abs(times_s[chosen] - wanted_s).max())
    return KeyFrames([frames[part[0] : part[-1] + 1] if _in_a_row(part) else frames[part] for part in parts], off_s)


def _in_a_row(part: NDArray[np.int64]) -> bool:
    """Return whether frames lie one after the other, so that a view of them does."""
    return len(part) > 0 and bool(np.all(np.diff(part) == 1))


def _give_packets(reader: Reader, wanted: str, format_name: str, taker: Taker) -> bool:
    """Give a taker the key frames for which an expression holds, undecoded; return whether that went well.

    The MP4 demuxer could pass over other frames by itself (`-discard nokey`), but then tells wrong times.
    """
    assert reader.facts.video is not None
    index, log = str(reader.facts.video.index), Log()
    options = {"format": format_name, "c": "copy", "bsf": f"noise=drop='not(if(key,{wanted}))'"}

    def outputs(names: list[str]) -> list[ffmpeg.nodes.OutputStream]:
        return [ffmpeg.output(reader.input(_WHOLE)[index], names[0], **options)]

    # In more detail ffmpeg would tell of every packet.
    status = reader.run(outputs, [taker], log, "info")
    return status == 0 and not log.errors


def _copied(reader: Reader, numbers: NDArray[np.int64], fd: int) -> bool:
    """Copy the key frames of these numbers, from 0 on, into a file; return whether that went well."""
    wanted = "+".join(f"eq(ld(0),{number})" for number in numbers + 1)
    spool = Spool(fd, _COPY_BYTES)
    return _give_packets(reader, f"st(0,ld(0)+1);{wanted}", "matroska", spool) and not spool.full


def _frames(reader: Reader, fd: int, count: int) -> NDArray[np.uint8] | None:
    """Return the frames of a file of key frames, None unless all are there and whole."""
    plan, video = replace(reader.plan, frame_rate_hz=None), reader.facts.video
    assert video is not None
    facts = replace(reader.facts, container="matroska,webm", input_options=())
    of_copy = Reader(fd, facts, plan, reader.deadline, reader.confinement, exact=True)
    frames = pictures.planes(count, plan.height, plan.width, 3)
    pixels, log = Sink(memoryview(frames.transpose(0, 3, 1, 2).reshape(-1).data)), Log()
    options = {
        "format": "rawvideo",
        "pix_fmt": pictures.pixel_format(video),
        "vf": ",".join(pictures.filters(plan, video, 0.0, count, skips=True)),
        "vsync": "passthrough",
    }
    status = of_copy.run(lambda names: [ffmpeg.output(of_copy.input(_WHOLE)["0"], names[0], **options)], [pixels], log)
    whole = len(log.shown_s) == count and not log.not_whole and pixels.used == frames.nbytes
    return frames if status == 0 and not log.errors and whole else None


@contextmanager
def _hurried(reader: Reader) -> Iterator[None]:
    """Give a step only a share of the time that is left: what it tries can be had without it."""
    deadline, now = reader.deadline, time.monotonic()
    reader.deadline = now + _TIME_SHARE * (deadline - now)
    try:
        yield
    finally:
        reader.deadline = deadline
