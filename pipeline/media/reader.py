"""How the windows of an opened recording are read: one run of ffmpeg for each, sound and pictures from one reading."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import ffmpeg
import numpy as np

from pipeline.errors import ItemError
from pipeline.media import animated, pictures, process, sound
from pipeline.media.headers import ALPHA_DECODERS, common_start_s
from pipeline.media.mono import Mono, Part, absurd, loudest_believed
from pipeline.media.process import Log, Sink, Taker, TimedOut, plain
from pipeline.media.sandbox import Confinement
from pipeline.media.skipping import NEAR_S, lead_s, may_skip, off_s
from pipeline.records import SAMPLE_RATE_HZ, MediaFacts, Plan, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REBASED = frozenset({"live_flv", "mpeg", "mpegts", "mpegtsraw", "nut", "ogg"})
"""Demuxers with AVFMT_TS_DISCONT: ffmpeg's zero is where the streams in use begin, elsewhere all streams."""
# A second run is begun only if so many times the first one's seconds are left.
_TWICE = 2.5


@dataclass(frozen=True, slots=True, eq=False)
class Excerpt:
    """What one run of ffmpeg gave: sound and frames (n, height, width, 3), at most what was asked for.

    `frames_off_s` is how far from its time the worst of the frames lies, beyond what any choice has.
    """

    sound: Part
    frames: NDArray[np.uint8]
    log: Log
    status: int
    loudest: float | None = None
    pictures_go_on: bool = False
    frames_off_s: float = 0.0

    @property
    def pcm(self) -> NDArray[np.float32]:
        return self.sound.pcm


class Reader:
    """One opened recording, and how its windows are read."""

    def __init__(
        self,
        fd: int,
        facts: MediaFacts,
        plan: Plan,
        deadline: float,
        confinement: Confinement,
        exact: bool = False,
    ) -> None:
        self.fd, self.facts, self.plan, self.deadline, self.confinement = fd, facts, plan, deadline, confinement
        self.start_s = common_start_s(facts.audio, facts.video)
        self.frames_each = plan.frames // len(plan.windows)
        self.skips = not exact and facts.video is not None and may_skip(plan, facts.video)

    def without_pictures(self) -> Reader:
        """Return a reader of the sound alone."""
        plan = replace(self.plan, frames=0)
        return Reader(self.fd, self.facts, plan, self.deadline, self.confinement, exact=True)

    def window(self, window: Window, extra_s: float) -> Excerpt:
        """Return a window's sound and pictures; each alone if one made ffmpeg stop early."""
        hears, sees = self.plan.audio, self.plan.frames > 0
        if self.facts.container in animated.CONTAINERS:
            return self._drawn(window)
        begun = time.monotonic()
        if not hears and not sees:
            return Excerpt(
                Part(np.empty(0, np.float32)), pictures.planes(0, self.plan.height, self.plan.width, 3), Log(), 0
            )
        both = self._pass(window, extra_s, hears, sees)
        if self.skips and not _will_do(both) and self.deadline - time.monotonic() > _TWICE * (time.monotonic() - begun):
            both = self._whole(window, extra_s, both)
        if both.loudest is not None:
            both = replace(both, sound=self._cleaned(window, extra_s, both))
        lost = both.status != 0 and hears and sees and (not both.pcm.size or not both.frames.size)
        if not lost:
            return both
        alone = self._pass(window, extra_s, True, False), self._pass(window, extra_s, False, True)
        heard = max(both.sound, alone[0].sound, key=lambda part: len(part.pcm))
        frames = max(both.frames, alone[1].frames, key=len)
        return replace(both, sound=heard, frames=frames)

    def _whole(self, window: Window, extra_s: float, thrifty: Excerpt) -> Excerpt:
        """Return a window with every frame decoded, as those that follow will be; the sound stays if it is good."""
        self.skips = False
        if thrifty.log.errors or thrifty.status:
            return self._pass(window, extra_s, self.plan.audio, True)
        seen = self._pass(window, extra_s, False, True)
        seen.log.samples |= thrifty.log.samples
        seen.log.rates_hz |= thrifty.log.rates_hz
        return replace(seen, sound=thrifty.sound, loudest=thrifty.loudest)

    def _drawn(self, window: Window) -> Excerpt:
        """Return a window's pictures where Pillow draws them. Raises ItemError decode_timeout."""
        try:
            frames, log, status = animated.frames(
                self.fd, self.plan, window, self.frames_each, self.deadline, self.confinement
            )
        except TimedOut:
            raise ItemError("decode_timeout", "Pillow did not finish in time and was stopped") from None
        return Excerpt(Part(np.empty(0, np.float32)), frames, log, status)

    def _cleaned(self, window: Window, extra_s: float, first: Excerpt) -> Part:
        """Return a window's sound without samples that are no numbers or absurd: the resampler spreads them.

        Raises ItemError audio_lost if nothing is left.
        """
        found, loudest = first, first.loudest
        while loudest is not None:
            again = self._pass(window, extra_s, True, False, loudest)
            found, loudest = again, again.loudest if again.loudest is not None and again.loudest < loudest else None
        odd = first.sound.odd or absurd(first.pcm)
        if odd > len(found.pcm) // 2 and not found.pcm.any():
            raise ItemError("audio_lost", "the sound holds no number: every sample is NaN, infinite or absurd")
        return replace(found.sound, odd=odd)

    def _pass(self, window: Window, extra_s: float, hears: bool, sees: bool, loudest: float | None = None) -> Excerpt:
        """Run ffmpeg once. Raises ItemError decode_timeout."""
        plan, facts = self.plan, self.facts
        samples = round((window.duration_s + extra_s) * SAMPLE_RATE_HZ) if hears else 0
        mono = Mono(samples, sound.keeps_time(facts))
        colours = 4 if facts.video is not None and facts.video.alpha else 3
        beyond = self._frames_beyond(extra_s) if sees else 0
        count = self.frames_each + beyond if sees else 0
        frames = pictures.planes(count, plan.height, plan.width, colours)
        sinks: list[Taker] = [mono] if samples else []
        pixels = Sink(memoryview(frames.transpose(0, 3, 1, 2).reshape(-1).data))
        if frames.size:
            sinks.append(pixels)
        log, shift_s = Log(), self.shift_s(window, hears, sees)

        def outputs(names: list[str]) -> list[ffmpeg.nodes.OutputStream]:
            named = iter(names)
            source, made = self.input(window), []
            if samples and facts.audio is not None:
                filters = sound.filters(facts, window.start_s > 0, shift_s, loudest)
                made.append(
                    self._sound(source[str(facts.audio.index)], filters, next(named), window.duration_s + extra_s)
                )
            if frames.size:
                made.append(self._pictures(source, shift_s, next(named), len(frames)))
            return made

        status = self.run(outputs, sinks, log)
        found = frames[: pixels.used // frames[0].size] if frames.size else frames
        goes_on, found = beyond > 0 and len(found) == count, found[: self.frames_each]
        if facts.video is not None and facts.video.alpha:
            found = pictures.over_grey(found, pictures.premultiplied(plan, facts.video))
        heard = Part(mono.pcm, mono.began or 0, mono.turned, mono.odd)
        off_s = self._off_s(log, shift_s, len(found)) if sees and self.skips else 0.0
        return Excerpt(heard, found, log, status, loudest_believed(mono), goes_on, off_s)

    def _off_s(self, log: Log, shift_s: float, count: int) -> float:
        assert self.facts.video is not None and self.plan.frame_rate_hz is not None
        shown_s = np.frombuffer(log.shown_s) - shift_s
        return off_s(shown_s, self.plan.frame_rate_hz, count, lead_s(self.facts.video))

    def _frames_beyond(self, extra_s: float) -> int:
        """Return how many frames after a window's last tell that pictures go on for that long, and more."""
        rate_hz = self.plan.frame_rate_hz
        return math.floor(extra_s * rate_hz) + 2 if extra_s and rate_hz else 0

    def run(
        self,
        outputs: Callable[[list[str]], list[ffmpeg.nodes.OutputStream]],
        takers: list[Taker],
        log: Log,
        detail: str = "verbose",
    ) -> int:
        """Run ffmpeg and return its exit status. Raises ItemError decode_timeout or decoder_limit."""

        def argv(names: list[str]) -> list[str]:
            stream = ffmpeg.merge_outputs(*outputs(names)).global_args(
                *("-nostdin", "-nostats", "-hide_banner", "-loglevel", f"repeat+level+{detail}", "-filter_threads", "1")
            )
            return [str(argument) for argument in stream.compile()]

        try:
            return process.run(argv, self.fd, takers, log, self.deadline, self.confinement)
        except TimedOut:
            raise ItemError("decode_timeout", "ffmpeg did not finish in time and was stopped") from None

    def input(self, window: Window) -> ffmpeg.nodes.FilterableStream:
        """Return the recording as ffmpeg opens it, from the key frame before a window that is not at the start."""
        options: dict[str, object] = {
            "protocol_whitelist": "file,pipe",
            "format_whitelist": self.facts.container,
            "threads": 1,
            "max_pixels": self.confinement.max_pixels,
            # A changed picture size must not begin the frame clock anew; `scale` follows the change itself.
            "reinit_filter:v": 0,
            "noautorotate": None,  # turned after scaling, where it costs little
        }
        if self.skips:
            options["skip_frame:v"] = "noref"
        video = self.facts.video
        if video is not None and video.alpha and video.codec in ALPHA_DECODERS:
            options["c:v"] = ALPHA_DECODERS[video.codec]
        options |= dict(self.facts.input_options)
        if window.start_s > 0:
            options["ss"] = plain(self.start_s + window.start_s)
            options["noaccurate_seek"] = None  # the frame on screen at the start began before it
        return ffmpeg.input(f"file:/dev/fd/{self.fd}", **options)

    def shift_s(self, window: Window, hears: bool, sees: bool) -> float:
        """Return where the recording begins on ffmpeg's clock for these streams; a seek sets that to zero."""
        if window.start_s > 0:
            return 0.0
        used = common_start_s(self.facts.audio if hears else None, self.facts.video if sees else None)
        return self.start_s - (used if self.facts.container in _REBASED else 0.0)

    # The filters are given for each output (`af`, `vf`) and not as ffmpeg-python's graph: in one graph the
    # pictures would wait in memory for the sound to begin, and a fault in one would end both.
    def _sound(
        self,
        source: ffmpeg.nodes.FilterableStream,
        filters: list[str],
        name: str,
        length_s: float,
    ) -> ffmpeg.nodes.OutputStream:
        options: dict[str, object] = {
            "format": "matroska",  # says how many channels there really are, and when each packet begins
            "c:a": "pcm_f32le",
            "bitexact": None,
            "af": ",".join(filters),
            "t": plain(length_s),
        }
        return ffmpeg.output(source, name, **options)

    def _pictures(
        self, source: ffmpeg.nodes.FilterableStream, shift_s: float, name: str, frames: int
    ) -> ffmpeg.nodes.OutputStream:
        assert self.facts.video is not None
        rate_hz = self.plan.frame_rate_hz
        # Beside a sound output that has ended, a count of frames alone does not: ffmpeg would decode on to the end.
        ends = {} if rate_hz is None else {"t": plain(frames / rate_hz)}
        return ffmpeg.output(
            source[str(self.facts.video.index)],
            name,
            **{
                "format": "rawvideo",
                "pix_fmt": pictures.pixel_format(self.facts.video),
                "vf": ",".join(pictures.filters(self.plan, self.facts.video, shift_s, frames, self.skips)),
                "frames:v": frames,
                **ends,
            },
        )


def _will_do(thrifty: Excerpt) -> bool:
    """Return whether frames were left out without harm: the decoder missed nothing, and none lies too far off."""
    return not thrifty.log.errors and thrifty.status == 0 and thrifty.frames_off_s <= NEAR_S
