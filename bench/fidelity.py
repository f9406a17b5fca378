"""Whether the model gets what is in the file: `python -m bench.fidelity [FOLDER...]`.

Generated files of many kinds go through probe, plan, decode and renderer, and are compared with what others make of
them: sound with soundfile and soxr, the features of the rendered prompt with librosa's slaney mel, frames with a full
decode by ffmpeg and the times that ffprobe tells, orientation with the matrix's own arithmetic and Pillow's EXIF, and
colours with those that were painted. Of a FOLDER's files those are compared too that soundfile reads or that ffprobe
finds pictures in; they are only told, as damaged files are right to differ.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import librosa
import numpy as np
import soundfile
import soxr
from PIL import Image, ImageOps
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.clips import ffmpeg
from bench.result import Figure, report
from bench.runs import files_below, shown
from bench.worker import Worker
from pipeline.errors import ItemError
from pipeline.job import Media
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import measured_duration_s, probe
from pipeline.records import SAMPLE_RATE_HZ, Decoded, MediaFacts, Plan

if TYPE_CHECKING:
    from numpy.typing import NDArray

LEAST_CORRELATION = 0.999
SAMPLES_OFF_PER_S = 1.0
MOST_MEL_OFF = 1e-3
LEAST_PSNR_DB = 38.0
MOST_TIME_OFF = 0.5
MOST_COLOUR_OFF = 6.0
_BUDGET_TOKENS = 30_000
# swscale at its most exact: without full_chroma_int it repeats colours instead of interpolating them (30 dB apart).
_SCALE = "scale={width}:{height}:flags=bicubic+accurate_rnd+full_chroma_int"
_TIMEOUT_S = 60.0
_SOUND_S = 3.3
_LEFT = "0.4*sin(2*PI*(200*t+400*t*t))+0.1*sin(2*PI*3000*t)*gt(mod(t,0.5),0.25)"
_RIGHT = "0.3*sin(2*PI*(2500*t-300*t*t))+0.15*sin(2*PI*120*t)"

# name: what encodes it; soundfile reads those of the first group itself, the others hold the samples of a WAV unchanged
_READ_BY_SOUNDFILE: dict[str, tuple[int, Sequence[str]]] = {
    "u8.wav": (44_100, ("-c:a", "pcm_u8")),
    "s16.wav": (44_100, ("-c:a", "pcm_s16le")),
    "s24.wav": (48_000, ("-c:a", "pcm_s24le")),
    "s32.wav": (96_000, ("-c:a", "pcm_s32le")),
    "float.wav": (22_050, ("-c:a", "pcm_f32le")),
    "double.wav": (16_000, ("-c:a", "pcm_f64le")),
    "mulaw.wav": (8_000, ("-c:a", "pcm_mulaw")),
    "alaw.au": (8_000, ("-c:a", "pcm_alaw")),
    "ms_adpcm.wav": (32_000, ("-c:a", "adpcm_ms")),
    "ima_adpcm.wav": (24_000, ("-c:a", "adpcm_ima_wav")),
    "s16.aiff": (44_100, ("-c:a", "pcm_s16be")),
    "s24.caf": (48_000, ("-c:a", "pcm_s24le")),
    "s16.w64": (11_025, ("-c:a", "pcm_s16le")),
    "s16.flac": (44_100, ("-c:a", "flac")),
    "s24.flac": (192_000, ("-c:a", "flac", "-sample_fmt", "s32")),
    "vorbis.ogg": (44_100, ("-c:a", "libvorbis", "-q:a", "8")),
    "opus.opus": (48_000, ("-c:a", "libopus", "-b:a", "192k")),
    "lame.mp3": (44_100, ("-c:a", "libmp3lame", "-b:a", "192k")),
}
_SAME_SAMPLES: dict[str, tuple[int, Sequence[str]]] = {
    "alac.m4a": (44_100, ("-c:a", "alac")),
    "float.w64": (11_025, ("-c:a", "pcm_f32le")),  # libsndfile 1.2 takes its floats for integers
    "pcm.mov": (48_000, ("-c:a", "pcm_s16le")),
    "pcm.mkv": (32_000, ("-c:a", "pcm_s16le")),
    "flac.mka": (22_050, ("-c:a", "flac")),
    "wavpack.wv": (44_100, ("-c:a", "wavpack")),
    "tta.tta": (44_100, ("-c:a", "tta")),
    "pcm.avi": (16_000, ("-c:a", "pcm_s16le")),
}

_X264 = ("-c:v", "libx264", "-preset", "veryfast", "-crf", "18", "-pix_fmt", "yuv420p")
# name: size, rate, what encodes it
_CLIPS: dict[str, tuple[str, str, Sequence[str]]] = {
    "b_frames.mp4": ("320x240", "25", (*_X264, "-bf", "3")),
    "closed.mov": ("320x240", "30000/1001", (*_X264, "-bf", "0")),
    "sixty.mp4": ("256x160", "60", _X264),
    "slow.mkv": ("320x240", "7.5", _X264),
    "crawling.mp4": ("320x240", "1.3", _X264),
    "odd.mkv": ("161x121", "24", ("-c:v", "ffv1", "-pix_fmt", "yuv420p")),
    "tall.mp4": ("120x400", "25", _X264),
    "wide_pixels.mp4": ("160x240", "25", (*_X264, "-vf", "setsar=2/1")),
    "hd.mp4": ("1280x720", "25", _X264),
    "offset.ts": ("320x240", "25", (*_X264, "-output_ts_offset", "7.3")),
    "mpeg2.ts": ("352x288", "25", ("-c:v", "mpeg2video", "-q:v", "2")),
    "mpeg1.mpg": ("352x240", "24000/1001", ("-c:v", "mpeg1video", "-q:v", "2")),
    "mpeg4.avi": ("320x240", "15", ("-c:v", "mpeg4", "-q:v", "2")),
    "mjpeg.avi": ("320x240", "12", ("-c:v", "mjpeg", "-q:v", "2")),
    "vp8.webm": ("320x240", "20", ("-c:v", "libvpx", "-b:v", "2M", "-deadline", "realtime")),
    "vp9.webm": ("320x240", "30", ("-c:v", "libvpx-vp9", "-b:v", "2M", "-deadline", "realtime")),
    "av1.mkv": ("160x96", "10", ("-c:v", "libaom-av1", "-cpu-used", "8", "-crf", "20")),
    "prores.mov": ("320x240", "25", ("-c:v", "prores_ks")),
    "hevc10.mp4": ("320x240", "25", ("-c:v", "libx265", "-preset", "ultrafast", "-pix_fmt", "yuv420p10le",
                                     "-x265-params", "log-level=none")),
    "wmv2.wmv": ("320x240", "25", ("-c:v", "wmv2", "-q:v", "2")),
    "flv1.flv": ("320x240", "25", ("-c:v", "flv1", "-q:v", "2")),
    "theora.ogv": ("320x240", "25", ("-c:v", "libtheora", "-q:v", "9")),
    "animated.gif": ("160x96", "10", ()),
    "animated.apng": ("160x96", "10", ("-f", "apng",)),
    "variable.mp4": ("320x240", "30", (*_X264, "-vf", "select='lt(mod(n,30),7)+not(mod(n,11))'", "-vsync", "vfr")),
}  # fmt: skip

_COLOURS = ((235, 30, 40), (30, 200, 60), (40, 60, 220), (230, 220, 40), (40, 200, 210), (200, 50, 190),
            (128, 128, 128), (250, 250, 250))  # fmt: skip
_MATRICES = {"bt601": "smpte170m", "bt709": "bt709"}
_ORIENTATIONS = [(a, b, c, d) for a, b, c, d in itertools.product((-1, 0, 1), repeat=4) if abs(a * d - b * c) == 1
                 and abs(a) + abs(b) == abs(c) + abs(d) == 1]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Compared:
    """One file's comparison: how far it is off in its own unit, and whether that is within what is taken."""

    kind: str
    name: str
    value: float
    unit: str
    right: bool
    told: str = ""


def looked_at(path: bytes, media: Media | None = None) -> tuple[MediaFacts, Plan, Decoded]:
    """Return what the pipeline makes of a file, short of the prompt. Raises ItemError."""
    facts = probe(path, _TIMEOUT_S)
    if facts.duration_s is None and facts.kind != "image":
        facts = replace(facts, duration_s=measured_duration_s(path, facts, _TIMEOUT_S))
    chosen = plan(facts, media or Media(), _BUDGET_TOKENS)
    return facts, chosen, decode(path, facts, chosen, _TIMEOUT_S)


# Sound


def sounds(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Make the files with sound; yield each with the file that soundfile reads in its place."""
    folder.mkdir()
    for name, (rate_hz, codec) in (_READ_BY_SOUNDFILE | _SAME_SAMPLES).items():
        source = folder / f"source_{rate_hz}.wav"
        if not source.exists():
            expression = f"aevalsrc='{_LEFT}|{_RIGHT}':sample_rate={rate_hz}:duration={_SOUND_S}"
            ffmpeg("-f", "lavfi", "-i", expression, "-c:a", "pcm_s16le", str(source))
        ffmpeg("-i", str(source), *codec, str(folder / name))
        yield folder / name, folder / name if name in _READ_BY_SOUNDFILE else source


def compare_sound(name: str, decoded: Decoded, reference: bytes) -> list[Compared]:
    """Compare PCM with soundfile and soxr: same samples at the same time, and the same length."""
    with open(reference, "rb") as file:
        samples, rate_hz = soundfile.read(file, dtype="float32", always_2d=True)
    wanted = soxr.resample(samples.mean(axis=1), rate_hz, SAMPLE_RATE_HZ)
    both = min(len(wanted), len(decoded.pcm))
    correlation = float(np.corrcoef(decoded.pcm[:both], wanted[:both])[0, 1])
    off = round(decoded.decoded_s * SAMPLE_RATE_HZ) - len(wanted)
    per_s = abs(off) / max(1.0, len(wanted) / SAMPLE_RATE_HZ)
    return [
        Compared("sound", name, correlation, "correlation", correlation >= LEAST_CORRELATION),
        Compared("length", name, per_s, "samples/s off", per_s <= SAMPLES_OFF_PER_S, f"{off:+d} samples"),
    ]


def mel(pcm: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return Whisper's 128 log-mel features (128, samples/160) by librosa.

    Hann window of 400 samples, hop 160, reflected at the ends, slaney's scale and norm up to 8 kHz; log10, no more
    than 8 below the largest, then (x + 4) / 4 (openai/whisper, audio.py, log_mel_spectrogram).
    """
    power = np.abs(librosa.stft(pcm, n_fft=400, hop_length=160, window="hann", center=True, pad_mode="reflect")) ** 2
    filters = librosa.filters.mel(sr=SAMPLE_RATE_HZ, n_fft=400, n_mels=128, fmin=0.0, fmax=8000.0, norm="slaney")
    logs = np.log10(np.maximum(filters @ power[:, :-1], 1e-10))
    return np.asarray((np.maximum(logs, logs.max() - 8.0) + 4.0) / 4.0, np.float32)


def compare_mel(name: str, worker: Worker, facts: MediaFacts, chosen: Plan, decoded: Decoded) -> Compared:
    """Compare the features that the rendered prompt holds."""
    sound_only = replace(facts, kind="audio", video=None)
    nothing = replace(decoded, frames=decoded.frames[:0])
    prompt: Any = worker.front_end.renderer.render(name, sound_only, chosen, nothing, decoded.decoded_s).prompt
    got = np.asarray(prompt["mm_kwargs"]["audio"][0].get_data()["input_audio_features"].float())
    wanted = mel(decoded.pcm)
    if got.shape != wanted.shape:
        return Compared("mel", name, np.inf, "largest difference", False, f"{got.shape} instead of {wanted.shape}")
    off = float(np.abs(got - wanted).max())
    return Compared("mel", name, off, "largest difference", off <= MOST_MEL_OFF)


# Pictures


def clips(folder: Path) -> Iterator[Path]:
    """Make the files with moving pictures, 4 s of them."""
    folder.mkdir()
    for name, (size, rate, codec) in _CLIPS.items():
        ffmpeg("-f", "lavfi", "-i", f"testsrc2=size={size}:rate={rate}:duration=4", *codec, str(folder / name))
        yield folder / name


def full_decode(path: bytes, width: int, height: int) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """Return every frame of the first picture track by ffmpeg, scaled, and its time by ffprobe, seconds."""
    source = b"file:" + path
    shown = ["-select_streams", "V:0", "-show_entries", "frame=best_effort_timestamp_time", "-of", "json"]
    probing: list[str | bytes] = ["ffprobe", "-v", "error", *shown, source]
    said = subprocess.run(probing, check=True, capture_output=True).stdout
    times = [float(frame["best_effort_timestamp_time"]) for frame in json.loads(said)["frames"]]
    scaled = ["-map", "0:V:0", "-vf", f"{_SCALE.format(width=width, height=height)}", "-vsync", "passthrough"]
    raw = ["-pix_fmt", "rgb24", "-f", "rawvideo", "-"]
    command: list[str | bytes] = ["ffmpeg", "-nostdin", "-v", "error", "-i", source, *scaled, *raw]
    pixels = np.frombuffer(subprocess.run(command, check=True, capture_output=True).stdout, np.uint8)
    frames = pixels.reshape(-1, height, width, 3)
    return frames, np.array(times[: len(frames)])


def compare_frames(name: str, path: bytes, chosen: Plan, decoded: Decoded) -> list[Compared]:
    """Compare each frame with the one on screen at its time; its time with when the frame it resembles most is."""
    frames, times_s = full_decode(path, chosen.width, chosen.height)
    times_s = times_s - times_s[0]
    ends_s = np.append(times_s[1:], max(decoded.decoded_s, times_s[-1]))
    psnrs: list[float] = []
    off: list[float] = []
    for frame, time_s in zip(decoded.frames, decoded.times_s + chosen.windows[0].start_s, strict=True):
        if psnrs and time_s >= ends_s[-1]:
            break  # repeated to fill a pair: nothing is on screen any more
        on_screen = max(0, int(np.searchsorted(times_s, time_s + 1e-4, side="right")) - 1)
        psnrs.append(_psnr_db(frame, frames[on_screen]))
        alike = _most_alike(frame, frames)
        # How long before its appearance or after its end the frame is shown, in frames of its own length.
        distance_s = max(times_s[alike] - time_s, time_s - ends_s[alike], 0.0)
        off.append(distance_s / max(ends_s[alike] - times_s[alike], 1e-3))
    return [
        Compared("psnr", name, min(psnrs), "dB, the worst frame", min(psnrs) >= LEAST_PSNR_DB, f"{len(psnrs)} frames"),
        Compared("time", name, max(off), "frames off, the worst", max(off) <= MOST_TIME_OFF),
    ]


def _psnr_db(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> float:
    error = float(np.mean((one.astype(np.float32) - other.astype(np.float32)) ** 2))
    return 10 * float(np.log10(255**2 / max(error, 255**2 / 1e10)))


def _most_alike(frame: NDArray[np.uint8], frames: NDArray[np.uint8]) -> int:
    """Return which of the frames differs least, by every fourth pixel either way."""
    wanted = frame[::4, ::4].astype(np.int16)
    return int(np.argmin([np.abs(other[::4, ::4] - wanted).sum() for other in frames]))


# Orientation and colour


def pattern(width: int, height: int) -> NDArray[np.uint8]:
    """Return 4x2 fields of colour (height, width, 3), no two alike, so that every turn and mirroring shows."""
    image = np.empty((height, width, 3), np.uint8)
    for number, colour in enumerate(_COLOURS):
        row, column = divmod(number, 4)
        image[row * height // 2 :, column * width // 4 :] = colour
        if row == 0:
            image[height // 2 :] = 0
    for number, colour in enumerate(_COLOURS):
        row, column = divmod(number, 4)
        image[row * height // 2 : (row + 1) * height // 2, column * width // 4 : (column + 1) * width // 4] = colour
    return image


def fields_off(found: NDArray[np.uint8], wanted: NDArray[np.uint8]) -> float:
    """Return the largest difference of a colour value between the fields' centres, levels of 255."""
    if found.shape != wanted.shape:
        return float("inf")
    tall = found.shape[0] > found.shape[1]
    rows, columns = (4, 2) if tall else (2, 4)
    worst = 0.0
    for row, column in itertools.product(range(rows), range(columns)):
        y, x = (2 * row + 1) * found.shape[0] // (2 * rows), (2 * column + 1) * found.shape[1] // (2 * columns)
        spot = np.s_[y - 4 : y + 4, x - 4 : x + 4]
        worst = max(worst, float(np.abs(found[spot].mean((0, 1)) - wanted[spot].mean((0, 1))).max()))
    return worst


def turned(image: NDArray[np.uint8], matrix: tuple[int, int, int, int]) -> NDArray[np.uint8]:
    """Return the picture under a display matrix (a, b, c, d): x' = a x + c y, y' = b x + d y.

    The formula is ISO/IEC 14496-12's, 6.2.2.
    """
    a, b, c, d = matrix
    y, x = np.mgrid[: image.shape[0], : image.shape[1]]
    across, down = a * x + c * y, b * x + d * y
    across, down = across - across.min(), down - down.min()
    result = np.empty((int(down.max()) + 1, int(across.max()) + 1, 3), np.uint8)
    result[down, across] = image
    return result


def oriented(folder: Path) -> Iterator[tuple[str, Path, NDArray[np.uint8]]]:
    """Make a video for each display matrix and a JPEG for each EXIF orientation; yield with what is to be seen."""
    folder.mkdir()
    image = pattern(256, 128)
    flat = folder / "flat.png"
    Image.fromarray(image).save(flat)
    plain = folder / "plain.mp4"
    ffmpeg("-loop", "1", "-i", str(flat), "-t", "1", "-r", "5", *_bars("bt709", "tv"), str(plain))
    for matrix in _ORIENTATIONS:
        name = "matrix_" + "_".join(map(str, matrix))
        path = folder / f"{name}.mp4"
        path.write_bytes(_with_matrix(plain.read_bytes(), matrix))
        yield name, path, turned(image, matrix)
    for orientation in range(1, 9):
        path = folder / f"exif_{orientation}.jpg"
        exif = Image.Exif()
        exif[0x0112] = orientation
        Image.fromarray(image).save(path, quality=98, subsampling=0, exif=exif)
        with Image.open(path) as picture:
            yield path.stem, path, np.asarray(ImageOps.exif_transpose(picture).convert("RGB"))


def _with_matrix(data: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """Return an mp4 with another display matrix in its tkhd box (version 0): a b u c d v x y w, 16.16 and 2.30."""
    a, b, c, d = matrix
    at = data.index(b"tkhd") + 4 + 40
    values = (a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30)
    return data[:at] + b"".join(value.to_bytes(4, "big", signed=True) for value in values) + data[at + 36 :]


def _bars(matrix: str, limits: str) -> tuple[str, ...]:
    """Return what encodes RGB nearly without loss under a colour matrix and range, and says so in the file."""
    standard = _MATRICES[matrix]
    convert = f"scale=out_color_matrix={matrix}:out_range={limits}:flags=accurate_rnd+full_chroma_int,format=yuv420p"
    tags = ("-colorspace", standard, "-color_primaries", standard, "-color_trc", standard, "-color_range", limits)
    return ("-vf", convert, "-c:v", "libx264", "-qp", "2", *tags)


def coloured(folder: Path) -> Iterator[tuple[str, Path, NDArray[np.uint8]]]:
    """Make the pattern in each colour matrix and range, and in formats without; yield with what is to be seen."""
    folder.mkdir()
    image = pattern(256, 128)
    flat = folder / "rgb.png"
    Image.fromarray(image).save(flat)
    yield "rgb.png", flat, image
    for matrix, limits in itertools.product(_MATRICES, ("tv", "pc")):
        path = folder / f"{matrix}_{limits}.mp4"
        ffmpeg("-loop", "1", "-i", str(flat), "-t", "1", "-r", "5", *_bars(matrix, limits), str(path))
        yield path.name, path, image
    for name, codec in (
        ("rgb.mkv", ("-c:v", "ffv1", "-pix_fmt", "gbrp")),
        ("gif.gif", ("-vf", "split[a][b];[a]palettegen[p];[b][p]paletteuse=dither=none")),
        ("lossless.webp", ("-c:v", "libwebp", "-lossless", "1")),
        ("still.bmp", ()),
        ("still.tiff", ()),
        ("full.jpg", ("-q:v", "1")),
    ):
        ffmpeg("-i", str(flat), *codec, str(folder / name))
        yield name, folder / name, image


def compare_fields(kind: str, name: str, path: Path, wanted: NDArray[np.uint8]) -> Compared:
    """Compare the first frame's fields of colour."""
    _, _, decoded = looked_at(os.fsencode(path))
    found = decoded.frames[0]
    off = fields_off(found, wanted)
    told = "" if found.shape == wanted.shape else f"{found.shape[:2]} instead of {wanted.shape[:2]}"
    return Compared(kind, name, off, "levels off", off <= MOST_COLOUR_OFF, told)


# All of it


def generated(folder: Path, worker: Worker) -> Iterator[Compared]:
    """Compare every generated file."""
    for path, reference in sounds(folder / "sounds"):
        facts, chosen, decoded = looked_at(os.fsencode(path))
        yield from compare_sound(path.name, decoded, os.fsencode(reference))
        yield compare_mel(path.name, worker, facts, chosen, decoded)
    for path in clips(folder / "clips"):
        _, chosen, decoded = looked_at(os.fsencode(path))
        yield from compare_frames(path.name, os.fsencode(path), chosen, decoded)
    for name, path, wanted in oriented(folder / "oriented"):
        yield compare_fields("orientation", name, path, wanted)
    for name, path, wanted in coloured(folder / "coloured"):
        yield compare_fields("colour", name, path, wanted)


def given(folders: Sequence[Path], worker: Worker) -> Iterator[Compared]:
    """Compare what can be compared of given files; what cannot is left out."""
    for path in (path for folder in folders for path in files_below(folder)):
        name = shown(os.path.basename(path))
        try:
            facts, chosen, decoded = looked_at(path)
        except ItemError:
            continue
        if len(chosen.windows) > 1:
            continue
        if len(decoded.pcm):
            yield compare_mel(name, worker, facts, chosen, decoded)
            with suppress(soundfile.LibsndfileError):
                yield from compare_sound(name, decoded, path)
        if len(decoded.frames) and facts.kind != "image" and facts.audio is None:
            try:
                yield from compare_frames(name, path, chosen, decoded)
            except (subprocess.CalledProcessError, KeyError, ValueError, IndexError):
                continue


def table(compared: Sequence[Compared], title: str) -> Table:
    lines = Table("kind", "file", "value", "unit", "right", "", title=title)
    for one in compared:
        cells = (one.kind, one.name, f"{one.value:.6g}", one.unit, "yes" if one.right else "NO", one.told)
        lines.add_row(*(Text(cell) for cell in cells))
    return lines


def figures(compared: Sequence[Compared]) -> list[Figure]:
    """Return for each kind how many files were compared, the worst of them and whether all are right."""
    found = []
    least = {"sound", "psnr"}
    wanted = {
        "sound": f">= {LEAST_CORRELATION}", "length": f"<= {SAMPLES_OFF_PER_S}", "mel": f"<= {MOST_MEL_OFF}",
        "psnr": f">= {LEAST_PSNR_DB}", "time": f"<= {MOST_TIME_OFF}", "orientation": f"<= {MOST_COLOUR_OFF}",
        "colour": f"<= {MOST_COLOUR_OFF}",
    }  # fmt: skip
    for kind, limit in wanted.items():
        these = [one for one in compared if one.kind == kind]
        worst = (min if kind in least else max)(these, key=lambda one: one.value)
        wrong = [one.name for one in these if not one.right]
        found.append(Figure(f"{kind}_files", len(these)))
        unit = f"{worst.unit} ({worst.name})"
        found.append(Figure(f"{kind}_worst", worst.value, unit, limit, not wrong))
        found.append(Figure(f"{kind}_wrong", len(wrong), ", ".join(wrong)[:60], "0", not wrong))
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fidelity", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path, help="more files to compare; they are only told")
    options = parser.parse_args()
    worker = Worker(["engine.max_model_len=32768"])
    with tempfile.TemporaryDirectory(prefix="l1-fidelity-") as scratch:
        compared = list(generated(Path(scratch), worker))
    console = Console(width=120)
    console.print(table(compared, "generated files"))
    if options.folders:
        console.print(table(list(given(options.folders, worker)), "given files, told only"))
    return report("fidelity", figures(compared))


if __name__ == "__main__":
    sys.exit(main())
