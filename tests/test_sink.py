"""The sink: every row readable once, at every moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb
import polars
import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet as pq
import pytest

from pipeline.ledger import read_ledger
from pipeline.lock import run_folder
from pipeline.records import LedgerEntry
from pipeline.row import ARROW_SCHEMA, VerdictRow
from pipeline.sink import Sink, remove_rows

NOON = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)


def make_row(item_id: str, **changes: Any) -> VerdictRow:
    """Return a row; its floats are exact in float32."""
    seconds = dict.fromkeys((name for name in VerdictRow.model_fields if name.endswith("_s")), 0.25)
    values: dict[str, Any] = {
        **dict.fromkeys(VerdictRow.model_fields),
        **dict.fromkeys(("audio_tokens", "video_tokens", "frames", "prompt_tokens", "output_tokens"), 4),
        **dict.fromkeys(("run_id", "job_name", "policy_id", "policy_version", "model", "engine"), "x"),
        **seconds,
        "schema_version": 3, "row_id": uuid4().hex, "item_id": item_id, "uri": f"/clips/{item_id}",
        "source_key": "k", "media_kind": "av", "verdict": "pass", "status": "ok", "degraded": False,
        "attempts": 1, "sla_s": 60.0,
        "labels": ({"id": "smoke", "present": True, "confidence": 0.5},), "accel_patches": ("moe",),
        "rationale": "Ein Pfiff, 然后 \N{FACE WITH TEARS OF JOY}.", "confidence": 0.75, "fingerprint": "f",
        "admitted_at": NOON, "committed_at": NOON, "sla_met": False,
    }  # fmt: skip
    return VerdictRow.model_validate(values | changes)


class Hand:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = NOON

    def __call__(self) -> datetime:
        return self.now

    def move(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)


def make_sink(folder: Path, run_id: str = "run", rows_per_part: int = 1000, clock: Any = None) -> Sink:
    return Sink(folder, run_id, rows_per_part=rows_per_part, commit_every_s=2.0, clock=clock)


def parts(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("part-*.parquet"))


def read(folder: Path) -> dict[str, VerdictRow]:
    """Return the rows by item; an item with two rows fails."""
    rows = [VerdictRow(**record) for name in parts(folder) for record in pq.read_table(folder / name).to_pylist()]
    found = {row.item_id: row for row in rows}
    assert len(found) == len(rows)
    return found


def part_of(folder: Path, item_id: str) -> str | None:
    """Return the name of the part that holds the item's row."""
    found = (name for name in parts(folder) if item_id in pq.read_table(folder / name)["item_id"].to_pylist())
    return next(found, None)


def entry_of(row: VerdictRow, part: str) -> LedgerEntry:
    return LedgerEntry(row.row_id, row.source_key, row.fingerprint, row.status, row.reason, row.sla_met, part)


def test_a_row_read_back_equals_the_row_that_commit_returned(tmp_path: Path) -> None:
    sink = make_sink(tmp_path, clock=Hand())
    sink.add(make_row("a"))
    sink.add(make_row("b", confidence=None, labels=(), accel_patches=(), media_kind=None, rationale=None))
    committed = sink.commit()
    assert read(tmp_path) == {row.item_id: row for row in committed}
    assert pq.read_schema(tmp_path / parts(tmp_path)[0]).equals(ARROW_SCHEMA, check_metadata=False)


def test_rows_are_stamped_when_they_are_committed(tmp_path: Path) -> None:
    clock = Hand()
    sink = make_sink(tmp_path, clock=clock)
    clock.move(59.0)
    sink.add(make_row("in time"))
    sink.add(make_row("late", sla_s=59.5))
    clock.move(1.0)
    rows = {row.item_id: row for row in sink.commit()}
    assert [(row.committed_at - NOON).total_seconds() for row in rows.values()] == [60.0, 60.0]
    assert [row.commit_s for row in rows.values()] == [1.0, 1.0]
    assert rows["in time"].sla_met
    assert not rows["late"].sla_met


def test_due_counts_down_from_the_oldest_pending_row_and_a_full_part_is_due_at_once(tmp_path: Path) -> None:
    clock = Hand()
    sink = make_sink(tmp_path, rows_per_part=2, clock=clock)
    assert sink.due_in_s() is None
    sink.add(make_row("a"))
    clock.move(1.5)
    assert sink.due_in_s() == 0.5
    sink.add(make_row("b"))
    assert sink.due_in_s() == 0.0
    sink.commit()
    assert sink.due_in_s() is None


def test_the_open_part_grows_and_is_closed_at_its_row_count(tmp_path: Path) -> None:
    sink = make_sink(tmp_path, rows_per_part=5)
    for number in range(23):
        sink.add(make_row(str(number)))
        if number % 3 == 0 or number > 15:
            sink.commit()
    sink.close()
    assert parts(tmp_path) == [f"part-run-{number:05d}.parquet" for number in range(5)]
    assert [pq.read_metadata(tmp_path / name).num_rows for name in parts(tmp_path)] == [5, 5, 5, 5, 3]
    assert list(read(tmp_path)) == [str(number) for number in range(23)]
    with pytest.raises(ValueError, match="closed"):
        sink.add(make_row("x"))


def test_a_run_never_writes_into_a_part_that_was_there_before_it(tmp_path: Path) -> None:
    first = make_sink(tmp_path)
    first.add(make_row("a"))
    first.close()
    again = make_sink(tmp_path)
    again.add(make_row("b"))
    again.close()
    assert set(read(tmp_path)) == {"a", "b"}
    assert len(parts(tmp_path)) == 2


@pytest.mark.parametrize(
    "wrong", [{"attempts": 2**40}, {"uri": "\udcff"}, {"verdict": None}, {"labels": 7}, {"status": "fine"},
              {"admitted_at": NOON.replace(tzinfo=None)}]
)  # fmt: skip
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
def test_a_row_that_does_not_fit_the_schema_raises_at_add_and_leaves_nothing(
    tmp_path: Path, wrong: dict[str, Any]
) -> None:
    sink = make_sink(tmp_path)
    with pytest.raises(ValueError, match=r".+"):
        sink.add(make_row("a").model_copy(update=wrong))
    sink.add(make_row("b"))
    assert [row.item_id for row in sink.commit()] == ["b"]


# Replacement


def written(folder: Path, count: int, run_id: str = "old") -> dict[str, VerdictRow]:
    """Fill one part with error rows."""
    sink = make_sink(folder, run_id)
    for number in range(count):
        sink.add(make_row(f"item{number}", status="error", reason="front_end_lost", verdict="review"))
    sink.close()
    return read(folder)


def test_a_new_row_takes_the_old_ones_place_and_the_other_rows_stay_exact(tmp_path: Path) -> None:
    before = written(tmp_path, 9)
    ledger = read_ledger(tmp_path)
    sink = make_sink(tmp_path)
    for number in (0, 4, 8):
        old = ledger.latest(f"item{number}")
        assert old is not None
        sink.add(make_row(f"item{number}", follows_row_id=old.row_id, fingerprint="g"), old)
    sink.add(make_row("new"))
    assert len(sink.commit()) == 4
    after = read(tmp_path)
    assert list(after) == [f"item{number}" for number in range(9)] + ["new"]
    assert [after[name].status for name in list(before)] == ["ok", *["error"] * 3, "ok", *["error"] * 3, "ok"]
    assert all(after[f"item{number}"] == before[f"item{number}"] for number in (1, 2, 3, 5, 6, 7))
    assert parts(tmp_path) == ["part-old-00000.parquet", "part-run-00000.parquet"]


def test_a_second_row_of_an_item_takes_the_first_ones_place_while_pending_and_in_the_open_part(
    tmp_path: Path,
) -> None:
    sink = make_sink(tmp_path)
    first, second, third, fourth = (make_row("a", attempts=number) for number in (1, 2, 3, 4))
    sink.add(first)
    sink.add(second, entry_of(first, ""))
    sink.add(make_row("b"))
    assert [row.attempts for row in sink.commit()] == [2, 1]
    sink.add(third, entry_of(second, parts(tmp_path)[-1]))
    sink.add(make_row("c"))
    sink.add(fourth)
    sink.commit()
    assert [(row.item_id, row.attempts) for row in read(tmp_path).values()] == [("a", 4), ("b", 1), ("c", 1)]
    assert sink.pending == 0


def test_two_rows_for_one_old_row_leave_one(tmp_path: Path) -> None:
    written(tmp_path, 2)
    old = read_ledger(tmp_path).latest("item0")
    sink = make_sink(tmp_path)
    sink.add(make_row("item0", attempts=1), old)
    sink.add(make_row("item0", attempts=2), old)
    sink.commit()
    sink.add(make_row("item0", attempts=3), old)
    sink.commit()
    assert read(tmp_path)["item0"].attempts == 3
    assert len(read(tmp_path)) == 2


@pytest.mark.parametrize("how", ["alone", "with the row it replaces", "with the row that both replace"])
def test_a_later_row_of_this_run_replaces_an_earlier_one_whose_part_is_closed(tmp_path: Path, how: str) -> None:
    before = written(tmp_path, 2)["item1"]
    sink = make_sink(tmp_path, rows_per_part=2)
    first = {name: make_row(name, status="deadline") for name in ("a", "b", "c", "item1")}
    for name, row in first.items():
        sink.add(row, entry_of(before, "part-old-00000.parquet") if name == "item1" else None)
    sink.commit()
    assert [part_of(tmp_path, name) for name in first] == [
        "part-run-00000.parquet", "part-run-00000.parquet", "part-run-00001.parquet", "part-old-00000.parquet"
    ]  # fmt: skip
    sink.add(make_row("d"))
    sink.commit()
    assert part_of(tmp_path, "d") == "part-run-00001.parquet"
    for name in ("a", "c", "item1"):
        part = part_of(tmp_path, name)
        assert part is not None
        old = {
            "alone": None,
            "with the row it replaces": entry_of(first[name], part),
            "with the row that both replace": entry_of(before, part) if name == "item1" else None,
        }[how]
        sink.add(make_row(name, attempts=2), old)
    assert len(sink.commit()) == 3
    assert {name: row.attempts for name, row in read(tmp_path).items()} == {
        "item0": 1, "item1": 2, "a": 2, "b": 1, "c": 2, "d": 1
    }  # fmt: skip
    assert parts(tmp_path) == [f"part-{name}.parquet" for name in ("old-00000", "run-00000", "run-00001")]


def test_a_row_added_while_its_items_former_row_is_in_a_part_that_is_then_closed_makes_no_duplicate(
    tmp_path: Path,
) -> None:
    sink = make_sink(tmp_path, rows_per_part=2)
    sink.add(make_row("a"))
    sink.commit()
    sink.add(make_row("b"))
    sink.add(make_row("c"))
    sink.commit()
    for attempts in (2, 3):
        sink.add(make_row("a", attempts=attempts))
        sink.commit()
        assert {name: row.attempts for name, row in read(tmp_path).items()} == {"a": attempts, "b": 1, "c": 1}


def test_a_row_of_another_fingerprint_replaces_one_in_the_open_part_and_later_commits_keep_it(tmp_path: Path) -> None:
    sink = make_sink(tmp_path)
    old = make_row("a")
    sink.add(old)
    sink.commit()
    sink.add(make_row("a", fingerprint="g"), entry_of(old, parts(tmp_path)[-1]))
    sink.commit()
    sink.add(make_row("b"))
    sink.add(make_row("c"), entry_of(make_row("c"), parts(tmp_path)[-1]))
    sink.commit()
    assert [(row.item_id, row.fingerprint) for row in read(tmp_path).values()] == [("a", "g"), ("b", "f"), ("c", "f")]


def test_a_row_whose_old_part_is_gone_is_written_all_the_same(tmp_path: Path) -> None:
    written(tmp_path, 2)
    old = read_ledger(tmp_path).latest("item0")
    (tmp_path / "part-old-00000.parquet").unlink()
    sink = make_sink(tmp_path)
    sink.add(make_row("item0"), old)
    sink.close()
    assert list(read(tmp_path)) == ["item0"]


# Readers


def test_a_reader_that_has_half_opened_the_former_part_can_go_on(tmp_path: Path) -> None:
    written(tmp_path, 30)
    ledger, sink = read_ledger(tmp_path), make_sink(tmp_path)
    for number in range(25):
        sink.add(make_row(f"item{number}"), ledger.latest(f"item{number}"))
        sink.add(make_row(f"new{number}"))
        former = {
            name: (
                pq.read_metadata(tmp_path / name),
                pq.read_table(tmp_path / name),
                (tmp_path / name).stat().st_size,
            )
            for name in parts(tmp_path)
        }
        sink.commit()
        for name, (footer, table, size) in former.items():
            after = (tmp_path / name).read_bytes()
            assert pq.ParquetFile(pa.BufferReader(after), metadata=footer).read().equals(table)
            assert pq.read_table(pa.BufferReader(after[:size])) in (table, pq.read_table(tmp_path / name))
    assert len(read(tmp_path)) == 55


def test_a_part_stays_below_six_times_its_rows(tmp_path: Path) -> None:
    sink = make_sink(tmp_path)
    for number in range(200):
        sink.add(make_row(str(number)))
        if number % 10 == 0:
            sink.commit()
            part = tmp_path / parts(tmp_path)[-1]
            pq.write_table(pq.read_table(part), tmp_path / "plain", compression="zstd")
            assert part.stat().st_size < 6 * (tmp_path / "plain").stat().st_size


def _pyarrow_items(folder: Path) -> list[str]:
    columns = pyarrow.dataset.dataset(folder, format="parquet").to_table(columns=["item_id", "rationale"])
    return list(columns.column("item_id").to_pylist())


def _duckdb_items(folder: Path) -> list[str]:
    with duckdb.connect() as connection:
        query = f"select item_id, rationale from read_parquet('{folder}/*.parquet')"
        return [name for name, _ in connection.execute(query).fetchall()]


def _polars_items(folder: Path) -> list[str]:
    return list(polars.read_parquet(folder / "*.parquet", columns=["item_id", "rationale"])["item_id"])


@pytest.mark.parametrize("reader", [_pyarrow_items, _duckdb_items, _polars_items])
def test_readers_never_see_a_half_file_a_duplicate_or_a_falling_count(
    tmp_path: Path, reader: Callable[[Path], list[str]]
) -> None:
    written(tmp_path, 30)
    ledger, sink = read_ledger(tmp_path), make_sink(tmp_path, rows_per_part=60)
    over = threading.Event()

    def write() -> None:
        number = 0
        while not over.is_set():
            for _ in range(5):
                sink.add(make_row(f"item{number}"), ledger.latest(f"item{number}"))
                number += 1
            sink.commit()
            time.sleep(0.3)  # below the shortest output.commit_every_s

    thread = threading.Thread(target=write)
    thread.start()
    try:
        count = 0
        end = time.monotonic() + 1.5
        while time.monotonic() < end or count <= 30:
            items = reader(tmp_path)
            assert len(items) == len(set(items))
            assert len(items) >= max(count, 30)
            count = len(items)
    finally:
        over.set()
        thread.join()
    assert not thread.is_alive()


def test_rows_may_be_added_while_another_thread_commits(tmp_path: Path) -> None:
    sink = make_sink(tmp_path, rows_per_part=70)
    over = threading.Event()
    committed: list[VerdictRow] = []

    def write() -> None:
        while not over.is_set():
            committed.extend(sink.commit())

    thread = threading.Thread(target=write)
    thread.start()
    for number in range(400):
        sink.add(make_row(f"item{number}"))
    over.set()
    thread.join()
    committed.extend(sink.close())
    assert sorted(row.item_id for row in committed) == sorted(f"item{number}" for number in range(400))
    assert len(read(tmp_path)) == 400


def test_a_run_has_a_folder_that_readers_skip(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, "run7")
    assert folder == tmp_path / "_runs" / "run7"
    (folder / "run.json").write_text("{}")
    sink = make_sink(tmp_path)
    sink.add(make_row("a"))
    sink.close()
    assert _pyarrow_items(tmp_path) == ["a"]


def test_a_part_that_loses_all_its_rows_stays_and_is_read_by_everyone(tmp_path: Path) -> None:
    for number in range(2):
        with_rows = Sink(tmp_path, f"run{number}", rows_per_part=10, commit_every_s=0.5)
        with_rows.add(make_row(f"item-{number}"))
        with_rows.close()
    (gone,) = tmp_path.glob("part-run0-*.parquet")
    (row_id,) = pq.read_table(gone).column("row_id").to_pylist()
    remove_rows(tmp_path, "run1", {gone.name: {row_id, "of nobody"}, "part-none.parquet": {"x"}})
    everything = str(tmp_path / "part-*.parquet")
    assert pq.read_table(gone).num_rows == 0
    assert polars.read_parquet(everything)["item_id"].to_list() == ["item-1"]
    assert duckdb.sql(f"select item_id from '{everything}'").fetchall() == [("item-1",)]
