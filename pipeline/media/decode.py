"""Sound and pictures of the planned windows, put end to end, and what must be said of them.

Times count from where the first chosen stream begins. Frame k of a window is the one on screen k / frame rate
after the window's start. Holes in the sound stay silent, so both stay aligned.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from pipeline.errors import ItemError
from pipeline.media import key_frames, pictures, sound
from pipeline.media.completeness import MORE_S, Found, completeness
from pipeline.media.key_frames import KeyFrames
from pipeline.media.process import opened, oversized
from pipeline.media.reader import Excerpt, Reader
from pipeline.media.sandbox import CONFINED, Confinement
from pipeline.records import SAMPLE_RATE_HZ, Decoded, MediaFacts, Plan, Remark

if TYPE_CHECKING:
    from numpy.typing import NDArray

_AT_THE_END_S = 0.1


def decode(
    path: bytes,
    facts: MediaFacts,
    plan: Plan,
    timeout_s: float,
    confinement: Confinement = CONFINED,
    exact: bool = True,
    key_frames_s: NDArray[np.float64] | None = None,
) -> Decoded:
    """Return the sound and pictures of the plan's windows, put end to end.

    PCM is padded with zeros to whole tokens (1280 samples), frames to an even count by repeating the last. A
    track that gave nothing comes back empty; `decoded_s` may pass the plan by up to 0.5 s where the recording
    goes on beyond its claimed end. Unless `exact`, frames that no others refer to may be left out, and the frame for
    a moment is then one within 80 ms of it. If `key_frames_s` tells when key frames are shown, and one is near
    enough to every moment, no others are decoded. Raises ItemError decode_failed, decode_timeout, audio_lost,
    too_many_pixels or decoder_limit.
    """
    with opened(path, facts.first_bytes) as fd:
        reader = Reader(fd, facts, plan, time.monotonic() + timeout_s, confinement, exact)
        jumped = None
        if key_frames_s is not None and key_frames.near_enough(key_frames_s, facts, plan):
            jumped = key_frames.decoded(reader, key_frames_s)
        if jumped is not None and key_frames_s is not None:
            goes_on = float(key_frames_s[-1]) > (facts.duration_s or math.inf) + MORE_S
            passes = _with_pictures(_passes(reader.without_pictures()), jumped, goes_on)
        else:
            passes = _passes(reader)
        if not any(part.pcm.size or part.frames.size for part in passes):
            reason = passes[0].log.reason()
            raise oversized(reason) or ItemError("decode_failed", f"the decoder gave nothing: {reason}")
        heard, mended = _heard(passes, reader)
    seen = pictures.joined([part.frames for part in passes], plan)
    found = _found(passes, facts, plan)
    complete = completeness(facts, plan, found)
    if len(plan.windows) == 1 and not complete.goes_on and len(heard):
        mended += sound.dropped(found.heard_s, found.sound_s[0] - found.began_s)
    lost = [Remark("partial_decode", text) for text in (*complete.losses, *_errors(passes))]
    converted = pictures.remarks(facts.video) if facts.video is not None and len(seen) else []
    rate_hz = plan.frame_rate_hz or 1.0
    times_s = np.arange(len(seen), dtype=np.float64) / rate_hz
    return Decoded(
        pcm=heard,
        frames=seen,
        times_s=times_s,
        decoded_s=sum(max(pair) for pair in zip(found.sound_s, found.pictures_s, strict=True)),
        found_share=complete.share,
        claim_holds=complete.claim_holds,
        goes_on=complete.goes_on,
        frames_off_s=max(part.frames_off_s for part in passes),
        remarks=(*lost, *mended, *converted),
    )


def _passes(reader: Reader) -> list[Excerpt]:
    """Return each window as it was read; the last one past its end, where the recording claims to end there."""
    windows, facts = reader.plan.windows, reader.facts
    passes = [reader.window(window, 0.0) for window in windows[:-1]]
    return [*passes, reader.window(windows[-1], MORE_S if _ends_recording(reader.plan, facts) else 0.0)]


def _with_pictures(passes: list[Excerpt], jumped: KeyFrames, goes_on: bool) -> list[Excerpt]:
    """Return the windows with the frames that were decoded apart from their sound."""
    pairs = zip(passes, jumped.windows, strict=True)
    seen = [replace(one, frames=frames, frames_off_s=jumped.off_s) for one, frames in pairs]
    return [*seen[:-1], replace(seen[-1], pictures_go_on=goes_on)]


def _ends_recording(plan: Plan, facts: MediaFacts) -> bool:
    """Return whether the last window ends where the recording claims to."""
    last = plan.windows[-1]
    return plan.duration_known and last.start_s + last.duration_s >= (facts.duration_s or 0.0) - _AT_THE_END_S


def _heard(passes: list[Excerpt], reader: Reader) -> tuple[NDArray[np.float32], list[Remark]]:
    """Return the windows' sound end to end, and what was mended in it."""
    if reader.facts.audio is None or not any(part.pcm.size for part in passes):
        return np.zeros(0, np.float32), []
    return sound.joined([part.sound for part in passes], reader.facts, reader.plan)


def _found(passes: list[Excerpt], facts: MediaFacts, plan: Plan) -> Found:
    """Return how much of each sense the windows gave."""
    rate_hz, audio = plan.frame_rate_hz, facts.audio
    heard_s: float | None = None
    if audio is not None and len(set().union(*(part.log.rates_hz for part in passes))) == 1:
        heard_s = sum(part.log.samples.get(audio.index, 0) for part in passes) / audio.sample_rate_hz
    windows = list(zip(passes, plan.windows, strict=True))
    return Found(
        sound_s=[len(part.pcm) / SAMPLE_RATE_HZ for part in passes],
        pictures_s=[min(len(part.frames) / rate_hz, window.duration_s) if rate_hz else 0.0 for part, window in windows],
        heard_s=heard_s,
        began_s=passes[0].sound.began / SAMPLE_RATE_HZ,
        pictures_go_on=passes[-1].pictures_go_on,
    )


def _errors(passes: list[Excerpt]) -> list[str]:
    """Return a sentence with the number of decoder errors and the last of them."""
    count = sum(part.log.errors for part in passes)
    if not count:
        return []
    last = next(part.log for part in reversed(passes) if part.log.errors)
    return [f"The decoder reported {count} error{'s' if count > 1 else ''}, at last: {last.reason()}"]
