"""Imports point one way, and what a person waits for in a terminal loads nothing heavy."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
HEAVY = {"ray", "torch", "torch_npu", "transformers", "vllm"}

HELP = """
import runpy, sys
sys.argv = ["run_batch.py", "--help"]
try:
    runpy.run_path("run_batch.py", run_name="__main__")
except SystemExit as stop:
    assert stop.code == 0
"""


def run_python(*arguments: str) -> str:
    """Run the interpreter in the project's folder and return what it printed."""
    command = [sys.executable, *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def best_of_three_s(*arguments: str) -> float:
    """Return the shortest of three wall times in seconds."""
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run_python(*arguments)
        times.append(time.perf_counter() - start)
    return min(times)


def test_import_rules_of_pyproject_hold() -> None:
    run_python(
        "-c",
        "import sys; from importlinter.cli import lint_imports; sys.exit(lint_imports(no_cache=True, no_logo=True))",
    )


@pytest.mark.parametrize(
    "code",
    [
        "import pipeline",
        "import pipeline.cli",
        "import pipeline.job, pipeline.policy, pipeline.show",
        "import pipeline.dry_run",
        "import pipeline.hardware.environment, pipeline.hardware.devices",
        HELP,
    ],
    ids=["package", "cli", "job", "dry-run", "hardware", "help"],
)
def test_light_entry_points_load_no_engine_and_no_cluster(code: str) -> None:
    printed = run_python("-c", f"{code}\nimport sys; print(sorted({HEAVY!r} & set(sys.modules)))")
    assert printed.splitlines()[-1] == "[]"


def test_help_answers_within_half_a_second() -> None:
    help_s = best_of_three_s("run_batch.py", "--help")
    bare_s = best_of_three_s("-c", "pass")
    # On a machine so slow or busy that Python alone takes long to start, the limit grows with that.
    assert help_s <= max(0.5, 3 * bare_s)
