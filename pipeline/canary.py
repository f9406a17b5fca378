"""Known-answer clips: asked before the first item, through the workers and the engine that the items will get.

Owns which clips these are, what is expected and what a person reads if it does not come. How a recording is screened
is handed in; no row is written.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pydantic import Field
from rich.table import Table
from rich.text import Text

from pipeline.calibration import Calibration, calibrated
from pipeline.checkpoint import TRAINING_FILE, Checkpoint
from pipeline.errors import REASONS, EngineLost, ItemError, JobError, WorkersLost, nearest
from pipeline.job import CanaryClip, Job
from pipeline.media.probe import check_file
from pipeline.plain import printable
from pipeline.policy import Policy, prompt_digest
from pipeline.records import Answer, Item, JsonObject, Phases, Prepared
from pipeline.settings_io import Settings, read_yaml, validate
from pipeline.uri import uri_of
from pipeline.verdict import Outcome

CANARY_FILE = Path("canaries") / "canaries.yaml"
NO_CANARIES = "no known-answer clip is asked: wrong answers of the model can go unseen (canary.clips lists some)"
# Beside every clip's own time: workers that died meanwhile take this long to come back.
_PATIENCE_S = 120.0
_MAYBE_THE_ENGINES_END = ("engine_lost", "engine_killed", "deadline")

Screen = Callable[[Item], Awaitable[Outcome]]


class CanaryFile(Settings):
    """`canaries/canaries.yaml` in a checkpoint folder: clips that its makers know the answers of."""

    policy_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The `prompt_digest` of the policy that the answers follow from."""
    clips: tuple[CanaryClip, ...] = Field(min_length=1)
    """The clips, with paths relative to this file."""


@dataclass(frozen=True, slots=True)
class Canary:
    """A clip whose answer is known; `where` is the place that names it, for messages."""

    where: str
    clip: CanaryClip


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one canary: an answer (calibrated, before routing), or the code and message of what failed."""

    canary: Canary
    answer: Answer | None
    reason: str | None
    message: str | None
    content_sha256: str | None
    seconds: float

    @property
    def differs(self) -> tuple[str, ...]:
        """Return what came instead of what was expected; empty if the canary passed."""
        if self.answer is None:
            return (f"{self.reason}: {self.message}",)
        return _differences(self.canary.clip, self.answer)


@dataclass(frozen=True, slots=True)
class Report:
    """What came of all canaries, and how long it took."""

    results: tuple[Result, ...] = ()
    seconds: float = 0.0

    @property
    def failed(self) -> tuple[Result, ...]:
        return tuple(result for result in self.results if result.differs)

    def summary(self) -> JsonObject:
        asked = len(self.results)
        return {"asked": asked, "passed": asked - len(self.failed), "seconds": self.seconds}


# Which clips


def find_canaries(job: Job, policy: Policy, checkpoint: Checkpoint) -> tuple[Canary, ...]:
    """Return the checkpoint's canaries, if they are for this policy, and the job's own.

    Raises JobError naming the key of a clip that cannot be read or that expects what this policy cannot answer.
    """
    own = tuple(Canary(f"canary.clips.{number}", clip) for number, clip in enumerate(job.canary.clips))
    found = (*_of_checkpoint(checkpoint, policy), *own) if job.canary.from_checkpoint else own
    for canary in found:
        _check(canary, policy)
    return found


def _of_checkpoint(checkpoint: Checkpoint, policy: Policy) -> tuple[Canary, ...]:
    path = checkpoint.folder / CANARY_FILE
    if not path.exists():
        return ()
    file = validate(CanaryFile, read_yaml(path, "canaries"), f"canaries {path}")
    if file.policy_sha256 != prompt_digest(policy):
        if checkpoint.training.policy_sha256 == prompt_digest(policy):
            raise JobError(
                f"{path} is for another policy than the checkpoint's {TRAINING_FILE}: one of the two was changed or is "
                "damaged; copy or download the checkpoint again"
            )
        return ()
    clips = (clip.model_copy(update={"path": path.parent / clip.path}) for clip in file.clips)
    return tuple(Canary(f"{path}: clips.{number}", clip) for number, clip in enumerate(clips))


def _check(canary: Canary, policy: Policy) -> None:
    try:
        check_file(os.fsencode(canary.clip.path))
    except ItemError as error:
        raise JobError(f"{canary.where}.path: {canary.clip.path}: {error.message}") from None
    known = [label.id for label in policy.labels]
    for name in canary.clip.labels:
        if name not in known:
            raise JobError(f'{canary.where}.labels: unknown label "{name}"{nearest(name, known)}')


# Asking


class EngineWatch(Protocol):
    """Tells whether there is an engine, and whether it is still the same one."""

    async def engine_ready(self) -> None:
        """Wait until there is an engine. Raises EngineLost if there will be none."""

    def engine_generation(self) -> int:
        """Return a number that grows as soon as an engine is given up for another one."""


async def ask_canaries(
    canaries: Sequence[Canary],
    screen: Screen,
    calibration: Calibration | None,
    sla_s: float,
    *,
    engine: EngineWatch,
    max_restarts: int,
) -> Report:
    """Screen all canaries together and return what came of each.

    `screen` keeps each clip's own time; should it hang all the same, it is given up after the time of all. A clip
    that got no answer because its engine ended is asked again by the next one, at most `max_restarts` times. Raises
    WorkersLost, also if the engine ends each time.
    """
    started = time.monotonic()
    results: dict[int, Result] = {}
    unanswered = list(range(len(canaries)))
    await engine.engine_ready()
    for _ in range(1 + max_restarts):
        generation = engine.engine_generation()
        results |= await _ask_together({n: canaries[n] for n in unanswered}, screen, calibration, sla_s)
        await engine.engine_ready()
        same = engine.engine_generation() == generation
        unanswered = [n for n in unanswered if not same and results[n].reason in _MAYBE_THE_ENGINES_END]
        if not unanswered:
            return Report(tuple(results[n] for n in sorted(results)), time.monotonic() - started)
    raise EngineLost(f"no engine lived to answer the known-answer clips: {results[unanswered[0]].message}")


async def _ask_together(
    canaries: Mapping[int, Canary], screen: Screen, calibration: Calibration | None, sla_s: float
) -> dict[int, Result]:
    """Return what came of each canary, by its number. Raises WorkersLost."""
    limit_s = len(canaries) * sla_s + _PATIENCE_S
    tasks = [asyncio.create_task(_ask(*pair, screen, calibration, limit_s)) for pair in canaries.items()]
    try:
        return dict(zip(canaries, await asyncio.gather(*tasks), strict=True))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _ask(number: int, canary: Canary, screen: Screen, calibration: Calibration | None, limit_s: float) -> Result:
    """Return what came of one canary; whatever fails, but for the engine's end, is its result."""
    started = time.monotonic()
    try:
        async with asyncio.timeout(limit_s):
            outcome = await screen(_item(canary, number))
    except WorkersLost:
        raise
    except TimeoutError:
        outcome = _failed("deadline", f"nothing came within {limit_s:.0f} s")
    except Exception as error:
        outcome = _failed("internal_error", f"{type(error).__name__}: {error}"[:500])
    return Result(
        canary=canary,
        answer=calibrated(outcome.answer, calibration) if outcome.answer else None,
        reason=outcome.reason,
        message=outcome.message,
        content_sha256=outcome.prepared.content_sha256,
        seconds=time.monotonic() - started,
    )


def _item(canary: Canary, number: int) -> Item:
    """Return the clip as an item whose id no listed item has: ids name sounds and pictures in the engine's cache."""
    path = os.fsencode(canary.clip.path)
    return Item(f"canary-{number}-{os.urandom(8).hex()}", uri_of(path), path, None, None, "")


def _failed(code: str, message: str) -> Outcome:
    return Outcome(prepared=Prepared(phases=Phases()), attempts=1, reason=code, message=message)


# Comparing and telling


def _differences(expected: CanaryClip, answer: Answer) -> tuple[str, ...]:
    """Return in words what the answer has instead of what was expected."""
    found = []
    if answer.verdict != expected.verdict:
        found.append(f"{answer.verdict} {answer.confidence:.2f}")
    elif expected.min_confidence is not None and answer.confidence < expected.min_confidence:
        found.append(f"confidence {answer.confidence:.3g}")
    wrong = (label for label in answer.labels if expected.labels.get(label.id, label.present) != label.present)
    return (*found, *(f"{_label(label.id, label.present)} {label.confidence:.2f}" for label in wrong))


def _expectation(expected: CanaryClip) -> str:
    least = "" if expected.min_confidence is None else f" at least {expected.min_confidence:g}"
    return ", ".join([f"{expected.verdict}{least}", *(_label(*pair) for pair in expected.labels.items())])


def _label(name: str, present: bool) -> str:
    return name if present else f"no {name}"


def _advice(result: Result) -> str:
    if result.answer is None and result.reason is not None:
        return REASONS[result.reason].action
    own = result.canary.where.startswith("canary.")
    otherwise = f"correct {_key(result)}" if own else "the clips are out of date: set canary.from_checkpoint: false"
    return f"Check weights, policy, media and engine settings; if they are right, {otherwise}."


def _key(result: Result) -> str:
    return os.path.basename(result.canary.where)


def failure_table(report: Report) -> Table:
    """Return the canaries that failed, for people."""
    failed = report.failed
    title = f"{len(failed)} of {len(report.results)} known-answer clips failed"
    table = Table(title=title, title_justify="left", show_lines=True)
    for name in ("clip", "expected", "got", "what to do"):
        table.add_column(name, overflow="fold")
    for result in failed:
        clip = result.canary.clip
        cells = (f"{clip.path.name} ({_key(result)})", _expectation(clip), ", ".join(result.differs), _advice(result))
        table.add_row(*(Text(printable(cell)) for cell in cells))
    return table


def as_facts(result: Result) -> JsonObject:
    """Return a result as plain values for the journal."""
    clip, answer = result.canary.clip, result.answer
    return {
        "clip": uri_of(os.fsencode(clip.path)),
        "content_sha256": result.content_sha256,
        "expected": {"verdict": clip.verdict, "labels": clip.labels, "min_confidence": clip.min_confidence},
        "verdict": answer.verdict if answer else None,
        "confidence": answer.confidence if answer else None,
        "labels": {label.id: label.present for label in answer.labels} if answer else {},
        "reason": result.reason,
        "message": result.message,
        "passed": not result.differs,
        "seconds": result.seconds,
    }
