"""`--retry` and `--shard` on the command line, over an output that holds what another run left. Starts no engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pipeline.job import load_job
from pipeline.records import Item, Phases, Prepared
from pipeline.resolve import Resolved, resolve
from pipeline.row import VerdictRow
from pipeline.sink import Sink, steady_utc
from pipeline.source import list_items
from pipeline.verdict import Outcome, RunFacts, build_row
from tests.end_to_end.conftest import Workplace
from tests.test_selection import shard_with_one_of

REASONS = {"alarm.wav": "not_media", "picture.jpg": "source_missing"}


def _failed(item: Item, resolved: Resolved) -> VerdictRow:
    """Return the error row of an item, as a run of this job would have written it."""
    facts = RunFacts(
        run_id="earlier",
        job_name=resolved.job.name,
        fingerprint=resolved.fingerprint,
        policy=resolved.policy,
        model="m",
        engine="e",
        accel_patches=(),
        sla_s=60.0,
    )
    outcome = Outcome(Prepared(phases=Phases()), 1, reason=REASONS[Path(item.uri).name], message="x")
    return build_row(item, outcome, facts, steady_utc()(), None)


@pytest.fixture
def job(workplace: Workplace) -> Path:
    """A job with a permanent and a retryable error row in its output."""
    workplace.take(*REASONS)
    path = workplace.write_job()
    resolved = resolve(load_job(path))
    sink = Sink(workplace.output, "earlier", rows_per_part=10, commit_every_s=1.0)
    for item in list_items(resolved.job.source):
        sink.add(_failed(item, resolved))
    sink.close()
    return path


def test_with_retry_none_failures_stay_and_nothing_is_started(workplace: Workplace, job: Path) -> None:
    before = workplace.rows()
    run = workplace.run(job, "--retry", "none")
    assert run.code == 1, run.said
    assert "all 2 items have their final row; nothing to do" in run.said
    assert workplace.rows() == before
    (path,) = (workplace.output / "_runs").glob("*/run.json")
    summary = json.loads(path.read_text(encoding="utf-8"))
    assert (summary["retry"], summary["shard"], summary["skipped"], summary["missing_count"]) == ("none", None, 2, 0)
    assert summary["sla"]["rows"] == 0 and summary["bottleneck"] is None


def test_a_dry_run_counts_what_each_retry_would_try_again(workplace: Workplace, job: Path) -> None:
    expected = {
        "none": "0 to be screened, 2 done before",
        "errors": "1 to be screened (1 tried again), 1 done before",
        "all": "2 to be screened (2 tried again), 0 done before",
    }
    for retry, counts in expected.items():
        assert f"2 items, {counts}" in workplace.run(job, "--dry-run", "--retry", retry).said


def test_a_run_of_a_shard_lists_its_items_alone(workplace: Workplace, job: Path) -> None:
    ids = [item.item_id for item in list_items(load_job(job).source)]
    run = workplace.run(job, "--retry", "none", "--shard", str(shard_with_one_of(*ids)))
    assert run.code == 1, run.said
    assert "all 1 items have their final row" in run.said
