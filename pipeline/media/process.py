"""Runs ffmpeg and ffprobe on one opened file: confined, in a session of their own, killed as a group at the timeout.

The file is opened here and reaches the program as `/dev/fd/N`: its name, whatever bytes it holds, is never
parsed (printf patterns, protocols, options, extensions), and what was checked is what is read. Never uses a
shell.
"""

from __future__ import annotations

import os
import re
import resource
import selectors
import signal
import stat
import subprocess
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from fcntl import F_SETPIPE_SZ, fcntl
from typing import Protocol

from pipeline.errors import ItemError
from pipeline.media import fork_server
from pipeline.media.sandbox import CONFINED, Confinement, confined, environment, limits, waiting_room

READ_BYTES = 1 << 20
KEPT_LINES = 8
# Data gather in the pipes meanwhile; read at every write, they would cost ten times as many wake-ups. A pipe that holds
# READ_BYTES fills in the shorter time at 0.5 GB/s. A short run is not made much longer.
_GATHER_S = 0.002
_GATHER_LITTLE_S = 0.01
_GATHER_SHARE = 1 / 16
_CPU_SHARE = 2.0
# H.264 that gets no buffer says only so; the same words follow a picture it refuses.
_NO_MEMORY = re.compile(r"Cannot allocate memory|^get_buffer\(\) failed|std::bad_alloc")
_REFUSED_PICTURE = "image parameters invalid"
# ffmpeg takes SIGXCPU itself, says so and ends with a status of its own.
_CPU_SIGNAL = f"received signal {int(signal.SIGXCPU)}"
_LAUNCHERS = ("bwrap: ", "prlimit: ", "setpriv: ", "fork server: ")
LINE_CHARACTERS = 240

_TAG = re.compile(r"^(?:\[[^\]]* @ 0x[0-9a-f]+\] ?)*\[(\w+)\] (.*)$")
_RATE = re.compile(r"^\[graph_\d+_in_\S+ @ \S+\] \[verbose\] .*\bsamplerate:(\d+)")
_SHOWN = b"[Parsed_showinfo_"
_TIME_BASE = re.compile(rb"config in time_base: (\d+)/([1-9]\d*)")
_FRAME = re.compile(rb"\] n: *\d+ pts: *(-?\d+) .*\btype:(\S)")
_OVERSIZED = re.compile(r"Picture size (\d+)x(\d+) (?:is invalid|exceeds)")
_SAMPLES = re.compile(r"Input stream #0:(\d+) \(audio\):.*frames decoded \((\d+) samples\)")


class TimedOut(Exception):
    """The program was killed at its deadline."""


class Taker(Protocol):
    """Takes what one pipe gives."""

    def read(self, fd: int) -> int:
        """Take what the pipe holds; return 0 at its end."""


@dataclass(slots=True)
class Sink:
    """Where the bytes of one pipe go: into `buffer` until it is full, then nowhere."""

    buffer: memoryview
    used: int = 0

    def read(self, fd: int) -> int:
        """Take what the pipe holds; return 0 at its end."""
        if self.used < len(self.buffer):
            count = os.readv(fd, [self.buffer[self.used :]])
            self.used += count
            return count
        return len(os.read(fd, READ_BYTES))


@dataclass(slots=True)
class Collected:
    """All bytes of a small output, cut at `limit`."""

    limit: int
    data: bytearray = field(default_factory=bytearray)

    def read(self, fd: int) -> int:
        """Take what the pipe holds; return 0 at its end."""
        chunk = os.read(fd, READ_BYTES)
        self.data += chunk[: max(0, self.limit - len(self.data))]
        return len(chunk)


@dataclass(slots=True)
class Spool:
    """Where the bytes of one pipe go: into the file `fd`, up to `limit`; `full` if there were more."""

    fd: int
    limit: int
    full: bool = False

    def read(self, fd: int) -> int:
        """Take what the pipe holds; return 0 at its end."""
        chunk = os.read(fd, READ_BYTES)
        self.limit -= len(chunk)
        self.full = self.full or self.limit < 0
        if not self.full:
            os.write(self.fd, chunk)
        return len(chunk)


@dataclass(slots=True)
class Log:
    """What the program said, as it runs: number of errors, last errors, samples decoded per stream, and the sample
    rates (Hz) in which they came; `shown_s` are the times of frames that went through ffmpeg's `showinfo`, of which
    so many were not `whole` in themselves."""

    errors: int = 0
    last: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT_LINES))
    samples: dict[int, int] = field(default_factory=dict)
    rates_hz: set[int] = field(default_factory=set)
    shown_s: array[float] = field(default_factory=lambda: array("d"))
    not_whole: int = 0
    _tick_s: float = 0.0
    no_memory: bool = False
    no_cpu: bool = False
    not_started: str = ""
    _refused: bool = False
    _rest: bytes = b""

    def read(self, fd: int) -> int:
        """Take what the pipe holds; return 0 at its end."""
        chunk = os.read(fd, READ_BYTES)
        lines = (self._rest + chunk).split(b"\n")
        self._rest = lines.pop()[-LINE_CHARACTERS * 4 :] if chunk else b""
        for line in lines:
            if line.startswith(_SHOWN):
                self._show(line)
            else:
                self._note(line.decode("utf-8", "replace").strip())
        return len(chunk)

    def _note(self, line: str) -> None:
        if found := _SAMPLES.search(line):
            self.samples[int(found[1])] = int(found[2])
        elif found := _RATE.match(line):
            self.rates_hz.add(int(found[1]))
        if line.startswith(_LAUNCHERS):
            self.not_started = line[:LINE_CHARACTERS]
        self.no_cpu = self.no_cpu or _CPU_SIGNAL in line
        tagged = _TAG.match(line)
        said = tagged[2] if tagged else line
        if _REFUSED_PICTURE in said:
            self._refused = True
        elif _NO_MEMORY.search(said):
            self.no_memory, self._refused = self.no_memory or not self._refused, False
        if tagged and tagged[1] in ("error", "fatal", "panic") and "non monotonically" not in tagged[2]:
            self.errors += 1
            self.last.append(tagged[2][:LINE_CHARACTERS])

    def _show(self, line: bytes) -> None:
        if frame := _FRAME.search(line):
            self.shown_s.append(int(frame[1]) * self._tick_s)
            self.not_whole += frame[2] != b"I"
        elif base := _TIME_BASE.search(line):
            self._tick_s = int(base[1]) / int(base[2])

    def reason(self) -> str:
        """Return the last errors as one line, without the program's own file names."""
        text = "; ".join(dict.fromkeys(self.last))
        return re.sub(r"(file:)?/dev/fd/\d+", "the file", text) or "no message"


def too_many_pixels(width: int, height: int) -> ItemError:
    """Return the error of pictures larger than the job allows to decode."""
    return ItemError("too_many_pixels", f"pictures of {width}x{height} pixels; front_end.max_pixels allows fewer")


def oversized(reason: str) -> ItemError | None:
    """Return that error if a program's messages tell that it refused a picture for its size, else None."""
    found = _OVERSIZED.search(reason)
    return None if found is None else too_many_pixels(int(found[1]), int(found[2]))


def plain(value: float | None) -> str:
    """Return a number without an exponent, as ffmpeg's options want it."""
    return f"{value or 0.0:.9f}"


@contextmanager
def opened(path: bytes, first_bytes: int | None = None) -> Iterator[int]:
    """Yield a descriptor of the regular file, or of a copy in memory of its first bytes.

    Raises ItemError source_missing, _unreadable or _not_a_file.
    """
    try:
        # O_NONBLOCK: should a FIFO have taken the file's place since it was checked, opening must not hang.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise ItemError("source_missing", "the file is not there") from None
    except OSError as error:
        raise ItemError("source_unreadable", f"the file cannot be opened: {error.strerror}") from None
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ItemError("source_not_a_file", "the path is not a regular file")
        if first_bytes is None:
            yield fd
        else:
            with beginning(fd, first_bytes) as copy:
                yield copy
    finally:
        os.close(fd)


@contextmanager
def beginning(fd: int, length: int) -> Iterator[int]:
    """Yield a descriptor of a copy in memory of a file's first bytes."""
    with os.fdopen(os.memfd_create("beginning"), "wb") as copy:
        copy.write(os.pread(fd, length, 0))
        copy.flush()
        yield copy.fileno()


def run(
    argv_for: Callable[[list[str]], list[str]],
    source_fd: int,
    takers: Sequence[Taker],
    log: Log,
    deadline: float,
    confinement: Confinement = CONFINED,
    folders: Iterable[str] = (),
) -> int:
    """Run a program to its end, give its outputs to `takers`, its messages to `log`, and return its exit
    status.

    `argv_for` gets the outputs' names (`pipe:1`, `pipe:N`), in the order of `takers`; `folders` is what the program
    reads beside the file and the system's libraries. `deadline` is on the clock of `time.monotonic`; then the whole
    process group is killed. Raises TimedOut, ItemError decoder_limit if it took too much memory or CPU time, or
    RuntimeError if it could not be started or was killed by somebody else: no fault of the file.
    """
    pipes = [os.pipe() for _ in (*takers, log)]
    readers, writers = [read for read, _ in pipes], [write for _, write in pipes]
    names = ["pipe:1", *(f"pipe:{fd}" for fd in writers[1:-1])]
    argv = argv_for(names)
    cpu_s = _CPU_SHARE * max(1.0, deadline - time.monotonic())
    try:
        running = _begin(argv, source_fd, writers, confinement, cpu_s, tuple(folders))
    except OSError as error:
        _close(readers)
        raise RuntimeError(f"the decoder could not be started: {error}") from error
    except BaseException:
        _close(readers)
        raise
    finally:
        _close(writers)
    try:
        _drain(dict(zip(readers, (*takers, log), strict=True)), deadline)
        status = running.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimedOut from None
    finally:
        running.end()
        _close(readers)
    _check_end(argv[0], status, log, confinement, cpu_s)
    return status


class _Running(Protocol):
    """A program that runs."""

    def wait(self, timeout_s: float) -> int:
        """Return its exit status. Raises subprocess.TimeoutExpired."""

    def end(self) -> None:
        """End whatever is left of it."""


@dataclass(frozen=True, slots=True)
class _Started:
    """A program that was started for one file."""

    process: subprocess.Popen[bytes]

    def wait(self, timeout_s: float) -> int:
        return self.process.wait(timeout_s)

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def _begin(
    argv: list[str],
    source_fd: int,
    writers: list[int],
    confinement: Confinement,
    cpu_s: float,
    folders: tuple[str, ...],
) -> _Running:
    """Run a program that gives its outputs to `writers`, its messages to the last: one that waits for it, or a new
    one. Raises OSError."""
    room = None if folders else waiting_room(argv[0], source_fd, confinement)
    if room is not None:
        descriptors = {1: writers[0], 2: writers[-1], source_fd: source_fd, **{fd: fd for fd in writers[1:-1]}}
        most = limits(confinement, cpu_s)
        served = fork_server.servers().run(room, argv, environment(), descriptors, most)
        if served is not None:
            return served
    return _Started(
        subprocess.Popen(
            confined(argv, source_fd, confinement, cpu_s, folders),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=writers[0],
            stderr=writers[-1],
            pass_fds=(source_fd, *writers[1:-1]),
            start_new_session=True,
        )
    )


def cpu_s() -> float:
    """Return the CPU seconds of this process, all of its threads, and of the programs that it ran."""
    used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(one.ru_utime + one.ru_stime for one in used) + fork_server.servers().cpu_s()


def _check_end(program: str, status: int, log: Log, confinement: Confinement, cpu_s: float) -> None:
    """Raise what `run` raises for a program that could not start, hit a limit or was killed."""
    if status and log.not_started:
        raise RuntimeError(f"the decoder could not be started: {log.not_started}")
    if log.no_cpu or status in (-signal.SIGXCPU, 128 + signal.SIGXCPU):
        raise ItemError("decoder_limit", f"{program} took more than {cpu_s:.0f} s of CPU time and was stopped")
    if status in (-signal.SIGKILL, 128 + signal.SIGKILL):
        raise RuntimeError("the decoder was killed before its time was over, most likely for want of memory")
    if status and log.no_memory:
        allowed_gib = confinement.memory_bytes / 2**30
        raise ItemError("decoder_limit", f"{program} wanted more than {allowed_gib:g} GiB of memory")


def _drain(takers: dict[int, Taker], deadline: float) -> None:
    """Read every pipe to its end as data comes. Raises TimedOut."""
    begun = time.monotonic()
    with selectors.DefaultSelector() as selector:
        widened = [_widen(fd) for fd in takers]
        for fd in takers:
            selector.register(fd, selectors.EVENT_READ)
        while selector.get_map():
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                raise TimedOut
            most_bytes = 0
            for key, _ in selector.select(left_s):
                taken_bytes = takers[key.fd].read(key.fd)
                most_bytes = max(most_bytes, taken_bytes)
                if not taken_bytes:
                    selector.unregister(key.fd)
            if all(widened) and selector.get_map():
                little_s = min(_GATHER_LITTLE_S, (time.monotonic() - begun) * _GATHER_SHARE)
                time.sleep(little_s if most_bytes < READ_BYTES // 4 else _GATHER_S)


def _widen(fd: int) -> bool:
    """Make a pipe hold a large read; return whether the system allows it: unprivileged users have a quota."""
    try:
        return fcntl(fd, F_SETPIPE_SZ, READ_BYTES) >= READ_BYTES
    except OSError:
        return False


def _close(fds: Iterable[int]) -> None:
    """Close every descriptor."""
    for fd in fds:
        os.close(fd)
