"""Chooses and writes the embedded model's known-answer clips: what is in them is known because we put it there."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from pipeline.canary import CANARY_FILE
from pipeline.embedded.exam import Examiner, labels_right
from pipeline.embedded.files import write_clip
from pipeline.embedded.scene import Scene, draw_scene, without_pictures
from pipeline.embedded.sounds import Voices
from pipeline.embedded.truth import Truth, truth
from pipeline.policy import prompt_digest

CANARY_SEEDS = 300_000
_SURE = 0.9
_LARGEST_BYTES = 160_000
_TRIES = 4000
_SMALL: dict[str, Any] = {"width": 192, "height": 108, "frame_rate_hz": 7.5}


@dataclass(frozen=True, slots=True)
class _Wanted:
    """A kind of clip: its name, its length, what must be in it, and whether it goes without pictures."""

    name: str
    shortest_s: float
    longest_s: float
    fits: Callable[[Scene, Truth], bool]
    sound_only: bool = False


def _with(*labels: str) -> Callable[[Scene, Truth], bool]:
    return lambda scene, right: scene.sound and scene.pictures and set(right.starts_s) == set(labels)


def _late_alarm(scene: Scene, right: Truth) -> bool:
    alarm = scene.first("alarm")
    return set(right.starts_s) == {"alarm"} and alarm is not None and alarm.start_s > 30.5


_WANTED = (
    _Wanted("alarm_and_flashing", 4.0, 9.0, _with("alarm", "flashing")),
    _Wanted("bang_and_motion", 4.0, 9.0, _with("bang", "motion")),
    _Wanted("speech_then_dark", 5.0, 9.0, _with("speech", "dark")),
    _Wanted("speech", 3.0, 7.0, _with("speech")),
    _Wanted("flashing_late", 12.0, 18.0, lambda s, r: _with("flashing")(s, r) and r.starts_s["flashing"] >= 8),
    _Wanted("alarm_after_30_s", 34.0, 40.0, _late_alarm, sound_only=True),
)


def write_canaries(folder: Path, examiner: Examiner, voices: Voices) -> None:
    """Write the clips and their list into the checkpoint; each is one that the model gets right.

    Raises RuntimeError if none of many does.
    """
    target = folder / CANARY_FILE.parent
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir()
    clips = [_choose(wanted, target, examiner, voices) for wanted in _WANTED]
    listing = {"policy_sha256": prompt_digest(examiner.resolved.policy), "clips": clips}
    text = yaml.safe_dump(listing, sort_keys=False)
    (folder / CANARY_FILE).write_text(f"# Written by python -m pipeline.embedded.\n{text}", encoding="utf-8")


def _choose(wanted: _Wanted, target: Path, examiner: Examiner, voices: Voices) -> dict[str, object]:
    for seed in range(CANARY_SEEDS, CANARY_SEEDS + _TRIES):
        scene = draw_scene(seed, wanted.longest_s, wanted.shortest_s)
        scene = without_pictures(scene) if wanted.sound_only else replace(scene, **_SMALL)
        right = truth(scene)
        if not wanted.fits(scene, right):
            continue
        with tempfile.TemporaryDirectory(dir=target) as scratch:
            path = write_clip(scene, voices, Path(scratch))
            if path.stat().st_size > _LARGEST_BYTES:
                continue
            (answer,) = examiner.answers([examiner.prompt_of_file(path)])
            if labels_right(right, answer) and answer.confidence >= _SURE:
                path.rename(target / f"{wanted.name}{path.suffix}")
                return {"path": f"{wanted.name}{path.suffix}", "verdict": right.verdict, "labels": dict(right.labels)}
    raise RuntimeError(f"the model gets no clip of the kind {wanted.name} right")
