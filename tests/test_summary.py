"""The end of a run: figures that hold, and advice that fits what was busy."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from pipeline.histogram import QUANTILE_ERROR
from pipeline.progress import Tally
from pipeline.records import JsonObject, Phases, Prepared, Status
from pipeline.row import VerdictRow
from pipeline.summary import (
    MOST_MISSING,
    Bottleneck,
    Ending,
    Means,
    Missing,
    find_bottleneck,
    gather_missing,
    phase_shares,
    sla_facts,
)
from pipeline.verdict import Outcome, build_row
from tests.test_verdict import FACTS, ITEM, NOW, answered

MEANS = Means(workers=2, most_items=34, cores=8, sla_s=60.0, commit_every_s=2.0)


def row(took_s: float, status: Status = "ok", **phases: Any) -> VerdictRow:
    """Return a committed row that took so long."""
    failed = Outcome(Prepared(phases=Phases()), 1, reason="not_media", message="x")
    made = build_row(ITEM, answered() if status == "ok" else failed, FACTS, NOW, None)
    spent: dict[str, Any] = dict.fromkeys((f"{name}_s" for name in ("probe", "decode")), None)
    spent |= {f"{name}_s": seconds for name, seconds in phases.items()}
    committed = NOW + timedelta(seconds=took_s)
    return made.model_copy(update={"status": status, "committed_at": committed, "sla_met": took_s <= 60, **spent})


def tally_of(*rows: VerdictRow) -> Tally:
    tally = Tally()
    for one in rows:
        tally.count(one)
    return tally


def costs(busy_s: float, screen_s: float = 100.0, **more: Any) -> JsonObject:
    """Return the costs of a run whose engine's thread worked so long and idled ten minutes before it."""
    thread = {"step_s": busy_s, "outside_s": 0.0, "idle_s": 600.0}
    return {"screen_s": screen_s, "engine_thread": thread, "canary": {"seconds": 0.0}} | more


def bottleneck(costs: JsonObject, means: Means = MEANS, audio: int = 0, **phases: Any) -> Bottleneck:
    tally = tally_of(row(3.0, **phases))
    tally.audio_tokens, tally.video_tokens = audio, 10
    found = find_bottleneck(tally, means, costs)
    assert found is not None
    return found


def test_percentiles_and_shares_are_told_for_all_rows_and_for_rows_with_an_answer() -> None:
    tally = tally_of(*(row(float(took_s)) for took_s in range(1, 99)), row(200.0), row(300.0, "error"))
    facts = sla_facts(tally, 60.0)
    assert (facts["rows"], facts["within"], facts["within_share"]) == (100, 60, 0.6)
    for name, exact_s in (("p50_s", 50), ("p95_s", 95), ("p99_s", 200)):
        assert facts[name] == pytest.approx(exact_s, rel=QUANTILE_ERROR), name
    assert facts["max_s"] == 300.0
    good = facts["good"]
    assert (good["rows"], good["within"], good["max_s"]) == (99, 60, 200.0)
    assert good["within_share"] == pytest.approx(60 / 99)


def test_a_deadline_row_is_not_within_the_time_though_it_was_written_in_time() -> None:
    facts = sla_facts(tally_of(row(59.0, "deadline"), row(1.0)), 60.0)
    assert (facts["within"], facts["good"]["within"], facts["good"]["rows"]) == (1, 1, 1)


def test_without_rows_nothing_is_claimed() -> None:
    facts = sla_facts(Tally(), 60.0)
    assert facts["within_share"] is facts["p50_s"] is facts["max_s"] is None
    assert find_bottleneck(Tally(), MEANS, {}) is None
    assert find_bottleneck(tally_of(row(1.0, "error")), MEANS, costs(1.0)) is None
    ending = Ending(Tally(skipped=3), Missing(), MEANS, 0, 1.0, {})
    assert list(ending.lines("x", "finished", "out")) == [
        "x: finished: no new rows, 3 done before in out (exit code 0)"
    ]


def test_shares_of_an_items_time_leave_the_wait_for_the_next_commit_out() -> None:
    shares = phase_shares({"decode": 1.0, "generate": 3.0, "commit": 40.0})
    assert shares == {"decode": 0.25, "generate": 0.75}
    assert phase_shares({"decode": 0.0, "commit": 40.0}) == {}


def test_the_usual_wait_for_a_commit_is_no_bottleneck_but_slow_writing_is() -> None:
    assert bottleneck(costs(10.0), decode=1.0, commit=2.0).limit is None
    slow = bottleneck(costs(10.0), decode=1.0, commit=9.0)
    assert (slow.phase, slow.limit) == ("decode", "output")
    assert "output.rows_per_part" in slow.advice


def test_front_end_workers_that_are_busy_throughout_are_the_limit_whatever_the_engine_does() -> None:
    """An engine's thread is as busy with one request as with many, so its share alone proves nothing."""
    for engine_s in (10.0, 99.0):
        found = bottleneck(costs(engine_s), decode=180.0, generate=400.0)
        assert (found.phase, found.limit) == ("generate", "front_end")
        assert "front_end.workers" in found.advice and "media.video.max_rate_hz" in found.advice
    assert found.busy.front_end == pytest.approx(0.9) and found.busy.engine == pytest.approx(0.99)
    assert "front_end.workers" in bottleneck(costs(10.0), decode=180.0).sentence()


def test_more_workers_than_cores_are_not_advised_except_for_waiting_on_storage() -> None:
    full = Means(workers=2, most_items=34, cores=2, sla_s=60.0, commit_every_s=2.0)
    assert "front_end.workers" not in bottleneck(costs(10.0), full, decode=190.0).advice
    stored = bottleneck(costs(10.0), full, decode=40.0, fetch=150.0)
    assert "storage" in stored.advice and "front_end.workers" in stored.advice


@pytest.mark.parametrize(
    ("phases", "key"),
    [
        ({"wait": 90.0, "generate": 5.0}, "engine.max_num_seqs"),
        ({"generate": 90.0, "wait": 5.0}, "rationale.max_chars"),
        ({"prefill": 90.0, "wait": 5.0}, "media.video.max_rate_hz"),
    ],
)
def test_an_engine_that_is_busy_while_the_front_end_waits_is_the_limit(phases: dict[str, Any], key: str) -> None:
    found = bottleneck(costs(95.0), decode=20.0, **phases)
    assert found.limit == "engine"
    assert key in found.advice and "--shard" in found.advice
    assert "the engine is the limit" in found.sentence()


def test_waiting_beside_an_idle_engine_does_not_make_the_engine_the_limit() -> None:
    found = bottleneck(costs(30.0), decode=20.0, wait=90.0)
    assert (found.phase, found.limit) == ("wait", None)
    assert "engine" not in found.advice


def held(phase: str, held_s: dict[str, float], rows: int = 100) -> Bottleneck:
    """Return the bottleneck of a run of 100 s in which nothing was busy throughout."""
    phases: dict[str, Any] = {phase: 90.0 / rows}
    tally = tally_of(*(row(3.0, **phases) for _ in range(rows)))
    found = find_bottleneck(tally, MEANS, costs(30.0, held_s=held_s))
    assert found is not None and found.limit is None
    return found


@pytest.mark.parametrize(
    ("reason", "phase", "why", "advice"),
    [
        ("engine", "wait", "the engine had as much work as it answers in time", "engine.max_num_seqs"),
        ("engine", "generate", "the engine had as much work as it answers in time", "rationale.max_chars"),
        ("items", "generate", "as many as allowed were under way", "engine.max_num_seqs"),
        ("items", "decode", "as many as allowed were under way", "front_end.workers"),
        ("object store", "wait", "prompts filled the object store", "media.video.max_rate_hz"),
        ("memory", "wait", "little memory was free", "more memory"),
        ("engine restart", "wait", "the engine was being started anew", "events.jsonl"),
    ],
)
def test_where_nothing_was_busy_throughout_what_held_items_back_is_the_bottleneck(
    reason: str, phase: str, why: str, advice: str
) -> None:
    found = held(phase, held_s={reason: 62.0, "paused": 3.0})
    assert found.sentence().partition("; ")[2].startswith(f"items were held back 62 % of the time: {why}; ")
    assert advice in found.advice and found.advice in found.sentence()
    assert (found.facts()["held_by"], found.facts()["held_share"]) == (reason, 0.62)


@pytest.mark.parametrize("held_s", [{}, {"engine": 24.0, "items": 20.0}])
def test_where_nothing_was_busy_and_items_were_hardly_held_back_nothing_is_blamed(held_s: dict[str, float]) -> None:
    assert held("wait", held_s).sentence() == (
        "most of an item's time: wait 100 %; nothing was the limit: no part was busy throughout, and items were hardly "
        "held back"
    )


def test_what_was_busy_throughout_is_the_limit_whatever_held_items_back() -> None:
    found = bottleneck(costs(95.0, held_s={"items": 99.0}), generate=90.0)
    assert (found.limit, found.held) == ("engine", None)


def test_the_known_answer_clips_and_the_start_do_not_count_as_screening() -> None:
    """The engine worked 20 s for the clips and idled before them; while screening it worked half the time."""
    found = bottleneck(costs(70.0, canary={"seconds": 40.0}), decode=20.0)
    assert found.busy.engine == pytest.approx(0.5)


def test_where_sound_fills_the_prompts_fewer_frames_are_not_advised() -> None:
    found = bottleneck(costs(95.0), audio=1000, prefill=90.0)
    assert "media.audio.max_duration_s" in found.advice and "frames" not in found.advice


def test_a_run_without_time_accounts_still_says_where_the_time_went() -> None:
    found = bottleneck({}, fetch=2.0, decode=1.0)
    assert found.facts() == {
        "phase": "fetch",
        "share": pytest.approx(2 / 3),
        "limit": None,
        "held_by": None,
        "held_share": None,
        "advice": "faster storage for the recordings",
        "front_end_busy_share": None,
        "engine_busy_share": None,
    }


def test_the_list_of_missing_items_is_cut_and_their_number_is_not() -> None:
    missing = gather_missing(f"item{number}" for number in range(MOST_MISSING + 500))
    assert missing.count == MOST_MISSING + 500 and len(missing.first) == MOST_MISSING == 1000
    ending = Ending(Tally(), missing, MEANS, 1, 1.0, {})
    facts = ending.facts()
    assert (len(facts["missing"]), facts["missing_count"]) == (1000, 1500)
    said = list(ending.lines("x", "finished", "out"))[-1]
    assert said.startswith("  1500 items have no row: item0, item1,") and said.endswith("item19, …; report this")
    assert gather_missing(iter(["a"])) == Missing(1, ("a",))


def test_the_lines_for_people_say_counts_time_bottleneck_and_reasons() -> None:
    tally = tally_of(*(row(1.2, decode=0.41, render=0.2, generate=0.39) for _ in range(39)), row(3.4, "error"))
    lines = [
        "demo: finished: 1 error, 39 ok in out/demo (exit code 0)",
        "  within 60 s: 40 of 40 (p50 1.2 s, p95 1.2 s, p99 3.4 s)",
        "  most of an item's time: decode 41 %; the front end is the limit: more front-end workers (front_end.workers) "
        "or fewer frames (media.video.max_rate_hz) would help first",
        "  1 x not_media",
    ]
    ending = Ending(tally, Missing(), MEANS, 0, 9.0, costs(4.0, screen_s=10.0))
    assert list(ending.lines("demo", "finished", "out/demo")) == lines
    # As many items as may be under way at once show no limit.
    short = Ending(tally, Missing(), replace(MEANS, most_items=40), 0, 9.0, costs(4.0, screen_s=10.0))
    assert list(short.lines("demo", "finished", "out/demo")) == [line for line in lines if "most of" not in line]


def test_the_keys_that_programs_read_are_there_and_are_json() -> None:
    facts = Ending(tally_of(row(1.0, decode=1.0)), Missing(), MEANS, 0, 9.0, costs(1.0)).facts()
    before = ("exit_code", "listed", "skipped", "rows", "by_status", "by_verdict", "by_reason", "late", "missing")
    assert {*before, "phase_s", "elapsed_s", "screen_s", "engine_thread", "canary"} <= set(facts)
    assert {"sla", "phase_share", "bottleneck", "missing_count"} <= set(facts)
    assert json.loads(json.dumps(facts)) == facts


def test_an_engine_that_waits_for_too_few_cores_makes_the_front_end_the_limit_and_names_the_cores() -> None:
    """Workers that wait for a core beside other work look less than busy throughout."""
    account = {"seats": 4, "span_s": 10.0, "full_s": 2.0, "tail_s": 0.0, "seat_s": 8.0, "answers": 40}
    account |= {"full_answers": 40}
    told = costs(9.9, screen_s=10.0, front_end_cpu={"cpu_s": 36.0, "items": 40})
    told["engine_thread"] |= {"occupancy": account}
    tally = tally_of(*(row(1.0, decode=0.3) for _ in range(40)))
    starved = find_bottleneck(tally, replace(MEANS, cores=2), told)
    assert starved is not None and starved.limit == "front_end"
    fitting = find_bottleneck(tally, replace(MEANS, cores=20), told)
    assert fitting is not None and fitting.limit == "engine"
    ending = Ending(tally, Missing(), replace(MEANS, cores=2), 0, 12.0, told)
    assert ending.facts()["occupancy"]["front_end_cores_needed"] == pytest.approx(18.0)
    said = list(ending.lines("x", "finished", "out"))
    assert any("nothing left to do 20 % of its time; keeping up with its 20 items/s" in line for line in said)
