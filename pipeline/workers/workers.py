"""The running front-end workers and the engine, as the driver's event loop sees them."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager, ExitStack, suppress
from typing import Any

import ray
from ray.exceptions import RayError

from pipeline.engine.base import AnswerForm, EngineStats
from pipeline.errors import EngineLost, ItemError, JobError
from pipeline.events import EventLog
from pipeline.front_end import FrontEndSetup
from pipeline.policy import Policy
from pipeline.records import Completion
from pipeline.verdict import parse_answer
from pipeline.workers.actors import Effort, EngineActor, peak_memory_bytes
from pipeline.workers.front_ends import FreeFrontEnd, FrontEndPool, start_front_ends
from pipeline.workers.keeper import EngineKeeper, Keeping
from pipeline.workers.runtime import root_cause

# At the end of a run nobody waits longer for a process to tell what it took.
_ACCOUNT_S = 5.0


class Workers:
    """Front-end workers to hold, and one engine to ask."""

    def __init__(self, front_ends: FrontEndPool, engine: EngineKeeper, description: str) -> None:
        self._front_ends = front_ends
        self._engine = engine
        self.description = description

    @staticmethod
    async def start(setup: FrontEndSetup, form: AnswerForm, count: int, keeping: Keeping, events: EventLog) -> Workers:
        """Start the engine and `count` front-end workers, and send a warm-up prompt of each through the engine.

        Ray must run. Raises JobError if one of them cannot start.
        """
        front_ends = start_front_ends(setup, count)
        engine = EngineKeeper(lambda: _start_engine(setup, form), keeping, events)
        with ExitStack() as unless_started:
            unless_started.callback(engine.close)
            try:
                answers = await engine.start([front_end.warm_up.remote() for front_end in front_ends])
                if setup.rehearsal is None:
                    for answer in answers:
                        _check_usable(answer, setup.policy)
                description = await engine.describe()
            except ItemError as error:
                raise JobError(f"the engine's answer to the warm-up prompt is of no use: {error}") from error
            except (RayError, TimeoutError) as error:
                raise JobError(f"the engine or a front-end worker did not start: {root_cause(error)}") from error
            unless_started.pop_all()
        return Workers(FrontEndPool(front_ends, events), engine, description)

    def free_front_end(self, timeout_s: float | None = None) -> AbstractAsyncContextManager[FreeFrontEnd]:
        """See FrontEndPool.free."""
        return self._front_ends.free(timeout_s)

    async def ask(
        self, request_id: str, prompt: Any, timeout_s: float, *, short: bool = False, alone: bool = False
    ) -> Completion:
        """See EngineKeeper.ask."""
        return await self._engine.ask(request_id, prompt, timeout_s, short=short, alone=alone)

    def engine_is_up(self) -> bool:
        """See EngineKeeper.is_up."""
        return self._engine.is_up()

    async def engine_ready(self) -> None:
        """See EngineKeeper.ready."""
        await self._engine.ready()

    def engine_generation(self) -> int:
        """See EngineKeeper.generation."""
        return self._engine.generation()

    def engine_restarts(self) -> int:
        """Return how often the engine was started anew."""
        return self._engine.restarts

    async def engine_stats(self) -> EngineStats:
        """Return the time account of the engine's thread. Raises EngineLost, TimeoutError."""
        async with asyncio.timeout(_ACCOUNT_S):
            return await self._engine.stats()

    def more_to_come(self, more: bool) -> None:
        """Tell the engine that a screening begins, or that all of it has been admitted."""
        self._engine.more_to_come(more)

    async def front_end_effort(self) -> Effort:
        """See FrontEndPool.effort."""
        return await self._front_ends.effort(_ACCOUNT_S)

    async def memory(self) -> dict[str, int]:
        """Return the peak resident bytes of every process of the run that tells."""
        peaks = {"driver": peak_memory_bytes()}
        with suppress(EngineLost, TimeoutError):
            async with asyncio.timeout(_ACCOUNT_S):
                peaks["engine"] = await self._engine.peak_bytes()
        return peaks | await self._front_ends.peak_bytes(_ACCOUNT_S)

    def stop_watching(self) -> None:
        """Start no process anew any more: the run ends."""
        self._engine.close()
        self._front_ends.close()

    @staticmethod
    def close() -> None:
        """End every worker and Ray."""
        ray.shutdown()


def _start_engine(setup: FrontEndSetup, form: AnswerForm) -> Any:
    size = float(setup.engine.arguments["tensor_parallel_size"])
    device = setup.engine.device if setup.rehearsal is None else "cpu"
    return (
        ray.remote(EngineActor)
        .options(
            num_cpus=1,
            max_concurrency=10_000,
            resources={"NPU": size} if device == "ascend" else {},
            num_gpus=size if device == "cuda" else 0.0,
        )
        .remote(setup, form)
    )


def _check_usable(answer: Completion, policy: Policy) -> None:
    """Raise ItemError if an answer cannot be read. One that is cut is no fault of the engine's."""
    try:
        parse_answer(answer, policy)
    except ItemError as error:
        if error.code != "answer_truncated":
            raise
