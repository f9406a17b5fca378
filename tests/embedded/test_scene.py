"""Scenes and their right answers."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from pipeline.embedded.scene import LONGEST_S, SHORTEST_S, Event, Scene, draw_scene, with_sound_of
from pipeline.embedded.truth import LABELS, named_seconds, truth, verdict

SCENES = [draw_scene(seed) for seed in range(1500)]


def scene(**changes: object) -> Scene:
    """Return a scene of 10 s with a still picture track and a quiet sound track."""
    given: dict[str, object] = {
        "seed": 1,
        "sound_seed": 1,
        "duration_s": 10.0,
        "sound": True,
        "pictures": True,
        "still": False,
        "silent": False,
        "width": 320,
        "height": 180,
        "frame_rate_hz": 10.0,
        "events": (),
        "beside_sound": ("noise",),
        "beside_pictures": (),
    }
    return Scene(**(given | changes))  # type: ignore[arg-type]


def test_a_seed_gives_the_same_scene_and_another_seed_another() -> None:
    assert draw_scene(5) == draw_scene(5)
    assert draw_scene(5) != draw_scene(6)


def test_every_label_and_verdict_is_common_enough_to_be_learnt_and_measured() -> None:
    labels = Counter(label for one in SCENES for label in truth(one).starts_s)
    verdicts = Counter(truth(one).verdict for one in SCENES)
    assert set(labels) == set(LABELS)
    assert min(labels.values()) > 0.08 * len(SCENES)
    assert min(verdicts.values()) > 0.12 * len(SCENES)


def test_scenes_have_every_kind_of_track_and_length() -> None:
    kinds = Counter((one.sound, one.pictures, one.still) for one in SCENES)
    assert len(kinds) == 4
    moving = [one.duration_s for one in SCENES if not one.still]
    assert min(moving) < SHORTEST_S + 0.5 and max(moving) > LONGEST_S - 5
    assert all(SHORTEST_S <= length_s <= LONGEST_S for length_s in moving)


def test_events_lie_within_the_recording_and_seen_ones_before_the_dark() -> None:
    for one in SCENES:
        dark = one.first("dark")
        for event in one.events:
            assert 0 <= event.start_s < event.end_s <= one.duration_s + 0.01 or one.still
            if dark is not None and event.label in ("flashing", "motion"):
                assert event.end_s <= dark.start_s + 0.01


@pytest.mark.parametrize(
    ("labels", "changes", "expected"),
    [
        ({"alarm", "flashing"}, {}, "reject"),
        ({"bang", "motion", "dark"}, {}, "reject"),
        ({"alarm", "speech"}, {}, "review"),
        ({"flashing"}, {}, "review"),
        ({"dark", "speech"}, {}, "review"),
        ({"speech"}, {}, "pass"),
        (set(), {"silent": True}, "pass"),
        (set(), {"silent": True, "pictures": False}, "review"),
        (set(), {"sound": False, "pictures": False}, "review"),
        (set(), {"sound": False}, "pass"),
    ],
)
def test_the_rule_needs_both_senses(labels: set[str], changes: dict[str, object], expected: str) -> None:
    assert verdict(labels, scene(**changes)) == expected  # type: ignore[arg-type]


def test_the_rationale_names_what_was_heard_and_seen_and_from_which_second() -> None:
    right = truth(scene(events=(Event("alarm", 3.7, 8.0), Event("motion", 0.2, 2.0), Event("dark", 9.1, 10.0))))
    assert right.rationale == "Heard: alarm from 3 s. Seen: motion from 0 s, dark from 9 s."
    assert named_seconds(right.rationale) == {"alarm": 3, "motion": 0, "dark": 9}
    assert truth(scene(silent=True)).rationale == "Heard: silence. Seen: nothing of note."
    assert truth(scene(sound=False)).rationale == "No sound. Seen: nothing of note."


def test_no_rationale_is_longer_than_the_policy_allows() -> None:
    assert max(len(truth(one).rationale) for one in SCENES) <= 160


def test_the_answer_is_compact_json_with_the_labels_first() -> None:
    answer = truth(scene(events=(Event("bang", 1.0, 1.5),))).answer()
    assert ": " not in answer.split('"rationale"')[0]
    parsed = json.loads(answer)
    assert list(parsed) == ["labels", "verdict", "rationale"]
    assert parsed["labels"]["bang"] is True and parsed["verdict"] == "review"


def test_swapping_the_sound_keeps_the_pictures() -> None:
    seen = scene(events=(Event("alarm", 1.0, 4.0), Event("flashing", 2.0, 6.0)))
    other = scene(seed=2, sound_seed=2, silent=True, events=(Event("motion", 1.0, 3.0),), beside_sound=())
    swapped = with_sound_of(seen, other)
    assert (swapped.seed, swapped.sound_seed, swapped.silent) == (1, 2, True)
    assert {event.label for event in swapped.events} == {"flashing"}
    assert (truth(seen).verdict, truth(swapped).verdict) == ("reject", "review")
