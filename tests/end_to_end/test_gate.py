"""Recordings that the policy's gate answers, in a real run beside others that the model answers."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from bench.clips import ffmpeg
from tests.end_to_end.conftest import ROOT, Workplace

pytestmark = pytest.mark.engine

BLACK = ("-f", "lavfi", "-i", "color=black:s=320x180:r=25:d=4")
SILENT = ("-f", "lavfi", "-i", "anullsrc=r=44100:cl=mono", "-shortest")


def test_silent_and_black_is_answered_by_its_rule_and_all_else_by_the_model(workplace: Workplace) -> None:
    workplace.take("flash_and_bang.mp4", "alarm.wav")
    ffmpeg(*BLACK, *SILENT, str(workplace.clips / "nothing.mp4"))
    ffmpeg(*BLACK, "-f", "lavfi", "-i", "sine=frequency=440:duration=4", str(workplace.clips / "tone.mp4"))
    policy = yaml.safe_load((ROOT / "jobs" / "policies" / "demo.yaml").read_text(encoding="utf-8"))
    when = {"silence_share": {"at_least": 0.99}, "black_share": {"at_least": 0.99}}
    rule = {"id": "nothing", "when": when, "verdict": "review", "rationale": "Nothing to hear and nothing to see."}
    path = workplace.folder / "policy.yaml"
    path.write_text(yaml.safe_dump(policy | {"gate": [rule]}), encoding="utf-8")
    job = workplace.write_job(policy="policy.yaml")
    # The checkpoint's own clips are asked of the model, whatever the gate would say of them.
    job.write_text(job.read_text(encoding="utf-8").replace("from_checkpoint: false", "from_checkpoint: true"))
    run = workplace.run(job)
    assert run.code == 0, run.said
    rows = workplace.rows()
    assert {name: row["status"] for name, row in rows.items()} == {
        "nothing.mp4": "gated", "tone.mp4": "ok", "flash_and_bang.mp4": "ok", "alarm.wav": "ok",
    }  # fmt: skip
    gated, tone = rows["nothing.mp4"], rows["tone.mp4"]
    assert (gated["gate"], gated["verdict"], gated["rationale"]) == ("nothing", "review", rule["rationale"])
    assert gated["render_s"] is None and gated["prompt_tokens"] == gated["output_tokens"] == 0
    assert gated["audio_tokens"] > 0 and gated["video_tokens"] > 0 and gated["sla_met"]
    assert (gated["silence_share"], gated["black_share"], gated["frozen_share"]) == (1.0, 1.0, 1.0)
    assert tone["black_share"] == 1.0 and tone["silence_share"] == 0.0 and tone["gate"] is None
    assert tone["peak_dbfs"] == pytest.approx(-18, abs=2)  # ffmpeg's sine is an eighth of full scale
    assert rows["alarm.wav"]["black_share"] is None
    assert summary(workplace)["by_status"] == {"ok": 3, "gated": 1}
    again = workplace.run(job)
    assert again.code == 0 and "4 done before" in again.said, again.said


def summary(workplace: Workplace) -> dict[str, Any]:
    (path,) = workplace.output.glob("_runs/*/run.json")
    facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return facts
