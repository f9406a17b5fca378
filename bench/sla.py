"""Whether each item is answered within a minute at full load: `python -m bench.sla [--clips 300] [--keep FOLDER]`.

Mixed clips of 2 s to 30 min, one in twenty broken, are screened by the embedded model twice: with the promise of 60 s,
and without one, which tells what the same machine does unthrottled. Long ones are looked at
as for a full-size model: up to 30 minutes, fewer frames a second; what the embedded model says of them means nothing.
No item may be late in the first run, and it must reach nine tenths of the second one's rate.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import polars
import yaml

from bench.clips import ffmpeg
from bench.result import Figure, report

ROOT = Path(__file__).parents[1]
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


def screen(folder: Path, name: str, sla_s: float) -> tuple[dict[str, Any], polars.DataFrame]:
    """Screen the clips with the demo's settings under a promise; return run.json and the rows."""
    job = yaml.safe_load((ROOT / "jobs" / "demo.yaml").read_text(encoding="utf-8"))
    job |= {"name": f"sla-{name}", "source": {"paths": ["clips"]}, "output": {"path": name}}
    job |= {"policy": str(ROOT / "jobs" / "policies" / "demo.yaml"), "sla": {"per_item_s": sla_s}}
    job["media"] |= {"audio": {"max_duration_s": 1800}, "video": {**job["media"]["video"], "min_rate_hz": 0.25}}
    job |= {"accept": {"error_share": 1.0, "late_share": 1.0}}
    shutil.rmtree(folder / name, ignore_errors=True)
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    subprocess.run([sys.executable, str(ROOT / "run_batch.py"), str(path)], check=True)
    newest = max((folder / name / "_runs").glob("*/run.json"), key=lambda one: one.stat().st_mtime_ns)
    rows = polars.read_parquet(str(folder / name / "part-*.parquet"))
    return json.loads(newest.read_text(encoding="utf-8")), rows


def figures(clips: int, promised: Any, unthrottled: Any) -> list[Figure]:
    """Return the measures of both runs, each given as run.json and rows."""
    (summary, rows), (free_summary, free_rows) = promised, unthrottled
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
