"""A front end without ffmpeg and renderer: it reads and hashes the file, no more."""

from __future__ import annotations

import os
import time

from pipeline.engine.fake import FakePrompt, attempt_of, fault_of
from pipeline.errors import ItemError
from pipeline.front_end import learn_content
from pipeline.job import Rehearsal
from pipeline.media.ladder import Forecast
from pipeline.records import AudioStream, Item, MediaFacts, Prepared
from pipeline.work import Work

_FACTS = MediaFacts("audio", "rehearsal", 2.0, AudioStream(0, "rehearsal", 16_000, 1, 0.0, 2.0), None)
_AUDIO_TOKENS, _PROMPT_TOKENS = 26, 126
_FOR_EVER_S = 86_400.0


class RehearsalFrontEnd:
    """Stands in for `pipeline.front_end.FrontEnd`."""

    def __init__(self, rehearsal: Rehearsal) -> None:
        self._rehearsal = rehearsal
        self._work = Work(0.0)

    def fetch(self, item: Item, request_id: str, budget_s: float) -> Prepared:
        """See FrontEnd.fetch."""
        work = self._work = Work(budget_s)
        self._die_if_scripted(item, request_id)
        try:
            learn_content(item, work)
        except ItemError as error:
            return work.failed(error.code, error.message)
        return work.prepared

    def prepare(
        self,
        item: Item,
        request_id: str,
        budget_s: float,
        _: Forecast | None = None,
        fetched: Prepared | None = None,
    ) -> tuple[Prepared, FakePrompt | None]:
        """See FrontEnd.prepare; nobody looks, so there is no lesser look."""
        work = self._work = Work(budget_s, fetched)
        self._die_if_scripted(item, request_id)
        hangs = fault_of(item.item_id, self._rehearsal) == "front_end_hangs"
        try:
            if work.prepared.content_sha256 is None:
                learn_content(item, work)
            takes_s = _FOR_EVER_S if hangs else self._rehearsal.front_end_s
            work.timed("decode_s", lambda: time.sleep(takes_s))
        except ItemError as error:
            return work.failed(error.code, error.message), None
        work.learn(
            facts=_FACTS,
            duration_s=_FACTS.duration_s,
            coverage=1.0,
            audio_tokens=_AUDIO_TOKENS,
            prompt_tokens=_PROMPT_TOKENS,
        )
        return work.prepared, FakePrompt(_AUDIO_TOKENS, 0, _PROMPT_TOKENS)

    def _die_if_scripted(self, item: Item, request_id: str) -> None:
        if attempt_of(request_id) == 1 and fault_of(item.item_id, self._rehearsal) == "front_end_dies":
            os._exit(70)

    def so_far(self) -> Prepared:
        """See FrontEnd.so_far."""
        return self._work.so_far()

    def warm_up(self) -> FakePrompt:
        """See FrontEnd.warm_up."""
        return FakePrompt(_AUDIO_TOKENS, 0, _PROMPT_TOKENS)
