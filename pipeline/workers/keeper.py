"""The engine's process, kept alive: a death, a stall or growing memory brings a new one in its place."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from pipeline.engine.base import EngineStats
from pipeline.errors import EngineDied, EngineLost, ItemError, JobError
from pipeline.events import EventLog
from pipeline.records import Completion
from pipeline.workers.actors import Lost, Pulse, Refused
from pipeline.workers.runtime import root_cause

_START_TIMEOUT_S = 1800.0
_STARTS = 3
_PULSE_EVERY_S = 1.0
_LAST_WORD_S = 5.0
_DRAIN_S = 60.0
_NO_STATS = EngineStats(0.0, 0.0, 0.0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Keeping:
    """When an engine is started anew, and how often in a row without an answer between."""

    stall_s: float
    max_restarts: int
    max_growth_bytes: int


class EngineKeeper:
    """Asks the engine, and starts another when it dies, stops stepping or grows too large.

    `make` returns a new actor. While there is no engine, questions wait. A question that an engine died with raises
    EngineDied, and may be asked again.
    """

    def __init__(self, make: Callable[[], Any], keeping: Keeping, events: EventLog) -> None:
        self._make = make
        self._keeping = keeping
        self._events = events
        self._actor: Any = None
        self._warm_up: Any = None
        self._up = asyncio.Event()
        self._failure: EngineLost | None = None
        self._generation = 0
        self._recycled = -1  # the generation that is, or was last, replaced without having died
        self._deaths_in_a_row = 0
        self._asked = 0
        self._past, self._latest = _NO_STATS, _NO_STATS
        self._tasks: set[asyncio.Task[None]] = set()
        self._more: bool | None = None
        self.restarts = 0

    async def start(self, warm_ups: list[Any]) -> list[Completion]:
        """Start the first engine and return its answers to the warm-up prompts.

        Raises JobError, RayError, TimeoutError.
        """
        self._actor, self._warm_up = self._make(), warm_ups[0]
        answers = [await _warmed(self._actor, prompt) for prompt in warm_ups]
        self._up.set()
        self._spawn(self._watch())
        return answers

    def is_up(self) -> bool:
        """Return whether there is an engine to ask, or none will come any more."""
        return self._up.is_set()

    def generation(self) -> int:
        """Return a number that grows as soon as an engine is given up for another one."""
        return self._generation

    async def ready(self) -> None:
        """Wait until there is an engine. Raises EngineLost if there will be none."""
        await self._until_up()
        if self._failure is not None:
            raise self._failure

    async def _until_up(self) -> None:
        # An engine may be gone again before those who waited for it get to run.
        while not self._up.is_set():
            await self._up.wait()

    async def ask(
        self, request_id: str, prompt: Any, timeout_s: float, *, short: bool = False, alone: bool = False
    ) -> Completion:
        """Return the engine's completion, a short answer if asked for.

        The death of an engine that has nothing but this question is the question's fault, and does not count
        against the engine. Raises ItemError (`deadline` after `timeout_s`), EngineDied if the engine died with the
        question, EngineLost.
        """
        until = time.monotonic() + timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                await self.ready()
        except TimeoutError:
            raise ItemError("deadline", "the item's time was over before a new engine was ready") from None
        actor, generation = self._actor, self._generation
        self._asked += 1
        try:
            async with asyncio.timeout(max(0.1, until - time.monotonic())):
                result = await actor.ask.remote(request_id, prompt, short)
        except TimeoutError:
            actor.abort.remote(request_id)
            raise ItemError("deadline", "the item's time was over in the engine") from None
        except RayTaskError as error:
            raise ItemError("engine_rejected", root_cause(error)) from error
        except RayError as error:
            # Whatever else Ray says of a call is that its process is gone: died, killed for memory, unreachable.
            raise self._died(generation, root_cause(error), counts=not alone) from error
        finally:
            self._asked -= 1
        if isinstance(result, Lost):
            raise self._died(generation, result.message, counts=not alone)
        if isinstance(result, Refused):
            raise ItemError(result.code, result.message)
        self._deaths_in_a_row = 0
        completion: Completion = result
        return completion

    def more_to_come(self, more: bool) -> None:
        """Tell this engine, and every one that comes after it; see Engine.more_to_come."""
        self._more = more
        if self._up.is_set() and self._failure is None:
            self._actor.more_to_come.remote(more)

    async def describe(self) -> str:
        """Return engine, version and device for the rows."""
        description: str = await self._actor.describe.remote()
        return description

    async def stats(self) -> EngineStats:
        """Return the time account of all engines of this run. Raises EngineLost."""
        try:
            pulse: Pulse = await self._actor.pulse.remote()
        except RayError as error:
            raise EngineLost(f"the engine is gone: {root_cause(error)}") from error
        return self._past.plus(pulse.stats)

    async def peak_bytes(self) -> int:
        """Return the engine's peak resident bytes. Raises EngineLost."""
        try:
            peak: int = await self._actor.peak_bytes.remote()
        except RayError as error:
            raise EngineLost(f"the engine is gone: {root_cause(error)}") from error
        return peak

    # Another engine

    def _died(self, generation: int, cause: str, counts: bool = True) -> EngineDied:
        """Take note of an engine's death, once, and see to another; return what its questions raise."""
        planned = generation == self._recycled
        if generation == self._generation and self._failure is None:
            self._deaths_in_a_row += counts and not planned
            facts = {"in_flight": self._asked, "deaths_in_a_row": self._deaths_in_a_row, "planned": planned}
            self._events.write("engine_died", cause=cause, **facts)
            self._replace(cause)
        return EngineDied(f"the engine died: {cause}", planned)

    def _replace(self, cause: str) -> None:
        self._generation += 1
        self._up.clear()
        self._past, self._latest = self._past.plus(self._latest), _NO_STATS
        _kill(self._actor)
        if self._deaths_in_a_row > self._keeping.max_restarts:
            self._fail(f"the engine died {self._deaths_in_a_row} times in a row without an answer between: {cause}")
        else:
            self._spawn(self._restart())

    async def _restart(self) -> None:
        started = time.monotonic()
        for attempt in range(1, _STARTS + 1):
            actor = self._make()
            try:
                await _warmed(actor, self._warm_up)
            except (RayError, TimeoutError, ItemError, JobError) as error:
                cause = root_cause(error)
                self._events.write("engine_start_failed", attempt=attempt, cause=cause)
                _kill(actor)
                continue
            self._actor = actor
            if self._more is not None:
                actor.more_to_come.remote(self._more)
            self.restarts += 1
            self._events.write("engine_restarted", seconds=time.monotonic() - started, restarts=self.restarts)
            self._up.set()
            return
        self._fail(f"the engine could not be started again: {cause}")

    def _fail(self, message: str) -> None:
        self._failure = self._failure or EngineLost(message)
        self._up.set()

    # Watching

    async def _watch(self) -> None:
        """Look at the engine every second; replace one that is dead, stands still with work, or has grown too much."""
        while self._failure is None:
            await self._until_up()
            actor, generation = self._actor, self._generation
            first_bytes: int | None = None
            beats, moved = -1, time.monotonic()
            while generation == self._generation and self._failure is None:
                await asyncio.sleep(_PULSE_EVERY_S)
                pulse = await self._pulse(actor, generation)
                if pulse is None:
                    break
                self._latest = pulse.stats
                if pulse.stats.beats != beats or not pulse.stats.unfinished:
                    beats, moved = pulse.stats.beats, time.monotonic()
                elif time.monotonic() - moved > self._keeping.stall_s:
                    await self._stalled(actor, generation)
                    break
                first_bytes = first_bytes or pulse.resident_bytes
                if pulse.resident_bytes - first_bytes > self._keeping.max_growth_bytes:
                    await self._recycle(generation, pulse.resident_bytes - first_bytes)
                    break

    async def _pulse(self, actor: Any, generation: int) -> Pulse | None:
        """Return the engine's pulse, None if it has none: then it is being replaced."""
        try:
            async with asyncio.timeout(self._keeping.stall_s):
                pulse: Pulse = await actor.pulse.remote()
        except TimeoutError:
            await self._stalled(actor, generation)
        except RayError as error:
            self._died(generation, root_cause(error))
        else:
            return pulse
        return None

    async def _stalled(self, actor: Any, generation: int) -> None:
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                stacks = await actor.stacks.remote()
        except (RayError, TimeoutError):
            stacks = "the process does not answer"
        self._events.write("engine_stalled", stall_s=self._keeping.stall_s, in_flight=self._asked, stacks=stacks)
        self._died(generation, f"it had work and did not step for {self._keeping.stall_s:.0f} s")

    async def _recycle(self, generation: int, grown_bytes: int) -> None:
        """Let the questions in flight finish, new ones wait, and start another engine.

        Nobody died: neither questions that take too long to finish nor a death meanwhile count as one.
        """
        if generation != self._generation:
            return
        self._up.clear()
        self._recycled = generation
        self._events.write("engine_recycled", grown_bytes=grown_bytes, in_flight=self._asked)
        until = time.monotonic() + _DRAIN_S
        while self._asked and generation == self._generation and time.monotonic() < until:
            await asyncio.sleep(0.05)
        if generation == self._generation:
            self._replace("its memory kept growing")

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            # Without a keeper a dead engine would be waited for in vain.
            self._fail(f"the engine's keeper died: {type(error).__name__}: {error}")

    def close(self) -> None:
        """Start no engine any more; who waits for one gets EngineLost."""
        self._fail("the run ends")
        for task in self._tasks:
            task.cancel()


def _kill(actor: Any) -> None:
    """End an actor's process, if it is still there."""
    with suppress(RayError, ValueError):
        ray.kill(actor)


async def _warmed(actor: Any, prompt: Any) -> Completion:
    """Return the engine's answer to a warm-up prompt. Raises JobError if it is none."""
    async with asyncio.timeout(_START_TIMEOUT_S):
        answer = await actor.ask.remote("warm-up", prompt)
    if not isinstance(answer, Completion):
        raise JobError(f"the engine did not answer the warm-up prompt: {answer.message}")
    return answer
