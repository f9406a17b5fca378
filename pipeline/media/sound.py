"""The sound of a recording: what ffmpeg does with it, and one track of PCM from what it gave.

ffmpeg keeps the channels apart and resamples them; they become one here, where it shows whether they cancel each
other out. Holes in the sound stay silent, so that it stays beside its pictures.

track ─▶ ffmpeg: time stamps, 16 kHz ─▶ Matroska stream, all channels ─▶ Mono, half a second at a time ─▶ joined
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from pipeline.media.capabilities import built_with
from pipeline.media.mono import Part
from pipeline.media.plan import SAMPLES_PER_AUDIO_TOKEN, heard_samples, padded_samples
from pipeline.media.process import plain
from pipeline.records import SAMPLE_RATE_HZ, MediaFacts, Plan, Remark

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TAIL_S = 0.2
_SMALLEST_GAP_S = 0.04
_MUCH_DROPPED_S = 0.3
_WATCHED_S, _LEAST_BEHIND_S, _BEGINS_ANEW_S, _LEAST_ADVANCE = 0.25, 0.02, 5.0, 0.85
_STAMPED_BY_COUNT = frozenset({"aac", "ac3", "amr", "eac3", "flac", "mp3", "wav"})
"""Containers without time stamps of their own: a gap there is the demuxer's miscount, not silence."""
_JOINABLE = frozenset({"aac", "ac3", "eac3", "mp3"})
"""Containers that people join with `cat`, whatever rate and channels the pieces have."""

_PACKET = 1_024
_OVERSHOOT, _LOUD_OVERSHOOT = 1.26, 2.0
"""Peaks that decoders of lossy codecs reach: 2 dB often, 6 dB for a moment."""
_MANY_OVER = 1e-3
_OUTLIER = 10.0
_OFFSET = 0.01
_OFFSET_SAMPLES = SAMPLE_RATE_HZ // 5


def keeps_time(facts: MediaFacts) -> bool:
    """Return whether the sound's time stamps are worth following."""
    return facts.video is not None or facts.container not in _STAMPED_BY_COUNT


def filters(facts: MediaFacts, seeks: bool, shift_s: float, loudest: float | None = None) -> list[str]:
    """Return ffmpeg's filters from the track to 16 kHz, all channels kept; samples beyond `loudest` become silent.

    `shift_s` is where the recording begins on ffmpeg's clock; `seeks` if a window begins elsewhere.
    """
    timed = keeps_time(facts)
    stamps = _on_time(shift_s, facts.duration_s) if timed or seeks else "asetpts=N/SR/TB"
    chain = [stamps, "atrim=start=0"]
    if loudest is not None:  # before the resampler, which would spread such a sample; slow, hence only where needed
        chain.append(f"aeval=exprs='if(lte(abs(val(ch)),{plain(loudest)}),val(ch),0)':c=same")
    if timed:  # fills holes, at the stream's own rate: soxr loses its place when it has to fill
        chain.append(f"aresample=async=1:min_hard_comp={_SMALLEST_GAP_S}")
    # A track whose channels change later keeps its first number of them: then ffmpeg mixes, float samples too loud
    # without `rematrix_maxval`.
    chain.append(f"aresample={SAMPLE_RATE_HZ}:rematrix_maxval=1:{_resampler()}")
    if facts.container not in _JOINABLE:  # fewer packets to take; where the track changes, ffmpeg loses one begun
        chain.append(f"asetnsamples=n={_PACKET}:p=0")
    return chain


def _resampler() -> str:
    """Return the options of the best resampler that this ffmpeg has: soxr, else its own with a longer filter."""
    if built_with("--enable-libsoxr"):
        return "resampler=soxr"
    return "filter_size=128:phase_shift=10:cutoff=0.955"


def joined(parts: Sequence[Part], facts: MediaFacts, plan: Plan) -> tuple[NDArray[np.float32], list[Remark]]:
    """Return the windows' sound end to end, within -1..1, padded to whole tokens; and what was mended in it."""
    lengths = [round(window.duration_s * SAMPLE_RATE_HZ) for window in plan.windows]
    if len(lengths) == 1:
        lengths = [_length(len(parts[0].pcm), lengths[0], heard_samples(facts, plan.windows))]
    else:
        lengths[-1] = min(max(len(parts[-1].pcm), 1), lengths[-1])
    pcm = np.zeros(padded_samples(sum(lengths)), np.float32)
    at = 0
    for part, length in zip(parts, lengths, strict=True):
        pcm[at : at + min(length, len(part.pcm))] = part.pcm[:length]
        at += length
    said = []
    if turned := sum(part.turned for part in parts):
        seconds = turned / SAMPLE_RATE_HZ
        said.append(f"Channels cancel each other out for {seconds:.1f} s; some were turned to be heard.")
    if odd := sum(part.odd for part in parts):
        seconds = odd / SAMPLE_RATE_HZ
        said.append(f"Samples that are no numbers or absurdly large spoil {seconds:.2f} s; they are silent.")
    said += _levelled(pcm, at)
    return pcm, [Remark("sound_mended", text) for text in said]


def dropped(decoded_s: float | None, given_s: float) -> list[Remark]:
    """Return a remark if far less of a whole recording's sound was given than was decoded: its time stamps overlap."""
    if decoded_s is None or decoded_s - given_s < _MUCH_DROPPED_S:
        return []
    said = f"Time stamps overlap: {decoded_s - given_s:.1f} s of sound were dropped to keep the rest at its time."
    return [Remark("sound_mended", said)]


def _levelled(pcm: NDArray[np.float32], length: int) -> list[str]:
    """Remove an offset, bring the sound within -1..1, in place; return what was done where it matters.

    `length` is where the padding begins. Sound much of which is beyond full scale becomes quieter as a whole; a few
    peaks are cut.
    """
    tokens = pcm.reshape(-1, SAMPLES_PER_AUDIO_TOKEN)
    lows, highs = tokens.min(axis=1), tokens.max(axis=1)
    live = (lows != 0) | (highs != 0)  # a hole is silent, and stays so
    if not live.any():
        return []
    said = []
    offset = float(np.median(tokens.mean(axis=1)[live]))
    if length >= _OFFSET_SAMPLES and abs(offset) > _OFFSET * max(1.0, float(highs.max()), -float(lows.min())):
        np.subtract(tokens, np.float32(offset), out=tokens, where=live[:, None])
        pcm[length:] = 0.0
        highs, lows = highs - offset, lows - offset
        said.append(f"A constant offset of {offset:.2f} of full scale was removed.")
    peaks = np.maximum(highs, -lows)
    peak = float(peaks.max())
    if peak <= 1.0:
        return said
    over = sum(int(np.count_nonzero(np.abs(token) > 1.0)) for token in tokens[peaks > 1.0])
    if over > _MANY_OVER * length and peak > _OVERSHOOT:
        level = float(peaks[peaks <= _OUTLIER * np.quantile(peaks[live], 0.9)].max(initial=1.0))
        pcm /= np.float32(level)
        said.append(f"The sound goes beyond full scale, up to {level:.3g} times; it was made quieter as a whole.")
    elif peak > _LOUD_OVERSHOOT:
        said.append(f"{over} samples beyond full scale, up to {peak:.3g} times, were cut.")
    np.clip(pcm, -1.0, 1.0, out=pcm)
    return said


def _length(found: int, window: int, planned: int) -> int:
    """Return a whole recording's length in samples: what was found, or what was planned if hardly anything lacks."""
    if planned - _TAIL_S * SAMPLE_RATE_HZ <= found < planned + _TAIL_S * SAMPLE_RATE_HZ:
        return planned  # encoders' padding, and sound that ends a moment before or after its claim
    return min(max(found, 1), padded_samples(window))


def _on_time(shift_s: float, duration_s: float | None) -> str:
    """Return the filter that shifts time stamps by `shift_s` and keeps to them, whatever they do.

    Sound runs on from sample to sample where stamps overlap, jump back or jitter. Where it has lain behind them all
    through a quarter of a second (a slower clock, pieces joined that are longer than their pictures), it steps back,
    and as much of it is dropped; not for stamps that begin anew or hardly advance (where the sample rate changes in
    Ogg, ffmpeg counts on at the old one). A leap forward needs a second frame that agrees: where the rate changes,
    one frame's time is wrong. Stamps far past the end are no stamps: hours of silence would be inserted.
    """
    inside = f"*lte(PTS*TB,{plain(shift_s + duration_s + 10)})" if duration_s is not None else ""
    expected, began, stamp, leapt, leaps, behind, since = (f"ld({slot})" for slot in range(7))
    over, late, believed = "ld(7)", "ld(8)", "ld(9)"
    advanced = f"gt({stamp}-{began},{_LEAST_ADVANCE}*({expected}-{since}))"
    steps = [
        f"st(2,PTS-{plain(shift_s)}/TB)",
        f"st(4,gt(N,0)*gt({stamp}-{expected},{_SMALLEST_GAP_S}/TB))",
        f"st(5,if(isnan(PTS),{behind},min({behind},{expected}-{stamp})))",
        f"st(7,gt({expected}-{since},{_WATCHED_S}/TB))",
        f"st(8,{over}*{advanced}*gt({behind},{_LEAST_BEHIND_S}/TB)*lt({behind},{_BEGINS_ANEW_S}/TB))",
        f"st(9,not(isnan(PTS)){inside}*(gt({stamp},{expected})+not(N))*(not({leaps})+{leapt}))",
        f"if({over}+{believed},st(1,{stamp}))",
        f"st(2,if({believed},{stamp},{expected}-{late}*{behind}))",
        f"if({over}+{believed},st(5,{_BEGINS_ANEW_S}/TB);st(6,{stamp}))",
        f"st(3,{leaps});st(0,{stamp}+NB_SAMPLES)",
    ]
    return f"asetpts='{';'.join(steps)};{stamp}'"
