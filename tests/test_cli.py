"""The command's exit codes for what happens outside of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import cli
from pipeline.errors import EngineLost, JobError, OutputLocked
from pipeline.selection import EVERYTHING, Selection, Shard

DEMO = str(Path(__file__).parents[1] / "jobs" / "demo.yaml")


@pytest.mark.parametrize(
    ("raised", "code"),
    [(JobError("no"), 2), (OutputLocked("held"), 3), (EngineLost("gone"), 4), (KeyboardInterrupt(), 4)],
)
def test_every_error_of_the_tree_has_its_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], raised: BaseException, code: int
) -> None:
    def run_job(*_: Any) -> int:
        raise raised

    monkeypatch.setattr("pipeline.run.run_job", run_job)
    assert cli.main([DEMO]) == code
    assert "Traceback" not in capsys.readouterr().err


def test_a_defect_of_the_program_is_no_finished_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run_job(*_: Any) -> int:
        raise ZeroDivisionError("nobody foresaw this")

    monkeypatch.setattr("pipeline.run.run_job", run_job)
    assert cli.main([DEMO]) == 4
    said = capsys.readouterr().err
    assert "nobody foresaw this" in said and "please report" in said


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], EVERYTHING),
        (["--retry", "none"], Selection("none")),
        (["--shard", "2/3", "--retry=all"], Selection("all", Shard(2, 3))),
    ],
)
@pytest.mark.parametrize("command", ["run", "dry_run"])
def test_retry_and_shard_reach_the_run_and_the_dry_run(
    monkeypatch: pytest.MonkeyPatch, command: str, options: list[str], expected: Selection
) -> None:
    got: list[Selection] = []

    def take(job: Any, out: Any, selection: Selection) -> int:
        got.append(selection)
        return 0

    monkeypatch.setattr("pipeline.run.run_job", take)
    monkeypatch.setattr("pipeline.dry_run.dry_run", take)
    assert cli.main([DEMO, *options, *(["--dry-run"] if command == "dry_run" else [])]) == 0
    assert got == [expected]


@pytest.mark.parametrize("options", [["--retry", "some"], ["--shard", "0/2"], ["--shard=3/2"], ["--shard", "half"]])
def test_a_wrong_retry_or_shard_gives_one_line_and_exit_code_2(
    capsys: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert cli.main([DEMO, *options]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"run_batch: {options[0].partition('=')[0]}") and said.count("\n") == 1
