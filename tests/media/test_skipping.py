"""Frames that no others refer to are left out where that harms nothing, and only there."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.job import Media, Video
from pipeline.media import reader
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.media.skipping import NEAR_S, lead_s, may_skip, off_s
from pipeline.records import Decoded, Plan, VideoStream, Window
from tests.media.conftest import MakeClip
from tests.media.test_decode import TIMEOUT_S

# Frame n has the luma 16 + n, so that every frame tells its own time.
COUNTED = "color=black:s=64x64:r={rate}:d={seconds},format=yuv420p,geq=lum='16+N':cb=128:cr=128"
TONE = ("-f", "lavfi", "-i", "sine=frequency=440:duration=8")


def counted(make_clip: MakeClip, name: str, *options: str, rate: int = 25, seconds: float = 8) -> Path:
    return make_clip(
        name, "-f", "lavfi", "-i", COUNTED.format(rate=rate, seconds=seconds), *TONE, "-qp", "4", "-shortest", *options
    )


def both_ways(clip: Path) -> tuple[Plan, Decoded, Decoded]:
    """Return the plan, and what decoding every frame and leaving some out gives."""
    path = os.fsencode(clip)
    facts = probe(path, 10.0)
    planned = plan(facts, Media(video=Video(max_rate_hz=2.0)), 8000)
    return planned, decode(path, facts, planned, TIMEOUT_S), decode(path, facts, planned, TIMEOUT_S, exact=False)


def times_s(decoded: Decoded, rate: int = 25) -> np.ndarray:
    """Return when each frame was shown, by its brightness."""
    luma = decoded.frames.mean(axis=(1, 2, 3)) * 219 / 255 + 16
    return np.asarray((luma - 16) / rate)


STEADY = "qp=4:b-adapt=0:scenecut=0:weightp=0"
PYRAMID = ("-c:v", "libx264", "-x264-params", f"{STEADY}:bframes=3:b-pyramid=normal")
FLAT = ("-c:v", "libx264", "-x264-params", f"{STEADY}:bframes=7:b-pyramid=none")
PLAIN = ("-c:v", "libx264", "-bf", "0")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("pyramid.mp4", PYRAMID),
        ("pyramid.mkv", PYRAMID),
        ("pyramid.ts", PYRAMID),
        ("plain.mp4", PLAIN),
        ("hevc.mp4", ("-c:v", "libx265", "-x265-params", "bframes=3:b-adapt=0:qp=4:log-level=none")),
        ("two_b.avi", ("-c:v", "mpeg4", "-q:v", "1", "-bf", "1")),
        ("two_b.mpg", ("-c:v", "mpeg2video", "-q:v", "1", "-bf", "1")),
    ],
)
def test_a_frame_that_is_left_out_is_stood_in_for_by_a_near_one(
    make_clip: MakeClip, name: str, options: tuple[str, ...]
) -> None:
    planned, exact, near = both_ways(counted(make_clip, name, *options))
    assert len(near.frames) == len(exact.frames) == planned.frames
    assert np.array_equal(near.pcm, exact.pcm)
    away_s = np.abs(times_s(near) - np.arange(planned.frames) / 2)[:16]  # the sound may last a moment longer
    assert away_s.max() <= NEAR_S + 0.02
    assert away_s.max() == pytest.approx(near.frames_off_s, abs=0.045)  # a level is a frame
    assert exact.frames_off_s == 0.0
    assert near.remarks == exact.remarks


def test_frames_are_left_out(make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = spied(monkeypatch)
    both_ways(counted(make_clip, "pyramid.mp4", *PYRAMID))
    assert [skips for skips, _ in passes] == [False, True]
    assert 90 <= passes[1][1] <= 120  # of 200


def test_where_too_much_would_be_left_out_every_frame_is_decoded(
    make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    passes = spied(monkeypatch)
    _, exact, near = both_ways(counted(make_clip, "flat.mp4", *FLAT))
    assert [skips for skips, _ in passes] == [False, True, False]
    assert np.array_equal(near.frames, exact.frames) and np.array_equal(near.pcm, exact.pcm)
    assert near.frames_off_s == 0.0


def test_pictures_that_stand_still_for_seconds_are_decoded_wholly(make_clip: MakeClip) -> None:
    clip = counted(make_clip, "gap.mkv", "-vf", "select='not(between(t,2.1,4.9))'", "-fps_mode", "vfr", *PYRAMID)
    _, exact, near = both_ways(clip)
    assert np.array_equal(near.frames, exact.frames) and near.frames_off_s == 0.0


def test_a_damaged_recording_is_decoded_wholly(make_clip: MakeClip, tmp_path: Path) -> None:
    data = bytearray(counted(make_clip, "pyramid.ts", *PYRAMID).read_bytes())
    middle = len(data) // 2
    data[middle : middle + 3000] = bytes(3000)
    clip = tmp_path / "damaged.ts"
    clip.write_bytes(data)
    _, exact, near = both_ways(clip)
    assert np.array_equal(near.frames, exact.frames) and near.remarks == exact.remarks
    assert any(remark.code == "partial_decode" for remark in near.remarks)


def test_without_time_for_a_second_run_the_first_one_counts(
    make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "_TWICE", 1e9)
    _, _, near = both_ways(counted(make_clip, "flat.mp4", *FLAT))
    assert NEAR_S < near.frames_off_s <= 0.29
    away_s = np.abs(times_s(near) - np.arange(len(near.frames)) / 2)[:16]
    assert away_s.max() == pytest.approx(near.frames_off_s, abs=0.025)


def test_windows_of_a_recording_keep_their_times(make_clip: MakeClip) -> None:
    path = os.fsencode(counted(make_clip, "pyramid.mp4", *PYRAMID))
    facts = probe(path, 10.0)
    planned = plan(facts, Media(video=Video(max_rate_hz=2.0)), 8000, 4.0)
    assert len(planned.windows) > 1
    near = decode(path, facts, planned, TIMEOUT_S, exact=False)
    each = planned.frames // len(planned.windows)
    wanted_s = np.concatenate([window.start_s + np.arange(each) / 2 for window in planned.windows])
    assert np.abs(times_s(near) - wanted_s).max() <= NEAR_S + 0.02
    assert 0 < near.frames_off_s <= NEAR_S


@pytest.mark.parametrize("seconds", [0.04, 0.08, 0.48, 0.52, 1.0])
def test_the_only_frames_of_a_brief_recording_stay(make_clip: MakeClip, seconds: float) -> None:
    clip = make_clip("brief.mp4", "-f", "lavfi", "-i", COUNTED.format(rate=25, seconds=seconds), *PYRAMID)
    _, exact, near = both_ways(clip)
    assert len(near.frames) == len(exact.frames) > 0
    assert np.abs(times_s(near) - times_s(exact)).max() <= NEAR_S + 0.02


VIDEO = VideoStream(0, "h264", 1280, 720, 25.0, 0.0, 20.0)
PLANNED = Plan((Window(0.0, 20.0),), True, False, 40, 2.0, 480, 256, 0, 0, 1.0)


def test_what_can_be_left_out() -> None:
    assert may_skip(PLANNED, VIDEO) and lead_s(VIDEO) == 0.04
    for other in (
        replace(VIDEO, codec="vp9"),
        replace(VIDEO, interlaced=True),
        replace(VIDEO, alpha=True),
        replace(VIDEO, frame_rate_hz=None),
        replace(VIDEO, frame_rate_hz=15.0),  # the next frame is too far away
    ):
        assert not may_skip(PLANNED, other)
    assert not may_skip(replace(PLANNED, frame_rate_hz=12.5), VIDEO)
    assert not may_skip(replace(PLANNED, frame_rate_hz=None), VIDEO)


def test_how_far_frames_are_off() -> None:
    rate_hz, lead = 1.0, 0.04
    assert off_s(np.array([0.0, 1.0, 2.0]), rate_hz, 3, lead) == 0.0
    assert off_s(np.array([0.0, 0.92, 1.04, 2.0]), rate_hz, 3, lead) == pytest.approx(0.04)
    assert off_s(np.array([0.0, 0.92, 1.08, 2.0]), rate_hz, 3, lead) == pytest.approx(0.08)
    assert off_s(np.array([0.3, 1.0]), rate_hz, 2, lead) == pytest.approx(0.3)  # shown before it is there
    assert off_s(np.array([]), rate_hz, 2, lead) == float("inf")
    assert off_s(np.array([]), rate_hz, 0, lead) == 0.0


def spied(monkeypatch: pytest.MonkeyPatch) -> list[tuple[bool, int]]:
    """Return a list that gets, for each run of ffmpeg with pictures, whether it left frames out, and how many it
    decoded."""
    passes: list[tuple[bool, int]] = []
    whole = reader.Reader._pass

    def run(self: reader.Reader, *arguments: object) -> reader.Excerpt:
        excerpt = whole(self, *arguments)  # type: ignore[arg-type]
        passes.append((self.skips, len(excerpt.log.shown_s)))
        return excerpt

    monkeypatch.setattr(reader.Reader, "_pass", run)
    return passes
