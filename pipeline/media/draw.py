"""A program of its own: reads one picture file with Pillow and writes frames to its standard output.

    draw.py FD size                                   prints width and height, pixels, upright
    draw.py FD WIDTH HEIGHT RATE_HZ START_S COUNT     writes rgb24 frames, each the one shown at START_S + k / RATE_HZ

Run in a process apart (`pipeline.media.animated`), confined as ffmpeg is: a crash or a bomb costs one item. Exit status
3 if Pillow, or its support for the format, is missing.
"""

from __future__ import annotations

import sys
from typing import Any, BinaryIO

MISSING = 3
_GREY = (128, 128, 128, 255)
_SHORTEST_MS, _USUAL_MS = 10, 100


def shown_ms(delay_ms: int) -> int:
    """Return how long a frame is shown: browsers give one that claims 10 ms or less a tenth of a second."""
    return delay_ms if delay_ms > _SHORTEST_MS else _USUAL_MS


def _in_eight_bits(picture: Any) -> Any:
    """Return a grey picture of 16 bits with its upper eight: Pillow itself would show all but the darkest white."""
    deep = picture.mode.startswith("I;16")
    return picture.convert("I").point(lambda value: value / 256).convert("L") if deep else picture


def draw(source: BinaryIO, arguments: list[str], out: BinaryIO) -> int:
    """Do what the arguments ask for; return the exit status."""
    try:
        from PIL import Image, ImageOps, UnidentifiedImageError
    except ImportError:
        print("[error] Pillow is not installed", file=sys.stderr)
        return MISSING
    Image.MAX_IMAGE_PIXELS = None  # the job's own limit is held against the size before anything is drawn
    try:
        picture = Image.open(source, formats=("WEBP", "AVIF", "TIFF"))
    except (UnidentifiedImageError, KeyError):
        print("[error] this Pillow does not read the picture", file=sys.stderr)
        return MISSING
    if arguments == ["size"]:
        # Pillow brings TIFF upright by itself.
        upside = picture.format != "TIFF" and picture.getexif().get(0x0112, 1) in (5, 6, 7, 8)
        width, height = reversed(picture.size) if upside else picture.size
        print(width, height)
        return 0
    width, height, count = int(arguments[0]), int(arguments[1]), int(arguments[4])
    rate_hz, start_s = float(arguments[2]), float(arguments[3])
    ends_ms, written = 0, 0
    for index in range(getattr(picture, "n_frames", 1)):
        picture.seek(index)
        picture.load()
        ends_ms += shown_ms(int(picture.info.get("duration", 0)))
        until = written
        while until < count and (start_s + until / rate_hz) * 1000 < ends_ms - 1e-6:
            until += 1
        if until > written:
            upright = ImageOps.exif_transpose(_in_eight_bits(picture)).convert("RGBA")
            seen = Image.alpha_composite(Image.new("RGBA", upright.size, _GREY), upright).convert("RGB")
            small = seen.resize((width, height), Image.Resampling.BICUBIC).tobytes()
            for _ in range(until - written):
                out.write(small)
            written = until
        if written == count:
            break
    return 0


if __name__ == "__main__":
    try:
        with open(f"/dev/fd/{sys.argv[1]}", "rb") as file:
            sys.exit(draw(file, sys.argv[2:], sys.stdout.buffer))
    except Exception as error:  # whatever Pillow raises becomes one line
        print(f"[error] {type(error).__name__}: {error}", file=sys.stderr)
        sys.exit(1)
