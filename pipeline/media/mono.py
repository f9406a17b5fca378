"""One channel of many, as they come: the mean, in which no channel cancels another out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from pipeline.media.matroska import PcmStream
from pipeline.media.process import READ_BYTES
from pipeline.records import SAMPLE_RATE_HZ

if TYPE_CHECKING:
    from numpy.typing import NDArray

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


class Mono:
    """Takes a Matroska stream of PCM and makes one channel of it as it comes: the mean of its channels.

    Where channels cancel each other out, some are turned first. Takes `samples` at most. If `timed`, a packet that
    begins later than the sound before it ends leaves silence between (ffmpeg's filters fill holes, but not before
    the first sample, nor where the track changes and the filters begin anew). Holds half a second of the channels.
    """

    def __init__(self, samples: int, timed: bool) -> None:
        self._pcm = np.zeros(samples, np.float32)
        self._used, self._timed = 0, timed
        self._stream = PcmStream()
        self._block = np.empty((1, _BLOCK), np.float32)
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
            for at_ms, samples in self._stream.packets(chunk):
                self._packet(samples, at_ms)
        return len(chunk)

    def _packet(self, packet: NDArray[np.float32], at_ms: int) -> None:
        """Take one packet, (channels, samples), which begins at a time on the window's axis."""
        if len(packet) != len(self._block):
            self._flush()
            self._block, self._signs = np.empty((len(packet), _BLOCK), np.float32), None
        due, now = at_ms * SAMPLE_RATE_HZ // 1000, self._used + self._filled
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
