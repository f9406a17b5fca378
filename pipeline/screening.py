"""One recording from front end to answer, within its time: prepare, ask, check, parse. Writes no row."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

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

    def prepared(self, item: Item, prepared: Prepared) -> None:
        """Hear of an item before the engine is asked."""


class Screener:
    """Screens any number of recordings at a time with the same workers by the same policy."""

    def __init__(self, workers: Workers, policy: Policy, events: EventLog) -> None:
        self._workers = workers
        self._policy = policy
        self._events = events

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
            outcome, prompt = await self._prepare(front_end, item, _request(item, history), clock, forecast(item))
        for _ in range(1, _FRONT_END_TRIES):
            if outcome.reason != "front_end_lost":
                break
            self._events.write("front_end_lost", item_id=item.item_id, uri=item.uri, message=outcome.message)
            if clock.left_s() < 2 * _GRACE_S:
                break
            history = replace(history, tries=history.tries + 1)
            outcome, prompt = await self._prepared_again(item, outcome, _request(item, history), clock, forecast(item))
        if watcher is not None:
            watcher.prepared(item, outcome.prepared)
        if prompt is not None:
            outcome, history = await self._answer(item, outcome, prompt, clock, history)
        if outcome.reason == "deadline":
            spent = where_time_went(outcome.phases, clock.elapsed_s)
            outcome = replace(outcome, message=f"{outcome.message}; {spent}")
        return replace(outcome, attempts=history.tries), history

    async def _prepared_again(
        self, item: Item, lost: Outcome, request_id: str, clock: ItemClock, forecast: Forecast | None
    ) -> tuple[Outcome, Any]:
        """Return what another front-end worker made of the item; `lost` if none is free within the item's time."""
        try:
            async with self._workers.free_front_end(clock.left_s()) as front_end:
                return await self._prepare(front_end, item, request_id, clock, forecast)
        except TimeoutError:
            return lost, None

    async def _prepare(
        self, front_end: FreeFrontEnd, item: Item, request_id: str, clock: ItemClock, forecast: Forecast | None
    ) -> tuple[Outcome, Any]:
        """Return what the front end made of the item: an outcome so far, and the prompt unless it failed."""
        left_s = clock.left_s()
        budget_s, limit_s = (
            max(share * left_s, left_s - less) for share, less in ((1 / 3, 2 * _GRACE_S), (2 / 3, _GRACE_S))
        )
        try:
            async with asyncio.timeout(limit_s):
                prepared, prompt = await front_end.prepare(item, request_id, budget_s, forecast)
        except ItemError as error:
            return failed(Prepared(phases=Phases()), error.code, error.message), None
        except TimeoutError:
            known = await front_end.kill()
            message = f"the front-end worker did not finish within {limit_s:.0f} s and was killed"
            return failed(known, "deadline", message), None
        if prepared.error_code is not None:
            return failed(prepared, prepared.error_code, prepared.error_message or ""), None
        return Outcome(prepared=prepared, attempts=0, phases=prepared.phases), prompt

    async def _answer(
        self, item: Item, outcome: Outcome, prompt: Any, clock: ItemClock, history: History
    ) -> tuple[Outcome, History]:
        """Return the outcome with the engine's answer, or why there is none; an item is asked again if the engine died.

        An item that was tried alone is then the one that killed it.
        """
        asked, lost = time.monotonic(), ""
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
                waited = replace(outcome.phases, wait_s=time.monotonic() - asked)
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
        wait_s=max(0.0, engine_s - busy_s),
        prefill_s=completion.prefill_s,
        generate_s=completion.generate_s,
    )
