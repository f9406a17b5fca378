"""What a file is, by its own headers: kind, streams, claimed duration. Never decodes more than one picture.

Only single-file containers are opened: a playlist (HLS, DASH, concat), which could name other files, is no
media.
"""

from __future__ import annotations

import json
import os
import re
import stat
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, TypeVar

from pipeline.errors import ItemError
from pipeline.media import animated, chunks, exif, orientation, sizes
from pipeline.media.capabilities import has_decoder
from pipeline.media.joined import joined
from pipeline.media.orientation import QUARTER_TURNED
from pipeline.media.process import Collected, Log, TimedOut, beginning, opened, oversized, run, too_many_pixels
from pipeline.media.sandbox import CONFINED, Confinement
from pipeline.media.stale import understated
from pipeline.media.stills import Behind, behind, is_tiff_beyond_ffmpeg
from pipeline.media.tracks import choose, finite
from pipeline.records import AudioStream, JsonObject, MediaFacts, MediaKind, Remark, VideoStream

_STILL_DEMUXERS = (
    "bmp dds dpx exr gem gif j2k jpeg jpegls jpegxl pam pbm pcx pfm pgm pgmyuv pgx phm ppm psd qoi sgi"
    " sunrast tiff webp xbm xpm xwd png"
)
_DEMUXERS = (
    "aac ac3 aiff amr amrnb amrwb ape apng asf asf_o au av1 avi caf cavsvideo dhav dirac dsf dts dtshd dv"
    " eac3 flac flv gif gsm gxf h261 h263 h264 hevc iff ilbc ivf ivr live_flv loas m4v matroska,webm mjpeg"
    " mlp mov,mp4,m4a,3gp,3g2,mj2 mp3 mpc mpc8 mpeg mpegts mpegtsraw mpegvideo mpjpeg mxf nistsphere nsv"
    " nut obu ogg oma pva qcp rm s337m smjpeg sox spdif swf tak truehd tta ty vc1 vc1test vivo voc vvc w64"
    " wav webp wtv wv xwma yuv4mpegpipe"
)
SINGLE_FILE_DEMUXERS = ",".join(_DEMUXERS.split() + [f"{name}_pipe" for name in _STILL_DEMUXERS.split()])
"""ffmpeg's demuxers that read one file only, and read it as a recording or a picture."""

_SHOWN = (
    "format=format_name,probe_score,start_time,duration,size"
    ":stream=index,codec_type,codec_name,width,height,sample_aspect_ratio,avg_frame_rate,sample_rate,channels"
    ",start_time,duration,bit_rate,nb_frames,pix_fmt,field_order,color_transfer"
    ":stream_disposition=attached_pic,timed_thumbnails,default:stream_tags=rotate,alpha_mode,DURATION"
    ":stream_side_data=displaymatrix,dv_profile,dv_bl_signal_compatibility_id"
    ":packet=stream_index:packet_side_data=side_data_type"
)
_HEADERS = ["-show_entries", _SHOWN, "-read_intervals", "%+#32"]
"""What is asked of every file: its headers, and its first 32 packets."""
_Options = tuple[tuple[str, str], ...]
_Track = TypeVar("_Track", AudioStream, VideoStream)
_AS_FILM: _Options = (("f", "mjpeg"),)
_TO_ITS_END: _Options = (("f", "wav"), ("ignore_length", "1"))
_LONGER_LOOK: _Options = (("analyzeduration", "900M"), ("probesize", "400M"))
"""How far ffmpeg looks for a track whose parameters its usual 5 s do not tell: microseconds and bytes."""
_FOUND_ON_THE_WAY = frozenset({"flv", "live_flv", "mpeg"})
"""Containers whose headers need not say which tracks there are: one that begins late shows by its first packet."""
_LATE_CONTAINERS = frozenset({"mpegts", "mpeg", "flv", "live_flv", "matroska,webm", "avi"})
_DOUBTFUL_SCORE = 25
_HEADERLESS = ("amrnb", "amrwb")
_PLAYLIST = re.compile(
    rb"\s*(#EXTM3U|ffconcat\b|\[playlist\]|\[reference\]|v=0\r?\n|(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<(MPD|asx|smil)\b)",
    re.IGNORECASE | re.DOTALL,
)
_CLOCK = re.compile(r"(\d{1,4}):(\d\d):(\d\d(?:\.\d+)?)")
_PLAYLIST_BYTES = 4096
_ANSWER_BYTES = 4 << 20
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
_DOLBY_VISION = Remark(
    "colour_unconverted", "The pictures are Dolby Vision without a common base layer: their colours are wrong."
)
_ALPHA = re.compile(r"(yuva|gbrap|ya\d|pal8|rgba|bgra|argb|abgr)")
ALPHA_DECODERS = {"vp8": "libvpx", "vp9": "libvpx-vp9"}
"""ffmpeg's own decoders of these leave out the transparency that WebM keeps beside the pictures; libvpx's do not."""


def check_file(path: bytes) -> int:
    """Return the size in bytes of a regular file, or of the one a symbolic link leads to.

    Raises ItemError source_missing, source_unreadable, source_not_a_file or empty_file; opens nothing else.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        raise ItemError("source_missing", "the file is not there") from None
    except OSError as error:
        raise ItemError("source_unreadable", f"the file cannot be looked up: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise ItemError("source_not_a_file", "the path is not a regular file")
    if not os.access(path, os.R_OK):
        raise ItemError("source_unreadable", "the file may not be read by this user")
    if status.st_size == 0:
        raise ItemError("empty_file", "the file has zero bytes")
    return status.st_size


def probe(path: bytes, timeout_s: float, confinement: Confinement = CONFINED) -> MediaFacts:
    """Return what the headers say of a file, with nothing invented where they say nothing.

    Raises ItemError probe_timeout, not_media, playlist_refused, encrypted, too_many_pixels, decoder_limit, or one of
    `check_file`'s or of `tracks.choose`'s.
    """
    check_file(path)
    deadline = time.monotonic() + timeout_s
    with opened(path) as fd:
        facts = _by_pillow(fd, deadline, confinement)
        return facts if facts is not None else _by_ffprobe(fd, deadline, confinement)


def _by_pillow(fd: int, deadline: float, confinement: Confinement) -> MediaFacts | None:
    """Return the facts of a picture that Pillow draws, None for any other file."""
    facts = None
    if animated.is_animated_webp(fd):
        facts = animated.probe_webp(fd, deadline, confinement)
    elif animated.still_brand(fd) == animated.AVIF:
        with suppress(ItemError):  # ffmpeg before 7 gives no turn to one, and a second of time
            facts = animated.probe_avif(fd, deadline, confinement)
    elif is_tiff_beyond_ffmpeg(fd):
        facts = animated.probe_tiff(fd, deadline, confinement)
    if facts is not None:
        _check_pixels(facts, confinement)
    return facts


def _by_ffprobe(fd: int, deadline: float, confinement: Confinement) -> MediaFacts:
    """Return the facts of any file that ffmpeg reads."""
    follows = behind(fd)
    options = _AS_FILM if follows.row else _TO_ITS_END if understated(fd) else ()
    if follows.ends is None:
        return _as_said(fd, options, follows, deadline, confinement)
    with beginning(fd, follows.ends) as picture:
        return replace(_as_said(picture, (), follows, deadline, confinement), first_bytes=follows.ends)


def _as_said(fd: int, options: _Options, follows: Behind, deadline: float, confinement: Confinement) -> MediaFacts:
    """Return what ffprobe says of a file."""
    try:
        answer = _ffprobe(fd, options, _HEADERS, deadline, confinement)
    except ItemError as error:
        if error.code != "not_media" or animated.still_brand(fd) is None:
            raise
        message = f"a HEIC, HEIF or AVIF picture that this ffmpeg cannot read; make it a JPEG ({error.message})"
        raise ItemError("unsupported_codec", message) from None
    if not options and _may_hold_more(answer):
        options = _LONGER_LOOK
        answer = _ffprobe(fd, options, _HEADERS, deadline, confinement)
    facts = replace(_by_claim(_facts(answer), answer, chunks.claim(fd) or sizes.claim(fd)), input_options=options)
    more = joined(fd) if options != _TO_ITS_END else None
    facts = replace(facts, remarks=(*facts.remarks, *_hidden(facts, answer, follows), *([more] if more else [])))
    _check_pixels(facts, confinement)
    if facts.video is not None and (facts.kind == "image" or _unsure_of_fields(facts.video, answer)):
        frame = _first_picture(fd, facts, deadline, confinement)
        return _refined(facts, facts.video, frame, exif.orientation(fd) if facts.kind == "image" else 1)
    return facts


def _hidden(facts: MediaFacts, answer: JsonObject, follows: Behind) -> list[Remark]:
    """Return remarks on what of a file is not seen, or not as it should be."""
    remarks, text = [], follows.text()
    if text is None and facts.kind == "image" and facts.video is not None and _packets(answer, facts.video) > 1:
        text = "The file holds more pictures; the first alone is seen."
    if text is not None:
        remarks.append(Remark("tracks_ignored", text))
    if facts.video is not None and _is_dolby_vision_alone(_stream(answer, facts.video)):
        remarks.append(_DOLBY_VISION)
    return remarks


def _packets(answer: JsonObject, video: VideoStream) -> int:
    """Return how many of the first packets belong to the pictures."""
    return sum(int(packet.get("stream_index", -1)) == video.index for packet in answer.get("packets", []))


def _may_hold_more(answer: JsonObject) -> bool:
    """Return whether a longer look may show more: a track that begins late has no rate or size yet, or is not there."""
    streams = [s for s in answer.get("streams", []) if s.get("codec_type") in ("audio", "video")]
    untold = any(
        s.get("codec_name") not in (None, "unknown") and not int(s.get("sample_rate") or s.get("width") or 0)
        for s in streams
    )
    container = answer["format"].get("format_name")
    one_sense = len({s["codec_type"] for s in streams}) < 2
    return (untold and container in _LATE_CONTAINERS) or (one_sense and container in _FOUND_ON_THE_WAY)


def _by_claim(facts: MediaFacts, answer: JsonObject, claim: sizes.Claim | None) -> MediaFacts:
    """Return the facts of a file cut short with the length that its header claims.

    ffmpeg gives, as the format has it, the claimed length, that of the bytes that are there, or none.
    """
    if claim is None or facts.kind == "image":
        return facts
    size_bytes = finite(answer["format"].get("size"))
    if facts.duration_s is None:
        return replace(facts, duration_s=_believed(claim.length_s or 0.0, size_bytes, facts.video))
    times, told_s = claim.times, claim.length_s or _counted_s(facts, answer)
    if told_s and told_s > _LEAST_TOLD * facts.duration_s:
        times = min(times, told_s / facts.duration_s)
    if _believed(facts.duration_s * times, size_bytes, facts.video) is None:
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


def _check_pixels(facts: MediaFacts, confinement: Confinement) -> None:
    """Raise ItemError too_many_pixels before a picture is decoded that the job does not allow."""
    video = facts.video
    if video is not None and video.width * video.height > confinement.max_pixels:
        raise too_many_pixels(video.width, video.height)


def measured_duration_s(
    path: bytes, facts: MediaFacts, timeout_s: float, confinement: Confinement = CONFINED
) -> float | None:
    """Return the length found by reading every packet, decoding none: for recordings whose header claims
    none.

    None if that takes longer than `timeout_s` or finds nothing.
    """
    start_s = common_start_s(facts.audio, facts.video)
    indices = [stream.index for stream in (facts.audio, facts.video) if stream is not None]
    maps = [part for index in indices for part in ("-map", f"0:{index}")]
    last = Collected(limit=_ANSWER_BYTES)

    def argv(names: list[str], fd: int) -> list[str]:
        return [
            *("ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "level+error", "-stats_period", "3600"),
            *("-progress", names[0], "-protocol_whitelist", "file,pipe", "-format_whitelist", facts.container),
            *(*_as_arguments(facts.input_options), "-i", f"file:/dev/fd/{fd}", *maps, "-c", "copy", "-f", "null", "-"),
        ]

    try:
        with opened(path) as fd:
            run(lambda names: argv(names, fd), fd, [last], Log(), time.monotonic() + timeout_s, confinement)
    except TimedOut:
        return None
    times = re.findall(rb"out_time_us=(\d+)", bytes(last.data))
    return _believed(int(times[-1]) / 1e6 - start_s, check_file(path), facts.video) if times else None


def measured(facts: MediaFacts, duration_s: float | None) -> MediaFacts:
    """Return the facts with a length that was measured, or None, in place of the header's claims."""
    audio = None if facts.audio is None else replace(facts.audio, duration_s=None)
    video = None if facts.video is None else replace(facts.video, duration_s=None)
    return replace(facts, duration_s=duration_s, audio=audio, video=video)


def _ffprobe(fd: int, options: _Options, shown: Sequence[str], deadline: float, confinement: Confinement) -> JsonObject:
    """Return ffprobe's JSON, and its messages under `said`.

    Raises ItemError probe_timeout, not_media, playlist_refused, encrypted or decoder_limit.
    """
    answer, log = Collected(limit=_ANSWER_BYTES), Log()
    argv = [
        *("ffprobe", "-hide_banner", "-loglevel", "level+error", "-max_pixels", str(confinement.max_pixels)),
        *("-protocol_whitelist", "file,pipe", "-format_whitelist", SINGLE_FILE_DEMUXERS),
        *("-of", "json=compact=1", *shown, *_as_arguments(options), f"file:/dev/fd/{fd}"),
    ]
    try:
        status = run(lambda _names: argv, fd, [answer], log, deadline, confinement)
    except TimedOut:
        raise ItemError("probe_timeout", "ffprobe did not finish in time") from None
    try:
        parsed = json.loads(answer.data.decode("utf-8", "replace"))
    except ValueError:
        parsed = None
    if status != 0 or not isinstance(parsed, dict) or "format" not in parsed:
        raise oversized(log.reason()) or _unopened(os.pread(fd, _PLAYLIST_BYTES, 0), log.reason())
    return {**parsed, "said": log.reason()}


def _as_arguments(options: _Options) -> list[str]:
    return [part for name, value in options for part in (f"-{name}", value)]


def _unopened(first_bytes: bytes, reason: str) -> ItemError:
    """Return the error of a file that no demuxer opens."""
    if _PLAYLIST.match(first_bytes.removeprefix(b"\xef\xbb\xbf")):
        return ItemError("playlist_refused", "a playlist or script that names other files, which are not opened")
    if "encryption" in reason:
        return ItemError("encrypted", f"the container is encrypted: {reason}")
    if "not on whitelist" in reason:  # ffmpeg goes on to print all of it
        reason = "a format that is not screened"
    return ItemError("not_media", f"no demuxer for single files opens it: {reason}")


def _first_picture(fd: int, facts: MediaFacts, deadline: float, confinement: Confinement) -> JsonObject:
    """Return the first decoded picture's fields; empty if none decodes (the decoder will say so)."""
    shown = "format=format_name:frame=interlaced_frame:frame_tags=Orientation:frame_side_data=displaymatrix"
    assert facts.video is not None
    only_pictures = ["-select_streams", str(facts.video.index), "-show_entries", shown, "-read_intervals", "%+#2"]
    frames = _ffprobe(fd, facts.input_options, only_pictures, deadline, confinement).get("frames", [])
    return dict(frames[0]) if frames else {}


def _facts(answer: JsonObject) -> MediaFacts:
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


def _claim_s(stream: JsonObject, start_s: float) -> float | None:
    """Return the length that a track claims, or what Matroska's writers put into a tag: where it ends."""
    claimed_s = finite(stream.get("duration"))  # in Matroska the container's, if any
    if found := _CLOCK.fullmatch(str(stream.get("tags", {}).get("DURATION", ""))):
        claimed_s = int(found[1]) * 3600 + int(found[2]) * 60 + float(found[3]) - start_s
    return _sane(claimed_s, _LONGEST_CLAIM_S)


def _displayed_size(stream: JsonObject, upright: int) -> tuple[int, int]:
    """Return width and height in pixels after pixel aspect and rotation."""
    width, height = int(stream["width"]), int(stream["height"])
    aspect = _ratio(stream.get("sample_aspect_ratio"), ":")
    if aspect is not None and _PIXEL_ASPECTS[0] <= aspect <= _PIXEL_ASPECTS[1]:
        width = max(1, round(width * aspect))
    return (height, width) if upright in QUARTER_TURNED else (width, height)


def _stream(answer: JsonObject, track: AudioStream | VideoStream) -> JsonObject:
    """Return what ffprobe says of a chosen track."""
    return dict(next(stream for stream in answer["streams"] if stream["index"] == track.index))


def _is_dolby_vision_alone(stream: JsonObject) -> bool:
    """Return whether pictures are coded for Dolby Vision and nothing else (profile 5): as they stand, colours are
    wrong."""
    return any(
        entry.get("dv_profile") == 5 and not entry.get("dv_bl_signal_compatibility_id")
        for entry in stream.get("side_data_list", [])
    )


def _unsure_of_fields(video: VideoStream, answer: JsonObject) -> bool:
    """Return whether only a decoded frame tells if the track is interlaced."""
    stream = _stream(answer, video)
    return video.codec in _FIELDS_IN_FRAMES and stream.get("field_order", "unknown") == "unknown"


def _refined(facts: MediaFacts, video: VideoStream, frame: JsonObject, file_orientation: int) -> MediaFacts:
    """Return the facts with what the first decoded frame says of fields, and a still picture or its file of
    orientation."""
    video = replace(video, interlaced=video.interlaced or bool(frame.get("interlaced_frame")))
    if facts.kind == "image" and video.orientation == 1:
        own = orientation.of(frame)
        video = replace(video, orientation=own if own > 1 else file_orientation)
        if video.orientation in QUARTER_TURNED:
            video = replace(video, width=video.height, height=video.width)
    return replace(facts, video=video)


def _kind(container: str, audio: AudioStream | None, video: VideoStream | None, stream: JsonObject | None) -> MediaKind:
    if video is None or stream is None:
        return "audio"
    if audio is not None:
        return "av"
    single = container in ("gif", "apng") and stream.get("nb_frames") == "1"
    return "image" if single or container == "webp" or container.endswith("_pipe") else "video"


def _duration_s(container: JsonObject, audio: AudioStream | None, video: VideoStream | None) -> float | None:
    """Return the claimed length of the chosen streams together, else of the container; None if not
    believable."""
    start_s = common_start_s(audio, video)
    streams = [stream for stream in (audio, video) if stream is not None]
    ends_s = [stream.start_s + stream.duration_s for stream in streams if stream.duration_s is not None]
    claim_s = max(ends_s) if len(ends_s) == len(streams) else finite(container.get("duration"))
    if claim_s is None:
        return None
    return _believed(claim_s - start_s, finite(container.get("size")), video)


def _believed(duration_s: float, size_bytes: float | None, video: VideoStream | None) -> float | None:
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


def _ratio(value: Any, sign: str) -> float | None:
    """Return `"25/1"` or `"4:3"` as a number, None if it is none."""
    above, _, below = str(value).partition(sign)
    numerator, denominator = finite(above), finite(below)
    return numerator / denominator if numerator and denominator else None


def _sane(value: float | None, largest: float) -> float | None:
    """Return a positive number up to `largest`, None for anything else."""
    return value if value is not None and 0 < value <= largest else None
