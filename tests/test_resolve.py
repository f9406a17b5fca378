"""What is refused when job, checkpoint and machine are put together, and what changes a fingerprint."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.errors import JobError
from pipeline.hardware.devices import detect_device
from pipeline.job import load_job
from pipeline.resolve import Resolved, resolve
from tests.test_checkpoint import write_checkpoint

DEMO = Path(__file__).parents[1] / "jobs" / "demo.yaml"


def resolved(*overrides: str) -> Resolved:
    return resolve(load_job(DEMO, ["model.allow_untrained_policy=true", *overrides]))


@pytest.mark.parametrize(
    "override",
    [
        "media.video.min_rate_hz=1",
        "model.dtype=bfloat16",
        "answer.temperature=0.5",
        "engine.max_model_len=9000",
        "engine.extra={block_size: 32}",
        f"policy={DEMO.parent}/policies/other.yaml",
    ],
)
def test_whatever_can_change_an_answer_changes_the_fingerprint(
    override: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if override.startswith("policy="):
        words = (DEMO.parent / "policies" / "demo.yaml").read_text(encoding="utf-8")
        (tmp_path / "other.yaml").write_text(words.replace("Somebody speaks", "Somebody shouts"), encoding="utf-8")
        override = f"policy={tmp_path}/other.yaml"
    assert resolved(override).fingerprint != resolved().fingerprint


@pytest.mark.parametrize(
    "override", ["name=other", "sla.per_item_s=30", "engine.max_num_seqs=4", "front_end.workers=3"]
)
def test_what_cannot_change_an_answer_leaves_the_fingerprint(override: str) -> None:
    assert resolved(override).fingerprint == resolved().fingerprint


@pytest.mark.parametrize("name", ["model", "dtype", "seed", "limit_mm_per_prompt", "logprobs_mode"])
def test_engine_arguments_that_the_rows_rest_on_cannot_be_set_past_the_job(name: str) -> None:
    with pytest.raises(JobError, match=f'engine.extra: "{name}"'):
        resolved(f"engine.extra={{{name}: 1}}")


@pytest.mark.parametrize("device", ["cuda", "ascend"])
def test_a_device_that_is_not_here_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pipeline.hardware.devices.glob.glob", lambda _: [])
    with pytest.raises(JobError, match=f"engine.device: {device}"):
        detect_device(device)
    assert detect_device("auto") == detect_device("cpu") == "cpu"


def test_an_output_among_the_recordings_is_refused(tmp_path: Path) -> None:
    (tmp_path / "clips").mkdir()
    for paths in (f"[{tmp_path}/clips]", f"[{tmp_path}/**/*.wav]"):
        with pytest.raises(JobError, match="lies inside"):
            resolved(f"source.paths={paths}", f"output.path={tmp_path}/clips/out")
    resolved(f"source.paths=[{tmp_path}/clips]", f"output.path={tmp_path}/clips-out")


@pytest.mark.parametrize("place", ["file", "file/out", "dangling", "x" * 300])
def test_an_output_that_cannot_be_made_is_refused_before_anything_else(tmp_path: Path, place: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere" / "at" / "all")
    with pytest.raises(JobError, match=r"output\.path"):
        resolved(f"output.path={tmp_path}/{place}")


def test_damaged_weights_are_refused_unless_the_job_is_a_rehearsal_which_loads_none(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    (folder / "model.safetensors").write_bytes(b"")
    overrides = (f"model.path={folder}", f"output.path={tmp_path}/out")
    with pytest.raises(JobError, match=r"model\.path: .*model\.safetensors has 0 bytes"):
        resolved(*overrides)
    resolved(*overrides, "rehearsal={answer_s: 0.1}")


def test_another_way_to_read_files_changes_the_fingerprint(monkeypatch: pytest.MonkeyPatch) -> None:
    before = resolved().fingerprint
    monkeypatch.setattr("pipeline.media.VERSION", 0)
    assert resolved().fingerprint != before


def test_a_rehearsal_of_the_engine_alone_has_rows_of_its_own_and_scripts_no_front_end() -> None:
    alone, whole = "rehearsal={front_end: real}", "rehearsal={answer_s: 0.1}"
    prints = {resolved(*overrides).fingerprint for overrides in ((), (alone,), (whole,))}
    assert len(prints) == 3
    for keys in ("front_end_s: 1", "faults: {front_end_dies: 0.1}", "faults: {front_end_hangs: 0.1}"):
        with pytest.raises(JobError, match="are for front_end: none"):
            resolved(f"rehearsal={{front_end: real, {keys}}}")
    with pytest.raises(JobError, match=r"leave engine\.render_in at auto"):
        resolved(alone, "engine.render_in=engine")
