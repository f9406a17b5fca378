"""`python -m bench.resume`: how long a run that finds a million finished items takes to its first new one.

Makes as many (empty) files as items, the parts that the sink would have left for them, and 100 new files that are
listed last. Then a process of its own does what a run does before it starts workers: reads the job, checks the
source, resolves the model, reads the ledger and filters the listing until the first piece of work. Files are real
because asking each for its size and time is part of the cost; the kernel has their names in memory by then.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from bench.result import Figure, report
from pipeline.job import Job, load_job
from pipeline.part import write_part
from pipeline.records import Item
from pipeline.row import ARROW_SCHEMA

ROOT = Path(__file__).parents[1]
MOST_S = 15.0
MOST_MIB = 1000
_NEW = 100
_FILES_PER_FOLDER = 1000
_TEXT = "a car passes while someone whistles and then the screen goes dark; no smoke, no weapon, no alarm"
_START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Measured:
    """What the process that was measured tells."""

    source_s: float
    resolve_s: float
    ledger_s: float
    filter_s: float
    cpu_s: float
    peak_mib: float
    held: int
    first: str


# What is there before


def make_files(folder: Path, count: int) -> None:
    """Make `count` empty files of done recordings, and the new ones, which are listed last."""
    for first in range(0, count, _FILES_PER_FOLDER):
        below = folder / f"batch-{first // _FILES_PER_FOLDER:05d}"
        below.mkdir(parents=True)
        for number in range(first, min(count, first + _FILES_PER_FOLDER)):
            (below / f"recording-{number:07d}.mp4").touch()


def make_job(folder: Path) -> Path:
    """Write a job over the files that is the demo's otherwise."""
    job = yaml.safe_load((ROOT / "jobs" / "demo.yaml").read_text(encoding="utf-8"))
    job |= {"name": "resume", "source": {"paths": ["files"]}, "output": {"path": "out"}}
    job |= {"policy": str(ROOT / "jobs" / "policies" / "demo.yaml")}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path


def make_parts(job: Job, fingerprint: str) -> int:
    """Write the parts that hold a row for every file listed; return how many bytes they have."""
    from pipeline.source import list_items

    job.output.path.mkdir()
    chance, items = np.random.default_rng(7), list_items(job.source)
    size = 0
    for number, batch in enumerate(_batches(items, job.output.rows_per_part)):
        path = job.output.path / f"part-20260101T000000Z-0000-{number:05d}.parquet"
        write_part(path, rows_of(batch, fingerprint, chance, _START + timedelta(hours=number)))
        size += path.stat().st_size
    return size


def _batches(items: Iterator[Item], count: int) -> Iterator[list[Item]]:
    while batch := list(islice(items, count)):
        yield batch


def rows_of(items: list[Item], fingerprint: str, chance: np.random.Generator, begun: datetime) -> Any:
    """Return a table of good rows for the items, as various as real ones."""
    count = len(items)
    started = [begun + timedelta(seconds=float(at)) for at in np.sort(chance.uniform(0, 3500, count))]
    columns: dict[str, Any] = {
        "row_id": [bytes(row).hex() for row in chance.integers(0, 256, (count, 16), np.uint8)],
        "item_id": [item.item_id for item in items],
        "uri": [item.uri for item in items],
        "source_key": [item.source_key for item in items],
        "content_sha256": [bytes(row).hex() for row in chance.integers(0, 256, (count, 32), np.uint8)],
        "rationale": [" ".join(words) for words in chance.choice(_TEXT.split(), (count, 25))],
        "labels": [_labels(values) for values in chance.random((count, 6))],
        "verdict": chance.choice(["pass", "review", "reject"], count, p=[0.8, 0.15, 0.05]),
        "fingerprint": [fingerprint] * count,
        "admitted_at": started,
        "committed_at": [at + timedelta(seconds=12) for at in started],
    }
    same = {"schema_version": 3, "media_kind": "av", "status": "ok", "degraded": False, "sla_met": True, "sla_s": 60.0}
    same |= {"attempts": 1, "follows_row_id": None, "reason": None, "message": None, "accel_patches": []}
    for field in ARROW_SCHEMA:
        if field.name in same:
            columns[field.name] = pa.array([same[field.name]] * count, field.type)
        elif field.name not in columns:
            columns[field.name] = _filled(field.type, count, chance)
    return pa.table(columns, schema=ARROW_SCHEMA)


def _labels(values: np.ndarray[Any, Any]) -> list[dict[str, Any]]:
    return [{"id": f"label_{n}", "present": bool(value > 0.9), "confidence": value} for n, value in enumerate(values)]


def _filled(kind: Any, count: int, chance: np.random.Generator) -> Any:
    """Return a column that nobody reads here."""
    if pa.types.is_string(kind):
        return pa.array(["the same for all rows of a run"] * count, kind)
    if pa.types.is_floating(kind):
        return pa.array(chance.random(count), kind)
    return pa.array(chance.integers(0, 2000, count), kind)


# What is measured


def measure(job_file: Path) -> Measured:
    """Do what a run does before it starts workers."""
    marks = [time.monotonic()]
    from pipeline.ledger import check_fingerprints, read_ledger
    from pipeline.progress import Tally
    from pipeline.resolve import resolve
    from pipeline.source import check_source
    from pipeline.worklist import Worklist

    job = load_job(job_file)
    check_source(job.source)
    marks.append(time.monotonic())
    resolved = resolve(job)
    marks.append(time.monotonic())
    ledger = read_ledger(job.output.path)
    check_fingerprints(ledger, resolved.fingerprint, job.output.on_change)
    marks.append(time.monotonic())
    first = Worklist(resolved, ledger, Tally()).first()
    marks.append(time.monotonic())
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return Measured(
        source_s=marks[1] - marks[0],
        resolve_s=marks[2] - marks[1],
        ledger_s=marks[3] - marks[2],
        filter_s=marks[4] - marks[3],
        cpu_s=usage.ru_utime + usage.ru_stime,
        peak_mib=usage.ru_maxrss / 1024,
        held=ledger.rows(),
        first="" if first is None else Path(first[0].uri).name,
    )


def run(folder: Path, rows: int) -> list[Figure]:
    """Make what is missing in `folder`, measure, and return the figures."""
    from pipeline.resolve import resolve

    job_file, made_s = folder / "job.yaml", 0.0
    if not job_file.exists():
        begun = time.monotonic()
        make_files(folder / "files", rows)
        job = load_job(make_job(folder))
        make_parts(job, resolve(job).fingerprint)
        (folder / "files" / "new").mkdir()
        for number in range(_NEW):
            (folder / "files" / "new" / f"{number:03d}.mp4").touch()
        made_s = time.monotonic() - begun
    begun = time.monotonic()
    command = [sys.executable, "-m", "bench.resume", "--measure", str(job_file)]
    said = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=1800).stdout
    total_s = time.monotonic() - begun
    measured = Measured(**json.loads(said.splitlines()[-1]))
    size = sum(path.stat().st_size for path in (folder / "out").glob("part-*.parquet"))
    return [
        Figure("rows_held", measured.held, "", f"{rows}", measured.held == rows),
        Figure("first_new_item", measured.first, "", "000.mp4", measured.first == "000.mp4"),
        Figure("start_to_first_new_item_s", total_s, "s", f"<= {MOST_S:g}", total_s <= MOST_S),
        Figure("peak_memory_mib", measured.peak_mib, "MiB", f"<= {MOST_MIB}", measured.peak_mib <= MOST_MIB),
        Figure("cpu_s", measured.cpu_s, "s"),
        Figure("imports_and_source_s", measured.source_s, "s"),
        Figure("resolve_s", measured.resolve_s, "s"),
        Figure("ledger_s", measured.ledger_s, "s"),
        Figure("filter_s", measured.filter_s, "s"),
        Figure("parts_mib", size / 2**20, "MiB"),
        Figure("making_it_s", made_s, "s"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--folder", type=Path, help="keep files and parts here, and use them if they are there")
    parser.add_argument("--measure", type=Path, metavar="JOB", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure is not None:
        measured = measure(args.measure)
        print(json.dumps({name: getattr(measured, name) for name in Measured.__slots__}))
        return 0
    if args.folder is not None:
        args.folder.mkdir(parents=True, exist_ok=True)
        return report("resume", run(args.folder, args.rows))
    with tempfile.TemporaryDirectory() as folder:
        return report("resume", run(Path(folder), args.rows))


if __name__ == "__main__":
    sys.exit(main())
