"""The item's clock: it starts once, keeps time for the row back; and where the time of a late item went."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from pipeline.deadline import ItemClock, where_time_went
from pipeline.records import Phases

MIDNIGHT = datetime(2024, 1, 1, tzinfo=UTC)


class Time:
    """Both clocks, moved by hand."""

    def __init__(self) -> None:
        self.s = 100.0

    def monotonic(self) -> float:
        return self.s

    def now(self) -> datetime:
        return MIDNIGHT + timedelta(seconds=self.s)


def a_clock(sla_s: float = 60.0, margin_s: float = 3.0) -> tuple[ItemClock, Time]:
    moved = Time()
    return ItemClock(sla_s, margin_s, now=moved.now, monotonic=moved.monotonic), moved


def test_waiting_for_a_worker_costs_nothing_and_a_second_attempt_gets_no_new_time() -> None:
    clock, moved = a_clock()
    moved.s += 500
    assert clock.left_s() == 57 and clock.elapsed_s == 0
    clock.start()
    moved.s += 20
    clock.start()
    assert clock.left_s() == 37 and clock.elapsed_s == 20
    assert clock.admitted_at == MIDNIGHT + timedelta(seconds=600)


@pytest.mark.parametrize(
    ("sla_s", "margin_s", "elapsed_s", "left_s"),
    [(60, 3, 0, 57), (60, 3, 57, 0), (60, 3, 1000, 0), (2, 3, 0, 1), (2, 3, 0.25, 0.75), (2, 3, 1, 0)],
)
def test_time_left_keeps_the_margin_back_and_ends_at_nothing(
    sla_s: float, margin_s: float, elapsed_s: float, left_s: float
) -> None:
    clock, moved = a_clock(sla_s, margin_s)
    clock.start()
    moved.s += elapsed_s
    assert clock.left_s() == left_s


def test_a_row_built_before_the_start_has_its_time_of_admission() -> None:
    assert a_clock()[0].admitted_at == MIDNIGHT + timedelta(seconds=100)


@pytest.mark.parametrize(
    ("phases", "total_s", "said"),
    [
        (Phases(decode_s=41.2, fetch_s=3.0), 60.0, "60 s were over: 41 s of them in decode"),
        (Phases(decode_s=5.24), 60.0, "60 s were over: 5.2 s of them in decode, 55 s unaccounted for"),
        (Phases(render_s=20.0, wait_s=10.0), 60.0, "60 s were over: 20 s of them in render"),
        (Phases(), 60.0, "60 s were over: 60 s unaccounted for"),
        (Phases(fetch_s=0.0), 0.0, "0.0 s were over"),
    ],
)
def test_a_deadline_says_where_the_time_went(phases: Phases, total_s: float, said: str) -> None:
    assert where_time_went(phases, total_s) == said
