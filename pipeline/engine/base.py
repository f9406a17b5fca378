"""What the pipeline asks of an engine: take a prompt, give a completion, drop a request, say how busy it was."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from pipeline.engine.occupancy import Occupancy
from pipeline.records import Completion, JsonObject


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """How every answer of a run is generated; `schema` is the JSON schema it must match, `short_schema` that of an
    answer that has to be quick."""

    schema: JsonObject
    short_schema: JsonObject
    max_tokens: int
    reasoning_max_tokens: int
    temperature: float


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Seconds of the engine's thread since its start: inside steps, working outside of them, waiting for work."""

    step_s: float
    outside_s: float
    idle_s: float
    steps: int
    finished: int
    aborted: int
    beats: int = 0
    """Signs of life: steps, and requests taken or dropped."""
    unfinished: int = 0
    """Requests that wait to be taken, wait or run."""
    cache_used: float = 0.0
    """Share of the KV cache's blocks that requests hold."""
    occupancy: Occupancy = field(default_factory=Occupancy)
    """How full the batch was."""

    def plus(self, other: EngineStats) -> EngineStats:
        """Return the account of two engines, one after the other; what is now is that of `other`."""
        return EngineStats(
            step_s=self.step_s + other.step_s,
            outside_s=self.outside_s + other.outside_s,
            idle_s=self.idle_s + other.idle_s,
            steps=self.steps + other.steps,
            finished=self.finished + other.finished,
            aborted=self.aborted + other.aborted,
            beats=self.beats + other.beats,
            unfinished=other.unfinished,
            cache_used=other.cache_used,
            occupancy=self.occupancy.plus(other.occupancy),
        )


class Engine(Protocol):
    """An engine that runs requests together and answers each when it is done."""

    def submit(self, request_id: str, prompt: Any, short: bool = False) -> Future[Any]:
        """Take one prompt, and ask for a short answer if `short`.

        The future gives the engine's own output, to be read with `completion`. It raises ItemError for this request
        alone, EngineLost if the engine died.
        """

    def completion(self, output: Any) -> Completion:
        """Return an output as plain values. Costs time per token: call it off the engine's thread."""

    def abort(self, request_id: str) -> None:
        """Drop a request; its future raises ItemError `deadline`. Unknown or finished requests are ignored."""

    def more_to_come(self, more: bool) -> None:
        """Hear that a screening begins (True), or that all of it has been admitted (False); see OccupancyMeter."""

    def stats(self) -> EngineStats:
        """Return the time account of the engine's thread."""

    def describe(self) -> str:
        """Return engine, version and device for the rows."""

    def close(self) -> None:
        """Stop the thread; requests in flight raise EngineLost."""
