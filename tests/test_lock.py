"""The lock: one run at a time, who holds it, and when it may be taken over."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from pipeline import lock as lock_module
from pipeline.errors import JobError, OutputLocked
from pipeline.lock import check_not_taken, lock_output, run_folder

HOLDER = """
import sys, time
from pathlib import Path
from pipeline.lock import lock_output
with lock_output(Path(sys.argv[1]), "other-run"):
    print("held", flush=True)
    time.sleep(60)
"""


@contextmanager
def holding(folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Let another process hold the lock."""
    command = [sys.executable, "-c", HOLDER, str(folder)]
    root = Path(__file__).parents[1]
    with subprocess.Popen(command, cwd=root, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout is not None
            assert holder.stdout.readline() == "held\n"
            yield holder
        finally:
            holder.kill()


def leave(folder: Path, **holder: Any) -> Path:
    """Leave a lock file that nobody holds."""
    path = folder / "_runs" / "lock"
    path.parent.mkdir()
    started = datetime.now(UTC).isoformat()
    path.write_text(json.dumps({"host": "elsewhere", "pid": 7, "run_id": "lost", "started_at": started} | holder))
    return path


def taken(folder: Path) -> dict[str, Any] | None:
    """Take the lock and return who held it before."""
    with lock_output(folder, "mine") as former:
        return former


def test_a_lock_held_by_another_process_names_it_and_is_free_when_that_is_killed(tmp_path: Path) -> None:
    with holding(tmp_path) as holder:
        told = rf"run other-run, process {holder.pid} on host {socket.gethostname()}, for 0:0\d:\d\d"
        with pytest.raises(OutputLocked, match=told):
            taken(tmp_path)
        holder.send_signal(signal.SIGKILL)
        holder.wait(10)
        with lock_output(tmp_path, "mine") as former:
            assert former is not None
            assert (former["run_id"], former["pid"]) == ("other-run", holder.pid)
            assert json.loads((tmp_path / "_runs" / "lock").read_text())["pid"] == os.getpid()
    assert taken(tmp_path) is None


def test_a_lock_held_by_another_process_is_respected_whatever_its_file_says(tmp_path: Path) -> None:
    with holding(tmp_path):
        for text in ("", "{", "[]", '{"started_at": 7}', '{"started_at": "2026-01-01T00:00:00"}'):
            (tmp_path / "_runs" / "lock").write_text(text)
            with pytest.raises(OutputLocked, match="held by another run"):
                taken(tmp_path)


def test_an_age_that_the_clock_makes_negative_is_not_told_as_a_number(tmp_path: Path) -> None:
    with holding(tmp_path):
        path = tmp_path / "_runs" / "lock"
        later = datetime.now(UTC) + timedelta(hours=5)
        path.write_text(json.dumps(json.loads(path.read_text()) | {"started_at": later.isoformat()}))
        with pytest.raises(OutputLocked, match="since a time that this host's clock calls future"):
            taken(tmp_path)


def test_a_free_lock_that_a_run_of_another_host_left_is_taken_over_on_a_disk_of_this_machine_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = leave(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(lock_module, "_LOCAL", ())
        with pytest.raises(OutputLocked, match=rf"run lost, process 7 on host elsewhere, .+ remove {path}"):
            taken(tmp_path)
        assert json.loads(path.read_text())["run_id"] == "lost"
        path.unlink()
        assert taken(tmp_path) is None
    path.parent.joinpath("lock").unlink()
    path.parent.rmdir()
    leave(tmp_path)
    former = taken(tmp_path)
    assert former is not None
    assert former["run_id"] == "lost"


def test_a_free_lock_of_a_dead_run_on_this_host_is_taken_over_on_any_file_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave(tmp_path, host=socket.gethostname())
    monkeypatch.setattr(lock_module, "_LOCAL", ())
    former = taken(tmp_path)
    assert former is not None
    assert former["run_id"] == "lost"


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_a_job_error_that_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(JobError, match=rf"output\.path: {tmp_path} cannot be locked .+ file system has no locks"):
        taken(tmp_path)


def test_a_lock_whose_file_was_removed_and_taken_by_another_run_is_noticed(tmp_path: Path) -> None:
    with lock_output(tmp_path, "mine"):
        check_not_taken(tmp_path, "mine")
        (tmp_path / "_runs" / "lock").unlink()
        check_not_taken(tmp_path, "mine")
        with holding(tmp_path), pytest.raises(OSError, match="another run took the output: run other-run"):
            check_not_taken(tmp_path, "mine")


def test_an_output_that_cannot_be_a_folder_is_a_job_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(JobError, match=r"output\.path"):
        taken(tmp_path / "file")


NO_BYTE = """
import resource, sys
from pathlib import Path
from pipeline.errors import JobError
from pipeline.lock import lock_output
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
try:
    with lock_output(Path(sys.argv[1]), "mine"):
        pass
except JobError as error:
    print(error)
"""


def test_a_disk_without_a_byte_left_is_one_job_error(tmp_path: Path) -> None:
    command = [sys.executable, "-c", NO_BYTE, str(tmp_path)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == f"output.path: {tmp_path} cannot be written: File too large\n", done.stderr
    assert done.returncode == 0 and done.stderr == ""


def test_a_run_folder_that_cannot_be_made_is_a_job_error(tmp_path: Path) -> None:
    (tmp_path / "_runs").write_text("in its place")
    with pytest.raises(JobError, match=rf"output\.path: {tmp_path} cannot be written: Not a directory"):
        run_folder(tmp_path, "mine")


READ_ONLY = """
mount -t tmpfs -o ro tmpfs "$1" || exit 77
"$0" -c "from pathlib import Path; from pipeline.lock import check_output; check_output(Path('$1/out'))"
"""


def test_an_output_on_a_read_only_file_system_is_refused_with_that_cause(tmp_path: Path) -> None:
    command = ["unshare", "-rm", "bash", "-c", READ_ONLY, sys.executable, str(tmp_path)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip("this machine lets nobody mount")
    assert f"{tmp_path} lies on a file system that is read-only" in done.stderr
