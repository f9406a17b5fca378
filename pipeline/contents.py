"""Which contents (by the SHA-256 of their bytes) the parts hold an answer to, and the rows that hold it.

The index keeps a piece of the digest, the part, and the sizes: 12 to 24 bytes for each row. Whether a row is about
that very content is seen when it is read back; nothing is ever taken over by the piece alone.
"""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from pipeline.part import read_part
from pipeline.records import GOOD_STATUSES
from pipeline.row import VerdictRow

COLUMNS = ["content_sha256", "content_bytes", "fingerprint", "status", "degraded", "reason"]
"""What `Contents.add_batch` reads."""
# Rows that were cut short because of the budgets, and for no other cause: another look would be the same.
_WHOLE_LOOK = "partial_coverage"
_PIECE_DIGITS = 16
_SORT_IN_EVERY = 8192
_ROWS_HELD = 20_000
_NIBBLES = np.zeros(256, np.uint8)
_NIBBLES[list(b"0123456789abcdef")] = range(16)


def may_be_taken_over(row: VerdictRow) -> bool:
    """Return whether a row answers for its content wherever else it turns up.

    Not if less was looked at than the job asks for because time was short. A row that is degraded for another reason
    than its length does not tell whether time was short, too; its content is better looked at again.
    """
    whole = not row.degraded or row.reason == _WHOLE_LOOK
    return row.status in GOOD_STATUSES and whole and row.content_sha256 is not None


class Contents:
    """An index from contents to the parts with rows of one fingerprint that may be taken over, and their sizes."""

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint
        self._places, self._sizes = _Index(), _Index()
        self._parts: dict[str, int] = {}  # in the order of their numbers

    def add_batch(self, part: str, batch: Any) -> None:
        """Take in what a record batch of a part, with COLUMNS, has of rows that may be taken over."""
        chosen = _may_be_taken_over(batch, self.fingerprint)
        digests, sizes = (batch.column(name).filter(chosen) for name in ("content_sha256", "content_bytes"))
        if len(digests):
            self._places.extend(_pieces(digests), self._number(part))
            self._sizes.extend(np.unique(sizes.to_numpy().astype(np.uint64)))

    def add(self, digest: str, part: str) -> None:
        """Take in a row of this run that a part holds now."""
        self._places.add(_piece(digest), self._number(part))

    def parts(self, digest: str) -> list[str]:
        """Return the parts that may hold such a row, each once."""
        numbers = self._places.find(_piece(digest))
        names = list(self._parts) if numbers else []
        return [names[number] for number in numbers]

    def add_size(self, size_bytes: int) -> None:
        """Take in the size of an item of this run."""
        self._sizes.add(size_bytes)

    def holds_size(self, size_bytes: int) -> bool:
        """Return whether something of this size was taken in."""
        return self._sizes.holds(size_bytes)

    def _number(self, part: str) -> int:
        return self._parts.setdefault(part, len(self._parts))


class _Index:
    """Numbers by key, both of them integers, in 12 bytes for each pair; each key may come with several numbers."""

    def __init__(self) -> None:
        self._keys = np.empty(0, np.uint64)  # sorted
        self._numbers = np.empty(0, np.uint32)  # beside _keys
        self._unsorted: list[tuple[NDArray[np.uint64], NDArray[np.uint32]]] = []
        self._recent: dict[int, int] = {}

    def extend(self, keys: NDArray[np.uint64], number: int = 0) -> None:
        self._unsorted.append((keys, np.full(len(keys), number, np.uint32)))

    def add(self, key: int, number: int = 0) -> None:
        """Add a pair; it takes the place of one of the same key that was added lately."""
        self._recent[key] = number
        if len(self._recent) >= _SORT_IN_EVERY:
            count = len(self._recent)
            numbers = np.fromiter(self._recent.values(), np.uint32, count)
            self._unsorted.append((np.fromiter(self._recent, np.uint64, count), numbers))
            self._recent = {}

    def find(self, key: int) -> list[int]:
        """Return the numbers of a key, each once."""
        self._sort_in()
        first, end = (int(np.searchsorted(self._keys, np.uint64(key), side)) for side in ("left", "right"))
        numbers = dict.fromkeys(self._numbers[first:end].tolist())
        if (recent := self._recent.get(key)) is not None:
            numbers[recent] = None
        return list(numbers)

    def holds(self, key: int) -> bool:
        if key in self._recent:
            return True
        self._sort_in()
        place = int(np.searchsorted(self._keys, np.uint64(key)))
        return place < len(self._keys) and int(self._keys[place]) == key

    def _sort_in(self) -> None:
        if not self._unsorted:
            return
        keys = np.concatenate([self._keys, *(keys for keys, _ in self._unsorted)])
        numbers = np.concatenate([self._numbers, *(numbers for _, numbers in self._unsorted)])
        order = np.argsort(keys, kind="stable")
        self._keys, self._numbers, self._unsorted = keys[order], numbers[order], []


def _may_be_taken_over(batch: Any, fingerprint: str) -> Any:
    """Return what `may_be_taken_over` says of each row of a batch that has this fingerprint, as an Arrow array."""
    good = pc.is_in(batch.column("status"), value_set=pa.array(GOOD_STATUSES))
    whole = pc.equal(batch.column("reason"), _WHOLE_LOOK)
    whole = pc.or_(pc.invert(batch.column("degraded")), pc.fill_null(whole, False))
    known = pc.fill_null(pc.equal(pc.binary_length(batch.column("content_sha256")), 64), False)
    same = pc.equal(batch.column("fingerprint"), fingerprint)
    return pc.and_(pc.and_(good, whole), pc.and_(known, same))


def _pieces(digests: Any) -> NDArray[np.uint64]:
    """Return the `_piece` of each digest of an Arrow array without nulls. One that is no hex finds nothing."""
    heads = pc.utf8_slice_codeunits(digests, 0, _PIECE_DIGITS).cast(pa.large_binary())
    data = np.frombuffer(b"".join(heads.to_pylist()), np.uint8)
    nibbles = _NIBBLES[data].reshape(-1, 8, 2)
    return (nibbles[..., 0] << 4 | nibbles[..., 1]).view(">u8").reshape(-1).astype(np.uint64)


def _piece(digest: str) -> int:
    return int(digest[:_PIECE_DIGITS], 16)


class KnownRows:
    """Reads rows back from an output's parts; holds the parts it read last, some 20 000 rows of them."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self._folder = folder
        self._fingerprint = fingerprint
        self._held: OrderedDict[tuple[str, int, int, int], Any] = OrderedDict()

    def find(self, digest: str, parts: list[str]) -> VerdictRow | None:
        """Return a row about this very content that may be taken over, None if these parts hold none (any more).

        Raises OSError for a part that cannot be read; call it from one thread at a time.
        """
        for part in parts:
            table = self._table(part)
            for place in _places(table, digest):
                row = VerdictRow.model_validate(table.slice(place, 1).to_pylist()[0])
                if row.fingerprint == self._fingerprint and may_be_taken_over(row):
                    return row
        return None

    def _table(self, part: str) -> Any:
        try:
            status = os.stat(self._folder / part)
        except FileNotFoundError:
            return None
        key = (part, status.st_ino, status.st_mtime_ns, status.st_size)
        if key not in self._held:
            for old in [old for old in self._held if old[0] == part]:
                del self._held[old]
            if (table := read_part(self._folder / part)) is None:
                return None
            self._held[key] = table
        self._held.move_to_end(key)
        while len(self._held) > 1 and sum(table.num_rows for table in self._held.values()) > _ROWS_HELD:
            self._held.popitem(last=False)
        return self._held[key]


def _places(table: Any, digest: str) -> list[int]:
    if table is None:
        return []
    # Of a bare string Arrow would guess the type, each time by looking for pandas.
    same = pc.equal(table.column("content_sha256"), pa.scalar(digest, pa.string()))
    places: list[int] = pc.indices_nonzero(same).to_pylist()
    return places
