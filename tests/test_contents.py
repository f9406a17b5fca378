"""Rows are found by the bytes they are about: only those that answer for them, and only by the whole digest."""

from __future__ import annotations

import hashlib
import os
import random
from pathlib import Path
from typing import Any

import pytest

from pipeline import contents
from pipeline.contents import Contents, KnownRows, may_be_taken_over
from pipeline.ledger import read_ledger
from pipeline.part import read_part, write_part
from pipeline.row import VerdictRow
from tests.test_ledger import a_row
from tests.test_ledger import write_part as write_rows
from tests.test_sink import make_row

MIRROR = {"verdict": "pass", "model_verdict": "pass", "media_kind": "av", "duplicate_of": None, "follows_row_id": None}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def known(item_id: str, content: str, **more: Any) -> dict[str, Any]:
    row = a_row(item_id, f"r-{item_id}", degraded=False, content_sha256=content, content_bytes=5)
    return row | MIRROR | more


def index_of(folder: Path, fingerprint: str = "f") -> Contents:
    found = read_ledger(folder, contents_of=fingerprint).contents
    assert found is not None
    return found


def found(folder: Path, content: str, fingerprint: str = "f") -> str | None:
    """Return whose row a run of this fingerprint finds for a content."""
    row = KnownRows(folder, fingerprint).find(content, index_of(folder, fingerprint).parts(content))
    return None if row is None else row.item_id


@pytest.mark.parametrize(
    ("more", "answers"),
    [
        ({}, True),
        ({"status": "gated"}, True),
        ({"status": "duplicate", "duplicate_of": "r-gone"}, True),
        ({"reason": "low_confidence"}, True),
        ({"degraded": True, "reason": "partial_coverage"}, True),
        ({"degraded": True, "reason": "reduced_look"}, False),
        ({"degraded": True, "reason": "partial_decode"}, False),
        ({"degraded": True, "reason": "tracks_ignored"}, False),
        ({"status": "error", "reason": "not_media"}, False),
        ({"status": "deadline", "reason": "deadline"}, False),
        ({"fingerprint": "g"}, False),
        ({"content_sha256": None, "content_bytes": None}, False),
    ],
)
def test_only_whole_answers_of_the_same_fingerprint_are_found(
    tmp_path: Path, more: dict[str, Any], answers: bool
) -> None:
    content = digest("a")
    write_rows(tmp_path, "part-1.parquet", known("a", content, **more))
    index = index_of(tmp_path)
    assert bool(index.parts(content)) == index.holds_size(5) == answers
    # Nor is it taken over if the index leads there all the same.
    row = KnownRows(tmp_path, "f").find(content, ["part-1.parquet"])
    assert (row is not None) == answers
    if row is not None:
        assert may_be_taken_over(row) and row.item_id == "a"


def test_a_row_with_the_same_piece_of_another_digest_is_not_taken_over(tmp_path: Path) -> None:
    content = digest("a")
    twin = content[:-1] + ("0" if content[-1] != "0" else "1")
    write_rows(tmp_path, "part-1.parquet", known("a", content))
    assert index_of(tmp_path).parts(twin) == ["part-1.parquet"]
    assert found(tmp_path, twin) is None
    assert found(tmp_path, content) == "a"


def test_every_content_is_found_in_the_part_that_holds_it(tmp_path: Path) -> None:
    chance = random.Random(3)
    placed = {digest(f"{number}"): f"part-{chance.randrange(4)}.parquet" for number in range(400)}
    for part in set(placed.values()):
        rows = [known(content[:9], content) for content, where in placed.items() if where == part]
        write_rows(tmp_path, part, *rows)
    index = index_of(tmp_path)
    assert {content: index.parts(content) for content in placed} == {c: [part] for c, part in placed.items()}
    assert index.parts(digest("another")) == [] and not index.holds_size(6)


def test_contents_and_sizes_of_this_run_are_found_before_and_after_they_are_sorted_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(contents, "_SORT_IN_EVERY", 7)
    index = Contents("f")
    for number in range(50):
        index.add(digest(f"{number}"), f"part-{number % 3}")
        index.add_size(1000 + number)
        assert all(index.parts(digest(f"{one}")) == [f"part-{one % 3}"] for one in range(number + 1))
        assert all(index.holds_size(1000 + one) for one in range(number + 1))
        assert not index.parts(digest(f"{number + 1}")) and not index.holds_size(1001 + number)
    index.add(digest("0"), "part-9")
    assert sorted(index.parts(digest("0"))) == ["part-0", "part-9"]


def test_a_digest_of_whatever_form_breaks_no_index(tmp_path: Path) -> None:
    write_rows(tmp_path, "part-1.parquet", known("a", "x"), known("b", "G" * 64), known("c", digest("c")))
    assert found(tmp_path, digest("c")) == "c"
    assert found(tmp_path, digest("b")) is None


def test_a_row_that_was_replaced_or_a_part_that_is_gone_is_not_found(tmp_path: Path) -> None:
    content = digest("a")
    write_rows(tmp_path, "part-1.parquet", known("a", content), known("b", digest("b")))
    index, rows = index_of(tmp_path), KnownRows(tmp_path, "f")
    assert rows.find(content, index.parts(content)) is not None
    table = read_part(tmp_path / "part-1.parquet")
    write_part(tmp_path / "part-1.parquet", table.slice(1, 1))
    assert index.parts(content) and rows.find(content, index.parts(content)) is None
    assert rows.find(digest("b"), ["part-0.parquet", "part-1.parquet"]) is not None
    os.remove(tmp_path / "part-1.parquet")
    assert rows.find(digest("b"), ["part-1.parquet"]) is None


def test_no_more_parts_are_held_than_hold_so_many_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contents, "_ROWS_HELD", 5)
    read: list[str] = []

    def counting(path: Path) -> Any:
        read.append(path.name)
        return read_part(path)

    monkeypatch.setattr(contents, "read_part", counting)
    for part in "123":
        rows = [known(f"{part}-{number}", digest(f"{part}-{number}")) for number in range(2)]
        write_rows(tmp_path, f"part-{part}.parquet", *rows)
    rows_of = KnownRows(tmp_path, "f")
    for part in "11221122311":
        row = rows_of.find(digest(f"{part}-1"), [f"part-{part}.parquet"])
        assert row is not None and row.item_id == f"{part}-1"
    assert read == [f"part-{part}.parquet" for part in "1231"]


def test_a_row_read_back_is_the_row_that_was_written(tmp_path: Path) -> None:
    row = make_row(
        "a", content_sha256=digest("a"), content_bytes=1, labels=({"id": "x", "present": True, "confidence": 0.5},)
    )
    write_rows(tmp_path, "part-1.parquet", row.model_dump())
    assert KnownRows(tmp_path, "f").find(digest("a"), ["part-1.parquet"]) == row
    assert isinstance(row, VerdictRow)
