"""The journal."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.errors import JobError
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


def test_what_is_printed_into_the_journal_becomes_one_event_a_line_without_colours(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    with EventLog(path) as events:
        print("\x1b[33m(raylet)\x1b[0m a worker died", "\n\nand", end=" ", file=events.as_stream("ray"))
        stream = events.as_stream("ray")
        print("two", end=" ", file=stream)
        print("halves", file=stream)
    told = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert [(one["event"], one["text"]) for one in told] == [("ray", "(raylet) a worker died"), ("ray", "two halves")]


def test_a_journal_that_cannot_be_made_is_a_job_error_that_names_it(tmp_path: Path) -> None:
    path = tmp_path / "none" / "events.jsonl"
    with pytest.raises(JobError, match=f"output.path: {path} cannot be written: No such file or directory"):
        EventLog(path)
