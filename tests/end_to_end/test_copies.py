"""Files of the same content in real runs: looked at once, answered alike, and known to the runs after."""

from __future__ import annotations

import json
import shutil
from collections import Counter
from typing import Any

import duckdb
import pytest

from tests.end_to_end.conftest import CLIPS, Workplace

pytestmark = pytest.mark.engine

REUSE = {"paths": ["clips"], "duplicates": "reuse"}
# Of the recording and of the answer; not of the work.
SAME = (
    *("content_sha256", "content_bytes", "media_kind", "duration_s", "verdict", "model_verdict", "confidence"),
    *("labels", "rationale", "degraded", "reason", "message", "coverage", "audio_tokens", "video_tokens", "frames"),
    *("frame_rate_hz", "prompt_tokens", "output_tokens", "fingerprint", "model", "engine"),
)


def summary(workplace: Workplace) -> dict[str, Any]:
    newest = max(workplace.output.glob("_runs/*/run.json"), key=lambda path: path.stat().st_mtime_ns)
    facts: dict[str, Any] = json.loads(newest.read_text(encoding="utf-8"))
    return facts


def same_answer(copy: dict[str, Any], original: dict[str, Any]) -> bool:
    return all(copy[name] == original[name] for name in SAME) and copy["duplicate_of"] == original["row_id"]


def test_a_folder_with_copies_is_looked_at_once_for_each_content_and_a_later_copy_not_at_all(
    workplace: Workplace,
) -> None:
    workplace.take("alarm.wav", "flash_and_bang.mp4", "telescope_mirror.mp4", "broken.mp4")
    copies = {"alarm.wav": 3, "flash_and_bang.mp4": 1, "broken.mp4": 1}
    for name, count in copies.items():
        for number in range(count):
            shutil.copyfile(CLIPS / name, workplace.clips / f"{number}_{name}")
    job = workplace.write_job(source=REUSE, accept={"error_share": 0.5})
    run = workplace.run(job)
    assert run.code == 0, run.said
    rows = workplace.rows()
    assert Counter(row["status"] for row in rows.values()) == {"ok": 3, "duplicate": 4, "error": 2}
    for name, count in copies.items():
        group = [rows[one] for one in (name, *(f"{number}_{name}" for number in range(count)))]
        if name == "broken.mp4":
            assert {row["reason"] for row in group} == {"not_media"}
            continue
        (original,) = (row for row in group if row["status"] == "ok")
        assert all(same_answer(row, original) for row in group if row["status"] == "duplicate")
        assert all(row["decode_s"] is None and row["fetch_s"] is not None for row in group if row is not original)
    facts = summary(workplace)
    assert facts["by_status"] == {"ok": 3, "duplicate": 4, "error": 2} and facts["missing"] == []
    assert facts["engine_thread"]["finished"] == 3 + 2  # and two that warm it up
    # One more of each, under names that are listed first, and one file touched.
    for name in ("alarm.wav", "flash_and_bang.mp4"):
        shutil.copyfile(CLIPS / name, workplace.clips / f"#{name}")
    (workplace.clips / "telescope_mirror.mp4").touch()
    run = workplace.run(job)
    assert run.code == 0 and "finished: 3 duplicate, 8 done before" in run.said, run.said
    now = workplace.rows()
    assert len(now) == 11 and summary(workplace)["engine_thread"]["finished"] == 2
    for name in ("alarm.wav", "flash_and_bang.mp4"):
        first = now[name]["duplicate_of"] or now[name]["row_id"]
        (original,) = (row for row in now.values() if row["row_id"] == first)
        assert same_answer(now[f"#{name}"], original)
    touched, before = now["telescope_mirror.mp4"], rows["telescope_mirror.mp4"]
    assert touched["status"] == "duplicate" and same_answer(touched, before)
    assert touched["follows_row_id"] == before["row_id"] and touched["source_key"] != before["source_key"]
    groups = duckdb.sql(
        "select coalesce(duplicate_of, row_id), count(*), count(distinct content_sha256), count(distinct verdict) "
        f"from read_parquet('{workplace.output}/part-*.parquet') where status <> 'error' group by 1"
    ).fetchall()
    assert sorted(group[1:] for group in groups) == [(1, 1, 1), (3, 1, 1), (5, 1, 1)]


def test_a_rehearsal_shows_the_copies_and_the_job_can_have_them_screened(workplace: Workplace) -> None:
    workplace.clips.mkdir()
    for number in range(40):
        (workplace.clips / f"{number:02d}.wav").write_bytes(b"%d" % (number % 10))
    rehearsal = {"answer_s": 0.2, "front_end_s": 0.05}
    run = workplace.run(workplace.write_job(source=REUSE, rehearsal=rehearsal))
    assert run.code == 0, run.said
    assert summary(workplace)["by_status"] == {"ok": 10, "duplicate": 30}
    run = workplace.run(workplace.write_job("screening", rehearsal=rehearsal, output={"path": "out_2"}))
    assert run.code == 0 and "40 ok" in run.said
