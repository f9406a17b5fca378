"""Whether the weights of a checkpoint are whole, told from sizes and headers before an engine is started.

It reads no weights, so 60 GB take a fraction of a second, and finds what an interrupted copy or download leaves behind;
it never finds bytes that were changed. A *.safetensors file is the header's length (8 bytes, little-endian), the header
(JSON), and the tensors: https://huggingface.co/docs/safetensors/index#format
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import JobError

INDEX_FILE = "model.safetensors.index.json"
"""If it is there, vLLM reads the files that it names; otherwise every *.safetensors."""

_LENGTH_BYTES = 8
# The format's own limit; what other files begin with is far beyond it when read as a length.
_LONGEST_HEADER_BYTES = 100_000_000
_LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"^size (\d+)$", re.MULTILINE)
# A pointer is shorter than this, by the specification of Git LFS.
_LONGEST_POINTER_BYTES = 1024
_SHARD = re.compile(r"(?P<stem>.+)-(?P<number>\d{1,5})-of-(?P<total>\d{1,5})\.safetensors")
_MOST_NAMED = 3
# What reading JSON of another shape, or none, raises.
_NOT_AS_EXPECTED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong with one file, told so that its name can stand before it, and what a person can do."""

    path: Path
    wrong: str
    remedy: str = "copy or download it again"


def check_weights(folder: Path, embedded: bool = False) -> None:
    """Raise JobError if a file of the weights in `folder` is missing, cut short, or holds something else."""
    faults = find_faults(folder)
    if not faults:
        return
    first, *others = faults
    remedy = "restore it from the repository, or make it anew with `make train-embedded`" if embedded else first.remedy
    raise JobError(f"model.path: {first.path} {first.wrong}{_as_well(others)}; {remedy}")


def find_faults(folder: Path) -> list[Fault]:
    """Return what is wrong with the files of the weights in `folder`, in the order of their names."""
    index = folder / INDEX_FILE
    if not index.is_file():
        return _faults(folder, _unlisted(folder), "the names of the other shards count it")
    damaged = _fault(index, _stand_in)
    if damaged is not None:
        return [damaged]
    names = _listed(index)
    if not names:
        return [Fault(index, f"is damaged: its {index.stat().st_size} bytes are no JSON with a weight_map")]
    return _faults(folder, names, f"{INDEX_FILE} lists it")


def _as_well(faults: list[Fault]) -> str:
    """Return a remark that names further files."""
    if not faults:
        return ""
    names = ", ".join(fault.path.name for fault in faults[:_MOST_NAMED])
    more = len(faults) - _MOST_NAMED
    return f" (missing or damaged as well: {names}{f' and {more} more' if more > 0 else ''})"


# ---- which files


def _listed(index: Path) -> set[str]:
    """Return the names of the files in an index, none if it is no index."""
    try:
        return {str(name) for name in json.loads(index.read_bytes())["weight_map"].values()}
    except _NOT_AS_EXPECTED:
        return set()


def _unlisted(folder: Path) -> set[str]:
    """Return the names of the files that make up weights without an index: those there and the rest of their sets.

    An interrupted copy in the order of the names ends before the index.
    """
    found = {path.name for path in folder.glob("*.safetensors")}
    sets = {(shard["stem"], shard["total"]) for name in found if (shard := _SHARD.fullmatch(name))}
    return found.union(*(_set_of_shards(stem, total, found) for stem, total in sets))


def _set_of_shards(stem: str, total: str, found: set[str]) -> list[str]:
    """Return the names of all shards of a set of which some are found."""
    names = [f"{stem}-{number:0{len(total)}d}-of-{total}.safetensors" for number in range(int(total) + 1)]
    return names[:-1] if names[0] in found else names[1:]  # most tools count from one


# ---- what is wrong with a file


def _faults(folder: Path, names: Iterable[str], expected: str) -> list[Fault]:
    """Return the faults of *.safetensors files; `expected` says why one that is missing should be there."""
    missing = f"is missing, and {expected}"
    checked = (
        _fault(path, _stand_in, _incomplete) if os.path.lexists(path) else Fault(path, missing)
        for path in (folder / name for name in sorted(names))
    )
    return [fault for fault in checked if fault is not None]


def _fault(path: Path, *checks: Callable[[Path, int], Fault | None]) -> Fault | None:
    """Return what the first of the checks that finds a fault says; each gets the file and its size, bytes."""
    try:
        if not path.is_file():
            wrong = "is a link to a file that is not there" if path.is_symlink() else "is not a regular file"
            return Fault(path, wrong)
        size_bytes = path.stat().st_size
        return next((fault for check in checks if (fault := check(path, size_bytes))), None)
    except OSError as error:
        return Fault(path, f"cannot be read ({error.strerror})", "let the user of the run read it")


def _stand_in(path: Path, size_bytes: int) -> Fault | None:
    """Return a fault if the file is empty or the pointer that Git LFS leaves in place of a file."""
    if size_bytes == 0:
        return Fault(path, "has 0 bytes")
    with path.open("rb") as file:
        start = file.read(_LONGEST_POINTER_BYTES)
    if not start.startswith(_LFS_POINTER):
        return None
    size = _LFS_SIZE.search(start)
    content = f"the content of {int(size[1])} bytes" if size else "the content"
    remedy = f"run `git lfs pull` in {path.parent}"
    return Fault(path, f"is a Git LFS pointer of {size_bytes} bytes, not {content}", remedy)


def _incomplete(path: Path, size_bytes: int) -> Fault | None:
    """Return a fault if the file has not the size that its header says, or no such header."""
    if size_bytes < _LENGTH_BYTES:
        return Fault(path, f"is cut short: it has {size_bytes} bytes and its header alone takes more")
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(_LENGTH_BYTES), "little")
        if header_bytes > _LONGEST_HEADER_BYTES:
            return Fault(path, f"is no safetensors file: its {size_bytes} bytes begin with no header's length")
        header = file.read(header_bytes)
    start_bytes = _LENGTH_BYTES + header_bytes
    if size_bytes < start_bytes:
        return Fault(path, f"is cut short: it has {size_bytes} bytes and its header alone takes {start_bytes}")
    tensors_bytes = _tensors_bytes(header)
    if tensors_bytes is None:
        return Fault(path, f"is no safetensors file, or damaged: the header in its {size_bytes} bytes is not valid")
    needed_bytes = start_bytes + tensors_bytes
    if size_bytes != needed_bytes:
        which = "is cut short" if size_bytes < needed_bytes else "is too long"
        return Fault(path, f"{which}: it has {size_bytes} bytes and must have {needed_bytes} by its header")
    return None


def _tensors_bytes(header: bytes) -> int | None:
    """Return how many bytes of tensors follow a header, None if it is damaged."""
    try:
        tensors = json.loads(header)
        return max(
            (int(tensor["data_offsets"][1]) for name, tensor in tensors.items() if name != "__metadata__"), default=0
        )
    except _NOT_AS_EXPECTED:
        return None
