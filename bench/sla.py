"""Whether each item is answered within a minute at full load: `python -m bench.sla [--clips 300] [--keep FOLDER]`.

Mixed clips of 2 s to 30 min, one in twenty broken, are screened by the embedded model twice: with the promise of 60 s,
and without one, which tells what the same machine does unthrottled. Long ones are looked at
as for a full-size model: up to 30 minutes, fewer frames a second; what the embedded model says of them means nothing.
No item may be late in the first run, and it must reach nine tenths of the second one's rate.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars

from bench import runs
from bench.clips import ffmpeg
from bench.result import Figure, report
from bench.runs import Ended

SLA_S = 60.0
LEAST_SHARE_OF_RATE = 0.9
BROKEN_SHARE = 0.05
_SHORTEST_S, _LONGEST_S = 2.0, 1800.0
_SECONDS_OF_BASE = 20
_BASES = (
    ("testsrc2=size=640x360:rate=25", "sine=frequency=440:sample_rate=44100"),
    ("smptehdbars=size=1280x720:rate=25", "anoisesrc=color=pink:sample_rate=44100:amplitude=0.2:seed=1"),
    ("mandelbrot=size=480x270:rate=15", "aevalsrc=0.3*sin(800*t*t)"),
    (None, "sine=frequency=1000:beep_factor=4:sample_rate=16000"),
)


def make_clips(folder: Path, count: int) -> None:
    """Write clips whose lengths lie evenly on a logarithmic scale; what is there stays."""
    folder.mkdir(parents=True, exist_ok=True)
    bases = [_base(folder.parent / f"base_{number}", *sources) for number, sources in enumerate(_BASES)]
    rng = np.random.default_rng(0)
    for number in range(count):
        base, broken = bases[number % len(bases)], rng.random() < BROKEN_SHARE
        length_s = float(np.exp(rng.uniform(np.log(_SHORTEST_S), np.log(_LONGEST_S))))
        path = folder / f"{number:04d}{base.suffix}"
        if path.exists():
            continue
        loop = ("-stream_loop", "-1", "-i", str(base), "-t", f"{length_s:.2f}", "-c", "copy")
        ffmpeg(*loop, "-metadata", f"title={number}", str(path))
        if broken:
            path.write_bytes(path.read_bytes()[: rng.integers(1, 2000)])


def _base(stem: Path, pictures: str | None, sound: str) -> Path:
    path = stem.with_suffix(".mp4" if pictures else ".m4a")
    if not path.exists():
        seen = ("-f", "lavfi", "-i", pictures) if pictures else ()
        heard = ("-f", "lavfi", "-i", sound, "-t", str(_SECONDS_OF_BASE), "-c:a", "aac")
        coded = ("-c:v", "libx264", "-preset", "veryfast", "-pix_fmt", "yuv420p") if pictures else ()
        ffmpeg(*seen, *heard, *coded, str(path))
    return path


def screen(folder: Path, name: str, sla_s: float) -> Ended:
    """Screen the clips with the demo's settings under a promise."""
    media = {"audio": {"max_duration_s": 1800}, "video": {"min_rate_hz": 0.25}}
    shutil.rmtree(folder / name, ignore_errors=True)
    return runs.screen(folder, name, [folder / "clips"], {"sla": {"per_item_s": sla_s}, "media": media})


def figures(clips: int, promised: Ended, unthrottled: Ended) -> list[Figure]:
    """Return the measures of both runs."""
    (summary, rows), (free_summary, free_rows) = (
        (ended.summary, polars.from_dicts(list(ended.rows.values()), infer_schema_length=None))
        for ended in (promised, unthrottled)
    )
    seconds = (rows["committed_at"] - rows["admitted_at"]).dt.total_milliseconds() / 1000
    good = rows["status"] == "ok"
    late_good, late_other = (int(((seconds > SLA_S) & kind).sum()) for kind in (good, ~good))
    rate, free_rate = clips / summary["screen_s"], clips / free_summary["screen_s"]
    free_s = (free_rows["committed_at"] - free_rows["admitted_at"]).dt.total_milliseconds() / 1000
    share = rate / free_rate
    counts = rows["reason"].fill_null("none").value_counts().sort("count", descending=True).rows()
    return [
        Figure("rows", rows.height, "", f"{clips}", rows.height == clips),
        Figure("good_rows", int(good.sum())),
        Figure("good_rows_late", late_good, "", "0", late_good == 0),
        Figure("other_rows_late", late_other, "", "0", late_other == 0),
        *(Figure(f"p{q}", float(np.quantile(seconds, q / 100)), "s") for q in (50, 95, 99)),
        Figure("slowest", float(seconds.max()), "s"),
        Figure("items_per_s", rate, "1/s"),
        Figure("items_per_s_unthrottled", free_rate, "1/s"),
        Figure("share_of_rate", share, "", f">= {LEAST_SHARE_OF_RATE}", share >= LEAST_SHARE_OF_RATE),
        Figure("slowest_unthrottled", float(free_s.max()), "s"),
        Figure("degraded", int(rows["degraded"].sum()), "rows"),
        *(Figure(f"rows_{name}", count) for name, count in counts),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sla", description=__doc__)
    parser.add_argument("--clips", type=int, default=300)
    parser.add_argument("--keep", type=Path, help="folder for clips and rows; what is there is used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="l1-sla-") as scratch:
        folder = options.keep or Path(scratch)
        make_clips(folder / "clips", options.clips)
        promised = screen(folder, "promised", SLA_S)
        unthrottled = screen(folder, "unthrottled", 3600.0)
        found = figures(options.clips, promised, unthrottled)
    return report("sla", found)


if __name__ == "__main__":
    sys.exit(main())
