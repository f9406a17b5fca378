"""File names as bytes, text and addresses: the one place that turns one into another."""

from __future__ import annotations

import os
import re
import unicodedata
from urllib.parse import quote, unquote_to_bytes

_UNSHOWABLE = ("Cc", "Zl", "Zp", "Cs")
FILE_ADDRESS = re.compile(r"file:(?://(?P<host>[^/]*))?(?P<path>/.*)", re.IGNORECASE | re.DOTALL)


def uri_of(path: bytes) -> str:
    """Return the absolute path as text, or a percent-encoded file:// address if it is no clean UTF-8."""
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return "file://" + quote(path, safe="/")
    if text.isprintable() or not any(unicodedata.category(char) in _UNSHOWABLE for char in text):
        return text
    return "file://" + quote(path, safe="/")


def path_of(uri: str) -> bytes:
    """Return the path that `uri_of` gave this uri for."""
    address = FILE_ADDRESS.fullmatch(uri)
    return unquote_to_bytes(address["path"]) if address else name_bytes(uri)


def name_bytes(text: str) -> bytes:
    """Return a name as bytes, whatever the locale; raises UnicodeEncodeError for text that cannot be one."""
    return text.encode("utf-8", "surrogateescape")


def name_text(name: bytes) -> str:
    """Return a name as text that `name_bytes` turns back."""
    return name.decode("utf-8", "surrogateescape")


def absolute(path: bytes) -> bytes:
    """Return the path from the root, without `.` and `..`; links before a `..` are resolved."""
    parts = os.path.join(os.getcwdb(), path).split(b"/")
    if b".." in parts:
        cut = len(parts) - parts[::-1].index(b"..")
        parts = [*os.path.realpath(b"/".join(parts[:cut])).split(b"/"), *parts[cut:]]
    return b"/" + b"/".join(part for part in parts if part not in (b"", b"."))


# Manifests
