"""How full an engine's batch is while more is to come. Pure: time is handed in, one monotonic clock.

A batch is full when the engine holds as many requests as it has seats, or more: those beyond wait for one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How the time from a screening's first request to its last answer was used.

    `full_s` are seconds with a full batch, `tail_s` those without one when nothing more was to come, `span_s` all of
    them; `seat_s` are seconds of all seats together in which a request held one. `answers` came in that time,
    `full_answers` of them from a full batch.
    """

    seats: int = 0
    span_s: float = 0.0
    full_s: float = 0.0
    tail_s: float = 0.0
    seat_s: float = 0.0
    answers: int = 0
    full_answers: int = 0

    def plus(self, other: Occupancy) -> Occupancy:
        """Return the account of two engines, one after the other."""
        return Occupancy(
            seats=other.seats or self.seats,
            span_s=self.span_s + other.span_s,
            full_s=self.full_s + other.full_s,
            tail_s=self.tail_s + other.tail_s,
            seat_s=self.seat_s + other.seat_s,
            answers=self.answers + other.answers,
            full_answers=self.full_answers + other.full_answers,
        )


class OccupancyMeter:
    """Integrates an engine's occupancy at every request taken, answered or dropped; costs a microsecond each.

    Nothing is counted before `more_to_come(True)`: warm-up and known-answer clips are no screening.
    """

    def __init__(self, seats: int) -> None:
        self._seats = seats
        self._held = 0
        self._counting, self._more = False, True
        self._since_s: float | None = None
        self._span_s = self._full_s = self._tail_s = self._seat_s = 0.0
        self._answers = self._full_answers = 0

    def more_to_come(self, more: bool, now_s: float) -> None:
        """Note that a screening begins (True), or that everything of it has been admitted (False)."""
        self._count(now_s)
        self._counting, self._more = True, more
        if self._held and self._since_s is None:
            self._since_s = now_s

    def taken(self, now_s: float) -> None:
        """Note a request that the engine holds from now on."""
        self._count(now_s)
        self._held += 1
        if self._counting:
            self._since_s = now_s

    def answered(self, now_s: float) -> None:
        """Note an answer."""
        if self._counting:
            self._answers += 1
            self._full_answers += self._held >= self._seats
        self.dropped(now_s)

    def dropped(self, now_s: float) -> None:
        """Note a request that left without an answer."""
        self._count(now_s)
        self._held -= 1

    def account(self) -> Occupancy:
        """Return what was counted up to the last change."""
        return Occupancy(
            self._seats, self._span_s, self._full_s, self._tail_s, self._seat_s, self._answers, self._full_answers
        )

    def _count(self, now_s: float) -> None:
        """Count the time since the last change; a wait without any request counts when the next one has come."""
        if self._since_s is None:
            return
        spent_s, self._since_s = now_s - self._since_s, now_s
        self._span_s += spent_s
        self._seat_s += spent_s * min(self._held, self._seats)
        if self._held >= self._seats:
            self._full_s += spent_s
        elif not self._more:
            self._tail_s += spent_s
