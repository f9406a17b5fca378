"""Which items of its source a run takes (`--shard`), and which of their rows it replaces (`--retry`). Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import get_args

from pipeline.errors import JobError, nearest
from pipeline.ledger import Retry
from pipeline.records import JsonObject
from pipeline.source import id_key

_RETRIES: dict[str, Retry] = {name: name for name in get_args(Retry)}
_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})")


@dataclass(frozen=True, slots=True)
class Shard:
    """One of `count` shares of a source, counted from 1; an item belongs to the same one in every run."""

    number: int
    count: int

    def takes(self, item_id: str) -> bool:
        """Return whether the item belongs to this shard."""
        # Ids that a manifest gives need not be evenly spread, so their keys are hashed once more.
        digest = hashlib.blake2b(id_key(item_id), digest_size=8).digest()
        return int.from_bytes(digest, "big") % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class Selection:
    """The items and rows of one run; without a shard it takes every item."""

    retry: Retry = "errors"
    shard: Shard | None = None

    def takes(self, item_id: str) -> bool:
        """Return whether the item is this run's business at all."""
        return self.shard is None or self.shard.takes(item_id)

    def facts(self) -> JsonObject:
        """Return both choices for run.json."""
        return {"retry": self.retry, "shard": None if self.shard is None else str(self.shard)}


EVERYTHING = Selection()


def parse_selection(retry: str, shard: str | None) -> Selection:
    """Return what the values of `--retry` and `--shard` say. Raises JobError."""
    if retry not in _RETRIES:
        raise JobError(f'--retry: there is no "{retry}"{nearest(retry, _RETRIES)}')
    return Selection(_RETRIES[retry], None if shard is None else _parse_shard(shard))


def _parse_shard(text: str) -> Shard:
    match = _SHARD.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise JobError(f'--shard wants i/n with i from 1 to n, for instance 2/5, got "{text}"')
    return Shard(int(match[1]), int(match[2]))
