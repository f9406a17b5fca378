"""Whether vLLM answers as transformers does: `python -m bench.agreement [--clips 200]`.

The same rendered prompts go through vLLM's engine and through transformers, in float32 and in bfloat16.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from bench.result import Figure, report
from pipeline.embedded.exam import Examiner
from pipeline.embedded.recordings import default_cache, load_recordings
from pipeline.embedded.reference import Reference
from pipeline.embedded.scene import draw_scene
from pipeline.embedded.sounds import voices_of
from pipeline.errors import JobError
from pipeline.job import EMBEDDED_PATH
from pipeline.verdict import parse_answer, verdict_probability

SEEDS = 700_000
# Largest difference of the verdict's probability that is taken, by the numbers the model runs in.
_LIMITS = {"float32": 0.005, "bfloat16": 0.03}


def compare(dtype: str, clips: int, folder: Path) -> list[Figure]:
    """Return how vLLM and transformers agree in one kind of numbers."""
    voices = voices_of(load_recordings(default_cache()).held_out)
    examiner = Examiner(folder, [f"model.dtype={dtype}"])
    try:
        prompts = [examiner.prompt(draw_scene(SEEDS + number), voices) for number in range(clips)]
        completions = examiner.completions(prompts)
        answers = [parse_answer(completion, examiner.resolved.policy) for completion in completions]
    finally:
        examiner.close()
    reference = Reference(folder, getattr(torch, dtype))
    opinions = [reference.opinion(prompt) for prompt in prompts]
    same = [k for k in range(clips) if answers[k].verdict == opinions[k].verdict]
    apart = [abs(verdict_probability(completions[k], answers[k].verdict) - opinions[k].probability) for k in same]
    least_apart = [abs(answers[k].confidence - opinions[k].confidence) for k in same]
    share, limit = len(same) / clips, _LIMITS[dtype]
    return [
        Figure(f"same_verdict_{dtype}", share, f"of {clips}", ">= 0.99", share >= 0.99),
        Figure(f"largest_difference_{dtype}", max(apart), "of the verdict", f"<= {limit}", max(apart) <= limit),
        Figure(f"largest_difference_confidence_{dtype}", max(least_apart), "of the least finding"),
        Figure(f"mean_difference_confidence_{dtype}", sum(least_apart) / len(same), "of the least finding"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.agreement", description=__doc__)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--model", type=Path, default=EMBEDDED_PATH, help="folder of the checkpoint")
    options = parser.parse_args()
    try:
        found = [one for dtype in _LIMITS for one in compare(dtype, options.clips, options.model)]
    except JobError as error:
        print(f"bench.agreement: {error}", file=sys.stderr)
        return 2
    return report("agreement", found)


if __name__ == "__main__":
    sys.exit(main())
