"""What a run has to do: the listing of its shard, filtered by what the ledger holds."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator

from pipeline.contents import Contents
from pipeline.ledger import Ledger, Todo, decide
from pipeline.progress import Tally
from pipeline.records import Item
from pipeline.resolve import Resolved
from pipeline.selection import EVERYTHING, Selection
from pipeline.source import id_key, list_ids, list_items

_LIST_BATCH = 64


class Worklist:
    """The run's share of the listing, filtered by the ledger: yields what is to be done, remembers what it was."""

    def __init__(self, resolved: Resolved, ledger: Ledger, tally: Tally, selection: Selection = EVERYTHING) -> None:
        self._resolved = resolved
        self._ledger = ledger
        self._tally = tally
        self._selection = selection
        self._begun: set[bytes] = set()
        self.items_listed = 0
        self.held_bad = 0
        self.held_late = 0
        self._work = self._filtered()

    @property
    def contents(self) -> Contents | None:
        """The index of the contents that the output held an answer to before the run, if there is to be one."""
        return self._ledger.contents

    def first(self) -> tuple[Item, Todo] | None:
        """Return the first piece of work without taking it away, None if everything is done."""
        head = next(self._work, None)
        if head is not None:
            self._work = itertools.chain([head], self._work)
        return head

    async def __aiter__(self) -> AsyncIterator[tuple[Item, Todo]]:
        # Listing touches the file system, so it happens off the event loop.
        while batch := await asyncio.to_thread(lambda: list(itertools.islice(self._work, _LIST_BATCH))):
            for pair in batch:
                yield pair

    def ids(self) -> Iterator[str]:
        """List the source anew: the item_id of every item of this run's shard."""
        return filter(self._selection.takes, list_ids(self._resolved.job.source))

    def knows(self, item_id: str) -> bool:
        """Return whether the item had its row before the run, or was given out as work."""
        held = self._ledger.find(item_id, self._resolved.fingerprint)
        return held is not None or id_key(item_id) in self._begun

    def _filtered(self) -> Iterator[tuple[Item, Todo]]:
        on_change, fingerprint = self._resolved.job.output.on_change, self._resolved.fingerprint
        for item in list_items(self._resolved.job.source):
            if not self._selection.takes(item.item_id):
                continue
            self.items_listed += 1
            decision = decide(item, self._ledger, fingerprint, on_change, self._selection.retry)
            if isinstance(decision, Todo):
                self._begun.add(id_key(item.item_id))
                yield item, decision
                continue
            self._tally.skipped += 1
            self._tally.gone += decision.gone
            # A row of other settings is no answer under these.
            self.held_bad += decision.entry.status == "error" or decision.entry.fingerprint != fingerprint
            self.held_late += decision.entry.status == "deadline" or not decision.entry.sla_met
