"""The event loop's work on items: admit by credit, screen, build the row, hand it to the sink, in time.

An item holds a credit from its admission to its row; so no more is under way than the engine answers soon. Long
recordings are set aside while they would take the last front-end worker. Items that the engine died with come last
again: first together, then, if it died with them twice, one by one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline.admission import Admission, Lanes
from pipeline.copies import Copies
from pipeline.deadline import ItemClock
from pipeline.errors import WorkersLost
from pipeline.events import EventLog
from pipeline.hardware.memory import available_bytes
from pipeline.ledger import Todo, is_good
from pipeline.media.ladder import Forecast
from pipeline.progress import Tally
from pipeline.records import Item, LedgerEntry, Phases, Prepared
from pipeline.row import VerdictRow
from pipeline.screening import DEATHS_BEFORE_ALONE, History, Screener, failed
from pipeline.sink import Sink
from pipeline.verdict import Outcome, RunFacts, build_row

if TYPE_CHECKING:
    from pipeline.workers import Workers

# Time for building the row and writing the part, beside the sink's own period.
_ROW_MARGIN_S = 1.0
_POLL_S = 0.2
_COMMIT_ATTEMPTS = 5
_MOST_ASIDE = 64
_RECENT = 16


@dataclass(frozen=True, slots=True)
class _Again:
    """An item whose row says that the engine died with it."""

    item: Item
    todo: Todo
    history: History


@dataclass(frozen=True, slots=True)
class Intake:
    """What decides when an item may be started, and with `copies` whether it needs a look of its own; `free_bytes`
    tells the host's free memory."""

    admission: Admission
    lanes: Lanes
    free_bytes: Callable[[], int] = available_bytes
    copies: Copies | None = None


class Driver:
    """Screens items until there are no more or `stop` is set."""

    def __init__(
        self,
        workers: Workers,
        sink: Sink,
        facts: RunFacts,
        tally: Tally,
        events: EventLog,
        *,
        intake: Intake,
        commit_every_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self._workers = workers
        self._screener = Screener(workers, facts.policy, events, intake.copies)
        self._copies = intake.copies
        self._sink = sink
        self._facts = facts
        self._tally = tally
        self._events = events
        self._admission = intake.admission
        self._lanes = intake.lanes
        self._free_bytes = intake.free_bytes
        self._engine_was_up = True
        self._room, self._closing = asyncio.Event(), asyncio.Event()
        self._margin_s = commit_every_s + _ROW_MARGIN_S
        self._now = now
        self._tasks: set[asyncio.Task[None]] = set()
        self._again: list[_Again] = []
        self._lost: dict[str, VerdictRow] = {}  # rows of items that come again, by row_id
        self._generate_s: dict[bool, deque[float]] = {short: deque(maxlen=_RECENT) for short in (False, True)}
        self._failure: BaseException | None = None

    async def run(self, work: AsyncIterator[tuple[Item, Todo]], stop: asyncio.Event) -> None:
        """Screen everything in `work`. Raises WorkersLost, OSError if rows cannot be written; commits in any case."""
        committing = asyncio.create_task(self._commit_as_due())
        committing.add_done_callback(self._keep_failure)
        try:
            self._workers.more_to_come(True)
            async for item, todo in self._in_turn(work):
                if todo.replaces is not None and todo.replaces.reason == "engine_lost":
                    self._again.append(_Again(item, todo, History(deaths=DEATHS_BEFORE_ALONE - 1)))
                elif not await self._admit(item, todo, History(), stop):
                    break
            self._workers.more_to_come(False)
            await self._all_done(stop)
            await self._try_again(stop)
        finally:
            for task in self._tasks:
                task.cancel()
            # Not cancelled: rows of a commit under way would never be counted.
            self._closing.set()
            await asyncio.gather(*self._tasks, committing, return_exceptions=True)
            await self._close_sink()
        if self._failure is not None:
            raise self._failure

    async def _close_sink(self) -> None:
        """Make what is pending readable; what went wrong before stays the run's failure."""
        try:
            self._note(await asyncio.to_thread(self._sink.close))
        except OSError as error:
            self._events.write("commit_failed", message=str(error))
            self._failure = self._failure or error

    async def _in_turn(self, work: AsyncIterator[tuple[Item, Todo]]) -> AsyncIterator[tuple[Item, Todo]]:
        """Yield everything in `work`, in its order but for long recordings, which wait for a lane."""
        aside: deque[tuple[Item, Todo]] = deque()
        async for pair in work:
            while aside and self._may_start(aside[0][0]):
                yield aside.popleft()
            if self._may_start(pair[0]) or len(aside) >= _MOST_ASIDE:
                yield pair
            else:
                aside.append(pair)
        for pair in aside:
            yield pair

    def _may_start(self, item: Item) -> bool:
        return self._lanes.may_start(item.size_bytes or 0, _suffix(item))

    async def _try_again(self, stop: asyncio.Event) -> None:
        """Screen the items that the engine died with once more: together, then alone those it died with twice."""
        together = [one for one in self._again if not one.history.alone]
        self._again = [one for one in self._again if one.history.alone]
        for one in together:
            await self._admit(one.item, one.todo, one.history, stop)
        await self._all_done(stop)
        while self._again and not self._halted(stop):
            one = self._again.pop(0)
            await self._admit(one.item, one.todo, one.history, stop)
            await self._all_done(stop)

    def _halted(self, stop: asyncio.Event) -> bool:
        return stop.is_set() or self._failure is not None

    async def _all_done(self, stop: asyncio.Event) -> None:
        while self._tasks and not self._halted(stop):
            await asyncio.wait(self._tasks, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)

    async def _admit(self, item: Item, todo: Todo, history: History, stop: asyncio.Event) -> bool:
        """Start on an item as soon as a credit is free and there is an engine; return False if the run is to end."""
        while not self._halted(stop) and (held_by := self._held_by()) is not None:
            self._tally.held_by = held_by
            self._room.clear()
            since = time.monotonic()
            await _set_within(self._room, _POLL_S)
            self._tally.held_s[held_by] = self._tally.held_s.get(held_by, 0.0) + time.monotonic() - since
        self._tally.held_by = None
        if self._halted(stop):
            return False
        self._admission.admitted(item.item_id)
        self._lanes.started(item.item_id, item.size_bytes or 0, _suffix(item))
        task = asyncio.create_task(self._screen(item, todo, history))
        self._tasks.add(task)
        self._tally.in_flight = len(self._tasks)
        task.add_done_callback(lambda done: self._ended(done, item))
        return True

    def _held_by(self) -> str | None:
        """Return what holds the next item back, None if it may be started."""
        now_s, up = time.monotonic(), self._workers.engine_is_up()
        if up is not self._engine_was_up:
            # A restart says nothing of the engine's speed.
            self._engine_was_up = up
            (self._admission.resume if up else self._admission.pause)(now_s)
        return self._admission.held_by(self._free_bytes(), now_s) if up else "engine restart"

    def _ended(self, task: asyncio.Task[None], item: Item) -> None:
        self._tasks.discard(task)
        self._tally.in_flight = len(self._tasks)
        self._admission.finished(item.item_id, time.monotonic(), answered=False)
        self._lanes.dropped(item.item_id)
        if self._copies is not None:
            self._copies.ended(item.item_id)
        self._room.set()
        self._keep_failure(task)

    def forecast(self, item: Item) -> Forecast:
        """Return what the engine will take for an item, by what it took lately."""
        now_s = time.monotonic()
        known = {
            "engine_tokens_per_s": self._admission.engine_tokens_per_s(now_s),
            "queue_s": self._admission.expected_wait_s(now_s, item.item_id),
            "generate_s": max(self._generate_s[False], default=None),
            "short_generate_s": max(self._generate_s[True], default=None),
        }
        return Forecast(**{name: value for name, value in known.items() if value is not None})

    def _learn_answer(self, outcome: Outcome) -> None:
        if outcome.phases.generate_s is not None:
            self._generate_s[outcome.prepared.short_answer].append(outcome.phases.generate_s)

    def waits(self, item: Item) -> None:
        """Let others use the credit and the lane of an item that waits for another one's answer."""
        self._admission.lend(item.item_id)
        self._lanes.dropped(item.item_id)
        self._room.set()

    def goes_on(self, item: Item) -> None:
        """Give credit and lane back to an item that has waited in vain."""
        self._admission.admitted(item.item_id)
        self._lanes.started(item.item_id, item.size_bytes or 0, _suffix(item))

    def prepared(self, item: Item, prepared: Prepared) -> None:
        """Learn what the front end took for an item, and what the engine will."""
        phases = prepared.phases
        front_end = (phases.fetch_s, phases.probe_s, phases.plan_s, phases.decode_s, phases.signals_s, phases.render_s)
        if prepared.error_code is None and prepared.lesser_look is None and None not in front_end:
            self._lanes.finished(item.item_id, sum(spent_s or 0.0 for spent_s in front_end))
        else:
            self._lanes.dropped(item.item_id)
        if prepared.error_code is None and prepared.prompt_tokens:
            self._admission.known(item.item_id, prepared.prompt_tokens, prepared.prompt_bytes, time.monotonic())

    def _keep_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and self._failure is None:
            self._failure = task.exception()

    async def _screen(self, item: Item, todo: Todo, history: History) -> None:
        """Bring one item to its row. Raises WorkersLost alone: any other surprise is this item's error row."""
        clock = ItemClock(self._facts.sla_s, self._margin_s, now=self._now)
        try:
            outcome, history = await self._screener.screen(item, clock, history, self)
            self._learn_answer(outcome)
            self._admission.finished(item.item_id, time.monotonic(), answered=outcome.completion is not None)
            row = build_row(item, outcome, self._facts, clock.admitted_at, todo.follows_row_id)
            self._sink.add(row, todo.replaces)
            if self._copies is not None:
                self._copies.ended(item.item_id, row)
        except WorkersLost:
            raise
        except Exception as error:
            outcome = failed(Prepared(phases=Phases()), "internal_error", f"{type(error).__name__}: {error}"[:500])
            row = build_row(item, outcome, self._facts, clock.admitted_at, todo.follows_row_id)
            self._sink.add(row, todo.replaces)
        if row.reason is not None:
            facts = {"item_id": item.item_id, "uri": item.uri, "reason": row.reason, "message": row.message}
            self._events.write(_event(row), **facts)
        if row.reason == "engine_lost":
            self._again.append(_Again(item, _instead_of(row), history))

    async def _commit_as_due(self) -> None:
        """Make rows readable when they are due; gives up after several failures in a row."""
        failures = 0
        while not self._closing.is_set():
            due_s = self._sink.due_in_s()
            await _set_within(self._closing, _POLL_S if due_s is None else min(_POLL_S, due_s))
            if due_s is None or (self._sink.due_in_s() or 0.0) > 0:
                continue
            try:
                self._note(await asyncio.to_thread(self._sink.commit))
                failures = 0
            except OSError as error:
                failures += 1
                self._events.write("commit_failed", message=str(error), failures=failures)
                if failures >= _COMMIT_ATTEMPTS:
                    raise
                await _set_within(self._closing, failures)

    def _note(self, rows: list[Any]) -> None:
        for row in rows:
            self._tally.count(row)
            if self._copies is not None:
                self._copies.committed(row, self._sink.part_of(row))
            replaced = self._lost.pop(row.follows_row_id or "", None)
            if replaced is not None:
                self._tally.take_back(replaced)
            if row.reason == "engine_lost":
                self._lost[row.row_id] = row


async def _set_within(event: asyncio.Event, timeout_s: float) -> None:
    """Wait until the event is set, but no longer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await event.wait()


def _instead_of(row: VerdictRow) -> Todo:
    """Return what is to be done about an item of this run whose row is to be replaced."""
    entry = LedgerEntry(row.row_id, row.source_key, row.fingerprint, row.status, row.reason, row.sla_met)
    return Todo("retry", replaces=entry, follows_row_id=row.row_id)


def _suffix(item: Item) -> str:
    return os.path.splitext(item.path)[1].decode("utf-8", "replace")


def _event(row: VerdictRow) -> str:
    """Return how the journal calls what became of an item that has a reason."""
    if not is_good(row.status):
        return "item_failed"
    return "item_degraded" if row.degraded else "item_routed"
