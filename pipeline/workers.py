"""Ray actors around the front end and the engine, and the handle the driver works with. The only importer of ray."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import resource
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayActorError, RayError, RayTaskError

from pipeline.engine.base import AnswerForm, EngineStats
from pipeline.errors import EngineLost, ItemError, JobError
from pipeline.front_end import FrontEnd, FrontEndSetup
from pipeline.hardware.environment import child_environment
from pipeline.policy import Policy
from pipeline.records import Completion, Item, Prepared
from pipeline.verdict import parse_answer

# Actors must start while the cores are busy importing vLLM; the logical count only places them.
_LOGICAL_CPUS_BESIDE_WORKERS = 2
_OBJECT_STORE_BYTES = 2 * 2**30
_START_TIMEOUT_S = 1800.0
# A worker starts in half a minute; several starts in vain mean that it never will.
_REVIVAL_ATTEMPTS = 60
_REVIVAL_PAUSE_S = 2.0
_ERROR_LINE = re.compile(r"[\w.]+(Error|Exception)\b")


@dataclass(frozen=True, slots=True)
class Refused:
    """An item error as a value: what crosses Ray keeps its code."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class _Lost:
    """The engine's death as a value."""

    message: str


class _FrontEndActor:
    def __init__(self, setup: FrontEndSetup) -> None:
        import torch

        torch.set_num_threads(1)
        self._front_end = FrontEnd(setup)

    def prepare(self, item: Item, request_id: str, budget_s: float) -> tuple[Prepared, Any]:
        return self._front_end.prepare(item, request_id, budget_s)

    def warm_up(self) -> Any:
        return self._front_end.warm_up()

    def peak_bytes(self) -> int:
        return peak_memory_bytes()


class _EngineActor:
    def __init__(self, setup: FrontEndSetup, form: AnswerForm) -> None:
        from pipeline.engine.vllm import VllmEngine

        self._engine = VllmEngine(setup.engine, form)

    async def ask(self, request_id: str, prompt: Any) -> Completion | Refused | _Lost:
        future = self._engine.submit(request_id, prompt)
        try:
            output = await asyncio.wrap_future(future)
        except ItemError as error:
            return Refused(error.code, error.message)
        except EngineLost as error:
            return _Lost(str(error))
        return self._engine.completion(output)

    async def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    async def describe(self) -> str:
        return self._engine.describe()

    async def stats(self) -> EngineStats:
        return self._engine.stats()

    async def peak_bytes(self) -> int:
        return peak_memory_bytes()


def peak_memory_bytes() -> int:
    """Return the largest resident size this process has had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


class FreeFrontEnd:
    """A front-end worker that is held for one item."""

    def __init__(self, actor: Any) -> None:
        self._actor = actor
        self.lost = False

    async def prepare(self, item: Item, request_id: str, budget_s: float) -> tuple[Prepared, Any]:
        """Return what the worker found out, and a reference to the prompt in the object store.

        Raises ItemError `front_end_lost` if the worker died with the item; Ray starts it again.
        """
        known, prompt = self._actor.prepare.options(num_returns=2).remote(item, request_id, budget_s)
        try:
            return await known, prompt
        except RayError as error:
            self.lost = True
            raise ItemError("front_end_lost", f"the front-end worker died with the item: {_root(error)}") from error

    def kill(self) -> None:
        """End a worker that is stuck; Ray starts it again."""
        self.lost = True
        ray.kill(self._actor, no_restart=False)


class Workers:
    """The running front-end workers and the engine, as the driver's event loop sees them."""

    def __init__(self, front_ends: list[Any], engine: Any, description: str) -> None:
        self._front_ends = front_ends
        self._idle: asyncio.Queue[Any] = asyncio.Queue()
        for actor in front_ends:
            self._idle.put_nowait(actor)
        self._alive = len(front_ends)
        self._revivals: set[asyncio.Task[None]] = set()
        self._engine = engine
        self.description = description

    @staticmethod
    async def start(setup: FrontEndSetup, form: AnswerForm, count: int) -> Workers:
        """Start the engine and `count` front-end workers, and send a warm-up prompt of each through the engine.

        Ray must run. Raises JobError if one of them cannot start.
        """
        actor = ray.remote(_FrontEndActor).options(num_cpus=1, max_restarts=-1)
        front_ends = [actor.remote(setup) for _ in range(count)]
        engine = (
            ray.remote(_EngineActor)
            .options(num_cpus=1, max_concurrency=10_000, resources=_accelerators(setup), num_gpus=_gpus(setup))
            .remote(setup, form)
        )
        try:
            prompts = [front_end.warm_up.remote() for front_end in front_ends]
            for prompt in prompts:
                answer = await asyncio.wait_for(_result(engine.ask.remote("warm-up", prompt)), _START_TIMEOUT_S)
                if not isinstance(answer, Completion):
                    raise JobError(f"the engine did not answer the warm-up prompt: {answer.message}")
                _check_usable(answer, setup.policy)
            description = await engine.describe.remote()
        except ItemError as error:
            raise JobError(f"the engine's answer to the warm-up prompt is of no use: {error}") from error
        except (RayError, TimeoutError) as error:
            raise JobError(f"the engine or a front-end worker did not start: {_root(error)}") from error
        return Workers(front_ends, engine, description)

    @asynccontextmanager
    async def free_front_end(self) -> AsyncIterator[FreeFrontEnd]:
        """Wait for a front-end worker that has nothing to do, and hold it.

        A worker that is lost meanwhile comes back when Ray has started it again. Raises EngineLost if none is left.
        """
        actor = await self._idle.get()
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

    async def ask(self, request_id: str, prompt: Any, timeout_s: float) -> Completion:
        """Return the engine's completion. Raises ItemError (`deadline` after `timeout_s`), EngineLost."""
        answer = self._engine.ask.remote(request_id, prompt)
        try:
            result = await asyncio.wait_for(_result(answer), timeout_s)
        except TimeoutError:
            self._engine.abort.remote(request_id)
            raise ItemError("deadline", "the item's time was over in the engine") from None
        except RayActorError as error:
            raise EngineLost(f"the engine died: {_root(error)}") from error
        except RayTaskError as error:
            raise ItemError("engine_rejected", _root(error)) from error
        if isinstance(result, _Lost):
            raise EngineLost(result.message)
        if isinstance(result, Refused):
            raise ItemError(result.code, result.message)
        completion: Completion = result
        return completion

    async def engine_stats(self) -> EngineStats:
        """Return the time account of the engine's thread. Raises EngineLost."""
        try:
            stats: EngineStats = await self._engine.stats.remote()
        except RayError as error:
            raise EngineLost(f"the engine is gone: {_root(error)}") from error
        return stats

    async def memory(self) -> dict[str, int]:
        """Return the peak resident bytes of every process of the run. Raises EngineLost if one is gone."""
        peaks = {"driver": peak_memory_bytes()}
        try:
            peaks["engine"] = await self._engine.peak_bytes.remote()
            for number, actor in enumerate(self._front_ends):
                peaks[f"front_end_{number}"] = await actor.peak_bytes.remote()
        except RayError as error:
            raise EngineLost(f"a worker is gone: {_root(error)}") from error
        return peaks

    @staticmethod
    def close() -> None:
        """End every worker and Ray."""
        ray.shutdown()


def _check_usable(answer: Completion, policy: Policy) -> None:
    """Raise ItemError if an answer cannot be read. One that is cut is no fault of the engine's."""
    try:
        parse_answer(answer, policy)
    except ItemError as error:
        if error.code != "answer_truncated":
            raise


async def _result(reference: Any) -> Any:
    return await reference


def start_ray(workers: int, device: str, scratch: str) -> None:
    """Start Ray on this machine with room for the engine and so many front-end workers, which use the folder
    `scratch` for temporary files.

    Ray replaces the process's signal handlers while it starts. Raises JobError.
    """
    environment = child_environment(device) | {"TMPDIR": scratch}
    os.environ.update({name: value for name, value in environment.items() if name.startswith("RAY_")})
    try:
        ray.init(
            address="local",
            num_cpus=workers + _LOGICAL_CPUS_BESIDE_WORKERS,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            logging_level=logging.ERROR,
            runtime_env={"env_vars": environment},
        )
    except SystemExit:
        raise KeyboardInterrupt from None  # Ray's own SIGTERM handler, while it starts
    except Exception as error:
        # The seam for everything that keeps Ray from starting: ports, memory, a wrong RAY_ variable.
        raise JobError(f"Ray did not start: {_root(error)}") from error


def _accelerators(setup: FrontEndSetup) -> dict[str, float]:
    size = setup.engine.arguments["tensor_parallel_size"]
    return {"NPU": float(size)} if setup.engine.device == "ascend" else {}


def _gpus(setup: FrontEndSetup) -> float:
    return float(setup.engine.arguments["tensor_parallel_size"]) if setup.engine.device == "cuda" else 0.0


def _root(error: BaseException) -> str:
    """Return the first cause of a Ray error on one line: what its last traceback ends with."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if not lines:
        return type(cause).__name__
    ends = [number for number, line in enumerate(lines) if _ERROR_LINE.match(line)]
    text = " ".join(lines[ends[-1] :] if ends else lines[-1:])
    return text.removeprefix("pipeline.errors.JobError: ")[:500]
