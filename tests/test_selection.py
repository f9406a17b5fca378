"""Shards part a source without loss or overlap, alike in every run, and wrong options are refused in one line."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.errors import JobError
from pipeline.selection import EVERYTHING, Selection, Shard, parse_selection


def shard_with_one_of(first: str, second: str) -> Shard:
    """Return a shard that holds the first item and not the second."""
    shards = (Shard(number, count) for count in range(2, 30) for number in range(1, count + 1))
    return next(shard for shard in shards if shard.takes(first) and not shard.takes(second))


@given(st.text(max_size=40), st.integers(1, 50))
def test_every_item_is_in_exactly_one_shard(item_id: str, count: int) -> None:
    taking = [number for number in range(1, count + 1) if Shard(number, count).takes(item_id)]
    assert len(taking) == 1


def test_an_item_stays_in_its_shard_for_ever() -> None:
    """These numbers may never change: machines with other versions share a source, and outputs outlive them."""
    ids = ("call-17", "0123456789abcdef0123456789abcdef", "警", "a", "b.wav")
    numbers = [next(n for n in range(1, 6) if Shard(n, 5).takes(item_id)) for item_id in ids]
    assert numbers == [3, 1, 1, 3, 1]


@pytest.mark.parametrize("form", ["call-{:d}", "{:032x}", "{:x}" + "0" * 24])
def test_shards_are_about_equal_whatever_the_ids_look_like(form: str) -> None:
    ids = [form.format(number) for number in range(0x10000000, 0x10000000 + 4000)]
    sizes = Counter(number for item_id in ids for number in range(1, 9) if Shard(number, 8).takes(item_id))
    assert len(sizes) == 8
    assert all(400 <= size <= 600 for size in sizes.values()), sizes


def test_without_options_everything_is_taken_and_retryable_errors_are_tried_again() -> None:
    assert parse_selection("errors", None) == EVERYTHING == Selection()
    assert EVERYTHING.takes("any") and EVERYTHING.facts() == {"retry": "errors", "shard": None}


def test_both_options_are_recorded() -> None:
    selection = parse_selection("all", "2/5")
    assert selection == Selection("all", Shard(2, 5))
    assert selection.facts() == {"retry": "all", "shard": "2/5"}


@pytest.mark.parametrize(
    "text", ["", "2", "0/2", "3/2", "1/0", "-1/2", "1/2/3", "a/b", "1.0/2", " 1/2", "1/2\n", "1/\u0662"]
)
def test_a_shard_that_is_none_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(JobError, match=r"--shard wants i/n with i from 1 to n, for instance 2/5"):
        parse_selection("errors", text)


def test_an_unknown_retry_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(JobError, match=r'--retry: there is no "error"; did you mean "errors"\?'):
        parse_selection("error", None)
    with pytest.raises(JobError, match="valid names: all, errors, none"):
        parse_selection("x", None)
