"""What runs inside Ray's processes: a front end each, or an engine. Failures cross Ray as values with their code."""

from __future__ import annotations

import asyncio
import resource
import sys
import threading
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray

from pipeline.engine.arguments import prompt_ids
from pipeline.engine.base import AnswerForm, Engine, EngineStats
from pipeline.errors import EngineLost, ItemError
from pipeline.front_end import FrontEnd, FrontEndSetup
from pipeline.media.ladder import Forecast
from pipeline.media.process import cpu_s
from pipeline.records import Completion, Item, Prepared
from pipeline.rehearsal import RehearsalFrontEnd

WATCH = "watch"
"""The concurrency group of calls that are answered while an item is under way."""


@dataclass(frozen=True, slots=True)
class Refused:
    """An item error as a value."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The death of the engine's thread as a value."""

    message: str


@dataclass(frozen=True, slots=True)
class Pulse:
    """How an engine's process is: its time account and its resident memory now, bytes."""

    stats: EngineStats
    resident_bytes: int


@dataclass(frozen=True, slots=True)
class Effort:
    """CPU seconds that a front-end worker and its programs took from its first item on, and how many it looked at."""

    cpu_s: float
    items: int


class FrontEndActor:
    def __init__(self, setup: FrontEndSetup) -> None:
        self._front_end: FrontEnd | RehearsalFrontEnd
        self._items = 0
        self._idle_cpu_s: float | None = None  # until the first item
        if setup.rehearsal is not None and setup.rehearsal.front_end == "none":
            self._front_end = RehearsalFrontEnd(setup.rehearsal)
            return
        import torch

        torch.set_num_threads(1)
        self._front_end = FrontEnd(setup)

    def fetch(self, item: Item, request_id: str, budget_s: float) -> Prepared:
        self._begin()
        return self._front_end.fetch(item, request_id, budget_s)

    def prepare(
        self, item: Item, request_id: str, budget_s: float, forecast: Forecast | None, fetched: Prepared | None
    ) -> tuple[Prepared, Any]:
        self._begin()
        self._items += 1
        return self._front_end.prepare(item, request_id, budget_s, forecast, fetched)

    def _begin(self) -> None:
        if self._idle_cpu_s is None:
            self._idle_cpu_s = cpu_s()

    def warm_up(self) -> Any:
        return self._front_end.warm_up()

    @ray.method(concurrency_group=WATCH)  # type: ignore[untyped-decorator]
    def so_far(self) -> Prepared:
        return self._front_end.so_far()

    @ray.method(concurrency_group=WATCH)  # type: ignore[untyped-decorator]
    def peak_bytes(self) -> int:
        return peak_memory_bytes()

    @ray.method(concurrency_group=WATCH)  # type: ignore[untyped-decorator]
    def effort(self) -> Effort:
        return Effort(0.0, 0) if self._idle_cpu_s is None else Effort(cpu_s() - self._idle_cpu_s, self._items)


class EngineActor:
    def __init__(self, setup: FrontEndSetup, form: AnswerForm) -> None:
        self._engine = _engine(setup, form)

    async def ask(self, request_id: str, prompt: Any, short: bool = False) -> Completion | Refused | Lost:
        future = self._engine.submit(request_id, prompt, short)
        try:
            output = await asyncio.wrap_future(future)
        except ItemError as error:
            return Refused(error.code, error.message)
        except EngineLost as error:
            return Lost(str(error))
        return self._engine.completion(output)

    async def abort(self, request_id: str) -> None:
        self._engine.abort(request_id)

    async def describe(self) -> str:
        return self._engine.describe()

    async def more_to_come(self, more: bool) -> None:
        self._engine.more_to_come(more)

    async def pulse(self) -> Pulse:
        return Pulse(self._engine.stats(), resident_bytes())

    async def stacks(self) -> str:
        return stacks_of_all_threads()

    async def peak_bytes(self) -> int:
        return peak_memory_bytes()


def _engine(setup: FrontEndSetup, form: AnswerForm) -> Engine:
    if setup.rehearsal is not None:
        from pipeline.engine.fake import FakeEngine

        ids = prompt_ids(setup.engine) if setup.rehearsal.front_end == "real" else None
        return FakeEngine(setup.rehearsal, setup.engine.arguments["max_num_seqs"], form, ids)
    from pipeline.engine.vllm import VllmEngine

    return VllmEngine(setup.engine, form)


def peak_memory_bytes() -> int:
    """Return the largest resident size this process has had, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def resident_bytes() -> int:
    """Return the resident size of this process now, bytes."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize()


def stacks_of_all_threads() -> str:
    """Return where every thread of this process is, for people."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = []
    for number, frame in sys._current_frames().items():
        parts.append(f"thread {names.get(number, number)}\n{''.join(traceback.format_stack(frame))}")
    return "\n".join(parts)
