"""Ctrl-C and SIGTERM before the event loop listens: remembered, and raised where the program stands.

An exception raised by a signal can be swallowed by whatever runs at that moment; the memory cannot.
"""

from __future__ import annotations

import signal

_asked = False


def listen() -> None:
    """Take the signals that ask to stop; each raises KeyboardInterrupt and is remembered."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _remember)


def asked() -> bool:
    """Return whether the program was asked to stop."""
    return _asked


def _remember(*_: object) -> None:
    global _asked  # noqa: PLW0603 - a signal handler has no other place
    _asked = True
    raise KeyboardInterrupt
