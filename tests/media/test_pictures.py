"""Every kind of picture comes upright, in its own colours and shape, from its own moment."""

from __future__ import annotations

import os
import struct
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from pipeline.job import Image as ImageSettings
from pipeline.job import Media, Video
from pipeline.media import pictures
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from tests.media.conftest import NUMBERED, MakeClip
from tests.media.samples import QUARTERS, UPRIGHT, Pixels, corners
from tests.media.test_decode import TIMEOUT_S, looked_at, numbers
from tests.media.test_orientation import first_frame

# A white bar crosses the picture by 12 pixels a field.
MOVING = (
    "color=black:s=720x576:r=50:d=2,format=yuv420p[b];color=white:s=60x576:r=50:d=2[w]"
    ";[b][w]overlay=x='20+mod(n*12\\,600)'"
)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("tff.mp4", ("-c:v", "libx264", "-flags", "+ilme+ildct", "-x264opts", "tff=1")),
        ("tff.ts", ("-c:v", "libx264", "-flags", "+ilme+ildct", "-x264opts", "tff=1")),
        ("tff.mpg", ("-c:v", "mpeg2video", "-q:v", "2", "-flags", "+ilme+ildct")),
        ("tff.mxf", ("-c:v", "mpeg2video", "-q:v", "2", "-flags", "+ilme+ildct")),
        ("fields.avi", ("-c:v", "mpeg4", "-q:v", "2", "-flags", "+ilme+ildct")),
        ("bff.dv", ("-c:v", "dvvideo", "-pix_fmt", "yuv420p")),
    ],
)
def test_an_interlaced_frame_shows_one_moment(make_clip: MakeClip, name: str, arguments: tuple[str, ...]) -> None:
    mode, parity = ("interleave_bottom", "bff") if name == "bff.dv" else ("interleave_top", "tff")
    graph = f"{MOVING},tinterlace={mode},setfield={parity}"
    clip = make_clip(name, "-f", "lavfi", "-i", graph, *arguments)
    facts, planned, decoded = looked_at(clip, Media(video=Video(max_rate_hz=5, max_pixels_per_frame=720 * 576)))
    assert facts.video is not None and facts.video.interlaced and planned.height > 288
    for time_s, frame in zip(decoded.times_s, decoded.frames, strict=True):
        luma = frame.mean(axis=2)
        assert np.abs(np.diff(luma[40:-40], axis=0)).max() < 60  # combed, neighbouring lines differ by all of 235
        centre = np.average(np.arange(frame.shape[1]), weights=luma[40:-40].mean(axis=0)) * 720 / frame.shape[1]
        shown = int(time_s * 25 + 1e-6) * 2 + (parity == "bff")  # tinterlace drops the first field then
        assert min(abs(centre - (50 + (field * 12) % 600)) for field in (shown, shown + 1)) < 4


def test_progressive_frames_are_not_halved(make_clip: MakeClip) -> None:
    lines = "color=black:s=64x64:r=5:d=1,format=gray,geq=lum='255*mod(Y,2)'"
    for name, codec in (("lines.mp4", "libx264"), ("lines.avi", "mpeg4"), ("lines.mpg", "mpeg2video")):
        clip = make_clip(
            name, "-f", "lavfi", "-i", lines, "-c:v", codec, "-pix_fmt", "yuv420p", "-r", "25", "-q:v", "1"
        )
        facts, _, decoded = looked_at(clip)
        assert facts.video is not None and not facts.video.interlaced
        rows = decoded.frames[0].mean(axis=(1, 2))
        assert (np.abs(np.diff(rows)) > 150).all()


# A grey ramp over a row of colours.
RAMP, PATCHES = range(0, 256, 16), [(r, g, b) for r in (40, 191) for g in (40, 191) for b in (40, 191)]
PATTERN = (
    "color=black:s=256x128:r=2:d=1,format=gbrp,geq="
    "r='if(lt(Y,64),16*floor(X/16),if(lt(X,128),40,191))'"
    ":g='if(lt(Y,64),16*floor(X/16),if(mod(floor(X/64),2),191,40))'"
    ":b='if(lt(Y,64),16*floor(X/16),if(mod(floor(X/32),2),191,40))'"
)


def pattern_error(frame: Pixels, brightest: int = 255) -> int:
    """Return the largest difference of a patch's middle from what was drawn, 8-bit levels, up to a level of grey."""
    assert frame.shape == (128, 256, 3)
    greys = [frame[24:40, level + 6 : level + 10].mean(axis=(0, 1)) - level for level in RAMP if level <= brightest]
    colours = [frame[88:104, 32 * i + 12 : 32 * i + 20].mean(axis=(0, 1)) - rgb for i, rgb in enumerate(PATCHES)]
    return round(float(np.abs([*greys, *colours]).max()))


def converted(matrix: str, pixels: str, full: bool = False) -> str:
    """Return the pattern in another coding, converted by zimg and not by the scaler that is to be tested."""
    coding = f"matrix={matrix}:range={'full' if full else 'limited'}"
    return f"{PATTERN},zscale=matrixin=gbr:rangein=full:{coding},format={pixels}"


FFV1 = ("-c:v", "ffv1")


@pytest.mark.parametrize(
    ("name", "source", "arguments"),
    [
        ("bt601.mkv", converted("170m", "yuv444p"), (*FFV1, "-colorspace", "smpte170m")),
        ("untagged.mkv", converted("170m", "yuv420p"), (*FFV1, "-colorspace", "unknown")),
        ("bt709.mkv", converted("709", "yuv420p"), (*FFV1, "-colorspace", "bt709")),
        ("bt709.mp4", converted("709", "yuv420p"), ("-c:v", "libx264", "-qp", "6", "-colorspace", "bt709")),
        ("full.mkv", converted("709", "yuv420p", True), (*FFV1, "-colorspace", "bt709", "-color_range", "pc")),
        ("yuvj.avi", converted("170m", "yuvj420p", True), ("-c:v", "mjpeg", "-q:v", "1", "-huffman", "0")),
        ("422_10.mkv", converted("709", "yuv422p10"), (*FFV1, "-colorspace", "bt709")),
        ("420_12.mkv", converted("709", "yuv420p12"), (*FFV1, "-colorspace", "bt709")),
        ("main10.mp4", converted("709", "yuv420p10"), ("-c:v", "libx265", "-crf", "6", "-colorspace", "bt709")),
        ("gbrp.mkv", f"{PATTERN},format=gbrp", FFV1),
        ("gbrp10.mkv", f"{PATTERN},format=gbrp10", FFV1),
        ("rgb.png", f"{PATTERN},format=rgb24", ("-frames:v", "1")),
        ("rgb48.png", f"{PATTERN},format=rgb48be", ("-frames:v", "1")),
        (
            "palette.png",
            f"{PATTERN},split[a][b];[a]palettegen=reserve_transparent=0[p];[b][p]paletteuse",
            ("-frames:v", "1"),
        ),
        ("palette.gif", f"{PATTERN},split[a][b];[a]palettegen[p];[b][p]paletteuse", ()),
        ("lossless.webp", f"{PATTERN},format=bgra", ("-frames:v", "1", "-lossless", "1")),
        ("opaque.mkv", f"{PATTERN},format=gbrap", FFV1),
    ],
)
def test_colours_come_out_as_they_went_in(
    make_clip: MakeClip, name: str, source: str, arguments: tuple[str, ...]
) -> None:
    clip = make_clip(f"pattern_{name}", "-f", "lavfi", "-i", source, *arguments)
    assert pattern_error(first_frame(clip)) <= 4


def test_grey_pictures_stay_grey(make_clip: MakeClip) -> None:
    ramp = "color=black:s=256x64:r=2:d=1,format=gray,geq=lum='16*floor(X/16)'"
    for name, pixels in (("grey.png", "gray"), ("grey16.png", "gray16be"), ("grey_alpha.png", "ya8")):
        frame = first_frame(make_clip(name, "-f", "lavfi", "-i", f"{ramp},format={pixels}", "-frames:v", "1"))
        found = frame[32, 8::16].astype(int)
        assert np.abs(found - np.array(RAMP)[:, None]).max() <= 1


def hdr_clip(make_clip: MakeClip, transfer: str) -> Path:
    """Return the pattern as HDR, its white at 203 cd/m2 as ITU-R BT.2408 wants it."""
    source = converted("709", "yuv444p12") + (
        ",zscale=matrixin=709:transferin=709:primariesin=709:rangein=limited"
        f":transfer={transfer}:primaries=2020:matrix=2020_ncl:npl=203,format=yuv420p10"
    )
    tags = ("-color_primaries", "bt2020", "-colorspace", "bt2020nc", "-color_trc", transfer)
    x265 = f"log-level=none:crf=4:colorprim=bt2020:colormatrix=bt2020nc:transfer={transfer}"
    return make_clip(f"{transfer}.mkv", "-f", "lavfi", "-i", source, "-c:v", "libx265", "-x265-params", x265, *tags)


@pytest.mark.parametrize("transfer", ["smpte2084", "arib-std-b67"])
def test_hdr_looks_like_its_sdr_original(make_clip: MakeClip, transfer: str) -> None:
    facts, _, decoded = looked_at(hdr_clip(make_clip, transfer))
    assert facts.video is not None and facts.video.hdr and not decoded.remarks
    assert pattern_error(decoded.frames[0], brightest=224) <= 6
    assert 236 <= decoded.frames[0][32, 248].mean() <= 250  # the brightest white leaves room for highlights


@pytest.mark.parametrize(
    ("name", "pixels", "tags"),
    [
        ("untagged", "yuv420p10", "transfer=smpte2084"),
        ("p3", "yuv420p10", "transfer=smpte2084:colorprim=smpte432:colormatrix=bt2020nc"),
        ("ictcp", "yuv420p10", "transfer=smpte2084:colorprim=bt2020:colormatrix=ictcp"),
        ("odd", "yuv420p10", "transfer=arib-std-b67:colorprim=film:colormatrix=fcc:range=full"),
        ("rgb", "gbrp10", "transfer=smpte2084:colorprim=bt2020:colormatrix=gbr"),
        ("8bit", "yuv420p", "transfer=arib-std-b67"),
    ],
)
def test_hdr_with_odd_tags_is_still_seen(make_clip: MakeClip, name: str, pixels: str, tags: str) -> None:
    source = f"color=gray:s=64x64:r=2:d=1,format={pixels}"
    coding = ("-c:v", "libx265", "-x265-params", f"log-level=none:{tags}")
    facts, _, decoded = looked_at(make_clip(f"hdr_{name}.mkv", "-f", "lavfi", "-i", source, *coding))
    assert facts.video is not None and facts.video.hdr
    assert len(decoded.frames) == 2 and 90 < decoded.frames.mean() < 200 and not decoded.remarks


def test_hdr_that_cannot_be_converted_is_told(make_clip: MakeClip, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "can_tone_map", lambda: False)
    decoded = looked_at(hdr_clip(make_clip, "smpte2084"))[2]
    assert [remark.code for remark in decoded.remarks] == ["colour_unconverted"]
    assert pattern_error(decoded.frames[0], brightest=224) > 40


def test_dolby_vision_that_only_its_own_players_show_is_told(make_clip: MakeClip, tmp_path: Path) -> None:
    source = ("-f", "lavfi", "-i", "color=gray:s=64x64:r=2:d=1,format=yuv420p10")
    coding = ("-c:v", "libx265", "-x265-params", "log-level=none", "-tag:v", "hvc1")
    data = bytearray(make_clip("base.mp4", *source, *coding).read_bytes())
    for profile, compatible, told in ((5, 0, True), (8, 4, False)):
        # ETSI TS 103 572: version 1.0, profile, level 1, RPU and base layer present, what the base layer is
        record = bytes([1, 0, profile << 1, 1 << 3 | 0b101, compatible << 4]) + bytes(19)
        box = struct.pack(">I", 8 + len(record)) + b"dvcC" + record
        patched = bytearray(data)
        entry = patched.index(b"hvc1", patched.index(b"stsd")) - 4
        end = entry + int.from_bytes(patched[entry : entry + 4], "big")
        patched[end:end] = box
        for name in (b"moov", b"trak", b"mdia", b"minf", b"stbl", b"stsd", b"hvc1"):
            at = patched.index(name, patched.index(b"moov")) - 4
            size = int.from_bytes(patched[at : at + 4], "big") + len(box)
            patched[at : at + 4] = struct.pack(">I", size)
        (tmp_path / "dolby.mp4").write_bytes(patched)
        remarks = probe(os.fsencode(tmp_path / "dolby.mp4"), TIMEOUT_S).remarks
        assert [remark.code for remark in remarks] == ["colour_unconverted"] * told


# Left black and opaque, right white and opaque; between them red that is wholly transparent.
SEE_THROUGH = (
    "color=black:s=192x64:r=2:d=1,format=gbrap,geq="
    "r='if(lt(X,64),0,255)':g='if(lt(X,128),0,255)':b='if(lt(X,128),0,255)':a='if(between(X,64,127),0,255)'"
)


@pytest.mark.parametrize(
    ("name", "pixels", "arguments"),
    [
        ("hole.png", "rgba", ("-frames:v", "1")),
        ("hole16.png", "rgba64be", ("-frames:v", "1")),
        ("hole.webp", "bgra", ("-frames:v", "1", "-lossless", "1")),
        ("hole.apng", "rgba", ("-f", "apng")),
        ("hole.mov", "yuva444p10", ("-c:v", "prores_ks", "-profile:v", "4", "-alpha_bits", "8")),
        ("hole.mkv", "gbrap", ("-c:v", "ffv1")),
        ("hole_vp9.webm", "yuva420p", ("-c:v", "libvpx-vp9", "-crf", "10", "-b:v", "0")),
        ("hole_vp8.webm", "yuva420p", ("-c:v", "libvpx", "-auto-alt-ref", "0", "-crf", "10", "-b:v", "1M")),
    ],
)
@pytest.mark.parametrize("most_pixels", [192 * 64, 96 * 32])
def test_what_is_transparent_shows_grey(
    make_clip: MakeClip, name: str, pixels: str, arguments: tuple[str, ...], most_pixels: int
) -> None:
    clip = make_clip(name, "-f", "lavfi", "-i", f"{SEE_THROUGH},format={pixels}", *arguments)
    media = Media(video=Video(max_pixels_per_frame=most_pixels), image=ImageSettings(max_pixels=most_pixels))
    frame = looked_at(clip, media)[2].frames[0].astype(int)
    height, width = frame.shape[:2]
    columns = frame[height // 2, [width // 6, width // 2, width * 5 // 6]]
    assert np.abs(columns - np.array([[0] * 3, [128] * 3, [255] * 3])).max() <= 4


def test_what_transparent_pixels_hide_does_not_bleed(make_clip: MakeClip) -> None:
    clip = make_clip("hole.png", "-f", "lavfi", "-i", f"{SEE_THROUGH},format=rgba", "-frames:v", "1")
    frame = looked_at(clip, Media(image=ImageSettings(max_pixels=96 * 32)))[2].frames[0].astype(int)
    assert (frame.max(axis=2) - frame.min(axis=2)).max() <= 4  # all of it is grey: nowhere a trace of red


def test_a_transparent_gif_shows_grey(make_clip: MakeClip) -> None:
    graph = f"{SEE_THROUGH},split[a][b];[a]palettegen=reserve_transparent=1[p];[b][p]paletteuse"
    frame = first_frame(make_clip("hole.gif", "-f", "lavfi", "-i", graph))
    assert np.abs(frame[32, [32, 96, 160]].astype(int) - [[0] * 3, [128] * 3, [255] * 3]).max() <= 4


def test_pictures_of_changing_size_are_scaled_to_one(make_clip: MakeClip, tmp_path: Path) -> None:
    red = make_clip("size_red.ts", "-f", "lavfi", "-i", "color=red:s=320x240:r=10:d=2", "-c:v", "libx264")
    blue = make_clip(
        "size_blue.ts",
        *("-f", "lavfi", "-i", "color=blue:s=128x256:r=10:d=2", "-c:v", "libx264", "-output_ts_offset", "2"),
    )
    joined = tmp_path / "joined.ts"
    joined.write_bytes(red.read_bytes() + blue.read_bytes())
    decoded = looked_at(joined)[2]
    assert decoded.frames.shape == (8, 256, 320, 3)
    assert decoded.frames.mean(axis=(1, 2)).argmax(axis=1).tolist() == [0, 0, 0, 0, 2, 2, 2, 2]


@pytest.mark.parametrize("sizes", [("640x480", "128x64"), ("128x64", "640x480")])
@pytest.mark.parametrize("flags", [(), ("-flags", "+ilme+ildct", "-x264opts", "tff=1")], ids=["turned", "interlaced"])
def test_no_filter_reads_beyond_pictures_whose_size_changes(
    make_clip: MakeClip, tmp_path: Path, sizes: tuple[str, str], flags: tuple[str, ...]
) -> None:
    joined = tmp_path / "joined.ts"
    for index, size in enumerate(sizes):
        source = f"color={('red', 'blue')[index]}:s={size}:r=10:d=2"
        kept = ("-output_ts_offset", str(2 * index), "-c:v", "libx264", *flags)
        part = make_clip(f"{size}_{index}_{len(flags)}.ts", "-f", "lavfi", "-i", source, *kept)
        joined.write_bytes((joined.read_bytes() if joined.exists() else b"") + part.read_bytes())
    facts = probe(os.fsencode(joined), TIMEOUT_S)
    assert facts.video is not None and facts.video.interlaced == bool(flags)
    video = facts.video if flags else replace(facts.video, orientation=6)
    turned = replace(facts, video=video)
    decoded = decode(os.fsencode(joined), turned, plan(turned, Media(), 30_000), TIMEOUT_S)
    assert decoded.frames.mean(axis=(1, 2)).argmax(axis=1).tolist() == [0, 0, 0, 0, 2, 2, 2, 2]
    assert np.ptp(decoded.frames, axis=(1, 2)).max() <= 2  # one even colour: nothing of what lay beyond


@pytest.mark.parametrize(("size", "shape"), [("1x1", (32, 32)), ("161x121", (128, 160)), ("4097x3", (32, 4096))])
def test_odd_sizes_are_rounded_to_tokens(make_clip: MakeClip, size: str, shape: tuple[int, int]) -> None:
    clip = make_clip(f"s{size}.mkv", "-f", "lavfi", "-i", f"color=red:s={size}:r=2:d=1,format=gbrp", "-c:v", "ffv1")
    frame = first_frame(clip)
    assert frame.shape[:2] == shape and frame.mean(axis=(0, 1)) == pytest.approx([255, 0, 0], abs=2)


def test_a_size_known_only_to_the_decoder_is_found(make_clip: MakeClip) -> None:
    clip = make_clip("raw.h264", "-f", "lavfi", "-i", QUARTERS, "-c:v", "libx264", "-pix_fmt", "yuv444p")
    facts, _, decoded = looked_at(clip)
    assert facts.video is not None and (facts.video.width, facts.video.height) == (128, 64)
    assert corners(decoded.frames[0]) == UPRIGHT[1]


Times = Callable[[float], float]


@pytest.mark.parametrize(
    ("name", "choose", "shown_at"),
    [
        ("gap", "lt(t,1)+gte(t,4)", lambda t: t if t < 1 or t >= 4 else 0.9),
        ("slow", "not(mod(n,40))", lambda t: t // 4 * 4),
        ("first_late", "gte(t,2)", lambda t: max(t, 2.0)),
    ],
)
def test_between_frames_the_last_one_stays(make_clip: MakeClip, name: str, choose: str, shown_at: Times) -> None:
    sources = ("-f", "lavfi", "-i", NUMBERED.format(seconds=6, step=3), "-f", "lavfi", "-i", "sine=d=6")
    chosen = ("-vf", f"select='{choose}'", "-vsync", "vfr", "-c:v", "libx264", "-qp", "4", "-c:a", "flac")
    clip = make_clip(f"shown_{name}.mkv", *sources, *chosen)
    decoded = looked_at(clip)[2]
    wanted = [round(shown_at(float(time_s)) * 10) for time_s in decoded.times_s]
    assert numbers(decoded, step=3) == wanted


def test_pictures_that_end_before_the_sound_stay(make_clip: MakeClip) -> None:
    graph = f"{NUMBERED.format(seconds=6, step=3)},trim=end=2"
    clip = make_clip(
        "pictures_early.mp4", "-f", "lavfi", "-i", graph, "-f", "lavfi", "-i", "sine=d=6", "-c:v", "libx264", "-qp", "4"
    )
    found = numbers(looked_at(clip)[2], step=3)
    assert found[:4] == [0, 5, 10, 15] and set(found[4:]) <= {19}


@pytest.mark.parametrize("name", ["raw.m2v", "raw.264", "wrap.ts", "fast.mp4"])
def test_frames_keep_their_times_where_time_stamps_are_strange(make_clip: MakeClip, name: str) -> None:
    rate = 240 if name == "fast.mp4" else 25
    source = f"color=black:s=64x64:r={rate}:d=4,format=yuv420p,geq=lum='16+2*floor(T*25+0.01)':cb=128:cr=128"
    arguments = {
        "raw.m2v": ("-c:v", "mpeg2video", "-q:v", "1", "-bf", "2"),
        "raw.264": ("-c:v", "libx264", "-qp", "1", "-bf", "3"),
        "wrap.ts": ("-c:v", "libx264", "-qp", "1", "-output_ts_offset", str(2**33 / 90_000 - 2)),
        "fast.mp4": ("-c:v", "libx264", "-qp", "1"),
    }[name]
    clip = make_clip(name, "-f", "lavfi", "-i", source, *arguments)
    facts = probe(os.fsencode(clip), TIMEOUT_S)
    decoded = looked_at(clip, None if facts.duration_s else Media(max_duration_s=4.0, video=Video(min_rate_hz=2)))[2]
    found = numbers(decoded, step=2)
    wanted = [int(time_s * 25 + 1e-6) for time_s in decoded.times_s]
    assert len(found) >= 6
    assert np.abs(np.subtract(found[:8], wanted[:8])).max() <= 1


def test_chosen_frames_are_those_of_a_full_decode(make_clip: MakeClip) -> None:
    clip = make_clip("b_frames.mp4", "-f", "lavfi", "-i", "testsrc2=s=320x256:r=25:d=4", "-c:v", "libx264", "-bf", "3")
    _, planned, decoded = looked_at(clip)
    assert (planned.width, planned.height) == (320, 256)
    command = ["ffmpeg", "-v", "error", "-i", str(clip), "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    command[-1:-1] = ["-sws_flags", "bicubic+accurate_rnd+full_chroma_int"]
    raw = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    every = np.frombuffer(raw, np.uint8).reshape(-1, 256, 320, 3)
    for time_s, frame in zip(decoded.times_s, decoded.frames, strict=True):
        error = np.mean(np.square(np.subtract(frame, every[int(time_s * 25 + 1e-6)], dtype=float)))
        assert 10 * np.log10(255**2 / max(error, 1e-9)) >= 38
