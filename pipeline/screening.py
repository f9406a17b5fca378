"""One recording from front end to answer, within its time: prepare, ask, check, parse. Writes no row."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from pipeline.copies import Answer, Copies
from pipeline.deadline import ItemClock, where_time_went
from pipeline.errors import EngineDied, ItemError
from pipeline.events import EventLog
from pipeline.media.ladder import Forecast
from pipeline.policy import Policy
from pipeline.records import Completion, Item, Phases, Prepared
from pipeline.tokens import MediaTokens, check_tokens
from pipeline.verdict import Outcome, parse_answer

if TYPE_CHECKING:
    from pipeline.workers import FreeFrontEnd, Workers

DEATHS_BEFORE_ALONE = 2
"""An item that the engine died with so often is tried with nothing beside it."""
_FRONT_END_TRIES = 3
# A worker has twice so much less than the item. If it overruns that by so much it is stuck, and gets killed while there
# is time left for its last word and the row.
_GRACE_S = 1.5
# Of an item's time, for the answer to another one of the same content; in so much the engine answers what is under
# way. The rest is for screening it after all.
_SHARE_FOR_ANOTHER = 0.5


@dataclass(frozen=True, slots=True)
class History:
    """What an item has gone through before: tries, and how often the engine died with it."""

    tries: int = 0
    deaths: int = 0

    @property
    def alone(self) -> bool:
        """Whether nothing else may be in the engine beside it."""
        return self.deaths >= DEATHS_BEFORE_ALONE


class Watcher(Protocol):
    """Tells what an item's time will be spent on, and hears what the front end made of it."""

    def forecast(self, item: Item) -> Forecast:
        """Return how long the engine will take, now."""

    def waits(self, item: Item) -> None:
        """Hear that an item waits for the answer to another one of the same content, with no worker."""

    def goes_on(self, item: Item) -> None:
        """Hear that an item has waited in vain and is screened itself."""

    def prepared(self, item: Item, prepared: Prepared) -> None:
        """Hear of an item before the engine is asked."""


class Screener:
    """Screens any number of recordings at a time with the same workers by the same policy.

    With `copies`, an item gets the answer to another one with the same content.
    """

    def __init__(self, workers: Workers, policy: Policy, events: EventLog, copies: Copies | None = None) -> None:
        self._workers = workers
        self._policy = policy
        self._events = events
        self._copies = copies

    async def screen(
        self,
        item: Item,
        clock: ItemClock,
        history: History = History(),
        watcher: Watcher | None = None,
    ) -> tuple[Outcome, History]:
        """Return how the item ended and what it has gone through, tried again if a worker or the engine died with it.

        Without a `watcher` the whole is looked at, however long it takes. Raises WorkersLost.
        """
        forecast = watcher.forecast if watcher else lambda _: None
        async with self._workers.free_front_end() as front_end:
            # The clock must not run while there is nobody to ask.
            await self._workers.engine_ready()
            clock.start()
            history = replace(history, tries=history.tries + 1)
            outcome, answer = await self._fetch(front_end, item, _request(item, history), clock)
            prompt = None
            if outcome.reason is None and answer is None:
                request = _request(item, history)
                outcome, prompt = await self._prepare(front_end, item, request, clock, forecast(item), outcome.prepared)
        if answer is not None:
            outcome = await self._waited(item, outcome, answer, clock, watcher)
            if outcome.same_as is None:
                request = _request(item, history)
                outcome, prompt = await self._prepared_again(item, outcome, request, clock, forecast(item))
        for _ in range(1, _FRONT_END_TRIES):
            if outcome.reason != "front_end_lost":
                break
            self._events.write("front_end_lost", item_id=item.item_id, uri=item.uri, message=outcome.message)
            if clock.left_s() < 2 * _GRACE_S:
                break
            history = replace(history, tries=history.tries + 1)
            outcome, prompt = await self._prepared_again(item, outcome, _request(item, history), clock, forecast(item))
        if self._copies is not None:
            self._copies.looked_at(item.item_id, outcome.prepared.content_sha256)
        if watcher is not None:
            watcher.prepared(item, outcome.prepared)
        if prompt is not None:
            outcome, history = await self._answer(item, outcome, prompt, clock, history)
        if outcome.reason == "deadline":
            spent = where_time_went(outcome.phases, clock.elapsed_s)
            outcome = replace(outcome, message=f"{outcome.message}; {spent}")
        return replace(outcome, attempts=history.tries), history

    async def _fetch(
        self, front_end: FreeFrontEnd, item: Item, request_id: str, clock: ItemClock
    ) -> tuple[Outcome, Answer | None]:
        """Return an outcome so far, and the answer to another item if there is, or will be, one of the same content."""
        nothing = Prepared(phases=Phases())
        if self._copies is None or not self._copies.may_be_one(item):
            return Outcome(prepared=nothing, attempts=0), None

        async def fetched(budget_s: float) -> tuple[Prepared, None]:
            return await front_end.fetch(item, request_id, budget_s), None

        outcome, _ = await self._within(front_end, clock, fetched, nothing)
        content = outcome.prepared.content_sha256
        if outcome.reason is not None or content is None:
            return outcome, None
        return outcome, self._copies.claim(item, content)

    async def _waited(
        self, item: Item, outcome: Outcome, answer: Answer, clock: ItemClock, watcher: Watcher | None
    ) -> Outcome:
        """Return the outcome with the row that an item of the same content came to, if it came in time to one."""
        asked = time.monotonic()
        if not answer.done() and watcher is not None:
            watcher.waits(item)
        await asyncio.wait({answer}, timeout=_SHARE_FOR_ANOTHER * clock.left_s())
        row = answer.result() if answer.done() else None
        if row is None and watcher is not None:
            watcher.goes_on(item)
        phases = replace(outcome.phases, wait_s=time.monotonic() - asked)
        return replace(outcome, prepared=replace(outcome.prepared, phases=phases), phases=phases, same_as=row)

    async def _prepared_again(
        self, item: Item, before: Outcome, request_id: str, clock: ItemClock, forecast: Forecast | None
    ) -> tuple[Outcome, Any]:
        """Return what another front-end worker made of the item, whatever came `before`, if one is free in its time."""
        try:
            async with self._workers.free_front_end(clock.left_s()) as front_end:
                return await self._prepare(front_end, item, request_id, clock, forecast, before.prepared)
        except TimeoutError:
            if before.reason is not None:
                return before, None
            return failed(before.prepared, "deadline", "no front-end worker was free within the item's time"), None

    async def _prepare(
        self,
        front_end: FreeFrontEnd,
        item: Item,
        request_id: str,
        clock: ItemClock,
        forecast: Forecast | None,
        known: Prepared,
    ) -> tuple[Outcome, Any]:
        """Return what the front end made of the item: an outcome so far, and the prompt unless it failed."""

        def prepared(budget_s: float) -> Awaitable[tuple[Prepared, Any]]:
            return front_end.prepare(item, request_id, budget_s, forecast, known)

        return await self._within(front_end, clock, prepared, known)

    async def _within(
        self,
        front_end: FreeFrontEnd,
        clock: ItemClock,
        work: Callable[[float], Awaitable[tuple[Prepared, Any]]],
        known: Prepared,
    ) -> tuple[Outcome, Any]:
        """Return what a worker's work came to that knows its budget in seconds; it is killed if it overruns that."""
        left_s = clock.left_s()
        budget_s, limit_s = (
            max(share * left_s, left_s - less) for share, less in ((1 / 3, 2 * _GRACE_S), (2 / 3, _GRACE_S))
        )
        try:
            async with asyncio.timeout(limit_s):
                prepared, prompt = await work(budget_s)
        except ItemError as error:
            return failed(known, error.code, error.message), None
        except TimeoutError:
            known = await front_end.kill()
            message = f"the front-end worker did not finish within {limit_s:.0f} s and was killed"
            return failed(known, "deadline", message), None
        if prepared.error_code is not None:
            return failed(prepared, prepared.error_code, prepared.error_message or ""), None
        # A gated item's prompt is a reference to nothing.
        prompt = prompt if prepared.gate is None else None
        return Outcome(prepared=prepared, attempts=0, phases=prepared.phases), prompt

    async def _answer(
        self, item: Item, outcome: Outcome, prompt: Any, clock: ItemClock, history: History
    ) -> tuple[Outcome, History]:
        """Return the outcome with the engine's answer, or why there is none; an item is asked again if the engine died.

        An item that was tried alone is then the one that killed it.
        """
        asked, lost, waited_s = time.monotonic(), "", outcome.phases.wait_s or 0.0
        while True:
            try:
                return await self._ask(item, history, outcome, prompt, clock, asked), history
            except EngineDied as error:
                lost, code = str(error), None
                if not error.planned:
                    history = replace(history, deaths=history.deaths + 1)
                    code = _after_death(history)
                self._events.write("engine_lost", item_id=item.item_id, uri=item.uri, deaths=history.deaths)
            except ItemError as error:
                code, lost = error.code, f"{lost}; {error.message}" if lost else error.message
            if code is not None:
                waited = replace(outcome.phases, wait_s=waited_s + time.monotonic() - asked)
                return replace(failed(outcome.prepared, code, lost), phases=waited), history
            history = replace(history, tries=history.tries + 1)

    async def _ask(
        self, item: Item, history: History, outcome: Outcome, prompt: Any, clock: ItemClock, asked: float
    ) -> Outcome:
        """Return the outcome with the engine's answer, checked and parsed. Raises ItemError, EngineDied, EngineLost."""
        completion = await self._workers.ask(
            _request(item, history),
            prompt,
            max(0.1, clock.left_s()),
            short=outcome.prepared.short_answer,
            alone=history.alone,
        )
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


def _request(item: Item, history: History) -> str:
    """Return the engine's name for this try; no two tries of a run have the same."""
    return f"{item.item_id}-{history.tries}"


def _after_death(history: History) -> str | None:
    """Return the code of an item that the engine has just died with, None if it is asked again at once."""
    if history.deaths > DEATHS_BEFORE_ALONE:
        return "engine_killed"
    return "engine_lost" if history.alone else None


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
        wait_s=(phases.wait_s or 0.0) + max(0.0, engine_s - busy_s),
        prefill_s=completion.prefill_s,
        generate_s=completion.generate_s,
    )
