"""A rehearsal goes through real Ray, processes and Parquet; only nobody looks. Whatever dies, no row is lost."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections import Counter
from typing import Any

import psutil
import pytest

from pipeline.engine.fake import fault_of
from pipeline.job import Rehearsal
from tests.end_to_end.conftest import ROOT, Workplace

pytestmark = pytest.mark.engine

ITEMS = 60
# Files of one size: each is hashed before it is taken further.
SOURCE = {"manifest": "items.csv", "duplicates": "reuse"}
# A page is more.
ANY_GROWTH_GIB = 1e-9
FAULTS = {
    "hang": 0.02,
    "garbage": 0.05,
    "engine_dies": 0.05,
    "engine_stalls": 0.03,
    "poison": 0.04,
    "front_end_dies": 0.05,
    "front_end_hangs": 0.03,
}
EXPECTED: dict[str | None, set[tuple[str, str | None]]] = {
    None: {("ok", None)},
    "hang": {("deadline", "deadline")},
    "garbage": {("error", "answer_unparsable")},
    "engine_dies": {("ok", None)},
    "engine_stalls": {("ok", None)},
    "poison": {("error", "engine_killed")},
    "front_end_dies": {("ok", None)},
    "front_end_hangs": {("deadline", "deadline")},
}


@pytest.fixture
def rehearsal(workplace: Workplace) -> dict[str, Any]:
    workplace.clips.mkdir()
    names = [f"{number:02d}" for number in range(ITEMS)]
    for name in names:
        (workplace.clips / f"{name}.wav").write_bytes(name.encode())
    # Ids of its own, so that the same items are struck wherever the test runs.
    listing = "".join(f"clips/{name}.wav,item-{name}\n" for name in names)
    (workplace.folder / "items.csv").write_text(f"uri,id\n{listing}", encoding="utf-8")
    return {"answer_s": 0.05, "seed": 573, "faults": FAULTS}


# A rehearsal asks no known-answer clip by itself.
WITH_CANARY = """
import sys
from dataclasses import replace
from pathlib import Path
from rich.console import Console
from pipeline import run
from pipeline.canary import Canary
from pipeline.job import CanaryClip, load_job
from pipeline.resolve import resolve
canary = Canary("canary.clips.0", CanaryClip(path=Path(sys.argv[2]), verdict="review"))
run.resolve = lambda job: replace(resolve(job), canaries=(canary,))
sys.exit(run.run_job(load_job(Path(sys.argv[1])), Console(file=sys.stdout)))
"""


def start_with_canary(workplace: Workplace, rehearsal: dict[str, Any], max_restarts: int) -> subprocess.Popen[str]:
    job = workplace.write_job(source=SOURCE, rehearsal=rehearsal, engine={"max_restarts": max_restarts})
    return subprocess.Popen(
        [sys.executable, "-c", WITH_CANARY, str(job), str(workplace.clips / "00.wav")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def engines(process: subprocess.Popen[str]) -> list[psutil.Process]:
    children = psutil.Process(process.pid).children(recursive=True)
    return [child for child in children if any("ray::EngineActor" in part for part in child.cmdline())]


def journal(workplace: Workplace) -> list[dict[str, Any]]:
    lines = [path.read_text(encoding="utf-8") for path in workplace.output.glob("_runs/*/events.jsonl")]
    return [json.loads(line) for line in "".join(lines).splitlines()]


def wait_for(workplace: Workplace, event: str) -> None:
    """Wait until an event is in the journal."""
    until = time.monotonic() + 200
    while event not in [one["event"] for one in journal(workplace)]:
        assert time.monotonic() < until, event
        time.sleep(0.1)


def test_whatever_dies_every_item_gets_its_row_with_its_cause_and_in_time(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    job = workplace.write_job(
        source=SOURCE,
        rehearsal=rehearsal,
        engine={"stall_s": 3},
        sla={"per_item_s": 30},
        accept={"error_share": 1, "late_share": 1},
    )
    run = workplace.run(job)
    assert run.code == 0, run.said
    rows = workplace.rows()
    assert len(rows) == ITEMS
    script = Rehearsal.model_validate(rehearsal)
    befell = {name: fault_of(row["item_id"], script) for name, row in rows.items()}
    assert set(befell.values()) == {None, *FAULTS}
    # An item that was in the engine when another one killed it may lose its time, too; it comes again all the same.
    for name, row in rows.items():
        assert (row["status"], row["reason"]) in EXPECTED[befell[name]] | {("deadline", "deadline")}, row
        assert row["status"] == "ok" or row["message"]
        assert (row["committed_at"] - row["admitted_at"]).total_seconds() <= 30.5
    assert Counter(row["reason"] for row in rows.values())["engine_killed"] == list(befell.values()).count("poison")
    assert {row["model"] for row in rows.values()} == {"none (rehearsal)"}
    assert {row["verdict"] for row in rows.values()} == {"review"}


def test_the_journal_tells_deaths_stalls_with_stacks_and_restarts(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    faults = {"engine_stalls": 0.1}
    job = workplace.write_job(
        source=SOURCE,
        rehearsal=rehearsal | {"faults": faults},
        engine={"stall_s": 2},
        accept={"error_share": 1, "late_share": 1},
    )
    assert workplace.run(job).code == 0
    (journal,) = workplace.output.glob("_runs/*/events.jsonl")
    events = [json.loads(line) for line in journal.read_text(encoding="utf-8").splitlines()]
    stalled = [event for event in events if event["event"] == "engine_stalled"]
    assert stalled and "engine-steps" in stalled[0]["stacks"] and "time.sleep" in stalled[0]["stacks"]
    assert sum(event["event"] == "engine_restarted" for event in events) == len(stalled)


def test_an_engine_that_is_replaced_time_and_again_loses_no_item_and_dies_for_nobody(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    """With `max_restarts` 0 a single death would end the run."""
    job = workplace.write_job(
        source=SOURCE,
        rehearsal=rehearsal | {"answer_s": 0.5, "faults": {}},
        engine={"max_growth_gib": ANY_GROWTH_GIB, "max_restarts": 0, "max_num_seqs": 2},
    )
    run = workplace.run(job)
    assert run.code == 0, run.said
    rows = workplace.rows()
    assert len(rows) == ITEMS and {(row["status"], row["attempts"]) for row in rows.values()} == {("ok", 1)}
    names = [event["event"] for event in journal(workplace)]
    assert "engine_recycled" in names and "engine_died" not in names


def test_a_run_that_is_stopped_while_its_engine_is_replaced_ends_at_once(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    job = workplace.write_job(
        source=SOURCE,
        rehearsal=rehearsal | {"answer_s": 20.0, "faults": {}},
        engine={"max_growth_gib": ANY_GROWTH_GIB, "max_restarts": 0},
    )
    process = workplace.start(job)
    wait_for(workplace, "engine_recycled")
    process.send_signal(signal.SIGTERM)
    stopped = time.monotonic()
    said, _ = process.communicate(timeout=60)
    # The questions in flight would have taken as long as an answer takes.
    assert process.returncode == 4 and time.monotonic() - stopped < 15, said
    names = [event["event"] for event in journal(workplace)]
    assert names[-1] == "run_ended" and "engine_died" not in names and "engine_restarted" not in names


def test_known_answers_are_asked_again_by_the_engine_that_comes_after_a_dead_one(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    process = start_with_canary(workplace, rehearsal | {"answer_s": 3.0, "faults": {}}, max_restarts=2)
    for event in ("engine_ready", "engine_restarted"):
        wait_for(workplace, event)
        time.sleep(1.0)
        (engine,) = engines(process)
        engine.kill()
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 0, said
    assert "1 known-answer clips answered as expected" in said and len(workplace.rows()) == ITEMS


def test_an_engine_that_known_answers_kill_each_time_is_lost_and_no_wrong_answer(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    process = start_with_canary(workplace, rehearsal | {"faults": {"poison": 1.0}}, max_restarts=2)
    said, _ = process.communicate(timeout=200)
    assert process.returncode == 4, said
    assert "died 3 times in a row without an answer between" in said and not workplace.rows()


def test_an_engine_that_never_answers_again_ends_the_run_with_what_is_committed(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    job = workplace.write_job(
        source=SOURCE, rehearsal=rehearsal | {"faults": {"poison": 1.0}}, engine={"max_restarts": 1}
    )
    run = workplace.run(job)
    assert run.code == 4
    assert "died 2 times in a row without an answer between" in run.said


@pytest.mark.parametrize("screen", ["2>&1 | true; exit ${PIPESTATUS[0]}", ">/dev/full 2>/dev/full"])
def test_a_run_whose_screen_is_lost_goes_on_without_it(
    workplace: Workplace, rehearsal: dict[str, Any], screen: str
) -> None:
    faults = {"garbage": 0.05}
    job = workplace.write_job(source=SOURCE, rehearsal=rehearsal | {"faults": faults}, accept={"error_share": 0})
    command = f'"$0" {ROOT / "run_batch.py"} "$1" {screen}'
    done = subprocess.run(["bash", "-c", command, sys.executable, str(job)], timeout=200, check=False)
    rows = workplace.rows()
    assert len(rows) == ITEMS and any(row["status"] == "error" for row in rows.values())
    assert done.returncode == 1  # some rows are errors
    assert journal(workplace)[-1]["event"] == "run_ended"


def ray_process(process: subprocess.Popen[str], name: str) -> psutil.Process:
    return next(child for child in psutil.Process(process.pid).children(recursive=True) if child.name() == name)


@pytest.mark.parametrize("name", ["gcs_server", "raylet"])
def test_a_run_that_loses_ray_itself_ends_in_good_order_before_ray_ends_it(
    workplace: Workplace, rehearsal: dict[str, Any], name: str
) -> None:
    job = workplace.write_job(source=SOURCE, rehearsal={"answer_s": 0.5, "front_end_s": 1.0})
    process = workplace.start(job)
    wait_for(workplace, "engine_ready")
    time.sleep(3.0)
    ray_process(process, name).kill()
    killed = time.monotonic()
    said, _ = process.communicate(timeout=120)
    assert process.returncode == 4 and time.monotonic() - killed < 30, said
    assert f"stopped early: Ray's {name} (exit status -9) has ended" in said
    (summary,) = workplace.output.glob("_runs/*/run.json")
    assert json.loads(summary.read_text(encoding="utf-8"))["rows"] == len(workplace.rows()) > 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_after_the_last_word_does_not_change_the_exit_code(
    workplace: Workplace, rehearsal: dict[str, Any], number: signal.Signals
) -> None:
    process = workplace.start(workplace.write_job(source=SOURCE, rehearsal=rehearsal | {"faults": {}}))
    assert process.stdout is not None
    while "finished: " not in process.stdout.readline():
        assert process.poll() is None
    while process.poll() is None:
        process.send_signal(number)
        time.sleep(0.002)
    process.communicate()
    assert process.returncode == 0


def test_a_terminal_that_goes_stops_the_run_with_what_is_committed(
    workplace: Workplace, rehearsal: dict[str, Any]
) -> None:
    job = workplace.write_job(source=SOURCE, rehearsal={"answer_s": 0.5, "front_end_s": 1.0})
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # ignored if the tests run under nohup, and so inherited
    process = workplace.start(job)
    signal.signal(signal.SIGHUP, before)
    wait_for(workplace, "engine_ready")
    process.send_signal(signal.SIGHUP)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 4 and "stopped early, everything so far is committed" in said


def test_the_real_front_end_can_feed_a_rehearsed_engine_and_every_token_is_accounted_for(workplace: Workplace) -> None:
    workplace.take("alarm.wav", "no_sound.mp4", "telescope_mirror.mp4", "broken.mp4")
    job = workplace.write_job(rehearsal={"front_end": "real", "answer_s": 0.1})
    run = workplace.run(job, "--set", "accept.error_share=0.5")
    assert run.code == 0, run.said
    rows = workplace.rows()
    media = {name: (row["audio_tokens"] > 0, row["video_tokens"] > 0) for name, row in rows.items()}
    assert media.pop("broken.mp4") == (False, False) and rows["broken.mp4"]["reason"] == "not_media"
    assert media == {
        "alarm.wav": (True, False),
        "no_sound.mp4": (False, True),
        "telescope_mirror.mp4": (True, True),
    }
    for name in media:
        row = rows[name]
        assert (row["status"], row["verdict"], row["model"]) == ("ok", "review", "none (rehearsal)")
        assert row["decode_s"] > 0 and row["render_s"] > 0 and row["generate_s"] >= 0.1
