"""One recording from front end to answer, within its time: prepare, ask, check, parse. Writes no row."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from pipeline.errors import ItemError
from pipeline.events import EventLog
from pipeline.policy import Policy
from pipeline.records import Completion, Item, Phases, Prepared
from pipeline.tokens import MediaTokens, check_tokens
from pipeline.verdict import Outcome, parse_answer

if TYPE_CHECKING:
    from pipeline.workers import FreeFrontEnd, Workers

_ATTEMPTS = 2
# A worker that overruns its budget by this much is stuck and gets killed.
_GRACE_S = 5.0


class Clock:
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


class Screener:
    """Screens any number of recordings at a time with the same workers by the same policy."""

    def __init__(self, workers: Workers, policy: Policy, events: EventLog) -> None:
        self._workers = workers
        self._policy = policy
        self._events = events

    async def screen(self, item: Item, clock: Clock) -> Outcome:
        """Return how the item ended, tried again if a worker died with it. Raises EngineLost."""
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

    async def _prepare(self, front_end: FreeFrontEnd, item: Item, request_id: str, clock: Clock) -> tuple[Outcome, Any]:
        """Return what the front end made of the item: an outcome so far, and the prompt unless it failed."""
        budget_s = max(0.0, clock.left_s())
        try:
            prepared, prompt = await asyncio.wait_for(
                front_end.prepare(item, request_id, budget_s), budget_s + _GRACE_S
            )
        except ItemError as error:
            return failed(Prepared(phases=Phases()), error.code, error.message), None
        except TimeoutError:
            front_end.kill()
            message = f"the front-end worker did not finish within {budget_s:.0f} s and was killed"
            return failed(Prepared(phases=Phases()), "deadline", message), None
        if prepared.error_code is not None:
            return failed(prepared, prepared.error_code, prepared.error_message or ""), None
        return Outcome(prepared=prepared, attempts=0, phases=prepared.phases), prompt

    async def _ask(self, request_id: str, outcome: Outcome, prompt: Any, clock: Clock) -> Outcome:
        """Return the outcome with the engine's answer, or with the reason why there is none."""
        asked = time.monotonic()
        try:
            completion = await self._workers.ask(request_id, prompt, max(0.1, clock.left_s()))
        except ItemError as error:
            waited = replace(outcome.phases, wait_s=time.monotonic() - asked)
            return replace(failed(outcome.prepared, error.code, error.message), phases=waited)
        answered = time.monotonic()
        outcome = replace(outcome, completion=completion, phases=_phases(outcome.phases, completion, answered - asked))
        prepared = outcome.prepared
        try:
            check_tokens(
                MediaTokens(completion.audio_tokens, completion.video_tokens),
                MediaTokens(prepared.audio_tokens, prepared.video_tokens),
            )
            answer = parse_answer(completion, self._policy)
        except ItemError as error:
            return replace(outcome, status="error", reason=error.code, message=error.message)
        parsed = replace(outcome.phases, parse_s=time.monotonic() - answered)
        return replace(outcome, answer=answer, phases=parsed)


def failed(prepared: Prepared, code: str, message: str) -> Outcome:
    """Return the outcome of an item that failed for a reason of the register."""
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
