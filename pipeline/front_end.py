"""One front-end worker's work on one item: fetch, probe, plan, decode, render. Turns every failure into a value.

path ─▶ check & hash ─▶ probe ─▶ plan ─▶ decode ─▶ render ─▶ (Prepared, prompt)
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from pipeline.errors import ItemError
from pipeline.hardware.devices import EngineSetup
from pipeline.job import FrontEnd as FrontEndSettings
from pipeline.job import Media
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import check_file, measured_duration_s, probe
from pipeline.media.process import opened
from pipeline.policy import Policy
from pipeline.prompt import Renderer, expected_tokens
from pipeline.records import (
    SAMPLE_RATE_HZ,
    AudioStream,
    Decoded,
    Item,
    MediaFacts,
    Phases,
    Plan,
    Prepared,
    VideoStream,
    Window,
)

T = TypeVar("T")

_READ_BYTES = 1 << 20
# Below this share of the planned length a recording counts as cut short.
_COMPLETE = 0.95


@dataclass(frozen=True, slots=True)
class FrontEndSetup:
    """What a front-end worker is made from."""

    engine: EngineSetup
    policy: Policy
    media: Media
    limits: FrontEndSettings
    token_budget: int


class FrontEnd:
    """Prepares items one at a time; holds the renderer, which costs seconds to make."""

    def __init__(self, setup: FrontEndSetup) -> None:
        self._setup = setup
        self.renderer = Renderer(setup.engine, setup.policy)

    def prepare(self, item: Item, request_id: str, budget_s: float) -> tuple[Prepared, Any]:
        """Return what is known of the item, and its prompt or None if the item failed.

        `budget_s` is the time left for the item; probe and decode are cut at it. Never raises.
        """
        work = _Work(budget_s)
        try:
            prompt = self._steps(item, request_id, work)
        except ItemError as error:
            return work.failed(error.code, error.message), None
        except Exception as error:
            # The last net: what nobody foresaw costs this item, not the worker.
            return work.failed("internal_error", f"{type(error).__name__}: {str(error)[:300]}"), None
        return work.prepared, prompt

    def warm_up(self) -> Any:
        """Return the prompt of two synthetic seconds of sound and pictures; loads all that the first item needs."""
        facts, chosen, decoded = _synthetic()
        return self.renderer.render("warm-up", facts, chosen, decoded, 2.0).prompt

    def _steps(self, item: Item, request_id: str, work: _Work) -> Any:
        limits = self._setup.limits
        digest = work.timed("fetch_s", lambda: _fetch(item.path))
        work.learn(content_sha256=digest)
        facts = work.timed("probe_s", lambda: probe(item.path, work.at_most(limits.probe_timeout_s)))
        if facts.duration_s is None and facts.kind != "image":
            # Live recordings carry no length; without it there is no frame rate to choose.
            measured_s = work.timed(
                "probe_s", lambda: measured_duration_s(item.path, facts, work.at_most(limits.probe_timeout_s))
            )
            facts = replace(facts, duration_s=measured_s)
        work.learn(facts=facts, duration_s=facts.duration_s)
        chosen = work.timed("plan_s", lambda: plan(facts, self._setup.media, self._setup.token_budget))
        work.learn(plan=chosen, coverage=chosen.coverage)
        decoded = work.timed(
            "decode_s", lambda: decode(item.path, facts, chosen, work.at_most(limits.decode_timeout_s))
        )
        _check_senses(facts, decoded)
        duration_s, coverage = _length(facts, chosen, decoded)
        tokens = expected_tokens(decoded, chosen)
        work.learn(
            duration_s=duration_s,
            coverage=coverage,
            frames=len(decoded.frames),
            audio_tokens=tokens.audio,
            video_tokens=tokens.video,
            warnings=decoded.warnings,
        )
        rendered = work.timed("render_s", lambda: self.renderer.render(request_id, facts, chosen, decoded, duration_s))
        work.learn(prompt_tokens=rendered.prompt_tokens)
        return rendered.prompt


class _Work:
    """What is known of one item so far, and the time it may still take."""

    def __init__(self, budget_s: float) -> None:
        self._ends_at = time.monotonic() + budget_s
        self.prepared = Prepared(phases=Phases())

    def timed(self, phase: str, step: Callable[[], T]) -> T:
        """Run one phase and note its seconds, also when it fails."""
        started = time.monotonic()
        try:
            return step()
        finally:
            spent_s = (getattr(self.prepared.phases, phase) or 0.0) + time.monotonic() - started
            phases = replace(self.prepared.phases, **{phase: spent_s})
            self.prepared = replace(self.prepared, phases=phases)

    def learn(self, **facts: Any) -> None:
        self.prepared = replace(self.prepared, **facts)

    def failed(self, code: str, message: str) -> Prepared:
        return replace(self.prepared, error_code=code, error_message=message)

    def at_most(self, limit_s: float) -> float:
        """Return the shorter of a limit and the time left. Raises ItemError `deadline` if none is left."""
        left_s = self._ends_at - time.monotonic()
        if left_s <= 0:
            raise ItemError("deadline", "the item's time was over in the front end")
        return min(limit_s, left_s)


def _fetch(path: bytes) -> str:
    """Return the SHA-256 (hex) of the file's bytes; the file is checked before it is opened."""
    check_file(path)
    digest = hashlib.sha256()
    with opened(path) as fd:
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while chunk := os.read(fd, _READ_BYTES):
                digest.update(chunk)
        except OSError as error:
            raise ItemError("source_unreadable", f"reading the file failed: {error.strerror}") from error
    return digest.hexdigest()


def _check_senses(facts: MediaFacts, decoded: Decoded) -> None:
    """Raise ItemError if sound or pictures that the file has were not decoded: such an answer would be a lie."""
    detail = f": {decoded.warnings[0]}" if decoded.warnings else ""
    if facts.audio is not None and not len(decoded.pcm):
        raise ItemError("audio_lost", f"the sound track ({facts.audio.codec}) gave no samples{detail}")
    if facts.video is not None and not len(decoded.frames):
        raise ItemError("video_lost", f"the picture track ({facts.video.codec}) gave no frames{detail}")


def _length(facts: MediaFacts, chosen: Plan, decoded: Decoded) -> tuple[float | None, float | None]:
    """Return (length of the recording in seconds, share of it that was really looked at), None where unknown."""
    if facts.kind == "image":
        return None, 1.0
    planned_s = sum(window.duration_s for window in chosen.windows)
    if facts.duration_s is None:
        ended = decoded.decoded_s < planned_s
        return (decoded.decoded_s, 1.0) if ended else (None, None)
    whole = len(chosen.windows) == 1 and decoded.decoded_s >= _COMPLETE * planned_s
    if whole:
        return decoded.decoded_s, chosen.coverage
    found = min(1.0, decoded.decoded_s / planned_s) if planned_s > 0 else 0.0
    return facts.duration_s, chosen.coverage * (found if found < _COMPLETE else 1.0)


def _synthetic() -> tuple[MediaFacts, Plan, Decoded]:
    """Return two seconds of hum and grey, for warming up."""
    seconds, frames, side = 2, 4, 64
    facts = MediaFacts(
        kind="av",
        container="synthetic",
        duration_s=float(seconds),
        audio=AudioStream(1, "pcm", SAMPLE_RATE_HZ, 1, 0.0, float(seconds)),
        video=VideoStream(0, "raw", side, side, 2.0, 0.0, float(seconds)),
    )
    chosen = Plan(
        windows=(Window(0.0, float(seconds)),),
        duration_known=True,
        audio=True,
        frames=frames,
        frame_rate_hz=2.0,
        width=side,
        height=side,
        audio_tokens=0,
        video_tokens=0,
        coverage=1.0,
    )
    hum = 0.1 * np.sin(np.arange(seconds * SAMPLE_RATE_HZ) * (2 * np.pi * 220 / SAMPLE_RATE_HZ))
    grey = np.full((frames, side, side, 3), 128, np.uint8)
    return facts, chosen, Decoded(hum.astype(np.float32), grey, np.arange(frames) / 2.0, float(seconds))
