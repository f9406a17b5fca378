"""A Parquet part on disk: read whole, and replaced whole so that readers who are half-way through it can go on."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.atomic import write_atomic
from pipeline.row import ARROW_SCHEMA

_MAGIC = b"PAR1"
_UNIQUE = {*("row_id", "follows_row_id", "duplicate_of", "item_id", "uri", "source_key", "content_sha256", "rationale")}
_REPEATING = [name for name in ARROW_SCHEMA.names if name not in _UNIQUE]


def read_part(path: Path) -> Any:
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


def write_part(path: Path, table: Any) -> None:
    """Put the table in the place of a part. Raises OSError."""
    try:
        former = path.read_bytes()
        span = _span(former)
    except (FileNotFoundError, pa.ArrowException):
        write_atomic(path, *_encoded(table, 0))
    else:
        write_atomic(path, *_around(table, memoryview(former), *span))


def _around(table: Any, former: memoryview, start: int, end: int) -> list[memoryview | bytes]:
    """Return the pieces of a Parquet file of the table that also serves a reader who has half-opened the former one.

    Polars and DuckDB ask for a file's size, footer and columns by its path, one after the other, and may meet
    two versions. So the former columns (`start` to `end`) stay where they are, the new go before or after them,
    and the file keeps its size or else keeps the former footer too. It stays below six times its rows.
    """
    size = len(former)
    if end - start < start:
        columns, footer = _encoded(table, 0)
        if len(columns) <= start:
            kept = former[start : end if end + len(footer) <= size else size]
            return _filled([columns, bytes(start - len(columns)), kept], footer, size)
    columns, footer = _encoded(table, end)
    if end + len(columns) + len(footer) > size:
        end = size
        columns, footer = _encoded(table, end)
    return _filled([_MAGIC, bytes(start - len(_MAGIC)), former[start:end], columns], footer, size)


def _filled(content: list[memoryview | bytes], footer: memoryview, size: int) -> list[memoryview | bytes]:
    """Return the pieces of a file of this size, or of one with room for more if it must grow."""
    length = sum(len(piece) for piece in content)
    needed = length + len(footer)
    if needed > size:
        size = needed + needed // 4
    return [*content, bytes(size - needed), footer]


def _encoded(table: Any, start: int) -> tuple[memoryview, memoryview]:
    """Return a Parquet file's columns as they must stand at `start` (at 0 with the magic), and its footer."""
    buffer = pa.BufferOutputStream()
    writer = pq.ParquetWriter(buffer, ARROW_SCHEMA, compression="zstd", use_dictionary=_REPEATING)
    buffer.write(bytes(max(0, start - buffer.tell())))
    writer.write_table(table)
    end = buffer.tell()
    writer.close()
    data = memoryview(buffer.getvalue())
    return data[start:end], data[end:]


def _span(part: bytes) -> tuple[int, int]:
    """Return where the columns of a Parquet file begin and end. Raises pa.ArrowException if it is none."""
    footer = pq.ParquetFile(pa.BufferReader(part)).metadata
    groups = [footer.row_group(number) for number in range(footer.num_row_groups)]
    chunks = [group.column(number) for group in groups for number in range(footer.num_columns)]
    begins = [chunk.dictionary_page_offset or chunk.data_page_offset for chunk in chunks]
    ends = [begin + chunk.total_compressed_size for begin, chunk in zip(begins, chunks, strict=True)]
    return min(begins, default=len(_MAGIC)), max(ends, default=len(_MAGIC))
