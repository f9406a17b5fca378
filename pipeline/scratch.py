"""A folder for temporary files that goes with its run, or with the next one if the run was killed."""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir

_PREFIX = "l1-triage-"
# A folder this young may have an owner who has not locked it yet.
_YOUNG_S = 60.0


@contextmanager
def scratch_folder() -> Iterator[str]:
    """Give a folder for temporary files; remove it in the end, and before it those that killed runs left.

    Its owner holds a lock on it, which the kernel lets go when the process dies.
    """
    _remove_left()
    with TemporaryDirectory(prefix=_PREFIX, ignore_cleanup_errors=True) as name:
        number = os.open(name, os.O_RDONLY | os.O_DIRECTORY)
        try:
            with suppress(OSError):  # a file system without locks gives none to who removes, either
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield name
        finally:
            os.close(number)


def _remove_left() -> None:
    for path in Path(gettempdir()).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            number = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(number)
                if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _YOUNG_S:
                    continue
                fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(number)
