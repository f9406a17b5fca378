"""The sound of a recording: what ffmpeg does with it, and one track of PCM from what it gave.

Holes in the sound stay silent, so that it stays beside its pictures.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.media.plan import heard_samples, padded_samples
from pipeline.media.probe import common_start_s
from pipeline.media.process import plain
from pipeline.records import SAMPLE_RATE_HZ, MediaFacts, Plan, Remark

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TAIL_S = 0.2
_SMALLEST_GAP_S = 0.04
_STAMPED_BY_COUNT = frozenset({"aac", "ac3", "amr", "eac3", "flac", "mp3", "wav"})
"""Containers without time stamps of their own: a gap there is the demuxer's miscount, not silence."""


def late_s(facts: MediaFacts) -> float:
    """Return how long after the recording's start its sound begins, seconds."""
    return facts.audio.start_s - common_start_s(facts.audio, facts.video) if facts.audio is not None else 0.0


def filters(facts: MediaFacts, seeks: bool, shift_s: float, channel: int | None = None) -> list[str]:
    """Return ffmpeg's filters from the track to mono at 16 kHz; of one channel alone if `channel` is given.

    `shift_s` is where the recording begins on ffmpeg's clock; `seeks` if a window begins elsewhere.
    """
    counted = facts.video is None and facts.container in _STAMPED_BY_COUNT
    mixer = "aresample=rematrix_maxval=1"  # the mean of the channels: float samples are else mixed too loud
    if not counted:  # fills holes, at the stream's own rate: soxr loses its place when it has to fill
        mixer += f":async=1:min_hard_comp={_SMALLEST_GAP_S}" + (":first_pts=0" if seeks else "")
    chain = [
        _forward_only(shift_s, facts.duration_s),
        "atrim=start=0",
        mixer,
        "aformat=channel_layouts=mono" if channel is None else f"pan=mono|c0=c{channel}",
        f"aresample={SAMPLE_RATE_HZ}:resampler=soxr",
    ]
    if not seeks and (late := late_s(facts)) > 0:
        chain.append(f"adelay=delays={round(late * 1000)}:all=1")
    return chain


def joined(
    parts: Sequence[NDArray[np.float32]], facts: MediaFacts, plan: Plan
) -> tuple[NDArray[np.float32], list[Remark]]:
    """Return the windows' sound end to end, finite, within -1..1, padded to whole tokens; and what was odd in it."""
    remarks: list[Remark] = []
    lengths = [round(window.duration_s * SAMPLE_RATE_HZ) for window in plan.windows]
    if len(lengths) == 1:
        lengths = [_length(len(parts[0]), lengths[0], heard_samples(facts, plan.windows))]
    else:
        lengths[-1] = min(max(len(parts[-1]), 1), lengths[-1])
    pcm = np.zeros(padded_samples(sum(lengths)), np.float32)
    at = 0
    for part, length in zip(parts, lengths, strict=True):
        pcm[at : at + min(length, len(part))] = part[:length]
        at += length
    if odd := int(np.count_nonzero(~np.isfinite(pcm))):
        remarks.append(Remark("sound_mended", f"{odd} samples of the sound are no numbers; they are silent."))
        np.nan_to_num(pcm, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    np.clip(pcm, -1.0, 1.0, out=pcm)
    return pcm, remarks


def _length(found: int, window: int, planned: int) -> int:
    """Return a whole recording's length in samples: what was found, or what was planned if hardly anything lacks."""
    if planned - _TAIL_S * SAMPLE_RATE_HZ <= found < planned + _TAIL_S * SAMPLE_RATE_HZ:
        return planned  # encoders' padding, and sound that ends a moment before or after its claim
    return min(max(found, 1), padded_samples(window))


def _forward_only(shift_s: float, duration_s: float | None) -> str:
    """Return the filter that shifts time stamps by `shift_s` and never lets them run back.

    Broken files hold time stamps that overlap or leap far past the end; taken at their word, sound would be
    cut or hours of silence inserted.
    """
    leap = f"*lte(PTS*TB,{plain(shift_s + duration_s + 10)})" if duration_s is not None else ""
    expected, seen, stamp = "ld(0)", "ld(1)", "ld(2)"
    given = f"st(2,PTS-{plain(shift_s)}/TB)"
    believed = f"not(isnan(PTS)){leap}*gt({stamp},{expected})"
    now = f"st(2,if({seen},if({believed},{stamp},{expected}),{stamp}))"
    return f"asetpts='{given};{now};st(1,1);st(0,{stamp}+NB_SAMPLES);{stamp}'"
