"""A run from job to exit code with workers that do what a test says: known answers come before the first item."""

from __future__ import annotations

import asyncio
import io
import json
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.dataset
import pyarrow.parquet
import pytest
import yaml
from rich.console import Console

from pipeline import run as run_module
from pipeline.canary import CANARY_FILE
from pipeline.engine.base import EngineStats
from pipeline.errors import EngineDied, EngineLost, ItemError
from pipeline.events import EventLog
from pipeline.job import load_job
from pipeline.ledger import Ledger, Retry, read_ledger
from pipeline.policy import Policy, prompt_digest
from pipeline.records import Completion, Item, JsonObject, Prepared
from pipeline.run import run_job
from pipeline.selection import EVERYTHING, Selection, Shard
from pipeline.source import list_items
from pipeline.workers.actors import Effort
from tests.test_calibration import CONTENT as CALIBRATION
from tests.test_checkpoint import OTHER_DIGEST, write_checkpoint
from tests.test_driver import GOOD, READY, Scripted
from tests.test_selection import shard_with_one_of
from tests.test_verdict import POLICY

EXPECTED = {"verdict": "pass", "labels": {"alarm": True, "bang": False}, "min_confidence": 0.7}


class Place:
    """A job with two items and one canary, and the workers it gets."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: list[str] = []
        self.started = 0
        self.engines_ended = 0
        self.selection = EVERYTHING
        self.ask: Callable[[str], Completion] = lambda _: GOOD
        self.prepare: Callable[[Item], Any] = lambda _: READY
        write_checkpoint(folder / "model")
        (folder / "clips").mkdir()
        for name in ("clips/a.wav", "clips/b.wav", "known.wav"):
            (folder / name).write_bytes(b"sound")
        text = yaml.safe_dump(POLICY.model_dump(mode="json", by_alias=True))
        (folder / "policy.yaml").write_text(text, encoding="utf-8")

    def write_job(self, expected: JsonObject | None = None, **sections: Any) -> Path:
        """Write the job file."""
        job = {
            "name": "x",
            "source": {"paths": ["clips"]},
            "policy": "policy.yaml",
            "output": {"path": "out", "commit_every_s": 0.5},
            "model": {"path": "model"},
            "engine": {"max_model_len": 8192},
            "canary": {"clips": [{"path": "known.wav"} | (EXPECTED if expected is None else expected)]},
        }
        path = self.folder / "job.yaml"
        path.write_text(yaml.safe_dump(job | sections), encoding="utf-8")
        return path

    def run(self, expected: JsonObject | None = None, **sections: Any) -> tuple[int, str]:
        """Return exit code and what was said."""
        path, out = self.write_job(expected, **sections), io.StringIO()
        code = run_job(load_job(path), Console(file=out, width=200), self.selection)
        return code, out.getvalue()

    def rows(self) -> int:
        return read_ledger(self.folder / "out").rows()

    def table(self, output: str = "out") -> list[JsonObject]:
        """Return all rows, each with its recording's file name as `name`."""
        rows = pyarrow.dataset.dataset(self.folder / output, format="parquet").to_table().to_pylist()
        return [row | {"name": Path(row["uri"]).name} for row in rows]

    def newest(self) -> tuple[JsonObject, list[JsonObject]]:
        """Return run.json and the events of the newest run."""
        folders = [path for path in self.folder.glob("out*/_runs/*") if path.is_dir()]
        folder = max(folders, key=lambda path: path.stat().st_mtime_ns)
        lines = (folder / "events.jsonl").read_text(encoding="utf-8").splitlines()
        return json.loads((folder / "run.json").read_text(encoding="utf-8")), [json.loads(line) for line in lines]


class FakeWorkers(Scripted):
    """Scripted workers with all that a run asks of its workers."""

    description = "scripted"

    def __init__(self, place: Place) -> None:
        super().__init__(self._seen, place.ask)
        self._place = place

    def _seen(self, item: Item) -> Any:
        self._place.seen.append(Path(item.uri).name)
        return self._place.prepare(item)

    def stop_watching(self) -> None:
        pass

    def engine_restarts(self) -> int:
        return 0

    def engine_generation(self) -> int:
        return self._place.engines_ended

    async def engine_stats(self) -> EngineStats:
        return EngineStats(0.0, 0.0, 0.0, 0, 0, 0)

    async def front_end_effort(self) -> Effort:
        return Effort(3.0, 2)

    async def memory(self) -> dict[str, int]:
        return {}


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    made = Place(tmp_path)

    async def start(*_: Any) -> FakeWorkers:
        made.started += 1
        return FakeWorkers(made)

    monkeypatch.setattr("pipeline.workers.start_ray", lambda *_: None)
    monkeypatch.setattr("pipeline.workers.Workers.start", start)
    monkeypatch.setattr("pipeline.workers.Workers.close", lambda: None)
    return made


def test_known_answers_come_before_the_first_item_and_leave_no_row(place: Place) -> None:
    code, said = place.run()
    assert code == 0, said
    assert "1 known-answer clips answered as expected" in said
    assert place.seen[0] == "known.wav" and sorted(place.seen[1:]) == ["a.wav", "b.wav"]
    assert place.rows() == 2
    summary, events = place.newest()
    assert (summary["canary"]["asked"], summary["canary"]["passed"], summary["rows"]) == (1, 1, 2)
    names = [event["event"] for event in events]
    assert names.index("engine_ready") < names.index("canaries") < names.index("run_ended")
    assert events[names.index("canaries")]["results"][0]["passed"]


@pytest.mark.parametrize(
    "expected",
    [
        {"verdict": "reject"},
        {"verdict": "pass", "labels": {"bang": True}},
        {"verdict": "pass", "min_confidence": 0.99},
    ],
)
def test_another_answer_than_expected_stops_the_run_before_the_first_item(place: Place, expected: JsonObject) -> None:
    code, said = place.run(expected)
    assert code == 2
    assert "1 of 1 known-answer clips" in said and "known.wav" in said and "canary.clips.0" in said
    assert said.splitlines()[-1].startswith("x: refused by known-answer clips, nothing was screened")
    assert place.seen == ["known.wav"] and place.rows() == 0
    summary, events = place.newest()
    assert summary["exit_code"] == 2 and summary["missing"] == []
    assert (summary["canary"]["asked"], summary["canary"]["passed"]) == (1, 0)
    assert events[-1]["event"] == "run_ended"


def test_an_error_in_a_canary_stops_the_run_too(place: Place) -> None:
    def prepare(item: Item) -> Prepared:
        raise ItemError("not_media", "no demuxer")

    place.prepare = prepare
    code, said = place.run()
    assert code == 2 and "not_media: no demuxer" in said
    assert place.rows() == 0


def test_a_canary_that_hangs_in_the_front_end_stops_the_run_in_its_time(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pipeline.screening._GRACE_S", 0.1)
    place.prepare = lambda _: asyncio.sleep(600, READY)
    code, said = place.run(sla={"per_item_s": 0.2})
    assert code == 2 and "deadline" in said
    assert place.rows() == 0


def test_an_engine_that_is_lost_with_a_canary_ends_the_run_with_4(place: Place) -> None:
    def ask(request_id: str) -> Completion:
        raise EngineLost("it died")

    place.ask = ask
    code, said = place.run()
    assert code == 4 and "stopped early: it died" in said
    assert place.rows() == 0 and place.seen == ["known.wav"]
    summary, events = place.newest()
    assert summary["exit_code"] == 4 and "run_broken" in [event["event"] for event in events]


@pytest.mark.parametrize(("deaths", "code", "rows"), [(3, 0, 2), (99, 4, 0)])
def test_a_canary_that_the_engine_dies_with_is_asked_again_and_is_no_wrong_answer(
    place: Place, deaths: int, code: int, rows: int
) -> None:
    def ask(request_id: str) -> Completion:
        if place.engines_ended < deaths:
            place.engines_ended += 1
            raise EngineDied("the engine died: killed")
        return GOOD

    place.ask = ask
    got, said = place.run()
    assert (got, place.rows()) == (code, rows), said
    assert ("stopped early" in said) == (code == 4)


def test_the_models_own_verdict_is_compared_and_not_the_routed_one(place: Place) -> None:
    text = (place.folder / "policy.yaml").read_text(encoding="utf-8")
    (place.folder / "policy.yaml").write_text(text.replace("review_below: 0.0", "review_below: 1.0"), encoding="utf-8")
    code, said = place.run()
    assert code == 0, said
    summary, _ = place.newest()
    assert summary["by_verdict"] == {"review": 2} and summary["by_reason"] == {"low_confidence": 2}


def test_without_work_nothing_is_started_and_no_canary_is_asked(place: Place) -> None:
    place.run()
    place.seen.clear()
    code, said = place.run({"verdict": "reject"})
    assert code == 0 and "nothing to do" in said
    assert place.seen == [] and place.started == 1
    assert place.newest()[0]["canary"] == {"asked": 0, "passed": 0, "seconds": 0.0}


def test_a_clip_that_comes_with_the_checkpoint_is_asked_for_its_policy(place: Place) -> None:
    path = place.folder / "model" / CANARY_FILE
    path.parent.mkdir()
    (path.parent / "siren.wav").write_bytes(b"sound")
    digest = prompt_digest(Policy.model_validate(yaml.safe_load((place.folder / "policy.yaml").read_text("utf-8"))))
    listed = {"policy_sha256": digest, "clips": [{"path": "siren.wav", "verdict": "reject"}]}
    path.write_text(yaml.safe_dump(listed), encoding="utf-8")
    code, said = place.run()
    assert code == 2 and "siren.wav" in said and "1 of 2" in said
    own = {"clips": [], "from_checkpoint": False}
    assert place.run(canary=own)[0] == 0


@pytest.mark.parametrize("fits", [True, False])
def test_a_run_says_whether_its_confidences_are_calibrated(place: Place, fits: bool) -> None:
    digest = prompt_digest(POLICY) if fits else OTHER_DIGEST
    write_checkpoint(place.folder / "model", calibration=CALIBRATION | {"policy_sha256": digest})
    code, said = place.run(canary={})
    assert code == 0, said
    summary, events = place.newest()
    assert summary["calibrated"] is fits and events[0]["calibrated"] is fits


def test_a_stop_while_canaries_are_asked_ends_the_run_with_4(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    stops: list[asyncio.Event] = []
    monkeypatch.setattr(run_module, "_stop_on_signals", stops.append)

    async def stopped() -> Prepared:
        stops[0].set()
        await asyncio.sleep(600)
        return READY

    place.prepare = lambda _: stopped()
    code, said = place.run()
    assert code == 4 and "everything so far is committed" in said
    assert place.rows() == 0


@pytest.mark.parametrize(
    ("retry", "again", "code"),
    [("errors", {"b.wav", "c.wav"}, 1), ("all", {"a.wav", "b.wav", "c.wav"}, 0), ("none", set(), 1)],
)
def test_retry_says_which_failures_are_tried_again(place: Place, retry: Retry, again: set[str], code: int) -> None:
    reasons = {"a.wav": "not_media", "b.wav": "source_missing", "c.wav": "deadline"}
    (place.folder / "clips" / "c.wav").write_bytes(b"sound")
    (place.folder / "clips" / "good.wav").write_bytes(b"sound")

    def prepare(item: Item) -> Prepared:
        reason = reasons.get(Path(item.uri).name)
        return READY if reason is None else replace(READY, error_code=reason, error_message="x")

    place.prepare = prepare
    assert place.run(canary={})[0] == 1
    place.seen.clear()
    place.prepare = lambda _: READY
    place.selection = Selection(retry)
    got, said = place.run(canary={})
    assert got == code, said
    assert set(place.seen) == again
    assert place.newest()[0]["retry"] == retry
    assert {row["name"] for row in place.table() if row["status"] == "ok"} == {"good.wav", *again}


def test_shards_part_the_source_and_each_run_answers_for_its_own_items(place: Place) -> None:
    names = {f"{number}.wav" for number in range(12)} | {"a.wav", "b.wav"}
    for name in names:
        (place.folder / "clips" / name).write_bytes(b"sound")
    seen: list[str] = []
    for number in (1, 2, 3):
        place.selection = Selection(shard=Shard(number, 3))
        code, said = place.run(canary={}, output={"path": f"out{number}", "commit_every_s": 0.5})
        assert code == 0, said
        summary, events = place.newest()
        rows = place.table(f"out{number}")
        assert summary["shard"] == events[0]["shard"] == f"{number}/3"
        assert summary["listed"] == summary["rows"] == len(rows) < len(names)
        seen += [row["name"] for row in rows]
    assert sorted(seen) == sorted(names)


def test_reconciliation_counts_the_items_of_the_shard_alone(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "read_ledger", lambda *_, **__: Ledger())
    ids = [item.item_id for item in list_items(load_job(place.write_job()).source)]
    shard = shard_with_one_of(*ids)
    place.selection = Selection(shard=shard)
    code, said = place.run(canary={})
    assert code == 1 and "1 items have no row" in said
    summary, _ = place.newest()
    assert summary["missing_count"] == 1 and summary["missing"] == ids[:1]


def test_a_shard_without_items_is_said_and_starts_nothing(place: Place) -> None:
    ids = [item.item_id for item in list_items(load_job(place.write_job()).source)]
    shard = next(shard for n in range(3, 50) if not any(map((shard := Shard(2, n)).takes, ids)))
    place.selection = Selection(shard=shard)
    code, said = place.run()
    assert code == 0 and f"no item of the source is in shard {shard}; nothing to do" in said
    assert place.started == 0


@pytest.mark.parametrize("change", ["file", "retry", "append", "rewrite"])
def test_a_row_that_takes_anothers_place_or_follows_it_names_it(place: Place, change: str) -> None:
    failing = replace(READY, error_code="source_missing", error_message="x")
    place.prepare = lambda item: failing if change == "retry" and item.uri.endswith("a.wav") else READY
    place.run(canary={})
    old = {row["name"]: row for row in place.table()}
    assert all(row["follows_row_id"] is None for row in old.values())
    place.prepare = lambda _: READY
    sections: JsonObject = {}
    if change == "file":
        (place.folder / "clips" / "a.wav").write_bytes(b"other sound")
    elif change != "retry":
        sections["media"] = {"audio": {"max_duration_s": 600}}
        sections["output"] = {"path": "out", "commit_every_s": 0.5, "on_change": change}
    code, said = place.run(canary={}, **sections)
    assert code == 0, said
    rows = place.table()
    kept = {row["row_id"] for row in rows} & {row["row_id"] for row in old.values()}
    new = {row["name"]: row["follows_row_id"] for row in rows if row["row_id"] not in kept}
    redone = {"a.wav"} if change in ("file", "retry") else {"a.wav", "b.wav"}
    assert new == {name: old[name]["row_id"] for name in redone}
    assert len(rows) == (4 if change == "append" else 2)
    assert len(kept) == {"file": 1, "retry": 1, "append": 2, "rewrite": 0}[change]


def test_a_run_says_how_many_events_its_journal_lacks(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_module, "EventLog", lambda _: EventLog(Path("/dev/full")))
    code, said = place.run(canary={})
    assert code == 0, said
    (path,) = place.folder.glob("out/_runs/*/run.json")
    # run_started, engine_ready, run_ended
    assert json.loads(path.read_text(encoding="utf-8"))["events_dropped"] == 3
    assert "3 events could not be written to events.jsonl" in said


def test_a_run_whose_journal_is_whole_says_nothing_of_it(place: Place) -> None:
    _, said = place.run(canary={})
    summary, events = place.newest()
    assert summary["events_dropped"] == events[-1]["events_dropped"] == 0 and "events.jsonl" not in said


def test_a_run_says_how_long_items_took_and_where_their_time_went(place: Place) -> None:
    code, said = place.run(canary={})
    assert code == 0, said
    summary, _ = place.newest()
    assert (summary["sla"]["rows"], summary["sla"]["within"], summary["sla"]["per_item_s"]) == (2, 2, 60.0)
    assert 0 < summary["sla"]["p50_s"] <= summary["sla"]["max_s"] < 60
    assert sum(summary["phase_share"].values()) == pytest.approx(1)
    assert summary["bottleneck"]["phase"] == "generate"
    lines = said.splitlines()
    assert lines[-1].startswith("  within 60 s: 2 of 2 (p50 ")


def with_manifest(place: Place, count: int = 100) -> Path:
    """List `count` recordings in a manifest."""
    names = [f"{number}.wav" for number in range(count)]
    for name in names:
        (place.folder / "clips" / name).write_bytes(b"sound")
    path = place.folder / "list.csv"
    path.write_text("".join(f"{line}\n" for line in ["uri", *(f"clips/{name}" for name in names)]), encoding="utf-8")
    return path


def once(place: Place, act: Callable[[], Any]) -> None:
    """Do something when the first item is prepared."""
    acts = [act]

    def prepare(_: Item) -> Prepared:
        if acts:
            acts.pop()()
        return READY

    place.prepare = prepare


def spoil_output(place: Place) -> None:
    pyarrow.parquet.write_table(pyarrow.table({"a": [1]}), place.folder / "out" / "part-foreign.parquet")


@pytest.mark.parametrize(
    ("happens", "cause"),
    [
        (lambda place: (place.folder / "list.csv").rename(place.folder / "away.csv"), "list.csv does not exist"),
        (spoil_output, "part-foreign.parquet has other columns than this version writes; move it away"),
    ],
    ids=["manifest moved", "foreign part"],
)
def test_a_run_that_cannot_check_its_rows_ends_in_good_order_with_4_and_says_why(
    place: Place, happens: Callable[[Place], Any], cause: str
) -> None:
    with_manifest(place)
    once(place, lambda: happens(place))
    code, said = place.run(canary={}, source={"manifest": "list.csv"})
    assert code == 4
    assert "x: finished, but not checked: 100 ok in" in said and "run the job again" in said and cause in said
    summary, events = place.newest()
    assert (summary["exit_code"], summary["rows"], events[-1]["event"]) == (4, 100, "run_ended")
    assert cause in summary["missing_unchecked"]
    assert sum(len(pyarrow.parquet.read_table(part)) for part in place.folder.glob("out/part-2*.parquet")) == 100


def test_a_source_that_cannot_be_listed_to_its_end_stops_the_run_early_with_what_was_screened(place: Place) -> None:
    manifest = with_manifest(place)
    once(place, lambda: manifest.write_text(manifest.read_text() + "s3://bucket/a.wav\n", encoding="utf-8"))
    code, said = place.run(canary={}, source={"manifest": "list.csv"})
    assert code == 4 and "stopped early: the source could not be listed to its end: source.manifest: " in said
    assert 'line 102: only local files are supported yet, not the scheme "s3://"' in said
    summary, events = place.newest()
    assert summary["exit_code"] == 4 and events[-1]["event"] == "run_ended"
    assert summary["rows"] == place.rows() > 0


def test_a_run_whose_output_folder_goes_claims_no_rows_in_it(place: Place) -> None:
    for number in range(40):
        (place.folder / "clips" / f"{number}.wav").write_bytes(b"sound")
    once(place, lambda: (place.folder / "out").rename(place.folder / "moved"))
    code, said = place.run(canary={})
    out = place.folder / "out"
    assert code == 4
    assert f"rows cannot be written to {out}: the output folder was removed, moved or replaced" in said
    assert f"run.json of this run cannot be written to {out}/_runs/" in said
    assert f"in {out}, which was removed, moved or replaced during the run (exit code 4)" in said
    assert "committed" not in said and "Errno" not in said and ".tmp" not in said


def test_a_signal_changes_nothing_when_the_result_is_known(place: Place) -> None:
    assert place.run(canary={})[0] == 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        assert signal.getsignal(number) is signal.SIG_IGN


def with_settings(place: Place, on_change: str, number: int) -> tuple[int, str]:
    """Run with the `number`-th of several settings whose rows cannot be compared."""
    output = {"path": "out", "commit_every_s": 0.5, "on_change": on_change}
    return place.run(canary={}, output=output, media={"audio": {"max_duration_s": 600 + number}})


def test_a_rewrite_leaves_one_row_per_item_whatever_was_appended_before(place: Place) -> None:
    for number in range(3):
        assert with_settings(place, "append", number)[0] == 0
    assert place.rows() == 6
    before = {row["row_id"]: row["name"] for row in place.table()}
    assert with_settings(place, "rewrite", 3)[0] == 0
    rows = place.table()
    assert sorted(row["name"] for row in rows) == ["a.wav", "b.wav"]
    assert all(before[row["follows_row_id"]] == row["name"] for row in rows)
    assert len({row["fingerprint"] for row in rows}) == 1
    assert with_settings(place, "stop", 3)[0] == 0


def test_a_rewrite_that_was_cut_short_is_finished_by_the_next_one(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    for number in range(2):
        with_settings(place, "append", number)
    with monkeypatch.context() as patch:
        patch.setattr(run_module, "remove_rows", fail)
        code, said = with_settings(place, "rewrite", 2)
    assert code == 4 and "No space left on device" in said and place.rows() == 4
    code, said = with_settings(place, "rewrite", 2)
    assert code == 0 and "nothing to do" in said and place.rows() == 2


@pytest.mark.parametrize("on_change", ["append", "rewrite"])
def test_a_recording_that_is_gone_keeps_its_good_row_under_any_settings(place: Place, on_change: str) -> None:
    place.run(canary={})
    (old,) = [row for row in place.table() if row["name"] == "a.wav"]
    file = place.folder / "clips" / "a.wav"
    file.rename(place.folder / "away.wav")
    sections: JsonObject = {
        "canary": {},
        "media": {"audio": {"max_duration_s": 600}},
        "output": {"path": "out", "commit_every_s": 0.5, "on_change": on_change},
    }
    (place.folder / "list.csv").write_text("uri\nclips/a.wav\nclips/b.wav\n", encoding="utf-8")
    code, said = place.run(source={"manifest": "list.csv"}, **sections)
    assert code == 1, said  # under these settings a.wav has no answer
    assert "1 recordings were not found and keep the good rows they have" in said and "no row" not in said
    assert [row for row in place.table() if row["name"] == "a.wav"] == [old]
    summary, _ = place.newest()
    assert (summary["gone"], summary["missing_count"], summary["rows"]) == (1, 0, 1)
    (place.folder / "away.wav").rename(file)
    code, said = place.run(source={"manifest": "list.csv"}, **sections)
    assert code == 0, said
    assert place.rows() == (2 if on_change == "rewrite" else 4)
