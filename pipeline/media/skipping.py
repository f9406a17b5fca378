"""Which frames may be left undecoded, and how far those that are taken then lie from their times. Pure, no I/O.

About half of a usual H.264 or HEVC recording is frames that no other frame refers to. Leaving them out changes no bit
of the others and saves two fifths of the decoding; what is taken for a moment is then the frame before or after.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from pipeline.records import MediaFacts, Plan, VideoStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

NEAR_S = 0.08
"""Frames may lie so far from their times: one audio token, by which sound and pictures are aligned."""
NEAR_SHARE = 1 / 3
"""A key frame may lie so far from its moment, as a share of the time between two moments, where these are so far apart
that key frames alone are decoded."""

_CODECS = frozenset({"h264", "hevc", "mpeg2video", "mpeg4"})
"""Those whose decoder tells what nothing refers to before decoding it."""
_SHORTEST_STEP = 4
"""With fewer source frames from one chosen frame to the next there is little to leave out."""
_SLACK_S = 1e-3


def may_skip(plan: Plan, video: VideoStream) -> bool:
    """Return whether what nothing refers to may be left out: it is worth it, and the frames that stay will do."""
    if plan.frame_rate_hz is None or video.frame_rate_hz is None or video.interlaced or video.alpha:
        return False
    dense = 2 / video.frame_rate_hz <= NEAR_S + _SLACK_S
    return dense and video.codec in _CODECS and video.frame_rate_hz / plan.frame_rate_hz >= _SHORTEST_STEP


def jumps(facts: MediaFacts, planned: Plan) -> bool:
    """Return whether only key frames are decoded for a plan, as one is surely near each of its moments."""
    if facts.key_gap_s is None or planned.frame_rate_hz is None:
        return False
    return facts.key_gap_s / 2 <= NEAR_SHARE / planned.frame_rate_hz


def lead_s(video: VideoStream) -> float:
    """Return by how much a frame may come after its moment: one source frame, so that it lies as near as one before."""
    return 1 / video.frame_rate_hz if video.frame_rate_hz else 0.0


def off_s(shown_s: NDArray[np.float64], rate_hz: float, count: int, lead: float) -> float:
    """Return how far from its time the worst of `count` frames lies, seconds; infinite if nothing was decoded.

    `shown_s` are the times of all decoded frames on the window's clock, of which frame k is the last that is not later
    than k / rate_hz + `lead`, or the first of all.
    """
    if not count:
        return 0.0
    if not len(shown_s):
        return float("inf")
    there_s, wanted_s = np.sort(shown_s), np.arange(count) / rate_hz
    latest = np.searchsorted(there_s, wanted_s + lead + _SLACK_S / 10, side="right") - 1
    return float(np.abs(there_s[np.maximum(latest, 0)] - wanted_s).max())
