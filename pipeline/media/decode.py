"""Sound and pictures of the planned windows, one ffmpeg pass a window, both from one reading.

Times count from where the first chosen stream begins. Frame k of a window is the one on screen k / frame rate
after the window's start. Holes in the sound stay silent, so both stay aligned.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ffmpeg
import numpy as np

from pipeline.errors import ItemError
from pipeline.media import animated, pictures, sound
from pipeline.media.completeness import MORE_S, Found, completeness
from pipeline.media.probe import ALPHA_DECODERS, common_start_s
from pipeline.media.process import Log, Sink, TimedOut, opened, oversized, plain, run
from pipeline.media.sandbox import CONFINED, Confinement
from pipeline.records import SAMPLE_RATE_HZ, Decoded, MediaFacts, Plan, Remark, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SILENT_PEAK = 1e-4
_REBASED = frozenset({"live_flv", "mpeg", "mpegts", "mpegtsraw", "nut", "ogg"})
"""Demuxers with AVFMT_TS_DISCONT: ffmpeg's zero is where the streams in use begin, elsewhere all streams."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """What one run of ffmpeg gave: PCM (samples,) and frames (n, height, width, 3), at most
    what was asked for."""

    pcm: NDArray[np.float32]
    frames: NDArray[np.uint8]
    log: Log
    status: int


class _Reader:
    """One opened recording, and how its windows are read."""

    def __init__(self, fd: int, facts: MediaFacts, plan: Plan, deadline: float, confinement: Confinement) -> None:
        self.fd, self.facts, self.plan, self.deadline, self.confinement = fd, facts, plan, deadline, confinement
        self.start_s = common_start_s(facts.audio, facts.video)
        self.frames_each = plan.frames // len(plan.windows)

    def window(self, window: Window, extra_s: float) -> _Pass:
        """Return a window's sound and pictures; each alone if one made ffmpeg stop early."""
        hears, sees = self.plan.audio, self.plan.frames > 0
        if self.facts.container in animated.CONTAINERS:
            return self._drawn(window)
        both = self._pass(window, extra_s, hears, sees)
        if hears and not sees and both.status != 0 and not both.pcm.size:
            return self._pass(window, extra_s, True, False, channel=0)  # too many channels to mix
        lost = both.status != 0 and hears and sees and (not both.pcm.size or not both.frames.size)
        if not lost:
            return both
        alone = self._pass(window, extra_s, True, False), self._pass(window, extra_s, False, True)
        pcm = max(both.pcm, alone[0].pcm, key=len)
        frames = max(both.frames, alone[1].frames, key=len)
        return _Pass(pcm, frames, both.log, both.status)

    def _drawn(self, window: Window) -> _Pass:
        """Return a window's pictures where Pillow draws them. Raises ItemError decode_timeout."""
        try:
            frames, log, status = animated.frames(
                self.fd, self.plan, window, self.frames_each, self.deadline, self.confinement
            )
        except TimedOut:
            raise ItemError("decode_timeout", "Pillow did not finish in time and was stopped") from None
        return _Pass(np.empty(0, np.float32), frames, log, status)

    def first_channel(self, window: Window) -> NDArray[np.float32]:
        """Return the first channel's sound."""
        return self._pass(window, 0.0, True, False, channel=0).pcm

    def _pass(self, window: Window, extra_s: float, hears: bool, sees: bool, channel: int | None = None) -> _Pass:
        """Run ffmpeg once. Raises ItemError decode_timeout."""
        plan = self.plan
        pcm = np.empty(round((window.duration_s + extra_s) * SAMPLE_RATE_HZ) if hears else 0, np.float32)
        video = self.facts.video
        colours = 4 if video is not None and video.alpha else 3
        frames = np.empty((self.frames_each if sees else 0, plan.height, plan.width, colours), np.uint8)
        sinks = [Sink(memoryview(part.reshape(-1).view(np.uint8).data)) for part in (pcm, frames) if part.size]
        log = Log()

        def argv(names: list[str]) -> list[str]:
            named, shift_s = iter(names), self._shift_s(window, hears, sees)
            source = self._input(window)
            outputs = []
            if pcm.size:
                outputs.append(self._sound(source, window, shift_s, next(named), pcm.size, channel))
            if frames.size:
                outputs.append(self._pictures(source, shift_s, next(named), len(frames)))
            stream = ffmpeg.merge_outputs(*outputs).global_args(
                *("-nostdin", "-nostats", "-hide_banner", "-loglevel", "repeat+level+verbose", "-filter_threads", "1")
            )
            return [str(argument) for argument in stream.compile()]

        try:
            status = run(argv, self.fd, sinks, log, self.deadline, self.confinement)
        except TimedOut:
            raise ItemError("decode_timeout", "ffmpeg did not finish in time and was stopped") from None
        used = [sink.used for sink in sinks]
        found_pcm = pcm[: used.pop(0) // pcm.itemsize] if pcm.size else pcm
        found_frames = frames[: used.pop(0) // frames[0].size] if frames.size else frames
        if video is not None and video.alpha:
            found_frames = pictures.over_grey(found_frames, pictures.premultiplied(plan, video))
        return _Pass(found_pcm, found_frames, log, status)

    def _input(self, window: Window) -> ffmpeg.nodes.FilterableStream:
        """Return the recording, from the key frame before a window that is not at the start."""
        options: dict[str, object] = {
            "protocol_whitelist": "file,pipe",
            "format_whitelist": self.facts.container,
            "threads": 1,
            "max_pixels": self.confinement.max_pixels,
            # A changed picture size must not begin the frame clock anew; `scale` follows the change itself.
            "reinit_filter:v": 0,
            "noautorotate": None,  # turned after scaling, where it costs little
        }
        video = self.facts.video
        if video is not None and video.alpha and video.codec in ALPHA_DECODERS:
            options["c:v"] = ALPHA_DECODERS[video.codec]
        if window.start_s > 0:
            options["ss"] = plain(self.start_s + window.start_s)
            options["noaccurate_seek"] = None  # the frame on screen at the start began before it
        return ffmpeg.input(f"file:/dev/fd/{self.fd}", **options)

    def _shift_s(self, window: Window, hears: bool, sees: bool) -> float:
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
        window: Window,
        shift_s: float,
        name: str,
        samples: int,
        channel: int | None,
    ) -> ffmpeg.nodes.OutputStream:
        assert self.facts.audio is not None
        return ffmpeg.output(
            source[str(self.facts.audio.index)],
            name,
            format="f32le",
            af=",".join(sound.filters(self.facts, window.start_s > 0, shift_s, channel)),
            ac=1,
            ar=SAMPLE_RATE_HZ,
            t=plain(samples / SAMPLE_RATE_HZ),
        )

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
                "vf": ",".join(pictures.filters(self.plan, self.facts.video, shift_s)),
                "frames:v": frames,
                **ends,
            },
        )


def decode(
    path: bytes, facts: MediaFacts, plan: Plan, timeout_s: float, confinement: Confinement = CONFINED
) -> Decoded:
    """Return the sound and pictures of the plan's windows, put end to end.

    PCM is padded with zeros to whole tokens (1280 samples), frames to an even count by repeating the last. A
    track that gave nothing comes back empty; `decoded_s` may pass the plan by up to 0.5 s where the recording
    goes on beyond its claimed end. Raises ItemError decode_failed, decode_timeout,
    too_many_pixels or decoder_limit.
    """
    with opened(path) as fd:
        reader = _Reader(fd, facts, plan, time.monotonic() + timeout_s, confinement)
        whole = len(plan.windows) == 1 and plan.duration_known and plan.coverage == 1.0
        passes = [reader.window(window, MORE_S if whole else 0.0) for window in plan.windows]
        if not any(part.pcm.size or part.frames.size for part in passes):
            reason = passes[0].log.reason()
            raise oversized(reason) or ItemError("decode_failed", f"the decoder gave nothing: {reason}")
        heard, mended = _heard(passes, reader)
    seen = pictures.joined([part.frames for part in passes], plan)
    found = _found(passes, facts, plan)
    complete = completeness(facts, plan, found)
    lost = [Remark("partial_decode", text) for text in (*complete.losses, *_errors(passes))]
    converted = pictures.remarks(facts.video) if facts.video is not None and len(seen) else []
    rate_hz = plan.frame_rate_hz or 1.0
    times_s = np.arange(len(seen), dtype=np.float64) / rate_hz
    return Decoded(
        pcm=heard,
        frames=seen,
        times_s=times_s,
        decoded_s=sum(max(pair) for pair in zip(found.sound_s, found.pictures_s, strict=True)),
        found_share=complete.share,
        claim_holds=complete.claim_holds,
        remarks=(*lost, *mended, *converted),
    )


def _heard(passes: list[_Pass], reader: _Reader) -> tuple[NDArray[np.float32], list[Remark]]:
    """Return the windows' sound end to end, and what was mended in it."""
    plan, audio = reader.plan, reader.facts.audio
    if audio is None or not any(part.pcm.size for part in passes):
        return np.zeros(0, np.float32), []
    remarks: list[Remark] = []
    pcms = [part.pcm for part in passes]
    if audio.channels > 1 and all(np.max(np.abs(pcm), initial=0.0) < _SILENT_PEAK for pcm in pcms):
        single = [reader.first_channel(window) for window in plan.windows]
        if any(np.max(np.abs(pcm), initial=0.0) >= _SILENT_PEAK for pcm in single):
            pcms = single
            remarks.append(Remark("sound_mended", "The channels cancel each other out; the first one is heard alone."))
    pcm, mended = sound.joined(pcms, reader.facts, plan)
    return pcm, remarks + mended


def _found(passes: list[_Pass], facts: MediaFacts, plan: Plan) -> Found:
    """Return how much of each sense the windows gave."""
    rate_hz, audio = plan.frame_rate_hz, facts.audio
    heard_s: float | None = None
    if audio is not None and len(set().union(*(part.log.rates_hz for part in passes))) == 1:
        heard_s = sum(part.log.samples.get(audio.index, 0) for part in passes) / audio.sample_rate_hz
    windows = list(zip(passes, plan.windows, strict=True))
    return Found(
        sound_s=[len(part.pcm) / SAMPLE_RATE_HZ for part in passes],
        pictures_s=[min(len(part.frames) / rate_hz, window.duration_s) if rate_hz else 0.0 for part, window in windows],
        heard_s=heard_s,
    )


def _errors(passes: list[_Pass]) -> list[str]:
    """Return a sentence with the number of decoder errors and the last of them."""
    count = sum(part.log.errors for part in passes)
    if not count:
        return []
    last = next(part.log for part in reversed(passes) if part.log.errors)
    return [f"The decoder reported {count} error{'s' if count > 1 else ''}, at last: {last.reason()}"]
