"""A front-end worker's work on real files, with the real renderer: every failure becomes a value with its reason."""

from __future__ import annotations

import hashlib
import os
import pickle
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import pipeline.media.looking
from pipeline import pixels
from pipeline.errors import ItemError
from pipeline.front_end import FrontEnd
from pipeline.records import Item
from pipeline.resolve import Resolved
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
    assert None not in (times.fetch_s, times.probe_s, times.plan_s, times.decode_s, times.signals_s, times.render_s)
    assert prepared.signals.black_share == 0.0 and prepared.signals.silence_share is not None


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_bytes_of_a_prompt_are_those_that_it_takes_when_it_is_handed_over(
    front_end: FrontEnd, resolved: Resolved, dtype: str
) -> None:
    setup = replace(resolved.engine, arguments=resolved.engine.arguments | {"dtype": dtype})
    try:
        one = FrontEnd(replace(resolved.front_end, engine=setup)) if dtype == "bfloat16" else front_end
        prepared, prompt = one.prepare(item_of(CLIPS / "telescope_mirror.mp4"), "bytes", 60.0)
    finally:
        pixels.install(torch.float32)  # patches are made in one type by all of a process
    handed_over = len(pickle.dumps(prompt, protocol=5))
    assert 0.9 * handed_over < prepared.prompt_bytes < handed_over


def test_a_file_that_goes_away_between_listing_and_reading_is_missing(front_end: FrontEnd, tmp_path: Path) -> None:
    path = tmp_path / "clip.mp4"
    shutil.copyfile(CLIPS / "no_sound.mp4", path)
    item = item_of(path)
    path.unlink()
    prepared, _ = front_end.prepare(item, "gone", 60.0)
    assert prepared.error_code == "source_missing"


def test_what_was_fetched_is_not_read_again_for_its_content(
    front_end: FrontEnd, monkeypatch: pytest.MonkeyPatch
) -> None:
    item = item_of(CLIPS / "no_sound.mp4")
    fetched = front_end.fetch(item, "fetched", 60.0)
    content = hashlib.sha256((CLIPS / "no_sound.mp4").read_bytes()).hexdigest()
    assert (fetched.content_sha256, fetched.content_bytes) == (content, (CLIPS / "no_sound.mp4").stat().st_size)
    assert fetched.facts is None and fetched.phases.fetch_s is not None and fetched.phases.probe_s is None
    monkeypatch.setattr("pipeline.front_end.fetch", lambda *_: 1 / 0)
    prepared, prompt = front_end.prepare(item, "fetched", 60.0, None, fetched)
    assert prompt is not None and prepared.content_sha256 == content
    assert prepared.phases.fetch_s == fetched.phases.fetch_s
    assert front_end.fetch(item, "broken", 60.0).error_code == "internal_error"


@pytest.mark.parametrize("change", ["written", "replaced", "written back", "gone"])
def test_a_file_that_changes_while_it_is_looked_at_does_not_count_as_the_content_that_was_hashed(
    front_end: FrontEnd, tmp_path: Path, change: str
) -> None:
    path = tmp_path / "clip.mp4"
    shutil.copyfile(CLIPS / "no_sound.mp4", path)
    before, data = path.stat(), path.read_bytes()
    fetched = front_end.fetch(item_of(path), "changing", 60.0)
    assert fetched.content_sha256 is not None
    time.sleep(0.02)  # stamps of files are no finer than the kernel's tick
    if change == "replaced":
        shutil.copyfile(CLIPS / "telescope_mirror.mp4", tmp_path / "other.mp4")
        os.replace(tmp_path / "other.mp4", path)
    else:
        path.write_bytes(data)
        if change == "written back":
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    if change == "gone":
        path.unlink()
    prepared, prompt = front_end.prepare(item_of(path), "changing", 60.0, None, fetched)
    if change == "gone":
        assert prompt is None and prepared.error_code == "source_missing"
    else:
        assert prompt is not None and (prepared.content_sha256, prepared.content_bytes) == (None, None)


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
        patch.setattr(pipeline.media.looking, "plan", lambda *_: 1 / 0)
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
