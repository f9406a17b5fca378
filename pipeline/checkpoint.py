"""What a checkpoint folder says about itself: architecture, edition, identity, state of training. Loads no weights."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from pydantic import ConfigDict, Field

from pipeline.calibration import CALIBRATION_FILE, Calibration, read_calibration
from pipeline.errors import JobError
from pipeline.job import EMBEDDED, EMBEDDED_PATH, Media, Model
from pipeline.policy import Policy, prompt_digest
from pipeline.records import JsonObject
from pipeline.settings_io import Settings, read_json, validate

# The names vLLM knows; every other architecture would be rendered by other rules.
ARCHITECTURES = ("Qwen3OmniMoeForConditionalGeneration", "Qwen3OmniMoeThinkerForConditionalGeneration")
TRAINING_FILE = "training.json"
# Small weights are hashed whole; of large ones the names and sizes, since reading 60 GB costs minutes.
_HASH_WHOLE_BYTES = 64 * 2**20


class TrainedMedia(Settings):
    """Media settings a checkpoint was trained with; None: with any."""

    model_config = ConfigDict(extra="ignore")

    max_pixels_per_frame: int | None = Field(default=None, ge=1)
    """Largest video frame, pixels."""
    max_rate_hz: float | None = Field(default=None, gt=0)
    """Frames a second of a video that is short enough for them."""
    max_image_pixels: int | None = Field(default=None, ge=1)
    """Largest still picture, pixels."""

    def unfit(self, media: Media) -> str | None:
        """Return which of a job's settings is not what was trained and what to change, None if all are."""
        largest = (
            ("frames", "media.video.max_pixels_per_frame", media.video.max_pixels_per_frame, self.max_pixels_per_frame),
            ("still pictures", "media.image.max_pixels", media.image.max_pixels, self.max_image_pixels),
        )
        for what, key, asked, trained in largest:
            if trained is not None and asked > trained:
                return f"{what} of up to {trained} pixels, and {key} is {asked}: lower it"
        rate_hz = media.video.max_rate_hz
        if self.max_rate_hz is not None and rate_hz != self.max_rate_hz:
            return (
                f"up to {self.max_rate_hz:g} frames a second, and media.video.max_rate_hz is {rate_hz:g}: "
                f"set it to {self.max_rate_hz:g}"
            )
        return None


class Training(Settings):
    """What `training.json` says; checkpoints that know every policy have none. It may hold more than is read here."""

    model_config = ConfigDict(extra="ignore")

    name: str | None = None
    """The checkpoint's name."""
    state: str | None = None
    """Added to the model's name in the rows, for instance `untrained`."""
    policy: str | None = None
    """The one policy the checkpoint knows, for people."""
    policy_sha256: str | None = Field(default=None, pattern=r"^[0-9a-f]{64}$")
    """That policy's `prompt_digest`."""
    media: TrainedMedia = TrainedMedia()


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A Qwen3-Omni checkpoint on disk; `digest` identifies its content, `reasoning` marks the Thinking edition.

    `outside_training` is set for a run by a policy or with media that it was not trained for.
    """

    folder: Path
    name: str
    digest: str
    reasoning: bool
    training: Training
    calibration: Calibration | None
    outside_training: bool = False

    def label(self) -> str:
        """Return how rows name the model, for instance `embedded@1f3a9c02 (untrained)`."""
        state = f" ({self.training.state})" if self.training.state else ""
        return f"{self.name}@{self.digest[:8]}{state}" + (" (outside its training)" if self.outside_training else "")

    def unfit_for(self, policy: Policy, media: Media) -> str | None:
        """Return why this checkpoint cannot answer by the policy on such media and what to change, None if it can."""
        known = self.training
        if known.policy_sha256 is not None and known.policy_sha256 != prompt_digest(policy):
            only = f"policy {known.policy}" if known.policy else "one policy"
            asked = f"{policy.id} {policy.version}"
            differs = "has other words" if asked == known.policy else "is another"
            return (
                f"{self.name} knows only {only} as it was trained, and this {asked} {differs}: take that one as it was"
            )
        unfit = known.media.unfit(media)
        return f"{self.name} was trained on {unfit}" if unfit else None


def open_checkpoint(model: Model) -> Checkpoint:
    """Return what the job's `model.path` holds. Raises JobError if it is no Qwen3-Omni checkpoint."""
    folder = EMBEDDED_PATH if model.path == EMBEDDED else Path(model.path)
    config = _read_config(folder, embedded=model.path == EMBEDDED)
    path = folder / TRAINING_FILE
    training = validate(Training, read_json(path, "model.path:") or {}, f"model.path: {path}")
    return Checkpoint(
        folder=folder,
        name=model.name or training.name or folder.name,
        digest=_digest(folder),
        reasoning=_reasons(folder, config, model.reasoning),
        training=training,
        calibration=read_calibration(folder),
    )


def _read_config(folder: Path, embedded: bool) -> JsonObject:
    path = folder / "config.json"
    if not path.is_file():
        hint = "; it comes with the repository, and `make train-embedded` makes it anew" if embedded else ""
        raise JobError(f"model.path: {folder} holds no checkpoint (no config.json){hint}")
    config = read_json(path, "model.path:") or {}
    found = config.get("architectures") or []
    if not set(found) & set(ARCHITECTURES):
        raise JobError(f"model.path: {folder} is no Qwen3-Omni checkpoint (architectures: {found or 'none'})")
    if not any(folder.glob("*.safetensors")):
        raise JobError(f"model.path: {folder} holds no weights (*.safetensors)")
    return config


def _reasons(folder: Path, config: JsonObject, wanted: bool | None) -> bool:
    """Return whether the checkpoint reasons before it answers; without a word in the job its name decides."""
    if wanted is not None:
        return wanted
    return "thinking" in f"{folder.name} {config.get('_name_or_path', '')}".lower()


def _digest(folder: Path) -> str:
    """Return a SHA-256 (hex) over names, sizes and, where affordable, contents of the checkpoint's files.

    The calibration is left out: it changes no answer, and the weights keep their name when it is renewed. Raises
    JobError for a file that cannot be read.
    """
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        if not path.is_file() or path.name.startswith(".") or path.suffix in (".md", ".txt", ".draft"):
            continue
        if path.name == CALIBRATION_FILE:
            continue
        size_bytes = path.stat().st_size
        digest.update(f"{path.name}\0{size_bytes}\0".encode())
        if size_bytes <= _HASH_WHOLE_BYTES:
            digest.update(_read_bytes(path))
    return digest.hexdigest()


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise JobError(f"model.path: {path} cannot be read: {error.strerror}") from None
