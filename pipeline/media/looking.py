"""Looks at one recording: probe, plan, decode; again where the decoder was too slow or the header wrong.

path ─▶ probe ─▶ plan ─▶ decode ─▶ Seen
          ▲                 │
          └── measured ─────┘
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from pipeline.errors import ItemError
from pipeline.job import FrontEnd as FrontEndSettings
from pipeline.job import Media
from pipeline.media.decode import decode
from pipeline.media.key_frames import key_times_s, longest_gap_s, worth_listing
from pipeline.media.ladder import Forecast, Look, choose, describe, glimpse, looked_at_s, source_gigapixels
from pipeline.media.plan import plan
from pipeline.media.probe import measured, measured_duration_s, probe
from pipeline.media.sandbox import Confinement
from pipeline.media.skipping import jumps
from pipeline.records import Decoded, Item, MediaFacts, Plan, Remark
from pipeline.work import Work

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_RECENT = 5
# In shorter recordings there is too little to leave out.
_LONG_S = 60.0
# With less time left no lesser look is tried.
_LEAST_TRY_S = 5.0
_LEAST_GIGAPIXELS, _LEAST_HOURS, _LEAST_TOKENS = 0.1, 0.02, 200
# Below this share of the planned length a recording counts as cut short.
_COMPLETE = 0.95
# A header that is wrong by less than this, in seconds and as a share, is right.
_CLAIM_S, _CLAIM_SHARE = 0.5, 0.05


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """What is known of a recording once it was looked at; `duration_s` and `coverage` are None where unknown."""

    facts: MediaFacts
    plan: Plan
    decoded: Decoded
    duration_s: float | None
    coverage: float | None


class Looker:
    """Looks at recordings one at a time, and learns how long that takes."""

    def __init__(self, media: Media, limits: FrontEndSettings, token_budget: int) -> None:
        self._media, self._limits, self._token_budget = media, limits, token_budget
        self._confinement = Confinement(
            round(limits.decoder_memory_gib * 2**30), limits.max_pixels, limits.sandbox, limits.warm_decoders
        )
        self.pace = Pace()
        self._key_frames_s: NDArray[np.float64] | None = None

    def look(self, item: Item, work: Work, forecast: Forecast | None) -> Seen:
        """Return the sound and pictures of an item, and note in `work` what becomes known on the way.

        With a forecast, less is looked at if the whole would take longer than the time left. Raises ItemError.
        """
        limit_s = self._limits.probe_timeout_s
        facts = work.timed("probe_s", lambda: probe(item.path, work.at_most(limit_s), self._confinement))
        unclaimed = facts.duration_s is None
        if unclaimed and facts.kind != "image":  # live recordings carry no length; without it there is no frame rate
            facts = replace(facts, duration_s=self._measured_s(item, facts, work))
        work.learn(facts=facts, duration_s=facts.duration_s, remarks=facts.remarks)
        facts, self._key_frames_s = work.timed("probe_s", lambda: self._key_frames(item, facts, work))
        seen = self._in_time(item, facts, work, forecast)
        if not (seen.decoded.claim_holds or unclaimed):
            seen = self._by_true_length(item, seen, work, forecast)
        _check_senses(facts, seen.decoded)
        work.learn(
            duration_s=seen.duration_s,
            coverage=seen.coverage,
            frames=len(seen.decoded.frames),
            frames_off_s=seen.decoded.frames_off_s if len(seen.decoded.frames) else None,
            remarks=(*work.prepared.remarks, *seen.decoded.remarks),
        )
        return seen

    def _key_frames(self, item: Item, facts: MediaFacts, work: Work) -> tuple[MediaFacts, NDArray[np.float64] | None]:
        """Return the facts with the gap between key frames, and when these are shown, where that may spare decoding."""
        if self._media.video.exact_frames or facts.kind == "image" or (facts.duration_s or 0.0) < _LONG_S:
            return facts, None
        whole = plan(facts, self._media, self._token_budget)
        if not worth_listing(facts, whole):
            return facts, None
        limit_s = work.at_most(self._limits.probe_timeout_s)
        times_s = key_times_s(item.path, facts, whole, limit_s, self._confinement)
        return facts if times_s is None else replace(facts, key_gap_s=longest_gap_s(times_s)), times_s

    def _measured_s(self, item: Item, facts: MediaFacts, work: Work) -> float | None:
        """Return the recording's length by its packets, None if that takes too long."""
        limit_s = work.at_most(self._limits.probe_timeout_s)
        return work.timed("probe_s", lambda: measured_duration_s(item.path, facts, limit_s, self._confinement))

    def _in_time(self, item: Item, facts: MediaFacts, work: Work, forecast: Forecast | None) -> Seen:
        """Return what was decoded; of a glimpse if the look chosen first took too long."""
        look, chosen = work.timed("plan_s", lambda: self._look(facts, forecast, work.left_s()))
        try:
            return self._decoded(item, facts, look, chosen, work)
        except ItemError as error:
            if error.code != "decode_timeout" or forecast is None or work.left_s() < _LEAST_TRY_S:
                raise
            tried_s = work.prepared.phases.decode_s or 0.0
            look, lesser = glimpse(facts, self._media, self._token_budget, tried_s)
            if looked_at_s(lesser) >= looked_at_s(chosen):
                raise
            return self._decoded(item, facts, look, lesser, work)

    def _by_true_length(self, item: Item, seen: Seen, work: Work, forecast: Forecast | None) -> Seen:
        """Return a second look at a recording that is not as long as its header says, once it was measured.

        So a claim too short hides nothing, and one too long wastes no window. If that fails, what was seen before
        stands.
        """
        claimed_s = seen.facts.duration_s or 0.0
        try:
            measured_s = self._measured_s(item, seen.facts, work)
            if measured_s is None or abs(measured_s - claimed_s) < max(_CLAIM_S, _CLAIM_SHARE * claimed_s):
                return seen
            again = self._in_time(item, measured(seen.facts, measured_s), work, forecast)
            if again.decoded.goes_on and seen.facts.video is None:
                # Time stamps that begin anew are not added up; sound needs no frame rate: it is heard to its end.
                again = self._in_time(item, measured(seen.facts, None), work, forecast)
        except ItemError:
            return seen
        there_s, coverage = again.duration_s or max(measured_s, again.decoded.decoded_s), again.coverage
        code = "partial_decode" if there_s < claimed_s else "wrong_duration"
        more = "" if again.duration_s is not None else " or more"
        said = f"The header claims {claimed_s:.1f} s, {there_s:.1f} s{more} are there."
        work.learn(remarks=(*work.prepared.remarks, Remark(code, said)))
        if there_s < claimed_s and coverage is not None:
            coverage *= there_s / claimed_s
        return replace(again, coverage=coverage)

    def _decoded(self, item: Item, facts: MediaFacts, look: Look, chosen: Plan, work: Work) -> Seen:
        """Decode what a look wants, and learn how long that takes. Raises ItemError."""
        work.learn(plan=chosen, coverage=chosen.coverage)
        if look.name != "full":
            work.learn(short_answer=look.short_answer, lesser_look=describe(look))
        limit_s, begun = work.at_most(self._limits.decode_timeout_s), time.monotonic()
        exact, keys_s = self._media.video.exact_frames, self._key_frames_s
        confined = self._confinement
        decoded = work.timed("decode_s", lambda: decode(item.path, facts, chosen, limit_s, confined, exact, keys_s))
        if not jumps(facts, chosen):
            self.pace.decoded(facts, chosen, time.monotonic() - begun)
        return Seen(facts, chosen, decoded, *_length(facts, chosen, decoded))

    def _look(self, facts: MediaFacts, forecast: Forecast | None, left_s: float) -> tuple[Look, Plan]:
        if forecast is None:
            return Look("full", self._media), plan(facts, self._media, self._token_budget)
        limit_s = self._limits.decode_timeout_s
        return choose(facts, self._media, self._token_budget, self.pace.applied(forecast), left_s, limit_s)


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
    if decoded.goes_on:
        return None, None
    if facts.duration_s is None:
        planned_s = sum(window.duration_s for window in chosen.windows)
        return (decoded.decoded_s, decoded.found_share) if decoded.decoded_s < planned_s else (None, None)
    found = decoded.found_share if decoded.found_share < _COMPLETE else 1.0
    whole = len(chosen.windows) == 1 and chosen.coverage == 1.0 and found == 1.0
    return decoded.decoded_s if whole else facts.duration_s, chosen.coverage * found
