"""Credits in virtual time: nothing comes too late once the engine is known, and the engine is kept busy."""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.admission import Admission, HeldBy, Lanes

SLA_S = 60.0
FREE = 1 << 40
TOKENS = 1_000


def admission(**changes: float) -> Admission:
    limits = {
        "sla_s": SLA_S,
        "most_items": 256,
        "first_items": 4,
        "store_bytes": FREE,
        "reserve_bytes": 0,
        **changes,
    }
    return Admission(**limits)  # type: ignore[arg-type]


@dataclass
class Simulated:
    """An item's times in seconds."""

    admitted_s: float
    tokens: int
    left: float
    asked_s: float = 0.0
    done_s: float = 0.0


@dataclass
class World:
    """Items without end, a front end that takes `front_end_s` each, and an engine with `slots`.

    A `parallel` engine gives each item its share of the speed, however few there are; another gives all of its
    speed to those it has. `seconds_each(t)` is what an item of 1000 tokens takes of a full engine from `t` on.
    """

    credits: Admission
    seconds_each: Callable[[float], float]
    slots: int
    parallel: bool
    front_end_s: float
    seed: int
    spread: float = 0.5
    now_s: float = 0.0
    items: list[Simulated] = field(default_factory=list)
    front_end: list[tuple[float, int]] = field(default_factory=list)
    waiting: deque[int] = field(default_factory=deque)
    active: list[int] = field(default_factory=list)
    completions: list[float] = field(default_factory=list)
    most_over: int = -1_000
    """Highest number in flight, less the completions so far."""

    def run(self, until_s: float) -> World:
        chance = random.Random(self.seed)
        while self.now_s < until_s:
            while self.credits.held_by(FREE, self.now_s) is None:
                tokens = round(TOKENS * chance.uniform(1 - self.spread, 1 + self.spread))
                name = len(self.items)
                self.items.append(Simulated(self.now_s, tokens, float(tokens)))
                self.credits.admitted(str(name))
                heapq.heappush(self.front_end, (self.now_s + self.front_end_s, name))
                self.most_over = max(self.most_over, self.credits.in_flight - len(self.completions))
            self.step()
        return self

    def step(self) -> None:
        """Go on to the next event, half a second at most: a change of speed is no event."""
        speed = TOKENS / self.seconds_each(self.now_s)
        rate = speed / (self.slots if self.parallel else max(1, len(self.active)))
        next_s = self.now_s + min([0.5, *(self.items[name].left / rate for name in self.active)])
        if self.front_end:
            next_s = min(next_s, self.front_end[0][0])
        for name in self.active:
            self.items[name].left -= rate * (next_s - self.now_s)
        self.now_s = next_s
        while self.front_end and self.front_end[0][0] <= next_s:
            name = heapq.heappop(self.front_end)[1]
            self.items[name].asked_s = next_s
            self.credits.known(str(name), self.items[name].tokens, 0, next_s)
            self.waiting.append(name)
        for name in [name for name in self.active if self.items[name].left < 1e-6]:
            self.active.remove(name)
            self.items[name].done_s = next_s
            self.completions.append(next_s)
            self.credits.finished(str(name), next_s)
        while self.waiting and len(self.active) < self.slots:
            self.active.append(self.waiting.popleft())

    def utilisation(self, start_s: float) -> float:
        """Return the share of a full engine's tokens that was done from a time on."""
        done = sum(item.tokens for item in self.items if item.done_s >= start_s)
        return done * self.seconds_each(self.now_s) / TOKENS / (self.now_s - start_s)

    def longest_s(self, admitted_from_s: float) -> float:
        """Return the longest time from admission to the answer, or to now, of items admitted later than that."""
        chosen = [item for item in self.items if item.admitted_s >= admitted_from_s]
        return max((item.done_s or self.now_s) - item.admitted_s for item in chosen)


ENGINES = [(1, False), (4, False), (8, False), (8, True)]


@pytest.mark.parametrize(("slots", "parallel"), ENGINES)
@settings(max_examples=3, deadline=None)
@given(seconds_each=st.floats(0.2, 1.5), front_end_s=st.floats(0.05, 4.0), seed=st.integers(0, 9_999))
def test_a_steady_engine_is_kept_busy_and_answers_in_time(
    slots: int, parallel: bool, seconds_each: float, front_end_s: float, seed: int
) -> None:
    world = World(admission(), lambda _: seconds_each, slots, parallel, front_end_s, seed).run(150.0)
    learned_s = world.completions[8]
    assert world.longest_s(learned_s) <= SLA_S
    assert world.utilisation(75.0) >= 0.9
    assert world.most_over <= 4  # so many before the first answer, one more for each answer


@pytest.mark.parametrize(("slots", "parallel"), ENGINES)
@pytest.mark.parametrize("seconds_each", [0.2, 0.7])
def test_a_slow_down_to_a_quarter_is_survived(slots: int, parallel: bool, seconds_each: float) -> None:
    slows_s = 80.0
    world = World(admission(), lambda t: seconds_each * (1 if t < slows_s else 4), slots, parallel, 1.0, seed=7)
    world.run(slows_s)
    before = len(world.completions)
    world.run(slows_s + 220.0)
    noticed_s = world.completions[before + 8 + slots]
    assert world.longest_s(noticed_s) <= SLA_S
    assert world.utilisation(slows_s + 120.0) >= 0.9


def test_an_engine_that_gets_faster_gets_more() -> None:
    world = World(admission(), lambda t: 2.0 if t < 60 else 0.5, 4, False, 1.0, seed=1).run(180.0)
    assert world.utilisation(110.0) >= 0.9 and world.longest_s(60.0) <= SLA_S


def test_idle_time_is_no_slowness() -> None:
    credits, now_s = admission(), 0.0
    for number in range(20):
        credits.admitted(str(number))
        credits.known(str(number), 100, 0, now_s)
        now_s += 0.5
        credits.finished(str(number), now_s)
        now_s += 1_000
    assert credits.engine_tokens_per_s(now_s) == pytest.approx(200)


def test_items_that_end_together_are_no_endless_speed() -> None:
    credits = admission(most_items=64, first_items=64)
    for number in range(64):
        credits.admitted(str(number))
        credits.known(str(number), 100, 0, 0.0)
    for number in range(64):
        credits.finished(str(number), 10.0)
    assert credits.engine_tokens_per_s(10.0) == pytest.approx(640)


def three_answered(**changes: float) -> Admission:
    """Return credits that know an engine of 100 tokens a second, with items of 500 tokens and 10 bytes, none left."""
    credits = admission(**{"first_items": 8, **changes})
    for number in range(3):
        credits.admitted(str(number))
        credits.known(str(number), 500, 10, number * 5.0)
        credits.finished(str(number), number * 5.0 + 5.0)
    return credits


@pytest.mark.parametrize(
    ("changes", "in_flight", "available_bytes", "held"),
    [
        ({}, 5, FREE, None),
        ({}, 6, FREE, "engine"),
        ({"share": 0.25}, 3, FREE, "engine"),
        ({"most_items": 2}, 2, FREE, "items"),
        ({"store_bytes": 30}, 2, FREE, None),
        ({"store_bytes": 29}, 2, FREE, "object store"),
        ({"reserve_bytes": 100}, 1, 100, None),
        ({"reserve_bytes": 100}, 1, 99, "memory"),
        ({"reserve_bytes": 100, "store_bytes": 0, "share": 0.0, "most_items": 1}, 0, 0, None),
    ],
)
def test_what_holds_the_next_item_back(
    changes: dict[str, float], in_flight: int, available_bytes: int, held: HeldBy | None
) -> None:
    credits = three_answered(**changes)
    for number in range(in_flight):
        credits.admitted(f"more {number}")
    assert credits.held_by(available_bytes, 15.0) == held


def test_before_the_first_answer_only_the_first_items_go_in() -> None:
    credits = admission(first_items=2)
    credits.admitted("one")
    assert credits.held_by(FREE, 0.0) is None and credits.expected_wait_s(0.0) is None
    credits.admitted("two")
    assert credits.held_by(FREE, 0.0) == "items"
    credits.finished("two", 1.0)  # never came to the engine: nothing was learned
    credits.admitted("three")
    assert credits.held_by(FREE, 1.0) == "items" and credits.engine_tokens_per_s(1.0) is None


def test_known_costs_take_the_place_of_the_mean() -> None:
    credits = three_answered()
    credits.admitted("a")
    assert credits.expected_wait_s(15.0) == pytest.approx(5.0)
    credits.known("a", 2_000, 10, 15.0)
    credits.admitted("b")
    assert credits.expected_wait_s(15.0, apart_from="b") == pytest.approx(20.0)


def test_a_stalled_engine_counts_as_slower_before_it_answers() -> None:
    credits = three_answered()
    credits.admitted("a")
    credits.known("a", 500, 10, 15.0)
    assert credits.engine_tokens_per_s(20.0) == pytest.approx(100)
    assert (credits.engine_tokens_per_s(75.0) or 0) < 30


def test_a_pause_admits_nothing_and_is_no_slowness() -> None:
    credits = three_answered()
    credits.pause(15.0)
    assert credits.held_by(FREE, 15.0) == "paused"
    credits.resume(500.0)
    credits.admitted("a")
    credits.known("a", 500, 10, 500.0)
    credits.pause(502.0)
    credits.resume(900.0)
    # The two seconds before the pause were the old engine's, and led to nothing.
    credits.finished("a", 905.0)
    assert credits.engine_tokens_per_s(905.0) == pytest.approx(100) and credits.held_by(FREE, 905.0) is None


def test_an_item_without_an_answer_gives_its_credit_back_but_no_speed() -> None:
    credits = three_answered()
    credits.admitted("a")
    credits.known("a", 500, 10, 15.0)
    credits.finished("a", 20.0, answered=False)
    credits.finished("a", 20.0)
    assert credits.in_flight == 0 and (credits.engine_tokens_per_s(20.0) or 0) <= 100


def test_who_waits_for_another_ones_answer_lends_its_credit_and_no_more_do_than_may_be_in_flight() -> None:
    credits = admission(first_items=2, most_items=3)
    for name in "ab":
        credits.admitted(name)
    assert credits.held_by(FREE, 0.0) == "items"
    credits.lend("b")
    assert credits.held_by(FREE, 0.0) is None and credits.in_flight == 1
    credits.admitted("c")
    credits.admitted("b")
    assert credits.in_flight == 3 and credits.held_by(FREE, 0.0) == "items"
    for name in "bc":
        credits.lend(name)
        credits.lend(name)
    credits.admitted("d")
    credits.lend("d")
    credits.lend("a")  # one too many: it keeps its credit
    assert credits.in_flight == 1
    for name in "abcd":
        credits.finished(name, 1.0)
    assert credits.in_flight == 0
    for name in "efg":
        credits.admitted(name)
        credits.lend(name)
    assert credits.in_flight == 0


MIB = 1 << 20


def lanes(workers: int = 3) -> Lanes:
    """Return lanes that have seen 0.1 s a MiB for MP4, and 1 s a MiB for MKV."""
    seen = Lanes(workers)
    for number in range(3):
        for suffix, spent_s in ((".mp4", 1.0), (".mkv", 10.0)):
            seen.started(f"{suffix} {number}", 10 * MIB, suffix)
            seen.finished(f"{suffix} {number}", spent_s)
    return seen


@pytest.mark.parametrize(
    ("workers", "long_running", "may"),
    [(1, 0, True), (1, 1, True), (2, 0, True), (2, 1, False), (3, 1, True), (3, 2, False)],
)
def test_long_recordings_leave_a_worker_to_short_ones(workers: int, long_running: int, may: bool) -> None:
    full = lanes(workers)
    for number in range(long_running):
        full.started(f"long {number}", 500 * MIB, ".mp4")
    assert full.may_start(500 * MIB, ".mp4") == may and full.may_start(10 * MIB, ".mp4")
    if long_running:
        full.finished("long 0", 50.0)
        assert full.may_start(500 * MIB, ".mp4")


@pytest.mark.parametrize(
    ("size_bytes", "suffix", "wanted_s"),
    [(20 * MIB, ".mp4", 2.0), (20 * MIB, ".MKV", 20.0), (20 * MIB, ".new", 11.0), (0, ".mp4", 0.1)],
)
def test_seconds_follow_from_the_bytes_of_the_same_suffix(size_bytes: int, suffix: str, wanted_s: float) -> None:
    assert lanes().predicted_s(size_bytes, suffix) == pytest.approx(wanted_s)


def test_one_odd_file_changes_no_prediction_and_odd_names_take_no_room() -> None:
    seen = lanes()
    seen.started("odd", 10 * MIB, ".mp4")
    seen.finished("odd", 900.0)
    assert seen.predicted_s(10 * MIB, ".mp4") == pytest.approx(1.0)
    for number in range(200):
        seen.started("x", MIB, f".{number}")
        seen.finished("x", 1.0)
    seen.finished("never started", 1.0)
    assert len(seen._by_suffix) <= 64 and seen.predicted_s(MIB, ".199") == pytest.approx(1.0)
