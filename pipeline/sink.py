"""The only writer of rows: grows Parquet parts by replacing them whole.

At every moment each item has its one row: a new row goes to the run's open part, a row that replaces another
goes into the part that holds it. A failed write changes nothing and keeps the rows pending. Nothing is written into
a folder that is not the one the sink began in: rows there would be hidden from whoever moved or unmounted it.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from pipeline.atomic import remove_stale_temps
from pipeline.lock import check_not_taken
from pipeline.part import read_part, write_part
from pipeline.records import LedgerEntry
from pipeline.row import ARROW_SCHEMA, VerdictRow, as_record

Clock = Callable[[], datetime]
_Key = tuple[str, str]  # item_id and fingerprint: what may have only one row

_ROW_TYPE = pa.struct(list(ARROW_SCHEMA))


def steady_utc() -> Clock:
    """Return a clock that reads UTC now and from then on never jumps; take one for a whole run."""
    start, mark = datetime.now(UTC), time.monotonic()
    return lambda: start + timedelta(seconds=time.monotonic() - mark)


@dataclass(slots=True)
class _Pending:
    """A finished row that cannot be read yet, and the row whose place it takes."""

    row: VerdictRow
    replaces: LedgerEntry | None
    added_at: datetime

    @property
    def key(self) -> _Key:
        return self.row.item_id, self.row.fingerprint

    def stamped(self, now: datetime) -> VerdictRow:
        """Return the row as committed now."""
        return self.row.model_copy(
            update={
                "committed_at": now,
                "commit_s": max(0.0, (now - self.added_at).total_seconds()),
                "sla_met": (now - self.row.admitted_at).total_seconds() <= self.row.sla_s,
            }
        )


@dataclass(frozen=True, slots=True)
class _Part:
    """The open part as it is on disk; replaced whole, so that an interrupt never finds half a change."""

    number: int
    name: str
    table: Any = field(default_factory=ARROW_SCHEMA.empty_table)
    places: dict[_Key, int] = field(default_factory=dict)


class Sink:
    """Writes rows into `part-<run_id>-<n>.parquet`; its owner holds the output's lock under the same run_id.

    `add` and `commit` may be called from different threads. Only `commit` and `close` write; call `commit`
    when `due_in_s` says so. Holds about 150 bytes per row written, so that a later row of the same item finds it.
    """

    def __init__(
        self,
        folder: Path,
        run_id: str,
        *,
        rows_per_part: int,
        commit_every_s: float,
        clock: Clock | None = None,
    ) -> None:
        self._folder = folder
        self._run_id = run_id
        self._rows_per_part = rows_per_part
        self._commit_every_s = commit_every_s
        self._clock = clock or steady_utc()
        self._pending: dict[str, _Pending] = {}
        self._adding = threading.Lock()
        self._writing = threading.Lock()
        self._unreported: list[VerdictRow] = []
        self._written: dict[bytes, str] = {}  # digest of a key -> the part, other than the open one, with its row
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)
        # Held open, so that no folder made later can have the same inode number.
        self._folder_number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        weakref.finalize(self, os.close, self._folder_number)
        remove_stale_temps(folder, "part-")
        self._open = self._next_part(0)

    @property
    def pending(self) -> int:
        """Rows that were added and cannot be read yet."""
        return len(self._pending)

    def add(self, row: VerdictRow, replaces: LedgerEntry | None = None) -> None:
        """Take a finished row; `committed_at`, `commit_s` and `sla_met` are filled in by `commit`.

        `replaces` is the row whose place it takes, as the ledger told it. A second row of an item and fingerprint
        takes the place of the first that this sink was given in any case, be it pending, in the open part or in
        one that is closed. Raises ValueError if the row does not fit the schema.
        """
        if self._closed:
            raise ValueError("the sink is closed")
        row = VerdictRow.model_validate(dict(row))
        if row.admitted_at.tzinfo is None:
            raise ValueError("a row does not fit the schema: admitted_at has no time zone")
        _struct([row])
        with self._adding:
            self._pending[row.row_id] = _Pending(row, replaces, self._clock())

    def part_of(self, row: VerdictRow) -> str:
        """Return the part that holds a row which a commit has returned; call it between commits."""
        return self._written.get(_digest((row.item_id, row.fingerprint)), self._open.name)

    def due_in_s(self) -> float | None:
        """Return in how many seconds `commit` must be called, None while nothing is pending."""
        with self._adding:
            first = next(iter(self._pending.values()), None)
            if first is None:
                return None
            if len(self._pending) >= self._rows_per_part:
                return 0.0
            return max(0.0, self._commit_every_s - (self._clock() - first.added_at).total_seconds())

    def commit(self) -> list[VerdictRow]:
        """Make every pending row readable; return those that became readable since the last return, stamped.

        One part that cannot be written does not hold up the others. Raises OSError at the end; the rows
        concerned stay pending for the next call. Raises it at once, and writes nothing, if the folder was removed
        or replaced or another run has taken the output; if the folder comes back, a later call goes on.
        """
        with self._writing:
            self._check_folder()
            with self._adding:
                batch = list(self._pending.values())
            failures: list[OSError] = []
            fresh, swaps, by_part = self._sort(batch)
            self._try(failures, self._write_open, fresh, swaps)
            strays: list[_Pending] = []
            for part, members in by_part.items():
                self._try(failures, self._write_older, part, members, strays)
            if strays:
                self._try(failures, self._write_open, strays, {})
            if failures:
                raise failures[0]
            rows, self._unreported = self._unreported, []
            return rows

    def close(self) -> list[VerdictRow]:
        """Commit and take no more rows; raises OSError like `commit`, and may then be called again."""
        rows = self.commit()
        self._closed = True
        return rows

    def _check_folder(self) -> None:
        """Raise OSError if the folder is not the one that the sink began in, or another run has taken it."""
        try:
            same = os.path.samestat(os.fstat(self._folder_number), os.stat(self._folder))
        except (FileNotFoundError, NotADirectoryError):
            same = False
        if not same:
            told = "the output folder was removed, moved or replaced during the run"
            raise OSError(errno.ESTALE, told, str(self._folder))
        check_not_taken(self._folder, self._run_id)

    def _close_part(self) -> None:
        """Let new rows go to the next part."""
        self._written.update((_digest(key), self._open.name) for key in self._open.places)
        self._open = self._next_part(self._open.number + 1)

    def _next_part(self, number: int) -> _Part:
        """Return an empty part whose file does not exist, numbered from `number` on."""
        while (self._folder / (name := f"part-{self._run_id}-{number:05d}.parquet")).exists():
            number += 1
        return _Part(number, name)

    def _sort(self, batch: list[_Pending]) -> tuple[list[_Pending], dict[int, _Pending], dict[str, list[_Pending]]]:
        """Return the rows that are new, those for a place in the open part, and those for older parts."""
        staged: dict[_Key, _Pending] = {}
        for item in batch:
            if item.key in staged:
                self._supersede(staged[item.key], item)
            staged[item.key] = item
        fresh: list[_Pending] = []
        swaps: dict[int, _Pending] = {}
        by_part: dict[str, list[_Pending]] = {}
        for key, item in staged.items():
            place = self._place_in_open(item)
            part = self._written.get(_digest(key)) or (item.replaces.part if item.replaces else "")
            if place is not None:
                swaps[place] = item
            elif part in ("", self._open.name):
                fresh.append(item)
            else:
                by_part.setdefault(part, []).append(item)
        return fresh, swaps, by_part

    def _place_in_open(self, item: _Pending) -> int | None:
        """Return the place in the open part of the row that an item's row replaces."""
        part, old = self._open, item.replaces
        place = part.places.get(item.key)
        if place is None and old is not None and old.part == part.name:
            place = pc.index(part.table.column("row_id"), old.row_id).as_py()
        return None if place == -1 else place

    def _supersede(self, old: _Pending, new: _Pending) -> None:
        """Drop a row that was never written; the new one of its item takes the place it was to take."""
        with self._adding:
            self._pending.pop(old.row.row_id, None)
            new.replaces = old.replaces or new.replaces

    def _try(self, failures: list[OSError], write: Callable[..., None], *arguments: Any) -> None:
        try:
            write(*arguments)
        except OSError as error:
            failures.append(error)

    def _write_open(self, fresh: Sequence[_Pending], swaps: dict[int, _Pending]) -> None:
        """Write the open part with rows added and swapped, and go on to further parts as they fill up."""
        while fresh or swaps:
            part = self._open
            room = self._rows_per_part - part.table.num_rows
            if room <= 0 and not swaps:
                self._close_part()
                continue
            added, fresh = fresh[:room], fresh[room:]
            places = [*swaps, *range(part.table.num_rows, part.table.num_rows + len(added))]
            now = self._clock()
            new = [item.stamped(now) for item in (*swaps.values(), *added)]
            table = _placed(part.table, new, places)
            write_part(self._folder / part.name, table)
            kept = {key: place for key, place in part.places.items() if place not in swaps} if swaps else part.places
            keys = ((row.item_id, row.fingerprint) for row in new)
            self._open = replace(part, table=table, places=kept | dict(zip(keys, places, strict=True)))
            self._settle(new)
            swaps = {}
        if self._open.table.num_rows >= self._rows_per_part:
            self._close_part()

    def _write_older(self, part: str, members: list[_Pending], strays: list[_Pending]) -> None:
        """Write an older part with rows swapped; `strays` gets the rows whose old row is not there.

        The place may hold the new row already: a write can come through and still be reported as failed.
        """
        path = self._folder / part
        table = read_part(path)
        if table is None:
            strays.extend(members)
            return
        by_row_id = {row_id: place for place, row_id in enumerate(table.column("row_id").to_pylist())}
        keys = zip(table.column("item_id").to_pylist(), table.column("fingerprint").to_pylist(), strict=True)
        by_key = {key: place for place, key in enumerate(keys)}
        swaps: dict[int, _Pending] = {}
        for item in members:
            old = item.replaces.row_id if item.replaces else ""
            place = by_row_id.get(old, by_key.get(item.key))
            if place is None:
                strays.append(item)
            else:
                swaps[place] = item
        if swaps:
            now = self._clock()
            new = [item.stamped(now) for item in swaps.values()]
            write_part(path, _placed(table, new, list(swaps)))
            self._written.update((_digest(item.key), part) for item in swaps.values())
            self._settle(new)

    def _settle(self, rows: list[VerdictRow]) -> None:
        """Count rows as readable."""
        with self._adding:
            for row in rows:
                self._pending.pop(row.row_id, None)
            self._unreported.extend(rows)


def remove_rows(folder: Path, run_id: str, rows: Mapping[str, set[str]]) -> None:
    """Remove rows, by part and row_id, whose items keep another row; for the lock's holder. Raises OSError.

    A part that loses all its rows stays, empty: a reader may be about to open it.
    """
    for part, row_ids in rows.items():
        check_not_taken(folder, run_id)
        table = read_part(folder / part)
        if table is not None:
            removed = pc.is_in(table.column("row_id"), value_set=pa.array(sorted(row_ids)))
            write_part(folder / part, table.filter(pc.invert(removed)).combine_chunks())


def _digest(key: _Key) -> bytes:
    """Return 16 bytes that stand for a key."""
    item_id, fingerprint = key
    return hashlib.blake2b(f"{fingerprint}\n{item_id}".encode(), digest_size=16).digest()


def _struct(rows: Sequence[VerdictRow]) -> Any:
    """Return the rows as one Arrow array of structs. Raises ValueError if one does not fit the schema."""
    try:
        return pa.array([as_record(row) for row in rows], type=_ROW_TYPE)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError) as error:
        raise ValueError(f"a row does not fit the schema: {error}") from error


def _table(rows: Sequence[VerdictRow]) -> Any:
    """Return the rows as an Arrow table."""
    return pa.Table.from_batches([pa.RecordBatch.from_struct_array(_struct(rows))]).replace_schema_metadata(
        ARROW_SCHEMA.metadata
    )


def _placed(table: Any, rows: Sequence[VerdictRow], places: Sequence[int]) -> Any:
    """Return the table with `rows` at `places`, which are places of the table or follow on from its end."""
    order = np.arange(max(table.num_rows, max(places) + 1))
    order[np.array(places)] = table.num_rows + np.arange(len(rows))
    both = pa.concat_tables([table, _table(rows)]).combine_chunks()
    return both if np.array_equal(order, np.arange(both.num_rows)) else both.take(pa.array(order))
