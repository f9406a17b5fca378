"""Calibration: what it does to confidences, where it counts, and that a file with a mistake is refused by its key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.calibration import CALIBRATION_FILE, Calibration, calibrated, fitting, read_calibration
from pipeline.errors import JobError
from pipeline.policy import prompt_digest
from pipeline.records import Answer, Label
from tests.test_policy import policy

CONTENT: dict[str, Any] = {
    "version": 1,
    "verdict_temperature": 2.0,
    "label_temperature": 0.5,
    "clips": 40,
    "policy_sha256": "0" * 64,
}


def calibration(**changes: Any) -> Calibration:
    return Calibration.model_validate(CONTENT | changes)


def answer(confidence: float) -> Answer:
    return Answer("pass", confidence, (Label("alarm", True, confidence),), "x")


def test_a_confidence_is_the_sigmoid_of_its_log_odds_over_the_temperature() -> None:
    found = calibrated(answer(0.9), calibration())
    assert found.confidence == pytest.approx(0.75)  # odds of 9 to 1, square root taken
    assert found.labels[0].confidence == pytest.approx(81 / 82)  # squared
    assert (found.verdict, found.rationale, found.labels[0].present) == ("pass", "x", True)


def test_a_temperature_of_one_and_no_calibration_change_nothing() -> None:
    same = calibrated(answer(0.3), calibration(verdict_temperature=1, label_temperature=1))
    assert same.confidence == pytest.approx(0.3)
    assert calibrated(answer(0.3), None) == answer(0.3)


@given(st.floats(0, 1), st.floats(0, 1), st.floats(min_value=0, exclude_min=True, allow_infinity=False))
def test_a_calibrated_confidence_is_a_share_off_0_and_1_on_the_same_side_and_in_the_same_order(
    one: float, other: float, temperature: float
) -> None:
    cooling = calibration(verdict_temperature=temperature)
    low, high = (calibrated(answer(share), cooling).confidence for share in sorted((one, other)))
    assert 0 < low <= high < 1
    assert low <= 0.5 or min(one, other) >= 0.5
    assert high >= 0.5 or max(one, other) <= 0.5


def test_a_calibration_fits_the_policy_it_was_fitted_with_and_no_other() -> None:
    own = calibration(policy_sha256=prompt_digest(policy()))
    assert fitting(own, policy(version="2")) is own
    assert fitting(own, policy(question="Is it loud?")) is None
    assert fitting(None, policy()) is None


def test_a_checkpoint_without_the_file_has_no_calibration(tmp_path: Path) -> None:
    assert read_calibration(tmp_path) is None
    (tmp_path / CALIBRATION_FILE).write_text(json.dumps(CONTENT), encoding="utf-8")
    assert read_calibration(tmp_path) == calibration()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, '"version"'),
        ({"verdict_temperature": 0}, '"verdict_temperature"'),
        ({"label_temperature": float("nan")}, '"label_temperature"'),
        ({"label_temperature": float("inf")}, '"label_temperature"'),
        ({"clips": 0}, '"clips"'),
        ({"policy_sha256": "ab"}, '"policy_sha256"'),
        ({"verdict_temprature": 1}, 'did you mean "verdict_temperature"?'),
    ],
)
def test_a_wrong_value_is_refused_by_file_and_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    path = tmp_path / CALIBRATION_FILE
    path.write_text(json.dumps(CONTENT | changes), encoding="utf-8")
    with pytest.raises(JobError) as caught:
        read_calibration(tmp_path)
    assert str(path) in str(caught.value) and message in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "[" * 100_000, "\xff"])
def test_a_file_that_is_no_json_object_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / CALIBRATION_FILE).write_bytes(text.encode("latin-1"))
    with pytest.raises(JobError, match=r"calibration .*calibration\.json"):
        read_calibration(tmp_path)


def test_an_empty_object_is_not_taken_for_no_calibration(tmp_path: Path) -> None:
    (tmp_path / CALIBRATION_FILE).write_text("{}", encoding="utf-8")
    with pytest.raises(JobError, match='missing key "version"'):
        read_calibration(tmp_path)
