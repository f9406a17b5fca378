"""One front-end worker's work on one item: fetch, probe, plan, decode, render. Turns every failure into a value.

path ─▶ check & hash ─▶ probe ─▶ plan ─▶ decode ─▶ render ─▶ (Prepared, prompt)
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from pipeline.errors import ItemError
from pipeline.gate import rule_for
from pipeline.hardware.devices import EngineSetup
from pipeline.job import FrontEnd as FrontEndSettings
from pipeline.job import Media, Rehearsal
from pipeline.media.ladder import Forecast
from pipeline.media.looking import Looker
from pipeline.media.probe import check_file
from pipeline.media.process import opened
from pipeline.media.signals import signals
from pipeline.media.speech import SpeechDetector
from pipeline.policy import Policy
from pipeline.prompt import Renderer, expected_tokens
from pipeline.records import (
    SAMPLE_RATE_HZ,
    AudioStream,
    Decoded,
    Item,
    MediaFacts,
    Plan,
    Prepared,
    Signals,
    VideoStream,
    Window,
)
from pipeline.work import Work

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class FrontEndSetup:
    """What a front-end worker is made from."""

    engine: EngineSetup
    policy: Policy
    media: Media
    limits: FrontEndSettings
    token_budget: int
    rehearsal: Rehearsal | None = None


class FrontEnd:
    """Prepares items one at a time; holds the renderer, which costs seconds to make."""

    def __init__(self, setup: FrontEndSetup) -> None:
        self._setup = setup
        self.renderer = Renderer(setup.engine, setup.policy)
        self._work = Work(0.0)
        self._speech = SpeechDetector() if _asks_for_speech(setup) else None
        self._looker = Looker(setup.media, setup.limits, setup.token_budget)

    def fetch(self, item: Item, _: str, budget_s: float) -> Prepared:
        """Return what is known of the item when its bytes have been read, for `prepare`. Never raises."""
        work = self._work = Work(budget_s)
        return _guarded(work, lambda: learn_content(item, work))[0]

    def prepare(
        self,
        item: Item,
        request_id: str,
        budget_s: float,
        forecast: Forecast | None = None,
        fetched: Prepared | None = None,
    ) -> tuple[Prepared, Any]:
        """Return what is known of the item, and its prompt or None if the item failed or the policy's gate answers it.

        `budget_s` is the time left for the item; probe and decode are cut at it. With a forecast, less is looked at
        if the whole would take longer. What was `fetched` is not read for its content again. Never raises.
        """
        work = self._work = Work(budget_s, fetched)
        return _guarded(work, lambda: self._steps(item, request_id, work, forecast))

    def so_far(self) -> Prepared:
        """Return what is known of the item under way, with the seconds of its phases up to now; for another thread."""
        return self._work.so_far()

    def warm_up(self) -> Any:
        """Return the prompt of two synthetic seconds of sound and pictures; loads all that the first item needs."""
        facts, chosen, decoded = _synthetic()
        return self.renderer.render("warm-up", facts, chosen, decoded, 2.0).prompt

    def _steps(self, item: Item, request_id: str, work: Work, forecast: Forecast | None) -> Any:
        if work.prepared.content_sha256 is None:
            learn_content(item, work)
        seen = self._looker.look(item, work, forecast)
        if file_state(item.path) != work.prepared.file_state:
            # Its digest may be another content's than what was seen, and the answer is handed on by the digest.
            work.learn(content_sha256=None, content_bytes=None)
        work.learn(signals=work.timed("signals_s", lambda: self._signals(seen.decoded)))
        tokens = expected_tokens(seen.decoded, seen.plan)
        work.learn(audio_tokens=tokens.audio, video_tokens=tokens.video)
        # Clips with known answers come without a forecast: the model is to answer them.
        rule = rule_for(self._setup.policy.gate, work.prepared) if forecast is not None else None
        if rule is not None:
            work.learn(gate=rule.id)
            return None
        looked_at = seen.facts, seen.plan, seen.decoded, seen.duration_s
        rendered = work.timed("render_s", lambda: self.renderer.render(request_id, *looked_at))
        self._looker.pace.rendered(tokens.audio + tokens.video, work.prepared.phases.render_s or 0.0)
        work.learn(prompt_tokens=rendered.prompt_tokens, prompt_bytes=rendered.array_bytes)
        return rendered.prompt

    def _signals(self, decoded: Decoded) -> Signals:
        measured = signals(decoded.pcm, decoded.frames)
        return measured if self._speech is None else replace(measured, speech_share=self._speech.share(decoded.pcm))


def _asks_for_speech(setup: FrontEndSetup) -> bool:
    in_gate = any(rule.when.speech_share is not None for rule in setup.policy.gate)
    return in_gate or setup.media.signals.speech


def _guarded(work: Work, steps: Callable[[], Any]) -> tuple[Prepared, Any]:
    """Return what is known after some steps and what they came to, or why they failed and None."""
    try:
        result = steps()
    except ItemError as error:
        return work.failed(error.code, error.message), None
    except Exception as error:
        # The last net: what nobody foresaw costs this item, not the worker.
        return work.failed("internal_error", f"{type(error).__name__}: {str(error)[:300]}"), None
    return work.prepared, result


def learn_content(item: Item, work: Work) -> None:
    """Read the item's file and learn its digest and the state it was in before. Raises ItemError."""
    state = file_state(item.path)
    digest, size = work.timed("fetch_s", lambda: fetch(item.path, work.left_s))
    work.learn(content_sha256=digest, content_bytes=size, file_state=state)


def file_state(path: bytes) -> tuple[int, ...] | None:
    """Return numbers that differ as soon as a file was written to or another one took its place, None without one."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def fetch(path: bytes, left_s: Callable[[], float]) -> tuple[str, int]:
    """Return the SHA-256 (hex) of the file's bytes and how many they are; the file is checked before it is opened.

    Raises ItemError, `deadline` as soon as `left_s` says that no time is left.
    """
    check_file(path)
    digest, size = hashlib.sha256(), 0
    with opened(path) as fd:
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while chunk := os.read(fd, _READ_BYTES):
                digest.update(chunk)
                size += len(chunk)
                if left_s() <= 0:
                    raise ItemError("deadline", "the item's time was over before its file was read")
        except OSError as error:
            raise ItemError("source_unreadable", f"reading the file failed: {error.strerror}") from error
    return digest.hexdigest(), size


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
