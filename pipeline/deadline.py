"""An item's clock: how much of its time is left, and where the time of a late one went. Injected time, no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields
from datetime import datetime

from pipeline.records import Phases

PHASES = tuple(field.name.removesuffix("_s") for field in fields(Phases))
"""The phases of an item in their order; `records.Phases` holds the seconds of each as `<phase>_s`."""
LEAST_BUDGET_S = 1.0
"""An item has at least this long, however large the margin is."""


class ItemClock:
    """One item's time: it starts when its bytes are first pulled and ends early enough to write the row.

    `margin_s` of `sla_s` is kept back for building and committing the row. `monotonic` gives seconds, `now` the
    time of day that goes into the row.
    """

    def __init__(
        self,
        sla_s: float,
        margin_s: float,
        *,
        now: Callable[[], datetime],
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._budget_s = max(LEAST_BUDGET_S, sla_s - margin_s)
        self._monotonic = monotonic
        self._now = now
        self._started: float | None = None
        self.admitted_at = now()

    def start(self) -> None:
        """Start and stamp `admitted_at`, unless an earlier attempt has."""
        if self._started is None:
            self._started, self.admitted_at = self._monotonic(), self._now()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the start, 0 before it."""
        return 0.0 if self._started is None else self._monotonic() - self._started

    def left_s(self) -> float:
        """Return the seconds left for the item, never below 0; all of them before the start."""
        return max(0.0, self._budget_s - self.elapsed_s)


def where_time_went(phases: Phases, total_s: float) -> str:
    """Return a sentence's worth on which phase took longest: `60 s were over: 41 s of them in decode`.

    `total_s` is the item's whole time; where the phases explain less than half of it, the rest is named, too.
    """
    spent_s = {phase: getattr(phases, f"{phase}_s") or 0.0 for phase in PHASES}
    parts = []
    longest = max(spent_s, key=lambda phase: spent_s[phase])
    if spent_s[longest] > 0:
        parts.append(f"{seconds(spent_s[longest])} of them in {longest}")
    unaccounted_s = total_s - sum(spent_s.values())
    if unaccounted_s > total_s / 2:
        parts.append(f"{seconds(unaccounted_s)} unaccounted for")
    over = f"{seconds(total_s)} were over"
    return f"{over}: {', '.join(parts)}" if parts else over


def seconds(value_s: float) -> str:
    """Return seconds for a person: whole ones from 10 on, else tenths."""
    return f"{value_s:.0f} s" if value_s >= 10 else f"{value_s:.1f} s"
