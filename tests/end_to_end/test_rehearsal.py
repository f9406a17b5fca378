"""A rehearsal goes through real Ray, processes and Parquet; only nobody looks. Whatever dies, no row is lost."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest

from pipeline.engine.fake import fault_of
from pipeline.job import Rehearsal
from tests.end_to_end.conftest import Workplace

pytestmark = pytest.mark.engine

ITEMS = 60
SOURCE = {"manifest": "items.csv"}
FAULTS = {
    "hang": 0.02,
    "garbage": 0.05,
    "engine_dies": 0.05,
    "engine_stalls": 0.03,
    "poison": 0.04,
    "front_end_dies": 0.05,
    "front_end_hangs": 0.03,
}
EXPECTED: dict[str | None, set[tuple[str, str | None]]] = {
    None: {("ok", None)},
    "hang": {("deadline", "deadline")},
    "garbage": {("error", "answer_unparsable")},
    "engine_dies": {("ok", None)},
    "engine_stalls": {("ok", None)},
    "poison": {("error", "engine_killed")},
    "front_end_dies": {("ok", None)},
    "front_end_hangs": {("deadline", "deadline")},
}


@pytest.fixture
def rehearsal(workplace: Workplace) -> dict[str, Any]:
    workplace.clips.mkdir()
    names = [f"{number:02d}" for number in range(ITEMS)]
    for name in names:
        (workplace.clips / f"{name}.wav").write_bytes(name.encode())
    # Ids of its own, so that the same items are struck wherever the test runs.
    listing = "".join(f"clips/{name}.wav,item-{name}\n" for name in names)
    (workplace.folder / "items.csv").write_text(f"uri,id\n{listing}", encoding="utf-8")
    return {"answer_s": 0.05, "seed": 573, "faults": FAULTS}


def test_whatever_dies_every_item_gets_its_row_with_its_cause_and_in_time(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    job = workplace.write_job(
        source=SOURCE,
        rehearsal=rehearsal,
        engine={"stall_s": 3},
        sla={"per_item_s": 30},
        accept={"error_share": 1, "late_share": 1},
    )
    run = workplace.run(job)
    assert run.code == 0, run.said
    rows = workplace.rows()
    assert len(rows) == ITEMS
    script = Rehearsal.model_validate(rehearsal)
    befell = {name: fault_of(row["item_id"], script) for name, row in rows.items()}
    assert set(befell.values()) == {None, *FAULTS}
    # An item that was in the engine when another one killed it may lose its time, too; it comes again all the same.
    for name, row in rows.items():
        assert (row["status"], row["reason"]) in EXPECTED[befell[name]] | {("deadline", "deadline")}, row
        assert row["status"] == "ok" or row["message"]
        assert (row["committed_at"] - row["admitted_at"]).total_seconds() <= 30.5
    assert Counter(row["reason"] for row in rows.values())["engine_killed"] == list(befell.values()).count("poison")
    assert {row["model"] for row in rows.values()} == {"none (rehearsal)"}
    assert {row["verdict"] for row in rows.values()} == {"review"}


def test_the_journal_tells_deaths_stalls_with_stacks_and_restarts(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    faults = {"engine_stalls": 0.1}
    job = workplace.write_job(
        source=SOURCE,
        rehearsal=rehearsal | {"faults": faults},
        engine={"stall_s": 2},
        accept={"error_share": 1, "late_share": 1},
    )
    assert workplace.run(job).code == 0
    (journal,) = workplace.output.glob("_runs/*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    stalled = [event for event in events if event["event"] == "engine_stalled"]
    assert stalled and "engine-steps" in stalled[0]["stacks"] and "time.sleep" in stalled[0]["stacks"]
    assert sum(event["event"] == "engine_restarted" for event in events) == len(stalled)


def test_an_engine_that_never_answers_again_ends_the_run_with_what_is_committed(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    job = workplace.write_job(
        source=SOURCE, rehearsal=rehearsal | {"faults": {"poison": 1.0}}, engine={"max_restarts": 1}
    )
    run = workplace.run(job)
    assert run.code == 4
    assert "died 2 times in a row without an answer between" in run.said
