"""What a person sees: one line with the facts, live on a terminal, plain elsewhere."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from pipeline.progress import LiveProgress, PlainProgress, Tally, describe, open_progress
from pipeline.records import Phases, Prepared
from pipeline.row import VerdictRow
from pipeline.verdict import Outcome, build_row
from tests.test_verdict import FACTS, ITEM, NOW, answered


def error_row(reason: str) -> VerdictRow:
    outcome = Outcome(Prepared(phases=Phases()), attempts=1, reason=reason, message="x", phases=Phases(decode_s=9.0))
    return build_row(ITEM, outcome, FACTS, NOW, None)


def tally() -> Tally:
    counts = Tally(total=12, skipped=2, in_flight=3, began=100.0)
    counts.count(build_row(ITEM, answered(), FACTS, NOW, None))
    counts.count(error_row("not_media"))
    return counts


def test_the_line_names_done_rate_in_flight_slowest_phase_errors_and_time_left() -> None:
    assert describe(tally(), 104.0) == (
        "4/12 done · 0.50 items/s · 3 in flight · slowest phase decode · 1 errors · 0:16 left"
    )


def test_tokens_of_an_answer_that_was_taken_over_are_not_counted_again() -> None:
    counts = Tally()
    row = build_row(ITEM, answered(audio_tokens=3, video_tokens=4), FACTS, NOW, None)
    counts.count(row)
    spent = counts.audio_tokens, counts.video_tokens
    counts.count(row.model_copy(update={"status": "duplicate", "duplicate_of": row.row_id}))
    assert spent != (0, 0) and (counts.audio_tokens, counts.video_tokens) == spent
    assert counts.statuses == {"ok": 1, "duplicate": 1} and counts.good_spans.count == 2


def test_waiting_for_the_next_commit_is_no_slow_phase() -> None:
    counts = Tally()
    counts.count(error_row("not_media").model_copy(update={"commit_s": 30.0}))
    assert counts.slowest_phase() == "decode"


def test_before_the_first_row_nothing_is_claimed() -> None:
    assert describe(Tally(in_flight=1), 5.0) == "0 done · 0.00 items/s · 1 in flight · 0 errors"


def test_hours_are_shown_as_hours() -> None:
    counts = tally()
    counts.total = 100_000
    assert describe(counts, 101.0).endswith("13:53:18 left")


def test_a_terminal_gets_the_live_line_and_a_file_plain_lines() -> None:
    assert isinstance(open_progress(Console(file=io.StringIO(), force_terminal=True)), LiveProgress)
    assert isinstance(open_progress(Console(file=io.StringIO())), PlainProgress)


def test_plain_lines_come_now_and_then_and_hold_no_control_characters(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    now = 1000.0
    monkeypatch.setattr("pipeline.progress.time.monotonic", lambda: now)
    with open_progress(Console(file=out)) as progress:
        for _ in range(25):
            now += 1.0
            progress.update(tally())
        progress.say("[bold]finished[/bold]")
    lines = out.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[-1] == "[bold]finished[/bold]"
    assert out.getvalue().replace("\n", "").isprintable()


def test_the_live_line_follows_the_tally_and_sentences_stay_above_it() -> None:
    out = io.StringIO()
    with open_progress(Console(file=out, force_terminal=True, width=120)) as progress:
        progress.update(tally())
        progress.say("engine ready")
    assert "engine ready" in out.getvalue()
    assert "4/12 done" in out.getvalue()
