"""The pool of front-end workers."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from pipeline.errors import EngineLost, FrontEndsLost
from pipeline.events import EventLog
from pipeline.workers.front_ends import FrontEndPool


def test_a_pool_that_is_empty_says_that_front_ends_are_lost_and_not_the_engine(tmp_path: Path) -> None:
    async def take() -> None:
        with EventLog(tmp_path / "events.jsonl") as events:
            async with FrontEndPool([], events).free():
                raise AssertionError("not reached")

    with pytest.raises(FrontEndsLost, match="no front-end worker is left") as caught:
        asyncio.run(take())
    assert caught.value.exit_code == 4 and not isinstance(caught.value, EngineLost)
