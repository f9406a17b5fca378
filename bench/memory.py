"""What long recordings cost: `python -m bench.memory [--keep FOLDER]`.

Half an hour of 1080p with sound, and ten hours of sound and of video, made by repeating an encoded piece.

1. The half hour's front end alone (`bench.worker` says what is counted): at the demo's settings, at the defaults, and
   at the defaults with so much time that as much is decoded as the prompt can hold. What the item takes - the worker's
   growth and ffmpeg - must stay within 1 GB; what the idle worker holds besides is told.
2. All of them screened by `run_batch.py` with the demo's job: each answered within its minute, with the right length,
   and a coverage that agrees with the sound that the prompt holds.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.clips import ffmpeg
from bench.result import Figure, report
from bench.runs import Ended, screen, screened_s
from bench.worker import Measured, Worker
from pipeline.job import Media

MOST_ITEM_BYTES = 10**9
SLA_S = 60.0
HALF_AN_HOUR_S, TEN_HOURS_S = 1800, 36_000
COVERAGE_TOLERANCE = 0.1
_TOKENS_PER_S = 13  # of sound: transformers' _get_feat_extract_output_lengths, see pipeline.media.plan
_PIECE_S = 20
_MOVING = "smptehdbars=size={size}:rate={rate},drawbox=x=mod(t*200\\,iw-200):y=ih/3:w=200:h=200:color=red:t=fill"
_SPOKEN = "anoisesrc=color=pink:amplitude=0.2:sample_rate=44100:seed=1"
_FULL_LOOK_S = 600.0


def make_files(folder: Path) -> dict[str, Path]:
    """Write the long files that are not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    wanted = {
        "half_hour_1080p.mp4": (_pictures("1920x1080", "25"), HALF_AN_HOUR_S),
        "ten_hours.mp4": (_pictures("640x360", "10"), TEN_HOURS_S),
        "ten_hours.m4a": ((), TEN_HOURS_S),
        "ten_hours.mp3": ((), TEN_HOURS_S),
    }
    for name, (pictures, length_s) in wanted.items():
        path, piece = folder / name, folder.parent / f"piece_of_{name}"
        if path.exists():
            continue
        sound = ("-f", "lavfi", "-i", _SPOKEN, "-t", str(_PIECE_S), "-ac", "1", "-b:a", "48k")
        ffmpeg(*(pictures[:4]), *sound, *(pictures[4:]), str(piece))
        ffmpeg("-stream_loop", "-1", "-i", str(piece), "-t", str(length_s), "-c", "copy", str(path))
        piece.unlink()
    return {name: folder / name for name in wanted}


def _pictures(size: str, rate: str) -> tuple[str, ...]:
    """Return the input (four arguments) and the codec."""
    source = ("-f", "lavfi", "-i", _MOVING.format(size=size, rate=rate))
    return (*source, "-c:v", "libx264", "-preset", "veryfast", "-crf", "32", "-pix_fmt", "yuv420p")


def default_options() -> list[str]:
    """Return what makes the demo's job look as closely as a job that says nothing of it; the model is not asked."""
    media = Media().model_dump()
    values = {
        f"{part}.{key}": value for part, keys in media.items() if isinstance(keys, dict) for key, value in keys.items()
    }
    return [
        *(f"media.{name}={value}" for name, value in values.items()),
        *("engine.max_model_len=32768", "model.allow_untrained_policy=true"),
    ]


def measure(options: Sequence[str], path: Path, budget_s: float) -> Measured:
    """Measure one file with a worker of its own; for a fresh process."""
    return Worker(options).measure(os.fsencode(path), budget_s, limit_s=2 * budget_s + 60)


def measured(path: Path) -> dict[str, Measured]:
    """Return the half hour's costs at each of the settings."""
    full = [*default_options(), f"front_end.decode_timeout_s={_FULL_LOOK_S:g}", "sla.per_item_s=3600"]
    settings = {"demo": ([], SLA_S), "default": (default_options(), SLA_S), "full_look": (full, _FULL_LOOK_S)}
    costs = {}
    for name, (options, budget_s) in settings.items():
        # A fresh process for each: a second worker in the same one would find the first one's memory.
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
            costs[name] = pool.submit(measure, options, path, budget_s).result()
    return costs


_JUDGED = ("demo", "default")
"""The full look is what no run takes in a minute: its figure is told, for the day when rendering takes less."""


def memory_figures(costs: Mapping[str, Measured]) -> list[Figure]:
    """Return the measures of the half hour alone."""
    found = []
    limit = f"<= {MOST_ITEM_BYTES / 1e6:g}"
    for name, one in costs.items():
        prepared = one.prepared
        failed = one.died if prepared is None else prepared.error_code
        met = failed is None and one.item_bytes <= MOST_ITEM_BYTES
        judged = name in _JUDGED
        coverage = None if prepared is None else prepared.coverage
        told = f"MB: worker {one.worker_growth_bytes / 1e6:.0f}, ffmpeg {one.programs_bytes / 1e6:.0f}"
        found += [
            Figure(f"{name}_item_mb", one.item_bytes / 1e6, failed or told, *((limit, met) if judged else ())),
            Figure(f"{name}_whole_mb", one.whole_bytes / 1e6, "MB, with the idle worker"),
            Figure(f"{name}_front_end_s", one.seconds, f"s, coverage {coverage}"),
        ]
    return found


def run_figures(ended: Ended, files: Mapping[str, Path]) -> list[Figure]:
    """Return the measures of the long files screened."""
    found = [Figure("rows", len(ended.rows), "", f"{len(files)}", len(ended.rows) == len(files))]
    table = Table("file", "status", "reason", "seconds", "length", "coverage", "heard", "frames", title="screened")
    for name, path in files.items():
        row = ended.rows.get(os.fsencode(path))
        if row is None:
            continue
        took_s, length_s = screened_s(row), HALF_AN_HOUR_S if name.startswith("half") else TEN_HOURS_S
        heard = row["audio_tokens"] / _TOKENS_PER_S / length_s
        honest = _honest(row, length_s, heard)
        cells = (name, row["status"], row["reason"], f"{took_s:.1f}", f"{row['duration_s'] or 0:.0f}")
        table.add_row(*map(str, cells), f"{row['coverage'] or 0:.5f}", f"{heard:.5f}", str(row["frames"]))
        in_time = row["status"] == "ok" and took_s <= SLA_S
        key = name.replace(".", "_")
        found.append(Figure(f"{key}_s", took_s, str(row["reason"]), f"<= {SLA_S:g}, answered", in_time))
        found.append(Figure(f"{key}_honest", "yes" if honest else "no", "length and coverage", "yes", honest))
    Console(width=120).print(table)
    peaks = [size for name, size in ended.summary["peak_memory_bytes"].items() if name.startswith("front_end")]
    return [*found, Figure("peak_worker_mb", max(peaks) / 1e6, "MB, in the run, without ffmpeg")]


def _honest(row: Mapping[str, Any], length_s: float, heard: float) -> bool:
    """Return whether length and coverage are those of the recording and of the sound in the prompt."""
    # Pieces end in whole frames of their codec: what is made of them is up to two thousandths longer.
    length_right = row["duration_s"] is not None and abs(row["duration_s"] - length_s) <= 0.002 * length_s
    coverage = row["coverage"] or 0.0
    return length_right and abs(coverage - heard) <= COVERAGE_TOLERANCE * heard and row["degraded"]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.memory", description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder for the files; what is there is used again")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="l1-memory-") as scratch:
        files = make_files((options.keep or Path(scratch)).absolute() / "files")
        costs = measured(files["half_hour_1080p.mp4"])
        ended = screen(Path(scratch), "long", list(files.values()))
        found = [*memory_figures(costs), *run_figures(ended, files)]
    return report("memory", found)


if __name__ == "__main__":
    sys.exit(main())
