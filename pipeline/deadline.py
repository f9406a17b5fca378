"""An item's clock: how much of its time is left, and in which phase the rest went. Injected time, no I/O."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime

from pipeline.records import Phases

PHASES = ("fetch", "probe", "plan", "decode", "render", "wait", "prefill", "generate", "parse", "commit")
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
        self._spent_s: dict[str, float] = {}
        self._phase: str | None = None
        self._entered = 0.0
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

    @property
    def over(self) -> bool:
        """Whether no time is left."""
        return self.left_s() <= 0

    def enter(self, phase: str) -> None:
        """Count time for a phase from now on, and for no other. Raises ValueError for a name not in PHASES."""
        if phase not in PHASES:
            raise ValueError(f"there is no phase {phase!r}")
        self.leave()
        self._phase, self._entered = phase, self._monotonic()

    def leave(self) -> None:
        """Count time for no phase from now on."""
        self._spent_s, self._phase = self.spent_s(), None

    def learn(self, phases: Phases) -> None:
        """Take over the seconds that another process measured, in place of what was counted for those phases."""
        known = {phase: getattr(phases, f"{phase}_s") for phase in PHASES}
        self._spent_s |= {phase: spent_s for phase, spent_s in known.items() if spent_s is not None}

    def spent_s(self) -> dict[str, float]:
        """Return the seconds of every phase the item came to, with the one under way."""
        spent_s = dict(self._spent_s)
        if self._phase is not None:
            spent_s[self._phase] = spent_s.get(self._phase, 0.0) + self._monotonic() - self._entered
        return spent_s

    def phases(self) -> Phases:
        """Return `spent_s` as a row has it."""
        return Phases(**{f"{phase}_s": spent_s for phase, spent_s in self.spent_s().items()})

    def longest(self) -> tuple[str, float] | None:
        """Return the phase that took longest and its seconds, None before the first phase."""
        return _longest(self.spent_s())


def where_time_went(phases: Phases, total_s: float) -> str:
    """Return a sentence's worth on which phase took longest: `60 s were over: 41 s of them in decode`.

    `total_s` is the item's whole time; where the phases explain less than half of it, the rest is named, too.
    """
    spent_s = {phase: getattr(phases, f"{phase}_s") or 0.0 for phase in PHASES}
    parts = []
    longest = _longest(spent_s)
    if longest is not None and longest[1] > 0:
        parts.append(f"{seconds(longest[1])} of them in {longest[0]}")
    unaccounted_s = total_s - sum(spent_s.values())
    if unaccounted_s > total_s / 2:
        parts.append(f"{seconds(unaccounted_s)} unaccounted for")
    over = f"{seconds(total_s)} were over"
    return f"{over}: {', '.join(parts)}" if parts else over


def seconds(value_s: float) -> str:
    """Return seconds for a person: whole ones from 10 on, else tenths."""
    return f"{value_s:.0f} s" if value_s >= 10 else f"{value_s:.1f} s"


def _longest(spent_s: dict[str, float]) -> tuple[str, float] | None:
    return max(spent_s.items(), key=lambda entry: entry[1], default=None)
