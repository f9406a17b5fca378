"""Reads the PCM that ffmpeg writes as Matroska: it says how many channels there are, and when each packet begins."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_CLUSTER, _SEGMENT, _TRACKS, _TRACK, _AUDIO, _GROUP = 0x1F43B675, 0x18538067, 0x1654AE6B, 0xAE, 0xE1, 0xA0
_ENTERED = frozenset({_CLUSTER, _SEGMENT, _TRACKS, _TRACK, _AUDIO, _GROUP})
_CHANNELS, _CLUSTER_MS, _PACKETS = 0x9F, 0xE7, frozenset({0xA3, 0xA1})
"""Matroska's elements (RFC 9559): those that hold others, and those read."""


class PcmStream:
    """Takes the stream of one track of 32-bit floats in pieces of any size, and gives its packets."""

    def __init__(self) -> None:
        self._stream = bytearray()
        self._cluster_ms = 0
        self._channels = 1  # Matroska's default, which a writer may leave out

    def packets(self, piece: bytes) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the packets that have come whole: when each begins, ms, and its samples, float32 (channels, n)."""
        self._stream += piece
        at = 0
        while (head := _element(self._stream, at)) is not None:
            name, body, size = head
            if name in _ENTERED:
                at = body
                continue
            if body + size > len(self._stream):
                break
            at = body + size
            if name in _PACKETS:  # one byte of track number, two of time, one of flags
                since_ms = int.from_bytes(self._stream[body + 1 : body + 3], "big", signed=True)
                samples = np.frombuffer(self._stream[body + 4 : at], np.float32)
                yield self._cluster_ms + since_ms, samples.reshape(-1, self._channels).T
            elif name == _CLUSTER_MS:
                self._cluster_ms = int.from_bytes(self._stream[body:at], "big")
            elif name == _CHANNELS:
                self._channels = int.from_bytes(self._stream[body:at], "big")
        del self._stream[:at]


def _element(stream: bytearray, at: int) -> tuple[int, int, int] | None:
    """Return the EBML element there as (name, where its body begins, bytes of it); None if it has not come whole.

    Names and sizes are numbers of variable length (RFC 8794, section 4): zeros before the first one bit tell it.
    """
    if at >= len(stream):
        return None
    body = at + 9 - stream[at].bit_length()
    if body >= len(stream):
        return None
    after = body + 9 - stream[body].bit_length()
    if after > len(stream):
        return None
    size = int.from_bytes(stream[body:after], "big") & ((1 << 7 * (after - body)) - 1)
    return int.from_bytes(stream[at:body], "big"), after, size
