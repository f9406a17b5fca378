"""The event loop's work on items: admit by credit, screen, build the row, hand it to the sink, in time.

An item holds a credit from its admission to its row; so no more is under way than the engine answers soon.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline.errors import EngineLost
from pipeline.events import EventLog
from pipeline.ledger import Todo
from pipeline.progress import Tally
from pipeline.records import Item, Phases, Prepared
from pipeline.row import VerdictRow
from pipeline.screening import Clock, Screener, failed
from pipeline.sink import Sink
from pipeline.verdict import RunFacts, build_row

if TYPE_CHECKING:
    from pipeline.workers import Workers

# Time for building the row and writing the part, beside the sink's own period.
_ROW_MARGIN_S = 1.0
_POLL_S = 0.2
_COMMIT_ATTEMPTS = 5


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
        credits: int,
        commit_every_s: float,
        now: Callable[[], datetime],
    ) -> None:
        self._screener = Screener(workers, facts.policy, events)
        self._sink = sink
        self._facts = facts
        self._tally = tally
        self._events = events
        self._credits = asyncio.Semaphore(credits)
        self._budget_s = max(1.0, facts.sla_s - commit_every_s - _ROW_MARGIN_S)
        self._now = now
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def run(self, work: AsyncIterator[tuple[Item, Todo]], stop: asyncio.Event) -> None:
        """Screen everything in `work`. Raises EngineLost, OSError if rows cannot be written; commits in any case."""
        committing = asyncio.create_task(self._commit_as_due())
        committing.add_done_callback(self._keep_failure)
        try:
            await self._admit(work, stop)
            while self._tasks and not self._halted(stop):
                await asyncio.wait(self._tasks, timeout=_POLL_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (*self._tasks, committing):
                task.cancel()
            await asyncio.gather(*self._tasks, committing, return_exceptions=True)
            self._note(await asyncio.to_thread(self._sink.close))
        if self._failure is not None:
            raise self._failure

    def _halted(self, stop: asyncio.Event) -> bool:
        return stop.is_set() or self._failure is not None

    async def _admit(self, work: AsyncIterator[tuple[Item, Todo]], stop: asyncio.Event) -> None:
        async for item, todo in work:
            while not self._halted(stop):
                try:
                    await asyncio.wait_for(self._credits.acquire(), _POLL_S)
                    break
                except TimeoutError:
                    continue
            if self._halted(stop):
                return
            task = asyncio.create_task(self._screen(item, todo))
            self._tasks.add(task)
            self._tally.in_flight = len(self._tasks)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._tally.in_flight = len(self._tasks)
        self._credits.release()
        self._keep_failure(task)

    def _keep_failure(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and self._failure is None:
            self._failure = task.exception()

    async def _screen(self, item: Item, todo: Todo) -> None:
        """Bring one item to its row. Raises EngineLost alone: any other surprise is this item's error row."""
        clock = Clock(self._budget_s, self._now)
        try:
            outcome = await self._screener.screen(item, clock)
            row = build_row(item, outcome, self._facts, clock.admitted_at, todo.follows_row_id)
            self._sink.add(row, todo.replaces)
        except EngineLost:
            raise
        except Exception as error:
            outcome = failed(Prepared(phases=Phases()), "internal_error", f"{type(error).__name__}: {error}"[:500])
            row = build_row(item, outcome, self._facts, clock.admitted_at, todo.follows_row_id)
            self._sink.add(row, todo.replaces)
        if row.reason is not None:
            facts = {"item_id": item.item_id, "uri": item.uri, "reason": row.reason, "message": row.message}
            self._events.write(_event(row), **facts)

    async def _commit_as_due(self) -> None:
        """Make rows readable when they are due; gives up after several failures in a row."""
        failures = 0
        while True:
            due_s = self._sink.due_in_s()
            await asyncio.sleep(_POLL_S if due_s is None else min(_POLL_S, due_s))
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
                await asyncio.sleep(failures)

    def _note(self, rows: list[Any]) -> None:
        for row in rows:
            self._tally.count(row)


def _event(row: VerdictRow) -> str:
    """Return how the journal calls what became of an item that has a reason."""
    if row.status != "ok":
        return "item_failed"
    return "item_degraded" if row.degraded else "item_routed"
