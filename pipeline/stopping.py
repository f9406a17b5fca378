"""The signals that ask to stop: Ctrl-C, SIGTERM and a terminal that goes. Remembered always, and raised at first.

An exception raised by a signal can be swallowed by whatever runs at that moment; the memory cannot. asyncio's own
handlers would not do: on its way out the event loop gives signals their deadly default back.
"""

from __future__ import annotations

import signal
from collections.abc import Callable

_asked = False


def listen(act: Callable[[], object] | None = None) -> None:
    """Take the signals that ask to stop; each is remembered and calls `act`, or else raises KeyboardInterrupt."""

    def heed(*_: object) -> None:
        global _asked  # noqa: PLW0603 - a signal handler has no other place
        _asked = True
        if act is None:
            raise KeyboardInterrupt
        act()

    for number in _numbers():
        signal.signal(number, heed)


def asked() -> bool:
    """Return whether the program was asked to stop."""
    return _asked


def ignore() -> None:
    """Let no signal that asks to stop change the exit code any more: the result is known."""
    for number in _numbers():
        signal.signal(number, signal.SIG_IGN)


def _numbers() -> tuple[signal.Signals, ...]:
    """Return the signals that ask to stop: SIGHUP only if nobody, like nohup, has it ignored."""
    always = (signal.SIGINT, signal.SIGTERM)
    return always if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (*always, signal.SIGHUP)
