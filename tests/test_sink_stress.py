"""The sink under stress: full and read-only disks, kills at every call, clocks that jump, folders that go away."""

from __future__ import annotations

import errno
import itertools
import os
import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import polars
import pyarrow as pa
import pytest

from pipeline import sink as sink_module
from pipeline.atomic import write_json_atomic
from pipeline.ledger import read_ledger
from pipeline.lock import lock_output
from pipeline.row import VerdictRow
from pipeline.sink import Sink, steady_utc
from tests.test_sink import make_row, make_sink, parts, read, written

NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """An output folder in memory where there is such a place: hundreds of syncs take no time there."""
    memory = Path("/dev/shm")
    place = memory if memory.is_dir() and os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place) as path:
        Path(path).chmod(0o755)
        (Path(path) / "out").mkdir()
        yield Path(path) / "out"


# Calls that fail


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str, when: Callable[..., bool]) -> list[int]:
    """Let an os function raise ENOSPC whenever `when(*arguments)`; clear the list returned to end it."""
    real, on = getattr(os, name), [1]

    def failing(*arguments: Any) -> Any:
        if on and when(*arguments):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(*arguments)

    monkeypatch.setattr(os, name, failing)
    return on


@pytest.mark.parametrize("call", ["replace", "fsync"])
def test_a_failed_write_names_the_part_leaves_the_former_one_and_the_rows_pending(
    folder: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    sink = make_sink(folder)
    sink.add(make_row("a"))
    sink.commit()
    sink.add(make_row("b"))
    failing = fail_once(monkeypatch, call, lambda *_: True)
    with pytest.raises(OSError, match=rf"No space left.+{folder}/part-run-00000\.parquet"):
        sink.commit()
    assert list(read(folder)) == ["a"]
    assert sink.pending == 1
    assert [path.name for path in folder.iterdir()] == ["part-run-00000.parquet"]
    failing.clear()
    assert [row.item_id for row in sink.commit()] == ["b"]
    assert list(read(folder)) == ["a", "b"]


def test_a_write_that_came_through_but_was_reported_as_failed_makes_no_duplicate(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder, 3)
    old = read_ledger(folder).latest("item1")
    sink = make_sink(folder, rows_per_part=2)
    for name in ("a", "b", "c"):
        sink.add(make_row(name))
    sink.add(make_row("item1"), old)
    failing = fail_once(monkeypatch, "fsync", lambda number: os.path.isdir(f"/proc/self/fd/{number}"))
    with pytest.raises(OSError, match="No space left"):
        sink.commit()
    failing.clear()
    assert sorted(row.item_id for row in sink.commit()) == ["a", "b", "c", "item1"]
    assert sorted(read(folder)) == ["a", "b", "c", "item0", "item1", "item2"]


def test_one_part_that_cannot_be_written_does_not_hold_up_the_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(folder, 2)
    old = read_ledger(folder).latest("item1")
    sink = make_sink(folder)
    sink.add(make_row("item1"), old)
    sink.add(make_row("a"))
    failing = fail_once(monkeypatch, "replace", lambda _, target: "old" in str(target))
    with pytest.raises(OSError, match="No space left"):
        sink.commit()
    assert sink.pending == 1
    assert [read(folder)[name].status for name in ("item0", "item1", "a")] == ["error", "error", "ok"]
    failing.clear()
    assert [row.item_id for row in sink.commit()] == ["a", "item1"]


def test_a_damaged_old_part_is_an_os_error_that_names_it(folder: Path) -> None:
    written(folder, 2)
    old = read_ledger(folder).latest("item1")
    (folder / "part-old-00000.parquet").write_bytes(b"PAR1 not really")
    sink = make_sink(folder)
    sink.add(make_row("item1"), old)
    with pytest.raises(OSError, match=r"part-old-00000\.parquet"):
        sink.commit()


# Full and read-only disks


@contextmanager
def no_file_above(size_bytes: int) -> Iterator[None]:
    """Let the kernel cut every write of this process that would make a file larger, as a full disk does."""
    former = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, former[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, former)


def test_wherever_in_a_commit_the_room_ends_nothing_is_lost_and_the_rows_follow_when_there_is_room(
    folder: Path,
) -> None:
    before = written(folder, 20)
    sink = make_sink(folder, rows_per_part=20)
    ledger, size = read_ledger(folder), (folder / "part-old-00000.parquet").stat().st_size
    errors: list[OSError] = []
    for step in range(12):
        replaced = f"item{step}"
        for name in (replaced, *(f"new{step}-{number}" for number in range(6))):
            sink.add(make_row(name), ledger.latest(name))
        rows = read(folder)
        with no_file_above(step**2 * size // 24):
            try:
                sink.commit()
            except OSError as error:
                errors.append(error)
        after = read(folder)
        assert set(rows) <= set(after)
        assert all(path.name.startswith("part-") for path in folder.iterdir())
        assert sink.pending == sum(after.get(f"new{s}-{n}") is None for s in range(step + 1) for n in range(6)) + sum(
            after[f"item{s}"].status == "error" for s in range(step + 1)
        )
    assert 3 <= len(errors) <= 11
    assert {error.errno for error in errors} == {errno.EFBIG}
    assert all(str(error.filename).startswith(f"{folder}/part-") for error in errors)
    sink.close()
    assert len(read(folder)) == len(before) + 72
    assert [read(folder)[f"item{number}"].status for number in range(20)] == ["ok"] * 12 + ["error"] * 8


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(disk)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=10)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("may not mount a file system here; the test above stands for it")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=10)


def test_a_full_disk_loses_nothing_and_the_rows_follow_when_there_is_room(small_disk: Path) -> None:
    ballast = small_disk / "ballast"
    sink = make_sink(small_disk)
    sink.add(make_row("a"))
    sink.commit()
    with open(ballast, "wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    sink.add(make_row("b"))
    with pytest.raises(OSError, match=r"No space left.+part-run-00000\.parquet"):
        sink.commit()
    assert list(read(small_disk)) == ["a"]
    ballast.unlink()
    sink.commit()
    assert list(read(small_disk)) == ["a", "b"]


@contextmanager
def unprivileged() -> Iterator[None]:
    """Be a user whom permissions bind; root is not."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_becomes_read_only_is_an_os_error_and_the_rows_follow_when_it_is_not(folder: Path) -> None:
    sink = make_sink(folder)
    sink.add(make_row("a"))
    sink.commit()
    sink.add(make_row("b"))
    folder.chmod(0o555)
    with unprivileged(), pytest.raises(PermissionError, match=str(folder)):
        sink.commit()
    assert list(read(folder)) == ["a"]
    folder.chmod(0o755)
    assert [row.item_id for row in sink.commit()] == ["b"]
    assert list(read(folder)) == ["a", "b"]


# Kills


def test_temp_files_of_a_killed_writer_are_removed_and_nothing_else(folder: Path) -> None:
    for name in (".part-old-00000.parquet.7.tmp", ".hidden", "notes.tmp", "_runs"):
        (folder / name).touch()
    make_sink(folder)
    assert sorted(path.name for path in folder.iterdir()) == [".hidden", "_runs", "notes.tmp"]


# Counts the calls into the kernel that change something, and ends the process before the n-th.
DIES_AT = """
import os, shutil, sys
from pathlib import Path
sys.path.insert(0, "tests")
from test_sink import make_row, make_sink
from pipeline.ledger import read_ledger

CALLS = {"open", "write", "flush", "fsync", "replace", "unlink", "mkdir"}
_exit, _write = os._exit, os.write

def module_of(owner):
    name = getattr(owner, "__name__", type(owner).__module__)
    return {"io": "_io"}.get(name, name)

def die_at(number):
    seen = []
    def profile(frame, event, call):
        if event == "c_call" and call.__name__ in CALLS and module_of(call.__self__) in ("_io", "posix"):
            seen.append(call.__name__)
            if len(seen) == number:
                _exit(9)
    sys.setprofile(profile)

def commit(sink, log):
    rows = sink.commit()
    _write(log, "".join(f"{row.item_id} {row.attempts}\\n" for row in rows).encode())

def scenario(folder, log, number):
    ledger = read_ledger(folder)
    old = [ledger.latest(f"item{place}") for place in range(3)]
    rows = {name: make_row(name) for name in ("a", "b", "c", "d", "e", "item1", "item2")}
    again = {name: make_row(name, attempts=2) for name in ("a", "item1")}
    die_at(number)
    sink = make_sink(folder, "run", rows_per_part=2)
    sink.add(rows["a"])
    commit(sink, log)                       # a first part
    sink.add(rows["item1"], old[1])
    for name in ("b", "c"):
        sink.add(rows[name])
    commit(sink, log)                       # it fills up, another begins, an older one changes
    for name in ("a", "item1"):
        sink.add(again[name])
    for name in ("d", "e"):
        sink.add(rows[name])
    sink.add(rows["item2"], old[2])
    commit(sink, log)                       # a closed part of this run changes, and an older one again
    sink.close()

base = Path(sys.argv[1])
for number in range(1, 1000):
    folder = base / f"{number:03d}"
    shutil.copytree(base / "seed", folder)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            scenario(folder, os.open(folder / "log", os.O_WRONLY | os.O_CREAT), number)
            code = 0
        finally:
            _exit(code)
    ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if ended != 9:
        sys.exit(ended)
"""

FIRST_ROWS = ("a", "b", "c", "d", "e", "item1", "item2")


def other_readers_items(folder: Path) -> Iterator[list[str]]:
    """Return the item ids that DuckDB and Polars find."""
    if not parts(folder):
        return
    with duckdb.connect() as connection:
        query = f"select item_id, rationale from read_parquet('{folder}/part-*.parquet')"
        yield sorted(name for name, _ in connection.execute(query).fetchall())
    yield sorted(polars.read_parquet(folder / "part-*.parquet", columns=["item_id", "rationale"])["item_id"])


def test_a_writer_killed_at_any_call_of_a_commit_leaves_every_committed_row_once_and_the_next_goes_on(
    folder: Path,
) -> None:
    written(folder / "seed", 3)
    command = [sys.executable, "-c", DIES_AT, str(folder)]
    subprocess.run(command, cwd=Path(__file__).parents[1], check=True, timeout=300)
    kills = sorted(path for path in folder.iterdir() if path.name != "seed")
    assert len(kills) > 40
    left = set()
    for place in kills:
        rows = read(place)
        left.add((len(rows), *sorted(row.attempts for row in rows.values())))
        said = [line.split() for line in (place / "log").read_text().splitlines()] if (place / "log").exists() else []
        assert {f"item{number}" for number in range(3)} <= set(rows), place
        for name, attempts in said:
            assert rows[name].attempts >= int(attempts) and rows[name].status == "ok", place
        for items in other_readers_items(place) if place.name.endswith("7") else ():
            assert items == sorted(rows)
        ledger, sink = read_ledger(place), make_sink(place, "next", rows_per_part=2)
        for name in FIRST_ROWS:
            entry = ledger.latest(name)
            if entry is None or entry.status == "error":
                sink.add(make_row(name), entry)
        sink.close()
        rows = read(place)
        assert sorted(rows) == sorted((*FIRST_ROWS, "item0")), place
        assert [name for name, row in rows.items() if row.status != "ok"] == ["item0"]
        assert {path.name.split("-")[0] for path in place.iterdir()} <= {"part", "log"}, place
    assert len(left) >= 6  # as many states as there are files written


WRITER = """
import os, random, signal, sys, time
from pathlib import Path
sys.path.insert(0, "tests")
from test_sink import make_row, make_sink
from pipeline.ledger import read_ledger
from pipeline.lock import lock_output

folder, log = Path(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_APPEND | os.O_CREAT)

def write(run):
    chance = random.Random(run)
    with lock_output(folder, run):
        ledger, sink = read_ledger(folder), make_sink(folder, run, rows_per_part=40)
        for number in range(100_000):
            old = ledger.latest(f"item{number}")
            if old is not None and old.status != "error":
                continue
            fails = chance.random() < 0.3
            outcome = {"status": "error", "reason": "front_end_lost"} if fails else {}
            sink.add(make_row(f"item{number}", **outcome), old)
            if chance.random() < 0.2:
                rows = sink.commit()
                os.write(log, "".join(f"{row.item_id}\\n" for row in rows).encode())

for line in sys.stdin:
    run, wait = line.split()
    child = os.fork()
    if child == 0:
        write(run)
        os._exit(0)
    time.sleep(float(wait))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    print("killed", flush=True)
"""


def test_a_writer_killed_at_random_moments_leaves_every_committed_row_there_once(folder: Path) -> None:
    log, chance = folder.parent / "log", random.Random(7)
    command = [sys.executable, "-c", WRITER, str(folder), str(log)]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, cwd=Path(__file__).parents[1], **pipes) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        seen: dict[str, VerdictRow] = {}
        for run in itertools.count():
            if run >= 8 and len(seen) >= 100:
                break
            print(f"run{run:02d}", chance.uniform(0.05, 0.35), file=writer.stdin, flush=True)
            assert writer.stdout.readline() == "killed\n"
            rows = read(folder)
            committed = set(log.read_text().split()) if log.exists() else set()
            assert committed <= set(rows)
            assert set(seen) <= set(rows)
            assert all(rows[name] == row for name, row in seen.items() if row.status == "ok")
            seen = rows
        writer.stdin.close()
    assert {row.status for row in seen.values()} == {"ok", "error"}


# Folders that go away


def test_a_folder_that_is_moved_away_is_an_os_error_that_says_so_and_when_it_is_back_the_sink_goes_on(
    folder: Path,
) -> None:
    sink, away = make_sink(folder), folder.with_name("elsewhere")
    sink.add(make_row("a"))
    sink.commit()
    sink.add(make_row("b"))
    folder.rename(away)
    for _ in range(2):
        with pytest.raises(OSError, match=rf"output folder was removed, moved or replaced during the run.+{folder}"):
            sink.commit()
    assert list(read(away)) == ["a"] and not folder.exists()
    away.rename(folder)
    assert [row.item_id for row in sink.commit()] == ["b"]
    assert list(read(folder)) == ["a", "b"]


@pytest.mark.parametrize("put", ["nothing", "folder", "file"])
def test_nothing_is_written_into_what_takes_the_place_of_a_removed_folder(folder: Path, put: str) -> None:
    sink = make_sink(folder)
    sink.add(make_row("a"))
    sink.commit()
    (folder / parts(folder)[-1]).unlink()
    folder.rmdir()
    if put != "nothing":
        (folder.mkdir if put == "folder" else folder.touch)()
    sink.add(make_row("b"))
    with pytest.raises(OSError, match="removed, moved or replaced"):
        sink.close()
    assert sink.pending == 1
    assert not folder.is_dir() or list(folder.iterdir()) == []


def test_a_run_whose_folder_is_gone_is_told_even_if_every_row_was_committed(folder: Path) -> None:
    sink = make_sink(folder)
    sink.add(make_row("a"))
    sink.commit()
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(OSError, match="removed, moved or replaced"):
        sink.close()


def test_an_open_part_that_was_removed_or_damaged_is_written_whole_again(folder: Path) -> None:
    sink = make_sink(folder)
    for number in (0, 1):
        sink.add(make_row(f"a{number}"))
        sink.commit()
        part = folder / parts(folder)[-1]
        part.unlink()
        if number:
            part.write_bytes(b"PAR1 not really")
        sink.add(make_row(f"b{number}"))
        sink.commit()
    assert list(read(folder)) == ["a0", "b0", "a1", "b1"]


def test_a_run_whose_lock_was_removed_and_taken_by_another_writes_nothing_more(folder: Path) -> None:
    with lock_output(folder, "run"):
        sink = make_sink(folder, "run")
        sink.add(make_row("a"))
        sink.commit()
        (folder / "_runs" / "lock").unlink()
        sink.add(make_row("b"))
        with lock_output(folder, "other"), pytest.raises(OSError, match="another run took the output: run other"):
            sink.commit()
        assert list(read(folder)) == ["a"]


# Clocks


class Wall(datetime):
    """The system's time of day, which a test moves."""

    jump = timedelta(0)

    @classmethod
    def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
        return datetime.now(tz) + cls.jump


@pytest.fixture
def wall(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Wall]]:
    monkeypatch.setattr(sink_module, "datetime", Wall)
    yield Wall
    Wall.jump = timedelta(0)


def test_the_steady_clock_tells_utc_and_does_not_follow_jumps(wall: type[Wall]) -> None:
    clock = steady_utc()
    for days in (0, 400, -400):
        wall.jump = timedelta(days=days)
        assert abs((clock() - datetime.now(UTC)).total_seconds()) < 1
    assert abs((steady_utc()() - datetime.now(UTC)).total_seconds() + 400 * 86400) < 1
    assert pa.scalar(clock(), pa.timestamp("us", tz="UTC")).as_py().tzinfo is not None


def test_a_time_of_day_that_jumps_changes_no_stamp_no_promise_and_no_due_time(folder: Path, wall: type[Wall]) -> None:
    now = steady_utc()
    sink = Sink(folder, "run", rows_per_part=1000, commit_every_s=2.0, clock=now)
    begun = datetime.now(UTC)
    for number, days in enumerate((0, 400, -400, 0.02)):
        admitted = now()
        wall.jump = timedelta(days=days)
        sink.add(make_row(str(number), admitted_at=admitted, sla_s=30.0))
        wall.jump = timedelta(days=-days)
        assert 0 <= (sink.due_in_s() or -1) <= 2
        (row,) = sink.commit()
        assert begun - timedelta(seconds=1) <= row.admitted_at <= row.committed_at
        assert (row.committed_at - row.admitted_at).total_seconds() < 30
        assert row.sla_met and row.commit_s is not None and row.commit_s < 30
    stamps = [row.committed_at for row in read(folder).values()]
    assert stamps == sorted(stamps)


def test_json_with_a_name_that_is_no_text_is_read_back(tmp_path: Path) -> None:
    write_json_atomic(tmp_path / "run.json", {"name": "caf\u00e9 \udcff"})
    assert (tmp_path / "run.json").read_text() == '{\n  "name": "caf\u00e9 \\udcff"\n}\n'
