"""One item's front end alone, in a process of its own, with its memory: no Ray, no engine, no row.

A worker is made and warmed up once; each item is prepared in a fork of it, so that no item profits from memory that
another left. What is told of an item:

- `worker_growth_bytes`: how far the fork's resident memory rose above what it was before the item (`VmHWM` of
  /proc/self/status, set back by /proc/self/clear_refs). Pages of libraries that this item is the first to touch count.
- `programs_bytes`: ffmpeg, ffprobe and whatever holds them: the largest sum of their `VmHWM` at any look, one
  every 5 ms. The kernel keeps each peak, so that only the last 5 ms of a program can be missed. Memory that two of
  them share counts twice. (`ru_maxrss` would not do: a child that Python starts inherits its parent's peak.)

Their sum is what the item took, `whole_bytes` that and the idle worker's resident memory, most of it code of torch and
vLLM that all workers share. All are upper bounds: the peaks of worker and programs need not fall together.
"""

from __future__ import annotations

import os
import pickle
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from bench.runs import DEMO_JOB
from pipeline.front_end import FrontEnd
from pipeline.hardware.environment import prepare_this_process
from pipeline.job import load_job
from pipeline.media.ladder import Forecast
from pipeline.records import Item, Prepared
from pipeline.resolve import resolve

_LOOK_EVERY_S = 0.005
_RESET_PEAK = b"5"
_KIB = 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of one item; `prepared` is None if the process died (`died` is its signal or code) or hung."""

    prepared: Prepared | None
    seconds: float
    idle_bytes: int
    worker_growth_bytes: int
    programs_bytes: int
    died: str = ""

    @property
    def item_bytes(self) -> int:
        return self.worker_growth_bytes + self.programs_bytes

    @property
    def whole_bytes(self) -> int:
        return self.idle_bytes + self.item_bytes


class Worker:
    """A warm front-end worker of the demo's job under `options` (`a.b=c`)."""

    def __init__(self, options: Sequence[str] = ()) -> None:
        prepare_this_process("cpu")
        import torch

        torch.set_num_threads(1)
        self.resolved = resolve(load_job(DEMO_JOB, options))
        self.front_end = FrontEnd(self.resolved.front_end)
        self.front_end.warm_up()

    def measure(self, path: bytes, budget_s: float = 60.0, limit_s: float = 90.0) -> Measured:
        """Prepare one item in a fork as a run with nothing else to do would; the fork is killed after `limit_s`."""
        idle_bytes = memory_bytes(os.getpid(), "VmRSS")
        readable, writable = os.pipe()
        begun = time.monotonic()
        child = os.fork()
        if child == 0:
            os.close(readable)
            self._prepare_and_leave(path, budget_s, writable)
        os.close(writable)
        programs_bytes, status = _watch(child, begun + limit_s)
        seconds = time.monotonic() - begun
        with open(readable, "rb") as pipe:
            told = pipe.read() if status == 0 else b""
        if not told:
            died = "hung" if status is None else _ending(status)
            return Measured(None, seconds, idle_bytes, 0, programs_bytes, died)
        prepared, growth_bytes, seconds = pickle.loads(told)
        return Measured(prepared, seconds, idle_bytes, growth_bytes, programs_bytes)

    def _prepare_and_leave(self, path: bytes, budget_s: float, writable: int) -> None:
        """Prepare, tell the parent through the pipe, and end this process; nothing of the parent's is undone."""
        code = 70
        try:
            Path("/proc/self/clear_refs").write_bytes(_RESET_PEAK)
            before_bytes, begun = memory_bytes(os.getpid(), "VmRSS"), time.monotonic()
            prepared, _ = self.front_end.prepare(item_of(path), "measured", budget_s, Forecast())
            seconds = time.monotonic() - begun
            growth_bytes = max(0, memory_bytes(os.getpid(), "VmHWM") - before_bytes)
            with open(writable, "wb") as pipe:
                pipe.write(pickle.dumps((prepared, growth_bytes, seconds)))
            code = 0
        finally:
            os._exit(code)


def item_of(path: bytes) -> Item:
    """Return a file as an item of nobody's run."""
    return Item("bench", os.fsdecode(path), path, None, None, "bench")


def memory_bytes(pid: int, field: str) -> int:
    """Return a field of /proc/PID/status, 0 if the process is gone."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * _KIB
    return 0


def _watch(child: int, until: float) -> tuple[int, int | None]:
    """Wait for the child; return the peak of what it started, bytes, and its wait status, None if it was killed."""
    peak_bytes, ours = 0, _program_of(os.getpid())
    while True:
        # What still is Python has not become its program yet: its memory is the worker's own.
        programs = [pid for pid in descendants(child) if _program_of(pid) != ours]
        peak_bytes = max(peak_bytes, sum(memory_bytes(pid, "VmHWM") for pid in programs))
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            _kill(programs)  # only what outlived the worker is still there
            return peak_bytes, status
        if time.monotonic() > until:
            _kill([child, *programs])
            os.waitpid(child, 0)
            return peak_bytes, None
        time.sleep(_LOOK_EVERY_S)


def _program_of(pid: int) -> str | None:
    with suppress(OSError):
        return os.readlink(f"/proc/{pid}/exe")
    return None


def _ending(status: int) -> str:
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def descendants(pid: int) -> list[int]:
    """Return every process below one, of any of its threads."""
    found: list[int] = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, children.read_text(encoding="ascii").split()):
                found += [child, *descendants(child)]
    return found
