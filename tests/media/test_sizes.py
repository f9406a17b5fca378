"""An AVI or WMV that was cut short is not taken for whole; live ones and whole ones are not blamed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pipeline.media.process import opened
from pipeline.media.sizes import _FILE_PROPERTIES, Claim, claim
from tests.media.conftest import MakeClip
from tests.media.test_looking import looked_at

FILM = ("-f", "lavfi", "-i", "testsrc=s=160x120:r=25:d=10", "-f", "lavfi", "-i", "sine=f=440:r=44100:d=10")
CODECS = {"avi": ("-c:v", "mpeg4", "-c:a", "mp3"), "wmv": ("-c:v", "wmv2", "-c:a", "wmav2")}
KINDS = ["film.avi", "film.wmv", "sound.avi", "pictures.avi", "pictures.wmv"]


def clip(make_clip: MakeClip, name: str) -> Path:
    inputs = {"film": FILM, "sound": FILM[4:], "pictures": FILM[:4]}[name.split(".", maxsplit=1)[0]]
    codecs = CODECS[name[-3:]]
    return make_clip(f"sized_{name}", *inputs, *(codecs[2:] if name.startswith("sound") else codecs))


def claimed(path: Path) -> Claim | None:
    with opened(os.fsencode(path)) as fd:
        return claim(fd)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("percent", [30, 50, 80])
def test_what_is_missing_of_a_file_cut_short_is_missed(
    make_clip: MakeClip, tmp_path: Path, name: str, percent: int
) -> None:
    whole = clip(make_clip, name)
    assert claimed(whole) is None
    data, cut = whole.read_bytes(), tmp_path / name
    cut.write_bytes(data[: len(data) * percent // 100])
    seen = looked_at(cut)
    assert seen.coverage == pytest.approx(percent / 100, abs=0.06)
    assert "partial_decode" in {remark.code for remark in seen.remarks}


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_said_of_a_whole_file(make_clip: MakeClip, name: str) -> None:
    seen = looked_at(clip(make_clip, name))
    assert seen.coverage == 1.0 and seen.remarks == () and seen.duration_s == pytest.approx(10.0, abs=0.2)


def test_an_avi_that_lacks_its_index_alone_is_whole(make_clip: MakeClip, tmp_path: Path) -> None:
    data = clip(make_clip, "film.avi").read_bytes()
    (tmp_path / "film.avi").write_bytes(data[: data.rindex(b"idx1")])
    seen = looked_at(tmp_path / "film.avi")
    assert seen.coverage == 1.0 and seen.remarks == ()


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF])
def test_a_placeholder_of_an_avi_is_no_claim(make_clip: MakeClip, tmp_path: Path, size: int) -> None:
    data = clip(make_clip, "film.avi").read_bytes()
    (tmp_path / "live.avi").write_bytes(data[:4] + size.to_bytes(4, "little") + data[8:])
    assert claimed(tmp_path / "live.avi") is None
    assert looked_at(tmp_path / "live.avi").coverage == 1.0


def test_a_broadcast_claims_no_size(make_clip: MakeClip, tmp_path: Path) -> None:
    data = bytearray(clip(make_clip, "film.wmv").read_bytes())
    data[data.index(_FILE_PROPERTIES) + 88] |= 1
    live = tmp_path / "live.wmv"
    live.write_bytes(data[: len(data) // 2])
    assert claimed(live) is None
    assert looked_at(live).coverage == 1.0


@pytest.mark.parametrize("at", [16, 40, 64, 80])
@pytest.mark.parametrize("value", [0, (1 << 64) - 1])
def test_numbers_that_cannot_be_do_no_harm(make_clip: MakeClip, tmp_path: Path, at: int, value: int) -> None:
    """Of the File Properties Object: its own size, the file's, the play time and the preroll."""
    data = bytearray(clip(make_clip, "film.wmv").read_bytes())
    begins = data.index(_FILE_PROPERTIES) + at
    data[begins : begins + 8] = value.to_bytes(8, "little")
    cut = tmp_path / "odd.wmv"
    cut.write_bytes(data[: len(data) // 2])
    found = claimed(cut)
    assert found is None or found.times == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("first_object", [b"", b"\0" * 24, b"\xff" * 24, b"\0" * 16 + b"\x18" + b"\0" * 7])
def test_an_asf_without_the_object_claims_nothing(make_clip: MakeClip, tmp_path: Path, first_object: bytes) -> None:
    header = clip(make_clip, "film.wmv").read_bytes()[:30]
    (tmp_path / "odd.wmv").write_bytes(header + first_object * 100)
    assert claimed(tmp_path / "odd.wmv") is None
