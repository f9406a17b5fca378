"""How clips are made; and those of 20 s of 720p H.264 with AAC, as many as wanted, each with other bytes."""

from __future__ import annotations

import subprocess
from pathlib import Path

SECONDS = 20
CONTENTS = {
    "pattern": ("testsrc2=size=1280x720:rate=25", "sine=frequency=440:sample_rate=44100"),
    "fractal": ("mandelbrot=size=1280x720:rate=25", "anoisesrc=color=pink:sample_rate=44100:amplitude=0.2:seed=1"),
    "life": (
        "life=size=320x180:rate=25:mold=10:ratio=0.2:seed=1,scale=1280:720:flags=neighbor",
        "aevalsrc=0.3*sin(800*t*t)",
    ),
    "bars": ("smptehdbars=size=1280x720:rate=25", "sine=frequency=1000:beep_factor=4:sample_rate=44100"),
}
"""Pictures and sound, as ffmpeg's sources; very different in what they cost to decode."""


def make_clips(folder: Path, count: int) -> list[Path]:
    """Write `count` clips into `folder` and return their paths; every clip is one of four, under another title."""
    folder.mkdir(parents=True, exist_ok=True)
    bases = [
        _encode(folder.parent / f"base_{number}.mp4", *sources) for number, sources in enumerate(CONTENTS.values())
    ]
    clips = []
    for number in range(count):
        clip = folder / f"clip_{number:03d}.mp4"
        ffmpeg("-i", str(bases[number % len(bases)]), "-c", "copy", "-metadata", f"title={number}", str(clip))
        clips.append(clip)
    return clips


def _encode(path: Path, pictures: str, sound: str) -> Path:
    if not path.exists():
        inputs = ("-f", "lavfi", "-i", pictures, "-f", "lavfi", "-i", sound, "-t", str(SECONDS))
        codecs = ("-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p", "-c:a", "aac")
        ffmpeg(*inputs, *codecs, str(path))
    return path


def ffmpeg(*arguments: str) -> None:
    """Run ffmpeg; the last argument is the file to write, which may exist. Raises CalledProcessError."""
    subprocess.run(["ffmpeg", "-nostdin", "-loglevel", "error", "-y", *arguments], check=True, timeout=600)
