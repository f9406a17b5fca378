"""The journal."""

from __future__ import annotations

import json
from pathlib import Path

from pipeline.events import EventLog


def test_an_event_is_on_disk_as_soon_as_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as events:
        events.write("started", name="b\udcffd", seconds=1.5)
        line = json.loads(path.read_text(encoding="utf-8"))
    assert line["event"] == "started" and line["seconds"] == 1.5 and line["name"] == "b\udcffd"


def test_a_full_disk_costs_the_event_and_not_the_run() -> None:
    with EventLog(Path("/dev/full")) as events:
        events.write("started")
        events.write("ended")
        assert events.dropped == 2
