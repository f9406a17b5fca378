"""The demo as users start it: the embedded model, its canaries, and verdicts that are right."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import polars
import pytest

from tests.end_to_end.conftest import CLIPS, ROOT, RUN_TIMEOUT_S

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo") / "out"
    command = [sys.executable, str(ROOT / "run_batch.py"), "jobs/demo.yaml", "--set", f"output.path={folder}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=RUN_TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def rows(output: Path) -> dict[str, dict[str, Any]]:
    table = polars.read_parquet(str(output / "part-*.parquet")).to_dicts()
    return {os.path.basename(row["uri"]): row for row in table}


def expected() -> dict[str, tuple[str, str]]:
    """Return the verdict and the labels that jobs/demo/CLIPS.md states for each clip."""
    lines = (CLIPS.parent / "CLIPS.md").read_text(encoding="utf-8").splitlines()
    found = [re.match(r"\| `([^`]+)` \| (\w+) \| ([^|]*) \|", line) for line in lines]
    return {match[1]: (match[2], match[3].strip()) for match in found if match}


def test_every_clip_of_the_demo_is_listed_with_what_is_right() -> None:
    assert set(expected()) == {path.name for path in CLIPS.iterdir()}


@pytest.mark.parametrize("name", sorted(expected()))
def test_the_demos_verdict_is_right(name: str, rows: dict[str, dict[str, Any]]) -> None:
    verdict, labels = expected()[name]
    row = rows[name]
    if verdict == "error":
        assert (row["status"], row["verdict"]) == ("error", "review")
        return
    assert (row["status"], row["model_verdict"]) == ("ok", verdict), row
    if row["reason"] == "low_confidence":
        assert row["verdict"] == "review"
        return
    assert ", ".join(label["id"] for label in row["labels"] if label["present"]) == labels, row


def test_hardly_any_of_the_demos_clips_needs_a_person_for_being_unsure(rows: dict[str, dict[str, Any]]) -> None:
    unsure = [name for name, row in rows.items() if row["reason"] == "low_confidence"]
    assert len(unsure) <= 2, unsure


def test_the_embedded_models_canaries_are_asked_first(output: Path) -> None:
    (path,) = (output / "_runs").glob("*/run.json")
    summary = json.loads(path.read_text(encoding="utf-8"))
    assert summary["canary"]["asked"] == summary["canary"]["passed"] >= 6
    assert summary["calibrated"] is True
