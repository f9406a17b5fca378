"""What there is to screen: lists files, folders, globs and manifests as items, lazily and in a fixed order.

Owns item identity (uri, item_id, source_key). Never opens a recording and never leaves one out unsaid:
what cannot be read still becomes an item, and the front end turns it into an error row.
"""

from __future__ import annotations

import fnmatch
import hashlib
import os
import re
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import NamedTuple

from pipeline.errors import JobError
from pipeline.job import Source
from pipeline.manifest import Named, manifest_rows
from pipeline.records import Item
from pipeline.uri import absolute, name_bytes, name_text, uri_of


class _Found(NamedTuple):
    """A path on disk; `unreadable` for a folder that cannot be listed, which then stands for its files."""

    path: bytes
    is_folder: bool
    unreadable: bool = False


def list_items(source: Source) -> Iterator[Item]:
    """Yield every recording once: the manifest's rows in order, then paths in order, folders sorted by name.

    A recording named by both keeps the manifest's id. Holds about 100 bytes per item listed. Raises JobError
    for a manifest row that cannot be understood and for an id given to two recordings.
    """
    for uri, digest, named in _unique(chain(manifest_rows(source), _paths(source))):
        size, modified = _size_and_time(named.path)
        key = _digest(f"{uri}\n{size}\n{modified}").hex()
        yield Item(_id_of(named, digest), uri, named.path, size, modified, key)


def list_ids(source: Source) -> Iterator[str]:
    """Yield the item_id of every recording, in the order of `list_items`, without asking any file for its state."""
    return (_id_of(named, digest) for _, digest, named in _unique(chain(manifest_rows(source), _paths(source))))


def _id_of(named: Named, digest: bytes) -> str:
    return named.id if named.id is not None else digest.hex()


def check_source(source: Source) -> None:
    """Raise JobError if a path matches nothing or a row of the manifest cannot be understood.

    A manifest row whose recording is missing is an error row later and no reason to refuse the job.
    """
    for text in source.paths:
        _check_path(text, source)
    if source.manifest is not None and not sum(1 for _ in _unique(manifest_rows(source))):
        raise JobError(f"source.manifest: {source.manifest} lists no recording")


def id_key(item_id: str) -> bytes:
    """Return 16 bytes that stand for an item_id; a derived id is its own key."""
    if len(item_id) == 32:
        try:
            key = bytes.fromhex(item_id)
        except ValueError:
            key = b""
        if key.hex() == item_id:  # fromhex also takes capitals and blanks
            return key
    return hashlib.blake2b(item_id.encode(), digest_size=16).digest()


def _size_and_time(path: bytes) -> tuple[int | None, int | None]:
    """Return size in bytes and modification time in ns, None if the file cannot be asked."""
    try:
        status = os.stat(path)
    except OSError:
        return None, None
    return status.st_size, status.st_mtime_ns


def _digest(text: str) -> bytes:
    """Return the first 16 bytes of the SHA-256."""
    return hashlib.sha256(text.encode()).digest()[:16]


def _unique(named: Iterable[Named]) -> Iterator[tuple[str, bytes, Named]]:
    """Yield each uri once, with its digest. Raises JobError if a manifest gives one id to two uris or one uri two."""
    given: dict[bytes, bytes | None] = {}  # digest of each uri -> key of its id; None: derived from the uri
    owners: dict[bytes, bytes] = {}  # key of each given id -> digest of its uri
    for entry in named:
        uri = uri_of(entry.path)
        digest = _digest(uri)
        key = None if entry.id is None else id_key(entry.id)
        if digest in given:
            if entry.where and given[digest] != key:
                raise JobError(f"{entry.where}: {uri} is listed twice with different ids; give a recording one id")
            continue
        if key is not None:
            # A given id may look like the derived id of another recording, for instance after a file moved.
            owner = owners.setdefault(key, digest)
            taken = owner != digest or (key != digest and key in given and given[key] is None)
        else:
            taken = owners.get(digest, digest) != digest
        if taken:
            raise JobError(f'{entry.where or uri}: the id "{entry.id or digest.hex()}" belongs to two recordings')
        given[digest] = key
        yield uri, digest, entry


# Paths


def _paths(source: Source) -> Iterator[Named]:
    """Yield what `source.paths` names."""
    filters = _Filters(source)
    for text in source.paths:
        for path in _files(name_bytes(text), filters):
            yield Named(path, None, "")


class _Filters:
    """The include and exclude patterns of a source, for names found in folders."""

    def __init__(self, source: Source) -> None:
        self._everything = "*" in source.include and not source.exclude
        self._include = _any_of(source.include)
        self._exclude = _any_of(source.exclude)

    def take(self, path: bytes) -> bool:
        """Return whether a folder's file of this path is listed."""
        if self._everything:
            return True
        text = name_text(path[path.rfind(b"/") + 1 :])
        return bool(self._include.match(text)) and not self._exclude.match(text)


def _any_of(patterns: Iterable[str]) -> re.Pattern[str]:
    """Return one pattern that matches what any of the shell patterns matches."""
    return re.compile("|".join(fnmatch.translate(pattern) for pattern in patterns) or r"(?!)")


def _files(path: bytes, filters: _Filters) -> Iterator[bytes]:
    """Yield the files of one path: itself, all below it, or what it matches as a glob.

    A folder that a glob matches is searched like one that is named, as if a shell had expanded the glob.
    """
    path = absolute(path)
    literal = os.path.lexists(path)
    if literal:
        yield from _below(path, filters) if os.path.isdir(path) else [path]
    elif not _is_pattern(path):
        yield path  # gone since the check; its row will say so
    if _is_pattern(path):
        for found in _expand(b"/", path.strip(b"/").split(b"/")):
            if not literal or found.path != path:
                yield from _below(found.path, filters) if found.is_folder else [found.path]


def _below(folder: bytes, filters: _Filters) -> Iterator[bytes]:
    """Yield the files in and under a folder, without dot-files and symlinked folders."""
    for found in _walk(folder):
        if found.unreadable or (not found.is_folder and filters.take(found.path)):
            yield found.path


def _walk(folder: bytes) -> Iterator[_Found]:
    """Yield everything under a folder depth first, each folder sorted.

    One that cannot be read comes once more as `unreadable`, so that it gets an error row and is not left out.
    """
    stack = [iter(_entries(folder))]
    while stack:
        for found in stack[-1]:
            yield found
            if found.is_folder:
                stack.append(iter(_entries(found.path)))
                break
        else:
            stack.pop()


def _entries(folder: bytes) -> list[_Found]:
    """Return what a folder holds, sorted by name: real folders, files, and links to what is no folder."""
    try:
        with os.scandir(folder) as entries:
            return sorted(found for entry in entries if (found := _counted(entry)))
    except (FileNotFoundError, NotADirectoryError):
        return []  # removed while being listed
    except OSError:
        return [_Found(folder, is_folder=False, unreadable=True)]


def _counted(entry: os.DirEntry[bytes]) -> _Found | None:
    """Return a folder's entry if it counts; pipes, sockets and devices are no recordings."""
    if entry.name.startswith(b"."):
        return None
    if entry.is_file(follow_symlinks=False):
        return _Found(entry.path, False)
    if entry.is_dir(follow_symlinks=False):
        return _Found(entry.path, True)
    if entry.is_symlink() and not os.path.isdir(entry.path):
        return _Found(entry.path, False)
    return None


def _is_pattern(text: bytes) -> bool:
    return any(char in text for char in b"*?[")


def _expand(base: bytes, parts: list[bytes]) -> Iterator[_Found]:
    """Yield what the pattern `parts` matches under `base`; dot-names only where written out."""
    part, rest = parts[0], parts[1:]
    if part == b"**":
        if rest:
            yield from _expand(base, rest)
        for found in _walk(base):
            if found.unreadable or not (rest or found.is_folder):
                yield found
            elif rest and found.is_folder:
                yield from _expand(found.path, rest)
        return
    exact = os.path.join(base, part)
    # A name that exists as written and has only brackets is meant literally: `/data/[2024]/*.mp4`.
    literal = not _is_pattern(part) or (os.path.lexists(exact) and not any(char in part for char in b"*?"))
    if literal:
        candidates = [_Found(exact, os.path.isdir(exact))] if os.path.lexists(exact) else []
    else:
        matches = re.compile(fnmatch.translate(name_text(part))).match
        candidates = [
            found
            for found in _entries(base)
            if found.unreadable or found.path == exact or matches(name_text(os.path.basename(found.path)))
        ]
    for found in candidates:
        if not rest or found.unreadable:
            yield found
        elif found.is_folder:
            yield from _expand(found.path, rest)


def _check_path(text: str, source: Source) -> None:
    """Raise JobError if one of `source.paths` matches nothing."""
    path = absolute(name_bytes(text))
    shown = uri_of(path)
    if not os.path.lexists(path) and not _is_pattern(path):
        hint = "; only local files are supported yet" if re.search(r"[A-Za-z][A-Za-z0-9+.-]*:/", text) else ""
        raise JobError(f"source.paths: {shown} does not exist{hint}")
    if os.path.isdir(path):
        try:
            os.scandir(path).close()
        except OSError as error:
            raise JobError(f"source.paths: {shown} cannot be read: {error.strerror}") from None
    if next(_files(path, _Filters(source)), None) is not None:
        return
    if os.path.isdir(path):
        raise JobError(f"source.paths: {shown} holds no file that source.include and source.exclude let through")
    raise JobError(f"source.paths: {shown} matches no file")
