"""A WAV, AIFF or CAF that was cut short is known by its header, and one that was written to a pipe is not blamed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.media.chunks import lost_bytes
from pipeline.media.process import opened
from tests.media.conftest import MakeClip
from tests.media.test_looking import looked_at

TONE = ("-f", "lavfi", "-i", "sine=f=440:r=8000:d=20")


def lost(path: Path) -> int:
    with opened(os.fsencode(path)) as fd:
        return lost_bytes(fd)


@pytest.mark.parametrize("name", ["tone.wav", "tone.aiff", "tone.caf"])
def test_a_file_cut_short_says_how_much_is_there(make_clip: MakeClip, tmp_path: Path, name: str) -> None:
    whole = make_clip(name, *TONE)
    assert lost(whole) == 0 and looked_at(whole).remarks == ()
    cut = tmp_path / name
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 4])
    seen = looked_at(cut)
    assert lost(cut) == whole.stat().st_size - cut.stat().st_size
    assert seen.coverage == pytest.approx(0.25, abs=0.02) and seen.duration_s == pytest.approx(5.0, abs=0.2)
    assert {remark.code for remark in seen.remarks} == {"partial_decode"}


@pytest.mark.parametrize("claim", [0, 0x7FFFFFFF, 0xFFFFFFFF, 0xFFFFFFDB])
def test_a_placeholder_for_a_size_is_no_claim(make_clip: MakeClip, tmp_path: Path, claim: int) -> None:
    data = bytearray(make_clip("tone.wav", *TONE).read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = claim.to_bytes(4, "little")
    (tmp_path / "piped.wav").write_bytes(data)
    assert lost(tmp_path / "piped.wav") == 0
    assert looked_at(tmp_path / "piped.wav").coverage == 1.0


@pytest.mark.parametrize("data", [b"", b"RIFF", b"RIFF\0\0\0\0WAVE", b"RIFF\0\0\0\0WAVEfmt \xff\xff\xff\xff", b"ID3"])
def test_what_has_no_sound_chunk_claims_nothing(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "odd.wav").write_bytes(data)
    assert lost(tmp_path / "odd.wav") == 0


@pytest.mark.parametrize("claimed_bytes", [16_000, 160_000])
def test_sound_behind_its_claimed_end_is_heard(make_clip: MakeClip, tmp_path: Path, claimed_bytes: int) -> None:
    whole = bytearray(make_clip("tone.wav", *TONE).read_bytes())
    at = whole.index(b"data") + 4
    whole[at : at + 4] = claimed_bytes.to_bytes(4, "little")
    (tmp_path / "old_claim.wav").write_bytes(whole)
    seen = looked_at(tmp_path / "old_claim.wav")
    assert seen.duration_s == pytest.approx(20.0, abs=0.01) and seen.coverage == 1.0
    assert [remark.code for remark in seen.remarks] == ["wrong_duration"]


def test_chunks_and_padding_behind_the_sound_are_no_sound(make_clip: MakeClip, tmp_path: Path) -> None:
    whole = make_clip("tone.wav", *TONE).read_bytes()
    more = {"chunk": b"id3 " + (40_000).to_bytes(4, "little") + bytes(range(250)) * 160, "zeros": bytes(40_000)}
    for name, behind in more.items():
        (tmp_path / f"{name}.wav").write_bytes(whole + behind)
        seen = looked_at(tmp_path / f"{name}.wav")
        assert seen.duration_s == 20.0 and seen.remarks == ()
