"""`python -m bench.readers`: DuckDB, Polars and PyArrow read the output all the while it is written.

Three processes open the dataset every 100 ms, during a run over copies of the demo's clips or, with `--sink-only`,
while a loop feeds the sink 200 rows a second, a tenth of which replace rows of any part, of this run or of one before.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import yaml

from bench.result import Figure, report
from pipeline.ledger import read_ledger
from pipeline.row import VerdictRow
from pipeline.sink import Sink, steady_utc

ROOT = Path(__file__).parents[1]
PERIOD_S = 0.1
ROWS_PER_S = 200
_REPLACING = 0.1
_ROWS_PER_PART = 1500
_COMMIT_EVERY_S = 2.0
_ROWS_BEFORE = 500
_SMALL_BYTES = 1_000_000
_FEW_PARTS = 10
_TIMEOUT_S = 7200
_WORDS = (
    "car",
    "whistle",
    "smoke",
    "screen",
    "voice",
    "camera",
    "street",
    "light",
    "alarm",
    "door",
    "silence",
    "crowd",
)
_COLUMNS = ("item_id", "fingerprint", "rationale")

Rows = list[tuple[str, str]]


# Readers


@dataclass(slots=True)
class Seen:
    """What one reader met."""

    reads: int = 0
    errors: int = 0
    duplicates: int = 0
    falls: int = 0
    rows: int = 0
    slowest_s: float = 0.0
    first_error: str = ""


def _duckdb(folder: Path) -> Rows:
    import duckdb

    with duckdb.connect() as connection:
        query = f"select {', '.join(_COLUMNS)} from read_parquet('{folder}/part-*.parquet')"
        return [(item_id, fingerprint) for item_id, fingerprint, _ in connection.execute(query).fetchall()]


def _polars(folder: Path) -> Rows:
    import polars

    table = polars.read_parquet(folder / "part-*.parquet", columns=list(_COLUMNS))
    return list(zip(table["item_id"].to_list(), table["fingerprint"].to_list(), strict=True))


def _pyarrow(folder: Path) -> Rows:
    from pyarrow import dataset

    table = dataset.dataset(sorted(map(str, folder.glob("part-*.parquet"))), format="parquet").to_table(list(_COLUMNS))
    return list(zip(table["item_id"].to_pylist(), table["fingerprint"].to_pylist(), strict=True))


READERS: dict[str, Callable[[Path], Rows]] = {"duckdb": _duckdb, "polars": _polars, "pyarrow": _pyarrow}


def watch(read: Callable[[Path], Rows], folder: Path, over: threading.Event) -> Seen:
    """Read every 100 ms, and once more when it is over."""
    seen = Seen()
    while True:
        last, begun = over.is_set(), time.monotonic()
        if next(folder.glob("part-*.parquet"), None) is not None:
            _read_once(read, folder, seen)
            seen.slowest_s = max(seen.slowest_s, time.monotonic() - begun)
        if last:
            return seen
        over.wait(max(0.0, PERIOD_S - (time.monotonic() - begun)))


def _read_once(read: Callable[[Path], Rows], folder: Path, seen: Seen) -> None:
    seen.reads += 1
    try:
        rows = read(folder)
    except Exception as error:
        seen.errors += 1
        seen.first_error = seen.first_error or f"{type(error).__name__}: {error}"
        return
    seen.duplicates += len(rows) - len(set(rows))
    seen.falls += len(rows) < seen.rows
    seen.rows = len(rows)


def be_reader(name: str, folder: Path) -> None:
    """Say when the library is loaded, read until the standard input ends, print what was seen."""
    read = READERS[name]
    with tempfile.TemporaryDirectory() as trial:
        sink = Sink(Path(trial), "trial", rows_per_part=1, commit_every_s=1.0)
        sink.add(a_row("trial", random.Random(0)))
        sink.close()
        read(Path(trial))
    print("ready", flush=True)
    over = threading.Event()

    def until_told() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=until_told, daemon=True).start()
    print(json.dumps(asdict(watch(read, folder, over))), flush=True)


@dataclass(slots=True)
class Watch:
    """Readers in processes of their own, and what they have seen once they have ended."""

    seen: dict[str, Seen] = field(default_factory=dict)

    @contextmanager
    def reading(self, folder: Path) -> Iterator[None]:
        """Let every reader read while the block runs."""
        with ExitStack() as stack:
            readers = {name: stack.enter_context(_started(name, folder)) for name in READERS}
            for reader in readers.values():
                assert reader.stdout is not None
                if reader.stdout.readline() != "ready\n":
                    raise RuntimeError("a reader did not start")
            try:
                yield
            finally:
                said = {name: reader.communicate(timeout=600)[0] for name, reader in readers.items()}
            self.seen = {name: Seen(**json.loads(text)) for name, text in said.items()}


def _started(name: str, folder: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "bench.readers", "--reader", name, str(folder)]
    return subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


# Writers


def a_row(item_id: str, chance: random.Random, follows: str | None = None) -> VerdictRow:
    """Return a row as long as a real one."""
    now, digest = steady_utc()(), f"{chance.getrandbits(256):064x}"
    labels = tuple(
        {"id": f"label_{n}", "present": chance.random() > 0.9, "confidence": chance.random()} for n in range(6)
    )
    values: dict[str, Any] = {
        **{name: chance.random() for name in VerdictRow.model_fields if name.endswith("_s")},
        **dict.fromkeys(("audio_tokens", "video_tokens", "frames", "prompt_tokens", "output_tokens"), 200),
        **dict.fromkeys(("run_id", "job_name", "policy_id", "policy_version", "model", "engine"), "bench"),
        **dict.fromkeys(("reason", "message")),
        "row_id": uuid4().hex, "follows_row_id": follows, "duplicate_of": None, "item_id": item_id,
        "uri": f"/recordings/{item_id}.mp4",
        "source_key": digest[:32], "content_sha256": digest, "media_kind": "av", "status": "ok", "degraded": False,
        "verdict": chance.choice(("pass", "review", "reject")), "model_verdict": "pass", "confidence": chance.random(),
        "labels": labels, "rationale": " ".join(chance.choices(_WORDS, k=40)), "attempts": 1, "coverage": 1.0,
        "frame_rate_hz": 2.0, "sla_s": 60.0, "admitted_at": now, "committed_at": now, "sla_met": True,
        "fingerprint": "f", "accel_patches": (),
    }  # fmt: skip
    return VerdictRow.model_validate(values)


def feed(folder: Path, seconds: float) -> tuple[int, float, int]:
    """Feed a sink; return how many items there are, rows per second and how many commits there were."""
    chance = random.Random(7)
    earlier = Sink(folder, "earlier", rows_per_part=_ROWS_PER_PART, commit_every_s=_COMMIT_EVERY_S)
    names = [f"item-{number:06d}" for number in range(_ROWS_BEFORE)]
    for name in names:
        earlier.add(a_row(name, chance))
    earlier.close()
    ledger = read_ledger(folder)
    sink = Sink(folder, "run", rows_per_part=_ROWS_PER_PART, commit_every_s=_COMMIT_EVERY_S)
    added, commits, begun, total = 0, 0, time.monotonic(), round(seconds * ROWS_PER_S)
    while added < total:
        for _ in range(min(total, round((time.monotonic() - begun) * ROWS_PER_S)) - added):
            if chance.random() < _REPLACING:
                name = chance.choice(names)
            else:
                names.append(name := f"item-{len(names):06d}")
            sink.add(a_row(name, chance), ledger.latest(name))
            added += 1
        if sink.due_in_s() == 0.0:
            sink.commit()
            commits += 1
        time.sleep(0.01)
    rows_per_s = added / (time.monotonic() - begun)
    sink.close()
    return len(names), rows_per_s, commits + 1


def screen(folder: Path, clips: int) -> tuple[Path, Path]:
    """Make copies of the demo's clips and a job over them; return the job and its output."""
    originals = sorted((ROOT / "jobs" / "demo" / "clips").iterdir())
    (folder / "clips").mkdir()
    for number in range(clips):
        original = originals[number % len(originals)]
        shutil.copy(original, folder / "clips" / f"{number:04d}_{original.name}")
    job = yaml.safe_load((ROOT / "jobs" / "demo.yaml").read_text(encoding="utf-8"))
    job |= {"name": "readers", "source": {"paths": ["clips"], "duplicates": "screen"}, "output": {"path": "out"}}
    job |= {"policy": str(ROOT / "jobs" / "policies" / "demo.yaml"), "accept": {"error_share": 1.0, "late_share": 1.0}}
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return path, folder / "out"


# Figures


def figures(watch: Watch, out: Path, items: int) -> list[Figure]:
    """Return what the readers saw and what the writer left."""
    sizes = [path.stat().st_size for path in sorted(out.glob("part-*.parquet"))]
    small = sum(size < _SMALL_BYTES for size in sizes[:-1])
    fits = small == 0 or len(sizes) < _FEW_PARTS
    told = []
    for name, seen in watch.seen.items():
        told += [
            Figure(f"{name}_reads", seen.reads, "", ">= 10", seen.reads >= 10),
            Figure(f"{name}_errors", seen.errors, seen.first_error[:60], "0", seen.errors == 0),
            Figure(f"{name}_duplicates", seen.duplicates, "", "0", seen.duplicates == 0),
            Figure(f"{name}_falling_counts", seen.falls, "", "0", seen.falls == 0),
            Figure(f"{name}_rows_at_the_end", seen.rows, "", f"{items}", seen.rows == items),
            Figure(f"{name}_slowest_read_s", seen.slowest_s, "s"),
        ]
    return [
        *told,
        Figure("parts", len(sizes), ""),
        Figure("parts_below_1_MB", small, "", f"0, or < {_FEW_PARTS} parts", fits),
        Figure("parts_mb", sum(sizes) / 1e6, "MB"),
    ]


def run_sink(folder: Path, seconds: float) -> list[Figure]:
    """Measure with rows that nobody screened."""
    out, watch = folder / "out", Watch()
    out.mkdir()
    with watch.reading(out):
        items, rate, commits = feed(out, seconds)
    return [
        Figure("rows_per_s", rate, "1/s", f">= {0.95 * ROWS_PER_S:g}", rate >= 0.95 * ROWS_PER_S),
        Figure("commits", commits, ""),
        *figures(watch, out, items),
    ]


def run_clips(folder: Path, clips: int) -> list[Figure]:
    """Measure with a real run on the embedded model."""
    job, out = screen(folder, clips)
    watch = Watch()
    with watch.reading(out):
        code = subprocess.run(
            [sys.executable, str(ROOT / "run_batch.py"), str(job)], check=False, timeout=_TIMEOUT_S
        ).returncode
    return [Figure("exit_code", code, "", "0", code == 0), *figures(watch, out, clips)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=300)
    parser.add_argument("--sink-only", action="store_true", help="feed the sink with made-up rows, without a model")
    parser.add_argument("--seconds", type=float, default=30.0, help="how long, with --sink-only")
    parser.add_argument("--reader", nargs=2, metavar=("NAME", "FOLDER"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.reader is not None:
        be_reader(args.reader[0], Path(args.reader[1]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        if args.sink_only:
            return report("readers_sink_only", run_sink(Path(folder), args.seconds))
        return report("readers", run_clips(Path(folder), args.clips))


if __name__ == "__main__":
    sys.exit(main())
