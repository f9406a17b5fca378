"""Of two recordings in one file ffmpeg reads one: the answer says so; films in many pieces are one recording."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from pipeline.media.joined import joined
from pipeline.media.process import opened
from pipeline.records import Remark
from tests.media.conftest import MakeClip
from tests.media.test_looking import looked_at

SOUND = ("-f", "lavfi", "-i", "sine=f=440:r=8000:d=3")
PICTURES = ("-f", "lavfi", "-i", "testsrc=s=64x64:r=10:d=3", "-g", "5")
FAST = ("-movflags", "faststart")
FRAGMENTS = ("-movflags", "frag_keyframe+empty_moov")
DASH = ("-movflags", "dash+frag_keyframe+delay_moov")
RECORDINGS = [
    *(("one.wav", SOUND), ("one.aiff", SOUND), ("one.m4a", SOUND), ("one_long.wav", (*SOUND, "-rf64", "always"))),
    *(("one.mp4", PICTURES), ("one_fast.mp4", (*PICTURES, *FAST))),
    *(("one.mov", PICTURES), ("one_fast.mov", (*PICTURES, *FAST))),
    *(("one_in_pieces.mp4", (*PICTURES, *FRAGMENTS)), ("one_dash.mp4", (*PICTURES, *DASH))),
]


def remark(path: Path) -> str | None:
    with opened(os.fsencode(path)) as fd:
        found = joined(fd)
    return None if found is None else found.text


@pytest.mark.parametrize(("name", "arguments"), RECORDINGS)
def test_a_second_recording_is_named_and_a_single_one_is_not(
    make_clip: MakeClip, tmp_path: Path, name: str, arguments: tuple[str, ...]
) -> None:
    one = make_clip(name, *arguments)
    assert remark(one) is None and looked_at(one).remarks == ()
    two = tmp_path / name
    two.write_bytes(one.read_bytes() * 2)
    text = "Another recording follows in the same file; it is neither heard nor seen."
    assert Remark("tracks_ignored", text) in looked_at(two).remarks


def test_a_second_chunk_of_sound_is_named(make_clip: MakeClip, tmp_path: Path) -> None:
    data = make_clip("one.wav", *SOUND).read_bytes()
    at = data.index(b"data")
    for between in (b"", b"LIST\4\0\0\0INFO"):
        (tmp_path / "two.wav").write_bytes(data + between + data[at:])
        text = "The sound lies in several chunks; one of them alone is heard."
        assert [(said.code, said.text) for said in looked_at(tmp_path / "two.wav").remarks] == [
            ("tracks_ignored", text)
        ]


def test_a_second_recording_that_is_heard_is_not_named(make_clip: MakeClip, tmp_path: Path) -> None:
    """The first's old claim has it heard to the end of the file."""
    data = bytearray(make_clip("one.wav", *SOUND).read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = (16_000).to_bytes(4, "little")
    (tmp_path / "two.wav").write_bytes(data * 2)
    seen = looked_at(tmp_path / "two.wav")
    assert seen.duration_s == pytest.approx(6.0, abs=0.1)
    assert [said.code for said in seen.remarks] == ["wrong_duration"]


@pytest.mark.parametrize(
    ("boxes", "twice"),
    [
        ("ftyp moov mdat free mdat mdat free", False),
        ("ftyp moov styp moof mdat styp moof mdat mfra", False),
        ("ftyp moov mdat ftyp mdat", False),
        ("wide mdat moov", False),
        ("moov mdat uuid ftyp free mdat moov", True),
        ("ftyp mdat moov free ftyp moov mdat", True),
    ],
)
def test_it_takes_a_second_ftyp_and_moov_to_begin_anew(tmp_path: Path, boxes: str, twice: bool) -> None:
    data = b"".join((12).to_bytes(4, "big") + name.encode() + bytes(4) for name in boxes.split())
    (tmp_path / "boxes.mp4").write_bytes(data)
    assert (remark(tmp_path / "boxes.mp4") is not None) is twice


@pytest.mark.parametrize("size", [0, 1, 2, 7, 8, 0xFFFFFFFF])
def test_a_walk_over_boxes_ends(tmp_path: Path, size: int) -> None:
    """Sizes that lead nowhere, to the file's end or far behind it; and more boxes than any film has."""
    lie = size.to_bytes(4, "big") + b"mdat" + b"\xff" * 8
    (tmp_path / "lies.mp4").write_bytes(b"\0\0\0\x08ftyp\0\0\0\x08moov" + lie + b"\0\0\0\x08free" * 200_000)
    begun = time.monotonic()
    assert remark(tmp_path / "lies.mp4") is None
    assert time.monotonic() - begun < 2.0
