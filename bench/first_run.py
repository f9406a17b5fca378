"""`python -m bench.first_run`: 40 clips of 20 s in one run on the embedded model.

Tells items per second (start left out), the engine thread's time outside `step()`, and each process's peak memory.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow.dataset
import yaml

from bench.clips import make_clips
from bench.result import Figure, report

ROOT = Path(__file__).parents[1]
MOST_OUTSIDE_SHARE = 0.05
MOST_OUTSIDE_MS = 10
_TIMEOUT_S = 1800


def run(folder: Path, clips: int) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Screen generated clips with the demo's settings; return run.json and the rows."""
    make_clips(folder / "clips", clips)
    job = yaml.safe_load((ROOT / "jobs" / "demo.yaml").read_text(encoding="utf-8"))
    job |= {"name": "first-run", "source": {"paths": ["clips"], "duplicates": "screen"}, "output": {"path": "out"}}
    job |= {"policy": str(ROOT / "jobs" / "policies" / "demo.yaml"), "accept": {}}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    subprocess.run([sys.executable, str(ROOT / "run_batch.py"), str(path)], check=True, timeout=_TIMEOUT_S)
    (summary,) = (folder / "out" / "_runs").glob("*/run.json")
    rows = pyarrow.dataset.dataset(folder / "out", format="parquet").to_table().to_pylist()
    return json.loads(summary.read_text(encoding="utf-8")), rows


def figures(summary: dict[str, Any], rows: list[dict[str, Any]], clips: int) -> list[Figure]:
    """Return what the run cost and whether every clip was seen and heard."""
    thread = summary["engine_thread"]
    share = thread["outside_s"] / (thread["outside_s"] + thread["step_s"])
    outside_ms = 1000 * thread["outside_s"] / max(1, thread["finished"])
    seen = sum(row["status"] == "ok" and row["audio_tokens"] > 0 and row["video_tokens"] > 0 for row in rows)
    late = sum(not row["sla_met"] for row in rows)
    return [
        Figure("clips_seen_and_heard", seen, "", f"{clips}", seen == clips == len(rows)),
        Figure("late_rows", late, "", "0", late == 0),
        Figure("start_s", summary["start_s"], "s"),
        Figure("items_per_s", clips / summary["screen_s"], "1/s"),
        Figure("engine_step_s", thread["step_s"], "s"),
        Figure("engine_outside_step_s", thread["outside_s"], "s"),
        Figure("engine_outside_share", share, "", f"< {MOST_OUTSIDE_SHARE}", share < MOST_OUTSIDE_SHARE),
        Figure("engine_outside_ms_per_item", outside_ms, "ms", f"<= {MOST_OUTSIDE_MS}", outside_ms <= MOST_OUTSIDE_MS),
        Figure("prompt_tokens_per_item", sum(row["prompt_tokens"] for row in rows) / len(rows), ""),
        *(Figure(f"phase_{name}_s_per_item", value / clips, "s") for name, value in summary["phase_s"].items()),
        *(
            Figure(f"peak_memory_{name}_mib", round(value / 2**20), "MiB")
            for name, value in summary["peak_memory_bytes"].items()
        ),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=40)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        summary, rows = run(Path(folder), args.clips)
    return report("first_run", figures(summary, rows, args.clips))


if __name__ == "__main__":
    sys.exit(main())
