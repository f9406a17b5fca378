"""The job file: every setting of a run, its unit and its default. Owns reading, `--set` and path resolution."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from pipeline.errors import JobError, nearest
from pipeline.records import VERDICTS, JsonObject, Verdict
from pipeline.settings_io import Settings, parse_yaml, read_yaml, validate
from pipeline.uri import absolute as absolute_path

Share = Annotated[float, Field(ge=0, le=1)]

EMBEDDED = "embedded"
EMBEDDED_PATH = Path(__file__).parent / "embedded" / "checkpoint"


class Source(Settings):
    """What to screen: files, folders and globs, or a manifest, or both."""

    paths: tuple[str, ...] = ()
    """Files, folders (searched to the bottom) and globs (`**` allowed), relative to the job file."""
    manifest: Path | None = None
    """CSV, JSONL or Parquet with a `uri` column and optionally `id`; uris are relative to the manifest."""
    include: tuple[str, ...] = ("*",)
    """File names taken from folders, as shell patterns; names that begin with a dot are never taken."""
    exclude: tuple[str, ...] = ()
    """File names left out of folders, as shell patterns."""
    duplicates: Literal["reuse", "screen"] = "reuse"
    """What becomes of a file whose bytes equal those of another one that has, or is about to get, an answer by the same
    policy, model and settings: it takes that over in a row with `status` `duplicate`, or it is screened like any
    other. What was looked at less closely for lack of time is never taken over."""

    @model_validator(mode="after")
    def _something_to_list(self) -> Self:
        if not self.paths and self.manifest is None:
            raise ValueError("give paths or a manifest")
        if "" in self.paths:
            raise ValueError("a path is empty")
        return self


class Output(Settings):
    """Where the Parquet dataset goes and how its parts grow."""

    path: Path
    """Folder of the dataset, relative to the job file; made if missing."""
    on_change: Literal["stop", "append", "rewrite"] = "stop"
    """If the folder holds rows of another policy, model or settings: stop, add rows that name the row they follow,
    or put each new row in the place of the recording's latest row and, when all are there, remove its older ones. A
    recording that is not found keeps its good rows; rewrite can stay set and replaces them when it is back."""
    commit_every_s: float = Field(default=2.0, ge=0.5, le=30)
    """Longest time a finished row waits before it can be read, seconds."""
    rows_per_part: int = Field(default=5_000, ge=1)
    """A part is closed at this many rows; until then it is held in memory."""


class Model(Settings):
    """Which checkpoint answers."""

    path: str = EMBEDDED
    """`embedded` for the small model that comes with the project, or the folder of a Qwen3-Omni checkpoint."""
    name: str | None = Field(default=None, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Name written into the rows; the folder's name if not given."""
    dtype: Literal["auto", "bfloat16", "float16", "float32"] = "auto"
    """Number format of weights and activations; `auto` is bfloat16, and float32 on a CPU."""
    quantization: str | None = None
    """vLLM's quantization method, for instance `ascend` for W8A8 weights."""
    reasoning: bool | None = None
    """Whether the checkpoint reasons before it answers (the Thinking edition); by default its name decides."""
    allow_untrained_policy: bool = False
    """Run a checkpoint that knows only the policy and frame sizes it was trained with by others too, although its
    answers are then meaningless; the rows say so in `model`."""


class Engine(Settings):
    """How vLLM runs it."""

    device: Literal["auto", "cpu", "cuda", "ascend"] = "auto"
    """What computes; `auto` takes an Ascend NPU, else a CUDA GPU, else the CPU."""
    max_model_len: int = Field(default=32_768, ge=256, le=2**20)
    """Context of prompt and answer together, tokens."""
    max_num_seqs: int = Field(default=16, ge=1, le=4096)
    """Most requests in one step."""
    tensor_parallel_size: int = Field(default=1, ge=1, le=64)
    """Devices that one replica is spread over."""
    render_in: Literal["auto", "front_end", "engine"] = "auto"
    """Who makes features and tokens: the front-end workers, or the engine's thread (for vLLM versions that take no
    ready inputs); `auto` prefers the workers."""
    stall_s: float = Field(default=30.0, ge=1)
    """An engine that has work and has not stepped for so long is started anew, seconds."""
    max_restarts: int = Field(default=10, ge=0)
    """How often in a row, without an answer between, the engine is started anew before the run ends."""
    max_growth_gib: float = Field(default=16.0, gt=0)
    """Host memory that the engine's process may gain since its start before it is started anew, GiB."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """More arguments of vLLM's `EngineArgs`, passed on as they are."""


class Audio(Settings):
    """How much is listened to."""

    max_duration_s: float = Field(default=1800.0, gt=0, le=1800)
    """Longest sound given to the model, seconds; Qwen3-Omni takes up to 30 minutes."""


class Video(Settings):
    """How much is looked at."""

    min_rate_hz: float = Field(default=0.25, gt=0)
    """Lowest frame rate; a recording too long for it is looked at in evenly spread windows."""
    max_rate_hz: float = Field(default=2.0, gt=0)
    """Highest frame rate."""
    max_frames: int = Field(default=256, ge=2)
    """Most frames of one recording."""
    max_tokens: int = Field(default=8192, ge=4)
    """Most prompt tokens for the frames of one recording."""
    max_pixels_per_frame: int = Field(default=128 * 32 * 32, ge=32 * 32)
    """Largest frame, pixels (32x32 pixels of two frames are one token)."""
    exact_frames: bool = False
    """Decode every frame, so that the one on screen at each moment is taken; else H.264, HEVC, MPEG-4 and MPEG-2 frames
    that no others refer to are left out where one within 80 ms of each moment remains, which saves two fifths of the
    decoding. The rows say how far frames are off."""

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_rate_hz > self.max_rate_hz:
            raise ValueError("min_rate_hz must not exceed max_rate_hz")
        return self


class Image(Settings):
    """How a still picture is looked at."""

    max_pixels: int = Field(default=512 * 32 * 32, ge=32 * 32)
    """Largest picture, pixels (32x32 pixels are one token)."""


class SignalSettings(Settings):
    """What is measured of the decoded sound and pictures beside what always is."""

    speech: bool = False
    """Measure the share of speech: about 10 ms of CPU time for a second of sound. Also if a rule of the policy's gate
    asks for it."""


class Media(Settings):
    """Budgets of the front end."""

    audio: Audio = Audio()
    video: Video = Video()
    image: Image = Image()
    signals: SignalSettings = SignalSettings()
    max_duration_s: float = Field(default=43_200.0, gt=0)
    """Longer recordings become an error row `recording_too_long`, seconds."""


class FrontEnd(Settings):
    """The workers that decode and render."""

    workers: int | None = Field(default=None, ge=1, le=1024)
    """How many, one CPU each; one per core if not given, at least two."""
    decode_timeout_s: float = Field(default=40.0, gt=0)
    """Longest time ffmpeg may take for one item, seconds."""
    probe_timeout_s: float = Field(default=10.0, gt=0)
    """Longest time ffprobe may take for one item, seconds."""
    decoder_memory_gib: float = Field(default=3.0, ge=0.5, le=1024)
    """Most memory (address space) that ffmpeg may take for one item, GiB."""
    max_pixels: int = Field(default=134_217_728, ge=1024, le=2**31)
    """Largest picture or video frame that is decoded, pixels; larger ones become an error row `too_many_pixels`."""
    sandbox: Literal["auto", "required", "off"] = "auto"
    """Whether ffmpeg is closed in by bubblewrap: no network, no file but the recording. `auto` does without where the
    system does not permit it, and says so; `required` refuses to run then."""
    warm_decoders: bool = True
    """Whether ffmpeg and ffprobe wait, loaded, and are forked for each file (0.2 CPU s less an item) instead of being
    started anew."""


class Sla(Settings):
    """The promise for every item."""

    per_item_s: float = Field(default=60.0, gt=0)
    """From the first byte read to the row being readable, seconds; then the item gets a `deadline` row."""


class Accept(Settings):
    """What a run may contain and still exit with 0."""

    error_share: float = Field(default=0.0, ge=0, le=1)
    """Largest share of rows with `status=error`."""
    late_share: float = Field(default=0.0, ge=0, le=1)
    """Largest share of rows that missed the SLA."""


class CanaryClip(Settings):
    """A clip whose answer is known."""

    path: Path
    """The recording, relative to the file that names it."""
    verdict: Verdict
    """What the model itself must say, before routing."""
    labels: dict[str, bool] = Field(default_factory=dict)
    """Labels that must, or must not, be found; those not listed are not compared."""
    min_confidence: float | None = Field(default=None, ge=0, le=1)
    """The least confidence of the verdict, calibrated as in the rows."""

    @field_validator("path", mode="before")
    @classmethod
    def _not_empty(cls, value: object) -> object:
        if value == "":
            raise ValueError("the path is empty")
        return value

    @field_validator("verdict", mode="before")
    @classmethod
    def _known(cls, value: object) -> object:
        if isinstance(value, str) and value not in VERDICTS:
            raise ValueError(f'there is no verdict "{value}"{nearest(value, VERDICTS)}')
        return value


class Canary(Settings):
    """Clips with known answers, asked before the first item; the run stops with exit code 2 if one is answered
    otherwise or fails."""

    clips: tuple[CanaryClip, ...] = ()
    """Clips of the job's own, for any checkpoint and policy."""
    from_checkpoint: bool = True
    """Whether those are asked, too, that come with the checkpoint for this policy."""


class Answer(Settings):
    """How the model answers."""

    max_tokens: int | None = Field(default=None, ge=16)
    """Longest answer, tokens; without it, what the longest answer under the grammar can take."""
    reasoning_max_tokens: int = Field(default=2048, ge=0)
    """Tokens a Thinking checkpoint may reason before its answer; other checkpoints use none."""
    temperature: float = Field(default=0.0, ge=0, le=2)
    """0 gives the likeliest answer each time."""


class Faults(Settings):
    """Shares of the items that something befalls in a rehearsal, each item at most one thing."""

    slow: Share = 0.0
    """Its answer takes `slow_s`."""
    hang: Share = 0.0
    """Its answer never comes."""
    garbage: Share = 0.0
    """Its answer is no JSON."""
    engine_dies: Share = 0.0
    """The engine's process dies the first time it gets the item."""
    engine_stalls: Share = 0.0
    """The engine stops stepping the first time it gets the item."""
    poison: Share = 0.0
    """The engine's process dies each time it gets the item."""
    front_end_dies: Share = 0.0
    """The front-end worker dies the first time it gets the item."""
    front_end_hangs: Share = 0.0
    """The front-end worker never finishes the item."""

    @model_validator(mode="after")
    def _one_at_most(self) -> Self:
        if sum(self.model_dump().values()) > 1:
            raise ValueError("the shares add up to more than 1")
        return self


class Rehearsal(Settings):
    """A run without a model: files are read and rows written, but nobody looks. It shows what a source, an output, a
    schedule and a dashboard do, also when things go wrong; every verdict is `review`."""

    front_end: Literal["none", "real"] = "none"
    """`none` reads files without ffmpeg; `real` decodes and renders them for `model` as any run does, and only the
    engine is rehearsed: it shows whether the front end keeps up with an engine of `answer_s`."""
    front_end_s: float = Field(default=0.0, ge=0, le=3600)
    """Time a front end that is `none` takes for an item."""
    answer_s: float = Field(default=0.05, ge=0, le=3600)
    """Time an answer takes; `engine.max_num_seqs` are made at once."""
    slow_s: float = Field(default=5.0, ge=0, le=3600)
    """Time a slow answer takes."""
    seed: int = 0
    """Another seed strikes other items."""
    faults: Faults = Faults()

    @model_validator(mode="after")
    def _of_one_front_end(self) -> Self:
        scripted = self.front_end_s or self.faults.front_end_dies or self.faults.front_end_hangs
        if self.front_end == "real" and scripted:
            raise ValueError("front_end_s, front_end_dies and front_end_hangs are for front_end: none")
        return self


class Job(Settings):
    """One run: what to screen, by which policy, with which model, into which dataset."""

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")
    """Name written into the rows."""
    source: Source
    policy: Path
    """The policy's YAML file, relative to the job file."""
    output: Output
    model: Model = Model()
    engine: Engine = Engine()
    media: Media = Media()
    front_end: FrontEnd = FrontEnd()
    answer: Answer = Answer()
    sla: Sla = Sla()
    accept: Accept = Accept()
    canary: Canary = Canary()
    rehearsal: Rehearsal | None = None
    """Set it to rehearse the run without a model; rows of rehearsals do not mix with others."""

    @model_validator(mode="after")
    def _counted_prompts(self) -> Self:
        if self.has_real_front_end and self.rehearsal is not None and self.engine.render_in == "engine":
            raise ValueError("rehearsal.front_end: real renders in the front end; leave engine.render_in at auto")
        return self

    @property
    def has_real_front_end(self) -> bool:
        """Whether recordings are decoded and rendered."""
        return self.rehearsal is None or self.rehearsal.front_end == "real"


def load_job(path: Path, overrides: Sequence[str] = ()) -> Job:
    """Return the job of a YAML file with `a.b=c` overrides applied and every path absolute.

    Values of overrides are YAML; their paths are relative to the working directory. Raises JobError.
    """
    data = _rebased(read_yaml(path, "job file"), path.resolve().parent)
    for override in overrides:
        _override(data, override)
    for keys in _PATH_KEYS:
        if _at(data, keys) == "":
            raise JobError(f'job file {path}: "{".".join(keys)}": the path is empty')
    return validate(Job, _rebased(data, Path.cwd()), f"job file {path}")


def _at(data: JsonObject, keys: Sequence[str]) -> Any:
    place: Any = data
    for key in keys:
        place = place.get(key) if isinstance(place, dict) else None
    return place


def _override(data: JsonObject, override: str) -> None:
    """Put one `a.b=c` into the nested mapping."""
    key, equals, text = override.partition("=")
    parts = key.strip().split(".")
    if not equals or not all(parts):
        raise JobError(f'--set wants KEY.KEY=VALUE, got "{override}"')
    value = parse_yaml(text, f"--set {key}: the value")
    place = data
    for part in parts[:-1]:
        inner = place.setdefault(part, {})
        if not isinstance(inner, dict):
            raise JobError(f'--set {key}: "{part}" holds no further keys')
        place = inner
    place[parts[-1]] = value


_PATH_KEYS = (("policy",), ("source", "manifest"), ("output", "path"), ("model", "path"))


def _rebased(data: JsonObject, base: Path) -> JsonObject:
    """Return the mapping with every relative path made absolute from `base`; `~` is the home folder."""

    def absolute(value: Any) -> Any:
        if not isinstance(value, str) or not value:
            return value
        # `..` behind a link is what the file system means by it.
        return os.fsdecode(absolute_path(os.fsencode(os.path.join(base, os.path.expanduser(value)))))

    data = {key: dict(value) if isinstance(value, dict) else value for key, value in data.items()}
    for keys in _PATH_KEYS:
        place: Any = data
        for key in keys[:-1]:
            place = place.get(key) if isinstance(place, dict) else None
        if isinstance(place, dict) and keys[-1] in place and place[keys[-1]] != EMBEDDED:
            place[keys[-1]] = absolute(place[keys[-1]])
    source = data.get("source")
    if isinstance(source, dict):
        if isinstance(source.get("paths"), str):
            source["paths"] = [source["paths"]]
        if isinstance(source.get("paths"), list):
            source["paths"] = [absolute(value) for value in source["paths"]]
        for key in ("include", "exclude"):
            if isinstance(source.get(key), str):
                source[key] = [source[key]]
    canary = data.get("canary")
    if isinstance(canary, dict) and isinstance(canary.get("clips"), list):
        canary["clips"] = [
            clip | {"path": absolute(clip["path"])} if isinstance(clip, dict) and "path" in clip else clip
            for clip in canary["clips"]
        ]
    return data
