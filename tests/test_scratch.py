"""The folder for temporary files: gone with its run, or with the next one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.scratch import scratch_folder

ROOT = Path(__file__).parents[1]
RUN = """
import time
from pipeline.scratch import scratch_folder
with scratch_folder() as name:
    open(name + "/left", "w").close()
    print(name, flush=True)
    time.sleep(60)
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))


def an_hour_old(path: Path) -> None:
    os.utime(path, times=(time.time() - 3600,) * 2)


def test_it_is_there_while_it_is_held_and_gone_afterwards() -> None:
    with scratch_folder() as name:
        assert Path(name).is_dir()
    assert not Path(name).exists()


def test_what_a_killed_run_left_goes_with_the_next_one_and_what_a_living_one_holds_stays(tmp_path: Path) -> None:
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    with subprocess.Popen([sys.executable, "-c", RUN], cwd=ROOT, env=environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        folder = Path(run.stdout.readline().decode().strip())
        an_hour_old(folder)
        with scratch_folder():
            assert (folder / "left").exists()
        run.kill()
        run.wait(10)
        with scratch_folder():
            assert not folder.exists()


def test_a_folder_that_was_just_made_is_left_to_its_owner_and_other_names_to_theirs(tmp_path: Path) -> None:
    young, other, link = tmp_path / "l1-triage-young", tmp_path / "other", tmp_path / "l1-triage-link"
    for folder in (young, other):
        folder.mkdir()
    an_hour_old(other)
    link.symlink_to(other)
    with scratch_folder():
        assert young.exists() and other.exists() and link.is_symlink()
