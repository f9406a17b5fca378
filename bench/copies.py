"""What copies cost: `python -m bench.copies [--clips 20]`.

Clips of 20 s, and a copy of each: beside it in the list for every other one, after all clips for the rest. They are
screened by the embedded model twice: all of them, and each content once.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.clips import make_clips
from bench.result import Figure, report
from bench.runs import Ended, screen

# Half of the files cost next to nothing, and a run has its beginning and its end.
LEAST_GAIN = 1.5


def make_files(folder: Path, clips: int) -> None:
    """Write so many clips and a copy of each."""
    for number, clip in enumerate(make_clips(folder, clips)):
        shutil.copyfile(clip, clip.with_name(f"{clip.stem}_again.mp4" if number % 2 else f"later_{clip.name}"))


def figures(clips: int, screened: Ended, reused: Ended) -> list[Figure]:
    """Return the measures of both runs."""
    rates = [2 * clips / ended.summary["screen_s"] for ended in (screened, reused)]
    statuses = Counter(row["status"] for row in reused.rows.values())
    other = [path for path, row in reused.rows.items() if row["verdict"] != screened.rows[path]["verdict"]]
    return [
        Figure("rows", len(reused.rows), "", f"{2 * clips}", len(reused.rows) == len(screened.rows) == 2 * clips),
        Figure("duplicates", statuses["duplicate"], "", f"{clips}", statuses == {"ok": clips, "duplicate": clips}),
        Figure("other_verdicts", len(other), "", "0", not other),
        Figure("items_per_s_all_screened", rates[0], "1/s"),
        Figure("items_per_s", rates[1], "1/s"),
        Figure("gain", rates[1] / rates[0], "", f">= {LEAST_GAIN}", rates[1] >= LEAST_GAIN * rates[0]),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.copies", description=__doc__)
    parser.add_argument("--clips", type=int, default=20)
    clips = parser.parse_args().clips
    with tempfile.TemporaryDirectory(prefix="l1-copies-") as scratch:
        folder = Path(scratch)
        make_files(folder / "clips", clips)
        screened = screen(folder, "screened", [folder / "clips"])
        reused = screen(folder, "reused", [folder / "clips"], {"source": {"duplicates": "reuse"}})
        found = figures(clips, screened, reused)
    return report("copies", found)


if __name__ == "__main__":
    sys.exit(main())
