"""A front end without ffmpeg and renderer: it reads and hashes the file, no more."""

from __future__ import annotations

import os
import time

from pipeline.engine.fake import FakePrompt, attempt_of, fault_of
from pipeline.errors import ItemError
from pipeline.front_end import fetch
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

    def prepare(
        self, item: Item, request_id: str, budget_s: float, _: Forecast | None = None
    ) -> tuple[Prepared, FakePrompt | None]:
        """See FrontEnd.prepare; nobody looks, so there is no lesser look."""
        work = self._work = Work(budget_s)
        fault = fault_of(item.item_id, self._rehearsal)
        if fault == "front_end_dies" and attempt_of(request_id) == 1:
            os._exit(70)
        try:
            digest = work.timed("fetch_s", lambda: fetch(item.path, work.left_s))
            takes_s = _FOR_EVER_S if fault == "front_end_hangs" else self._rehearsal.front_end_s
            work.timed("decode_s", lambda: time.sleep(takes_s))
        except ItemError as error:
            return work.failed(error.code, error.message), None
        work.learn(
            content_sha256=digest,
            facts=_FACTS,
            duration_s=_FACTS.duration_s,
            coverage=1.0,
            audio_tokens=_AUDIO_TOKENS,
            prompt_tokens=_PROMPT_TOKENS,
        )
        return work.prepared, FakePrompt(_AUDIO_TOKENS, 0, _PROMPT_TOKENS)

    def so_far(self) -> Prepared:
        """See FrontEnd.so_far."""
        return self._work.so_far()

    def warm_up(self) -> FakePrompt:
        """See FrontEnd.warm_up."""
        return FakePrompt(_AUDIO_TOKENS, 0, _PROMPT_TOKENS)
