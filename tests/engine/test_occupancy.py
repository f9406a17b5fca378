"""Occupancy: the share of the engine's time with a full batch, or with nothing left to come."""

from __future__ import annotations

import pytest

from pipeline.engine.occupancy import Occupancy, OccupancyMeter


def test_time_counts_from_the_first_request_of_the_screening_to_the_last_answer() -> None:
    meter = OccupancyMeter(seats=2)
    meter.taken(1.0)  # the warm-up
    meter.answered(5.0)
    meter.more_to_come(True, 6.0)
    assert meter.account() == Occupancy(seats=2)
    meter.taken(10.0)
    meter.taken(11.0)
    meter.answered(14.0)
    meter.answered(15.0)
    assert meter.account() == Occupancy(2, span_s=5.0, full_s=3.0, tail_s=0.0, seat_s=8.0, answers=2, full_answers=1)
    meter.more_to_come(False, 15.0)
    assert meter.account().span_s == 5.0


def test_seats_that_stay_empty_while_more_is_to_come_are_lost_and_later_they_are_the_tail() -> None:
    meter = OccupancyMeter(seats=4)
    meter.more_to_come(True, 0.0)
    meter.taken(0.0)
    meter.answered(2.0)
    meter.taken(5.0)  # three seconds without any request
    meter.more_to_come(False, 6.0)
    meter.answered(10.0)
    account = meter.account()
    assert (account.span_s, account.full_s, account.tail_s) == (10.0, 0.0, 4.0)
    assert account.seat_s == pytest.approx(7.0)


def test_requests_beyond_the_seats_wait_and_a_dropped_one_is_no_answer() -> None:
    meter = OccupancyMeter(seats=1)
    meter.more_to_come(True, 0.0)
    for _ in range(3):
        meter.taken(0.0)
    meter.dropped(1.0)
    meter.answered(2.0)
    meter.answered(3.0)
    assert meter.account() == Occupancy(1, span_s=3.0, full_s=3.0, seat_s=3.0, answers=2, full_answers=2)


def test_a_second_engine_goes_on_with_the_first_ones_account() -> None:
    first, second = Occupancy(8, 10.0, 5.0, 0.0, 60.0, 7, 5), Occupancy(8, 2.0, 1.0, 1.0, 12.0, 3, 2)
    assert first.plus(second) == Occupancy(8, 12.0, 6.0, 1.0, 72.0, 10, 7)
    assert first.plus(Occupancy()) == first
