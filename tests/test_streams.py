"""The screen of a program may be lost at any time, and nobody notices but who looks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PROGRAM = """
import sys, time
from pathlib import Path
from pipeline import streams
streams.secure()
for number in range(3):
    print("said", number, file=sys.stderr)
    time.sleep(0.2)
Path(sys.argv[1]).write_text("done")
sys.exit(7)
"""


@pytest.mark.parametrize(
    "screen", ["2>/dev/full", "2>&1 | true; exit ${PIPESTATUS[0]}", "2>&-", ">&- 2>&- <&-", ">/dev/full 2>/dev/full"]
)
def test_a_program_whose_screen_is_lost_goes_on_and_keeps_its_exit_code(tmp_path: Path, screen: str) -> None:
    command = f'"$0" -c "$1" "$2" {screen}'
    done = subprocess.run(
        ["bash", "-c", command, sys.executable, PROGRAM, str(tmp_path / "done")], cwd=ROOT, timeout=60, check=False
    )
    assert (tmp_path / "done").exists() and done.returncode == 7


def test_what_is_said_reaches_a_screen_at_once_and_a_character_that_it_lacks_as_its_escape() -> None:
    code = "import sys; from pipeline import streams; streams.secure(); print('\\xe9 \\ud800', file=sys.stderr); "
    with subprocess.Popen(
        [sys.executable, "-c", code + "input()"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PYTHONIOENCODING": "ascii"},
    ) as program:
        assert program.stderr is not None
        assert program.stderr.readline() == b"\\xe9 \\ud800\n"
        program.communicate(b"\n")
