"""Every way in which something can go wrong, and what it means for the run.

PipelineError
├── JobError        the job or the environment is wrong: exit code 2, nothing was screened
├── OutputLocked    another run holds the output: exit code 3
├── WorkersLost     there is nobody any more to do the work: exit code 4, everything so far is committed
│   ├── EngineLost      no engine
│   └── FrontEndsLost   no front-end worker
├── EngineDied      the engine died with an item, another is coming: the item is asked again
└── ItemError       one item failed: it becomes a row with `status=error` and a code from REASONS
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches


@dataclass(frozen=True, slots=True)
class Reason:
    """What a stable reason code means, whether the next run tries again, and what a person can do.

    `failure` is False for what an answered row may carry: the item has its answer all the same. `degrades` if the
    answer rests on less than the job asks for. What a row has several of, it is named for the first in this register.
    """

    code: str
    meaning: str
    retryable: bool
    action: str
    failure: bool = True
    degrades: bool = False


_REASONS = (
    Reason("source_missing", "The file was listed but is not there.", True, "Restore it or drop it from the source."),
    Reason(
        "source_unreadable", "The file exists but may not be read.", True, "Grant read permission to the run's user."
    ),
    Reason("source_not_a_file", "The path is a folder, pipe, socket or device.", False, "List regular files only."),
    Reason("empty_file", "The file has zero bytes.", False, "Check the upload or copy that made it."),
    Reason("not_media", "No demuxer recognises the file.", False, "It is no recording, or damaged at its start."),
    Reason(
        "playlist_refused",
        "A playlist or script that names other files; none of them was opened.",
        False,
        "List the recordings themselves.",
    ),
    Reason("no_media_streams", "A container without sound, picture or video.", False, "Nothing can be screened in it."),
    Reason("unsupported_codec", "No decoder for any of its streams.", False, "Install an ffmpeg that has the decoder."),
    Reason("encrypted", "Its sound or pictures are encrypted.", False, "Decrypt the file first."),
    Reason(
        "too_many_pixels",
        "Its pictures are larger than front_end.max_pixels allows.",
        False,
        "Raise the limit if the file is trusted, or make the pictures smaller.",
    ),
    Reason(
        "recording_too_long", "Longer than media.max_duration_s allows.", False, "Raise the limit or split the file."
    ),
    Reason("probe_timeout", "ffprobe did not finish in time.", True, "Look at the storage, then at the file."),
    Reason("decode_failed", "ffmpeg gave neither sound nor pictures.", False, "The file is damaged."),
    Reason(
        "decode_timeout", "ffmpeg did not finish in time.", True, "Raise front_end.decode_timeout_s or cut the file."
    ),
    Reason(
        "decoder_limit",
        "ffmpeg hit its limit of memory or CPU time and was stopped.",
        False,
        "Raise front_end.decoder_memory_gib if the file is trusted.",
    ),
    Reason("audio_lost", "The file has sound but none could be decoded.", False, "Look at the file's sound track."),
    Reason(
        "video_lost", "The file has pictures but none could be decoded.", False, "Look at the file's picture track."
    ),
    Reason(
        "doubtful_format",
        "ffmpeg found the format by little more than a guess: what was heard or seen may be noise.",
        False,
        "A person decides; a recording behind other data, or a file that is none.",
        failure=False,
        degrades=True,
    ),
    Reason(
        "partial_decode",
        "Part of the recording could not be decoded.",
        False,
        "See coverage and message.",
        failure=False,
        degrades=True,
    ),
    Reason(
        "tracks_ignored",
        "The file has more tracks of sound or pictures, or more pictures, than the one that was heard or seen.",
        False,
        "Split the file if the rest matters.",
        failure=False,
        degrades=True,
    ),
    Reason(
        "partial_coverage",
        "Too long for the budgets: looked at in parts.",
        False,
        "See coverage; raise media.*.",
        failure=False,
        degrades=True,
    ),
    Reason(
        "reduced_look",
        "Too little of its time was left for the whole look: fewer or smaller frames, or parts.",
        False,
        "See coverage and message; raise sla.per_item_s, or give the run more hardware.",
        failure=False,
        degrades=True,
    ),
    Reason(
        "sound_mended",
        "The sound was mended before it was heard: channels that cancel out, samples that are no numbers, an offset.",
        False,
        "Nothing; the message says what was done.",
        failure=False,
    ),
    Reason(
        "wrong_duration",
        "The recording goes on beyond the length in its header; it was measured and looked at by its true length.",
        False,
        "Nothing; programs that trust the header miss the rest.",
        failure=False,
    ),
    Reason(
        "colour_unconverted",
        "Pictures of high dynamic range were not converted: they look flat and dark.",
        False,
        "Install an ffmpeg with zscale and tonemap.",
        failure=False,
    ),
    Reason(
        "extras_ignored",
        "The file has a cover picture or subtitles, which were not looked at.",
        False,
        "Take them out and screen them as files of their own if they matter.",
        failure=False,
    ),
    Reason(
        "low_confidence",
        "The answer was too uncertain for its verdict to stand.",
        False,
        "A person decides; the policy's routing.review_below is the threshold.",
        failure=False,
    ),
    Reason(
        "prompt_too_long", "The prompt does not fit into the model's context.", False, "Raise engine.max_model_len."
    ),
    Reason("render_failed", "The renderer refused the prompt.", False, "Read the message; report it."),
    Reason(
        "token_mismatch", "The prompt holds other media tokens than planned.", False, "Report it: answers would lie."
    ),
    Reason("engine_rejected", "The engine refused the request.", False, "Read the message; check engine settings."),
    Reason("answer_truncated", "The answer hit answer.max_tokens.", True, "Raise answer.max_tokens."),
    Reason(
        "answer_unparsable", "The answer is not the JSON asked for.", True, "Check that the engine supports grammars."
    ),
    Reason(
        "engine_lost",
        "The engine died while it had this item, and the item's time was over before another could answer.",
        True,
        "Nothing; it is tried again at the end of the run, or by the next one.",
    ),
    Reason(
        "engine_killed",
        "The engine died each time it got this item, the last time with nothing beside it.",
        False,
        "Keep the file and report it; --retry all tries again after the engine was mended.",
    ),
    Reason("front_end_lost", "The front-end worker died with this item.", True, "Look for out-of-memory kills."),
    Reason("deadline", "The item's time was over before its answer came.", True, "See the seconds per phase."),
    Reason("internal_error", "An error nobody foresaw.", True, "Report it with the message."),
)
REASONS = {reason.code: reason for reason in _REASONS}


class PipelineError(Exception):
    """Root of the tree; `str(error)` is a whole sentence for a person."""

    exit_code = 1


class JobError(PipelineError):
    """The job file, a policy, a path or the environment is wrong; nothing was screened."""

    exit_code = 2


class OutputLocked(PipelineError):
    """Another run holds this output."""

    exit_code = 3


class WorkersLost(PipelineError):
    """There is nobody any more to do the work; committed rows stay, the rest goes with the next run."""

    exit_code = 4


class EngineLost(WorkersLost):
    """The engine died or stopped stepping, and no other one will come."""


class FrontEndsLost(WorkersLost):
    """Every front-end worker died, and none could be started again."""


class EngineDied(PipelineError):
    """The engine died while it had this item; another one is being started.

    `planned` if it was to be replaced anyhow: then its end is held against no item.
    """

    exit_code = 4

    def __init__(self, message: str, planned: bool = False) -> None:
        super().__init__(message)
        self.planned = planned


class ItemError(PipelineError):
    """One item failed for a reason of the register; never stops the run."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.reason = REASONS[code]
        self.message = message

    @property
    def code(self) -> str:
        return self.reason.code

    def __reduce__(self) -> tuple[type[ItemError], tuple[str, str]]:
        return ItemError, (self.code, self.message)


def nearest(name: str, valid: Iterable[str]) -> str:
    """Return `'; did you mean "x"?'` for the valid name closest to `name`, or all valid names."""
    names = sorted(valid)
    close = get_close_matches(name, names, n=1, cutoff=0.5)
    return f'; did you mean "{close[0]}"?' if close else f"; valid names: {', '.join(names)}"
