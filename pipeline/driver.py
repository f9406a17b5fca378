"""The event loop's work on items: admit by credit, prepare, ask, build the row, hand it to the sink, in time.

An item holds a credit from its admission to its row; so no more is under way than the engine answers soon.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline.errors import EngineLost, ItemError
from pipeline.events import EventLog
from pipeline.ledger import Todo
from pipeline.progress import Tally
from pipeline.records import Completion, Item, Phases, Prepared
from pipeline.row import VerdictRow
from pipeline.sink import Sink
from pipeline.tokens import MediaTokens, check_tokens
from pipeline.verdict import Outcome, RunFacts, build_row, parse_answer

if TYPE_CHECKING:
    from pipeline.workers import FreeFrontEnd, Workers

_ATTEMPTS = 2
# A worker that overruns its budget by this much is stuck and gets killed.
_GRACE_S = 5.0
# Time for building the row and writing the part, beside the sink's own period.
_ROW_MARGIN_S = 1.0
_POLL_S = 0.2
_COMMIT_ATTEMPTS = 5


class _Clock:
    """One item's time: it starts when its bytes are first pulled and ends early enough to write the row."""

    def __init__(self, budget_s: float, now: Callable[[], datetime]) -> None:
        self._budget_s = budget_s
        self._now = now
        self._started = time.monotonic()
        self.admitted_at = now()
        self._running = False

    def start(self) -> None:
        """Start, unless an earlier attempt has."""
        if not self._running:
            self._running, self._started, self.admitted_at = True, time.monotonic(), self._now()

    def left_s(self) -> float:
        return self._budget_s - (time.monotonic() - self._started)


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
        self._workers = workers
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
        clock = _Clock(self._budget_s, self._now)
        try:
            outcome = await self._outcome(item, clock)
            row = build_row(item, outcome, self._facts, clock.admitted_at, todo.follows_row_id)
            self._sink.add(row, todo.replaces)
        except EngineLost:
            raise
        except Exception as error:
            outcome = _failed(Prepared(phases=Phases()), "internal_error", f"{type(error).__name__}: {error}"[:500])
            row = build_row(item, outcome, self._facts, clock.admitted_at, todo.follows_row_id)
            self._sink.add(row, todo.replaces)
        if row.reason is not None:
            facts = {"item_id": item.item_id, "uri": item.uri, "reason": row.reason, "message": row.message}
            self._events.write(_event(row), **facts)

    async def _outcome(self, item: Item, clock: _Clock) -> Outcome:
        """Return how the item ended, tried again if a worker died with it."""
        for attempt in range(1, _ATTEMPTS + 1):
            request_id = f"{item.item_id}-{attempt}"
            async with self._workers.free_front_end() as front_end:
                clock.start()
                outcome, prompt = await self._prepare(front_end, item, request_id, clock)
            if outcome.reason != "front_end_lost":
                break
            self._events.write("front_end_lost", item_id=item.item_id, uri=item.uri, message=outcome.message)
        if prompt is not None:
            outcome = await self._ask(request_id, outcome, prompt, clock)
        return replace(outcome, attempts=attempt)

    async def _prepare(
        self, front_end: FreeFrontEnd, item: Item, request_id: str, clock: _Clock
    ) -> tuple[Outcome, Any]:
        """Return what the front end made of the item: an outcome so far, and the prompt unless it failed."""
        budget_s = max(0.0, clock.left_s())
        try:
            prepared, prompt = await asyncio.wait_for(
                front_end.prepare(item, request_id, budget_s), budget_s + _GRACE_S
            )
        except ItemError as error:
            return _failed(Prepared(phases=Phases()), error.code, error.message), None
        except TimeoutError:
            front_end.kill()
            message = f"the front-end worker did not finish within {budget_s:.0f} s and was killed"
            return _failed(Prepared(phases=Phases()), "deadline", message), None
        if prepared.error_code is not None:
            return _failed(prepared, prepared.error_code, prepared.error_message or ""), None
        return Outcome(prepared=prepared, attempts=0, phases=prepared.phases), prompt

    async def _ask(self, request_id: str, outcome: Outcome, prompt: Any, clock: _Clock) -> Outcome:
        """Return the outcome with the engine's answer, or with the reason why there is none."""
        asked = time.monotonic()
        try:
            completion = await self._workers.ask(request_id, prompt, max(0.1, clock.left_s()))
        except ItemError as error:
            waited = replace(outcome.phases, wait_s=time.monotonic() - asked)
            return replace(_failed(outcome.prepared, error.code, error.message), phases=waited)
        answered = time.monotonic()
        outcome = replace(outcome, completion=completion, phases=_phases(outcome.phases, completion, answered - asked))
        prepared = outcome.prepared
        try:
            check_tokens(
                MediaTokens(completion.audio_tokens, completion.video_tokens),
                MediaTokens(prepared.audio_tokens, prepared.video_tokens),
            )
            answer = parse_answer(completion, self._facts.policy)
        except ItemError as error:
            return replace(outcome, status="error", reason=error.code, message=error.message)
        parsed = replace(outcome.phases, parse_s=time.monotonic() - answered)
        return replace(outcome, answer=answer, phases=parsed)

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


def _failed(prepared: Prepared, code: str, message: str) -> Outcome:
    return Outcome(
        prepared=prepared,
        attempts=0,
        status="deadline" if code == "deadline" else "error",
        reason=code,
        message=message,
        phases=prepared.phases,
    )


def _phases(phases: Phases, completion: Completion, engine_s: float) -> Phases:
    """Return the phases with the engine's; what it does not account for is hand-over and counts as waiting."""
    busy_s = completion.prefill_s + completion.generate_s
    return replace(
        phases,
        wait_s=max(0.0, engine_s - busy_s),
        prefill_s=completion.prefill_s,
        generate_s=completion.generate_s,
    )
