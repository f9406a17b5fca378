"""vLLM's engine and transformers answer the same prompts alike: two implementations, one model."""

from __future__ import annotations

import pytest
import torch

from pipeline.embedded.examples import rendered
from pipeline.embedded.reference import Reference
from pipeline.embedded.scene import draw_scene
from pipeline.embedded.sounds import Voices
from pipeline.engine.vllm import VllmEngine
from pipeline.front_end import FrontEnd
from pipeline.job import EMBEDDED_PATH
from pipeline.resolve import Resolved
from pipeline.verdict import parse_answer

pytestmark = pytest.mark.engine

SEEDS = range(810_000, 810_024)


def test_vllm_and_transformers_find_the_same_with_the_same_confidence(
    resolved: Resolved, front_end: FrontEnd, engine: VllmEngine
) -> None:
    media, budget = resolved.job.media, resolved.token_budget
    scenes = [draw_scene(seed, 20.0) for seed in SEEDS]
    prompts = [rendered(scene, front_end.renderer, media, budget, Voices()).prompt for scene in scenes]
    futures = [engine.submit(f"agreement-{number}", prompt) for number, prompt in enumerate(prompts)]
    answers = [parse_answer(engine.completion(future.result(120)), resolved.policy) for future in futures]
    reference = Reference(EMBEDDED_PATH, torch.float32)
    for scene, prompt, answer in zip(scenes, prompts, answers, strict=True):
        opinion = reference.opinion(prompt)
        assert answer.verdict == opinion.verdict, scene
        assert {label.id: label.present for label in answer.labels} == opinion.labels, scene
        assert answer.confidence == pytest.approx(opinion.confidence, abs=0.005), scene
