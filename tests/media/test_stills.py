"""What follows a still picture in its file is told: films of phones, second pictures, pages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pipeline.media.process import opened
from pipeline.media.stills import Behind, behind
from tests.media.conftest import MakeClip
from tests.media.samples import corners, draw
from tests.media.test_decode import looked_at
from tests.media.test_looking import looked_at as seen

RED, LIME = 'Image.new("RGB", (128, 64), "red")', 'Image.new("RGB", (128, 64), "lime")'
TWO_PICTURES = f"{RED}.save(path, format='MPO', save_all=True, append_images=[{LIME}])"
PAGES = f"{RED}.save(path, save_all=True, append_images=[{LIME}, {LIME}], compression={{compression!r}})"


def follows(path: Path) -> Behind:
    with opened(os.fsencode(path)) as fd:
        return behind(fd)


def photo(folder: Path, name: str = "photo.jpg", progressive: bool = False) -> bytes:
    return draw(folder, name, f"{RED}.save(path, progressive={progressive})").read_bytes()


def motion_photo(folder: Path, film: Path) -> bytes:
    return photo(folder) + b"MotionPhoto_Data" + film.read_bytes()


def two_pictures(folder: Path, _film: Path) -> bytes:
    return draw(folder, "two.mpo", TWO_PICTURES).read_bytes()


def gain_map(folder: Path, _film: Path) -> bytes:
    """Two pictures, of which the second one's XMP says that it is a gain map."""
    data = draw(folder, "two.mpo", TWO_PICTURES).read_bytes()
    second = data.rindex(b"\xff\xd8\xff")
    note = b"http://ns.adobe.com/xap/1.0/\0<x hdrgm:Version='1.0'/>"
    return data[: second + 2] + b"\xff\xe1" + (len(note) + 2).to_bytes(2, "big") + note + data[second + 2 :]


def trailer(folder: Path, _film: Path) -> bytes:
    return photo(folder, progressive=True) + b"SEFH" + bytes(range(256)) * 20


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (motion_photo, ["The file holds a film behind its picture (a motion photo); it is not seen."]),
        (two_pictures, ["The file holds 1 more picture; the first alone is seen."]),
        (gain_map, []),
        (trailer, []),
    ],
)
def test_a_photo_is_a_picture_whatever_follows_it(
    make_clip: MakeClip, tmp_path: Path, made: Callable[[Path, Path], bytes], said: list[str]
) -> None:
    film = make_clip("film.mp4", "-f", "lavfi", "-i", "testsrc2=s=64x64:r=10:d=2", "-c:v", "libx264")
    (tmp_path / "made.jpg").write_bytes(made(tmp_path, film))
    facts, _, decoded = looked_at(tmp_path / "made.jpg")
    assert (facts.kind, facts.container) == ("image", "jpeg_pipe")
    assert [remark.text for remark in facts.remarks] == said and not decoded.remarks
    assert np.abs(decoded.frames.mean(axis=(0, 1, 2)) - [254, 0, 0]).max() <= 3


def test_a_picture_alone_or_cut_short_is_followed_by_nothing(tmp_path: Path) -> None:
    for progressive in (False, True):
        data = photo(tmp_path, progressive=progressive)
        for length in (3, 4, 100, len(data) // 2, len(data) - 1, len(data)):
            (tmp_path / "part.jpg").write_bytes(data[:length])
            assert follows(tmp_path / "part.jpg") == Behind()


BETWEEN = {
    "nothing": b"",
    "zeros": bytes(100_000),
    "a camera's headers": b"\r\n--frame\r\nContent-Type: image/jpeg\r\n\r\n",
    "lengths": b"\0\0\x20\0",
}


@pytest.mark.parametrize("between", BETWEEN)
def test_one_jpeg_after_another_is_a_film(make_clip: MakeClip, tmp_path: Path, between: str) -> None:
    moving = ("-f", "lavfi", "-t", "2", "-i", "testsrc2=s=160x96:r=25", "-c:v", "mjpeg", "-f", "image2pipe")
    data = make_clip("row.mjpeg", *moving).read_bytes()
    (tmp_path / "row.mjpeg").write_bytes(
        data.replace(b"\xff\xd9\xff\xd8", b"\xff\xd9" + BETWEEN[between] + b"\xff\xd8")
    )
    assert follows(tmp_path / "row.mjpeg").row
    whole = seen(tmp_path / "row.mjpeg")
    assert whole.facts is not None and (whole.facts.kind, whole.facts.container) == ("video", "mjpeg")
    assert whole.duration_s == pytest.approx(2.0, abs=0.05)


def test_a_few_pictures_in_one_file_are_no_film(tmp_path: Path) -> None:
    (tmp_path / "two.jpg").write_bytes(photo(tmp_path) * 2)
    facts, _, decoded = looked_at(tmp_path / "two.jpg")
    assert facts.kind == "image" and len(decoded.frames) == 1
    assert [remark.text for remark in facts.remarks] == ["The file holds 1 more picture; the first alone is seen."]


def test_endless_ends_of_pictures_cost_no_time(tmp_path: Path) -> None:
    (tmp_path / "ends.jpg").write_bytes(photo(tmp_path) + b"\xff\xd8\xff\xd9" * 5_000_000)
    begun = time.process_time()
    follows(tmp_path / "ends.jpg")
    assert time.process_time() - begun < 1.0


@pytest.mark.parametrize("compression", ["tiff_lzw", "jpeg"])
def test_pages_of_a_tiff_are_counted_and_the_first_is_seen(tmp_path: Path, compression: str) -> None:
    facts, _, decoded = looked_at(draw(tmp_path, "pages.tif", PAGES.format(compression=compression)))
    assert [remark.text for remark in facts.remarks] == ["The file holds 2 more pictures; the first alone is seen."]
    assert np.abs(decoded.frames.mean(axis=(0, 1, 2)) - [254, 0, 0]).max() <= 3


def test_a_thumbnail_is_no_page(tmp_path: Path) -> None:
    pages = draw(tmp_path, "pages.tif", PAGES.format(compression="tiff_lzw"))
    data = bytearray(pages.read_bytes())
    assert data[:4] == b"II*\0" and follows(pages).pictures == 2
    first = int.from_bytes(data[4:8], "little")
    end = first + 2 + 12 * int.from_bytes(data[first : first + 2], "little")
    second = int.from_bytes(data[end : end + 4], "little")
    # The second directory's first entry becomes NewSubfileType 1: a reduced copy of another picture.
    data[second + 2 : second + 14] = bytes.fromhex("fe00 0400 01000000 01000000")
    (tmp_path / "thumbnail.tif").write_bytes(data)
    assert follows(tmp_path / "thumbnail.tif").pictures == 1


def test_directories_that_name_themselves_end(tmp_path: Path) -> None:
    # One directory without entries, at byte 8, whose successor is itself.
    (tmp_path / "circle.tif").write_bytes(bytes.fromhex("49492a00 08000000 0000 08000000"))
    assert follows(tmp_path / "circle.tif") == Behind()


def test_a_tiff_that_begins_with_a_thumbnail_says_that_more_is_there(tmp_path: Path) -> None:
    pages = draw(tmp_path, "pages.tif", PAGES.format(compression="tiff_lzw"))
    data = bytearray(pages.read_bytes())
    first = int.from_bytes(data[4:8], "little")
    data[first + 2 : first + 14] = bytes.fromhex("fe00 0400 01000000 01000000")
    (tmp_path / "thumbnail.tif").write_bytes(data)
    assert follows(tmp_path / "thumbnail.tif").pictures == 2


TILED = """
import io, struct
picture = Image.new({mode!r}, (128, 64), {colour})
tiles = [picture.crop((x, y, x + 64, y + 32)).tobytes() for y in (0, 32) for x in (0, 64)]
colours, bits = {colours}, {bits}
tags = [(256, 4, 1, 128), (257, 4, 1, 64), (258, 3, 1, bits), (259, 3, 1, 1), (262, 3, 1, {photometric})]
tags += [(277, 3, 1, colours), (322, 4, 1, 64), (323, 4, 1, 32), (324, 4, 4, 0), (325, 4, 4, 0)]
behind = 8 + 2 + 12 * len(tags) + 4
at = behind + 32
places, lengths = [at + sum(len(one) for one in tiles[:n]) for n in range(4)], [len(one) for one in tiles]
tags[8], tags[9] = (324, 4, 4, behind), (325, 4, 4, behind + 16)
with open(path, "wb") as file:
    file.write(struct.pack("<2sHIH", b"II", 42, 8, len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags))
    file.write(struct.pack("<I4I4I", 0, *places, *lengths) + b"".join(tiles))
"""


@pytest.mark.parametrize(
    ("mode", "colour", "colours", "bits", "photometric", "shown"),
    [("L", "200", 1, 8, 1, 200), ("I;16", "51200", 1, 16, 1, 200)],
)
def test_tiles_are_not_black(
    tmp_path: Path, mode: str, colour: str, colours: int, bits: int, photometric: int, shown: int
) -> None:
    program = TILED.format(mode=mode, colour=colour, colours=colours, bits=bits, photometric=photometric)
    _, _, decoded = looked_at(draw(tmp_path, "tiled.tif", program))
    assert np.abs(decoded.frames.astype(int) - shown).max() <= 1


def test_a_big_tiff_is_seen(tmp_path: Path) -> None:
    facts, _, decoded = looked_at(draw(tmp_path, "big.tif", f"{RED}.save(path, big_tiff=True)"))
    assert facts.container == "tiff_drawn"
    assert np.abs(decoded.frames.mean(axis=(0, 1, 2)) - [255, 0, 0]).max() <= 1


def test_a_fourth_colour_that_means_nothing_hides_nothing(tmp_path: Path) -> None:
    red = 'Image.new("RGBX", (128, 64), (255, 0, 0, 0)).save(path)'
    _, _, decoded = looked_at(draw(tmp_path, "padded.tif", red))
    assert np.abs(decoded.frames.mean(axis=(0, 1, 2)) - [255, 0, 0]).max() <= 1


@pytest.mark.parametrize("orientation", [1, 6])
def test_jpeg_in_tiff_has_its_colours_and_is_upright(tmp_path: Path, orientation: int) -> None:
    quarters = f"""
picture = Image.new("RGB", (128, 64), "red")
for corner, colour in (((64, 0), "lime"), ((0, 32), "blue"), ((64, 32), "white")):
    picture.paste(colour, (*corner, corner[0] + 64, corner[1] + 32))
exif = Image.Exif()
exif[0x0112] = {orientation}
picture.save(path, compression="jpeg", exif=exif)
"""
    facts, _, decoded = looked_at(draw(tmp_path, "quarters.tif", quarters))
    assert facts.container == "tiff_drawn" and facts.video is not None
    assert (facts.video.width > facts.video.height) == (orientation == 1)
    assert corners(decoded.frames[0]) == {1: "rgbw", 6: "brwg"}[orientation]
