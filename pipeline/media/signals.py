"""Plain facts of what was decoded: how much of it is silent, black or frozen. Pure; knows no file and no policy.

Shares are over what was looked at, all windows together; None where the recording lacks the sense.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from pipeline.records import SAMPLE_RATE_HZ, Signals

SILENCE_DBFS = -50.0
"""Root mean square of a block, relative to a full-scale square wave, below which it is silent."""
_BLOCK = SAMPLE_RATE_HZ // 10
# ffmpeg's blackdetect by its defaults: `pix_th` of the luma range (RGB is full range), and `pic_th` of the pixels.
_BLACK_LUMA, _BLACK_PIXELS = 0.10 * 255, 0.98
# ffmpeg's freezedetect by its default `noise`: the mean absolute difference as a share of full scale.
_FROZEN_DIFFERENCE = 0.001 * 255
# Every eighth line and column first: 40 frames of 1024x576 cost 8 ms of CPU time for both shares. What seems black or
# frozen is looked at again more closely, so that a small light or a small thing that moves is not missed.
_STRIDES = (8, 2)


def signals(pcm: NDArray[np.float32], frames: NDArray[np.uint8]) -> Signals:
    """Return the signals of sound, float32 (samples,) at 16 kHz, and pictures, uint8 (n, height, width, 3) RGB."""
    return Signals(
        silence_share=silence_share(pcm),
        peak_dbfs=peak_dbfs(pcm),
        black_share=black_share(frames),
        frozen_share=frozen_share(frames),
    )


def silence_share(pcm: NDArray[np.float32]) -> float | None:
    """Return the share of the time, in blocks of 100 ms, that is below SILENCE_DBFS; None without sound."""
    if not len(pcm):
        return None
    whole = len(pcm) // _BLOCK
    blocks = pcm[: whole * _BLOCK].reshape(whole, _BLOCK)
    limit = 10 ** (SILENCE_DBFS / 10)
    silent = _BLOCK * int(np.count_nonzero(np.einsum("ij,ij->i", blocks, blocks) < limit * _BLOCK))
    rest = pcm[whole * _BLOCK :]
    if len(rest) and float(rest @ rest) < limit * len(rest):
        silent += len(rest)
    return silent / len(pcm)


def peak_dbfs(pcm: NDArray[np.float32]) -> float | None:
    """Return the largest sample in dBFS; None without sound, and where all samples are zero."""
    peak = max(float(pcm.max()), -float(pcm.min())) if len(pcm) else 0.0
    return 20 * float(np.log10(peak)) if peak > 0 else None


def black_share(frames: NDArray[np.uint8]) -> float | None:
    """Return the share of frames of which 98 % of the pixels have a luma (BT.601) of 10 % or less; None without."""
    if not len(frames):
        return None
    return sum(all(_is_black(frame[::step, ::step]) for step in _STRIDES) for frame in frames) / len(frames)


def _is_black(seen: NDArray[np.uint8]) -> bool:
    luma = 0.299 * seen[..., 0] + 0.587 * seen[..., 1] + 0.114 * seen[..., 2]
    return float(np.mean(luma <= _BLACK_LUMA)) >= _BLACK_PIXELS


def frozen_share(frames: NDArray[np.uint8]) -> float | None:
    """Return the share of frames, the first left out, that equal the one before within 0.1 %; None below two."""
    if len(frames) < 2:
        return None
    alike = sum(
        all(_are_alike(before[::step, ::step], after[::step, ::step]) for step in _STRIDES)
        for before, after in pairwise(frames)
    )
    return alike / (len(frames) - 1)


def _are_alike(before: NDArray[np.uint8], after: NDArray[np.uint8]) -> bool:
    return float(np.abs(after.astype(np.int16) - before).mean()) <= _FROZEN_DIFFERENCE
