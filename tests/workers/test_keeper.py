"""The keeper's laws with engines that a test ends at the very moment it wants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Generator
from pathlib import Path
from typing import Any

import pytest
from ray.exceptions import RayActorError

from pipeline.engine.base import EngineStats
from pipeline.errors import EngineDied, EngineLost
from pipeline.events import EventLog
from pipeline.workers import keeper as keeper_module
from pipeline.workers.actors import Pulse
from pipeline.workers.keeper import EngineKeeper, Keeping
from tests.test_verdict import answer_tokens, choice, completion

GOOD = completion(answer_tokens([choice("pass", 0.9, review=0.1)]))
# More ticks of the event loop than any hand-over takes.
TICKS = 7
PATIENCE_S = 5.0


class Reference:
    """What a call gives: who gives up waiting for it does not end the call."""

    def __init__(self, result: asyncio.Future[Any]) -> None:
        self._result = result

    def __await__(self) -> Generator[Any, None, Any]:
        return asyncio.shield(self._result).__await__()


class Call:
    """A method of an actor."""

    def __init__(self, answer: Callable[..., asyncio.Future[Any]]) -> None:
        self.remote = lambda *arguments: Reference(answer(*arguments))


class Engine:
    """An engine's process: answers when it is told to, and ends when it is told to."""

    def __init__(self, warm: bool = True) -> None:
        self.warm_up: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.questions: dict[str, asyncio.Future[Any]] = {}
        self.resident_bytes = 1_000
        self.ended = False
        if warm:
            self.warm_up.set_result(GOOD)
        self.told: list[bool] = []
        self.more_to_come = Call(self._more_to_come)
        self.ask, self.pulse, self.abort = Call(self._ask), Call(self._pulse), Call(lambda _: self._future())

    def end(self) -> None:
        self.ended = True
        for question in self.questions.values():
            if not question.done():
                question.set_exception(RayActorError())

    def _future(self, result: Any = None) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        if self.ended:
            future.set_exception(RayActorError())
        elif result is not None:
            future.set_result(result)
        return future

    def _ask(self, request_id: str, prompt: Any, short: bool = False) -> asyncio.Future[Any]:
        if request_id == "warm-up":
            return self.warm_up
        return self.questions.setdefault(request_id, self._future())

    def _more_to_come(self, more: bool) -> asyncio.Future[Any]:
        self.told.append(more)
        return self._future()

    def _pulse(self) -> asyncio.Future[Any]:
        return self._future(Pulse(EngineStats(0.0, 0.0, 0.0, 0, 0, 0), self.resident_bytes))


class Place:
    """A keeper and the engines it has started; `next_is_warm` says whether the next one answers the warm-up at once."""

    def __init__(self, events: EventLog, max_restarts: int) -> None:
        self.engines: list[Engine] = []
        self.next_is_warm = True
        keeping = Keeping(stall_s=60.0, max_restarts=max_restarts, max_growth_bytes=100)
        self.keeper = EngineKeeper(self._make, keeping, events)

    def _make(self) -> Engine:
        self.engines.append(Engine(self.next_is_warm))
        return self.engines[-1]

    def ask(self, request_id: str) -> asyncio.Task[Any]:
        return asyncio.create_task(self.keeper.ask(request_id, None, 60.0))

    async def begin_recycling(self) -> None:
        """Let the engine grow too large and wait until no new question is given to it."""
        self.engines[-1].resident_bytes += 1_000
        await until(lambda: not self.keeper.is_up())


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not true():
            await asyncio.sleep(0)


def kept(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    law: Callable[[Place], Awaitable[None]],
    max_restarts: int = 0,
) -> list[dict[str, Any]]:
    """Try a law on a started keeper; return the journal."""
    monkeypatch.setattr(keeper_module, "_PULSE_EVERY_S", 0.01)
    monkeypatch.setattr(keeper_module, "_kill", Engine.end)

    async def work() -> None:
        with EventLog(folder / "events.jsonl") as events:
            place = Place(events, max_restarts)
            await place.keeper.start([None])
            # The first pulse, by which growth is measured.
            await asyncio.sleep(0.1)
            try:
                async with asyncio.timeout(PATIENCE_S):
                    await law(place)
            finally:
                place.keeper.close()

    asyncio.run(work())
    return [json.loads(line) for line in (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()]


def names(journal: list[dict[str, Any]]) -> list[str]:
    return [event["event"] for event in journal]


def test_a_planned_restart_lets_questions_finish_and_makes_new_ones_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def law(place: Place) -> None:
        before = place.ask("before-1")
        await until(lambda: "before-1" in place.engines[0].questions)
        await place.begin_recycling()
        during = place.ask("during-1")
        await asyncio.sleep(0.1)
        assert len(place.engines) == 1 and "during-1" not in place.engines[0].questions
        place.engines[0].questions["before-1"].set_result(GOOD)
        assert await before == GOOD
        await until(lambda: len(place.engines) == 2 and "during-1" in place.engines[1].questions)
        place.engines[1].questions["during-1"].set_result(GOOD)
        assert await during == GOOD

    assert names(kept(tmp_path, monkeypatch, law)) == ["engine_recycled", "engine_restarted"]


@pytest.mark.parametrize("dies", [True, False], ids=["dies meanwhile", "takes too long"])
def test_what_ends_a_planned_restart_early_counts_as_no_death(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dies: bool
) -> None:
    """With `max_restarts` 0 a single counted death would end the run."""
    monkeypatch.setattr(keeper_module, "_DRAIN_S", 60.0 if dies else 0.1)

    async def law(place: Place) -> None:
        question, waiting = place.ask("item-1"), None
        await until(lambda: "item-1" in place.engines[0].questions)
        await place.begin_recycling()
        waiting = place.ask("other-1")
        if dies:
            place.engines[0].end()
        with pytest.raises(EngineDied) as caught:
            await question
        assert caught.value.planned
        again = place.ask("item-2")
        await until(lambda: len(place.engines[-1].questions) == 2)
        for one in place.engines[-1].questions.values():
            one.set_result(GOOD)
        assert await again == await waiting == GOOD
        assert len(place.engines) == 2

    journal = kept(tmp_path, monkeypatch, law)
    assert [event["deaths_in_a_row"] for event in journal if event["event"] == "engine_died"] == [0] * dies
    assert names(journal)[-1] == "engine_restarted"


def test_a_death_after_a_planned_restart_counts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def law(place: Place) -> None:
        await place.begin_recycling()
        await until(place.keeper.is_up)
        question = place.ask("item-1")
        await until(lambda: "item-1" in place.engines[1].questions)
        place.engines[1].end()
        with pytest.raises(EngineDied) as caught:
            await question
        assert not caught.value.planned
        with pytest.raises(EngineLost, match="died 1 times in a row"):
            await place.keeper.ready()

    kept(tmp_path, monkeypatch, law)


async def waiting_for_the_second_engine(place: Place) -> asyncio.Task[Any]:
    """Return a question that waits for an engine which is being started."""
    place.next_is_warm = False
    await place.begin_recycling()
    await until(lambda: len(place.engines) == 2)
    waiting = place.ask("item-1")
    await asyncio.sleep(0.05)
    return waiting


@pytest.mark.parametrize("ticks", range(TICKS))
def test_a_question_that_is_cancelled_as_the_new_engine_comes_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticks: int
) -> None:
    async def law(place: Place) -> None:
        waiting = await waiting_for_the_second_engine(place)
        place.engines[1].warm_up.set_result(GOOD)
        for _ in range(ticks):
            await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait({waiting})
        assert waiting.cancelled()

    kept(tmp_path, monkeypatch, law)


@pytest.mark.parametrize("ticks", range(4))
def test_a_question_that_is_cancelled_as_its_answer_comes_is_cancelled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticks: int
) -> None:
    async def law(place: Place) -> None:
        question = place.ask("item-1")
        await until(lambda: "item-1" in place.engines[0].questions)
        place.engines[0].questions["item-1"].set_result(GOOD)
        for _ in range(ticks):
            await asyncio.sleep(0)
        in_time = question.cancel()
        await asyncio.wait({question})
        assert question.cancelled() == in_time

    kept(tmp_path, monkeypatch, law)


def test_an_engine_that_is_gone_before_a_waiting_question_gets_to_run_is_not_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def law(place: Place) -> None:
        place.next_is_warm = False
        await place.begin_recycling()
        waiting = place.ask("item-1")
        await until(lambda: len(place.engines) == 2)
        place.keeper._up.set()
        place.keeper._up.clear()
        await asyncio.sleep(0.1)
        assert not place.engines[0].questions and not place.engines[1].questions
        place.engines[1].warm_up.set_result(GOOD)
        await until(lambda: "item-1" in place.engines[1].questions)
        place.engines[1].questions["item-1"].set_result(GOOD)
        assert await waiting == GOOD and len(place.engines) == 2

    kept(tmp_path, monkeypatch, law)


@pytest.mark.parametrize("ticks", range(TICKS))
def test_nothing_is_started_and_nobody_waits_once_the_run_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ticks: int
) -> None:
    """As it ends, the engine that is being started fails, as it does when Ray is shut down."""

    async def law(place: Place) -> None:
        waiting = await waiting_for_the_second_engine(place)
        place.keeper.close()
        place.engines[1].warm_up.set_exception(RayActorError())
        for _ in range(ticks):
            await asyncio.sleep(0)
        with pytest.raises(EngineLost, match="the run ends"):
            await waiting
        await asyncio.sleep(0.05)
        assert len(place.engines) == 2

    assert names(kept(tmp_path, monkeypatch, law)) == ["engine_recycled"]


def test_every_engine_hears_whether_more_is_to_come_the_next_one_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def law(place: Place) -> None:
        place.keeper.more_to_come(True)
        await place.begin_recycling()
        place.keeper.more_to_come(False)  # between two engines
        await until(lambda: len(place.engines) == 2 and place.keeper.is_up())
        assert [engine.told for engine in place.engines] == [[True], [False]]

    kept(tmp_path, monkeypatch, law)
