"""The embedded model asked in this process: the demo job's front end and engine, without Ray and without rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.embedded.build import DEMO_JOB
from pipeline.embedded.examples import prompt_of_file, rendered
from pipeline.embedded.scene import Scene
from pipeline.embedded.sounds import Voices
from pipeline.embedded.truth import Truth, named_seconds
from pipeline.engine.vllm import VllmEngine
from pipeline.front_end import FrontEnd
from pipeline.hardware.environment import prepare_this_process
from pipeline.job import load_job
from pipeline.records import Answer, Completion
from pipeline.resolve import resolve
from pipeline.verdict import parse_answer

TOLERANCE_S = 2
"""A second named in a rationale is right within this of the event's beginning."""
_ANSWER_TIME_S = 300.0
_AT_ONCE = 32


class Examiner:
    """Asks the checkpoint in `folder`; `options` are overrides of the demo job. Close it when done."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        prepare_this_process("cpu")
        self.resolved = resolve(load_job(DEMO_JOB, [f"model.path={folder}", *options]))
        self.front_end = FrontEnd(self.resolved.front_end)
        self.engine = VllmEngine(self.resolved.engine, self.resolved.form)
        self._asked = 0

    def prompt(self, scene: Scene, voices: Voices) -> Any:
        """Return the scene's prompt, made in memory."""
        job, budget = self.resolved.job, self.resolved.token_budget
        return rendered(scene, self.front_end.renderer, job.media, budget, voices).prompt

    def prompt_of_file(self, path: Path) -> Any:
        """Return a file's prompt by the whole front end. Raises RuntimeError if the front end refuses it."""
        return prompt_of_file(path, self.front_end)

    def completions(self, prompts: Iterable[Any]) -> list[Completion]:
        """Return what the engine generates for each prompt, in their order."""
        done: list[Completion] = []
        batch: list[Any] = []
        for prompt in prompts:
            self._asked += 1
            batch.append(self.engine.submit(f"exam-{self._asked}", prompt))
            if len(batch) == _AT_ONCE:
                done += [self.engine.completion(future.result(_ANSWER_TIME_S)) for future in batch]
                batch = []
        return done + [self.engine.completion(future.result(_ANSWER_TIME_S)) for future in batch]

    def answers(self, prompts: Iterable[Any]) -> list[Answer]:
        """Return the answer to each prompt, its confidences as the model gives them (not calibrated)."""
        return [parse_answer(completion, self.resolved.policy) for completion in self.completions(prompts)]

    def close(self) -> None:
        self.engine.close()


def labels_right(right: Truth, answer: Answer) -> bool:
    """Return whether the verdict and every label are right."""
    found = {label.id for label in answer.labels if label.present}
    return answer.verdict == right.verdict and found == set(right.starts_s)


def wholly_right(right: Truth, answer: Answer) -> bool:
    """Return whether the verdict, every label and the second of every event are right."""
    named = named_seconds(answer.rationale)
    return labels_right(right, answer) and all(
        label in named and abs(named[label] - second) <= TOLERANCE_S for label, second in right.starts_s.items()
    )
