"""Runs of the real pipeline for measuring: the demo's job over files, and everything that such a run leaves."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars
import yaml

from pipeline.uri import path_of

ROOT = Path(__file__).parents[1]
DEMO_JOB = ROOT / "jobs" / "demo.yaml"
_FRONT_END_PHASES = ("fetch_s", "probe_s", "plan_s", "decode_s", "render_s")


@dataclass(frozen=True, slots=True)
class Ended:
    """What a run left: exit code, its rows by path, its summary (run.json) and its journal (events.jsonl)."""

    code: int
    rows: dict[bytes, dict[str, Any]]
    summary: dict[str, Any]
    events: list[dict[str, Any]]

    def lost_workers(self) -> list[bytes]:
        """Return the paths of the items that a front-end worker died with or was killed with."""
        return [path_of(event["uri"]) for event in self.events if event["event"] == "front_end_lost"]


def screen(
    folder: Path,
    name: str,
    sources: Sequence[Path],
    changes: Mapping[str, Any] | None = None,
    options: Sequence[str] = (),
) -> Ended:
    """Screen files and folders by `run_batch.py OPTIONS` with the demo's job into `folder/name`; return what is there.

    `changes` are laid over the job, mappings key by key. Any share of errors is accepted. Raises SystemExit if the
    run did not end by itself.
    """
    job = yaml.safe_load(DEMO_JOB.read_text(encoding="utf-8"))
    # What is measured is screening: files that happen to be equal are all screened.
    job |= {"name": name, "source": {"paths": [str(path) for path in sources], "duplicates": "screen"}}
    job |= {"policy": str(ROOT / "jobs" / "policies" / "demo.yaml"), "output": {"path": str(folder / name)}}
    job |= {"accept": {"error_share": 1.0, "late_share": 1.0}}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump(_laid_over(job, changes or {})), encoding="utf-8")
    command = [sys.executable, str(ROOT / "run_batch.py"), str(file), *options]
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code not in (0, 1):
        raise SystemExit(f"the run ended with exit code {code}")
    left = max((folder / name / "_runs").glob("*/run.json"), key=lambda one: one.stat().st_mtime_ns)
    rows = polars.read_parquet(str(folder / name / "part-*.parquet")).to_dicts()
    events = (left.parent / "events.jsonl").read_text(encoding="utf-8").splitlines()
    by_path = {path_of(row["uri"]): row for row in rows}
    if len(by_path) != len(rows):
        raise SystemExit(f"{len(rows) - len(by_path)} items have two rows")
    return Ended(code, by_path, json.loads(left.read_text(encoding="utf-8")), [json.loads(line) for line in events])


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(dict(below))
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _laid_over(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


def files_below(folder: Path) -> Iterator[bytes]:
    """Yield what a run must have a row for, by a walk of this bench's own: files and links to no folder."""
    for parent, folders, names in os.walk(os.fsencode(folder.absolute())):
        folders[:] = [name for name in folders if not name.startswith(b".")]
        for name in sorted(names):
            if not name.startswith(b"."):
                yield os.path.join(parent, name)


def front_end_s(row: Mapping[str, Any]) -> float:
    """Return the seconds that an item's file was worked on."""
    return sum(row[phase] or 0.0 for phase in _FRONT_END_PHASES)


def screened_s(row: Mapping[str, Any]) -> float:
    """Return the seconds from the first byte read to the row being readable."""
    return float((row["committed_at"] - row["admitted_at"]).total_seconds())


def shown(name: bytes) -> str:
    """Return a name as one printable line; what is no printable UTF-8 comes as `\\xNN`, a backslash twice."""
    text = name.replace(b"\\", b"\\\\").decode("utf-8", "backslashreplace")
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)
