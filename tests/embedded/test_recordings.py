"""Recordings are cut, joined and kept as they should be; none of this needs the packages they come from."""

from __future__ import annotations

import random
import sys
from pathlib import Path

import numpy as np
import pytest

from pipeline.embedded import recordings
from pipeline.embedded.recording_list import SOURCES, UTTERANCES_PER_FLITE_VOICE, espeak_voices
from pipeline.embedded.recordings import (
    LONGEST_SPEECH_S,
    RATE_HZ,
    SHORTEST_S,
    Pcm,
    Pools,
    Recording,
    RecordingsUnavailable,
    at_full_level,
    default_cache,
    is_clipped,
    is_tone,
    load_recordings,
    music_pieces,
    read_sentences,
    split_at_pauses,
    stretches,
    trimmed,
)


def silence(length_s: float) -> Pcm:
    return np.zeros(int(length_s * RATE_HZ), np.int16)


def noise(length_s: float, level: float = 0.2, seed: int = 0) -> Pcm:
    samples = np.random.default_rng(seed).normal(0, level * 32767, int(length_s * RATE_HZ))
    return np.clip(samples, -32768, 32767).astype(np.int16)


def tone(length_s: float, pitch_hz: float) -> Pcm:
    times_s = np.arange(int(length_s * RATE_HZ)) / RATE_HZ
    return np.asarray(np.sin(2 * np.pi * pitch_hz * times_s) * 20_000, np.int16)


def vowel(length_s: float) -> Pcm:
    """Return something with the harmonics, the gliding pitch and the beat of speech."""
    times_s = np.arange(int(length_s * RATE_HZ)) / RATE_HZ
    phase = 2 * np.pi * np.cumsum(120 + 30 * np.sin(2 * np.pi * 0.7 * times_s)) / RATE_HZ
    voice = sum(np.sin(number * phase) / number for number in range(1, 20))
    return np.asarray(voice * (1 + np.sin(2 * np.pi * 4 * times_s)) * 5_000, np.int16)


# ---- cutting and joining


def test_silence_and_steady_noise_around_what_is_heard_go() -> None:
    for around in (silence, lambda length_s: noise(length_s, 0.002)):
        kept = trimmed(np.concatenate([around(1.0), noise(0.7, seed=1), around(0.5), noise(0.3, seed=2), around(2.0)]))

        assert len(kept) / RATE_HZ == pytest.approx(1.5, abs=0.1)


def test_a_click_beside_the_voice_is_not_kept() -> None:
    click = silence(1.0)
    click[100:150] = 15_000

    assert len(trimmed(np.concatenate([click, noise(1.0)]))) / RATE_HZ == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("pcm", [silence(0), silence(0.01), silence(2.0)], ids=["empty", "short", "silent"])
def test_of_silence_nothing_is_left(pcm: Pcm) -> None:
    assert not len(trimmed(pcm))
    assert not len(at_full_level(trimmed(pcm)))


def test_the_peak_is_at_nine_tenths_whatever_it_was() -> None:
    for pcm in (vowel(1.0), vowel(1.0) // 50, vowel(1.0) // 4 + 3000):
        levelled = at_full_level(pcm)

        assert levelled.dtype == np.int16
        assert np.abs(levelled.astype(int)).max() == pytest.approx(0.9 * 32767, abs=2)
        assert abs(int(levelled[0])) < 500 and abs(int(levelled[-1])) < 500


def test_what_is_too_long_is_cut_in_its_pauses() -> None:
    parts = [noise(length_s, seed=number) for number, length_s in enumerate((4.0, 5.0, 6.0, 3.0))]
    pcm = np.concatenate([sound for part in parts for sound in (part, silence(0.3))])

    cut = split_at_pauses(pcm, 8.0)

    assert np.array_equal(np.concatenate(cut), pcm)
    assert all(len(part) <= 8.0 * RATE_HZ for part in cut)
    assert all(not part[-400:].any() for part in cut[:-1])


def test_short_utterances_are_joined_with_pauses_and_long_ones_stay() -> None:
    short = [at_full_level(noise(0.4, seed=number)) for number in range(60)]
    long = [noise(8.0, seed=100 + number) for number in range(3)]

    made = stretches(iter([*short, *long]), 1000, random.Random(1))

    assert all(SHORTEST_S * RATE_HZ <= len(stretch) <= LONGEST_SPEECH_S * RATE_HZ for stretch in made)
    assert sum(len(stretch) for stretch in made) > sum(len(part) for part in (*short, *long)) * 0.95
    joined = next(stretch for stretch in made if len(stretch) < 5 * RATE_HZ)
    silent_s = np.count_nonzero(np.abs(joined) < 10) / RATE_HZ
    assert 0.1 <= silent_s < len(joined) / RATE_HZ / 2


def test_of_a_voice_no_more_is_read_than_wanted() -> None:
    read = 0

    def utterances() -> object:
        nonlocal read
        for number in range(1000):
            read += 1
            yield noise(1.0, seed=number % 7)

    made = stretches(utterances(), 20.0, random.Random(1))  # type: ignore[arg-type]

    assert 20.0 <= sum(len(stretch) for stretch in made) / RATE_HZ < 35.0
    assert read < 35


def test_a_single_short_word_makes_no_recording() -> None:
    assert stretches([noise(0.5)], 60.0, random.Random(1)) == []


def test_music_is_cut_all_over_the_track_and_not_where_it_is_quiet() -> None:
    track = np.concatenate([noise(60, seed=1), noise(60, 0.001, seed=2), noise(60, seed=3)])

    pieces = music_pieces(track, 100.0, random.Random(1))

    assert all(5 * RATE_HZ <= len(piece) <= 20 * RATE_HZ for piece in pieces)
    assert 40 < sum(len(piece) for piece in pieces) / RATE_HZ < 120
    assert len({piece[1000:2000].tobytes() for piece in pieces}) == len(pieces)


def test_of_short_music_there_is_one_piece_and_of_a_jingle_none() -> None:
    assert [len(piece) for piece in music_pieces(noise(12), 100.0, random.Random(1))] == [12 * RATE_HZ]
    assert music_pieces(noise(3), 100.0, random.Random(1)) == []


def test_beeps_are_told_from_speech() -> None:
    assert is_tone(tone(0.5, 1000)) and is_tone(tone(2.0, 440))
    assert not is_tone(vowel(2.0)) and not is_tone(noise(1.0)) and not is_tone(silence(1.0)) and not is_tone(silence(0))


def test_clipped_recordings_are_noticed() -> None:
    assert is_clipped(np.clip(vowel(1.0), -3000, 3000))
    assert not is_clipped(vowel(1.0)) and not is_clipped(noise(1.0))


# ---- synthetic voices


def test_there_are_sentences_for_every_synthetic_voice() -> None:
    texts = read_sentences()

    for language, _, _ in espeak_voices():
        assert len(set(texts[language.split("-")[0]])) >= 4
    assert len(texts["en"]) >= UTTERANCES_PER_FLITE_VOICE
    assert all(20 < len(sentence) < 120 or not sentence.isascii() for some in texts.values() for sentence in some)


# ---- the cache


def some_pools() -> Pools:
    def one(voice: str, seed: int) -> Recording:
        return Recording(
            "music" if voice.startswith("moh") else "speech", voice, "espeak" not in voice, noise(2, 0.1, seed)
        )

    return Pools(
        train=(one("asterisk:en", 1), one("espeak:de+f1", 2), one("moh:reno_project", 3)),
        held_out=(one("asterisk:it", 4), one("klettres:lt", 5)),
    )


@pytest.fixture
def builds(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Let `some_pools` be what a build gives, and return the list of the builds."""
    done: list[Path] = []

    def build(cache: Path) -> Pools:
        done.append(cache)
        return some_pools()

    monkeypatch.setattr(recordings, "_build", build)
    return done


def test_what_is_built_once_is_read_back_the_same(tmp_path: Path, builds: list[Path]) -> None:
    cache = tmp_path / "not" / "there"

    for pools in (load_recordings(cache), load_recordings(cache)):
        for loaded, expected in zip(
            (pools.train, pools.held_out), (some_pools().train, some_pools().held_out), strict=True
        ):
            for one, other in zip(loaded, expected, strict=True):
                assert (one.kind, one.voice, one.real) == (other.kind, other.voice, other.real)
                assert one.pcm.dtype == np.int16 and np.array_equal(one.pcm, other.pcm)
    assert builds == [cache]


@pytest.mark.parametrize("harm", ["version", "samples", "no index", "no samples"])
def test_a_cache_that_is_old_or_incomplete_is_built_anew(
    tmp_path: Path, builds: list[Path], monkeypatch: pytest.MonkeyPatch, harm: str
) -> None:
    load_recordings(tmp_path)
    if harm == "version":
        monkeypatch.setattr(recordings, "VERSION", recordings.VERSION + 1)
    elif harm == "samples":
        (tmp_path / recordings.SAMPLES_NAME).write_bytes(b"1234")
    else:
        (tmp_path / (recordings.INDEX_NAME if harm == "no index" else recordings.SAMPLES_NAME)).unlink()

    pools = load_recordings(tmp_path)

    assert len(builds) == 2
    assert len(pools.train) == 3 and len(pools.held_out) == 2


def test_the_default_cache_is_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "l1-triage" / "recordings"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    assert default_cache() == Path("~/.cache").expanduser() / "l1-triage" / "recordings"


# ---- when they cannot be built


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!{sys.executable}\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder with the only programs there are."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    for name in ("ffmpeg", "dpkg-deb"):
        program(folder, name, "")
    return folder


def test_without_apt_get_the_message_says_what_to_do(tmp_path: Path, programs: Path) -> None:
    with pytest.raises(RecordingsUnavailable, match=r"apt-get cannot be found.*Debian 12"):
        load_recordings(tmp_path / "cache")


def test_a_package_that_cannot_be_had_is_named_and_nothing_stays_behind(tmp_path: Path, programs: Path) -> None:
    program(programs, "apt-get", "import sys; sys.exit('E: Unable to locate package klettres-data')")

    with pytest.raises(RecordingsUnavailable, match=r"Unable to locate package klettres-data.*check apt's sources"):
        load_recordings(tmp_path / "cache")

    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["lock"]


def test_package_lists_of_its_own_are_used_where_the_systems_do_not_do(tmp_path: Path, programs: Path) -> None:
    own_lists = "import pathlib, sys; own = any('Dir::State::lists' in word for word in sys.argv)"
    download = "own or sys.exit('E: no lists'); 'download' in sys.argv and pathlib.Path('some.deb').touch()"
    program(programs, "apt-get", f"{own_lists}; {download}")
    program(
        programs,
        "dpkg-deb",
        "import pathlib, sys; (pathlib.Path(sys.argv[3]) / pathlib.Path(sys.argv[2]).stem).touch()",
    )

    root = recordings._fetch(["some"], tmp_path)

    assert [path.name for path in root.iterdir()] == ["some"]
    assert not list((tmp_path / "debs").iterdir())


def test_a_package_with_other_contents_is_noticed(tmp_path: Path) -> None:
    with pytest.raises(RecordingsUnavailable, match="nothing of asterisk:en"):
        recordings._recorded(SOURCES[0], tmp_path, tmp_path)
