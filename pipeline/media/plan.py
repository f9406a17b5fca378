"""How much of a recording the model gets: windows, frame rate, frame size, tokens. Pure arithmetic, no I/O.

Sound and pictures share the windows. Put end to end, the windows are the model's time axis: the sound lies on
it without gaps and frame k at k / frame_rate_hz. What does not fit is given up in this order: frame rate,
frame size, recording time (evenly spread windows instead of the whole).
"""

from __future__ import annotations

import math

from pipeline.errors import ItemError
from pipeline.job import Media
from pipeline.records import SAMPLE_RATE_HZ, MediaFacts, Plan, VideoStream, Window

PATCH_PIXELS = 32
"""Side of one prompt token's square: patch size 16, spatial merge 2."""
FRAMES_PER_GRID = 2
"""Frames that share their tokens: temporal patch size 2."""
SAMPLES_PER_AUDIO_TOKEN = 1_280
SMALLEST_FRAME_PIXELS = 4 * PATCH_PIXELS**2
WINDOW_S = 60.0
FEWEST_WINDOWS, MOST_WINDOWS = 2, 30

_TOKEN_PIXELS = PATCH_PIXELS**2
_SAMPLES_PER_FEATURE = 160
_AUDIO_UNIT_S = SAMPLES_PER_AUDIO_TOKEN / SAMPLE_RATE_HZ


def padded_samples(samples: int) -> int:
    """Return the PCM length the model gets: a multiple of 1280 samples (80 ms), at least one."""
    return max(1, -(-samples // SAMPLES_PER_AUDIO_TOKEN)) * SAMPLES_PER_AUDIO_TOKEN


def audio_tokens(samples: int) -> int:
    """Return the prompt tokens of that many samples at 16 kHz, after padding to a multiple of 1280.

    The formula is transformers' `_get_feat_extract_output_lengths`
    (models/qwen3_omni_moe/processing_qwen3_omni_moe.py, n_window=50) over features of 10 ms: 13 tokens a full
    second.
    """
    features = padded_samples(samples) // _SAMPLES_PER_FEATURE
    seconds, rest = divmod(features, 100)
    for _ in range(3):
        rest = (rest - 1) // 2 + 1
    return rest + seconds * 13


def image_tokens(width: int, height: int) -> int:
    """Return the prompt tokens of one picture whose sides are multiples of 32 pixels."""
    return (width // PATCH_PIXELS) * (height // PATCH_PIXELS)


def video_tokens(frames: int, width: int, height: int) -> int:
    """Return the prompt tokens of an even number of frames whose sides are multiples of 32 pixels."""
    return frames // FRAMES_PER_GRID * image_tokens(width, height)


def frame_size(width: int, height: int, max_pixels: int) -> tuple[int, int]:
    """Return the size to scale a picture to: multiples of 32 near its own size and aspect, at most
    `max_pixels`.

    A side is never below 32 pixels, so that an extreme aspect is clamped; nothing is enlarged beyond
    rounding. Raises ValueError if not even 32x32 pixels are allowed.
    """
    most_tokens = max_pixels // _TOKEN_PIXELS
    if most_tokens < 1:
        raise ValueError("a frame takes at least 32x32 pixels")
    columns, rows = _units(width), _units(height)
    if columns * rows > most_tokens:
        shrink = math.sqrt(width * height / max_pixels)
        columns = min(most_tokens, max(1, math.floor(width / shrink / PATCH_PIXELS)))
        rows = min(most_tokens // columns, max(1, math.floor(height / shrink / PATCH_PIXELS)))
    return columns * PATCH_PIXELS, rows * PATCH_PIXELS


def bfloat16_at_least(value: float) -> float:
    """Return the smallest number with 8 significant bits that is not below a positive value."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(mantissa * 256), exponent - 8)


def plan(facts: MediaFacts, media: Media, token_budget: int, max_recording_s: float = math.inf) -> Plan:
    """Return how much of a recording to decode so that its media tokens stay within `token_budget`.

    Of a recording longer than `max_recording_s` that many seconds are looked at (80 ms at least), evenly spread;
    from its start if its length is unknown. Raises ItemError recording_too_long, or prompt_too_long if not even
    the least fits.
    """
    if facts.kind == "image" and facts.video is not None:
        return _image(facts.video, media, token_budget)
    if facts.duration_s is not None and facts.duration_s > media.max_duration_s:
        raise ItemError(
            "recording_too_long",
            f"the recording is {facts.duration_s:.0f} s long, the limit is {media.max_duration_s:.0f} s",
        )
    budget = _Budget(facts, media, token_budget)
    longest_s = budget.longest_s()
    if longest_s > max_recording_s:
        longest_s = min(longest_s, max(1, math.floor(max_recording_s / _AUDIO_UNIT_S + 1e-9)) * _AUDIO_UNIT_S)
    whole = facts.duration_s is None or (facts.duration_s <= max_recording_s and budget.fits(facts.duration_s))
    looked_at_s = facts.duration_s if whole and facts.duration_s is not None else longest_s
    return _sound_only(facts, looked_at_s, whole) if facts.video is None else budget.with_frames(looked_at_s, whole)


def _image(picture: VideoStream, media: Media, token_budget: int) -> Plan:
    """Return the plan of a still picture."""
    if token_budget < 1:
        raise ItemError("prompt_too_long", "no token is left for the picture")
    max_pixels = min(media.image.max_pixels, token_budget * _TOKEN_PIXELS)
    width, height = frame_size(picture.width, picture.height, max_pixels)
    return Plan(
        windows=(Window(0.0, 0.0),),
        duration_known=True,
        audio=False,
        frames=1,
        frame_rate_hz=None,
        width=width,
        height=height,
        audio_tokens=0,
        video_tokens=image_tokens(width, height),
        coverage=1.0,
    )


def _sound_only(facts: MediaFacts, looked_at_s: float, whole: bool) -> Plan:
    """Return the plan of a recording without pictures."""
    windows: tuple[Window, ...] = (Window(0.0, looked_at_s),)
    if not whole and facts.duration_s is not None:
        count = _window_count(looked_at_s)
        length_s = math.floor(looked_at_s / count / _AUDIO_UNIT_S + 1e-9) * _AUDIO_UNIT_S
        windows = _spread(count, length_s, facts.duration_s) if length_s > 0 else windows
    return Plan(
        windows=windows,
        duration_known=facts.duration_s is not None,
        audio=True,
        frames=0,
        frame_rate_hz=None,
        width=0,
        height=0,
        audio_tokens=audio_tokens(window_samples(windows)),
        video_tokens=0,
        coverage=_coverage(windows, facts.duration_s),
    )


class _Budget:
    """What a recording's sound and pictures may take together."""

    def __init__(self, facts: MediaFacts, media: Media, token_budget: int) -> None:
        self.facts, self.media, self.token_budget = facts, media, token_budget
        # vLLM and transformers keep the seconds between two grids in bfloat16 (8 significant bits) to place
        # frames on the time axis; a value that is not exact there would let pictures drift away from their
        # sound.
        self.shortest_grid_s = bfloat16_at_least(FRAMES_PER_GRID / media.video.max_rate_hz)
        self.longest_grid_s = max(self.shortest_grid_s, _bfloat16_at_most(FRAMES_PER_GRID / media.video.min_rate_hz))
        self.smallest_tokens = image_tokens(*self._size(SMALLEST_FRAME_PIXELS)) if facts.video is not None else 0

    def fits(self, length_s: float) -> bool:
        """Return whether that much recording fits at the lowest frame rate and the smallest frames."""
        if self.facts.audio is not None and length_s > self.media.audio.max_duration_s:
            return False
        grids = self._fewest_grids(length_s)
        tokens = grids * self.smallest_tokens
        return (
            grids * FRAMES_PER_GRID <= self.media.video.max_frames
            and tokens <= self.media.video.max_tokens
            and self._audio_tokens(length_s) + tokens <= self.token_budget
        )

    def longest_s(self) -> float:
        """Return the longest time that fits, in whole steps of 80 ms. Raises ItemError prompt_too_long."""
        longest_s = self.media.max_duration_s
        if self.facts.duration_s is not None:
            longest_s = min(longest_s, self.facts.duration_s)
        low, high = 0, math.ceil(longest_s / _AUDIO_UNIT_S)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.fits(middle * _AUDIO_UNIT_S) else (low, middle - 1)
        if low == 0:
            raise ItemError("prompt_too_long", f"{self.token_budget} tokens do not hold 80 ms of this recording")
        return min(low * _AUDIO_UNIT_S, longest_s)

    def with_frames(self, looked_at_s: float, whole: bool) -> Plan:
        """Return the plan of a recording with pictures."""
        tokens = min(self.media.video.max_tokens, self.token_budget - self._audio_tokens(looked_at_s))
        fewest = self._fewest_grids(looked_at_s)
        width, height = self._size(max(tokens // fewest, self.smallest_tokens) * _TOKEN_PIXELS)
        most = min(self.media.video.max_frames // FRAMES_PER_GRID, tokens // image_tokens(width, height))
        grid_s = max(self.shortest_grid_s, bfloat16_at_least(looked_at_s / most))
        if whole or self.facts.duration_s is None:
            windows: tuple[Window, ...] = (Window(0.0, looked_at_s),)
            frames = FRAMES_PER_GRID * min(most, max(1, math.ceil(looked_at_s / grid_s - 1e-9)))
        else:
            windows, frames = _grid_windows(looked_at_s, grid_s, self.facts.duration_s)
        return Plan(
            windows=windows,
            duration_known=self.facts.duration_s is not None,
            audio=self.facts.audio is not None,
            frames=frames,
            frame_rate_hz=FRAMES_PER_GRID / grid_s,
            width=width,
            height=height,
            audio_tokens=audio_tokens(heard_samples(self.facts, windows)) if self.facts.audio is not None else 0,
            video_tokens=video_tokens(frames, width, height),
            coverage=_coverage(windows, self.facts.duration_s),
        )

    def _audio_tokens(self, length_s: float) -> int:
        return audio_tokens(round(length_s * SAMPLE_RATE_HZ)) if self.facts.audio is not None else 0

    def _fewest_grids(self, length_s: float) -> int:
        if self.facts.video is None:
            return 0
        return max(1, math.ceil(length_s / self.longest_grid_s - 1e-9))

    def _size(self, max_pixels: int) -> tuple[int, int]:
        assert self.facts.video is not None
        largest = min(max_pixels, self.media.video.max_pixels_per_frame)
        return frame_size(self.facts.video.width, self.facts.video.height, largest)


def _grid_windows(looked_at_s: float, grid_s: float, duration_s: float) -> tuple[tuple[Window, ...], int]:
    """Return windows that hold the same whole number of grids each, and the frames in all of them."""
    grids = math.floor(looked_at_s / grid_s + 1e-9)
    if grids < 1:
        return (Window(0.0, looked_at_s),), FRAMES_PER_GRID
    count = min(_window_count(looked_at_s), grids)
    grids_each = grids // count
    count = min(MOST_WINDOWS, grids // grids_each)
    return _spread(count, grids_each * grid_s, duration_s), count * grids_each * FRAMES_PER_GRID


def _window_count(looked_at_s: float) -> int:
    return min(MOST_WINDOWS, max(FEWEST_WINDOWS, round(looked_at_s / WINDOW_S)))


def _spread(count: int, length_s: float, duration_s: float) -> tuple[Window, ...]:
    """Return equal windows, the first at the start, the last at the end of the recording."""
    step_s = (duration_s - length_s) / (count - 1) if count > 1 else 0.0
    return tuple(Window(index * step_s, length_s) for index in range(count))


def window_samples(windows: tuple[Window, ...]) -> int:
    """Return the samples at 16 kHz in all windows together."""
    return sum(round(window.duration_s * SAMPLE_RATE_HZ) for window in windows)


def heard_samples(facts: MediaFacts, windows: tuple[Window, ...]) -> int:
    """Return the samples at 16 kHz of the sound in the windows: in one whole window a track may end before it."""
    samples = window_samples(windows)
    audio, video = facts.audio, facts.video
    if audio is None or audio.duration_s is None or video is None or len(windows) > 1:
        return samples
    end_s = audio.start_s + audio.duration_s - min(audio.start_s, video.start_s) - windows[0].start_s
    return min(samples, max(1, round(end_s * SAMPLE_RATE_HZ)))


def _coverage(windows: tuple[Window, ...], duration_s: float | None) -> float:
    """Return the share of the recording inside the windows; 1.0 where the length is unknown."""
    return 1.0 if duration_s is None else min(1.0, sum(window.duration_s for window in windows) / duration_s)


def _bfloat16_at_most(value: float) -> float:
    """Return the largest number with 8 significant bits that is not above a positive value."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.floor(mantissa * 256), exponent - 8)


def _units(pixels: int) -> int:
    """Return a side in whole tokens, rounded half to even as Qwen's `smart_resize` does."""
    return max(1, round(pixels / PATCH_PIXELS))
