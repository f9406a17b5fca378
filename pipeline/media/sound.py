"""The sound of a recording: what ffmpeg does with it, and one track of PCM from what it gave.

ffmpeg keeps the channels apart and resamples them; they become one here, where it shows whether they cancel each
other out. Holes in the sound stay silent, so that it stays beside its pictures.

track ─▶ ffmpeg: time stamps, 16 kHz ─▶ Matroska stream, all channels ─▶ Mono, half a second at a time ─▶ joined
"""

from __future__ import annotations

import functools
import os
import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from pipeline.media.plan import SAMPLES_PER_AUDIO_TOKEN, heard_samples, padded_samples
from pipeline.media.process import READ_BYTES, plain
from pipeline.records import SAMPLE_RATE_HZ, MediaFacts, Plan, Remark

if TYPE_CHECKING:
    from numpy.typing import NDArray

_TAIL_S = 0.2
_SMALLEST_GAP_S = 0.04
_STAMPED_BY_COUNT = frozenset({"aac", "ac3", "amr", "eac3", "flac", "mp3", "wav"})
"""Containers without time stamps of their own: a gap there is the demuxer's miscount, not silence."""
_JOINABLE = frozenset({"aac", "ac3", "eac3", "mp3"})
"""Containers that people join with `cat`, whatever rate and channels the pieces have."""

_CLUSTER, _SEGMENT, _TRACKS, _TRACK, _AUDIO, _GROUP = 0x1F43B675, 0x18538067, 0x1654AE6B, 0xAE, 0xE1, 0xA0
_ENTERED = frozenset({_CLUSTER, _SEGMENT, _TRACKS, _TRACK, _AUDIO, _GROUP})
_CHANNELS, _CLUSTER_MS, _PACKET_IDS = 0x9F, 0xE7, frozenset({0xA3, 0xA1})
"""Matroska's elements (RFC 9559): those that hold others, and those read."""
_PACKET = 1_024
_SMALLEST_LEAP = SAMPLE_RATE_HZ // 50
_BLOCK = SAMPLE_RATE_HZ // 2
_RAMP = SAMPLE_RATE_HZ // 50
_SILENT_POWER = 1e-7
"""Mean square of what counts as silence: -70 dB of full scale. Hum in the pauses may cancel."""
_CANCELS, _CANCELS_STILL = 0.2, 0.5
"""Two channels cancel if their sum has less than this share of their powers' sum; independent ones have all of it.

A mean that has lost 10 dB against the mean power has 0.2. Once a channel is turned, it stays so up to the second."""

_BEYOND_DOUBT = 100.0
_FEW = 0.01
_LOUDEST_CODED = 2.0**31
"""What 32-bit integers written as floats reach; nothing real is louder."""
_LOUDEST_STRAY = 10.0
_OVERSHOOT, _LOUD_OVERSHOOT = 1.26, 2.0
"""Peaks that decoders of lossy codecs reach: 2 dB often, 6 dB for a moment."""
_MANY_OVER = 1e-3
_OUTLIER = 10.0
_OFFSET = 0.01
_OFFSET_SAMPLES = SAMPLE_RATE_HZ // 5


@dataclass(frozen=True, slots=True)
class Coding:
    """How ffmpeg writes samples: its encoder, numpy's type, and the values that stand for 0 and for full scale."""

    encoder: str
    dtype: str
    zero: float = 0.0
    full: float = 1.0


FLOAT = Coding("pcm_f32le", "<f4")
_CODINGS = {
    "pcm_[us]8": Coding("pcm_u8", "u1", 128.0, 128.0),
    "pcm_(s16|mulaw|alaw)": Coding("pcm_s16le", "<i2", 0.0, 2.0**15),
    "pcm_s(24|32)": Coding("pcm_s32le", "<i4", 0.0, 2.0**31),
    "pcm_f32": FLOAT,
    "pcm_f64": Coding("pcm_f64le", "<f8"),
}
MOST_CHANNELS = 64
"""ffmpeg's resampler, which also converts samples, takes no more."""


def undone(codec: str) -> Coding | None:
    """Return the coding in which the decoder of a PCM codec gives its samples; None for other codecs."""
    return next((coding for pattern, coding in _CODINGS.items() if re.match(pattern, codec)), None)


def keeps_time(facts: MediaFacts) -> bool:
    """Return whether the sound's time stamps are worth following."""
    return facts.video is not None or facts.container not in _STAMPED_BY_COUNT


def clock(facts: MediaFacts, seeks: bool, shift_s: float) -> list[str]:
    """Return ffmpeg's filters that set the track's time stamps and cut what lies before the window."""
    stamps = _forward_only(shift_s, facts.duration_s) if keeps_time(facts) or seeks else "asetpts=N/SR/TB"
    return [stamps, "atrim=start=0"]


def to_rate() -> str:
    """Return ffmpeg's filter to 16 kHz.

    A track whose channels change later keeps its first number of them: then ffmpeg mixes, float samples too loud
    without `rematrix_maxval`.
    """
    return f"aresample={SAMPLE_RATE_HZ}:rematrix_maxval=1:{_resampler()}"


def filters(facts: MediaFacts, seeks: bool, shift_s: float, loudest: float | None = None) -> list[str]:
    """Return ffmpeg's filters from the track to 16 kHz, all channels kept; samples beyond `loudest` become silent.

    `shift_s` is where the recording begins on ffmpeg's clock; `seeks` if a window begins elsewhere.
    """
    timed = keeps_time(facts)
    chain = clock(facts, seeks, shift_s)
    if loudest is not None:  # before the resampler, which would spread such a sample; slow, hence only where needed
        chain.append(f"aeval=exprs='if(lte(abs(val(ch)),{plain(loudest)}),val(ch),0)':c=same")
    if timed:  # fills holes, at the stream's own rate: soxr loses its place when it has to fill
        chain.append(f"aresample=async=1:min_hard_comp={_SMALLEST_GAP_S}")
    chain.append(to_rate())
    if facts.container not in _JOINABLE:  # fewer packets to take; where the track changes, ffmpeg loses one begun
        chain.append(f"asetnsamples=n={_PACKET}:p=0")
    return chain


@functools.cache
def _resampler() -> str:
    """Return the options of the best resampler that this ffmpeg has: soxr, else its own with a longer filter."""
    try:
        built = subprocess.run(
            ["ffmpeg", "-hide_banner", "-buildconf"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        built = b""
    return "resampler=soxr" if b"--enable-libsoxr" in built else "filter_size=128:phase_shift=10:cutoff=0.955"


class Mono:
    """Takes a Matroska stream of PCM and makes one channel of it as it comes: the mean of its channels.

    Where channels cancel each other out, some are turned first. Takes `samples` at most. If `timed`, a packet that
    begins later than the sound before it ends leaves silence between (ffmpeg's filters fill holes, but not before
    the first sample, nor where the track changes and the filters begin anew). Holds half a second of the channels.
    """

    def __init__(self, samples: int, timed: bool, rate_hz: int = SAMPLE_RATE_HZ, coding: Coding = FLOAT) -> None:
        self._pcm = np.zeros(samples, np.float32)
        self._rate_hz, self._coding = rate_hz, coding
        self._used, self._timed = 0, timed
        self._stream, self._cluster_ms = bytearray(), 0
        self._block = np.empty((1, _BLOCK), np.float32)  # Matroska's default, which a writer may leave out
        self._filled = 0
        self._signs: NDArray[np.float32] | None = None
        self.began: int | None = None
        self.turned = self.odd = 0
        self.peak = 0.0

    @property
    def pcm(self) -> NDArray[np.float32]:
        """What came, float32 (samples,), finite, of any level; empty if nothing came."""
        return self._pcm[: self._used if self.began is not None else 0]

    def read(self, fd: int) -> int:
        """Take what the pipe holds; return 0 at its end."""
        chunk = os.read(fd, READ_BYTES)
        if not chunk:
            self._flush()
        elif self._used < len(self._pcm):
            self._stream += chunk
            del self._stream[: self._parsed(self._stream)]
        return len(chunk)

    def _parsed(self, stream: bytearray) -> int:
        """Take every whole element of the stream; return the number of bytes that are done with."""
        at = 0
        while (head := _element(stream, at)) is not None:
            name, body, size = head
            if name in _ENTERED:
                at = body
                continue
            if body + size > len(stream):
                break
            at = body + size
            if name in _PACKET_IDS:  # one byte of track number, two of time, one of flags
                since_ms = int.from_bytes(stream[body + 1 : body + 3], "big", signed=True)
                self._packet(np.frombuffer(stream[body + 4 : at], self._coding.dtype), self._cluster_ms + since_ms)
            elif name == _CLUSTER_MS:
                self._cluster_ms = int.from_bytes(stream[body:at], "big")
            elif name == _CHANNELS:
                self._block = np.empty((int.from_bytes(stream[body:at], "big"), _BLOCK), np.float32)
        return at

    def _packet(self, samples: NDArray[Any], at_ms: int) -> None:
        """Take one packet's interleaved samples, which begin at a time on the window's axis."""
        packet = samples.reshape(-1, len(self._block)).T
        if self._coding.full != 1.0:
            packet = ((packet - self._coding.zero) / self._coding.full).astype(np.float32)
        due, now = at_ms * self._rate_hz // 1000, self._used + self._filled
        if self._timed and due - now > (_SMALLEST_LEAP if self.began is not None else 0):
            self._flush()
            self._used = min(due, len(self._pcm))
        if self.began is None:
            self.began = self._used
        while packet.shape[1]:
            taken = packet[:, : _BLOCK - self._filled]
            until = self._filled + taken.shape[1]
            self._block[:, self._filled : until] = taken
            self._filled = until
            packet = packet[:, taken.shape[1] :]
            if self._filled == _BLOCK:
                self._flush()

    def _flush(self) -> None:
        """Append what the block holds, as one channel."""
        block = self._block[:, : min(self._filled, len(self._pcm) - self._used)]
        self._filled = 0
        if not block.size:
            return
        peak = _peak(block)
        if not peak <= _LOUDEST_CODED:  # true of what is no number, too
            absurd = ~(np.abs(block) <= _LOUDEST_CODED)
            self.odd += int(np.count_nonzero(absurd.any(axis=0)))
            block[absurd] = 0.0
            peak = _peak(block)
        self.peak = max(self.peak, peak)
        after = self._used + block.shape[1]
        self._mix(block, self._pcm[self._used : after])
        self._used = after

    def _mix(self, block: NDArray[np.float32], mono: NDArray[np.float32]) -> None:
        """Write the mean of a block's channels to `mono`; a channel that begins to be turned is faded over."""
        channels, samples = block.shape
        if channels == 1:
            mono[:] = block[0]
            return
        before = self._signs
        after = before if before is not None and samples < _RAMP else _signs(block, before)
        if before is not None and (before != after).any():
            fade = np.linspace(0, 1, min(_RAMP, samples), endpoint=False, dtype=np.float32)
            block[:, : len(fade)] *= (before[:, None] + fade * (after - before)[:, None]) * after[:, None]
        if (after < 0).any():
            block *= after[:, None]
            self.turned += samples
        np.add.reduce(block, axis=0, out=mono)
        mono *= np.float32(1 / channels)
        self._signs = after


def _peak(block: NDArray[np.float32]) -> float:
    """Return the largest magnitude, NaN if one is none."""
    return float(np.maximum(block.max(), -block.min()))


def _element(stream: bytearray, at: int) -> tuple[int, int, int] | None:
    """Return the EBML element there as (name, where its body begins, bytes of it); None if it has not come whole.

    Names and sizes are numbers of variable length (RFC 8794, section 4): zeros before the first one bit tell it.
    """
    if at >= len(stream):
        return None
    body = at + 9 - stream[at].bit_length()
    if body >= len(stream):
        return None
    after = body + 9 - stream[body].bit_length()
    if after > len(stream):
        return None
    size = int.from_bytes(stream[body:after], "big") & ((1 << 7 * (after - body)) - 1)
    return int.from_bytes(stream[at:body], "big"), after, size


def _signs(block: NDArray[np.float32], before: NDArray[np.float32] | None) -> NDArray[np.float32]:
    """Return +1 or -1 for each channel of a block, (channels, samples), so that none cancels another out."""
    count, samples = block.shape
    means = block.mean(axis=1)
    if count > 2:
        products = block @ block.T
    else:  # numpy hands the product of two rows to several threads, which costs more than it is
        across = np.dot(block[0], block[1])
        products = np.array([[np.dot(block[0], block[0]), across], [across, np.dot(block[1], block[1])]])
    powers = products / samples - np.outer(means, means)
    signs = np.ones(count)
    total = float(np.trace(powers))
    if total < _SILENT_POWER:
        return signs.astype(np.float32) if before is None else before
    share = _CANCELS if before is None or (before > 0).all() else _CANCELS_STILL
    own = np.diagonal(powers)
    pairs = own[:, None] + own[None, :]
    tied = np.where((2 * np.abs(powers) > (1 - share) * pairs) & (pairs > _SILENT_POWER), powers, 0.0)
    if (tied < 0).any():
        for channel in range(1, count):
            signs[channel] = -1.0 if tied[channel, :channel] @ signs[:channel] < 0 else 1.0
    if signs @ powers @ signs < share * total:  # three or more that cancel only together
        strongest = np.linalg.eigh(powers)[1][:, -1]
        signs = np.where(strongest * strongest[np.abs(strongest).argmax()] < 0, -1.0, 1.0)
    return signs.astype(np.float32)


def loudest_believed(mono: Mono) -> float | None:
    """Return the level beyond which samples have to be silenced before the resampler; None if all is well.

    A few samples a hundred times beyond full scale are damage; many are a recording of another scale.
    """
    if mono.odd:
        return _LOUDEST_CODED
    if mono.peak <= _BEYOND_DOUBT:
        return None
    over = np.count_nonzero(np.abs(mono.pcm) > 1.0)
    return _LOUDEST_STRAY if over < _FEW * len(mono.pcm) else None


def absurd(pcm: NDArray[np.float32]) -> int:
    """Return how many samples are beyond any real recording's full scale."""
    return int(np.count_nonzero(np.abs(pcm) > _BEYOND_DOUBT))


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One window's sound: float32 (samples,), finite, of any level; silent samples before its first packet; samples in
    which channels were turned; samples that were no numbers or absurd, and are silent."""

    pcm: NDArray[np.float32]
    began: int = 0
    turned: int = 0
    odd: int = 0


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


def _forward_only(shift_s: float, duration_s: float | None) -> str:
    """Return the filter that shifts time stamps by `shift_s` and never lets them run back.

    Broken files hold time stamps that overlap or leap far past the end; taken at their word, sound would be
    cut or hours of silence inserted. A leap forward needs a second frame that agrees: where the sample rate changes,
    ffmpeg counts one frame's time at the wrong rate.
    """
    inside = f"*lte(PTS*TB,{plain(shift_s + duration_s + 10)})" if duration_s is not None else ""
    expected, seen, stamp, leapt, leaps = (f"ld({slot})" for slot in range(5))
    given = f"st(2,PTS-{plain(shift_s)}/TB)"
    ahead = f"st(4,{seen}*gt({stamp}-{expected},{_SMALLEST_GAP_S}/TB))"
    believed = f"not(isnan(PTS)){inside}*(gt({stamp},{expected})+not({seen}))*(not({leaps})+{leapt})"
    now = f"st(2,if({believed},{stamp},{expected}))"
    return f"asetpts='{given};{ahead};{now};st(3,{leaps});st(1,1);st(0,{stamp}+NB_SAMPLES);{stamp}'"
