"""How much of the planned windows was really there, sense by sense, against what the tracks claim. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.media.headers import common_start_s
from pipeline.records import AudioStream, MediaFacts, Plan, VideoStream

MORE_S = 0.5
"""How far past the claimed end a whole recording is read, to notice one that goes on."""
_SHORT_SHARE = 0.9
# Encoders' padding and time stamps rounded to frames: that little missing is no loss.
_LEAST_LOSS_S = 0.5
_WHOLE_CLAIMS = frozenset({"asf", "asf_o", "flv", "live_flv", "rm"})
"""Containers whose tracks all claim the length of the whole."""


@dataclass(frozen=True, slots=True)
class Found:
    """What ffmpeg gave: seconds of sound and of pictures in each window.

    `heard_s` is the sound in all of them without the holes, None if that is not known (the sample rate changed);
    `began_s` the silence before the first sound; `pictures_go_on` if there are pictures well beyond the last window.
    """

    sound_s: Sequence[float]
    pictures_s: Sequence[float]
    heard_s: float | None
    began_s: float = 0.0
    pictures_go_on: bool = False


@dataclass(frozen=True, slots=True)
class Completeness:
    """The share (0..1) of the windows that was there, in the sense that lacks most; and a sentence for each loss.

    `claim_holds` is False if the recording is not as long as its header says, `goes_on` if it is longer.
    """

    share: float
    losses: tuple[str, ...]
    claim_holds: bool
    goes_on: bool = False


def completeness(facts: MediaFacts, plan: Plan, found: Found) -> Completeness:
    """Return what the windows lack of what the file claims to hold in them."""
    if plan.frames == 1:
        return Completeness(1.0, (), True)
    planned_s = sum(window.duration_s for window in plan.windows)
    each_s = [max(pair) for pair in zip(found.sound_s, found.pictures_s, strict=True)]
    share, losses, holds = 1.0, [], True
    if plan.duration_known and sum(each_s) < _SHORT_SHARE * planned_s:
        losses.append(f"Decoding ended early: {sum(each_s):.1f} s of {planned_s:.1f} s.")
        share, holds = sum(each_s) / planned_s, False
    goes_on = plan.duration_known and (sum(each_s) > planned_s + 0.8 * MORE_S or found.pictures_go_on)
    if goes_on:
        losses.append(f"The recording goes on beyond its claimed length of {facts.duration_s or planned_s:.1f} s.")
        holds = False
    empty = sum(not seconds for seconds in each_s)
    if plan.duration_known and empty:
        losses.append(f"{empty} of {len(each_s)} windows gave nothing.")
        holds = False
    late_s = _lateness_s(facts, plan, found)
    for sense, claimed_s, there_s in (
        ("sound", max(sum(found.sound_s) - late_s, _claimed_s(facts.audio, facts, plan, late_s)), found.heard_s),
        ("pictures", _claimed_s(facts.video, facts, plan), sum(found.pictures_s)),
    ):
        if not there_s or there_s >= _SHORT_SHARE * claimed_s or claimed_s - there_s < _LEAST_LOSS_S:
            continue
        if there_s < share * claimed_s:
            share = there_s / claimed_s
            losses.append(f"Only {there_s:.1f} s of {claimed_s:.1f} s of {sense} are there.")
    return Completeness(share, tuple(losses), holds, goes_on)


def _claimed_s(stream: AudioStream | VideoStream | None, facts: MediaFacts, plan: Plan, late_s: float = 0.0) -> float:
    """Return the seconds of the windows that a track claims to fill; 0 if it makes no claim of its own.

    `late_s` is when it really begins: headers do not tell of a track that begins long after the others.
    """
    if stream is None or stream.duration_s is None or facts.container in _WHOLE_CLAIMS:
        return 0.0
    begins_s = stream.start_s - common_start_s(facts.audio, facts.video)
    ends_s = begins_s + stream.duration_s
    return sum(
        max(0.0, min(window.start_s + window.duration_s, ends_s) - max(window.start_s, begins_s, late_s))
        for window in plan.windows
    )


def _lateness_s(facts: MediaFacts, plan: Plan, found: Found) -> float:
    """Return the silence put before a track that begins late, seconds."""
    if facts.audio is None or plan.windows[0].start_s > 0:
        return 0.0
    return max(found.began_s, facts.audio.start_s - common_start_s(facts.audio, facts.video))
