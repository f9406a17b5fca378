"""The command's exit codes for what happens outside of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pipeline import cli
from pipeline.errors import EngineLost, JobError, OutputLocked

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
