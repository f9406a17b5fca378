"""What travels between the stages: plain frozen values with shapes and units, no behaviour, no I/O."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MediaKind = Literal["audio", "video", "av", "image"]
Verdict = Literal["pass", "review", "reject"]
Status = Literal["ok", "gated", "duplicate", "deadline", "error"]

GOOD_STATUSES: tuple[Status, ...] = ("ok", "gated", "duplicate")
"""Those of rows that rest on the recording."""
VERDICTS: tuple[Verdict, ...] = ("pass", "review", "reject")
SAMPLE_RATE_HZ = 16_000


@dataclass(frozen=True, slots=True)
class Item:
    """One recording as the source listed it.

    `path` is the file-system name as bytes, because names need not be text. `size_bytes` and `modified_ns` are
    None when the listing could not stat the file; such an item still gets its (error) row.
    """

    item_id: str
    uri: str
    path: bytes
    size_bytes: int | None
    modified_ns: int | None
    source_key: str


@dataclass(frozen=True, slots=True)
class Remark:
    """What a row must say of its recording although it has an answer: a code of the register, and a short sentence."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class AudioStream:
    """The sound track chosen by the probe; `duration_s` is the header's claim, None if it makes none."""

    index: int
    codec: str
    sample_rate_hz: int
    channels: int
    start_s: float
    duration_s: float | None


@dataclass(frozen=True, slots=True)
class VideoStream:
    """The picture track chosen by the probe; width and height in pixels as displayed (after rotation and pixel
    aspect); `frame_rate_hz` is the average rate, None if unknown; `interlaced` if a frame holds two moments, one in its
    even lines and one in its odd ones; `hdr` if its brightness is coded for high dynamic range (PQ, HLG); `orientation`
    is the EXIF code 1..8 of how stored pictures are to be turned and mirrored; `alpha` if pixels may be transparent."""

    index: int
    codec: str
    width: int
    height: int
    frame_rate_hz: float | None
    start_s: float
    duration_s: float | None
    interlaced: bool = False
    hdr: bool = False
    orientation: int = 1
    alpha: bool = False


@dataclass(frozen=True, slots=True)
class MediaFacts:
    """What a file is, by its headers. `duration_s` is a claim and may be None (live ones); `input_options` are
    ffmpeg's names and values without which it does not find all that is there; `first_bytes` is how much of the file
    the picture takes that something else follows; `key_gap_s` is the longest time without a key frame, if it was looked
    for."""

    kind: MediaKind
    container: str
    duration_s: float | None
    audio: AudioStream | None
    video: VideoStream | None
    remarks: tuple[Remark, ...] = ()
    input_options: tuple[tuple[str, str], ...] = ()
    first_bytes: int | None = None
    key_gap_s: float | None = None


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of the recording that is looked at and listened to; seconds on the recording's own time axis."""

    start_s: float
    duration_s: float


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of a recording the model gets.

    The model's time axis is the windows put end to end. `frames` (even, or 1 for an image) pictures of
    `width` x `height` pixels lie at `k / frame_rate_hz` seconds on it. Token counts are what the prompt must hold,
    all windows together; `coverage` is the share (0..1) of the recording inside the windows.
    `duration_known` is False when the header made no claim and the windows are a guess to be cut by the decoder.
    """

    windows: tuple[Window, ...]
    duration_known: bool
    audio: bool
    frames: int
    frame_rate_hz: float | None
    width: int
    height: int
    audio_tokens: int
    video_tokens: int
    coverage: float


@dataclass(frozen=True, slots=True, eq=False)
class Decoded:
    """What the decoder gave.

    `pcm`: float32 (samples,), mono, 16 kHz, -1..1, empty without sound. `frames`: uint8 (n, height, width, 3) RGB,
    `times_s`: float64 (n,), the time of each frame on the model's time axis (windows put end to end).
    `decoded_s` is the length really found, `found_share` (0..1) the share of the windows that was there, in the sense
    that lacks most. `claim_holds` is False if the recording is shorter or longer than its header says, `goes_on`
    True if it is longer. `frames_off_s` is how far the worst frame lies from its time because others were left out.
    """

    pcm: NDArray[np.float32]
    frames: NDArray[np.uint8]
    times_s: NDArray[np.float64]
    decoded_s: float
    found_share: float = 1.0
    claim_holds: bool = True
    goes_on: bool = False
    frames_off_s: float = 0.0
    remarks: tuple[Remark, ...] = ()


@dataclass(frozen=True, slots=True)
class Signals:
    """What sound and pictures are like: shares 0..1, the peak in dBFS (0 is full scale)."""

    silence_share: float | None = None
    peak_dbfs: float | None = None
    speech_share: float | None = None
    black_share: float | None = None
    frozen_share: float | None = None


@dataclass(frozen=True, slots=True)
class Phases:
    """Seconds an item spent in each phase, None where it never came to it."""

    fetch_s: float | None = None
    probe_s: float | None = None
    plan_s: float | None = None
    decode_s: float | None = None
    signals_s: float | None = None
    render_s: float | None = None
    wait_s: float | None = None
    prefill_s: float | None = None
    generate_s: float | None = None
    parse_s: float | None = None
    commit_s: float | None = None


@dataclass(frozen=True, slots=True)
class Prepared:
    """What the front end knows of an item, without the tensors; `error` is set when there is nothing to ask, `gate` to
    the rule of the policy that answers without the model.

    `prompt_bytes` is what the prompt's arrays take in the object store. `lesser_look` says what was given up so that
    the item can be answered in its time, None if nothing; `short_answer` asks the engine for one. `file_state` is what
    `front_end.file_state` said of the file before it was hashed.
    """

    phases: Phases
    content_sha256: str | None = None
    content_bytes: int | None = None
    file_state: tuple[int, ...] | None = None
    facts: MediaFacts | None = None
    duration_s: float | None = None
    plan: Plan | None = None
    frames: int = 0
    frames_off_s: float | None = None
    audio_tokens: int = 0
    video_tokens: int = 0
    prompt_tokens: int = 0
    prompt_bytes: int = 0
    short_answer: bool = False
    lesser_look: str | None = None
    coverage: float | None = None
    signals: Signals = Signals()
    gate: str | None = None
    remarks: tuple[Remark, ...] = ()
    error_code: str | None = None
    error_message: str | None = None


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """One generated token: its text, its log-probability, and the likeliest alternatives as (text, logprob).

    Probabilities are those after the grammar's mask: what the answer could not say has none.
    """

    text: str
    logprob: float
    alternatives: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class Completion:
    """What the engine gave back for one request; reasoning is left out of `text` and `tokens`, times in seconds."""

    text: str
    tokens: tuple[TokenChoice, ...]
    finish_reason: str
    prompt_tokens: int
    audio_tokens: int
    video_tokens: int
    output_tokens: int
    wait_s: float
    prefill_s: float
    generate_s: float


@dataclass(frozen=True, slots=True)
class Label:
    """Whether a label of the policy was seen or heard, and how sure the model was of that (0..1, raw or calibrated)."""

    id: str
    present: bool
    confidence: float


@dataclass(frozen=True, slots=True)
class Answer:
    """The model's verdict, parsed.

    `confidence` (0..1, raw or calibrated) is the verdict's probability among the allowed verdicts; a raw one is at
    most that of the least certain label.
    """

    verdict: Verdict
    confidence: float
    labels: tuple[Label, ...]
    rationale: str


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What the output already holds for an item: enough to skip it, retry it or replace its row."""

    row_id: str
    source_key: str
    fingerprint: str
    status: Status
    reason: str | None
    sla_met: bool
    part: str = field(default="", compare=False)


JsonObject = dict[str, Any]
