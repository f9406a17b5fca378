"""An engine without a model: answers what the job's rehearsal scripts, fails where it says so.

It takes what the rehearsal's front end makes, and prompts of the real one, whose tokens it counts. It keeps the same
promises as a real engine: requests run together, `max_num_seqs` at a time, and can be dropped.
"""

from __future__ import annotations

import hashlib
import heapq
import itertools
import json
import os
import queue
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from pipeline.engine.base import AnswerForm, EngineStats
from pipeline.engine.occupancy import OccupancyMeter
from pipeline.errors import EngineLost, ItemError
from pipeline.job import Rehearsal
from pipeline.records import Completion, JsonObject, TokenChoice
from pipeline.tokens import PlaceholderIds, count_media_tokens

_FOR_EVER_S = 86_400.0


@dataclass(frozen=True, slots=True)
class FakePrompt:
    """What a rehearsal's front end hands over instead of a prompt; of a real prompt, how many tokens it holds."""

    audio_tokens: int
    video_tokens: int
    prompt_tokens: int


@dataclass(frozen=True, slots=True)
class _Add:
    request_id: str
    prompt: FakePrompt
    attempt: int
    future: Future[Any]
    submitted: float


@dataclass(frozen=True, slots=True)
class _Abort:
    request_id: str


@dataclass(frozen=True, slots=True)
class _MoreToCome:
    more: bool


class FakeEngine:
    """A scripted engine; see `pipeline.engine.base.Engine`. With `ids` it takes rendered prompts, too."""

    def __init__(
        self, rehearsal: Rehearsal, max_num_seqs: int, form: AnswerForm, ids: PlaceholderIds | None = None
    ) -> None:
        self._ids = ids
        self._rehearsal = rehearsal
        self._seats = max_num_seqs
        self._occupancy = OccupancyMeter(max_num_seqs)
        self._text = json.dumps(_answer(form.schema), separators=(",", ":"))
        self._inbox: queue.SimpleQueue[_Add | _Abort | _MoreToCome | None] = queue.SimpleQueue()
        self._waiting: deque[_Add] = deque()
        self._running: dict[str, _Add] = {}
        self._due: list[tuple[float, int, str]] = []
        self._order = itertools.count()
        self._step_s = self._idle_s = 0.0
        self._steps = self._finished = self._aborted = 0
        self._thread = threading.Thread(target=self._run, name="engine-steps", daemon=True)
        self._thread.start()

    def submit(self, request_id: str, prompt: Any, short: bool = False) -> Future[Any]:  # noqa: ARG002
        """See Engine.submit; the one answer there is is short. `prompt` is a FakePrompt or a rendered prompt."""
        future: Future[Any] = Future()
        held = prompt if isinstance(prompt, FakePrompt) else _counted(prompt, self._ids)
        self._inbox.put(_Add(request_id, held, attempt_of(request_id), future, time.monotonic()))
        return future

    def completion(self, output: Completion) -> Completion:
        """See Engine.completion."""
        return output

    def abort(self, request_id: str) -> None:
        self._inbox.put(_Abort(request_id))

    def more_to_come(self, more: bool) -> None:
        self._inbox.put(_MoreToCome(more))

    def stats(self) -> EngineStats:
        return EngineStats(
            step_s=self._step_s,
            outside_s=0.0,
            idle_s=self._idle_s,
            steps=self._steps,
            finished=self._finished,
            aborted=self._aborted,
            beats=self._steps,
            unfinished=self._inbox.qsize() + len(self._waiting) + len(self._running),
            cache_used=len(self._running) / self._seats,
            occupancy=self._occupancy.account(),
        )

    def describe(self) -> str:
        return "rehearsal"

    def close(self) -> None:
        self._inbox.put(None)
        self._thread.join(timeout=30)

    # The loop

    def _run(self) -> None:
        while self._take_requests():
            self._settle_due()
            self._start_waiting()
            self._steps += 1
        for request in (*self._waiting, *self._running.values()):
            request.future.set_exception(EngineLost("the engine was closed"))

    def _take_requests(self) -> bool:
        """Take what is in the inbox, waiting until something comes or is due; return False when told to stop."""
        started = time.monotonic()
        busy = bool(self._due)
        timeout_s = max(0.0, self._due[0][0] - started) if busy else None
        while True:
            try:
                command = self._inbox.get(timeout=min(timeout_s, 0.2)) if timeout_s else self._inbox.get(not busy)
            except queue.Empty:
                return self._spent(started, busy)
            if command is None:
                return False
            if isinstance(command, _Abort):
                self._drop(command.request_id)
            elif isinstance(command, _MoreToCome):
                self._occupancy.more_to_come(command.more, time.monotonic())
            else:
                self._waiting.append(command)
                self._occupancy.taken(time.monotonic())
            if self._inbox.empty():
                return self._spent(started, busy)

    def _spent(self, started: float, busy: bool) -> bool:
        spent_s = time.monotonic() - started
        if busy:
            self._step_s += spent_s
        else:
            self._idle_s += spent_s
        return True

    def _start_waiting(self) -> None:
        while self._waiting and len(self._running) < self._seats:
            request = self._waiting.popleft()
            self._running[request.request_id] = request
            heapq.heappush(
                self._due, (time.monotonic() + self._takes_s(request), next(self._order), request.request_id)
            )

    def _takes_s(self, request: _Add) -> float:
        """Return how long a request takes; what kills or stalls the engine does it here."""
        fault, again = self._fault(request), request.attempt > 1
        if fault == "poison" or (fault == "engine_dies" and not again):
            os._exit(70)
        if fault == "engine_stalls" and not again:
            time.sleep(_FOR_EVER_S)
        if fault == "hang":
            return _FOR_EVER_S
        return self._rehearsal.slow_s if fault == "slow" else self._rehearsal.answer_s

    def _fault(self, request: _Add) -> str | None:
        return fault_of(item_of(request.request_id), self._rehearsal) if request.attempt else None

    def _settle_due(self) -> None:
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            _, _, request_id = heapq.heappop(self._due)
            request = self._running.pop(request_id, None)
            if request is not None:
                self._finished += 1
                self._occupancy.answered(now)
                request.future.set_result(self._completion(request, now))

    def _completion(self, request: _Add, now: float) -> Completion:
        text = "{this is no JSON" if self._fault(request) == "garbage" else self._text
        return Completion(
            text=text,
            tokens=(TokenChoice(text, 0.0, ()),),
            finish_reason="stop",
            prompt_tokens=request.prompt.prompt_tokens,
            audio_tokens=request.prompt.audio_tokens,
            video_tokens=request.prompt.video_tokens,
            output_tokens=1,
            wait_s=0.0,
            prefill_s=0.0,
            generate_s=now - request.submitted,
        )

    def _drop(self, request_id: str) -> None:
        request = self._running.pop(request_id, None)
        if request is None:
            request = next((one for one in self._waiting if one.request_id == request_id), None)
            if request is None:
                return
            self._waiting.remove(request)
        self._aborted += 1
        self._occupancy.dropped(time.monotonic())
        request.future.set_exception(ItemError("deadline", "the request was aborted in the engine"))


def _counted(prompt: Any, ids: PlaceholderIds | None) -> FakePrompt:
    """Return what a prompt of the real renderer holds."""
    if ids is None:
        raise TypeError(f"this rehearsal's engine takes no {type(prompt).__name__}: it knows no checkpoint's tokens")
    tokens = prompt["prompt_token_ids"]
    media = count_media_tokens(tokens, ids)
    return FakePrompt(media.audio, media.video, len(tokens))


def item_of(request_id: str) -> str:
    """Return the item's id in a request's name."""
    return request_id.rpartition("-")[0]


def attempt_of(request_id: str) -> int:
    """Return the number of the try that a request's name ends with; 0 for the warm-up, which nothing befalls."""
    number = request_id.rpartition("-")[2]
    return int(number) if number.isdigit() else 0


def fault_of(item_id: str, rehearsal: Rehearsal) -> str | None:
    """Return which of the rehearsal's faults befalls an item, the same in every process and run; None for most."""
    digest = hashlib.sha256(f"{rehearsal.seed} {item_id}".encode("utf-8", "surrogateescape")).digest()
    chance = int.from_bytes(digest[:8], "big") / 2**64
    for fault, share in rehearsal.faults.model_dump().items():
        if chance < share:
            return str(fault)
        chance -= share
    return None


def _answer(schema: JsonObject) -> JsonObject:
    """Return an answer of the schema: no label, review, so that nothing of a rehearsal looks like a clean pass."""
    labels = schema["properties"]["labels"]["properties"]
    return {"labels": dict.fromkeys(labels, False), "verdict": "review", "rationale": "rehearsal: nobody looked"}
