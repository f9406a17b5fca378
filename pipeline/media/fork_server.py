"""Programs that wait after they were loaded, so that a run of one is a fork instead of a start.

`fork_server.c` tells how it is done and what is said on the socket. A server is as confined as what it starts; it runs
one program at a time, and nothing outlives that program. Where a server cannot be had (no C compiler, a program linked
statically, a library that begins threads), programs are started anew for every file.
"""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_SOURCE = Path(__file__).with_name("fork_server.c")
_COMPILED_S = 60.0
_READY_S = 20.0
_FORKED = 1
_IDLE_SERVERS = 4
_FAILURES = 3


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may take: address space, bytes; CPU time, seconds; open files."""

    memory_bytes: int
    cpu_s: int
    cpu_hard_s: int
    open_files: int


class ServerGone(Exception):
    """The server ended, and with it what it ran."""


class ForkServer:
    """A program that waits to be run. Raises ServerGone or TimeoutError if it does not come to that."""

    def __init__(self, command: Sequence[str], program: str, environment: Mapping[str, str], library: int) -> None:
        """Start `program` inside `command`, which confines it, and wait until it is loaded."""
        self._channel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        preload = [f"LD_PRELOAD=/proc/self/fd/{library}", f"FORK_SERVER_FD={theirs.fileno()}"]
        self.cpu_s = 0.0
        try:
            with theirs:
                self._process = subprocess.Popen(
                    [*command, "env", *preload, program],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=(library, theirs.fileno()),
                    start_new_session=True,
                )
        except BaseException:
            self._channel.close()
            raise
        try:
            self._receive(_READY_S)
        except BaseException:
            self.kill()
            raise

    def begin(self, argv: Sequence[str], descriptors: Mapping[int, int], limits: Limits) -> None:
        """Run the program with these arguments; `descriptors` maps the numbers that it knows to those open here.

        Raises ServerGone, or OSError if that cannot be said (EMSGSIZE: too many arguments) or is not done in time.
        """
        bounds = limits.memory_bytes, limits.cpu_s, limits.cpu_hard_s, limits.open_files
        numbers = (*bounds, len(descriptors), len(argv), *descriptors)
        words = b"".join(os.fsencode(word) + b"\0" for word in argv)
        try:
            socket.send_fds(
                self._channel, [struct.pack(f"={len(numbers)}q", *numbers) + words], [*descriptors.values()]
            )
        except (BrokenPipeError, ConnectionResetError):
            raise ServerGone from None
        assert struct.unpack("=q", self._receive(_READY_S)) == (_FORKED,)

    def wait(self, timeout_s: float) -> int:
        """Return the exit status of what runs, 128 + the signal that ended it. Raises TimeoutError or ServerGone."""
        _, status, cpu_us = struct.unpack("=3q", self._receive(timeout_s))
        self.cpu_s = cpu_us / 1e6
        return int(status)

    def kill(self) -> None:
        """End the server and what it runs."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._channel.close()

    def forget(self) -> None:
        """Leave the server to the process that started it; this one is a fork of that."""
        self._channel.close()
        self._process.returncode = 0  # not a child of this process, that need not wait for it

    def _receive(self, timeout_s: float) -> bytes:
        self._channel.settimeout(max(timeout_s, 1e-3))
        try:
            said = self._channel.recv(64)
        except ConnectionResetError:
            said = b""
        if not said:
            raise ServerGone
        return said


@dataclass(slots=True)
class ForkServers:
    """The servers of this process: those that wait for work, and the CPU time of all of them."""

    idle: list[tuple[tuple[str, ...], ForkServer]] = field(default_factory=list)
    all: set[ForkServer] = field(default_factory=set)
    failures: dict[tuple[str, ...], int] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    # A server dies with the thread that started it (PR_SET_PDEATHSIG): this one lives as long as the process.
    starter: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, "fork-servers"))

    def run(
        self,
        command: Sequence[str],
        argv: Sequence[str],
        environment: Mapping[str, str],
        descriptors: Mapping[int, int],
        limits: Limits,
    ) -> Served | None:
        """Run a program in a server that is confined by `command`; return None if there can be no such server."""
        key = (*command, argv[0])
        while (server := self._take(key) or self._start(key, command, argv[0], environment)) is not None:
            try:
                server.begin(argv, descriptors, limits)
            except ServerGone:  # it ended while it waited
                self.lose(server)
                self._note_failure(key)
            except OSError:  # arguments too long for a message, no memory to fork
                self.lose(server)
                return None
            except BaseException:
                self.lose(server)
                raise
            else:
                return Served(self, key, server)
        return None

    def cpu_s(self) -> float:
        """Return the CPU time that living servers and their programs have taken, seconds."""
        with self.lock:
            return sum(server.cpu_s for server in self.all)

    def close(self) -> None:
        """End every server that waits."""
        with self.lock:
            idle, self.idle = self.idle, []
        for _, server in idle:
            self.lose(server)

    def lose(self, server: ForkServer) -> None:
        """End a server and what it runs."""
        server.kill()
        with self.lock:
            self.all.discard(server)

    def give(self, key: tuple[str, ...], server: ForkServer) -> None:
        """Take a server back that has done its work; the one longest idle goes if there are many."""
        with self.lock:
            self.failures.pop(key, None)
            self.idle.append((key, server))
            extra = self.idle.pop(0)[1] if len(self.idle) > _IDLE_SERVERS else None
        if extra is not None:
            self.lose(extra)

    def _take(self, key: tuple[str, ...]) -> ForkServer | None:
        with self.lock:
            number = next((n for n in reversed(range(len(self.idle))) if self.idle[n][0] == key), None)
            return None if number is None else self.idle.pop(number)[1]

    def _start(
        self, key: tuple[str, ...], command: Sequence[str], program: str, environment: Mapping[str, str]
    ) -> ForkServer | None:
        made = library()
        if made is None or self.failures.get(key, 0) >= _FAILURES:
            return None
        try:
            server = self.starter.submit(ForkServer, command, program, environment, made).result()
        except (OSError, ServerGone):
            self._note_failure(key)
            return None
        with self.lock:
            self.all.add(server)
        return server

    def _note_failure(self, key: tuple[str, ...]) -> None:
        with self.lock:
            self.failures[key] = self.failures.get(key, 0) + 1


@dataclass(slots=True)
class Served:
    """A program that a server runs."""

    servers: ForkServers
    key: tuple[str, ...]
    server: ForkServer
    _status: int | None = None

    def wait(self, timeout_s: float) -> int:
        """Return its exit status, as `subprocess.Popen` does. Raises subprocess.TimeoutExpired."""
        try:
            self._status = self.server.wait(timeout_s)
        except TimeoutError:
            raise subprocess.TimeoutExpired(self.key[-1], timeout_s) from None
        except ServerGone:
            return -signal.SIGKILL
        return self._status

    def end(self) -> None:
        """Let the server wait for the next run, or end it with what it still runs."""
        if self._status is None:
            self.servers.lose(self.server)
        else:
            self.servers.give(self.key, self.server)


_servers = ForkServers()


def servers() -> ForkServers:
    """Return the servers of this process."""
    return _servers


def _after_fork() -> None:
    global _servers  # noqa: PLW0603 - the parent's servers would answer both
    for server in _servers.all:
        server.forget()
    _servers = ForkServers()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(lambda: servers().close())


@functools.cache
def library() -> int | None:
    """Return a descriptor of `fork_server.c`, compiled, in memory; None where it cannot be made."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        return None
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "fork_server.so")
            subprocess.run(
                [compiler, "-O2", "-shared", "-fPIC", "-o", str(made), str(_SOURCE), "-ldl"],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_COMPILED_S,
                check=True,
            )
            fd = os.memfd_create("fork_server")
            with open(fd, "wb", closefd=False) as memory:
                memory.write(made.read_bytes())
    except (OSError, subprocess.SubprocessError):
        return None
    return fd
