"""Fits the temperatures that make the embedded model's confidences mean something, on scenes it was not trained on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy import optimize

from pipeline.atomic import write_json_atomic
from pipeline.calibration import CALIBRATION_FILE
from pipeline.embedded.exam import Examiner
from pipeline.embedded.scene import draw_scene
from pipeline.embedded.sounds import Voices
from pipeline.embedded.truth import truth
from pipeline.policy import prompt_digest

CALIBRATION_SEEDS = 200_000
CLIPS = 800
_NEAR = 1e-6


def calibrate(folder: Path, examiner: Examiner, voices: Voices, clips: int = CLIPS) -> None:
    """Write `calibration.json` into the checkpoint."""
    scenes = [draw_scene(CALIBRATION_SEEDS + number) for number in range(clips)]
    answers = examiner.answers(examiner.prompt(scene, voices) for scene in scenes)
    verdicts: list[tuple[float, bool]] = []
    labels: list[tuple[float, bool]] = []
    for scene, answer in zip(scenes, answers, strict=True):
        right = truth(scene)
        verdicts.append((answer.confidence, answer.verdict == right.verdict))
        labels += [(label.confidence, label.present == (label.id in right.starts_s)) for label in answer.labels]
    fitted = {
        "version": 1,
        "verdict_temperature": temperature(verdicts),
        "label_temperature": temperature(labels),
        "clips": clips,
        "policy_sha256": prompt_digest(examiner.resolved.policy),
    }
    write_json_atomic(folder / CALIBRATION_FILE, fitted)


def temperature(judged: Sequence[tuple[float, bool]]) -> float:
    """Return the temperature under which (confidence, was it right) pairs are likeliest; between 0.2 and 10.

    Temperature scaling: Guo et al. 2017, "On Calibration of Modern Neural Networks", section 4.2.
    """
    confidence = np.clip([sure for sure, _ in judged], _NEAR, 1 - _NEAR)
    right = np.array([hit for _, hit in judged])
    logits = np.log(confidence / (1 - confidence))

    def surprise(log_temperature: float) -> float:
        scaled = logits / np.exp(log_temperature)
        return float(np.mean(np.logaddexp(0.0, np.where(right, -scaled, scaled))))

    found = optimize.minimize_scalar(surprise, bounds=(np.log(0.2), np.log(10.0)), method="bounded")
    return round(float(np.exp(found.x)), 4)
