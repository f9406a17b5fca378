"""Quantiles of any number of durations in fixed memory. Pure."""

from __future__ import annotations

import math
from array import array

_LEAST_S = 5e-4
_GROWTH = 1.04
_BINS = 546
QUANTILE_ERROR = math.sqrt(_GROWTH) - 1
"""Largest relative error of a quantile, 2 %."""


class Histogram:
    """Counts durations in 546 bins up to 11 days, each 4 % wider than the one before.

    A quantile is the middle of its bin: at most 2 % off, or 1 ms for durations below that. `max_s` is exact,
    unless it was taken back.
    """

    def __init__(self) -> None:
        self._bins = array("Q", bytes(8 * _BINS))
        self.count = 0
        self.max_s = 0.0

    def add(self, duration_s: float) -> None:
        """Count one duration; what is below zero counts as zero."""
        self._bins[_bin_of(duration_s)] += 1
        self.count += 1
        self.max_s = max(self.max_s, duration_s)

    def remove(self, duration_s: float) -> None:
        """Take back one duration that was counted; `max_s` stays."""
        self._bins[_bin_of(duration_s)] -= 1
        self.count -= 1

    def quantile_s(self, share: float) -> float | None:
        """Return the least duration that at least `share` (0..1) of all do not exceed, None without any."""
        rank, seen = max(1, math.ceil(share * self.count)), 0
        for place, count in enumerate(self._bins):
            seen += count
            if seen >= rank:
                return min(self.max_s, _LEAST_S * math.pow(_GROWTH, place + 0.5))
        return None


def _bin_of(duration_s: float) -> int:
    if duration_s <= _LEAST_S:
        return 0
    return min(_BINS - 1, int(math.log(duration_s / _LEAST_S) / math.log(_GROWTH)))
