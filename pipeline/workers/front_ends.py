"""The pool of front-end workers: one item each at a time, started again when they die."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError, RayTaskError

from pipeline.errors import FrontEndsLost, ItemError
from pipeline.events import EventLog
from pipeline.front_end import FrontEndSetup
from pipeline.media.ladder import Forecast
from pipeline.records import Item, Phases, Prepared
from pipeline.workers.actors import WATCH, Effort, FrontEndActor
from pipeline.workers.runtime import root_cause

# A worker starts in half a minute; several starts in vain mean that it never will.
_REVIVAL_ATTEMPTS = 60
_REVIVAL_PAUSE_S = 2.0
_ANSWER_S = 60.0
_LAST_WORD_S = 1.0
_LAST_BREATH_S = 5.0


def start_front_ends(setup: FrontEndSetup, count: int) -> list[Any]:
    """Return `count` new actors, which may still be starting."""
    actor = ray.remote(num_cpus=1, max_restarts=-1, concurrency_groups={WATCH: 1})(FrontEndActor)
    return [actor.remote(setup) for _ in range(count)]


class FreeFrontEnd:
    """A front-end worker that is held for one item."""

    def __init__(self, actor: Any) -> None:
        self.actor = actor
        self.lost = False
        self.call: Any = None

    async def fetch(self, item: Item, request_id: str, budget_s: float) -> Prepared:
        """Return what the worker found out by reading the item's bytes. Raises like `prepare`."""
        self.call = self.actor.fetch.remote(item, request_id, budget_s)
        return await self._result()

    async def prepare(
        self,
        item: Item,
        request_id: str,
        budget_s: float,
        forecast: Forecast | None = None,
        fetched: Prepared | None = None,
    ) -> tuple[Prepared, Any]:
        """Return what the worker found out, and a reference to the prompt in the object store.

        Raises ItemError `front_end_lost` if the worker died with the item; Ray starts it again.
        """
        call = self.actor.prepare.options(num_returns=2).remote(item, request_id, budget_s, forecast, fetched)
        self.call, prompt = call
        return await self._result(), prompt

    async def _result(self) -> Prepared:
        try:
            prepared: Prepared = await self.call
        except RayTaskError as error:
            raise ItemError("internal_error", f"the front end raised {root_cause(error)}") from error
        except RayError as error:
            self.lost = True
            raise ItemError(
                "front_end_lost", f"the front-end worker died with the item: {root_cause(error)}"
            ) from error
        return prepared

    async def kill(self) -> Prepared:
        """End a worker that is stuck, Ray starts it again; return what it had found out."""
        self.lost = True
        try:
            async with asyncio.timeout(_LAST_WORD_S):
                known: Prepared = await self.actor.so_far.remote()
        except (RayError, TimeoutError):
            known = Prepared(phases=Phases())
        with suppress(RayError, ValueError):
            ray.kill(self.actor, no_restart=False)
        return replace(known, error_code=None, error_message=None)


class FrontEndPool:
    """Hands out workers that have nothing to do; who has little time comes first."""

    def __init__(self, actors: list[Any], events: EventLog) -> None:
        self._actors = actors
        self._events = events
        self._idle: deque[Any] = deque(actors)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._hurrying: deque[asyncio.Future[Any]] = deque()
        self._alive = len(actors)
        self._revivals: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def free(self, timeout_s: float | None = None) -> AsyncIterator[FreeFrontEnd]:
        """Wait for a worker that has nothing to do, and hold it.

        A worker that is lost meanwhile comes back when Ray has started it again. Raises FrontEndsLost if none is
        left, TimeoutError if none is free within `timeout_s`; who gives that is served before others.
        """
        free = FreeFrontEnd(await self._take(timeout_s))
        try:
            yield free
        finally:
            if free.lost:
                revival = asyncio.create_task(self._revive(free))
                self._revivals.add(revival)
                revival.add_done_callback(self._revivals.discard)
            else:
                self._give(free.actor)

    async def _take(self, timeout_s: float | None) -> Any:
        if self._alive == 0:
            raise _none_left()
        if self._idle:
            return self._idle.popleft()
        place: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        (self._waiting if timeout_s is None else self._hurrying).append(place)
        try:
            done, _ = await asyncio.wait({place}, timeout=timeout_s)
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._give(place.result())
            place.cancel()
            raise
        if not done:
            place.cancel()
            raise TimeoutError
        return place.result()

    def _give(self, actor: Any) -> None:
        """Hand a worker to whoever waits, or keep it."""
        for queue in (self._hurrying, self._waiting):
            while queue:
                place = queue.popleft()
                if not place.done():
                    place.set_result(actor)
                    return
        self._idle.append(actor)

    async def _revive(self, lost: FreeFrontEnd) -> None:
        """Give a lost worker back when it answers again; until then calls to it would fail one after the other."""
        # The process that was killed could still answer.
        with suppress(RayError, TimeoutError):
            async with asyncio.timeout(_LAST_BREATH_S):
                await lost.call
        for _ in range(_REVIVAL_ATTEMPTS):
            try:
                async with asyncio.timeout(_ANSWER_S):
                    await lost.actor.peak_bytes.remote()
            except (RayError, TimeoutError):
                await asyncio.sleep(_REVIVAL_PAUSE_S)
            else:
                self._give(lost.actor)
                return
        self._alive -= 1
        self._events.write("front_end_given_up", left=self._alive)
        if self._alive == 0:
            for place in (*self._hurrying, *self._waiting):
                if not place.done():
                    place.set_exception(_none_left())

    async def peak_bytes(self, timeout_s: float) -> dict[str, int]:
        """Return the peak resident bytes of every worker that answers in time."""
        peaks = {}
        for number, actor in enumerate(self._actors):
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    peaks[f"front_end_{number}"] = await actor.peak_bytes.remote()
        return peaks

    async def effort(self, timeout_s: float) -> Effort:
        """Return what items took of all workers that answer in time; one that died took its account with it."""
        efforts = []
        for actor in self._actors:
            with suppress(RayError, TimeoutError):
                async with asyncio.timeout(timeout_s):
                    efforts.append(await actor.effort.remote())
        return Effort(sum(one.cpu_s for one in efforts), sum(one.items for one in efforts))

    def close(self) -> None:
        """Wait for no lost worker any more."""
        for revival in self._revivals:
            revival.cancel()


def _none_left() -> FrontEndsLost:
    return FrontEndsLost("no front-end worker is left: each died and could not be started again")
