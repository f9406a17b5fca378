"""The arithmetic of looking: tokens, sizes, rates and windows stay within their budgets."""

from __future__ import annotations

import ast
import functools
import importlib.util
import math
import struct
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Optional, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import ItemError
from pipeline.job import Audio, Image, Media, Video
from pipeline.media.plan import (
    audio_tokens,
    bfloat16_at_least,
    frame_size,
    image_tokens,
    padded_samples,
    plan,
    video_tokens,
    window_samples,
)
from pipeline.records import AudioStream, MediaFacts, Plan, VideoStream

SOUND = AudioStream(1, "aac", 48_000, 2, 0.0, None)


def recording(
    duration_s: float | None, *, sound: bool = True, size: tuple[int, int] | None = (1280, 720)
) -> MediaFacts:
    video = VideoStream(0, "h264", *size, 25.0, 0.0, None) if size else None
    kind = "av" if sound and size else "audio" if sound else "video"
    return MediaFacts(kind, "mov", duration_s, SOUND if sound else None, video)  # type: ignore[arg-type]


def from_source(package: str, file: str, *names: str) -> dict[str, Any]:
    """Return functions and constants of an installed file without importing what it imports."""
    spec = importlib.util.find_spec(package)
    assert spec is not None and spec.submodule_search_locations, f"{package} is not installed: run `make setup`"
    tree = ast.parse((Path(spec.submodule_search_locations[0]) / file).read_text())
    wanted = [
        node
        for node in tree.body
        if getattr(node, "name", None) in names
        or (isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) in names)
    ]
    namespace: dict[str, Any] = {"math": math, "Optional": Optional, "Tuple": tuple}
    exec(compile(ast.Module(wanted, []), file, "exec"), namespace)
    return namespace


@functools.cache
def audio_reference() -> Callable[[int], int]:
    name = "_get_feat_extract_output_lengths"
    function = from_source("transformers", "models/qwen3_omni_moe/processing_qwen3_omni_moe.py", name)[name]
    return cast(Callable[[int], int], function)


@functools.cache
def size_reference() -> Callable[..., tuple[int, int]]:
    names = ("smart_resize", "round_by_factor", "ceil_by_factor", "floor_by_factor", "MAX_RATIO")
    found = from_source("qwen_omni_utils", "v2_5/vision_process.py", *names)["smart_resize"]
    return cast(Callable[..., tuple[int, int]], found)


@pytest.mark.parametrize("features", [*range(8, 1_000, 8), 3_000, 6_200, 180_000])
def test_audio_tokens_are_those_of_transformers(features: int) -> None:
    assert audio_tokens(features * 160) == audio_reference()(features)


def test_a_full_second_of_sound_is_thirteen_tokens() -> None:
    assert [audio_tokens(seconds * 16_000) for seconds in (2, 30, 62, 1800)] == [26, 390, 806, 23_400]
    assert audio_tokens(29 * 16_000) == 378  # padded to whole tokens of 80 ms, so half a token over
    assert audio_tokens(0) == audio_tokens(1) == audio_tokens(1280) == 1
    assert padded_samples(1281) == 2560


@given(st.integers(100, 5_000), st.integers(100, 5_000), st.integers(16, 600))
def test_frame_size_is_smart_resize_in_its_normal_range(width: int, height: int, tokens: int) -> None:
    wanted = size_reference()(height, width, 32, min_pixels=1024, max_pixels=tokens * 1024)
    if max(width, height) / min(width, height) < 4 and min(wanted) > 0:
        assert frame_size(width, height, tokens * 1024) == (wanted[1], wanted[0])


@given(st.integers(1, 70_000), st.integers(1, 70_000), st.integers(1024, 2_000_000))
def test_a_frame_never_exceeds_its_pixels_nor_grows(width: int, height: int, max_pixels: int) -> None:
    wide, high = frame_size(width, height, max_pixels)
    assert wide % 32 == high % 32 == 0 and wide >= 32 and high >= 32
    assert wide * high <= max_pixels
    assert wide <= max(32, width + 16) and high <= max(32, height + 16)


@pytest.mark.parametrize(
    ("size", "max_pixels", "wanted"),
    [
        ((1, 1), 131_072, (32, 32)),
        ((161, 121), 131_072, (160, 128)),
        ((1920, 1080), 131_072, (480, 256)),
        ((1080, 1920), 131_072, (256, 480)),
        ((40_000, 10), 131_072, (4096, 32)),
        ((3840, 2160), 1024, (32, 32)),
    ],
)
def test_frame_sizes_by_example(size: tuple[int, int], max_pixels: int, wanted: tuple[int, int]) -> None:
    assert frame_size(*size, max_pixels) == wanted


@given(st.floats(1e-3, 1e5))
def test_the_grid_time_is_exact_in_bfloat16(value: float) -> None:
    rounded = bfloat16_at_least(value)
    assert value <= rounded <= value * (1 + 1 / 128)
    assert struct.unpack("<I", struct.pack("<f", rounded))[0] & 0xFFFF == 0


def test_a_short_recording_is_looked_at_whole_at_the_highest_rate() -> None:
    planned = plan(recording(20.0), Media(), 30_000)
    assert [(w.start_s, w.duration_s) for w in planned.windows] == [(0.0, 20.0)]
    assert (planned.frames, planned.frame_rate_hz, planned.width, planned.height) == (40, 2.0, 480, 256)
    assert (planned.audio_tokens, planned.video_tokens, planned.coverage) == (260, 20 * 120, 1.0)


def test_rate_is_given_up_before_size_and_size_before_time() -> None:
    five, fifteen, forty = (plan(recording(60.0 * minutes), Media(), 30_000) for minutes in (5, 15, 40))
    assert five.coverage == fifteen.coverage == 1.0 and forty.coverage < 1.0
    assert 0.25 < (five.frame_rate_hz or 0) < 2.0 and (five.width, five.height) == (480, 256)
    assert (fifteen.frame_rate_hz or 0) >= 0.25 and fifteen.width < 480
    assert len(forty.windows) > 1


def test_a_long_recording_is_spread_from_its_start_to_its_end() -> None:
    planned = plan(recording(7_200.0), Media(), 30_000)
    starts = [window.start_s for window in planned.windows]
    lengths = {window.duration_s for window in planned.windows}
    assert starts[0] == 0 and starts[-1] + max(lengths) == pytest.approx(7_200)
    assert len(lengths) == 1 and 2 <= len(starts) <= 30
    steps = [later - earlier for earlier, later in pairwise(starts)]
    assert max(steps) == pytest.approx(min(steps))
    each = planned.frames / len(starts)
    assert each == int(each) and each % 2 == 0
    assert lengths.pop() == pytest.approx(each / (planned.frame_rate_hz or 0))


def test_long_sound_is_spread_within_its_limit() -> None:
    planned = plan(recording(10_000.0, size=None), Media(audio=Audio(max_duration_s=600)), 30_000)
    assert sum(window.duration_s for window in planned.windows) == pytest.approx(600, abs=1)
    assert planned.audio_tokens == audio_tokens(window_samples(planned.windows)) <= 600 * 13


def test_an_unknown_length_is_planned_to_the_limit_and_said_so() -> None:
    planned = plan(recording(None), Media(), 30_000)
    assert not planned.duration_known and planned.coverage == 1.0 and len(planned.windows) == 1
    assert planned.windows[0].duration_s == pytest.approx(1024)


@pytest.mark.parametrize("size", [None, (1280, 720)])
@pytest.mark.parametrize(
    ("duration_s", "max_recording_s", "looked_at_s", "windows"),
    [
        (20.0, 20.0, 20.0, 1),
        (20.0, 10.0, 10.0, 2),
        (600.0, 300.0, 300.0, 5),
        (7200.0, 60.0, 60.0, 2),
        (None, 60.0, 60.0, 1),
    ],
)
def test_at_most_so_many_seconds_are_looked_at_evenly_spread(
    size: tuple[int, int] | None, duration_s: float | None, max_recording_s: float, looked_at_s: float, windows: int
) -> None:
    planned = plan(recording(duration_s, size=size), Media(), 30_000, max_recording_s)
    assert sum(window.duration_s for window in planned.windows) == pytest.approx(looked_at_s, rel=0.05)
    assert len(planned.windows) == windows and planned.windows[0].start_s == 0
    assert planned.coverage == (1.0 if duration_s is None else pytest.approx(looked_at_s / duration_s, rel=0.05))


def test_a_limit_beyond_what_fits_changes_nothing() -> None:
    assert plan(recording(7_200.0), Media(), 30_000, 2_000.0) == plan(recording(7_200.0), Media(), 30_000)


@pytest.mark.parametrize("max_recording_s", [0.0, 0.01, 0.08])
def test_a_limit_below_the_shortest_window_is_that_window(max_recording_s: float) -> None:
    assert plan(recording(9.0), Media(), 30_000, max_recording_s).windows[0].duration_s == pytest.approx(0.08)


def test_a_picture_is_one_frame_without_a_rate() -> None:
    facts = MediaFacts("image", "png_pipe", None, None, VideoStream(0, "png", 4000, 3000, None, 0.0, None))
    planned = plan(facts, Media(image=Image(max_pixels=256 * 1024)), 30_000)
    assert planned.frames == 1 and planned.frame_rate_hz is None and not planned.audio
    assert planned.video_tokens == image_tokens(planned.width, planned.height) <= 256
    assert plan(facts, Media(), 10).video_tokens <= 10


@pytest.mark.parametrize(
    ("facts", "budget", "code"),
    [
        (recording(50_000.0), 30_000, "recording_too_long"),
        (recording(10.0), 0, "prompt_too_long"),
        (recording(10.0), 1, "prompt_too_long"),
        (
            MediaFacts("image", "png_pipe", None, None, VideoStream(0, "png", 9, 9, None, 0, None)),
            0,
            "prompt_too_long",
        ),
    ],
)
def test_what_cannot_fit_is_an_error(facts: MediaFacts, budget: int, code: str) -> None:
    with pytest.raises(ItemError) as caught:
        plan(facts, Media(), budget)
    assert caught.value.code == code


@st.composite
def cases(draw: st.DrawFn) -> tuple[MediaFacts, Media, int]:
    low, high = sorted((draw(st.floats(0.02, 8)), draw(st.floats(0.02, 8))))
    video = Video(
        min_rate_hz=low,
        max_rate_hz=high,
        max_frames=draw(st.integers(2, 800)),
        max_tokens=draw(st.integers(4, 20_000)),
        max_pixels_per_frame=draw(st.integers(1024, 600_000)),
    )
    media = Media(video=video, audio=Audio(max_duration_s=draw(st.floats(1, 1800))))
    sound = draw(st.booleans())
    size = draw(st.tuples(st.integers(1, 8_000), st.integers(1, 8_000))) if not sound or draw(st.booleans()) else None
    duration_s = draw(st.one_of(st.none(), st.floats(0.001, 43_000)))
    return recording(duration_s, sound=sound, size=size), media, draw(st.integers(1, 40_000))


def check(planned: Plan, facts: MediaFacts, media: Media, budget: int) -> None:
    total_s = sum(window.duration_s for window in planned.windows)
    assert planned.audio_tokens + planned.video_tokens <= budget
    assert 0 < planned.coverage <= 1
    assert planned.audio == (facts.audio is not None)
    if facts.audio is not None:
        assert total_s <= media.audio.max_duration_s + 1e-6
        assert planned.audio_tokens == audio_tokens(window_samples(planned.windows))
    if facts.video is not None:
        rate_hz = planned.frame_rate_hz
        assert rate_hz is not None
        assert planned.frames >= 2 and planned.frames % 2 == 0 and planned.frames <= media.video.max_frames
        assert planned.video_tokens == video_tokens(planned.frames, planned.width, planned.height)
        assert planned.video_tokens <= media.video.max_tokens
        assert planned.width * planned.height <= media.video.max_pixels_per_frame
        # Limits closer to each other than a bfloat16 step make the rate leave them, by less than that step.
        assert media.video.min_rate_hz * (127 / 128) <= rate_hz <= media.video.max_rate_hz * (1 + 1e-9)
        assert math.ceil(total_s * rate_hz - 1e-6) <= planned.frames < total_s * rate_hz + 2 + 1e-6
    if facts.duration_s is not None:
        ends = [window.start_s + window.duration_s for window in planned.windows]
        assert ends[-1] == pytest.approx(facts.duration_s) or len(ends) == 1
        starts = [window.start_s for window in planned.windows]
        assert all(end <= start + 1e-6 for end, start in zip(ends, starts[1:], strict=False))


@settings(max_examples=400, deadline=None)
@given(cases(), st.one_of(st.just(math.inf), st.floats(0, 2_000)))
def test_no_plan_exceeds_a_budget(case: tuple[MediaFacts, Media, int], max_recording_s: float) -> None:
    facts, media, budget = case
    try:
        planned = plan(facts, media, budget, max_recording_s)
    except ItemError as error:
        planned, refused = None, error.code
    if planned is not None:
        check(planned, facts, media, budget)
        looked_at_s = sum(window.duration_s for window in planned.windows)
        assert looked_at_s <= max(0.08, max_recording_s) + 1e-6
    else:
        assert refused == "prompt_too_long"
