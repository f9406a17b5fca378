"""The plain way of `bench.parity`: qwen-omni-utils, then Hugging Face's processor, then transformers.

A process of its own (`python -m bench.plain_way CHECKPOINT`), which never renders a prompt by the project's means.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from bench import sides
from pipeline.embedded.examples import Inputs, inputs_from
from pipeline.embedded.reference import Reference
from pipeline.records import JsonObject

_PATCH_PIXELS = 16
_FRAMES_PER_GRID = 2


class PlainWay:
    """Answers of one file at a time by a checkpoint."""

    def __init__(self, folder: Path) -> None:
        self._reference = Reference(folder, torch.float32)
        from transformers import AutoProcessor

        self._processor: Any = AutoProcessor.from_pretrained(folder)

    def answer(self, asked: JsonObject) -> JsonObject:
        """Return what it says; `asked` holds path, part (audio, video or image), messages and the look at pictures."""
        inputs = self._inputs(asked, *_loaded(asked))
        opinion = self._reference.opinion_on(inputs)
        return {
            "verdict": opinion.verdict,
            "probability": opinion.probability,
            "confidence": opinion.confidence,
            "labels": sorted(name for name, present in opinion.labels.items() if present),
            "tokens": inputs.ids.tolist(),
        }

    def _inputs(self, asked: JsonObject, audios: Any, images: Any, videos: Any) -> Inputs:
        text = self._processor.apply_chat_template(asked["messages"], tokenize=False, add_generation_prompt=True)
        sizes = {"do_resize": False, "do_sample_frames": False, "fps": asked["rate_hz"]} if videos else {}
        made = self._processor(
            text=text,
            audio=audios,
            images=images,
            videos=videos,
            use_audio_in_video=bool(videos),
            return_tensors="pt",
            **(sizes or ({"do_resize": False} if images else {})),
        )
        features = None
        if audios:
            features = made["input_features"][0][:, made["feature_attention_mask"][0].bool()]
        ids, rope_index = made["input_ids"][0], self._reference.rope_index
        if videos:
            patches, grid = made["pixel_values_videos"], made["video_grid_thw"][0]
            seconds = _FRAMES_PER_GRID / asked["rate_hz"]
            return inputs_from(ids, features, patches, grid, rope_index, second_per_grid=seconds)
        if images:
            return inputs_from(ids, None, made["pixel_values"], made["image_grid_thw"][0], rope_index, image=True)
        return inputs_from(ids, features, None, None, rope_index)


def _loaded(asked: JsonObject) -> tuple[Any, Any, Any]:
    """Return sounds, pictures and videos. Raises ValueError if they have not the size and number asked for."""
    from qwen_omni_utils import fetch_image, process_audio_info

    part, width, height = asked["part"], asked["width"], asked["height"]
    told = {"type": part, part: asked["path"], "resized_width": width, "resized_height": height}
    audios = process_audio_info([{"role": "user", "content": [told]}], use_audio_in_video=True)
    if part == "video":
        video = _frames(told, asked["frames"], asked["rate_hz"])
        if tuple(video.shape) != (asked["frames"], 3, height, width):
            raise ValueError(f"{asked['path']}: {tuple(video.shape)} instead of {asked['frames']} of {width}x{height}")
        return audios, None, [video]
    if part == "image":
        picture = fetch_image(told, image_patch_size=_PATCH_PIXELS)
        if picture.size != (width, height):
            raise ValueError(f"{asked['path']}: {picture.size} instead of {width}x{height}")
        return None, [picture], None
    return audios, None, None


@dataclass(frozen=True, slots=True)
class Stretch:
    """So many frames, evenly spread from one second of a video to another, of which `kept` (from, to) are wanted."""

    frames: int
    start_s: float | None
    end_s: float | None
    kept: tuple[int, int | None] = (0, None)

    def told(self) -> JsonObject:
        """Return what is said of it to qwen-omni-utils; without seconds it takes the whole video."""
        if self.start_s is None or self.end_s is None:
            return {"nframes": self.frames}
        return {"nframes": self.frames, "video_start": self.start_s, "video_end": self.end_s}


def stretches(length_s: float, count: int, rate_hz: float) -> list[Stretch]:
    """Return where the frames at `k / rate_hz` seconds lie, `count` at most, of a video that ends after `length_s`.

    Of a whole video qwen-omni-utils spreads the frames from its first to its last, at a rate of its own; so it is told
    where the last one wanted lies. It takes even numbers only: an odd last one is fetched with the one before.
    """
    inside = min(count, max(1, math.ceil(length_s * rate_hz - 1e-6)))
    even = inside - inside % 2
    if not even:
        return [Stretch(2, None, None, (0, 1))]
    last = Stretch(2, (inside - 2) / rate_hz, (inside - 1) / rate_hz, (1, 2))
    return [Stretch(even, 0.0, (even - 1) / rate_hz), *([last] if inside > even else [])]


def _frames(told: JsonObject, count: int, rate_hz: float) -> torch.Tensor:
    """Return the frames at `k / rate_hz` seconds, the last one repeated where the video has ended."""
    import decord

    reader = decord.VideoReader(told["video"])
    found = stretches(len(reader) / reader.get_avg_fps(), count, rate_hz)
    frames = torch.cat([_fetched(told | one.told())[slice(*one.kept)] for one in found])
    return torch.cat([frames, frames[-1:].expand(count - len(frames), -1, -1, -1)])


def _fetched(told: JsonObject) -> torch.Tensor:
    from qwen_omni_utils import fetch_video

    frames: torch.Tensor = fetch_video(told, image_patch_size=_PATCH_PIXELS)
    return frames


def _make() -> Callable[[JsonObject], JsonObject]:
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    torch.set_num_threads(1)
    return PlainWay(Path(sys.argv[1])).answer


if __name__ == "__main__":
    sides.serve(_make)
