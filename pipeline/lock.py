"""The output's lock and its folder for runs: one run at a time holds an output, whatever becomes of its process."""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pipeline.errors import JobError, OutputLocked

_UNSUPPORTED = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)
# Names that `stat -f` gives to file systems of one machine; on any other a lock that is free may be held elsewhere.
_LOCAL = ("btrfs", "ext2/ext3", "f2fs", "overlayfs", "ramfs", "tmpfs", "xfs", "zfs")


def run_folder(output: Path, run_id: str) -> Path:
    """Return the folder for everything of a run that is no row, made if missing. Raises JobError."""
    folder = output / "_runs" / run_id
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(output, error) from None
    return folder


def check_output(folder: Path) -> None:
    """Raise JobError if no output can be written there; makes nothing."""
    try:
        nearest = next(path for path in (folder, *folder.parents) if _exists(path))
        usable = nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK)
        read_only = bool(os.statvfs(nearest).f_flag & os.ST_RDONLY)
    except OSError as error:
        raise JobError(f"output.path: {folder} cannot be used: {error.strerror or error}") from None
    if not usable:
        why = "lies on a file system that is read-only" if read_only else "is no folder that this user may write"
        raise JobError(f"output.path: {folder} cannot be written: {nearest} {why}")


def _unwritable(folder: Path, error: OSError) -> JobError:
    return JobError(f"output.path: {folder} cannot be written: {error.strerror or error}")


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

    The kernel lets go when the process dies. Raises OutputLocked if another run holds it or may hold it, JobError if
    the folder cannot be used.
    """
    path = folder / "_runs" / "lock"
    try:
        file = _open_locked(path)
    except BlockingIOError:
        raise OutputLocked(f"the output {folder} is held by another run: {_told(_holder(path))}") from None
    except OSError as error:
        raise JobError(f"output.path: {folder} cannot be locked for writing: {_cause(error)}") from None
    # Unbuffered: what a full disk refuses must not be written again on closing.
    with os.fdopen(file, "r+b", buffering=0) as lock:
        former = _holder(path)
        _check_dead(former, path)
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "run_id": run_id,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            lock.truncate(0)
            lock.write(json.dumps(holder).encode())
        except OSError as error:
            raise _unwritable(folder, error) from None
        try:
            yield former
        finally:
            with suppress(OSError):  # the next run takes it for a dead one's and goes on
                lock.truncate(0)


def check_not_taken(folder: Path, run_id: str) -> None:
    """Raise OSError if the lock names another run: someone removed the lock file while this run held it."""
    holder = _holder(folder / "_runs" / "lock")
    if holder is not None and holder.get("run_id") != run_id:
        told = f"the lock was removed during the run and another run took the output: {_told(holder)}"
        raise OSError(errno.EBUSY, told, str(folder))


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


def _cause(error: OSError) -> str:
    """Return in words why a file could not be locked."""
    text = error.strerror or str(error)
    if error.errno in _UNSUPPORTED:
        return f"{text}. Its file system has no locks (NFS mounted with nolock?), so two runs could not be told apart"
    return text


def _check_dead(former: dict[str, Any] | None, path: Path) -> None:
    """Raise OutputLocked if the former holder may be alive on another host, whose locks this one need not see."""
    if former is None or former.get("host") == socket.gethostname() or _file_system(path) in _LOCAL:
        return
    raise OutputLocked(
        f"the output was not let go by {_told(former)}; it lies on a file system of several hosts, so whether that "
        f"run has ended cannot be told from {socket.gethostname()}: make sure that it has, and remove {path}"
    )


def _file_system(path: Path) -> str:
    """Return what kind of file system a path lies on, "" if that cannot be told."""
    try:
        command = ["stat", "-f", "-c", "%T", str(path)]
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


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
        age_s = round((datetime.now(UTC) - datetime.fromisoformat(str(holder.get("started_at")))).total_seconds())
        since = f"for {timedelta(seconds=age_s)}" if age_s >= 0 else "since a time that this host's clock calls future"
    except (TypeError, ValueError):
        since = "since an unknown time"
    return f"run {holder.get('run_id')}, process {holder.get('pid')} on host {holder.get('host')}, {since}"
