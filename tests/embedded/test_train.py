"""Training on the real model, a few steps of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from pipeline.embedded.build import build
from pipeline.embedded.calibrate import temperature
from pipeline.embedded.train import Course, _work

pytestmark = pytest.mark.engine

COURSE = Course(steps=4, tokens_a_step=600, short_share=1.0)


def _train(folder: Path, state: Path, last: int) -> dict[str, torch.Tensor]:
    meeting = state.with_name(f"{state.name}-meeting-{last}")
    _work(0, 1, meeting, folder, state, COURSE, None, last)
    weights: dict[str, torch.Tensor] = torch.load(state, weights_only=True)["model"]
    return weights


def test_a_training_that_was_stopped_ends_like_one_that_was_not(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    build(folder)
    straight = _train(folder, tmp_path / "straight.pt", 4)
    halfway = _train(folder, tmp_path / "stopped.pt", 2)
    resumed = _train(folder, tmp_path / "stopped.pt", 4)
    assert straight.keys() == resumed.keys()
    assert not all(torch.equal(halfway[name], straight[name]) for name in straight)
    for name, value in straight.items():
        torch.testing.assert_close(resumed[name], value, msg=name)


@pytest.mark.parametrize("true_temperature", [0.5, 1.0, 2.5])
def test_the_temperature_of_confidences_is_found_again(true_temperature: float) -> None:
    rng = torch.Generator().manual_seed(1)
    logits = torch.randn(20_000, generator=rng).abs() * 3
    right = torch.rand(20_000, generator=rng) < torch.sigmoid(logits / true_temperature)
    judged = list(zip(torch.sigmoid(logits).tolist(), right.tolist(), strict=True))
    assert temperature(judged) == pytest.approx(true_temperature, rel=0.1)
