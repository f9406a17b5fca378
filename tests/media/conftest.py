"""Clips made with ffmpeg once a session: numbered frames, a flash with a beep, and odd containers."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path
from typing import Protocol

import pytest


class MakeClip(Protocol):
    """Makes a clip once and returns its path."""

    def __call__(self, name: str, *arguments: str) -> Path: ...


@pytest.fixture(scope="session")
def make_clip(tmp_path_factory: pytest.TempPathFactory) -> MakeClip:
    folder = tmp_path_factory.mktemp("clips")

    def make(name: str, *arguments: str) -> Path:
        key = hashlib.sha256(repr(arguments).encode()).hexdigest()[:12]  # two tests may choose one name
        path = folder / key / name
        if not path.exists():
            path.parent.mkdir(exist_ok=True)
            command = ["ffmpeg", "-v", "error", "-nostdin", "-y", *arguments, str(path)]
            subprocess.run(command, check=True, timeout=60)
        return path

    return make


NUMBERED = "color=black:s=64x64:r=10:d={seconds},format=yuv420p,geq=lum='16+{step}*N':cb=128:cr=128"


@pytest.fixture(scope="session")
def numbered(make_clip: MakeClip) -> Path:
    """Six seconds at 10 frames a second; the luma of frame n is 16 + 3 n."""
    source = NUMBERED.format(seconds=6, step=3)
    return make_clip("numbered.mp4", "-f", "lavfi", "-i", source, "-c:v", "libx264", "-qp", "4", "-g", "25")


@pytest.fixture(scope="session")
def flash_and_beep(make_clip: MakeClip) -> Path:
    """Black and silent but for 0.2 s of white and 1 kHz at 2.5 s; 5 s long, 20 frames a second."""
    return make_clip(
        "flash.mp4",
        *(
            "-f",
            "lavfi",
            "-i",
            "color=black:s=64x64:r=20:d=5,geq=lum='if(between(T,2.5,2.699),235,16)':cb=128:cr=128",
        ),
        *("-f", "lavfi", "-i", "aevalsrc='if(between(t,2.5,2.7),0.8*sin(2*PI*1000*t),0)':s=44100:d=5"),
        *("-c:v", "libx264", "-c:a", "aac", "-shortest"),
    )
