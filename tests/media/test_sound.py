"""Sound is heard whole, at its time and at its level, whatever its channels, samples and container."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr
from numpy.typing import NDArray

from pipeline.errors import ItemError
from pipeline.job import Media, Video
from pipeline.media import sound
from pipeline.media.capabilities import built_with
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.records import AudioStream, Decoded, MediaFacts
from tests.media.conftest import MakeClip

TIMEOUT_S = 30.0
RATE_HZ = 16_000
SURROUND = ("2.1", "3.0", "quad", "hexagonal", "5.1", "5.1(side)", "6.1(front)", "7.1", "7.1(wide)", "hexadecagonal")


def heard(path: Path, media: Media | None = None) -> Decoded:
    name = os.fsencode(path)
    facts = probe(name, TIMEOUT_S)
    return decode(name, facts, plan(facts, media or Media(), 30_000), TIMEOUT_S)


def said(decoded: Decoded) -> str:
    return " ".join(remark.text for remark in decoded.remarks if remark.code == "sound_mended")


def written(path: Path, samples: NDArray[Any], rate_hz: int = RATE_HZ, subtype: str = "FLOAT") -> Path:
    soundfile.write(path, samples, rate_hz, subtype=subtype)
    return path


def noise(seconds: float, rate_hz: int = RATE_HZ, seed: int = 1) -> NDArray[np.float64]:
    white = np.random.default_rng(seed).standard_normal(round(seconds * rate_hz))
    return np.asarray(0.1 * np.convolve(white, np.ones(4) / 4, "same"), np.float64)


def alike(ours: NDArray[np.float32], reference: NDArray[Any]) -> float:
    return float(np.corrcoef(ours[: len(reference)], reference)[0, 1])


def tone(seconds: float, hz: float = 1000, rate_hz: int = RATE_HZ) -> NDArray[np.float64]:
    return np.asarray(0.5 * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz))


def level(pcm: NDArray[np.float32], hz: float) -> float:
    """Return the amplitude of one frequency."""
    turn = np.exp(-2j * np.pi * hz * np.arange(len(pcm)) / RATE_HZ)
    return float(2 * np.abs(np.mean(pcm * turn)))


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 22_050, 32_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("channels", [1, 2])
def test_pcm_is_the_mean_of_the_channels_through_soxr(tmp_path: Path, rate_hz: int, channels: int) -> None:
    samples = np.stack([noise(2.3, rate_hz, seed) for seed in range(channels)], axis=1)
    decoded = heard(written(tmp_path / "noise.wav", samples, rate_hz))
    reference = soxr.resample(samples.mean(axis=1), rate_hz, RATE_HZ)
    assert alike(decoded.pcm, reference) >= 0.9999
    assert len(decoded.pcm) == -(-len(reference) // 1280) * 1280 and not decoded.pcm[len(reference) + 1 :].any()
    assert not decoded.remarks


@pytest.mark.parametrize(
    ("name", "arguments", "least"),
    [
        ("u8.wav", "-c:a pcm_u8", 0.99),
        ("s24.wav", "-c:a pcm_s24le", 0.9999),
        ("s32.aiff", "-c:a pcm_s32be", 0.9999),
        ("f64.wav", "-c:a pcm_f64le", 0.9999),
        ("f32.caf", "-c:a pcm_f32be", 0.9999),
        ("mulaw.wav", "-c:a pcm_mulaw", 0.999),
        ("alaw.au", "-c:a pcm_alaw", 0.999),
        ("ima.wav", "-c:a adpcm_ima_wav", 0.99),
        ("ms.wav", "-c:a adpcm_ms", 0.99),
        ("g726.wav", "-c:a g726 -ar 8000", 0.97),
        ("noise.flac", "-c:a flac", 0.9999),
        ("alac.m4a", "-c:a alac", 0.9999),
        ("noise.wv", "-c:a wavpack", 0.9999),
        ("noise.tta", "-c:a tta", 0.9999),
        ("noise.opus", "-c:a libopus -b:a 160k", 0.98),
    ],
)
def test_codings_come_out_as_what_went_in(tmp_path: Path, name: str, arguments: str, least: float) -> None:
    samples = np.convolve(noise(2), np.ones(8) / 8, "same") * 4
    source = written(tmp_path / "source.wav", samples)
    clip = tmp_path / f"coded-{name}"
    subprocess.run(["ffmpeg", "-v", "error", "-i", source, *arguments.split(), clip], check=True, timeout=60)
    decoded = heard(clip)
    assert alike(decoded.pcm, samples) >= least
    assert decoded.pcm.std() == pytest.approx(samples.std() * len(samples) ** 0.5 / len(decoded.pcm) ** 0.5, rel=0.05)
    assert not said(decoded)


@pytest.mark.parametrize("gain", [-1.0, -0.9, -1.1])
def test_channels_that_cancel_are_still_heard(tmp_path: Path, gain: float) -> None:
    left = noise(3)
    hiss = 0.02 * noise(3, seed=2)
    decoded = heard(written(tmp_path / "antiphase.wav", np.stack([left, gain * left + hiss], axis=1)))
    assert alike(decoded.pcm, left) > 0.99 and decoded.pcm.std() > 0.8 * left.std()
    assert "cancel each other out for 3.0 s" in said(decoded)


def test_channels_that_cancel_for_a_while_are_turned_for_that_while(tmp_path: Path) -> None:
    left = tone(9, 440)
    right = left.copy()
    right[3 * RATE_HZ : 6 * RATE_HZ] *= -1
    decoded = heard(written(tmp_path / "for_a_while.wav", np.stack([left, right], axis=1)))
    assert alike(decoded.pcm, left) > 0.999
    assert np.abs(np.diff(decoded.pcm)).max() <= 1.05 * np.abs(np.diff(left)).max()  # no clicks
    assert "for 3.0 s" in said(decoded)


def test_surround_channels_that_cancel_do_not_hide_behind_the_centre(tmp_path: Path) -> None:
    silent, speech, surround = np.zeros(2 * RATE_HZ), tone(2, 500), tone(2, 1700)
    channels = [silent, silent, speech, silent, surround, -surround]
    decoded = heard(written(tmp_path / "surround.wav", np.stack(channels, axis=1)))
    assert level(decoded.pcm, 500) == pytest.approx(0.5 / 6, rel=0.1)
    assert level(decoded.pcm, 1700) == pytest.approx(1.0 / 6, rel=0.1)
    assert "cancel" in said(decoded)


def test_channels_that_cancel_only_together_are_heard(tmp_path: Path) -> None:
    one, other = noise(2, seed=1), noise(2, seed=2)
    decoded = heard(written(tmp_path / "three.wav", np.stack([one, other, -one - other], axis=1)))
    assert decoded.pcm.std() > 0.3 * one.std() and "cancel" in said(decoded)


@pytest.mark.parametrize("kind", ["independent", "left only", "wide", "same"])
def test_channels_that_do_not_cancel_stay_a_plain_mean(tmp_path: Path, kind: str) -> None:
    left, right = noise(4, seed=1), noise(4, seed=2)
    stereo = {
        "independent": np.stack([left, right], axis=1),
        "left only": np.stack([left, 0 * left], axis=1),
        "wide": np.stack([left + right, right - 0.5 * left], axis=1),
        "same": np.stack([left, left], axis=1),
    }[kind]
    decoded = heard(written(tmp_path / "stereo.wav", stereo))
    assert np.abs(decoded.pcm[: len(stereo)] - stereo.mean(axis=1)).max() < 1e-6
    assert not decoded.remarks


@pytest.mark.parametrize("layout", SURROUND)
def test_a_tone_in_any_channel_of_a_layout_is_heard(make_clip: MakeClip, layout: str) -> None:
    found = subprocess.run(["ffmpeg", "-hide_banner", "-layouts"], capture_output=True, text=True, check=True).stdout
    channels = next(line.split()[1] for line in found.splitlines() if line.split()[:1] == [layout]).split("+")
    tones = [300 + 200 * index for index in range(len(channels))]
    source = "|".join(f"0.4*sin(2*PI*{hz}*t)" for hz in tones)
    name = "".join(c if c.isalnum() else "_" for c in layout) + ".wav"
    clip = make_clip(name, "-f", "lavfi", "-i", f"aevalsrc='{source}':c={layout}:s=48000:d=1", "-c:a", "pcm_s16le")
    decoded = heard(clip)
    for hz in tones:
        assert level(decoded.pcm[:RATE_HZ], hz) == pytest.approx(0.4 / len(channels), rel=0.1)
    assert not decoded.remarks


@pytest.mark.parametrize(
    ("channels", "subtype"),
    [
        (3, "PCM_16"),
        (7, "PCM_16"),
        (9, "FLOAT"),
        (17, "PCM_24"),
        (33, "DOUBLE"),
        (64, "PCM_U8"),
    ],
)
def test_every_one_of_many_channels_is_heard(tmp_path: Path, channels: int, subtype: str) -> None:
    samples = np.zeros((8_000, channels))
    samples[:, 0], samples[:, channels // 2], samples[:, -1] = (tone(1, hz, 8_000) for hz in (500, 900, 1300))
    decoded = heard(written(tmp_path / "many.wav", samples, 8_000, subtype))
    assert len(decoded.pcm) == 13 * 1280
    for hz in (500, 900, 1300):
        assert level(decoded.pcm[:RATE_HZ], hz) == pytest.approx(0.5 / channels, rel=0.15)


def test_more_channels_than_ffmpeg_resamples_are_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ItemError) as caught:
        heard(written(tmp_path / "crowd.wav", np.zeros((800, 65)), 8_000, "PCM_16"))
    assert (caught.value.code, "65 channels" in caught.value.message) == ("unsupported_codec", True)


def test_samples_that_are_no_numbers_become_silence_and_spoil_nothing_else(tmp_path: Path) -> None:
    samples = np.repeat(noise(3, 44_100)[:, None], 2, axis=1)
    spoiled = samples.copy()
    spoiled[50_000:50_100, 0], spoiled[90_000, 1], spoiled[100_000, 1] = np.nan, np.inf, 1e30
    decoded = heard(written(tmp_path / "nan.wav", spoiled, 44_100))
    assert alike(decoded.pcm, soxr.resample(samples.mean(axis=1), 44_100, RATE_HZ)) > 0.998
    assert "no numbers" in said(decoded)


def test_sound_without_one_number_is_lost_and_not_silence(tmp_path: Path) -> None:
    with pytest.raises(ItemError) as caught:
        heard(written(tmp_path / "nan.wav", np.full((RATE_HZ, 2), np.nan), 44_100))
    assert caught.value.code == "audio_lost"


def test_sound_far_beyond_full_scale_becomes_quieter_as_a_whole(tmp_path: Path) -> None:
    for scale, name in ((4.0, "loud.wav"), (32_768.0, "integers.wav")):
        samples = noise(3) / noise(3).std()
        decoded = heard(written(tmp_path / name, samples * scale))
        assert alike(decoded.pcm, samples) > 0.9999 and np.abs(decoded.pcm).max() > 0.9
        assert "quieter" in said(decoded)


@pytest.mark.parametrize("stray", [3.0, 50.0, 5_000.0])
def test_one_stray_sample_is_cut_and_said(tmp_path: Path, stray: float) -> None:
    samples = noise(3)
    spoiled = samples.copy()
    spoiled[20_000] = stray
    decoded = heard(written(tmp_path / "stray.wav", spoiled))
    assert alike(np.delete(decoded.pcm, 20_000), np.delete(samples, 20_000)) > 0.9999
    assert said(decoded)


def test_a_codecs_overshoot_is_no_remark(tmp_path: Path) -> None:
    samples = noise(3)
    samples[::4_000] = 1.1
    assert not heard(written(tmp_path / "overshoot.wav", samples)).remarks


def test_an_offset_is_removed_and_holes_and_padding_stay_silent(tmp_path: Path) -> None:
    samples = noise(4) + 0.2
    samples[RATE_HZ : 2 * RATE_HZ] = 0.0
    decoded = heard(written(tmp_path / "offset.wav", np.append(samples, 0.2)))
    assert abs(decoded.pcm[2 * RATE_HZ : 4 * RATE_HZ].mean()) < 0.005
    assert not decoded.pcm[RATE_HZ + 1280 : 2 * RATE_HZ - 1280].any() and not decoded.pcm[len(samples) + 1 :].any()
    assert "offset of 0.20" in said(decoded)


def beeps(at_s: Iterable[float], length_s: float, rate_hz: int = 44_100) -> tuple[str, ...]:
    on = "+".join(f"between(t,{begins},{begins + 0.1})" for begins in at_s)
    return ("-f", "lavfi", "-i", f"aevalsrc='0.6*sin(2*PI*1000*t)*({on})':s={rate_hz}:d={length_s}")


def begins_s(decoded: Decoded) -> list[float]:
    """Return when each beep begins."""
    loud = np.convolve(np.abs(decoded.pcm) > 0.12, np.ones(160), "same") > 0
    return [float(at) / RATE_HZ + 0.005 for at in np.flatnonzero(loud[1:] & ~loud[:-1])]


AT_S = (1.0, 3.5)
PICTURES = ("-f", "lavfi", "-i", "testsrc2=s=64x64:r=10:d=5")
UNSIGNALLED_S = 0.026
"""The delay of AAC and MP3 where the container has no field for it: nobody can tell it from the sound."""


@pytest.mark.parametrize(
    ("name", "arguments", "late_s"),
    [
        ("p.m4a", "-c:a aac", 0.0),
        ("p.mp3", "-c:a libmp3lame", 0.0),
        ("no_xing.mp3", "-c:a libmp3lame -write_xing 0", UNSIGNALLED_S),
        ("p.opus", "-c:a libopus", 0.0),
        ("p.webm", "-c:a libopus", 0.0),
        ("p.ogg", "-c:a libvorbis", 0.0),
        ("p.flac", "-c:a flac", 0.0),
        ("p.ac3", "-c:a ac3", 0.0),
        ("p.flv", "-c:a aac", UNSIGNALLED_S),
        ("vbr.avi", "-c:a libmp3lame -q:a 4", UNSIGNALLED_S),
        ("p.ts", "-c:a mp2", UNSIGNALLED_S),
        ("wrap.ts", f"-c:a mp2 -output_ts_offset {2**33 / 90_000 - 2.5}", UNSIGNALLED_S),
        ("late.ts", "-c:a mp2 -output_ts_offset 7", UNSIGNALLED_S),
    ],
)
def test_a_beep_comes_at_its_time(make_clip: MakeClip, name: str, arguments: str, late_s: float) -> None:
    found = begins_s(heard(make_clip(f"beep-{name}", *beeps(AT_S, 5), *arguments.split())))
    assert len(found) == len(AT_S)
    for is_s, want_s in zip(found, AT_S, strict=True):
        assert want_s - 0.01 <= is_s <= want_s + late_s + 0.01


@pytest.mark.parametrize("name", ["delay.mp4", "delay.mkv", "delay.ts", "delay.flv", "far.mkv"])
def test_sound_that_starts_late_beside_pictures_keeps_its_time(make_clip: MakeClip, name: str) -> None:
    late_s = 5.0 if name == "far.mkv" else 1.5  # so far that ffprobe takes it for zero
    codecs = ("-c:v", "libx264", "-c:a", "libopus" if name == "far.mkv" else "aac")
    clip = make_clip(f"late-{name}", *PICTURES, "-itsoffset", str(late_s), *beeps(AT_S, 5), *codecs)
    assert begins_s(heard(clip)) == pytest.approx([late_s + at for at in AT_S], abs=0.01)


def test_an_edit_list_that_cuts_is_followed(make_clip: MakeClip) -> None:
    whole = make_clip("whole.m4a", *beeps(AT_S, 5), "-c:a", "aac")
    assert begins_s(heard(make_clip("cut.m4a", "-ss", "0.7", "-i", str(whole), "-c", "copy"))) == pytest.approx(
        [at - 0.7 for at in AT_S], abs=0.01
    )


def piece(make_clip: MakeClip, name: str, rate_hz: int, at_s: float, *more: str) -> Path:
    begin = ("-muxdelay", "0", "-muxpreload", "0", "-output_ts_offset", str(at_s))
    return make_clip(name, *beeps((0.5,), 2, rate_hz), *more, "-c:a", "mp2", *begin)


@pytest.mark.parametrize(
    ("name", "rate_hz", "second_s"), [("gap", 44_100, 5.0), ("rate", 48_000, 2.0), ("rate_gap", 48_000, 5.0)]
)
def test_a_gap_or_another_rate_in_the_middle_keeps_the_time(
    make_clip: MakeClip, tmp_path: Path, name: str, rate_hz: int, second_s: float
) -> None:
    first = piece(make_clip, "first.ts", 44_100, 0.0)
    second = piece(make_clip, f"{name}-second.ts", rate_hz, second_s)
    (tmp_path / "joined.ts").write_bytes(first.read_bytes() + second.read_bytes())
    found = begins_s(heard(tmp_path / "joined.ts"))
    assert found == pytest.approx([0.5, 0.5 + second_s], abs=0.04)


CLOCKS = {
    "slower": "TS*0.96",
    "a little slower": "TS*0.995",
    "faster": "TS*1.005",
    "jitter": "TS+(random(0)-0.5)*0.04*U",
    "slower with jitter": "TS*0.99+(random(0)-0.5)*0.04*U",
    "steps back": "TS-floor(TS/U)*0.03*U",
}


@pytest.mark.parametrize("clock", CLOCKS)
@pytest.mark.parametrize(("container", "ticks_per_s"), [("mp4", 44_100), ("mkv", 1_000), ("ts", 90_000)])
def test_sound_keeps_to_its_clock(make_clip: MakeClip, container: str, ticks_per_s: int, clock: str) -> None:
    """Sound is where its time stamps say, whatever they do, within a token of 80 ms; and all of it is there."""
    pictures, at_s = ("-f", "lavfi", "-i", "testsrc2=s=64x64:r=10:d=22"), range(1, 21)
    even = make_clip("even.mp4", *pictures, *beeps(at_s, 22), "-c:a", "aac")
    stamps = f"setts=ts={CLOCKS[clock].replace('U', str(ticks_per_s))}"
    clip = make_clip(f"{clock}.{container}", "-i", str(even), "-c", "copy", "-bsf:a", stamps)
    rate = {"slower": 0.96, "a little slower": 0.995, "faster": 1.005, "slower with jitter": 0.99}.get(clock, 1.0)
    back_s, jitter_s = 0.03 if clock == "steps back" else 0.0, 0.02 if "random" in CLOCKS[clock] else 0.0
    found = begins_s(heard(clip))
    apart = [found[0], *(is_s for before_s, is_s in pairwise(found) if is_s - before_s > 0.3)]  # a hole may part a beep
    assert len(apart) == len(at_s)
    for is_s, want_s in zip(apart, (rate * at - back_s * (at - 1) for at in at_s), strict=True):
        assert abs(is_s - want_s - UNSIGNALLED_S / 2) <= 0.08 + UNSIGNALLED_S / 2 + jitter_s


def test_pieces_longer_than_their_pictures_do_not_delay_what_follows(make_clip: MakeClip, tmp_path: Path) -> None:
    piece_of = ("-f", "lavfi", "-i", "testsrc2=s=64x64:r=10:d=2", *beeps((0.5,), 2), "-c:a", "aac")
    pieces = [make_clip(f"piece{n}.ts", *piece_of, "-output_ts_offset", str(2 * n)) for n in range(10)]
    (tmp_path / "joined.ts").write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    found = begins_s(heard(tmp_path / "joined.ts"))
    assert len(found) == 10
    assert np.diff(found) == pytest.approx([2.0] * 9, abs=0.08) and found[-1] - found[0] == pytest.approx(18, abs=0.08)


def test_sound_that_comes_twice_by_its_stamps_is_dropped_once_and_said(make_clip: MakeClip) -> None:
    even = make_clip("even.mkv", *PICTURES[:3], "testsrc2=s=64x64:r=10:d=20", *beeps(range(1, 19), 20), "-c:a", "aac")
    back = r"setts=ts=TS-gte(TS\,5500)*500"
    decoded = heard(make_clip("back.mkv", "-i", str(even), "-c", "copy", "-bsf:a", back))
    assert begins_s(decoded)[-1] == pytest.approx(17.5, abs=0.08)
    assert "0.5 s of sound were dropped" in said(decoded)


def test_stamps_that_stand_still_cost_no_sound(make_clip: MakeClip) -> None:
    even = make_clip("even.mkv", *PICTURES[:3], "testsrc2=s=64x64:r=10:d=20", *beeps(range(1, 19), 20), "-c:a", "aac")
    stamps = r"setts=ts=TS-gte(TS\,10500)*8000"
    clip = make_clip("still.mkv", "-i", str(even), "-c", "copy", "-bsf:a", stamps)
    assert begins_s(heard(clip)) == pytest.approx(list(range(1, 19)), abs=0.08)


def test_late_sound_whose_rate_changes_is_not_delayed_twice(make_clip: MakeClip, tmp_path: Path) -> None:
    pictures = ("-f", "lavfi", "-i", "testsrc2=s=64x64:r=10:d=2", "-c:v", "mpeg2video")
    late = ("-itsoffset", "0.6")
    stamps = ("-muxdelay", "0", "-muxpreload", "0", "-c:a", "mp2")
    first = make_clip("late-first.ts", *pictures[:4], *late, *beeps((0.5,), 1.4), *pictures[4:], *stamps)
    second = piece(make_clip, "late-second.ts", 48_000, 2.0, *pictures[:4], *pictures[4:])
    (tmp_path / "late.ts").write_bytes(first.read_bytes() + second.read_bytes())
    assert begins_s(heard(tmp_path / "late.ts")) == pytest.approx([1.1, 2.5], abs=0.04)


def test_joined_mp3s_of_other_rates_and_channels_are_heard_to_the_end(make_clip: MakeClip, tmp_path: Path) -> None:
    parts = [
        make_clip(f"part{rate_hz}.mp3", *beeps((0.5,), 2, rate_hz), "-ac", channels, "-c:a", "libmp3lame")
        for rate_hz, channels in ((44_100, "1"), (22_050, "1"), (48_000, "2"))
    ]
    (tmp_path / "joined.mp3").write_bytes(b"".join(part.read_bytes() for part in parts))
    decoded = heard(tmp_path / "joined.mp3")
    assert begins_s(decoded) == pytest.approx([0.5, 2.55, 4.6], abs=0.1)
    assert not any("silent" in remark.text for remark in decoded.remarks)


def test_a_wrong_fact_chunk_changes_nothing(make_clip: MakeClip, tmp_path: Path) -> None:
    data = bytearray(make_clip("adpcm.wav", *beeps(AT_S, 5), "-c:a", "adpcm_ms").read_bytes())
    at = data.index(b"fact") + 8
    data[at : at + 4] = struct.pack("<I", 1234)
    (tmp_path / "fact.wav").write_bytes(data)
    assert begins_s(heard(tmp_path / "fact.wav")) == pytest.approx(AT_S, abs=0.01)


def test_windows_of_a_changing_track_keep_their_time(make_clip: MakeClip, tmp_path: Path) -> None:
    """A window that begins elsewhere and holds a change of the rate."""
    pictures = ("-f", "lavfi", "-i", "testsrc2=s=64x64:r=10:d=20", "-c:v", "mpeg2video", "-g", "5")
    ticks = tuple(float(second) + 0.5 for second in range(20))
    stamps = ("-muxdelay", "0", "-muxpreload", "0", "-c:a", "mp2")
    parts = [
        make_clip(
            f"ticks{at}.ts", *pictures[:4], *beeps(ticks, 20, rate_hz), *pictures[4:], *stamps, "-output_ts_offset", at
        )
        for rate_hz, at in ((44_100, "0"), (48_000, "20"))
    ]
    (tmp_path / "ticks.ts").write_bytes(b"".join(part.read_bytes() for part in parts))
    name = os.fsencode(tmp_path / "ticks.ts")
    facts = replace(probe(name, TIMEOUT_S), duration_s=40.0)
    media = Media(video=Video(min_rate_hz=1, max_rate_hz=2, max_frames=32))
    planned = plan(facts, media, 30_000)
    assert len(planned.windows) == 2
    shifted = replace(
        planned,
        windows=tuple(replace(window, start_s=at) for window, at in zip(planned.windows, (2.0, 16.0), strict=True)),
    )
    found = begins_s(decode(name, facts, shifted, TIMEOUT_S))
    length_s = planned.windows[0].duration_s
    in_each = [at % length_s % 1 for at in found]
    assert len(found) >= int(2 * length_s) - 1 and all(abs(at - 0.5) < 0.05 for at in in_each)


def test_an_ffmpeg_without_soxr_resamples_well_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.convolve(noise(3, 44_100), np.ones(4) / 4, "same")
    clip = written(tmp_path / "noise.wav", samples, 44_100)
    monkeypatch.setattr(sound, "built_with", lambda _: False)
    assert alike(heard(clip).pcm, soxr.resample(samples, 44_100, RATE_HZ)) >= 0.9999


def test_soxr_is_used_where_ffmpeg_has_it() -> None:
    facts = MediaFacts("audio", "wav", 1.0, AudioStream(0, "pcm_s16le", 44_100, 2, 0.0, 1.0), None)
    assert any("soxr" in part for part in sound.filters(facts, False, 0.0)) == built_with("--enable-libsoxr")
