"""What is known of one item in the front end so far, and the time it may still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from pipeline.errors import ItemError
from pipeline.records import Phases, Prepared

T = TypeVar("T")


class Work:
    """What is known of one item so far, and the time it may still take."""

    def __init__(self, budget_s: float, known: Prepared | None = None) -> None:
        self._ends_at = time.monotonic() + budget_s
        self._under_way: tuple[str, float] | None = None
        self.prepared = known or Prepared(phases=Phases())

    def timed(self, phase: str, step: Callable[[], T]) -> T:
        """Run one phase and note its seconds, also when it fails."""
        self._under_way = phase, time.monotonic()
        try:
            return step()
        finally:
            self.prepared, self._under_way = self.so_far(), None

    def so_far(self) -> Prepared:
        """Return what is known, with the seconds of the phase under way."""
        prepared, under_way = self.prepared, self._under_way
        if under_way is None:
            return prepared
        phase, started = under_way
        spent_s = (getattr(prepared.phases, phase) or 0.0) + time.monotonic() - started
        return replace(prepared, phases=replace(prepared.phases, **{phase: spent_s}))

    def learn(self, **facts: Any) -> None:
        self.prepared = replace(self.prepared, **facts)

    def failed(self, code: str, message: str) -> Prepared:
        return replace(self.prepared, error_code=code, error_message=message)

    def left_s(self) -> float:
        return self._ends_at - time.monotonic()

    def at_most(self, limit_s: float) -> float:
        """Return the shorter of a limit and the time left. Raises ItemError `deadline` if none is left."""
        left_s = self.left_s()
        if left_s <= 0:
            raise ItemError("deadline", "the item's time was over in the front end")
        return min(limit_s, left_s)
