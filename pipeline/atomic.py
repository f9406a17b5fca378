"""Files that are there whole or not at all: written beside their place, synced, renamed, the folder synced.

A reader sees the former content or the new one, also after a power cut. Temp names begin with a dot.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pipeline.records import JsonObject

TEMP_SUFFIX = ".tmp"


def write_atomic(path: Path, *pieces: bytes | memoryview) -> None:
    """Put `pieces`, one after the other, in the place of `path`.

    Raises OSError that names the file, with the former content intact; only when the last sync of the folder
    fails, the new content may be there already, so a repeated call must be harmless.
    """
    temp = path.with_name(f".{path.name}.{os.getpid()}{TEMP_SUFFIX}")
    with _named(path):
        try:
            with open(temp, "wb") as file:
                file.writelines(pieces)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temp, path)
        except BaseException:
            with suppress(OSError):
                temp.unlink()
            raise
        _sync_folder(path.parent)


def write_json_atomic(path: Path, data: JsonObject) -> None:
    """Put `data` as JSON in the place of `path`. Raises OSError; ValueError for NaN and infinity."""
    text = json.dumps(data, ensure_ascii=False, indent=2, allow_nan=False)
    # File names may hold lone surrogates; backslashreplace writes them as the escape that JSON reads back.
    write_atomic(path, (text + "\n").encode("utf-8", "backslashreplace"))


def remove_stale_temps(folder: Path, prefix: str) -> None:
    """Remove what a killed writer of files named `prefix…` left in `folder`; for its lock's holder only."""
    for entry in os.scandir(folder):
        if entry.name.startswith(f".{prefix}") and entry.name.endswith(TEMP_SUFFIX):
            with suppress(FileNotFoundError):
                os.unlink(entry.path)


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Let an OSError tell the file: a full disk is met by calls that know no name."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def _sync_folder(folder: Path) -> None:
    """Make renames in `folder` survive a power cut."""
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
