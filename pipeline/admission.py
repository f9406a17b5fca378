"""How much may be under way: credits learned from what the engine really does. Time is handed in, no I/O.

An item is admitted only if the engine will have answered everything in flight, and one more, in a share of the
item's time. Two more budgets hold: prompts in the object store, and the host's free memory.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import chain, islice
from typing import Literal

HeldBy = Literal["paused", "items", "engine", "object store", "memory"]

_RECENT = 32
_FEWEST_COMPLETIONS = 8
_DECAY = 0.75
_SMALLEST_BYTES = 1 << 20
_MOST_SUFFIXES = 64
_FEWEST_OF_SUFFIX = 3


@dataclass(slots=True)
class _InFlight:
    """An item between admission and row; `tokens` and `prompt_bytes` are None until the front end is done."""

    tokens: int | None = None
    prompt_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class _Answered:
    """A completion: the busy seconds since the one before, its tokens, and how many were in the engine with it."""

    busy_s: float
    tokens: int
    together: int


class _Speed:
    """The engine's tokens a second, from completions and the time in which the engine had something to do."""

    def __init__(self, most_items: int) -> None:
        self._answered: deque[_Answered] = deque(maxlen=max(64, 4 * most_items))
        self._busy_s = 0.0
        self._since_s: float | None = None

    @property
    def known(self) -> bool:
        return bool(self._answered)

    def busy(self, now_s: float) -> None:
        """Count time as busy from now on, if it is not counted yet."""
        if self._since_s is None:
            self._since_s = now_s

    def idle(self, now_s: float) -> None:
        """Count no time from now on."""
        self._busy_s, self._since_s = self._open_s(now_s), None

    def forget(self) -> None:
        """Drop the time since the last answer."""
        self._busy_s = 0.0

    def answered(self, tokens: int, together: int, now_s: float) -> None:
        self._answered.append(_Answered(self._open_s(now_s), tokens, together))
        self._busy_s = 0.0
        if self._since_s is not None:
            self._since_s = now_s

    def tokens_per_s(self, now_s: float) -> float | None:
        """Return the lower of the speed over the last completions and that over a longer time, None at first.

        The last few tell a slow-down at once. The longer time holds two rounds of all that the engine works on
        together: items that end in the same moment would else look like an engine without limits. A wait for the
        next completion counts as its time as soon as it is long enough to make the engine slower.
        """
        if not self._answered:
            return None
        recent = tuple(islice(reversed(self._answered), _RECENT))
        usual_tokens = sum(entry.tokens for entry in recent) // len(recent)
        pending = _Answered(self._open_s(now_s), usual_tokens, 0)
        return min(
            _recent_speed(recent),
            _window_speed(reversed(self._answered)),
            _window_speed(chain((pending,), reversed(self._answered))),
        )

    def _open_s(self, now_s: float) -> float:
        return self._busy_s + (max(0.0, now_s - self._since_s) if self._since_s is not None else 0.0)


def _window_speed(newest_first: Iterable[_Answered]) -> float:
    """Return the tokens a second over two rounds of completions."""
    tokens, busy_s, count, together = 0, 0.0, 0, 0
    for entry in newest_first:
        together = max(together, entry.together)
        if count >= max(_FEWEST_COMPLETIONS, 2 * together):
            break
        tokens, busy_s, count = tokens + entry.tokens, busy_s + entry.busy_s, count + 1
    return tokens / busy_s if busy_s > 0 else float("inf")


def _recent_speed(newest_first: Iterable[_Answered]) -> float:
    """Return the tokens a second of the last few completions; each older one counts for a quarter less."""
    tokens, busy_s, weight = 0.0, 0.0, 1.0
    for entry in newest_first:
        tokens, busy_s, weight = tokens + weight * entry.tokens, busy_s + weight * entry.busy_s, weight * _DECAY
    return tokens / busy_s if busy_s > 0 else float("inf")


class Admission:
    """Credits for items: says whether one more may be started, and learns from those that end.

    `share` of `sla_s` is what the engine may need for everything in flight. `first_items` are admitted before the
    first answer; from then on each answer adds one more, so that the number at most doubles with every round, up
    to `most_items`. Prompts may take `store_bytes` of the object store, and `reserve_bytes` of the host's memory
    stay free. Times are seconds of one monotonic clock.

    The share bounds the mean item's time, not every one's: in an engine that works on many together, an item of
    several times the mean cost takes about as many times longer.
    """

    def __init__(
        self,
        *,
        sla_s: float,
        most_items: int,
        first_items: int,
        store_bytes: int,
        reserve_bytes: int,
        share: float = 0.5,
    ) -> None:
        self._engine_s = share * sla_s
        self._most_items = most_items
        self._items_cap = min(first_items, most_items)
        self._store_bytes = store_bytes
        self._reserve_bytes = reserve_bytes
        self._flying: dict[str, _InFlight] = {}
        self._lent: set[str] = set()
        self._costs: deque[int] = deque(maxlen=_RECENT)
        self._prompts_bytes: deque[int] = deque(maxlen=_RECENT)
        self._speed = _Speed(most_items)
        self._paused = False

    @property
    def in_flight(self) -> int:
        """How many items have a credit."""
        return len(self._flying)

    def held_by(self, available_bytes: int, now_s: float) -> HeldBy | None:
        """Return what holds the next item back, None if nothing does.

        With nothing in flight, nothing but a pause does: else a budget too small for one item would stop the run.
        """
        if self._paused:
            return "paused"
        over: dict[HeldBy, bool] = {
            "items": len(self._flying) >= self._items_cap,
            "engine": self._engine_s_needed(1, now_s) > self._engine_s,
            "object store": self._store_bytes_needed(1) > self._store_bytes,
            "memory": available_bytes < self._reserve_bytes,
        }
        return next((what for what, full in over.items() if full), None) if self._flying else None

    def admitted(self, item: str) -> None:
        """Give an item its credit, or one that it lent back; it keeps it until `finished`."""
        self._lent.discard(item)
        self._flying[item] = _InFlight()

    def lend(self, item: str) -> None:
        """Let others use the credit of an item that waits for the answer to another one.

        Should that not come, all such items need the engine: as many may have lent theirs as may be in flight.
        """
        if item in self._flying and len(self._lent) < self._most_items:
            del self._flying[item]
            self._lent.add(item)

    def known(self, item: str, tokens: int, prompt_bytes: int, now_s: float) -> None:
        """Note that an item goes to the engine now, and the engine tokens and store bytes it takes."""
        tokens = max(1, tokens)
        self._flying[item] = _InFlight(tokens, prompt_bytes)
        self._costs.append(tokens)
        self._prompts_bytes.append(prompt_bytes)
        if not self._paused:
            self._speed.busy(now_s)

    def finished(self, item: str, now_s: float, answered: bool = True) -> None:
        """Take an item's credit back. `answered` is False if the engine gave no answer; its time counts all the same.

        An item that never came to the engine teaches nothing. One that is not in flight is no error.
        """
        self._lent.discard(item)
        together = self._in_engine()
        was_full = 2 * len(self._flying) >= self._items_cap
        ended = self._flying.pop(item, None)
        if ended is None:
            return
        if ended.tokens is not None and answered:
            self._speed.answered(ended.tokens, together, now_s)
        if not self._in_engine():
            self._speed.idle(now_s)
        # Room that was not used is no sign that more would fit.
        if was_full and self._speed.known:
            self._items_cap = min(self._most_items, self._items_cap + 1)

    def pause(self, now_s: float) -> None:
        """Admit nothing until `resume`; for an engine that is started anew. The time counts for no speed, nor does
        that since the last answer: it was the dying engine's."""
        self._paused = True
        self._speed.idle(now_s)
        self._speed.forget()

    def resume(self, now_s: float) -> None:
        """Admit again."""
        self._paused = False
        if self._in_engine():
            self._speed.busy(now_s)

    def engine_tokens_per_s(self, now_s: float) -> float | None:
        """Return the learned speed of the engine, None before its first answer."""
        return self._speed.tokens_per_s(now_s)

    def expected_wait_s(self, now_s: float, apart_from: str | None = None) -> float | None:
        """Return the seconds of engine work in flight, without one item's own; None before the first answer.

        What the engine has done of the items it works on is not taken off, so this is rather too long.
        """
        if not self._speed.known:
            return None
        return self._engine_s_needed(0, now_s, apart_from)

    def _in_engine(self) -> int:
        return sum(entry.tokens is not None for entry in self._flying.values())

    def _engine_s_needed(self, more: int, now_s: float, apart_from: str | None = None) -> float:
        """Return the seconds of engine work in flight and in some items more of the mean cost; 0 if unknown."""
        speed = self._speed.tokens_per_s(now_s)
        if speed is None:
            return 0.0
        mean = statistics.fmean(self._costs)
        costs = [entry.tokens for name, entry in self._flying.items() if name != apart_from]
        return (more * mean + sum(mean if tokens is None else tokens for tokens in costs)) / speed

    def _store_bytes_needed(self, more: int) -> int:
        """Return the bytes of the prompts in flight; each that is not made yet counts as the largest recent one."""
        largest = max(self._prompts_bytes, default=0)
        sizes = [entry.prompt_bytes for entry in self._flying.values()]
        return more * largest + sum(largest if size is None else size for size in sizes)


class Lanes:
    """Keeps a worker free for short recordings: long ones may not take all of them.

    A recording is long if its bytes foretell more than `long_s` seconds in the front end, by what recent ones of
    its suffix took. One that took longer than foretold was let in as short and is not counted.
    """

    def __init__(self, workers: int, long_s: float = 5.0, first_s_per_byte: float = 1e-7) -> None:
        self._workers = workers
        self._long_s = long_s
        self._first_s_per_byte = first_s_per_byte
        self._overall: deque[float] = deque(maxlen=_RECENT)
        self._by_suffix: dict[str, deque[float]] = {}
        self._started: dict[str, tuple[int, str, bool]] = {}

    @property
    def long_running(self) -> int:
        """How many recordings foretold to be long are in the front end."""
        return sum(long for _, _, long in self._started.values())

    def predicted_s(self, size_bytes: int, suffix: str) -> float:
        """Return the seconds that a file of this size and suffix will take: the median of recent ones, by size."""
        recent = self._by_suffix.get(suffix.lower(), ())
        if len(recent) < _FEWEST_OF_SUFFIX:
            recent = self._overall
        s_per_byte = statistics.median(recent) if recent else self._first_s_per_byte
        return s_per_byte * _counted_bytes(size_bytes)

    def may_start(self, size_bytes: int, suffix: str) -> bool:
        """Return whether a free worker may take the file, or is kept for short ones."""
        if self._workers <= 1 or self.predicted_s(size_bytes, suffix) <= self._long_s:
            return True
        return self.long_running < self._workers - 1

    def started(self, item: str, size_bytes: int, suffix: str) -> None:
        """Note that a worker has taken a file."""
        self._started[item] = size_bytes, suffix, self.predicted_s(size_bytes, suffix) > self._long_s

    def finished(self, item: str, spent_s: float) -> None:
        """Note that the front end is done with a file after so many seconds, and learn from it."""
        if item not in self._started:
            return
        size_bytes, suffix, _ = self._started.pop(item)
        s_per_byte = spent_s / _counted_bytes(size_bytes)
        self._overall.append(s_per_byte)
        # File names come from outside: not every suffix gets a list of its own.
        if suffix.lower() in self._by_suffix or len(self._by_suffix) < _MOST_SUFFIXES:
            self._by_suffix.setdefault(suffix.lower(), deque(maxlen=_RECENT)).append(s_per_byte)

    def dropped(self, item: str) -> None:
        """Note that a file has left the front end in a way that teaches nothing; one that is not there is no error."""
        self._started.pop(item, None)


def _counted_bytes(size_bytes: int) -> int:
    """Return the bytes to reckon with: small files take as long as their overhead, whatever their size."""
    return max(size_bytes, _SMALLEST_BYTES)
