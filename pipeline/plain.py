"""Foreign text for a person's terminal: file names, and what a model or a file put into words."""

from __future__ import annotations


def printable(text: str) -> str:
    """Return the text with everything that could steer a terminal escaped."""
    return "".join(char if char.isprintable() else f"\\x{ord(char):02x}" for char in text)
