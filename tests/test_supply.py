"""Whether the front end fed the engine, and the cores that would have."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.supply import Supply, find_supply


def supply(full_s: float, tail_s: float = 0.0, cpu_s: float = 90.0, **account: Any) -> Supply:
    """Return that of an engine of 4 seats that answered 100 items in 10 s."""
    known = {"seats": 4, "span_s": 10.0, "full_s": full_s, "tail_s": tail_s, "seat_s": 20.0, "answers": 100}
    known |= {"full_answers": 0} | account
    found = find_supply({"engine_thread": {"occupancy": known}, "front_end_cpu": {"cpu_s": cpu_s, "items": 100}})
    assert found is not None
    return found


def test_a_batch_that_was_full_tells_the_engines_rate_and_the_cores_it_takes() -> None:
    found = supply(full_s=4.0, tail_s=1.0, full_answers=80)
    assert (found.occupancy, found.engine_items_per_s, found.extrapolated) == (0.5, 20.0, False)
    assert found.cpu_s_per_item == 0.9 and found.cores_needed == pytest.approx(18.0)
    assert found.starved_by(2) and found.starved_by(17) and not found.starved_by(18)
    assert found.sentence(2) == (
        "the engine had a full batch or nothing left to do 50 % of its time; keeping up with its 20 items/s at 0.9 CPU "
        "seconds an item in the front end takes 18.0 cores, here are 2"
    )


def test_where_the_batch_was_hardly_ever_full_its_rate_is_reckoned_from_the_seats_that_were_taken() -> None:
    found = supply(full_s=0.1, full_answers=3)
    assert found.extrapolated and found.engine_items_per_s == pytest.approx(4 * 100 / 20.0)
    assert "at most 20 items/s" in found.sentence(2)


def test_an_engine_that_was_fed_needs_no_more_cores_whatever_an_item_costs() -> None:
    found = supply(full_s=9.0, tail_s=0.6, full_answers=100)
    assert not found.starved_by(1) and "cores" not in found.sentence(1)


def test_what_other_work_on_the_machine_left_is_what_counts() -> None:
    """An item at 0.1 CPU seconds, 20 of them a second, need two cores; others took one of them."""
    account = {"seats": 4, "span_s": 10.0, "full_s": 4.0, "tail_s": 0.0, "seat_s": 30.0, "answers": 100}
    account |= {"full_answers": 80}
    costs = {"engine_thread": {"occupancy": account}, "front_end_cpu": {"cpu_s": 10.0, "items": 100}, "screen_s": 10.0}
    beside, quiet = find_supply(costs | {"idle_cpu_s": 2.0}), find_supply(costs | {"idle_cpu_s": 30.0})
    assert beside is not None and quiet is not None
    assert beside.cores_had == pytest.approx(1.2) and beside.starved_by(4) and not quiet.starved_by(4)
    assert beside.sentence(4).endswith("takes 2.0 cores, here are 4, of which it could have 1.2")


def test_what_is_not_known_is_not_claimed() -> None:
    assert find_supply({}) is None and find_supply({"engine_thread": {}}) is None
    nothing = {"seats": 4, "span_s": 0.0, "full_s": 0.0, "tail_s": 0.0, "seat_s": 0.0, "answers": 0, "full_answers": 0}
    assert find_supply({"engine_thread": {"occupancy": nothing}}) is None
    lost = find_supply({"engine_thread": {"occupancy": nothing | {"span_s": 3.0}}})
    assert lost is not None and lost.cores_needed is None and not lost.starved_by(1)
    assert lost.facts()["front_end_cores_needed"] is None and lost.sentence(2).endswith("0 % of its time")
