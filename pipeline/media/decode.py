"""Sound and pictures of the planned windows, one ffmpeg pass a window, both from one reading.

Times count from where the first chosen stream begins. Frame k of a window is the one on screen k / frame rate
after the window's start. Holes in the sound stay silent, so both stay aligned.
"""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ffmpeg
import numpy as np

from pipeline.errors import ItemError
from pipeline.media.plan import FRAMES_PER_GRID, heard_samples, padded_samples
from pipeline.media.probe import common_start_s
from pipeline.media.process import Log, Sink, TimedOut, opened, run
from pipeline.records import SAMPLE_RATE_HZ, Decoded, MediaFacts, Plan, Window

if TYPE_CHECKING:
    from numpy.typing import NDArray

_MORE_S = 0.5
"""Read this far past the claimed end, to notice a recording that goes on."""
_SHORT_SHARE = 0.9
_TAIL_S = 0.2
_SILENT_PEAK = 1e-4
_SMALLEST_GAP_S = 0.04
_STAMPED_BY_COUNT = frozenset({"aac", "ac3", "amr", "eac3", "flac", "mp3", "wav"})
"""Containers without time stamps of their own: a gap there is the demuxer's miscount, not silence."""
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

    def __init__(self, fd: int, facts: MediaFacts, plan: Plan, deadline: float) -> None:
        self.fd, self.facts, self.plan, self.deadline = fd, facts, plan, deadline
        self.start_s = common_start_s(facts.audio, facts.video)
        self.frames_each = plan.frames // len(plan.windows)

    def window(self, window: Window, extra_s: float) -> _Pass:
        """Return a window's sound and pictures; each alone if one made ffmpeg stop early."""
        sound, pictures = self.plan.audio, self.plan.frames > 0
        both = self._pass(window, extra_s, sound, pictures)
        if sound and not pictures and both.status != 0 and not both.pcm.size:
            return self._pass(window, extra_s, True, False, channel=0)  # too many channels to mix
        lost = both.status != 0 and sound and pictures and (not both.pcm.size or not both.frames.size)
        if not lost:
            return both
        alone = self._pass(window, extra_s, True, False), self._pass(window, extra_s, False, True)
        pcm = max(both.pcm, alone[0].pcm, key=len)
        frames = max(both.frames, alone[1].frames, key=len)
        return _Pass(pcm, frames, both.log, both.status)

    def late_s(self) -> float:
        """Return how long after the recording's start its sound begins, seconds."""
        return self.facts.audio.start_s - self.start_s if self.facts.audio is not None else 0.0

    def first_channel(self, window: Window) -> NDArray[np.float32]:
        """Return the first channel's sound."""
        return self._pass(window, 0.0, True, False, channel=0).pcm

    def _pass(self, window: Window, extra_s: float, sound: bool, pictures: bool, channel: int | None = None) -> _Pass:
        """Run ffmpeg once. Raises ItemError decode_timeout."""
        plan = self.plan
        pcm = np.empty(round((window.duration_s + extra_s) * SAMPLE_RATE_HZ) if sound else 0, np.float32)
        frames = np.empty((self.frames_each if pictures else 0, plan.height, plan.width, 3), np.uint8)
        sinks = [Sink(memoryview(part.reshape(-1).view(np.uint8).data)) for part in (pcm, frames) if part.size]
        log = Log()

        def argv(names: list[str]) -> list[str]:
            named, shift_s = iter(names), self._shift_s(window, sound, pictures)
            source = self._input(window)
            outputs = []
            if pcm.size:
                outputs.append(self._sound(source, window, shift_s, next(named), pcm.size, channel))
            if frames.size:
                outputs.append(self._pictures(source, shift_s, next(named), len(frames)))
            stream = ffmpeg.merge_outputs(*outputs).global_args(
                *("-nostdin", "-hide_banner", "-loglevel", "repeat+level+verbose", "-filter_threads", "1")
            )
            return [str(argument) for argument in stream.compile()]

        try:
            status = run(argv, self.fd, sinks, log, self.deadline)
        except TimedOut:
            raise ItemError("decode_timeout", "ffmpeg did not finish in time and was stopped") from None
        used = [sink.used for sink in sinks]
        found_pcm = pcm[: used.pop(0) // pcm.itemsize] if pcm.size else pcm
        found_frames = frames[: used.pop(0) // (plan.height * plan.width * 3)] if frames.size else frames
        return _Pass(found_pcm, found_frames, log, status)

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
            options["ss"] = _plain(self.start_s + window.start_s)
            options["noaccurate_seek"] = None  # the frame on screen at the start began before it
        return ffmpeg.input(f"file:/dev/fd/{self.fd}", **options)

    def _shift_s(self, window: Window, sound: bool, pictures: bool) -> float:
        """Return where the recording begins on ffmpeg's clock for these streams; a seek sets that to zero."""
        if window.start_s > 0:
            return 0.0
        used = common_start_s(self.facts.audio if sound else None, self.facts.video if pictures else None)
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
        seeks = window.start_s > 0
        counted = self.facts.video is None and self.facts.container in _STAMPED_BY_COUNT
        mixer = "aresample=rematrix_maxval=1"  # the mean of the channels: float samples are else mixed too loud
        if not counted:  # fills holes, at the stream's own rate: soxr loses its place when it has to fill
            mixer += f":async=1:min_hard_comp={_SMALLEST_GAP_S}" + (":first_pts=0" if seeks else "")
        filters = [
            _forward_only(shift_s, self.facts.duration_s),
            "atrim=start=0",
            mixer,
            "aformat=channel_layouts=mono" if channel is None else f"pan=mono|c0=c{channel}",
            f"aresample={SAMPLE_RATE_HZ}:resampler=soxr",
        ]
        if not seeks and (late_s := self.late_s()) > 0:
            filters.append(f"adelay=delays={round(late_s * 1000)}:all=1")
        return ffmpeg.output(
            source[str(self.facts.audio.index)],
            name,
            format="f32le",
            af=",".join(filters),
            ac=1,
            ar=SAMPLE_RATE_HZ,
            t=_plain(samples / SAMPLE_RATE_HZ),
        )

    def _pictures(
        self, source: ffmpeg.nodes.FilterableStream, shift_s: float, name: str, frames: int
    ) -> ffmpeg.nodes.OutputStream:
        assert self.facts.video is not None
        rate_hz = self.plan.frame_rate_hz
        clock = [f"setpts=PTS-{_plain(shift_s)}/TB", f"fps=fps={_plain(rate_hz)}:round=up:start_time=0"]
        filters = [
            *(clock if rate_hz is not None else []),
            f"scale={self.plan.width}:{self.plan.height}:flags=bicubic+accurate_rnd+full_chroma_int",
        ]
        # Beside a sound output that has ended, a count of frames alone does not: ffmpeg would decode on to the end.
        ends = {} if rate_hz is None else {"t": _plain(frames / rate_hz)}
        return ffmpeg.output(
            source[str(self.facts.video.index)],
            name,
            **{"format": "rawvideo", "pix_fmt": "rgb24", "vf": ",".join(filters), "frames:v": frames, **ends},
        )


def decode(path: bytes, facts: MediaFacts, plan: Plan, timeout_s: float) -> Decoded:
    """Return the sound and pictures of the plan's windows, put end to end.

    PCM is padded with zeros to whole tokens (1280 samples), frames to an even count by repeating the last. A
    stream that gave nothing comes back empty with a warning; `decoded_s` may pass the plan by up to 0.5 s, a
    sign that the recording goes on beyond its claimed end. Raises ItemError decode_failed or decode_timeout.
    """
    with opened(path) as fd:
        reader = _Reader(fd, facts, plan, time.monotonic() + timeout_s)
        whole = len(plan.windows) == 1 and plan.duration_known and plan.coverage == 1.0
        passes = [reader.window(window, _MORE_S if whole else 0.0) for window in plan.windows]
        if not any(part.pcm.size or part.frames.size for part in passes):
            raise ItemError("decode_failed", f"ffmpeg gave nothing: {passes[0].log.reason()}")
        decoded_s = sum(_length_s(part, plan, window) for part, window in zip(passes, plan.windows, strict=True))
        heard, heard_warnings = _heard(passes, reader)
    seen = _seen(passes, plan)
    warnings = [
        *_lost(heard, seen, plan),
        *_early(passes, plan, decoded_s),
        *heard_warnings,
        *_errors(passes),
    ]
    rate_hz = plan.frame_rate_hz or 1.0
    times_s = np.arange(len(seen), dtype=np.float64) / rate_hz
    return Decoded(pcm=heard, frames=seen, times_s=times_s, decoded_s=decoded_s, warnings=tuple(warnings))


def _heard(passes: list[_Pass], reader: _Reader) -> tuple[NDArray[np.float32], list[str]]:
    """Return the windows' sound end to end, finite, within -1..1, padded to whole tokens; and what was odd in
    it."""
    plan, audio = reader.plan, reader.facts.audio
    if audio is None or not any(part.pcm.size for part in passes):
        return np.zeros(0, np.float32), []
    warnings: list[str] = []
    pcms = [part.pcm for part in passes]
    if audio.channels > 1 and all(np.max(np.abs(pcm), initial=0.0) < _SILENT_PEAK for pcm in pcms):
        single = [reader.first_channel(window) for window in plan.windows]
        if any(np.max(np.abs(pcm), initial=0.0) >= _SILENT_PEAK for pcm in single):
            pcms = single
            warnings.append("The channels cancel each other out; the first one is heard alone.")
    lengths = [round(window.duration_s * SAMPLE_RATE_HZ) for window in plan.windows]
    if len(lengths) == 1:
        lengths = [_length(len(pcms[0]), lengths[0], heard_samples(reader.facts, plan.windows))]
    else:
        lengths[-1] = min(max(len(pcms[-1]), 1), lengths[-1])
    pcm = np.zeros(padded_samples(sum(lengths)), np.float32)
    at = 0
    for part, length in zip(pcms, lengths, strict=True):
        pcm[at : at + min(length, len(part))] = part[:length]
        at += length
    if odd := int(np.count_nonzero(~np.isfinite(pcm))):
        warnings.append(f"{odd} samples of the sound are no numbers; they are silent.")
        np.nan_to_num(pcm, copy=False, nan=0.0, posinf=0.0, neginf=0.0)
    np.clip(pcm, -1.0, 1.0, out=pcm)
    real_s = sum(part.log.samples.get(audio.index, 0) for part in passes) / audio.sample_rate_hz
    filled_s = sum(len(part) for part in pcms) / SAMPLE_RATE_HZ
    if plan.windows[0].start_s == 0:
        filled_s -= reader.late_s()
    if 0 < real_s < _SHORT_SHARE * filled_s:
        warnings.append(f"Only {real_s:.1f} s of {filled_s:.1f} s of sound are there; the rest is silent.")
    return pcm, warnings


def _length(found: int, window: int, planned: int) -> int:
    """Return a whole recording's length in samples: what was found, or what was planned if hardly anything lacks."""
    if planned - _TAIL_S * SAMPLE_RATE_HZ <= found < planned + _TAIL_S * SAMPLE_RATE_HZ:
        return planned  # encoders' padding, and sound that ends a moment before or after its claim
    return min(max(found, 1), padded_samples(window))


def _seen(passes: list[_Pass], plan: Plan) -> NDArray[np.uint8]:
    """Return the windows' frames end to end, on an even clock: what a window lacks is its last frame,
    repeated."""
    if not any(len(part.frames) for part in passes):
        return np.zeros((0, plan.height, plan.width, 3), np.uint8)
    if plan.frames == 1:
        return passes[0].frames
    each = plan.frames // len(plan.windows)
    last_found = max(index for index, part in enumerate(passes) if len(part.frames))
    paired = math.ceil(len(passes[last_found].frames) / FRAMES_PER_GRID) * FRAMES_PER_GRID
    # The last frame stays on screen where pictures end a moment before the recording does.
    counts = [each] * last_found + [each if each - paired <= FRAMES_PER_GRID else paired]
    if len(passes) == 1 and counts[0] == len(passes[0].frames):
        return passes[0].frames
    shown = next(part.frames[0] for part in passes if len(part.frames))
    frames = np.empty((sum(counts), plan.height, plan.width, 3), np.uint8)
    at = 0
    for part, count in zip(passes, counts, strict=False):
        found = len(part.frames)
        frames[at : at + found] = part.frames
        shown = part.frames[-1] if found else shown
        frames[at + found : at + count] = shown
        at += count
    return frames


def _length_s(part: _Pass, plan: Plan, window: Window) -> float:
    """Return the seconds really found in a window."""
    sound_s = len(part.pcm) / SAMPLE_RATE_HZ
    rate_hz = plan.frame_rate_hz
    pictures_s = min(len(part.frames) / rate_hz, window.duration_s) if rate_hz is not None else 0.0
    return max(sound_s, pictures_s)


def _lost(heard: NDArray[np.float32], seen: NDArray[np.uint8], plan: Plan) -> list[str]:
    """Return a sentence for a stream that gave nothing."""
    warnings = []
    if plan.audio and not heard.size:
        warnings.append("The file has sound, but none could be decoded.")
    if plan.frames and not seen.size:
        warnings.append("The file has pictures, but none could be decoded.")
    return warnings


def _early(passes: list[_Pass], plan: Plan, decoded_s: float) -> list[str]:
    """Return sentences for windows that ended early and for a recording that goes on beyond its claim."""
    if not plan.duration_known or plan.frames == 1:
        return []
    planned_s = sum(window.duration_s for window in plan.windows)
    warnings = []
    if decoded_s < _SHORT_SHARE * planned_s:
        warnings.append(f"Decoding ended early: {decoded_s:.1f} s of {planned_s:.1f} s.")
    elif decoded_s > planned_s + 0.8 * _MORE_S:
        warnings.append(f"The recording goes on beyond its claimed length of {planned_s:.1f} s.")
    empty = sum(not part.pcm.size and not part.frames.size for part in passes)
    if empty:
        warnings.append(f"{empty} of {len(passes)} windows gave nothing.")
    return warnings


def _errors(passes: list[_Pass]) -> list[str]:
    """Return a sentence with the number of decoder errors and the last of them."""
    count = sum(part.log.errors for part in passes)
    if not count:
        return []
    last = next(part.log for part in reversed(passes) if part.log.errors)
    return [f"ffmpeg reported {count} error{'s' if count > 1 else ''}, at last: {last.reason()}"]


def _forward_only(shift_s: float, duration_s: float | None) -> str:
    """Return the filter that shifts time stamps by `shift_s` and never lets them run back.

    Broken files hold time stamps that overlap or leap far past the end; taken at their word, sound would be
    cut or hours of silence inserted.
    """
    leap = f"*lte(PTS*TB,{_plain(shift_s + duration_s + 10)})" if duration_s is not None else ""
    expected, seen, stamp = "ld(0)", "ld(1)", "ld(2)"
    given = f"st(2,PTS-{_plain(shift_s)}/TB)"
    believed = f"not(isnan(PTS)){leap}*gt({stamp},{expected})"
    now = f"st(2,if({seen},if({believed},{stamp},{expected}),{stamp}))"
    return f"asetpts='{given};{now};st(1,1);st(0,{stamp}+NB_SAMPLES);{stamp}'"


def _plain(value: float | None) -> str:
    """Return a number without an exponent, as ffmpeg's options want it."""
    return f"{value or 0.0:.9f}"
