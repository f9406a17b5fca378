"""The only writer of the output: grows Parquet parts by replacing them whole, and holds the output's lock.

At every moment each item has its one row: a new row goes to the run's open part, a row that replaces another
goes into the part that holds it. A failed write changes nothing and keeps the rows pending.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.atomic import remove_stale_temps, write_atomic
from pipeline.errors import JobError, OutputLocked
from pipeline.records import LedgerEntry
from pipeline.row import ARROW_SCHEMA, VerdictRow, as_record

Clock = Callable[[], datetime]
_Key = tuple[str, str]  # item_id and fingerprint: what may have only one row

_MAGIC = b"PAR1"
_ROW_TYPE = pa.struct(list(ARROW_SCHEMA))
_UNIQUE = {"row_id", "follows_row_id", "item_id", "uri", "source_key", "content_sha256", "rationale"}
_REPEATING = [name for name in ARROW_SCHEMA.names if name not in _UNIQUE]


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
    """Writes rows into `part-<run_id>-<n>.parquet`; its owner holds the output's lock.

    `add` and `commit` may be called from different threads. Only `commit` and `close` write; call `commit`
    when `due_in_s` says so.
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
        self._closed = False
        folder.mkdir(parents=True, exist_ok=True)
        remove_stale_temps(folder, "part-")
        self._open = self._next_part(0)

    @property
    def pending(self) -> int:
        """Rows that were added and cannot be read yet."""
        return len(self._pending)

    @property
    def open_part(self) -> str:
        """Name of the part that new rows go to; the file is there once it has a row."""
        return self._open.name

    def add(self, row: VerdictRow, replaces: LedgerEntry | None = None) -> None:
        """Take a finished row; `committed_at`, `commit_s` and `sla_met` are filled in by `commit`.

        `replaces` is the row whose place it takes, as the ledger told it. A second row of an item that is
        pending or in the open part takes the first one's place in any case. Raises ValueError if the row does
        not fit the schema.
        """
        if self._closed:
            raise ValueError("the sink is closed")
        row = VerdictRow.model_validate(dict(row))
        if row.admitted_at.tzinfo is None:
            raise ValueError("a row does not fit the schema: admitted_at has no time zone")
        _struct([row])
        with self._adding:
            self._pending[row.row_id] = _Pending(row, replaces, self._clock())

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
        concerned stay pending for the next call.
        """
        with self._writing:
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
            if key in self._open.places:
                swaps[self._open.places[key]] = item
            elif item.replaces is None or not item.replaces.part:
                fresh.append(item)
            else:
                by_part.setdefault(item.replaces.part, []).append(item)
        return fresh, swaps, by_part

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
                self._open = self._next_part(part.number + 1)
                continue
            added, fresh = fresh[:room], fresh[room:]
            places = [*swaps, *range(part.table.num_rows, part.table.num_rows + len(added))]
            now = self._clock()
            new = [item.stamped(now) for item in (*swaps.values(), *added)]
            table = _placed(part.table, new, places)
            _write_part(self._folder / part.name, table)
            keys = ((row.item_id, row.fingerprint) for row in new)
            self._open = replace(part, table=table, places=part.places | dict(zip(keys, places, strict=True)))
            self._settle(new)
            swaps = {}
        if self._open.table.num_rows >= self._rows_per_part:
            self._open = self._next_part(self._open.number + 1)

    def _write_older(self, part: str, members: list[_Pending], strays: list[_Pending]) -> None:
        """Write an older part with rows swapped; `strays` gets the rows whose old row is not there.

        The place may hold the new row already: a write can come through and still be reported as failed.
        """
        path = self._folder / part
        table = _read_part(path)
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
            _write_part(path, _placed(table, new, list(swaps)))
            self._settle(new)

    def _settle(self, rows: list[VerdictRow]) -> None:
        """Count rows as readable."""
        with self._adding:
            for row in rows:
                self._pending.pop(row.row_id, None)
            self._unreported.extend(rows)


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


def _read_part(path: Path) -> Any:
    """Return a part as an Arrow table, None if it is not there. Raises OSError if it is no part of ours."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()
    except pa.ArrowException as error:
        raise OSError(errno.EIO, f"damaged part: {error}", str(path)) from error
    if not table.schema.equals(ARROW_SCHEMA):
        raise OSError(errno.EIO, "the part has other columns than this version writes", str(path))
    return table


def _write_part(path: Path, table: Any) -> None:
    """Put the table in the place of a part. Raises OSError."""
    try:
        former = path.read_bytes()
        span = _span(former)
    except (FileNotFoundError, pa.ArrowException):
        write_atomic(path, b"".join(_encoded(table, 0)))
    else:
        write_atomic(path, _around(table, former, *span))


def _around(table: Any, former: bytes, start: int, end: int) -> bytes:
    """Return a Parquet file of the table that also serves a reader who has half-opened the former one.

    Polars and DuckDB ask for a file's size, footer and columns by its path, one after the other, and may meet
    two versions. So the former columns (`start` to `end`) stay where they are, the new go before or after them,
    and the file keeps its size or else keeps the former footer too. It stays below six times its rows.
    """
    size = len(former)
    if end - start < start:
        columns, footer = _encoded(table, 0)
        if len(columns) <= start:
            kept = former[start : end if end + len(footer) <= size else size]
            return _filled(columns + bytes(start - len(columns)) + kept, footer, size)
    columns, footer = _encoded(table, end)
    if end + len(columns) + len(footer) > size:
        end = size
        columns, footer = _encoded(table, end)
    return _filled(_MAGIC + bytes(start - len(_MAGIC)) + former[start:end] + columns, footer, size)


def _filled(content: bytes, footer: bytes, size: int) -> bytes:
    """Return a file of this size, or of one with room for more if it must grow."""
    needed = len(content) + len(footer)
    if needed > size:
        size = needed + needed // 4
    return content + bytes(size - needed) + footer


def _encoded(table: Any, start: int) -> tuple[bytes, bytes]:
    """Return a Parquet file's columns as they must stand at `start` (at 0 with the magic), and its footer."""
    buffer = pa.BufferOutputStream()
    writer = pq.ParquetWriter(buffer, ARROW_SCHEMA, compression="zstd", use_dictionary=_REPEATING)
    buffer.write(bytes(max(0, start - buffer.tell())))
    writer.write_table(table)
    end = buffer.tell()
    writer.close()
    data = buffer.getvalue()
    return data[start:end].to_pybytes(), data[end:].to_pybytes()


def _span(part: bytes) -> tuple[int, int]:
    """Return where the columns of a Parquet file begin and end. Raises pa.ArrowException if it is none."""
    footer = pq.ParquetFile(pa.BufferReader(part)).metadata
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(footer.num_columns)]
    begins = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    ends = [begin + chunk.total_compressed_size for begin, chunk in zip(begins, chunks, strict=True)]
    return min(begins, default=len(_MAGIC)), max(ends, default=len(_MAGIC))


def run_folder(output: Path, run_id: str) -> Path:
    """Return the folder for everything of a run that is no row, made if missing."""
    folder = output / "_runs" / run_id
    folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def lock_output(folder: Path, run_id: str) -> Iterator[dict[str, Any] | None]:
    """Hold an output for one run; yield who held it before and died without letting go, if so.

    The kernel lets go when the process dies. Raises OutputLocked if another run holds it, JobError if the
    folder cannot be used.
    """
    path = folder / "_runs" / "lock"
    try:
        file = _open_locked(path)
    except BlockingIOError:
        raise OutputLocked(f"the output {folder} is held by another run: {_told(_holder(path))}") from None
    except OSError as error:
        raise JobError(f"output.path: {folder} cannot be locked for writing: {error.strerror or error}") from None
    with os.fdopen(file, "r+b") as lock:
        former = _holder(path)
        holder = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "run_id": run_id,
            "started_at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            lock.truncate(0)
            lock.write(json.dumps(holder).encode())
            lock.flush()
        except OSError as error:
            raise JobError(f"output.path: {folder} cannot be written: {error.strerror or error}") from None
        try:
            yield former
        finally:
            lock.truncate(0)


def _open_locked(path: Path) -> int:
    """Return a descriptor of the lock file with the lock on it. Raises BlockingIOError if it is held."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with suppress(FileNotFoundError):
                if os.path.samestat(path.stat(), os.fstat(file)):
                    return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)  # the lock file was removed meanwhile: lock the one that is there now


def _holder(path: Path) -> dict[str, Any] | None:
    """Return what the lock file says of its holder."""
    try:
        data = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


def _told(holder: dict[str, Any] | None) -> str:
    """Return a holder in words."""
    if holder is None:
        return "it has not said which yet"
    try:
        age = datetime.now(UTC) - datetime.fromisoformat(str(holder.get("started_at")))
        since = f"for {timedelta(seconds=round(age.total_seconds()))}"
    except ValueError:
        since = "since an unknown time"
    return f"run {holder.get('run_id')}, process {holder.get('pid')} on host {holder.get('host')}, {since}"
