"""Whether anything is ever lost: `python -m bench.chaos [--items 500] [--kills 30] [--real]`.

A job is killed at random moments, with its workers and its engine killed besides, and started again each time until it
ends by itself. Items hang, die, take the engine with them or answer garbage as a rehearsal scripts it; with `--real`
they are clips for the embedded model. After every kill the dataset is read: what was readable must still be, once.
"""

from __future__ import annotations

import argparse
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars
import psutil
import yaml

from bench.result import Figure, report

ROOT = Path(__file__).parents[1]
SLA_S = 20.0
_FAULTS = {
    "slow": 0.05,
    "hang": 0.02,
    "garbage": 0.03,
    "engine_dies": 0.01,
    "engine_stalls": 0.004,
    "poison": 0.006,
    "front_end_dies": 0.03,
    "front_end_hangs": 0.006,
}
_COLUMNS = ["row_id", "item_id", "status", "reason", "message", "admitted_at", "committed_at", "attempts"]
_GIVE_UP_S = 1800.0
_OF_RAY = re.compile(r"ray::|/raylet|gcs_server")


@dataclass(slots=True)
class Seen:
    """What readers have seen so far."""

    items: set[str] = field(default_factory=set)
    good: set[str] = field(default_factory=set)
    lost: int = 0
    good_lost: int = 0
    duplicates: int = 0

    def look(self, output: Path) -> polars.DataFrame | None:
        """Read the dataset and note what disappeared or is there twice."""
        if not list(output.glob("part-*.parquet")):
            return None
        rows = polars.read_parquet(str(output / "part-*.parquet"), columns=_COLUMNS)
        now = set(rows["item_id"])
        self.duplicates += len(rows) - len(now)
        self.lost += len(self.items - now)
        self.items |= now
        good = set(rows.filter(polars.col("status") == "ok")["item_id"])
        self.good_lost += len(self.good - good)
        self.good |= good
        return rows


def rehearsed(folder: Path, items: int) -> Path:
    """Write small files and a job that rehearses them with faults; return the job."""
    clips = folder / "clips"
    clips.mkdir()
    for number in range(items):
        (clips / f"{number:05d}.wav").write_bytes(b"item %d" % number)
    job: dict[str, Any] = {
        "engine": {"max_num_seqs": 8, "stall_s": 4},
        "sla": {"per_item_s": SLA_S},
        "rehearsal": {"answer_s": 0.5, "slow_s": 3, "faults": _FAULTS},
    }
    return _write_job(folder, clips, job)


def real(folder: Path, items: int) -> Path:
    """Copy the demo's clips under new names and return a job that screens them with the embedded model."""
    clips, found = folder / "clips", sorted((ROOT / "jobs" / "demo" / "clips").iterdir())
    clips.mkdir()
    for number in range(items):
        one = found[number % len(found)]
        shutil.copy(one, clips / f"{number:05d}{one.suffix}")
    job = yaml.safe_load((ROOT / "jobs" / "demo.yaml").read_text(encoding="utf-8"))
    source = {"paths": [str(clips)], "duplicates": "screen"}
    return _write_job(folder, clips, {name: job[name] for name in ("engine", "media")} | {"source": source})


def _write_job(folder: Path, clips: Path, settings: dict[str, Any]) -> Path:
    job = {
        "name": "chaos",
        "source": {"paths": [str(clips)]},
        "policy": str(ROOT / "jobs" / "policies" / "demo.yaml"),
        "output": {"path": str(folder / "out"), "commit_every_s": 0.5, "rows_per_part": 100},
        "accept": {"error_share": 1.0, "late_share": 1.0},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job | settings), encoding="utf-8")
    return path


def start(job: Path, log: Path) -> subprocess.Popen[bytes]:
    """Start a run of the job; what it says is appended to the log."""
    with log.open("ab") as said:
        return subprocess.Popen([sys.executable, str(ROOT / "run_batch.py"), str(job)], stdout=said, stderr=said)


def wait_for_work(process: subprocess.Popen[bytes], output: Path, known: set[str]) -> Path | None:
    """Return the run's folder when its engine is ready; None if it ended before."""
    begun = time.monotonic()
    while process.poll() is None and time.monotonic() - begun < _GIVE_UP_S:
        for folder in (output / "_runs").glob("*/"):
            events = folder / "events.jsonl"
            if folder.name not in known and events.exists() and b"engine_ready" in events.read_bytes():
                known.add(folder.name)
                return folder
        time.sleep(0.05)
    return None


def kill_a_worker(process: subprocess.Popen[bytes], chance: random.Random) -> str:
    """Kill one of the run's front-end workers or its engine; return which kind it was."""
    actors = []
    with suppress(psutil.Error):
        actors = [one for one in psutil.Process(process.pid).children(recursive=True) if "Actor" in _name(one)]
    if not actors:
        return "none"
    victim = chance.choice(actors)
    name = "engine" if "EngineActor" in _name(victim) else "front_end"
    with suppress(psutil.Error):
        victim.kill()
    return name


def _name(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def strike(job: Path, folder: Path, kills: int, chance: random.Random, longest_s: float) -> tuple[Seen, Counter[str]]:
    """Start and kill the run so often, then let it end; return what readers saw and what was done."""
    output, known, done = folder / "out", set[str](), Counter[str]()
    seen = Seen()
    for _ in range(kills):
        process = start(job, folder / "log")
        if wait_for_work(process, output, known) is not None:
            until = time.monotonic() + chance.uniform(0, longest_s)
            while time.monotonic() < until and process.poll() is None:
                time.sleep(chance.uniform(0, longest_s / 2))
                if chance.random() < 0.25:
                    done[kill_a_worker(process, chance)] += 1
                seen.look(output)
        number = signal.SIGTERM if chance.random() < 0.2 else signal.SIGKILL
        done[number.name if process.poll() is None else "ended"] += 1
        process.send_signal(number)
        try:
            code = process.wait(60)
        except subprocess.TimeoutExpired:
            code = None
            process.kill()
            process.wait()
        if number is signal.SIGTERM and code not in (0, 4):
            done["sigterm_misses"] += 1
        seen.look(output)
    done["last_exit"] = start(job, folder / "log").wait(_GIVE_UP_S)
    return seen, done


def figures(items: int, kills: int, output: Path, seen: Seen, done: Counter[str], limit_s: float) -> list[Figure]:
    """Return the measures over the finished dataset."""
    rows = seen.look(output)
    assert rows is not None
    bad = rows.filter(polars.col("status") != "ok")
    causeless = bad.filter(polars.col("reason").is_null() | polars.col("message").is_null()).height
    seconds = (rows["committed_at"] - rows["admitted_at"]).dt.total_milliseconds() / 1000
    struck = done["SIGKILL"] + done["SIGTERM"]
    found = [
        Figure("items", items),
        Figure("kills", struck, f"of the run ({done['SIGTERM']} by SIGTERM)", f"{kills}", struck == kills),
        Figure("workers_killed", done["front_end"], "front-end workers"),
        Figure("engines_killed", done["engine"], "engines"),
        Figure("last_exit_code", done["last_exit"], "", "0", done["last_exit"] == 0),
        Figure("rows_missing", items - len(seen.items), "", "0", rows.height == items == len(seen.items)),
        Figure("rows_lost", seen.lost, "once readable, then gone", "0", seen.lost == 0),
        Figure("good_rows_lost", seen.good_lost, "once good, then not", "0", seen.good_lost == 0),
        Figure("sigterm_misses", done["sigterm_misses"], "not 0 or 4 within 60 s", "0", not done["sigterm_misses"]),
        Figure("duplicates", seen.duplicates, "", "0", seen.duplicates == 0),
        Figure("rows_without_cause", causeless, "", "0", causeless == 0),
        Figure("slowest_row", float(seconds.max() or 0.0), "s", f"<= {limit_s:g}", bool((seconds <= limit_s).all())),
    ]
    reasons = Counter(bad["reason"])
    return found + [Figure(f"rows_{reason}", count) for reason, count in sorted(reasons.items())]


def ray_processes() -> set[int]:
    """Return the ids of all of Ray's processes on this machine."""
    return {one.pid for one in psutil.process_iter() if _OF_RAY.search(_name(one))}


def orphans(before: set[int]) -> int:
    """Return how many of Ray's processes are left a while after the last run ended, but for those there before."""
    until = time.monotonic() + 20
    while (left := ray_processes() - before) and time.monotonic() < until:
        time.sleep(1)
    return len(left)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.chaos", description=__doc__)
    parser.add_argument("--items", type=int, help="500, or 60 with --real")
    parser.add_argument("--kills", type=int, help="30, or 5 with --real")
    parser.add_argument("--real", action="store_true", help="screen clips with the embedded model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="an empty folder for files, rows and log")
    options = parser.parse_args()
    items = options.items or (60 if options.real else 500)
    kills = options.kills if options.kills is not None else (5 if options.real else 30)
    with tempfile.TemporaryDirectory(prefix="l1-chaos-") as scratch:
        folder = options.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        job = (real if options.real else rehearsed)(folder, items)
        before = ray_processes()
        seen, done = strike(job, folder, kills, random.Random(options.seed), 2.5 if options.real else 5.0)
        found = figures(items, kills, folder / "out", seen, done, 60.0 if options.real else SLA_S)
        left = orphans(before)
        found.append(Figure("orphans", left, "processes of Ray left", "0", left == 0))
    return report("chaos", found)


if __name__ == "__main__":
    sys.exit(main())
