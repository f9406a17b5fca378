"""Quantiles within the error that is promised, whatever the durations."""

from __future__ import annotations

import math
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.histogram import QUANTILE_ERROR, Histogram


def filled(durations_s: list[float]) -> Histogram:
    histogram = Histogram()
    for duration_s in durations_s:
        histogram.add(duration_s)
    return histogram


@given(
    st.lists(st.floats(0, 900_000), min_size=1, max_size=200),
    st.sampled_from([0.0, 0.5, 0.95, 0.99, 1.0]),
)
def test_a_quantile_is_within_two_percent_or_one_millisecond_of_the_exact_one(
    durations_s: list[float], share: float
) -> None:
    exact_s = sorted(durations_s)[max(1, math.ceil(share * len(durations_s))) - 1]
    found_s = filled(durations_s).quantile_s(share)
    assert found_s is not None
    assert abs(found_s - exact_s) <= max(0.001, exact_s * QUANTILE_ERROR * 1.000001)
    assert QUANTILE_ERROR <= 0.02


def test_the_largest_duration_is_exact_and_no_quantile_exceeds_it() -> None:
    histogram = filled([1.0, 3.0, 2.0])
    assert histogram.max_s == 3.0
    assert histogram.quantile_s(1.0) == pytest.approx(3.0, rel=QUANTILE_ERROR)
    assert filled([5.0]).quantile_s(0.5) == pytest.approx(5.0, rel=QUANTILE_ERROR)
    assert (filled([5.0]).quantile_s(0.5) or 9.0) <= 5.0


def test_without_durations_there_is_no_quantile() -> None:
    assert Histogram().quantile_s(0.5) is None


def test_what_lies_beyond_the_bins_is_counted_all_the_same() -> None:
    histogram = filled([-1.0, 0.0, 1e9])
    assert histogram.count == 3
    assert (histogram.quantile_s(0.5) or 0.0) <= 0.0011
    assert (histogram.quantile_s(1.0) or 0.0) > 900_000


def test_memory_does_not_grow_with_the_number_of_durations() -> None:
    histogram = Histogram()
    before = sys.getsizeof(histogram._bins)
    for number in range(10_000):
        histogram.add(number / 7)
    assert sys.getsizeof(histogram._bins) == before
