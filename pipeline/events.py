"""The run's journal: one JSON object per line in `events.jsonl`, written as it happens."""

from __future__ import annotations

import io
import json
import re
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

from pipeline.errors import JobError


class EventLog:
    """Appends events to a file until the `with` block ends. Unbuffered: a killed run keeps what it said.

    An event that cannot be written, on a full disk say, is dropped: the journal must not end the run.
    """

    def __init__(self, path: Path) -> None:
        """Raises JobError if the file cannot be made."""
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115 - see __exit__
        except OSError as error:
            raise JobError(f"output.path: {path} cannot be written: {error.strerror or error}") from None
        self._lock = threading.Lock()
        self.dropped = 0
        """How many events could not be written."""

    def write(self, event: str, **facts: Any) -> None:
        """Append one event with the present time (UTC)."""
        line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        text = json.dumps(line, ensure_ascii=False, default=str) + "\n"
        with self._lock:
            try:
                self._file.write(text.encode("utf-8", "backslashreplace"))
            except OSError:
                self.dropped += 1

    def as_stream(self, event: str) -> io.TextIOBase:
        """Return a text stream whose every line becomes an event with its `text`."""
        return _Lines(self, event)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class _Lines(io.TextIOBase):
    def __init__(self, log: EventLog, event: str) -> None:
        self._log, self._event, self._begun = log, event, ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if told := _COLOURS.sub("", line).strip():
                self._log.write(self._event, text=told)
        return len(text)
