"""Pictures come upright and in their own shape, by display matrix, EXIF or their file's own header."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import pytest

from pipeline.job import Media
from pipeline.media.exif import orientation as orientation_in
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.media.process import opened
from tests.media.conftest import MakeClip
from tests.media.samples import QUARTERS, UPRIGHT, Pixels, corners, draw
from tests.media.test_decode import TIMEOUT_S, looked_at

MATRICES = {
    1: (1, 0, 0, 1),
    2: (-1, 0, 0, 1),
    3: (-1, 0, 0, -1),
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: (0, 1, -1, 0),
    7: (0, -1, -1, 0),
    8: (0, -1, 1, 0),
}
ONE = 1 << 16


def first_frame(path: Path) -> Pixels:
    frame: Pixels = looked_at(path)[2].frames[0]
    return frame


def with_matrix(clip: Path, folder: Path, matrix: tuple[int, int, int, int]) -> Path:
    """Return a copy of an mp4 whose track header holds this matrix (16.16 fixed point)."""
    data = bytearray(clip.read_bytes())
    at = data.index(b"tkhd") + 4 + 40
    a, b, c, d = matrix
    data[at : at + 36] = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 1 << 30)
    (folder / "turned.mp4").write_bytes(data)
    return folder / "turned.mp4"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_video_with_a_matrix_comes_upright(make_clip: MakeClip, tmp_path: Path, orientation: int) -> None:
    clip = make_clip("quarters.mp4", "-f", "lavfi", "-i", QUARTERS, "-c:v", "libx264", "-pix_fmt", "yuv444p")
    a, b, c, d = (ONE * part for part in MATRICES[orientation])
    facts, _, decoded = looked_at(with_matrix(clip, tmp_path, (a, b, c, d)))
    assert facts.video is not None and facts.video.orientation == orientation
    shape = (64, 128, 3) if orientation < 5 else (128, 64, 3)
    assert (facts.video.height, facts.video.width, 3) == decoded.frames.shape[1:] == shape
    assert corners(decoded.frames[0]) == UPRIGHT[orientation]


@pytest.mark.parametrize(
    "matrix",
    [
        (0, 0, 0, 0),
        (46_341, 46_341, -46_341, 46_341),
        (-(2**31), 2**31 - 1, -1, 2**31 - 1),
        (ONE, ONE, ONE, ONE),
        (0, ONE, 0, 0),
        (1, 2**31 - 1, 0, 5),
    ],
)
def test_a_matrix_that_is_no_quarter_turn_turns_nothing(
    make_clip: MakeClip, tmp_path: Path, matrix: tuple[int, int, int, int]
) -> None:
    clip = make_clip("quarters.mp4", "-f", "lavfi", "-i", QUARTERS, "-c:v", "libx264", "-pix_fmt", "yuv444p")
    frame = first_frame(with_matrix(clip, tmp_path, matrix))
    assert frame.shape == (64, 128, 3) and corners(frame) == UPRIGHT[1]


def test_a_matrix_of_another_scale_still_turns(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip("quarters.mp4", "-f", "lavfi", "-i", QUARTERS, "-c:v", "libx264", "-pix_fmt", "yuv444p")
    assert corners(first_frame(with_matrix(clip, tmp_path, (3, 2 * ONE, -ONE, -3)))) == UPRIGHT[6]


def exif(orientation: int) -> bytes:
    return b"Exif\0\0MM\0*\0\0\0\x08\0\x01" + struct.pack(">HHIHHI", 0x0112, 3, 1, orientation, 0, 0)


@pytest.mark.parametrize("orientation", [*range(1, 9), 0, 9])
def test_a_photo_with_exif_comes_upright(make_clip: MakeClip, tmp_path: Path, orientation: int) -> None:
    plain = make_clip("quarters.jpg", "-f", "lavfi", "-i", QUARTERS, "-frames:v", "1", "-q:v", "2").read_bytes()
    segment = exif(orientation)
    photo = tmp_path / "photo.jpg"
    photo.write_bytes(plain[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + plain[2:])
    assert corners(first_frame(photo)) == UPRIGHT.get(orientation, UPRIGHT[1])


def test_a_turned_picture_is_as_wide_as_its_pixels_are_not_square(make_clip: MakeClip, tmp_path: Path) -> None:
    source = f"{QUARTERS},setsar=2/1"
    clip = make_clip("wide_quarters.mp4", "-f", "lavfi", "-i", source, "-c:v", "libx264", "-pix_fmt", "yuv444p")
    frame = first_frame(with_matrix(clip, tmp_path, (0, ONE, -ONE, 0)))
    assert frame.shape == (256, 64, 3) and corners(frame) == UPRIGHT[6]


@pytest.mark.parametrize("sar", ["1/1000", "1000/1", "0/1"])
def test_an_absurd_pixel_aspect_is_not_believed(make_clip: MakeClip, sar: str) -> None:
    name = f"sar{sar.replace('/', '_')}.mkv"
    clip = make_clip(name, "-f", "lavfi", "-i", f"{QUARTERS},setsar={sar}", "-c:v", "ffv1")
    assert first_frame(clip).shape == (64, 128, 3)


@pytest.mark.parametrize("orientation", [2, 5, 6, 8])
@pytest.mark.parametrize("name", ["photo.webp", "photo.avif", "photo.png", "photo.tif"])
def test_other_stills_follow_their_orientation(tmp_path: Path, name: str, orientation: int) -> None:
    program = """
picture = Image.new("RGB", (128, 64), "red")
picture.paste("lime", (64, 0, 128, 32))
picture.paste("blue", (0, 32, 64, 64))
picture.paste("white", (64, 32, 128, 64))
exif = Image.Exif()
exif[0x0112] = {orientation}
picture.save(path, exif=exif)
"""
    facts, _, decoded = looked_at(draw(tmp_path, name, program.format(orientation=orientation)))
    assert facts.kind == "image" and corners(decoded.frames[0]) == UPRIGHT[orientation]


@pytest.mark.parametrize("cut", [8, 10, 14, 40])
def test_a_damaged_orientation_turns_nothing(tmp_path: Path, cut: int) -> None:
    heads = (
        b"II*\0" + b"\xff" * 60,
        b"MM\0*\0\0\0\x08\xff\xff" + bytes(60),
        b"\x89PNG\r\n\x1a\n\0\0\0\4eXIfMM\0*" * 3,
    )
    for head in heads:
        (tmp_path / "head").write_bytes(head[:cut])
        with opened(os.fsencode(tmp_path / "head")) as fd:
            assert orientation_in(fd) == 1


def test_a_plan_counts_the_tokens_of_the_upright_size(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip("quarters.mp4", "-f", "lavfi", "-i", QUARTERS, "-c:v", "libx264", "-pix_fmt", "yuv444p")
    turned = probe(os.fsencode(with_matrix(clip, tmp_path, (0, ONE, -ONE, 0))), TIMEOUT_S)
    planned = plan(turned, Media(), 30_000)
    assert (planned.width, planned.height) == (64, 128)
