"""Signals of generated sound and frames whose right values are known."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.media.pictures import planes
from pipeline.media.signals import black_share, frozen_share, peak_dbfs, signals, silence_share
from pipeline.records import Signals

NO_SOUND, NO_FRAMES = np.zeros(0, np.float32), planes(0, 32, 64, 3)


def tone(dbfs: float, seconds: float) -> NDArray[np.float32]:
    """Return a square wave: its root mean square and its peak are the level."""
    return np.resize(np.array([1, -1], np.float32) * np.float32(10 ** (dbfs / 20)), round(seconds * 16_000))


def filled(*levels: int) -> NDArray[np.uint8]:
    frames = planes(len(levels), 32, 64, 3)
    for frame, level in zip(frames, levels, strict=True):
        frame[:] = level
    return frames


def test_a_missing_sense_has_no_signals() -> None:
    assert signals(NO_SOUND, NO_FRAMES) == Signals()


@pytest.mark.parametrize(("quiet_s", "loud_s"), [(4.0, 0.0), (3.0, 1.0), (0.0, 2.0), (0.05, 0.0), (0.0, 0.05)])
def test_silence_is_what_lies_below_50_dbfs(quiet_s: float, loud_s: float) -> None:
    pcm = np.concatenate([tone(-49, loud_s), tone(-51, quiet_s)])
    assert silence_share(pcm) == pytest.approx(quiet_s / (quiet_s + loud_s))


def test_the_peak_counts_both_ways_and_digital_silence_has_none() -> None:
    assert peak_dbfs(np.array([0.1, -0.5], np.float32)) == pytest.approx(20 * math.log10(0.5))
    assert peak_dbfs(np.array([0.5, -0.1], np.float32)) == pytest.approx(20 * math.log10(0.5))
    assert peak_dbfs(np.zeros(9, np.float32)) is None


def test_a_frame_is_black_up_to_a_tenth_of_the_range() -> None:
    assert black_share(filled(0, 25, 26, 255)) == 0.5


@pytest.mark.parametrize(("lit_lines", "share"), [(0, 1.0), (1, 0.0)])
def test_more_than_2_percent_of_bright_pixels_are_not_black(lit_lines: int, share: float) -> None:
    frames = filled(0)
    frames[:, : 4 * lit_lines] = 255
    assert black_share(frames) == share


def test_a_frame_that_equals_the_one_before_is_frozen() -> None:
    assert frozen_share(filled(9, 9, 9, 10, 10)) == 0.75
    assert frozen_share(filled(9)) is None


def test_a_flip_from_white_to_black_is_no_overflow_to_frozen() -> None:
    assert frozen_share(filled(255, 0, 255)) == 0.0


def test_small_lights_and_small_moves_between_the_samples_are_seen() -> None:
    frames = filled(0, 0)
    frames[1, 3::8, :, :] = frames[1, 4::8, :, :] = 255
    assert black_share(frames) == 0.5 and frozen_share(frames) == 0.0
