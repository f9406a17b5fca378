"""A WAV, AIFF or CAF that was cut short is known by its header, and one that was written to a pipe is not blamed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.media.chunks import claim
from pipeline.media.process import opened
from pipeline.media.sizes import Claim
from tests.media.conftest import MakeClip
from tests.media.test_looking import looked_at

TONE = ("-f", "lavfi", "-i", "sine=f=440:r=8000:d=20")


def claimed(path: Path) -> Claim | None:
    with opened(os.fsencode(path)) as fd:
        return claim(fd)


@pytest.mark.parametrize("name", ["tone.wav", "tone.aiff", "tone.caf"])
def test_a_file_cut_short_says_how_much_is_there(make_clip: MakeClip, tmp_path: Path, name: str) -> None:
    whole = make_clip(name, *TONE)
    assert claimed(whole) is None and looked_at(whole).remarks == ()
    cut = tmp_path / name
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 4])
    seen = looked_at(cut)
    assert seen.coverage == pytest.approx(0.25, abs=0.02) and seen.duration_s == pytest.approx(5.0, abs=0.2)
    assert [remark.text for remark in seen.remarks if "claims" in remark.text] == [
        f"The header claims 20.0 s, {seen.duration_s:.1f} s are there."
    ]
    assert {remark.code for remark in seen.remarks} == {"partial_decode"}


@pytest.mark.parametrize(
    ("codec", "fact"),
    [("adpcm_ima_wav", True), ("adpcm_ms", False), ("mp2", True), ("mp2", False), ("pcm_f32le", True)],
)
def test_the_claim_is_right_whatever_bit_rate_the_header_names(
    make_clip: MakeClip, tmp_path: Path, codec: str, fact: bool
) -> None:
    """For ADPCM ffmpeg names a bit rate that is not the true one; not every writer says how many samples there are."""
    data = make_clip(f"{codec}.wav", "-f", "lavfi", "-i", "sine=f=440:r=44100:d=8", "-c:a", codec).read_bytes()
    cut = tmp_path / "cut.wav"
    cut.write_bytes((data if fact else data.replace(b"fact", b"junk"))[: len(data) // 2])
    seen = looked_at(cut)
    assert seen.coverage == pytest.approx(0.5, abs=0.02)
    assert any("claims 8.0 s" in remark.text for remark in seen.remarks)


@pytest.mark.parametrize("samples", [0, 1])
def test_a_fact_that_cannot_be_is_not_believed(make_clip: MakeClip, tmp_path: Path, samples: int) -> None:
    data = bytearray(make_clip("fact.wav", *TONE, "-ar", "16000", "-c:a", "mp2").read_bytes())
    at = data.index(b"fact") + 8
    data[at : at + 4] = samples.to_bytes(4, "little")
    (tmp_path / "cut.wav").write_bytes(data[: len(data) // 2])
    found = claimed(tmp_path / "cut.wav")
    assert found is not None and found.times == pytest.approx(2.0, abs=0.01)
    assert looked_at(tmp_path / "cut.wav").coverage == pytest.approx(0.5, abs=0.02)


def test_a_long_wav_cut_short_is_known_by_its_long_size(make_clip: MakeClip, tmp_path: Path) -> None:
    data = make_clip("long_tone.wav", *TONE, "-rf64", "always").read_bytes()
    (tmp_path / "cut.wav").write_bytes(data[: len(data) // 4])
    found = claimed(tmp_path / "cut.wav")
    assert data[:4] == b"RF64" and found is not None and found.length_s == 20.0
    assert looked_at(tmp_path / "cut.wav").coverage == pytest.approx(0.25, abs=0.02)


@pytest.mark.parametrize("size", [0, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFDB])
def test_a_placeholder_for_a_size_is_no_claim(make_clip: MakeClip, tmp_path: Path, size: int) -> None:
    data = bytearray(make_clip("tone.wav", *TONE).read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = size.to_bytes(4, "little")
    (tmp_path / "piped.wav").write_bytes(data)
    assert claimed(tmp_path / "piped.wav") is None
    assert looked_at(tmp_path / "piped.wav").coverage == 1.0


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff", b"ID3"),
        *(b"caff\0\1\0\0desc" + b"\xff" * 8, b"RF64\xff\xff\xff\xffWAVEds64" + b"\xff" * 40 + b"data" + b"\xff" * 9),
    ],
)
def test_what_has_no_sound_chunk_claims_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "odd.wav").write_bytes(data or b"\0")
    assert claimed(tmp_path / "odd.wav") is None
