"""What a recording lacks is found in each sense, and a claim that does not hold is no loss by itself."""

from __future__ import annotations

import pytest

from pipeline.media.completeness import Found, completeness
from pipeline.records import AudioStream, MediaFacts, Plan, VideoStream, Window

SOUND = AudioStream(1, "aac", 48_000, 2, 0.0, 10.0)
PICTURES = VideoStream(0, "h264", 64, 64, 25.0, 0.0, 10.0)


def facts(
    audio: AudioStream | None = SOUND, video: VideoStream | None = PICTURES, container: str = "mov"
) -> MediaFacts:
    return MediaFacts("av", container, 10.0, audio, video)


def plan(*windows: Window, duration_known: bool = True) -> Plan:
    return Plan(windows or (Window(0.0, 10.0),), duration_known, True, 20, 2.0, 64, 64, 130, 40, 1.0)


def late(stream: AudioStream, start_s: float, duration_s: float) -> AudioStream:
    return AudioStream(stream.index, stream.codec, stream.sample_rate_hz, stream.channels, start_s, duration_s)


@pytest.mark.parametrize(
    ("found", "share", "said", "holds"),
    [
        (Found([10.0], [10.0], 10.0), 1.0, None, True),
        (Found([9.6], [10.0], 9.6), 1.0, None, True),
        (Found([4.0], [4.0], 4.0), 0.4, "ended early: 4.0 s of 10.0 s", False),
        (Found([10.5], [10.0], 10.5), 1.0, "goes on beyond", False),
        (Found([10.0], [1.0], 10.0), 0.1, "1.0 s of 10.0 s of pictures", True),
        (Found([10.0], [10.0], 3.0), 0.3, "3.0 s of 10.0 s of sound", True),
        (Found([10.0], [10.0], None), 1.0, None, True),
    ],
)
def test_a_loss_in_one_sense_is_a_loss(found: Found, share: float, said: str | None, holds: bool) -> None:
    complete = completeness(facts(), plan(), found)
    assert complete.share == pytest.approx(share) and complete.claim_holds is holds
    assert (said is None and not complete.losses) or (said is not None and said in complete.losses[0])


def test_a_track_that_claims_less_than_the_recording_lacks_nothing() -> None:
    short = late(SOUND, 2.0, 3.0)
    assert completeness(facts(short), plan(), Found([5.0], [10.0], 3.0)).losses == ()


def test_what_a_container_claims_for_all_its_tracks_is_no_claim_of_one() -> None:
    found = Found([3.0], [10.0], 3.0)
    assert completeness(facts(), plan(), found).share == pytest.approx(0.3)
    assert completeness(facts(container="asf"), plan(), found).share == 1.0


def test_an_empty_window_is_said_and_makes_the_claim_doubtful() -> None:
    windows = (Window(0.0, 2.0), Window(4.0, 2.0), Window(8.0, 2.0))
    complete = completeness(facts(), plan(*windows), Found([2.0, 0.0, 2.0], [2.0, 0.0, 2.0], 4.0))
    assert not complete.claim_holds and complete.share == pytest.approx(4 / 6)
    assert "1 of 3 windows gave nothing." in complete.losses


def test_without_a_claim_nothing_is_lost() -> None:
    silent, still = late(SOUND, 0.0, 0.0), PICTURES
    unknown = MediaFacts("av", "mpegts", None, AudioStream(1, "aac", 48_000, 2, 0.0, None), None)
    assert completeness(unknown, plan(duration_known=False), Found([4.0], [0.0], 4.0)).losses == ()
    assert completeness(facts(silent, still), plan(), Found([10.0], [10.0], 10.0)).losses == ()
