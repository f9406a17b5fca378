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
from pipeline.job import EMBEDDED_PATH

SEEDS = 700_000
# Largest difference of the confidence that is taken, by the numbers the model runs in.
_LIMITS = {"float32": 0.005, "bfloat16": 0.03}


def compare(dtype: str, clips: int, folder: Path) -> list[Figure]:
    """Return how vLLM and transformers agree in one kind of numbers."""
    voices = voices_of(load_recordings(default_cache()).held_out)
    examiner = Examiner(folder, [f"model.dtype={dtype}"])
    try:
        prompts = [examiner.prompt(draw_scene(SEEDS + number), voices) for number in range(clips)]
        answers = examiner.answers(prompts)
    finally:
        examiner.close()
    reference = Reference(folder, getattr(torch, dtype))
    opinions = [reference.opinion(prompt) for prompt in prompts]
    same = [answer.verdict == opinion.verdict for answer, opinion in zip(answers, opinions, strict=True)]
    apart = [
        abs(answer.confidence - opinion.confidence)
        for answer, opinion, agreed in zip(answers, opinions, same, strict=True)
        if agreed
    ]
    share, limit = sum(same) / clips, _LIMITS[dtype]
    return [
        Figure(f"same_verdict_{dtype}", share, f"of {clips}", ">= 0.99", share >= 0.99),
        Figure(f"largest_difference_{dtype}", max(apart), "of the confidence", f"<= {limit}", max(apart) <= limit),
        Figure(f"mean_difference_{dtype}", sum(apart) / len(apart), "of the confidence"),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.agreement", description=__doc__)
    parser.add_argument("--clips", type=int, default=200)
    parser.add_argument("--model", type=Path, default=EMBEDDED_PATH, help="folder of the checkpoint")
    options = parser.parse_args()
    return report("agreement", [one for dtype in _LIMITS for one in compare(dtype, options.clips, options.model)])


if __name__ == "__main__":
    sys.exit(main())
