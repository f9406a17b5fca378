"""One recording from front end to answer: what a cancellation and a planned restart do to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from pipeline.deadline import ItemClock
from pipeline.errors import EngineDied
from pipeline.events import EventLog
from pipeline.records import Completion, Prepared
from pipeline.screening import DEATHS_BEFORE_ALONE, History, Screener
from pipeline.verdict import Outcome
from tests.test_driver import GOOD, READY, Scripted, items
from tests.test_verdict import POLICY

Screening = Coroutine[Any, Any, tuple[Outcome, History]]


def screened(folder: Path, workers: Scripted, work: Callable[[Screening], Coroutine[Any, Any, None]]) -> None:
    """Do `work` with the screening of one item."""

    async def begin() -> None:
        with EventLog(folder / "events.jsonl") as events:
            screener = Screener(workers, POLICY, events)  # type: ignore[arg-type]
            await work(screener.screen(items(1)[0], ItemClock(60.0, 0.0, now=lambda: datetime.now(UTC))))

    asyncio.run(begin())


@pytest.mark.parametrize("ticks", range(6))
def test_an_item_that_is_cancelled_as_the_front_end_finishes_ends_there(tmp_path: Path, ticks: int) -> None:
    finish: list[asyncio.Future[Prepared]] = []

    async def prepare() -> Prepared:
        finish.append(asyncio.get_running_loop().create_future())
        return await finish[0]

    async def cancelled(screening: Screening) -> None:
        task = asyncio.create_task(screening)
        while not finish:
            await asyncio.sleep(0)
        finish[0].set_result(READY)
        for _ in range(ticks):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait({task}, timeout=5.0)
        assert task.cancelled()

    screened(tmp_path, Scripted(lambda _: prepare(), lambda _: asyncio.sleep(600, GOOD)), cancelled)


def test_the_end_of_an_engine_that_was_to_be_replaced_is_held_against_no_item(tmp_path: Path) -> None:
    asked: list[str] = []

    def ask(request_id: str) -> Completion:
        asked.append(request_id)
        if len(asked) <= DEATHS_BEFORE_ALONE + 2:
            raise EngineDied("the engine died: killed", planned=True)
        return GOOD

    async def answered(screening: Screening) -> None:
        outcome, history = await screening
        assert outcome.answer is not None and outcome.attempts == len(asked)
        assert history.deaths == 0 and len(set(asked)) == len(asked)

    screened(tmp_path, Scripted(lambda _: READY, ask), answered)
