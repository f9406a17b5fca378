"""What a checkpoint folder says about itself: architecture, edition, identity, state of training. Loads no weights."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from pipeline.errors import JobError
from pipeline.job import EMBEDDED, EMBEDDED_PATH, Model
from pipeline.records import JsonObject

# The names vLLM knows; every other architecture would be rendered by other rules.
ARCHITECTURES = ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration")
TRAINING_FILE = "training.json"
# Small weights are hashed whole; of large ones the names and sizes, since reading 60 GB costs minutes.
_HASH_WHOLE_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A Qwen3-Omni checkpoint on disk; `digest` identifies its content, `reasoning` marks the Thinking edition."""

    folder: Path
    name: str
    digest: str
    state: str | None
    reasoning: bool

    def label(self) -> str:
        """Return how rows name the model, for instance `embedded@1f3a9c02 (untrained)`."""
        return f"{self.name}@{self.digest[:8]}" + (f" ({self.state})" if self.state else "")


def open_checkpoint(model: Model) -> Checkpoint:
    """Return what the job's `model.path` holds. Raises JobError if it is no Qwen3-Omni checkpoint."""
    folder = EMBEDDED_PATH if model.path == EMBEDDED else Path(model.path)
    config = _read_config(folder, embedded=model.path == EMBEDDED)
    training = _read_json(folder / TRAINING_FILE)
    return Checkpoint(
        folder=folder,
        name=model.name or training.get("name") or folder.name,
        digest=_digest(folder),
        state=training.get("state"),
        reasoning=_reasons(folder, config, model.reasoning),
    )


def _read_config(folder: Path, embedded: bool) -> JsonObject:
    path = folder / "config.json"
    if not path.is_file():
        hint = "; `make model` builds the embedded one" if embedded else ""
        raise JobError(f"model.path: {folder} holds no checkpoint (no config.json){hint}")
    config = _read_json(path)
    found = config.get("architectures") or []
    if not set(found) & set(ARCHITECTURES):
        raise JobError(f"model.path: {folder} is no Qwen3-Omni checkpoint (architectures: {found or 'none'})")
    if not any(folder.glob("*.safetensors")):
        raise JobError(f"model.path: {folder} holds no weights (*.safetensors)")
    return config


def _read_json(path: Path) -> JsonObject:
    """Return the object in a JSON file, empty if there is no such file."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise JobError(f"model.path: {path} cannot be read: {error}") from None
    if not isinstance(data, dict):
        raise JobError(f"model.path: {path} holds no JSON object")
    return data


def _reasons(folder: Path, config: JsonObject, wanted: bool | None) -> bool:
    """Return whether the checkpoint reasons before it answers; without a word in the job its name decides."""
    if wanted is not None:
        return wanted
    return "thinking" in f"{folder.name} {config.get('_name_or_path', '')}".lower()


def _digest(folder: Path) -> str:
    """Return a SHA-256 (hex) over names, sizes and, where affordable, contents of the checkpoint's files."""
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith(".") or path.suffix in (".md", ".txt", ".draft"):
            continue
        size_bytes = path.stat().st_size
        digest.update(f"{path.name}\0{size_bytes}\0".encode())
        if size_bytes <= _HASH_WHOLE_BYTES:
            digest.update(path.read_bytes())
    return digest.hexdigest()
