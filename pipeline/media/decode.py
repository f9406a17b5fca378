"""Sound and pictures of the planned windows, one ffmpeg pass a window, both from one reading.

Times count from where the first chosen stream begins. Frame k of a window is the one on screen k / frame rate
after the window's start. Holes in the sound stay silent, so both stay aligned.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import ffmpeg
import numpy as np

from pipeline.errors import ItemError
from pipeline.media import pictures, sound
from pipeline.media.probe import common_start_s
from pipeline.media.process import Log, Sink, Taker, TimedOut, opened, plain, run
from pipeline.records import SAMPLE_RATE_HZ, AudioStream, Decoded, MediaFacts, Plan, Remark, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MORE_S = 0.5
"""Read this far past the claimed end, to notice a recording that goes on."""
_SHORT_SHARE = 0.9
_REBASED = frozenset({"live_flv", "mpeg", "mpegts", "mpegtsraw", "nut", "ogg"})
"""Demuxers with AVFMT_TS_DISCONT: ffmpeg's zero is where the streams in use begin, elsewhere all streams."""


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """What one run of ffmpeg gave: sound and frames (n, height, width, 3), at most what was asked for."""

    sound: sound.Part
    frames: NDArray[np.uint8]
    log: Log
    status: int
    loudest: float | None = None

    @property
    def pcm(self) -> NDArray[np.float32]:
        return self.sound.pcm


class _Reader:
    """One opened recording, and how its windows are read."""

    def __init__(self, fd: int, facts: MediaFacts, plan: Plan, deadline: float) -> None:
        self.fd, self.facts, self.plan, self.deadline = fd, facts, plan, deadline
        self.start_s = common_start_s(facts.audio, facts.video)
        self.frames_each = plan.frames // len(plan.windows)

    def window(self, window: Window, extra_s: float) -> _Pass:
        """Return a window's sound and pictures; each alone if one made ffmpeg stop early."""
        hears, sees = self.plan.audio, self.plan.frames > 0
        if hears and self.facts.audio is not None and self.facts.audio.channels > sound.MOST_CHANNELS:
            crowd = self._crowd(window, extra_s, self.facts.audio)
            return replace(crowd, frames=self._pass(window, extra_s, False, True).frames) if sees else crowd
        both = self._pass(window, extra_s, hears, sees)
        if both.loudest is not None:
            both = replace(both, sound=self._cleaned(window, extra_s, both))
        lost = both.status != 0 and hears and sees and (not both.pcm.size or not both.frames.size)
        if not lost:
            return both
        alone = self._pass(window, extra_s, True, False), self._pass(window, extra_s, False, True)
        heard = max(both.sound, alone[0].sound, key=lambda part: len(part.pcm))
        frames = max(both.frames, alone[1].frames, key=len)
        return _Pass(heard, frames, both.log, both.status)

    def _cleaned(self, window: Window, extra_s: float, first: _Pass) -> sound.Part:
        """Return a window's sound without samples that are no numbers or absurd: the resampler spreads them.

        Raises ItemError audio_lost if nothing is left.
        """
        found, loudest = first, first.loudest
        while loudest is not None:
            again = self._pass(window, extra_s, True, False, loudest)
            found, loudest = again, again.loudest if again.loudest is not None and again.loudest < loudest else None
        odd = first.sound.odd or sound.absurd(first.pcm)
        if odd > len(found.pcm) // 2 and not found.pcm.any():
            raise ItemError("audio_lost", "the sound holds no number: every sample is NaN, infinite or absurd")
        return replace(found.sound, odd=odd)

    def _pass(self, window: Window, extra_s: float, hears: bool, sees: bool, loudest: float | None = None) -> _Pass:
        """Run ffmpeg once. Raises ItemError decode_timeout."""
        plan, facts = self.plan, self.facts
        samples = round((window.duration_s + extra_s) * SAMPLE_RATE_HZ) if hears else 0
        mono = sound.Mono(samples, sound.keeps_time(facts))
        frames = np.empty((self.frames_each if sees else 0, plan.height, plan.width, 3), np.uint8)
        sinks: list[Taker] = [mono] if samples else []
        pixels = Sink(memoryview(frames.reshape(-1).view(np.uint8).data))
        if frames.size:
            sinks.append(pixels)
        log = Log()

        def outputs(names: list[str]) -> list[ffmpeg.nodes.OutputStream]:
            named, shift_s = iter(names), self._shift_s(window, hears, sees)
            source, made = self._input(window), []
            if samples and facts.audio is not None:
                filters = sound.filters(facts, window.start_s > 0, shift_s, loudest)
                made.append(
                    self._sound(source[str(facts.audio.index)], filters, next(named), window.duration_s + extra_s)
                )
            if frames.size:
                made.append(self._pictures(source, shift_s, next(named), len(frames)))
            return made

        status = self._run(outputs, self.fd, sinks, log)
        found = frames[: pixels.used // (plan.height * plan.width * 3)] if frames.size else frames
        heard = sound.Part(mono.pcm, mono.began or 0, mono.turned, mono.odd)
        return _Pass(heard, found, log, status, sound.loudest_believed(mono))

    def _crowd(self, window: Window, extra_s: float, audio: AudioStream) -> _Pass:
        """Return a window's sound whose channels are too many for ffmpeg's resampler: it only gets their mean."""
        length_s, rate_hz = window.duration_s + extra_s, audio.sample_rate_hz
        coding = sound.undone(audio.codec)
        log, nothing = Log(), np.empty((0, self.plan.height, self.plan.width, 3), np.uint8)
        if coding is None:
            return _Pass(sound.Part(np.zeros(0, np.float32)), nothing, log, 1)
        mean = sound.Mono(round(length_s * rate_hz), sound.keeps_time(self.facts), rate_hz, coding)
        mono = sound.Mono(round(length_s * SAMPLE_RATE_HZ), False)
        stamps = sound.clock(self.facts, window.start_s > 0, self._shift_s(window, True, False))
        status = self._run(
            lambda names: [self._sound(self._input(window)[str(audio.index)], stamps, names[0], length_s, coding)],
            self.fd,
            [mean],
            log,
        )
        with tempfile.TemporaryFile(buffering=0) as file:
            file.write(mean.pcm.data)
            options = {"protocol_whitelist": "file,pipe", "format": "f32le", "ar": rate_hz, "ac": 1}
            raw = ffmpeg.input(f"file:/dev/fd/{file.fileno()}", **options)
            self._run(
                lambda names: [self._sound(raw["a"], [sound.to_rate()], names[0], length_s)],
                file.fileno(),
                [mono],
                Log(),
            )
        scale = SAMPLE_RATE_HZ / rate_hz
        part = sound.Part(mono.pcm, began=0, turned=round(mean.turned * scale), odd=round(mean.odd * scale))
        return _Pass(part, nothing, log, status)

    def _run(
        self, outputs: Callable[[list[str]], list[ffmpeg.nodes.OutputStream]], fd: int, takers: list[Taker], log: Log
    ) -> int:
        """Run ffmpeg and return its exit status. Raises ItemError decode_timeout."""

        def argv(names: list[str]) -> list[str]:
            stream = ffmpeg.merge_outputs(*outputs(names)).global_args(
                *("-nostdin", "-hide_banner", "-loglevel", "repeat+level+verbose", "-filter_threads", "1")
            )
            return [str(argument) for argument in stream.compile()]

        try:
            return run(argv, fd, takers, log, self.deadline)
        except TimedOut:
            raise ItemError("decode_timeout", "ffmpeg did not finish in time and was stopped") from None

    def _input(self, window: Window) -> ffmpeg.nodes.FilterableStream:
        """Return the recording, from the key frame before a window that is not at the start."""
        options: dict[str, object] = {
            "protocol_whitelist": "file,pipe",
            "format_whitelist": self.facts.container,
            "threads": 1,
            # A changed picture size must not begin the frame clock anew; `scale` follows the change itself.
            "reinit_filter:v": 0,
        }
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
        filters: list[str],
        name: str,
        length_s: float,
        coding: sound.Coding = sound.FLOAT,
    ) -> ffmpeg.nodes.OutputStream:
        options: dict[str, object] = {
            "format": "matroska",  # says how many channels there really are, and when each packet begins
            "c:a": coding.encoder,
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
                "pix_fmt": "rgb24",
                "vf": ",".join(pictures.filters(self.plan, shift_s)),
                "frames:v": frames,
                **ends,
            },
        )


def decode(path: bytes, facts: MediaFacts, plan: Plan, timeout_s: float) -> Decoded:
    """Return the sound and pictures of the plan's windows, put end to end.

    PCM is padded with zeros to whole tokens (1280 samples), frames to an even count by repeating the last. A
    stream that gave nothing comes back empty with a remark; `decoded_s` may pass the plan by up to 0.5 s, a
    sign that the recording goes on beyond its claimed end. Raises ItemError decode_failed or decode_timeout.
    """
    with opened(path) as fd:
        reader = _Reader(fd, facts, plan, time.monotonic() + timeout_s)
        whole = len(plan.windows) == 1 and plan.duration_known and plan.coverage == 1.0
        passes = [reader.window(window, _MORE_S if whole else 0.0) for window in plan.windows]
        if not any(part.pcm.size or part.frames.size for part in passes):
            raise ItemError("decode_failed", f"ffmpeg gave nothing: {passes[0].log.reason()}")
        decoded_s = sum(_length_s(part, plan, window) for part, window in zip(passes, plan.windows, strict=True))
        heard, mended = _heard(passes, reader)
    seen = pictures.joined([part.frames for part in passes], plan)
    lost = [*_lost(heard, seen, plan), *_early(passes, plan, decoded_s), *_silent(passes, reader), *_errors(passes)]
    remarks = [*(Remark("partial_decode", text) for text in lost), *mended]
    rate_hz = plan.frame_rate_hz or 1.0
    times_s = np.arange(len(seen), dtype=np.float64) / rate_hz
    return Decoded(pcm=heard, frames=seen, times_s=times_s, decoded_s=decoded_s, remarks=tuple(remarks))


def _heard(passes: list[_Pass], reader: _Reader) -> tuple[NDArray[np.float32], list[Remark]]:
    """Return the windows' sound end to end, and what was mended in it."""
    if reader.facts.audio is None or not any(part.pcm.size for part in passes):
        return np.zeros(0, np.float32), []
    return sound.joined([part.sound for part in passes], reader.facts, reader.plan)


def _length_s(part: _Pass, plan: Plan, window: Window) -> float:
    """Return the seconds really found in a window."""
    sound_s = len(part.pcm) / SAMPLE_RATE_HZ
    rate_hz = plan.frame_rate_hz
    pictures_s = min(len(part.frames) / rate_hz, window.duration_s) if rate_hz is not None else 0.0
    return max(sound_s, pictures_s)


def _lost(heard: NDArray[np.float32], seen: NDArray[np.uint8], plan: Plan) -> list[str]:
    """Return a sentence for a stream that gave nothing."""
    said = []
    if plan.audio and not heard.size:
        said.append("The file has sound, but none could be decoded.")
    if plan.frames and not seen.size:
        said.append("The file has pictures, but none could be decoded.")
    return said


def _silent(passes: list[_Pass], reader: _Reader) -> list[str]:
    """Return a sentence for sound that lacks much of what its time stamps promise: the holes are silent."""
    audio = reader.facts.audio
    if audio is None or not any(part.pcm.size for part in passes) or not sound.keeps_time(reader.facts):
        return []
    real_s = sum(part.log.samples.get(audio.index, 0) for part in passes) / audio.sample_rate_hz
    filled_s = sum(len(part.pcm) for part in passes) / SAMPLE_RATE_HZ
    if reader.plan.windows[0].start_s == 0:
        filled_s -= passes[0].sound.began / SAMPLE_RATE_HZ
    if not 0 < real_s < _SHORT_SHARE * filled_s:
        return []
    return [f"Only {real_s:.1f} s of {filled_s:.1f} s of sound are there; the rest is silent."]


def _early(passes: list[_Pass], plan: Plan, decoded_s: float) -> list[str]:
    """Return sentences for windows that ended early and for a recording that goes on beyond its claim."""
    if not plan.duration_known or plan.frames == 1:
        return []
    planned_s = sum(window.duration_s for window in plan.windows)
    said = []
    if decoded_s < _SHORT_SHARE * planned_s:
        said.append(f"Decoding ended early: {decoded_s:.1f} s of {planned_s:.1f} s.")
    elif decoded_s > planned_s + 0.8 * _MORE_S:
        said.append(f"The recording goes on beyond its claimed length of {planned_s:.1f} s.")
    empty = sum(not part.pcm.size and not part.frames.size for part in passes)
    if empty:
        said.append(f"{empty} of {len(passes)} windows gave nothing.")
    return said


def _errors(passes: list[_Pass]) -> list[str]:
    """Return a sentence with the number of decoder errors and the last of them."""
    count = sum(part.log.errors for part in passes)
    if not count:
        return []
    last = next(part.log for part in reversed(passes) if part.log.errors)
    return [f"ffmpeg reported {count} error{'s' if count > 1 else ''}, at last: {last.reason()}"]
