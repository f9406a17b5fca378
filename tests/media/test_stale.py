"""Sound behind the end that a WAV's header claims is heard; chunks, tags and padding there are no sound."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from pipeline.media.process import opened
from pipeline.media.stale import understated
from tests.media.conftest import MakeClip
from tests.media.test_looking import looked_at

TONE = ("-f", "lavfi", "-i", "sine=f=440:r=8000:d=20")
HUM = ("-f", "lavfi", "-i", "aevalsrc='-0.45+0.1*sin(2*PI*100*t)':s=8000:d=20", "-c:a", "pcm_u8")
"""Every byte of it is a printable character."""


def goes_on(path: Path) -> bool:
    with opened(os.fsencode(path)) as fd:
        return understated(fd)


def with_claim(data: bytes, claimed_bytes: int) -> bytes:
    at = data.index(b"data") + 4
    return data[:at] + claimed_bytes.to_bytes(4, "little") + data[at + 4 :]


def test_sound_behind_its_claimed_end_is_heard(make_clip: MakeClip, tmp_path: Path) -> None:
    tone, hum = make_clip("tone.wav", *TONE).read_bytes(), make_clip("hum.wav", *HUM).read_bytes()
    assert not goes_on(make_clip("tone.wav", *TONE)) and not goes_on(make_clip("hum.wav", *HUM))
    for claimed_bytes, data in ((16_000, tone), (160_000, tone), (40_000, hum), (40_033, hum)):
        (tmp_path / "old_claim.wav").write_bytes(with_claim(data, claimed_bytes))
        seen = looked_at(tmp_path / "old_claim.wav")
        assert seen.duration_s == pytest.approx(20.0, abs=0.01) and seen.coverage == 1.0
        assert "wrong_duration" in [remark.code for remark in seen.remarks]


@pytest.mark.parametrize("silent_s", [1.0, 60.0])
def test_silence_at_the_claimed_end_hides_no_sound(make_clip: MakeClip, tmp_path: Path, silent_s: float) -> None:
    data = make_clip("tone.wav", *TONE).read_bytes()
    at = data.index(b"data") + 8 + 80_000
    stale = with_claim(data[:at] + bytes(int(16_000 * silent_s)) + data[at:], 80_000)
    (tmp_path / "silent.wav").write_bytes(stale)
    seen = looked_at(tmp_path / "silent.wav")
    assert seen.duration_s == pytest.approx(20.0 + silent_s, abs=0.1)


@pytest.mark.parametrize("name", [b"RF64", b"BW64"])
@pytest.mark.parametrize("claimed_bytes", [0, 80_000])
def test_a_long_wav_with_an_old_claim_is_heard(
    make_clip: MakeClip, tmp_path: Path, name: bytes, claimed_bytes: int
) -> None:
    data = bytearray(make_clip("long_tone.wav", *TONE, "-rf64", "always").read_bytes())
    assert data[12:16] == b"ds64" and not goes_on(make_clip("long_tone.wav", *TONE, "-rf64", "always"))
    data[:4], data[28:44] = name, struct.pack("<QQ", claimed_bytes, claimed_bytes // 2)
    (tmp_path / "old_claim.wav").write_bytes(data)
    seen = looked_at(tmp_path / "old_claim.wav")
    assert seen.duration_s == pytest.approx(20.0, abs=0.01) and seen.coverage == 1.0


CHUNK = b"id3 " + (40_000).to_bytes(4, "little") + bytes(range(250)) * 160
ODD_CHUNK = b"LIST" + (39_999).to_bytes(4, "little") + bytes(range(1, 250)) * 160 + bytes(159)


@pytest.mark.parametrize(
    "behind",
    [
        *(CHUNK, CHUNK + CHUNK, CHUNK[:30_000], CHUNK + bytes(40_000), bytes(40_000), bytes(2_000_000)),
        *(ODD_CHUNK, ODD_CHUNK + b"\0", ODD_CHUNK + CHUNK, ODD_CHUNK + b"\0" + CHUNK),
        *(
            b"ID3\3\0\0" + CHUNK,
            b"APETAGEX" + CHUNK,
            CHUNK[9:1000],
            b"RIFF\xff\xff\xff\xffWAVE" + bytes(range(250)) * 80,
        ),
    ],
)
def test_chunks_tags_and_padding_behind_the_sound_are_no_sound(
    make_clip: MakeClip, tmp_path: Path, behind: bytes
) -> None:
    (tmp_path / "more.wav").write_bytes(make_clip("tone.wav", *TONE).read_bytes() + behind)
    assert not goes_on(tmp_path / "more.wav")


def test_nothing_is_said_of_chunks_behind_the_sound(make_clip: MakeClip, tmp_path: Path) -> None:
    (tmp_path / "more.wav").write_bytes(make_clip("tone.wav", *TONE).read_bytes() + CHUNK)
    seen = looked_at(tmp_path / "more.wav")
    assert seen.duration_s == 20.0 and seen.remarks == ()


def test_a_byte_of_padding_left_out_moves_no_chunk(make_clip: MakeClip, tmp_path: Path) -> None:
    data = with_claim(make_clip("hum.wav", *HUM).read_bytes()[:50_001], 50_001 - 44 - 34)
    at = data.index(b"data") + 8
    odd = with_claim(data[: at + 40_001], 40_001)
    for behind in (CHUNK, b"\0" + CHUNK):
        (tmp_path / "odd.wav").write_bytes(odd + behind)
        assert not goes_on(tmp_path / "odd.wav")
