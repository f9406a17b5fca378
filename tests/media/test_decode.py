"""Sound and pictures are the right ones, at the right time, from whatever ffmpeg can still read."""

from __future__ import annotations

import math
import os
import shutil
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray

from pipeline.errors import ItemError
from pipeline.job import Media, Video
from pipeline.media import fork_server
from pipeline.media.decode import decode
from pipeline.media.fork_server import ForkServer
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.media.process import opened
from pipeline.media.reader import Reader
from pipeline.media.sandbox import CONFINED
from pipeline.records import Decoded, MediaFacts, Plan
from tests.media.conftest import NUMBERED, MakeClip

BUDGET = 30_000
TIMEOUT_S = 30.0


def looked_at(path: Path | bytes, media: Media | None = None) -> tuple[MediaFacts, Plan, Decoded]:
    name = os.fsencode(path)
    facts = probe(name, TIMEOUT_S)
    planned = plan(facts, media or Media(), BUDGET)
    return facts, planned, decode(name, facts, planned, TIMEOUT_S)


def numbers(decoded: Decoded, step: int) -> list[int]:
    """Return the frame numbers that the numbered clips carry in their brightness."""
    brightness = decoded.frames[:, 16:48, 16:48].mean(axis=(1, 2, 3))
    return [round(float(value) * 219 / 255 / step) for value in brightness]


def tone_source(make_clip: MakeClip, name: str, *arguments: str) -> Path:
    chirp = "aevalsrc='0.5*sin(2*PI*(200*t+300*t*t))|0.2*sin(2*PI*500*t)':s=44100:d=3"
    return make_clip(name, "-f", "lavfi", "-i", chirp, *arguments)


def test_pcm_is_what_librosa_makes_of_the_same_file(make_clip: MakeClip) -> None:
    clip = tone_source(make_clip, "chirp.wav", "-c:a", "pcm_f32le")
    ours = looked_at(clip)[2].pcm
    stereo, rate_hz = soundfile.read(clip, dtype="float32")
    reference = soxr.resample(stereo.mean(axis=1), rate_hz, 16_000)  # what librosa.load does
    assert ours.dtype == np.float32 and len(ours) % 1280 == 0
    assert np.corrcoef(ours[: len(reference)], reference)[0, 1] >= 0.999
    assert np.abs(ours[: len(reference)] - reference).max() < 0.01
    assert not ours[len(reference) :].any()


def test_a_frame_is_the_one_on_screen_at_its_time(numbered: Path) -> None:
    decoded = looked_at(numbered)[2]
    assert decoded.times_s.tolist() == [k / 2 for k in range(12)]
    assert numbers(decoded, step=3) == [5 * k for k in range(12)]


def luma(decoded: Decoded) -> NDArray[np.float64]:
    return np.asarray(decoded.frames.mean(axis=(1, 2, 3)), np.float64)


def test_a_variable_frame_rate_keeps_its_time(make_clip: MakeClip) -> None:
    changes = "color=red:s=64x64:r=20:d=1[a];color=lime:s=64x64:r=20:d=3[b];color=blue:s=64x64:r=20:d=1[c]"
    graph = f"{changes};[a][b][c]concat=n=3,select='lt(t,1)+eq(n,20)+gte(t,4)'"
    clip = make_clip("vfr.mp4", "-f", "lavfi", "-i", graph, "-vsync", "vfr", "-c:v", "libx264")
    colours = looked_at(clip)[2].frames.mean(axis=(1, 2)).argmax(axis=1)
    assert colours.tolist() == [0, 0, 1, 1, 1, 1, 1, 1, 2, 2]


def test_windows_hold_the_frames_of_their_own_times(make_clip: MakeClip) -> None:
    source = NUMBERED.format(seconds=20, step=1)
    clip = make_clip("long.mp4", "-f", "lavfi", "-i", source, "-c:v", "libx264", "-qp", "1", "-g", "30")
    media = Media(video=Video(min_rate_hz=1, max_rate_hz=2, max_frames=8))
    _, planned, decoded = looked_at(clip, media)
    assert len(planned.windows) > 1 and planned.coverage < 1
    each = planned.frames // len(planned.windows)
    rate_hz = planned.frame_rate_hz or 1.0
    shown_s = [window.start_s + k / rate_hz for window in planned.windows for k in range(each)]
    assert numbers(decoded, step=1) == [math.floor(10 * time_s + 1e-6) for time_s in shown_s]
    assert decoded.times_s.tolist() == [k / rate_hz for k in range(planned.frames)]


@pytest.mark.parametrize(
    "arguments",
    [
        ("plain.mp4", "-c", "copy"),
        ("flash.mkv", "-c", "copy"),
        ("flash.ts", "-c", "copy"),
        ("late.ts", "-c", "copy", "-output_ts_offset", "7"),
        ("flash.webm", "-c:v", "libvpx", "-c:a", "libopus"),
    ],
)
def test_flash_and_beep_stay_together(make_clip: MakeClip, flash_and_beep: Path, arguments: tuple[str, ...]) -> None:
    clip = make_clip(arguments[0], "-i", str(flash_and_beep), *arguments[1:])
    media = Media(video=Video(max_rate_hz=20, max_frames=256))
    decoded = looked_at(clip, media)[2]
    beep_s = np.flatnonzero(np.abs(decoded.pcm) > 0.2)[0] / 16_000
    flash_s = decoded.times_s[np.flatnonzero(luma(decoded) > 128)[0]]
    assert abs(beep_s - flash_s) <= 0.08
    assert abs(flash_s - 2.5) <= 0.15


def test_sound_and_pictures_that_start_late_keep_their_place(make_clip: MakeClip, flash_and_beep: Path) -> None:
    video_late = ("-i", str(flash_and_beep), "-itsoffset", "1", "-i", str(flash_and_beep), "-c", "copy")
    media = Media(video=Video(max_rate_hz=20, max_frames=256))
    for name, maps, beep_s, flash_s in (
        ("video_late.mp4", ("-map", "0:a", "-map", "1:v"), 2.5, 3.5),
        ("audio_late.mkv", ("-map", "0:v", "-map", "1:a"), 3.5, 2.5),
    ):
        decoded = looked_at(make_clip(name, *video_late, *maps), media)[2]
        assert np.flatnonzero(np.abs(decoded.pcm) > 0.2)[0] / 16_000 == pytest.approx(beep_s, abs=0.08)
        assert decoded.times_s[np.flatnonzero(luma(decoded) > 128)[0]] == pytest.approx(flash_s, abs=0.08)


def test_windows_keep_sound_and_pictures_together(make_clip: MakeClip) -> None:
    on = "lt(mod({t},2),0.2)"
    clip = make_clip(
        "beeps.mp4",
        *(
            "-f",
            "lavfi",
            "-i",
            f"color=black:s=64x64:r=20:d=40,geq=lum='if({on.format(t='T')},235,16)':cb=128:cr=128",
        ),
        *("-f", "lavfi", "-i", f"aevalsrc='if({on.format(t='t')},sin(6000*t),0)':s=44100:d=40"),
        *("-c:v", "libx264", "-c:a", "aac", "-g", "100"),
    )
    _, planned, decoded = looked_at(clip, Media(video=Video(min_rate_hz=20, max_rate_hz=20, max_frames=256)))
    assert len(planned.windows) == 2
    lit = luma(decoded) > 128
    loud = np.array([np.abs(decoded.pcm[round(t * 16_000) :][:800]).max(initial=0) > 0.2 for t in decoded.times_s])
    assert lit.any() and np.mean(lit == loud) > 0.97


def test_a_turned_video_comes_upright(make_clip: MakeClip) -> None:
    top_red = "color=blue:s=96x64:r=10:d=1,drawbox=0:0:96:20:red:fill"
    sideways = make_clip("sideways.mp4", "-f", "lavfi", "-i", top_red, "-vf", "transpose=1", "-c:v", "libx264")
    clip = make_clip("upright.mp4", "-i", str(sideways), "-c", "copy", "-metadata:s:v", "rotate=90")
    frame = looked_at(clip)[2].frames[0]
    assert frame.shape == (64, 96, 3)
    assert frame[5].mean(axis=0).argmax() == 0 and frame[-5].mean(axis=0).argmax() == 2


def test_odd_names_are_decoded_as_they_are(numbered: Path, tmp_path: Path) -> None:
    for name in (b"-y.mp4", b"%d.mp4", b"a:b.mp4", b"x\ny.mp4", b"\xe9\xff.mp4", b"$(id) 'q\".mp4"):
        path = os.path.join(os.fsencode(tmp_path), name)
        shutil.copy(os.fsencode(numbered), path)
        assert len(looked_at(path)[2].frames) == 12


def test_a_window_is_decoded_and_not_what_comes_after_it(make_clip: MakeClip) -> None:
    sources = ("-f", "lavfi", "-i", "testsrc2=s=64x64:r=10:d=60", "-f", "lavfi", "-i", "sine=d=60")
    name = os.fsencode(make_clip("minute.mp4", *sources, "-preset", "ultrafast", "-g", "10"))
    facts = probe(name, TIMEOUT_S)
    planned = plan(facts, Media(), BUDGET, 8.0)
    assert len(planned.windows) > 1 and planned.windows[0].start_s == 0 and facts.audio is not None
    with opened(name) as fd:
        reader = Reader(fd, facts, planned, time.monotonic() + TIMEOUT_S, CONFINED)
        for window in planned.windows:
            read_s = reader.window(window, 0.0).log.samples[facts.audio.index] / facts.audio.sample_rate_hz
            assert window.duration_s - 0.1 <= read_s <= window.duration_s + 4.0


def test_a_timeout_kills_ffmpeg_and_comes_in_time(make_clip: MakeClip) -> None:
    slow = make_clip("slow.mp4", "-f", "lavfi", "-i", "testsrc2=s=1280x720:r=30:d=8", "-preset", "ultrafast")
    name = os.fsencode(slow)
    facts = probe(name, TIMEOUT_S)
    planned = plan(facts, Media(), BUDGET)
    began = time.monotonic()
    with pytest.raises(ItemError) as caught:
        decode(name, facts, planned, 0.2)
    assert caught.value.code == "decode_timeout"
    assert time.monotonic() - began < 2
    children = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    names = [Path(f"/proc/{child}/comm").read_text().strip() for child in children]
    assert "ffmpeg" not in names


def test_a_video_shorter_than_its_header_gives_what_is_there(make_clip: MakeClip, tmp_path: Path) -> None:
    pictures = ("-f", "lavfi", "-i", "testsrc2=s=160x96:r=10:d=6", "-c:v", "libx264", "-g", "5")
    whole = make_clip("faststart.mp4", *pictures, "-movflags", "+faststart").read_bytes()
    cut = tmp_path / "cut.mp4"
    cut.write_bytes(whole[: len(whole) * 55 // 100])
    facts, planned, decoded = looked_at(cut)
    assert facts.duration_s == pytest.approx(6)
    assert 2 <= len(decoded.frames) < planned.frames and len(decoded.frames) % 2 == 0
    assert any("ended early" in remark.text for remark in decoded.remarks)
    assert decoded.decoded_s < 0.9 * 6


def test_a_recording_longer_than_its_claim_is_noticed(make_clip: MakeClip) -> None:
    name = os.fsencode(tone_source(make_clip, "chirp.wav", "-c:a", "pcm_f32le"))
    facts = replace(probe(name, TIMEOUT_S), duration_s=1.0)
    decoded = decode(name, facts, plan(facts, Media(), BUDGET), TIMEOUT_S)
    assert decoded.decoded_s == pytest.approx(1.5, abs=0.01) and len(decoded.pcm) <= 16_640
    assert any("goes on" in remark.text for remark in decoded.remarks)


def test_one_frame_becomes_two_and_one_sample_a_token(make_clip: MakeClip) -> None:
    frame = make_clip("one.mp4", "-f", "lavfi", "-i", "testsrc2=s=64x64", "-frames:v", "1")
    decoded = looked_at(frame)[2]
    assert len(decoded.frames) == 2 and (decoded.frames[0] == decoded.frames[1]).all()
    sample = make_clip("one.wav", "-f", "lavfi", "-i", "sine=r=16000", "-af", "atrim=end_sample=1")
    assert len(looked_at(sample)[2].pcm) == 1280


def test_a_picture_is_one_upright_frame(make_clip: MakeClip) -> None:
    still = make_clip("red.png", "-f", "lavfi", "-i", "color=red:s=100x60", "-frames:v", "1")
    decoded = looked_at(still)[2]
    assert decoded.frames.shape == (1, 64, 96, 3) and decoded.frames.dtype == np.uint8
    assert decoded.frames.mean(axis=(0, 1, 2)) == pytest.approx([254, 0, 0], abs=2)
    assert not decoded.pcm.size


def test_lost_sound_does_not_take_the_pictures(make_clip: MakeClip, flash_and_beep: Path) -> None:
    name = os.fsencode(flash_and_beep)
    facts = probe(name, TIMEOUT_S)
    assert facts.audio is not None
    wrong = replace(facts, audio=replace(facts.audio, index=7))
    decoded = decode(name, wrong, plan(facts, Media(), BUDGET), TIMEOUT_S)
    assert len(decoded.frames) == 10 and not decoded.pcm.size


def test_damage_everywhere_is_decode_failed(make_clip: MakeClip, tmp_path: Path) -> None:
    data = bytearray(make_clip("h.mp4", "-f", "lavfi", "-i", "testsrc2=s=64x64:r=5:d=2").read_bytes())
    media = data.index(b"mdat") + 4
    data[media : data.index(b"moov") - 4] = bytes(data.index(b"moov") - 4 - media)
    (tmp_path / "zeros.mp4").write_bytes(data)
    with pytest.raises(ItemError) as caught:
        looked_at(tmp_path / "zeros.mp4")
    assert caught.value.code == "decode_failed"


def test_a_window_that_fails_does_not_take_the_others(make_clip: MakeClip, tmp_path: Path) -> None:
    source = "sine=f=440:r=16000:d=30"
    whole = make_clip("30s.wav", "-f", "lavfi", "-i", source).read_bytes()
    (tmp_path / "half.wav").write_bytes(whole[: len(whole) // 2])
    name = os.fsencode(tmp_path / "half.wav")
    facts = replace(probe(name, TIMEOUT_S), duration_s=30.0)
    planned = plan(facts, Media(), 100)
    decoded = decode(name, facts, planned, TIMEOUT_S)
    assert np.abs(decoded.pcm[: len(decoded.pcm) // 3]).max() > 0.05
    assert any("ended early" in remark.text for remark in decoded.remarks)


def test_ffmpeg_is_given_no_shell_and_no_name(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started, asked = [], []
    start, begin = subprocess.Popen, ForkServer.begin

    def spy(argv: list[str], **options: object) -> object:
        started.append((argv, options))
        return start(argv, **options)  # type: ignore[call-overload]

    def ask(server: ForkServer, argv: list[str], *rest: Any) -> None:
        asked.append(argv)
        begin(server, argv, *rest)

    fork_server.servers().close()
    monkeypatch.setattr(subprocess, "Popen", spy)
    monkeypatch.setattr(ForkServer, "begin", ask)
    looked_at(numbered)
    assert {argv[0] for argv in asked} == {"ffmpeg", "ffprobe"} and len(started) >= 2
    for argv, options in started:
        assert {"ffmpeg", "ffprobe", "cc"} & set(map(os.path.basename, argv)) and not options.get("shell")
    for argv in (*asked, *(argv for argv, _ in started)):
        assert not any("numbered" in part for part in argv)
