"""Known-answer clips: what is refused before anything starts, how they are asked, and what a person reads."""

from __future__ import annotations

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from pipeline import canary
from pipeline.calibration import Calibration
from pipeline.canary import Canary, Report, Screen, as_facts, ask_canaries, failure_table
from pipeline.errors import EngineLost, JobError
from pipeline.job import CanaryClip, load_job
from pipeline.records import Answer, Item, Label, Phases, Prepared
from pipeline.resolve import Resolved, resolve
from pipeline.verdict import Outcome
from tests.test_calibration import calibration
from tests.test_checkpoint import DEMO_DIGEST, OTHER_DIGEST, ROOT, write_checkpoint

ANSWER = Answer("reject", 0.8, (Label("alarm", True, 0.9), Label("speech", False, 0.7)), "x")
PREPARED = Prepared(phases=Phases(), content_sha256="ab")


def write_job(folder: Path, clips: Any = (), **sections: Any) -> Path:
    """Write a job by the demo's policy with a checkpoint that cannot be loaded, and the clips a.wav and b.wav."""
    write_checkpoint(folder / "model")
    for name in ("a.wav", "b.wav"):
        (folder / name).write_bytes(b"sound")
    job = {
        "name": "x",
        "source": {"paths": ["a.wav"]},
        "policy": str(ROOT / "jobs" / "policies" / "demo.yaml"),
        "output": {"path": "out"},
        "model": {"path": "model"},
        "engine": {"max_model_len": 8192},
        "canary": {"clips": list(clips)},
    }
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(job | sections), encoding="utf-8")
    return path


def write_canaries(folder: Path, content: Any) -> Path:
    """Write canaries/canaries.yaml into the checkpoint, with the clip siren.wav beside it."""
    path = folder / "model" / "canaries" / "canaries.yaml"
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "siren.wav").write_bytes(b"sound")
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def resolved(folder: Path, *clips: Any) -> Resolved:
    return resolve(load_job(write_job(folder, clips)))


def refusal(folder: Path, *clips: Any) -> str:
    with pytest.raises(JobError) as caught:
        resolved(folder, *clips)
    return str(caught.value)


def of_checkpoint(digest: str = DEMO_DIGEST, **changes: Any) -> dict[str, Any]:
    return {"policy_sha256": digest, "clips": [{"path": "siren.wav", "verdict": "review"} | changes]}


# Which clips


def test_a_job_has_no_canaries_unless_it_or_its_checkpoint_names_some(tmp_path: Path) -> None:
    assert resolved(tmp_path).canaries == ()


def test_a_jobs_own_clips_are_relative_to_the_job_file(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "b.wav").write_bytes(b"sound")
    (found,) = resolved(tmp_path / "sub", {"path": "../b.wav", "verdict": "pass"}).canaries
    assert found.clip.path == tmp_path / "b.wav"
    assert found.where == "canary.clips.0"


def test_clips_given_with_set_are_relative_to_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    job = load_job(write_job(tmp_path), ["canary.clips=[{path: c.wav, verdict: pass}]"])
    assert job.canary.clips[0].path == tmp_path / "elsewhere" / "c.wav"


@pytest.mark.parametrize(
    ("clip", "message"),
    [
        ({"path": "gone.wav", "verdict": "pass"}, "canary.clips.1.path: "),
        ({"path": "model", "verdict": "pass"}, "not a regular file"),
        ({"path": "empty.wav", "verdict": "pass"}, "zero bytes"),
        ({"path": "dangling.wav", "verdict": "pass"}, "the file is not there"),
        ({"path": "", "verdict": "pass"}, '"canary.clips.1.path": the path is empty'),
        ({"path": "a.wav", "verdict": "rejekt"}, 'there is no verdict "rejekt"; did you mean "reject"?'),
        ({"path": "a.wav", "verdict": "pass", "labels": {"alarn": True}}, 'label "alarn"; did you mean "alarm"?'),
        ({"path": "a.wav", "verdict": "pass", "min_confidence": 2}, '"canary.clips.1.min_confidence"'),
        ({"path": "a.wav", "verdict": "pass", "label": {}}, 'did you mean "labels"?'),
        ({"path": "a.wav"}, 'missing key "canary.clips.1.verdict"'),
        ({"verdict": "pass"}, 'missing key "canary.clips.1.path"'),
        ("a.wav", '"canary.clips.1"'),
    ],
)
def test_a_wrong_clip_is_refused_by_its_key_before_anything_starts(tmp_path: Path, clip: Any, message: str) -> None:
    (tmp_path / "empty.wav").touch()
    (tmp_path / "dangling.wav").symlink_to(tmp_path / "nowhere")
    said = refusal(tmp_path, {"path": "a.wav", "verdict": "pass"}, clip)
    assert message in said and "canary.clips.1" in said


def test_the_checkpoints_clips_are_relative_to_their_list_and_come_before_the_jobs(tmp_path: Path) -> None:
    path = write_canaries(tmp_path, of_checkpoint())
    found = resolved(tmp_path, {"path": "b.wav", "verdict": "pass"}).canaries
    assert [one.clip.path for one in found] == [path.parent / "siren.wav", tmp_path / "b.wav"]
    assert found[0].where == f"{path}: clips.0"


def test_the_checkpoints_clips_are_asked_only_by_the_policy_they_were_written_for(tmp_path: Path) -> None:
    write_canaries(tmp_path, of_checkpoint(OTHER_DIGEST, path="gone.wav"))
    assert resolved(tmp_path).canaries == ()


def test_clips_for_another_policy_than_the_checkpoint_was_trained_on_are_refused(tmp_path: Path) -> None:
    path = write_canaries(tmp_path, of_checkpoint(OTHER_DIGEST))
    (tmp_path / "model" / "training.json").write_text(json.dumps({"policy_sha256": DEMO_DIGEST}), encoding="utf-8")
    said = refusal(tmp_path)
    assert str(path) in said and "training.json" in said and "copy or download the checkpoint again" in said


def test_a_job_can_leave_the_checkpoints_clips_out(tmp_path: Path) -> None:
    write_canaries(tmp_path, of_checkpoint())
    own = {"clips": [{"path": "b.wav", "verdict": "pass"}], "from_checkpoint": False}
    assert len(resolve(load_job(write_job(tmp_path, canary=own))).canaries) == 1


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (of_checkpoint(path="gone.wav"), "clips.0.path: "),
        (of_checkpoint(labels={"alarn": True}), 'did you mean "alarm"?'),
        (of_checkpoint(verdict="rejekt"), 'did you mean "reject"?'),
        ({"clips": [{"path": "siren.wav", "verdict": "pass"}]}, 'missing key "policy_sha256"'),
        ({"policy_sha256": DEMO_DIGEST, "clips": []}, '"clips"'),
        (["siren.wav"], "must be a mapping"),
    ],
)
def test_a_wrong_list_in_the_checkpoint_is_refused_by_file_and_key(tmp_path: Path, content: Any, message: str) -> None:
    path = write_canaries(tmp_path, content)
    said = refusal(tmp_path)
    assert str(path) in said and message in said


def test_canaries_change_no_fingerprint(tmp_path: Path) -> None:
    plain = resolved(tmp_path)
    write_canaries(tmp_path, of_checkpoint())
    assert resolved(tmp_path, {"path": "b.wav", "verdict": "pass"}).fingerprint == plain.fingerprint


# Asking


def expecting(verdict: str = "reject", path: str = "/clips/a.wav", **changes: Any) -> Canary:
    return Canary("canary.clips.0", CanaryClip.model_validate({"path": path, "verdict": verdict} | changes))


class Engines:
    """Engines that a test ends."""

    def __init__(self) -> None:
        self.ended = 0

    async def engine_ready(self) -> None:
        pass

    def engine_generation(self) -> int:
        return self.ended


def ask(
    screen: Screen,
    *canaries: Canary,
    cooling: Calibration | None = None,
    sla_s: float = 60.0,
    engine: Engines | None = None,
) -> Report:
    return asyncio.run(ask_canaries(canaries, screen, cooling, sla_s, engine=engine or Engines(), max_restarts=3))


async def answered(item: Item) -> Outcome:
    return Outcome(PREPARED, attempts=1, answer=ANSWER)


async def refused(item: Item) -> Outcome:
    return Outcome(PREPARED, attempts=1, reason="not_media", message="no demuxer")


async def surprised(item: Item) -> Outcome:
    raise ZeroDivisionError("nobody foresaw this")


@pytest.mark.parametrize(
    ("expected", "differs"),
    [
        (expecting(), ()),
        (expecting(labels={"alarm": True, "speech": False}, min_confidence=0.8), ()),
        (expecting("pass"), ("reject 0.80",)),
        (expecting(labels={"alarm": False}), ("alarm 0.90",)),
        (expecting("review", labels={"speech": True}), ("reject 0.80", "no speech 0.70")),
        (expecting(min_confidence=0.81), ("confidence 0.8",)),
    ],
)
def test_verdict_listed_labels_and_confidence_are_compared(expected: Canary, differs: tuple[str, ...]) -> None:
    report = ask(answered, expected)
    assert report.results[0].differs == differs
    assert report.summary() == {"asked": 1, "passed": int(not differs), "seconds": report.seconds}


def test_the_confidence_compared_is_the_calibrated_one() -> None:
    cooling = calibration(verdict_temperature=2.0)  # 0.8 becomes 0.667
    assert ask(answered, expecting(min_confidence=0.7)).failed == ()
    assert ask(answered, expecting(min_confidence=0.7), cooling=cooling).failed[0].differs == ("confidence 0.667",)


@pytest.mark.parametrize(
    ("screen", "message"),
    [(refused, "not_media: no demuxer"), (surprised, "internal_error: ZeroDivisionError: nobody foresaw this")],
)
def test_whatever_fails_is_the_canarys_result_with_its_code(screen: Screen, message: str) -> None:
    report = ask(screen, expecting())
    assert report.failed[0].differs == (message,)
    assert report.summary()["passed"] == 0


def test_a_canary_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(canary, "_PATIENCE_S", 0.05)

    async def hangs(item: Item) -> Outcome:
        await asyncio.sleep(600)
        raise AssertionError("not reached")

    report = ask(hangs, expecting(), sla_s=0.05)
    assert report.failed[0].reason == "deadline"


def test_a_lost_engine_is_no_result_and_ends_the_others() -> None:
    cancelled = []

    async def dies(item: Item) -> Outcome:
        if item.item_id.startswith("canary-1-"):
            raise EngineLost("it died")
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(item.item_id)
            raise
        raise AssertionError("not reached")

    with pytest.raises(EngineLost, match="it died"):
        ask(dies, expecting(), expecting())
    assert len(cancelled) == 1


@pytest.mark.parametrize("reason", ["engine_lost", "deadline"])
def test_a_canary_whose_engine_ended_is_asked_again_and_the_others_are_not(reason: str) -> None:
    engines, asked = Engines(), list[str]()

    async def ends_twice(item: Item) -> Outcome:
        asked.append(item.uri)
        if item.uri == "/clips/a.wav" and engines.ended < 2:
            engines.ended += 1
            return Outcome(PREPARED, attempts=2, reason=reason, message="the engine died: killed")
        return await answered(item)

    report = ask(ends_twice, expecting(), expecting(path="/clips/b.wav"), engine=engines)
    assert (len(report.results), report.failed) == (2, ())
    assert [Path(uri).name for uri in asked] == ["a.wav", "b.wav", "a.wav", "a.wav"]


def test_an_engine_that_ends_each_time_a_canary_is_asked_is_lost() -> None:
    engines = Engines()

    async def ends(item: Item) -> Outcome:
        engines.ended += 1
        return Outcome(PREPARED, attempts=2, reason="engine_lost", message="the engine died: killed")

    with pytest.raises(EngineLost, match="the engine died: killed"):
        ask(ends, expecting(), engine=engines)
    assert engines.ended == 4


def test_a_canary_that_takes_too_long_beside_a_living_engine_is_its_result() -> None:
    async def late(item: Item) -> Outcome:
        return Outcome(PREPARED, attempts=1, reason="deadline", message="too late")

    assert ask(late, expecting()).failed[0].reason == "deadline"


def test_canaries_are_asked_together_under_ids_that_no_item_has() -> None:
    waiting: list[Item] = []
    all_there = asyncio.Event()

    async def together(item: Item) -> Outcome:
        waiting.append(item)
        if len(waiting) == 3:
            all_there.set()
        await all_there.wait()
        return await answered(item)

    for _ in range(2):
        waiting.clear()
        all_there = asyncio.Event()
        assert ask(together, *[expecting()] * 3).failed == ()
        ids = {item.item_id for item in waiting}
        assert len(ids) == 3 and all(len(name) > 16 for name in ids)


def test_the_journal_gets_plain_values_of_expectation_and_answer() -> None:
    (result,) = ask(answered, expecting("pass", labels={"alarm": True}, min_confidence=0.5)).results
    facts = json.loads(json.dumps(as_facts(result)))
    assert facts.pop("seconds") >= 0
    assert facts == {
        "clip": "/clips/a.wav",
        "content_sha256": "ab",
        "expected": {"verdict": "pass", "labels": {"alarm": True}, "min_confidence": 0.5},
        "verdict": "reject",
        "confidence": 0.8,
        "labels": {"alarm": True, "speech": False},
        "reason": None,
        "message": None,
        "passed": False,
    }


def test_the_table_says_clip_expected_got_and_what_to_do_and_obeys_no_foreign_text() -> None:
    async def mixed(item: Item) -> Outcome:
        return await (refused(item) if "broken" in item.uri else answered(item))

    others = Canary("/model/canaries/canaries.yaml: clips.2", expecting("pass").clip)
    report = ask(
        mixed,
        others,
        expecting("pass", labels={"speech": True}, min_confidence=0.5),
        expecting(path="/clips/[red]broken\x1b[31m.mp4"),
        expecting(path="/clips/good.wav"),
    )
    out = io.StringIO()
    Console(file=out, width=400).print(failure_table(report))
    text = out.getvalue()
    assert "3 of 4 known-answer clips failed" in text and "good.wav" not in text
    assert "a.wav (canaries.yaml: clips.2)" in text and "set canary.from_checkpoint: false" in text
    assert "a.wav (canary.clips.0)" in text and "pass at least 0.5, speech" in text
    assert "reject 0.80, no speech 0.70" in text and "correct canary.clips.0" in text
    assert r"[red]broken\x1b[31m.mp4" in text and "\x1b" not in text
    assert "not_media: no demuxer" in text and "damaged at its start" in text
