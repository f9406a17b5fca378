"""The account of media tokens: what a prompt must hold, what it holds, and the refusal to answer if they differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.errors import ItemError


@dataclass(frozen=True, slots=True)
class MediaTokens:
    """Prompt tokens that stand for sound and for pictures."""

    audio: int
    video: int


@dataclass(frozen=True, slots=True)
class PlaceholderIds:
    """Token ids that stand for media in the checkpoint's vocabulary."""

    audio: int
    image: int
    video: int


def placeholder_ids(hf_config: Any) -> PlaceholderIds:
    """Return the ids from a Qwen3-Omni configuration, whole or its thinker's."""
    thinker = getattr(hf_config, "thinker_config", hf_config)
    return PlaceholderIds(thinker.audio_token_id, thinker.image_token_id, thinker.video_token_id)


def count_media_tokens(token_ids: Sequence[int], ids: PlaceholderIds) -> MediaTokens:
    """Return how many tokens of a prompt stand for sound and for pictures."""
    counts = Counter(token_ids)
    return MediaTokens(counts[ids.audio], counts[ids.image] + counts[ids.video])


def check_tokens(found: MediaTokens, expected: MediaTokens) -> None:
    """Raise ItemError `token_mismatch` if a prompt holds other media than it was made of."""
    if found != expected:
        raise ItemError(
            "token_mismatch",
            f"the prompt holds {found.audio} audio and {found.video} picture tokens, "
            f"planned were {expected.audio} and {expected.video}",
        )
