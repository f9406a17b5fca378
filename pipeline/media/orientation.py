"""Which way up pictures are, as EXIF counts it (1..8): from display matrices, tags and the old `rotate`."""

from __future__ import annotations

import re

from pipeline.media.tracks import finite
from pipeline.records import JsonObject

QUARTER_TURNED = frozenset({5, 6, 7, 8})
"""EXIF orientations that swap width and height."""
_QUARTER_TURN = 20
"""A matrix is a quarter turn if what lies in its axes is that many times what lies off them."""
_STRAIGHT = {(True, True): 1, (False, True): 2, (False, False): 3, (True, False): 4}
_TURNED = {(True, True): 5, (True, False): 6, (False, False): 7, (False, True): 8}


def of(holder: JsonObject) -> int:
    """Return the EXIF orientation (1..8) of a stream or frame: of its display matrix, else of an `Orientation` or the
    old `rotate` tag (degrees clockwise). A matrix that is no quarter turn (oblique, zero, garbage) turns nothing."""
    matrices = [entry["displaymatrix"] for entry in holder.get("side_data_list", []) if "displaymatrix" in entry]
    if matrices:
        return _of_matrix(matrices[0])
    tags = holder.get("tags", {})
    exif = finite(tags.get("Orientation"))
    if exif is not None:
        return int(exif) if exif in range(1, 9) else 1
    return {90.0: 6, 180.0: 3, 270.0: 8}.get((finite(tags.get("rotate")) or 0.0) % 360, 1)


def _of_matrix(matrix: str) -> int:
    """Return the EXIF orientation of a display matrix in ffprobe's print: a pixel's (x, y) goes to
    (a x + c y, b x + d y), of which the rows hold a b u, c d v, x y w (ISO/IEC 14496-12, 6.2.2)."""
    rows = [
        [int(number) for number in re.findall(r"-?\d+", row.partition(":")[2])] for row in matrix.split("\n") if row
    ]
    if len(rows) < 2 or any(len(row) != 3 for row in rows):
        return 1
    (a, b, _), (c, d, _) = rows[:2]
    straight, turned = min(abs(a), abs(d)), min(abs(b), abs(c))
    if straight > _QUARTER_TURN * max(abs(b), abs(c)):
        return _STRAIGHT[a > 0, d > 0]
    return _TURNED[b > 0, c > 0] if turned > _QUARTER_TURN * max(abs(a), abs(d)) else 1
