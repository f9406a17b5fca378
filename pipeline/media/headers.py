"""ffprobe's answer becomes facts: what the headers claim, kept where it can be true. Opens nothing."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, TypeVar

from pipeline.errors import ItemError
from pipeline.media import orientation
from pipeline.media.capabilities import has_decoder
from pipeline.media.orientation import QUARTER_TURNED
from pipeline.media.process import oversized
from pipeline.media.sizes import Claim
from pipeline.media.tracks import choose, finite
from pipeline.records import AudioStream, JsonObject, MediaFacts, MediaKind, Remark, VideoStream

_Track = TypeVar("_Track", AudioStream, VideoStream)
_DOUBTFUL_SCORE = 25
_HEADERLESS = ("amrnb", "amrwb")
_CLOCK = re.compile(r"(\d{1,4}):(\d\d):(\d\d(?:\.\d+)?)")
_LONGEST_CLAIM_S = 366 * 86_400.0
# Ten hours of silence in FLAC hold 16 bits a second, a still picture in H.264 some hundreds.
_FEWEST_BITS_PER_S = {"audio": 4.0, "video": 64.0}
_LEAST_TOLD = 0.5
"""A header that tells of less than this share of the length that ffmpeg gives is wrong; for ADPCM ffmpeg gives up to
1.4 times too much."""
_PIXEL_ASPECTS = (0.1, 10.0)
_FIELD_ORDERS = frozenset({"tt", "bb", "tb", "bt"})
_FIELDS_IN_FRAMES = frozenset({"cavs", "mjpeg", "mpeg4", "vc1", "wmv3"})
"""Codecs whose decoders say frame by frame, not in the header, whether a frame holds two fields."""
_HDR_TRANSFERS = frozenset({"smpte2084", "arib-std-b67"})
_ALPHA = re.compile(r"(yuva|gbrap|ya\d|pal8|rgba|bgra|argb|abgr)")
ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""ffmpeg's own decoders of these leave out the transparency that WebM keeps beside the pictures; libvpx's do not."""


def facts_of(answer: JsonObject) -> MediaFacts:
    """Return the facts of ffprobe's answer. Raises the ItemErrors of `tracks.choose`."""
    container = answer["format"]
    try:
        tracks = choose(answer)
    except ItemError as error:
        raise oversized(answer["said"]) or error from None
    zero_s = finite(container.get("start_time")) or 0.0
    audio = _audio(tracks.audio, zero_s)
    video = _video(tracks.video, zero_s)
    name = str(container.get("format_name", ""))
    kind, remarks = _kind(name, audio, video, tracks.video), (*_doubts(container), *tracks.remarks)
    if kind == "image" and video is not None:  # ffmpeg gives a still picture 25 frames a second
        return MediaFacts(kind, name, None, None, replace(video, frame_rate_hz=None, duration_s=None), remarks)
    return MediaFacts(kind, name, _duration_s(container, audio, video), audio, video, remarks)


def _doubts(container: JsonObject) -> tuple[Remark, ...]:
    """Return a remark if ffmpeg's guess at the format is no better than chance.

    At a score of 25 or less (AVPROBE_SCORE_RETRY) ffmpeg itself warns of a misdetection. AMR without its header scores
    one more, but has no mark at all: much that is no AMR can be heard as such, as noise.
    """
    name, score = str(container.get("format_name", "")), finite(container.get("probe_score"))
    if name not in _HEADERLESS and (score is None or score == 0 or score > _DOUBTFUL_SCORE):  # 0: told, not guessed
        return ()
    return (Remark("doubtful_format", f"The file may not be {name}: nothing but chance finds may speak for it."),)


def _kind(container: str, audio: AudioStream | None, video: VideoStream | None, stream: JsonObject | None) -> MediaKind:
    if video is None or stream is None:
        return "audio"
    if audio is not None:
        return "av"
    single = container in ("gif", "apng") and stream.get("nb_frames") == "1"
    return "image" if single or container == "webp" or container.endswith("_pipe") else "video"


def _audio(stream: JsonObject | None, zero_s: float) -> AudioStream | None:
    if stream is None:
        return None
    return AudioStream(
        index=int(stream["index"]),
        codec=str(stream["codec_name"]),
        sample_rate_hz=int(stream["sample_rate"]),
        channels=int(stream.get("channels", 0)),
        start_s=_start_s(stream, zero_s),
        duration_s=_claim_s(stream, _start_s(stream, zero_s)),
    )


def _video(stream: JsonObject | None, zero_s: float) -> VideoStream | None:
    if stream is None:
        return None
    upright = orientation.of(stream)
    width, height = _displayed_size(stream, upright)
    return VideoStream(
        index=int(stream["index"]),
        codec=str(stream["codec_name"]),
        width=width,
        height=height,
        frame_rate_hz=_sane(_ratio(stream.get("avg_frame_rate"), "/"), 1_000.0),
        start_s=_start_s(stream, zero_s),
        duration_s=_claim_s(stream, _start_s(stream, zero_s)),
        interlaced=stream.get("field_order") in _FIELD_ORDERS or _is_interlaced_dv(stream),
        hdr=stream.get("color_transfer") in _HDR_TRANSFERS,
        orientation=upright,
        alpha=_alpha(stream),
    )


def _alpha(stream: JsonObject) -> bool:
    """Return whether a stream's pixels may be transparent, and are decoded so."""
    if _ALPHA.match(str(stream.get("pix_fmt"))):
        return True
    decoder = ALPHA_DECODERS.get(str(stream["codec_name"]))
    tags = {name.lower(): value for name, value in stream.get("tags", {}).items()}
    return decoder is not None and tags.get("alpha_mode") == "1" and has_decoder(decoder)


def _is_interlaced_dv(stream: JsonObject) -> bool:
    """Return whether it is DV of any kind but 720p: the header has no word on it."""
    return stream["codec_name"] == "dvvideo" and int(stream["height"]) != 720


def _displayed_size(stream: JsonObject, upright: int) -> tuple[int, int]:
    """Return width and height in pixels after pixel aspect and rotation."""
    width, height = int(stream["width"]), int(stream["height"])
    aspect = _ratio(stream.get("sample_aspect_ratio"), ":")
    if aspect is not None and _PIXEL_ASPECTS[0] <= aspect <= _PIXEL_ASPECTS[1]:
        width = max(1, round(width * aspect))
    return (height, width) if upright in QUARTER_TURNED else (width, height)


def _claim_s(stream: JsonObject, start_s: float) -> float | None:
    """Return the length that a track claims, or what Matroska's writers put into a tag: where it ends."""
    claimed_s = finite(stream.get("duration"))  # in Matroska the container's, if any
    if found := _CLOCK.fullmatch(str(stream.get("tags", {}).get("DURATION", ""))):
        claimed_s = int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3]) - start_s
    return _sane(claimed_s, _LONGEST_CLAIM_S)


def _duration_s(container: JsonObject, audio: AudioStream | None, video: VideoStream | None) -> float | None:
    """Return the claimed length of the chosen streams together, else of the container; None if not
    believable."""
    start_s = common_start_s(audio, video)
    streams = [stream for stream in (audio, video) if stream is not None]
    ends_s = [stream.start_s + stream.duration_s for stream in streams if stream.duration_s is not None]
    claim_s = max(ends_s) if len(ends_s) == len(streams) else finite(container.get("duration"))
    if claim_s is None:
        return None
    return believed(claim_s - start_s, finite(container.get("size")), video)


def believed(duration_s: float, size_bytes: float | None, video: VideoStream | None) -> float | None:
    """Return a length that the file's size can hold, None for a lie (a patched frame count, broken time
    stamps)."""
    fewest = _FEWEST_BITS_PER_S["audio" if video is None else "video"]
    sane_s = _sane(duration_s, _LONGEST_CLAIM_S)
    return sane_s if sane_s is None or size_bytes is None or size_bytes * 8 / sane_s >= fewest else None


def common_start_s(audio: AudioStream | None, video: VideoStream | None) -> float:
    """Return where the first of the chosen streams begins, seconds after the container's start."""
    return min((stream.start_s for stream in (audio, video) if stream is not None), default=0.0)


def _start_s(stream: JsonObject, zero_s: float) -> float:
    start_s = finite(stream.get("start_time"))
    return 0.0 if start_s is None else max(0.0, start_s - zero_s)


def refined(facts: MediaFacts, video: VideoStream, frame: JsonObject, file_orientation: int) -> MediaFacts:
    """Return the facts with what the first decoded frame says of fields, and a still picture or its file of
    orientation."""
    video = replace(video, interlaced=video.interlaced or bool(frame.get("interlaced_frame")))
    if facts.kind == "image" and video.orientation == 1:
        own = orientation.of(frame)
        video = replace(video, orientation=own if own > 1 else file_orientation)
        if video.orientation in QUARTER_TURNED:
            video = replace(video, width=video.height, height=video.width)
    return replace(facts, video=video)


def unsure_of_fields(video: VideoStream, answer: JsonObject) -> bool:
    """Return whether only a decoded frame tells if the track is interlaced."""
    stream = _stream(answer, video)
    return video.codec in _FIELDS_IN_FRAMES and stream.get("field_order", "unknown") == "unknown"


def is_dolby_vision_alone(video: VideoStream, answer: JsonObject) -> bool:
    """Return whether pictures are coded for Dolby Vision and nothing else (profile 5): as they stand, colours are
    wrong."""
    return any(
        entry.get("dv_profile") == 5 and not entry.get("dv_bl_signal_compatibility_id")
        for entry in _stream(answer, video).get("side_data_list", [])
    )


def by_claim(facts: MediaFacts, answer: JsonObject, claim: Claim | None) -> MediaFacts:
    """Return the facts of a file cut short with the length that its header claims.

    ffmpeg gives, as the format has it, the claimed length, that of the bytes that are there, or none.
    """
    if claim is None or facts.kind == "image":
        return facts
    size_bytes = finite(answer["format"].get("size"))
    if facts.duration_s is None:
        return replace(facts, duration_s=believed(claim.length_s or 0.0, size_bytes, facts.video))
    times, told_s = claim.times, claim.length_s or _counted_s(facts, answer)
    if told_s and told_s > _LEAST_TOLD * facts.duration_s:
        times = min(times, told_s / facts.duration_s)
    if believed(facts.duration_s * times, size_bytes, facts.video) is None:
        return facts
    audio, video = _stretched(facts.audio, times), _stretched(facts.video, times)
    return replace(facts, duration_s=facts.duration_s * times, audio=audio, video=video)


def _stretched(track: _Track | None, times: float) -> _Track | None:
    """Return a track that claims to be that many times as long."""
    return track if track is None or track.duration_s is None else replace(track, duration_s=track.duration_s * times)


def _counted_s(facts: MediaFacts, answer: JsonObject) -> float | None:
    """Return the length of the pictures by the number that the header claims, None if it claims none."""
    if facts.video is None or facts.video.frame_rate_hz is None:
        return None
    pictures = finite(_stream(answer, facts.video).get("nb_frames"))
    return pictures / facts.video.frame_rate_hz if pictures else None


def packets(answer: JsonObject, video: VideoStream) -> int:
    """Return how many of the first packets belong to the pictures."""
    return sum(int(packet.get("stream_index", -1)) == video.index for packet in answer.get("packets", []))


def _stream(answer: JsonObject, track: AudioStream | VideoStream) -> JsonObject:
    """Return what ffprobe says of a chosen track."""
    return dict(next(stream for stream in answer["streams"] if stream["index"] == track.index))


def _ratio(value: Any, sign: str) -> float | None:
    """Return `"25/1"` or `"4:3"` as a number, None if it is none."""
    above, _, below = str(value).partition(sign)
    numerator, denominator = finite(above), finite(below)
    return numerator / denominator if numerator and denominator else None


def _sane(value: float | None, largest: float) -> float | None:
    """Return a positive number up to `largest`, None for anything else."""
    return value if value is not None and 0 < value <= largest else None
