"""The pool of front-end workers: one item each at a time, started again when they die."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import ray
from ray.exceptions import RayError

from pipeline.errors import EngineLost, ItemError
from pipeline.front_end import FrontEndSetup
from pipeline.media.ladder import Forecast
from pipeline.records import Item, Phases, Prepared
from pipeline.workers.actors import WATCH, FrontEndActor
from pipeline.workers.runtime import result_of, root_cause

# A worker starts in half a minute; several starts in vain mean that it never will.
_REVIVAL_ATTEMPTS = 60
_REVIVAL_PAUSE_S = 2.0
_LAST_WORD_S = 2.0


def start_front_ends(setup: FrontEndSetup, count: int) -> list[Any]:
    """Return `count` new actors, which may still be starting."""
    actor = ray.remote(num_cpus=1, max_restarts=-1, concurrency_groups={WATCH: 1})(FrontEndActor)
    return [actor.remote(setup) for _ in range(count)]


class FreeFrontEnd:
    """A front-end worker that is held for one item."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.lost = False

    async def prepare(
        self, item: Item, request_id: str, budget_s: float, forecast: Forecast | None = None
    ) -> tuple[Prepared, Any]:
        """Return what the worker found out, and a reference to the prompt in the object store.

        Raises ItemError `front_end_lost` if the worker died with the item; Ray starts it again.
        """
        known, prompt = self._actor.prepare.options(num_returns=2).remote(item, request_id, budget_s, forecast)
        try:
            return await known, prompt
        except RayError as error:
            self.lost = True
            raise ItemError(
                "front_end_lost", f"the front-end worker died with the item: {root_cause(error)}"
            ) from error

    async def kill(self) -> Prepared:
        """End a worker that is stuck, Ray starts it again; return what it had found out."""
        self.lost = True
        try:
            known: Prepared = await asyncio.wait_for(result_of(self._actor.so_far.remote()), _LAST_WORD_S)
        except (RayError, TimeoutError):
            known = Prepared(phases=Phases())
        ray.kill(self._actor, no_restart=False)
        return replace(known, error_code=None, error_message=None)


class FrontEndPool:
    """Hands out workers that have nothing to do."""

    def __init__(self, actors: list[Any]) -> None:
        self._actors = actors
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        for actor in actors:
            self._idle.put_nowait(actor)
        self._alive = len(actors)
        self._revivals: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def free(self, timeout_s: float | None = None) -> AsyncIterator[FreeFrontEnd]:
        """Wait for a worker that has nothing to do, and hold it.

        A worker that is lost meanwhile comes back when Ray has started it again. Raises EngineLost if none is left,
        TimeoutError if none is free within `timeout_s`.
        """
        actor = await asyncio.wait_for(self._idle.get(), timeout_s)
        if actor is None:
            self._idle.put_nowait(None)
            raise EngineLost("no front-end worker is left: each died and could not be started again")
        free = FreeFrontEnd(actor)
        try:
            yield free
        finally:
            if free.lost:
                revival = asyncio.create_task(self._revive(actor))
                self._revivals.add(revival)
                revival.add_done_callback(self._revivals.discard)
            else:
                self._idle.put_nowait(actor)

    async def _revive(self, actor: Any) -> None:
        """Give a lost worker back when it answers again; until then calls to it would fail one after the other."""
        for _ in range(_REVIVAL_ATTEMPTS):
            try:
                await actor.peak_bytes.remote()
            except RayError:
                await asyncio.sleep(_REVIVAL_PAUSE_S)
            else:
                self._idle.put_nowait(actor)
                return
        self._alive -= 1
        if self._alive == 0:
            self._idle.put_nowait(None)

    async def peak_bytes(self) -> dict[str, int]:
        """Return the peak resident bytes of every worker. Raises EngineLost if one is gone."""
        try:
            return {f"front_end_{n}": await actor.peak_bytes.remote() for n, actor in enumerate(self._actors)}
        except RayError as error:
            raise EngineLost(f"a front-end worker is gone: {root_cause(error)}") from error
