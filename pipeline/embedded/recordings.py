"""Speech and music for training the embedded model: recorded and synthetic voices, recorded and rendered music.

They come from Debian packages, fetched and unpacked below the cache when first wanted and never installed, and from
ffmpeg's flite filter. The cache holds them as one file of samples and an index; with the same packages a build gives
the same samples.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from pipeline.atomic import write_atomic
from pipeline.embedded.recording_list import (
    FLITE_HELD_OUT,
    FLITE_TRAIN,
    PACKAGES,
    SOURCES,
    UTTERANCES_PER_ESPEAK_VOICE,
    UTTERANCES_PER_FLITE_VOICE,
    Source,
    espeak_voices,
)

Pcm = NDArray[np.int16]

RATE_HZ = 16_000
SHORTEST_S = 1.5
LONGEST_SPEECH_S = 12.0
LONGEST_MUSIC_S = 20.0

# Raised whenever the same packages would give other recordings; a cache of another version is built anew.
VERSION = 2
INDEX_NAME = "index.json"
SAMPLES_NAME = "recordings.s16"


class RecordingsUnavailable(Exception):
    """The recordings cannot be fetched or made; the message says what is missing and what to do."""


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    """A stretch of one voice speaking, or a piece of music."""

    kind: Literal["speech", "music"]
    voice: str
    """A stable name of who or what is heard, such as `espeak:en-us+f3`, `asterisk:fr` or `moh:reno_project`."""
    real: bool
    """A recorded human voice or real music; not a synthesiser."""
    pcm: Pcm
    """(samples,) mono 16 kHz, outer silence trimmed, its peak at 0.9 of full scale."""


@dataclass(frozen=True)
class Pools:
    """Recordings to train on, and those of other voices and sources to test with."""

    train: tuple[Recording, ...]
    held_out: tuple[Recording, ...]


def default_cache() -> Path:
    """Return the folder where the recordings are kept unless another is named."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "l1-triage" / "recordings"


def load_recordings(cache: Path) -> Pools:
    """Return the recordings kept in `cache`, after building it if they are not there.

    Raises RecordingsUnavailable if they cannot be built, OSError if the folder cannot be used.
    """
    pools = _read(cache)
    if pools is None:
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache):
            pools = _read(cache)  # another process may have built it meanwhile
            if pools is None:
                _write(cache, _build(cache))
                pools = _read(cache)
        if pools is None:
            raise RecordingsUnavailable(f"what was just written to {cache} cannot be read; remove it and try again")
    return pools


# ---- the cache


def _read(cache: Path) -> Pools | None:
    """Return what is kept in `cache`; None if that is nothing, not all, or of another version."""
    try:
        index = json.loads((cache / INDEX_NAME).read_text())
        samples: Pcm = np.memmap(cache / SAMPLES_NAME, np.int16, "r").view(np.ndarray)
    except (OSError, ValueError):
        return None
    if index.get("version") != VERSION or index.get("samples") != len(samples):
        return None
    train: list[Recording] = []
    held_out: list[Recording] = []
    start = 0
    for row in index["recordings"]:
        pcm = samples[start : start + row["samples"]]
        start += row["samples"]
        (held_out if row["held_out"] else train).append(Recording(row["kind"], row["voice"], row["real"], pcm))
    return Pools(tuple(train), tuple(held_out))


def _write(cache: Path, pools: Pools) -> None:
    """Keep `pools` in `cache`: the samples, then the index that makes them count."""
    (cache / INDEX_NAME).unlink(missing_ok=True)
    rows = [
        {"kind": one.kind, "voice": one.voice, "real": one.real, "held_out": held_out, "samples": len(one.pcm)}
        for held_out, pool in ((False, pools.train), (True, pools.held_out))
        for one in pool
    ]
    samples = np.concatenate([one.pcm for one in (*pools.train, *pools.held_out)])
    write_atomic(cache / SAMPLES_NAME, samples.astype("<i2").data.cast("B"))
    index = {"version": VERSION, "rate_hz": RATE_HZ, "samples": len(samples), "recordings": rows}
    write_atomic(cache / INDEX_NAME, json.dumps(index, ensure_ascii=False, indent=0).encode())


@contextmanager
def _locked(cache: Path) -> Iterator[None]:
    """Let one process at a time build the cache."""
    with open(cache / "lock", "wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


# ---- building it


def _build(cache: Path) -> Pools:
    """Fetch the packages and make all recordings from them."""
    started_s = time.monotonic()
    _need(("ffmpeg", "apt-get", "dpkg-deb"))
    for left in cache.glob("build-*"):
        shutil.rmtree(left)  # of a build that was killed
    _say(f"fetching {len(PACKAGES)} Debian packages into {cache} (about 250 MB, this once; only the samples stay)")
    pools: dict[bool, list[Recording]] = {False: [], True: []}
    with TemporaryDirectory(dir=cache.resolve(), prefix="build-") as name:
        work = Path(name)
        root = _fetch([package.name for package in PACKAGES], work)
        _say("taking speech and music from them")
        for source in SOURCES:
            pools[source.held_out] += _recorded(source, root, work)
        texts = read_sentences()
        _say("letting espeak-ng and flite speak")
        for language, variant, held_out in espeak_voices():
            pools[held_out] += _espeak(language, variant, texts, root, work)
        for voice in (*FLITE_TRAIN, *FLITE_HELD_OUT):
            pools[voice in FLITE_HELD_OUT] += _flite(voice, texts["en"], work)
    _say(f"done in {time.monotonic() - started_s:.0f} s")
    return Pools(tuple(pools[False]), tuple(pools[True]))


def _say(text: str) -> None:
    print(f"recordings: {text}", file=sys.stderr, flush=True)


def _recorded(source: Source, root: Path, work: Path) -> list[Recording]:
    """Return what is taken from the files of one source. Raises RecordingsUnavailable if there is nothing."""
    found = sorted(path for path in root.glob(source.files) if path.is_file() and path.stat().st_size)
    files = [path for path in found if not re.search(source.skip, path.relative_to(root).as_posix())]
    chance = random.Random(source.voice)
    if source.kind == "speech":
        chance.shuffle(files)
        pieces = stretches(_utterances(files, work), source.most_s, chance)
    else:
        pieces = [
            piece for pcm in decoded(files, work) for piece in music_pieces(pcm, source.most_s / len(files), chance)
        ]
    if not pieces:
        raise RecordingsUnavailable(
            f"there is nothing of {source.voice} (no {source.files}) in this system's packages, whose contents differ "
            "from those of Debian 12; build the recordings there"
        )
    return [Recording(source.kind, source.voice, True, piece) for piece in pieces]


def _utterances(files: Sequence[Path], work: Path) -> Iterator[Pcm]:
    """Decode what is spoken in each file, as far as it is asked for; tones and clipped recordings are left out."""
    for pcm in decoded(files, work):
        spoken = trimmed(pcm)
        if len(spoken) > 0.1 * RATE_HZ and not is_tone(spoken) and not is_clipped(spoken):
            yield from split_at_pauses(at_full_level(spoken), LONGEST_SPEECH_S)


# ---- synthetic voices


def read_sentences() -> dict[str, list[str]]:
    """Return what the synthetic voices say, by language."""
    texts: dict[str, list[str]] = {}
    for line in Path(__file__).with_name("sentences.txt").read_text("utf-8").splitlines():
        if not line.startswith("#"):
            language, sentence = line.split(" ", 1)
            texts.setdefault(language, []).append(sentence)
    return texts


def _espeak(language: str, variant: str, texts: dict[str, list[str]], root: Path, work: Path) -> list[Recording]:
    """Return what one voice of espeak-ng says, each time at another speed and pitch."""
    voice = f"espeak:{language}+{variant}"
    chance = random.Random(voice)
    sentences = texts[language.split("-", maxsplit=1)[0]]
    libraries = next(root.glob("usr/lib/*/espeak-ng-data")).parent
    environ = {**os.environ, "LD_LIBRARY_PATH": str(libraries), "ESPEAK_DATA_PATH": str(libraries)}
    files = []
    for number, text in enumerate(chance.sample(sentences, UTTERANCES_PER_ESPEAK_VOICE)):
        said = f"{text} {_digits(chance)}" if chance.random() < 0.3 else text
        wav = work / f"said-{number}.wav"
        how = ["-s", str(chance.randint(125, 200)), "-p", str(chance.randint(25, 75)), "-w", str(wav)]
        _run([str(root / "usr/bin/espeak-ng"), "-b", "1", "-v", f"{language}+{variant}", *how, said], environ=environ)
        files.append(wav)
    return _said(voice, files, work)


def _flite(voice: str, sentences: Sequence[str], work: Path) -> list[Recording]:
    """Return what one voice of flite says."""
    chance = random.Random(f"flite:{voice}")
    files = []
    for number in range(UTTERANCES_PER_FLITE_VOICE):
        text = work / "text"
        text.write_text(f"{sentences[number % len(sentences)]} {_digits(chance) if number % 3 == 2 else ''}")
        wav = work / f"said-{number}.wav"
        _ffmpeg(["-f", "lavfi", "-i", f"flite=textfile=text:voice={voice}", str(wav)], work)
        files.append(wav)
    return _said(f"flite:{voice}", files, work)


def _said(voice: str, files: Sequence[Path], work: Path) -> list[Recording]:
    """Return the recordings of a synthetic voice, one for each file, or more for a long one."""
    return [
        Recording("speech", voice, False, piece)
        for pcm in decoded(files, work)
        for piece in split_at_pauses(at_full_level(trimmed(pcm)), LONGEST_SPEECH_S)
        if len(piece) >= SHORTEST_S * RATE_HZ
    ]


def _digits(chance: random.Random) -> str:
    """Return some digits to be said one by one, like a telephone number."""
    return " ".join(str(chance.randrange(10)) for _ in range(chance.randint(3, 8)))


# ---- cutting and joining


def _levels_db(pcm: Pcm, frame_s: float = 0.02) -> NDArray[np.float64]:
    """Return the level of each frame in dB below full scale; the rest after the last frame is left out."""
    frame = int(frame_s * RATE_HZ)
    frames = pcm[: len(pcm) // frame * frame].reshape(-1, frame).astype(np.float64) / 32768
    return np.asarray(10 * np.log10(np.mean(frames**2, axis=1) + 1e-10))


def trimmed(pcm: Pcm) -> Pcm:
    """Return `pcm` without the silence, or the steady noise, before and after what is heard."""
    levels = _levels_db(pcm)
    if not len(levels):
        return pcm[:0]
    floor, loud = float(np.percentile(levels, 5)), float(np.percentile(levels, 98))
    over = levels > max(loud - 38, min(floor + 8, loud - 20), -65.0)
    heard = np.flatnonzero(np.convolve(over, np.ones(3), "same") >= 2)  # not a single frame: that is a click
    if not len(heard):
        return pcm[:0]
    frame = int(0.02 * RATE_HZ)
    return pcm[max(heard[0] - 1, 0) * frame : (heard[-1] + 3) * frame]


def at_full_level(pcm: Pcm) -> Pcm:
    """Return `pcm` with its peak at 0.9 of full scale and its ends faded so that they do not click."""
    if not len(pcm):
        return pcm
    centred = pcm.astype(np.float64) - np.mean(pcm)
    fade = min(int(0.005 * RATE_HZ), len(pcm) // 2)
    ramp = np.linspace(0.0, 1.0, fade, endpoint=False)
    centred[:fade] *= ramp
    centred[len(pcm) - fade :] *= ramp[::-1]
    peak = np.max(np.abs(centred), initial=1e-9)
    return np.asarray(np.round(centred * (0.9 * 32767 / peak)), np.int16)


def split_at_pauses(pcm: Pcm, longest_s: float) -> list[Pcm]:
    """Cut `pcm` at its quietest moments into parts of at most `longest_s`."""
    if len(pcm) <= longest_s * RATE_HZ:
        return [pcm]
    levels = _levels_db(pcm, 0.05)
    frame = int(0.05 * RATE_HZ)
    parts = int(len(pcm) / (longest_s * RATE_HZ)) + 1
    middle = len(levels) // parts
    first, last = int(middle * 0.6), min(int(middle * 1.4), int(longest_s / 0.05))
    cut = (first + int(np.argmin(levels[first:last]))) * frame + frame // 2
    return [pcm[:cut], *split_at_pauses(pcm[cut:], longest_s)]


def stretches(utterances: Iterable[Pcm], most_s: float, chance: random.Random) -> list[Pcm]:
    """Join utterances of a voice, with short pauses between, into stretches of 1.5 to 12 s: `most_s` in all."""
    made: list[Pcm] = []
    current: list[Pcm] = []
    wanted_s, total_s = chance.uniform(2, 9), 0.0

    def finish() -> None:
        nonlocal wanted_s, total_s
        if _length_s(current) >= SHORTEST_S:
            made.append(at_full_level(np.concatenate(current)))
            total_s += _length_s(current)
        current.clear()
        wanted_s = chance.uniform(2, 9)

    for utterance in utterances:
        pause: Pcm = np.zeros(int(chance.uniform(0.1, 0.4) * RATE_HZ), np.int16)
        if current and _length_s([*current, pause, utterance]) > LONGEST_SPEECH_S:
            finish()
        current += [pause, utterance] if current else [utterance]
        if _length_s(current) >= wanted_s:
            finish()
        if total_s >= most_s:
            return made
    finish()
    return made


def _length_s(parts: Sequence[Pcm]) -> float:
    return sum(len(part) for part in parts) / RATE_HZ


def music_pieces(pcm: Pcm, most_s: float, chance: random.Random) -> list[Pcm]:
    """Cut a track into pieces of 5 to 20 s, spread over it, `most_s` in all; quiet passages are left out."""
    heard = trimmed(pcm)
    lengths: list[int] = []
    while sum(lengths) < min(most_s * RATE_HZ, len(heard) - 20 * RATE_HZ):
        lengths.append(int(chance.uniform(6, LONGEST_MUSIC_S) * RATE_HZ))
    if not lengths and len(heard) >= 5 * RATE_HZ:
        lengths = [min(len(heard), int(LONGEST_MUSIC_S * RATE_HZ))]
    spare = (len(heard) - sum(lengths)) // max(len(lengths), 1)
    pieces, start = [], 0
    for length in lengths:
        piece = trimmed(heard[start : start + length])
        start += length + spare
        if len(piece) >= 5 * RATE_HZ and np.mean(_levels_db(piece) > -45) > 0.8:
            pieces.append(at_full_level(piece))
    return pieces


def is_tone(pcm: Pcm) -> bool:
    """Return whether this is a beep, dial tone or the like: one steady frequency for most of its sound."""
    frame = 512
    frames = pcm[: len(pcm) // frame * frame].reshape(-1, frame).astype(np.float64)
    power = np.abs(np.fft.rfft(frames * np.hanning(frame), axis=1)) ** 2
    energy = power.sum(axis=1)
    loud = power[energy > energy.max(initial=0.0) * 1e-2]
    if len(loud) < 3:
        return False
    peaks = loud.argmax(axis=1)
    shares = np.array(
        [row[max(peak - 2, 0) : peak + 3].sum() / row.sum() for row, peak in zip(loud, peaks, strict=True)]
    )
    steady = np.abs(peaks - np.median(peaks)) <= 1
    return bool(np.mean(steady & (shares > 0.9)) > 0.7)


def is_clipped(pcm: Pcm) -> bool:
    """Return whether the peaks were cut off when this was recorded."""
    size = np.abs(pcm.astype(np.int32))
    return bool(np.mean(size > 0.95 * size.max(initial=1)) > 0.01)


# ---- programs


_HEADERLESS = {".g722": ("-f", "g722"), ".gsm": ("-f", "gsm")}


def decoded(files: Sequence[Path], work: Path) -> Iterator[Pcm]:
    """Decode files to mono 16 kHz, several by one ffmpeg, as far as they are asked for."""
    at_once = 24
    for first in range(0, len(files), at_once):
        some = files[first : first + at_once]
        arguments = [argument for path in some for argument in (*_HEADERLESS.get(path.suffix, ()), "-i", str(path))]
        for number in range(len(some)):
            form = ["-ac", "1", "-ar", str(RATE_HZ), "-f", "s16le"]
            arguments += ["-map", f"{number}:a:0", *form, f"decoded-{number}"]
        _ffmpeg(arguments, work)
        for number in range(len(some)):
            yield np.fromfile(work / f"decoded-{number}", "<i2").astype(np.int16, copy=False)


def _ffmpeg(arguments: Sequence[str], work: Path) -> None:
    """Run ffmpeg in `work`. Raises RecordingsUnavailable if it fails."""
    try:
        _run(["ffmpeg", "-v", "error", "-nostdin", "-y", "-threads", "1", *arguments], folder=work)
    except RecordingsUnavailable as error:
        raise RecordingsUnavailable(f"{error}. It must be Debian's, which has flite and libopenmpt") from None


def _need(programs: Sequence[str]) -> None:
    """Raise RecordingsUnavailable if a program is missing."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        raise RecordingsUnavailable(
            f"{' and '.join(missing)} cannot be found. The recordings come out of Debian packages, by apt-get, "
            "dpkg-deb and ffmpeg: build them on Debian 12, and copy the cache folder from there"
        )


def _run(command: Sequence[str], folder: Path | None = None, environ: dict[str, str] | None = None) -> None:
    """Run a program. Raises RecordingsUnavailable if it fails."""
    program = Path(command[0]).name
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RecordingsUnavailable(f"{program} cannot be run: {error.strerror}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip())[-2000:]
        raise RecordingsUnavailable(f"{program} failed with status {done.returncode}: {said}")


def _fetch(packages: Sequence[str], work: Path) -> Path:
    """Download packages and unpack them into one folder, which is returned; nothing of the system is changed."""
    debs, root = work / "debs", work / "root"
    debs.mkdir()
    root.mkdir()
    try:
        _run(["apt-get", "download", "-q", *packages], folder=debs)
    except RecordingsUnavailable:
        # The system's package lists are missing or old: fetch them anew, to a place of our own.
        own = ["-o", f"Dir::State::lists={work}/lists", "-o", f"Dir::Cache={work}/apt"]
        (work / "lists" / "partial").mkdir(parents=True)
        (work / "apt" / "archives" / "partial").mkdir(parents=True)
        try:
            _run(["apt-get", *own, "update", "-q"])
            _run(["apt-get", *own, "download", "-q", *packages], folder=debs)
        except RecordingsUnavailable as error:
            raise RecordingsUnavailable(
                f"{error}. All packages are in section main of Debian 12: check apt's sources and the network"
            ) from None
    for deb in sorted(debs.iterdir()):
        _run(["dpkg-deb", "-x", str(deb), str(root)])
        deb.unlink()
    return root
