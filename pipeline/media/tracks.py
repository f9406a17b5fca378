"""Which of a file's tracks is heard and which is seen, and what must be said of the others.

Of each sense the track marked default, else the first, among those that can be decoded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal

from pipeline.errors import ItemError
from pipeline.media.capabilities import decodes
from pipeline.records import JsonObject, Remark

Sense = Literal["audio", "video"]

_SAMPLE_RATES_HZ = (1_000, 1_000_000)
_MOST_CHANNELS = 64
"""ffmpeg's resampler takes no more."""
_NO_TRACK = ("attached_pic", "timed_thumbnails")
_UNKNOWN = Remark("tracks_ignored", "What stream {} holds is not known to this ffmpeg; it is neither heard nor seen.")
_CHAPTERS = Remark("tracks_ignored", "Pictures of chapters (stream {}) are not seen.")
_SUBTITLES = Remark("extras_ignored", "Subtitles (stream {}) are not read.")
_COVER = Remark("extras_ignored", "A cover picture (stream {}) is not seen.")
_NAMES = {"audio": ("sound", "heard"), "video": ("picture", "seen")}


@dataclass(frozen=True, slots=True)
class Tracks:
    """The chosen streams as ffprobe shows them, None where the file has none of that sense."""

    audio: JsonObject | None
    video: JsonObject | None
    remarks: tuple[Remark, ...]


def choose(answer: JsonObject) -> Tracks:
    """Return the tracks of ffprobe's answer (streams, and the first packets' side data).

    Raises ItemError no_media_streams, encrypted, unsupported_codec, or audio_lost / video_lost if no track of a sense
    that the file has can be decoded.
    """
    streams = [s for s in answer.get("streams", []) if s.get("codec_type") in _NAMES]
    streams = [s for s in streams if not any(s.get("disposition", {}).get(name) for name in _NO_TRACK)]
    if not streams:
        raise ItemError("no_media_streams", "the container holds neither sound nor pictures")
    encrypted = _encrypted(answer.get("packets", []))
    faults = {s["index"]: fault for s in streams if (fault := _fault(s, encrypted))}
    if len(faults) == len(streams):
        code = "encrypted" if encrypted else "unsupported_codec"
        raise ItemError(code, "; ".join(f"stream {i}: {fault}" for i, fault in sorted(faults.items())))
    audio, heard = _of_sense(streams, faults, "audio")
    video, seen = _of_sense(streams, faults, "video")
    return Tracks(audio, video, heard + seen + _beside(answer.get("streams", [])))


def _beside(streams: list[JsonObject]) -> tuple[Remark, ...]:
    """Return a remark for each kind of stream that people see or read and the model does not get."""
    kinds: dict[Remark, list[str]] = {}
    for stream in streams:
        if (kind := _kind_beside(stream)) is not None:
            kinds.setdefault(kind, []).append(str(stream["index"]))
    return tuple(Remark(kind.code, kind.text.format(", ".join(indices))) for kind, indices in kinds.items())


def _kind_beside(stream: JsonObject) -> Remark | None:
    """Return what is said of such a stream; None for one that is chosen from, or that is data for programs."""
    kind, marks = stream.get("codec_type"), stream.get("disposition", {})
    if kind in (None, "unknown"):
        return _UNKNOWN
    if kind == "subtitle":
        return _SUBTITLES
    if kind == "video" and marks.get("timed_thumbnails"):
        return _CHAPTERS
    return _COVER if kind == "video" and marks.get("attached_pic") else None


def _of_sense(
    streams: list[JsonObject], faults: dict[int, str], sense: Sense
) -> tuple[JsonObject | None, tuple[Remark, ...]]:
    """Return the chosen track of a sense, and a remark if there are others."""
    tracks = [s for s in streams if s["codec_type"] == sense]
    if not tracks:
        return None, ()
    usable = [s for s in tracks if s["index"] not in faults]
    said = [f"stream {s['index']}: {faults[s['index']]}" for s in tracks if s["index"] in faults]
    if not usable:
        # An answer from the other sense alone would hide what nobody has seen or heard.
        raise ItemError(f"{sense}_lost", "; ".join(said))
    chosen = next((s for s in usable if s.get("disposition", {}).get("default")), usable[0])
    if len(tracks) == 1:
        return chosen, ()
    noun, perceived = _NAMES[sense]
    text = f"The file has {len(tracks)} {noun} tracks; stream {chosen['index']} alone is {perceived}"
    return chosen, (Remark("tracks_ignored", f"{text} ({'; '.join(said)})." if said else f"{text}."),)


def _fault(stream: JsonObject, encrypted: set[int]) -> str | None:
    """Return why a stream cannot be used, None if it can."""
    codec = str(stream.get("codec_name", "unknown"))
    if stream["index"] in encrypted:
        return f"{codec}, encrypted"
    if codec in ("unknown", "none") or not decodes(codec):
        return f"no decoder for {codec}"
    if stream["codec_type"] == "video":
        sized = (finite(stream.get("width")) or 0) > 0 and (finite(stream.get("height")) or 0) > 0
        return None if sized else f"{codec} without a picture size"
    rate_hz, channels = finite(stream.get("sample_rate")) or 0, finite(stream.get("channels")) or 0
    if not _SAMPLE_RATES_HZ[0] <= rate_hz <= _SAMPLE_RATES_HZ[1]:
        return f"{codec} at {rate_hz:g} Hz"
    return None if channels <= _MOST_CHANNELS else f"{codec} of {channels:g} channels"


def _encrypted(packets: list[JsonObject]) -> set[int]:
    """Return the streams whose packets carry an encryption record."""
    found = set()
    for packet in packets:
        kinds = {entry.get("side_data_type") for entry in packet.get("side_data_list", [])}
        if kinds & {"Encryption info", "Encryption initialization data"}:
            found.add(int(packet["stream_index"]))
    return found


def finite(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None
