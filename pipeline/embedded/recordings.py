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

Pcm = NDArray[np.int16]

RATE_HZ = 16_000
SHORTEST_S = 1.5
LONGEST_SPEECH_S = 12.0
LONGEST_MUSIC_S = 20.0

# Raised whenever the same packages would give other recordings; a cache of another version is built anew.
VERSION = 1
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
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "l1-triage" / "recordings"


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


# ---- the packages and what is taken from them


@dataclass(frozen=True, slots=True)
class Package:
    """A Debian package that is used, for the model card."""

    name: str
    what: str
    licence: str


PACKAGES = (
    Package("espeak-ng", "speech synthesiser", "GPL-3+"),
    Package("espeak-ng-data", "its voices", "GPL-3+"),
    Package("libespeak-ng1", "its library", "GPL-3+"),
    Package("libpcaudio0", "library it loads", "GPL-3+"),
    Package("libsonic0", "library it loads", "Apache-2.0"),
    Package("asterisk-core-sounds-en-g722", "telephone prompts, Allison Smith", "CC-BY-SA-3.0"),
    Package("asterisk-core-sounds-es-g722", "telephone prompts, Allison Smith", "CC-BY-SA-3.0"),
    Package("asterisk-core-sounds-fr-g722", "telephone prompts, June Wallack", "CC-BY-SA-3.0"),
    Package("asterisk-core-sounds-it-g722", "telephone prompts, Carlo Flora", "CC-BY-SA-3.0"),
    Package("asterisk-core-sounds-ru-g722", "telephone prompts, ivrvoice.ru", "CC-BY-3.0"),
    Package("asterisk-prompt-es-co", "telephone prompts, July E. Jiménez", "GPL-2"),
    Package("asterisk-prompt-fr-armelle", "telephone prompts, Armelle Desjardins", "BSD-style"),
    Package("asterisk-prompt-it-menardi-gsm", "telephone prompts, Paola Dal Zot and Marco Menardi", "CC-BY-SA-3.0-IT"),
    Package("fillets-ng-data-cs", "dialogues in Czech", "GPL-2"),
    Package("fillets-ng-data-nl", "dialogues in Dutch", "GPL-2"),
    Package("pocketsphinx-testdata", "read English", "BSD-2-Clause"),
    Package("klettres-data", "letters and syllables in many languages", "GPL-2+"),
    Package("asterisk-moh-opsound-g722", "music on hold", "CC-BY-SA-3.0"),
    Package("tecnoballz-data", "tracker music", "GPL-3+"),
)


@dataclass(frozen=True, slots=True)
class Source:
    """Where one voice, or one source of music, comes from."""

    kind: Literal["speech", "music"]
    voice: str
    files: str
    """Pattern of its files below the root that all packages are unpacked into."""
    most_s: float
    """No more than this is taken."""
    held_out: bool = False
    skip: str = r"(?!)"
    """Files whose path has a match of this are left out."""


_ASTERISK = "usr/share/asterisk/sounds"
_NO_SPEECH = r"/silence/|/beep|tone|tt-monkeys|tt-weasels|/letters/|/phonetic/.*_p$"


def _prompts(voice: str, folder: str, most_s: float = 100.0, held_out: bool = False) -> Source:
    files = f"{_ASTERISK}/{folder}/**/*.*"
    return Source("speech", f"asterisk:{voice}", files, most_s, held_out, _NO_SPEECH)


def _fillets(language: str, who: str, letter: str, held_out: bool = False) -> Source:
    files = f"usr/share/games/fillets-ng/sound/*/{language}/*-{letter}-*.ogg"
    return Source("speech", f"fillets:{language}-{who}", files, 180.0, held_out)


def _klettres(language: str, held_out: bool = False) -> Source:
    files = f"usr/share/klettres/{language}/*/*.ogg"
    return Source("speech", f"klettres:{language}", files, 25.0, held_out)


def _track(voice: str, files: str, most_s: float = 75.0, held_out: bool = False) -> Source:
    return Source("music", voice, files, most_s, held_out)


_KLETTRES_TRAIN = (
    "ar",
    "cs",
    "de",
    "en",
    "en_GB",
    "es",
    "fr",
    "he",
    "it",
    "ml",
    "nb",
    "nds",
    "nl",
    "pt_BR",
    "ru",
    "tn",
)
_KLETTRES_HELD_OUT = ("da", "hu", "lt", "uk")

_MOH = "usr/share/asterisk/moh"
_TECNOBALLZ = "usr/share/games/tecnoballz/musics"

SOURCES = (
    _prompts("en", "en_US_f_Allison"),
    _prompts("es", "es_MX_f_Allison"),
    _prompts("fr", "fr_CA_f_June"),
    _prompts("it", "it_IT_m_Carlo", held_out=True),
    _prompts("ru", "ru_RU_f_IvrvoiceRU"),
    _prompts("es-co", "es", most_s=70.0),
    _prompts("fr-armelle", "fr", most_s=70.0, held_out=True),
    _prompts("it-menardi", "it_IT_f_Menardi", most_s=70.0),
    _fillets("cs", "small", "m"),
    _fillets("cs", "big", "v"),
    _fillets("nl", "small", "m", held_out=True),
    _fillets("nl", "big", "v"),
    Source("speech", "pocketsphinx:librivox", "usr/share/pocketsphinx/**/librivox/*.wav", 60.0),
    Source("speech", "pocketsphinx:cards", "usr/share/pocketsphinx/**/cards/*.wav", 60.0, True),
    *(_klettres(language) for language in _KLETTRES_TRAIN),
    *(_klettres(language, held_out=True) for language in _KLETTRES_HELD_OUT),
    _track("moh:macroform", f"{_MOH}/macroform-*", most_s=300.0),
    _track("moh:reno_project", f"{_MOH}/reno_project-*", most_s=150.0),
    _track("moh:manolo_camp", f"{_MOH}/manolo_camp-*", most_s=120.0, held_out=True),
    _track("tecnoballz:area", f"{_TECNOBALLZ}/area*", most_s=300.0),
    _track("tecnoballz:reg", f"{_TECNOBALLZ}/*_reg*", most_s=120.0, held_out=True),
)

# espeak-ng: a voice is a language in a variant. Of the held-out languages only held-out variants speak, of the others
# only the others, so neither the language nor the variant of a held-out voice is ever trained on.
ESPEAK_TRAIN = (
    *("en-us", "en-gb", "en-gb-scotland", "de", "fr-fr", "es", "es-419", "it", "pt-br", "nl", "pl", "cs", "ru", "uk"),
    *("fi", "nb", "hu", "bg", "ar", "hi", "cmn", "ja", "sw"),
)
ESPEAK_HELD_OUT = ("sv", "tr", "el", "ro", "id", "ko")
VARIANTS_TRAIN = ("m1", "m2", "m3", "m5", "m7", "m8", "f1", "f3", "f4", "f5", "croak", "whisper", "Alex", "Annie")
VARIANTS_HELD_OUT = ("m4", "m6", "f2", "Andrea", "steph")
VARIANTS_PER_LANGUAGE = 4
UTTERANCES_PER_ESPEAK_VOICE = 3

FLITE_TRAIN = ("kal", "awb", "slt")
FLITE_HELD_OUT = ("rms",)
UTTERANCES_PER_FLITE_VOICE = 14


# ---- the cache


def _read(cache: Path) -> Pools | None:
    """Return what is kept in `cache`; None if that is nothing, not all, or of another version."""
    try:
        index = json.loads((cache / INDEX_NAME).read_text())
        samples: Pcm = np.memmap(cache / SAMPLES_NAME, np.int16, "r").view(np.ndarray)
    except (OSError, ValueError):
        return None
    if index["version"] != VERSION or index["samples"] != len(samples):
        return None
    train, held_out, start = [], [], 0
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
    _say(f"fetching {len(PACKAGES)} Debian packages into {cache} (about 250 MB, this once; only the samples stay)")
    pools: dict[bool, list[Recording]] = {False: [], True: []}
    with TemporaryDirectory(dir=cache, prefix="build-") as name:
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
    files = [path for path in root.glob(source.files) if path.is_file() and not re.search(source.skip, str(path))]
    files.sort()
    if source.kind == "speech":
        chance = random.Random(source.voice)
        chance.shuffle(files)
        pieces = stretches(_utterances(files, work), source.most_s, chance)
    else:
        pieces = [piece for pcm in decoded(files, work) for piece in music_pieces(pcm, source.most_s / len(files))]
    if not pieces:
        raise RecordingsUnavailable(
            f"there is nothing of {source.voice} (no {source.files}) in this system's packages, whose contents differ "
            "from those of Debian 12; build the recordings there"
        )
    return [Recording(source.kind, source.voice, True, piece) for piece in pieces]


def _utterances(files: Sequence[Path], work: Path) -> Iterator[Pcm]:
    """Decode what is spoken in each file, as far as it is asked for; files with tones are left out."""
    for pcm in decoded(files, work):
        spoken = trimmed(pcm)
        if len(spoken) > 0.1 * RATE_HZ and not is_tone(spoken):
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


def espeak_voices() -> Iterator[tuple[str, str, bool]]:
    """Yield language, variant and whether it is held out, for each of espeak-ng's voices."""
    for languages, variants, held_out in (
        (ESPEAK_TRAIN, VARIANTS_TRAIN, False),
        (ESPEAK_HELD_OUT, VARIANTS_HELD_OUT, True),
    ):
        for number, language in enumerate(languages):
            for step in range(VARIANTS_PER_LANGUAGE):
                yield language, variants[(number * VARIANTS_PER_LANGUAGE + step) % len(variants)], held_out


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
        _run([str(root / "usr/bin/espeak-ng"), "-v", f"{language}+{variant}", *how, said], environ=environ)
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
    heard = np.flatnonzero(levels > max(loud - 40, min(floor + 6, loud - 20), -65.0))
    if not len(heard):
        return pcm[:0]
    frame = int(0.02 * RATE_HZ)
    return pcm[max(heard[0] - 1, 0) * frame : (heard[-1] + 3) * frame]


def at_full_level(pcm: Pcm) -> Pcm:
    """Return `pcm` with its peak at 0.9 of full scale and its ends faded so that they do not click."""
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


def music_pieces(pcm: Pcm, most_s: float) -> list[Pcm]:
    """Cut a track into pieces of 5 to 20 s, spread over it, `most_s` in all; quiet passages are left out."""
    heard = trimmed(pcm)
    chance = random.Random(len(heard))
    lengths: list[int] = []
    while sum(lengths) < min(most_s * RATE_HZ, len(heard) - 20 * RATE_HZ):
        lengths.append(int(chance.uniform(5, 20) * RATE_HZ))
    if not lengths and len(heard) >= 5 * RATE_HZ:
        lengths = [min(len(heard), int(LONGEST_MUSIC_S * RATE_HZ))]
    spare = (len(heard) - sum(lengths)) // max(len(lengths), 1)
    pieces, start = [], 0
    for length in lengths:
        piece = heard[start : start + length]
        start += length + spare
        levels = _levels_db(piece)
        if np.mean(levels > -45) > 0.8:
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


# ---- programs


def decoded(files: Sequence[Path], work: Path) -> Iterator[Pcm]:
    """Decode files to mono 16 kHz, several by one ffmpeg, as far as they are asked for."""
    at_once = 24
    for first in range(0, len(files), at_once):
        some = files[first : first + at_once]
        arguments = [argument for path in some for argument in ("-i", str(path))]
        for number in range(len(some)):
            form = ["-ac", "1", "-ar", str(RATE_HZ), "-f", "s16le"]
            arguments += ["-map", f"{number}:a:0", *form, f"decoded-{number}"]
        _ffmpeg(arguments, work)
        for number in range(len(some)):
            yield np.fromfile(work / f"decoded-{number}", "<i2").astype(np.int16, copy=False)


def _ffmpeg(arguments: Sequence[str], work: Path) -> None:
    _run(["ffmpeg", "-v", "error", "-nostdin", "-y", "-threads", "1", *arguments], folder=work)


def _run(command: Sequence[str], folder: Path | None = None, environ: dict[str, str] | None = None) -> None:
    """Run a program. Raises RecordingsUnavailable if it is missing or fails."""
    program = Path(command[0]).name
    try:
        done = subprocess.run(
            command, cwd=folder, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
    except OSError as error:
        raise RecordingsUnavailable(
            f"{program} cannot be run ({error.strerror}). The recordings come from Debian packages, by apt-get and "
            "dpkg-deb, and are decoded by Debian's ffmpeg: build them on Debian 12, then copy the cache folder"
        ) from None
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
        _run(["apt-get", *own, "update", "-q"])
        _run(["apt-get", *own, "download", "-q", *packages], folder=debs)
    for deb in sorted(debs.iterdir()):
        _run(["dpkg-deb", "-x", str(deb), str(root)])
        deb.unlink()
    return root
