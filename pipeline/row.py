"""The output row: names, types, units and meaning of every column. The schema file and Parquet follow from it."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, Field

from pipeline.records import JsonObject, MediaKind, Status, Verdict

SCHEMA_VERSION = 3

Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]
Count = Annotated[int, Field(ge=0)]


class LabelRow(BaseModel):
    """One label of the policy."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    id: str
    """The label's id in the policy."""
    present: bool
    """Whether the model saw or heard it."""
    confidence: Share
    """Probability of that answer, 0..1; calibrated like the verdict's."""


class VerdictRow(BaseModel):
    """One row per item, always."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    schema_version: int = SCHEMA_VERSION
    """Version of these columns."""
    row_id: str
    """Identity of this row, 32 hex digits."""
    follows_row_id: str | None
    """The row that this one replaces or, with `on_change: append`, follows."""
    duplicate_of: str | None
    """With `status` `duplicate`: the row_id of the row whose answer this one takes over, because its recording had the
    same bytes and it the same fingerprint; never that of another duplicate. All that is said of the recording and its
    answer, tokens included, is that row's; item, times, attempts and run are this one's own. Null otherwise."""
    item_id: str
    """The manifest's id, or one derived from the uri."""
    uri: str
    """Where the recording lies; a path, or a percent-encoded file:// address if its name is no UTF-8."""
    source_key: str
    """Digest of uri, size and modification time: which state of the file was listed."""
    content_sha256: str | None
    """SHA-256 of the file's bytes, hex; null if they could not be read, or changed while the file was looked at."""
    content_bytes: Count | None
    """How many these are; null where content_sha256 is."""
    media_kind: MediaKind | None
    """What the file is; null if that is unknown."""
    duration_s: Seconds | None
    """Length found by decoding or, where not all was decoded, claimed by the header; seconds."""
    verdict: Verdict
    """The screening result: the model's, or `review` where routing sends an uncertain answer to a person; the policy's
    fail-safe verdict if there is no answer."""
    model_verdict: Verdict | None
    """What the model itself said; null if there is no answer."""
    confidence: Share | None
    """Probability of `model_verdict` among the allowed ones, 0..1, at most that of the least certain label, and then
    calibrated if the checkpoint holds a calibration for this policy; null if there is no answer."""
    labels: tuple[LabelRow, ...]
    """Every label of the policy; empty if there is no answer."""
    rationale: str | None
    """What was heard and seen, in the policy's language. Text of a model about foreign content: show, never run."""
    status: Status
    """How the row came about; only `ok`, `gated` and `duplicate` rest on the recording, `duplicate` through a look at
    another file of the same content."""
    degraded: bool
    """True if less was looked at than the job asks for, or part of the recording was lost."""
    reason: str | None
    """Stable code of what went wrong, was degraded or was routed to review; null if nothing."""
    message: str | None
    """The same for people."""
    attempts: Count
    """How often the item was tried in this run."""
    coverage: Share | None
    """Share of the recording looked at and listened to, 0..1; null if its length is unknown."""
    silence_share: Share | None
    """Share of the sound heard, in blocks of 100 ms, that is below -50 dBFS; null without sound."""
    peak_dbfs: float | None
    """Largest sample heard, dBFS (0 is full scale); null without sound and where all samples are zero."""
    speech_share: Share | None
    """Share of the sound heard, in pieces of 32 ms, that silero's detector takes for speech; null without sound, or
    where nobody asked for it (`media.signals.speech`, or a rule of the policy's gate)."""
    black_share: Share | None
    """Share of the pictures of which 98 % of the pixels have at most 10 % luma; null without pictures."""
    frozen_share: Share | None
    """Share of the pictures after the first that equal the one before within 0.1 %; null below two pictures."""
    gate: str | None
    """With `status` `gated`: the policy's rule that answered without the model. Null otherwise."""
    audio_tokens: Count
    """Prompt tokens that stand for sound; in a gated row those it would have taken."""
    video_tokens: Count
    """Prompt tokens that stand for pictures; in a gated row those it would have taken."""
    frames: Count
    """Pictures given to the model."""
    frame_rate_hz: Annotated[float, Field(gt=0)] | None
    """Rate of these pictures; null without moving pictures."""
    frames_off_s: Seconds | None
    """How far the frame that lies farthest from its time is off because others were left out, seconds: 0 if every frame
    was decoded, null without frames."""
    prompt_tokens: Count
    """All tokens of the prompt."""
    output_tokens: Count
    """Generated tokens, reasoning included."""
    admitted_at: datetime
    """When the item's bytes were first pulled; UTC."""
    committed_at: datetime
    """When the part holding the row was first written; UTC."""
    sla_s: Seconds
    """The time promised per item."""
    sla_met: bool
    """Whether committed_at lies within it."""
    fetch_s: Seconds | None
    """Reading and hashing the file."""
    probe_s: Seconds | None
    """Reading its headers."""
    plan_s: Seconds | None
    """Choosing what to look at."""
    decode_s: Seconds | None
    """ffmpeg."""
    signals_s: Seconds | None
    """Measuring silence, black and frozen pictures."""
    render_s: Seconds | None
    """Features and tokens."""
    wait_s: Seconds | None
    """Waiting for the engine, hand-over included, and for the answer to another file of the same content."""
    prefill_s: Seconds | None
    """From the engine's start on the prompt to the first token."""
    generate_s: Seconds | None
    """From the first token to the last."""
    parse_s: Seconds | None
    """Reading the answer."""
    commit_s: Seconds | None
    """From the finished row to it being readable."""
    run_id: str
    """The run that wrote the row."""
    job_name: str
    """The job's name."""
    fingerprint: str
    """Digest of policy, model, media settings and schema: rows with the same one are comparable."""
    policy_id: str
    """The policy."""
    policy_version: str
    """Its version."""
    model: str
    """Name, short digest and state of training of the checkpoint."""
    engine: str
    """Engine, version and device."""
    accel_patches: tuple[str, ...]
    """Accelerator patches that were active."""


_STAMP = pa.timestamp("us", tz="UTC")
_LABEL = pa.struct([("id", pa.string()), ("present", pa.bool_()), ("confidence", pa.float32())])
_ARROW_TYPES: dict[str, pa.DataType] = {
    **dict.fromkeys(("schema_version", "attempts", "audio_tokens", "video_tokens"), pa.int32()),
    **dict.fromkeys(("frames", "prompt_tokens", "output_tokens"), pa.int32()),
    **dict.fromkeys(("degraded", "sla_met"), pa.bool_()),
    **dict.fromkeys(("admitted_at", "committed_at"), _STAMP),
    "content_bytes": pa.int64(),
    **dict.fromkeys(
        ("confidence", "coverage", "silence_share", "peak_dbfs", "speech_share", "black_share", "frozen_share"),
        pa.float32(),
    ),
    "duration_s": pa.float64(),
    "frame_rate_hz": pa.float64(),
    "sla_s": pa.float64(),
    "labels": pa.list_(_LABEL),
    "accel_patches": pa.list_(pa.string()),
}


def _arrow_type(name: str) -> pa.DataType:
    if name in _ARROW_TYPES:
        return _ARROW_TYPES[name]
    return pa.float32() if name.endswith("_s") else pa.string()


def _nullable(name: str) -> bool:
    return type(None) in getattr(VerdictRow.model_fields[name].annotation, "__args__", ())


ARROW_SCHEMA = pa.schema(
    [pa.field(name, _arrow_type(name), nullable=_nullable(name)) for name in VerdictRow.model_fields],
    metadata={"schema_version": str(SCHEMA_VERSION)},
)


def as_record(row: VerdictRow) -> dict[str, Any]:
    """Return the row as plain values in the order of the columns, ready for Arrow."""
    return row.model_dump(mode="python")


def json_schema() -> JsonObject:
    """Return the JSON schema of a row, as published in schemas/verdict.schema.json."""
    return VerdictRow.model_json_schema()
