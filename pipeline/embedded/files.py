"""Scenes as real files: encoded by ffmpeg in one of many containers, codecs, sample rates and orientations."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from scipy.io import wavfile

from pipeline.embedded.pictures import Painter
from pipeline.embedded.scene import Scene, generator
from pipeline.embedded.sounds import Voices, sound
from pipeline.records import SAMPLE_RATE_HZ

_ENCODE_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class _Format:
    """How a file is written; `rates_hz` are the sample rates that its sound codec takes."""

    suffix: str
    video: tuple[str, ...]
    audio: tuple[str, ...]
    rates_hz: tuple[int, ...] = (16_000, 22_050, 32_000, 44_100, 48_000)
    turns: bool = False


_H264 = ("-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p")
_VP9 = (
    "-c:v",
    "libvpx-vp9",
    "-deadline",
    "realtime",
    "-cpu-used",
    "8",
    "-b:v",
    "0",
    "-crf",
    "40",
    "-pix_fmt",
    "yuv420p",
)
_TURN = ("-metadata:s:v", "rotate=90")
_OPUS_HZ = (8_000, 16_000, 24_000, 48_000)
_WITH_PICTURES = (
    _Format("mp4", (*_H264, "-crf", "24"), ("-c:a", "aac", "-b:a", "64k"), turns=True),
    _Format("mp4", (*_H264, "-crf", "33", "-g", "30"), ("-c:a", "aac", "-b:a", "48k")),
    _Format("mov", (*_H264, "-crf", "28"), ("-c:a", "pcm_s16le"), (8_000, 16_000, 48_000), turns=True),
    _Format("mkv", (*_H264, "-crf", "30", "-bf", "0"), ("-c:a", "libmp3lame", "-b:a", "64k")),
    _Format("webm", _VP9, ("-c:a", "libopus", "-b:a", "32k"), _OPUS_HZ),
    _Format("avi", ("-c:v", "mpeg4", "-q:v", "6"), ("-c:a", "libmp3lame", "-b:a", "64k")),
)
_SOUND_ONLY = (
    _Format("wav", (), ("-c:a", "pcm_s16le"), (8_000, 16_000, 44_100, 48_000)),
    _Format("mp3", (), ("-c:a", "libmp3lame", "-b:a", "64k")),
    _Format("m4a", (), ("-c:a", "aac", "-b:a", "48k")),
    _Format("opus", (), ("-c:a", "libopus", "-b:a", "24k"), _OPUS_HZ),
    _Format("flac", (), ("-c:a", "flac"), (8_000, 16_000, 44_100)),
)


def write_clip(scene: Scene, voices: Voices, folder: Path, suffix: str | None = None) -> Path:
    """Write the scene into `folder` and return the file; its name is the scene's seed.

    `suffix` names the container, for instance `webm`; without it the seed chooses. Raises RuntimeError with ffmpeg's
    words if it fails.
    """
    rng = generator(scene.seed, 4)
    if scene.still:
        return _write_picture(scene, rng, folder)
    known = _WITH_PICTURES if scene.pictures else _SOUND_ONLY
    formats = [one for one in known if suffix in (None, one.suffix)]
    chosen = formats[rng.integers(len(formats))]
    path = folder / f"{scene.seed:07d}.{chosen.suffix}"
    with tempfile.TemporaryDirectory() as scratch:
        command = ["ffmpeg", "-v", "error", "-y"]
        turned = bool(chosen.turns and scene.pictures and rng.random() < 0.4)
        if scene.pictures:
            width, height = (scene.height, scene.width) if turned else (scene.width, scene.height)
            raw = ("-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-r", f"{scene.frame_rate_hz:g}")
            command += [*raw, "-i", "pipe:0"]
        if scene.sound:
            pcm = np.rint(sound(scene, voices) * 32767).astype(np.int16)
            wavfile.write(Path(scratch) / "sound.wav", SAMPLE_RATE_HZ, pcm)
            rate_hz = chosen.rates_hz[rng.integers(len(chosen.rates_hz))]
            command += ["-i", str(Path(scratch) / "sound.wav"), *chosen.audio]
            command += ["-ar", str(rate_hz), "-ac", str(rng.integers(1, 3))]
        if scene.pictures:
            command += chosen.video
        straight = Path(scratch) / path.name if turned else path
        _ffmpeg([*command, "-map_metadata", "-1", str(straight)], _frames(scene, turned) if scene.pictures else ())
        if turned:
            # ffmpeg records a turn only when it copies.
            _ffmpeg(["ffmpeg", "-v", "error", "-y", "-i", str(straight), "-c", "copy", *_TURN, str(path)], ())
    return path


def _frames(scene: Scene, turned: bool) -> Iterator[bytes]:
    """Yield every frame of the file as RGB bytes; turned ones lie on their side."""
    painter = Painter(scene)
    for number in range(max(1, round(scene.duration_s * scene.frame_rate_hz))):
        frame = painter.frame(number / scene.frame_rate_hz, scene.width, scene.height)
        # Players turn the picture clockwise by the stated angle.
        yield np.ascontiguousarray(np.rot90(frame, -1) if turned else frame).tobytes()


def _write_picture(scene: Scene, rng: np.random.Generator, folder: Path) -> Path:
    from PIL import Image

    suffix = str(rng.choice(("jpg", "png", "webp")))
    path = folder / f"{scene.seed:07d}.{suffix}"
    Image.fromarray(Painter(scene).frame(0.0, scene.width, scene.height)).save(path)
    return path


def _ffmpeg(command: list[str], frames: Iterable[bytes]) -> None:
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log)
        assert process.stdin is not None
        try:
            with suppress(BrokenPipeError):  # ffmpeg says why
                for frame in frames:
                    process.stdin.write(frame)
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()
        status = process.wait(_ENCODE_TIMEOUT_S)
        log.seek(0)
        if status != 0:
            raise RuntimeError(f"ffmpeg could not write {command[-1]}: {log.read().decode(errors='replace')[-300:]}")
