"""Turns a checkpoint's raw confidences into calibrated ones by temperatures that were fitted for it.

`calibration.json` beside the weights holds them. They count for the policy they were fitted with and for no other.
"""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Literal

from pydantic import Field

from pipeline.policy import Policy, prompt_digest
from pipeline.records import Answer
from pipeline.settings_io import Settings, read_json, validate

CALIBRATION_FILE = "calibration.json"
# As for raw confidences: neither certainty can be claimed.
_LEAST_DOUBT = 1e-6


class Calibration(Settings):
    """What was fitted; a temperature above 1 makes a confidence less extreme."""

    version: Literal[1]
    """Version of this file's format."""
    verdict_temperature: float = Field(gt=0)
    """Divides the log-odds of a verdict's raw confidence."""
    label_temperature: float = Field(gt=0)
    """Divides the log-odds of a label's raw confidence."""
    clips: int = Field(ge=1)
    """How many clips it was fitted on."""
    policy_sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """The `prompt_digest` of the policy it was fitted with."""


def read_calibration(folder: Path) -> Calibration | None:
    """Return the calibration in a checkpoint folder, None if it has none. Raises JobError naming file and key."""
    path = folder / CALIBRATION_FILE
    data = read_json(path, "calibration")
    return None if data is None else validate(Calibration, data, f"calibration {path}")


def fitting(calibration: Calibration | None, policy: Policy) -> Calibration | None:
    """Return the calibration if it was fitted with this policy, else None."""
    fits = calibration is not None and calibration.policy_sha256 == prompt_digest(policy)
    return calibration if fits else None


def calibrated(answer: Answer, calibration: Calibration | None) -> Answer:
    """Return the answer with calibrated confidences; as it is without a calibration."""
    if calibration is None:
        return answer
    labels = tuple(
        replace(label, confidence=_cooled(label.confidence, calibration.label_temperature)) for label in answer.labels
    )
    return replace(answer, confidence=_cooled(answer.confidence, calibration.verdict_temperature), labels=labels)


def _cooled(raw: float, temperature: float) -> float:
    """Return sigmoid(logit(raw) / temperature), kept off 0 and 1."""
    share = min(max(raw, _LEAST_DOUBT), 1.0 - _LEAST_DOUBT)
    odds = math.exp(-abs(math.log(share / (1.0 - share)) / temperature))
    likelier = 1.0 / (1.0 + odds)
    return min(max(likelier if share >= 0.5 else 1.0 - likelier, _LEAST_DOUBT), 1.0 - _LEAST_DOUBT)
