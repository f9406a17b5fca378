"""Whole runs of `run_batch.py` as a user starts them: real Ray, real ffmpeg, real engine, real Parquet."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars
import pytest
import yaml

ROOT = Path(__file__).parents[2]
CLIPS = ROOT / "jobs" / "demo" / "clips"
# A run starts in half a minute on a free machine; CI machines are not free.
RUN_TIMEOUT_S = 400


@dataclass(frozen=True)
class Run:
    """A finished command."""

    code: int
    said: str


@dataclass
class Workplace:
    """A folder with clips, a job file beside them, and an output."""

    folder: Path

    @property
    def clips(self) -> Path:
        return self.folder / "clips"

    @property
    def output(self) -> Path:
        return self.folder / "out"

    def write_job(self, name: str = "job", **sections: Any) -> Path:
        """Write a job that screens `clips` into `out` with the demo's model and budgets, without its canaries.

        All files are screened, those of the same content too, unless the source says otherwise.
        """
        sections["source"] = {"duplicates": "screen"} | sections.get("source", {"paths": ["clips"]})
        job = yaml.safe_load((ROOT / "jobs" / "demo.yaml").read_text(encoding="utf-8"))
        job |= {"name": name, "output": {"path": "out", "commit_every_s": 0.5}}
        job |= {"policy": str(ROOT / "jobs" / "policies" / "demo.yaml"), "canary": {"from_checkpoint": False}}
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(job | sections, allow_unicode=True), encoding="utf-8")
        return path

    def take(self, *names: str) -> None:
        """Copy clips of the demo."""
        self.clips.mkdir(exist_ok=True)
        for name in names:
            shutil.copyfile(CLIPS / name, self.clips / name)

    def start(self, job: Path, *options: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, str(ROOT / "run_batch.py"), str(job), *options],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"COLUMNS": "200"},
        )

    def run(self, job: Path, *options: str) -> Run:
        process = self.start(job, *options)
        said, _ = process.communicate(timeout=RUN_TIMEOUT_S)
        return Run(process.returncode, said)

    def rows(self) -> dict[str, dict[str, Any]]:
        """Return the rows by file name, read with polars."""
        if not any(self.output.glob("part-*.parquet")):
            return {}
        table = polars.read_parquet(str(self.output / "part-*.parquet"))
        rows = {os.path.basename(row["uri"]): row for row in table.to_dicts()}
        assert len(rows) == table.height, "an item has two rows"
        return rows


@pytest.fixture
def workplace(tmp_path: Path) -> Workplace:
    return Workplace(tmp_path)
