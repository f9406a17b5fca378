"""Manifests: CSV, JSONL or Parquet lists of recordings with a `uri` column and optionally `id`."""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import JobError
from pipeline.job import Source
from pipeline.uri import FILE_ADDRESS, absolute, name_text, path_of

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")


class Named(NamedTuple):
    """A recording as it was named: its path, the manifest's id if any, where it was named."""

    path: bytes
    id: str | None
    where: str


def manifest_rows(source: Source) -> Iterator[Named]:
    """Yield the rows of the manifest, if there is one."""
    path = source.manifest
    if path is None:
        return
    readers = {".csv": _csv_rows, ".jsonl": _jsonl_rows, ".ndjson": _jsonl_rows, ".parquet": _parquet_rows}
    reader = readers.get(path.suffix.lower())
    if reader is None:
        raise JobError(f"source.manifest: {path} must be a .csv, .jsonl or .parquet file")
    folder = absolute(os.fsencode(path.parent))
    try:
        for place, uri, given_id in reader(path):
            where = f"source.manifest: {path}, {place}"
            yield Named(_local_path(uri, folder, where), _text_id(given_id, where), where)
    except FileNotFoundError:
        raise JobError(f"source.manifest: {path} does not exist") from None
    except OSError as error:
        raise JobError(f"source.manifest: {path} cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise JobError(f"source.manifest: {path} is not UTF-8: {error}") from None


_Rows = Iterator[tuple[str, Any, Any]]


def _csv_rows(path: Path) -> _Rows:
    with open(path, encoding="utf-8-sig", newline="") as file:
        # strict: a quote that is never closed must not swallow the rest of the list.
        rows = csv.reader(file, strict=True)
        try:
            header = [name.strip() for name in next(rows, [])]
            uri_at, id_at = _columns(header, path)
            for row in rows:
                if row:
                    cells: list[str | None] = [*row, *[None] * (len(header) - len(row))]
                    yield f"line {rows.line_num}", cells[uri_at], None if id_at is None else cells[id_at]
        except csv.Error as error:
            raise JobError(f"source.manifest: {path}, line {rows.line_num}: bad CSV: {error}") from None


def _jsonl_rows(path: Path) -> _Rows:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            text = line.decode("utf-8-sig").strip()
            if not text:
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError) as error:
                raise JobError(f"source.manifest: {path}, line {number}: bad JSON: {error}") from None
            if not isinstance(row, dict):
                raise JobError(f"source.manifest: {path}, line {number}: must be a JSON object with a uri")
            yield f"line {number}", row.get("uri"), row.get("id")


def _parquet_rows(path: Path) -> _Rows:
    try:
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            _, id_at = _columns(names, path)
            columns = ["uri"] if id_at is None else ["uri", "id"]
            number = 0
            for batch in file.iter_batches(batch_size=8192, columns=columns):
                uris = batch.column("uri").to_pylist()
                ids = [None] * len(uris) if id_at is None else batch.column("id").to_pylist()
                for uri, given_id in zip(uris, ids, strict=True):
                    number += 1
                    yield f"row {number}", uri, given_id
    except pa.ArrowException as error:
        raise JobError(f"source.manifest: {path} is not a readable Parquet file: {error}") from None


def _columns(names: list[str], path: Path) -> tuple[int, int | None]:
    """Return where the columns uri and id stand."""
    twice = [name for name in ("uri", "id") if names.count(name) > 1]
    if twice:
        raise JobError(f'source.manifest: {path} has two columns "{twice[0]}"')
    if "uri" not in names:
        raise JobError(f'source.manifest: {path} has no column "uri"; it has: {", ".join(names) or "none"}')
    return names.index("uri"), names.index("id") if "id" in names else None


def _local_path(uri: Any, folder: bytes, where: str) -> bytes:
    """Return the absolute path that a manifest's uri means. Raises JobError."""
    if isinstance(uri, bytes):
        uri = name_text(uri)
    if uri is None or (isinstance(uri, str) and not uri.strip()):
        raise JobError(f"{where}: the row has no uri")
    if not isinstance(uri, str):
        raise JobError(f"{where}: uri must be text, not {type(uri).__name__}")
    address = FILE_ADDRESS.fullmatch(uri)
    scheme = _SCHEME.match(uri)
    if address is None and scheme:
        raise JobError(f'{where}: only local files are supported yet, not the scheme "{scheme[1]}://" of {uri!r}')
    if address and (address["host"] or "localhost").lower() != "localhost":
        raise JobError(f"{where}: {uri!r} lies on another host; only local files are supported yet")
    try:
        path = path_of(uri)
    except UnicodeEncodeError:
        raise JobError(f"{where}: {uri!r} cannot be a file name") from None
    if b"\0" in path:
        raise JobError(f"{where}: {uri!r} cannot be a file name")
    return absolute(os.path.join(folder, path))


def _text_id(given: Any, where: str) -> str | None:
    """Return a manifest's id as text, None if the row has none. Raises JobError."""
    if given is None or given == "" or (isinstance(given, float) and math.isnan(given)):
        return None
    if isinstance(given, bool) or not isinstance(given, (str, int, float)):
        raise JobError(f"{where}: id must be text or a number, not {type(given).__name__}")
    text = str(given)
    try:
        text.encode()
    except UnicodeEncodeError:
        raise JobError(f"{where}: the id {text!r} is not valid text") from None
    return text
