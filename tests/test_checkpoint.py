"""What a checkpoint folder says about itself, and the guard against policies and frames it was not trained for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pipeline.checkpoint import Checkpoint, open_checkpoint
from pipeline.errors import JobError
from pipeline.job import Media, Model, load_job
from pipeline.policy import load_policy, prompt_digest
from pipeline.resolve import Resolved, resolve
from tests.test_calibration import CONTENT as CALIBRATION
from tests.test_policy import policy

ROOT = Path(__file__).parents[1]
DEMO = ROOT / "jobs" / "demo.yaml"
DEMO_DIGEST = prompt_digest(load_policy(ROOT / "jobs" / "policies" / "demo.yaml"))
OTHER_DIGEST = "0" * 64
LARGE = Media.model_validate({"video": {"max_pixels_per_frame": 10**8}, "image": {"max_pixels": 10**8}})


def write_checkpoint(folder: Path, training: Any = None, calibration: Any = None) -> Path:
    """Write a folder that passes for a checkpoint as long as nobody loads its weights, which are of another model."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"]}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({"weights": np.zeros(8, np.float32)}, folder / "model.safetensors")
    for name, content in (("training.json", training), ("calibration.json", calibration)):
        if content is not None:
            (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


def opened(folder: Path, training: Any = None, calibration: Any = None) -> Checkpoint:
    return open_checkpoint(Model(path=str(write_checkpoint(folder, training, calibration))))


def resolved(folder: Path, *overrides: str) -> Resolved:
    return resolve(load_job(DEMO, [f"model.path={folder}", f"output.path={folder}/../out", *overrides]))


def test_a_checkpoint_without_a_word_on_its_training_takes_every_policy_and_frame(tmp_path: Path) -> None:
    found = opened(tmp_path)
    assert found.label() == f"{tmp_path.name}@{found.digest[:8]}"
    assert found.unfit_for(policy(), LARGE) is None


def test_an_untrained_checkpoint_says_so_and_takes_every_policy(tmp_path: Path) -> None:
    found = opened(tmp_path, {"name": "small", "state": "untrained", "seed": 0, "parameters": 3})
    assert found.label() == f"small@{found.digest[:8]} (untrained)"
    assert found.unfit_for(policy(), LARGE) is None


@pytest.mark.parametrize(
    ("training", "message"),
    [
        ({"policy_sha256": "ab"}, '"policy_sha256"'),
        ({"media": {"max_pixels_per_frame": 0}}, '"media.max_pixels_per_frame"'),
        ({"name": 3}, '"name"'),
        ([], "must be a JSON object"),
    ],
)
def test_a_wrong_training_file_is_refused_by_file_and_key(tmp_path: Path, training: Any, message: str) -> None:
    with pytest.raises(JobError) as caught:
        opened(tmp_path, training)
    assert "training.json" in str(caught.value) and message in str(caught.value)


def test_a_policy_that_the_checkpoint_was_not_trained_on_is_refused_with_what_to_do(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m", {"name": "small", "policy": "demo 7", "policy_sha256": OTHER_DIGEST})
    with pytest.raises(JobError) as caught:
        resolved(tmp_path / "m")
    said = str(caught.value)
    assert said.startswith("model.path: small knows only policy demo 7")
    assert "this demo 2 is another: take that one" in said
    assert "a full-size checkpoint" in said and "model.allow_untrained_policy: true" in said


def test_the_same_policy_in_other_words_is_refused_as_such(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m", {"name": "small", "policy": "demo 2", "policy_sha256": OTHER_DIGEST})
    with pytest.raises(JobError, match="this demo 2 has other words: take that one as it was"):
        resolved(tmp_path / "m")


@pytest.mark.parametrize(
    ("trained", "override", "message"),
    [
        (
            {"max_pixels_per_frame": 8192, "frames": 8},
            "media.video.max_pixels_per_frame=8193",
            "frames of up to 8192 pixels, and media.video.max_pixels_per_frame is 8193: lower it",
        ),
        (
            {"max_image_pixels": 8192},
            "media.image.max_pixels=8193",
            "still pictures of up to 8192 pixels, and media.image.max_pixels is 8193: lower it",
        ),
        (
            {"max_rate_hz": 2.0},
            "media.video.max_rate_hz=4",
            "up to 2 frames a second, and media.video.max_rate_hz is 4: set it to 2",
        ),
    ],
)
def test_media_that_the_checkpoint_was_not_trained_on_are_refused_by_key(
    tmp_path: Path, trained: dict[str, Any], override: str, message: str
) -> None:
    write_checkpoint(tmp_path / "m", {"name": "small", "policy_sha256": DEMO_DIGEST, "media": trained})
    assert not resolved(tmp_path / "m").checkpoint.outside_training
    with pytest.raises(JobError) as caught:
        resolved(tmp_path / "m", override)
    assert str(caught.value).startswith(f"model.path: small was trained on {message}")


def test_an_untrained_policy_that_is_allowed_is_marked_in_every_row(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m", {"name": "small", "policy_sha256": OTHER_DIGEST})
    label = resolved(tmp_path / "m", "model.allow_untrained_policy=true").checkpoint.label()
    assert label.startswith("small@") and label.endswith(" (outside its training)")


def test_the_trained_policy_is_taken_and_not_marked_whether_others_are_allowed_or_not(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "m", {"policy_sha256": DEMO_DIGEST})
    plain, allowed = resolved(tmp_path / "m"), resolved(tmp_path / "m", "model.allow_untrained_policy=true")
    assert plain.checkpoint == allowed.checkpoint
    assert plain.fingerprint == allowed.fingerprint


def test_a_calibration_that_is_applied_is_part_of_the_fingerprint_and_not_of_the_models_name(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    raw = resolved(folder)
    write_checkpoint(folder, calibration=CALIBRATION | {"policy_sha256": DEMO_DIGEST})
    one = resolved(folder)
    write_checkpoint(folder, calibration=CALIBRATION | {"policy_sha256": DEMO_DIGEST, "label_temperature": 3})
    other = resolved(folder)
    assert len({raw.fingerprint, one.fingerprint, other.fingerprint}) == 3
    assert raw.checkpoint.label() == one.checkpoint.label()
    assert raw.calibration is None and one.calibration is not None


def test_a_calibration_of_another_policy_is_not_applied(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m")
    raw = resolved(folder)
    write_checkpoint(folder, calibration=CALIBRATION | {"policy_sha256": OTHER_DIGEST})
    assert resolved(folder).calibration is None
    assert resolved(folder).fingerprint == raw.fingerprint


def test_a_malformed_calibration_is_refused_even_if_it_would_not_be_applied(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "m", calibration=CALIBRATION | {"policy_sha256": OTHER_DIGEST, "clips": "x"})
    with pytest.raises(JobError, match=r'calibration\.json: "clips"'):
        resolved(folder)


def test_a_file_that_cannot_be_read_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(_: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)
    with pytest.raises(JobError, match=r"model\.path: .*config\.json cannot be read: Permission denied"):
        opened(tmp_path)
