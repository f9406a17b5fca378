"""The ledger: the parts are what is known, and each item's next step follows from its row."""

from __future__ import annotations

import tracemalloc
from datetime import UTC, datetime, timedelta
from pathlib import Path
from time import monotonic
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.errors import REASONS, JobError
from pipeline.ledger import (
    Ledger,
    OnChange,
    Retry,
    Skip,
    Todo,
    check_fingerprints,
    decide,
    describe,
    is_final,
    is_good,
    read_ledger,
)  # fmt: skip
from pipeline.records import Item, LedgerEntry, Status
from pipeline.row import ARROW_SCHEMA

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
_FILLING: dict[pa.DataType, Any] = {
    pa.string(): "x", pa.int32(): 1, pa.int64(): 1, pa.bool_(): True, pa.float32(): 0.5, pa.float64(): 0.5,
    pa.timestamp("us", tz="UTC"): NOON,
}  # fmt: skip


def write_part(folder: Path, name: str, *rows: dict[str, Any]) -> None:
    """Write a part of rows of which only what matters is given."""
    filling = {field.name: _FILLING.get(field.type, []) for field in ARROW_SCHEMA}
    table = pa.Table.from_pylist([filling | {"reason": None} | row for row in rows], schema=ARROW_SCHEMA)
    pq.write_table(table, folder / name)


def a_row(item_id: str, row_id: str, fingerprint: str = "f", minute: int = 0, **more: Any) -> dict[str, Any]:
    committed = NOON + timedelta(minutes=minute)
    values = {"item_id": item_id, "row_id": row_id, "fingerprint": fingerprint, "committed_at": committed}
    return {**values, "status": "ok", "source_key": "k", **more}


def an_item(item_id: str, source_key: str = "k", size: int | None = 1) -> Item:
    return Item(item_id, f"/{item_id}", b"/", size, size, source_key)


def test_an_absent_or_empty_folder_is_an_empty_ledger(tmp_path: Path) -> None:
    (tmp_path / "_runs").mkdir()
    (tmp_path / ".part-a.parquet.1.tmp").write_bytes(b"half")
    (tmp_path / "_part-a.parquet").write_bytes(b"half")
    for folder in (tmp_path, tmp_path / "none"):
        ledger = read_ledger(folder)
        assert ledger.rows() == 0
        assert ledger.latest("a") is None
        assert ledger.fingerprints() == {}


def test_every_row_is_found_with_its_part(tmp_path: Path) -> None:
    write_part(tmp_path, "part-1.parquet", a_row("a", "r1"), a_row("b", "r2", status="error", reason="deadline"))
    write_part(tmp_path, "part-0.parquet", a_row("c", "r\u00e9", sla_met=False, source_key="other"))
    ledger = read_ledger(tmp_path)
    assert ledger.rows() == 3
    assert ledger.entry("b", "f") == LedgerEntry("r2", "k", "f", "error", "deadline", True)
    assert ledger.latest("c") == LedgerEntry("r\u00e9", "other", "f", "ok", None, False)
    assert [entry.part for entry in map(ledger.latest, "abc") if entry] == [
        "part-1.parquet", "part-1.parquet", "part-0.parquet"
    ]  # fmt: skip
    assert ledger.entry("a", "g") is None
    assert ledger.fingerprints() == {"f": describe("x", "x", "x")}


@pytest.mark.parametrize("order", ["123", "321", "213", "231"])
def test_the_latest_row_is_the_one_committed_last_in_whatever_order_the_parts_are_read(
    tmp_path: Path, order: str
) -> None:
    for place, number in enumerate(order):
        write_part(tmp_path, f"part-{place}.parquet", a_row("a", f"r{number}", f"f{number}", int(number)))
    ledger = read_ledger(tmp_path)
    latest = ledger.latest("a")
    assert latest is not None
    assert latest.row_id == "r3"
    assert [entry.row_id for n in "123" if (entry := ledger.entry("a", f"f{n}"))] == ["r1", "r2", "r3"]
    assert ledger.rows_of("f2") == 1


def test_two_rows_of_one_item_and_fingerprint_are_a_job_error_that_names_both_parts(tmp_path: Path) -> None:
    write_part(tmp_path, "part-1.parquet", a_row("a", "r1"))
    write_part(tmp_path, "part-2.parquet", a_row("a", "r2"))
    with pytest.raises(JobError, match=r"item a, in part-1\.parquet and part-2\.parquet; remove one"):
        read_ledger(tmp_path)


def test_a_damaged_or_foreign_part_is_a_job_error_that_names_it(tmp_path: Path) -> None:
    part = tmp_path / "part-1.parquet"
    pq.write_table(pa.table({"a": [1]}), part)
    with pytest.raises(JobError, match=r"part-1\.parquet has other columns than this version writes; move it away"):
        read_ledger(tmp_path)
    write_part(tmp_path, "part-1.parquet", a_row("a", "r1"))
    whole = part.read_bytes()
    for broken in (b"", b"PAR1", whole[:-40], whole[: len(whole) // 2]):
        part.write_bytes(broken)
        with pytest.raises(JobError, match=r"part-1\.parquet cannot be read \(.+\); restore it, or move it away"):
            read_ledger(tmp_path)


def test_a_large_ledger_loads_fast_in_bounded_memory(tmp_path: Path) -> None:
    count, per_part = 200_000, 50_000
    filler = {field.name: pa.array([_FILLING.get(field.type, [])] * per_part, field.type) for field in ARROW_SCHEMA}
    filler |= {"status": pa.array(["ok"] * per_part)}
    for first in range(0, count, per_part):
        ids = [f"{number:032x}" for number in range(first, first + per_part)]
        columns = filler | dict.fromkeys(("item_id", "row_id", "source_key"), pa.array(ids))
        pq.write_table(pa.table(columns, schema=ARROW_SCHEMA), tmp_path / f"part-{first}.parquet")
    start = monotonic()
    ledger = read_ledger(tmp_path)
    assert monotonic() - start < 15
    assert ledger.rows() == count
    entry = ledger.entry(f"{123_456:032x}", "x")
    assert entry is not None
    assert (entry.row_id, entry.part) == (f"{123_456:032x}", "part-100000.parquet")
    del ledger
    tracemalloc.start()
    part = tmp_path / "alone"
    part.mkdir()
    (tmp_path / "part-0.parquet").rename(part / "part-0.parquet")
    ledger = read_ledger(part)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 400 * ledger.rows()


# Decisions


@pytest.mark.parametrize(
    ("status", "reason", "errors", "all_", "none"),
    [
        ("ok", None, True, True, True),
        ("ok", "partial_decode", True, True, True),
        ("gated", None, True, True, True),
        ("duplicate", None, True, True, True),
        ("error", "not_media", True, False, True),
        ("error", "front_end_lost", False, False, True),
        ("error", "a_code_of_tomorrow", False, False, True),
        ("error", None, False, False, True),
        ("deadline", "deadline", False, False, True),
        ("deadline", "not_media", False, False, True),
    ],
)
def test_done_depends_on_the_row_and_on_what_is_to_be_retried(
    status: Status, reason: str | None, errors: bool, all_: bool, none: bool
) -> None:
    entry = LedgerEntry("r", "k", "f", status, reason, True)
    retries: tuple[Retry, ...] = ("errors", "all", "none")
    assert [is_final(entry, retry) for retry in retries] == [errors, all_, none]
    assert is_good(status) == (status in ("ok", "gated", "duplicate"))


def test_every_permanent_reason_is_final_and_every_other_is_tried_again() -> None:
    for reason in REASONS.values():
        assert is_final(LedgerEntry("r", "k", "f", "error", reason.code, True)) == (not reason.retryable)


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    write_part(
        tmp_path,
        "part-1.parquet",
        a_row("good", "r1"),
        a_row("failed", "r2", status="error", reason="front_end_lost"),
        a_row("permanent", "r3", status="error", reason="not_media"),
        a_row("foreign", "r4", "g"),
        a_row("both", "r5", "g", minute=1),
        a_row("both", "r6", minute=0),
    )
    return read_ledger(tmp_path)


@pytest.mark.parametrize(
    ("item", "on_change", "why", "replaced", "followed"),
    [
        (an_item("unseen"), "stop", "new", None, None),
        (an_item("good"), "stop", None, None, None),
        (an_item("good", "changed"), "stop", "changed", "r1", "r1"),
        (an_item("good", "changed", size=None), "stop", None, None, None),
        (an_item("failed"), "stop", "retry", "r2", "r2"),
        (an_item("failed", "changed", size=None), "stop", "changed", "r2", "r2"),
        (an_item("permanent"), "stop", None, None, None),
        (an_item("foreign"), "append", "follow", None, "r4"),
        (an_item("foreign"), "rewrite", "rewrite", "r4", "r4"),
        (an_item("foreign", size=None), "append", "gone", None, None),
        (an_item("foreign", size=None), "rewrite", "gone", None, None),
        (an_item("both"), "append", None, None, None),
        (an_item("both"), "rewrite", None, None, None),
    ],
)
def test_what_is_to_be_done_follows_from_the_items_rows(
    ledger: Ledger,
    item: Item,
    on_change: OnChange,
    why: str | None,
    replaced: str | None,
    followed: str | None,
) -> None:
    step = decide(item, ledger, "f", on_change)
    if why == "gone":
        assert isinstance(step, Skip) and step.gone and step.entry.fingerprint == "g"
    elif why is None:
        assert isinstance(step, Skip)
        row = ledger.entry(item.item_id, "f")
        assert row is not None
        assert (step.entry.status, step.entry.reason, step.entry.sla_met) == (row.status, row.reason, row.sla_met)
    else:
        assert isinstance(step, Todo)
        assert (step.why, step.replaces and step.replaces.row_id, step.follows_row_id) == (
            why,
            replaced,
            followed,
        )


def test_rows_of_another_fingerprint_stop_a_run_unless_the_job_says_what_then(ledger: Ledger) -> None:
    with pytest.raises(JobError, match=r"2 rows of policy x version x, model x\. This run: policy y.*append.*rewrite"):
        check_fingerprints(ledger, "f", "stop", describe("y", "2", "m"))
    with pytest.raises(JobError, match="with other words in the policy, other media, answer or engine settings"):
        check_fingerprints(ledger, "f", "stop", describe("x", "x", "x"))
    with pytest.raises(JobError, match="on_change"):
        decide(an_item("foreign"), ledger, "f", "stop")
    check_fingerprints(ledger, "f", "append")
    check_fingerprints(ledger, "f", "rewrite")


def test_rows_are_superseded_by_a_row_that_will_stay(tmp_path: Path) -> None:
    lost = {"status": "error", "reason": "source_missing"}
    write_part(tmp_path, "part-1.parquet", a_row("a", "a1", "g"), a_row("b", "b1", "g"), a_row("c", "c1", "g"))
    write_part(tmp_path, "part-2.parquet", a_row("a", "a2", "h", 1), a_row("b", "b2", minute=1, **lost))
    write_part(tmp_path, "part-3.parquet", a_row("a", "a3", minute=2), a_row("d", "d1"))
    ledger = read_ledger(tmp_path)
    assert ledger.superseded("f") == {"part-1.parquet": {"a1"}, "part-2.parquet": {"a2"}}
    assert ledger.superseded("g") == {"part-2.parquet": {"a2", "b2"}, "part-3.parquet": {"a3"}}
    assert ledger.superseded("unknown") == {}


def test_rows_of_the_same_fingerprint_stop_nothing(tmp_path: Path) -> None:
    write_part(tmp_path, "part-1.parquet", a_row("a", "r1"))
    check_fingerprints(read_ledger(tmp_path), "f", "stop")
