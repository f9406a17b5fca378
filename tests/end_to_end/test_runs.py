"""Whole runs: every item gets its row, nothing is lost or done twice, and every exit code keeps its meaning."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import wave
from contextlib import suppress
from pathlib import Path
from typing import Any

import duckdb
import psutil
import pytest
import yaml

from pipeline.errors import REASONS
from pipeline.job import load_job
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.resolve import Resolved, resolve
from pipeline.row import ARROW_SCHEMA
from tests.end_to_end.conftest import CLIPS, ROOT, Run, Workplace

pytestmark = pytest.mark.engine

GOOD_CLIPS = sorted(path.name for path in CLIPS.iterdir() if path.name != "broken.mp4")
ODD_NAME = b"-odd %03d \n\xff'\".mp4"
ERRORS = {
    "broken.mp4": "not_media",
    "empty.mp4": "empty_file",
    "text.mp4": "not_media",
    "gone.mp4": "source_missing",
    "folder.mp4": "source_not_a_file",
    "long.wav": "recording_too_long",
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """All demo clips and one of each kind of bad input."""
    workplace = Workplace(tmp_path_factory.mktemp("screened"))
    workplace.take(*GOOD_CLIPS, "broken.mp4")
    clips = workplace.clips
    (clips / "empty.mp4").touch()
    (clips / "text.mp4").write_text("pass, please", encoding="utf-8")
    (workplace.folder / "folder.mp4").mkdir()
    _write_long_wav(clips / "long.wav", seconds=1000)
    Path(os.fsdecode(os.fsencode(clips) + b"/" + ODD_NAME)).write_bytes((CLIPS / "no_sound.mp4").read_bytes())
    lines = [{"uri": "gone.mp4", "id": "gone"}, {"uri": "folder.mp4"}, {"uri": "clips/alarm.wav", "id": "alarm-1"}]
    (workplace.folder / "list.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return workplace


def _write_long_wav(path: Path, seconds: int) -> None:
    """Write silence at 8 kHz."""
    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(1)
        file.setframerate(8000)
        file.writeframes(b"\x80" * 8000 * seconds)


@pytest.fixture(scope="module")
def job(place: Workplace) -> Path:
    return place.write_job(
        source={"paths": ["clips"], "manifest": "list.jsonl"},
        media=yaml.safe_load((ROOT / "jobs" / "demo.yaml").read_text(encoding="utf-8"))["media"]
        | {"max_duration_s": 900},
        accept={"error_share": 0.5},
    )


@pytest.fixture(scope="module")
def first(place: Workplace, job: Path) -> Run:
    return place.run(job)


@pytest.fixture(scope="module")
def rows(first: Run, place: Workplace) -> dict[str, dict[str, Any]]:
    assert first.code == 0, first.said
    return place.rows()


@pytest.fixture(scope="module")
def resolved(job: Path) -> Resolved:
    return resolve(load_job(job))


def test_every_item_has_exactly_one_row(rows: dict[str, dict[str, Any]], place: Workplace) -> None:
    names = {*GOOD_CLIPS, *ERRORS, *(os.path.basename(row["uri"]) for row in rows.values() if "odd" in row["uri"])}
    assert set(rows) == names
    assert len(rows) == len(GOOD_CLIPS) + len(ERRORS) + 1
    counted = duckdb.sql(
        f"select count(*), count(distinct item_id) from read_parquet('{place.output}/part-*.parquet')"
    ).fetchall()
    assert counted == [(len(rows), len(rows))]


def test_bad_input_becomes_an_error_row_with_its_reason_and_the_fail_safe_verdict(
    rows: dict[str, dict[str, Any]],
) -> None:
    for name, reason in ERRORS.items():
        row = rows[name]
        assert (row["status"], row["reason"], row["verdict"]) == ("error", reason, "review"), name
        assert row["message"] and row["confidence"] is None and row["labels"] == []


def test_every_other_item_is_answered_by_the_model(rows: dict[str, dict[str, Any]], resolved: Resolved) -> None:
    labels = [label.id for label in resolved.policy.labels]
    for name in GOOD_CLIPS:
        row = rows[name]
        assert row["status"] == "ok", (name, row["reason"], row["message"])
        assert row["verdict"] in ("pass", "review", "reject")
        assert 0 < row["confidence"] < 1
        assert [label["id"] for label in row["labels"]] == labels
        assert row["rationale"]
        assert not row["degraded"], (name, row["message"])
        assert row["coverage"] == 1.0


def test_sound_and_pictures_reach_the_model_with_the_planned_number_of_tokens(
    rows: dict[str, dict[str, Any]], resolved: Resolved
) -> None:
    for name in GOOD_CLIPS:
        row, facts = rows[name], probe(os.fsencode(CLIPS / name), 10)
        planned = plan(facts, resolved.job.media, resolved.token_budget)
        assert (row["audio_tokens"], row["video_tokens"]) == (planned.audio_tokens, planned.video_tokens), name
        assert (row["frames"], row["frame_rate_hz"]) == (planned.frames, planned.frame_rate_hz), name
        assert (row["audio_tokens"] > 0) == (facts.audio is not None), name
        assert (row["video_tokens"] > 0) == (facts.video is not None), name
        assert row["prompt_tokens"] > row["audio_tokens"] + row["video_tokens"]
        assert row["media_kind"] == facts.kind


def test_kinds_of_media_are_told_apart(rows: dict[str, dict[str, Any]]) -> None:
    kinds = {name: rows[name]["media_kind"] for name in GOOD_CLIPS}
    assert kinds["picture.jpg"] == "image"
    assert kinds["no_sound.mp4"] == "video"
    assert kinds["voice_note.mp4"] == "audio"
    assert kinds["phone_portrait.mov"] == "av"


def test_a_file_name_that_is_no_text_is_screened_and_its_uri_is_percent_encoded(
    rows: dict[str, dict[str, Any]],
) -> None:
    (row,) = (row for row in rows.values() if "odd" in row["uri"])
    assert row["uri"].startswith("file:///") and row["uri"].endswith("-odd%20%2503d%20%0A%FF%27%22.mp4")
    assert row["status"] == "ok"


def test_a_manifest_id_wins_over_the_derived_one(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["alarm.wav"]["item_id"] == "alarm-1"
    assert rows["gone.mp4"]["item_id"] == "gone"


def test_times_and_phases_account_for_the_item(rows: dict[str, dict[str, Any]]) -> None:
    names = ("fetch", "probe", "plan", "decode", "render", "wait", "prefill", "generate", "parse", "commit")
    phases = [f"{name}_s" for name in names]
    for name in GOOD_CLIPS:
        row = rows[name]
        assert all(row[phase] is not None and row[phase] >= 0 for phase in phases), name
        took_s = (row["committed_at"] - row["admitted_at"]).total_seconds()
        assert 0 < sum(row[phase] for phase in phases) <= took_s + 0.5
        assert row["sla_met"] == (took_s <= row["sla_s"] == 60.0)


def test_rows_say_which_model_engine_policy_and_run_made_them(
    rows: dict[str, dict[str, Any]], resolved: Resolved
) -> None:
    for row in rows.values():
        assert row["model"] == resolved.checkpoint.label()
        assert row["fingerprint"] == resolved.fingerprint
        assert (row["policy_id"], row["policy_version"]) == (resolved.policy.id, resolved.policy.version)
        assert row["job_name"] == "job"
        assert row["engine"].startswith("vllm ")


def test_the_parquet_columns_are_those_of_the_schema(first: Run, place: Workplace) -> None:
    described = duckdb.sql(f"describe select * from read_parquet('{place.output}/part-*.parquet')").fetchall()
    assert [column[0] for column in described] == ARROW_SCHEMA.names


def test_the_run_leaves_its_journal_and_summary_where_readers_skip_them(first: Run, place: Workplace) -> None:
    (folder,) = (path for path in (place.output / "_runs").iterdir() if path.is_dir())
    summary = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert summary["exit_code"] == 0 and summary["missing"] == []
    assert summary["rows"] == summary["listed"] == sum(summary["by_status"].values())
    assert set(summary["by_reason"]) <= set(REASONS)
    assert summary["engine_thread"]["finished"] >= len(GOOD_CLIPS)
    assert summary["sla"]["rows"] == summary["sla"]["within"] == summary["rows"]
    assert 0 < summary["sla"]["p50_s"] <= summary["sla"]["p99_s"] <= summary["sla"]["max_s"] < 60
    assert sum(summary["phase_share"].values()) == pytest.approx(1)
    assert summary["bottleneck"]["phase"] in summary["phase_share"] and summary["bottleneck"]["advice"]
    assert (summary["retry"], summary["shard"], summary["missing_count"]) == ("errors", None, 0)
    assert f"within 60 s: {summary['rows']} of {summary['rows']} (p50 " in first.said
    events = [json.loads(line)["event"] for line in (folder / "events.jsonl").read_text("utf-8").splitlines()]
    assert events[0] == "run_started" and events[-1] == "run_ended"
    assert events.count("item_failed") == len(ERRORS)


def test_nothing_of_the_run_is_left_running(first: Run) -> None:
    names = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                names.append((folder / "cmdline").read_bytes().replace(b"\0", b" "))
            except OSError:
                continue
    assert not [name for name in names if b"ray::_" in name]


# What follows changes the workplace, in this order.


CLIPS_ONLY = {"paths": ["clips"], "exclude": ["alarm.wav"]}


def test_a_second_run_starts_nothing_and_tries_no_permanent_error_again(
    place: Workplace, job: Path, rows: dict[str, dict[str, Any]]
) -> None:
    """gone.mp4 is retryable, so it alone would start the engine; without the manifest there is nothing to do."""
    only = place.write_job("folder-only", source=CLIPS_ONLY, accept={"error_share": 0.5}, media=_media(job))
    run = place.run(only)
    assert run.code == 0
    assert "nothing to do" in run.said
    assert place.rows() == rows


def test_with_retry_none_a_retryable_error_stays_and_nothing_is_started(
    place: Workplace, job: Path, rows: dict[str, dict[str, Any]]
) -> None:
    run = place.run(job, "--retry", "none")
    assert run.code == 0 and "nothing to do" in run.said
    assert place.rows() == rows


def _media(job: Path) -> Any:
    return load_job(job).media.model_dump(mode="json")


def test_errors_beyond_what_the_job_accepts_give_exit_code_1(place: Workplace, job: Path) -> None:
    strict = place.write_job("strict", source=CLIPS_ONLY, media=_media(job))
    assert place.run(strict).code == 1


def test_other_settings_are_refused_until_the_job_says_what_to_do(place: Workplace, job: Path) -> None:
    run = place.run(job, "--set", "media.video.max_frames=64")
    assert run.code == 2
    assert "on_change" in run.said


def test_a_retry_replaces_the_error_row_and_a_changed_file_is_screened_again(
    place: Workplace, job: Path, rows: dict[str, dict[str, Any]]
) -> None:
    (place.folder / "gone.mp4").write_bytes((CLIPS / "no_sound.mp4").read_bytes())
    os.utime(place.clips / "speech_short.opus", (1e9, 1e9))
    run = place.run(job)
    assert run.code == 0, run.said
    now = place.rows()
    assert set(now) == set(rows)
    redone = {name for name in now if now[name]["row_id"] != rows[name]["row_id"]}
    assert redone == {"gone.mp4", "speech_short.opus"}
    for name in redone:
        assert now[name]["status"] == "ok"
        assert now[name]["follows_row_id"] == rows[name]["row_id"]


def test_a_changed_policy_appended_follows_the_old_rows_and_every_good_item_is_answered_alike(
    place: Workplace, job: Path
) -> None:
    """Also the parity of the two ways to render: the second run leaves rendering to the engine."""
    before = place.rows()
    append = ["--set", "output.on_change=append", "--set", "answer.max_tokens=700", "--set", "engine.render_in=engine"]
    run = place.run(job, *append)
    assert run.code == 0, run.said
    pairs = duckdb.sql(
        "select old.uri, old.verdict, new.verdict, old.audio_tokens, new.audio_tokens, old.video_tokens, "
        "new.video_tokens, old.rationale, new.rationale "
        f"from read_parquet('{place.output}/part-*.parquet') old "
        f"join read_parquet('{place.output}/part-*.parquet') new on new.follows_row_id = old.row_id "
        "where new.fingerprint <> old.fingerprint"
    ).fetchall()
    assert len(pairs) == len(before)
    for uri, *values in pairs:
        assert values[2] == values[3] and values[4] == values[5], uri
        assert values[0] == values[1], uri


MANY = 90
"""So many that a run is still far from its end when its first rows can be read."""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    workplace = Workplace(tmp_path_factory.mktemp("many"))
    workplace.take("telescope_mirror.mp4")
    clip = workplace.clips / "telescope_mirror.mp4"
    for number in range(MANY - 1):
        os.link(clip, workplace.clips / f"copy_{number:02d}.mp4")
    return workplace


def _start_until(many: Workplace, more_rows: int, *options: str) -> subprocess.Popen[str]:
    """Start the job and return when so many further rows can be read."""
    before = len(many.rows())
    process = many.start(many.write_job(), *options)
    deadline = time.monotonic() + 300
    while len(many.rows()) < before + more_rows and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.1)
    return process


def _actors(process: subprocess.Popen[str], name: str) -> list[psutil.Process]:
    found = {}
    for child in psutil.Process(process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # ended meanwhile
            if any(f"ray::{name}" in part for part in child.cmdline()):
                found[child.pid] = (child, child.ppid())
    return [child for child, parent in found.values() if parent not in found]  # none that is about to become another


def _kept(many: Workplace, kept: dict[str, dict[str, Any]]) -> bool:
    rows = many.rows()
    return all(rows[name]["row_id"] == row["row_id"] for name, row in kept.items())


def test_a_terminated_run_commits_what_it_has_and_leaves(many: Workplace) -> None:
    process = _start_until(many, 1)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 4, said
    assert "everything so far is committed" in said
    assert 0 < len(many.rows()) < MANY


def test_a_run_whose_engine_may_not_be_started_anew_keeps_what_it_has_and_says_so(many: Workplace) -> None:
    kept = many.rows()
    process = _start_until(many, 1, "--set", "engine.max_restarts=0")
    (engine,) = _actors(process, "EngineActor")
    engine.kill()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 4, said
    assert "the engine died" in said
    assert len(kept) < len(many.rows()) < MANY and _kept(many, kept)


def test_the_next_run_finishes_the_rest_even_if_a_front_end_worker_and_the_engine_die(many: Workplace) -> None:
    kept = many.rows()
    # A new engine may take longer than a minute where cores are busy.
    process = _start_until(many, 1, "--set", "sla.per_item_s=300")
    for victim in (_actors(process, "FrontEndActor")[0], *_actors(process, "EngineActor")):
        victim.kill()
    said, _ = process.communicate(timeout=400)
    assert process.returncode == 0, said
    rows = many.rows()
    assert len(rows) == MANY and _kept(many, kept)
    assert all(row["status"] == "ok" for row in rows.values())
    assert max(row["attempts"] for row in rows.values()) <= 4
