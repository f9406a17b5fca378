"""The driver's laws with workers that fail on purpose: one row per item, whatever breaks."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from pipeline.admission import Admission, Lanes
from pipeline.copies import Copies
from pipeline.driver import Driver, Intake
from pipeline.errors import EngineDied, EngineLost, ItemError
from pipeline.events import EventLog
from pipeline.ledger import Todo
from pipeline.progress import Tally
from pipeline.records import Completion, Item, LedgerEntry, MediaFacts, Phases, Prepared
from pipeline.row import VerdictRow
from pipeline.sink import Sink
from pipeline.verdict import RunFacts
from tests.test_verdict import FACTS, answer_tokens, choice, completion, routing

NOTHING = Prepared(phases=Phases())
READY = Prepared(
    phases=Phases(decode_s=0.1),
    facts=MediaFacts("audio", "wav", 3.0, None, None),
    coverage=1.0,
    audio_tokens=3,
    video_tokens=4,
)
LONG_BYTES = 10**9
GOOD = completion(answer_tokens([choice("pass", 0.9, review=0.1)]))


class Scripted:
    """Workers of one front end and one engine that do what a test says."""

    def __init__(
        self,
        prepare: Callable[[Item], Any],
        ask: Callable[[str], Any] = lambda _: GOOD,
        fetch: Callable[[Item], Prepared] = lambda _: NOTHING,
    ) -> None:
        self._prepare, self._ask, self._fetch = prepare, ask, fetch
        self.killed = 0
        self.held = 0
        self.asked = 0
        self.told: list[tuple[bool, int]] = []

    def more_to_come(self, more: bool) -> None:
        self.told.append((more, self.asked))

    @asynccontextmanager
    async def free_front_end(self, timeout_s: float | None = None) -> AsyncIterator[Scripted]:
        self.held += 1
        try:
            yield self
        finally:
            self.held -= 1

    async def fetch(self, item: Item, request_id: str, budget_s: float) -> Prepared:
        return self._fetch(item)

    async def prepare(
        self, item: Item, request_id: str, budget_s: float, forecast: Any, fetched: Prepared
    ) -> tuple[Prepared, Any]:
        result = self._prepare(item)
        if asyncio.iscoroutine(result):
            result = await result
        spent = replace(result.phases, fetch_s=fetched.phases.fetch_s, wait_s=fetched.phases.wait_s)
        return replace(result, phases=spent), None if result.error_code else request_id

    async def ask(self, request_id: str, prompt: Any, timeout_s: float, **_: bool) -> Completion:
        self.asked += 1
        result = self._ask(request_id)
        answer: Completion = await result if asyncio.iscoroutine(result) else result
        return answer

    async def kill(self) -> Prepared:
        self.killed += 1
        return Prepared(phases=Phases(decode_s=1.5))

    async def engine_ready(self) -> None:
        pass

    def engine_is_up(self) -> bool:
        return True


def items(count: int) -> list[Item]:
    return [Item(f"item{n}", f"/{n}.wav", b"/%d.wav" % n, 1, 1, "key") for n in range(count)]


def drive(
    folder: Path,
    workers: Scripted,
    count: int = 3,
    sla_s: float = 60.0,
    sink: Sink | None = None,
    facts: RunFacts = FACTS,
    todo: Mapping[str, Todo] = MappingProxyType({}),
    sizes: Mapping[str, int] = MappingProxyType({}),
    most_items: int = 2,
    copies: Copies | None = None,
) -> dict[str, VerdictRow]:
    """Run the driver over `count` items and return the committed rows."""
    rows: dict[str, VerdictRow] = {}

    class Counting(Tally):
        def count(self, row: VerdictRow) -> None:
            super().count(row)
            assert row.item_id not in rows or rows[row.item_id].reason == "engine_lost"
            rows[row.item_id] = row

    async def listed() -> AsyncIterator[tuple[Item, Todo]]:
        for item in items(count):
            sized = replace(item, size_bytes=sizes.get(item.item_id, 1))
            yield sized, todo.get(item.item_id, Todo("new"))

    async def work() -> None:
        out = sink or Sink(folder / "out", "run", rows_per_part=100, commit_every_s=0.5)
        with EventLog(folder / "events.jsonl") as events:
            tally = Counting()
            driver = Driver(
                workers,  # type: ignore[arg-type]
                out,
                replace(facts, sla_s=sla_s),
                tally,
                events,
                intake=Intake(
                    Admission(
                        sla_s=sla_s, most_items=most_items, first_items=most_items, store_bytes=2**30, reserve_bytes=0
                    ),
                    Lanes(2),
                    copies=copies,
                ),
                commit_every_s=0.5,
                now=lambda: datetime.now(UTC),
            )
            await driver.run(listed(), asyncio.Event())
            assert tally.done == count and tally.statuses == Counter(row.status for row in rows.values())

    asyncio.run(work())
    return rows


def test_every_item_is_answered_and_committed(tmp_path: Path) -> None:
    rows = drive(tmp_path, Scripted(lambda _: READY), 25)
    assert len(rows) == 25
    assert {row.status for row in rows.values()} == {"ok"}
    assert rows["item0"].attempts == 1 and rows["item0"].decode_s == pytest.approx(0.1)


def test_the_engine_hears_when_the_screening_begins_and_when_the_last_item_is_admitted(tmp_path: Path) -> None:
    workers = Scripted(lambda _: READY)
    drive(tmp_path, workers, 10, most_items=2)
    (begun, asked_before), (over, asked) = workers.told
    assert (begun, over, asked_before) == (True, False, 0)
    assert 7 <= asked < 10  # at most two were under way


def test_an_item_whose_worker_dies_once_is_tried_again(tmp_path: Path) -> None:
    seen: list[str] = []

    def prepare(item: Item) -> Prepared:
        seen.append(item.item_id)
        if seen.count("item1") == 1 and item.item_id == "item1":
            raise ItemError("front_end_lost", "killed")
        return READY

    rows = drive(tmp_path, Scripted(prepare))
    assert [rows[f"item{n}"].attempts for n in range(3)] == [1, 2, 1]
    assert rows["item1"].status == "ok"


def test_an_item_that_kills_every_worker_gets_an_error_row_and_the_others_are_answered(tmp_path: Path) -> None:
    def prepare(item: Item) -> Prepared:
        if item.item_id == "item1":
            raise ItemError("front_end_lost", "killed")
        return READY

    rows = drive(tmp_path, Scripted(prepare))
    assert (rows["item1"].status, rows["item1"].reason, rows["item1"].attempts) == ("error", "front_end_lost", 3)
    assert rows["item0"].status == rows["item2"].status == "ok"


def test_a_surprise_in_the_driver_costs_one_item_only(tmp_path: Path) -> None:
    def prepare(item: Item) -> Prepared:
        if item.item_id == "item1":
            raise ZeroDivisionError("nobody foresaw this")
        return READY

    rows = drive(tmp_path, Scripted(prepare))
    assert (rows["item1"].reason, rows["item1"].verdict) == ("internal_error", "reject")
    assert rows["item1"].message == "ZeroDivisionError: nobody foresaw this"
    assert len(rows) == 3


def test_an_answer_to_a_prompt_with_other_tokens_than_were_sent_is_an_error_row(tmp_path: Path) -> None:
    deaf = replace(GOOD, audio_tokens=0)
    rows = drive(tmp_path, Scripted(lambda _: READY, lambda _: deaf), 1)
    assert (rows["item0"].status, rows["item0"].reason) == ("error", "token_mismatch")
    assert rows["item0"].rationale is None


def test_the_journal_tells_a_routed_item_from_a_failed_and_a_degraded_one(tmp_path: Path) -> None:
    def prepare(item: Item) -> Prepared:
        if item.item_id == "item1":
            raise ItemError("not_media", "no")
        return replace(READY, coverage=0.5) if item.item_id == "item2" else READY

    rows = drive(tmp_path, Scripted(prepare), facts=routing(0.95))
    assert rows["item0"].verdict == "review" and rows["item0"].model_verdict == "pass"
    events = [json.loads(line) for line in (tmp_path / "events.jsonl").read_text(encoding="utf-8").splitlines()]
    assert {event["item_id"]: event["event"] for event in events} == {
        "item0": "item_routed",
        "item1": "item_failed",
        "item2": "item_degraded",
    }


def test_a_stuck_worker_is_killed_and_its_item_gets_a_deadline_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = Scripted(lambda item: asyncio.sleep(60, READY) if item.item_id == "item0" else READY)
    rows = drive(tmp_path, workers, 2, sla_s=2.0)
    assert (rows["item0"].status, rows["item0"].reason, rows["item0"].verdict) == ("deadline", "deadline", "reject")
    assert workers.killed == 1
    assert rows["item1"].status == "ok"


def test_a_dead_engine_ends_the_run_with_everything_so_far_committed(tmp_path: Path) -> None:
    def ask(request_id: str) -> Completion:
        if request_id.startswith("item4"):
            raise EngineLost("it died")
        return GOOD

    sink = Sink(tmp_path / "out", "run", rows_per_part=100, commit_every_s=0.5)
    with pytest.raises(EngineLost, match="it died"):
        drive(tmp_path, Scripted(lambda _: READY, ask), 20, sink=sink)
    assert sink.pending == 0
    assert list((tmp_path / "out").glob("part-*.parquet"))


def test_rows_that_cannot_be_written_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.driver._COMMIT_ATTEMPTS", 1)
    slow = Scripted(lambda _: asyncio.sleep(0.2, READY))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("pipeline.atomic.os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        drive(tmp_path, slow, 100)


class Dying:
    """An engine that dies with some items, so often each."""

    def __init__(self, deaths: dict[str, int]) -> None:
        self._left = dict(deaths)
        self.asked: list[str] = []
        self.beside: dict[str, int] = {}
        self._in_flight = 0

    async def __call__(self, request_id: str) -> Completion:
        name = request_id.rpartition("-")[0]
        self.asked.append(request_id)
        self._in_flight += 1
        self.beside[request_id] = self._in_flight - 1
        await asyncio.sleep(0.01)
        self._in_flight -= 1
        if self._left.get(name, 0) > 0:
            self._left[name] -= 1
            raise EngineDied("the engine died: killed")
        return GOOD


def test_an_item_that_the_engine_died_with_once_is_asked_again_at_once(tmp_path: Path) -> None:
    engine = Dying({"item1": 1})
    rows = drive(tmp_path, Scripted(lambda _: READY, engine), 3)
    assert (rows["item1"].status, rows["item1"].attempts) == ("ok", 2)
    assert engine.asked.count("item1-1") == engine.asked.count("item1-2") == 1


def test_an_item_that_the_engine_died_with_twice_is_tried_alone_in_the_end(tmp_path: Path) -> None:
    engine = Dying({"item0": 2})
    rows = drive(tmp_path, Scripted(lambda _: READY, engine), 12)
    assert (rows["item0"].status, rows["item0"].attempts) == ("ok", 3)
    assert engine.asked[-1] == "item0-3" and engine.beside["item0-3"] == 0
    assert rows["item0"].follows_row_id is not None


def test_an_item_that_kills_the_engine_each_time_is_quarantined_after_three(tmp_path: Path) -> None:
    engine = Dying({"item0": 99, "item5": 99})
    rows = drive(tmp_path, Scripted(lambda _: READY, engine), 12)
    for name in ("item0", "item5"):
        assert (rows[name].status, rows[name].reason, rows[name].attempts) == ("error", "engine_killed", 3)
        assert sum(request.startswith(f"{name}-") for request in engine.asked) == 3
        assert "the engine died" in (rows[name].message or "")
    assert sum(row.status == "ok" for row in rows.values()) == 10


def test_an_item_that_the_engine_died_with_in_an_earlier_run_comes_last_and_may_kill_two_more(tmp_path: Path) -> None:
    engine = Dying({"item0": 99})
    entry = LedgerEntry("old", "key", "print", "error", "engine_lost", False)
    rows = drive(tmp_path, Scripted(lambda _: READY, engine), 4, todo={"item0": Todo("retry", entry, "old")})
    assert engine.asked[-1] == "item0-2" and len([one for one in engine.asked if one.startswith("item0-")]) == 2
    assert rows["item0"].reason == "engine_killed" and rows["item0"].follows_row_id is not None


def test_short_recordings_do_not_wait_behind_long_ones(tmp_path: Path) -> None:
    ended: list[str] = []

    async def prepare(item: Item) -> Prepared:
        await asyncio.sleep(0.5 if item.size_bytes == LONG_BYTES else 0.01)
        ended.append(item.item_id)
        return READY

    # By their size two of the first three would take both workers.
    drive(tmp_path, Scripted(prepare), 8, sizes={"item0": LONG_BYTES, "item2": LONG_BYTES}, most_items=4)
    assert sorted(ended) == [f"item{n}" for n in range(8)]
    assert ended[-1] == "item2" and ended.index("item0") > 3


def test_an_item_is_not_started_while_the_engine_is_started_anew(tmp_path: Path) -> None:
    workers = Scripted(lambda _: READY)
    asked_at: list[float] = []
    up_at = time.monotonic() + 0.6

    def ask(_: str) -> Completion:
        asked_at.append(time.monotonic())
        return GOOD

    workers._ask = ask
    workers.engine_is_up = lambda: time.monotonic() > up_at  # type: ignore[method-assign]
    rows = drive(tmp_path, workers, 3)
    assert len(rows) == 3 and min(asked_at) > up_at


def test_a_recording_that_cannot_be_answered_in_time_is_looked_at_less(tmp_path: Path) -> None:
    rows = drive(tmp_path, Scripted(lambda _: replace(READY, lesser_look="half the frames: …", short_answer=True)), 1)
    assert (rows["item0"].status, rows["item0"].degraded, rows["item0"].reason) == ("ok", True, "reduced_look")
    assert rows["item0"].message == "half the frames: …"
