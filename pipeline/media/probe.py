"""What a file is, by its own headers: kind, streams, claimed duration. Never decodes more than one picture.

Only single-file containers are opened: a playlist (HLS, DASH, concat), which could name other files, is no
media.
"""

from __future__ import annotations

import functools
import json
import math
import os
import re
import stat
import subprocess
import time
from contextlib import suppress
from dataclasses import replace
from typing import Any

from pipeline.errors import ItemError
from pipeline.media import animated, exif
from pipeline.media.process import Collected, Log, TimedOut, opened, run
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
    "format=format_name,start_time,duration,size"
    ":stream=index,codec_type,codec_name,width,height,sample_aspect_ratio,avg_frame_rate,sample_rate,channels"
    ",start_time,duration,nb_frames,pix_fmt,field_order,color_transfer"
    ":stream_disposition=attached_pic,default:stream_tags=rotate,alpha_mode:stream_side_data=displaymatrix"
    ",dv_profile,dv_bl_signal_compatibility_id"
    ":packet=stream_index:packet_side_data=side_data_type"
)
_FIRST_PACKETS = "%+#32"
_ANSWER_BYTES = 4 << 20
_LONGEST_CLAIM_S = 366 * 86_400.0
# Ten hours of silence in FLAC hold 16 bits a second, a still picture in H.264 some hundreds.
_FEWEST_BITS_PER_S = {"audio": 4.0, "video": 64.0}
_SAMPLE_RATES_HZ = (1_000, 1_000_000)
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
QUARTER_TURNED = frozenset({5, 6, 7, 8})
"""EXIF orientations that swap width and height."""
_QUARTER_TURN = 20
"""A matrix is a quarter turn if what lies in its axes is that many times what lies off them."""
_STRAIGHT = {(True, True): 1, (False, True): 2, (False, False): 3, (True, False): 4}
_TURNED = {(True, True): 5, (True, False): 6, (False, False): 7, (False, True): 8}


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


def probe(path: bytes, timeout_s: float) -> MediaFacts:
    """Return what the headers say of a file, with nothing invented where they say nothing.

    Raises ItemError probe_timeout, not_media, no_media_streams, unsupported_codec, or one of `check_file`'s.
    """
    check_file(path)
    deadline = time.monotonic() + timeout_s
    with opened(path) as fd:
        if animated.is_animated_webp(fd):
            return animated.probe_webp(fd, deadline)
        if animated.still_brand(fd) == animated.AVIF:
            with suppress(ItemError):  # ffmpeg before 7 gives no turn to one, and a second of time
                return animated.probe_still(fd, deadline)
        try:
            answer = _ffprobe(fd, ["-show_entries", _SHOWN, "-read_intervals", _FIRST_PACKETS], deadline)
        except ItemError as error:
            if error.code != "not_media" or animated.still_brand(fd) is None:
                raise
            message = f"a HEIC, HEIF or AVIF picture that this ffmpeg cannot read; make it a JPEG ({error.message})"
            raise ItemError("unsupported_codec", message) from None
        facts = _facts(answer)
        if facts.video is not None and _is_dolby_vision_alone(_stream(answer, facts.video)):
            facts = replace(facts, remarks=(*facts.remarks, _DOLBY_VISION))
        if facts.video is not None and (facts.kind == "image" or _unsure_of_fields(facts.video, answer)):
            frame = _first_picture(fd, facts.video.index, deadline)
            return _refined(facts, facts.video, frame, exif.orientation(fd) if facts.kind == "image" else 1)
    return facts


def measured_duration_s(path: bytes, facts: MediaFacts, timeout_s: float) -> float | None:
    """Return the length found by reading every packet, decoding none: for recordings whose header claims
    none.

    None if that takes longer than `timeout_s` or finds nothing.
    """
    start_s = common_start_s(facts.audio, facts.video)
    indices = [stream.index for stream in (facts.audio, facts.video) if stream is not None]
    maps = [part for index in indices for part in ("-map", f"0:{index}")]
    last = Collected(limit=_ANSWER_BYTES)

    def argv(names: list[str], fd: int) -> list[str]:
        source = [
            "-protocol_whitelist",
            "file,pipe",
            "-format_whitelist",
            facts.container,
            "-i",
            f"file:/dev/fd/{fd}",
        ]
        return [
            *("ffmpeg", "-nostdin", "-hide_banner", "-loglevel", "level+error", "-stats_period", "3600"),
            *("-progress", names[0], *source, *maps, "-c", "copy", "-f", "null", "-"),
        ]

    try:
        with opened(path) as fd:
            run(lambda names: argv(names, fd), fd, [last], Log(), time.monotonic() + timeout_s)
    except TimedOut:
        return None
    times = re.findall(rb"out_time_us=(\d+)", bytes(last.data))
    return _believed(int(times[-1]) / 1e6 - start_s, check_file(path), facts.video) if times else None


def _ffprobe(fd: int, shown: list[str], deadline: float) -> JsonObject:
    """Return ffprobe's JSON. Raises ItemError not_media or probe_timeout."""
    answer, log = Collected(limit=_ANSWER_BYTES), Log()
    argv = [
        *("ffprobe", "-hide_banner", "-loglevel", "level+error", "-protocol_whitelist", "file,pipe"),
        *("-format_whitelist", SINGLE_FILE_DEMUXERS, "-of", "json=compact=1", *shown, f"file:/dev/fd/{fd}"),
    ]
    try:
        status = run(lambda _names: argv, fd, [answer], log, deadline)
    except TimedOut:
        raise ItemError("probe_timeout", "ffprobe did not finish in time") from None
    try:
        parsed = json.loads(answer.data.decode("utf-8", "replace"))
    except ValueError:
        parsed = None
    if status != 0 or not isinstance(parsed, dict) or "format" not in parsed:
        raise ItemError("not_media", f"no demuxer for single files opens it: {_plain(log.reason())}")
    return parsed


def _plain(message: str) -> str:
    """Return the message without ffmpeg's print of the whole whitelist."""
    return "a playlist, or a format that is not screened" if "not on whitelist" in message else message


def _first_picture(fd: int, index: int, deadline: float) -> JsonObject:
    """Return the first decoded picture's fields; empty if none decodes (the decoder will say so)."""
    shown = "format=format_name:frame=interlaced_frame:frame_tags=Orientation:frame_side_data=displaymatrix"
    only_pictures = ["-select_streams", str(index), "-show_entries", shown, "-read_intervals", "%+#2"]
    frames = _ffprobe(fd, only_pictures, deadline).get("frames", [])
    return dict(frames[0]) if frames else {}


def _facts(answer: JsonObject) -> MediaFacts:
    """Return the facts of ffprobe's answer.

    Raises ItemError no_media_streams, unsupported_codec, or audio_lost / video_lost if no track of a sense has a
    decoder.
    """
    container = answer["format"]
    streams = [s for s in answer.get("streams", []) if s.get("codec_type") in ("audio", "video")]
    streams = [s for s in streams if not s.get("disposition", {}).get("attached_pic")]
    if not streams:
        raise ItemError("no_media_streams", "the container holds neither sound nor pictures")
    encrypted = _encrypted(answer.get("packets", []))
    faults = {s["index"]: fault for s in streams if (fault := _fault(s, encrypted))}
    usable = [s for s in streams if s["index"] not in faults]
    if not usable:
        raise ItemError("unsupported_codec", "; ".join(f"stream {i}: {fault}" for i, fault in sorted(faults.items())))
    for sense in ("audio", "video"):
        lost = [s["index"] for s in streams if s["codec_type"] == sense]
        if lost and not any(s["codec_type"] == sense for s in usable):
            # An answer from the other sense alone would hide what nobody has seen or heard.
            raise ItemError(f"{sense}_lost", "; ".join(f"stream {i}: {faults[i]}" for i in lost))
    zero_s = _number(container.get("start_time")) or 0.0
    audio = _audio(_chosen(usable, "audio"), zero_s)
    video = _video(_chosen(usable, "video"), zero_s)
    name = str(container.get("format_name", ""))
    kind = _kind(name, audio, video, _chosen(usable, "video"))
    if kind == "image" and video is not None:  # ffmpeg gives a still picture 25 frames a second
        return MediaFacts(kind, name, None, None, replace(video, frame_rate_hz=None, duration_s=None))
    return MediaFacts(kind, name, _duration_s(container, audio, video), audio, video)


def _fault(stream: JsonObject, encrypted: set[int]) -> str | None:
    """Return why a stream cannot be used, None if it can."""
    codec = str(stream.get("codec_name", "unknown"))
    if stream["index"] in encrypted:
        return f"{codec}, encrypted"
    if codec in ("unknown", "none") or not _has_decoder(codec):
        return f"no decoder for {codec}"
    if stream["codec_type"] == "video":
        sized = (_number(stream.get("width")) or 0) > 0 and (_number(stream.get("height")) or 0) > 0
        return None if sized else f"{codec} without a picture size"
    rate_hz = _number(stream.get("sample_rate")) or 0
    return None if _SAMPLE_RATES_HZ[0] <= rate_hz <= _SAMPLE_RATES_HZ[1] else f"{codec} at {rate_hz:g} Hz"


def _encrypted(packets: list[JsonObject]) -> set[int]:
    """Return the streams whose packets carry an encryption record."""
    found = set()
    for packet in packets:
        kinds = {entry.get("side_data_type") for entry in packet.get("side_data_list", [])}
        if kinds & {"Encryption info", "Encryption initialization data"}:
            found.add(int(packet["stream_index"]))
    return found


@functools.cache
def _listed() -> str:
    """Return ffmpeg's list of codecs; empty if it does not say."""
    try:
        listed = subprocess.run(
            ["ffmpeg", "-hide_banner", "-codecs"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return listed.stdout.decode("utf-8", "replace")


@functools.cache
def _decodable() -> frozenset[str]:
    """Return the codecs this ffmpeg decodes; empty if it does not say."""
    return frozenset(re.findall(r"^ D[E.][VA]\S* (\S+)", _listed(), re.MULTILINE))


def _has_decoder(codec: str) -> bool:
    return not _decodable() or codec in _decodable()


def _alpha(stream: JsonObject) -> bool:
    """Return whether a stream's pixels may be transparent, and are decoded so."""
    if _ALPHA.match(str(stream.get("pix_fmt"))):
        return True
    decoder = ALPHA_DECODERS.get(str(stream["codec_name"]))
    tags = {name.lower(): value for name, value in stream.get("tags", {}).items()}
    return decoder is not None and tags.get("alpha_mode") == "1" and f" {decoder} " in _listed()


def _chosen(streams: list[JsonObject], kind: str) -> JsonObject | None:
    """Return the stream marked default, else the first, of `audio` or `video`."""
    of_kind = [s for s in streams if s["codec_type"] == kind]
    marked = [s for s in of_kind if s.get("disposition", {}).get("default")]
    return next(iter(marked or of_kind), None)


def _audio(stream: JsonObject | None, zero_s: float) -> AudioStream | None:
    if stream is None:
        return None
    return AudioStream(
        index=int(stream["index"]),
        codec=str(stream["codec_name"]),
        sample_rate_hz=int(stream["sample_rate"]),
        channels=int(stream.get("channels", 0)),
        start_s=_start_s(stream, zero_s),
        duration_s=_sane(_number(stream.get("duration")), _LONGEST_CLAIM_S),
    )


def _video(stream: JsonObject | None, zero_s: float) -> VideoStream | None:
    if stream is None:
        return None
    orientation = _orientation(stream)
    width, height = _displayed_size(stream, orientation)
    return VideoStream(
        index=int(stream["index"]),
        codec=str(stream["codec_name"]),
        width=width,
        height=height,
        frame_rate_hz=_sane(_ratio(stream.get("avg_frame_rate"), "/"), 1_000.0),
        start_s=_start_s(stream, zero_s),
        duration_s=_sane(_number(stream.get("duration")), _LONGEST_CLAIM_S),
        interlaced=stream.get("field_order") in _FIELD_ORDERS or _is_interlaced_dv(stream),
        hdr=stream.get("color_transfer") in _HDR_TRANSFERS,
        orientation=orientation,
        alpha=_alpha(stream),
    )


def _is_interlaced_dv(stream: JsonObject) -> bool:
    """Return whether it is DV of any kind but 720p: the header has no word on it."""
    return stream["codec_name"] == "dvvideo" and int(stream["height"]) != 720


def _displayed_size(stream: JsonObject, orientation: int) -> tuple[int, int]:
    """Return width and height in pixels after pixel aspect and rotation."""
    width, height = int(stream["width"]), int(stream["height"])
    aspect = _ratio(stream.get("sample_aspect_ratio"), ":")
    if aspect is not None and _PIXEL_ASPECTS[0] <= aspect <= _PIXEL_ASPECTS[1]:
        width = max(1, round(width * aspect))
    return (height, width) if orientation in QUARTER_TURNED else (width, height)


def _orientation(holder: JsonObject) -> int:
    """Return the EXIF orientation (1..8) of a stream or frame: of its display matrix, else of an `Orientation` or the
    old `rotate` tag (degrees clockwise). A matrix that is no quarter turn (oblique, zero, garbage) turns nothing."""
    matrices = [entry["displaymatrix"] for entry in holder.get("side_data_list", []) if "displaymatrix" in entry]
    if matrices:
        return _orientation_of(matrices[0])
    tags = holder.get("tags", {})
    exif = _number(tags.get("Orientation"))
    if exif is not None:
        return int(exif) if exif in range(1, 9) else 1
    return {90.0: 6, 180.0: 3, 270.0: 8}.get((_number(tags.get("rotate")) or 0.0) % 360, 1)


def _orientation_of(matrix: str) -> int:
    """Return the EXIF orientation of a display matrix in ffprobe's print: a pixel's (x, y) goes to
    (a x + c y, b x + d y), of which the rows hold a b u, c d v, x y w (ISO/IEC 14496-12, 6.2.2)."""
    rows = [
        [int(number) for number in re.findall(r"-?\d+", row.partition(":")[2])] for row in matrix.split("\n") if row
    ]
    if len(rows) < 2 or any(len(row) != 3 for row in rows):
        return 1
    (a, b, _), (c, d, _) = rows[:2]
    straight, turned = min(abs(a), abs(d)), min(abs(b), abs(c))
    if straight > _QUARTER_TURN * max(abs(b), abs(c)):
        return _STRAIGHT[a > 0, d > 0]
    return _TURNED[b > 0, c > 0] if turned > _QUARTER_TURN * max(abs(a), abs(d)) else 1


def _stream(answer: JsonObject, video: VideoStream) -> JsonObject:
    """Return what ffprobe says of the chosen picture track."""
    return dict(next(stream for stream in answer["streams"] if stream["index"] == video.index))


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
        own = _orientation(frame)
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
    claim_s = max(ends_s) if len(ends_s) == len(streams) else _number(container.get("duration"))
    if claim_s is None:
        return None
    return _believed(claim_s - start_s, _number(container.get("size")), video)


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
    start_s = _number(stream.get("start_time"))
    return 0.0 if start_s is None else max(0.0, start_s - zero_s)


def _number(value: Any) -> float | None:
    """Return a finite number, None for anything else."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _ratio(value: Any, sign: str) -> float | None:
    """Return `"25/1"` or `"4:3"` as a number, None if it is none."""
    above, _, below = str(value).partition(sign)
    numerator, denominator = _number(above), _number(below)
    return numerator / denominator if numerator and denominator else None


def _sane(value: float | None, largest: float) -> float | None:
    """Return a positive number up to `largest`, None for anything else."""
    return value if value is not None and 0 < value <= largest else None
