"""A front-end worker's work on real files, with the real renderer: every failure becomes a value with its reason."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pipeline.front_end
from pipeline.errors import ItemError
from pipeline.front_end import FrontEnd, Pace, _check_senses
from pipeline.media.ladder import SAFETY, Forecast, source_gigapixels
from pipeline.records import Item
from tests.engine.test_vllm import recording

pytestmark = pytest.mark.engine

CLIPS = Path(__file__).parents[2] / "jobs" / "demo" / "clips"


def item_of(path: Path) -> Item:
    return Item("item", str(path), os.fsencode(path), 1, 1, "key")


def failure(front_end: FrontEnd, path: Path, budget_s: float = 60.0) -> tuple[str | None, str | None]:
    prepared, prompt = front_end.prepare(item_of(path), "request", budget_s)
    assert prompt is None
    return prepared.error_code, prepared.error_message


@contextmanager
def as_nobody() -> Iterator[None]:
    """Give up root's right to read everything, if this is root."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_a_good_file_is_known_before_the_engine_sees_it(front_end: FrontEnd) -> None:
    prepared, prompt = front_end.prepare(item_of(CLIPS / "telescope_mirror.mp4"), "good", 60.0)
    assert prepared.error_code is None and prompt is not None
    assert prepared.facts is not None and prepared.facts.kind == "av"
    assert prepared.content_sha256 is not None and len(prepared.content_sha256) == 64
    assert prepared.coverage == 1.0 and prepared.duration_s == pytest.approx(13.06, abs=0.1)
    assert prepared.prompt_tokens == len(prompt["prompt_token_ids"])
    times = prepared.phases
    assert None not in (times.fetch_s, times.probe_s, times.plan_s, times.decode_s, times.render_s)


def test_a_live_recording_without_a_length_is_measured_before_it_is_planned(
    front_end: FrontEnd, tmp_path: Path
) -> None:
    """A pipe cannot be rewound to write the length into the header."""
    live = tmp_path / "live.webm"
    command = f"ffmpeg -loglevel error -i '{CLIPS / 'screen.webm'}' -c copy -f webm -live 1 - > '{live}'"
    assert os.system(command) == 0
    prepared, prompt = front_end.prepare(item_of(live), "live", 60.0)
    assert prompt is not None, prepared.error_message
    assert prepared.duration_s == pytest.approx(6.0, abs=0.2)
    assert prepared.coverage == 1.0 and prepared.frames >= 12


def test_a_file_that_goes_away_between_listing_and_reading_is_missing(front_end: FrontEnd, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    shutil.copyfile(CLIPS / "no_sound.mp4", path)
    item = item_of(path)
    path.unlink()
    prepared, _ = front_end.prepare(item, "gone", 60.0)
    assert prepared.error_code == "source_missing"


def test_a_file_without_permission_is_unreadable(front_end: FrontEnd, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    shutil.copyfile(CLIPS / "no_sound.mp4", path)
    tmp_path.chmod(0o755)
    path.chmod(0)
    with as_nobody():
        code, message = failure(front_end, path)
    assert code in ("source_unreadable", "source_missing"), message
    if os.access(tmp_path, os.X_OK):
        assert message


def test_an_item_without_time_left_is_a_deadline_and_decodes_nothing(front_end: FrontEnd) -> None:
    assert failure(front_end, CLIPS / "no_sound.mp4", budget_s=0.0)[0] == "deadline"


def test_a_surprise_costs_the_item_and_not_the_worker(front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(pipeline.front_end, "plan", lambda *_: 1 / 0)
        assert failure(front_end, CLIPS / "no_sound.mp4") == ("internal_error", "ZeroDivisionError: division by zero")
    assert front_end.prepare(item_of(CLIPS / "no_sound.mp4"), "after", 60.0)[1] is not None


def test_a_prompt_that_holds_other_tokens_than_planned_is_refused(front_end: FrontEnd) -> None:
    facts, plan, decoded = recording(3.0)
    cut = replace(decoded, pcm=decoded.pcm[: 3 * 16_000])  # no whole number of 80 ms: the processor counts otherwise
    with pytest.raises(ItemError) as caught:
        front_end.renderer.render("mismatch", facts, plan, cut, 3.0)
    assert caught.value.code == "token_mismatch"


def test_frames_the_processor_cannot_cut_into_patches_are_a_render_failure(front_end: FrontEnd) -> None:
    facts, plan, decoded = recording(3.0)
    odd = replace(decoded, frames=np.zeros((6, 33, 50, 3), np.uint8))
    with pytest.raises(ItemError) as caught:
        front_end.renderer.render("odd", facts, plan, odd, 3.0)
    assert caught.value.code in ("render_failed", "token_mismatch")


def test_a_prompt_beyond_the_context_is_too_long(front_end: FrontEnd) -> None:
    facts, plan, decoded = recording(2700.0, grey=None)
    with pytest.raises(ItemError) as caught:
        front_end.renderer.render("long", facts, plan, decoded, 2700.0)
    assert caught.value.code == "prompt_too_long"


@pytest.mark.parametrize(("lost", "code"), [("pcm", "audio_lost"), ("frames", "video_lost")])
def test_sound_or_pictures_that_cannot_be_decoded_make_an_error_and_no_half_answer(lost: str, code: str) -> None:
    facts, _, decoded = recording(3.0)
    _check_senses(facts, decoded)
    halved = replace(decoded, **{lost: getattr(decoded, lost)[:0]})
    with pytest.raises(ItemError) as caught:
        _check_senses(facts, halved)
    assert caught.value.code == code


def test_a_recording_whose_decoding_would_be_cut_off_is_looked_at_in_part(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = front_end._setup.limits.model_copy(update={"decode_timeout_s": 20.0})
    monkeypatch.setattr(front_end, "_setup", replace(front_end._setup, limits=limits))
    monkeypatch.setattr(front_end, "_pace", Pace())
    prepared, prompt = front_end.prepare(item_of(CLIPS / "telescope_mirror.mp4"), "part", 600.0, Forecast())
    assert prompt is not None and prepared.lesser_look is None and prepared.facts is not None
    assert prepared.plan is not None
    gigapixels = source_gigapixels(prepared.facts, prepared.plan)
    monkeypatch.setattr(front_end, "_pace", Pace())
    slow = Forecast(decode_s_per_gigapixel=40.0 / SAFETY / gigapixels)
    prepared, prompt = front_end.prepare(item_of(CLIPS / "telescope_mirror.mp4"), "part", 600.0, slow)
    assert prompt is not None and prepared.error_code is None and not prepared.short_answer
    assert prepared.coverage == pytest.approx(0.5, abs=0.1)
    assert prepared.lesser_look is not None and "front_end.decode_timeout_s allows 20 s" in prepared.lesser_look


def test_a_recording_whose_decoding_was_cut_off_is_looked_at_in_part(
    front_end: FrontEnd, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ffmpeg = ("ffmpeg", "-nostdin", "-loglevel", "error")
    once, path = tmp_path / "once.mp4", tmp_path / "long.mp4"
    sources = ("-f", "lavfi", "-i", "testsrc2=size=1280x720:rate=25", "-f", "lavfi", "-i", "sine", "-t", "10")
    coded = ("-c:v", "libx264", "-preset", "ultrafast", "-pix_fmt", "yuv420p", "-g", "25")
    subprocess.run([*ffmpeg, *sources, *coded, str(once)], check=True)
    subprocess.run([*ffmpeg, "-stream_loop", "4", "-i", str(once), "-c", "copy", str(path)], check=True)
    hopeful = Forecast(decode_s_per_gigapixel=0.001)
    monkeypatch.setattr(front_end, "_pace", Pace())
    whole, _ = front_end.prepare(item_of(path), "whole", 600.0, hopeful)
    assert whole.lesser_look is None and whole.phases.decode_s is not None
    limits = front_end._setup.limits.model_copy(update={"decode_timeout_s": 0.6 * whole.phases.decode_s})
    monkeypatch.setattr(front_end, "_setup", replace(front_end._setup, limits=limits))
    monkeypatch.setattr(front_end, "_pace", Pace())
    part, prompt = front_end.prepare(item_of(path), "part", 600.0, hopeful)
    assert prompt is not None and part.error_code is None and part.coverage == pytest.approx(0.25, abs=0.1)
    assert part.lesser_look is not None and "decoding more did not end in" in part.lesser_look
    # Without a forecast nothing less than the whole is an answer.
    alone, prompt = front_end.prepare(item_of(path), "alone", 600.0)
    assert prompt is None and alone.error_code == "decode_timeout"


def test_with_little_time_left_less_is_looked_at_and_said(front_end: FrontEnd) -> None:
    item = item_of(CLIPS / "telescope_mirror.mp4")
    whole, _ = front_end.prepare(item, "whole", 60.0, Forecast())
    assert whole.lesser_look is None and not whole.short_answer
    # 255 media tokens: 26 s of the engine's work.
    slow = Forecast(engine_tokens_per_s=10.0, generate_s=1.0, short_generate_s=1.0)
    prepared, prompt = front_end.prepare(item, "less", 20.0, slow)
    assert prepared.error_code is None and prompt is not None
    assert prepared.lesser_look is not None and "half the frames" in prepared.lesser_look
    assert 0 < prepared.frames < whole.frames and prepared.video_tokens < whole.video_tokens
    least, _ = front_end.prepare(item, "least", 5.0, slow)
    assert least.coverage is not None and least.coverage < 0.5
    assert least.duration_s == pytest.approx(whole.duration_s, rel=0.1)
    assert 0 < least.audio_tokens < whole.audio_tokens / 2


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
