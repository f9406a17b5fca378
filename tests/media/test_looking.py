"""A recording is looked at in its time and by its true length, and lost sound or pictures are an error."""

from __future__ import annotations

import os
import struct
from dataclasses import replace
from pathlib import Path

import pytest

from pipeline.errors import ItemError
from pipeline.job import FrontEnd as Limits
from pipeline.job import Media
from pipeline.media.decode import decode
from pipeline.media.ladder import SAFETY, Forecast, source_gigapixels
from pipeline.media.looking import Looker, Pace, _check_senses
from pipeline.records import Decoded, Item, MediaFacts, Plan, Prepared
from pipeline.work import Work
from tests.engine.test_vllm import recording
from tests.media.conftest import MakeClip

CLIPS = Path(__file__).parents[2] / "jobs" / "demo" / "clips"
BUDGET = 30_000


def looked_at(
    path: Path, budget_s: float = 60.0, forecast: Forecast | None = None, decode_timeout_s: float = 40.0
) -> Prepared:
    """Return what a new worker knows of a file once it has looked at it."""
    work = Work(budget_s)
    looker = Looker(Media(), Limits(decode_timeout_s=decode_timeout_s), BUDGET)
    looker.look(Item("item", str(path), os.fsencode(path), 1, 1, "key"), work, forecast)
    return work.prepared


def test_a_live_recording_without_a_length_is_measured_before_it_is_planned(tmp_path: Path) -> None:
    """A pipe cannot be rewound to write the length into the header."""
    live = tmp_path / "live.webm"
    command = f"ffmpeg -loglevel error -i '{CLIPS / 'screen.webm'}' -c copy -f webm -live 1 - > '{live}'"
    assert os.system(command) == 0
    prepared = looked_at(live)
    assert prepared.duration_s == pytest.approx(6.0, abs=0.2)
    assert prepared.coverage == 1.0 and prepared.frames >= 12


@pytest.mark.parametrize(("lost", "code"), [("pcm", "audio_lost"), ("frames", "video_lost")])
def test_sound_or_pictures_that_cannot_be_decoded_make_an_error_and_no_half_answer(lost: str, code: str) -> None:
    facts, _, decoded = recording(3.0)
    _check_senses(facts, decoded)
    halved = replace(decoded, **{lost: getattr(decoded, lost)[:0]})
    with pytest.raises(ItemError) as caught:
        _check_senses(facts, halved)
    assert caught.value.code == code


def test_a_recording_whose_decoding_would_be_cut_off_is_looked_at_in_part() -> None:
    clip = CLIPS / "telescope_mirror.mp4"
    whole = looked_at(clip, 600.0, Forecast(), decode_timeout_s=20.0)
    assert whole.lesser_look is None and whole.facts is not None and whole.plan is not None
    slow = Forecast(decode_s_per_gigapixel=40.0 / SAFETY / source_gigapixels(whole.facts, whole.plan))
    part = looked_at(clip, 600.0, slow, decode_timeout_s=20.0)
    assert not part.short_answer and part.coverage == pytest.approx(0.5, abs=0.1)
    assert part.lesser_look is not None and "front_end.decode_timeout_s allows 20 s" in part.lesser_look


def test_a_recording_whose_decoding_was_cut_off_is_looked_at_in_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long ffmpeg takes depends on what else runs here: the first decoding is stopped by hand."""
    clip = CLIPS / "telescope_mirror.mp4"
    stopped = []

    def stopped_once(path: bytes, facts: MediaFacts, plan: Plan, timeout_s: float, *_: object) -> Decoded:
        if plan.coverage == 1.0:
            stopped.append(plan)
            raise ItemError("decode_timeout", "ffmpeg did not finish in time and was stopped")
        return decode(path, facts, plan, timeout_s)

    monkeypatch.setattr("pipeline.media.looking.decode", stopped_once)
    part = looked_at(clip, 600.0, Forecast(decode_s_per_gigapixel=0.001))
    assert len(stopped) == 1 and part.coverage == pytest.approx(0.25, abs=0.1)
    assert part.lesser_look is not None and "decoding more did not end in" in part.lesser_look
    # Without a forecast nothing less than the whole is an answer.
    with pytest.raises(ItemError) as caught:
        looked_at(clip, 600.0)
    assert caught.value.code == "decode_timeout"


def test_with_little_time_left_less_is_looked_at_and_said() -> None:
    clip = CLIPS / "telescope_mirror.mp4"
    whole = looked_at(clip, 60.0, Forecast())
    assert whole.lesser_look is None and not whole.short_answer and whole.plan is not None
    tokens = whole.plan.audio_tokens + whole.plan.video_tokens
    slow = Forecast(engine_tokens_per_s=tokens / 25.0, generate_s=1.0, short_generate_s=1.0)
    less = looked_at(clip, 20.0, slow)
    assert less.lesser_look is not None and "half the frames" in less.lesser_look
    assert 0 < less.frames < whole.frames
    least = looked_at(clip, 5.0, slow)
    assert least.coverage is not None and least.coverage < 0.5
    assert least.duration_s == pytest.approx(whole.duration_s, rel=0.1)
    assert least.plan is not None and 0 < least.plan.audio_tokens < whole.plan.audio_tokens / 2


def test_a_recording_that_goes_on_beyond_its_header_is_heard_to_its_end(make_clip: MakeClip, tmp_path: Path) -> None:
    """One Ogg stream after another in one file: the header tells of the first alone."""
    first = make_clip("first.ogg", "-f", "lavfi", "-i", "sine=f=440:r=44100:d=2", "-c:a", "libvorbis")
    second = make_clip("second.ogg", "-f", "lavfi", "-i", "sine=f=880:r=16000:d=9", "-c:a", "libvorbis")
    (tmp_path / "chained.ogg").write_bytes(first.read_bytes() + second.read_bytes())
    seen = looked_at(tmp_path / "chained.ogg")
    assert seen.duration_s == pytest.approx(11.0, abs=0.1) and seen.coverage == 1.0
    assert [remark.code for remark in seen.remarks] == ["wrong_duration"]


def test_a_header_that_claims_hours_for_seconds_wastes_no_window(make_clip: MakeClip, tmp_path: Path) -> None:
    data = make_clip("tone.flac", "-f", "lavfi", "-i", "sine=f=440:r=8000:d=20").read_bytes()
    at = data.index(b"fLaC") + 8 + 13  # STREAMINFO's number of samples: 36 bits
    claim = (3600 * 8000).to_bytes(5, "big")
    (tmp_path / "claims.flac").write_bytes(data[:at] + bytes([data[at] & 0xF0 | claim[0]]) + claim[1:] + data[at + 5 :])
    seen = looked_at(tmp_path / "claims.flac")
    assert seen.plan is not None and len(seen.plan.windows) == 1
    assert seen.duration_s == pytest.approx(20.0, abs=0.1)
    assert [remark.code for remark in seen.remarks] == ["partial_decode"]
    assert "claims 3600.0 s, 20.0 s are there" in seen.remarks[0].text


def test_a_file_cut_short_says_how_much_is_there(make_clip: MakeClip, tmp_path: Path) -> None:
    pictures = ("-f", "lavfi", "-i", "testsrc2=s=160x96:r=10:d=8", "-movflags", "+faststart")
    data = make_clip("whole.mp4", *pictures).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])
    seen = looked_at(tmp_path / "cut.mp4")
    assert seen.coverage is not None and 0.2 < seen.coverage < 0.8
    assert seen.duration_s is not None and seen.coverage == pytest.approx(seen.duration_s / 8.0, abs=0.05)
    assert all(remark.code == "partial_decode" for remark in seen.remarks) and "claims 8.0 s" in seen.remarks[0].text


def test_a_second_look_that_fails_leaves_the_first(
    make_clip: MakeClip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pictures = ("-f", "lavfi", "-i", "testsrc2=s=160x96:r=10:d=8", "-movflags", "+faststart")
    data = make_clip("whole.mp4", *pictures).read_bytes()
    (tmp_path / "cut.mp4").write_bytes(data[: len(data) // 2])

    def too_slow(*_: object) -> None:
        raise ItemError("deadline", "no time")

    monkeypatch.setattr("pipeline.media.looking.measured_duration_s", too_slow)
    seen = looked_at(tmp_path / "cut.mp4")
    assert seen.frames > 0 and seen.coverage is not None and seen.coverage < 0.8


def test_a_worker_learns_its_pace_from_what_is_long_enough_to_tell() -> None:
    facts, chosen, _ = recording(20.0)
    assert facts.video is not None
    large = replace(facts, video=replace(facts.video, width=1920, height=1080, frame_rate_hz=25.0))
    pace, assumed = Pace(), Forecast()
    pace.decoded(facts, chosen, 3.0)  # 64x64: tells only how long ffmpeg takes to start
    assert pace.applied(assumed) == assumed
    for spent_s in (2.0, 6.0, 4.0):
        pace.decoded(large, chosen, spent_s)
    gigapixels = 1920 * 1080 * 25 * 20 / 1e9
    assert pace.applied(assumed).decode_s_per_gigapixel == pytest.approx(6.0 / gigapixels)
    for _ in range(5):
        pace.decoded(large, chosen, 1.0)
    assert pace.applied(assumed).decode_s_per_gigapixel == pytest.approx(1.0 / gigapixels)
    pace.rendered(50, 1.0)
    pace.rendered(1000, 0.3)
    assert pace.applied(assumed).render_s_per_kilotoken == pytest.approx(0.3)


def patched(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) >= 1 and len(old) == len(new)
    return data.replace(old, new)


def test_pictures_that_go_on_beyond_the_claim_are_seen_to_their_end(make_clip: MakeClip, tmp_path: Path) -> None:
    """Pieces of a transport stream in one file: the clock begins anew, and the header's length is one piece's."""
    pieces = [
        make_clip(f"{colour}.ts", "-f", "lavfi", "-i", f"color={colour}:s=160x96:r=10:d=3", "-c:v", "libx264")
        for colour in ("red", "blue")
    ]
    (tmp_path / "joined.ts").write_bytes(b"".join(piece.read_bytes() for piece in pieces))
    seen = looked_at(tmp_path / "joined.ts")
    assert seen.duration_s == pytest.approx(6.0, abs=0.5) and seen.frames >= 10
    assert [remark.code for remark in seen.remarks] == ["wrong_duration"]


def test_a_recording_looked_at_in_parts_is_read_past_its_claimed_end(make_clip: MakeClip, tmp_path: Path) -> None:
    clip = make_clip("long.mkv", "-f", "lavfi", "-i", "sine=f=440:r=8000:d=300", "-c:a", "aac")
    data = clip.read_bytes()
    at = data.index(b"\x44\x89\x88") + 3  # the segment's length: a float of 8 bytes, in ms
    lie = data[:at] + struct.pack(">d", 100_000.0) + data[at + 8 :]
    (tmp_path / "lie.mkv").write_bytes(patched(lie, b"00:05:00", b"00:01:40"))
    media = Media.model_validate({"audio": {"max_duration_s": 60}})
    work = Work(60.0)
    Looker(media, Limits(), BUDGET).look(Item("i", "u", os.fsencode(tmp_path / "lie.mkv"), 1, 1, "k"), work, None)
    assert work.prepared.duration_s == pytest.approx(300, abs=1)
    assert work.prepared.coverage == pytest.approx(0.2, abs=0.01)


@pytest.mark.parametrize("name", ["late.ts", "late.mkv"])
def test_a_track_that_begins_late_is_found_and_lacks_nothing(make_clip: MakeClip, name: str) -> None:
    pictures = ("-f", "lavfi", "-t", "30", "-i", "testsrc2=s=640x360:r=25")
    sound = ("-itsoffset", "12", "-f", "lavfi", "-t", "18", "-i", "sine")
    coded = ("-c:v", "libx264", "-preset", "ultrafast", "-b:v", "500k", "-g", "50", "-c:a", "aac")
    seen = looked_at(make_clip(name, *pictures, *sound, *coded))
    assert seen.remarks == () and seen.coverage == 1.0
    assert seen.facts is not None and seen.facts.kind == "av"


@pytest.mark.parametrize("name", ["sound.flv", "camera.flv", "sound.mpg"])
def test_a_track_that_no_header_names_is_found_when_it_begins(make_clip: MakeClip, tmp_path: Path, name: str) -> None:
    """A live recorder's FLV marks in its header what it has at the start, and no container's header knows the rest."""
    late = ("-itsoffset", "35")
    pictures, tone = ("-f", "lavfi", "-i", "testsrc2=s=64x64:r=5:d=40"), ("-f", "lavfi", "-i", "sine=d=40")
    inputs = (*pictures, *late, *tone) if name.startswith("sound") else (*tone, *late, *pictures)
    coded = ("-c:v", "flv", "-c:a", "libmp3lame") if name.endswith("flv") else ("-c:v", "mpeg2video", "-c:a", "mp2")
    live = ("-flvflags", "no_metadata+no_duration_filesize") if name.endswith("flv") else ("-r", "25")
    data = bytearray(make_clip(name, *inputs, *coded, *live).read_bytes())
    if name.endswith("flv"):
        data[4] = 1 if name.startswith("sound") else 4
    (tmp_path / name).write_bytes(data)
    seen = looked_at(tmp_path / name)
    assert seen.facts is not None and seen.facts.kind == "av"
    assert seen.duration_s == pytest.approx(75, abs=1)


def test_a_file_of_many_stills_says_that_one_alone_is_seen(make_clip: MakeClip) -> None:
    stills = ("-f", "lavfi", "-t", "1", "-i", "testsrc2=s=160x96:r=5", "-c:v", "png", "-f", "image2pipe")
    seen = looked_at(make_clip("stills.png", *stills))
    assert [remark.code for remark in seen.remarks] == ["tracks_ignored"]


def test_padding_that_looks_like_transparency_hides_nothing(make_clip: MakeClip) -> None:
    clear = ("-f", "lavfi", "-t", "1", "-i", "color=red:s=160x96:r=10", "-vf", "format=bgra,colorchannelmixer=aa=0")
    clip = make_clip("raw.avi", *clear, "-c:v", "rawvideo", "-pix_fmt", "bgra")
    work = Work(60.0)
    seen = Looker(Media(), Limits(), BUDGET).look(Item("i", "u", os.fsencode(clip), 1, 1, "k"), work, None)
    red, green, blue = seen.decoded.frames.reshape(-1, 3).mean(axis=0)
    assert red > 200 and green < 50 and blue < 50
