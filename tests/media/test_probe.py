"""What a file is: kinds, streams, claims, and what is refused without being opened or followed."""

from __future__ import annotations

import os
import random
import shutil
import time
from pathlib import Path

import pytest

from pipeline.errors import ItemError
from pipeline.media.probe import check_file, measured_duration_s, probe
from pipeline.media.tracks import choose
from tests.media.conftest import MakeClip

TONE = ("-f", "lavfi", "-i", "sine=f=440:d=1")
PICTURES = ("-f", "lavfi", "-i", "testsrc2=s=160x96:r=10:d=1")
TIMEOUT_S = 10.0


def code_of(path: bytes) -> str:
    with pytest.raises(ItemError) as caught:
        probe(path, TIMEOUT_S)
    return caught.value.code


def test_only_regular_files_are_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo.mp4")
    (tmp_path / "empty.mp4").touch()
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, code in {
        "missing.mp4": "source_missing",
        "fifo.mp4": "source_not_a_file",
        "empty.mp4": "empty_file",
        "loop": "source_unreadable",
        "": "source_not_a_file",
    }.items():
        assert code_of(os.fsencode(tmp_path / name)) == code
    assert code_of(b"/dev/zero") == "source_not_a_file"


def test_a_link_to_a_file_counts_as_the_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert check_file(os.fsencode(tmp_path / "link")) == 5


@pytest.mark.parametrize(
    ("name", "arguments", "kind"),
    [
        ("a.wav", TONE, "audio"),
        ("sound_only.mp4", (*TONE, "-c:a", "aac"), "audio"),
        ("v.mp4", PICTURES, "video"),
        ("av.mkv", (*PICTURES, *TONE), "av"),
        ("still.png", (*PICTURES, "-frames:v", "1"), "image"),
        ("still.jpg", (*PICTURES, "-frames:v", "1"), "image"),
        ("still.gif", (*PICTURES, "-frames:v", "1"), "image"),
        ("moving.gif", PICTURES, "video"),
    ],
)
def test_the_kind_follows_the_content(
    make_clip: MakeClip, tmp_path: Path, name: str, arguments: tuple[str, ...], kind: str
) -> None:
    unnamed = tmp_path / "no_extension"
    shutil.copy(make_clip(name, *arguments), unnamed)
    facts = probe(os.fsencode(unnamed), TIMEOUT_S)
    assert facts.kind == kind
    assert (facts.audio is not None, facts.video is not None) == (kind in ("audio", "av"), kind != "audio")


def test_cover_art_is_no_video(make_clip: MakeClip) -> None:
    cover = make_clip("cover.png", *PICTURES, "-frames:v", "1")
    arguments = (
        *TONE,
        "-i",
        str(cover),
        "-map",
        "0",
        "-map",
        "1",
        "-c:v",
        "copy",
        "-disposition:v",
        "attached_pic",
    )
    assert probe(os.fsencode(make_clip("cover.mp3", *arguments)), TIMEOUT_S).kind == "audio"


def test_the_size_is_the_displayed_one(make_clip: MakeClip) -> None:
    upright = make_clip("v.mp4", *PICTURES)
    turned = make_clip("turned.mp4", "-i", str(upright), "-c", "copy", "-metadata:s:v", "rotate=90")
    wide = make_clip("wide.mp4", *PICTURES, "-vf", "setsar=2")
    sizes = [probe(os.fsencode(path), TIMEOUT_S).video for path in (upright, turned, wide)]
    assert [(video.width, video.height) for video in sizes if video] == [(160, 96), (96, 160), (320, 96)]


def test_the_default_stream_is_chosen(make_clip: MakeClip) -> None:
    two = (*TONE, "-f", "lavfi", "-i", "sine=f=880:d=1", "-map", "0", "-map", "1", "-c:a", "flac")
    clip = make_clip("two.mka", *two, "-disposition:a:0", "0", "-disposition:a:1", "default")
    facts = probe(os.fsencode(clip), TIMEOUT_S)
    assert facts.audio is not None and facts.audio.index == 1
    assert [(remark.code, "2 sound tracks; stream 1 alone" in remark.text) for remark in facts.remarks] == [
        ("tracks_ignored", True)
    ]


def test_a_track_that_cannot_be_decoded_is_passed_over_and_named(make_clip: MakeClip, tmp_path: Path) -> None:
    two = (*TONE, "-f", "lavfi", "-i", "sine=f=880:d=1", "-map", "0", "-map", "1", "-c:a", "flac")
    data = make_clip("two_flac.mka", *two, "-disposition:a:0", "default").read_bytes()
    (tmp_path / "odd.mka").write_bytes(data.replace(b"A_FLAC", b"A_XXXX", 1))
    facts = probe(os.fsencode(tmp_path / "odd.mka"), TIMEOUT_S)
    assert facts.audio is not None and facts.audio.index == 1
    assert "stream 0: no decoder" in facts.remarks[0].text


def test_a_sense_of_which_no_track_can_be_decoded_is_lost(make_clip: MakeClip, tmp_path: Path) -> None:
    data = make_clip("av_flac.mkv", *PICTURES, *TONE, "-c:a", "flac").read_bytes()
    (tmp_path / "deaf.mkv").write_bytes(data.replace(b"A_FLAC", b"A_XXXX", 1))
    assert code_of(os.fsencode(tmp_path / "deaf.mkv")) == "audio_lost"


def test_matroskas_tag_tells_where_a_track_ends(make_clip: MakeClip) -> None:
    late = ("-itsoffset", "2", *TONE, "-map", "0", "-map", "1", "-c:v", "libx264", "-c:a", "flac")
    audio = probe(os.fsencode(make_clip("late.mkv", *PICTURES, *late)), TIMEOUT_S).audio
    assert audio is not None and audio.duration_s == pytest.approx(1.0, abs=0.05)
    assert audio.start_s == pytest.approx(2.0, abs=0.05)


def test_a_format_found_by_chance_is_doubted(make_clip: MakeClip, tmp_path: Path) -> None:
    """ffmpeg looks for MP3 frames behind anything, and takes much that is no AMR for AMR without a header."""
    mp3 = make_clip("tone.mp3", "-f", "lavfi", "-i", "sine=f=440:d=5").read_bytes()
    noise = random.Random(1)
    (tmp_path / "junk.mp3").write_bytes(b"\x55" * 100_000 + mp3)
    (tmp_path / "headless.amr").write_bytes(b"".join(b"\x3c" + noise.randbytes(31) for _ in range(200)))
    for name in ("junk.mp3", "headless.amr"):
        facts = probe(os.fsencode(tmp_path / name), TIMEOUT_S)
        assert [remark.code for remark in facts.remarks] == ["doubtful_format"], name
    assert probe(os.fsencode(make_clip("tone_alone.mp3", *TONE)), TIMEOUT_S).remarks == ()


def test_a_missing_duration_stays_missing_and_can_be_measured(make_clip: MakeClip) -> None:
    clip = make_clip("live.webm", *PICTURES, "-c:v", "libvpx", "-f", "webm", "-live", "1")
    facts = probe(os.fsencode(clip), TIMEOUT_S)
    assert facts.duration_s is None
    assert measured_duration_s(os.fsencode(clip), facts, TIMEOUT_S) == pytest.approx(1.0, abs=0.15)


@pytest.mark.parametrize(
    "text",
    [
        "#EXTM3U\n#EXT-X-TARGETDURATION:5\n#EXTINF:5,\n{target}\n#EXT-X-ENDLIST\n",
        "\ufeff#EXTM3U\n{target}\n",
        "ffconcat version 1.0\nfile {target}\n",
        '<?xml version="1.0"?><MPD><BaseURL>{target}</BaseURL></MPD>',
        "<!-- made by hand -->\n<ASX version='3'><entry><ref href='{target}'/></entry></ASX>",
        "[playlist]\nFile1={target}\n",
        "v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=audio 5004 RTP/AVP 0\n",
    ],
)
def test_a_playlist_is_refused_and_called_so(make_clip: MakeClip, tmp_path: Path, text: str) -> None:
    shutil.copy(make_clip("a.wav", *TONE), tmp_path / "a.wav")
    (tmp_path / "list.mp4").write_text(text.format(target="a.wav"))
    assert code_of(os.fsencode(tmp_path / "list.mp4")) == "playlist_refused"


@pytest.mark.parametrize(
    "text", ["plain text, no recording at all\n" * 50, "<html><body>502 Bad Gateway</body></html>", "v=0.5"]
)
def test_text_is_no_media(tmp_path: Path, text: str) -> None:
    (tmp_path / "text.mp4").write_text(text)
    assert code_of(os.fsencode(tmp_path / "text.mp4")) == "not_media"


def test_an_absurd_sample_rate_is_not_decoded(make_clip: MakeClip, tmp_path: Path) -> None:
    data = bytearray(make_clip("a.wav", *TONE).read_bytes())
    data[24:28] = (1).to_bytes(4, "little")
    (tmp_path / "slow.wav").write_bytes(data)
    assert code_of(os.fsencode(tmp_path / "slow.wav")) == "unsupported_codec"


def test_subtitles_alone_are_no_recording(make_clip: MakeClip, tmp_path: Path) -> None:
    (tmp_path / "s.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nhello\n")
    clip = make_clip("subtitles.mkv", "-i", str(tmp_path / "s.srt"))
    assert code_of(os.fsencode(clip)) == "no_media_streams"


def test_encrypted_streams_are_refused(make_clip: MakeClip) -> None:
    key = ("-encryption_scheme", "cenc-aes-ctr", "-encryption_key", "76a6c65c5ea762046bd749a2e632ccbb")
    clip = make_clip("locked.mp4", *PICTURES, *key, "-encryption_kid", "a7e61c373e219033c21091fa607bf3b8")
    assert code_of(os.fsencode(clip)) == "encrypted"


def test_a_name_is_bytes_and_never_parsed(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip("still.png", *PICTURES, "-frames:v", "1")
    other = make_clip("other.png", "-f", "lavfi", "-i", "color=s=32x32", "-frames:v", "1")
    shutil.copy(other, tmp_path / "a000.png")
    for name in (b"-dash.png", b"a%03d.png", b"a:b.png", b"two\nlines.png", b"\xff\xfe.png", b"*?[0].png"):
        path = os.path.join(os.fsencode(tmp_path), name)
        shutil.copy(os.fsencode(clip), path)
        video = probe(path, TIMEOUT_S).video
        assert video is not None and (video.width, video.height) == (160, 96), name


def test_a_timeout_is_its_own_error_and_comes_in_time(make_clip: MakeClip) -> None:
    began = time.monotonic()
    with pytest.raises(ItemError) as caught:
        probe(os.fsencode(make_clip("v.mp4", *PICTURES)), 0.001)
    assert caught.value.code == "probe_timeout"
    assert time.monotonic() - began < 2


def test_what_people_see_or_read_beside_the_tracks_is_named(make_clip: MakeClip, tmp_path: Path) -> None:
    cover = make_clip("cover.png", *PICTURES, "-frames:v", "1")
    covered = ("-map", "0", "-map", "1", "-c:v", "copy", "-disposition:v", "attached_pic")
    (tmp_path / "words.srt").write_text("1\n00:00:00,000 --> 00:00:01,000\nHello\n")
    films = {
        "covered.mp3": (*TONE, "-i", str(cover), *covered),
        "titled.mkv": (*PICTURES, "-i", str(tmp_path / "words.srt"), "-c:s", "srt"),
    }
    said = {}
    for name, arguments in films.items():
        facts = probe(os.fsencode(make_clip(name, *arguments)), TIMEOUT_S)
        said[name] = [(remark.code, remark.text) for remark in facts.remarks]
    assert said == {
        "covered.mp3": [("extras_ignored", "A cover picture (stream 1) is not seen.")],
        "titled.mkv": [("extras_ignored", "Subtitles (stream 1) are not read.")],
    }


def test_pictures_of_chapters_are_named_and_not_taken_for_the_film() -> None:
    sound = {"index": 0, "codec_type": "audio", "codec_name": "aac", "sample_rate": "8000", "channels": 1}
    chapters = {"index": 1, "codec_type": "video", "codec_name": "mjpeg", "width": 64, "height": 64}
    marks = {"disposition": {"attached_pic": 1, "timed_thumbnails": 1}}
    tracks = choose({"streams": [sound, chapters | marks]})
    assert tracks.video is None
    assert [remark.text for remark in tracks.remarks] == ["Pictures of chapters (stream 1) are not seen."]
