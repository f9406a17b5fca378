"""Whether broken files can do harm: `python -m bench.fuzz [--count 3000] [--minutes 12] [--seed 1] [--keep FOLDER]`.

Small recordings of some forty containers and codecs are broken in eleven ways (`bench.mutations`) and screened by
`run_batch.py` with the demo's job and the embedded model, in rounds until there are enough or the time is over. The
same seed and number make the same file. What killed a worker, hung, lost its row or raised what nobody foresaw is
kept, in FOLDER/offenders or a folder that is named at the end.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.media import CRASHES, HANGS, LONGEST_S
from bench.mutations import make_seeds, mutant
from bench.result import Figure, report
from bench.runs import files_below, front_end_s, screen, screened_s

ROUND = 750
_START_S = 60.0


@dataclass(slots=True)
class Found:
    """What came of all mutants so far; `offenders` by what they did."""

    files: int = 0
    kinds: Counter[tuple[str, str]] = field(default_factory=Counter)
    offenders: dict[str, list[str]] = field(default_factory=dict)
    slowest_s: float = 0.0
    slowest: str = ""
    peak_bytes: int = 0
    engine_restarts: int = 0

    def blame(self, what: str, path: bytes) -> None:
        self.offenders.setdefault(what, []).append(Path(path.decode()).name)


def fuzz_round(folder: Path, number: int, names: Callable[[Path], None], found: Found) -> None:
    """Screen one round of mutants, note what came of them and keep the offenders."""
    mutants = folder / "mutants"
    names(mutants)
    listed = set(files_below(mutants))
    ended = screen(folder, f"round_{number:02d}", [mutants])
    found.files += len(listed)
    found.engine_restarts += ended.summary["engine_restarts"]
    peaks = ended.summary["peak_memory_bytes"]
    found.peak_bytes = max(found.peak_bytes, *(size for name, size in peaks.items() if name.startswith("front_end")))
    for path in sorted(listed - set(ended.rows)):
        found.blame("row_missing", path)
    for path in ended.lost_workers():
        found.blame("worker_death", path)
    for path, row in ended.rows.items():
        _note(path, row, found)
    kept = folder / "offenders"
    kept.mkdir(exist_ok=True)
    for name in {name for several in found.offenders.values() for name in several}:
        if (mutants / name).exists():
            shutil.copy(mutants / name, kept)
    shutil.rmtree(mutants)


def _note(path: bytes, row: dict[str, Any], found: Found) -> None:
    reason, took_s = row["reason"] or "", front_end_s(row)
    found.kinds[row["status"], reason] += 1
    if took_s > found.slowest_s:
        found.slowest_s, found.slowest = took_s, Path(path.decode()).name
    if reason in HANGS or max(took_s, screened_s(row)) > LONGEST_S:
        found.blame("hang", path)
    if reason in CRASHES:
        found.blame(reason, path)


def figures(found: Found, wanted: int, seeds: int, minutes: float) -> list[Figure]:
    """Return the measures over all rounds."""
    count = {what: len(set(names)) for what, names in found.offenders.items()}
    deaths = count.get("worker_death", 0) + count.get("front_end_lost", 0)
    engine = found.engine_restarts + count.get("engine_lost", 0) + count.get("engine_killed", 0)
    told = [
        ("worker_deaths", deaths),
        ("engine_deaths", engine),
        ("hangs", count.get("hang", 0)),
        ("rows_missing", count.get("row_missing", 0)),
        ("internal_errors", count.get("internal_error", 0)),
    ]
    rows = sum(found.kinds.values())
    return [
        Figure("mutants", found.files, f"of {wanted} wanted"),
        Figure("seed_files", seeds, "", ">= 30", seeds >= 30),
        Figure("rows", rows, "", f"{found.files}", rows == found.files),
        Figure("rows_ok", sum(number for (status, _), number in found.kinds.items() if status == "ok")),
        *(Figure(name, number, "", "0", number == 0) for name, number in told),
        Figure("slowest_s", found.slowest_s, found.slowest, f"<= {LONGEST_S:g}", found.slowest_s <= LONGEST_S),
        Figure("peak_worker_mib", found.peak_bytes / 2**20, "MiB, without ffmpeg"),
        Figure("minutes", minutes, "min"),
    ]


def fuzz(folder: Path, options: argparse.Namespace) -> list[Figure]:
    """Fuzz in rounds until there are enough mutants or another round would take too long."""
    begun, found = time.monotonic(), Found()
    seeds = make_seeds(folder / "seeds")
    next_one, rounds, longest_s = options.first, 0, 0.0
    last = options.first + options.count
    while next_one < last and (rounds == 0 or time.monotonic() - begun + longest_s < 60 * options.minutes):
        these = range(next_one, min(last, next_one + ROUND))

        def write(mutants: Path, these: range = these) -> None:
            mutants.mkdir()
            for number in these:
                name, data = mutant(seeds, options.seed, number)
                (mutants / name).write_bytes(data)

        started = time.monotonic()
        fuzz_round(folder, rounds, write, found)
        longest_s = max(longest_s, time.monotonic() - started)
        next_one, rounds = these.stop, rounds + 1
    table = Table("status", "reason", "rows", title=f"what came of seed {options.seed}")
    for (status, reason), number in sorted(found.kinds.items(), key=lambda one: -one[1]):
        table.add_row(status, reason, str(number))
    for what, names in found.offenders.items():
        table.add_section()
        for name in sorted(set(names)):
            table.add_row("OFFENDER", what, name)
    Console(width=120).print(table)
    return figures(found, options.count, len(seeds), (time.monotonic() - begun) / 60)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.fuzz", description=__doc__)
    parser.add_argument("--count", type=int, default=3000, help="how many mutants")
    parser.add_argument("--minutes", type=float, default=12.0, help="start no round that would end after these")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, help="number of the first mutant")
    parser.add_argument("--keep", type=Path, help="a new folder for seeds, rows and offenders")
    options = parser.parse_args()
    folder = options.keep.absolute() if options.keep else Path(tempfile.mkdtemp(prefix="l1-fuzz-"))
    if options.keep:
        folder.mkdir(parents=True)
    code = report("fuzz", fuzz(folder, options))
    kept = sorted(path.name for path in (folder / "offenders").iterdir())
    if kept:
        print(f"offenders kept in {folder / 'offenders'}", file=sys.stderr)
    elif options.keep is None:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
