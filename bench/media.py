"""Whether odd files get the right row: `python -m bench.media FOLDER... [--front-end] [--verbose]`.

The files are screened by `run_batch.py` with the demo's job and the embedded model; then each is prepared once more,
alone, to measure its front end's memory (`bench.worker` says how; the table has the item's worker growth and programs).
What is right for a file stands in media_expected.yaml; a file that is not there is judged by crash, hang and row only.
With `--front-end` nothing but that second half runs: no Ray, no engine, no rows; a few seconds for a first look.

Classes: good (answered), remark (answered, and the row says what was wrong with the file), error, skipped (not listed).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bench.result import Figure, report
from bench.runs import Ended, files_below, front_end_s, screen, screened_s, shown
from bench.worker import Measured, Worker
from pipeline.errors import REASONS

LONGEST_S = 30.0
CRASHES = ("internal_error", "front_end_lost", "engine_lost", "engine_killed")
HANGS = ("deadline", "decode_timeout", "probe_timeout")
_EXPECTED = Path(__file__).with_name("media_expected.yaml")
_OF_THE_ANSWER = ("low_confidence",)


@dataclass(frozen=True, slots=True)
class Right:
    """What is right for a file: its classes, and the reasons that may stand in its row (any if empty)."""

    classes: tuple[str, ...]
    codes: tuple[str, ...]

    def holds(self, got: str, reason: str | None) -> bool:
        said = got in ("good", "skipped") or not self.codes or reason in self.codes
        return got in self.classes and said


@dataclass(frozen=True, slots=True)
class Seen:
    """What came of a file: its class and reason; `seconds` in the front end, None where nothing was measured."""

    got: str
    reason: str | None
    message: str | None
    seconds: float | None = None


def load_expected() -> dict[str, Right]:
    """Return what is right, by the name that the file has here."""
    entries = yaml.safe_load(_EXPECTED.read_text(encoding="utf-8"))
    known = {name: Right(tuple(entry["is"]), tuple(entry.get("codes", ()))) for name, entry in entries.items()}
    for name, right in known.items():
        if unknown := set(right.codes) - set(REASONS):
            raise SystemExit(f"{_EXPECTED.name}: {name}: no such reason: {', '.join(sorted(unknown))}")
    return known


def right_for(path: bytes, expected: Mapping[str, Right]) -> Right | None:
    """Return what is right for the file; the longest end of its path that is known counts."""
    parts = path.split(b"/")
    ends = (shown(b"/".join(parts[begin:])) for begin in range(len(parts)))
    return next((expected[end] for end in ends if end in expected), None)


def seen_in_row(row: Mapping[str, Any] | None) -> Seen:
    """Return what a row says of its file."""
    if row is None:
        return Seen("skipped", None, None)
    reason = row["reason"]
    if row["status"] not in ("ok", "gated", "duplicate"):
        got = "error"
    else:
        got = "good" if reason is None or reason in _OF_THE_ANSWER else "remark"
    return Seen(got, reason, row["message"], front_end_s(row))


def seen_alone(measured: Measured) -> Seen:
    """Return what the front end alone says of its file."""
    prepared = measured.prepared
    if prepared is None:
        return Seen("error", "front_end_lost", measured.died, measured.seconds)
    if prepared.error_code is not None:
        return Seen("error", prepared.error_code, prepared.error_message, measured.seconds)
    remarks = prepared.remarks
    if not remarks and prepared.coverage is not None and prepared.coverage < 1:
        return Seen("remark", "partial_coverage", None, measured.seconds)
    first = min(remarks, key=lambda remark: list(REASONS).index(remark.code), default=None)
    if first is None:
        return Seen("good", None, None, measured.seconds)
    return Seen("remark", first.code, first.text, measured.seconds)


def table(
    seen: Mapping[bytes, Seen], alone: Mapping[bytes, Measured], expected: Mapping[str, Right], verbose: bool
) -> Table:
    """Return a line for each file, those that are not right marked."""
    columns = ("file", "expected", "got", "reason", "seconds", "MiB", *(("message",) if verbose else ()))
    lines = Table(*columns, title="files")
    for path, one in seen.items():
        right = right_for(path, expected)
        wrong = right is not None and not right.holds(one.got, one.reason)
        cells = [
            shown(os.path.basename(path)),
            "-" if right is None else " or ".join(right.classes),
            one.got + (" (WRONG)" if wrong else ""),
            one.reason or "",
            "" if one.seconds is None else f"{one.seconds:.2f}",
            f"{alone[path].item_bytes / 2**20:.0f}" if path in alone else "",
        ]
        cells += [shown(os.fsencode(one.message or ""))] if verbose else []
        lines.add_row(*(Text(cell) for cell in cells))  # as Text, so that no name is read as markup
    return lines


def figures(seen: Mapping[bytes, Seen], alone: Mapping[bytes, Measured], expected: Mapping[str, Right]) -> list[Figure]:
    """Return the measures that hold with and without a run."""
    judged = {path: right for path in seen if (right := right_for(path, expected)) is not None}
    wrong = [path for path, right in judged.items() if not right.holds(seen[path].got, seen[path].reason)]
    reasons = Counter(one.reason for one in seen.values())
    crashes = sum(reasons[code] for code in CRASHES) + sum(one.prepared is None for one in alone.values())
    hangs = sum(reasons[code] for code in HANGS)
    in_run = [one.seconds for one in seen.values() if one.seconds is not None]
    slowest_s = max([*in_run, *(one.seconds for one in alone.values())])
    most = max(alone.values(), key=lambda one: one.item_bytes)
    classes = Counter(one.got for one in seen.values())
    return [
        Figure("files", len(seen)),
        *(Figure(f"files_{name}", classes[name]) for name in ("good", "remark", "error", "skipped")),
        Figure("files_judged", len(judged)),
        Figure("wrong_class", len(wrong), _names(wrong), "0", not wrong),
        Figure("crashes", crashes, "", "0", crashes == 0),
        Figure("hangs", hangs, "deadline or a timeout", "0", hangs == 0),
        Figure("slowest_s", slowest_s, "s", f"<= {LONGEST_S:g}", slowest_s <= LONGEST_S),
        Figure("most_item_mib", most.item_bytes / 2**20, "MiB: worker's growth and programs"),
        Figure("most_whole_mib", max(one.whole_bytes for one in alone.values()) / 2**20, "MiB, with the idle worker"),
    ]


def _names(paths: Iterable[bytes]) -> str:
    names = [shown(os.path.basename(path)) for path in paths]
    return ", ".join(name.replace("[", r"\[") for name in names)[:60]


def row_figures(ended: Ended, listed: set[bytes]) -> list[Figure]:
    """Return the measures of the run itself: a row for everything that a walk of the folders finds."""
    missing, lost = listed - set(ended.rows), ended.lost_workers()
    said_missing = ended.summary["missing_count"]
    late = sum(screened_s(row) > LONGEST_S for row in ended.rows.values())
    return [
        Figure("rows", len(ended.rows), "", f"{len(listed)}", len(ended.rows) == len(listed) and not missing),
        Figure("rows_missing", len(missing) + said_missing, _names(missing), "0", not missing and not said_missing),
        Figure("worker_deaths", len(lost), _names(lost), "0", not lost),
        Figure("engine_restarts", ended.summary["engine_restarts"], "", "0", ended.summary["engine_restarts"] == 0),
        Figure("rows_over_30_s", late, "from first byte to readable row", "0", late == 0),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.media", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--front-end", action="store_true", help="only prepare each file; no run, no rows")
    parser.add_argument("--verbose", action="store_true", help="show each row's message")
    options = parser.parse_args()
    folders = [folder.absolute() for folder in options.folders]
    listed = dict.fromkeys(path for folder in folders for path in files_below(folder))
    expected, from_run = load_expected(), []
    ended = None
    if not options.front_end:
        with tempfile.TemporaryDirectory(prefix="l1-media-") as scratch:
            ended = screen(Path(scratch), "media", folders)
        from_run = row_figures(ended, set(listed))
    worker = Worker()
    alone = {path: worker.measure(path) for path in listed}
    seen = {path: seen_in_row(ended.rows.get(path)) if ended else seen_alone(alone[path]) for path in listed}
    Console(width=140 if options.verbose else 120).print(table(seen, alone, expected, options.verbose))
    return report("media", figures(seen, alone, expected) + from_run)


if __name__ == "__main__":
    sys.exit(main())
