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

from pipeline.errors import ItemError
from pipeline.media import animated, chunks, exif, sizes
from pipeline.media.headers import (
    believed,
    by_claim,
    common_start_s,
    facts_of,
    is_dolby_vision_alone,
    packets,
    refined,
    unsure_of_fields,
)
from pipeline.media.joined import joined
from pipeline.media.process import Collected, Log, TimedOut, beginning, opened, oversized, run, too_many_pixels
from pipeline.media.sandbox import CONFINED, Confinement
from pipeline.media.stale import understated
from pipeline.media.stills import Behind, behind, is_tiff_beyond_ffmpeg
from pipeline.records import JsonObject, MediaFacts, Remark

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
_AS_FILM: _Options = (("f", "mjpeg"),)
_TO_ITS_END: _Options = (("f", "wav"), ("ignore_length", "1"))
_LONGER_LOOK: _Options = (("analyzeduration", "900M"), ("probesize", "400M"))
"""How far ffmpeg looks for a track whose parameters its usual 5 s do not tell: microseconds and bytes."""
_FOUND_ON_THE_WAY = frozenset({"flv", "live_flv", "mpeg"})
"""Containers whose headers need not say which tracks there are: one that begins late shows by its first packet."""
_LATE_CONTAINERS = frozenset({"mpegts", "mpeg", "flv", "live_flv", "matroska,webm", "avi"})
_PLAYLIST = re.compile(
    rb"\s*(#EXTM3U|ffconcat\b|\[playlist\]|\[reference\]|v=0\r?\n|(<\?xml[^>]*>\s*)?(<!--.*?-->\s*)?<(MPD|asx|smil)\b)",
    re.IGNORECASE | re.DOTALL,
)
_PLAYLIST_BYTES = 4096
_ANSWER_BYTES = 4 << 20
_DOLBY_VISION = Remark(
    "colour_unconverted", "The pictures are Dolby Vision without a common base layer: their colours are wrong."
)


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
    facts = replace(by_claim(facts_of(answer), answer, chunks.claim(fd) or sizes.claim(fd)), input_options=options)
    more = joined(fd) if options != _TO_ITS_END else None
    facts = replace(facts, remarks=(*facts.remarks, *_hidden(facts, answer, follows), *([more] if more else [])))
    _check_pixels(facts, confinement)
    if facts.video is not None and (facts.kind == "image" or unsure_of_fields(facts.video, answer)):
        frame = _first_picture(fd, facts, deadline, confinement)
        return refined(facts, facts.video, frame, exif.orientation(fd) if facts.kind == "image" else 1)
    return facts


def _hidden(facts: MediaFacts, answer: JsonObject, follows: Behind) -> list[Remark]:
    """Return remarks on what of a file is not seen, or not as it should be."""
    remarks, text = [], follows.text()
    if text is None and facts.kind == "image" and facts.video is not None and packets(answer, facts.video) > 1:
        text = "The file holds more pictures; the first alone is seen."
    if text is not None:
        remarks.append(Remark("tracks_ignored", text))
    if facts.video is not None and is_dolby_vision_alone(facts.video, answer):
        remarks.append(_DOLBY_VISION)
    return remarks


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
    return believed(int(times[-1]) / 1e6 - start_s, check_file(path), facts.video) if times else None


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
