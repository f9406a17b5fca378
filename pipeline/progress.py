"""What a person sees while a run goes on: a live line on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from pipeline.deadline import PHASES
from pipeline.histogram import Histogram
from pipeline.ledger import is_good
from pipeline.row import VerdictRow

_PLAIN_EVERY_S = 10.0


# What a person should know of; to wait for the engine is the rule.
_TELLING = {
    "engine restart": "the engine is started anew",
    "memory": "held back: little memory is free",
    "object store": "held back: prompts fill the object store",
}


@dataclass
class Tally:
    """Counts of a run, kept by the driver; its size does not grow with the number of items.

    `spans` are seconds from an item's first byte to its readable row; `good_*` count only rows with an answer.
    """

    total: int | None = None
    skipped: int = 0
    gone: int = 0
    """Those of the skipped that keep a good row because their file is not to be found."""
    in_flight: int = 0
    statuses: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    phase_s: dict[str, float] = field(default_factory=dict)
    late: int = 0
    good_late: int = 0
    spans: Histogram = field(default_factory=Histogram)
    good_spans: Histogram = field(default_factory=Histogram)
    audio_tokens: int = 0
    video_tokens: int = 0
    held_by: str | None = None
    """What holds the next item back now."""
    held_s: dict[str, float] = field(default_factory=dict)
    """Seconds in which the next item was held back, by what: `engine`, `items`, `object store`, `memory`, …"""
    began: float | None = None
    """When screening began (monotonic seconds); the engine's start does not count into the rate."""

    @property
    def done(self) -> int:
        return self.statuses.total()

    def count(self, row: VerdictRow) -> None:
        """Take in a committed row."""
        self.statuses[row.status] += 1
        self.verdicts[row.verdict] += 1
        if row.reason is not None:
            self.reasons[row.reason] += 1
        self._time(row)
        if row.duplicate_of is None:  # else another row's
            self.audio_tokens += row.audio_tokens
            self.video_tokens += row.video_tokens
        for phase in PHASES:
            self.phase_s[phase] = self.phase_s.get(phase, 0.0) + (getattr(row, f"{phase}_s") or 0.0)

    def take_back(self, row: VerdictRow) -> None:
        """Count a row no more that another one has replaced; the time that went into it stays."""
        self.statuses[row.status] -= 1
        self.verdicts[row.verdict] -= 1
        if row.reason is not None:
            self.reasons[row.reason] -= 1
        self.late -= _late(row)
        self.spans.remove(_span_s(row))
        # Counts of nothing are not for people.
        self.statuses, self.verdicts, self.reasons = +self.statuses, +self.verdicts, +self.reasons

    def _time(self, row: VerdictRow) -> None:
        late, span_s = _late(row), _span_s(row)
        self.late += late
        self.spans.add(span_s)
        if is_good(row.status):
            self.good_late += late
            self.good_spans.add(span_s)

    def slowest_phase(self) -> str | None:
        """Return the phase that took most seconds over all items, None before any took time.

        Not `commit`: rows wait for the next commit by design.
        """
        worked = {phase: seconds for phase, seconds in self.phase_s.items() if seconds > 0 and phase != "commit"}
        return max(worked, key=lambda phase: worked[phase]) if worked else None


def _late(row: VerdictRow) -> bool:
    return row.status == "deadline" or not row.sla_met


def _span_s(row: VerdictRow) -> float:
    return (row.committed_at - row.admitted_at).total_seconds()


class Progress(Protocol):
    """Shows a tally while it changes."""

    def say(self, text: str) -> None:
        """Show a sentence that stays."""

    def show(self, table: Table) -> None:
        """Show a table that stays."""

    def update(self, tally: Tally) -> None:
        """Show the counts."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


def open_progress(console: Console) -> Progress:
    """Return the live line for a terminal, plain lines for files and cron."""
    return LiveProgress(console) if console.is_terminal else PlainProgress(console)


class PlainProgress:
    """Prints a line every ten seconds."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._last = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        self._console.print(table)

    def update(self, tally: Tally) -> None:
        now = time.monotonic()
        if now - self._last >= _PLAIN_EVERY_S:
            self._last = now
            self.say(describe(tally, now))


class LiveProgress:
    """Keeps one line up to date at the bottom of the terminal."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def show(self, table: Table) -> None:
        self._console.print(table)

    def update(self, tally: Tally) -> None:
        self._live.update(Text(describe(tally, time.monotonic())))


def describe(tally: Tally, now: float) -> str:
    """Return one line: done, rate, in flight, slowest phase, errors, time left; `now` is monotonic seconds."""
    elapsed_s = now - tally.began if tally.began is not None else 0.0
    rate = tally.done / elapsed_s if elapsed_s > 0 else 0.0
    errors = tally.statuses["error"] + tally.statuses["deadline"]
    parts = [
        f"{tally.done + tally.skipped}" + (f"/{tally.total}" if tally.total is not None else "") + " done",
        f"{rate:.2f} items/s",
        f"{tally.in_flight} in flight",
    ]
    slowest = tally.slowest_phase()
    if slowest is not None:
        parts.append(f"slowest phase {slowest}")
    parts.append(f"{errors} errors")
    if tally.held_by in _TELLING:
        parts.append(_TELLING[tally.held_by])
    if tally.total is not None and rate > 0:
        parts.append(f"{_clock((tally.total - tally.skipped - tally.done) / rate)} left")
    return " · ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"
