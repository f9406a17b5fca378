"""The pictures of a recording: what ffmpeg does with them, and one row of frames from what it gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.media.plan import FRAMES_PER_GRID
from pipeline.media.process import plain
from pipeline.records import Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray


def filters(plan: Plan, shift_s: float) -> list[str]:
    """Return ffmpeg's filters from the track to the plan's frames.

    `shift_s` is where the recording begins on ffmpeg's clock.
    """
    rate_hz = plan.frame_rate_hz
    clock = [f"setpts=PTS-{plain(shift_s)}/TB", f"fps=fps={plain(rate_hz)}:round=up:start_time=0"]
    return [
        *(clock if rate_hz is not None else []),
        f"scale={plan.width}:{plan.height}:flags=bicubic+accurate_rnd+full_chroma_int",
    ]


def joined(parts: Sequence[NDArray[np.uint8]], plan: Plan) -> NDArray[np.uint8]:
    """Return the windows' frames end to end, on an even clock: what a window lacks is its last frame, repeated."""
    if not any(len(part) for part in parts):
        return np.zeros((0, plan.height, plan.width, 3), np.uint8)
    if plan.frames == 1:
        return parts[0]
    each = plan.frames // len(plan.windows)
    last_found = max(index for index, part in enumerate(parts) if len(part))
    paired = math.ceil(len(parts[last_found]) / FRAMES_PER_GRID) * FRAMES_PER_GRID
    # The last frame stays on screen where pictures end a moment before the recording does.
    counts = [each] * last_found + [each if each - paired <= FRAMES_PER_GRID else paired]
    if len(parts) == 1 and counts[0] == len(parts[0]):
        return parts[0]
    shown = next(part[0] for part in parts if len(part))
    frames = np.empty((sum(counts), plan.height, plan.width, 3), np.uint8)
    at = 0
    for part, count in zip(parts, counts, strict=False):
        found = len(part)
        frames[at : at + found] = part
        shown = part[-1] if found else shown
        frames[at + found : at + count] = shown
        at += count
    return frames
