"""Generated sound and pictures hold what their scene says, in memory and through real files."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.embedded.examples import decoded_of, facts_of
from pipeline.embedded.files import write_clip
from pipeline.embedded.pictures import Painter
from pipeline.embedded.scene import Event, Scene, draw_scene
from pipeline.embedded.sounds import Voices, sound
from pipeline.job import Media
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.records import SAMPLE_RATE_HZ
from tests.embedded.test_scene import scene

MEDIA = Media.model_validate({"video": {"max_pixels_per_frame": 8192, "max_frames": 128}})


def loudness_db(pcm: np.ndarray) -> float:
    return float(20 * np.log10(np.sqrt(np.mean(pcm.astype(np.float64) ** 2)) + 1e-9))


def second(pcm: np.ndarray, number: float) -> np.ndarray:
    return pcm[round(number * SAMPLE_RATE_HZ) : round((number + 1) * SAMPLE_RATE_HZ)]


@pytest.mark.parametrize("seed", range(12))
def test_an_alarm_stands_out_of_what_is_beside_it(seed: int) -> None:
    quiet = sound(scene(sound_seed=seed, beside_sound=("noise",)), Voices())
    pcm = sound(scene(sound_seed=seed, beside_sound=("noise",), events=(Event("alarm", 4.0, 8.0),)), Voices())
    assert len(pcm) == len(quiet) == 10 * SAMPLE_RATE_HZ
    assert np.max(np.abs(pcm)) <= 1
    assert loudness_db(second(pcm, 5.5)) > loudness_db(second(pcm, 1.5)) + 3


@pytest.mark.parametrize("seed", range(12))
def test_a_bang_is_sudden(seed: int) -> None:
    pcm = sound(scene(sound_seed=seed, events=(Event("bang", 6.0, 6.5),)), Voices())
    loudest = int(np.argmax(np.abs(pcm))) / SAMPLE_RATE_HZ
    assert 5.9 < loudest < 9.5
    assert np.max(np.abs(pcm)) > 2 * np.max(np.abs(pcm[: 5 * SAMPLE_RATE_HZ]))


def test_speech_comes_from_the_recordings_given() -> None:
    voice = np.round(8000 * np.sin(np.arange(80_000) * 0.5)).astype(np.int16)
    # The seed decides whether a synthetic voice speaks instead: take several.
    heard = [
        sound(scene(sound_seed=seed, beside_sound=(), events=(Event("speech", 2.0, 8.0),)), Voices(speech=[voice]))
        for seed in range(6)
    ]
    pitch = 0.5 * SAMPLE_RATE_HZ / (2 * np.pi)
    peaks = [np.argmax(np.abs(np.fft.rfft(second(pcm, 4.0)))) for pcm in heard]
    assert sum(abs(peak - pitch) < 3 for peak in peaks) >= 4


def test_silence_is_silent() -> None:
    assert not sound(scene(silent=True, beside_sound=()), Voices()).any()
    assert loudness_db(sound(scene(silent=True, beside_sound=("faint_noise",)), Voices())) < -70


def test_the_same_scene_sounds_and_looks_the_same() -> None:
    one = draw_scene(7)
    np.testing.assert_array_equal(sound(one, Voices()), sound(one, Voices()))
    np.testing.assert_array_equal(Painter(one).frame(1.0, 96, 64), Painter(one).frame(1.0, 96, 64))


def brightness(one: Scene, times_s: np.ndarray) -> np.ndarray:
    painter = Painter(one)
    return np.array([painter.frame(float(t), 96, 64).mean() for t in times_s])


@pytest.mark.parametrize("seed", range(12))
def test_flashing_shows_at_two_frames_a_second_and_only_while_it_lasts(seed: int) -> None:
    painter = Painter(scene(seed=seed, events=(Event("flashing", 3.0, 7.0),), beside_pictures=("frozen",)))
    frames = np.stack([painter.frame(k / 2, 96, 64).astype(int) for k in range(20)])
    changes = np.abs(np.diff(frames, axis=0)).mean((1, 2, 3))
    assert np.max(changes[:5]) < 1 and np.max(changes[14:]) < 1
    assert np.sum(changes[5:15] > 10) >= 3


@pytest.mark.parametrize("seed", range(60, 72))
def test_a_still_picture_of_any_kind_stays_as_it_is_and_is_not_dark(seed: int) -> None:
    painter = Painter(scene(seed=seed, beside_pictures=("frozen",)))
    first = painter.frame(0.0, 96, 64)
    np.testing.assert_array_equal(first, painter.frame(7.5, 96, 64))
    assert first.max() > 40


@pytest.mark.parametrize("seed", range(12))
def test_motion_changes_the_picture_and_only_while_it_lasts(seed: int) -> None:
    painter = Painter(scene(seed=seed, events=(Event("motion", 3.0, 7.0),), beside_pictures=("frozen",)))
    frames = np.stack([painter.frame(k / 2, 96, 64).astype(int) for k in range(20)])
    changed = (np.abs(np.diff(frames, axis=0)).max(-1) > 40).mean((1, 2))
    assert np.max(changed[:5]) < 0.02 and np.max(changed[15:]) < 0.02
    assert np.mean(changed[6:13] > 0.03) > 0.7


def test_dark_stays_dark_and_a_dark_beginning_does_not_count() -> None:
    light = brightness(scene(events=(Event("dark", 5.0, 10.0),)), np.arange(20) / 2)
    assert np.max(light[10:]) < 14 < np.min(light[:10])
    begins = brightness(scene(beside_pictures=("dark_start",)), np.arange(20) / 2)
    assert begins[0] < 14 < begins[-1]


@pytest.mark.parametrize("seed", range(40, 52))
def test_a_file_gives_the_pipeline_what_the_scene_gives_in_memory(seed: int, tmp_path: Path) -> None:
    one = draw_scene(seed, 6.0)
    path = write_clip(one, Voices(), tmp_path)
    facts = probe(os.fsencode(path), 20.0)
    assert facts.kind == facts_of(one).kind
    chosen = plan(facts, MEDIA, 8000)
    decoded = decode(os.fsencode(path), facts, chosen, 60.0)
    expected = decoded_of(one, plan(facts_of(one), MEDIA, 8000), Voices())
    assert abs(len(decoded.pcm) - len(expected.pcm)) <= 0.25 * SAMPLE_RATE_HZ
    assert abs(len(decoded.frames) - len(expected.frames)) <= 2
    if one.pictures:
        count = min(len(decoded.frames), len(expected.frames))
        assert decoded.frames.shape[1:] == expected.frames.shape[1:]
        apart = np.abs(decoded.frames[:count].astype(int) - expected.frames[:count].astype(int)).mean((1, 2, 3))
        assert np.median(apart) < 14
    if one.sound and not one.silent:
        assert abs(loudness_db(decoded.pcm) - loudness_db(expected.pcm)) < 6


def test_a_clip_lying_on_its_side_is_turned_upright(tmp_path: Path) -> None:
    for seed in range(200):
        one = replace(draw_scene(seed, 4.0), width=320, height=180)
        if not one.pictures or one.still:
            continue
        path = write_clip(one, Voices(), tmp_path)
        facts = probe(os.fsencode(path), 20.0)
        assert facts.video is not None and (facts.video.width, facts.video.height) == (320, 180)
        if _is_turned(path):
            return
    pytest.fail("no clip of 200 was stored on its side")


def _is_turned(path: Path) -> bool:
    import ffmpeg

    (video,) = [one for one in ffmpeg.probe(str(path))["streams"] if one["codec_type"] == "video"]
    return bool(video["width"] < video["height"])


def test_a_clip_that_ffmpeg_cannot_write_says_why(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"ffmpeg could not write .*No such file"):
        write_clip(draw_scene(3, 3.0), Voices(), tmp_path / "nowhere")
