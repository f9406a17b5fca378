"""The two front ends that `bench.front_end` compares, each in a process of its own: `... ours` or `... peer FOLDER`.

For a clip and a look both answer with the CPU seconds (own and of ended children, user and system) that it took from
the file to the prompt that the engine gets, all together and by phase, and the prompt's tokens.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from bench import peers, sides
from bench.looks import LOOKS, Look
from bench.worker import Worker, item_of
from pipeline.media.process import cpu_s
from pipeline.records import JsonObject
from pipeline.work import Work

_BUDGET_S = 600.0
T = TypeVar("T")


class Meter:
    """CPU seconds by phase, of one clip."""

    def __init__(self) -> None:
        self.phases: dict[str, float] = {}

    def timed(self, phase: str, step: Callable[[], T]) -> T:
        begun = cpu_s()
        try:
            return step()
        finally:
            self.phases[phase] = self.phases.get(phase, 0.0) + cpu_s() - begun


class Ours:
    """The project's front end, as its workers run it."""

    def __init__(self, dtype: str) -> None:
        self._options = [f"model.dtype={dtype}"]
        self._workers: dict[str, Worker] = {}
        self._meter = Meter()
        wall_timed = Work.timed

        def timed(work: Work, phase: str, step: Callable[[], T]) -> T:
            return self._meter.timed(phase.removesuffix("_s"), lambda: wall_timed(work, phase, step))

        Work.timed = timed  # type: ignore[assignment, method-assign]

    def answer(self, look: Look, clip: str) -> JsonObject:
        if look.name not in self._workers:
            self._workers[look.name] = Worker([*look.options(), *self._options])
        self._meter = Meter()
        begun = cpu_s()
        prepared, prompt = self._workers[look.name].front_end.prepare(item_of(os.fsencode(clip)), "bench", _BUDGET_S)
        spent = cpu_s() - begun
        if prompt is None:
            raise SystemExit(f"{clip}: {prepared.error_code}: {prepared.error_message}")
        return {"cpu_s": spent, "phases": self._meter.phases, "tokens": prepared.prompt_tokens}


class Peer:
    """The cookbook's way: qwen-omni-utils loads a clip, and what `LLM.generate` does before the engine's first step.

    It has vLLM's and Hugging Face's processors, and the number of threads, as they come.
    """

    def __init__(self, folder: Path, dtype: str) -> None:
        self._prompt = peers.prompt(folder)
        from vllm import EngineArgs
        from vllm.renderers import renderer_from_config

        from pipeline.job import EMBEDDED_PATH

        arguments: dict[str, Any] = {"model": str(EMBEDDED_PATH), "dtype": dtype, "max_model_len": 32_768}
        arguments |= {"limit_mm_per_prompt": {"audio": 1, "video": 1, "image": 1}, "mm_processor_cache_gb": 0}
        arguments |= {"enable_prefix_caching": False, "enforce_eager": True, "skip_mm_profiling": True}
        self._config = EngineArgs(**arguments).create_engine_config()
        self._renderer = renderer_from_config(self._config)

    def answer(self, look: Look, clip: str) -> JsonObject:
        meter, begun = Meter(), cpu_s()
        prompt = meter.timed("load", lambda: self._loaded(look, clip))
        rendered = meter.timed("render", lambda: self._rendered(prompt))
        spent = cpu_s() - begun
        return {"cpu_s": spent, "phases": meter.phases, "tokens": len(rendered["prompt_token_ids"])}

    def _loaded(self, look: Look, clip: str) -> JsonObject:
        from qwen_omni_utils import process_mm_info

        content = [{"type": "video", "video": clip, **look.of_the_peer()}, {"type": "text", "text": "verdict?"}]
        audios, _, videos = process_mm_info([{"role": "user", "content": content}], use_audio_in_video=True)
        data = {"audio": audios, "video": videos}
        return {"prompt": self._prompt, "multi_modal_data": data, "mm_processor_kwargs": {"use_audio_in_video": True}}

    def _rendered(self, prompt: JsonObject) -> Any:
        from vllm.renderers.inputs.preprocess import parse_model_prompt

        parsed = parse_model_prompt(self._config.model_config, prompt)
        (ready,) = self._renderer.render_cmpl([parsed], self._renderer.default_cmpl_tok_params)
        return ready


def _make() -> Callable[[JsonObject], JsonObject]:
    which, dtype, *folder = sys.argv[1:]
    side: Ours | Peer = Ours(dtype) if which == "ours" else Peer(Path(folder[0]), dtype)
    return lambda asked: side.answer(LOOKS[asked["look"]], asked["clip"])


if __name__ == "__main__":
    sides.serve(_make)
