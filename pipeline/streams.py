"""The program's standard streams, made so that the loss of a screen never ends a run."""

from __future__ import annotations

import io
import os
import sys
from typing import Any


class _Screen(io.FileIO):
    """A screen that may be lost, by a reader that goes or a disk that fills up: what nobody can read is dropped."""

    def write(self, data: Any) -> int:
        try:
            written = os.write(self.fileno(), data)
        except OSError:  # BlockingIOError, too: a run waits for no reader
            return len(data)
        return written


def secure() -> None:
    """Let every standard stream be there, standard error take text whatever becomes of it, and both take any text.

    A program that is started without them (`2>&-`) would find its own files in their place.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number, which is this one
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - as long as the program
    elif isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
    if sys.stderr is sys.__stderr__:  # and not what somebody has put in its place
        encoding = "utf-8" if sys.stderr is None else sys.stderr.encoding
        screen = io.BufferedWriter(_Screen(2, "wb", closefd=False))
        sys.stderr = io.TextIOWrapper(screen, encoding, errors="backslashreplace", line_buffering=True)
