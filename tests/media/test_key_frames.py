"""Of long recordings that are looked at seldom only key frames are decoded, where these are near enough."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.job import FrontEnd, Media, Video
from pipeline.media import key_frames, looking, reader
from pipeline.media.decode import decode
from pipeline.media.ladder import Forecast, looks, source_gigapixels
from pipeline.media.looking import Looker, Seen
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.media.sandbox import CONFINED
from pipeline.media.skipping import jumps
from pipeline.records import AudioStream, Item, MediaFacts, VideoStream
from pipeline.work import Work
from tests.media.conftest import MakeClip
from tests.media.test_decode import TIMEOUT_S

# 64 s at five frames a second; the luma grows by one every two frames.
SECONDS, PER_LEVEL_S = 64, 0.4
PICTURES = ("-f", "lavfi", "-i", f"color=black:s=96x64:r=5:d={SECONDS},geq=lum='16+floor(N/2)':cb=128:cr=128")
TONE = ("-f", "lavfi", "-i", f"sine=frequency=440:duration={SECONDS}")
EVERY_2_S = ("-c:v", "libx264", "-qp", "4", "-g", "10", "-x264-params", "scenecut=0")
SELDOM = Media(video=Video(min_rate_hz=0.01, max_rate_hz=0.125))


def looked_at(clip: Path, media: Media = SELDOM, forecast: Forecast | None = None) -> Seen:
    item = Item("item", str(clip), os.fsencode(clip), clip.stat().st_size, 1, "key")
    return Looker(media, FrontEnd(), 8000).look(item, Work(TIMEOUT_S), forecast)


def exactly(clip: Path) -> Seen:
    return looked_at(clip, SELDOM.model_copy(update={"video": SELDOM.video.model_copy(update={"exact_frames": True})}))


def times_s(seen: Seen) -> np.ndarray:
    """Return when each frame is shown, by its brightness."""
    luma = seen.decoded.frames.mean(axis=(1, 2, 3)) * 219 / 255
    return np.asarray(luma * PER_LEVEL_S)


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Get, for each window that is read as a whole, whether pictures were among it."""
    seen: list[bool] = []
    whole = reader.Reader._pass

    def run(self: reader.Reader, window: object, extra_s: float, hears: bool, sees: bool, *more: float) -> object:
        seen.append(sees)
        return whole(self, window, extra_s, hears, sees, *more)  # type: ignore[arg-type]

    monkeypatch.setattr(reader.Reader, "_pass", run)
    return seen


@pytest.mark.parametrize("name", ["seldom.mp4", "seldom.mkv", "seldom.ts", "silent.mp4", "late.mkv"])
def test_the_nearest_key_frame_stands_for_a_moment(make_clip: MakeClip, passes: list[bool], name: str) -> None:
    sound = () if name.startswith("silent") else TONE
    late = ("-output_ts_offset", "5") if name.startswith("late") else ()
    clip = make_clip(name, *PICTURES, *sound, *EVERY_2_S, *late)
    seen = looked_at(clip)
    assert passes == ([] if not sound else [False])
    assert seen.facts.key_gap_s == pytest.approx(2.0, abs=0.01)
    assert len(seen.decoded.frames) == seen.plan.frames and seen.plan.frame_rate_hz == 0.125
    (wanted_s,) = key_frames.moments_s(seen.facts, seen.plan)
    assert wanted_s.tolist() == [8.0 * k for k in range(len(wanted_s))] and len(wanted_s) in (8, 9)
    away_s = np.abs(times_s(seen)[: len(wanted_s)] - wanted_s)  # what comes after the end is the last one again
    assert seen.decoded.frames_off_s == pytest.approx(away_s.max(), abs=PER_LEVEL_S)
    assert seen.decoded.frames_off_s <= (0.1 if len(wanted_s) == 8 else 2.0)
    exact = exactly(clip)
    assert np.array_equal(exact.decoded.pcm, seen.decoded.pcm) and exact.coverage == seen.coverage == 1.0
    assert exact.decoded.frames_off_s == 0.0


def test_frames_are_those_of_a_whole_decode(make_clip: MakeClip) -> None:
    clip = make_clip("seldom.mp4", *PICTURES, *TONE, *EVERY_2_S)
    seen, path = looked_at(clip), os.fsencode(clip)
    facts = probe(path, 10.0)
    every_2_s = plan(facts, Media(video=Video(max_rate_hz=0.5)), 8000)
    whole = decode(path, facts, every_2_s, TIMEOUT_S).frames
    for frame in seen.decoded.frames:
        assert min(int(np.abs(frame.astype(int) - other).max()) for other in whole) == 0


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("far.mp4", ("-g", "100", "-x264-params", "scenecut=0")),
        ("one.mp4", ("-g", "1000", "-x264-params", "scenecut=0")),
        # Called a key frame by the parser, and whole only after a second.
        ("refresh.ts", ("-x264-params", "intra-refresh=1:keyint=10:scenecut=0")),
    ],
)
def test_where_key_frames_will_not_do_all_are_decoded(
    make_clip: MakeClip, passes: list[bool], name: str, options: tuple[str, ...]
) -> None:
    clip = make_clip(name, *PICTURES, *TONE, "-c:v", "libx264", "-qp", "4", "-bf", "0", *options)
    seen = looked_at(clip)
    assert True in passes
    assert np.array_equal(seen.decoded.frames, exactly(clip).decoded.frames)


def test_what_is_looked_at_often_is_not_listed(make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(looking, "key_times_s", None)
    clip = make_clip("seldom.mp4", *PICTURES, *TONE, *EVERY_2_S)
    assert looked_at(clip, Media(video=Video(max_rate_hz=1.0))).facts.key_gap_s is None


def test_damaged_key_frames_are_seen_by_the_whole_decode(
    make_clip: MakeClip, passes: list[bool], tmp_path: Path
) -> None:
    data = bytearray(make_clip("seldom.ts", *PICTURES, *TONE, *EVERY_2_S).read_bytes())
    for start in range(len(data) // 4, len(data), 4000):
        data[start : start + 400] = bytes(400)
    clip = tmp_path / "damaged.ts"
    clip.write_bytes(data)
    seen = looked_at(clip)
    assert True in passes
    assert "partial_decode" in [remark.code for remark in seen.decoded.remarks]


def test_pictures_that_go_on_beyond_the_claim_are_noticed(make_clip: MakeClip) -> None:
    path = os.fsencode(make_clip("silent.mp4", *PICTURES, *EVERY_2_S))
    facts = replace(probe(path, 10.0), duration_s=40.0)
    planned = plan(facts, SELDOM, 8000)
    keys_s = key_frames.key_times_s(path, facts, planned, 10.0)
    assert keys_s is not None and len(keys_s) == 32
    assert decode(path, facts, planned, TIMEOUT_S, exact=False, key_frames_s=keys_s).goes_on


def test_the_nearest_of_times() -> None:
    times = np.array([0.0, 4.0, 10.0])
    assert key_frames.nearest(times, np.array([0.0, 1.9, 2.1, 7.1, 99.0])).tolist() == [0, 0, 1, 2, 2]
    assert key_frames.nearest(np.array([3.0]), np.array([0.0, 9.0])).tolist() == [0, 0]
    assert key_frames.longest_gap_s(times) == 6.0 and key_frames.longest_gap_s(times[:1]) == float("inf")


def test_one_key_frame_may_stand_for_two_moments(make_clip: MakeClip) -> None:
    path = os.fsencode(make_clip("seldom.mp4", *PICTURES, *TONE, *EVERY_2_S))
    facts = probe(path, 10.0)
    planned = replace(plan(facts, SELDOM, 8000), frames=8, frame_rate_hz=1.0)
    keys_s = key_frames.key_times_s(path, facts, planned, 10.0)
    assert keys_s is not None
    with open(path, "rb") as file:
        opened = reader.Reader(
            file.fileno(), facts, planned, deadline=time.monotonic() + TIMEOUT_S, confinement=CONFINED
        )
        found = key_frames.decoded(opened, keys_s)
    assert found is not None and len(found.windows[0]) == 8
    assert np.array_equal(found.windows[0][0], found.windows[0][1]) and not np.array_equal(
        found.windows[0][1], found.windows[0][2]
    )


def test_the_ladder_counts_the_frames_that_are_decoded() -> None:
    video = VideoStream(0, "h264", 1280, 720, 25.0, 0.0, 3000.0)
    facts = MediaFacts("av", "matroska,webm", 3000.0, AudioStream(1, "aac", 48_000, 2, 0.0, 3000.0), video)
    media = Media(video=Video(min_rate_hz=0.01, max_frames=32))
    known = replace(facts, key_gap_s=10.0)
    (_, whole), (first, jumped) = (
        next(looks(facts, media, 30_000, Forecast(), 40.0)),
        next(looks(known, media, 30_000, Forecast(), 40.0)),
    )
    assert jumps(known, jumped) and not jumps(facts, jumped) and first.name == "full"
    assert whole.coverage < 1 <= jumped.coverage + 0.41
    assert source_gigapixels(known, jumped) < source_gigapixels(facts, jumped) / 100
    assert not jumps(replace(facts, key_gap_s=100.0), jumped)
