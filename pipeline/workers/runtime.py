"""Starting and ending Ray on this machine, and reading its errors."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from pipeline import stopping
from pipeline.errors import JobError
from pipeline.hardware.environment import child_environment

# Actors must start while the cores are busy importing vLLM; the logical count only places them.
_LOGICAL_CPUS_BESIDE_WORKERS = 2
_VITAL = ("gcs_server", "raylet")
_ERROR_LINE = re.compile(r"[\w.]+(Error|Exception)\b")


def start_ray(workers: int, device: str, scratch: str, store_bytes: int) -> None:
    """Start Ray on this machine with room for the engine and so many front-end workers, which use the folder
    `scratch` for temporary files, and with an object store of `store_bytes`.

    Raises JobError, or KeyboardInterrupt if the program was asked to stop meanwhile.
    """
    environment = child_environment(device) | {"TMPDIR": scratch}
    os.environ.update({name: value for name, value in environment.items() if name.startswith("RAY_")})
    try:
        with _own_sigterm():
            ray.init(
                address="local",
                num_cpus=workers + _LOGICAL_CPUS_BESIDE_WORKERS,
                include_dashboard=False,
                object_store_memory=store_bytes,
                log_to_driver=False,
                logging_level=logging.ERROR,
                runtime_env={"env_vars": environment},
            )
    except Exception as error:
        # The seam for everything that keeps Ray from starting: ports, memory, a wrong RAY_ variable.
        raise JobError(f"Ray did not start: {root_cause(error)}") from error
    if stopping.asked():  # an exception raised in a callback of the interpreter's, as before a fork, goes no further
        raise KeyboardInterrupt


@contextmanager
def _own_sigterm() -> Iterator[None]:
    """Keep Ray from putting its own SIGTERM handler in the place of ours: its exception can get lost, our memory
    cannot."""
    of_ray = ray._private.utils.set_sigterm_handler
    ray._private.utils.set_sigterm_handler = lambda _: None
    try:
        yield
    finally:
        ray._private.utils.set_sigterm_handler = of_ray


def lost_part() -> str | None:
    """Return which process of Ray's own has ended that nothing goes on without, None if they all live.

    Without its GCS, Ray ends this process after 60 s by itself, with exit code 1 and without a word to Python.
    """
    node = ray._private.worker._global_node
    dead = [] if node is None else node.dead_processes()
    return next((f"{kind} (exit status {process.poll()})" for kind, process in dead if kind in _VITAL), None)


def root_cause(error: BaseException) -> str:
    """Return the first cause of a Ray error on one line: what its last traceback ends with."""
    cause = getattr(error, "cause", None) or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    if not lines:
        return type(cause).__name__
    ends = [number for number, line in enumerate(lines) if _ERROR_LINE.match(line)]
    text = " ".join(lines[ends[-1] :] if ends else lines[-1:])
    return text.removeprefix("pipeline.errors.JobError: ")[:500]
