"""Silero's detector through the project's own decoding: speech is speech, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from pipeline.job import Media
from pipeline.media.decode import decode
from pipeline.media.plan import plan
from pipeline.media.probe import probe
from pipeline.media.speech import SpeechDetector

pytestmark = pytest.mark.engine  # torch comes with the engine

CLIPS = Path(__file__).parents[2] / "jobs" / "demo" / "clips"


@pytest.fixture(scope="module")
def detector() -> SpeechDetector:
    return SpeechDetector()


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [
        ("speech_english.mp3", 0.5, 0.9),
        ("speech_chinese.flac", 0.6, 1.0),
        ("voice_note.mp4", 0.6, 1.0),
        ("alarm.wav", 0.0, 0.05),
        ("flash_and_bang.mp4", 0.0, 0.05),
        ("siren_and_motion.webm", 0.0, 0.05),
    ],
)
def test_speech_is_found_and_nothing_else(detector: SpeechDetector, name: str, least: float, most: float) -> None:
    path = os.fsencode(CLIPS / name)
    facts = probe(path, 10.0)
    share = detector.share(decode(path, facts, plan(facts, Media(), 8000), 60.0).pcm)
    assert share is not None and least <= share <= most


def test_one_recording_leaves_nothing_for_the_next(detector: SpeechDetector) -> None:
    noise = (0.1 * np.random.default_rng(1).standard_normal(32_000)).astype(np.float32)
    first = detector.share(noise)
    path = os.fsencode(CLIPS / "voice_note.mp4")
    facts = probe(path, 10.0)
    detector.share(decode(path, facts, plan(facts, Media(), 8000), 60.0).pcm)
    assert detector.share(noise) == first == 0.0
    assert detector.share(noise[:511]) is None
