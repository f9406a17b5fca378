"""One front-end worker's work on one item: fetch, probe, plan, decode, render. Turns every failure into a value.

path ─▶ check & hash ─▶ probe ─▶ plan ─▶ decode ─▶ render ─▶ (Prepared, prompt)
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from pipeline.errors import ItemError
from pipeline.hardware.devices import EngineSetup
from pipeline.job import FrontEnd as FrontEndSettings
from pipeline.job import Media, Rehearsal
from pipeline.media.decode import decode
from pipeline.media.ladder import Forecast, Look, choose, describe, glimpse, looked_at_s, source_gigapixels
from pipeline.media.plan import plan
from pipeline.media.probe import check_file, measured, measured_duration_s, probe
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
    Remark,
    VideoStream,
    Window,
)

T = TypeVar("T")

_READ_BYTES = 1 << 20
_RECENT = 5
# With less time left no lesser look is tried.
_LEAST_TRY_S = 5.0
_LEAST_GIGAPIXELS, _LEAST_HOURS, _LEAST_TOKENS = 0.1, 0.02, 200
# Below this share of the planned length a recording counts as cut short.
_COMPLETE = 0.95
# A header that is wrong by less than this, in seconds and as a share, is right.
_CLAIM_S, _CLAIM_SHARE = 0.5, 0.05


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
        self._pace = Pace()

    def prepare(
        self, item: Item, request_id: str, budget_s: float, forecast: Forecast | None = None
    ) -> tuple[Prepared, Any]:
        """Return what is known of the item, and its prompt or None if the item failed.

        `budget_s` is the time left for the item; probe and decode are cut at it. With a forecast, less is looked at
        if the whole would take longer. Never raises.
        """
        work = self._work = Work(budget_s)
        try:
            prompt = self._steps(item, request_id, work, forecast)
        except ItemError as error:
            return work.failed(error.code, error.message), None
        except Exception as error:
            # The last net: what nobody foresaw costs this item, not the worker.
            return work.failed("internal_error", f"{type(error).__name__}: {str(error)[:300]}"), None
        return work.prepared, prompt

    def so_far(self) -> Prepared:
        """Return what is known of the item under way, with the seconds of its phases up to now; for another thread."""
        return self._work.so_far()

    def warm_up(self) -> Any:
        """Return the prompt of two synthetic seconds of sound and pictures; loads all that the first item needs."""
        facts, chosen, decoded = _synthetic()
        return self.renderer.render("warm-up", facts, chosen, decoded, 2.0).prompt

    def _steps(self, item: Item, request_id: str, work: Work, forecast: Forecast | None) -> Any:
        limits = self._setup.limits
        digest = work.timed("fetch_s", lambda: fetch(item.path, work.left_s))
        work.learn(content_sha256=digest)
        facts = work.timed("probe_s", lambda: probe(item.path, work.at_most(limits.probe_timeout_s)))
        unclaimed = facts.duration_s is None
        if (
            unclaimed and facts.kind != "image"
        ):  # live recordings carry no length; without it there is no frame rate to choose
            facts = replace(facts, duration_s=self._measured_s(item, facts, work))
        work.learn(facts=facts, duration_s=facts.duration_s, remarks=facts.remarks)
        chosen, decoded = self._seen_in_time(item, facts, forecast, work)
        duration_s, coverage = _length(facts, chosen, decoded)
        if not (decoded.claim_holds or unclaimed):
            chosen, decoded, duration_s, coverage = self._by_true_length(item, facts, forecast, work, chosen, decoded)
        _check_senses(facts, decoded)
        tokens = expected_tokens(decoded, chosen)
        work.learn(
            duration_s=duration_s,
            coverage=coverage,
            frames=len(decoded.frames),
            audio_tokens=tokens.audio,
            video_tokens=tokens.video,
            remarks=(*work.prepared.remarks, *decoded.remarks),
        )
        rendered = work.timed("render_s", lambda: self.renderer.render(request_id, facts, chosen, decoded, duration_s))
        self._pace.rendered(tokens.audio + tokens.video, work.prepared.phases.render_s or 0.0)
        work.learn(prompt_tokens=rendered.prompt_tokens, prompt_bytes=_prompt_bytes(decoded))
        return rendered.prompt

    def _measured_s(self, item: Item, facts: MediaFacts, work: Work) -> float | None:
        """Return the recording's length by its packets, None if that takes too long."""
        limit_s = work.at_most(self._setup.limits.probe_timeout_s)
        return work.timed("probe_s", lambda: measured_duration_s(item.path, facts, limit_s))

    def _seen_in_time(
        self, item: Item, facts: MediaFacts, forecast: Forecast | None, work: Work
    ) -> tuple[Plan, Decoded]:
        """Return what was decoded and by which plan; a glimpse if the look chosen first took too long."""
        look, chosen = work.timed("plan_s", lambda: self._look(facts, forecast, work.left_s()))
        try:
            return chosen, self._decoded(item, facts, look, chosen, work)
        except ItemError as error:
            if error.code != "decode_timeout" or forecast is None or work.left_s() < _LEAST_TRY_S:
                raise
            tried_s = work.prepared.phases.decode_s or 0.0
            look, lesser = glimpse(facts, self._setup.media, self._setup.token_budget, tried_s)
            if looked_at_s(lesser) >= looked_at_s(chosen):
                raise
            return lesser, self._decoded(item, facts, look, lesser, work)

    def _by_true_length(
        self, item: Item, facts: MediaFacts, forecast: Forecast | None, work: Work, chosen: Plan, decoded: Decoded
    ) -> tuple[Plan, Decoded, float | None, float | None]:
        """Return plan, what was decoded, length and coverage of a recording that is not as long as its header says.

        It is measured and looked at again, so that a claim too short hides nothing and one too long wastes no window.
        If that fails, what was decoded before stands.
        """
        claimed_s = facts.duration_s or 0.0
        before = chosen, decoded, *_length(facts, chosen, decoded)
        try:
            measured_s = self._measured_s(item, facts, work)
            if measured_s is None or abs(measured_s - claimed_s) < max(_CLAIM_S, _CLAIM_SHARE * claimed_s):
                return before
            if measured_s > claimed_s and facts.video is None:
                measured_s = None  # sound needs no frame rate: it is heard to its end, wherever that is
            again = measured(facts, measured_s)
            chosen, decoded = self._seen_in_time(item, again, forecast, work)
        except ItemError:
            return before
        duration_s, coverage = _length(again, chosen, decoded)
        there_s = duration_s or decoded.decoded_s
        code = "partial_decode" if there_s < claimed_s else "wrong_duration"
        said = f"The header claims {claimed_s:.1f} s, {there_s:.1f} s are there."
        if there_s < claimed_s and coverage is not None:
            coverage *= there_s / claimed_s
        work.learn(remarks=(*work.prepared.remarks, Remark(code, said)))
        return chosen, decoded, duration_s, coverage

    def _decoded(self, item: Item, facts: MediaFacts, look: Look, chosen: Plan, work: Work) -> Decoded:
        """Decode what a look wants, and learn how long that takes. Raises ItemError."""
        work.learn(plan=chosen, coverage=chosen.coverage)
        if look.name != "full":
            work.learn(short_answer=look.short_answer, lesser_look=describe(look))
        limit_s, begun = work.at_most(self._setup.limits.decode_timeout_s), time.monotonic()
        decoded = work.timed("decode_s", lambda: decode(item.path, facts, chosen, limit_s))
        self._pace.decoded(facts, chosen, time.monotonic() - begun)
        return decoded

    def _look(self, facts: MediaFacts, forecast: Forecast | None, left_s: float) -> tuple[Look, Plan]:
        media, budget = self._setup.media, self._setup.token_budget
        if forecast is None:
            return Look("full", media), plan(facts, media, budget)
        limit_s = self._setup.limits.decode_timeout_s
        return choose(facts, media, budget, self._pace.applied(forecast), left_s, limit_s)


class Pace:
    """How fast this worker decodes and renders, learned from its items; the slower of the last few counts."""

    def __init__(self) -> None:
        self._per_gigapixel: deque[float] = deque(maxlen=_RECENT)
        self._per_hour: deque[float] = deque(maxlen=_RECENT)
        self._per_kilotoken: deque[float] = deque(maxlen=_RECENT)

    def decoded(self, facts: MediaFacts, chosen: Plan, spent_s: float) -> None:
        """Learn from a decode; what is too short tells only how long ffmpeg takes to start."""
        gigapixels, hours = source_gigapixels(facts, chosen), looked_at_s(chosen) / 3600
        if facts.video is not None and gigapixels >= _LEAST_GIGAPIXELS:
            self._per_gigapixel.append(spent_s / gigapixels)
        elif facts.video is None and hours >= _LEAST_HOURS:
            self._per_hour.append(spent_s / hours)

    def rendered(self, tokens: int, spent_s: float) -> None:
        """Learn from a rendering."""
        if tokens >= _LEAST_TOKENS:
            self._per_kilotoken.append(spent_s * 1000 / tokens)

    def applied(self, forecast: Forecast) -> Forecast:
        """Return the forecast with what was learned in place of what was assumed."""
        return replace(
            forecast,
            decode_s_per_gigapixel=max(self._per_gigapixel, default=forecast.decode_s_per_gigapixel),
            sound_decode_s_per_hour=max(self._per_hour, default=forecast.sound_decode_s_per_hour),
            render_s_per_kilotoken=max(self._per_kilotoken, default=forecast.render_s_per_kilotoken),
        )


class Work:
    """What is known of one item so far, and the time it may still take."""

    def __init__(self, budget_s: float) -> None:
        self._ends_at = time.monotonic() + budget_s
        self._under_way: tuple[str, float] | None = None
        self.prepared = Prepared(phases=Phases())

    def timed(self, phase: str, step: Callable[[], T]) -> T:
        """Run one phase and note its seconds, also when it fails."""
        self._under_way = phase, time.monotonic()
        try:
            return step()
        finally:
            self.prepared, self._under_way = self.so_far(), None

    def so_far(self) -> Prepared:
        """Return what is known, with the seconds of the phase under way."""
        prepared, under_way = self.prepared, self._under_way
        if under_way is None:
            return prepared
        phase, started = under_way
        spent_s = (getattr(prepared.phases, phase) or 0.0) + time.monotonic() - started
        return replace(prepared, phases=replace(prepared.phases, **{phase: spent_s}))

    def learn(self, **facts: Any) -> None:
        self.prepared = replace(self.prepared, **facts)

    def failed(self, code: str, message: str) -> Prepared:
        return replace(self.prepared, error_code=code, error_message=message)

    def left_s(self) -> float:
        return self._ends_at - time.monotonic()

    def at_most(self, limit_s: float) -> float:
        """Return the shorter of a limit and the time left. Raises ItemError `deadline` if none is left."""
        left_s = self.left_s()
        if left_s <= 0:
            raise ItemError("deadline", "the item's time was over in the front end")
        return min(limit_s, left_s)


def fetch(path: bytes, left_s: Callable[[], float]) -> str:
    """Return the SHA-256 (hex) of the file's bytes; the file is checked before it is opened.

    Raises ItemError, `deadline` as soon as `left_s` says that no time is left.
    """
    check_file(path)
    digest = hashlib.sha256()
    with opened(path) as fd:
        try:
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while chunk := os.read(fd, _READ_BYTES):
                digest.update(chunk)
                if left_s() <= 0:
                    raise ItemError("deadline", "the item's time was over before its file was read")
        except OSError as error:
            raise ItemError("source_unreadable", f"reading the file failed: {error.strerror}") from error
    return digest.hexdigest()


def _prompt_bytes(decoded: Decoded) -> int:
    """Return what patches and features of this sound and these frames take as float32: 4 bytes a colour value, 128 mel
    bins for 160 samples; half as much where the engine takes bfloat16."""
    return 4 * decoded.frames.size + 4 * 128 * len(decoded.pcm) // 160


def _check_senses(facts: MediaFacts, decoded: Decoded) -> None:
    """Raise ItemError if sound or pictures that the file has were not decoded: such an answer would be a lie."""
    detail = f": {decoded.remarks[0].text}" if decoded.remarks else ""
    if facts.audio is not None and not len(decoded.pcm):
        raise ItemError("audio_lost", f"the sound track ({facts.audio.codec}) gave no samples{detail}")
    if facts.video is not None and not len(decoded.frames):
        raise ItemError("video_lost", f"the picture track ({facts.video.codec}) gave no frames{detail}")


def _length(facts: MediaFacts, chosen: Plan, decoded: Decoded) -> tuple[float | None, float | None]:
    """Return (length of the recording in seconds, share of it that was really looked at), None where unknown."""
    if facts.kind == "image":
        return None, 1.0
    if facts.duration_s is None:
        planned_s = sum(window.duration_s for window in chosen.windows)
        return (decoded.decoded_s, decoded.found_share) if decoded.decoded_s < planned_s else (None, None)
    found = decoded.found_share if decoded.found_share < _COMPLETE else 1.0
    whole = len(chosen.windows) == 1 and chosen.coverage == 1.0 and found == 1.0
    return decoded.decoded_s if whole else facts.duration_s, chosen.coverage * found


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
