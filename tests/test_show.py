"""The table for people shows foreign text as text."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

from rich.console import Console

from pipeline.show import show
from pipeline.sink import Sink
from pipeline.verdict import build_row
from tests.test_progress import error_row
from tests.test_verdict import FACTS, ITEM, NOW, answered, routing


def shown(folder: Path, limit: int = 30) -> str:
    out = io.StringIO()
    show(folder, limit, Console(file=out, width=180, color_system=None))
    return out.getvalue()


def fill(folder: Path) -> None:
    sink = Sink(folder, "run", rows_per_part=10, commit_every_s=1.0)
    row = build_row(ITEM, answered(), FACTS, NOW, None)
    sink.add(row.model_copy(update={"rationale": "[red]a\x1b[31m\u202ebang[/red] " + "x" * 500}))
    sink.add(error_row("not_media").model_copy(update={"item_id": "j", "uri": "/b\nc.mp4"}))
    sink.close()


def test_every_row_is_shown_with_verdict_or_reason(tmp_path: Path) -> None:
    fill(tmp_path)
    text = shown(tmp_path)
    assert "2 rows" in text
    assert "pass 0.80" in text and "error -> reject" in text and "not_media: x" in text


def test_a_routed_row_shows_what_the_model_said_and_that_it_was_too_uncertain(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "run", rows_per_part=10, commit_every_s=1.0)
    sink.add(build_row(ITEM, answered(), routing(0.95), NOW, None))
    sink.close()
    text = shown(tmp_path)
    assert "pass 0.80 -> review" in text and "too uncertain: [alarm] an alarm" in text


def test_a_row_that_took_over_an_answer_says_so(tmp_path: Path) -> None:
    sink = Sink(tmp_path, "run", rows_per_part=10, commit_every_s=1.0)
    sink.add(build_row(ITEM, answered(), FACTS, NOW, None).model_copy(update={"status": "duplicate"}))
    sink.close()
    assert "pass 0.80" in shown(tmp_path) and "same content: [alarm] an alarm" in shown(tmp_path)


def test_control_characters_and_markup_of_foreign_text_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    fill(tmp_path)
    text = shown(tmp_path)
    assert "\x1b" not in text and "\u202e" not in text
    assert r"[red]a\x1b[31m" in text
    assert r"b\x0ac.mp4" in text


def test_the_limit_holds_and_the_count_does_not_lie(tmp_path: Path) -> None:
    fill(tmp_path)
    assert "2 rows" in shown(tmp_path, limit=1)
    assert shown(tmp_path, limit=1).count("\n") == shown(tmp_path).count("\n") - 1


def test_a_folder_that_is_not_there_is_said(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pipeline.show", str(tmp_path / "none")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "is no folder" in done.stderr
