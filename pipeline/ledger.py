"""What the output already holds: the Parquet parts, read into a compact index, and what follows for an item.

The parts are the only ledger; nothing is kept beside them. Never writes, and never decides by position.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.contents import COLUMNS as CONTENT_COLUMNS
from pipeline.contents import Contents
from pipeline.errors import REASONS, JobError
from pipeline.records import GOOD_STATUSES, Item, LedgerEntry, Status
from pipeline.row import ARROW_SCHEMA
from pipeline.source import id_key

Retry = Literal["all", "errors", "none"]
OnChange = Literal["stop", "append", "rewrite"]

_COLUMNS = ["row_id", "item_id", "source_key", "fingerprint", "status", "reason", "sla_met", "committed_at"]
_DESCRIBING = ["policy_id", "policy_version", "model"]


@dataclass(frozen=True, slots=True)
class Todo:
    """An item to be worked on: the row its row takes the place of, and the value of its `follows_row_id`."""

    why: Literal["new", "retry", "changed", "follow", "rewrite"]
    replaces: LedgerEntry | None = None
    follows_row_id: str | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """What many rows have in common, kept once for all of them."""

    fingerprint: str
    status: Status
    reason: str | None
    sla_met: bool


@dataclass(frozen=True, slots=True)
class Skip:
    """An item that keeps its row, and the facts of that row; `gone` if that is because its file is not to be found."""

    entry: Facts
    gone: bool = False


class Ledger:
    """An index of all rows by item, about 200 bytes per row; filled once by `read_ledger`.

    `contents` is the index by content, None if it was not asked for.
    """

    def __init__(self, contents: Contents | None = None) -> None:
        self.contents = contents
        self._heads: dict[bytes, int] = {}  # id_key -> the item's latest row
        self._earlier = array("i")  # row -> the same item's row before it, -1 if none
        self._committed_us = array("q")
        self._facts_of = array("I")
        self._facts: dict[Facts, int] = {}
        self._facts_list: list[Facts] = []
        self._descriptions: dict[str, str] = {}
        self._parts: list[str] = []
        self._part_starts: list[int] = []
        self._row_ids = _Texts()
        self._source_keys = _Texts()

    def rows(self) -> int:
        """Return how many rows the parts hold."""
        return len(self._earlier)

    def entry(self, item_id: str, fingerprint: str) -> LedgerEntry | None:
        """Return the item's row of this fingerprint."""
        row = self.find(item_id, fingerprint)
        return None if row is None else self.entry_at(row)

    def find(self, item_id: str, fingerprint: str) -> int | None:
        """Return the place of the item's row of this fingerprint, for `entry_at`, `facts` and `source_key`."""
        row = self._heads.get(id_key(item_id), -1)
        while row >= 0:
            if self._fingerprint(row) == fingerprint:
                return row
            row = self._earlier[row]
        return None

    def latest(self, item_id: str) -> LedgerEntry | None:
        """Return the item's row that was committed last, whatever its fingerprint."""
        row = self._heads.get(id_key(item_id))
        return None if row is None else self.entry_at(row)

    def superseded(self, fingerprint: str) -> dict[str, set[str]]:
        """Return by part the row_id of each row whose item has a row of this fingerprint that will stay."""
        rows: dict[str, set[str]] = {}
        for head in self._heads.values():
            if self._earlier[head] < 0:
                continue
            chain = [head]
            while self._earlier[chain[-1]] >= 0:
                chain.append(self._earlier[chain[-1]])
            own = [row for row in chain if self._fingerprint(row) == fingerprint]
            # Another try may make good what failed; until then an older answer is better than none.
            if own and is_final(self.facts(own[0])):
                for row in set(chain) - set(own):
                    rows.setdefault(self._part_of(row), set()).add(self._row_ids[row])
        return rows

    def fingerprints(self) -> dict[str, str]:
        """Return a description for people of each fingerprint in the output."""
        return dict(self._descriptions)

    def rows_of(self, fingerprint: str) -> int:
        """Return how many rows have this fingerprint."""
        counts = Counter(self._facts_of)
        return sum(counts[code] for facts, code in self._facts.items() if facts.fingerprint == fingerprint)

    def entry_at(self, row: int) -> LedgerEntry:
        """Return the row at a place."""
        facts, part = self.facts(row), self._part_of(row)
        return LedgerEntry(
            self._row_ids[row], self.source_key(row), facts.fingerprint, facts.status, facts.reason, facts.sla_met, part
        )

    def facts(self, row: int) -> Facts:
        """Return what the row at a place shares with others; much cheaper than the whole."""
        return self._facts_list[self._facts_of[row]]

    def source_key(self, row: int) -> str:
        """Return which state of its file the row at a place is about."""
        return self._source_keys[row]

    def _part_of(self, row: int) -> str:
        return self._parts[bisect_right(self._part_starts, row) - 1]

    def _start_part(self, name: str) -> None:
        self._parts.append(name)
        self._part_starts.append(self.rows())

    def _add(self, batch: Any) -> None:
        """Take in a record batch of _COLUMNS and _DESCRIBING, and CONTENT_COLUMNS if contents are indexed."""
        if self.contents is not None:
            self.contents.add_batch(self._parts[-1], batch)
        self._row_ids.extend(batch.column("row_id"))
        self._source_keys.extend(batch.column("source_key"))
        self._committed_us.extend(batch.column("committed_at").cast(pa.int64()).to_pylist())
        first = self.rows()
        facts = zip(*(batch.column(name).to_pylist() for name in _COLUMNS[3:7]), strict=True)
        codes: dict[tuple[Any, ...], int] = {}
        item_ids = batch.column("item_id").to_pylist()
        for place, (item_id, values) in enumerate(zip(item_ids, facts, strict=True)):
            code = codes.get(values)
            if code is None:
                code = codes[values] = self._code(Facts(*values), batch, place)
            self._facts_of.append(code)
            self._link(item_id, first + place)

    def _code(self, facts: Facts, batch: Any, place: int) -> int:
        """Return the number of these facts."""
        if facts.fingerprint not in self._descriptions:
            policy, version, model = (batch.column(name)[place].as_py() for name in _DESCRIBING)
            self._descriptions[facts.fingerprint] = describe(policy, version, model)
        if facts not in self._facts:
            self._facts[facts] = len(self._facts_list)
            self._facts_list.append(facts)
        return self._facts[facts]

    def _link(self, item_id: str, row: int) -> None:
        """Put a row into its item's chain, which runs from the latest to the first."""
        key = id_key(item_id)
        head = self._heads.setdefault(key, row)
        if head == row:
            self._earlier.append(-1)
            return
        after, before = -1, head
        while before >= 0:
            if self._fingerprint(before) == self._fingerprint(row):
                raise JobError(
                    f"the output holds two rows of the same fingerprint for item {item_id}, in "
                    f"{self._part_of(before)} and {self._part_of(row)}; remove one of the parts, "
                    "or use another output.path"
                )
            if self._committed_us[before] > self._committed_us[row]:
                after = before
            before = self._earlier[before]
        if after < 0:
            self._heads[key] = row
            self._earlier.append(head)
        else:
            self._earlier.append(self._earlier[after])
            self._earlier[after] = row

    def _fingerprint(self, row: int) -> str:
        return self._facts_list[self._facts_of[row]].fingerprint


class _Texts:
    """A long list of strings in two buffers."""

    def __init__(self) -> None:
        self._data = bytearray()
        self._ends = array("q", [0])

    def extend(self, strings: Any) -> None:
        """Append an Arrow array of strings without nulls."""
        values = strings.cast(pa.large_binary())
        if not len(values):
            return
        _, offsets, data = values.buffers()
        bounds = np.frombuffer(offsets, np.int64)[values.offset : values.offset + len(values) + 1]
        if data is not None:
            self._data += memoryview(data)[bounds[0] : bounds[-1]]
        self._ends.frombytes((bounds[1:] + (self._ends[-1] - bounds[0])).tobytes())

    def __getitem__(self, place: int) -> str:
        return self._data[self._ends[place] : self._ends[place + 1]].decode()


def read_ledger(folder: Path, contents_of: str | None = None) -> Ledger:
    """Return the index of every `part-*.parquet` of an output folder; an absent folder is an empty ledger.

    `contents_of` is the fingerprint whose rows are to be found by content, too. Raises JobError naming the part that
    cannot be read, is no part of this pipeline, or repeats an item.
    """
    ledger = Ledger(None if contents_of is None else Contents(contents_of))
    columns = {*_COLUMNS, *_DESCRIBING, *(CONTENT_COLUMNS if ledger.contents is not None else ())}
    for path in sorted(folder.glob("part-*.parquet")):
        ledger._start_part(path.name)
        try:
            with pq.ParquetFile(path) as file:
                if not file.schema_arrow.equals(ARROW_SCHEMA):
                    raise JobError(
                        f"{path} has other columns than this version writes; move it away, or use another output.path"
                    )
                for batch in file.iter_batches(batch_size=65_536, columns=list(columns)):
                    ledger._add(batch)
        except (pa.ArrowException, OSError) as error:
            cause = str(error).splitlines()[0]
            raise JobError(
                f"{path} cannot be read ({cause}); restore it, or move it away (its items are then screened again)"
            ) from None
    return ledger


def describe(policy_id: str, policy_version: str, model: str) -> str:
    """Return what people know a fingerprint by."""
    return f"policy {policy_id} version {policy_version}, model {model}"


def check_fingerprints(ledger: Ledger, fingerprint: str, on_change: OnChange, description: str = "") -> None:
    """Raise JobError if the output holds rows of other fingerprints and the job does not say what then.

    `description` is this run's `describe(...)`; with it the message says what differs.
    """
    others = {other: text for other, text in ledger.fingerprints().items() if other != fingerprint}
    if not others or on_change != "stop":
        return
    held = "; ".join(f"{ledger.rows_of(other)} rows of {text}" for other, text in others.items())
    if description in others.values():
        held += ", with other words in the policy, other media, answer or engine settings, or another program version"
    now = f" This run: {description}." if description and description not in others.values() else ""
    if ledger.rows_of(fingerprint):
        now += (
            " This run's own rows are there, too: append keeps both; rewrite keeps the old rows of recordings that are "
            "not found or not listed any more, and can stay set."
        )
    raise JobError(
        f"the output holds {held}.{now} Rows that cannot be compared do not mix unasked: use another "
        "output.path, or set output.on_change to append (add rows that name the row they follow) or rewrite "
        "(replace all old rows of each recording)"
    )


def is_good(status: Status) -> bool:
    """Return whether a row of this status rests on the recording."""
    return status in GOOD_STATUSES


def is_final(row: LedgerEntry | Facts, retry: Retry = "errors") -> bool:
    """Return whether a row about the present state of its file is good or not to be tried again.

    `retry`: "errors" tries retryable failures and deadlines again, "all" permanent ones too, "none" nothing.
    """
    if is_good(row.status) or retry == "none":
        return True
    return retry == "errors" and not _retryable(row)


def _retryable(row: LedgerEntry | Facts) -> bool:
    """Return whether another try may help; a code that this version does not know is tried."""
    reason = REASONS.get(row.reason or "")
    return row.status == "deadline" or reason is None or reason.retryable


def decide(item: Item, ledger: Ledger, fingerprint: str, on_change: OnChange, retry: Retry = "errors") -> Todo | Skip:
    """Return what is to be done about an item, given the rows there are.

    A good row stays when its file cannot be found any more, whatever its fingerprint: an unmounted disk must not
    turn verdicts into errors.
    """
    row = ledger.find(item.item_id, fingerprint)
    if row is not None:
        facts, same = ledger.facts(row), ledger.source_key(row) == item.source_key
        if (gone := item.size_bytes is None and is_good(facts.status)) or (same and is_final(facts, retry)):
            return Skip(facts, gone)
        entry = ledger.entry_at(row)
        return Todo("retry" if same else "changed", replaces=entry, follows_row_id=entry.row_id)
    latest = ledger.latest(item.item_id)
    if latest is None:
        return Todo("new")
    if item.size_bytes is None and is_good(latest.status):
        return Skip(Facts(latest.fingerprint, latest.status, latest.reason, latest.sla_met), gone=True)
    if on_change == "rewrite":
        return Todo("rewrite", replaces=latest, follows_row_id=latest.row_id)
    if on_change == "append":
        return Todo("follow", follows_row_id=latest.row_id)
    check_fingerprints(ledger, fingerprint, on_change)
    raise AssertionError("an item has a row of a fingerprint that the ledger does not know")
