"""Small recordings of many kinds, and ways to break them; everything follows from seeds."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from bench.clips import ffmpeg

_PICTURES = ("-f", "lavfi", "-i", "testsrc2=size=96x64:rate=10:duration=1.2")
_SOUND = ("-f", "lavfi", "-i", "aevalsrc=0.3*sin(2000*t*t):sample_rate=16000:duration=1.2")
_TELEPHONE = ("-f", "lavfi", "-i", "aevalsrc=0.3*sin(2000*t*t):sample_rate=8000:duration=1.2")
_STILL = ("-f", "lavfi", "-i", "testsrc2=size=96x64", "-frames:v", "1")
_BOTH = (*_PICTURES, *_SOUND)
_X264 = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-threads", "1")
_X265 = ("-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none:pools=1")
_AV1 = ("-c:v", "libaom-av1", "-cpu-used", "8", "-b:v", "50k")

_ORDERS: tuple[Literal["little", "big"], ...] = ("little", "big")

SEEDS: dict[str, Sequence[str]] = {
    "h264_aac.mp4": (*_BOTH, *_X264, "-c:a", "aac"),
    "fragmented.mp4": (*_BOTH, *_X264, "-c:a", "aac", "-movflags", "frag_keyframe+empty_moov"),
    "hevc.mp4": (*_PICTURES, *_X265, "-tag:v", "hvc1"),
    "mpeg4_pcm.mov": (*_BOTH, "-c:v", "mpeg4", "-c:a", "pcm_s16le"),
    "prores.mov": (*_PICTURES, "-c:v", "prores_ks", "-profile:v", "0"),
    "alac.m4a": (*_SOUND, "-c:a", "alac"),
    "h263.3gp": (*_PICTURES, "-vf", "scale=128:96", "-c:v", "h263"),
    "h264_vorbis.mkv": (*_BOTH, *_X264, "-c:a", "libvorbis"),
    "av1.mkv": (*_PICTURES, *_AV1),
    "vp8_opus.webm": (*_BOTH, "-c:v", "libvpx", "-b:v", "50k", "-c:a", "libopus"),
    "vp9.webm": (*_PICTURES, "-c:v", "libvpx-vp9", "-b:v", "50k", "-deadline", "realtime"),
    "mpeg4_mp3.avi": (*_BOTH, "-c:v", "mpeg4", "-c:a", "libmp3lame"),
    "mjpeg_pcm.avi": (*_BOTH, "-c:v", "mjpeg", "-c:a", "pcm_u8"),
    "mpeg2.ts": (*_BOTH, "-c:v", "mpeg2video", "-c:a", "mp2"),
    "h264.ts": (*_BOTH, *_X264, "-c:a", "aac"),
    "mpeg1.mpg": (*_PICTURES, "-r", "25", "-c:v", "mpeg1video"),
    "flv1.flv": (*_BOTH, "-c:v", "flv1", "-c:a", "adpcm_swf", "-ar", "22050"),
    "wmv2.wmv": (*_BOTH, "-c:v", "wmv2", "-c:a", "wmav2"),
    "theora.ogv": (*_BOTH, "-c:v", "libtheora", "-c:a", "libvorbis"),
    "mpeg2.mxf": (*_PICTURES, "-r", "25", "-c:v", "mpeg2video"),
    "dv.dv": (
        *_PICTURES,
        "-vf",
        "scale=720:576",
        "-r",
        "25",
        "-frames:v",
        "1",
        "-pix_fmt",
        "yuv420p",
        "-c:v",
        "dvvideo",
    ),
    "raw.h264": (*_PICTURES, *_X264),
    "raw.m2v": (*_PICTURES, "-r", "25", "-c:v", "mpeg2video"),
    "opus.opus": (*_SOUND, "-c:a", "libopus"),
    "lame.mp3": (*_SOUND, "-c:a", "libmp3lame"),
    "adts.aac": (*_SOUND, "-c:a", "aac"),
    "flac.flac": (*_SOUND, "-c:a", "flac"),
    "pcm.wav": (*_SOUND, "-c:a", "pcm_s16le"),
    "adpcm.wav": (*_SOUND, "-c:a", "adpcm_ms"),
    "float.w64": (*_SOUND, "-c:a", "pcm_f32le"),
    "pcm.aiff": (*_SOUND, "-c:a", "pcm_s16be"),
    "pcm.caf": (*_SOUND, "-c:a", "pcm_s24le"),
    "mulaw.au": (*_TELEPHONE, "-c:a", "pcm_mulaw"),
    "wavpack.wv": (*_SOUND, "-c:a", "wavpack"),
    "tta.tta": (*_SOUND, "-c:a", "tta"),
    "ac3.ac3": (*_SOUND, "-c:a", "ac3"),
    "speex.spx": (*_TELEPHONE, "-c:a", "libspeex"),
    "animated.gif": (*_PICTURES,),
    "animated.apng": (*_PICTURES, "-f", "apng"),
    "still.png": (*_STILL,),
    "still.jpg": (*_STILL,),
    "still.webp": (*_STILL, "-c:v", "libwebp"),
    "still.bmp": (*_STILL, "-pix_fmt", "bgr24"),
    "still.tiff": (*_STILL,),
    "still.jp2": (*_STILL, "-c:v", "jpeg2000"),
}
"""What ffmpeg makes each small file from; most are below 60 KB."""


def make_seeds(folder: Path) -> list[Path]:
    """Write the small files, leaving out what this ffmpeg cannot encode; return those that are there."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, arguments in SEEDS.items():
        path = folder / name
        try:
            ffmpeg(*arguments, "-fflags", "+bitexact", "-flags", "+bitexact", str(path))
        except subprocess.CalledProcessError:
            path.unlink(missing_ok=True)
    # No free encoder writes AMR: frames of mode 7 with any bits are some sound.
    chance = random.Random(0)
    frames = b"".join(b"\x3c" + chance.randbytes(31) for _ in range(60))
    (folder / "noise.amr").write_bytes(b"#!AMR\n" + frames)
    return sorted(folder.iterdir())


# Each takes the file, another one and chance, and returns a broken file.


def _bits(data: bytearray, _other: bytes, chance: random.Random) -> bytes:
    """Flip bits anywhere."""
    for _ in range(2 ** chance.randrange(7)):
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    return bytes(data)


def _header(data: bytearray, _other: bytes, chance: random.Random) -> bytes:
    """Change bytes near the start."""
    for _ in range(chance.randint(1, 8)):
        data[chance.randrange(min(len(data), 512))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF, chance.randrange(256)))
    return bytes(data)


def _cut(data: bytearray, _other: bytes, chance: random.Random) -> bytes:
    """Keep only the start, or only the end."""
    at = chance.randrange(1, len(data))
    return bytes(data[:at] if chance.random() < 0.8 else data[at:])


def _hole(data: bytearray, _other: bytes, chance: random.Random) -> bytes:
    """Leave out a span."""
    begin, end = _span(data, chance)
    return bytes(data[:begin] + data[end:])


def _zeros(data: bytearray, _other: bytes, chance: random.Random) -> bytes:
    """Overwrite a span with zeros or ones."""
    begin, end = _span(data, chance)
    data[begin:end] = (b"\x00" if chance.random() < 0.7 else b"\xff") * (end - begin)
    return bytes(data)


def _twice(data: bytearray, _other: bytes, chance: random.Random) -> bytes:
    """Write a span twice or many times."""
    begin, end = _span(data, chance)
    return bytes(data[:end] + data[begin:end] * chance.choice((1, 1, 2, 16)) + data[end:])


def _swapped(data: bytearray, _other: bytes, chance: random.Random) -> bytes:
    """Exchange two neighbouring spans."""
    a, b, c = sorted(chance.randrange(len(data) + 1) for _ in range(3))
    return bytes(data[:a] + data[b:c] + data[a:b] + data[c:])


def _spliced(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """Join the start of one file and the end of another, or put a piece of one into the other."""
    at, there = chance.randrange(len(data) + 1), chance.randrange(len(other) + 1)
    kind = chance.randrange(3)
    if kind == 0:
        return bytes(data[:at]) + other[there:]
    if kind == 1:
        return bytes(data) + other
    return bytes(data[:at]) + other[there : there + 4096] + bytes(data[at:])


def _lengths(data: bytearray, _other: bytes, chance: random.Random) -> bytes:
    """Change what looks like a length: a small number in 2, 4 or 8 bytes of either order."""
    for _ in range(chance.randint(1, 4)):
        size, order = chance.choice((2, 4, 4, 4, 8)), chance.choice(_ORDERS)
        found = [at for at in range(len(data) - size) if 0 < int.from_bytes(data[at : at + size], order) <= len(data)]
        if not found:
            continue
        at = chance.choice(found)
        old, most = int.from_bytes(data[at : at + size], order), 256**size - 1
        new = chance.choice((0, 1, old - 1, old + 1, old * 2, most, most // 2, most // 2 + 1, chance.randint(0, most)))
        data[at : at + size] = min(max(0, new), most).to_bytes(size, order)
    return bytes(data)


def _names(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """Put a four-letter name of either file in another's place: a codec, a box, a chunk."""
    here, there = _four_letters(bytes(data)), _four_letters(other)
    if not here:
        return _bits(data, other, chance)
    at = chance.choice(here)
    if there and chance.random() < 0.5:
        source = chance.choice(there)
        data[at : at + 4] = other[source : source + 4]
    else:
        source = chance.choice(here)
        data[at : at + 4] = data[source : source + 4]
    return bytes(data)


def _boxes(data: bytearray, other: bytes, chance: random.Random) -> bytes:
    """Write an ISO box or a RIFF-like chunk twice, move it to the end or leave it out; outer lengths then lie."""
    spans = _chunks(bytes(data))
    if not spans:
        return _twice(data, other, chance)
    begin, end = chance.choice(spans)
    box = bytes(data[begin:end])
    kind = chance.randrange(3)
    if kind == 0:
        return bytes(data[:end]) + box + bytes(data[end:])
    rest = bytes(data[:begin] + data[end:])
    return rest + box if kind == 1 else rest


MUTATIONS: dict[str, Callable[[bytearray, bytes, random.Random], bytes]] = {
    "bits": _bits,
    "header": _header,
    "cut": _cut,
    "hole": _hole,
    "zeros": _zeros,
    "twice": _twice,
    "swapped": _swapped,
    "spliced": _spliced,
    "lengths": _lengths,
    "names": _names,
    "boxes": _boxes,
}


def mutant(seeds: Sequence[Path], seed: int, number: int) -> tuple[str, bytes]:
    """Return name and bytes of one broken file: one to three mutations of a seed file. `seed` and `number` decide."""
    chance = random.Random(f"{seed}:{number}")
    path, other = seeds[number % len(seeds)], chance.choice(seeds).read_bytes()
    data, done = path.read_bytes(), []
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        name, change = chance.choice(list(MUTATIONS.items()))
        if len(data) > 1:
            data = change(bytearray(data), other, chance)
            done.append(name)
    return f"{number:05d}_{'_'.join(done)}_{path.name}", data


def _span(data: bytearray, chance: random.Random) -> tuple[int, int]:
    begin = chance.randrange(len(data))
    return begin, min(len(data), begin + 2 ** chance.randrange(13))


def _four_letters(data: bytes) -> list[int]:
    """Return where four letters or digits stand in the first 64 KB."""
    head = data[: 1 << 16]
    return [at for at in range(len(head) - 4) if head[at : at + 4].isalnum()]


def _chunks(data: bytes) -> list[tuple[int, int]]:
    """Return (begin, end) of whatever looks like an ISO box (length, name) or a RIFF or IFF chunk (name, length)."""
    found = []
    for at in _four_letters(data):
        before = int.from_bytes(data[max(0, at - 4) : at], "big")
        if at >= 4 and 8 <= before <= len(data) - at + 4:
            found.append((at - 4, at - 4 + before))
        for order in _ORDERS:
            after = int.from_bytes(data[at + 4 : at + 8], order)
            if 0 < after <= len(data) - at - 8:
                found.append((at, at + 8 + after))
    return found
