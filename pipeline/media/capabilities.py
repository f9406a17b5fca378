"""What this machine's ffmpeg can do; asked once in each process."""

from __future__ import annotations

import functools
import re
import subprocess

_ASKED_S = 10.0


def decodes(codec: str) -> bool:
    """Return whether ffmpeg decodes a codec; True if it does not say."""
    listed = _decodable()
    return not listed or codec in listed


def has_decoder(decoder: str) -> bool:
    """Return whether ffmpeg has a certain decoder (of the several that a codec may have)."""
    return f" {decoder} " in _said("-codecs")


def has_filters(*names: str) -> bool:
    """Return whether ffmpeg has all these filters."""
    return set(names) <= set(re.findall(r"^ \S+ (\w+) ", _said("-filters"), re.MULTILINE))


def built_with(option: str) -> bool:
    """Return whether ffmpeg was configured with an option, for instance `--enable-libsoxr`."""
    return option in _said("-buildconf").split()


@functools.cache
def _decodable() -> frozenset[str]:
    return frozenset(re.findall(r"^ D[E.][VA]\S* (\S+)", _said("-codecs"), re.MULTILINE))


@functools.cache
def _said(question: str) -> str:
    """Return ffmpeg's answer; empty if it gives none."""
    try:
        answer = subprocess.run(
            ["ffmpeg", "-hide_banner", question],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ASKED_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return answer.stdout.decode("utf-8", "replace")
