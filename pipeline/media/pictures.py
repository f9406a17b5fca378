"""The pictures of a recording: what ffmpeg does with them, and one row of frames from what it gave."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.media.capabilities import has_filters
from pipeline.media.orientation import QUARTER_TURNED
from pipeline.media.plan import FRAMES_PER_GRID
from pipeline.media.process import plain
from pipeline.media.skipping import lead_s
from pipeline.records import Plan, Remark, VideoStream

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SCALER = "flags=bicubic+accurate_rnd+full_chroma_int"
_UPRIGHT = {
    1: [],
    2: ["hflip"],
    3: ["hflip", "vflip"],
    4: ["vflip"],
    5: ["transpose=cclock_flip"],
    6: ["transpose=clock"],
    7: ["transpose=clock_flip"],
    8: ["transpose=cclock"],
}
"""ffmpeg's filters that bring a stored picture of each EXIF orientation upright."""
_WHITE_NITS = 203
_PEAK_NITS = 1000
_TONE_MAPPED = (
    "format=gbrp12",
    f"zscale=matrixin=gbr:rangein=full:primariesin=2020:primaries=709:transfer=linear:npl={_WHITE_NITS}",
    "format=gbrpf32",
    f"tonemap=mobius:param=0.8:desat=0:peak={_PEAK_NITS / _WHITE_NITS:.3f}",
    "zscale=transfer=709:range=full",
    "format=gbrp",
)
"""From PQ or HLG to BT.709. Diffuse white is 203 cd/m2 (ITU-R BT.2408-7, table 1) and becomes white; up to four
fifths of it brightness stays as it is, and what is above is bent so that 1000 cd/m2, HLG's nominal peak and the usual
one of PQ masters, is the brightest that still shows a difference. Primaries and matrix are those of BT.2100, whatever
the tags say or leave out."""
_ONE_SIZE = frozenset({"apng", "gif"})
_GREY = 128
_FAINT = 32


def filters(plan: Plan, video: VideoStream, shift_s: float, frames: int, skips: bool = False) -> list[str]:
    """Return ffmpeg's filters from the track, as stored, to at least so many of the plan's frames, upright.

    Everything but the choice of frames comes after it and most after scaling, where it costs least. `shift_s` is where
    the recording begins on ffmpeg's clock. If it `skips` frames, those that stay are told of and taken a moment early.

    Of an interlaced frame the top field is taken. Against a progressive original (576i, scrolling photo, 416x320) that
    gives 32 dB at no cost; the combed frame gives 24, and bwdif at the full rate 36 for half as much CPU time again.
    If the bottom field was first, the picture is half a frame late: 20 ms.
    """
    rate_hz = plan.frame_rate_hz
    chain = ["showinfo=checksum=0"] if skips else []
    if rate_hz is not None:
        # A frame that claims to come ages later would have `fps` repeat the one before it for ages.
        last_s = (frames + 1) / rate_hz
        time = f"PTS-{plain(shift_s)}/TB"
        early = f"-{plain(lead_s(video))}/TB" if skips else ""
        chain.append(f"setpts='min({time}{early},{plain(last_s)}/TB)'")
        # What is taken early ends early: the last frame is shown for one more.
        chain += ["tpad=stop=1:stop_mode=clone"] if skips else []
        chain += [f"fps=fps={plain(rate_hz)}:round=up:start_time=0"]
    if premultiplied(plan, video):
        chain += ["format=gbrap", "premultiply=inplace=1"]
    turned = video.orientation in QUARTER_TURNED
    width, height = (plan.height, plan.width) if turned else (plan.width, plan.height)
    mapped = video.hdr and can_tone_map()
    matrix = ":in_color_matrix=bt2020" if mapped else ""
    if video.interlaced:  # scaled field by field: `field` itself does not follow a change of the pictures' size
        chain += [f"scale={width}:{2 * height}:interl=1:{_SCALER}{matrix}", "field=type=top"]
    else:
        chain.append(f"scale={width}:{height}:{_SCALER}{matrix}")
    if mapped:
        chain += _TONE_MAPPED
    shuffled = "shuffleplanes=2:0:1:3" if video.alpha else "shuffleplanes=2:0:1"
    return [*chain, *_UPRIGHT[video.orientation], f"format={pixel_format(video)}", shuffled]


def pixel_format(video: VideoStream) -> str:
    """Return ffmpeg's name for what the frames come as, colour by colour; with the fourth if pixels may be transparent.

    The scaler writes planes in a tenth of the time that it takes for interleaved colours of the same accuracy.
    """
    return "gbrap" if video.alpha else "gbrp"


def planes(count: int, height: int, width: int, colours: int) -> NDArray[np.uint8]:
    """Return room for frames, (count, height, width, colours), which lies in memory colour by colour, as they come."""
    return np.empty((count, colours, height, width), np.uint8).transpose(0, 2, 3, 1)


def premultiplied(plan: Plan, video: VideoStream) -> bool:
    """Return whether colours come multiplied with their opacity.

    They should: else what transparent pixels hide is mixed in at the edges as pictures shrink. But the filter reads
    beyond a picture whose size has changed, so that a video goes without.
    """
    return video.alpha and (plan.frames == 1 or video.codec in _ONE_SIZE)


def over_grey(frames: NDArray[np.uint8], is_premultiplied: bool) -> NDArray[np.uint8]:
    """Return (n, height, width, 3) of (n, height, width, 4): what is transparent shows mid-grey, on which neither black
    nor white drawing disappears. A video nowhere more than faintly opaque is shown without: players do so, and in
    some formats the fourth byte is only padding."""
    if not is_premultiplied and frames.size and frames[..., 3].max() < _FAINT:
        return frames[..., :3]
    count, height, width, _ = frames.shape
    seen = planes(count, height, width, 3)
    for frame, out in zip(frames, seen, strict=True):
        colour, alpha = frame[..., :3].astype(np.uint16), frame[..., 3:].astype(np.uint16)
        lit = colour * 255 if is_premultiplied else colour * alpha
        out[:] = np.minimum((lit.astype(np.uint32) + (255 - alpha) * np.uint32(_GREY) + 127) // 255, 255)
    return seen


def remarks(video: VideoStream) -> list[Remark]:
    """Return what a row must say of how its pictures were converted."""
    if not video.hdr or can_tone_map():
        return []
    return [
        Remark("colour_unconverted", "The pictures are HDR, and this ffmpeg lacks zscale or tonemap to convert them.")
    ]


def can_tone_map() -> bool:
    """Return whether this ffmpeg has the filters that HDR needs."""
    return has_filters("zscale", "tonemap")


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
    frames = planes(sum(counts), plan.height, plan.width, 3)
    at = 0
    for part, count in zip(parts, counts, strict=False):
        found = len(part)
        frames[at : at + found] = part
        shown = part[-1] if found else shown
        frames[at + found : at + count] = shown
        at += count
    return frames
