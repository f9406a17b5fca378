"""Known-answer clips in whole runs on the real engine; what the model answers is learnt from a first run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.canary import CANARY_FILE
from pipeline.job import EMBEDDED_PATH
from pipeline.policy import load_policy, prompt_digest
from tests.end_to_end.conftest import CLIPS, ROOT, Workplace

pytestmark = pytest.mark.engine

KNOWN = ("alarm.wav", "flash_and_bang.mp4")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """The known clips, to be screened by the embedded weights in a folder of their own, without canaries yet."""
    workplace = Workplace(tmp_path_factory.mktemp("canaries"))
    workplace.take(*KNOWN)
    model = workplace.folder / "model"
    model.mkdir()
    for path in EMBEDDED_PATH.iterdir():
        if path.is_file():
            (model / path.name).symlink_to(path)
    return workplace


def job(place: Workplace, **sections: Any) -> Path:
    return place.write_job(**({"model": {"path": "model"}, "canary": {}} | sections))


@pytest.fixture(scope="module")
def expected(place: Workplace) -> dict[str, dict[str, Any]]:
    """What the model answers for the known clips, a coin toss left out."""
    run = place.run(job(place))
    assert run.code == 0, run.said
    return {
        name: {
            "verdict": row["model_verdict"],
            "labels": {label["id"]: label["present"] for label in row["labels"] if label["confidence"] > 0.52},
            "min_confidence": max(0.0, row["confidence"] - 0.05),
        }
        for name, row in place.rows().items()
    }


def write_canaries(place: Workplace, clips: list[dict[str, Any]]) -> None:
    path = place.folder / "model" / CANARY_FILE
    path.parent.mkdir(exist_ok=True)
    digest = prompt_digest(load_policy(ROOT / "jobs" / "policies" / "demo.yaml"))
    path.write_text(yaml.safe_dump({"policy_sha256": digest, "clips": clips}), encoding="utf-8")


def newest_summary(place: Workplace) -> dict[str, Any]:
    paths = (place.output / "_runs").glob("*/run.json")
    summary: dict[str, Any] = json.loads(max(paths, key=lambda path: path.stat().st_mtime_ns).read_text("utf-8"))
    return summary


def test_a_model_that_answers_as_expected_goes_on_to_the_items(
    place: Workplace, expected: dict[str, dict[str, Any]]
) -> None:
    write_canaries(place, [{"path": str(CLIPS / name)} | answer for name, answer in expected.items()])
    place.take("no_sound.mp4")
    run = place.run(job(place))
    assert run.code == 0, run.said
    assert "2 known-answer clips answered as expected" in run.said
    assert set(place.rows()) == {*KNOWN, "no_sound.mp4"}
    summary = newest_summary(place)
    assert (summary["canary"]["asked"], summary["canary"]["passed"], summary["rows"]) == (2, 2, 1)


def test_another_answer_and_a_broken_clip_stop_the_run_before_the_first_item(
    place: Workplace, expected: dict[str, dict[str, Any]]
) -> None:
    said_of = expected["alarm.wav"]
    other = next(verdict for verdict in ("pass", "reject") if verdict != said_of["verdict"])
    write_canaries(place, [{"path": str(CLIPS / name)} | answer for name, answer in expected.items()])
    own = [
        {"path": os.path.relpath(CLIPS / "alarm.wav", place.folder), "verdict": other},
        {"path": str(CLIPS / "broken.mp4"), "verdict": "review"},
    ]
    place.take("voice_note.mp4")
    before = place.rows()
    run = place.run(job(place, canary={"clips": own}))
    assert run.code == 2, run.said
    assert "2 of 4 known-answer clips failed" in run.said
    assert "alarm.wav (canary.clips.0)" in run.said and "broken.mp4 (canary.clips.1)" in run.said
    assert "not_media" in run.said and f"{said_of['verdict']} " in run.said
    assert place.rows() == before and "voice_note.mp4" not in before
    assert newest_summary(place)["canary"]["passed"] == 2
