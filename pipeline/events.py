"""The run's journal: one JSON object per line in `events.jsonl`, written as it happens."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self


class EventLog:
    """Appends events to a file until the `with` block ends. Line-buffered: a killed run keeps what it said."""

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", encoding="utf-8", errors="backslashreplace", buffering=1)  # noqa: SIM115 - see __exit__
        self._lock = threading.Lock()

    def write(self, event: str, **facts: Any) -> None:
        """Append one event with the present time (UTC)."""
        line = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "event": event, **facts}
        with self._lock:
            self._file.write(json.dumps(line, ensure_ascii=False, default=str) + "\n")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
