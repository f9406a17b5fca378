"""Who of a run's items has the same content as another one, and what becomes of them. On the event loop alone.

The first item of a content is screened; who comes while that goes on waits for its row. Only an item of a size that
was there before is hashed ahead of its look: for all others that would be one more call of a worker for nothing.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

from pipeline.contents import Contents, KnownRows, may_be_taken_over
from pipeline.records import Item
from pipeline.row import VerdictRow

Answer = asyncio.Future[VerdictRow | None]
"""The row of a content to take over; None if there is none after all. Never fails and is never cancelled."""


class Copies:
    """Tells items of a content that is known, or under way, from those that are to be screened.

    Of an item are told, in this order: `may_be_one`, `claim` if so, `looked_at` and `ended`; the last one always.
    """

    def __init__(self, folder: Path, contents: Contents) -> None:
        self._contents = contents
        self._rows = KnownRows(folder, contents.fingerprint)
        self._under_way: dict[str, Answer] = {}  # by content
        self._led: dict[str, str] = {}  # item_id -> the content that it is the first of
        self._unhashed: dict[int, asyncio.Future[None]] = {}  # by size: done when the content is known
        self._first: dict[str, int] = {}  # item_id -> the size that it is the first of
        self._uncommitted: dict[str, VerdictRow] = {}  # by content
        self._reading = asyncio.Lock()
        self._readers: set[asyncio.Task[None]] = set()
        self._waiting: dict[str, asyncio.Task[None]] = {}  # by item_id

    def may_be_one(self, item: Item) -> bool:
        """Return whether the item may be a copy, and is to be hashed before it is looked at."""
        size = item.size_bytes
        if size is None or self._contents.holds_size(size):
            return size is not None
        self._contents.add_size(size)
        self._unhashed[size] = asyncio.get_running_loop().create_future()
        self._first[item.item_id] = size
        return False

    def claim(self, item: Item, content: str) -> Answer | None:
        """Return the answer for an item's content, which may be still to come; None if the item is to be screened."""
        if (answer := self._under_way.get(content)) is not None:
            return answer
        answer = asyncio.get_running_loop().create_future()
        if (row := self._uncommitted.get(content)) is not None:
            answer.set_result(row)
        elif parts := self._contents.parts(content):
            self._under_way[content] = answer
            reader = asyncio.create_task(self._read(content, parts))
            self._readers.add(reader)
            reader.add_done_callback(self._readers.discard)
        elif (first := self._unhashed.get(item.size_bytes or 0)) is not None:
            self._waiting[item.item_id] = asyncio.create_task(self._claim_after(first, item, content, answer))
        else:
            self._lead(item.item_id, content, answer)
            return None
        return answer

    def _lead(self, item_id: str, content: str, answer: Answer) -> None:
        self._under_way[content], self._led[item_id] = answer, content

    async def _read(self, content: str, parts: list[str]) -> None:
        """Answer a claim with what the parts hold, which are read on another thread."""
        row: VerdictRow | None = None
        try:
            async with self._reading:
                row = await asyncio.to_thread(self._rows.find, content, parts)
        except (OSError, ValueError):
            pass  # A part that cannot be read now: the content is screened anew, and nothing is lost.
        finally:
            self._settle(content, row)

    async def _claim_after(self, first: asyncio.Future[None], item: Item, content: str, answer: Answer) -> None:
        """Answer a claim as `claim` does when the content of the first item of the same size is known."""
        row: VerdictRow | None = None
        try:
            await asyncio.wait({first})
            del self._waiting[item.item_id]
            if (other := self.claim(item, content)) is not None:
                await asyncio.wait({other})
                row = other.result()
        finally:
            answer.set_result(row)

    def looked_at(self, item_id: str, content: str | None) -> None:
        """Note the content of an item that is looked at, if it is known by now."""
        size = self._first.pop(item_id, None)
        if size is None:
            return
        if content is not None and content not in self._under_way:
            self._lead(item_id, content, asyncio.get_running_loop().create_future())
        self._unhashed.pop(size).set_result(None)

    def ended(self, item_id: str, row: VerdictRow | None = None) -> None:
        """Note the row that an item came to, or that it came to none; to say so twice is no error."""
        if (waiting := self._waiting.pop(item_id, None)) is not None:
            waiting.cancel()  # it has ended: it can lead no more
        self.looked_at(item_id, None)
        if row is not None and (row.duplicate_of is not None or not may_be_taken_over(row)):
            row = None
        if row is not None and row.content_sha256 is not None:
            self._uncommitted[row.content_sha256] = row
        if (content := self._led.pop(item_id, None)) is not None:
            self._settle(content, row if row is not None and row.content_sha256 == content else None)

    def committed(self, row: VerdictRow, part: str) -> None:
        """Note that a row of this run can be read from a part."""
        content = row.content_sha256 or ""
        kept = self._uncommitted.get(content)
        if kept is not None and kept.row_id == row.row_id:
            del self._uncommitted[content]
            self._contents.add(content, part)

    def _settle(self, content: str, row: VerdictRow | None) -> None:
        self._under_way.pop(content).set_result(row)
