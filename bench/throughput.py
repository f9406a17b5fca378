"""What driver, Ray and sink can carry: `python -m bench.throughput [--items 20000]`.

A rehearsal with an instant front end and engine: what is left is listing, admission, hand-over, rows and parts. The
files have a size each, as recordings do; with --same-size each might be a copy and is hashed ahead of its look. The
driver's memory goes up and down with the part that is open; what counts is its median while a thousand items are done,
around the 5 000th and before the last.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import pyarrow.parquet as pq
import yaml

from bench.result import Figure, report

ROOT = Path(__file__).parents[1]
LEAST_PER_S = 200
MOST_GROWTH = 0.05
FIRST_LOOK, WINDOW = 5000, 1000


def run(folder: Path, items: int, same_size: bool) -> tuple[dict[str, Any], list[tuple[int, int]], float]:
    """Rehearse so many items; return run.json, (rows, driver's resident bytes) over time, and its CPU seconds."""
    clips = folder / "clips"
    clips.mkdir()
    for number in range(items):
        path = clips / f"{number:06d}.wav"
        path.write_bytes(b"%06d" % number)
        if not same_size:
            os.truncate(path, 1000 + number)
    job = {
        "name": "throughput",
        "source": {"paths": ["clips"]},
        "policy": str(ROOT / "jobs" / "policies" / "demo.yaml"),
        "output": {"path": "out"},
        "engine": {"max_num_seqs": 64},
        "rehearsal": {"answer_s": 0.0},
    }
    (folder / "job.yaml").write_text(yaml.safe_dump(job), encoding="utf-8")
    process = subprocess.Popen([sys.executable, str(ROOT / "run_batch.py"), str(folder / "job.yaml")])
    driver, seen, cpu_s = psutil.Process(process.pid), [], 0.0
    while process.poll() is None:
        time.sleep(0.5)
        with suppress(psutil.Error, OSError):
            seen.append((_rows(folder / "out"), driver.memory_info().rss))
            cpu_s = sum(driver.cpu_times()[:2])
    if process.returncode != 0:
        raise SystemExit(f"the run ended with exit code {process.returncode}")
    (summary,) = (folder / "out" / "_runs").glob("*/run.json")
    return json.loads(summary.read_text(encoding="utf-8")), seen, cpu_s


def _rows(output: Path) -> int:
    return sum(pq.read_metadata(part).num_rows for part in output.glob("part-*.parquet"))


def figures(items: int, summary: dict[str, Any], seen: list[tuple[int, int]], cpu_s: float) -> list[Figure]:
    per_s = items / summary["screen_s"]
    look = min(FIRST_LOOK, items // 4)
    first = median(memory for rows, memory in seen if abs(rows - look) <= WINDOW / 2)
    last = median(memory for rows, memory in seen if rows >= items - WINDOW)
    growth = last / first - 1
    return [
        Figure("rows", summary["rows"], "", f"{items}", summary["rows"] == items == summary["by_status"].get("ok")),
        Figure("items_per_s", per_s, "1/s", f">= {LEAST_PER_S}", per_s >= LEAST_PER_S),
        Figure("driver_cpu_ms_per_item", 1000 * cpu_s / items, "ms"),
        Figure("driver_mib_at_first_look", first / 2**20, "MiB"),
        Figure("driver_mib_at_the_end", last / 2**20, "MiB"),
        Figure("driver_growth", growth, "", f"< {MOST_GROWTH}", growth < MOST_GROWTH),
        *(Figure(f"held_by_{name}_s", value, "s") for name, value in summary.get("held_s", {}).items()),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.throughput", description=__doc__)
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--same-size", action="store_true", help="all files have one size: each is hashed ahead")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="l1-throughput-") as folder:
        found = figures(options.items, *run(Path(folder), options.items, options.same_size))
    return report("throughput", found)


if __name__ == "__main__":
    sys.exit(main())
