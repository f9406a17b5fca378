"""Reason codes are a contract: dashboards count them, and the next run's choice of items rests on them."""

from __future__ import annotations

import pickle

import pytest

from pipeline.errors import REASONS, ItemError, nearest

RETRYABLE = {
    *("source_missing", "source_unreadable", "probe_timeout", "decode_timeout", "answer_truncated"),
    *("answer_unparsable", "engine_lost", "front_end_lost", "deadline", "internal_error"),
}
PERMANENT = {
    *("source_not_a_file", "empty_file", "not_media", "playlist_refused", "no_media_streams", "unsupported_codec"),
    *("encrypted", "too_many_pixels", "recording_too_long", "decode_failed", "decoder_limit", "audio_lost"),
    *("video_lost", "prompt_too_long", "render_failed", "token_mismatch", "engine_rejected", "engine_killed"),
}
DEGRADED = {"doubtful_format", "partial_decode", "tracks_ignored", "partial_coverage", "reduced_look"}
ANSWERED = {*DEGRADED, "sound_mended", "wrong_duration", "colour_unconverted", "extras_ignored", "low_confidence"}


def test_no_code_goes_away_or_changes_what_it_means_for_the_next_run() -> None:
    """A new code may be added here; an old one may not be taken out: outputs of former versions hold it."""
    assert {reason.code for reason in REASONS.values() if reason.failure and reason.retryable} == RETRYABLE
    assert {reason.code for reason in REASONS.values() if reason.failure and not reason.retryable} == PERMANENT
    assert {reason.code for reason in REASONS.values() if not reason.failure} == ANSWERED
    assert {reason.code for reason in REASONS.values() if reason.degrades} == DEGRADED


@pytest.mark.parametrize("code", sorted(REASONS))
def test_every_code_says_what_it_means_and_what_to_do(code: str) -> None:
    reason = REASONS[code]
    assert reason.code == code
    assert reason.meaning.endswith(".") and reason.action.endswith(".")


def test_an_item_error_survives_the_way_from_a_worker() -> None:
    error = pickle.loads(pickle.dumps(ItemError("not_media", "a text")))
    assert (error.code, error.message, error.reason) == ("not_media", "a text", REASONS["not_media"])


def test_an_error_without_a_code_of_the_register_cannot_be_raised() -> None:
    with pytest.raises(KeyError):
        ItemError("something", "x")


def test_the_nearest_name_is_offered_and_else_all() -> None:
    assert nearest("decode_fail", ["decode_failed", "deadline"]) == '; did you mean "decode_failed"?'
    assert nearest("x", ["b", "a"]) == "; valid names: a, b"
