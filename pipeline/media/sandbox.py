"""Where programs that read foreign files run: no network, no file but the opened one, no rights, bounded resources.

prlimit bounds a program everywhere. bubblewrap closes it in where the system lets it: own namespaces, the system's
libraries to read and nothing to write, no capabilities, no new privileges, dead as soon as its parent is.
"""

from __future__ import annotations

import functools
import math
import os
import re
import shutil
import stat
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from pipeline.errors import JobError
from pipeline.media.fork_server import Limits

SandboxMode = Literal["auto", "required", "off"]

_SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc/alternatives", "/etc/ld.so.cache")
_LINKED = re.compile(rb"(?:=> |^\s*)(/\S+) \(0x", re.MULTILINE)
_OPEN_FILES = 256
_TRIAL_S = 10.0
_LAST_WORDS_S = 5
_KEPT = ("PATH", "LD_LIBRARY_PATH")
_ROOT = ("--proc", "/proc", "--dev", "/dev", "--remount-ro", "/", "--chdir", "/")
_ISOLATED = ("--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try")


@dataclass(frozen=True, slots=True)
class Confinement:
    """What a program may take: bytes of address space, pixels of a picture; and whether it is closed in."""

    memory_bytes: int = 3 << 30
    max_pixels: int = 1 << 27
    sandbox: SandboxMode = "auto"
    warm: bool = True
    """Whether programs may wait, loaded, for the next file."""


CONFINED = Confinement()


@dataclass(frozen=True, slots=True)
class Bubblewrap:
    """How bubblewrap works here: the arguments that close a program in, and whether its user stays the same to the
    kernel, so that root's right to read other users' files can be kept."""

    arguments: tuple[str, ...]
    keeps_user: bool


def environment() -> dict[str, str]:
    """Return the environment of a confined program: where programs and libraries are, and nothing else of ours."""
    return {"LANG": "C.UTF-8", **{name: os.environ[name] for name in _KEPT if name in os.environ}}


def confined(
    argv: list[str], fd: int, confinement: Confinement, cpu_s: float, folders: Iterable[str] = ()
) -> list[str]:
    """Return the command that runs `argv` confined: it reads the file opened as `fd`,
    and `folders` beside the system's.

    `cpu_s` is the CPU time it may take, seconds.
    """
    return [*_limits(confinement, cpu_s), *_walls(argv[0], fd, confinement, folders), *argv]


def waiting_room(program: str, fd: int, confinement: Confinement) -> list[str] | None:
    """Return the command that closes in a program which waits for files like the one opened as `fd`.

    None if it must be started for this one: the job wants that, or the file needs a right that others do not.
    """
    if not confinement.warm or not _readable(os.fstat(fd)):
        return None
    return _walls(program, fd, confinement, ())


def limits(confinement: Confinement, cpu_s: float) -> Limits:
    """Return what a program may take."""
    seconds = math.ceil(cpu_s)
    return Limits(confinement.memory_bytes, seconds, seconds + _LAST_WORDS_S, _OPEN_FILES)


def check_sandbox(mode: SandboxMode) -> str | None:
    """Return a sentence for the operator if decoders will not be closed in, None if they will be.

    Raises JobError if the job requires it.
    """
    if mode == "off":
        open_because = "front_end.sandbox is off"
    elif bubblewrap() is not None:
        open_because = None
    elif shutil.which("bwrap") is None:
        open_because = "bubblewrap (bwrap) is not installed"
    else:
        open_because = f"bubblewrap fails: {_refusal()}"
    if mode == "required" and open_because is not None:
        raise JobError(
            f"front_end.sandbox: required, but {open_because}. Install it or permit user namespaces, or set it to auto."
        )
    if _prlimit() is None:
        return "ffmpeg runs without limits of memory and CPU time: prlimit (util-linux) is not installed"
    return None if open_because is None else f"ffmpeg runs with limits but not closed in: {open_because}"


@functools.cache
def bubblewrap() -> Bubblewrap | None:
    """Return how bubblewrap works on this system, None if it does not; tried once in each process."""
    root = os.geteuid() == 0
    for keeps_user in (True, False) if root else (False,):
        found = Bubblewrap(_arguments(keeps_user), keeps_user)
        if _try(found)[0]:
            return found
    return None


def _refusal() -> str:
    """Return bubblewrap's last words where it does not work."""
    return _try(Bubblewrap(_arguments(False), False))[1]


def _try(found: Bubblewrap) -> tuple[bool, str]:
    """Return whether ffmpeg starts inside, and what was said if not."""
    program = shutil.which("ffmpeg") or "ffmpeg"
    try:
        done = subprocess.run(
            ["bwrap", *found.arguments, *_views(program), *_ROOT, program, "-version"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            timeout=_TRIAL_S,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return False, str(error)
    return done.returncode == 0, done.stderr.decode("utf-8", "replace").strip()[:200]


@functools.cache
def _arguments(keeps_user: bool) -> tuple[str, ...]:
    user = () if keeps_user else ("--unshare-user",)
    views = [part for path in _SYSTEM for part in _view(path)]
    return (*_ISOLATED, *user, "--die-with-parent", "--as-pid-1", "--cap-drop", "ALL", *views)


def _view(path: str) -> tuple[str, ...]:
    """Return what makes a path of the system readable inside, as the link it may be."""
    if os.path.islink(path):
        return ("--symlink", os.readlink(path), path)
    return ("--ro-bind", path, path) if os.path.exists(path) else ()


@functools.cache
def _views(program: str) -> tuple[str, ...]:
    """Return what makes a program outside the system's folders readable inside, with the libraries beside it."""
    real = os.path.realpath(program)
    if real.startswith("/usr/") and program.startswith(("/usr/", "/bin/")):
        return ()
    # Not its folder: that may be a home.
    paths = (real, program, *_libraries(real))
    return tuple(part for path in dict.fromkeys(paths) for part in ("--ro-bind", path, path))


def _libraries(program: str) -> list[str]:
    """Return the shared libraries outside the system's folders that the dynamic linker loads for a program."""
    traced = subprocess.run(
        [program, "-version"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env=environment() | {"LD_TRACE_LOADED_OBJECTS": "1"},  # the linker lists them instead of starting it
        timeout=_TRIAL_S,
        check=False,
    )
    found = {os.fsdecode(path) for path in _LINKED.findall(traced.stdout)}
    return sorted(path for path in found if not path.startswith(_SYSTEM))


def _limits(confinement: Confinement, cpu_s: float) -> list[str]:
    """Return the command that bounds what follows it, nothing where there is no prlimit (util-linux)."""
    if _prlimit() is None:
        return []
    most = limits(confinement, cpu_s)
    return [
        *("prlimit", f"--as={most.memory_bytes}", f"--cpu={most.cpu_s}:{most.cpu_hard_s}", "--core=0", "--fsize=0"),
        *(f"--nofile={most.open_files}", "--"),
    ]


def _tied() -> list[str]:
    """Return the command after which a program dies with its worker and gains no privileges, where setpriv can do
    that (util-linux)."""
    return ["setpriv", "--pdeathsig", "KILL", "--no-new-privs", "--"] if _setpriv() else []


@functools.cache
def _setpriv() -> bool:
    try:
        said = subprocess.run(
            ["setpriv", "--help"], stdin=subprocess.DEVNULL, capture_output=True, timeout=_TRIAL_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return b"--pdeathsig" in said.stdout


@functools.cache
def _prlimit() -> str | None:
    return shutil.which("prlimit")


def _walls(program: str, fd: int, confinement: Confinement, folders: Iterable[str]) -> list[str]:
    """Return the command that closes in what follows it, or only ties it to its worker where that is off or
    impossible. Raises RuntimeError if the job requires it."""
    inside = bubblewrap() if confinement.sandbox != "off" else None
    if inside is None:
        if confinement.sandbox == "required":
            raise RuntimeError(f"front_end.sandbox is required, but bubblewrap fails: {_refusal()}")
        return _tied()
    foreign = not _readable(os.fstat(fd))
    if foreign and not inside.keeps_user:
        if confinement.sandbox == "required":
            raise RuntimeError("front_end.sandbox is required, but inside it root may not read this file's mode")
        return _tied()  # root may read it, but is nobody in a namespace of its own
    # The file is opened again through /proc; without the right to override modes, root could not.
    rights = ("--cap-add", "CAP_DAC_OVERRIDE") if foreign else ()
    more = [part for path in dict.fromkeys(folders) for part in ("--ro-bind", path, path)]
    views = _views(shutil.which(program) or program)
    return ["bwrap", *inside.arguments, *rights, *views, *more, *_ROOT]


def _readable(status: os.stat_result) -> bool:
    """Return whether the file's mode lets this user read it, without what root may besides."""
    if status.st_uid == os.geteuid():
        return bool(status.st_mode & stat.S_IRUSR)
    if status.st_gid in (os.getegid(), *os.getgroups()):
        return bool(status.st_mode & stat.S_IRGRP)
    return bool(status.st_mode & stat.S_IROTH)
