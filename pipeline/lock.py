"""The output's lock and its folder for runs: one run at a time holds an output, whatever becomes of its process."""

from __future__ import annotations

import fcntl
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline.errors import JobError, OutputLocked


def run_folder(output: Path, run_id: str) -> Path:
    """Return the folder for everything of a run that is no row, made if missing."""
    folder = output / "_runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def check_output(folder: Path) -> None:
    """Raise JobError if no output can be written there; makes nothing."""
    try:
        nearest = next(path for path in (folder, *folder.parents) if _exists(path))
        usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
    except OSError as error:
        raise JobError(f"output.path: {folder} cannot be used: {error.strerror or error}") from None
    if not usable:
        raise JobError(f"output.path: {folder} cannot be written: {nearest} is no folder that this user may write")


def _exists(path: Path) -> bool:
    """Return whether anything is there, a dangling link too. Raises OSError for a name that cannot be."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


@contextmanager
def lock_output(folder: Path, run_id: str) -> Iterator[dict[str, Any] | None]:
    """Hold an output for one run; yield who held it before and died without letting go, if so.

    The kernel lets go when the process dies. Raises OutputLocked if another run holds it, JobError if the
    folder cannot be used.
    """
    path = folder / "_runs" / "lock"
    try:
        file = _open_locked(path)
    except BlockingIOError:
        raise OutputLocked(f"the output {folder} is held by another run: {_told(_holder(path))}") from None
    except OSError as error:
        raise JobError(f"output.path: {folder} cannot be locked for writing: {error.strerror or error}") from None
    with os.fdopen(file, "r+b") as lock:
        former = _holder(path)
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "run_id": run_id,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            lock.truncate(0)
            lock.write(json.dumps(holder).encode())
            lock.flush()
        except OSError as error:
            raise JobError(f"output.path: {folder} cannot be written: {error.strerror or error}") from None
        try:
            yield former
        finally:
            lock.truncate(0)


def _open_locked(path: Path) -> int:
    """Return a descriptor of the lock file with the lock on it. Raises BlockingIOError if it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(file)):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the lock file was removed meanwhile: lock the one that is there now


def _holder(path: Path) -> dict[str, Any] | None:
    """Return what the lock file says of its holder."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _told(holder: dict[str, Any] | None) -> str:
    """Return a holder in words."""
    if holder is None:
        return "it has not said which yet"
    try:
        age = datetime.now(UTC) - datetime.fromisoformat(str(holder.get("started_at")))
        since = f"for {timedelta(seconds=round(age.total_seconds()))}"
    except ValueError:
        since = "since an unknown time"
    return f"run {holder.get('run_id')}, process {holder.get('pid')} on host {holder.get('host')}, {since}"
