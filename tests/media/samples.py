"""Pictures whose corners tell which way up they are, and pictures made with Pillow."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Pixels = NDArray[np.uint8]

# The top left quarter red, the top right lime, the bottom left blue, the bottom right white.
QUARTERS = (
    "color=red:s=128x64:r=4:d=1,format=gbrp,drawbox=64:0:64:32:lime:fill"
    ",drawbox=0:32:64:32:blue:fill,drawbox=64:32:64:32:white:fill"
)
CORNERS = {(255, 0, 0): "r", (0, 255, 0): "g", (0, 0, 255): "b", (255, 255, 255): "w"}
UPRIGHT = {1: "rgbw", 2: "grwb", 3: "wbgr", 4: "bwrg", 5: "rbgw", 6: "brwg", 7: "wgbr", 8: "gwrb"}
"""What the corners of the quarters (left to right, top to bottom) are once an EXIF orientation is carried out, by the
definition in EXIF 2.32, 4.6.4: 6 means that row 0 of the stored picture is the right side of what is seen."""


def corners(frame: Pixels) -> str:
    height, width = frame.shape[:2]
    found = [frame[y, x].astype(int) for y in (height // 4, -height // 4) for x in (width // 4, -width // 4)]
    colours = list(CORNERS)
    return "".join(CORNERS[colours[np.abs(np.array(colours) - rgb).sum(axis=1).argmin()]] for rgb in found)


def draw(folder: Path, name: str, program: str) -> Path:
    """Make a picture with Pillow, in a process apart: it comes with the engine and is no dependency of ours."""
    program = f"import sys\nfrom PIL import Image\npath = sys.argv[1]\n{program}"
    subprocess.run([sys.executable, "-c", program, str(folder / name)], check=True, timeout=60)
    return folder / name
