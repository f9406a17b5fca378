"""`python -m pipeline.show OUTPUT`: the newest rows of an output as a table, for people.

Whatever a recording or the model put into a text is shown as plain text, control characters escaped.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from rich.console import Console
from rich.table import Table
from rich.text import Text

from pipeline.plain import printable

_COLOURS = {"pass": "green", "review": "yellow", "reject": "red"}
_COLUMNS = [
    *("uri", "media_kind", "duration_s", "status", "verdict", "model_verdict", "confidence", "frames"),
    *("audio_tokens", "video_tokens", "reason", "message", "labels", "rationale", "model"),
]
_LONGEST = 64
# A pipe has no width of its own.
_PIPE_WIDTH = 180


def show(folder: Path, limit: int, console: Console) -> int:
    """Print up to `limit` rows and return how many the output holds."""
    rows: list[dict[str, Any]] = []
    total = 0
    for path in sorted(folder.glob("part-*.parquet"), reverse=True):
        table = pq.ParquetFile(path).read(columns=_COLUMNS)
        total += table.num_rows
        rows.extend(table.slice(0, max(0, limit - len(rows))).to_pylist())
    rows.sort(key=lambda row: str(row["uri"]))
    view = Table(title=_title(folder, rows, total), title_justify="left")
    for name in ("recording", "kind", "seconds", "verdict", "frames", "audio + picture tokens", "why"):
        view.add_column(name, no_wrap=True)
    for row in rows:
        view.add_row(*_cells(row))
    console.print(view)
    return total


def _title(folder: Path, rows: list[dict[str, Any]], total: int) -> str:
    model = f" by {rows[0]['model']}" if rows else ""
    return f"{total} rows in {folder}{model}"


def _cells(row: dict[str, Any]) -> tuple[Text, ...]:
    length = "" if row["duration_s"] is None else f"{row['duration_s']:.1f}"
    return (
        _plain(os.path.basename(row["uri"])),
        Text(row["media_kind"] or "?"),
        Text(length, justify="right"),
        _verdict(row),
        Text(str(row["frames"]), justify="right"),
        Text(f"{row['audio_tokens']} + {row['video_tokens']}", justify="right"),
        _why(row),
    )


def _verdict(row: dict[str, Any]) -> Text:
    if row["status"] in ("error", "deadline"):
        return Text(f"{row['status']} -> {row['verdict']}", style="magenta")
    said = f"{row['model_verdict']} {row['confidence']:.2f}"
    return Text(f"{said} -> {row['verdict']}" if _routed(row) else said, style=_COLOURS[row["verdict"]])


def _routed(row: dict[str, Any]) -> bool:
    """Return whether a person is to look although the model decided."""
    return row["model_verdict"] not in (None, row["verdict"])


def _why(row: dict[str, Any]) -> Text:
    if row["rationale"] is None:
        return _plain(f"{row['reason']}: {row['message']}")
    present = ", ".join(label["id"] for label in row["labels"] if label["present"]) or "no label"
    note = f" ({row['reason']}: {row['message']})" if row["reason"] else ""
    # First, because the end of a long line is cut.
    unsure = "too uncertain: " if _routed(row) else ""
    copied = "same content: " if row["status"] == "duplicate" else ""
    return _plain(f"{copied}{unsure}[{present}] {row['rationale']}{note}")


def _plain(text: str) -> Text:
    """Return the beginning of a foreign text with everything that could steer a terminal escaped."""
    shown = printable(text)
    return Text(shown if len(shown) <= _LONGEST else shown[: _LONGEST - 1] + "…")


def main() -> int:
    parser = argparse.ArgumentParser(description="Print the rows of an output folder as a table.")
    parser.add_argument("output", type=Path, help="the folder that output.path named")
    parser.add_argument("--limit", type=int, default=30, help="most rows to print")
    args = parser.parse_args()
    if not args.output.is_dir():
        print(f"show: {args.output} is no folder", file=sys.stderr)
        return 2
    console = Console()
    if not any(args.output.glob("part-*.parquet")):
        print(f"show: {args.output} holds no rows", file=sys.stderr)
        return 1
    show(args.output, args.limit, console if console.is_terminal else Console(width=_PIPE_WIDTH))
    return 0


if __name__ == "__main__":
    sys.exit(main())
